/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/decoder.h"

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/part.h"

#include <stdlib.h>

/* -- reading ------------------------------------------------------------------------- */

static struct sdpi_decode_step *add_step(void *out, enum sdpi_decode_kind kind)
{
    struct sdpi_decoder *decoder = out;
    struct sdpi_decode_step *step;

    decoder->steps =
        sdp_xrealloc(decoder->steps, (decoder->count + 1) * sizeof *decoder->steps);
    step = &decoder->steps[decoder->count++];
    *step = (struct sdpi_decode_step){.kind = kind};
    return step;
}

static bool read_bytes(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets",
                                       "use_regex", NULL};

    (void)depth;
    add_step(out, SDPI_DECODE_BYTES);
    return sdp_json_only_keys(at, keys);
}

static bool read_fallback(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", NULL};

    (void)depth;
    add_step(out, SDPI_DECODE_FALLBACK);
    return sdp_json_only_keys(at, keys);
}

static bool read_fuse(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", NULL};

    (void)depth;
    add_step(out, SDPI_DECODE_FUSE);
    return sdp_json_only_keys(at, keys);
}

static bool read_replace(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "pattern", "content", NULL};
    struct sdpi_decode_step *step = add_step(out, SDPI_DECODE_REPLACE);
    struct sdp_json pattern = sdp_json_member(at, "pattern");
    const char *content = NULL;

    (void)depth;
    if (!sdp_json_only_keys(at, keys) ||
        !sdpi_part_text(at, "content", &content, &step->content_length))
        return false;
    step->content = sdp_xstrdup(content);
    if (!pattern.value)
        return sdp_json_missing(at, "pattern");
    return sdpi_pattern_read(&step->pattern, &pattern);
}

static bool read_strip(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "content", "start", "stop", NULL};
    struct sdpi_decode_step *step = add_step(out, SDPI_DECODE_STRIP);

    (void)depth;
    return sdp_json_only_keys(at, keys) && sdpi_part_point(at, "content", &step->point) &&
           sdp_json_get_size(at, "start", 0, 1 << 20, &step->start) &&
           sdp_json_get_size(at, "stop", 0, 1 << 20, &step->stop);
}

static bool read_meta(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type",  "replacement", "add_prefix_space",
                                       "split", "str_rep",     "prepend_scheme",
                                       NULL};
    struct sdpi_decode_step *step = add_step(out, SDPI_DECODE_META);
    const char *scheme = "always";
    bool prefix = true;

    (void)depth;
    if (!sdp_json_only_keys(at, keys) ||
        !sdpi_part_point(at, "replacement", &step->point) ||
        !sdp_json_get_string(at, "prepend_scheme", &scheme) ||
        !sdpi_part_flag(at, "add_prefix_space", &prefix))
        return false;
    step->drop_first = prefix && strcmp(scheme, "never") != 0;
    return true;
}

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth);

static const struct sdpi_part_kind kinds[] = {
    {"ByteLevel", read_bytes},   {"ByteFallback", read_fallback},
    {"Replace", read_replace},   {"Strip", read_strip},
    {"Fuse", read_fuse},         {"Metaspace", read_meta},
    {"Sequence", read_sequence}, {NULL, NULL},
};

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "decoders", NULL};

    return sdp_json_only_keys(at, keys) &&
           sdpi_part_read_all(kinds, "decoder", out, at, "decoders", depth);
}

bool sdpi_decoder_read(struct sdpi_decoder *decoder, const struct sdp_json *at)
{
    if (!at->value || sdp_json_is_null(at))
        return true;
    decoder->given = true;
    return sdpi_part_read(kinds, "decoder", decoder, at, 0);
}

void sdpi_decoder_free(struct sdpi_decoder *decoder)
{
    for (size_t i = 0; i < decoder->count; i++) {
        sdpi_pattern_free(&decoder->steps[i].pattern);
        free(decoder->steps[i].content);
    }
    free(decoder->steps);
    *decoder = (struct sdpi_decoder){.steps = NULL};
}

/* -- parts ---------------------------------------------------------------- */

void sdpi_parts_end(struct sdpi_parts *parts)
{
    if (parts->count == parts->room) {
        parts->room = SDP_MAX(parts->room * 2, (size_t)64);
        parts->ends = sdp_xrealloc(parts->ends, parts->room * sizeof *parts->ends);
    }
    parts->ends[parts->count++] = parts->text.length;
}

void sdpi_parts_free(struct sdpi_parts *parts)
{
    sdpi_text_free(&parts->text);
    free(parts->ends);
    *parts = (struct sdpi_parts){.ends = NULL};
}

/* -- steps ---------------------------------------------------------------- */

static void add_bytes(struct sdpi_text *out, const char *token, size_t length)
{
    size_t before = out->length, step;

    for (size_t at = 0; at < length; at += step) {
        int byte =
            sdpi_character_byte(sdpi_utf8_point((const uint8_t *)token + at, &step));
        char one = (char)byte;

        if (byte < 0) { /* an added token: as it is */
            out->length = before;
            sdpi_text_add(out, token, length);
            return;
        }
        sdpi_text_add(out, &one, 1);
    }
}

