/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* output.dir: metrics.jsonl, plan.json, checkpoints/, model/, trace/. */
#ifndef SDP_GRAPH_OUTPUT_H
#define SDP_GRAPH_OUTPUT_H

#include "graph/engine.h"
#include "graph/run.h"

#include <stdio.h>

struct sdp_output {
    char *dir, *metrics_path, *plan_path, *checkpoints, *model, *trace;
    FILE *metrics;
};

/** Makes or checks the folder: one that holds anything is refused unless options say
 * resume or overwrite; overwrite removes what runs write there and nothing else. Paths are set; metrics.jsonl is not open yet. */
SDP_CHECK_RESULT enum sdp_status sdp_output_open(const struct sdp_job *job, const struct sdp_run_options *options,
                                struct sdp_output *out, struct sdp_error *err);
/** Opens metrics.jsonl for appending after cutting it to the lines of steps <= last_step. */
SDP_CHECK_RESULT enum sdp_status sdp_output_start_metrics(struct sdp_output *out, size_t last_step, struct sdp_error *err);
/** One line of metrics.jsonl. */
SDP_CHECK_RESULT enum sdp_status sdp_output_metrics(struct sdp_output *out, const struct sdp_plan *plan, size_t step,
                                   const struct sdp_step_result *result, double seconds, struct sdp_error *err);
/** The same of an evaluation after `step`. */
SDP_CHECK_RESULT enum sdp_status sdp_output_evaluation(struct sdp_output *out, size_t step, const struct sdp_evaluation *result,
                                                       double seconds, struct sdp_error *err);
void sdp_output_close(struct sdp_output *out);

#endif
