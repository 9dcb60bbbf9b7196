/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Filters: value | name(arguments). A filter that is not in the table is refused when the
 * template is read. */
#include "model/template/template_internal.h"

#include <stdlib.h>

#define NO_ARGS(r, at, args) sdpi_take_args(r, at, args, NULL, 0, NULL)

static bool to_text(struct sdpi_render *r, const struct sdpi_value *self,
                    struct sdpi_value *out)
{
    return sdpi_to_text(r, self, out);
}

static bool integer_arg(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *arg, int64_t *out)
{
    if (!sdpi_given(arg) || arg->kind == SDPI_NONE)
        return true;
    if (arg->kind != SDPI_INT)
        return sdpi_fail(r, at, "the filter \"%.*s\" wants an integer, not %s",
                         (int)at->length, at->text, sdpi_type_name(arg));
    *out = arg->u.integer;
    return true;
}

/* -- texts
 * --------------------------------------------------------------------------------------
 */

static bool filter_trim(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    static const char *const names[] = {"chars"};
    struct sdpi_value set;
    bool given;

    if (!sdpi_take_args(r, at, args, names, 1, &set) || !to_text(r, self, out))
        return false;
    given = sdpi_given(&set) && set.kind != SDPI_NONE;
    if (given && set.kind != SDPI_STRING)
        return sdpi_fail(r, at, "trim wants a text, not %s", sdpi_type_name(&set));
    sdpi_strip(&out->p.text, &out->u.length, given ? &set : NULL, true, true);
    return sdpi_charge(r, out->u.length / 256);
}

static bool change_case(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        enum sdpi_case how, struct sdpi_value *out)
{
    struct sdpi_value text;

    return NO_ARGS(r, at, args) && to_text(r, self, &text) &&
           sdpi_change_case(r, at, &text, how, out);
}

static bool filter_upper(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, const struct sdpi_args *args,
                         struct sdpi_value *out)
{
    return change_case(r, at, self, args, SDPI_UPPER, out);
}

static bool filter_lower(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, const struct sdpi_args *args,
                         struct sdpi_value *out)
{
    return change_case(r, at, self, args, SDPI_LOWER, out);
}

static bool filter_capitalize(struct sdpi_render *r, const struct sdpi_node *at,
                              const struct sdpi_value *self, const struct sdpi_args *args,
                              struct sdpi_value *out)
{
    return change_case(r, at, self, args, SDPI_CAPITALIZE, out);
}

static bool filter_title(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, const struct sdpi_args *args,
                         struct sdpi_value *out)
{
    return change_case(r, at, self, args, SDPI_FILTER_TITLE, out);
}

static bool filter_replace(struct sdpi_render *r, const struct sdpi_node *at,
                           const struct sdpi_value *self, const struct sdpi_args *args,
                           struct sdpi_value *out)
{
    static const char *const names[] = {"old", "new", "count"};
    struct sdpi_value arg[3], text, old, new_text;
    int64_t count = -1;

    return sdpi_take_args(r, at, args, names, 3, arg) && to_text(r, self, &text) &&
           to_text(r, &arg[0], &old) && to_text(r, &arg[1], &new_text) &&
           integer_arg(r, at, &arg[2], &count) &&
           sdpi_replace(r, &text, &old, &new_text, count, out);
}

static bool filter_string(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    return NO_ARGS(r, at, args) && to_text(r, self, out);
}

