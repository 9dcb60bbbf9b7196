/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Values and what Python does with them: truth, equality, order, membership, iteration.
 */
#include "model/template/template_internal.h"

struct sdpi_value sdpi_undefined(const char *name)
{
    return (struct sdpi_value){.kind = SDPI_UNDEFINED, .p.text = name};
}

struct sdpi_value sdpi_none(void)
{
    return (struct sdpi_value){.kind = SDPI_NONE};
}

struct sdpi_value sdpi_bool(bool truth)
{
    return (struct sdpi_value){.kind = SDPI_BOOL, .u.truth = truth};
}

struct sdpi_value sdpi_int(int64_t integer)
{
    return (struct sdpi_value){.kind = SDPI_INT, .u.integer = integer};
}

struct sdpi_value sdpi_real(double real)
{
    return (struct sdpi_value){.kind = SDPI_REAL, .u.real = real};
}

struct sdpi_value sdpi_string(const char *text, size_t length)
{
    return (struct sdpi_value){.kind = SDPI_STRING, .u.length = length, .p.text = text};
}

bool sdpi_copy_string(struct sdpi_render *r, const char *text, size_t length,
                      struct sdpi_value *out)
{
    char *copy = sdpi_take(r, length + 1);

    if (!copy)
        return false;
    if (length > 0)
        memcpy(copy, text, length);
    *out = sdpi_string(copy, length);
    return sdpi_charge(r, length / 256);
}

/* -- lists and dictionaries
 * --------------------------------------------------------------- */

bool sdpi_new_list(struct sdpi_render *r, enum sdpi_kind kind, struct sdpi_value *out)
{
    *out = (struct sdpi_value){.kind = kind};
    out->p.list = sdpi_take(r, sizeof *out->p.list);
    return out->p.list != NULL;
}

bool sdpi_list_add(struct sdpi_render *r, struct sdpi_list *list,
                   const struct sdpi_value *item)
{
    if (list->count == list->room) {
        size_t room = list->room * 2 + 4;
        struct sdpi_value *items = sdpi_take(r, room * sizeof *items);

        if (!items)
            return false;
        if (list->count > 0)
            memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = *item;
    return true;
}

bool sdpi_new_dict(struct sdpi_render *r, enum sdpi_kind kind, struct sdpi_value *out)
{
    *out = (struct sdpi_value){.kind = kind};
    out->p.dict = sdpi_take(r, sizeof *out->p.dict);
    return out->p.dict != NULL;
}

static bool add_entry(struct sdpi_render *r, struct sdpi_dict *dict,
                      const struct sdpi_value *key, const struct sdpi_value *value)
{
    if (dict->count == dict->room) {
        size_t room = dict->room * 2 + 4;
        struct sdpi_entry *entries = sdpi_take(r, room * sizeof *entries);

        if (!entries)
            return false;
        if (dict->count > 0)
            memcpy(entries, dict->entries, dict->count * sizeof *entries);
        dict->entries = entries;
        dict->room = room;
    }
    dict->entries[dict->count].key = *key;
    dict->entries[dict->count++].value = *value;
    return true;
}

bool sdpi_dict_set(struct sdpi_render *r, struct sdpi_dict *dict,
                   const struct sdpi_value *key, const struct sdpi_value *value)
{
    if (!sdpi_charge(r, dict->count / 16))
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        bool same = false;

        if (!sdpi_equal(r, &dict->entries[i].key, key, &same))
            return false;
        if (same) {
            dict->entries[i].value = *value;
            return true;
        }
    }
    return add_entry(r, dict, key, value);
}

const struct sdpi_value *sdpi_dict_find(const struct sdpi_dict *dict, const char *name,
                                        size_t length)
{
    for (size_t i = 0; i < dict->count; i++) {
        const struct sdpi_value *key = &dict->entries[i].key;

        if (key->kind == SDPI_STRING && key->u.length == length &&
            memcmp(key->p.text, name, length) == 0)
            return &dict->entries[i].value;
    }
    return NULL;
}

static bool from_json(struct sdpi_render *r, const json_t *json, int depth,
                      struct sdpi_value *out)
{
    struct sdpi_value item, name;
    const char *key;
    json_t *member;
    size_t i;

    if (depth > SDPI_MAX_VALUE)
        return sdpi_fail(r, r->at, "lists are nested too deeply");
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        if (!sdpi_new_dict(r, SDPI_DICT, out))
            return false;
        json_object_foreach((json_t *)(uintptr_t)json, key, member)
        {
            name = sdpi_string(key, strlen(key));
            if (!from_json(r, member, depth + 1, &item) ||
                !add_entry(r, out->p.dict, &name, &item))
                return false;
        }
        return true;
    case JSON_ARRAY:
        if (!sdpi_new_list(r, SDPI_LIST, out))
            return false;
        json_array_foreach(json, i, member)
        {
            if (!from_json(r, member, depth + 1, &item) ||
                !sdpi_list_add(r, out->p.list, &item))
                return false;
        }
        return true;
    case JSON_STRING:
        *out = sdpi_string(json_string_value(json), json_string_length(json));
        return true;
    case JSON_INTEGER:
        *out = sdpi_int(json_integer_value(json));
        return true;
    case JSON_REAL:
        *out = sdpi_real(json_real_value(json));
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = sdpi_bool(json_is_true(json));
        return true;
    case JSON_NULL:
        break;
    }
    *out = sdpi_none();
    return true;
}

