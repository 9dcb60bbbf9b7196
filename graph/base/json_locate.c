/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Line and column of a JSON pointer. jansson forgets where a value stood, so
 * when there is an error to tell, the text is scanned once more. The text was
 * parsed before: it is valid JSON, or the scan just finds nothing. */
#include "graph/base/json.h"

#include "graph/base/util.h"

#include <stdlib.h>

struct scan {
    const char *at, *end;
    int line, column;
};

static void advance(struct scan *scan)
{
    unsigned char letter = (unsigned char)*scan->at++;

    if (letter == '\n') {
        scan->line++;
        scan->column = 1;
    } else if ((letter & 0xc0u) != 0x80u) { /* a character counts at its first byte */
        scan->column++;
    }
}

static char peek(const struct scan *scan)
{
    return scan->at < scan->end ? *scan->at : '\0';
}

/* Space, and the punctuation between a key, its value and the next key. */
static void skip_space(struct scan *scan)
{
    while (peek(scan) && strchr(" \t\r\n,:", peek(scan)))
        advance(scan);
}

static void skip_string(struct scan *scan)
{
    advance(scan);
    while (peek(scan) && peek(scan) != '"') {
        if (peek(scan) == '\\')
            advance(scan);
        if (peek(scan))
            advance(scan);
    }
    if (peek(scan))
        advance(scan);
}

static void skip_value(struct scan *scan)
{
    size_t depth = 0;

    do {
        char letter = peek(scan);

        if (letter == '"') {
            skip_string(scan);
        } else if (letter == '{' || letter == '[') {
            depth++;
            advance(scan);
        } else if (letter == '}' || letter == ']') {
            if (depth == 0)
                return;
            depth--;
            advance(scan);
        } else {
            while (peek(scan) && !strchr(" \t\r\n,:{}[]\"", peek(scan)))
                advance(scan);
        }
        skip_space(scan);
    } while (depth > 0 && peek(scan));
}

/* The quoted key from `start` on is `key`. */
static bool is_key(const char *start, const struct scan *after, const char *key)
{
    json_t *text = json_loadb(start, (size_t)(after->at - start), JSON_DECODE_ANY, NULL);
    bool same = text && json_is_string(text) && strcmp(json_string_value(text), key) == 0;

    json_decref(text);
    return same;
}

/* Moves from an object to the value of a member; *found is where its key stands. */
static bool enter_member(struct scan *scan, const char *key, struct scan *found)
{
    advance(scan);
    skip_space(scan);
    while (peek(scan) == '"') {
        *found = *scan;
        skip_string(scan);
        if (is_key(found->at, scan, key)) {
            skip_space(scan);
            return true;
        }
        skip_space(scan);
        skip_value(scan);
    }
    return false;
}

static bool enter_element(struct scan *scan, const char *key, struct scan *found)
{
    char *end;
    unsigned long index = strtoul(key, &end, 10);

    if (!*key || *end)
        return false;
    advance(scan);
    skip_space(scan);
    for (; index > 0 && peek(scan) && peek(scan) != ']'; index--)
        skip_value(scan);
    *found = *scan;
    return index == 0 && peek(scan) && peek(scan) != ']';
}

/* Cuts the next key off a pointer, unescaped, into a buffer as large as the pointer. */
static const char *next_key(const char *pointer, char *key)
{
    for (pointer++; *pointer && *pointer != '/'; pointer++) {
        if (*pointer == '~' && (pointer[1] == '0' || pointer[1] == '1'))
            *key++ = *++pointer == '1' ? '/' : '~';
        else
            *key++ = *pointer;
    }
    *key = '\0';
    return pointer;
}

bool sdp_json_locate(const char *text, size_t size, const char *pointer, int *line,
                     int *column)
{
    struct scan scan = {text, text + size, 1, 1}, found;
    char *key = sdp_xcalloc(strlen(pointer) + 1, 1);
    bool good = true, any = false;

    skip_space(&scan);
    while (good && *pointer == '/') {
        pointer = next_key(pointer, key);
        if (peek(&scan) == '{')
            good = enter_member(&scan, key, &found);
        else
            good = peek(&scan) == '[' && enter_element(&scan, key, &found);
        if (good) {
            *line = found.line;
            *column = found.column;
            any = true;
        }
    }
    free(key);
    return any;
}

void sdp_json_locate_error(struct sdp_error *err)
{
    struct sdp_map map;

    if (!err || err->status == SDP_OK || err->line > 0 || !err->file[0] ||
        !err->pointer[0])
        return;
    if (sdp_map_open(err->file, &map, NULL) != SDP_OK)
        return; /* the message is good without */
    if (map.data)
        sdp_json_locate((const char *)map.data, map.size, err->pointer, &err->line,
                        &err->column);
    sdp_map_close(&map);
}
