/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What follows the last backward visit of a storage: drains, reductions, updates; and the end of a step. */
#include "graph/step_internal.h"

#include <stdlib.h>

/* -- gradients and updates ---------------------------------------------------------------------------- */

struct tail { /* what follows the last backward visit of a storage */
    struct sdp_engine *engine;
    size_t step, storage, class, chunks;
    int32_t layer;
    double lr;
};

static struct sdpi_data *gradient_chunk(const struct tail *t, size_t rank, size_t chunk)
{
    const struct sdp_engine *e = t->engine;
    return &e->gradients[t->class][(e->gradient_slot[t->storage] * e->plan->ranks + rank) * t->chunks + chunk];
}

static void begin_drain(const struct tail *t, size_t rank, size_t c, struct sdpi_builder *b)
{
    struct sdp_engine *e = t->engine;
    size_t device = 0;
    while (rank >= e->plan->first_rank[device + 1])
        device++;
    sdpi_task_begin(b, e, &sdp_codelet_drain, SDP_TASK_DRAIN, t->step);
    b->arg->info.layer = t->layer;
    b->arg->info.chunk = (int32_t)c;
    b->arg->info.rank = (int32_t)rank;
    b->arg->info.device = (int32_t)device;
    b->arg->info.workerid = e->devices[device].drain_worker;
    b->arg->info.bytes = e->state->storages[t->storage].chunks[c].count * sdp_dtype_size(e->plan->gradient);
    sdpi_task_buffer(b, gradient_chunk(t, rank, c), STARPU_R);
    sdpi_task_seal(b);
}

static struct sdp_adamw_step adamw_of(const struct sdp_engine *e, size_t step, double lr)
{
    const struct sdp_job *job = e->plan->job;
    return (struct sdp_adamw_step){.lr = lr, .beta1 = job->train.beta1, .beta2 = job->train.beta2,
                                   .eps = job->train.eps, .weight_decay = job->train.weight_decay, .step = step,
                                   .decay_all = job->train.decay_all};
}

/* Handle of the squared norms that a device found; the step's first task that adds to it makes it zero. */
static void add_device_norms(const struct tail *t, struct sdpi_builder *b, struct sdp_update_args *u)
{
    struct sdp_engine *e = t->engine;
    size_t r = t->step % SDP_STEPS_IN_FLIGHT;
    u->first_norms = !e->ring[r].device_norms;
    e->ring[r].device_norms = true;
    u->norm_count = e->state->block_count;
    u->device_norms = sdpi_task_buffer(b, &e->device_norms[r], u->first_norms ? STARPU_W : STARPU_RW);
}

static struct sdp_update_args update_args(const struct tail *t, size_t c)
{
    struct sdp_engine *e = t->engine;
    struct sdp_state_storage *storage = &e->state->storages[t->storage];
    return (struct sdp_update_args){.storage = storage, .chunk = storage->chunks ? &storage->chunks[c] : NULL,
                                    .adamw = adamw_of(e, t->step, t->lr), .device = &e->devices[0].compute,
                                    .rank_count = 1, .gradients = -1, .m = -1, .v = -1, .accumulator = -1,
                                    .device_norms = -1, .gradient = e->plan->gradient};
}

