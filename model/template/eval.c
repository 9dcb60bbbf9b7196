/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Expressions of a template, computed as Python would. */
#include "model/template/template_internal.h"

#define MAX_PARAMETERS 8

/* -- arguments
 * --------------------------------------------------------------------------------- */

bool sdpi_given(const struct sdpi_value *argument)
{
    return argument->kind != SDPI_UNDEFINED || argument->p.text;
}

bool sdpi_take_args(struct sdpi_render *r, const struct sdpi_node *at,
                    const struct sdpi_args *args, const char *const *names, size_t count,
                    struct sdpi_value *values)
{
    if (args->count > count)
        return sdpi_fail(r, at, "\"%.*s\" takes at most %zu arguments, not %zu",
                         (int)at->length, at->text, count, args->count);
    for (size_t i = 0; i < count; i++)
        values[i] = i < args->count ? args->items[i] : sdpi_undefined(NULL);
    for (size_t k = 0; k < args->keyword_count; k++) {
        const struct sdpi_keyword *keyword = &args->keywords[k];
        size_t i = 0;

        while (i < count && (strlen(names[i]) != keyword->length ||
                             memcmp(names[i], keyword->name, keyword->length) != 0))
            i++;
        if (i == count || i < args->count)
            return sdpi_fail(r, at, "\"%.*s\" takes no argument \"%.*s\" here",
                             (int)at->length, at->text, (int)keyword->length,
                             keyword->name);
        values[i] = keyword->value;
    }
    return true;
}

static bool eval_args(struct sdpi_render *r, struct sdpi_scope *scope,
                      const struct sdpi_node *node, struct sdpi_args *args)
{
    *args = (struct sdpi_args){.count = 0};
    if (node->count == 0)
        return true;
    args->items = sdpi_take(r, node->count * sizeof *args->items);
    args->keywords = sdpi_take(r, node->count * sizeof *args->keywords);
    if (!args->items || !args->keywords)
        return false;
    for (size_t i = 0; i < node->count; i++) {
        const struct sdpi_node *item = node->items[i];
        struct sdpi_value value = sdpi_none();
        bool keyword = item->kind == SDPI_N_KEYWORD;

        if (!sdpi_eval(r, scope, keyword ? item->a : item, &value))
            return false;
        if (value.kind == SDPI_UNDEFINED && !value.p.text)
            value.p.text = "value"; /* given, though undefined */
        if (keyword)
            args->keywords[args->keyword_count++] =
                (struct sdpi_keyword){item->text, item->length, value};
        else
            args->items[args->count++] = value;
    }
    return true;
}

/* -- attributes and items
 * -------------------------------------------------------------------------- */

static bool loop_attribute(struct sdpi_render *r, const struct sdpi_node *at,
                           const struct sdpi_loop *loop, const char *name, size_t length,
                           struct sdpi_value *out)
{
    size_t count = loop->items->count, i = loop->at;
    const struct {
        const char *name;
        struct sdpi_value value;
    } known[] = {
        {"index", sdpi_int((int64_t)i + 1)},
        {"index0", sdpi_int((int64_t)i)},
        {"revindex", sdpi_int((int64_t)(count - i))},
        {"revindex0", sdpi_int((int64_t)(count - i) - 1)},
        {"first", sdpi_bool(i == 0)},
        {"last", sdpi_bool(i + 1 == count)},
        {"length", sdpi_int((int64_t)count)},
        {"previtem", i > 0 ? loop->items->items[i - 1] : sdpi_undefined("previtem")},
        {"nextitem",
         i + 1 < count ? loop->items->items[i + 1] : sdpi_undefined("nextitem")},
    };

    for (size_t k = 0; k < SDP_COUNT_OF(known); k++)
        if (strlen(known[k].name) == length && memcmp(known[k].name, name, length) == 0) {
            *out = known[k].value;
            return true;
        }
    return sdpi_fail(r, at, "loop.%.*s is not supported", (int)length, name);
}

