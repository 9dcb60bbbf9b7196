/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What streams in which order: storages and their classes, the visits of a step, tenures of layer slots, accumulators. */
#include "graph/plan_internal.h"

#include <stdlib.h>

#define FEW_GRADIENTS 6

/* -- storages --------------------------------------------------------------------------- */

static bool same_layout(const struct sdp_state_storage *a, const struct sdp_state_storage *b)
{
    if (a->count != b->count || a->chunk_count != b->chunk_count)
        return false;
    for (size_t c = 0; c < a->chunk_count; c++)
        if (a->chunks[c].offset != b->chunks[c].offset || a->chunks[c].count != b->chunks[c].count)
            return false;
    return true;
}

enum sdp_status sdpi_plan_classify(struct sdp_plan *plan, struct sdp_error *err)
{
    size_t n = plan->graph->storage_count;
    const struct sdp_state_storage *storages = plan->layout->storages;
    plan->class_of = sdp_xcalloc(n, sizeof *plan->class_of);
    plan->classes = sdp_xcalloc(n, sizeof *plan->classes);
    for (size_t s = 0; s < n; s++) {
        size_t c = 0;
        while (c < plan->class_count && !same_layout(&storages[plan->classes[c].first], &storages[s]))
            c++;
        if (c == plan->class_count) {
            plan->classes[c] = (struct sdp_storage_class){.first = s, .count = storages[s].count,
                                                          .chunk_count = storages[s].chunk_count};
            plan->class_count++;
        }
        plan->classes[c].members++;
        plan->class_of[s] = c;
    }
    if (plan->class_count > 64)
        return sdp_fail(err, SDP_INPUT, "the model has %zu different layer layouts; at most 64 can be streamed",
                        plan->class_count);
    return SDP_OK;
}

/* -- visits ------------------------------------------------------------------------------ */

static bool backward_needs_weights(const struct sdp_layer_plan *plan)
{
    const struct sdp_layer *layer = plan->layer;
    for (size_t o = 0; o < layer->op_count; o++) {
        const struct sdp_op_node *node = &layer->ops[o].node;
        if (node->weight_count && (node->op->backward_needs_weights || plan->recompute[o] || node->op->is_loss))
            return true;
    }
    return false;
}

static bool has_weights(const struct sdp_layer *layer)
{
    for (size_t o = 0; o < layer->op_count; o++)
        if (layer->ops[o].node.weight_count)
            return true;
    return false;
}

static void add_visit(const struct sdp_plan *plan, size_t layer, bool backward, struct sdp_visit *visits, size_t *count)
{
    const struct sdp_layer *l = &plan->graph->layers[layer];
    struct sdp_visit visit = {.layer = layer, .backward = backward, .tenure = SIZE_MAX};
    visit.needs_weights = backward ? backward_needs_weights(plan->layers[layer]) : has_weights(l);
    visits[(*count)++] = visit;
}

/* Forward and backward of a group of micro-batches. */
static void add_group(struct sdp_plan *plan)
{
    size_t layers = plan->graph->layer_count;
    for (size_t l = 0; l < layers; l++)
        if (!plan->graph->layers[l].is_loss)
            add_visit(plan, l, false, plan->visits, &plan->visit_count);
    for (size_t l = layers; l-- > 0;)
        add_visit(plan, l, true, plan->visits, &plan->visit_count);
}

/* A storage stays in its slot from one visit to the next when no other storage of
 * its class is wanted in between: one delivery serves both. */
static void find_tenures(const struct sdp_plan *plan, struct sdp_visit *visits, size_t count)
{
    size_t *last = sdp_xcalloc(plan->class_count, sizeof *last); /* visit + 1 */
    size_t tenures = 0;
    for (size_t v = 0; v < count; v++) {
        struct sdp_visit *visit = &visits[v];
        size_t storage = plan->graph->layers[visit->layer].storage;
        size_t class = plan->class_of[storage];
        if (!visit->needs_weights || plan->resident[storage])
            continue;
        struct sdp_visit *before = last[class] ? &visits[last[class] - 1] : NULL;
        if (before && plan->graph->layers[before->layer].storage == storage) {
            before->last_of_tenure = false;
            visit->tenure = before->tenure;
        } else {
            visit->tenure = tenures++;
            visit->first_of_tenure = true;
        }
        visit->last_of_tenure = true;
        last[class] = v + 1;
    }
    free(last);
}