/* Resident state: the device that holds it updates it, from its accumulator. `update` false: the norm alone. */
static void begin_device_update(const struct tail *t, size_t c, bool update, struct sdpi_builder *b)
{
    struct sdp_engine *e = t->engine;
    struct sdpi_device *d = &e->devices[0];
    size_t chunk = e->chunk_base[t->storage] + c, r = t->step % SDP_STEPS_IN_FLIGHT;
    bool norm = !update || !e->plan->two_phase;
    sdpi_task_begin(b, e, update ? &sdp_codelet_update : &sdp_codelet_reduce, update ? SDP_TASK_UPDATE : SDP_TASK_REDUCE,
                    t->step);
    b->arg->info.layer = t->layer;
    b->arg->info.chunk = (int32_t)c;
    b->arg->info.device = (int32_t)d->index;
    b->arg->info.workerid = d->compute_worker;
    b->arg->info.bytes = e->state->storages[t->storage].chunks[c].count * (update ? 28 : 4);
    sdpi_task_on_device(b, d);
    struct sdp_update_args u = update_args(t, c);
    u.update = update;
    u.clip_scale = update && e->plan->two_phase ? &e->ring[r].clip_scale : NULL;
    if (update) {
        sdpi_task_buffer(b, &e->weights[chunk], STARPU_RW);
        sdpi_task_buffer(b, &e->remainders[chunk], STARPU_RW);
        u.m = sdpi_task_buffer(b, &e->first_moments[chunk], STARPU_RW);
        u.v = sdpi_task_buffer(b, &e->second_moments[chunk], STARPU_RW);
    }
    u.accumulator = sdpi_task_buffer(b, sdpi_accumulator(e, d, t->storage, d->first_rank), STARPU_R);
    if (norm)
        add_device_norms(t, b, &u);
    sdpi_task_buffer(b, &(update && e->plan->two_phase ? e->clip_ready : e->norm_ready)[r], STARPU_R);
    b->arg->u.update = u;
    sdpi_task_seal(b);
}

static void begin_update(const struct tail *t, size_t c, struct sdpi_builder *b)
{
    struct sdp_engine *e = t->engine;
    struct sdpi_ring *ring = &e->ring[t->step % SDP_STEPS_IN_FLIGHT];
    size_t chunk = e->chunk_base[t->storage] + c;
    bool two_phase = e->plan->two_phase;
    sdpi_task_begin(b, e, &sdp_codelet_update, SDP_TASK_UPDATE, t->step);
    b->arg->info.layer = t->layer;
    b->arg->info.chunk = (int32_t)c;
    b->arg->info.flags = two_phase ? 0 : SDP_TASK_REDUCES;
    b->arg->info.bytes = e->state->storages[t->storage].chunks[c].count * 26;
    if (e->first_delivery[t->storage] != UINT64_MAX)
        b->arg->info.next_use = e->step_order + e->step_tasks + e->first_delivery[t->storage];
    if (b->task)
        b->task->where = STARPU_CPU; /* the state's home */
    sdpi_task_buffer(b, &e->weights[chunk], STARPU_RW);
    sdpi_task_buffer(b, &e->remainders[chunk], STARPU_RW);
    struct sdp_update_args u = update_args(t, c);
    u.update = true;
    u.gradients = b->count;
    u.rank_count = two_phase ? 1 : (int)e->plan->ranks;
    u.gradient = two_phase ? e->plan->reduced : e->plan->gradient;
    u.clip_scale = two_phase ? &ring->clip_scale : NULL;
    u.norms = two_phase ? NULL : ring->norms;
    if (two_phase)
        sdpi_task_buffer(b, &e->waiting[chunk], STARPU_R);
    for (size_t r = 0; !two_phase && r < e->plan->ranks; r++)
        sdpi_task_buffer(b, gradient_chunk(t, r, c), STARPU_R);
    sdpi_task_buffer(b, &(two_phase ? e->clip_ready : e->norm_ready)[t->step % SDP_STEPS_IN_FLIGHT], STARPU_R);
    b->arg->u.update = u;
    sdpi_task_seal(b);
}

