/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Methods of texts, lists and dictionaries, and functions that templates find. Those that
 * change a list or dictionary are refused, as they are by transformers. */
#define _GNU_SOURCE
#include "model/template/template_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* -- texts
 * ------------------------------------------------------------------------------------ */

static bool want_text(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *value)
{
    return value->kind == SDPI_STRING ||
           sdpi_fail(r, at, "\"%.*s\" wants a text as argument, not %s", (int)at->length,
                     at->text, sdpi_type_name(value));
}

static bool want_integer(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *value, int64_t *out)
{
    if (value->kind != SDPI_INT)
        return sdpi_fail(r, at, "\"%.*s\" wants an integer as argument, not %s",
                         (int)at->length, at->text, sdpi_type_name(value));
    *out = value->u.integer;
    return true;
}

static bool strip(struct sdpi_render *r, const struct sdpi_node *at,
                  const struct sdpi_value *self, const struct sdpi_args *args, bool left,
                  bool right, struct sdpi_value *out)
{
    static const char *const names[] = {"chars"};
    struct sdpi_value set;
    bool given;

    if (!sdpi_take_args(r, at, args, names, 1, &set))
        return false;
    given = sdpi_given(&set) && set.kind != SDPI_NONE;
    if (given && !want_text(r, at, &set))
        return false;
    *out = *self;
    sdpi_strip(&out->p.text, &out->u.length, given ? &set : NULL, left, right);
    return sdpi_charge(r, self->u.length / 256);
}

static bool text_strip(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    return strip(r, at, self, args, true, true, out);
}

static bool text_lstrip(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    return strip(r, at, self, args, true, false, out);
}

static bool text_rstrip(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    return strip(r, at, self, args, false, true, out);
}

static bool add_piece(struct sdpi_render *r, struct sdpi_list *list, const char *from,
                      const char *to)
{
    struct sdpi_value piece = sdpi_string(from, (size_t)(to - from));

    return sdpi_charge(r, 1) && sdpi_list_add(r, list, &piece);
}

/* At white space; `limit` < 0: everywhere. */
static bool split_spaces(struct sdpi_render *r, const struct sdpi_value *self,
                         int64_t limit, struct sdpi_list *list)
{
    const char *at = self->p.text, *end = at + self->u.length;

    for (;;) {
        size_t left = (size_t)(end - at);
        const char *stop;
        uint32_t character = 0;

        sdpi_strip(&at, &left, NULL, true, false);
        if (left == 0)
            return true;
        if (limit >= 0 && (int64_t)list->count >= limit)
            return add_piece(r, list, at, end);
        for (stop = at; stop < end;) {
            size_t bytes = SDP_MAX(
                sdpi_character_read(stop, (size_t)(end - stop), &character), (size_t)1);

            if (sdpi_is_space(character))
                break;
            stop += bytes;
        }
        if (!add_piece(r, list, at, stop))
            return false;
        at = stop;
    }
}

static bool split_at(struct sdpi_render *r, const struct sdpi_value *self,
                     const struct sdpi_value *by, int64_t limit, struct sdpi_list *list)
{
    const char *at = self->p.text, *end = at + self->u.length;

    while (limit < 0 || (int64_t)list->count < limit) {
        const char *found = memmem(at, (size_t)(end - at), by->p.text, by->u.length);

        if (!found)
            break;
        if (!add_piece(r, list, at, found))
            return false;
        at = found + by->u.length;
    }
    return add_piece(r, list, at, end);
}

/* From the right: the pieces come last first, and are turned around. */
static bool split_right(struct sdpi_render *r, const struct sdpi_value *self,
                        const struct sdpi_value *by, int64_t limit,
                        struct sdpi_list *list)
{
    const char *text = self->p.text;
    size_t end = self->u.length,
           at = end + 1; /* one behind where the separator may begin */

    while (at > 0 && end >= by->u.length && (limit < 0 || (int64_t)list->count < limit)) {
        at = SDP_MIN(at, end - by->u.length + 1) - 1;
        if (memcmp(text + at, by->p.text, by->u.length) != 0)
            continue;
        if (!add_piece(r, list, text + at + by->u.length, text + end))
            return false;
        end = at;
    }
    if (!add_piece(r, list, text, text + end))
        return false;
    for (size_t i = 0; i < list->count / 2; i++) {
        struct sdpi_value swap = list->items[i];

        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = swap;
    }
    return true;
}

