/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The step-time model; see step_time.h. */
#include "graph/step_time_internal.h"

#include "codelets/common/device_memory.h"

#include <stdlib.h>

/* Shares of the peak that long kernels sustain (measured on an H200: products 610 of 989 TFLOP/s under its power limit, deterministic
 * attention forward and backward together 400, elementwise kernels 3.6 of 4.8 TB/s). */
#define PRODUCT_SHARE 0.62
#define ATTENTION_SHARE 0.40
#define MEMORY_SHARE 0.75
#define LINK_SHARE 0.86 /* of a PCIe link's raw rate: 55 of 64 GB/s */

/* -- rates ------------------------------------------------------------------------------------ */

/* Dense bf16 FLOPs of a multiprocessor and cycle, with fp32 sums. */
static double flops_per_cycle(int major, int minor)
{
    if (major == 8)
        return minor == 0 ? 2048 : 1024;
    return major >= 9 ? 4096 : 512;
}

void sdp_rates_default(const struct sdp_plan *plan, struct sdp_rates *out)
{
    /* Host: 132 to 150 GB/s of updates on 16 cores of a server, 28 GB/s on one, as measured; fewer cores have less. */
    double cores = (double)plan->cores;
    struct sdp_cuda_info info;
    *out = (struct sdp_rates){.product = 60e9 * cores, .attention = 30e9 * cores, .device_memory = 10e9 * cores,
                              .link_in = 10e9 * cores, .link_out = 10e9 * cores,
                              .host_memory = SDP_MIN(28e9 * cores, 140e9), .update = SDP_MIN(28e9, 140e9 / SDP_MIN(cores, 8))};
    if (!plan->cuda || sdp_cuda_device_info(0, &info, NULL) != SDP_OK)
        return;
    double peak = (double)info.multiprocessors * info.clock_hz * flops_per_cycle(info.major, info.minor);
    if (plan->compute == SDP_FP32)
        peak /= 16; /* without the matrix units */
    out->product = PRODUCT_SHARE * peak;
    out->attention = ATTENTION_SHARE * peak;
    out->device_memory = MEMORY_SHARE * info.memory_bytes_per_s;
    out->link_in = out->link_out = LINK_SHARE * info.link_bytes_per_s;
}

/* -- compute ------------------------------------------------------------------------------------ */

/* Bytes an operation reads and writes in its forward pass. */
static double op_bytes(const struct sdp_layer_plan *plan, size_t o)
{
    const struct sdp_layer_op *op = &plan->layer->ops[o];
    double cols = 0;
    for (size_t i = 0; i < op->node.input_count; i++)
        cols += (double)op->node.input_cols[i];
    for (size_t i = 0; i < op->node.output_count; i++)
        cols += (double)op->node.output_cols[i];
    return cols * (double)plan->tokens * (double)sdp_dtype_size(plan->dtype);
}

static double op_seconds(const struct sdp_layer_plan *plan, const struct sdp_rates *rates, size_t o, bool backward)
{
    const struct sdp_op_node *node = &plan->layer->ops[o].node;
    double flops = node->op->flops(node, plan->tokens, plan->sequence_length, backward);
    if (flops > 0)
        return flops / (node->weight_count ? rates->product : rates->attention);
    return op_bytes(plan, o) * (backward ? 1.5 : 1.0) / rates->device_memory;
}

/* One micro-batch. A loss layer does all its work in the backward visit. */
static struct sdpi_layer_time layer_seconds(const struct sdp_layer_plan *plan, const struct sdp_rates *rates)
{
    struct sdpi_layer_time time = {0, 0, 0};
    for (size_t o = 0; o < plan->layer->op_count; o++) {
        double forward = op_seconds(plan, rates, o, false);
        *(plan->layer->is_loss ? &time.backward : &time.forward) += forward;
        time.backward += op_seconds(plan, rates, o, true);
        if (plan->recompute[o] && !plan->layer->is_loss)
            time.recompute += forward;
    }
    return time;
}

/* Ranks of the device that has the most. */
double sdpi_time_most_ranks(const struct sdp_plan *plan)
{
    size_t ranks = 0;
    for (size_t d = 0; d < plan->device_count; d++)
        ranks = SDP_MAX(ranks, plan->first_rank[d + 1] - plan->first_rank[d]);
    return (double)ranks;
}

/* Of every layer; layers of one plan follow one another, so each is estimated once. [new] */
static struct sdpi_layer_time *layer_times(const struct sdp_plan *plan)
{
    struct sdpi_layer_time *times = sdp_xcalloc(plan->graph->layer_count, sizeof *times);
    for (size_t l = 0; l < plan->graph->layer_count; l++)
        times[l] = l && plan->layers[l] == plan->layers[l - 1] ? times[l - 1]
                                                               : layer_seconds(plan->layers[l], &plan->rates);
    return times;
}

