/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/unicode.h"

#include <pthread.h>
#include <stdlib.h>

#define POINTS      0x110000u
#define REPLACEMENT "\xef\xbf\xbd"

static const struct {
    uint32_t first, last;
    uint8_t flags;
} ranges[] = {
#include "model/tokenizer/unicode_table.h"
};

static const struct {
    uint32_t first, last;
    const char *category;
} news[] = {
#include "model/tokenizer/unicode_new.h"
};

static uint8_t flags[POINTS];
static uint8_t is_new[POINTS / 8];
static pthread_once_t flags_once = PTHREAD_ONCE_INIT;

static void fill_flags(void)
{
    for (size_t i = 0; i < SDP_COUNT_OF(ranges); i++)
        memset(flags + ranges[i].first, ranges[i].flags,
               ranges[i].last - ranges[i].first + 1);
    for (size_t i = 0; i < SDP_COUNT_OF(news); i++)
        for (uint32_t point = news[i].first; point <= news[i].last; point++)
            is_new[point / 8] = (uint8_t)(is_new[point / 8] | 1u << point % 8);
}

const uint8_t *sdpi_unicode_flags(void)
{
    if (pthread_once(&flags_once, fill_flags) != 0)
        abort(); /* cannot happen with a valid once control */
    return flags;
}

bool sdpi_unicode_has_news(const char *text, size_t length)
{
    size_t at = 0, step = 1;

    (void)sdpi_unicode_flags();
    while ((at = sdpi_utf8_skip_ascii(text, length, at)) < length) {
        uint32_t point = sdpi_utf8_point((const uint8_t *)text + at, &step);

        if (is_new[point / 8] >> point % 8 & 1)
            return true;
        at += step;
    }
    return false;
}

/* -- growing text --------------------------------------------------------------- */

void sdpi_text_free(struct sdpi_text *text)
{
    free(text->data);
    *text = (struct sdpi_text){NULL, 0, 0};
}

void sdpi_text_reserve(struct sdpi_text *text, size_t more)
{
    size_t room = SDP_MAX(text->room, (size_t)256);

    while (room - text->length < more)
        room *= 2;
    if (room == text->room)
        return;
    text->data = sdp_xrealloc(text->data, room);
    text->room = room;
}

void sdpi_text_add(struct sdpi_text *text, const char *from, size_t length)
{
    if (length == 0)
        return;
    sdpi_text_reserve(text, length);
    memcpy(text->data + text->length, from, length);
    text->length += length;
}

void sdpi_text_add_point(struct sdpi_text *text, uint32_t point)
{
    sdpi_text_reserve(text, 4);
    text->length += sdpi_utf8_write(point, text->data + text->length);
}

/* -- UTF-8 ---------------------------------------------------------------------- */

size_t sdpi_utf8_write(uint32_t point, char *out)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xc0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xe0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (point & 0x3f));
    return 4;
}

/* Reads one character that is not ASCII: true, and its length; or false, and how many
 * bytes of it could have been one. */
static bool read_long(const uint8_t *at, size_t left, size_t *length)
{
    uint8_t lead = at[0], low = 0x80, high = 0xbf;
    size_t wanted = sdpi_utf8_length(lead), n = 1;

    *length = 1;
    if (lead < 0xc2 || lead > 0xf4)
        return false;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    for (; n < wanted && n < left && at[n] >= low && at[n] <= high; n++) {
        low = 0x80;
        high = 0xbf;
    }
    *length = n;
    return n == wanted;
}

size_t sdpi_utf8_skip_ascii(const char *text, size_t length, size_t at)
{
    uint64_t eight;

    for (; length - at >= sizeof eight; at += sizeof eight) {
        memcpy(&eight, text + at, sizeof eight);
        if (eight & 0x8080808080808080u)
            break;
    }
    while (at < length && !(text[at] & 0x80))
        at++;
    return at;
}

size_t sdpi_utf8_valid(const char *text, size_t length)
{
    size_t at = 0, step;

    while ((at = sdpi_utf8_skip_ascii(text, length, at)) < length) {
        if (!read_long((const uint8_t *)text + at, length - at, &step))
            break;
        at += step;
    }
    return at;
}

void sdpi_utf8_repair(struct sdpi_text *out, const char *text, size_t length)
{
    while (length > 0) {
        size_t good = sdpi_utf8_valid(text, length), bad = 0;

        sdpi_text_add(out, text, good);
        if (good == length)
            return;
        read_long((const uint8_t *)text + good, length - good, &bad);
        sdpi_text_add(out, REPLACEMENT, sizeof REPLACEMENT - 1);
        text += good + bad;
        length -= good + bad;
    }
}
