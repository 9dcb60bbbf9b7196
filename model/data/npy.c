/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The header of a .npy file: a magic text, two bytes of version, the length of what
 * follows (2 bytes little endian, from version 2 on 4), and a Python dictionary
 *
 *     {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }
 *
 * padded with spaces and a newline. Only what numpy writes for plain arrays is read, with
 * a small parser of its own: the text is data, not Python. */
#include "model/data/npy.h"

#include <ctype.h>
#include <stdio.h>

#define MAGIC      "\x93NUMPY"
#define MAGIC_SIZE (sizeof MAGIC - 1)
#define MAX_DIMS   8
#define MAX_HEADER ((size_t)1 << 20)

/* The text being read; `wrong` says what was expected where it went wrong. */
struct cursor {
    const char *at, *end;
    const char *wrong;
};

struct header {
    char descr[32];
    bool fortran_order;
    size_t shape[MAX_DIMS], dims;
    bool has_descr, has_order, has_shape;
};

/* -- the dictionary ----------------------------------------------------------- */

static bool fail(struct cursor *cursor, const char *wrong)
{
    if (!cursor->wrong)
        cursor->wrong = wrong;
    return false;
}

static void skip_blanks(struct cursor *cursor)
{
    while (cursor->at < cursor->end && isspace((unsigned char)*cursor->at))
        cursor->at++;
}

static bool accept(struct cursor *cursor, const char *word)
{
    size_t length = strlen(word);

    skip_blanks(cursor);
    if ((size_t)(cursor->end - cursor->at) < length ||
        memcmp(cursor->at, word, length) != 0)
        return false;
    cursor->at += length;
    return true;
}

/* A text in single or double quotes, without escapes, as numpy writes them. */
static bool read_text(struct cursor *cursor, char *out, size_t size)
{
    size_t length = 0;
    char quote;

    skip_blanks(cursor);
    if (cursor->at == cursor->end || (*cursor->at != '\'' && *cursor->at != '"'))
        return fail(cursor, "a text in quotes");
    quote = *cursor->at++;
    while (cursor->at < cursor->end && *cursor->at != quote) {
        if (length + 1 == size || *cursor->at == '\\' ||
            !isprint((unsigned char)*cursor->at))
            return fail(cursor, "a short plain text in quotes");
        out[length++] = *cursor->at++;
    }
    out[length] = '\0';
    if (cursor->at == cursor->end)
        return fail(cursor, "a closing quote");
    cursor->at++;
    return true;
}

