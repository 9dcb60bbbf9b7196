/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* UTF-8 and growing texts. Positions in templates count characters, as Python's do. */
#include "model/template/template_internal.h"

#include <stdlib.h>

/* -- arena ------------------------------------------------------------------------ */

#define BLOCK ((size_t)64 << 10)

void *sdpi_arena_take(struct sdpi_arena *arena, size_t size)
{
    struct sdpi_block *block = arena->blocks;
    void *memory;

    if (size > arena->limit)
        return NULL;
    size = sdp_round_up(SDP_MAX(size, (size_t)1), 16);
    if (!block || block->room - block->used < size) {
        size_t room = SDP_MAX(size, BLOCK), head = sdp_round_up(sizeof *block, 16);

        if (arena->total + room > arena->limit)
            return NULL;
        block = sdp_xcalloc(1, head + room);
        block->used = head;
        block->room = head + room;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->total += room;
    }
    memory = (char *)block + block->used;
    block->used += size;
    return memory;
}

void sdpi_arena_free(struct sdpi_arena *arena)
{
    while (arena->blocks) {
        struct sdpi_block *next = arena->blocks->next;

        free(arena->blocks);
        arena->blocks = next;
    }
    arena->total = 0;
}

/* -- growing text ------------------------------------------------------------------- */

void sdpi_out_add(struct sdpi_out *out, const char *text, size_t length)
{
    if (length > SDPI_MAX_OUTPUT || out->length > SDPI_MAX_OUTPUT - length) {
        out->full = true;
        return;
    }
    if (out->length + length + 1 > out->room) {
        out->room = SDP_MAX(out->length + length + 1, out->room + out->room / 2 + 256);
        out->text = sdp_xrealloc(out->text, out->room);
    }
    if (length > 0)
        memcpy(out->text + out->length, text, length);
    out->length += length;
    out->text[out->length] = '\0';
}

void sdpi_out_string(struct sdpi_out *out, const char *text)
{
    sdpi_out_add(out, text, strlen(text));
}

/* -- UTF-8 ----------------------------------------------------------------------------
 */

size_t sdpi_character_read(const char *text, size_t length, uint32_t *character)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t first;
    uint32_t value;
    size_t bytes;

    if (length == 0)
        return 0;
    first = (uint8_t)text[0];
    bytes = first < 0x80   ? 1
            : first < 0xc2 ? 0
            : first < 0xe0 ? 2
            : first < 0xf0 ? 3
            : first < 0xf5 ? 4
                           : 0;
    if (bytes == 0 || bytes > length)
        return 0;
    value = bytes == 1 ? first : first & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if (((uint8_t)text[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | ((uint8_t)text[i] & 0x3f);
    }
    if (value < least[bytes] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    *character = value;
    return bytes;
}

size_t sdpi_character_write(uint32_t character, char *out)
{
    size_t bytes = character < 0x80      ? 1
                   : character < 0x800   ? 2
                   : character < 0x10000 ? 3
                                         : 4;

    if (bytes == 1) {
        out[0] = (char)character;
        return 1;
    }
    for (size_t i = bytes; i-- > 1; character >>= 6)
        out[i] = (char)(0x80 | (character & 0x3f));
    out[0] = (char)((0xf00u >> bytes & 0xffu) | character);
    return bytes;
}

bool sdpi_characters_valid(const char *text, size_t length, size_t *where)
{
    uint32_t character;

    for (size_t at = 0; at < length;) {
        size_t bytes = sdpi_character_read(text + at, length - at, &character);

        if (bytes == 0) {
            *where = at;
            return false;
        }
        at += bytes;
    }
    return true;
}

size_t sdpi_characters_count(const char *text, size_t length)
{
    size_t count = 0;

    for (size_t i = 0; i < length; i++)
        count += ((uint8_t)text[i] & 0xc0) != 0x80;
    return count;
}

size_t sdpi_character_offset(const char *text, size_t length, size_t character)
{
    size_t at = 0;

    for (; at < length; at++) {
        if (((uint8_t)text[at] & 0xc0) == 0x80)
            continue;
        if (character-- == 0)
            return at;
    }
    return length;
}

bool sdpi_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool is_of(uint32_t character, const struct sdpi_value *set)
{
    uint32_t other = 0;

    if (!set)
        return sdpi_is_space(character);
    for (size_t at = 0; at < set->u.length;) {
        size_t bytes = sdpi_character_read(set->p.text + at, set->u.length - at, &other);

        if (other == character)
            return true;
        at += SDP_MAX(bytes, (size_t)1);
    }
    return false;
}

void sdpi_strip(const char **text, size_t *length, const struct sdpi_value *set,
                bool left, bool right)
{
    uint32_t character = 0;

    while (left && *length > 0) {
        size_t bytes = sdpi_character_read(*text, *length, &character);

        if (bytes == 0 || !is_of(character, set))
            break;
        *text += bytes;
        *length -= bytes;
    }
    while (right && *length > 0) {
        size_t start = *length - 1;

        while (start > 0 && ((uint8_t)(*text)[start] & 0xc0) == 0x80)
            start--;
        if (sdpi_character_read(*text + start, *length - start, &character) == 0 ||
            !is_of(character, set))
            break;
        *length = start;
    }
}
