/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Steps of an engine: batches in, results out. */
#include "graph/engine_internal.h"

#include "graph/slab.h"

#include <starpu_fxt.h>
#include <stdlib.h>

/* -- batches --------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Token indices sorted by (id, index), and where each id's run starts: what a
 * deterministic embedding gradient needs. Returns the number of runs. */
static size_t sort_tokens(const int32_t *ids, size_t tokens, int32_t *order, int32_t *segments)
{
    uint64_t *keys = sdp_xcalloc(tokens, sizeof *keys);
    size_t runs = 0;
    for (size_t i = 0; i < tokens; i++)
        keys[i] = (uint64_t)(uint32_t)ids[i] << 32 | i;
    qsort(keys, tokens, sizeof *keys, by_key);
    for (size_t i = 0; i < tokens; i++) {
        order[i] = (int32_t)(keys[i] & 0xffffffffu);
        if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32)
            segments[runs++] = (int32_t)i;
    }
    segments[runs] = (int32_t)tokens;
    for (size_t i = runs + 1; i <= tokens; i++)
        segments[i] = (int32_t)tokens;
    free(keys);
    return runs;
}

struct counts {
    size_t counted;                 /* targets of the step */
    struct sdpi_batch_facts *facts; /* per rank and micro-batch */
};

/* Whether a sequence holds a second document that counts. Padding at the end is none: what is before does not see it,
 * and no gradient comes from it. */
static bool is_packed(const int32_t *positions, const int32_t *targets, size_t tokens, size_t length)
{
    bool later = false; /* than the sequence's first document */
    for (size_t i = 0; i < tokens; i++) {
        later = i % length != 0 && (later || positions[i] == 0);
        if (later && targets[i] >= 0)
            return true;
    }
    return false;
}

enum sdp_status sdpi_fill_batch(struct sdp_engine *e, const struct sdp_sequences *data, struct sdpi_data *batch,
                                uint64_t first, struct sdpi_batch_facts *facts, size_t *counted, struct sdp_error *err)
{
    const struct sdp_plan *plan = e->plan;
    size_t t = plan->tokens, l = plan->sequence_length;
    int rc = starpu_data_acquire(batch->handle, STARPU_W);
    if (rc != 0)
        return sdp_fail(err, SDP_RUNTIME, "StarPU: acquiring a batch failed: %s", strerror(-rc));
    int32_t *ids = (int32_t *)starpu_variable_get_local_ptr(batch->handle);
    for (size_t i = 0; i < plan->micro_batch; i++)
        *counted += data->read(data->context, first + i, ids + i * l, ids + t + i * l, ids + 2 * t + i * l);
    facts->segments = sort_tokens(ids, t, ids + 3 * t, ids + 4 * t);
    facts->packed = is_packed(ids + 2 * t, ids + t, t, l);
    starpu_data_release(batch->handle);
    return SDP_OK;
}

static enum sdp_status fill_batches(struct sdp_engine *e, const struct sdp_sequences *data, size_t step,
                                    struct counts *counts, struct sdp_error *err)
{
    const struct sdp_plan *plan = e->plan;
    uint64_t base = (uint64_t)(step - 1) * plan->sequences_per_step;
    size_t per_rank = plan->sequences_per_step / plan->ranks, ring = step % SDP_STEPS_IN_FLIGHT;
    enum sdp_status rc = SDP_OK;
    for (size_t i = 0; i < plan->device_count; i++) {
        struct sdpi_device *d = &e->devices[i];
        size_t per_step = sdpi_per_step(e, d);
        for (size_t k = 0; !rc && k < per_step; k++) {
            size_t rank = d->first_rank + k / plan->micro_batches, m = k % plan->micro_batches;
            rc = sdpi_fill_batch(e, data, &d->batches[ring * per_step + k], base + rank * per_rank + m * plan->micro_batch,
                                 &counts->facts[rank * plan->micro_batches + m], &counts->counted, err);
        }
    }
    if (!rc && counts->counted == 0)
        rc = sdp_fail(err, SDP_INPUT, "step %zu has no target token that counts; use more tokens per step or check the data", step);
    return rc;
}

enum sdp_status sdp_engine_submit(struct sdp_engine *e, const struct sdp_sequences *data, size_t step, struct sdp_error *err)
{
    struct sdpi_ring *ring = &e->ring[step % SDP_STEPS_IN_FLIGHT];
    struct counts counts = {0, sdp_xcalloc(e->plan->ranks * e->plan->micro_batches, sizeof *counts.facts)};
    enum sdp_status rc = fill_batches(e, data, step, &counts, err);
    if (!rc) {
        ring->step = step;
        ring->done = false;
        ring->submitted = true;
        ring->submitted_at = sdp_now();
        memset(ring->norms, 0, e->state->block_count * sizeof *ring->norms);
        ring->result = (struct sdp_step_result){.lr = sdp_job_lr(e->plan->job, step, e->plan->steps),
                                                .counted = counts.counted};
        starpu_iteration_push(step);
        rc = sdpi_submit_step(e, step, counts.counted, counts.facts, err);
        starpu_iteration_pop();
    }
    free(counts.facts);
    return rc;
}

enum sdp_status sdpi_engine_failure(struct sdp_engine *e, struct sdp_error *err)
{
    enum sdp_status rc = (enum sdp_status)atomic_load(&e->run.failed);
    if (!rc)
        return SDP_OK;
    pthread_mutex_lock(&e->run.lock);
    if (err && err->status == SDP_OK)
        *err = e->run.err;
    pthread_mutex_unlock(&e->run.lock);
    return rc;
}