static bool split(struct sdpi_render *r, const struct sdpi_node *at,
                  const struct sdpi_value *self, const struct sdpi_args *args, bool right,
                  struct sdpi_value *out)
{
    static const char *const names[] = {"sep", "maxsplit"};
    struct sdpi_value arg[2];
    int64_t limit = -1;

    if (!sdpi_take_args(r, at, args, names, 2, arg) ||
        !sdpi_new_list(r, SDPI_LIST, out) ||
        (sdpi_given(&arg[1]) && !want_integer(r, at, &arg[1], &limit)) ||
        !sdpi_charge(r, self->u.length / 64))
        return false;
    if (!sdpi_given(&arg[0]) || arg[0].kind == SDPI_NONE) {
        if (right && limit >= 0)
            return sdpi_fail(r, at,
                             "rsplit at white space with a limit is not supported");
        return split_spaces(r, self, limit, out->p.list);
    }
    if (!want_text(r, at, &arg[0]))
        return false;
    if (arg[0].u.length == 0)
        return sdpi_fail(r, at, "a text cannot be split at an empty text");
    return right ? split_right(r, self, &arg[0], limit, out->p.list)
                 : split_at(r, self, &arg[0], limit, out->p.list);
}

static bool text_split(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    return split(r, at, self, args, false, out);
}

static bool text_rsplit(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    return split(r, at, self, args, true, out);
}

static bool text_splitlines(struct sdpi_render *r, const struct sdpi_node *at,
                            const struct sdpi_value *self, const struct sdpi_args *args,
                            struct sdpi_value *out)
{
    const char *from = self->p.text, *end = from + self->u.length;
    static const char others[] = "\r\v\f\x1c\x1d\x1e";

    if (args->count + args->keyword_count > 0)
        return sdpi_fail(r, at, "splitlines with arguments is not supported");
    for (const char *c = from; c < end; c++)
        if (strchr(others, *c) || (uint8_t)*c == 0xc2 || (uint8_t)*c == 0xe2)
            return sdpi_fail(
                r, at,
                "splitlines of a text with other line ends than \\n is not supported");
    if (!sdpi_new_list(r, SDPI_LIST, out))
        return false;
    while (from < end) {
        const char *stop = memchr(from, '\n', (size_t)(end - from));

        if (!add_piece(r, out->p.list, from, stop ? stop : end))
            return false;
        from = stop ? stop + 1 : end;
    }
    return true;
}

/* startswith, endswith, with one text or a tuple of them. */
static bool has_end(struct sdpi_render *r, const struct sdpi_node *at,
                    const struct sdpi_value *self, const struct sdpi_args *args,
                    bool at_start, struct sdpi_value *out)
{
    static const char *const names[] = {"prefix"};
    struct sdpi_value arg;
    const struct sdpi_value *items = &arg;
    size_t count = 1;
    bool found = false;

    if (!sdpi_take_args(r, at, args, names, 1, &arg))
        return false;
    if (arg.kind == SDPI_TUPLE) {
        items = arg.p.list->items;
        count = arg.p.list->count;
    }
    for (size_t i = 0; i < count; i++) {
        size_t length = items[i].u.length;

        if (!want_text(r, at, &items[i]))
            return false;
        found = found || (length <= self->u.length &&
                          memcmp(self->p.text + (at_start ? 0 : self->u.length - length),
                                 items[i].p.text, length) == 0);
    }
    *out = sdpi_bool(found);
    return true;
}

static bool text_startswith(struct sdpi_render *r, const struct sdpi_node *at,
                            const struct sdpi_value *self, const struct sdpi_args *args,
                            struct sdpi_value *out)
{
    return has_end(r, at, self, args, true, out);
}

static bool text_endswith(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    return has_end(r, at, self, args, false, out);
}

static bool remove_end(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       bool at_start, struct sdpi_value *out)
{
    static const char *const names[] = {"prefix"};
    struct sdpi_value end;
    size_t length;

    if (!sdpi_take_args(r, at, args, names, 1, &end) || !want_text(r, at, &end))
        return false;
    length = end.u.length;
    *out = *self;
    if (length <= self->u.length &&
        memcmp(self->p.text + (at_start ? 0 : self->u.length - length), end.p.text,
               length) == 0) {
        out->u.length -= length;
        out->p.text += at_start ? length : 0;
    }
    return true;
}

