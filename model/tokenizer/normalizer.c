/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/normalizer.h"

#include "model/tokenizer/part.h"

#include <stdlib.h>
#include <utf8proc.h>

/* -- reading ------------------------------------------------------------------------- */

static struct sdpi_normal_step *add_step(void *out, enum sdpi_normal_kind kind)
{
    struct sdpi_normalizer *normalizer = out;
    struct sdpi_normal_step *step;

    normalizer->steps = sdp_xrealloc(normalizer->steps,
                                     (normalizer->count + 1) * sizeof *normalizer->steps);
    step = &normalizer->steps[normalizer->count++];
    *step = (struct sdpi_normal_step){.kind = kind};
    return step;
}

static bool read_plain(void *out, const struct sdp_json *at, enum sdpi_normal_kind kind)
{
    static const char *const keys[] = {"type", NULL};

    add_step(out, kind);
    return sdp_json_only_keys(at, keys);
}

#define PLAIN(name, kind)                                                                \
    static bool name(void *out, const struct sdp_json *at, unsigned depth)               \
    {                                                                                    \
        (void)depth;                                                                     \
        return read_plain(out, at, kind);                                                \
    }
PLAIN(read_nfc, SDPI_NFC)
PLAIN(read_nfd, SDPI_NFD)
PLAIN(read_nfkc, SDPI_NFKC)
PLAIN(read_nfkd, SDPI_NFKD)
PLAIN(read_lowercase, SDPI_LOWERCASE)
PLAIN(read_strip_accents, SDPI_STRIP_ACCENTS)

static bool read_strip(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "strip_left", "strip_right", NULL};
    struct sdpi_normal_step *step = add_step(out, SDPI_STRIP);

    (void)depth;
    return sdp_json_only_keys(at, keys) &&
           sdpi_part_flag(at, "strip_left", &step->left) &&
           sdpi_part_flag(at, "strip_right", &step->right);
}

static bool read_content(struct sdpi_normal_step *step, const struct sdp_json *at,
                         const char *key)
{
    const char *text = NULL;

    if (!sdpi_part_text(at, key, &text, &step->content_length))
        return false;
    step->content = sdp_xstrdup(text);
    return true;
}

static bool read_prepend(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "prepend", NULL};

    (void)depth;
    return sdp_json_only_keys(at, keys) &&
           read_content(add_step(out, SDPI_PREPEND), at, "prepend");
}

static bool read_replace(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "pattern", "content", NULL};
    struct sdpi_normal_step *step = add_step(out, SDPI_REPLACE);
    struct sdp_json pattern = sdp_json_member(at, "pattern");

    (void)depth;
    if (!sdp_json_only_keys(at, keys) || !read_content(step, at, "content"))
        return false;
    if (!pattern.value)
        return sdp_json_missing(at, "pattern");
    return sdpi_pattern_read(&step->pattern, &pattern);
}

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth);

static const struct sdpi_part_kind kinds[] = {
    {"NFC", read_nfc},
    {"NFD", read_nfd},
    {"NFKC", read_nfkc},
    {"NFKD", read_nfkd},
    {"Lowercase", read_lowercase},
    {"Strip", read_strip},
    {"StripAccents", read_strip_accents},
    {"Prepend", read_prepend},
    {"Replace", read_replace},
    {"Sequence", read_sequence},
    {NULL, NULL},
};

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "normalizers", NULL};

    return sdp_json_only_keys(at, keys) &&
           sdpi_part_read_all(kinds, "normalizer", out, at, "normalizers", depth);
}

bool sdpi_normalizer_read(struct sdpi_normalizer *normalizer, const struct sdp_json *at)
{
    return !at->value || sdp_json_is_null(at) ||
           sdpi_part_read(kinds, "normalizer", normalizer, at, 0);
}

void sdpi_normalizer_free(struct sdpi_normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->count; i++) {
        sdpi_pattern_free(&normalizer->steps[i].pattern);
        free(normalizer->steps[i].content);
    }
    free(normalizer->steps);
    *normalizer = (struct sdpi_normalizer){NULL, 0};
}

void sdpi_normal_scratch_free(struct sdpi_normal_scratch *s)
{
    sdpi_text_free(&s->texts[0]);
    sdpi_text_free(&s->texts[1]);
    sdpi_pattern_scratch_free(&s->pattern);
    free(s->points);
    *s = (struct sdpi_normal_scratch){.points = NULL};
}

/* -- steps --------------------------------------------------------------------------- */

