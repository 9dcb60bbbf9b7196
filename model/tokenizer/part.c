/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/part.h"

#include "model/tokenizer/unicode.h"

#include <stdio.h>

static void list_types(const struct sdpi_part_kind *kinds, char *out, size_t size)
{
    size_t used = 0;

    for (size_t i = 0; kinds[i].type && used < size; i++) {
        int length =
            snprintf(out + used, size - used, "%s\"%s\"", i ? ", " : "", kinds[i].type);
        used += length > 0 ? (size_t)length : 0;
    }
}

bool sdpi_part_read(const struct sdpi_part_kind *kinds, const char *what, void *out,
                    const struct sdp_json *at, unsigned depth)
{
    struct sdp_json type;
    const char *name = NULL;
    char types[512] = "";

    if (!sdp_json_expect_object(at))
        return false;
    type = sdp_json_member(at, "type");
    if (!type.value)
        return sdp_json_missing(at, "type");
    if (!sdp_json_expect_string(&type, &name))
        return false;
    for (size_t i = 0; kinds[i].type; i++)
        if (strcmp(kinds[i].type, name) == 0)
            return kinds[i].read(out, at, depth);
    list_types(kinds, types, sizeof types);
    return sdp_json_fail(&type, "the %s \"%s\" is not supported; supported are %s", what,
                         name, types);
}

bool sdpi_part_read_all(const struct sdpi_part_kind *kinds, const char *what, void *out,
                        const struct sdp_json *at, const char *key, unsigned depth)
{
    struct sdp_json list = sdp_json_member(at, key);
    size_t count = 0;

    if (!list.value)
        return sdp_json_missing(at, key);
    if (!sdp_json_expect_array(&list, &count))
        return false;
    if (depth == SDPI_PART_DEPTH)
        return sdp_json_fail(at, "more than %d sequences within each other",
                             SDPI_PART_DEPTH);
    for (size_t i = 0; i < count; i++) {
        struct sdp_json element = sdp_json_element(&list, i);

        if (!sdpi_part_read(kinds, what, out, &element, depth + 1))
            return false;
    }
    return true;
}

bool sdpi_part_flag(const struct sdp_json *at, const char *key, bool *out)
{
    struct sdp_json member = sdp_json_member(at, key);

    return (member.value && sdp_json_is_null(&member)) || sdp_json_get_bool(at, key, out);
}

bool sdpi_part_text(const struct sdp_json *at, const char *key, const char **out,
                    size_t *length)
{
    struct sdp_json member = sdp_json_member(at, key);

    if (!member.value)
        return sdp_json_missing(at, key);
    if (!sdp_json_expect_string(&member, out))
        return false;
    *length = json_string_length(member.value);
    return true;
}

bool sdpi_part_point(const struct sdp_json *at, const char *key, uint32_t *out)
{
    struct sdp_json member = sdp_json_member(at, key);
    const char *text = NULL;
    size_t length = 0, step;

    if (!sdpi_part_text(at, key, &text, &length))
        return false;
    if (length == 0 || length != sdpi_utf8_length((uint8_t)text[0]))
        return sdp_json_wrong(&member, "a string of one character");
    *out = sdpi_utf8_point((const uint8_t *)text, &step);
    return true;
}

bool sdpi_part_refuse_text(const struct sdp_json *at, const char *key)
{
    struct sdp_json member = sdp_json_member(at, key);

    if (!member.value || sdp_json_is_null(&member) ||
        (json_is_string(member.value) && json_string_length(member.value) == 0))
        return true;
    return sdp_json_fail(&member, "is not supported; must be null or empty");
}