enum sdp_status sdp_engine_wait(struct sdp_engine *e, size_t step, struct sdp_step_result *out, struct sdp_error *err)
{
    struct sdpi_ring *ring = &e->ring[step % SDP_STEPS_IN_FLIGHT];
    if (!ring->submitted || ring->step != step)
        return sdp_fail(err, SDP_INTERNAL, "step %zu was not submitted", step);
    pthread_mutex_lock(&e->lock);
    while (!ring->done)
        pthread_cond_wait(&e->done, &e->lock);
    *out = ring->result;
    pthread_mutex_unlock(&e->lock);
    return sdpi_engine_failure(e, err);
}

enum sdp_status sdp_engine_drain(struct sdp_engine *e, struct sdp_error *err)
{
    int rc = starpu_task_wait_for_all();
    if (rc != 0)
        return sdp_fail(err, SDP_RUNTIME, "StarPU: waiting for the tasks failed: %s", strerror(-rc));
    enum sdp_status status = sdpi_engine_refresh_host(e, err);
    return status ? status : sdpi_engine_failure(e, err);
}

/* -- for tests ------------------------------------------------------------------------------- */

enum sdp_status sdp_engine_probe(struct sdp_engine *e, const struct sdp_sequences *data, size_t step, float *logits,
                                 struct sdp_step_result *out, struct sdp_error *err)
{
    if (!e->plan->two_phase || (logits && e->plan->cuda))
        return sdp_fail(err, SDP_INTERNAL, "a probe needs a two-phase plan, and CPU ranks for logits");
    e->skip_update = true;
    e->logits = logits;
    enum sdp_status rc = sdp_engine_submit(e, data, step, err);
    if (!rc)
        rc = sdp_engine_wait(e, step, out, err);
    if (!rc)
        rc = sdp_engine_drain(e, err);
    e->skip_update = false;
    e->logits = NULL;
    return rc;
}

static float element(enum sdp_dtype dtype, const void *memory, size_t i)
{
    return dtype == SDP_FP32 ? ((const float *)memory)[i] : sdp_bf16_to_float(((const uint16_t *)memory)[i]);
}

/* The sums of resident state never leave the device: as the update would round them. */
static void resident_gradient(const struct sdp_engine *e, size_t storage, const struct sdp_param *p, float *values)
{
    struct sdpi_device *d = &e->devices[0];
    starpu_data_handle_t handle = sdpi_accumulator(e, d, storage, d->first_rank)->handle;
    if (starpu_data_acquire_on_node(handle, STARPU_MAIN_RAM, STARPU_R) != 0)
        return;
    const float *sums = (const float *)starpu_variable_get_local_ptr(handle);
    for (size_t i = 0; i < p->count; i++) {
        float sum = sums[p->offset + i];
        values[i] = e->plan->gradient == SDP_BF16 ? sdp_bf16_to_float(sdp_bf16_from_float(sum)) : sum;
    }
    starpu_data_release_on_node(handle, STARPU_MAIN_RAM);
}

void sdp_engine_gradient(const struct sdp_engine *e, size_t storage, size_t param, float *values)
{
    const struct sdp_state_storage *s = &e->state->storages[storage];
    const struct sdp_param *p = &e->graph->storages[storage].params[param];
    if (e->plan->resident[storage]) {
        resident_gradient(e, storage, p, values);
        return;
    }
    for (size_t c = 0; c < s->chunk_count; c++) {
        const struct sdp_chunk *chunk = &s->chunks[c];
        starpu_data_handle_t handle = e->waiting[e->chunk_base[storage] + c].handle;
        const struct sdp_chunk_interface *interface = starpu_data_get_interface_on_node(handle, STARPU_MAIN_RAM);
        size_t from = SDP_MAX(chunk->offset, p->offset);
        size_t to = SDP_MIN(chunk->offset + chunk->count, p->offset + p->count);
        for (size_t i = from; i < to; i++)
            values[i - p->offset] = element(e->plan->reduced, (const void *)interface->ptr, i - chunk->offset);
    }
}

/* -- traces ------------------------------------------------------------------------------------- */

void sdp_engine_trace_start(struct sdp_engine *e)
{
    if (e->trace_dir)
        starpu_fxt_start_profiling();
}

void sdp_engine_trace_stop(struct sdp_engine *e)
{
    if (e->trace_dir)
        starpu_fxt_stop_profiling();
}

bool sdp_engine_resources(struct sdp_engine *e, size_t first, struct sdp_resource_report *out)
{
    return e->resources && sdp_resources_report(e->resources, first, out);
}

/* -- picture -------------------------------------------------------------------------------------- */

enum sdp_status sdp_engine_write_dot(const struct sdp_plan *plan, FILE *out, struct sdp_error *err)
{
    struct sdp_engine *e = sdp_xcalloc(1, sizeof *e);
    sdpi_engine_allocate(e, plan, plan->layout);
    e->dot = out;
    fprintf(out, "// A step of slidedp: black edges are data, gray edges are order (a buffer is written again).\n"
                 "digraph step {\n  rankdir=LR;\n  node [shape=box, style=filled, fontname=\"sans-serif\"];\n");
    enum sdp_status rc = sdpi_submit_step(e, 1, 1, NULL, err);
    fprintf(out, "}\n");
    if (!rc && ferror(out))
        rc = sdp_fail(err, SDP_IO, "writing the graph failed");
    sdpi_engine_free(e);
    free(e);
    return rc;
}
