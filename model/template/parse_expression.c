/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Expressions, with Jinja's precedence: if-else, or, and, not, comparisons, + and -, ~,
 * * / // %, **, signs, then attributes, calls, filters and tests. A chain of operators
 * makes a tree as deep as it is long, so it counts as nesting. */
#include "model/template/template_internal.h"

static bool parse_unary(struct sdpi_parser *p, bool with_filters, struct sdpi_node **out);
static bool parse_or(struct sdpi_parser *p, struct sdpi_node **out);

static bool parse_plain(struct sdpi_parser *p, struct sdpi_node **out)
{
    return sdpi_parse_expression(p, true, out);
}

/* A node around *out, at the operator. */
static bool wrap(struct sdpi_parser *p, enum sdpi_node_kind kind, struct sdpi_node **out)
{
    struct sdpi_node *node = sdpi_parse_node(p, kind);

    if (!node)
        return false;
    node->a = *out;
    *out = node;
    return true;
}

/* -- primaries
 * ---------------------------------------------------------------------------- */

static bool parse_constant(struct sdpi_parser *p, struct sdpi_value value,
                           struct sdpi_node **out)
{
    if (!(*out = sdpi_parse_node(p, SDPI_N_CONST)))
        return false;
    (*out)->constant = value;
    p->at++;
    return true;
}

/* Texts that follow one another are one. */
static bool parse_strings(struct sdpi_parser *p, struct sdpi_node **out)
{
    size_t length = 0, used = 0, count = 0;
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_CONST);
    char *text;

    while (p->at[count].kind == SDPI_T_STRING)
        length += p->at[count++].length;
    if (!node || !(text = sdpi_arena_take(&p->t->arena, length + 1)))
        return sdpi_parse_fail(p, p->at, "the template is too large");
    for (; count-- > 0; p->at++) {
        memcpy(text + used, p->at->text, p->at->length);
        used += p->at->length;
    }
    node->constant = sdpi_string(text, length);
    *out = node;
    return true;
}

static bool parse_name(struct sdpi_parser *p, struct sdpi_node **out)
{
    if (sdpi_parse_is_name(p, "true") || sdpi_parse_is_name(p, "True"))
        return parse_constant(p, sdpi_bool(true), out);
    if (sdpi_parse_is_name(p, "false") || sdpi_parse_is_name(p, "False"))
        return parse_constant(p, sdpi_bool(false), out);
    if (sdpi_parse_is_name(p, "none") || sdpi_parse_is_name(p, "None"))
        return parse_constant(p, sdpi_none(), out);
    *out = sdpi_parse_node(p, SDPI_N_NAME);
    p->at++;
    return *out != NULL;
}

static bool parse_list(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_LIST), *item = NULL;

    p->at++;
    if (!node)
        return false;
    while (!sdpi_parse_accept(p, "]")) {
        if (node->count > 0 && !sdpi_parse_expect(p, ","))
            return false;
        if (sdpi_parse_accept(p, "]"))
            break;
        if (!parse_plain(p, &item) || !sdpi_parse_add(p, node, item))
            return false;
    }
    *out = node;
    return true;
}

static bool parse_dict(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_DICT), *key = NULL, *value = NULL;

    p->at++;
    if (!node)
        return false;
    while (!sdpi_parse_accept(p, "}")) {
        if (node->count > 0 && !sdpi_parse_expect(p, ","))
            return false;
        if (sdpi_parse_accept(p, "}"))
            break;
        if (!parse_plain(p, &key) || !sdpi_parse_expect(p, ":") ||
            !parse_plain(p, &value) || !sdpi_parse_add(p, node, key) ||
            !sdpi_parse_add(p, node, value))
            return false;
    }
    *out = node;
    return true;
}

static bool parse_brackets(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *empty;

    if (p->at[1].kind == SDPI_T_OP && p->at[1].text[0] == ')') {
        empty = sdpi_parse_node(p, SDPI_N_TUPLE);
        p->at += 2;
        *out = empty;
        return empty != NULL;
    }
    p->at++;
    return sdpi_parse_tuple(p, true, out) && sdpi_parse_expect(p, ")");
}