static bool bind_method(struct sdpi_render *r, const struct sdpi_value *of,
                        const struct sdpi_method_entry *entry, struct sdpi_value *out)
{
    struct sdpi_method *method = sdpi_take(r, sizeof *method);

    if (!method)
        return false;
    method->self = *of;
    method->entry = entry;
    *out = (struct sdpi_value){.kind = SDPI_METHOD};
    out->p.method = method;
    return true;
}

static bool undefined_has_none(struct sdpi_render *r, const struct sdpi_node *at,
                               const struct sdpi_value *of)
{
    return sdpi_fail(r, at, "%s is undefined, so it has no parts",
                     of->p.text ? of->p.text : "the value");
}

/* The names of a tree live as long as the template, so a message may use them: made
 * NUL-ended. */
static bool missing(struct sdpi_render *r, const char *name, size_t length,
                    struct sdpi_value *out)
{
    struct sdpi_value copy;

    if (!sdpi_copy_string(r, name, SDP_MIN(length, (size_t)64), &copy))
        return false;
    *out = sdpi_undefined(copy.p.text);
    return true;
}

bool sdpi_get_attribute(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *of, const char *name, size_t length,
                        struct sdpi_value *out)
{
    const struct sdpi_method_entry *entry = sdpi_find_method(of, name, length);
    const struct sdpi_value *found = NULL;

    if (of->kind == SDPI_UNDEFINED)
        return undefined_has_none(r, at, of);
    if (of->kind == SDPI_LOOP)
        return loop_attribute(r, at, of->p.loop, name, length, out);
    if (entry && !entry->call)
        return sdpi_fail(r, at, "the method \"%.*s\" of a %s is not supported",
                         (int)length, name, sdpi_type_name(of));
    if (entry)
        return bind_method(r, of, entry, out);
    if (of->kind == SDPI_DICT || of->kind == SDPI_NAMESPACE)
        found = sdpi_dict_find(of->p.dict, name, length);
    if (!found)
        return missing(r, name, length, out);
    *out = *found;
    return true;
}

static bool item_at(struct sdpi_render *r, const struct sdpi_value *of, int64_t index,
                    struct sdpi_value *out)
{
    size_t count = 0;

    if (!sdpi_length(r, of, &count))
        return false;
    if (index < 0)
        index += (int64_t)count;
    if (index < 0 || (size_t)index >= count)
        return missing(r, "item", 4, out);
    if (of->kind == SDPI_STRING) {
        size_t start = sdpi_character_offset(of->p.text, of->u.length, (size_t)index);
        size_t end = sdpi_character_offset(of->p.text, of->u.length, (size_t)index + 1);

        *out = sdpi_string(of->p.text + start, end - start);
        return sdpi_charge(r, of->u.length / 256);
    }
    *out = of->p.list->items[index];
    return true;
}

bool sdpi_get_item(struct sdpi_render *r, const struct sdpi_node *at,
                   const struct sdpi_value *of, const struct sdpi_value *key,
                   struct sdpi_value *out)
{
    const struct sdpi_value *found = NULL;
    bool is_index = key->kind == SDPI_INT || key->kind == SDPI_BOOL;

    if (of->kind == SDPI_UNDEFINED)
        return undefined_has_none(r, at, of);
    if ((of->kind == SDPI_STRING || sdpi_is_list(of)) && is_index)
        return item_at(r, of, key->kind == SDPI_INT ? key->u.integer : key->u.truth, out);
    if (of->kind == SDPI_DICT && key->kind != SDPI_STRING) {
        for (size_t i = 0; i < of->p.dict->count; i++) {
            bool same = false;

            if (!sdpi_equal(r, &of->p.dict->entries[i].key, key, &same))
                return false;
            if (same) {
                *out = of->p.dict->entries[i].value;
                return true;
            }
        }
    }
    if (key->kind != SDPI_STRING)
        return missing(r, "item", 4, out);
    if (of->kind == SDPI_DICT)
        found = sdpi_dict_find(of->p.dict, key->p.text, key->u.length);
    if (!found)
        return sdpi_get_attribute(r, at, of, key->p.text, key->u.length, out);
    *out = *found;
    return true;
}

/* -- slices
 * --------------------------------------------------------------------------------------------
 */

