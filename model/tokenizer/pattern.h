/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What texts are split and replaced by: regular expressions as the reference reads them
 * (Oniguruma's Ruby syntax), and plain strings. An expression is translated for PCRE2;
 * those of GPT-2, Llama 3 and Qwen 2 have a matcher each, written by hand and equal to
 * it. */
#ifndef SDP_MODEL_TOKENIZER_PATTERN_H
#define SDP_MODEL_TOKENIZER_PATTERN_H

#include "graph/base/json.h"
#include "model/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SDPI_GPT2_PATTERN                                                                \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* The end of the match at `at`. There is one at each position, never empty. */
typedef size_t (*sdpi_matcher)(const uint8_t *flags, const uint8_t *text, size_t length,
                               size_t at);

struct sdpi_pattern { /* begin with zeros; exactly one of the three is set */
    char *literal;
    size_t literal_length;
    sdpi_matcher matcher;
    pcre2_code *code;
    pcre2_code
        *code_new; /* where PCRE2's Unicode is old: for texts with newer characters */
};

/* What one thread at a time matches with. */
struct sdpi_pattern_scratch { /* begin with zeros */
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool news; /* the text at hand has newer characters */
};

/** Reads {"Regex": "..."} or {"String": "..."}. */
bool sdpi_pattern_read(struct sdpi_pattern *pattern, const struct sdp_json *at);
/** An expression that is known to be right. */
enum sdp_status sdpi_pattern_compile(struct sdpi_pattern *pattern, const char *regex,
                                     struct sdp_error *err);
void sdpi_pattern_free(struct sdpi_pattern *pattern);
void sdpi_pattern_scratch_free(struct sdpi_pattern_scratch *scratch);

/** To be called before the matches of a text are asked for. */
void sdpi_pattern_begin(const struct sdpi_pattern *pattern,
                        struct sdpi_pattern_scratch *scratch, const char *text,
                        size_t length);

/** The first match at or behind `from`: 1 and where it is; 0: none; -1: it is too complex
 * (message in err). */
int sdpi_pattern_next(const struct sdpi_pattern *pattern,
                      struct sdpi_pattern_scratch *scratch, const char *text,
                      size_t length, size_t from, size_t *start, size_t *end,
                      struct sdp_error *err);

/** The matcher written by hand for an expression; NULL: there is none. */
sdpi_matcher sdpi_pattern_matcher(const char *regex);

/** An expression in Oniguruma's Ruby syntax as one for PCRE2 (UTF, UCP, newline LF).
 * False: it has something that has no equal there, which `wrong` names. `news`: with what
 * is newer than an old PCRE2; *differs: whether that makes a difference. */
bool sdpi_pattern_translate(const char *regex, size_t length, bool news, bool *differs,
                            struct sdpi_text *out, char *wrong, size_t size);

/** A translated expression; NULL: `wrong` says why not. [new] */
pcre2_code *sdpi_pattern_code(const char *translated, size_t length, char *wrong,
                              size_t size);

#endif
