/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One step as tasks. Order of submission is program order: visit by visit, for
 * each the deliveries, then rank by rank and micro-batch by micro-batch the
 * computes; after the last backward visit of a storage its drains and updates.
 *
 * StarPU derives the dependencies from the handles. Two things it does not order
 * are said here: computes start after the deliveries of their layer (both only read
 * the weights), and a delivery waits until its layer slot is free (admission
 * handles) and until the same storage has left the device (stay handles). */
#include "graph/engine_internal.h"

#include "graph/slab.h"

#include <stdlib.h>

/* -- building tasks ------------------------------------------------------------------------ */

void sdpi_task_begin(struct sdpi_builder *b, struct sdp_engine *engine, struct starpu_codelet *codelet,
                     enum sdp_task_kind kind, size_t step)
{
    memset(b, 0, sizeof *b);
    b->engine = engine;
    b->arg = sdp_xcalloc(1, sizeof *b->arg);
    b->arg->state = &engine->run;
    b->arg->info = (struct sdp_task_info){
        .magic = SDP_TASK_INFO_MAGIC, .kind = kind, .step = (int32_t)step, .layer = -1, .chunk = -1, .rank = -1,
        .micro_batch = -1, .device = -1, .workerid = -1, .order = engine->order++, .next_use = UINT64_MAX,
        .window = (uint32_t)engine->plan->window};
    if (engine->dot)
        return;
    b->task = starpu_task_create();
    b->task->cl = codelet;
}

int sdpi_task_buffer(struct sdpi_builder *b, struct sdpi_data *data, enum starpu_data_access_mode mode)
{
    b->data[b->count] = data;
    b->modes[b->count] = mode;
    return b->count++;
}

/* "forward s3 l12 c0 r1 m2": only the parts that apply. */
static void name_task(struct sdp_task *arg)
{
    const struct sdp_task_info *i = &arg->info;
    int n = snprintf(arg->name, sizeof arg->name, "%s s%d", sdp_task_kind_name(i->kind), i->step);
    const struct {
        char letter;
        int32_t value;
    } parts[] = {{'l', i->layer}, {'c', i->chunk}, {'r', i->rank}, {'m', i->micro_batch}};
    for (size_t p = 0; p < SDP_COUNT_OF(parts) && n > 0 && (size_t)n < sizeof arg->name; p++)
        if (parts[p].value >= 0)
            n += snprintf(arg->name + n, sizeof arg->name - (size_t)n, " %c%d", parts[p].letter, parts[p].value);
}

static void dot_edge(struct sdpi_builder *b, size_t from, const char *style)
{
    if (from != b->node)
        fprintf(b->engine->dot, "  t%zu -> t%zu%s;\n", from, b->node, style);
}

static void dot_data(struct sdpi_builder *b, struct sdpi_data *data, enum starpu_data_access_mode mode)
{
    bool writes = (mode & STARPU_W) != 0;
    if (data->writer)
        dot_edge(b, data->writer - 1, writes && !(mode & STARPU_R) ? " [color=gray]" : "");
    for (size_t i = 0; writes && i < data->reader_count; i++)
        dot_edge(b, data->readers[i], " [color=gray]"); /* write after read */
    if (writes) {
        data->writer = b->node + 1;
        data->reader_count = 0;
        return;
    }
    data->readers = sdp_xrealloc(data->readers, (data->reader_count + 1) * sizeof *data->readers);
    data->readers[data->reader_count++] = b->node;
}

static void dot_node(struct sdpi_builder *b)
{
    static const char *const colours[SDP_TASK_KINDS] = {"#57b894", "#4c9be8", "#2f6db5", "#e8a33d",
                                                        "#d98c5f", "#b05fd9", "#c94f4f", "#8f8f8f"};
    const struct sdp_task_info *i = &b->arg->info;
    b->node = b->engine->dot_nodes++;
    fprintf(b->engine->dot, "  t%zu [label=\"%s\", fillcolor=\"%s\"];\n", b->node, b->arg->name, colours[i->kind]);
    for (int k = 0; k < b->count; k++)
        dot_data(b, b->data[k], b->modes[k]);
}

