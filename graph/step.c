/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One step as tasks. Order of submission is program order: group by group of micro-batches, visit by visit forward and
 * backward; after the last backward visit of a storage its drains and updates. */
#include "graph/step_internal.h"

/* -- the step --------------------------------------------------------------------------------------------- */

static enum sdp_status submit_planned_visit(struct sdp_engine *e, size_t step, const struct sdp_visit *plan,
                                            float loss_scale, const struct sdpi_batch_facts *facts, struct sdp_error *err)
{
    const struct sdp_layer *layer = &e->graph->layers[plan->layer];
    size_t storage = layer->storage, class = e->plan->class_of[storage];
    /* A gradient slot is filled by all visits, or, after an accumulator, by the last one alone. */
    if (plan->backward && !e->plan->resident[storage] && (e->plan->accumulator ? plan->last_gradient : plan->first_gradient))
        e->gradient_slot[storage] = e->gradients_taken[class]++ % e->plan->classes[class].gradient_slots;
    enum sdp_status rc = SDP_OK;
    for (size_t d = 0; !rc && d < e->plan->device_count; d++) {
        struct sdpi_visit v = {.engine = e, .device = &e->devices[d], .plan = plan, .layer = layer, .step = step,
                          .storage = storage, .class = class, .chunks = e->state->storages[storage].chunk_count,
                          .loss_scale = loss_scale, .facts = facts};
        rc = sdpi_submit_visit(&v, err);
    }
    if (!rc && plan->backward && plan->last_gradient && !(e->skip_update && !e->plan->two_phase))
        rc = sdpi_submit_tail(e, step, storage, plan->layer, err);
    return rc;
}

/* A forward pass of one group: the micro-batches 0 .. group - 1 of each rank, and their losses. */
enum sdp_status sdpi_submit_evaluation(struct sdp_engine *e, size_t step, const struct sdpi_batch_facts *facts,
                                       struct sdp_error *err)
{
    enum sdp_status rc = SDP_OK;
    e->step_order = e->order;
    for (size_t v = 0; !rc && v < e->plan->evaluation_count; v++)
        rc = submit_planned_visit(e, step, &e->plan->evaluation[v], 1, facts, err);
    return rc;
}

enum sdp_status sdpi_submit_step(struct sdp_engine *e, size_t step, size_t counted, const struct sdpi_batch_facts *facts,
                                 struct sdp_error *err)
{
    enum sdp_status rc = SDP_OK;
    double scale = 1.0 / (double)counted;
    e->step_order = e->order;
    e->ring[step % SDP_STEPS_IN_FLIGHT].device_norms = false;
    for (size_t v = 0; !rc && v < e->plan->visit_count; v++)
        rc = submit_planned_visit(e, step, &e->plan->visits[v], (float)scale, facts, err);
    if (!rc && e->plan->two_phase)
        rc = sdpi_submit_clip(e, step, !e->skip_update, err);
    if (!rc)
        rc = sdpi_submit_metrics(e, step, scale, err);
    return rc;
}