bool sdpi_from_json(struct sdpi_render *r, const json_t *json, struct sdpi_value *out)
{
    return from_json(r, json, 0, out);
}

/* -- what values are
 * ------------------------------------------------------------------------ */

bool sdpi_is_list(const struct sdpi_value *value)
{
    return value->kind == SDPI_LIST || value->kind == SDPI_TUPLE;
}

bool sdpi_is_number(const struct sdpi_value *value)
{
    return value->kind == SDPI_BOOL || value->kind == SDPI_INT ||
           value->kind == SDPI_REAL;
}

double sdpi_number(const struct sdpi_value *value)
{
    return value->kind == SDPI_REAL  ? value->u.real
           : value->kind == SDPI_INT ? (double)value->u.integer
                                     : (double)value->u.truth;
}

static int64_t integer_of(const struct sdpi_value *value)
{
    return value->kind == SDPI_INT ? value->u.integer : (int64_t)value->u.truth;
}

const char *sdpi_type_name(const struct sdpi_value *value)
{
    static const char *const names[] = {
        [SDPI_UNDEFINED] = "undefined", [SDPI_NONE] = "None",
        [SDPI_BOOL] = "bool",           [SDPI_INT] = "int",
        [SDPI_REAL] = "float",          [SDPI_STRING] = "str",
        [SDPI_LIST] = "list",           [SDPI_TUPLE] = "tuple",
        [SDPI_DICT] = "dict",           [SDPI_NAMESPACE] = "namespace",
        [SDPI_LOOP] = "loop",           [SDPI_MACRO] = "macro",
        [SDPI_METHOD] = "method",       [SDPI_GLOBAL] = "function"};

    return names[value->kind];
}

bool sdpi_is_text(const struct sdpi_value *value, const char *text)
{
    return value->kind == SDPI_STRING && value->u.length == strlen(text) &&
           memcmp(value->p.text, text, value->u.length) == 0;
}

bool sdpi_truth(const struct sdpi_value *value)
{
    switch (value->kind) {
    case SDPI_UNDEFINED:
    case SDPI_NONE:
        return false;
    case SDPI_BOOL:
        return value->u.truth;
    case SDPI_INT:
        return value->u.integer != 0;
    case SDPI_REAL:
        return value->u.real != 0.0;
    case SDPI_STRING:
        return value->u.length > 0;
    case SDPI_LIST:
    case SDPI_TUPLE:
        return value->p.list->count > 0;
    case SDPI_DICT:
        return value->p.dict->count > 0;
    default:
        return true;
    }
}

/* -- comparing
 * --------------------------------------------------------------------------------- */

static bool equal(struct sdpi_render *r, const struct sdpi_value *a,
                  const struct sdpi_value *b, int depth, bool *out);

static bool equal_lists(struct sdpi_render *r, const struct sdpi_list *a,
                        const struct sdpi_list *b, int depth, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++)
        if (!equal(r, &a->items[i], &b->items[i], depth + 1, out))
            return false;
    return true;
}

static bool equal_dicts(struct sdpi_render *r, const struct sdpi_dict *a,
                        const struct sdpi_dict *b, int depth, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++) {
        bool found = false, same = false;

        for (size_t j = 0; !found && j < b->count; j++) {
            if (!equal(r, &a->entries[i].key, &b->entries[j].key, depth + 1, &found))
                return false;
            if (found &&
                !equal(r, &a->entries[i].value, &b->entries[j].value, depth + 1, &same))
                return false;
        }
        *out = found && same;
    }
    return true;
}

static bool equal(struct sdpi_render *r, const struct sdpi_value *a,
                  const struct sdpi_value *b, int depth, bool *out)
{
    if (depth > SDPI_MAX_VALUE)
        return sdpi_fail(r, r->at, "lists are nested too deeply to be compared");
    if (!sdpi_charge(r, 1))
        return false;
    if (sdpi_is_number(a) && sdpi_is_number(b)) {
        *out = a->kind == SDPI_REAL || b->kind == SDPI_REAL
                   ? sdpi_number(a) == sdpi_number(b)
                   : integer_of(a) == integer_of(b);
        return true;
    }
    *out = false;
    if (a->kind != b->kind)
        return true;
    switch (a->kind) {
    case SDPI_UNDEFINED:
    case SDPI_NONE:
        *out = true;
        return true;
    case SDPI_STRING:
        *out =
            a->u.length == b->u.length && memcmp(a->p.text, b->p.text, a->u.length) == 0;
        return sdpi_charge(r, a->u.length / 1024);
    case SDPI_LIST:
    case SDPI_TUPLE:
        return equal_lists(r, a->p.list, b->p.list, depth, out);
    case SDPI_DICT:
        return equal_dicts(r, a->p.dict, b->p.dict, depth, out);
    default:
        *out = a->p.dict == b->p.dict; /* the same object */
        return true;
    }
}