static bool slice_part(struct sdpi_render *r, struct sdpi_scope *scope,
                       const struct sdpi_node *part, bool *given, bool *wrong,
                       int64_t *out)
{
    struct sdpi_value value = sdpi_none();

    if (part && !sdpi_eval(r, scope, part, &value))
        return false;
    *given = value.kind == SDPI_INT || value.kind == SDPI_BOOL;
    *wrong = *wrong || (!*given && value.kind != SDPI_NONE);
    if (*given)
        *out = value.kind == SDPI_INT ? value.u.integer : value.u.truth;
    return true;
}

/* Python's rules for bounds of a slice of `count` items. */
static int64_t clamp(int64_t at, int64_t count, bool backwards)
{
    if (at < 0) {
        at = at < -count ? -1 : at + count;
        return at < 0 ? (backwards ? -1 : 0) : at;
    }
    return at >= count ? (backwards ? count - 1 : count) : at;
}

static bool take_slice(struct sdpi_render *r, const struct sdpi_value *of, int64_t first,
                       int64_t last, int64_t step, struct sdpi_value *out)
{
    const struct sdpi_list *list = NULL;
    struct sdpi_value text = *of;

    if (of->kind == SDPI_STRING && step == 1) {
        size_t start = sdpi_character_offset(of->p.text, of->u.length, (size_t)first);
        size_t end = last > first
                         ? sdpi_character_offset(of->p.text, of->u.length, (size_t)last)
                         : start;

        *out = sdpi_string(of->p.text + start, end - start);
        return sdpi_charge(r, of->u.length / 256);
    }
    if (!sdpi_iterate(r, &text, &list) ||
        !sdpi_new_list(r, of->kind == SDPI_TUPLE ? SDPI_TUPLE : SDPI_LIST, out))
        return false;
    for (int64_t i = first; step > 0 ? i < last : i > last; i += step)
        if (!sdpi_charge(r, 1) || !sdpi_list_add(r, out->p.list, &list->items[i]))
            return false;
    text = *out;
    return of->kind != SDPI_STRING || sdpi_join(r, text.p.list, "", 0, true, out);
}

static bool eval_slice(struct sdpi_render *r, struct sdpi_scope *scope,
                       const struct sdpi_node *node, struct sdpi_value *out)
{
    int64_t part[3] = {0, 0, 1}, count;
    bool given[3], wrong = false;
    struct sdpi_value of = sdpi_none();
    size_t length = 0;

    if (!sdpi_eval(r, scope, node->a, &of))
        return false;
    for (size_t i = 0; i < 3; i++)
        if (!slice_part(r, scope, node->items[i], &given[i], &wrong, &part[i]))
            return false;
    r->at = node;
    if (of.kind == SDPI_UNDEFINED)
        return undefined_has_none(r, node, &of);
    if (wrong || (of.kind != SDPI_STRING && !sdpi_is_list(&of)))
        return missing(r, "slice", 5, out);
    if (part[2] == 0)
        return sdpi_fail(r, node, "a slice with step 0");
    if (!sdpi_length(r, &of, &length))
        return false;
    count = (int64_t)length;
    part[2] = SDP_MAX(SDP_MIN(part[2], count + 1), -count - 1);
    part[0] = given[0] ? clamp(part[0], count, part[2] < 0) : part[2] < 0 ? count - 1 : 0;
    part[1] = given[1] ? clamp(part[1], count, part[2] < 0) : part[2] < 0 ? -1 : count;
    return take_slice(r, &of, part[0], part[1], part[2], out);
}

/* -- arithmetic
 * --------------------------------------------------------------------------------------------
 */

