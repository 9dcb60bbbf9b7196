/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The expressions in "${...}" of a family template. From weakest to strongest:
 *
 *     a ? b : c        a is true or false
 *     a || b, a && b   true or false
 *     a == b, a != b   anything;   a < b, a <= b, a > b, a >= b   numbers
 *     a + b, a - b, a * b, a / b, a % b, -a, !a
 *     12, 1e-6, 'text', true, false, null, a variable, (a)
 *
 * Numbers are integers as long as they can be: a quotient is one where it has no
 * remainder. All parts are computed, also the ones that are not chosen. */
#include "model/families/family_internal.h"

#include "graph/base/util.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#define MAX_DEPTH 64

enum kind { KIND_NULL, KIND_BOOL, KIND_INTEGER, KIND_REAL, KIND_TEXT, KIND_JSON };

struct value {
    enum kind kind;
    bool truth;
    int64_t integer;
    double real;      /* also of an integer */
    const char *text; /* [borrowed] not NUL-ended */
    size_t length;
    const json_t *json; /* [borrowed] an object or a list */
};

struct parser {
    const char *at, *end;
    const json_t *variables;
    const struct sdp_json *place;
    int depth;
    bool failed;
};

static const struct value nothing = {.kind = KIND_NULL};

static struct value parse_choice(struct parser *p);

static struct value fail(struct parser *p, const char *what)
{
    if (!p->failed)
        sdp_json_fail(p->place, "the expression is wrong at \"%.*s\": %s",
                      (int)SDP_MIN(p->end - p->at, 40), p->at, what);
    p->failed = true;
    return nothing;
}

/* -- values ------------------------------------------------------------------- */

static struct value from_bool(bool truth)
{
    return (struct value){.kind = KIND_BOOL, .truth = truth};
}

static struct value from_integer(int64_t integer)
{
    return (struct value){
        .kind = KIND_INTEGER, .integer = integer, .real = (double)integer};
}

static struct value from_real(double real)
{
    return (struct value){.kind = KIND_REAL, .real = real};
}

static struct value from_json(const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_TRUE:
    case JSON_FALSE:
        return from_bool(json_is_true(json));
    case JSON_INTEGER:
        return from_integer((int64_t)json_integer_value(json));
    case JSON_REAL:
        return from_real(json_real_value(json));
    case JSON_STRING:
        return (struct value){.kind = KIND_TEXT,
                              .text = json_string_value(json),
                              .length = json_string_length(json)};
    case JSON_NULL:
        return nothing;
    default:
        return (struct value){.kind = KIND_JSON, .json = json};
    }
}

static json_t *to_json(const struct value *value)
{
    switch (value->kind) {
    case KIND_BOOL:
        return json_boolean(value->truth);
    case KIND_INTEGER:
        return json_integer((json_int_t)value->integer);
    case KIND_REAL:
        return json_real(value->real);
    case KIND_TEXT:
        return json_stringn(value->text, value->length);
    case KIND_JSON:
        return json_deep_copy(value->json);
    default:
        return json_null();
    }
}

static bool is_number(const struct value *value)
{
    return value->kind == KIND_INTEGER || value->kind == KIND_REAL;
}

static bool equal(const struct value *a, const struct value *b)
{
    if (is_number(a) && is_number(b))
        return a->real == b->real;
    if (a->kind != b->kind)
        return false;
    if (a->kind == KIND_TEXT)
        return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
    return a->kind == KIND_NULL || (a->kind == KIND_BOOL && a->truth == b->truth);
}

/* -- words -------------------------------------------------------------------- */

static void skip_space(struct parser *p)
{
    while (p->at < p->end && isspace((unsigned char)*p->at))
        p->at++;
}

static bool take(struct parser *p, const char *word)
{
    size_t length = strlen(word);

    skip_space(p);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
        return false;
    p->at += length;
    return true;
}

/* The next letter, if it is one of `signs`; else 0. */
static char take_sign(struct parser *p, const char *signs)
{
    skip_space(p);
    if (p->at == p->end || !*p->at || !strchr(signs, *p->at))
        return '\0';
    return *p->at++;
}

static struct value parse_number(struct parser *p)
{
    char text[64], *end;
    size_t length = SDP_MIN((size_t)(p->end - p->at), sizeof text - 1);
    long long integer;
    double real;

    memcpy(text, p->at, length);
    text[length] = '\0';
    errno = 0;
    integer = strtoll(text, &end, 10);
    if (*end != '.' && *end != 'e' && *end != 'E' && errno == 0) {
        p->at += end - text;
        return from_integer(integer);
    }
    real = strtod(text, &end);
    p->at += end - text;
    return isfinite(real) ? from_real(real) : fail(p, "the number is too large");
}

