/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The expressions that most byte-level tokenizers split by, as plain code. Each function
 * follows its expression alternative by alternative. */
#include "model/tokenizer/pattern.h"

#define LLAMA3_START "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LLAMA3_END   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define KINDS (SDPI_LETTER | SDPI_NUMBER | SDPI_SPACE)

/* Kind of the character at `at` and its length; kind 0: none of the three. */
static inline unsigned kind_at(const uint8_t *flags, const uint8_t *text, size_t at,
                               size_t *step)
{
    if (text[at] < 0x80) {
        *step = 1;
        return flags[text[at]] & KINDS;
    }
    return flags[sdpi_utf8_point(text + at, step)] & KINDS;
}

/* The end of the characters of a kind from `at` on. */
static inline size_t skip(const uint8_t *flags, const uint8_t *text, size_t length,
                          size_t at, unsigned kind)
{
    size_t step;

    while (at < length && kind_at(flags, text, at, &step) == kind)
        at += step;
    return at;
}

static inline bool is_newline(uint8_t byte)
{
    return byte == '\r' || byte == '\n';
}

/* \s+(?!\S)|\s+ : all spaces if the text ends behind them, else all but the last one,
 * which the next match may begin with; unless it is the only one. */
static size_t match_spaces(const uint8_t *flags, const uint8_t *text, size_t length,
                           size_t at)
{
    size_t end = at, last = at, step;

    while (end < length && kind_at(flags, text, end, &step) == SDPI_SPACE) {
        last = end;
        end += step;
    }
    return end == length || last == at ? end : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d : the end, or 0. */
static size_t match_contraction(const uint8_t *text, size_t length, size_t at)
{
    uint8_t first = at + 1 < length ? text[at + 1] : 0;
    uint8_t second = at + 2 < length ? text[at + 2] : 0;

    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return at + 2;
    if (((first == 'r' || first == 'v') && second == 'e') ||
        (first == 'l' && second == 'l'))
        return at + 3;
    return 0;
}

/* The same in any case; U+017F is a small s. */
static size_t match_contraction_any(const uint8_t *text, size_t length, size_t at)
{
    uint8_t lower[3] = {text[at], 0, 0};
    size_t end;

    if (at + 2 < length && text[at + 1] == 0xc5 && text[at + 2] == 0xbf)
        return at + 3;
    for (size_t i = 1; i < 3 && at + i < length; i++)
        lower[i] = text[at + i] < 0x80 ? (uint8_t)(text[at + i] | 0x20) : 0;
    end = match_contraction(lower, 3, 0);
    return end ? at + end : 0;
}

static size_t match_gpt2(const uint8_t *flags, const uint8_t *text, size_t length,
                         size_t at)
{
    size_t step, start = at, end;
    unsigned kind;

    if (text[at] == '\'') {
        end = match_contraction(text, length, at);
        if (end)
            return end;
    }
    if (text[at] == ' ' && at + 1 < length)
        start++;
    kind = kind_at(flags, text, start, &step);
    if (kind == SDPI_SPACE)
        return match_spaces(flags, text, length, at);
    return skip(flags, text, length, start + step, kind);
}

/* Llama 3 and Qwen 2, which differ in how many digits go together. */
static inline size_t match_llama3(const uint8_t *flags, const uint8_t *text,
                                  size_t length, size_t at, size_t digits)
{
    size_t step, next, start = at, end, newline = 0;
    unsigned kind = kind_at(flags, text, at, &step);

    if (text[at] == '\'') {
        end = match_contraction_any(text, length, at);
        if (end)
            return end;
    }
    if (kind == SDPI_LETTER)
        return skip(flags, text, length, at + step, SDPI_LETTER);
    if (kind == SDPI_NUMBER) {
        for (end = at + step; --digits > 0 && end < length; end += step)
            if (kind_at(flags, text, end, &step) != SDPI_NUMBER)
                break;
        return end;
    }
    if (!is_newline(text[at])) { /* [^\r\n\p{L}\p{N}]?\p{L}+ */
        end = skip(flags, text, length, at + step, SDPI_LETTER);
        if (end > at + step)
            return end;
    }
    if (text[at] == ' ' && at + 1 < length) /*  ?[^\s\p{L}\p{N}]+[\r\n]* */
        start++;
    if (kind_at(flags, text, start, &next) == 0) {
        end = skip(flags, text, length, start + next, 0);
        while (end < length && is_newline(text[end]))
            end++;
        return end;
    }
    for (end = at; end < length && kind_at(flags, text, end, &step) == SDPI_SPACE;
         end += step)
        if (is_newline(text[end]))
            newline = end + 1;
    return newline ? newline : match_spaces(flags, text, length, at);
}

static size_t match_three_digits(const uint8_t *flags, const uint8_t *text, size_t length,
                                 size_t at)
{
    return match_llama3(flags, text, length, at, 3);
}

static size_t match_one_digit(const uint8_t *flags, const uint8_t *text, size_t length,
                              size_t at)
{
    return match_llama3(flags, text, length, at, 1);
}

sdpi_matcher sdpi_pattern_matcher(const char *regex)
{
    static const struct {
        const char *regex;
        sdpi_matcher matcher;
    } known[] = {
        {SDPI_GPT2_PATTERN, match_gpt2},
        {LLAMA3_START "\\p{N}{1,3}" LLAMA3_END, match_three_digits},
        {LLAMA3_START "\\p{N}" LLAMA3_END, match_one_digit},
    };

    for (size_t i = 0; i < SDP_COUNT_OF(known); i++)
        if (strcmp(known[i].regex, regex) == 0)
            return known[i].matcher;
    return NULL;
}
