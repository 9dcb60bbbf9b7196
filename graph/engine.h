/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The engine: a plan brought to life on StarPU. It owns the StarPU instance, the
 * devices' memory and every handle; sdp_engine_submit() adds one step's tasks.
 *
 * Life: create (starts StarPU), submit steps, wait for their metrics, destroy.
 * All calls from one thread, the main thread. */
#ifndef SDP_GRAPH_ENGINE_H
#define SDP_GRAPH_ENGINE_H

#include "graph/plan.h"

#include <stdio.h>

struct sdp_engine;

struct sdp_engine_options {
    const char *policy;     /* scheduling policy by name; STARPU_SCHED overrides it */
    const char *trace_dir;  /* NULL: no FxT recording */
    bool resources;         /* note every task's times, for sdp_engine_resources() */
};

/* Where sequences come from: number `index` of the stream fills ids[L], targets[L] (-1: not counted) and
 * positions[L], and gives back how many targets count. Called from the main thread. */
struct sdp_sequences {
    size_t (*read)(const void *context, uint64_t index, int32_t *ids, int32_t *targets, int32_t *positions);
    const void *context;
};

struct sdp_step_result {
    double loss;      /* mean cross-entropy over the counted targets of the step */
    double grad_norm; /* of the mean loss's gradient, before clipping */
    double lr;
    size_t counted;   /* targets that count */
    double seconds;   /* from submission to the step's last task */
    double finished;  /* sdp_now() */
};

/** Starts StarPU with the plan's devices and registers state and buffers. The
 * state's weights must be loaded. [new] *out; plan and state must outlive it. */
SDP_CHECK_RESULT enum sdp_status sdp_engine_create(const struct sdp_plan *plan, struct sdp_host_state *state,
                                  const struct sdp_engine_options *options, struct sdp_engine **out,
                                  struct sdp_error *err);

/** Submits optimiser step `step` (from 1) on the sequences (step - 1) * sequences_per_step ... of the data. At most
 * SDP_STEPS_IN_FLIGHT - 1 steps may be unfinished. */
SDP_CHECK_RESULT enum sdp_status sdp_engine_submit(struct sdp_engine *engine, const struct sdp_sequences *data, size_t step,
                                  struct sdp_error *err);

/** Waits until step `step` has ended; its result. Fails with the first task's failure. */
SDP_CHECK_RESULT enum sdp_status sdp_engine_wait(struct sdp_engine *engine, size_t step, struct sdp_step_result *out,
                                struct sdp_error *err);

/** Waits for everything submitted. The host state is then consistent. */
SDP_CHECK_RESULT enum sdp_status sdp_engine_drain(struct sdp_engine *engine, struct sdp_error *err);

struct sdp_evaluation {
    double loss;    /* mean cross-entropy over the counted targets */
    size_t counted; /* of them */
};

/** What an evaluation gives away of each sequence: its logits [sequence_length, vocabulary] fp32. */
struct sdp_logits_sink {
    enum sdp_status (*take)(void *context, size_t sequence, const float *logits, struct sdp_error *err);
    void *context;
};

/** Loss on the sequences 0 .. sequences - 1 of the data, through the forward visits of the plan; weights, optimiser state
 * and what later steps compute stay as they are. Waits for everything submitted before, and for itself. `sink` may be NULL;
 * CPU ranks only. */
SDP_CHECK_RESULT enum sdp_status sdp_engine_evaluate(struct sdp_engine *engine, const struct sdp_sequences *data, size_t sequences,
                                    const struct sdp_logits_sink *sink, struct sdp_evaluation *out, struct sdp_error *err);

/** For tests: forward and backward of one step without an update (the plan must be two-phase), waited for. Then
 * sdp_engine_gradient() reads the gradients. `logits` ([tokens of the step, vocabulary] fp32, rank and micro-batch
 * major) may be NULL; CPU ranks only. */
SDP_CHECK_RESULT enum sdp_status sdp_engine_probe(struct sdp_engine *engine, const struct sdp_sequences *data, size_t step,
                                 float *logits, struct sdp_step_result *out, struct sdp_error *err);
/** Gradient of a whole parameter, summed over ranks, as fp32. After sdp_engine_probe(). */
void sdp_engine_gradient(const struct sdp_engine *engine, size_t storage, size_t param, float *values);

/** FxT recording between these two calls (trace_dir given). */
void sdp_engine_trace_start(struct sdp_engine *engine);
void sdp_engine_trace_stop(struct sdp_engine *engine);

struct sdp_resource_report;
/** Busy times over the whole steps after step `first`; after sdp_engine_drain(). \return false when there is nothing to
 * report. */
bool sdp_engine_resources(struct sdp_engine *engine, size_t first, struct sdp_resource_report *out);

/** Writes the task graph of one step as a dot graph, from the very code that
 * submits it; StarPU is not started. */
SDP_CHECK_RESULT enum sdp_status sdp_engine_write_dot(const struct sdp_plan *plan, FILE *out, struct sdp_error *err);

/** Layer-slot allocations that found none free (0 in a healthy run), all devices. */
size_t sdp_engine_slot_failures(const struct sdp_engine *engine);

/** Waits, frees, shuts StarPU down. With trace_dir the trace files are written there. */
void sdp_engine_destroy(struct sdp_engine *engine);

#endif