static bool read_number(struct cursor *cursor, size_t *out)
{
    size_t value = 0;

    skip_blanks(cursor);
    if (cursor->at == cursor->end || !isdigit((unsigned char)*cursor->at))
        return fail(cursor, "a number in the shape");
    for (; cursor->at < cursor->end && isdigit((unsigned char)*cursor->at);
         cursor->at++) {
        size_t digit = (size_t)(*cursor->at - '0');
        if (value > (SIZE_MAX - digit) / 10)
            return fail(cursor, "a smaller number in the shape");
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

static bool read_shape(struct cursor *cursor, struct header *header)
{
    if (!accept(cursor, "("))
        return fail(cursor, "a shape in parentheses");
    header->dims = 0;
    while (!accept(cursor, ")")) {
        if (header->dims == MAX_DIMS)
            return fail(cursor, "fewer dimensions");
        if (!read_number(cursor, &header->shape[header->dims++]))
            return false;
        if (!accept(cursor, ",")) {
            if (header->dims == 1) /* (5) would be a number in Python */
                return fail(cursor, "a comma in the shape");
            return accept(cursor, ")") || fail(cursor, "a closing parenthesis");
        }
    }
    return true;
}

static bool read_order(struct cursor *cursor, struct header *header)
{
    header->fortran_order = accept(cursor, "True");
    return header->fortran_order || accept(cursor, "False") ||
           fail(cursor, "True or False for 'fortran_order'");
}

/* Marks a key as read; each may be there once. */
static bool once(struct cursor *cursor, bool *seen)
{
    if (*seen)
        return fail(cursor, "each key once");
    *seen = true;
    return true;
}

static bool read_pair(struct cursor *cursor, struct header *header)
{
    char key[32];

    if (!read_text(cursor, key, sizeof key))
        return false;
    if (!accept(cursor, ":"))
        return fail(cursor, "a colon behind the key");
    if (strcmp(key, "descr") == 0)
        return once(cursor, &header->has_descr) &&
               read_text(cursor, header->descr, sizeof header->descr);
    if (strcmp(key, "fortran_order") == 0)
        return once(cursor, &header->has_order) && read_order(cursor, header);
    if (strcmp(key, "shape") == 0)
        return once(cursor, &header->has_shape) && read_shape(cursor, header);
    return fail(cursor, "no keys but 'descr', 'fortran_order' and 'shape'");
}

static bool read_dictionary(struct cursor *cursor, struct header *header)
{
    if (!accept(cursor, "{"))
        return fail(cursor, "a dictionary");
    while (!accept(cursor, "}")) {
        if (!read_pair(cursor, header))
            return false;
        if (accept(cursor, ","))
            continue;
        if (!accept(cursor, "}"))
            return fail(cursor, "a comma or a closing brace");
        break;
    }
    skip_blanks(cursor);
    if (cursor->at != cursor->end)
        return fail(cursor, "nothing behind the dictionary");
    return (header->has_descr && header->has_order && header->has_shape) ||
           fail(cursor, "the keys 'descr', 'fortran_order' and 'shape'");
}

/* -- the file ----------------------------------------------------------------- */

SDP_PRINTF(3, 4)
static enum sdp_status fail_npy(struct sdp_error *err, const char *path,
                                const char *format, ...)
{
    char text[sizeof err->text];
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    return sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0, "%s", text);
}

bool sdp_npy_has_magic(const struct sdp_map *map)
{
    return map->size >= MAGIC_SIZE && memcmp(map->data, MAGIC, MAGIC_SIZE) == 0;
}

/* Where the dictionary lies. */
static enum sdp_status find_header(const struct sdp_map *map, const char *path,
                                   struct cursor *cursor, struct sdp_error *err)
{
    size_t start, length;
    unsigned major;

    if (!sdp_npy_has_magic(map))
        return fail_npy(err, path, "does not begin as a .npy file does");
    if (map->size < MAGIC_SIZE + 2)
        return fail_npy(err, path, "ends within its header");
    major = map->data[MAGIC_SIZE];
    if ((major != 1 && major != 2) || map->data[MAGIC_SIZE + 1] != 0)
        return fail_npy(err, path, "is a .npy file of version %u.%u; must be 1.0 or 2.0",
                        major, map->data[MAGIC_SIZE + 1]);
    start = MAGIC_SIZE + 2 + (major == 1 ? 2 : 4);
    if (map->size < start)
        return fail_npy(err, path, "ends within its header");
    length = (size_t)map->data[start - 1] << 8 | map->data[start - 2];
    if (major == 2)
        length = length << 16 | (size_t)map->data[start - 3] << 8 | map->data[start - 4];
    if (length > MAX_HEADER)
        return fail_npy(err, path, "has a header of %zu bytes; at most %zu are read",
                        length, MAX_HEADER);
    if (length > map->size - start)
        return fail_npy(err, path,
                        "should have a header of %zu bytes, but has only %zu bytes in "
                        "all; the file is incomplete",
                        length, map->size);
    *cursor = (struct cursor){(const char *)map->data + start,
                              (const char *)map->data + start + length, NULL};
    return SDP_OK;
}

static bool find_dtype(const char *descr, enum sdp_dtype *out)
{
    static const struct {
        const char *descr;
        enum sdp_dtype dtype;
    } known[] = {
        {"<u2", SDP_UINT16}, {"<u4", SDP_UINT32}, {"<i4", SDP_INT32}, {"<i8", SDP_INT64}};

    for (size_t i = 0; i < SDP_COUNT_OF(known); i++)
        if (strcmp(descr, known[i].descr) == 0) {
            *out = known[i].dtype;
            return true;
        }
    return false;
}

enum sdp_status sdp_npy_parse(const struct sdp_map *map, const char *path,
                              struct sdp_npy *out, struct sdp_error *err)
{
    struct header header = {.descr = ""};
    struct cursor cursor = {NULL, NULL, NULL};
    struct sdp_npy npy = {SDP_UINT16, 0, NULL};
    enum sdp_status status = find_header(map, path, &cursor, err);
    size_t bytes = 0, left;

    if (status != SDP_OK)
        return status;
    if (!read_dictionary(&cursor, &header))
        return fail_npy(err, path, "has a .npy header that is not valid: expected %s",
                        cursor.wrong);
    if (!find_dtype(header.descr, &npy.dtype))
        return fail_npy(err, path,
                        "holds elements of type '%s'; must be '<u2', '<u4', '<i4' or "
                        "'<i8' (uint16, uint32, int32, int64)",
                        header.descr);
    if (header.fortran_order)
        return fail_npy(err, path, "is in Fortran order; must be in C order");
    if (header.dims != 1)
        return fail_npy(err, path, "has %zu dimensions; must have 1: one stream of ids",
                        header.dims);
    npy.count = header.shape[0];
    npy.data = (const uint8_t *)cursor.end;
    left = map->size - (size_t)(npy.data - map->data);
    if (!sdp_size_mul(npy.count, sdp_dtype_size(npy.dtype), &bytes) || bytes != left)
        return fail_npy(err, path,
                        "should hold %zu elements of %zu bytes, but has %zu bytes behind "
                        "its header; the file is incomplete or damaged",
                        npy.count, sdp_dtype_size(npy.dtype), left);
    *out = npy;
    return SDP_OK;
}

void sdp_npy_fp32_header(const size_t *shape, size_t dimensions, char *text)
{
    char sizes[96] = "";
    size_t used = 0, length = SDP_NPY_HEADER - 10; /* magic, version, length of the rest */

    for (size_t i = 0; i < dimensions; i++)
        used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%zu, ", shape[i]);
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    text[8] = (char)length;
    text[9] = 0;
    memset(text + 10, ' ', length);
    used = (size_t)snprintf(text + 10, length, "{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}", sizes);
    text[10 + used] = ' '; /* where the end of text was put */
    text[SDP_NPY_HEADER - 1] = '\n';
}