/* Lines behind the first are indented; empty ones only if `blank`. */
static bool filter_indent(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    static const char *const names[] = {"width", "first", "blank"};
    struct sdpi_value arg[3], text, space = sdpi_string(" ", 1), indent;
    struct sdpi_out lines = {.text = NULL};
    int64_t width = 4;
    bool good, first, blank;

    if (!sdpi_take_args(r, at, args, names, 3, arg) || !to_text(r, self, &text))
        return false;
    indent = arg[0];
    if (arg[0].kind != SDPI_STRING) {
        struct sdpi_value times;

        if (!integer_arg(r, at, &arg[0], &width))
            return false;
        times = sdpi_int(width);
        if (!sdpi_binary(r, at, SDPI_MULTIPLY, &space, &times, &indent))
            return false;
    }
    first = sdpi_truth(&arg[1]);
    blank = sdpi_truth(&arg[2]);
    for (size_t i = 0; i <= text.u.length && !lines.full;) {
        const char *line = text.p.text + i, *end = memchr(line, '\n', text.u.length - i);
        size_t length = end ? (size_t)(end - line) : text.u.length - i;

        if (i == 0 ? first : length > 0 || blank)
            sdpi_out_add(&lines, indent.p.text, indent.u.length);
        sdpi_out_add(&lines, line, length);
        if (end)
            sdpi_out_add(&lines, "\n", 1);
        i += length + 1;
    }
    good = sdpi_check_out(r, &lines) && sdpi_charge(r, text.u.length) &&
           sdpi_copy_string(r, lines.text ? lines.text : "", lines.length, out);
    free(lines.text);
    return good;
}

static bool filter_tojson(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators",
                                        "sort_keys"};
    struct sdpi_value arg[4], spaces, one = sdpi_string(" ", 1);
    struct sdpi_json_style style = {
        .item = ", ", .item_length = 2, .key = ": ", .key_length = 2};

    if (!sdpi_take_args(r, at, args, names, 4, arg))
        return false;
    style.ascii = sdpi_truth(&arg[0]);
    style.sorted = sdpi_truth(&arg[3]);
    if (sdpi_given(&arg[1]) && arg[1].kind != SDPI_NONE) {
        if (arg[1].kind == SDPI_STRING)
            spaces = arg[1];
        else if (!sdpi_binary(r, at, SDPI_MULTIPLY, &one, &arg[1], &spaces))
            return false;
        style.indent = spaces.p.text;
        style.indent_length = spaces.u.length;
        style.item_length = 1;
    }
    if (sdpi_given(&arg[2]) && arg[2].kind != SDPI_NONE) {
        const struct sdpi_list *list = sdpi_is_list(&arg[2]) ? arg[2].p.list : NULL;

        if (!list || list->count != 2 || list->items[0].kind != SDPI_STRING ||
            list->items[1].kind != SDPI_STRING)
            return sdpi_fail(r, at, "separators of tojson must be two texts");
        style.item = list->items[0].p.text;
        style.item_length = list->items[0].u.length;
        style.key = list->items[1].p.text;
        style.key_length = list->items[1].u.length;
    }
    return sdpi_to_json(r, self, &style, out);
}

/* -- lists
 * ------------------------------------------------------------------------------------------
 */

static bool filter_length(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    size_t length = 0;

    if (!NO_ARGS(r, at, args) || !sdpi_length(r, self, &length))
        return false;
    *out = sdpi_int((int64_t)length);
    return true;
}

static bool pick(struct sdpi_render *r, const struct sdpi_node *at,
                 const struct sdpi_value *self, const struct sdpi_args *args, bool last,
                 struct sdpi_value *out)
{
    const struct sdpi_list *list = NULL;

    if (!NO_ARGS(r, at, args) || !sdpi_iterate(r, self, &list))
        return false;
    *out = list->count ? list->items[last ? list->count - 1 : 0] : sdpi_undefined("item");
    return true;
}

static bool filter_first(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, const struct sdpi_args *args,
                         struct sdpi_value *out)
{
    return pick(r, at, self, args, false, out);
}

static bool filter_last(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    return pick(r, at, self, args, true, out);
}

static bool filter_list(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    const struct sdpi_list *list = NULL;

    if (!NO_ARGS(r, at, args) || !sdpi_iterate(r, self, &list) ||
        !sdpi_new_list(r, SDPI_LIST, out))
        return false;
    *out->p.list = (struct sdpi_list){list->items, list->count, list->count};
    return true;
}