static bool text_removeprefix(struct sdpi_render *r, const struct sdpi_node *at,
                              const struct sdpi_value *self, const struct sdpi_args *args,
                              struct sdpi_value *out)
{
    return remove_end(r, at, self, args, true, out);
}

static bool text_removesuffix(struct sdpi_render *r, const struct sdpi_node *at,
                              const struct sdpi_value *self, const struct sdpi_args *args,
                              struct sdpi_value *out)
{
    return remove_end(r, at, self, args, false, out);
}

bool sdpi_replace(struct sdpi_render *r, const struct sdpi_value *self,
                  const struct sdpi_value *old, const struct sdpi_value *new_text,
                  int64_t count, struct sdpi_value *out)
{
    struct sdpi_value pieces;

    if (old->u.length == 0)
        return sdpi_fail(r, r->at, "replacing an empty text is not supported");
    return sdpi_new_list(r, SDPI_LIST, &pieces) &&
           split_at(r, self, old, count, pieces.p.list) &&
           sdpi_join(r, pieces.p.list, new_text->p.text, new_text->u.length, true, out);
}

static bool text_replace(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, const struct sdpi_args *args,
                         struct sdpi_value *out)
{
    static const char *const names[] = {"old", "new", "count"};
    struct sdpi_value arg[3];
    int64_t count = -1;

    return sdpi_take_args(r, at, args, names, 3, arg) && want_text(r, at, &arg[0]) &&
           want_text(r, at, &arg[1]) &&
           (!sdpi_given(&arg[2]) || want_integer(r, at, &arg[2], &count)) &&
           sdpi_replace(r, self, &arg[0], &arg[1], count, out);
}

static bool text_find(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *self, const struct sdpi_args *args,
                      struct sdpi_value *out)
{
    static const char *const names[] = {"sub"};
    struct sdpi_value arg;
    const char *found;

    if (!sdpi_take_args(r, at, args, names, 1, &arg) || !want_text(r, at, &arg))
        return false;
    found = arg.u.length ? memmem(self->p.text, self->u.length, arg.p.text, arg.u.length)
                         : self->p.text;
    *out = sdpi_int(found ? (int64_t)sdpi_characters_count(self->p.text,
                                                           (size_t)(found - self->p.text))
                          : -1);
    return sdpi_charge(r, self->u.length / 256);
}

static bool text_count(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    static const char *const names[] = {"sub"};
    struct sdpi_value arg, pieces;

    if (!sdpi_take_args(r, at, args, names, 1, &arg) || !want_text(r, at, &arg))
        return false;
    if (arg.u.length == 0)
        return sdpi_fail(r, at, "counting an empty text is not supported");
    if (!sdpi_new_list(r, SDPI_LIST, &pieces) ||
        !split_at(r, self, &arg, -1, pieces.p.list))
        return false;
    *out = sdpi_int((int64_t)pieces.p.list->count - 1);
    return true;
}

static bool text_join(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *self, const struct sdpi_args *args,
                      struct sdpi_value *out)
{
    static const char *const names[] = {"iterable"};
    const struct sdpi_list *list = NULL;
    struct sdpi_value arg;

    if (!sdpi_take_args(r, at, args, names, 1, &arg) || !sdpi_iterate(r, &arg, &list))
        return false;
    for (size_t i = 0; i < list->count; i++)
        if (!want_text(r, at, &list->items[i]))
            return false;
    return sdpi_join(r, list, self->p.text, self->u.length, true, out);
}

static bool text_isdigit(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, const struct sdpi_args *args,
                         struct sdpi_value *out)
{
    bool digits = self->u.length > 0;

    (void)args;
    for (size_t i = 0; i < self->u.length; i++) {
        if ((uint8_t)self->p.text[i] > 127)
            return sdpi_fail(r, at, "isdigit of a text outside ASCII is not supported");
        digits = digits && self->p.text[i] >= '0' && self->p.text[i] <= '9';
    }
    *out = sdpi_bool(digits);
    return true;
}

/* -- case: ASCII only, for other scripts have rules of their own
 * ------------------------------------ */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool sdpi_change_case(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *self, enum sdpi_case how,
                      struct sdpi_value *out)
{
    char *text = sdpi_take(r, self->u.length + 1), before = ' ';

