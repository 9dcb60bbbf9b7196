/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Recording and printing of user-readable errors, and the search for the name
 * that a mistyped one was meant to be. */
#include "graph/base/error.h"

#include "graph/base/log_internal.h"
#include "graph/base/util.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME_MAX_LENGTH 64 /* longer names are not compared */

/* Copies what fits; a text that does not fit ends in "...". */
static void copy_text(char *to, size_t size, const char *from)
{
    int length = snprintf(to, size, "%s", from ? from : "");

    if (length >= (int)size)
        memcpy(to + size - 4, "...", 4);
}

SDP_PRINTF(7, 0)
static enum sdp_status record(struct sdp_error *err, enum sdp_status status,
                              const char *file, const char *pointer, int line, int column,
                              const char *format, va_list args)
{
    int length;

    if (!err || err->status != SDP_OK)
        return status;
    err->status = status;
    copy_text(err->file, sizeof err->file, file);
    copy_text(err->pointer, sizeof err->pointer, pointer);
    err->line = line;
    err->column = column;
    length = vsnprintf(err->text, sizeof err->text, format, args);
    if (length < 0)
        copy_text(err->text, sizeof err->text, sdp_status_message(status));
    else if (length >= (int)sizeof err->text)
        memcpy(err->text + sizeof err->text - 4, "...", 4);
    return status;
}

enum sdp_status sdp_fail(struct sdp_error *err, enum sdp_status status,
                         const char *format, ...)
{
    va_list args;

    va_start(args, format);
    record(err, status, NULL, NULL, 0, 0, format, args);
    va_end(args);
    return status;
}

enum sdp_status sdp_fail_at(struct sdp_error *err, enum sdp_status status,
                            const char *file, const char *pointer, int line, int column,
                            const char *format, ...)
{
    va_list args;

    va_start(args, format);
    record(err, status, file, pointer, line, column, format, args);
    va_end(args);
    return status;
}

void sdp_error_set_file(struct sdp_error *err, const char *file)
{
    if (err && err->status != SDP_OK && !err->file[0])
        copy_text(err->file, sizeof err->file, file);
}

char *sdp_error_format(const struct sdp_error *err, char *buffer, size_t size)
{
    char place[48] = "";

    if (err->file[0] && err->line > 0 && err->column > 0)
        snprintf(place, sizeof place, ":%d:%d", err->line, err->column);
    else if (err->file[0] && err->line > 0)
        snprintf(place, sizeof place, ":%d", err->line);
    snprintf(buffer, size, "%s%s%s%s%s%s", err->file, place, err->file[0] ? ": " : "",
             err->pointer, err->pointer[0] ? ": " : "",
             err->text[0] ? err->text : sdp_status_message(err->status));
    return buffer;
}

void sdp_error_print(const struct sdp_error *err)
{
    char text[SDP_ERROR_TEXT_SIZE];

    sdpi_log_write(sdp_error_format(err, text, sizeof text));
}

/* Cost of writing b for a: 0 also for another case, or - for _. */
static unsigned letter_cost(char a, char b)
{
    a = a == '-' ? '_' : (char)tolower((unsigned char)a);
    b = b == '-' ? '_' : (char)tolower((unsigned char)b);
    return a == b ? 0 : 1;
}

/* Edit distance with swaps of neighbours; both texts at most NAME_MAX_LENGTH. */
static unsigned edit_distance(const char *a, size_t a_length, const char *b,
                              size_t b_length)
{
    unsigned rows[3][NAME_MAX_LENGTH + 1];
    unsigned *before = rows[0], *last = rows[1], *now = rows[2], *swap;

    for (size_t j = 0; j <= b_length; j++)
        last[j] = (unsigned)j;
    for (size_t i = 1; i <= a_length; i++) {
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            unsigned best = last[j - 1] + letter_cost(a[i - 1], b[j - 1]);
            best = SDP_MIN(best, last[j] + 1);
            best = SDP_MIN(best, now[j - 1] + 1);
            if (i > 1 && j > 1 && !letter_cost(a[i - 1], b[j - 2]) &&
                !letter_cost(a[i - 2], b[j - 1]))
                best = SDP_MIN(best, before[j - 2] + 1);
            now[j] = best;
        }
        swap = before;
        before = last;
        last = now;
        now = swap;
    }
    return last[b_length];
}

const char *sdp_nearest(const char *name, const char *const *candidates)
{
    size_t length = strlen(name);
    unsigned best = (unsigned)SDP_MAX((size_t)2, length / 3) + 1;
    const char *nearest = NULL;

    if (length == 0 || length > NAME_MAX_LENGTH)
        return NULL;
    for (size_t i = 0; candidates[i]; i++) {
        size_t other = strlen(candidates[i]), longer = SDP_MAX(length, other);
        unsigned distance;

        if (other > NAME_MAX_LENGTH)
            continue;
        distance = edit_distance(name, length, candidates[i], other);
        /* More than one edit must leave most of the name alone: fp16 is not fp32. */
        if (distance < best && (distance < 2 ? distance : 2 * distance) < longer) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}