static bool repeat(struct sdpi_render *r, const struct sdpi_node *at,
                   const struct sdpi_value *what, int64_t times, struct sdpi_value *out)
{
    bool text = what->kind == SDPI_STRING;
    size_t length = text ? what->u.length : what->p.list->count, total = 0;
    char *copy;

    if (times < 0 || length == 0)
        times = 0;
    if (!sdp_size_mul(length, (size_t)times, &total) || total > SDPI_MAX_OUTPUT)
        return sdpi_fail(r, at, "a text or list becomes too long");
    if (!sdpi_charge(r, text ? total / 256 : total))
        return false;
    if (!text) {
        if (!sdpi_new_list(r, what->kind, out))
            return false;
        for (size_t i = 0; i < total; i++)
            if (!sdpi_list_add(r, out->p.list, &what->p.list->items[i % length]))
                return false;
        return true;
    }
    if (!(copy = sdpi_take(r, total + 1)))
        return false;
    for (size_t i = 0; i < (size_t)times; i++)
        memcpy(copy + i * length, what->p.text, length);
    *out = sdpi_string(copy, total);
    return true;
}

static bool add_texts(struct sdpi_render *r, const struct sdpi_value *a,
                      const struct sdpi_value *b, struct sdpi_value *out)
{
    size_t length = a->u.length + b->u.length;
    char *text = sdpi_take(r, length + 1);

    if (!text || !sdpi_charge(r, length / 256))
        return false;
    memcpy(text, a->p.text, a->u.length);
    memcpy(text + a->u.length, b->p.text, b->u.length);
    *out = sdpi_string(text, length);
    return true;
}

static bool add_lists(struct sdpi_render *r, const struct sdpi_value *a,
                      const struct sdpi_value *b, struct sdpi_value *out)
{
    if (!sdpi_new_list(r, a->kind, out) ||
        !sdpi_charge(r, a->p.list->count + b->p.list->count))
        return false;
    for (size_t i = 0; i < a->p.list->count; i++)
        if (!sdpi_list_add(r, out->p.list, &a->p.list->items[i]))
            return false;
    for (size_t i = 0; i < b->p.list->count; i++)
        if (!sdpi_list_add(r, out->p.list, &b->p.list->items[i]))
            return false;
    return true;
}

static bool integer_power(int64_t base, int64_t exponent, int64_t *out)
{
    int64_t result = 1;

    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(result, base, &result))
            return false;
        if (base == 1 || base == 0)
            break;
        if (base == -1) {
            result = exponent % 2 ? -1 : 1;
            break;
        }
    }
    *out = result;
    return true;
}

static bool integers(struct sdpi_render *r, const struct sdpi_node *at,
                     enum sdpi_operator op, int64_t a, int64_t b, struct sdpi_value *out)
{
    int64_t result = 0;
    bool good = true;

    switch (op) {
    case SDPI_ADD:
        good = !__builtin_add_overflow(a, b, &result);
        break;
    case SDPI_SUBTRACT:
        good = !__builtin_sub_overflow(a, b, &result);
        break;
    case SDPI_MULTIPLY:
        good = !__builtin_mul_overflow(a, b, &result);
        break;
    case SDPI_POWER:
        good = b >= 0 && integer_power(a, b, &result);
        break;
    case SDPI_FLOOR_DIVIDE:
        good = !(a == INT64_MIN && b == -1);
        if (good)
            result = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    default:
        result = b == -1 ? 0 : a % b;
        if (result != 0 && (result < 0) != (b < 0))
            result += b;
    }
    *out = sdpi_int(result);
    return good || sdpi_fail(r, at, "an integer becomes too large");
}

static bool numbers(struct sdpi_render *r, const struct sdpi_node *at,
                    enum sdpi_operator op, const struct sdpi_value *a,
                    const struct sdpi_value *b, struct sdpi_value *out)
{
    double x = sdpi_number(a), y = sdpi_number(b), result;
    bool divides = op == SDPI_DIVIDE || op == SDPI_FLOOR_DIVIDE || op == SDPI_MODULO;

    if (divides && y == 0.0)
        return sdpi_fail(r, at, "division by zero");
    if (a->kind != SDPI_REAL && b->kind != SDPI_REAL && op != SDPI_DIVIDE)
        return integers(r, at, op, a->kind == SDPI_INT ? a->u.integer : a->u.truth,
                        b->kind == SDPI_INT ? b->u.integer : b->u.truth, out);
    switch (op) {
    case SDPI_ADD:
        result = x + y;
        break;
    case SDPI_SUBTRACT:
        result = x - y;
        break;
    case SDPI_MULTIPLY:
        result = x * y;
        break;
    case SDPI_DIVIDE:
        result = x / y;
        break;
    case SDPI_FLOOR_DIVIDE:
        result = floor(x / y);
        break;
    case SDPI_POWER:
        result = pow(x, y);
        break;
    default:
        result = fmod(x, y);
        if (result != 0.0 && (result < 0.0) != (y < 0.0))
            result += y;
    }
    *out = sdpi_real(result);
    return true;
}

