/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Choices and memory of a run; the parts are in plan_*.c. The order: devices and ranks, batch, dtypes, storages, then
 * what the search chooses. */
#include "graph/plan_internal.h"

#include "graph/base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_CHUNK ((size_t)32 << 20)

/* The metrics task reads one loss a rank and micro-batch, and a task has a limited number of buffers. */
static enum sdp_status check_micro_batches(const struct sdp_plan *plan, struct sdp_error *err)
{
    size_t losses = plan->ranks * plan->micro_batches;
    if (losses <= SDP_MAX_MICRO_BATCHES)
        return SDP_OK;
    return sdp_fail_at(err, SDP_INPUT, plan->job->path, "/train/tokens_per_step", 0, 0,
                       "makes %zu micro-batches a step over all ranks; at most %d are possible: raise "
                       "runtime.micro_batch or lower train.tokens_per_step", losses, SDP_MAX_MICRO_BATCHES);
}

static void count_tasks(struct sdp_plan *plan)
{
    struct sdp_task_counts *t = &plan->tasks;
    size_t per_visit = plan->ranks * plan->group;
    memset(t, 0, sizeof *t);
    for (size_t v = 0; v < plan->visit_count; v++) {
        const struct sdp_visit *visit = &plan->visits[v];
        size_t storage = plan->graph->layers[visit->layer].storage;
        size_t chunks = plan->layout->storages[storage].chunk_count;
        if (visit->first_of_tenure)
            t->deliver += chunks * plan->device_count;
        *(visit->backward ? &t->backward : &t->forward) += per_visit;
        if (!visit->backward || !visit->last_gradient)
            continue;
        t->drain += plan->cuda && !plan->resident[storage] ? chunks * plan->ranks : 0;
        t->reduce += plan->two_phase ? chunks : 0;
        t->update += chunks;
    }
    for (size_t l = 0; l < plan->offloaded; l++) {
        size_t areas = (size_t)(sdp_plan_saved_bytes(plan, l) > 0) + sdp_plan_offloads_boundary(plan, l);
        t->store += areas * per_visit * plan->groups;
        t->fetch = t->store;
    }
    t->clip = plan->two_phase;
    t->metrics = 1;
}

enum sdp_status sdp_plan_create(const struct sdp_job *job, const struct sdp_model_graph *graph, size_t sequences,
                                struct sdp_plan **out, struct sdp_error *err)
{
    struct sdp_plan *plan = sdp_xcalloc(1, sizeof *plan);
    plan->job = job;
    plan->graph = graph;
    plan->chunk_bytes = job->runtime.chunk == SDP_AUTO ? DEFAULT_CHUNK : job->runtime.chunk;
    enum sdp_status rc = sdpi_plan_devices(plan, err);
    if (!rc)
        rc = sdpi_plan_check_devices(plan, err);
    if (!rc)
        rc = sdpi_plan_batch(plan, sequences, err);
    if (!rc)
        rc = sdpi_plan_dtypes(plan, err);
    if (!rc)
        rc = sdp_host_state_layout(graph, plan->chunk_bytes, &plan->layout, err);
    if (!rc)
        rc = sdpi_plan_classify(plan, err);
    if (!rc) {
        plan->device_available = sdpi_plan_device_memory(plan);
        sdp_rates_default(plan, &plan->rates);
        rc = sdpi_plan_search(plan, err);
    }
    if (!rc)
        rc = check_micro_batches(plan, err);
    if (rc) {
        sdp_plan_destroy(plan);
        return rc;
    }
    count_tasks(plan);
    plan->flops = sdp_model_graph_flops(graph, plan->sequences_per_step * plan->sequence_length,
                                        plan->sequence_length);
    *out = plan;
    return SDP_OK;
}

void sdp_plan_destroy(struct sdp_plan *plan)
{
    if (!plan)
        return;
    sdpi_plan_destroy_layers(plan);
    sdp_host_state_destroy(plan->layout);
    free(plan->class_of);
    free(plan->classes);
    free(plan->layers);
    free(plan->levels);
    free(plan->resident);
    free(plan->resident_slot);
    free(plan->own_accumulator);
    free(plan->visits);
    free(plan->evaluation);
    free(plan->items);
    free(plan);
}

