/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/pattern.h"

#include "model/tokenizer/part.h"

#include <stdio.h>
#include <stdlib.h>

#define STACK_FIRST ((size_t)32 << 10)
#define STACK_MOST  ((size_t)16 << 20)

pcre2_code *sdpi_pattern_code(const char *translated, size_t length, char *wrong,
                              size_t size)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_code *code;
    PCRE2_SIZE offset = 0;
    int number = 0;

    if (!context || pcre2_set_newline(context, PCRE2_NEWLINE_LF) != 0) {
        snprintf(wrong, size, "PCRE2 has no memory left");
        pcre2_compile_context_free(context);
        return NULL;
    }
    code = pcre2_compile((PCRE2_SPTR)translated, length,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &number,
                         &offset, context);
    pcre2_compile_context_free(context);
    if (!code) {
        PCRE2_UCHAR text[160] = "";

        pcre2_get_error_message(number, text, sizeof text);
        snprintf(wrong, size, "%s", (const char *)text);
    }
    return code;
}

/* Translates and compiles; machines without a JIT interpret. */
static bool compile_one(pcre2_code **code, const char *regex, size_t length, bool news,
                        bool *differs, char *wrong, size_t size)
{
    struct sdpi_text text = {NULL, 0, 0};
    int rc;

    if (sdpi_pattern_translate(regex, length, news, differs, &text, wrong, size))
        *code = sdpi_pattern_code(text.data, text.length, wrong, size);
    sdpi_text_free(&text);
    if (!*code)
        return false;
    rc = pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);
    if (rc == PCRE2_ERROR_NOMEMORY)
        snprintf(wrong, size, "PCRE2 has no memory left");
    return rc != PCRE2_ERROR_NOMEMORY;
}

static bool compile(struct sdpi_pattern *pattern, const char *regex, size_t length,
                    char *wrong, size_t size)
{
    bool differs = false;

    pattern->matcher = sdpi_pattern_matcher(regex);
    if (pattern->matcher)
        return true;
    return compile_one(&pattern->code, regex, length, false, &differs, wrong, size) &&
           (!differs ||
            compile_one(&pattern->code_new, regex, length, true, &differs, wrong, size));
}

enum sdp_status sdpi_pattern_compile(struct sdpi_pattern *pattern, const char *regex,
                                     struct sdp_error *err)
{
    char wrong[256] = "";

    if (!compile(pattern, regex, strlen(regex), wrong, sizeof wrong))
        return sdp_fail(err, SDP_INTERNAL, "%s: %s", regex, wrong);
    return SDP_OK;
}

static bool read_literal(struct sdpi_pattern *pattern, const struct sdp_json *at)
{
    struct sdp_json member = sdp_json_member(at, "String");
    const char *text = NULL;

    if (!sdpi_part_text(at, "String", &text, &pattern->literal_length))
        return false;
    if (pattern->literal_length == 0)
        return sdp_json_fail(&member, "is empty; must be at least one character");
    pattern->literal = sdp_xstrdup(text);
    return true;
}

bool sdpi_pattern_read(struct sdpi_pattern *pattern, const struct sdp_json *at)
{
    static const char *const keys[] = {"String", "Regex", NULL};
    struct sdp_json member = sdp_json_member(at, "Regex");
    const char *regex = NULL;
    size_t length = 0;
    char wrong[256] = "";

    if (!sdp_json_only_keys(at, keys))
        return false;
    if (!member.value)
        return read_literal(pattern, at);
    if (!sdpi_part_text(at, "Regex", &regex, &length))
        return false;
    return compile(pattern, regex, length, wrong, sizeof wrong) ||
           sdp_json_fail(&member, "the expression is not supported: %s", wrong);
}

void sdpi_pattern_free(struct sdpi_pattern *pattern)
{
    free(pattern->literal);
    pcre2_code_free(pattern->code);
    pcre2_code_free(pattern->code_new);
    *pattern = (struct sdpi_pattern){.code = NULL};
}

void sdpi_pattern_scratch_free(struct sdpi_pattern_scratch *scratch)
{
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    *scratch = (struct sdpi_pattern_scratch){.data = NULL};
}

static bool prepare(struct sdpi_pattern_scratch *scratch)
{
    if (scratch->data)
        return true;
    scratch->context = pcre2_match_context_create(NULL);
    scratch->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, NULL);
    if (!scratch->context)
        return false;
    if (scratch->stack) /* NULL where there is no JIT */
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    scratch->data = pcre2_match_data_create(1, NULL);
    return scratch->data != NULL;
}

void sdpi_pattern_begin(const struct sdpi_pattern *pattern,
                        struct sdpi_pattern_scratch *scratch, const char *text,
                        size_t length)
{
    scratch->news = pattern->code_new && sdpi_unicode_has_news(text, length);
}

static int next_code(const struct sdpi_pattern *pattern,
                     struct sdpi_pattern_scratch *scratch, const char *text,
                     size_t length, size_t from, size_t *start, size_t *end,
                     struct sdp_error *err)
{
    const pcre2_code *code = scratch->news ? pattern->code_new : pattern->code;
    int rc = PCRE2_ERROR_NOMEMORY;
    PCRE2_UCHAR message[160] = "";

    if (prepare(scratch))
        rc = pcre2_match(code, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK,
                         scratch->data, scratch->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, length, from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->data,
                         scratch->context);
    if (rc >= 0) {
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(scratch->data);

        *start = found[0];
        *end = SDP_MAX(found[1], found[0]);
        return 1;
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    pcre2_get_error_message(rc, message, sizeof message);
    sdp_fail(
        err, SDP_INPUT,
        "the tokenizer's regular expression cannot be matched at byte %zu of a text: %s",
        from, (const char *)message);
    return -1;
}

int sdpi_pattern_next(const struct sdpi_pattern *pattern,
                      struct sdpi_pattern_scratch *scratch, const char *text,
                      size_t length, size_t from, size_t *start, size_t *end,
                      struct sdp_error *err)
{
    const char *found;

    if (pattern->matcher) {
        if (from >= length)
            return 0;
        *start = from;
        *end =
            pattern->matcher(sdpi_unicode_flags(), (const uint8_t *)text, length, from);
        return 1;
    }
    if (pattern->code)
        return next_code(pattern, scratch, text, length, from, start, end, err);
    found = memmem(text + from, length - from, pattern->literal, pattern->literal_length);
    if (!found)
        return 0;
    *start = (size_t)(found - text);
    *end = *start + pattern->literal_length;
    return 1;
}
