/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Values as text: str() and repr() of Python, and JSON as its json.dumps writes it. */
#include "model/template/template_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* -- numbers
 * ------------------------------------------------------------------------------- */

/* digits e exponent, in the way of Python: 1e+16 and up, and below 0.0001, with an
 * exponent. */
static void place_point(const char *digits, int exponent, char *buffer, size_t size)
{
    int count = (int)strlen(digits);

    if (exponent < -4 || exponent >= 16)
        snprintf(buffer, size, "%c%s%se%c%02d", digits[0], count > 1 ? "." : "",
                 digits + 1, exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(buffer, size, "0.%.*s%s", -exponent - 1, "0000", digits);
    else if (exponent + 1 >= count)
        snprintf(buffer, size, "%s%.*s.0", digits, exponent + 1 - count,
                 "0000000000000000");
    else
        snprintf(buffer, size, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
}

void sdpi_real_text(double real, char *buffer, size_t size)
{
    char text[40], digits[24];
    size_t count = 0, at = 0;
    int exponent;

    if (isnan(real) || isinf(real)) {
        snprintf(buffer, size, "%s", isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(real));
        if (strtod(text, NULL) == fabs(real))
            break;
    }
    for (; text[at] != 'e'; at++)
        if (text[at] >= '0' && text[at] <= '9' && count + 1 < sizeof digits)
            digits[count++] = text[at];
    while (count > 1 && digits[count - 1] == '0')
        count--;
    digits[count] = '\0';
    exponent = (int)strtol(text + at + 1, NULL, 10);
    if (signbit(real)) {
        snprintf(buffer, size, "-");
        buffer++;
        size--;
    }
    place_point(digits, exponent, buffer, size);
}

/* -- str and repr
 * ------------------------------------------------------------------------------- */

static bool write_repr(struct sdpi_render *r, const struct sdpi_value *value, int depth,
                       struct sdpi_out *out);

/* Characters outside ASCII that Python surely prints as they are. */
static bool is_plain(uint32_t c)
{
    return (c >= 0xa1 && c <= 0x24f && c != 0xad) || (c >= 0x400 && c <= 0x52f) ||
           (c >= 0x3041 && c <= 0x3096) || (c >= 0x30a1 && c <= 0x30fa) ||
           (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3);
}

static bool repr_character(struct sdpi_render *r, uint32_t c, const char *text,
                           size_t bytes, char quote, struct sdpi_out *out)
{
    char escape[8];

    if (c == (uint32_t)quote || c == '\\')
        snprintf(escape, sizeof escape, "\\%c", (int)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (c < 32 || c == 127)
        snprintf(escape, sizeof escape, "\\x%02x", (unsigned)c);
    else if (c < 127 || is_plain(c)) {
        sdpi_out_add(out, text, bytes);
        return true;
    } else
        return sdpi_fail(
            r, r->at,
            "a list that holds the character U+%04X is written out; use tojson, which is "
            "supported for all characters",
            (unsigned)c);
    sdpi_out_string(out, escape);
    return true;
}

static bool repr_string(struct sdpi_render *r, const struct sdpi_value *value,
                        struct sdpi_out *out)
{
    const char *text = value->p.text;
    size_t length = value->u.length;
    char quote = memchr(text, '\'', length) && !memchr(text, '"', length) ? '"' : '\'';
    uint32_t character = 0;

    sdpi_out_add(out, &quote, 1);
    for (size_t at = 0; at < length;) {
        size_t bytes =
            SDP_MAX(sdpi_character_read(text + at, length - at, &character), (size_t)1);

        if (!repr_character(r, character, text + at, bytes, quote, out))
            return false;
        at += bytes;
    }
    sdpi_out_add(out, &quote, 1);
    return true;
}

static bool repr_list(struct sdpi_render *r, const struct sdpi_value *value, int depth,
                      struct sdpi_out *out)
{
    const struct sdpi_list *list = value->p.list;
    bool tuple = value->kind == SDPI_TUPLE;

    sdpi_out_string(out, tuple ? "(" : "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0)
            sdpi_out_string(out, ", ");
        if (!write_repr(r, &list->items[i], depth + 1, out))
            return false;
    }
    sdpi_out_string(out, tuple ? (list->count == 1 ? ",)" : ")") : "]");
    return true;
}

static bool repr_dict(struct sdpi_render *r, const struct sdpi_dict *dict, int depth,
                      struct sdpi_out *out)
{
    sdpi_out_string(out, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i > 0)
            sdpi_out_string(out, ", ");
        if (!write_repr(r, &dict->entries[i].key, depth + 1, out))
            return false;
        sdpi_out_string(out, ": ");
        if (!write_repr(r, &dict->entries[i].value, depth + 1, out))
            return false;
    }
    sdpi_out_string(out, "}");
    return true;
}

static bool write_repr(struct sdpi_render *r, const struct sdpi_value *value, int depth,
                       struct sdpi_out *out)
{
    char number[48];

    if (depth > SDPI_MAX_VALUE)
        return sdpi_fail(r, r->at, "lists are nested too deeply to be written");
    if (!sdpi_charge(r, 1) || !sdpi_check_out(r, out))
        return false;
    switch (value->kind) {
    case SDPI_UNDEFINED:
        sdpi_out_string(out, depth ? "Undefined" : "");
        return true;
    case SDPI_NONE:
        sdpi_out_string(out, "None");
        return true;
    case SDPI_BOOL:
        sdpi_out_string(out, value->u.truth ? "True" : "False");
        return true;
    case SDPI_INT:
        snprintf(number, sizeof number, "%lld", (long long)value->u.integer);
        sdpi_out_string(out, number);
        return true;
    case SDPI_REAL:
        sdpi_real_text(value->u.real, number, sizeof number);
        sdpi_out_string(out, number);
        return true;
    case SDPI_STRING:
        return repr_string(r, value, out);
    case SDPI_LIST:
    case SDPI_TUPLE:
        return repr_list(r, value, depth, out);
    case SDPI_DICT:
        return repr_dict(r, value->p.dict, depth, out);
    default:
        return sdpi_fail(r, r->at, "a %s cannot be written out", sdpi_type_name(value));
    }
}

/* Moves what was written into the arena. */
static bool finish(struct sdpi_render *r, struct sdpi_out *out, bool good,
                   struct sdpi_value *value)
{
    good = good && sdpi_check_out(r, out) &&
           sdpi_copy_string(r, out->text ? out->text : "", out->length, value);
    free(out->text);
    return good;
}

bool sdpi_to_text(struct sdpi_render *r, const struct sdpi_value *value,
                  struct sdpi_value *out)
{
    struct sdpi_out text = {.text = NULL};

    if (value->kind == SDPI_STRING) {
        *out = *value;
        return true;
    }
    return finish(r, &text, write_repr(r, value, 0, &text), out);
}

/* -- JSON
 * -------------------------------------------------------------------------------------------
 */

struct json_writer {
    struct sdpi_render *r;
    const struct sdpi_json_style *style;
    struct sdpi_out *out;
};

static bool write_json(struct json_writer *w, const struct sdpi_value *value, int depth);

static void json_escape(struct sdpi_out *out, uint32_t c)
{
    static const char names[] = "\"\\\n\r\t\b\f", meant[] = "\"\\nrtbf";
    const char *found = c && c < 128 ? strchr(names, (int)c) : NULL;
    char text[16];

    if (found)
        snprintf(text, sizeof text, "\\%c", meant[found - names]);
    else if (c > 0xffff)
        snprintf(text, sizeof text, "\\u%04x\\u%04x",
                 (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((c - 0x10000) & 0x3ff)));
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    sdpi_out_string(out, text);
}

static void json_string_out(struct json_writer *w, const struct sdpi_value *value)
{
    const char *text = value->p.text;
    uint32_t character = 0;

    sdpi_out_string(w->out, "\"");
    for (size_t at = 0; at < value->u.length;) {
        size_t bytes = SDP_MAX(
            sdpi_character_read(text + at, value->u.length - at, &character), (size_t)1);

        if (character < 32 || character == '"' || character == '\\' ||
            (w->style->ascii && character > 126))
            json_escape(w->out, character);
        else
            sdpi_out_add(w->out, text + at, bytes);
        at += bytes;
    }
    sdpi_out_string(w->out, "\"");
}

static void json_break(struct json_writer *w, int depth)
{
    if (!w->style->indent)
        return;
    sdpi_out_string(w->out, "\n");
    for (int i = 0; i < depth && !w->out->full; i++)
        sdpi_out_add(w->out, w->style->indent, w->style->indent_length);
}

static bool json_list(struct json_writer *w, const struct sdpi_list *list, int depth)
{
    sdpi_out_string(w->out, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0)
            sdpi_out_add(w->out, w->style->item, w->style->item_length);
        json_break(w, depth + 1);
        if (!write_json(w, &list->items[i], depth + 1))
            return false;
    }
    if (list->count > 0)
        json_break(w, depth);
    sdpi_out_string(w->out, "]");
    return true;
}

static int by_key(const void *a, const void *b)
{
    const struct sdpi_value *x = &(*(const struct sdpi_entry *const *)a)->key;
    const struct sdpi_value *y = &(*(const struct sdpi_entry *const *)b)->key;
    int sign = memcmp(x->p.text, y->p.text, SDP_MIN(x->u.length, y->u.length));

    return sign ? sign : (x->u.length > y->u.length) - (x->u.length < y->u.length);
}

static bool json_dict(struct json_writer *w, const struct sdpi_dict *dict, int depth)
{
    const struct sdpi_entry **order = sdpi_take(w->r, (dict->count + 1) * sizeof *order);

    if (!order)
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        if (dict->entries[i].key.kind != SDPI_STRING)
            return sdpi_fail(
                w->r, w->r->at,
                "tojson of a dict whose keys are not texts is not supported");
        order[i] = &dict->entries[i];
    }
    if (w->style->sorted && dict->count > 1)
        qsort(order, dict->count, sizeof *order, by_key);
    sdpi_out_string(w->out, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i > 0)
            sdpi_out_add(w->out, w->style->item, w->style->item_length);
        json_break(w, depth + 1);
        json_string_out(w, &order[i]->key);
        sdpi_out_add(w->out, w->style->key, w->style->key_length);
        if (!write_json(w, &order[i]->value, depth + 1))
            return false;
    }
    if (dict->count > 0)
        json_break(w, depth);
    sdpi_out_string(w->out, "}");
    return true;
}

