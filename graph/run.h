/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A run: a job from its first to its last step, with progress, metrics,
 * checkpoints and export. */
#ifndef SDP_GRAPH_RUN_H
#define SDP_GRAPH_RUN_H

#include "graph/job.h"

struct sdp_run_options {
    bool resume;      /* go on from the newest checkpoint in output.dir */
    bool overwrite;   /* replace what a run left in output.dir */
    bool quiet;       /* no progress line */
    bool resources;   /* a table of how busy each resource was, at the end */
    const char *policy; /* NULL: the job's */
    size_t trace_first, trace_last; /* 0 0: the job's */
};

/** Runs the job. SIGINT and SIGTERM end it after the steps in flight, with a checkpoint (SDP_INTERRUPTED).
 * From the main thread, once a process. */
SDP_CHECK_RESULT enum sdp_status sdp_run_job(const struct sdp_job *job, const struct sdp_run_options *options, struct sdp_error *err);

#endif
