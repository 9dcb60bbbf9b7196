/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The memory of a plan, item by item: what the engine allocates is laid out from the same numbers. */
#include "graph/plan_internal.h"

#include "codelets/update/adamw.h"

#include <stdlib.h>

#define CUDA_RESERVE ((size_t)1536 << 20) /* context, cuBLAS and cuDNN kernels, StarPU's small buffers */
#define BLAS_WORKSPACE ((size_t)64 << 20)

static size_t ranks_of(const struct sdp_plan *plan, size_t device)
{
    return plan->first_rank[device + 1] - plan->first_rank[device];
}

size_t sdp_plan_boundary_bytes(const struct sdp_plan *plan)
{
    return sdp_round_up(plan->tokens * plan->graph->hidden * sdp_dtype_size(plan->compute), 256);
}

size_t sdp_plan_saved_bytes(const struct sdp_plan *plan, size_t layer)
{
    return sdp_round_up(plan->layers[layer]->saved_bytes, 256);
}

size_t sdp_plan_offloaded_saved_bytes(const struct sdp_plan *plan)
{
    size_t most = 0;
    for (size_t l = 0; l < plan->offloaded; l++)
        most = SDP_MAX(most, sdp_plan_saved_bytes(plan, l));
    return most;
}

/* A boundary that its own layer's backward pass reads stays on the device: two visits would fetch it. So does the loss
 * layer's input, which is wanted at once. */
bool sdp_plan_offloads_boundary(const struct sdp_plan *plan, size_t layer)
{
    const struct sdp_layer_plan *l = plan->layers[layer];
    return layer < plan->offloaded && l->layer->output >= 0 && !plan->graph->layers[layer + 1].is_loss &&
           l->backward[l->layer->output].kind != SDP_PLACE_OUTPUT;
}

size_t sdp_plan_offload_host_bytes(const struct sdp_plan *plan)
{
    size_t sum = 0;
    for (size_t l = 0; l < plan->offloaded; l++)
        sum += sdp_round_up(sdp_plan_saved_bytes(plan, l), 4096) +
               (sdp_plan_offloads_boundary(plan, l) ? sdp_round_up(sdp_plan_boundary_bytes(plan), 4096) : 0);
    return sum * plan->ranks * plan->group;
}

static size_t accumulator_bytes(const struct sdp_plan *plan, size_t ranks)
{
    size_t shared = 0, own = 0;
    for (size_t s = 0; s < plan->graph->storage_count; s++) {
        size_t bytes = sdp_round_up(plan->layout->storages[s].count * sizeof(float), 256);
        if (plan->own_accumulator[s])
            own += bytes * ranks;
        else
            shared = SDP_MAX(shared, bytes);
    }
    return shared + own;
}

static void lay_out_slots(const struct sdp_plan *plan, size_t ranks, struct sdp_device_layout *out)
{
    for (size_t c = 0; c < plan->class_count; c++) {
        const struct sdp_storage_class *class = &plan->classes[c];
        size_t element = sdp_dtype_size(plan->compute);
        if (plan->cuda && plan->compute == SDP_FP32)
            element += 4; /* the weights and remainders as delivered */
        out->weights += class->weight_slots * sdp_round_up(class->count * element, 4096);
        out->gradients += class->gradient_slots * ranks *
                          sdp_round_up(class->count * sdp_dtype_size(plan->gradient), 4096);
        out->resident += class->resident * (2 * sdp_round_up(class->count * 2, 4096) +
                                            2 * sdp_round_up(class->count * 4, 4096));
    }
}

/* A sum for every segment of a chunk's blocks: codelets/update/adamw_cuda.h. */
static size_t norm_scratch(const struct sdp_state_storage *storage)
{
    return (storage->count / SDP_NORM_SEGMENT + storage->block_count + 1) * sizeof(double);
}

void sdp_plan_device_layout(const struct sdp_plan *plan, size_t device, struct sdp_device_layout *out)
{
    size_t ranks = ranks_of(plan, device), units = ranks * plan->group;
    size_t layers = plan->graph->layer_count, boundary = sdp_plan_boundary_bytes(plan), scratch = 0;
    bool offloaded_boundary = false;
    memset(out, 0, sizeof *out);
    lay_out_slots(plan, ranks, out);
    if (plan->accumulator)
        out->accumulators = accumulator_bytes(plan, ranks);
    out->boundary_gradients = units * boundary;
    for (size_t l = 0; l < layers; l++) {
        const struct sdp_layer_plan *layer = plan->layers[l];
        bool offload = sdp_plan_offloads_boundary(plan, l);
        offloaded_boundary |= offload;
        out->boundaries += layer->layer->output >= 0 && !offload ? units * boundary : 0;
        out->saved += l >= plan->offloaded ? units * sdp_plan_saved_bytes(plan, l) : 0;
        scratch = SDP_MAX(scratch, SDP_MAX(layer->forward_scratch, layer->backward_scratch));
    }
    for (size_t s = 0; plan->cuda && s < plan->graph->storage_count; s++)
        if (plan->resident[s])
            scratch = SDP_MAX(scratch, norm_scratch(&plan->layout->storages[s]));
    out->offload = SDP_OFFLOAD_SLOTS * sdp_plan_offloaded_saved_bytes(plan) +
                   (offloaded_boundary ? (units + SDP_OFFLOAD_SLOTS) * boundary : 0);
    /* A GPU runs one layer at a time; on the host each core may. */
    out->scratch = sdp_round_up(scratch, 4096) * (plan->cuda ? 1 : plan->cores);
    out->workspace = plan->cuda ? BLAS_WORKSPACE : 0;
}