    if (!text || !sdpi_charge(r, self->u.length / 64))
        return false;
    for (size_t i = 0; i < self->u.length; i++) {
        char c = self->p.text[i];
        bool word = how == SDPI_FILTER_TITLE ? !strchr("-([{< \t\n\r\f\v", before)
                                             : is_letter(before);
        bool upper = how == SDPI_UPPER || (how == SDPI_CAPITALIZE && i == 0) ||
                     ((how == SDPI_TITLE || how == SDPI_FILTER_TITLE) && !word);

        if ((uint8_t)c > 127)
            return sdpi_fail(
                r, at, "changing the case of a text outside ASCII is not supported");
        before = c;
        text[i] = is_letter(c) ? (char)(upper ? c & ~32 : c | 32) : c;
    }
    *out = sdpi_string(text, self->u.length);
    return true;
}

static bool text_upper(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    (void)args;
    return sdpi_change_case(r, at, self, SDPI_UPPER, out);
}

static bool text_lower(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    (void)args;
    return sdpi_change_case(r, at, self, SDPI_LOWER, out);
}

static bool text_capitalize(struct sdpi_render *r, const struct sdpi_node *at,
                            const struct sdpi_value *self, const struct sdpi_args *args,
                            struct sdpi_value *out)
{
    (void)args;
    return sdpi_change_case(r, at, self, SDPI_CAPITALIZE, out);
}

static bool text_title(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    (void)args;
    return sdpi_change_case(r, at, self, SDPI_TITLE, out);
}

bool sdpi_join(struct sdpi_render *r, const struct sdpi_list *list, const char *between,
               size_t length, bool strict, struct sdpi_value *out)
{
    size_t total = 0, at = 0;
    struct sdpi_value *texts = sdpi_take(r, (list->count + 1) * sizeof *texts);
    char *text;

    if (!texts || !sdpi_charge(r, list->count))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        texts[i] = list->items[i];
        if (!strict && !sdpi_to_text(r, &list->items[i], &texts[i]))
            return false;
        total += texts[i].u.length + (i ? length : 0);
        if (total > SDPI_MAX_OUTPUT)
            return sdpi_fail(r, r->at, "a text becomes too long");
    }
    text = sdpi_take(r, total + 1);
    if (!text || !sdpi_charge(r, total / 256))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        if (i && length > 0)
            memcpy(text + at, between, length);
        at += i ? length : 0;
        if (texts[i].u.length > 0)
            memcpy(text + at, texts[i].p.text, texts[i].u.length);
        at += texts[i].u.length;
    }
    *out = sdpi_string(text, total);
    return true;
}

/* -- dictionaries
 * ----------------------------------------------------------------------------------- */

static bool dict_get(struct sdpi_render *r, const struct sdpi_node *at,
                     const struct sdpi_value *self, const struct sdpi_args *args,
                     struct sdpi_value *out)
{
    static const char *const names[] = {"key", "default"};
    struct sdpi_value arg[2];

    if (!sdpi_take_args(r, at, args, names, 2, arg))
        return false;
    for (size_t i = 0; i < self->p.dict->count; i++) {
        bool same = false;

        if (!sdpi_equal(r, &self->p.dict->entries[i].key, &arg[0], &same))
            return false;
        if (same) {
            *out = self->p.dict->entries[i].value;
            return true;
        }
    }
    *out = sdpi_given(&arg[1]) ? arg[1] : sdpi_none();
    return true;
}

/* keys (1), values (2), items (3) as a list. */
static bool list_entries(struct sdpi_render *r, const struct sdpi_value *self, int which,
                         struct sdpi_value *out)
{
    if (!sdpi_new_list(r, SDPI_LIST, out) || !sdpi_charge(r, self->p.dict->count))
        return false;
    for (size_t i = 0; i < self->p.dict->count; i++) {
        const struct sdpi_entry *entry = &self->p.dict->entries[i];
        struct sdpi_value item = which == 1 ? entry->key : entry->value;

        if (which == 3 && (!sdpi_new_list(r, SDPI_TUPLE, &item) ||
                           !sdpi_list_add(r, item.p.list, &entry->key) ||
                           !sdpi_list_add(r, item.p.list, &entry->value)))
            return false;
        if (!sdpi_list_add(r, out->p.list, &item))
            return false;
    }
    return true;
}

static bool dict_keys(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *self, const struct sdpi_args *args,
                      struct sdpi_value *out)
{
    (void)at;
    (void)args;
    return list_entries(r, self, 1, out);
}

