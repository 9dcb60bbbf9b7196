/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of the job reader share: job.c loads, job_override.c applies
 * the command line's --set, job_read.c and job_data.c read the sections, job_keys.c knows
 * every key. */
#ifndef SDP_GRAPH_JOB_INTERNAL_H
#define SDP_GRAPH_JOB_INTERNAL_H

#include "graph/base/json.h"
#include "graph/job.h"

/** Keys of the section at a JSON pointer ("" for the job itself), NULL-ended; NULL if
 * there is no such section. [borrowed] */
const char *const *sdpi_job_keys(const char *pointer);

/** Refuses a key of the section at the cursor that is not one of its keys. The
 * message names the section the key belongs to, or what another program's name for it is
 * called here, or the nearest valid key. */
bool sdpi_job_only_keys(const struct sdp_json *at);

/** Sets what "PATH=VALUE" says in the document. [new] *pointer: the JSON pointer it set.
 */
enum sdp_status sdpi_job_override(json_t *document, const char *text, char **pointer,
                                  struct sdp_error *err);

/** Cursor on a section; absent: its value is NULL and every key keeps its default. */
bool sdpi_job_section(const struct sdp_json *parent, const char *key, struct sdp_json *at);

/** The section "data". */
bool sdpi_job_read_data(const struct sdp_json *root, struct sdp_job *job);

/** Reads and checks all sections into a job whose path and folder are set. */
bool sdpi_job_read(const struct sdp_json *root, struct sdp_job *job);

#endif
