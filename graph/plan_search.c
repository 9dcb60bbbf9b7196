/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The free choices of a plan. For every micro-batch, group and level of saved activations that the job allows: what
 * fits, filled up with resident state or with more saved activations; the fastest by the step-time model wins.
 *
 * Smaller groups need less memory for activations, so that nothing is recomputed, but an fp32 accumulator for every
 * parameter and one more delivery a group. Resident state saves updates on the host, deliveries and drains. The first
 * layers are resident first: their updates are a step's last and their weights the next step's first. */
#include "graph/plan_internal.h"

#include <stdlib.h>

#define TARGET_TOKENS_CUDA ((size_t)16384) /* of a micro-batch: large enough for the products */
#define TARGET_TOKENS_CPU ((size_t)1024)   /* small enough for the caches */
#define WORTH 0.995 /* a choice that uses more must be faster than this part of the time */

struct choice {
    size_t micro_batch, group;
    size_t level, upgraded; /* layers 0 .. upgraded - 1 are one level higher */
    size_t offloaded, resident;
    double seconds;
    size_t device_excess, host_excess; /* bytes beyond what there is */
    bool fits, found;
};

/* -- layer plans ---------------------------------------------------------------------------- */

void sdpi_plan_destroy_layers(struct sdp_plan *plan)
{
    for (size_t i = 0; i < plan->owned_layer_count; i++)
        sdp_layer_plan_destroy(plan->owned_layers[i]);
    free(plan->owned_layers);
    plan->owned_layers = NULL;
    plan->owned_layer_count = 0;
}

/* The plan of a layer at a level and the current micro-batch; made once for its template. */
static enum sdp_status layer_plan(struct sdp_plan *plan, size_t l, size_t level, struct sdp_error *err)
{
    const struct sdp_layer *layer = &plan->graph->layers[l];
    for (size_t i = 0; i < plan->owned_layer_count; i++) {
        struct sdp_layer_plan *known = plan->owned_layers[i];
        if (known->tokens == plan->tokens && known->level == SDP_MIN(level, known->levels - 1) &&
            !strcmp(known->layer->template_name, layer->template_name)) {
            plan->layers[l] = known;
            return SDP_OK;
        }
    }
    struct sdp_layer_plan *made = NULL;
    enum sdp_status rc = sdp_layer_plan_create(layer, plan->tokens, plan->sequence_length, plan->compute, plan->cuda,
                                               level, &made, err);
    if (rc)
        return rc;
    plan->owned_layers = sdp_xrealloc(plan->owned_layers, (plan->owned_layer_count + 1) * sizeof *plan->owned_layers);
    plan->owned_layers[plan->owned_layer_count++] = made;
    plan->layers[l] = made;
    return SDP_OK;
}

/* -- one choice ----------------------------------------------------------------------------------- */

static size_t level_of(const struct choice *c, size_t layer)
{
    return layer < c->upgraded && c->level != SDP_LEVEL_ALL ? c->level + 1 : c->level;
}

static void choose_resident(struct sdp_plan *plan, size_t count)
{
    memset(plan->resident, 0, plan->graph->storage_count * sizeof *plan->resident);
    for (size_t l = 0; l < plan->graph->layer_count && count; l++) {
        size_t s = plan->graph->layers[l].storage;
        count -= !plan->resident[s];
        plan->resident[s] = true;
    }
}

/* Makes the plan follow a choice, and says whether it fits and how long a step takes. */
static enum sdp_status apply(struct sdp_plan *plan, struct choice *c, struct sdp_error *err)
{
    plan->micro_batch = c->micro_batch;
    plan->micro_batches = plan->sequences_per_step / plan->ranks / c->micro_batch;
    plan->tokens = c->micro_batch * plan->sequence_length;
    plan->group = c->group;
    plan->groups = plan->micro_batches / c->group;
    plan->offloaded = c->offloaded;
    for (size_t l = 0; l < plan->graph->layer_count; l++) {
        enum sdp_status rc = layer_plan(plan, l, level_of(c, l), err);
        if (rc)
            return rc;
        plan->levels[l] = plan->layers[l]->level;
    }
    choose_resident(plan, c->resident);
    sdpi_plan_visits(plan);
    sdpi_plan_memory(plan);
    sdp_step_time_predict(plan, &plan->time);
    sdpi_plan_excess(plan, &c->device_excess, &c->host_excess);
    c->fits = !c->device_excess && !c->host_excess;
    c->seconds = plan->time.step;
    c->found = true;
    return SDP_OK;
}