static void predict_compute(const struct sdp_plan *plan, const struct sdpi_layer_time *layers, struct sdp_step_time *t)
{
    double times = sdpi_time_most_ranks(plan) * (double)plan->micro_batches;
    for (size_t l = 0; l < plan->graph->layer_count; l++) {
        t->forward += times * layers[l].forward;
        t->backward += times * layers[l].backward;
        t->recompute += times * layers[l].recompute;
    }
    for (size_t s = 0; s < plan->graph->storage_count; s++)
        if (plan->resident[s])
            t->device_update += (SDP_UPDATE_BYTES + 2) * (double)plan->layout->storages[s].count / plan->rates.device_memory;
    t->compute = t->forward + t->backward + t->recompute + t->device_update;
}

/* -- copies and updates -------------------------------------------------------------------------- */

double sdpi_time_delivered_bytes(const struct sdp_plan *plan, const struct sdp_visit *visit)
{
    size_t s = plan->graph->layers[visit->layer].storage;
    return visit->first_of_tenure ? (double)plan->layout->storages[s].count * (plan->compute == SDP_FP32 ? 4 : 2) : 0;
}

double sdpi_time_drained_bytes(const struct sdp_plan *plan, const struct sdp_visit *visit)
{
    size_t s = plan->graph->layers[visit->layer].storage;
    if (!plan->cuda || !visit->backward || !visit->last_gradient || plan->resident[s])
        return 0; /* CPU ranks read and write memory themselves */
    return (double)plan->layout->storages[s].count * (double)sdp_dtype_size(plan->gradient) * sdpi_time_most_ranks(plan);
}

/* Bytes that a visit of an offloaded layer stores or fetches. */
double sdpi_time_offloaded_bytes(const struct sdp_plan *plan, const struct sdp_visit *visit)
{
    double units = sdpi_time_most_ranks(plan) * (double)plan->group;
    if (visit->layer >= plan->offloaded)
        return 0;
    return units * (double)(sdp_plan_saved_bytes(plan, visit->layer) +
                            (sdp_plan_offloads_boundary(plan, visit->layer) ? sdp_plan_boundary_bytes(plan) : 0));
}

static void predict_copies(const struct sdp_plan *plan, struct sdp_step_time *t)
{
    for (size_t v = 0; v < plan->visit_count; v++) {
        const struct sdp_visit *visit = &plan->visits[v];
        t->in_bytes += sdpi_time_delivered_bytes(plan, visit);
        t->out_bytes += sdpi_time_drained_bytes(plan, visit);
        *(visit->backward ? &t->in_bytes : &t->out_bytes) += sdpi_time_offloaded_bytes(plan, visit);
    }
    t->link_in = t->in_bytes / plan->rates.link_in;
    t->link_out = t->out_bytes / plan->rates.link_out;
}

double sdpi_time_streamed_elements(const struct sdp_plan *plan)
{
    double sum = 0;
    for (size_t s = 0; s < plan->graph->storage_count; s++)
        if (!plan->resident[s])
            sum += (double)plan->layout->storages[s].count;
    return sum;
}

static void predict_updates(const struct sdp_plan *plan, struct sdp_step_time *t)
{
    size_t busy = plan->cuda ? 3 * plan->device_count + 1 : 0;
    double cores = (double)(plan->cores > busy ? plan->cores - busy : 1), devices = (double)plan->device_count;
    double bytes = sdpi_time_streamed_elements(plan) *
                   (SDP_UPDATE_BYTES + (double)sdp_dtype_size(plan->gradient) * (double)(plan->ranks - 1));
    t->host_bytes = bytes + devices * (t->in_bytes + t->out_bytes);
    t->host_memory = t->host_bytes / plan->rates.host_memory;
    t->host_update = SDP_MAX(bytes / (cores * plan->rates.update), bytes / plan->rates.host_memory);
}

void sdp_step_time_predict(const struct sdp_plan *plan, struct sdp_step_time *out)
{
    struct sdpi_layer_time *layers = layer_times(plan);
    memset(out, 0, sizeof *out);
    predict_compute(plan, layers, out);
    predict_copies(plan, out);
    predict_updates(plan, out);
    if (plan->cuda)
        sdpi_time_replay(plan, layers, out);
    else { /* the cores do all of it one after another */
        out->exposed_update = out->host_update;
        out->exposed_delivery = out->link_in;
        out->step = out->compute + out->exposed_update + out->exposed_delivery;
    }
    free(layers);
}

/* -- JSON ----------------------------------------------------------------------------------------------- */

json_t *sdp_step_time_dump(const struct sdp_step_time *t)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "forward", t->forward,
                     "backward", t->backward, "recompute", t->recompute, "device_update", t->device_update, "compute",
                     t->compute, "link_in", t->link_in, "link_out", t->link_out, "host_update", t->host_update,
                     "host_memory", t->host_memory, "exposed_update", t->exposed_update, "exposed_delivery",
                     t->exposed_delivery, "step", t->step, "host_bytes", t->host_bytes, "in_bytes", t->in_bytes,
                     "out_bytes", t->out_bytes);
}

json_t *sdp_rates_dump(const struct sdp_rates *r)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "product", r->product, "attention", r->attention,
                     "device_memory", r->device_memory, "link_in", r->link_in, "link_out", r->link_out, "host_memory",
                     r->host_memory, "update", r->update);
}