void sdpi_task_seal(struct sdpi_builder *b)
{
    name_task(b->arg);
    if (b->engine->dot) {
        dot_node(b);
        return;
    }
    struct starpu_task *task = b->task;
    task->nbuffers = b->count;
    task->dyn_handles = sdp_xcalloc((size_t)b->count + 1, sizeof *task->dyn_handles);
    task->dyn_modes = sdp_xcalloc((size_t)b->count + 1, sizeof *task->dyn_modes);
    for (int k = 0; k < b->count; k++) {
        task->dyn_handles[k] = b->data[k]->handle;
        task->dyn_modes[k] = b->modes[k];
    }
    task->name = b->arg->name;
    task->cl_arg = b->arg;
    task->cl_arg_size = sizeof *b->arg;
    task->cl_arg_free = 1;
    task->flops = b->arg->info.flops;
}

void sdpi_task_after(struct sdpi_builder *task, struct sdpi_builder *before, size_t count)
{
    struct starpu_task **tasks;
    if (task->engine->dot) {
        for (size_t i = 0; i < count; i++)
            dot_edge(task, before[i].node, "");
        return;
    }
    tasks = sdp_xcalloc(count + 1, sizeof *tasks);
    for (size_t i = 0; i < count; i++)
        tasks[i] = before[i].task;
    if (count)
        starpu_task_declare_deps_array(task->task, (unsigned)count, tasks);
    free(tasks);
}

enum sdp_status sdpi_task_submit(struct sdpi_builder *b, struct sdp_error *err)
{
    if (b->engine->dot) {
        free(b->arg);
        return SDP_OK;
    }
    int rc = starpu_task_submit(b->task);
    if (rc == 0)
        return SDP_OK;
    char name[sizeof b->arg->name];
    memcpy(name, b->arg->name, sizeof name);
    starpu_task_destroy(b->task);
    return sdp_fail(err, SDP_RUNTIME, "StarPU refuses task \"%s\": %s", name, strerror(-rc));
}

/* -- deliveries ------------------------------------------------------------------------------ */

struct visit {
    struct sdp_engine *engine;
    struct sdpi_device *device;
    const struct sdp_visit *plan;
    const struct sdp_layer *layer;
    size_t step, storage, class, slot, chunks;
    float loss_scale;
    const size_t *segment_counts;
};

static void begin_delivery(struct visit *v, size_t c, struct sdpi_builder *b)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    const struct sdp_state_storage *storage = &e->state->storages[v->storage];
    size_t chunk = e->chunk_base[v->storage] + c;
    bool cuda = e->plan->cuda, halves = e->plan->compute == SDP_FP32;
    sdpi_task_begin(b, e, cuda ? &d->deliver : &sdp_codelet_deliver_cpu, SDP_TASK_DELIVER, v->step);
    b->arg->info.layer = (int32_t)v->layer->index;
    b->arg->info.chunk = (int32_t)c;
    b->arg->info.device = (int32_t)d->index;
    b->arg->info.workerid = d->deliver_worker;
    b->arg->info.bytes = storage->chunks[c].count * (halves ? 4 : 2);
    b->arg->info.visit = d->visits;
    b->arg->u.deliver.storage = storage;
    b->arg->u.deliver.chunk = &storage->chunks[c];
    if (e->first_delivery[v->storage] == UINT64_MAX)
        e->first_delivery[v->storage] = b->arg->info.order - e->step_order;
    sdpi_task_buffer(b, &e->weights[chunk], STARPU_R);
    if (halves)
        sdpi_task_buffer(b, &e->remainders[chunk], STARPU_R);
    if (cuda) {
        sdpi_task_buffer(b, &d->admission[v->class][v->slot], STARPU_R);
        sdpi_task_buffer(b, &d->stays[v->storage], STARPU_R);
    } else {
        sdpi_task_buffer(b, &d->slots[v->class][v->slot * v->chunks + c], STARPU_W);
    }
    sdpi_task_seal(b);
}

/* -- forward and backward ------------------------------------------------------------------------ */

/* Frees the layer slot: the copies of the weights leave the device. A copy that is
 * busy just now stays until StarPU needs its slot. */
