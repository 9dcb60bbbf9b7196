/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pipeline of the step-time model: some steps' visits are replayed against four clocks (kernels, the link's two
 * directions, the host's cores), until a step is like the one before. What a visit waits for is exposed. */
#include "graph/step_time_internal.h"

#include <stdlib.h>

#define SHARED_LINK 0.7 /* of a link's rate is left beside updates that use all of the host's memory bandwidth */
#define REPLAYED_STEPS 3 /* the last one is in the steady state */

/* When each resource is free again, and what the next tasks wait for. Seconds. */
struct replay {
    const struct sdp_plan *plan;
    const struct sdpi_layer_time *layers;
    double compute, in, out, update;
    double *updated;        /* per storage: its last update's end */
    double *arrived;        /* per tenure */
    size_t *tenure_count, *drain_count; /* per class */
    double **tenure_end, **drain_end;   /* per class: rings of slots */
    double device_update_rate, update_rate; /* bytes/s */
    double exposed_update, exposed_delivery;
};

/* A copy beside updates is slower: both use the host's memory. */
static double copy_seconds(const struct replay *r, double start, double bytes, double rate)
{
    return bytes / rate / (r->update > start ? SHARED_LINK : 1.0);
}

/* Start and end of a delivery; *for_update: it waited for one longer than for the link. */
static double deliver(struct replay *r, const struct sdp_visit *visit, double bytes, bool *for_update)
{
    size_t s = r->plan->graph->layers[visit->layer].storage, c = r->plan->class_of[s];
    double *slot = &r->tenure_end[c][r->tenure_count[c]++ % r->plan->classes[c].weight_slots];
    double link = SDP_MAX(r->in, *slot), start = SDP_MAX(link, r->updated[s]);
    *for_update = start > link;
    r->in = start + copy_seconds(r, start, bytes, r->plan->rates.link_in);
    return r->in;
}

/* After the last backward visit of a storage: on the device, or drained and updated by the host. */
static void finish_gradient(struct replay *r, const struct sdp_visit *visit)
{
    const struct sdp_plan *plan = r->plan;
    size_t s = plan->graph->layers[visit->layer].storage, c = plan->class_of[s];
    double count = (double)plan->layout->storages[s].count;
    if (plan->resident[s]) {
        r->compute += (SDP_UPDATE_BYTES + 2) * count / r->device_update_rate;
        return;
    }
    double start = SDP_MAX(r->out, r->compute);
    r->out = start + copy_seconds(r, start, sdpi_time_drained_bytes(plan, visit), plan->rates.link_out);
    double *slot = &r->drain_end[c][r->drain_count[c]++ % plan->classes[c].gradient_slots];
    *slot = r->out;
    if (plan->two_phase)
        return; /* hold_updates() */
    r->update = SDP_MAX(r->update, r->out) + SDP_UPDATE_BYTES * count / r->update_rate;
    r->updated[s] = *slot = r->update;
}

static double visit_seconds(const struct replay *r, const struct sdp_visit *visit)
{
    const struct sdpi_layer_time *layer = &r->layers[visit->layer];
    return sdpi_time_most_ranks(r->plan) * (double)r->plan->group * (visit->backward ? layer->backward + layer->recompute : layer->forward);
}

static void replay_visit(struct replay *r, const struct sdp_visit *visit)
{
    const struct sdp_plan *plan = r->plan;
    size_t s = plan->graph->layers[visit->layer].storage, c = plan->class_of[s];
    bool for_update = false, drains = visit->backward && visit->last_gradient && !plan->resident[s];
    double moved = sdpi_time_offloaded_bytes(plan, visit), begin = r->compute, slot = 0;
    if (visit->first_of_tenure)
        r->arrived[visit->tenure] = deliver(r, visit, sdpi_time_delivered_bytes(plan, visit), &for_update);
    if (visit->backward && moved > 0)
        r->in += copy_seconds(r, r->in, moved, plan->rates.link_in);
    if (visit->tenure != SIZE_MAX)
        begin = SDP_MAX(begin, r->arrived[visit->tenure]);
    if (drains)
        slot = r->drain_end[c][r->drain_count[c] % plan->classes[c].gradient_slots];
    *(for_update ? &r->exposed_update : &r->exposed_delivery) += begin - r->compute;
    r->exposed_update += SDP_MAX(0.0, slot - begin);
    r->compute = SDP_MAX(begin, slot) + visit_seconds(r, visit);
    if (visit->last_of_tenure)
        r->tenure_end[c][(r->tenure_count[c] - 1) % plan->classes[c].weight_slots] = r->compute;
    if (!visit->backward && moved > 0)
        r->out = SDP_MAX(r->out, r->compute) + copy_seconds(r, r->compute, moved, plan->rates.link_out);
    if (visit->backward && visit->last_gradient)
        finish_gradient(r, visit);
}

