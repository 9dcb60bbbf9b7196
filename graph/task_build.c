/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Building tasks: information, buffers, dependencies, submission; or, for a picture, nodes and edges. */
#include "graph/engine_internal.h"

#include <stdlib.h>

void sdpi_task_begin(struct sdpi_builder *b, struct sdp_engine *engine, struct starpu_codelet *codelet,
                     enum sdp_task_kind kind, size_t step)
{
    memset(b, 0, sizeof *b);
    b->engine = engine;
    b->arg = sdp_xcalloc(1, sizeof *b->arg);
    b->arg->state = &engine->run;
    b->arg->resources = engine->resources;
    b->arg->info = (struct sdp_task_info){
        .magic = SDP_TASK_INFO_MAGIC, .kind = kind, .step = (int32_t)step, .layer = -1, .chunk = -1, .rank = -1,
        .micro_batch = -1, .device = -1, .workerid = -1, .order = engine->order++, .next_use = UINT64_MAX,
        .window = (uint32_t)engine->plan->window};
    if (engine->dot)
        return;
    b->task = starpu_task_create();
    b->task->cl = codelet;
}

int sdpi_task_buffer(struct sdpi_builder *b, struct sdpi_data *data, enum starpu_data_access_mode mode)
{
    b->data[b->count] = data;
    b->modes[b->count] = mode;
    return b->count++;
}

/* "forward s3 l12 c0 r1 m2": only the parts that apply. */
static void name_task(struct sdp_task *arg)
{
    const struct sdp_task_info *i = &arg->info;
    int n = snprintf(arg->name, sizeof arg->name, "%s s%d", sdp_task_kind_name(i->kind), i->step);
    const struct {
        char letter;
        int32_t value;
    } parts[] = {{'l', i->layer}, {'c', i->chunk}, {'r', i->rank}, {'m', i->micro_batch}};
    for (size_t p = 0; p < SDP_COUNT_OF(parts) && n > 0 && (size_t)n < sizeof arg->name; p++)
        if (parts[p].value >= 0)
            n += snprintf(arg->name + n, sizeof arg->name - (size_t)n, " %c%d", parts[p].letter, parts[p].value);
}

static void dot_edge(struct sdpi_builder *b, size_t from, const char *style)
{
    if (from != b->node)
        fprintf(b->engine->dot, "  t%zu -> t%zu%s;\n", from, b->node, style);
}

static void dot_data(struct sdpi_builder *b, struct sdpi_data *data, enum starpu_data_access_mode mode)
{
    bool writes = (mode & STARPU_W) != 0;
    if (data->writer)
        dot_edge(b, data->writer - 1, writes && !(mode & STARPU_R) ? " [color=gray]" : "");
    for (size_t i = 0; writes && i < data->reader_count; i++)
        dot_edge(b, data->readers[i], " [color=gray]"); /* write after read */
    if (writes) {
        data->writer = b->node + 1;
        data->reader_count = 0;
        return;
    }
    data->readers = sdp_xrealloc(data->readers, (data->reader_count + 1) * sizeof *data->readers);
    data->readers[data->reader_count++] = b->node;
}

static void dot_node(struct sdpi_builder *b)
{
    static const char *const colours[SDP_TASK_KINDS] = {"#57b894", "#4c9be8", "#2f6db5", "#e8a33d",
                                                        "#d98c5f", "#b05fd9", "#c94f4f", "#8f8f8f",
                                                        "#c9b26b", "#8ecfb4"};
    const struct sdp_task_info *i = &b->arg->info;
    b->node = b->engine->dot_nodes++;
    fprintf(b->engine->dot, "  t%zu [label=\"%s\", fillcolor=\"%s\"];\n", b->node, b->arg->name, colours[i->kind]);
    for (int k = 0; k < b->count; k++)
        dot_data(b, b->data[k], b->modes[k]);
}

/* Runs after the task, which StarPU frees later. */
static void note(void *arg)
{
    const struct starpu_task *task = arg;
    const struct sdp_task *own = task->cl_arg;
    sdp_resources_note(own->resources, task);
}