static bool parse_primary(struct sdpi_parser *p, struct sdpi_node **out)
{
    switch (p->at->kind) {
    case SDPI_T_NAME:
        return parse_name(p, out);
    case SDPI_T_STRING:
        return parse_strings(p, out);
    case SDPI_T_INT:
        return parse_constant(p, sdpi_int(p->at->integer), out);
    case SDPI_T_REAL:
        return parse_constant(p, sdpi_real(p->at->real), out);
    default:
        break;
    }
    if (sdpi_parse_is(p, "("))
        return parse_brackets(p, out);
    if (sdpi_parse_is(p, "["))
        return parse_list(p, out);
    if (sdpi_parse_is(p, "{"))
        return parse_dict(p, out);
    return sdpi_parse_fail(p, p->at, "an expression is expected here");
}

/* -- what follows a primary
 * ----------------------------------------------------------------- */

static bool parse_arguments(struct sdpi_parser *p, struct sdpi_node *call)
{
    bool keywords = false;

    if (!sdpi_parse_expect(p, "("))
        return false;
    while (!sdpi_parse_accept(p, ")")) {
        struct sdpi_node *item = NULL;

        if (call->count > 0 && !sdpi_parse_expect(p, ","))
            return false;
        if (sdpi_parse_accept(p, ")"))
            break;
        if (sdpi_parse_is(p, "*") || sdpi_parse_is(p, "**"))
            return sdpi_parse_fail(p, p->at,
                                   "arguments from a list (*) are not supported");
        if (p->at->kind == SDPI_T_NAME && p->at[1].kind == SDPI_T_OP &&
            p->at[1].length == 1 && p->at[1].text[0] == '=') {
            if (!(item = sdpi_parse_node(p, SDPI_N_KEYWORD)))
                return false;
            p->at += 2;
            keywords = true;
            if (!parse_plain(p, &item->a))
                return false;
        } else if (keywords) {
            return sdpi_parse_fail(p, p->at,
                                   "an argument without a name follows one with a name");
        } else if (!parse_plain(p, &item)) {
            return false;
        }
        if (!sdpi_parse_add(p, call, item))
            return false;
    }
    return true;
}

static bool parse_slice(struct sdpi_parser *p, struct sdpi_node *node,
                        struct sdpi_node *first)
{
    struct sdpi_node *parts[3] = {first, NULL, NULL};

    node->kind = SDPI_N_SLICE;
    for (size_t i = 1; i < 3 && sdpi_parse_accept(p, ":"); i++)
        if (!sdpi_parse_is(p, ":") && !sdpi_parse_is(p, "]") &&
            !parse_plain(p, &parts[i]))
            return false;
    for (size_t i = 0; i < 3; i++)
        if (!sdpi_parse_add(p, node, parts[i]))
            return false;
    return sdpi_parse_expect(p, "]");
}

static bool parse_subscript(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *key = NULL;

    if (!wrap(p, SDPI_N_ITEM, out))
        return false;
    p->at++;
    if (!sdpi_parse_is(p, ":") && !parse_plain(p, &key))
        return false;
    if (sdpi_parse_is(p, ":"))
        return parse_slice(p, *out, key);
    (*out)->b = key;
    return sdpi_parse_expect(p, "]");
}

static bool parse_attribute(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *of = *out;

    p->at++;
    if (p->at->kind == SDPI_T_INT) {
        if (!wrap(p, SDPI_N_ITEM, out))
            return false;
        return parse_constant(p, sdpi_int(p->at->integer), &(*out)->b);
    }
    if (p->at->kind != SDPI_T_NAME)
        return sdpi_parse_fail(p, p->at, "the name of an attribute is expected here");
    if (!(*out = sdpi_parse_node(p, SDPI_N_ATTR)))
        return false;
    (*out)->a = of;
    p->at++;
    return true;
}