static bool filter_reverse(struct sdpi_render *r, const struct sdpi_node *at,
                           const struct sdpi_value *self, const struct sdpi_args *args,
                           struct sdpi_value *out)
{
    const struct sdpi_list *list = NULL;
    struct sdpi_value turned;

    if (!NO_ARGS(r, at, args) || !sdpi_iterate(r, self, &list) ||
        !sdpi_new_list(r, SDPI_LIST, &turned))
        return false;
    for (size_t i = list->count; i-- > 0;)
        if (!sdpi_charge(r, 1) || !sdpi_list_add(r, turned.p.list, &list->items[i]))
            return false;
    *out = turned;
    return self->kind != SDPI_STRING || sdpi_join(r, turned.p.list, "", 0, true, out);
}

/* a.b.0 of an item. */
static bool attribute_of(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *item, const struct sdpi_value *path,
                         struct sdpi_value *out)
{
    const char *from, *end;

    if (path->kind == SDPI_INT)
        return sdpi_get_item(r, at, item, path, out);
    if (path->kind != SDPI_STRING)
        return sdpi_fail(r, at, "an attribute must be a text, not %s",
                         sdpi_type_name(path));
    *out = *item;
    for (from = path->p.text, end = from + path->u.length; from <= end;) {
        const char *stop = memchr(from, '.', (size_t)(end - from));
        size_t length = (size_t)((stop ? stop : end) - from);
        struct sdpi_value name = sdpi_string(from, length), of = *out;

        if (length > 0 && length < 9 && strspn(from, "0123456789") >= length)
            name = sdpi_int(strtol(from, NULL, 10));
        if (!sdpi_get_item(r, at, &of, &name, out))
            return false;
        from += length + 1;
    }
    return true;
}

static bool filter_join(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    static const char *const names[] = {"d", "attribute"};
    const struct sdpi_list *list = NULL;
    struct sdpi_value arg[2], between = sdpi_string("", 0), parts;

    if (!sdpi_take_args(r, at, args, names, 2, arg) || !sdpi_iterate(r, self, &list) ||
        (sdpi_given(&arg[0]) && !to_text(r, &arg[0], &between)))
        return false;
    if (sdpi_given(&arg[1]) && arg[1].kind != SDPI_NONE) {
        if (!sdpi_new_list(r, SDPI_LIST, &parts))
            return false;
        for (size_t i = 0; i < list->count; i++) {
            struct sdpi_value part;

            if (!attribute_of(r, at, &list->items[i], &arg[1], &part) ||
                !sdpi_list_add(r, parts.p.list, &part))
                return false;
        }
        list = parts.p.list;
    }
    return sdpi_join(r, list, between.p.text, between.u.length, false, out);
}

/* select and reject, of the items or of an attribute of theirs. */
static bool sift(struct sdpi_render *r, const struct sdpi_node *at,
                 const struct sdpi_value *self, const struct sdpi_args *args, bool wanted,
                 bool by_attribute, struct sdpi_value *out)
{
    const struct sdpi_list *list = NULL;
    const struct sdpi_filter *test = NULL;
    size_t skip = by_attribute;
    struct sdpi_args rest = {.count = 0};

    if (args->keyword_count > 0 || args->count < skip)
        return sdpi_fail(r, at, "the filter \"%.*s\" wants other arguments",
                         (int)at->length, at->text);
    if (args->count > skip) {
        const struct sdpi_value *name = &args->items[skip];

        if (name->kind == SDPI_STRING)
            test = sdpi_find_test(name->p.text, name->u.length);
        if (!test)
            return sdpi_fail(r, at, "the test that \"%.*s\" names is not supported",
                             (int)at->length, at->text);
        rest.items = args->items + skip + 1;
        rest.count = args->count - skip - 1;
    }
    if (!sdpi_iterate(r, self, &list) || !sdpi_new_list(r, SDPI_LIST, out))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        struct sdpi_value part = list->items[i], truth;

        if (by_attribute && !attribute_of(r, at, &list->items[i], &args->items[0], &part))
            return false;
        truth = sdpi_bool(sdpi_truth(&part));
        if (test && !test->call(r, at, &part, &rest, &truth))
            return false;
        if (truth.u.truth == wanted && !sdpi_list_add(r, out->p.list, &list->items[i]))
            return false;
    }
    return sdpi_charge(r, list->count);
}