static void add_item(struct sdp_plan *plan, const char *name, size_t bytes, bool device)
{
    if (!bytes)
        return;
    plan->items = sdp_xrealloc(plan->items, (plan->item_count + 1) * sizeof *plan->items);
    plan->items[plan->item_count++] = (struct sdp_memory_item){name, bytes, device};
    *(device ? &plan->device_bytes : &plan->host_bytes) += bytes;
}

static size_t waiting_bytes(const struct sdp_plan *plan)
{
    size_t sum = 0;
    for (size_t s = 0; plan->two_phase && s < plan->graph->storage_count; s++)
        if (!plan->resident[s])
            sum += sdp_round_up(plan->layout->storages[s].count * sdp_dtype_size(plan->reduced), 4096);
    return sum;
}

static size_t landing_bytes(const struct sdp_plan *plan)
{
    size_t sum = 0;
    for (size_t c = 0; c < plan->class_count; c++)
        sum += plan->classes[c].gradient_slots * plan->ranks *
               sdp_round_up(plan->classes[c].count * sdp_dtype_size(plan->gradient), 4096);
    return sum;
}

void sdpi_plan_memory(struct sdp_plan *plan)
{
    struct sdp_device_layout most = {0}, layout;
    for (size_t d = 0; d < plan->device_count; d++) {
        sdp_plan_device_layout(plan, d, &layout);
        if (layout.boundary_gradients >= most.boundary_gradients)
            most = layout;
    }
    bool device = plan->cuda;
    plan->item_count = 0;
    plan->host_bytes = plan->device_bytes = 0;
    add_item(plan, "weights, remainders, moments", sdp_host_state_bytes(plan->graph), false);
    add_item(plan, "gradients landing", landing_bytes(plan), false);
    add_item(plan, "gradients waiting for the norm", waiting_bytes(plan), false);
    add_item(plan, "offloaded activations", sdp_plan_offload_host_bytes(plan), false);
    add_item(plan, "batches", SDP_STEPS_IN_FLIGHT * plan->ranks * plan->micro_batches *
             sdp_round_up(sdp_batch_elements(plan->tokens) * 4, 4096), false);
    add_item(plan, "resident weights, remainders, moments", most.resident, device);
    add_item(plan, "layer slots", most.weights, device);
    if (device)
        add_item(plan, "gradient slots", most.gradients, device);
    add_item(plan, "gradient accumulators", most.accumulators, device);
    add_item(plan, "boundary activations", most.boundaries, device);
    add_item(plan, "boundary gradients", most.boundary_gradients, device);
    add_item(plan, "kept activations", most.saved, device);
    add_item(plan, "slots of offloaded activations", most.offload, device);
    add_item(plan, "scratch of a layer", most.scratch, device);
    add_item(plan, "BLAS workspace", most.workspace, device);
}

void sdpi_plan_excess(const struct sdp_plan *plan, size_t *device, size_t *host)
{
    size_t need = plan->device_bytes + CUDA_RESERVE, have = sdpi_plan_host_memory(plan) / 10 * 9;
    *device = plan->cuda && need > plan->device_available ? need - plan->device_available : 0;
    *host = plan->host_bytes > have ? plan->host_bytes - have : 0;
}

enum sdp_status sdp_plan_check_fits(const struct sdp_plan *plan, struct sdp_error *err)
{
    size_t device, host;
    char need[32], have[32];
    sdpi_plan_excess(plan, &device, &host);
    if (!device && !host)
        return SDP_OK;
    sdp_format_bytes(device ? plan->device_bytes + CUDA_RESERVE : plan->host_bytes, need);
    sdp_format_bytes(device ? plan->device_available : sdpi_plan_host_memory(plan) / 10 * 9, have);
    return sdp_fail_at(err, SDP_INPUT, plan->job->path, device ? "/runtime/gpu_memory" : "/runtime/host_memory", 0, 0,
                       "the run needs %s of %s memory and %s may be used; lower train.tokens_per_step, "
                       "data.sequence_length, runtime.micro_batch or runtime.window (`slidedp plan` lists every item)",
                       need, device ? "GPU" : "host", have);
}
