/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the parts of the step-time model share: step_time.c (rates, busy times), step_replay.c (the pipeline). */
#ifndef SDP_GRAPH_STEP_TIME_INTERNAL_H
#define SDP_GRAPH_STEP_TIME_INTERNAL_H

#include "graph/plan.h"

#define SDP_UPDATE_BYTES 26.0 /* host memory traffic of a parameter's update: codelets/update/adamw.h */

/* Seconds of one micro-batch. */
struct sdpi_layer_time {
    double forward, backward, recompute;
};

/** Ranks of the device that has the most. */
double sdpi_time_most_ranks(const struct sdp_plan *plan);
/** Parameters that the host updates. */
double sdpi_time_streamed_elements(const struct sdp_plan *plan);
/** Bytes that a visit has delivered, drained, and of offloaded activations stored (forward) or fetched. */
double sdpi_time_delivered_bytes(const struct sdp_plan *plan, const struct sdp_visit *visit);
double sdpi_time_drained_bytes(const struct sdp_plan *plan, const struct sdp_visit *visit);
double sdpi_time_offloaded_bytes(const struct sdp_plan *plan, const struct sdp_visit *visit);

/** Fills step, exposed_update and exposed_delivery from the busy times in *t. `layers`: of every layer. */
void sdpi_time_replay(const struct sdp_plan *plan, const struct sdpi_layer_time *layers, struct sdp_step_time *t);

#endif
