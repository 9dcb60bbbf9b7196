/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/splitter.h"

#include "model/tokenizer/bpe.h"

#include <stdlib.h>

/* A stage at work on one text. */
struct work {
    const struct sdpi_splitter *splitter;
    struct sdpi_split_scratch *scratch;
    const struct sdpi_split_sink *sink;
    struct sdp_error *err;
    size_t stage;
    const char *text, *end;
    bool first;

    bool holding, matched; /* a piece that may yet grow; whether the last part matched */
    size_t from, to;
};

static enum sdp_status run_stage(const struct work *above, size_t stage, const char *text,
                                 size_t length, const char *end, bool first);

/* -- what becomes of the parts ------------------------------------------------------- */

static enum sdp_status hand_on(const struct work *w, size_t from, size_t to)
{
    if (from == to)
        return SDP_OK;
    if (w->stage + 1 == w->splitter->count) {
        w->sink->piece(w->sink->context, w->text + from, to - from, w->end);
        return SDP_OK;
    }
    return run_stage(w, w->stage + 1, w->text + from, to - from, w->end,
                     w->first && from == 0);
}

static enum sdp_status flush(struct work *w)
{
    bool held = w->holding;

    w->holding = false;
    return held ? hand_on(w, w->from, w->to) : SDP_OK;
}

static enum sdp_status hold(struct work *w, size_t from, size_t to)
{
    enum sdp_status status = flush(w);

    w->holding = true;
    w->from = from;
    w->to = to;
    return status;
}

/* One part of the text, which is a match or lies between matches. Parts come in order and
 * leave nothing out. */
static enum sdp_status part(struct work *w, size_t from, size_t to, bool match)
{
    const struct sdpi_split_stage *stage = &w->splitter->stages[w->stage];
    bool before = w->matched, grow = false;

    match = match != stage->invert;
    w->matched = match;
    switch (stage->behavior) {
    case SDPI_ISOLATED:
        return hand_on(w, from, to);
    case SDPI_REMOVED:
        return match ? SDP_OK : hand_on(w, from, to);
    case SDPI_CONTIGUOUS:
        grow = match == before;
        break;
    case SDPI_MERGED_WITH_PREVIOUS:
        grow = match && !before;
        break;
    case SDPI_MERGED_WITH_NEXT:
        grow = !match && before;
        break;
    }
    if (!grow || !w->holding)
        return hold(w, from, to);
    w->to = to;
    return SDP_OK;
}

/* -- where the matches are ----------------------------------------------------------- */

/* The loop of most tokenizers: every part is a match and a piece. */
static enum sdp_status split_by_matcher(struct work *w, size_t length)
{
    const struct sdpi_split_stage *stage = &w->splitter->stages[w->stage];
    const uint8_t *flags = sdpi_unicode_flags(), *text = (const uint8_t *)w->text;
    sdpi_matcher matcher = stage->pattern.matcher;
    enum sdp_status status = SDP_OK;
    size_t at = 0, to;

    if (stage->behavior == SDPI_ISOLATED && w->stage + 1 == w->splitter->count) {
        for (; at < length; at = to) {
            to = matcher(flags, text, length, at);
            w->sink->piece(w->sink->context, w->text + at, to - at, w->end);
        }
        return SDP_OK;
    }
    for (; at < length && status == SDP_OK; at = to) {
        to = matcher(flags, text, length, at);
        status = part(w, at, to, true);
    }
    return status;
}

static enum sdp_status split_by_pattern(struct work *w, size_t length)
{
    const struct sdpi_split_stage *stage = &w->splitter->stages[w->stage];
    size_t done = 0, from = 0, start = 0, end = 0;
    enum sdp_status status = SDP_OK;
    int found = 0;

    if (stage->pattern.matcher)
        return split_by_matcher(w, length);
    sdpi_pattern_begin(&stage->pattern, &w->scratch->pattern, w->text, length);
    while (status == SDP_OK && from <= length &&
           (found = sdpi_pattern_next(&stage->pattern, &w->scratch->pattern, w->text,
                                      length, from, &start, &end, w->err)) > 0) {
        if (start > done)
            status = part(w, done, start, false);
        if (status == SDP_OK)
            status = part(w, start, end, true);
        done = end;
        from = end;
        if (end == start) /* goes on behind the next character */
            from += end < length ? sdpi_utf8_length((uint8_t)w->text[end]) : 1;
    }
    if (found < 0)
        return SDP_INPUT;
    if (status == SDP_OK && done < length)
        status = part(w, done, length, false);
    return status;
}

static enum sdp_status split_by_characters(struct work *w, size_t length)
{
    const struct sdpi_split_stage *stage = &w->splitter->stages[w->stage];
    const uint8_t *flags = sdpi_unicode_flags();
    enum sdp_status status = SDP_OK;
    size_t done = 0, step;