static void evict(void *arg)
{
    const struct sdpi_engine_evict *x = arg;
    struct sdp_engine *e = x->engine;
    const struct sdpi_device *d = &e->devices[x->device];
    for (size_t c = 0; c < e->state->storages[x->storage].chunk_count; c++) {
        (void)starpu_data_evict_from_node(e->weights[e->chunk_base[x->storage] + c].handle, d->node);
        if (e->plan->compute == SDP_FP32)
            (void)starpu_data_evict_from_node(e->remainders[e->chunk_base[x->storage] + c].handle, d->node);
    }
}

static void add_weights(struct visit *v, struct sdpi_builder *b, bool first, bool last)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    struct sdp_compute_args *a = &b->arg->u.compute;
    bool halves = e->plan->cuda && e->plan->compute == SDP_FP32;
    a->assemble = halves && first && v->plan->first_of_tenure;
    for (size_t c = 0; c < v->chunks; c++) {
        struct sdpi_data *data = e->plan->cuda ? &e->weights[e->chunk_base[v->storage] + c]
                                               : &d->slots[v->class][v->slot * v->chunks + c];
        int index = sdpi_task_buffer(b, data, STARPU_R);
        if (c == 0)
            a->weights = index;
    }
    for (size_t c = 0; a->assemble && c < v->chunks; c++) {
        int index = sdpi_task_buffer(b, &e->remainders[e->chunk_base[v->storage] + c], STARPU_R);
        if (c == 0)
            a->remainders = index;
    }
    if (halves)
        a->assembled = sdpi_task_buffer(b, &d->assembled[v->class][v->slot], a->assemble ? STARPU_W : STARPU_R);
    if (!e->plan->cuda || !last || !v->plan->last_of_tenure)
        return;
    b->arg->info.flags |= SDP_TASK_LAST_OF_VISIT;
    sdpi_task_buffer(b, &d->admission[v->class][v->slot], STARPU_W);
    sdpi_task_buffer(b, &d->stays[v->storage], STARPU_W);
    if (b->task) {
        b->task->epilogue_callback_func = evict;
        b->task->epilogue_callback_arg = &d->evict[v->storage];
    }
}

static void add_gradient_chunks(struct visit *v, struct sdpi_builder *b, size_t rank, enum starpu_data_access_mode mode)
{
    struct sdp_engine *e = v->engine;
    size_t first = (e->gradient_slot[v->storage] * e->plan->ranks + rank) * v->chunks;
    for (size_t c = 0; c < v->chunks; c++) {
        int index = sdpi_task_buffer(b, &e->gradients[v->class][first + c], mode);
        if (c == 0)
            b->arg->u.compute.gradients = index;
    }
}

static void add_gradients(struct visit *v, struct sdpi_builder *b, size_t rank, size_t micro_batch)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    struct sdp_compute_args *a = &b->arg->u.compute;
    bool first = v->plan->first_gradient && micro_batch == 0;
    bool last = v->plan->last_gradient && micro_batch == e->plan->micro_batches - 1;
    a->add_gradients = !first;
    a->gradient = e->plan->gradient;
    if (!e->plan->accumulator) {
        add_gradient_chunks(v, b, rank, first ? STARPU_W : STARPU_RW);
        return;
    }
    struct sdpi_data *sum = e->plan->tied[v->storage]
                                ? &d->tied_accumulators[v->storage][rank - d->first_rank]
                                : &d->accumulator;
    a->accumulator = sdpi_task_buffer(b, sum, first ? STARPU_W : STARPU_RW);
    a->pack = last;
    if (last)
        add_gradient_chunks(v, b, rank, STARPU_W);
}