static bool write_json(struct json_writer *w, const struct sdpi_value *value, int depth)
{
    if (depth > SDPI_MAX_VALUE)
        return sdpi_fail(w->r, w->r->at, "lists are nested too deeply to be written");
    if (!sdpi_charge(w->r, 1) || !sdpi_check_out(w->r, w->out))
        return false;
    switch (value->kind) {
    case SDPI_NONE:
        sdpi_out_string(w->out, "null");
        return true;
    case SDPI_BOOL:
        sdpi_out_string(w->out, value->u.truth ? "true" : "false");
        return true;
    case SDPI_REAL:
        if (isnan(value->u.real) || isinf(value->u.real)) {
            sdpi_out_string(w->out, isnan(value->u.real) ? "NaN"
                                    : value->u.real > 0  ? "Infinity"
                                                         : "-Infinity");
            return true;
        }
        return write_repr(w->r, value, 0, w->out);
    case SDPI_INT:
        return write_repr(w->r, value, 0, w->out);
    case SDPI_STRING:
        json_string_out(w, value);
        return true;
    case SDPI_LIST:
    case SDPI_TUPLE:
        return json_list(w, value->p.list, depth);
    case SDPI_DICT:
        return json_dict(w, value->p.dict, depth);
    default:
        return sdpi_fail(
            w->r, w->r->at, "%s%s%s cannot be written as JSON", sdpi_type_name(value),
            value->kind == SDPI_UNDEFINED && value->p.text ? " value " : "",
            value->kind == SDPI_UNDEFINED && value->p.text ? value->p.text : "");
    }
}

bool sdpi_to_json(struct sdpi_render *r, const struct sdpi_value *value,
                  const struct sdpi_json_style *style, struct sdpi_value *out)
{
    struct sdpi_out text = {.text = NULL};
    struct json_writer w = {r, style, &text};

    return finish(r, &text, write_json(&w, value, 0), out);
}