static bool filter_selectattr(struct sdpi_render *r, const struct sdpi_node *at,
                              const struct sdpi_value *self, const struct sdpi_args *args,
                              struct sdpi_value *out)
{
    return sift(r, at, self, args, true, true, out);
}

static bool filter_rejectattr(struct sdpi_render *r, const struct sdpi_node *at,
                              const struct sdpi_value *self, const struct sdpi_args *args,
                              struct sdpi_value *out)
{
    return sift(r, at, self, args, false, true, out);
}

static bool filter_select(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    return sift(r, at, self, args, true, false, out);
}

static bool filter_reject(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    return sift(r, at, self, args, false, false, out);
}

/* map('filter', ...) or map(attribute='a.b', default=...). */
static bool filter_map(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    static const char *const names[] = {"attribute", "default"};
    const struct sdpi_list *list = NULL;
    const struct sdpi_filter *filter = NULL;
    struct sdpi_value arg[2], part = sdpi_none();
    struct sdpi_args rest = {.count = 0};

    if (args->count > 0) {
        if (args->items[0].kind == SDPI_STRING)
            filter = sdpi_find_filter(args->items[0].p.text, args->items[0].u.length);
        if (!filter || filter->call == filter_map)
            return sdpi_fail(r, at, "the filter that \"map\" names is not supported");
        rest = (struct sdpi_args){args->items + 1, args->count - 1, args->keywords,
                                  args->keyword_count};
    } else if (!sdpi_take_args(r, at, args, names, 2, arg)) {
        return false;
    }
    if (!sdpi_iterate(r, self, &list) || !sdpi_new_list(r, SDPI_LIST, out))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        if (!(filter ? filter->call(r, at, &list->items[i], &rest, &part)
                     : attribute_of(r, at, &list->items[i], &arg[0], &part)))
            return false;
        if (!filter && part.kind == SDPI_UNDEFINED && sdpi_given(&arg[1]))
            part = arg[1];
        if (!sdpi_charge(r, 1) || !sdpi_list_add(r, out->p.list, &part))
            return false;
    }
    return true;
}

static bool filter_unique(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    const struct sdpi_list *list = NULL;

    if (!NO_ARGS(r, at, args) || !sdpi_iterate(r, self, &list) ||
        !sdpi_new_list(r, SDPI_LIST, out))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        bool known = false;

        if (list->items[i].kind == SDPI_STRING)
            return sdpi_fail(
                r, at, "unique of texts, which ignores their case, is not supported");
        if (!sdpi_contains(r, out, &list->items[i], &known) ||
            (!known && !sdpi_list_add(r, out->p.list, &list->items[i])))
            return false;
    }
    return true;
}

static bool filter_items(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, const struct sdpi_args *args,
                         struct sdpi_value *out)
{
    const struct sdpi_method_entry *entry = sdpi_find_method(self, "items", 5);

    if (self->kind == SDPI_UNDEFINED)
        return sdpi_new_list(r, SDPI_LIST, out);
    if (!entry)
        return sdpi_fail(r, at, "items wants a dict, not %s", sdpi_type_name(self));
    return entry->call(r, at, self, args, out);
}

/* Entries in the order of their keys. */
static bool filter_dictsort(struct sdpi_render *r, const struct sdpi_node *at,
                            const struct sdpi_value *self, const struct sdpi_args *args,
                            struct sdpi_value *out)
{
    struct sdpi_list *list;