static void add_activations(struct visit *v, struct sdpi_builder *b, size_t k)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    struct sdp_compute_args *a = &b->arg->u.compute;
    const struct sdp_layer_plan *plan = a->plan;
    size_t per_step = sdpi_per_step(e, d), l = v->layer->index;
    bool backward = v->plan->backward;
    if (v->layer->input >= 0)
        a->input = sdpi_task_buffer(b, &d->boundaries[(l - 1) * per_step + k], STARPU_R);
    bool output = v->layer->output >= 0 && (!backward || plan->backward[v->layer->output].kind == SDP_PLACE_OUTPUT);
    if (output)
        a->output = sdpi_task_buffer(b, &d->boundaries[l * per_step + k], backward ? STARPU_R : STARPU_W);
    if (plan->saved_bytes)
        a->saved = sdpi_task_buffer(b, &d->saved[l * per_step + k], backward ? STARPU_R : STARPU_W);
    if (backward)
        a->boundary_gradient =
            sdpi_task_buffer(b, &d->boundary_gradients[k], v->layer->is_loss ? STARPU_W : STARPU_RW);
    size_t ring = v->step % SDP_STEPS_IN_FLIGHT;
    a->batch = sdpi_task_buffer(b, &d->batches[ring * per_step + k], STARPU_R);
    if (v->layer->is_loss)
        a->loss = sdpi_task_buffer(b, &d->losses[ring * per_step + k], STARPU_W);
}

static void begin_compute(struct visit *v, size_t k, struct sdpi_builder *b)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    size_t per_step = sdpi_per_step(e, d), m = k % e->plan->micro_batches;
    size_t rank = d->first_rank + k / e->plan->micro_batches;
    bool backward = v->plan->backward;
    const struct sdp_layer_plan *plan = e->plan->layers[v->layer->index];
    sdpi_task_begin(b, e, backward ? &sdp_codelet_backward : &sdp_codelet_forward,
                    backward ? SDP_TASK_BACKWARD : SDP_TASK_FORWARD, v->step);
    struct sdp_task_info *info = &b->arg->info;
    info->layer = (int32_t)v->layer->index;
    info->rank = (int32_t)rank;
    info->micro_batch = (int32_t)m;
    info->device = (int32_t)d->index;
    info->workerid = d->compute_worker;
    info->visit = d->visits;
    info->flops = backward ? plan->backward_flops + plan->recompute_flops : plan->forward_flops;
    if (k == 0)
        info->flags |= SDP_TASK_FIRST_OF_VISIT;
    if (b->task && e->plan->cuda) { /* its buffers lie on this GPU: no other worker may take it, whatever the policy */
        b->task->where = STARPU_CUDA;
        b->task->workerids = d->compute_mask;
        b->task->workerids_len = SDP_COUNT_OF(d->compute_mask);
    }
    b->arg->u.compute = (struct sdp_compute_args){
        .plan = plan, .storage = &e->graph->storages[v->storage], .device = &d->compute,
        .elements = e->state->storages[v->storage].count,
        .segment_count = v->segment_counts ? v->segment_counts[rank * e->plan->micro_batches + m] : 0,
        .sequences = e->plan->micro_batch, .loss_scale = v->loss_scale, .want_gradient = true,
        .weights = -1, .remainders = -1, .assembled = -1, .batch = -1, .input = -1, .output = -1,
        .boundary_gradient = -1, .saved = -1, .loss = -1, .accumulator = -1, .gradients = -1};
    if (v->layer->is_loss && e->logits)
        b->arg->u.compute.logits =
            e->logits + (rank * e->plan->micro_batches + m) * plan->tokens * e->graph->vocabulary;
    if (v->plan->needs_weights)
        add_weights(v, b, k == 0, k == per_step - 1);
    add_activations(v, b, k);
    if (backward)
        add_gradients(v, b, rank, m);
    sdpi_task_seal(b);
}

static enum sdp_status submit_all(struct sdpi_builder *tasks, size_t count, struct sdp_error *err)
{
    enum sdp_status rc = SDP_OK;
    for (size_t i = 0; i < count; i++) {
        if (!rc) {
            rc = sdpi_task_submit(&tasks[i], err);
        } else if (tasks[i].task) {
            starpu_task_destroy(tasks[i].task);
        }
    }
    return rc;
}

