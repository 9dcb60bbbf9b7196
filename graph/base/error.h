/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Errors that a user must read: where it is, what is wrong, what would be right.
 * The caller owns a fixed-size struct sdp_error; the first error wins. */
#ifndef SDP_GRAPH_BASE_ERROR_H
#define SDP_GRAPH_BASE_ERROR_H

#include "graph/base/status.h"

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SDP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define SDP_CHECK_RESULT       __attribute__((warn_unused_result))
#else
#define SDP_PRINTF(fmt, first)
#define SDP_CHECK_RESULT
#endif

struct sdp_error {
    enum sdp_status status; /* SDP_OK while empty */
    char file[512];         /* path as the user gave it, or "" */
    char pointer[256];      /* JSON pointer ("/train/lr"), or "" */
    int line, column;       /* 1-based; 0 where unknown */
    char text[1024];        /* "what is wrong; what would be right" */
};

#define SDP_ERROR_INIT                                                                   \
    {                                                                                    \
        SDP_OK, "", "", 0, 0, ""                                                         \
    }
#define SDP_ERROR_TEXT_SIZE 2048 /* holds any error written out with its place */

/** Records an error if none is there yet. err may be NULL. Returns status, so
 * that `return sdp_fail(err, ...)` reads well. */
enum sdp_status sdp_fail(struct sdp_error *err, enum sdp_status status,
                         const char *format, ...) SDP_PRINTF(3, 4);

/** The same with a place: file and pointer may be NULL, line and column 0. */
enum sdp_status sdp_fail_at(struct sdp_error *err, enum sdp_status status,
                            const char *file, const char *pointer, int line, int column,
                            const char *format, ...) SDP_PRINTF(7, 8);

/** Fills in the file of an error that has none yet (a reader deep inside does
 * not know it). */
void sdp_error_set_file(struct sdp_error *err, const char *file);

/** Writes "FILE:LINE:COLUMN: POINTER: text" (parts that are unknown left out)
 * into the caller's buffer; SDP_ERROR_TEXT_SIZE bytes hold any. Returns it. */
char *sdp_error_format(const struct sdp_error *err, char *buffer, size_t size);

/** Prints "slidedp: FILE:LINE:COLUMN: POINTER: text" to stderr (parts that are
 * unknown left out). */
void sdp_error_print(const struct sdp_error *err);

/** Name of `candidates` (NULL-ended) nearest to `name` by edit distance, or
 * NULL if none is near enough to be meant. [borrowed] from candidates. */
const char *sdp_nearest(const char *name, const char *const *candidates);

#ifdef __cplusplus
}
#endif
#endif