bool sdpi_binary(struct sdpi_render *r, const struct sdpi_node *at, enum sdpi_operator op,
                 const struct sdpi_value *a, const struct sdpi_value *b,
                 struct sdpi_value *out)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    bool a_repeats = a->kind == SDPI_STRING || sdpi_is_list(a),
         b_repeats = b->kind == SDPI_STRING || sdpi_is_list(b);

    r->at = at;
    if (sdpi_is_number(a) && sdpi_is_number(b))
        return numbers(r, at, op, a, b, out);
    if (op == SDPI_ADD && a->kind == SDPI_STRING && b->kind == SDPI_STRING)
        return add_texts(r, a, b, out);
    if (op == SDPI_ADD && sdpi_is_list(a) && a->kind == b->kind)
        return add_lists(r, a, b, out);
    if (op == SDPI_MULTIPLY && a_repeats && (b->kind == SDPI_INT || b->kind == SDPI_BOOL))
        return repeat(r, at, a, b->kind == SDPI_INT ? b->u.integer : b->u.truth, out);
    if (op == SDPI_MULTIPLY && b_repeats && (a->kind == SDPI_INT || a->kind == SDPI_BOOL))
        return repeat(r, at, b, a->kind == SDPI_INT ? a->u.integer : a->u.truth, out);
    return sdpi_fail(r, at, "\"%s\" cannot take %s%s%s and %s%s%s", names[op],
                     sdpi_type_name(a), a->kind == SDPI_UNDEFINED && a->p.text ? " " : "",
                     a->kind == SDPI_UNDEFINED && a->p.text ? a->p.text : "",
                     sdpi_type_name(b), b->kind == SDPI_UNDEFINED && b->p.text ? " " : "",
                     b->kind == SDPI_UNDEFINED && b->p.text ? b->p.text : "");
}

/* -- comparisons
 * ---------------------------------------------------------------------------------------------
 */

static bool compare(struct sdpi_render *r, enum sdpi_operator op,
                    const struct sdpi_value *a, const struct sdpi_value *b, bool *out)
{
    int sign = 0;

    switch (op) {
    case SDPI_EQUAL:
        return sdpi_equal(r, a, b, out);
    case SDPI_NOT_EQUAL:
        if (!sdpi_equal(r, a, b, out))
            return false;
        *out = !*out;
        return true;
    case SDPI_IN:
        return sdpi_contains(r, b, a, out);
    case SDPI_NOT_IN:
        if (!sdpi_contains(r, b, a, out))
            return false;
        *out = !*out;
        return true;
    default:
        break;
    }
    if (!sdpi_order(r, a, b, &sign))
        return false;
    *out = op == SDPI_LESS         ? sign < 0
           : op == SDPI_LESS_EQUAL ? sign <= 0
           : op == SDPI_GREATER    ? sign > 0
                                   : sign >= 0;
    return true;
}

static bool eval_compare(struct sdpi_render *r, struct sdpi_scope *scope,
                         const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value left, right;
    bool truth = true;

    if (!sdpi_eval(r, scope, node->a, &left))
        return false;
    for (size_t i = 0; truth && i < node->count; i++) {
        if (!sdpi_eval(r, scope, node->items[i]->a, &right))
            return false;
        r->at = node->items[i];
        if (!compare(r, node->items[i]->op, &left, &right, &truth))
            return false;
        left = right;
    }
    *out = sdpi_bool(truth);
    return true;
}

/* -- the kinds of expressions
 * ---------------------------------------------------------------------------------- */