static void begin_reduce(const struct tail *t, size_t c, struct sdpi_builder *b)
{
    struct sdp_engine *e = t->engine;
    const struct sdp_state_storage *storage = &e->state->storages[t->storage];
    sdpi_task_begin(b, e, &sdp_codelet_reduce, SDP_TASK_REDUCE, t->step);
    b->arg->info.layer = t->layer;
    b->arg->info.chunk = (int32_t)c;
    if (b->task)
        b->task->where = STARPU_CPU;
    b->arg->info.bytes = storage->chunks[c].count *
                         (sdp_dtype_size(e->plan->gradient) * e->plan->ranks + sdp_dtype_size(e->plan->reduced));
    b->arg->u.reduce = (struct sdp_reduce_args){
        .storage = storage, .chunk = &storage->chunks[c], .gradients = 0, .rank_count = (int)e->plan->ranks,
        .sum = (int)e->plan->ranks, .gradient = e->plan->gradient, .reduced = e->plan->reduced,
        .norms = e->ring[t->step % SDP_STEPS_IN_FLIGHT].norms};
    for (size_t r = 0; r < e->plan->ranks; r++)
        sdpi_task_buffer(b, gradient_chunk(t, r, c), STARPU_R);
    sdpi_task_buffer(b, &e->waiting[e->chunk_base[t->storage] + c], STARPU_W);
    sdpi_task_buffer(b, &e->norm_ready[t->step % SDP_STEPS_IN_FLIGHT], STARPU_R);
    sdpi_task_seal(b);
}

/* Resident state: no gradient leaves the device. */
static enum sdp_status submit_device_tail(const struct tail *t, bool update, struct sdp_error *err)
{
    enum sdp_status rc = SDP_OK;
    for (size_t c = 0; !rc && c < t->chunks; c++) {
        struct sdpi_builder b;
        begin_device_update(t, c, update, &b);
        rc = sdpi_task_submit(&b, err);
    }
    return rc;
}

/* Drains of a storage's gradients, then what consumes them. */
static enum sdp_status submit_host_tail(const struct tail *t, struct sdp_error *err)
{
    struct sdp_engine *e = t->engine;
    size_t drains = e->plan->cuda ? e->plan->ranks : 0;
    struct sdpi_builder *tasks = sdp_xcalloc(drains + 1, sizeof *tasks);
    enum sdp_status rc = SDP_OK;
    for (size_t c = 0; !rc && c < t->chunks; c++) {
        for (size_t r = 0; r < drains; r++)
            begin_drain(t, r, c, &tasks[r]);
        if (e->plan->two_phase)
            begin_reduce(t, c, &tasks[drains]);
        else
            begin_update(t, c, &tasks[drains]);
        sdpi_task_after(&tasks[drains], tasks, drains);
        rc = sdpi_task_submit_all(tasks, drains + 1, err);
    }
    free(tasks);
    return rc;
}

static struct tail tail_of(struct sdp_engine *e, size_t step, size_t storage, size_t layer)
{
    return (struct tail){.engine = e, .step = step, .storage = storage, .class = e->plan->class_of[storage],
                         .chunks = e->state->storages[storage].chunk_count, .layer = (int32_t)layer,
                         .lr = sdp_job_lr(e->plan->job, step, e->plan->steps)};
}

enum sdp_status sdpi_submit_tail(struct sdp_engine *e, size_t step, size_t storage, size_t layer, struct sdp_error *err)
{
    struct tail t = tail_of(e, step, storage, layer);
    return e->plan->resident[storage] ? submit_device_tail(&t, !e->plan->two_phase, err) : submit_host_tail(&t, err);
}

static enum sdp_status submit_late_updates(struct sdp_engine *e, size_t step, struct sdp_error *err)
{
    bool *seen = sdp_xcalloc(e->graph->storage_count, sizeof *seen);
    enum sdp_status rc = SDP_OK;
    for (size_t l = 0; !rc && l < e->graph->layer_count; l++) {
        size_t storage = e->graph->layers[l].storage;
        struct tail t = tail_of(e, step, storage, l);
        bool resident = e->plan->resident[storage];
        if (!seen[storage] && resident)
            rc = submit_device_tail(&t, true, err);
        for (size_t c = 0; !rc && !seen[storage] && !resident && c < t.chunks; c++) {
            struct sdpi_builder b;
            begin_update(&t, c, &b);
            rc = sdpi_task_submit(&b, err);
        }
        seen[storage] = true;
    }
    free(seen);
    return rc;
}

