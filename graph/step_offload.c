/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Activations that wait in host memory for the backward pass.
 *
 * An offloaded area (a layer's boundary or saved tensors of one micro-batch) has its home in page-locked host memory and
 * lies in a slot of a small pool on the device while tasks use it. Slot admission works as for weights: tenant n of a
 * pool owns void handle n mod slots. The forward task that writes the area takes it W, later readers of the forward pass
 * R; a store task on the draining worker takes it W, has StarPU copy the area to the host and frees the slot. Before
 * the backward visit a fetch task on the delivering worker is the next tenant; the backward task takes the handle W and
 * frees the slot. No task thus ever waits inside StarPU for a slot. */
#include "graph/step_internal.h"

bool sdpi_area_offloaded(const struct sdp_plan *plan, enum sdpi_area area, size_t layer)
{
    if (area == SDPI_BOUNDARY)
        return sdp_plan_offloads_boundary(plan, layer);
    return layer < plan->offloaded && plan->layers[layer]->saved_bytes > 0;
}

struct sdpi_data *sdpi_area(const struct sdpi_device *d, enum sdpi_area area, size_t layer, size_t units, size_t k)
{
    return &(area == SDPI_BOUNDARY ? d->boundaries : d->saved)[layer * units + k];
}

static size_t *token_of(const struct sdpi_device *d, enum sdpi_area area, size_t layer, size_t units, size_t k)
{
    return &d->offload[area].token_of[layer * units + k];
}

/* The next tenant of the area's pool. */
static struct sdpi_data *take_slot(struct sdpi_visit *v, enum sdpi_area area, size_t layer, size_t k)
{
    struct sdpi_offload *pool = &v->device->offload[area];
    size_t token = pool->tenants++ % pool->slots;
    *token_of(v->device, area, layer, sdpi_units(v->engine, v->device), k) = token;
    return &pool->admission[token];
}

static struct sdpi_data *held_slot(struct sdpi_visit *v, enum sdpi_area area, size_t layer, size_t k)
{
    struct sdpi_offload *pool = &v->device->offload[area];
    return &pool->admission[*token_of(v->device, area, layer, sdpi_units(v->engine, v->device), k)];
}

static void release_area(struct sdpi_visit *v, struct sdpi_builder *b, struct sdpi_data *data)
{
    if (!b->task)
        return;
    struct sdpi_release *r = sdpi_task_release(b, v->device);
    r->areas[r->area_count++] = data->handle;
}

int sdpi_offload_buffer(struct sdpi_visit *v, struct sdpi_builder *b, enum sdpi_area area, size_t layer, size_t k,
                        enum starpu_data_access_mode mode)
{
    size_t units = sdpi_units(v->engine, v->device);
    struct sdpi_data *data = sdpi_area(v->device, area, layer, units, k);
    int index = sdpi_task_buffer(b, data, mode);
    if (!sdpi_area_offloaded(v->engine->plan, area, layer))
        return index;
    if (mode == STARPU_W) {
        sdpi_task_buffer(b, take_slot(v, area, layer, k), STARPU_W);
    } else if (!v->plan->backward) {
        sdpi_task_buffer(b, held_slot(v, area, layer, k), STARPU_R);
    } else { /* its last use */
        sdpi_task_buffer(b, held_slot(v, area, layer, k), STARPU_W);
        release_area(v, b, data);
    }
    return index;
}

static void begin(struct sdpi_visit *v, struct sdpi_builder *b, bool fetch, size_t layer, size_t k)
{
    struct sdp_engine *e = v->engine;
    struct sdpi_device *d = v->device;
    sdpi_task_begin(b, e, fetch ? &d->fetch : &sdp_codelet_store, fetch ? SDP_TASK_FETCH : SDP_TASK_STORE, v->step);
    b->arg->info.layer = (int32_t)layer;
    b->arg->info.rank = (int32_t)(d->first_rank + k / e->plan->group);
    b->arg->info.micro_batch = (int32_t)(v->plan->group * e->plan->group + k % e->plan->group);
    b->arg->info.device = (int32_t)d->index;
    b->arg->info.workerid = fetch ? d->deliver_worker : d->drain_worker;
    b->arg->info.visit = d->visits;
}

static size_t area_bytes(const struct sdp_plan *plan, enum sdpi_area area, size_t layer)
{
    return area == SDPI_BOUNDARY ? sdp_plan_boundary_bytes(plan) : sdp_plan_saved_bytes(plan, layer);
}

size_t sdpi_offload_fetch(struct sdpi_visit *v, struct sdpi_builder *b, enum sdpi_area area, size_t layer, size_t k)
{
    if (!sdpi_area_offloaded(v->engine->plan, area, layer))
        return 0;
    begin(v, b, true, layer, k);
    b->arg->info.bytes = area_bytes(v->engine->plan, area, layer);
    sdpi_task_buffer(b, sdpi_area(v->device, area, layer, sdpi_units(v->engine, v->device), k), STARPU_R);
    sdpi_task_buffer(b, take_slot(v, area, layer, k), STARPU_W);
    sdpi_task_seal(b);
    return 1;
}

size_t sdpi_offload_store(struct sdpi_visit *v, struct sdpi_builder *b, enum sdpi_area area, size_t layer, size_t k)
{
    if (!sdpi_area_offloaded(v->engine->plan, area, layer))
        return 0;
    struct sdpi_data *data = sdpi_area(v->device, area, layer, sdpi_units(v->engine, v->device), k);
    begin(v, b, false, layer, k);
    b->arg->info.bytes = area_bytes(v->engine->plan, area, layer);
    sdpi_task_buffer(b, data, STARPU_R);
    sdpi_task_buffer(b, held_slot(v, area, layer, k), STARPU_W);
    release_area(v, b, data);
    sdpi_task_seal(b);
    return 1;
}
