/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Kinds of values that only job files have: "auto" or a number, a choice of
 * which some words are designed but not there yet, paths. As in json.h, an
 * absent key leaves *out as it is, and false means that a message was recorded. */
#ifndef SDP_GRAPH_JOB_VALUE_H
#define SDP_GRAPH_JOB_VALUE_H

#include "graph/base/json.h"
#include "graph/job.h"

/** "auto" (SDP_AUTO) or an integer. */
bool sdpi_job_auto_size(const struct sdp_json *at, const char *key, size_t min,
                        size_t max, size_t *out);
/** "auto" (SDP_AUTO) or bytes. */
bool sdpi_job_auto_bytes(const struct sdp_json *at, const char *key, size_t min,
                         size_t max, size_t *out);
/** A word of `words`; one of `later` (NULL-ended, may be NULL) is told to be not
 * available yet. */
bool sdpi_job_choice(const struct sdp_json *at, const char *key, const char *const *words,
                     const char *const *later, int *out);
/** A number above `low`. */
bool sdpi_job_above(const struct sdp_json *at, const char *key, double low, double *out);
/** A text that is neither empty nor a misspelt null; null itself leaves *out when
 * `nullable`. [new] *out, whose old text is freed. */
bool sdpi_job_text(const struct sdp_json *at, const char *key, bool nullable, char **out);
/** Present and not null. */
bool sdpi_job_has(const struct sdp_json *at, const char *key);

/** The file (or folder) at `path`, named by the text at the cursor, is there and can be
 * read. */
bool sdpi_job_check_file(const struct sdp_json *at, const char *path);
bool sdpi_job_check_checkpoint(const struct sdp_json *at, const char *path);

#endif