static struct value parse_text(struct parser *p)
{
    struct value value = {.kind = KIND_TEXT, .text = ++p->at};

    while (p->at < p->end && *p->at != '\'')
        p->at++;
    if (p->at == p->end)
        return fail(p, "a text is not closed");
    value.length = (size_t)(p->at++ - value.text);
    return value;
}

static struct value fail_variable(struct parser *p, const char *name)
{
    size_t count = json_object_size(p->variables), i = 0;
    const char **names = sdp_xcalloc(count + 1, sizeof *names), *key, *nearest;
    json_t *value;

    json_object_foreach((json_t *)p->variables, key, value) names[i++] = key;
    nearest = sdp_nearest(name, names);
    free(names);
    if (!p->failed)
        sdp_json_fail(p->place, "unknown variable \"%s\"%s%s%s", name,
                      nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                      nearest ? "\"?" : "");
    p->failed = true;
    return nothing;
}

static struct value parse_word(struct parser *p)
{
    char name[64];
    size_t length = 0;
    const json_t *value;

    while (p->at + length < p->end && length < sizeof name - 1 &&
           (isalnum((unsigned char)p->at[length]) || p->at[length] == '_'))
        length++;
    memcpy(name, p->at, length);
    name[length] = '\0';
    if (length == 0)
        return fail(p, "a value is missing");
    p->at += length;
    if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0)
        return from_bool(*name == 't');
    if (strcmp(name, "null") == 0)
        return nothing;
    value = json_object_get(p->variables, name);
    return value ? from_json(value) : fail_variable(p, name);
}

/* -- operators ---------------------------------------------------------------- */

static struct value parse_value(struct parser *p)
{
    struct value value;

    skip_space(p);
    if (p->depth > MAX_DEPTH)
        return fail(p, "it is nested too deeply");
    if (take(p, "(")) {
        p->depth++;
        value = parse_choice(p);
        p->depth--;
        return take(p, ")") ? value : fail(p, "\")\" is missing");
    }
    if (p->at < p->end && isdigit((unsigned char)*p->at))
        return parse_number(p);
    if (p->at < p->end && *p->at == '\'')
        return parse_text(p);
    return parse_word(p);
}

static struct value parse_sign(struct parser *p)
{
    bool negative = take(p, "-"), inverse = !negative && take(p, "!");
    struct value value;

    if (!negative && !inverse)
        return parse_value(p);
    p->depth++;
    value = p->depth > MAX_DEPTH ? fail(p, "it is nested too deeply") : parse_sign(p);
    p->depth--;
    if (p->failed)
        return nothing;
    if (inverse)
        return value.kind == KIND_BOOL ? from_bool(!value.truth)
                                       : fail(p, "! needs true or false before this");
    if (!is_number(&value) || (value.kind == KIND_INTEGER && value.integer == INT64_MIN))
        return fail(p, "- needs a number before this");
    return value.kind == KIND_INTEGER ? from_integer(-value.integer)
                                      : from_real(-value.real);
}

/* Of integers, where the result is one. */
static bool compute_integer(char sign, int64_t a, int64_t b, int64_t *out)
{
    switch (sign) {
    case '+':
        return !__builtin_add_overflow(a, b, out);
    case '-':
        return !__builtin_sub_overflow(a, b, out);
    case '*':
        return !__builtin_mul_overflow(a, b, out);
    default: /* INT64_MIN / -1 overflows */
        if (b == 0 || b == -1 || (sign == '/' && a % b != 0))
            return false;
        *out = sign == '/' ? a / b : a % b;
        return true;
    }
}

static struct value compute(struct parser *p, char sign, const struct value *a,
                            const struct value *b)
{
    int64_t integer;
    double real;

    if (p->failed)
        return nothing;
    if (!is_number(a) || !is_number(b))
        return fail(p, "+ - * / % need numbers before this");
    if ((sign == '/' || sign == '%') && b->real == 0.0)
        return fail(p, "a division by 0 before this");
    if (a->kind == KIND_INTEGER && b->kind == KIND_INTEGER &&
        compute_integer(sign, a->integer, b->integer, &integer))
        return from_integer(integer);
    real = sign == '+'   ? a->real + b->real
           : sign == '-' ? a->real - b->real
           : sign == '*' ? a->real * b->real
           : sign == '/' ? a->real / b->real
                         : fmod(a->real, b->real);
    return isfinite(real) ? from_real(real)
                          : fail(p, "the number before this is too large");
}

static struct value parse_product(struct parser *p)
{
    struct value left = parse_sign(p);

    while (!p->failed) {
        char sign = take_sign(p, "*/%");
        struct value right;

        if (!sign)
            break;
        right = parse_sign(p);
        left = compute(p, sign, &left, &right);
    }
    return left;
}