static enum sdp_status submit_visit(struct visit *v, struct sdp_error *err)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    size_t per_step = sdpi_per_step(e, d), deliveries = 0;
    if (v->plan->first_of_tenure) {
        d->slot_of[v->storage] = d->tenures[v->class]++ % e->plan->classes[v->class].weight_slots;
        deliveries = v->chunks;
    }
    v->slot = d->slot_of[v->storage];
    struct sdpi_builder *tasks = sdp_xcalloc(deliveries + per_step, sizeof *tasks);
    for (size_t c = 0; c < deliveries; c++)
        begin_delivery(v, c, &tasks[c]);
    for (size_t k = 0; k < per_step; k++) {
        begin_compute(v, k, &tasks[deliveries + k]);
        if (e->plan->cuda)
            sdpi_task_after(&tasks[deliveries + k], tasks, deliveries);
    }
    enum sdp_status rc = submit_all(tasks, deliveries + per_step, err);
    free(tasks);
    d->visits++;
    return rc;
}

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

static void begin_update(const struct tail *t, size_t c, struct sdpi_builder *b)
{
    struct sdp_engine *e = t->engine;
    struct sdpi_ring *ring = &e->ring[t->step % SDP_STEPS_IN_FLIGHT];
    struct sdp_state_storage *storage = &e->state->storages[t->storage];
    size_t chunk = e->chunk_base[t->storage] + c;
    bool two_phase = e->plan->two_phase;
    sdpi_task_begin(b, e, &sdp_codelet_update, SDP_TASK_UPDATE, t->step);
    b->arg->info.layer = t->layer;
    b->arg->info.chunk = (int32_t)c;
    b->arg->info.flags = two_phase ? 0 : SDP_TASK_REDUCES;
    b->arg->info.bytes = storage->chunks[c].count * 26;
    if (e->first_delivery[t->storage] != UINT64_MAX)
        b->arg->info.next_use = e->step_order + e->step_tasks + e->first_delivery[t->storage];
    sdpi_task_buffer(b, &e->weights[chunk], STARPU_RW);
    sdpi_task_buffer(b, &e->remainders[chunk], STARPU_RW);
    b->arg->u.update = (struct sdp_update_args){
        .storage = storage, .chunk = storage->chunks ? &storage->chunks[c] : NULL,
        .adamw = adamw_of(e, t->step, t->lr), .gradients = b->count,
        .rank_count = two_phase ? 1 : (int)e->plan->ranks,
        .gradient = two_phase ? e->plan->reduced : e->plan->gradient,
        .clip_scale = two_phase ? &ring->clip_scale : NULL, .norms = two_phase ? NULL : ring->norms};
    if (two_phase)
        sdpi_task_buffer(b, &e->waiting[chunk], STARPU_R);
    for (size_t r = 0; !two_phase && r < e->plan->ranks; r++)
        sdpi_task_buffer(b, gradient_chunk(t, r, c), STARPU_R);
    sdpi_task_buffer(b, &(two_phase ? e->clip_ready : e->norm_ready)[t->step % SDP_STEPS_IN_FLIGHT], STARPU_R);
    sdpi_task_seal(b);
}

static void begin_reduce(const struct tail *t, size_t c, struct sdpi_builder *b)
{
    struct sdp_engine *e = t->engine;
    const struct sdp_state_storage *storage = &e->state->storages[t->storage];
    sdpi_task_begin(b, e, &sdp_codelet_reduce, SDP_TASK_REDUCE, t->step);
    b->arg->info.layer = t->layer;
    b->arg->info.chunk = (int32_t)c;
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

/* Drains of a storage's gradients, then what consumes them: updates, or in a
 * two-phase step the reductions. */
static enum sdp_status submit_tail(const struct tail *t, struct sdp_error *err)
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
        rc = submit_all(tasks, drains + 1, err);
    }
    free(tasks);
    return rc;
}

/* Two-phase: the norm, then all updates in forward order, under the next step's forward pass. */
static enum sdp_status submit_clip(struct sdp_engine *e, size_t step, struct sdp_error *err)
{
    size_t r = step % SDP_STEPS_IN_FLIGHT;
    struct sdpi_builder b;
    sdpi_task_begin(&b, e, &sdp_codelet_clip, SDP_TASK_CLIP, step);
    b.arg->u.clip = (struct sdp_clip_args){.norms = e->ring[r].norms, .block_count = e->state->block_count,
                                           .clip_norm = e->plan->job->train.clip_norm,
                                           .scale = &e->ring[r].clip_scale, .norm = &e->ring[r].norm};
    sdpi_task_buffer(&b, &e->norm_ready[r], STARPU_RW);
    sdpi_task_buffer(&b, &e->clip_ready[r], STARPU_RW);
    sdpi_task_seal(&b);
    return sdpi_task_submit(&b, err);
}