/* -- plan.json --------------------------------------------------------------------------------------- */

static json_t *dump_items(const struct sdp_plan *plan, bool device)
{
    json_t *object = json_object();
    for (size_t i = 0; i < plan->item_count; i++)
        if (plan->items[i].device == device)
            json_object_set_new(object, plan->items[i].name, json_integer((json_int_t)plan->items[i].bytes));
    return object;
}

static json_t *dump_levels(const struct sdp_plan *plan)
{
    json_t *array = json_array();
    for (size_t l = 0; l < plan->graph->layer_count; l++)
        json_array_append_new(array, json_integer((json_int_t)plan->levels[l]));
    return array;
}

static json_t *dump_resident(const struct sdp_plan *plan)
{
    json_t *array = json_array();
    for (size_t s = 0; s < plan->graph->storage_count; s++)
        if (plan->resident[s])
            json_array_append_new(array, json_string(plan->graph->storages[s].name));
    return array;
}

static json_t *dump_tasks(const struct sdp_task_counts *t)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "deliver", (json_int_t)t->deliver, "forward",
                     (json_int_t)t->forward, "backward", (json_int_t)t->backward, "drain", (json_int_t)t->drain, "reduce",
                     (json_int_t)t->reduce, "clip", (json_int_t)t->clip, "update", (json_int_t)t->update, "metrics",
                     (json_int_t)t->metrics, "store", (json_int_t)t->store, "fetch", (json_int_t)t->fetch);
}

json_t *sdp_plan_dump(const struct sdp_plan *plan)
{
    char text[96];
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:o, s:I, s:o, s:b, s:I, s:I, s:I, s:f, s:{s:o, s:o},"
        " s:o, s:o, s:o}",
        "devices", plan->cuda ? "cuda" : "cpu", "device_count", (json_int_t)plan->device_count, "ranks",
        (json_int_t)plan->ranks, "steps", (json_int_t)plan->steps, "sequence_length",
        (json_int_t)plan->sequence_length, "sequences_per_step", (json_int_t)plan->sequences_per_step,
        "micro_batch", (json_int_t)plan->micro_batch, "micro_batches", (json_int_t)plan->micro_batches, "group",
        (json_int_t)plan->group, "compute", sdp_dtype_name(plan->compute), "gradients", sdp_dtype_name(plan->gradient),
        "activations", sdp_plan_activations_text(plan, text), "levels", dump_levels(plan), "offloaded_layers",
        (json_int_t)plan->offloaded, "resident", dump_resident(plan), "two_phase", plan->two_phase, "window",
        (json_int_t)plan->window, "chunk_bytes", (json_int_t)plan->chunk_bytes, "cores", (json_int_t)plan->cores,
        "model_flops_per_step", plan->flops, "memory", "host", dump_items(plan, false), "device", dump_items(plan, true),
        "tasks_per_step", dump_tasks(&plan->tasks), "rates", sdp_rates_dump(&plan->rates), "predicted_step",
        sdp_step_time_dump(&plan->time));
}

const char *sdp_plan_activations_text(const struct sdp_plan *plan, char text[96])
{
    bool none = true, all = true, costly = true;
    for (size_t l = 0; l < plan->graph->layer_count; l++) {
        const struct sdp_layer_plan *layer = plan->layers[l];
        none &= layer->level == 0 || layer->levels <= 2;
        all &= layer->level + 1 == layer->levels;
        costly &= layer->recompute_flops == 0;
    }
    const char *what = all ? "kept" : costly ? "kept where costly" : none ? "recomputed" : "partly recomputed";
    if (plan->offloaded)
        snprintf(text, 96, "%s, of %zu layers in host memory", what, plan->offloaded);
    else
        snprintf(text, 96, "%s", what);
    return text;
}
