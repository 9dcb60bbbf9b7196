/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The visit of a layer by a device: deliveries of its weights, then rank by rank and micro-batch by micro-batch the
 * computes, with what brings offloaded activations in and out.
 *
 * StarPU derives the dependencies from the handles. Two things it does not order are said here: computes start after
 * the deliveries of their layer (both only read the weights), and a delivery waits until its layer slot is free
 * (admission handles) and until the same storage has left the device (stay handles). */
#include "graph/step_internal.h"

#include "graph/slab.h"

#include <stdlib.h>

/* -- deliveries ------------------------------------------------------------------------------ */

static void begin_delivery(struct sdpi_visit *v, size_t c, struct sdpi_builder *b)
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

static void add_weights(struct sdpi_visit *v, struct sdpi_builder *b, bool first, bool last)
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
        return; /* resident weights have no tenure and stay */
    b->arg->info.flags |= SDP_TASK_LAST_OF_VISIT;
    sdpi_task_buffer(b, &d->admission[v->class][v->slot], STARPU_W);
    sdpi_task_buffer(b, &d->stays[v->storage], STARPU_W);
    if (b->task) {
        struct sdpi_release *r = sdpi_task_release(b, d);
        r->weights = true;
        r->storage = v->storage;
    }
}

static void add_gradient_chunks(struct sdpi_visit *v, struct sdpi_builder *b, size_t rank, enum starpu_data_access_mode mode)
{
    struct sdp_engine *e = v->engine;
    size_t first = (e->gradient_slot[v->storage] * e->plan->ranks + rank) * v->chunks;
    for (size_t c = 0; c < v->chunks; c++) {
        int index = sdpi_task_buffer(b, &e->gradients[v->class][first + c], mode);
        if (c == 0)
            b->arg->u.compute.gradients = index;
    }
}

static void add_gradients(struct sdpi_visit *v, struct sdpi_builder *b, size_t rank, size_t k)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    struct sdp_compute_args *a = &b->arg->u.compute;
    bool first = v->plan->first_gradient && k % e->plan->group == 0;
    bool last = v->plan->last_gradient && k % e->plan->group == e->plan->group - 1;
    a->add_gradients = !first;
    a->gradient = e->plan->gradient;
    if (!e->plan->accumulator) {
        add_gradient_chunks(v, b, rank, first ? STARPU_W : STARPU_RW);
        return;
    }
    struct sdpi_data *sum = sdpi_accumulator(e, d, v->storage, rank);
    a->accumulator = sdpi_task_buffer(b, sum, first ? STARPU_W : STARPU_RW);
    a->pack = last && !e->plan->resident[v->storage]; /* a resident state's update reads the accumulator */
    if (a->pack)
        add_gradient_chunks(v, b, rank, STARPU_W);
}

static void add_activations(struct sdpi_visit *v, struct sdpi_builder *b, size_t k, size_t batch)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    struct sdp_compute_args *a = &b->arg->u.compute;
    const struct sdp_layer_plan *plan = a->plan;
    size_t per_step = sdpi_per_step(e, d), l = v->layer->index;
    bool backward = v->plan->backward;
    if (v->layer->input >= 0)
        a->input = sdpi_offload_buffer(v, b, SDPI_BOUNDARY, l - 1, k, STARPU_R);
    if (v->layer->output >= 0 && (!backward || plan->backward[v->layer->output].kind == SDP_PLACE_OUTPUT))
        a->output = sdpi_offload_buffer(v, b, SDPI_BOUNDARY, l, k, backward ? STARPU_R : STARPU_W);
    if (plan->saved_bytes)
        a->saved = sdpi_offload_buffer(v, b, SDPI_SAVED, l, k, backward ? STARPU_R : STARPU_W);
    if (backward)
        a->boundary_gradient =
            sdpi_task_buffer(b, &d->boundary_gradients[k], v->layer->is_loss ? STARPU_W : STARPU_RW);
    size_t ring = v->step % SDP_STEPS_IN_FLIGHT;
    a->batch = sdpi_task_buffer(b, &d->batches[ring * per_step + batch], STARPU_R);
    if (v->layer->is_loss)
        a->loss = sdpi_task_buffer(b, &d->losses[ring * per_step + batch], STARPU_W);
}

static void begin_compute(struct sdpi_visit *v, size_t k, struct sdpi_builder *b)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    size_t units = sdpi_units(e, d), local = k / e->plan->group, rank = d->first_rank + local;
    size_t m = v->plan->group * e->plan->group + k % e->plan->group; /* of the rank's in the step */
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
    sdpi_task_on_device(b, d); /* its buffers lie there */
    const struct sdpi_batch_facts *facts = v->facts ? &v->facts[rank * e->plan->micro_batches + m] : NULL;
    b->arg->u.compute = (struct sdp_compute_args){
        .plan = plan, .storage = &e->graph->storages[v->storage], .device = &d->compute,
        .elements = e->state->storages[v->storage].count,
        .segment_count = facts ? facts->segments : 0, .packed = facts && facts->packed,
        .sequences = e->plan->micro_batch, .loss_scale = v->loss_scale, .want_gradient = backward,
        .weights = -1, .remainders = -1, .assembled = -1, .batch = -1, .input = -1, .output = -1,
        .boundary_gradient = -1, .saved = -1, .loss = -1, .accumulator = -1, .gradients = -1};
    if (v->layer->is_loss && e->logits)
        b->arg->u.compute.logits =
            e->logits + (rank * e->plan->micro_batches + m) * plan->tokens * e->graph->vocabulary;
    if (v->plan->needs_weights)
        add_weights(v, b, k == 0, k == units - 1);
    add_activations(v, b, k, local * e->plan->micro_batches + m);
    if (backward)
        add_gradients(v, b, rank, k);
    sdpi_task_seal(b);
}

/* All tasks of the visit in program order: computes depend on deliveries, so none is submitted before all are built. */
enum sdp_status sdpi_submit_visit(struct sdpi_visit *v, struct sdp_error *err)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    size_t units = sdpi_units(e, d), deliveries = 0, count = 0, l = v->layer->index;
    bool backward = v->plan->backward;
    if (v->plan->first_of_tenure) {
        d->slot_of[v->storage] = d->tenures[v->class]++ % e->plan->classes[v->class].weight_slots;
        deliveries = v->chunks;
    }
    v->slot = d->slot_of[v->storage];
    struct sdpi_builder *tasks = sdp_xcalloc(deliveries + 3 * units, sizeof *tasks);
    for (; count < deliveries; count++)
        begin_delivery(v, count, &tasks[count]);
    for (size_t k = 0; k < units; k++) {
        if (backward && l > 0)
            count += sdpi_offload_fetch(v, &tasks[count], SDPI_BOUNDARY, l - 1, k);
        if (backward)
            count += sdpi_offload_fetch(v, &tasks[count], SDPI_SAVED, l, k);
        begin_compute(v, k, &tasks[count]);
        if (e->plan->cuda)
            sdpi_task_after(&tasks[count], tasks, deliveries);
        count++;
        if (!backward && l > 0)
            count += sdpi_offload_store(v, &tasks[count], SDPI_BOUNDARY, l - 1, k);
        if (!backward)
            count += sdpi_offload_store(v, &tasks[count], SDPI_SAVED, l, k);
    }
    enum sdp_status rc = sdpi_task_submit_all(tasks, count, err);
    free(tasks);
    d->visits++;
    return rc;
}