static bool dict_values(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *self, const struct sdpi_args *args,
                        struct sdpi_value *out)
{
    (void)at;
    (void)args;
    return list_entries(r, self, 2, out);
}

static bool dict_items(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    (void)at;
    (void)args;
    return list_entries(r, self, 3, out);
}

/* -- the table; without a function: known to Python, refused here
 * -------------------------------------- */

static const struct sdpi_method_entry methods[] = {
    {SDPI_STRING, "strip", text_strip},
    {SDPI_STRING, "lstrip", text_lstrip},
    {SDPI_STRING, "rstrip", text_rstrip},
    {SDPI_STRING, "split", text_split},
    {SDPI_STRING, "rsplit", text_rsplit},
    {SDPI_STRING, "splitlines", text_splitlines},
    {SDPI_STRING, "startswith", text_startswith},
    {SDPI_STRING, "endswith", text_endswith},
    {SDPI_STRING, "removeprefix", text_removeprefix},
    {SDPI_STRING, "removesuffix", text_removesuffix},
    {SDPI_STRING, "replace", text_replace},
    {SDPI_STRING, "find", text_find},
    {SDPI_STRING, "count", text_count},
    {SDPI_STRING, "join", text_join},
    {SDPI_STRING, "isdigit", text_isdigit},
    {SDPI_STRING, "upper", text_upper},
    {SDPI_STRING, "lower", text_lower},
    {SDPI_STRING, "capitalize", text_capitalize},
    {SDPI_STRING, "title", text_title},
    {SDPI_STRING, "format", NULL},
    {SDPI_STRING, "index", NULL},
    {SDPI_STRING, "rfind", NULL},
    {SDPI_STRING, "partition", NULL},
    {SDPI_STRING, "rpartition", NULL},
    {SDPI_STRING, "isalpha", NULL},
    {SDPI_STRING, "isspace", NULL},
    {SDPI_STRING, "isupper", NULL},
    {SDPI_STRING, "islower", NULL},
    {SDPI_STRING, "center", NULL},
    {SDPI_STRING, "ljust", NULL},
    {SDPI_STRING, "rjust", NULL},
    {SDPI_STRING, "zfill", NULL},
    {SDPI_STRING, "casefold", NULL},
    {SDPI_STRING, "swapcase", NULL},
    {SDPI_STRING, "encode", NULL},
    {SDPI_STRING, "translate", NULL},
    {SDPI_LIST, "append", NULL},
    {SDPI_LIST, "extend", NULL},
    {SDPI_LIST, "insert", NULL},
    {SDPI_LIST, "pop", NULL},
    {SDPI_LIST, "remove", NULL},
    {SDPI_LIST, "reverse", NULL},
    {SDPI_LIST, "sort", NULL},
    {SDPI_LIST, "clear", NULL},
    {SDPI_LIST, "copy", NULL},
    {SDPI_LIST, "index", NULL},
    {SDPI_LIST, "count", NULL},
    {SDPI_TUPLE, "index", NULL},
    {SDPI_TUPLE, "count", NULL},
    {SDPI_DICT, "get", dict_get},
    {SDPI_DICT, "keys", dict_keys},
    {SDPI_DICT, "values", dict_values},
    {SDPI_DICT, "items", dict_items},
    {SDPI_DICT, "update", NULL},
    {SDPI_DICT, "pop", NULL},
    {SDPI_DICT, "popitem", NULL},
    {SDPI_DICT, "setdefault", NULL},
    {SDPI_DICT, "clear", NULL},
    {SDPI_DICT, "copy", NULL},
    {SDPI_DICT, "fromkeys", NULL},
};

const struct sdpi_method_entry *sdpi_find_method(const struct sdpi_value *self,
                                                 const char *name, size_t length)
{
    for (size_t i = 0; i < SDP_COUNT_OF(methods); i++)
        if (methods[i].of == self->kind && strlen(methods[i].name) == length &&
            memcmp(methods[i].name, name, length) == 0)
            return &methods[i];
    return NULL;
}

/* -- functions
 * ------------------------------------------------------------------------------------------
 */

static bool call_raise(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    static const char *const names[] = {"message"};
    struct sdpi_value arg, text;

    (void)self;
    (void)out;
    if (!sdpi_take_args(r, at, args, names, 1, &arg) || !sdpi_to_text(r, &arg, &text))
        return false;
    return sdpi_fail(r, at, "the template refuses this: %.*s",
                     (int)SDP_MIN(text.u.length, (size_t)400), text.p.text);
}