static struct tail tail_of(struct sdp_engine *e, size_t step, size_t storage, size_t layer)
{
    return (struct tail){.engine = e, .step = step, .storage = storage, .class = e->plan->class_of[storage],
                         .chunks = e->state->storages[storage].chunk_count, .layer = (int32_t)layer,
                         .lr = sdp_job_lr(e->plan->job, step, e->plan->steps)};
}

static enum sdp_status submit_late_updates(struct sdp_engine *e, size_t step, struct sdp_error *err)
{
    bool *seen = sdp_xcalloc(e->graph->storage_count, sizeof *seen);
    enum sdp_status rc = SDP_OK;
    for (size_t l = 0; !rc && l < e->graph->layer_count; l++) {
        size_t storage = e->graph->layers[l].storage;
        struct tail t = tail_of(e, step, storage, l);
        for (size_t c = 0; !rc && !seen[storage] && c < t.chunks; c++) {
            struct sdpi_builder b;
            begin_update(&t, c, &b);
            rc = sdpi_task_submit(&b, err);
        }
        seen[storage] = true;
    }
    free(seen);
    return rc;
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

static enum sdp_status submit_metrics(struct sdp_engine *e, size_t step, double scale, struct sdp_error *err)
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
    b.arg->u.metrics = (struct sdp_metrics_args){
        .norms = e->ring[r].norms, .block_count = e->state->block_count,
        .norm = e->plan->two_phase ? &e->ring[r].norm : NULL, .loss_count = b.count, .scale = scale,
        .done = step_done, .context = done};
    sdpi_task_buffer(&b, &e->norm_ready[r], STARPU_RW);
    sdpi_task_buffer(&b, &e->clip_ready[r], STARPU_RW);
    sdpi_task_seal(&b);
    return sdpi_task_submit(&b, err);
}

/* -- the step --------------------------------------------------------------------------------------------- */

static enum sdp_status submit_planned_visit(struct sdp_engine *e, size_t step, const struct sdp_visit *plan,
                                            float loss_scale, const size_t *segment_counts, struct sdp_error *err)
{
    const struct sdp_layer *layer = &e->graph->layers[plan->layer];
    size_t storage = layer->storage, class = e->plan->class_of[storage];
    if (plan->backward && plan->first_gradient)
        e->gradient_slot[storage] = e->gradients_taken[class]++ % e->plan->classes[class].gradient_slots;
    enum sdp_status rc = SDP_OK;
    for (size_t d = 0; !rc && d < e->plan->device_count; d++) {
        struct visit v = {.engine = e, .device = &e->devices[d], .plan = plan, .layer = layer, .step = step,
                          .storage = storage, .class = class, .chunks = e->state->storages[storage].chunk_count,
                          .loss_scale = loss_scale, .segment_counts = segment_counts};
        rc = submit_visit(&v, err);
    }
    if (!rc && plan->backward && plan->last_gradient && !(e->skip_update && !e->plan->two_phase)) {
        struct tail t = tail_of(e, step, storage, plan->layer);
        rc = submit_tail(&t, err);
    }
    return rc;
}

enum sdp_status sdpi_submit_step(struct sdp_engine *e, size_t step, size_t counted, const size_t *segment_counts,
                                 struct sdp_error *err)
{
    enum sdp_status rc = SDP_OK;
    double scale = 1.0 / (double)counted;
    e->step_order = e->order;
    for (size_t v = 0; !rc && v < e->plan->visit_count; v++)
        rc = submit_planned_visit(e, step, &e->plan->visits[v], (float)scale, segment_counts, err);
    if (!rc && e->plan->two_phase)
        rc = submit_clip(e, step, err);
    if (!rc && e->plan->two_phase && !e->skip_update)
        rc = submit_late_updates(e, step, err);
    if (!rc)
        rc = submit_metrics(e, step, scale, err);
    return rc;
}