void sdpi_task_seal(struct sdpi_builder *b)
{
    name_task(b->arg);
    if (b->engine->dot) {
        dot_node(b);
        return;
    }
    struct starpu_task *task = b->task;
    task->nbuffers = b->count;
    task->dyn_handles = sdp_xcalloc((size_t)b->count + 1, sizeof *task->dyn_handles);
    task->dyn_modes = sdp_xcalloc((size_t)b->count + 1, sizeof *task->dyn_modes);
    for (int k = 0; k < b->count; k++) {
        task->dyn_handles[k] = b->data[k]->handle;
        task->dyn_modes[k] = b->modes[k];
    }
    task->name = b->arg->name;
    task->cl_arg = b->arg;
    task->cl_arg_size = sizeof *b->arg;
    task->cl_arg_free = 1;
    task->flops = b->arg->info.flops;
    if (b->engine->resources) {
        task->callback_func = note;
        task->callback_arg = task;
    }
}

void sdpi_task_after(struct sdpi_builder *task, struct sdpi_builder *before, size_t count)
{
    struct starpu_task **tasks;
    if (task->engine->dot) {
        for (size_t i = 0; i < count; i++)
            dot_edge(task, before[i].node, "");
        return;
    }
    tasks = sdp_xcalloc(count + 1, sizeof *tasks);
    for (size_t i = 0; i < count; i++)
        tasks[i] = before[i].task;
    if (count)
        starpu_task_declare_deps_array(task->task, (unsigned)count, tasks);
    free(tasks);
}

enum sdp_status sdpi_task_submit(struct sdpi_builder *b, struct sdp_error *err)
{
    if (b->engine->dot) {
        free(b->arg);
        return SDP_OK;
    }
    int rc = starpu_task_submit(b->task);
    if (rc == 0)
        return SDP_OK;
    char name[sizeof b->arg->name];
    memcpy(name, b->arg->name, sizeof name);
    starpu_task_destroy(b->task);
    free(b->release);
    return sdp_fail(err, SDP_RUNTIME, "StarPU refuses task \"%s\": %s", name, strerror(-rc));
}

enum sdp_status sdpi_task_submit_all(struct sdpi_builder *tasks, size_t count, struct sdp_error *err)
{
    enum sdp_status rc = SDP_OK;
    for (size_t i = 0; i < count; i++) {
        if (!rc) {
            rc = sdpi_task_submit(&tasks[i], err);
        } else if (tasks[i].task) {
            free(tasks[i].release);
            starpu_task_destroy(tasks[i].task);
        }
    }
    return rc;
}

void sdpi_task_on_device(struct sdpi_builder *b, const struct sdpi_device *d)
{
    if (!b->task || !b->engine->plan->cuda)
        return;
    b->task->where = STARPU_CUDA;
    b->task->workerids = (uint32_t *)(uintptr_t)d->compute_mask; /* StarPU does not write it */
    b->task->workerids_len = SDP_COUNT_OF(d->compute_mask);
}

struct sdpi_data *sdpi_accumulator(const struct sdp_engine *e, struct sdpi_device *d, size_t storage, size_t rank)
{
    return e->plan->own_accumulator[storage] ? &d->own_accumulators[storage][rank - d->first_rank] : &d->accumulator;
}

/* -- what a task frees ------------------------------------------------------------------------ */

/* Frees what a task was the last to use: the layer slot (the copies of the weights leave the device) and the slots of
 * offloaded activations. A copy that is busy just now stays until StarPU needs its slot. */
static void release(void *arg)
{
    struct sdpi_release *x = arg;
    const struct sdp_engine *e = x->engine;
    unsigned node = x->device->node;
    for (size_t c = 0; x->weights && c < e->state->storages[x->storage].chunk_count; c++) {
        (void)starpu_data_evict_from_node(e->weights[e->chunk_base[x->storage] + c].handle, node);
        if (e->plan->compute == SDP_FP32)
            (void)starpu_data_evict_from_node(e->remainders[e->chunk_base[x->storage] + c].handle, node);
    }
    for (size_t i = 0; i < x->area_count; i++)
        (void)starpu_data_evict_from_node(x->areas[i], node);
    free(x);
}

struct sdpi_release *sdpi_task_release(struct sdpi_builder *b, const struct sdpi_device *d)
{
    if (!b->release) {
        b->release = sdp_xcalloc(1, sizeof *b->release);
        b->release->engine = b->engine;
        b->release->device = d;
        b->task->epilogue_callback_func = release;
        b->task->epilogue_callback_arg = b->release;
    }
    return b->release;
}