static bool call_strftime(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    static const char *const names[] = {"format"};
    struct sdpi_value arg;
    char format[128], text[512];
    time_t seconds = (time_t)r->now;
    struct tm when;
    size_t length;

    (void)self;
    if (!sdpi_take_args(r, at, args, names, 1, &arg) || !want_text(r, at, &arg))
        return false;
    if (arg.u.length >= sizeof format || !gmtime_r(&seconds, &when))
        return sdpi_fail(r, at, "the format of a time is too long");
    memcpy(format, arg.p.text, arg.u.length);
    format[arg.u.length] = '\0';
    for (const char *c = strchr(format, '%'); c; c = strchr(c + 2, '%'))
        if (!c[1] || !strchr("aAbBcdHIjmMpSUwWxXyYZ%", c[1]))
            return sdpi_fail(r, at, "%%%c in the format of a time is not supported",
                             c[1] ? c[1] : '%');
    length = strftime(text, sizeof text, format, &when);
    if (length == 0 && arg.u.length > 0)
        return sdpi_fail(r, at, "a time becomes too long");
    return sdpi_copy_string(r, text, length, out);
}

static bool call_dict_of(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_args *args, enum sdpi_kind kind,
                         struct sdpi_value *out)
{
    if (!sdpi_new_dict(r, kind, out))
        return false;
    if (args->count > 1 || (args->count == 1 && args->items[0].kind != SDPI_DICT))
        return sdpi_fail(r, at,
                         "\"%.*s\" is supported with named arguments and one dict alone",
                         (int)at->length, at->text);
    for (size_t i = 0; args->count == 1 && i < args->items[0].p.dict->count; i++) {
        const struct sdpi_entry *entry = &args->items[0].p.dict->entries[i];

        if (!sdpi_dict_set(r, out->p.dict, &entry->key, &entry->value))
            return false;
    }
    for (size_t i = 0; i < args->keyword_count; i++) {
        struct sdpi_value key =
            sdpi_string(args->keywords[i].name, args->keywords[i].length);

        if (!sdpi_dict_set(r, out->p.dict, &key, &args->keywords[i].value))
            return false;
    }
    return true;
}

static bool call_namespace(struct sdpi_render *r, const struct sdpi_node *at,
                           const struct sdpi_value *self, const struct sdpi_args *args,
                           struct sdpi_value *out)
{
    (void)self;
    return call_dict_of(r, at, args, SDPI_NAMESPACE, out);
}

static bool call_dict(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *self, const struct sdpi_args *args,
                      struct sdpi_value *out)
{
    (void)self;
    return call_dict_of(r, at, args, SDPI_DICT, out);
}

static bool call_range(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out)
{
    int64_t part[3] = {0, 0, 1};

    (void)self;
    if (args->count < 1 || args->count > 3 || args->keyword_count > 0)
        return sdpi_fail(r, at, "range takes one to three integers");
    for (size_t i = 0; i < args->count; i++)
        if (!want_integer(r, at, &args->items[i], &part[args->count == 1 ? 1 : i]))
            return false;
    if (part[2] == 0)
        return sdpi_fail(r, at, "range with step 0");
    if (!sdpi_new_list(r, SDPI_LIST, out))
        return false;
    for (int64_t i = part[0]; part[2] > 0 ? i < part[1] : i > part[1];) {
        struct sdpi_value item = sdpi_int(i);

        if (out->p.list->count == SDPI_MAX_RANGE)
            return sdpi_fail(r, at, "range with more than %d numbers", SDPI_MAX_RANGE);
        if (!sdpi_charge(r, 1) || !sdpi_list_add(r, out->p.list, &item))
            return false;
        if (__builtin_add_overflow(i, part[2], &i))
            break;
    }
    return true;
}

static const struct sdpi_global globals[] = {
    {"raise_exception", call_raise},
    {"strftime_now", call_strftime},
    {"namespace", call_namespace},
    {"dict", call_dict},
    {"range", call_range},
    {"cycler", NULL},
    {"joiner", NULL},
    {"lipsum", NULL},
};

const struct sdpi_global *sdpi_find_global(const char *name, size_t length)
{
    for (size_t i = 0; i < SDP_COUNT_OF(globals); i++)
        if (strlen(globals[i].name) == length &&
            memcmp(globals[i].name, name, length) == 0)
            return &globals[i];
    return NULL;
}
