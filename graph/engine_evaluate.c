/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Evaluation: passes of the forward visits over groups of micro-batches. A pass uses the batch and loss buffers of one of
 * the steps in flight, of which there are none then; while a pass runs, the next one's batches are filled. */
#include "graph/engine_internal.h"

#include <stdlib.h>

struct evaluation {
    struct sdp_engine *engine;
    const struct sdp_sequences *data;
    const struct sdp_logits_sink *sink;
    size_t sequences;               /* wanted */
    size_t per_rank, per_pass;      /* sequences */
    struct sdpi_batch_facts *facts; /* per rank and micro-batch */
    double sum;
    size_t counted;
};

/* The stream, ended: what lies behind the last sequence repeats earlier ones and counts for nothing. */
static size_t read_bounded(const void *context, uint64_t index, int32_t *ids, int32_t *targets, int32_t *positions)
{
    const struct evaluation *v = context;
    size_t length = v->engine->plan->sequence_length;
    size_t counted = v->data->read(v->data->context, index % v->sequences, ids, targets, positions);
    if (index < v->sequences)
        return counted;
    for (size_t i = 0; i < length; i++)
        targets[i] = -1;
    return 0;
}

/* Buffers of a pass: those of a step with that number. */
static size_t ring_of(size_t pass)
{
    return pass % SDP_STEPS_IN_FLIGHT;
}

static enum sdp_status submit(struct evaluation *v, size_t pass, struct sdp_error *err)
{
    struct sdp_engine *e = v->engine;
    const struct sdp_plan *plan = e->plan;
    const struct sdp_sequences bounded = {read_bounded, v};
    enum sdp_status rc = SDP_OK;
    for (size_t i = 0; i < plan->device_count; i++) {
        struct sdpi_device *d = &e->devices[i];
        size_t per_step = sdpi_per_step(e, d);
        for (size_t k = 0; !rc && k < d->ranks * plan->group; k++) {
            size_t local = k / plan->group, m = k % plan->group, rank = d->first_rank + local;
            rc = sdpi_fill_batch(e, &bounded, &d->batches[ring_of(pass) * per_step + local * plan->micro_batches + m],
                                 pass * v->per_pass + rank * v->per_rank + m * plan->micro_batch,
                                 &v->facts[rank * plan->micro_batches + m], &v->counted, err);
        }
    }
    return rc ? rc : sdpi_submit_evaluation(e, pass, v->facts, err);
}

static enum sdp_status give_logits(const struct evaluation *v, size_t pass, struct sdp_error *err)
{
    const struct sdp_plan *plan = v->engine->plan;
    size_t row = plan->sequence_length * v->engine->graph->vocabulary;
    enum sdp_status rc = SDP_OK;
    for (size_t i = 0; !rc && v->sink && i < v->per_pass; i++) {
        size_t sequence = pass * v->per_pass + i, rank = i / v->per_rank, local = i % v->per_rank;
        size_t at = rank * plan->micro_batches * plan->micro_batch + local;
        if (sequence < v->sequences)
            rc = v->sink->take(v->sink->context, sequence, v->engine->logits + at * row, err);
    }
    return rc;
}

/* Waits for a pass and adds its losses in the order of ranks and micro-batches. */
static enum sdp_status collect(struct evaluation *v, size_t pass, struct sdp_error *err)
{
    struct sdp_engine *e = v->engine;
    for (size_t i = 0; i < e->plan->device_count; i++) {
        struct sdpi_device *d = &e->devices[i];
        for (size_t k = 0; k < d->ranks * e->plan->group; k++) {
            size_t slot = k / e->plan->group * e->plan->micro_batches + k % e->plan->group;
            starpu_data_handle_t handle = d->losses[ring_of(pass) * sdpi_per_step(e, d) + slot].handle;
            int rc = starpu_data_acquire_on_node(handle, STARPU_MAIN_RAM, STARPU_R);
            if (rc != 0)
                return sdp_fail(err, SDP_RUNTIME, "StarPU: acquiring a loss failed: %s", strerror(-rc));
            const struct starpu_variable_interface *loss = starpu_data_get_interface_on_node(handle, STARPU_MAIN_RAM);
            v->sum += *(const double *)loss->ptr;
            starpu_data_release_on_node(handle, STARPU_MAIN_RAM);
        }
    }
    enum sdp_status rc = sdpi_engine_failure(e, err);
    return rc ? rc : give_logits(v, pass, err);
}

/* With logits one pass at a time: there is one buffer for them. */
static enum sdp_status run_passes(struct evaluation *v, struct sdp_error *err)
{
    size_t passes = (v->sequences + v->per_pass - 1) / v->per_pass, ahead = v->sink ? 0 : 1, collected = 0;
    enum sdp_status rc = SDP_OK;
    for (size_t pass = 0; !rc && pass < passes; pass++) {
        rc = submit(v, pass, err);
        if (!rc && collected + ahead <= pass)
            rc = collect(v, collected++, err);
    }
    while (!rc && collected < passes)
        rc = collect(v, collected++, err);
    return rc;
}

enum sdp_status sdp_engine_evaluate(struct sdp_engine *e, const struct sdp_sequences *data, size_t sequences,
                                    const struct sdp_logits_sink *sink, struct sdp_evaluation *out, struct sdp_error *err)
{
    const struct sdp_plan *plan = e->plan;
    struct evaluation v = {.engine = e, .data = data, .sink = sink, .sequences = sequences,
                           .per_rank = plan->group * plan->micro_batch};
    v.per_pass = v.per_rank * plan->ranks;
    if (!sequences || (sink && plan->cuda))
        return sdp_fail(err, SDP_INTERNAL, "an evaluation needs sequences, and CPU ranks for logits");
    int waited = starpu_task_wait_for_all();
    if (waited != 0)
        return sdp_fail(err, SDP_RUNTIME, "StarPU: waiting for the tasks failed: %s", strerror(-waited));
    v.facts = sdp_xcalloc(plan->ranks * plan->micro_batches, sizeof *v.facts);
    if (sink)
        e->logits = sdp_xcalloc(plan->ranks * plan->micro_batches * plan->tokens, e->graph->vocabulary * sizeof(float));
    enum sdp_status rc = run_passes(&v, err);
    if (rc) /* tasks may still use what follows frees */
        starpu_task_wait_for_all();
    if (sink)
        free(e->logits);
    e->logits = NULL;
    free(v.facts);
    if (!rc && !v.counted)
        rc = sdp_fail(err, SDP_INPUT, "the validation data have no target token that counts");
    if (!rc)
        *out = (struct sdp_evaluation){v.sum / (double)v.counted, v.counted};
    return rc;
}
