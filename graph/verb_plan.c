/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slidedp plan JOB: what would run, and the memory of every item. */
#include "graph/job_model.h"
#include "graph/options.h"
#include "graph/plan.h"
#include "model/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>

extern const struct sdp_verb sdp_verb_plan;

static void print_memory(const struct sdp_plan *plan, bool device)
{
    char text[32];
    for (size_t i = 0; i < plan->item_count; i++)
        if (plan->items[i].device == device)
            printf("  %-34s %14s\n", plan->items[i].name, sdp_format_bytes(plan->items[i].bytes, text));
    printf("  %-34s %14s\n", "sum", sdp_format_bytes(device ? plan->device_bytes : plan->host_bytes, text));
}

/* Busy seconds of a step by resource, and what the pipeline cannot hide. */
static void print_time(const struct sdp_step_time *t, size_t tokens, double flops)
{
    const struct {
        const char *name;
        double seconds, bytes;
    } rows[] = {{"forward", t->forward, 0},
                {"backward", t->backward, 0},
                {"recompute", t->recompute, 0},
                {"updates on the device", t->device_update, 0},
                {"compute", t->compute, 0},
                {"link, host to device", t->link_in, t->in_bytes},
                {"link, device to host", t->link_out, t->out_bytes},
                {"updates on host cores", t->host_update, 0},
                {"host memory", t->host_memory, t->host_bytes},
                {"exposed: updates", t->exposed_update, 0},
                {"exposed: deliveries", t->exposed_delivery, 0}};
    printf("predicted step (seconds; rates of this kind of machine, see --json)\n");
    for (size_t i = 0; i < SDP_COUNT_OF(rows); i++) {
        printf("  %-34s %14.3f", rows[i].name, rows[i].seconds);
        if (rows[i].bytes > 0)
            printf("  %8.1f GB", rows[i].bytes / 1e9);
        putchar('\n');
    }
    char speed[32];
    printf("  %-34s %14.3f  %.0f tokens/s, model %s\n", "step", t->step, (double)tokens / t->step,
           sdp_format_flops(flops / t->step, speed));
}

static void print_plan(const struct sdp_plan *plan)
{
    const struct sdp_task_counts *t = &plan->tasks;
    char text[32], activations[96];
    size_t resident = 0;
    for (size_t s = 0; s < plan->graph->storage_count; s++)
        resident += plan->resident[s];
    printf("model          %s, %.3f M parameters, %zu layers\n", plan->graph->name,
           (double)plan->graph->parameters / 1e6, plan->graph->layer_count);
    printf("devices        %zu %s, %zu ranks, %zu cores\n", plan->device_count, plan->cuda ? "GPU(s)" : "host (CPU ranks)",
           plan->ranks, plan->cores);
    printf("step           %zu sequences of %zu tokens; a rank has %zu micro-batches of %zu sequences\n",
           plan->sequences_per_step, plan->sequence_length, plan->micro_batches, plan->micro_batch);
    printf("steps          %zu, %.3g model FLOPs each\n", plan->steps, plan->flops);
    printf("dtypes         compute %s, gradients %s\n", sdp_dtype_name(plan->compute), sdp_dtype_name(plan->gradient));
    printf("groups         %zu of %zu micro-batches of a rank: each delivers the weights twice\n", plan->groups, plan->group);
    printf("activations    %s\n", sdp_plan_activations_text(plan, activations));
    if (plan->cuda)
        printf("state          of %zu of %zu layers' parameters stays on the GPU and is updated there\n", resident,
               plan->graph->storage_count);
    printf("window         %zu layers; chunks of %s\n", plan->window, sdp_format_bytes(plan->chunk_bytes, text));
    printf("updates        %s\n", plan->two_phase ? "after the global norm, under the next step's forward pass"
                                                  : "during the backward pass");
    printf("host memory\n");
    print_memory(plan, false);
    if (plan->cuda) {
        printf("memory of each GPU (%s available)\n", sdp_format_bytes(plan->device_available, text));
        print_memory(plan, true);
    }
    printf("tasks of a step\n  deliver %zu, forward %zu, backward %zu, drain %zu, reduce %zu, clip %zu, update %zu, metrics %zu, store %zu, fetch %zu\n",
           t->deliver, t->forward, t->backward, t->drain, t->reduce, t->clip, t->update, t->metrics, t->store, t->fetch);
    print_time(&plan->time, plan->sequences_per_step * plan->sequence_length, plan->flops);
}

static enum sdp_status plan_job(const struct sdp_job *job, bool json, struct sdp_error *err)
{
    struct sdp_model_graph *graph = NULL;
    struct sdp_dataset *data = NULL;
    struct sdp_plan *plan = NULL;
    enum sdp_status rc = sdp_job_build_graph(job, &graph, NULL, err);
    if (!rc)
        rc = sdp_dataset_open(job, false, graph->vocabulary, &data, err);
    if (!rc)
        rc = sdp_plan_create(job, graph, sdp_dataset_sequences(data), &plan, err);
    if (!rc && json) {
        json_t *dump = sdp_plan_dump(plan);
        json_dumpf(dump, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(dump);
    } else if (!rc) {
        print_plan(plan);
    }
    if (!rc) {
        fflush(stdout);
        rc = sdp_plan_check_fits(plan, err);
    }
    sdp_plan_destroy(plan);
    sdp_dataset_close(data);
    sdp_model_graph_destroy(graph);
    return rc;
}

static int run(int argc, char **argv)
{
    struct sdp_option_list set = {0};
    bool json = false;
    const char *path = NULL;
    const struct sdp_option table[] = {
        {"json", SDP_OPTION_FLAG, &json, NULL, "print plan.json instead of text", NULL},
        {"set", SDP_OPTION_LIST, &set, "KEY=VALUE", "change a value of the job, e.g. runtime.ranks=2", NULL},
        {NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL}};
    int rc = sdp_options_parse(&sdp_verb_plan, table, argc, argv, 1, 1, &path, NULL);
    if (rc >= 0)
        return rc;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = NULL;
    enum sdp_status status = sdp_job_load(path, set.items, set.count, &job, &err);
    if (!status)
        status = plan_job(job, json, &err);
    if (status)
        sdp_error_print(&err);
    sdp_job_destroy(job);
    free(set.items);
    return sdp_status_exit_code(status);
}

const struct sdp_verb sdp_verb_plan = {"plan", "show what would run and the memory it needs", "JOB [options]", run};