static bool parse_postfix(struct sdpi_parser *p, struct sdpi_node **out, int *depth)
{
    for (;;) {
        bool good;

        if (sdpi_parse_is(p, "."))
            good = parse_attribute(p, out);
        else if (sdpi_parse_is(p, "["))
            good = parse_subscript(p, out);
        else if (sdpi_parse_is(p, "("))
            good = wrap(p, SDPI_N_CALL, out) && parse_arguments(p, *out);
        else
            return true;
        if (!good)
            return false;
        if (++*depth > SDPI_MAX_PARSE)
            return sdpi_parse_fail(p, p->at, "an expression is nested too deeply");
    }
}

static bool parse_filter(struct sdpi_parser *p, struct sdpi_node **out)
{
    p->at++;
    if (p->at->kind != SDPI_T_NAME)
        return sdpi_parse_fail(p, p->at, "the name of a filter is expected here");
    if (!wrap(p, SDPI_N_FILTER, out))
        return false;
    (*out)->filter = sdpi_find_filter(p->at->text, p->at->length);
    if (!(*out)->filter)
        return sdpi_parse_fail(
            p, p->at,
            "the filter \"%.*s\" is not supported; give the job a chat template "
            "without it (data.chat_template)",
            (int)SDP_MIN(p->at->length, (size_t)40), p->at->text);
    p->at++;
    return !sdpi_parse_is(p, "(") || parse_arguments(p, *out);
}

/* Whether a test's argument without brackets begins here, as in "is divisibleby 3". */
static bool begins_argument(const struct sdpi_parser *p)
{
    enum sdpi_token_kind kind = p->at->kind;

    if (kind == SDPI_T_NAME)
        return !sdpi_parse_is_name(p, "else") && !sdpi_parse_is_name(p, "or") &&
               !sdpi_parse_is_name(p, "and") && !sdpi_parse_is_name(p, "is") &&
               !sdpi_parse_is_name(p, "if");
    return kind == SDPI_T_STRING || kind == SDPI_T_INT || kind == SDPI_T_REAL ||
           sdpi_parse_is(p, "[") || sdpi_parse_is(p, "{");
}

static bool parse_test(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *argument = NULL, *node;
    bool negated;
    int depth = p->depth;

    p->at++;
    negated = sdpi_parse_accept_name(p, "not");
    if (p->at->kind != SDPI_T_NAME)
        return sdpi_parse_fail(p, p->at, "the name of a test is expected here");
    if (!wrap(p, SDPI_N_TEST, out))
        return false;
    node = *out;
    node->negated = negated;
    node->filter = sdpi_find_test(p->at->text, p->at->length);
    if (!node->filter)
        return sdpi_parse_fail(
            p, p->at,
            "the test \"%.*s\" is not supported; give the job a chat template "
            "without it (data.chat_template)",
            (int)SDP_MIN(p->at->length, (size_t)40), p->at->text);
    p->at++;
    if (sdpi_parse_is(p, "("))
        return parse_arguments(p, node);
    if (sdpi_parse_is_name(p, "is"))
        return sdpi_parse_fail(p, p->at, "tests cannot follow one another");
    if (!begins_argument(p))
        return true;
    return parse_primary(p, &argument) && parse_postfix(p, &argument, &depth) &&
           sdpi_parse_add(p, node, argument);
}

/* -- operators
 * --------------------------------------------------------------------------------- */

static bool parse_sign(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *node =
        sdpi_parse_node(p, sdpi_parse_is(p, "-") ? SDPI_N_NEGATIVE : SDPI_N_POSITIVE);

    p->at++;
    *out = node;
    return node && parse_unary(p, false, &node->a);
}