bool sdpi_equal(struct sdpi_render *r, const struct sdpi_value *a,
                const struct sdpi_value *b, bool *out)
{
    return equal(r, a, b, 0, out);
}

static bool order(struct sdpi_render *r, const struct sdpi_value *a,
                  const struct sdpi_value *b, int depth, int *out)
{
    if (depth > SDPI_MAX_VALUE)
        return sdpi_fail(r, r->at, "lists are nested too deeply to be compared");
    if (sdpi_is_number(a) && sdpi_is_number(b)) {
        double x = sdpi_number(a), y = sdpi_number(b);

        *out = (x > y) - (x < y);
        if (a->kind != SDPI_REAL && b->kind != SDPI_REAL)
            *out = (integer_of(a) > integer_of(b)) - (integer_of(a) < integer_of(b));
        return true;
    }
    if (a->kind == SDPI_STRING && b->kind == SDPI_STRING) {
        int sign = memcmp(a->p.text, b->p.text, SDP_MIN(a->u.length, b->u.length));

        *out = sign ? (sign > 0) - (sign < 0)
                    : (a->u.length > b->u.length) - (a->u.length < b->u.length);
        return true;
    }
    if (sdpi_is_list(a) && a->kind == b->kind) {
        const struct sdpi_list *x = a->p.list, *y = b->p.list;

        for (size_t i = 0; i < SDP_MIN(x->count, y->count); i++) {
            bool same = false;

            if (!sdpi_equal(r, &x->items[i], &y->items[i], &same))
                return false;
            if (!same)
                return order(r, &x->items[i], &y->items[i], depth + 1, out);
        }
        *out = (x->count > y->count) - (x->count < y->count);
        return true;
    }
    return sdpi_fail(r, r->at, "cannot compare %s with %s by size", sdpi_type_name(a),
                     sdpi_type_name(b));
}

bool sdpi_order(struct sdpi_render *r, const struct sdpi_value *a,
                const struct sdpi_value *b, int *out)
{
    return order(r, a, b, 0, out);
}

bool sdpi_contains(struct sdpi_render *r, const struct sdpi_value *in,
                   const struct sdpi_value *what, bool *out)
{
    const struct sdpi_list *list = NULL;

    *out = false;
    if (in->kind == SDPI_STRING) {
        if (what->kind != SDPI_STRING)
            return sdpi_fail(r, r->at, "\"in\" a text wants a text on its left, not %s",
                             sdpi_type_name(what));
        *out = what->u.length == 0 ||
               memmem(in->p.text, in->u.length, what->p.text, what->u.length);
        return sdpi_charge(r, in->u.length / 256);
    }
    if (in->kind == SDPI_UNDEFINED)
        return true;
    if (!sdpi_iterate(r, in, &list))
        return false;
    for (size_t i = 0; !*out && i < list->count; i++)
        if (!sdpi_equal(r, &list->items[i], what, out))
            return false;
    return true;
}

/* -- going through
 * ---------------------------------------------------------------------------- */

static bool list_characters(struct sdpi_render *r, const struct sdpi_value *text,
                            struct sdpi_list *list)
{
    uint32_t character;

    for (size_t at = 0; at < text->u.length;) {
        size_t bytes =
            sdpi_character_read(text->p.text + at, text->u.length - at, &character);
        struct sdpi_value one = sdpi_string(text->p.text + at, SDP_MAX(bytes, (size_t)1));

        if (!sdpi_list_add(r, list, &one))
            return false;
        at += one.u.length;
    }
    return true;
}

bool sdpi_iterate(struct sdpi_render *r, const struct sdpi_value *value,
                  const struct sdpi_list **out)
{
    struct sdpi_value list;

    if (sdpi_is_list(value)) {
        *out = value->p.list;
        return true;
    }
    if (!sdpi_new_list(r, SDPI_LIST, &list))
        return false;
    *out = list.p.list;
    if (value->kind == SDPI_UNDEFINED)
        return true;
    if (value->kind == SDPI_STRING)
        return list_characters(r, value, list.p.list);
    if (value->kind != SDPI_DICT)
        return sdpi_fail(r, r->at, "%s cannot be gone through", sdpi_type_name(value));
    for (size_t i = 0; i < value->p.dict->count; i++)
        if (!sdpi_list_add(r, list.p.list, &value->p.dict->entries[i].key))
            return false;
    return true;
}

bool sdpi_length(struct sdpi_render *r, const struct sdpi_value *value, size_t *out)
{
    if (value->kind == SDPI_UNDEFINED)
        *out = 0;
    else if (value->kind == SDPI_STRING)
        *out = sdpi_characters_count(value->p.text, value->u.length);
    else if (sdpi_is_list(value))
        *out = value->p.list->count;
    else if (value->kind == SDPI_DICT)
        *out = value->p.dict->count;
    else
        return sdpi_fail(r, r->at, "%s has no length", sdpi_type_name(value));
    return true;
}