static struct value parse_sum(struct parser *p)
{
    struct value left = parse_product(p);

    while (!p->failed) {
        char sign = take_sign(p, "+-");
        struct value right;

        if (!sign)
            break;
        right = parse_product(p);
        left = compute(p, sign, &left, &right);
    }
    return left;
}

static struct value parse_comparison(struct parser *p)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    struct value left = parse_sum(p), right;
    size_t sign = 0;

    while (!p->failed && sign < SDP_COUNT_OF(signs) && !take(p, signs[sign]))
        sign++;
    if (p->failed || sign == SDP_COUNT_OF(signs))
        return left;
    right = parse_sum(p);
    if (p->failed)
        return nothing;
    if (sign < 2)
        return from_bool(equal(&left, &right) == (sign == 0));
    if (!is_number(&left) || !is_number(&right))
        return fail(p, "< <= > >= need numbers before this");
    return from_bool(sign == 2   ? left.real <= right.real
                     : sign == 3 ? left.real >= right.real
                     : sign == 4 ? left.real < right.real
                                 : left.real > right.real);
}

static struct value parse_logic(struct parser *p, bool either)
{
    struct value left = either ? parse_logic(p, false) : parse_comparison(p);

    while (!p->failed && take(p, either ? "||" : "&&")) {
        struct value right = either ? parse_logic(p, false) : parse_comparison(p);

        if (p->failed)
            return nothing;
        if (left.kind != KIND_BOOL || right.kind != KIND_BOOL)
            return fail(p, "&& and || need true or false before this");
        left = from_bool(either ? left.truth || right.truth : left.truth && right.truth);
    }
    return left;
}

static struct value parse_choice(struct parser *p)
{
    struct value condition = parse_logic(p, true), yes, no;

    if (p->failed || !take(p, "?"))
        return condition;
    p->depth++;
    yes = p->depth > MAX_DEPTH ? fail(p, "it is nested too deeply") : parse_choice(p);
    if (!p->failed && !take(p, ":"))
        fail(p, "\":\" is missing");
    no = p->failed ? nothing : parse_choice(p);
    p->depth--;
    if (p->failed)
        return nothing;
    if (condition.kind != KIND_BOOL)
        return fail(p, "? needs true or false before it");
    return condition.truth ? yes : no;
}

/* -- texts -------------------------------------------------------------------- */

static bool evaluate(const struct sdp_json *at, const char *text, size_t length,
                     const json_t *variables, struct value *out)
{
    struct parser parser = {
        .at = text, .end = text + length, .variables = variables, .place = at};

    *out = parse_choice(&parser);
    skip_space(&parser);
    if (!parser.failed && parser.at < parser.end)
        fail(&parser, "nothing may follow");
    return !parser.failed;
}

/* Appends a value as text. */
static char *append_value(char *text, const struct value *value)
{
    char *longer;

    if (value->kind == KIND_TEXT)
        longer = sdp_xprintf("%s%.*s", text, (int)value->length, value->text);
    else if (value->kind == KIND_INTEGER)
        longer = sdp_xprintf("%s%lld", text, (long long)value->integer);
    else if (value->kind == KIND_REAL)
        longer = sdp_xprintf("%s%.9g", text, value->real);
    else
        longer = sdp_xprintf("%s%s", text,
                             value->kind != KIND_BOOL ? "null"
                             : value->truth           ? "true"
                                                      : "false");
    free(text);
    return longer;
}

/* Start of the next "${" with the end of its expression, or false. */
static bool next_expression(const char *text, const char **start, const char **end)
{
    *start = strstr(text, "${");
    *end = *start ? strchr(*start, '}') : NULL;
    return *end != NULL;
}

json_t *sdpi_expression_text(const struct sdp_json *at, const char *text,
                             const json_t *variables)
{
    const char *start, *end;
    struct value value;
    json_t *result;
    char *out, *longer;

    if (next_expression(text, &start, &end) && start == text && !end[1])
        return evaluate(at, text + 2, (size_t)(end - text - 2), variables, &value)
                   ? to_json(&value)
                   : NULL;
    out = sdp_xstrdup("");
    while (next_expression(text, &start, &end)) {
        longer = sdp_xprintf("%s%.*s", out, (int)(start - text), text);
        free(out);
        out = longer;
        if (!evaluate(at, start + 2, (size_t)(end - start - 2), variables, &value)) {
            free(out);
            return NULL;
        }
        out = append_value(out, &value);
        text = end + 1;
    }
    longer = sdp_xprintf("%s%s", out, text);
    result = json_string(longer);
    free(out);
    free(longer);
    return result;
}