/* Largest value of *number in [low, high] with which the choice fits; `low` fits. */
static enum sdp_status largest_fitting(struct sdp_plan *plan, struct choice *c, size_t *number, size_t low, size_t high,
                                       struct sdp_error *err)
{
    while (low < high) {
        *number = low + (high - low + 1) / 2;
        enum sdp_status rc = apply(plan, c, err);
        if (rc)
            return rc;
        if (c->fits)
            low = *number;
        else
            high = *number - 1;
    }
    *number = low;
    return apply(plan, c, err);
}

/* Of two that do not fit, the one that lacks less. */
static bool better(const struct choice *a, const struct choice *b)
{
    if (!b->found || a->fits != b->fits)
        return !b->found || a->fits;
    if (!a->fits)
        return a->device_excess + a->host_excess < b->device_excess + b->host_excess;
    return a->seconds < b->seconds * WORTH;
}

static void offer(const struct choice *c, struct choice *best)
{
    if (c->found && better(c, best))
        *best = *c;
}

/* -- what may be chosen ------------------------------------------------------------------------------- */

/* Resident state: one device and rank, gradients summed on it. */
static size_t most_resident(const struct sdp_plan *plan)
{
    size_t most = plan->graph->storage_count;
    const struct sdp_job *job = plan->job;
    if (!plan->cuda || plan->ranks != 1 || !plan->accumulator || job->runtime.gpu_state == 0)
        return 0;
    if (job->runtime.gpu_state == SDP_AUTO)
        return most;
    size_t bytes = 0, count = 0;
    bool *seen = sdp_xcalloc(most, sizeof *seen);
    for (size_t l = 0; l < plan->graph->layer_count; l++) {
        size_t s = plan->graph->layers[l].storage;
        bytes += seen[s] ? 0 : plan->layout->storages[s].count * 12;
        if (bytes > job->runtime.gpu_state)
            break;
        count += !seen[s];
        seen[s] = true;
    }
    free(seen);
    return count;
}

/* Fewest resident storages that are worth it, of at most `most` that fit. */
static enum sdp_status fill_resident(struct sdp_plan *plan, struct choice *c, size_t most, struct choice *best,
                                     struct sdp_error *err)
{
    enum sdp_status rc = largest_fitting(plan, c, &c->resident, 0, most, err);
    size_t largest = c->resident;
    double fastest = c->seconds;
    for (size_t r = 0; !rc && r <= largest; r++) {
        c->resident = r;
        rc = apply(plan, c, err);
        if (!rc && c->fits && c->seconds <= fastest / WORTH)
            break;
    }
    if (!rc)
        offer(c, best);
    return rc;
}

/* A choice that fits without extras: filled up in both ways. */
static enum sdp_status fill(struct sdp_plan *plan, struct choice c, struct choice *best, struct sdp_error *err)
{
    size_t layers = plan->graph->layer_count;
    bool upgrade = plan->job->runtime.activations == SDP_ACTIVATIONS_AUTO && c.level != SDP_LEVEL_ALL;
    struct choice with = c;
    enum sdp_status rc = fill_resident(plan, &with, most_resident(plan), best, err);
    if (rc || !upgrade)
        return rc;
    with = c;
    rc = largest_fitting(plan, &with, &with.upgraded, 0, layers, err);
    return rc ? rc : fill_resident(plan, &with, most_resident(plan), best, err);
}

/* Fewest offloaded layers with which a choice fits the device; the host must have room for them. */
static enum sdp_status offload(struct sdp_plan *plan, struct choice c, struct choice *best, struct sdp_error *err)
{
    size_t low = 1, high = plan->graph->layer_count - 1;
    enum sdp_status rc = SDP_OK;
    while (!rc && low < high) {
        c.offloaded = low + (high - low) / 2;
        rc = apply(plan, &c, err);
        if (c.device_excess)
            low = c.offloaded + 1;
        else
            high = c.offloaded;
    }
    c.offloaded = high;
    if (!rc)
        rc = apply(plan, &c, err);
    if (!rc && c.fits)
        return fill(plan, c, best, err);
    if (!rc)
        offer(&c, best);
    return rc;
}

