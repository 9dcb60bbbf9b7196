/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* UTF-8 and properties of code points. The functions for one code point expect valid
 * UTF-8, which sdpi_utf8_repair makes of any bytes. */
#ifndef SDP_MODEL_TOKENIZER_UNICODE_H
#define SDP_MODEL_TOKENIZER_UNICODE_H

#include "graph/base/util.h"

/* Growing text. */
struct sdpi_text {
    char *data;
    size_t length, room;
};

void sdpi_text_free(struct sdpi_text *text);
void sdpi_text_reserve(struct sdpi_text *text, size_t more);
void sdpi_text_add(struct sdpi_text *text, const char *from, size_t length);
void sdpi_text_add_point(struct sdpi_text *text, uint32_t point);

enum {
    SDPI_LETTER = 1,      /* \p{L} */
    SDPI_NUMBER = 2,      /* \p{N} */
    SDPI_SPACE = 4,       /* White_Space, \s */
    SDPI_PUNCTUATION = 8, /* what the part "Punctuation" splits at */
    SDPI_MARK = 16,       /* what StripAccents takes away */
    SDPI_WORD = 32,       /* \w of the reference's plain regexes */
    SDPI_RESTLESS = 64,   /* NFC may change it or join it to what is before it */
    SDPI_UNFORMED = 128   /* too new for the reference's normal forms: left alone */
};

/** Flags of all code points; filled at the first call. [borrowed] */
const uint8_t *sdpi_unicode_flags(void);

/** Whether a text has characters that Unicode has had for too short a time for PCRE2. */
bool sdpi_unicode_has_news(const char *text, size_t length);

/** The first byte at or behind `at` that is not ASCII. */
size_t sdpi_utf8_skip_ascii(const char *text, size_t length, size_t at);
/** Length of the valid UTF-8 that the bytes begin with. */
size_t sdpi_utf8_valid(const char *text, size_t length);
/** Appends bytes as valid UTF-8, with U+FFFD for what is none. */
void sdpi_utf8_repair(struct sdpi_text *out, const char *text, size_t length);

/** The code point at `at` and its length in bytes. */
static inline uint32_t sdpi_utf8_point(const uint8_t *at, size_t *length)
{
    uint32_t lead = at[0];

    if (lead < 0x80) {
        *length = 1;
        return lead;
    }
    if (lead < 0xe0) {
        *length = 2;
        return (lead & 0x1f) << 6 | (at[1] & 0x3f);
    }
    if (lead < 0xf0) {
        *length = 3;
        return (lead & 0x0f) << 12 | (uint32_t)(at[1] & 0x3f) << 6 | (at[2] & 0x3f);
    }
    *length = 4;
    return (lead & 0x07) << 18 | (uint32_t)(at[1] & 0x3f) << 12 |
           (uint32_t)(at[2] & 0x3f) << 6 | (at[3] & 0x3f);
}

static inline size_t sdpi_utf8_length(uint8_t lead)
{
    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/** Where the code point before `at` begins (at > 0). */
static inline size_t sdpi_utf8_before(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

/** Writes a code point; returns its length (1 to 4). */
size_t sdpi_utf8_write(uint32_t point, char *out);

#endif