    for (size_t at = 0; at < length && status == SDP_OK; at += step) {
        uint32_t point = sdpi_utf8_point((const uint8_t *)w->text + at, &step);

        if (stage->kind == SDPI_SPLIT_POINT ? point != stage->point
                                            : !(flags[point] & stage->flags))
            continue;
        if (at > done)
            status = part(w, done, at, false);
        if (status == SDP_OK)
            status = part(w, at, at + step, true);
        done = at + step;
    }
    if (status == SDP_OK && done < length)
        status = part(w, done, length, false);
    return status;
}

/* -- stages that change the text ------------------------------------------ */

static bool begins_with(const char *text, size_t length, const char *with, size_t size)
{
    return length >= size && memcmp(text, with, size) == 0;
}

static enum sdp_status put_space(struct work *w, size_t length)
{
    struct sdpi_text *out = &w->scratch->texts[w->stage];

    if (w->text[0] == ' ')
        return hand_on(w, 0, length);
    out->length = 0;
    sdpi_text_add(out, " ", 1);
    sdpi_text_add(out, w->text, length);
    w->text = out->data;
    w->end = out->data + out->room;
    return hand_on(w, 0, out->length);
}

static enum sdp_status put_meta(struct work *w, size_t length)
{
    const struct sdpi_split_stage *stage = &w->splitter->stages[w->stage];
    struct sdpi_text *out = &w->scratch->texts[w->stage];
    char sign[4];
    size_t size = sdpi_utf8_write(stage->point, sign), at = 0;
    bool prepend = stage->prepend == SDPI_PREPEND_ALWAYS ||
                   (stage->prepend == SDPI_PREPEND_FIRST && w->first);

    out->length = 0;
    if (prepend && w->text[0] != ' ' && !begins_with(w->text, length, sign, size))
        sdpi_text_add(out, sign, size);
    while (at < length) {
        const char *space = memchr(w->text + at, ' ', length - at);
        size_t to = space ? (size_t)(space - w->text) : length;

        sdpi_text_add(out, w->text + at, to - at);
        if (space)
            sdpi_text_add(out, sign, size);
        at = to + (space ? 1 : 0);
    }
    w->text = out->data;
    w->end = out->data + out->room;
    return hand_on(w, 0, out->length);
}

static enum sdp_status put_alphabet(struct work *w, size_t length)
{
    struct sdpi_text *out = &w->scratch->texts[w->stage];

    out->length = 0;
    for (size_t at = 0; at < length; at++)
        sdpi_text_add_point(out, sdpi_byte_character((uint8_t)w->text[at]));
    w->text = out->data;
    w->end = out->data + out->room;
    return hand_on(w, 0, out->length);
}

/* -- running -------------------------------------------------------------- */

static enum sdp_status run_stage(const struct work *above, size_t stage, const char *text,
                                 size_t length, const char *end, bool first)
{
    struct work w = *above;
    enum sdp_status status = SDP_OK;

    w.stage = stage;
    w.text = text;
    w.end = end;
    w.first = first;
    w.holding = w.matched = false;
    switch (w.splitter->stages[stage].kind) {
    case SDPI_SPLIT_PATTERN:
        status = split_by_pattern(&w, length);
        break;
    case SDPI_SPLIT_FLAGS:
    case SDPI_SPLIT_POINT:
        status = split_by_characters(&w, length);
        break;
    case SDPI_SPLIT_SPACE:
        status = put_space(&w, length);
        break;
    case SDPI_SPLIT_META:
        status = put_meta(&w, length);
        break;
    case SDPI_SPLIT_ALPHABET:
        status = put_alphabet(&w, length);
        break;
    }
    return status == SDP_OK ? flush(&w) : status;
}

enum sdp_status sdpi_split(const struct sdpi_splitter *splitter,
                           struct sdpi_split_scratch *scratch, const char *text,
                           size_t length, const char *end, bool first,
                           const struct sdpi_split_sink *sink, struct sdp_error *err)
{
    const struct work w = {
        .splitter = splitter, .scratch = scratch, .sink = sink, .err = err};

    if (length == 0)
        return SDP_OK;
    if (splitter->count == 0) {
        sink->piece(sink->context, text, length, end);
        return SDP_OK;
    }
    if (!scratch->texts) {
        scratch->texts = sdp_xcalloc(splitter->count, sizeof *scratch->texts);
        scratch->count = splitter->count;
    }
    return run_stage(&w, 0, text, length, end, first);
}

void sdpi_split_scratch_free(struct sdpi_split_scratch *s)
{
    for (size_t i = 0; i < s->count; i++)
        sdpi_text_free(&s->texts[i]);
    free(s->texts);
    sdpi_pattern_scratch_free(&s->pattern);
    *s = (struct sdpi_split_scratch){.texts = NULL};
}

void sdpi_splitter_free(struct sdpi_splitter *splitter)
{
    for (size_t i = 0; i < splitter->count; i++)
        sdpi_pattern_free(&splitter->stages[i].pattern);
    free(splitter->stages);
    *splitter = (struct sdpi_splitter){.stages = NULL};
}