static void start_replay(struct replay *r, const struct sdp_step_time *t)
{
    const struct sdp_plan *plan = r->plan;
    double copies = (double)plan->device_count * (t->in_bytes + t->out_bytes) / SDP_MAX(t->compute, 1e-9);
    double updates = SDP_MAX(t->host_bytes - (double)plan->device_count * (t->in_bytes + t->out_bytes), 1.0);
    double most = updates / SDP_MAX(t->host_update, 1e-9); /* what the cores do */
    r->device_update_rate = plan->rates.device_memory;
    r->update_rate = SDP_MIN(most, SDP_MAX(plan->rates.host_memory - copies, 0.3 * plan->rates.host_memory)) *
                     SDP_UPDATE_BYTES * sdpi_time_streamed_elements(plan) / updates;
    r->updated = sdp_xcalloc(plan->graph->storage_count, sizeof *r->updated);
    r->arrived = sdp_xcalloc(plan->visit_count + 1, sizeof *r->arrived);
    r->tenure_count = sdp_xcalloc(plan->class_count, sizeof *r->tenure_count);
    r->drain_count = sdp_xcalloc(plan->class_count, sizeof *r->drain_count);
    r->tenure_end = sdp_xcalloc(plan->class_count, sizeof *r->tenure_end);
    r->drain_end = sdp_xcalloc(plan->class_count, sizeof *r->drain_end);
    for (size_t c = 0; c < plan->class_count; c++) {
        r->tenure_end[c] = sdp_xcalloc(plan->classes[c].weight_slots + 1, sizeof **r->tenure_end);
        r->drain_end[c] = sdp_xcalloc(plan->classes[c].gradient_slots + 1, sizeof **r->drain_end);
    }
}

static void end_replay(struct replay *r)
{
    for (size_t c = 0; c < r->plan->class_count; c++) {
        free(r->tenure_end[c]);
        free(r->drain_end[c]);
    }
    free(r->updated);
    free(r->arrived);
    free(r->tenure_count);
    free(r->drain_count);
    free(r->tenure_end);
    free(r->drain_end);
}

/* With clipping no update begins before the backward pass has ended. */
static void hold_updates(struct replay *r, double backward_end)
{
    const struct sdp_plan *plan = r->plan;
    double end = backward_end;
    for (size_t l = 0; l < plan->graph->layer_count; l++) { /* in the order in which the next step wants them */
        size_t s = plan->graph->layers[l].storage;
        if (plan->resident[s] || r->updated[s] > backward_end) /* shared with a layer before */
            continue;
        end += SDP_UPDATE_BYTES * (double)plan->layout->storages[s].count / r->update_rate;
        r->updated[s] = end;
    }
    r->update = end;
}

/* Visits in their order; each waits for its delivery, which waits for the link, a slot and the storage's update. */
void sdpi_time_replay(const struct sdp_plan *plan, const struct sdpi_layer_time *layers, struct sdp_step_time *t)
{
    struct replay r = {.plan = plan, .layers = layers};
    double begin = 0;
    start_replay(&r, t);
    for (int step = 0; step < REPLAYED_STEPS; step++) {
        begin = r.compute;
        r.exposed_update = r.exposed_delivery = 0;
        for (size_t v = 0; v < plan->visit_count; v++)
            replay_visit(&r, &plan->visits[v]);
        if (plan->two_phase)
            hold_updates(&r, r.compute);
    }
    t->exposed_update = r.exposed_update;
    t->exposed_delivery = r.exposed_delivery;
    t->step = r.compute - begin;
    end_replay(&r);
}