    if (!NO_ARGS(r, at, args) || !filter_items(r, at, self, args, out))
        return false;
    list = out->p.list;
    for (size_t i = 1; i < list->count; i++) { /* by insertion: dicts are small */
        struct sdpi_value item = list->items[i];
        size_t to = i;

        for (; to > 0; to--) {
            struct sdpi_value a, b;
            int sign = 0;

            if (!sdpi_change_case(r, at, &item.p.list->items[0], SDPI_LOWER, &a) ||
                !sdpi_change_case(r, at, &list->items[to - 1].p.list->items[0],
                                  SDPI_LOWER, &b) ||
                !sdpi_order(r, &a, &b, &sign))
                return false;
            if (sign >= 0)
                break;
            list->items[to] = list->items[to - 1];
        }
        list->items[to] = item;
    }
    return true;
}

/* -- others
 * -------------------------------------------------------------------------------------------
 */

static bool filter_default(struct sdpi_render *r, const struct sdpi_node *at,
                           const struct sdpi_value *self, const struct sdpi_args *args,
                           struct sdpi_value *out)
{
    static const char *const names[] = {"default_value", "boolean"};
    struct sdpi_value arg[2];

    if (!sdpi_take_args(r, at, args, names, 2, arg))
        return false;
    *out = *self;
    if (self->kind == SDPI_UNDEFINED || (sdpi_truth(&arg[1]) && !sdpi_truth(self)))
        *out = sdpi_given(&arg[0]) ? arg[0] : sdpi_string("", 0);
    return true;
}

static bool filter_int(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    static const char *const names[] = {"default"};
    struct sdpi_value arg;
    bool plain = self->kind == SDPI_STRING && self->u.length > 0 && self->u.length < 18;

    if (!sdpi_take_args(r, at, args, names, 1, &arg))
        return false;
    for (size_t i = 0; plain && i < self->u.length; i++)
        plain = (self->p.text[i] >= '0' && self->p.text[i] <= '9') ||
                (i == 0 && self->p.text[i] == '-' && self->u.length > 1);
    if (plain)
        *out = sdpi_int(strtoll(self->p.text, NULL, 10));
    else if (self->kind == SDPI_REAL && fabs(self->u.real) < 9e18)
        *out = sdpi_int((int64_t)self->u.real);
    else if (sdpi_is_number(self) && self->kind != SDPI_REAL)
        *out = sdpi_int(self->kind == SDPI_INT ? self->u.integer : self->u.truth);
    else
        return sdpi_fail(r, at, "int of this value is not supported");
    return true;
}

static bool filter_abs(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    struct sdpi_value zero = sdpi_int(0);

    if (!NO_ARGS(r, at, args))
        return false;
    if (!sdpi_is_number(self))
        return sdpi_fail(r, at, "abs wants a number, not %s", sdpi_type_name(self));
    if (sdpi_number(self) < 0)
        return sdpi_binary(r, at, SDPI_SUBTRACT, &zero, self, out);
    *out = *self;
    return true;
}

static bool filter_safe(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    return NO_ARGS(r, at, args) && to_text(r, self, out);
}

static const struct sdpi_filter filters[] = {
    {"trim", filter_trim},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"capitalize", filter_capitalize},
    {"title", filter_title},
    {"replace", filter_replace},
    {"string", filter_string},
    {"indent", filter_indent},
    {"tojson", filter_tojson},
    {"length", filter_length},
    {"count", filter_length},
    {"first", filter_first},
    {"last", filter_last},
    {"list", filter_list},
    {"reverse", filter_reverse},
    {"join", filter_join},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"select", filter_select},
    {"reject", filter_reject},
    {"map", filter_map},
    {"unique", filter_unique},
    {"items", filter_items},
    {"dictsort", filter_dictsort},
    {"default", filter_default},
    {"d", filter_default},
    {"int", filter_int},
    {"abs", filter_abs},
    {"safe", filter_safe},
};

const struct sdpi_filter *sdpi_find_filter(const char *name, size_t length)
{
    for (size_t i = 0; i < SDP_COUNT_OF(filters); i++)
        if (strlen(filters[i].name) == length &&
            memcmp(filters[i].name, name, length) == 0)
            return &filters[i];
    return NULL;
}
