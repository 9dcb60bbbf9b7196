/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Unicode's normal forms with utf8proc's tables, less what is newer than the reference's.
 * Only the parts of a text that a form may change are taken apart; marks are put in order
 * by a stable sort, so that a text of nothing but marks takes no longer than others. */
#include "model/tokenizer/normalizer.h"

#include <stdlib.h>
#include <utf8proc.h>

#define MOST_PARTS 32 /* code points that one code point becomes, at most */

struct form {
    int decompose, compose; /* options of utf8proc */
};

static const struct form forms[] = {
    [SDPI_NFC] = {UTF8PROC_DECOMPOSE, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    [SDPI_NFD] = {UTF8PROC_DECOMPOSE, 0},
    [SDPI_NFKC] = {UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
                   UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    [SDPI_NFKD] = {UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, 0},
};

static unsigned class_of(int32_t point)
{
    if (sdpi_unicode_flags()[point] & SDPI_UNFORMED)
        return 0;
    return (unsigned)utf8proc_get_property(point)->combining_class;
}

/* Sorts a run of marks by their class, which is below 256, keeping the order of equals.
 */
static void sort_many(int32_t *points, size_t count)
{
    size_t starts[257] = {0};
    int32_t *copy = sdp_xcalloc(count, sizeof *copy);

    memcpy(copy, points, count * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        starts[(class_of(copy[i]) & 255) + 1]++;
    for (size_t i = 1; i < 257; i++)
        starts[i] += starts[i - 1];
    for (size_t i = 0; i < count; i++)
        points[starts[class_of(copy[i]) & 255]++] = copy[i];
    free(copy);
}

static void sort_marks(int32_t *points, size_t count)
{
    if (count > 8) {
        sort_many(points, count);
        return;
    }
    for (size_t i = 1; i < count; i++) {
        int32_t point = points[i];
        size_t at = i;

        for (; at > 0 && class_of(points[at - 1]) > class_of(point); at--)
            points[at] = points[at - 1];
        points[at] = point;
    }
}

static void order_marks(int32_t *points, size_t count)
{
    size_t run = 0;

    for (size_t i = 0; i < count; i++) {
        if (class_of(points[i]) != 0)
            continue;
        sort_marks(points + run, i - run);
        run = i + 1;
    }
    sort_marks(points + run, count - run);
}

/* Normalizes a part of a text that can be normalized on its own. */
static bool convert(const struct form *form, struct sdpi_normal_scratch *s,
                    const char *text, size_t length, struct sdpi_text *out)
{
    const uint8_t *flags = sdpi_unicode_flags();
    size_t count = 0, step;
    utf8proc_ssize_t left;
    int last = 0;

    for (size_t at = 0; at < length; at += step) {
        int32_t point = (int32_t)sdpi_utf8_point((const uint8_t *)text + at, &step);
        utf8proc_ssize_t parts;

        if (s->room - count < MOST_PARTS) {
            s->room = SDP_MAX(s->room * 2, (size_t)1024);
            s->points = sdp_xrealloc(s->points, s->room * sizeof *s->points);
        }
        if (flags[point] & SDPI_UNFORMED) {
            s->points[count++] = point;
            continue;
        }
        parts = utf8proc_decompose_char(point, s->points + count,
                                        (utf8proc_ssize_t)(s->room - count),
                                        (utf8proc_option_t)form->decompose, &last);
        if (parts < 0 || (size_t)parts > s->room - count)
            return false;
        count += (size_t)parts;
    }
    order_marks(s->points, count);
    left = (utf8proc_ssize_t)count;
    if (form->compose)
        left =
            utf8proc_normalize_utf32(s->points, left, (utf8proc_option_t)form->compose);
    if (left < 0)
        return false;
    for (utf8proc_ssize_t i = 0; i < left; i++)
        sdpi_text_add_point(out, (uint32_t)s->points[i]);
    return true;
}

/* Converts what holds characters that a form may change, each with the one before it,
 * which it may be joined to: for NFC the restless ones, for the others all that are not
 * ASCII. */
bool sdpi_normal_form(enum sdpi_normal_kind kind, struct sdpi_normal_scratch *s,
                      const char *text, size_t length, struct sdpi_text *out, bool *same)
{
    const uint8_t *flags = sdpi_unicode_flags(), *bytes = (const uint8_t *)text;
    const uint8_t quiet = kind == SDPI_NFC ? SDPI_RESTLESS : 0;
    size_t done = 0, at = 0, step = 1, start;

    *same = true;
    while ((at = sdpi_utf8_skip_ascii(text, length, at)) < length) {
        if ((flags[sdpi_utf8_point(bytes + at, &step)] & quiet) != quiet) {
            at += step;
            continue;
        }
        start = at > done ? sdpi_utf8_before(text, at) : at;
        while (at < length && bytes[at] >= 0x80 &&
               (flags[sdpi_utf8_point(bytes + at, &step)] & quiet) == quiet)
            at += step;
        sdpi_text_add(out, text + done, start - done);
        if (!convert(&forms[kind], s, text + start, at - start, out))
            return false;
        done = at;
        *same = false;
    }
    if (!*same)
        sdpi_text_add(out, text + done, length - done);
    return true;
}