/* Norms that a device found, for the task that adds all up. Returns the buffer's index or -1. */
static int read_device_norms(struct sdp_engine *e, size_t step, struct sdpi_builder *b)
{
    size_t r = step % SDP_STEPS_IN_FLIGHT;
    if (!e->ring[r].device_norms)
        return -1;
    e->ring[r].device_norms = false;
    return sdpi_task_buffer(b, &e->device_norms[r], STARPU_R);
}

enum sdp_status sdpi_submit_clip(struct sdp_engine *e, size_t step, bool update, struct sdp_error *err)
{
    size_t r = step % SDP_STEPS_IN_FLIGHT;
    struct sdpi_builder b;
    sdpi_task_begin(&b, e, &sdp_codelet_clip, SDP_TASK_CLIP, step);
    b.arg->u.clip = (struct sdp_clip_args){.norms = e->ring[r].norms, .block_count = e->state->block_count,
                                           .device_norms = read_device_norms(e, step, &b),
                                           .clip_norm = e->plan->job->train.clip_norm,
                                           .scale = &e->ring[r].clip_scale, .norm = &e->ring[r].norm};
    sdpi_task_buffer(&b, &e->norm_ready[r], STARPU_RW);
    sdpi_task_buffer(&b, &e->clip_ready[r], STARPU_RW);
    sdpi_task_seal(&b);
    enum sdp_status rc = sdpi_task_submit(&b, err);
    return rc || !update ? rc : submit_late_updates(e, step, err);
}

/* -- metrics -------------------------------------------------------------------------------------------- */

struct done {
    struct sdp_engine *engine;
    size_t step;
};

static void step_done(void *context, double loss, double norm)
{
    struct done *done = context;
    struct sdp_engine *e = done->engine;
    struct sdpi_ring *ring = &e->ring[done->step % SDP_STEPS_IN_FLIGHT];
    pthread_mutex_lock(&e->lock);
    ring->result.loss = loss;
    ring->result.grad_norm = norm;
    ring->result.finished = sdp_now();
    ring->result.seconds = ring->result.finished - ring->submitted_at;
    ring->done = true;
    pthread_cond_broadcast(&e->done);
    pthread_mutex_unlock(&e->lock);
    free(done);
}

enum sdp_status sdpi_submit_metrics(struct sdp_engine *e, size_t step, double scale, struct sdp_error *err)
{
    size_t r = step % SDP_STEPS_IN_FLIGHT;
    struct sdpi_builder b;
    sdpi_task_begin(&b, e, &sdp_codelet_metrics, SDP_TASK_METRICS, step);
    for (size_t d = 0; d < e->plan->device_count; d++) {
        size_t per_step = sdpi_per_step(e, &e->devices[d]);
        for (size_t k = 0; k < per_step; k++)
            sdpi_task_buffer(&b, &e->devices[d].losses[r * per_step + k], STARPU_R);
    }
    struct done *done = NULL;
    if (!e->dot) {
        done = sdp_xcalloc(1, sizeof *done);
        *done = (struct done){e, step};
    }
    int losses = b.count;
    b.arg->u.metrics = (struct sdp_metrics_args){
        .device_norms = read_device_norms(e, step, &b), .norms = e->ring[r].norms, .block_count = e->state->block_count,
        .norm = e->plan->two_phase ? &e->ring[r].norm : NULL, .loss_count = losses, .scale = scale,
        .done = step_done, .context = done};
    sdpi_task_buffer(&b, &e->norm_ready[r], STARPU_RW);
    sdpi_task_buffer(&b, &e->clip_ready[r], STARPU_RW);
    sdpi_task_seal(&b);
    return sdpi_task_submit(&b, err);
}