static void find_gradients(struct sdp_plan *plan)
{
    bool *seen = sdp_xcalloc(plan->graph->storage_count, sizeof *seen);
    for (size_t v = 0; v < plan->visit_count; v++) {
        size_t storage = plan->graph->layers[plan->visits[v].layer].storage;
        if (!plan->visits[v].backward)
            continue;
        plan->visits[v].first_gradient = !seen[storage];
        seen[storage] = true;
    }
    memset(seen, 0, plan->graph->storage_count * sizeof *seen);
    for (size_t v = plan->visit_count; v-- > 0;) {
        size_t storage = plan->graph->layers[plan->visits[v].layer].storage;
        if (!plan->visits[v].backward)
            continue;
        plan->visits[v].last_gradient = !seen[storage];
        seen[storage] = true;
    }
    free(seen);
}

static void list_visits(struct sdp_plan *plan)
{
    free(plan->visits);
    plan->visits = sdp_xcalloc(2 * plan->graph->layer_count * plan->groups, sizeof *plan->visits);
    plan->visit_count = 0;
    for (size_t g = 0; g < plan->groups; g++) {
        size_t first = plan->visit_count;
        add_group(plan);
        for (size_t v = first; v < plan->visit_count; v++)
            plan->visits[v].group = g;
    }
    find_tenures(plan, plan->visits, plan->visit_count);
    find_gradients(plan);
}

static void list_evaluation(struct sdp_plan *plan)
{
    free(plan->evaluation);
    plan->evaluation = sdp_xcalloc(plan->graph->layer_count, sizeof *plan->evaluation);
    plan->evaluation_count = 0;
    for (size_t l = 0; l < plan->graph->layer_count; l++)
        add_visit(plan, l, false, plan->evaluation, &plan->evaluation_count);
    find_tenures(plan, plan->evaluation, plan->evaluation_count);
}

/* -- accumulators and slots ------------------------------------------------------------------ */

/* A gradient that several visits add to, or that waits on the device for the norm, has an accumulator of its own;
 * all others share one. */
static void choose_accumulators(struct sdp_plan *plan)
{
    size_t n = plan->graph->storage_count;
    size_t *visits = sdp_xcalloc(n, sizeof *visits);
    for (size_t v = 0; v < plan->visit_count; v++)
        visits[plan->graph->layers[plan->visits[v].layer].storage] += plan->visits[v].backward;
    for (size_t s = 0; s < n; s++)
        plan->own_accumulator[s] = plan->accumulator && (visits[s] > 1 || (plan->resident[s] && plan->two_phase));
    free(visits);
}

/* Gradients of a class that may be on their way: a backward pass is faster than its updates where much of the state is
 * resident, and the more gradients can wait the less it does. A device with little memory keeps to few. */
static size_t landing_slots(const struct sdp_plan *plan, size_t bytes)
{
    size_t room = SDP_LANDING_BYTES;
    if (plan->cuda)
        room = SDP_MIN(room, plan->device_available / 32);
    return SDP_MAX(SDP_MIN(SDP_LANDING_BYTES / bytes, (size_t)FEW_GRADIENTS), SDP_MAX(room / bytes, (size_t)2));
}

static void choose_slots(struct sdp_plan *plan)
{
    plan->window = plan->job->runtime.window == SDP_AUTO ? 3 : plan->job->runtime.window;
    for (size_t c = 0; c < plan->class_count; c++)
        plan->classes[c].resident = 0;
    for (size_t s = 0; s < plan->graph->storage_count; s++)
        if (plan->resident[s])
            plan->resident_slot[s] = plan->classes[plan->class_of[s]].resident++;
    for (size_t c = 0; c < plan->class_count; c++) {
        struct sdp_storage_class *class = &plan->classes[c];
        size_t bytes = class->count * sdp_dtype_size(plan->gradient) * plan->ranks;
        size_t streamed = class->members - class->resident;
        class->weight_slots = SDP_MIN(plan->window, streamed);
        class->gradient_slots = SDP_MIN(landing_slots(plan, SDP_MAX(bytes, (size_t)1)), streamed);
        if (!plan->accumulator && plan->groups > 1) /* each gradient stays in its slot from group to group */
            class->gradient_slots = streamed;
    }
}

void sdpi_plan_visits(struct sdp_plan *plan)
{
    list_visits(plan);
    list_evaluation(plan);
    choose_accumulators(plan);
    choose_slots(plan);
}
