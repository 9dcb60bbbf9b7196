/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The step-time model: how long each resource is busy in a step, and what of it the pipeline cannot hide.
 * Model of design section 8: compute, links and host memory work side by side; a step takes the compute's time plus
 * what is exposed of the others. */
#ifndef SDP_GRAPH_STEP_TIME_H
#define SDP_GRAPH_STEP_TIME_H

#include "graph/base/util.h"

#include <jansson.h>

struct sdp_plan;

/* Sustained rates of a machine; of each device unless said. */
struct sdp_rates {
    double product;       /* FLOP/s of matrix products in the compute dtype */
    double attention;     /* FLOP/s of attention, forward and backward together */
    double device_memory; /* bytes/s of elementwise kernels */
    double link_in;       /* bytes/s host to device */
    double link_out;      /* bytes/s device to host */
    double host_memory;   /* bytes/s of the host, all uses together */
    double update;        /* bytes/s of the update kernel on one host core */
};

/* Seconds of one step. */
struct sdp_step_time {
    double forward, backward; /* model work: operations and their gradients */
    double recompute;         /* operations that run again */
    double device_update;     /* AdamW on the device (resident state) */
    double compute;           /* sum of the above: the device's kernels */
    double link_in, link_out; /* busy time of the busiest device's links */
    double host_update;       /* host cores, all at work */
    double host_memory;       /* time the host's memory needs for all its traffic */
    double exposed_update;    /* updates that the next forward pass waits for */
    double exposed_delivery;  /* link time beyond the compute */
    double step;
    double host_bytes, in_bytes, out_bytes; /* traffic of a step; in and out of one device */
};

/** Default rates for device 0 of the plan (by its compute capability, multiprocessors and clocks), or for CPU ranks. */
void sdp_rates_default(const struct sdp_plan *plan, struct sdp_rates *out);

/** Predicts a step; the plan must be complete but for `time`. */
void sdp_step_time_predict(const struct sdp_plan *plan, struct sdp_step_time *out);

/** As JSON. [new] */
SDP_CHECK_RESULT json_t *sdp_step_time_dump(const struct sdp_step_time *time);
SDP_CHECK_RESULT json_t *sdp_rates_dump(const struct sdp_rates *rates);

#endif