static void lowercase(const char *text, size_t length, struct sdpi_text *out)
{
    size_t step;

    for (size_t at = 0; at < length; at += step) {
        size_t plain = sdpi_utf8_skip_ascii(text, length, at);
        uint32_t point;

        sdpi_text_reserve(out, plain - at + 4);
        for (; at < plain; at++)
            out->data[out->length++] =
                (char)(text[at] >= 'A' && text[at] <= 'Z' ? text[at] | 0x20 : text[at]);
        if (at == length)
            return;
        point = sdpi_utf8_point((const uint8_t *)text + at, &step);
        if (point == 0x130) { /* the only one that becomes two */
            sdpi_text_add_point(out, 'i');
            point = 0x307;
        } else {
            point = (uint32_t)utf8proc_tolower((int32_t)point);
        }
        sdpi_text_add_point(out, point);
    }
}

static void strip_accents(const char *text, size_t length, struct sdpi_text *out)
{
    const uint8_t *flags = sdpi_unicode_flags();
    size_t step;

    for (size_t at = 0; at < length; at += step) {
        uint32_t point = sdpi_utf8_point((const uint8_t *)text + at, &step);

        if (!(flags[point] & SDPI_MARK))
            sdpi_text_add(out, text + at, step);
    }
}

static void strip(const struct sdpi_normal_step *step, const char **text, size_t *length,
                  bool *cut)
{
    const uint8_t *flags = sdpi_unicode_flags();
    size_t size;

    while (step->left && *length > 0 &&
           flags[sdpi_utf8_point((const uint8_t *)*text, &size)] & SDPI_SPACE) {
        *text += size;
        *length -= size;
        *cut = true;
    }
    while (step->right && *length > 0) {
        size_t last = sdpi_utf8_before(*text, *length);

        if (!(flags[sdpi_utf8_point((const uint8_t *)*text + last, &size)] & SDPI_SPACE))
            break;
        *length = last;
    }
}

static enum sdp_status replace(const struct sdpi_normal_step *step,
                               struct sdpi_normal_scratch *s, const char *text,
                               size_t length, struct sdpi_text *out, bool *same,
                               bool *cut, struct sdp_error *err)
{
    size_t done = 0, from = 0, start = 0, end = 0;
    int found;

    sdpi_pattern_begin(&step->pattern, &s->pattern, text, length);
    while ((found = sdpi_pattern_next(&step->pattern, &s->pattern, text, length, from,
                                      &start, &end, err)) > 0) {
        *same = false;
        *cut = *cut || (start == 0 && end > 0 && step->content_length == 0);
        sdpi_text_add(out, text + done, start - done);
        sdpi_text_add(out, step->content, step->content_length);
        done = end;
        from = end;
        if (end == start) { /* goes on behind the next character */
            if (end >= length)
                break;
            from += sdpi_utf8_length((uint8_t)text[end]);
        }
    }
    if (found < 0)
        return SDP_INPUT;
    if (!*same)
        sdpi_text_add(out, text + done, length - done);
    return SDP_OK;
}

static enum sdp_status apply(const struct sdpi_normal_step *step,
                             struct sdpi_normal_scratch *s, struct sdpi_text *out,
                             const char **text, size_t *length, bool *cut,
                             struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    bool same = false;

    out->length = 0;
    switch (step->kind) {
    case SDPI_LOWERCASE:
        lowercase(*text, *length, out);
        break;
    case SDPI_STRIP_ACCENTS:
        strip_accents(*text, *length, out);
        break;
    case SDPI_STRIP:
        strip(step, text, length, cut);
        return SDP_OK;
    case SDPI_PREPEND:
        sdpi_text_add(out, step->content, step->content_length);
        sdpi_text_add(out, *text, *length);
        break;
    case SDPI_REPLACE:
        same = true;
        status = replace(step, s, *text, *length, out, &same, cut, err);
        break;
    default:
        if (!sdpi_normal_form(step->kind, s, *text, *length, out, &same))
            status = sdp_fail(err, SDP_INPUT, "a text cannot be normalized: %zu bytes",
                              *length);
        break;
    }
    if (status == SDP_OK && !same) {
        sdpi_text_reserve(out, 1);
        *text = out->data;
        *length = out->length;
    }
    return status;
}

enum sdp_status sdpi_normalize(const struct sdpi_normalizer *normalizer,
                               struct sdpi_normal_scratch *scratch, const char **text,
                               size_t *length, bool *cut, struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;

    for (size_t i = 0; i<normalizer->count && * length> 0 && status == SDP_OK; i++) {
        /* the text may lie in the one; the other is free */
        const struct sdpi_text *used = &scratch->texts[0];
        bool first =
            !(used->data && *text >= used->data && *text <= used->data + used->room);

        status = apply(&normalizer->steps[i], scratch, &scratch->texts[first ? 0 : 1],
                       text, length, cut, err);
    }
    return status;
}