static bool parse_unary(struct sdpi_parser *p, bool with_filters, struct sdpi_node **out)
{
    int depth = p->depth;
    bool sign = sdpi_parse_is(p, "-") || sdpi_parse_is(p, "+");

    if (++p->depth > SDPI_MAX_PARSE)
        return sdpi_parse_fail(p, p->at, "an expression is nested too deeply");
    if (!(sign ? parse_sign(p, out) : parse_primary(p, out)) ||
        !parse_postfix(p, out, &depth))
        return false;
    while (with_filters) {
        bool good = true;

        if (sdpi_parse_is(p, "|"))
            good = parse_filter(p, out);
        else if (sdpi_parse_is_name(p, "is"))
            good = parse_test(p, out);
        else if (sdpi_parse_is(p, "("))
            good = wrap(p, SDPI_N_CALL, out) && parse_arguments(p, *out);
        else
            break;
        if (!good)
            return false;
        if (++depth > SDPI_MAX_PARSE)
            return sdpi_parse_fail(p, p->at, "an expression is nested too deeply");
    }
    p->depth--;
    return true;
}

struct level {
    const char *text;
    enum sdpi_operator op;
};

static bool find_operator(const struct sdpi_parser *p, const struct level *level,
                          enum sdpi_operator *op)
{
    for (; level->text; level++)
        if (sdpi_parse_is(p, level->text)) {
            *op = level->op;
            return true;
        }
    return false;
}

/* Operators of one level, from left to right. */
static bool parse_level(struct sdpi_parser *p, const struct level *level,
                        bool (*operand)(struct sdpi_parser *p, struct sdpi_node **out),
                        struct sdpi_node **out)
{
    enum sdpi_operator op;
    int depth = p->depth;

    if (!operand(p, out))
        return false;
    while (find_operator(p, level, &op)) {
        if (!wrap(p, SDPI_N_BINARY, out))
            return false;
        (*out)->op = op;
        p->at++;
        if (!operand(p, &(*out)->b))
            return false;
        if (++depth > SDPI_MAX_PARSE)
            return sdpi_parse_fail(p, p->at,
                                   "an expression has too many operators in a row");
    }
    return true;
}

static bool parse_filtered(struct sdpi_parser *p, struct sdpi_node **out)
{
    return parse_unary(p, true, out);
}

static bool parse_power(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const struct level level[] = {{"**", SDPI_POWER}, {NULL, SDPI_ADD}};

    return parse_level(p, level, parse_filtered, out);
}

static bool parse_product(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const struct level level[] = {{"*", SDPI_MULTIPLY},
                                         {"/", SDPI_DIVIDE},
                                         {"//", SDPI_FLOOR_DIVIDE},
                                         {"%", SDPI_MODULO},
                                         {NULL, SDPI_ADD}};

    return parse_level(p, level, parse_power, out);
}

static bool parse_concat(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *node, *item = NULL;

    if (!parse_product(p, out))
        return false;
    if (!sdpi_parse_is(p, "~"))
        return true;
    if (!(node = sdpi_parse_node(p, SDPI_N_CONCAT)) || !sdpi_parse_add(p, node, *out))
        return false;
    while (sdpi_parse_accept(p, "~"))
        if (!parse_product(p, &item) || !sdpi_parse_add(p, node, item))
            return false;
    *out = node;
    return true;
}

static bool parse_sum(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const struct level level[] = {
        {"+", SDPI_ADD}, {"-", SDPI_SUBTRACT}, {NULL, SDPI_ADD}};

    return parse_level(p, level, parse_concat, out);
}

static bool find_comparison(struct sdpi_parser *p, enum sdpi_operator *op)
{
    static const struct level level[] = {
        {"==", SDPI_EQUAL},      {"!=", SDPI_NOT_EQUAL},
        {"<=", SDPI_LESS_EQUAL}, {">=", SDPI_GREATER_EQUAL},
        {"<", SDPI_LESS},        {">", SDPI_GREATER},
        {NULL, SDPI_ADD}};

    *op = SDPI_IN;
    if (sdpi_parse_is_name(p, "in"))
        return true;
    if (sdpi_parse_is_name(p, "not") && p->at[1].kind == SDPI_T_NAME &&
        p->at[1].length == 2 && memcmp(p->at[1].text, "in", 2) == 0) {
        *op = SDPI_NOT_IN;
        p->at++;
        return true;
    }
    return find_operator(p, level, op);
}