/* All tokens become bytes, and these one text. */
static void decode_bytes(const struct sdpi_parts *in, struct sdpi_parts *out)
{
    struct sdpi_text bytes = {NULL, 0, 0};

    for (size_t i = 0, from = 0; i < in->count; from = in->ends[i++])
        add_bytes(&bytes, in->text.data + from, in->ends[i] - from);
    sdpi_utf8_repair(&out->text, bytes.data, bytes.length);
    sdpi_text_free(&bytes);
    sdpi_parts_end(out);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte of a token <0x41>; -1: it is none. */
static int fallback_byte(const char *token, size_t length)
{
    int high, low;

    if (length != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    high = token[3] == '+' ? 0 : hex_digit(token[3]); /* as the reference reads numbers */
    low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static void add_fallback(struct sdpi_parts *out, struct sdpi_text *bytes)
{
    if (bytes->length > 0 &&
        sdpi_utf8_valid(bytes->data, bytes->length) == bytes->length) {
        sdpi_text_add(&out->text, bytes->data, bytes->length);
        sdpi_parts_end(out);
    } else {
        for (size_t i = 0; i < bytes->length; i++) {
            sdpi_text_add_point(&out->text, 0xfffd);
            sdpi_parts_end(out);
        }
    }
    bytes->length = 0;
}

static void decode_fallback(const struct sdpi_parts *in, struct sdpi_parts *out)
{
    struct sdpi_text bytes = {NULL, 0, 0};

    for (size_t i = 0, from = 0; i < in->count; from = in->ends[i++]) {
        const char *token = in->text.data + from;
        int byte = fallback_byte(token, in->ends[i] - from);
        char one = (char)byte;

        if (byte >= 0) {
            sdpi_text_add(&bytes, &one, 1);
            continue;
        }
        add_fallback(out, &bytes);
        sdpi_text_add(&out->text, token, in->ends[i] - from);
        sdpi_parts_end(out);
    }
    add_fallback(out, &bytes);
    sdpi_text_free(&bytes);
}

static enum sdp_status decode_replace(const struct sdpi_decode_step *step,
                                      struct sdpi_pattern_scratch *scratch,
                                      const char *token, size_t length,
                                      struct sdpi_text *out, struct sdp_error *err)
{
    size_t done = 0, from = 0, start = 0, end = 0;
    int found = 0;

    sdpi_pattern_begin(&step->pattern, scratch, token, length);
    while (from < length &&
           (found = sdpi_pattern_next(&step->pattern, scratch, token, length, from,
                                      &start, &end, err)) > 0) {
        sdpi_text_add(out, token + done, start - done);
        sdpi_text_add(out, step->content, step->content_length);
        done = end;
        from = end;
        if (end == start)
            from += end < length ? sdpi_utf8_length((uint8_t)token[end]) : 1;
    }
    sdpi_text_add(out, token + done, length - done);
    return found < 0 ? SDP_INPUT : SDP_OK;
}

static void decode_strip(const struct sdpi_decode_step *step, const char *token,
                         size_t length, struct sdpi_text *out)
{
    const uint8_t *bytes = (const uint8_t *)token;
    size_t from = 0, to = length, size;

    for (size_t i = 0; i < step->start && from < to; i++) {
        if (sdpi_utf8_point(bytes + from, &size) != step->point)
            break;
        from += size;
    }
    for (size_t i = 0; i < step->stop && to > from; i++) {
        size_t last = sdpi_utf8_before(token, to);

        if (sdpi_utf8_point(bytes + last, &size) != step->point)
            break;
        to = last;
    }
    sdpi_text_add(out, token + from, to - from);
}

static void decode_meta(const struct sdpi_decode_step *step, bool first,
                        const char *token, size_t length, struct sdpi_text *out)
{
    size_t size;

    for (size_t at = 0; at < length; at += size) {
        if (sdpi_utf8_point((const uint8_t *)token + at, &size) != step->point)
            sdpi_text_add(out, token + at, size);
        else if (!first || !step->drop_first)
            sdpi_text_add(out, " ", 1);
    }
}

static enum sdp_status decode_each(const struct sdpi_decode_step *step,
                                   const struct sdpi_parts *in, struct sdpi_parts *out,
                                   struct sdp_error *err)
{
    struct sdpi_pattern_scratch scratch = {.data = NULL};
    enum sdp_status status = SDP_OK;

    for (size_t i = 0, from = 0; i < in->count && status == SDP_OK;
         from = in->ends[i++]) {
        const char *token = in->text.data + from;
        size_t length = in->ends[i] - from;

        if (step->kind == SDPI_DECODE_REPLACE)
            status = decode_replace(step, &scratch, token, length, &out->text, err);
        else if (step->kind == SDPI_DECODE_STRIP)
            decode_strip(step, token, length, &out->text);
        else
            decode_meta(step, i == 0, token, length, &out->text);
        sdpi_parts_end(out);
    }
    sdpi_pattern_scratch_free(&scratch);
    return status;
}

enum sdp_status sdpi_decode(const struct sdpi_decoder *decoder, struct sdpi_parts *parts,
                            struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;

    for (size_t i = 0; i < decoder->count && status == SDP_OK; i++) {
        const struct sdpi_decode_step *step = &decoder->steps[i];
        struct sdpi_parts out = {.ends = NULL};

        if (step->kind == SDPI_DECODE_FUSE) {
            parts->count = 0;
            sdpi_parts_end(parts);
            continue;
        }
        sdpi_text_reserve(&parts->text, 1);
        if (step->kind == SDPI_DECODE_BYTES)
            decode_bytes(parts, &out);
        else if (step->kind == SDPI_DECODE_FALLBACK)
            decode_fallback(parts, &out);
        else
            status = decode_each(step, parts, &out, err);
        sdpi_parts_free(parts);
        *parts = out;
    }
    return status;
}