static bool eval_name(struct sdpi_render *r, struct sdpi_scope *scope,
                      const struct sdpi_node *node, struct sdpi_value *out)
{
    const struct sdpi_value *found = sdpi_scope_find(scope, node->text, node->length);
    const struct sdpi_global *global;

    if (found) {
        *out = *found;
        return true;
    }
    global = sdpi_find_global(node->text, node->length);
    if (!global)
        return missing(r, node->text, node->length, out);
    if (!global->call)
        return sdpi_fail(r, node, "the function \"%s\" is not supported", global->name);
    *out = (struct sdpi_value){.kind = SDPI_GLOBAL};
    out->p.global = global;
    return true;
}

static bool eval_items(struct sdpi_render *r, struct sdpi_scope *scope,
                       const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value item, value;

    if (node->kind == SDPI_N_DICT) {
        if (!sdpi_new_dict(r, SDPI_DICT, out))
            return false;
        for (size_t i = 0; i < node->count; i += 2)
            if (!sdpi_eval(r, scope, node->items[i], &item) ||
                !sdpi_eval(r, scope, node->items[i + 1], &value) ||
                !sdpi_dict_set(r, out->p.dict, &item, &value))
                return false;
        return true;
    }
    if (!sdpi_new_list(r, node->kind == SDPI_N_TUPLE ? SDPI_TUPLE : SDPI_LIST, out))
        return false;
    for (size_t i = 0; i < node->count; i++)
        if (!sdpi_eval(r, scope, node->items[i], &item) ||
            !sdpi_list_add(r, out->p.list, &item))
            return false;
    return true;
}

static bool eval_call(struct sdpi_render *r, struct sdpi_scope *scope,
                      const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value callee;
    struct sdpi_args args;

    if (!sdpi_eval(r, scope, node->a, &callee) || !eval_args(r, scope, node, &args))
        return false;
    r->at = node->a;
    switch (callee.kind) {
    case SDPI_MACRO:
        return sdpi_call_macro(r, node->a, callee.p.macro, &args, out);
    case SDPI_METHOD:
        return callee.p.method->entry->call(r, node->a, &callee.p.method->self, &args,
                                            out);
    case SDPI_GLOBAL:
        return callee.p.global->call(r, node->a, NULL, &args, out);
    case SDPI_UNDEFINED:
        return sdpi_fail(r, node->a,
                         "\"%s\" is called, but there is no such function or method here",
                         callee.p.text ? callee.p.text : "value");
    default:
        return sdpi_fail(r, node->a, "%s cannot be called", sdpi_type_name(&callee));
    }
}

static bool eval_filter(struct sdpi_render *r, struct sdpi_scope *scope,
                        const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value self;
    struct sdpi_args args;

    if (!sdpi_eval(r, scope, node->a, &self) || !eval_args(r, scope, node, &args))
        return false;
    r->at = node;
    if (!node->filter->call(r, node, &self, &args, out))
        return false;
    if (node->negated)
        *out = sdpi_bool(!out->u.truth);
    return true;
}

static bool eval_concat(struct sdpi_render *r, struct sdpi_scope *scope,
                        const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value list, item, text;

    if (!sdpi_new_list(r, SDPI_LIST, &list))
        return false;
    for (size_t i = 0; i < node->count; i++) {
        if (!sdpi_eval(r, scope, node->items[i], &item))
            return false;
        r->at = node;
        if (!sdpi_to_text(r, &item, &text) || !sdpi_list_add(r, list.p.list, &text))
            return false;
    }
    return sdpi_join(r, list.p.list, "", 0, true, out);
}

static bool eval_sign(struct sdpi_render *r, struct sdpi_scope *scope,
                      const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value zero = sdpi_int(0), value = sdpi_none();

    if (!sdpi_eval(r, scope, node->a, &value))
        return false;
    if (!sdpi_is_number(&value))
        return sdpi_fail(r, node, "a sign wants a number, not %s",
                         sdpi_type_name(&value));
    if (value.kind == SDPI_REAL) {
        *out = sdpi_real(node->kind == SDPI_N_NEGATIVE ? -value.u.real : value.u.real);
        return true;
    }
    return sdpi_binary(r, node, node->kind == SDPI_N_NEGATIVE ? SDPI_SUBTRACT : SDPI_ADD,
                       &zero, &value, out);
}