static bool parse_compare(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *node = NULL;
    enum sdpi_operator op;

    if (!parse_sum(p, out))
        return false;
    while (find_comparison(p, &op)) {
        struct sdpi_node *operand = sdpi_parse_node(p, SDPI_N_OPERAND);

        if (!node && (!wrap(p, SDPI_N_COMPARE, out) || !(node = *out)))
            return false;
        p->at++;
        if (!operand || !parse_sum(p, &operand->a) || !sdpi_parse_add(p, node, operand))
            return false;
        operand->op = op;
    }
    return true;
}

static bool parse_not(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *node;
    bool good;

    if (!sdpi_parse_is_name(p, "not"))
        return parse_compare(p, out);
    if (++p->depth > SDPI_MAX_PARSE)
        return sdpi_parse_fail(p, p->at, "an expression is nested too deeply");
    node = sdpi_parse_node(p, SDPI_N_NOT);
    p->at++;
    *out = node;
    good = node && parse_not(p, &node->a);
    p->depth--;
    return good;
}

static bool parse_words(struct sdpi_parser *p, const char *word, enum sdpi_node_kind kind,
                        bool (*operand)(struct sdpi_parser *p, struct sdpi_node **out),
                        struct sdpi_node **out)
{
    int depth = p->depth;

    if (!operand(p, out))
        return false;
    while (sdpi_parse_is_name(p, word)) {
        if (!wrap(p, kind, out))
            return false;
        p->at++;
        if (!operand(p, &(*out)->b))
            return false;
        if (++depth > SDPI_MAX_PARSE)
            return sdpi_parse_fail(p, p->at,
                                   "an expression has too many operators in a row");
    }
    return true;
}

static bool parse_and(struct sdpi_parser *p, struct sdpi_node **out)
{
    return parse_words(p, "and", SDPI_N_AND, parse_not, out);
}

static bool parse_or(struct sdpi_parser *p, struct sdpi_node **out)
{
    return parse_words(p, "or", SDPI_N_OR, parse_and, out);
}

static bool parse_if_else(struct sdpi_parser *p, struct sdpi_node **out)
{
    int depth = p->depth;

    if (!parse_or(p, out))
        return false;
    while (sdpi_parse_is_name(p, "if")) {
        if (!wrap(p, SDPI_N_IF_ELSE, out))
            return false;
        p->at++;
        if (!parse_or(p, &(*out)->b))
            return false;
        if (sdpi_parse_accept_name(p, "else") &&
            !sdpi_parse_expression(p, true, &(*out)->c))
            return false;
        if (++depth > SDPI_MAX_PARSE)
            return sdpi_parse_fail(p, p->at,
                                   "an expression has too many operators in a row");
    }
    return true;
}

bool sdpi_parse_expression(struct sdpi_parser *p, bool with_if, struct sdpi_node **out)
{
    bool good;

    if (++p->depth > SDPI_MAX_PARSE)
        return sdpi_parse_fail(p, p->at, "an expression is nested too deeply");
    good = with_if ? parse_if_else(p, out) : parse_or(p, out);
    p->depth--;
    return good;
}

static bool ends_tuple(const struct sdpi_parser *p)
{
    return p->at->kind == SDPI_T_CLOSE_OUTPUT || p->at->kind == SDPI_T_CLOSE_BLOCK ||
           sdpi_parse_is(p, ")") || sdpi_parse_is_name(p, "recursive");
}

bool sdpi_parse_tuple(struct sdpi_parser *p, bool with_if, struct sdpi_node **out)
{
    struct sdpi_node *tuple = NULL, *item = NULL;

    if (!sdpi_parse_expression(p, with_if, out))
        return false;
    while (sdpi_parse_is(p, ",")) {
        if (!tuple && (!(tuple = sdpi_parse_node(p, SDPI_N_TUPLE)) ||
                       !sdpi_parse_add(p, tuple, *out)))
            return false;
        p->at++;
        *out = tuple;
        if (ends_tuple(p))
            break;
        if (!sdpi_parse_expression(p, with_if, &item) || !sdpi_parse_add(p, tuple, item))
            return false;
    }
    return true;
}