/* Highest level of any layer at the current micro-batch. */
static enum sdp_status highest_level(struct sdp_plan *plan, struct choice *c, size_t *level, struct sdp_error *err)
{
    c->level = SDP_LEVEL_ALL;
    enum sdp_status rc = apply(plan, c, err);
    *level = 0;
    for (size_t l = 0; !rc && l < plan->graph->layer_count; l++)
        *level = SDP_MAX(*level, plan->layers[l]->levels - 1);
    return rc;
}

/* All levels of one micro-batch and group. Offloading is tried where the least level does not fit without it. */
static enum sdp_status try_levels(struct sdp_plan *plan, struct choice c, struct choice *best, struct sdp_error *err)
{
    enum sdp_activations wanted = plan->job->runtime.activations;
    size_t highest = 0, lowest = 0;
    enum sdp_status rc = highest_level(plan, &c, &highest, err);
    if (wanted == SDP_ACTIVATIONS_KEEP)
        lowest = highest;
    else if (wanted == SDP_ACTIVATIONS_SELECTIVE || wanted == SDP_ACTIVATIONS_OFFLOAD)
        lowest = highest = highest ? highest - 1 : 0;
    else if (wanted == SDP_ACTIVATIONS_RECOMPUTE)
        highest = 0;
    for (size_t level = highest + 1; !rc && level-- > lowest;) {
        c.level = level;
        c.upgraded = c.resident = 0;
        c.offloaded = wanted == SDP_ACTIVATIONS_OFFLOAD ? plan->graph->layer_count - 1 : 0;
        rc = apply(plan, &c, err);
        if (rc)
            break;
        if (c.fits)
            rc = fill(plan, c, best, err);
        else
            offer(&c, best);
        if (!rc && !c.fits && plan->cuda && level == lowest && wanted == SDP_ACTIVATIONS_AUTO)
            rc = offload(plan, c, best, err);
    }
    return rc;
}

static enum sdp_status try_groups(struct sdp_plan *plan, size_t micro_batch, struct choice *best, struct sdp_error *err)
{
    size_t micro_batches = plan->sequences_per_step / plan->ranks / micro_batch, wanted = plan->job->runtime.group;
    enum sdp_status rc = SDP_OK;
    if (wanted != SDP_AUTO && (wanted > micro_batches || micro_batches % wanted))
        return sdp_fail_at(err, SDP_INPUT, plan->job->path, "/runtime/group", 0, 0,
                           "is %zu; must divide the %zu micro-batches of a rank (of %zu sequences each)", wanted,
                           micro_batches, micro_batch);
    for (size_t group = micro_batches; !rc && group; group--) {
        struct choice c = {.micro_batch = micro_batch, .group = group};
        if (micro_batches % group || (wanted != SDP_AUTO && group != wanted))
            continue;
        rc = try_levels(plan, c, best, err);
        if (!plan->cuda && best->fits)
            break; /* host memory has no second level to make room for */
    }
    return rc;
}

enum sdp_status sdpi_plan_search(struct sdp_plan *plan, struct sdp_error *err)
{
    size_t n = plan->graph->storage_count, layers = plan->graph->layer_count;
    size_t per_rank = plan->sequences_per_step / plan->ranks, micro = plan->job->runtime.micro_batch;
    size_t target = plan->cuda ? TARGET_TOKENS_CUDA : TARGET_TOKENS_CPU;
    bool fixed = micro != SDP_AUTO;
    struct choice best = {0};
    enum sdp_status rc = SDP_OK;
    plan->layers = sdp_xcalloc(layers, sizeof *plan->layers);
    plan->levels = sdp_xcalloc(layers, sizeof *plan->levels);
    plan->resident = sdp_xcalloc(n, sizeof *plan->resident);
    plan->resident_slot = sdp_xcalloc(n, sizeof *plan->resident_slot);
    plan->own_accumulator = sdp_xcalloc(n, sizeof *plan->own_accumulator);
    if (!fixed)
        micro = sdpi_largest_divisor(per_rank, SDP_MAX(target / plan->sequence_length, (size_t)1));
    for (;;) { /* smaller micro-batches only where a larger one does not fit: products like it large */
        rc = try_groups(plan, micro, &best, err);
        if (rc || best.fits || fixed || micro == 1)
            break;
        micro = sdpi_largest_divisor(per_rank, micro - 1);
    }
    return rc ? rc : apply(plan, &best, err);
}