static bool eval_binary(struct sdpi_render *r, struct sdpi_scope *scope,
                        const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value a = sdpi_none(), b = sdpi_none();

    return sdpi_eval(r, scope, node->a, &a) && sdpi_eval(r, scope, node->b, &b) &&
           sdpi_binary(r, node, node->op, &a, &b, out);
}

/* and, or, not, if-else: those that do not compute all their parts. */
static bool eval_choice(struct sdpi_render *r, struct sdpi_scope *scope,
                        const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value value;
    bool truth;

    if (!sdpi_eval(r, scope, node->kind == SDPI_N_IF_ELSE ? node->b : node->a, &value))
        return false;
    truth = sdpi_truth(&value);
    if (node->kind == SDPI_N_NOT) {
        *out = sdpi_bool(!truth);
        return true;
    }
    if (node->kind == SDPI_N_IF_ELSE) {
        if (truth)
            return sdpi_eval(r, scope, node->a, out);
        if (node->c)
            return sdpi_eval(r, scope, node->c, out);
        return missing(r, "value", 5, out);
    }
    if (truth == (node->kind == SDPI_N_AND))
        return sdpi_eval(r, scope, node->b, out);
    *out = value;
    return true;
}

static bool eval_part(struct sdpi_render *r, struct sdpi_scope *scope,
                      const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value of = sdpi_none(), key = sdpi_none();

    if (!sdpi_eval(r, scope, node->a, &of) ||
        (node->b && !sdpi_eval(r, scope, node->b, &key)))
        return false;
    r->at = node;
    if (node->kind == SDPI_N_ATTR)
        return sdpi_get_attribute(r, node, &of, node->text, node->length, out);
    return sdpi_get_item(r, node, &of, &key, out);
}

static bool eval_node(struct sdpi_render *r, struct sdpi_scope *scope,
                      const struct sdpi_node *node, struct sdpi_value *out)
{
    switch (node->kind) {
    case SDPI_N_CONST:
        *out = node->constant;
        return true;
    case SDPI_N_NAME:
        return eval_name(r, scope, node, out);
    case SDPI_N_LIST:
    case SDPI_N_TUPLE:
    case SDPI_N_DICT:
        return eval_items(r, scope, node, out);
    case SDPI_N_ATTR:
    case SDPI_N_ITEM:
        return eval_part(r, scope, node, out);
    case SDPI_N_SLICE:
        return eval_slice(r, scope, node, out);
    case SDPI_N_CALL:
        return eval_call(r, scope, node, out);
    case SDPI_N_FILTER:
    case SDPI_N_TEST:
        return eval_filter(r, scope, node, out);
    case SDPI_N_NOT:
    case SDPI_N_AND:
    case SDPI_N_OR:
    case SDPI_N_IF_ELSE:
        return eval_choice(r, scope, node, out);
    case SDPI_N_NEGATIVE:
    case SDPI_N_POSITIVE:
        return eval_sign(r, scope, node, out);
    case SDPI_N_COMPARE:
        return eval_compare(r, scope, node, out);
    case SDPI_N_BINARY:
        return eval_binary(r, scope, node, out);
    case SDPI_N_CONCAT:
        return eval_concat(r, scope, node, out);
    default:
        return sdpi_fail(r, node, "a statement stands where an expression should");
    }
}

bool sdpi_eval(struct sdpi_render *r, struct sdpi_scope *scope,
               const struct sdpi_node *node, struct sdpi_value *out)
{
    struct sdpi_value value =
        sdpi_none(); /* so that out may be a part of what is computed */
    bool good;

    if (++r->depth > SDPI_MAX_DEPTH)
        return sdpi_fail(r, node,
                         "an expression is nested too deeply, or a macro calls itself");
    good = sdpi_charge(r, 1) && eval_node(r, scope, node, &value);
    r->depth--;
    *out = value;
    return good;
}
