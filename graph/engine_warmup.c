/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Before the first step every distinct layer runs once on a GPU, on noise: products choose their algorithms, attention
 * builds its plans, kernels are loaded, and the time that they take alone is known. All memory is the device's own area,
 * which no task has written yet. */
#include "graph/engine_internal.h"

#include "codelets/common/device_memory.h"
#include "graph/base/log.h"

#include <stdlib.h>

#ifdef SDP_HAVE_CUDA

#include "codelets/backward/gradient_cuda.h"
#include "codelets/common/cuda_device.h"
#include "codelets/common/cuda_gemm.h"

#define MAX_TIMED_OPS 64 /* of a layer, in the report of times */

/* Where one layer's buffers lie; all bytes of the area may be overwritten. */
struct areas {
    uint8_t *base;
    size_t used;
};

static void *take(struct areas *a, size_t bytes)
{
    void *pointer = a->base ? a->base + a->used : NULL;
    a->used += sdp_round_up(bytes, 512);
    return pointer;
}

/* The same layout for its size alone (base NULL) and for use. */
static struct sdp_layer_io lay_out(const struct sdp_engine *e, size_t layer, struct sdp_op_batch *batch, struct areas *a)
{
    const struct sdp_plan *plan = e->plan;
    const struct sdp_layer_plan *l = plan->layers[layer];
    size_t storage = e->graph->layers[layer].storage, count = e->state->storages[storage].count;
    size_t boundary = sdp_plan_boundary_bytes(plan), tokens = plan->tokens;
    struct sdp_layer_io io = {.plan = l, .batch = batch, .storage = &e->graph->storages[storage], .loss_scale = 1e-4f,
                              .want_gradient = true};
    int32_t *ids = take(a, sdp_batch_elements(tokens) * sizeof *ids);
    io.loss = take(a, sizeof *io.loss);
    io.weights = take(a, count * sdp_dtype_size(plan->compute));
    io.gradients = take(a, count * sizeof(float));
    io.input = take(a, boundary);
    io.output = take(a, boundary);
    io.gradient = take(a, boundary);
    io.saved = take(a, l->saved_bytes);
    io.scratch = take(a, SDP_MAX(l->forward_scratch, l->backward_scratch));
    *batch = (struct sdp_op_batch){.tokens = tokens, .sequences = plan->micro_batch, .sequence_length = plan->sequence_length};
    if (a->base) {
        batch->ids = ids;
        batch->targets = ids + tokens;
        batch->positions = ids + 2 * tokens;
        batch->order = ids + 3 * tokens;
        batch->segments = ids + 4 * tokens;
        batch->segment_count = SDP_MIN(tokens, e->graph->vocabulary);
    }
    return io;
}

/* Token i has id i, the last id being repeated where the vocabulary is too small. */
static enum sdp_status fill_batch(const struct sdp_engine *e, const struct sdp_op_batch *batch, void *stream)
{
    size_t tokens = batch->tokens, last = e->graph->vocabulary - 1;
    int32_t *ids = sdp_xcalloc(sdp_batch_elements(tokens), sizeof *ids);
    for (size_t i = 0; i < tokens; i++) {
        ids[i] = ids[tokens + i] = (int32_t)SDP_MIN(i, last);
        ids[2 * tokens + i] = (int32_t)(i % batch->sequence_length);
        ids[3 * tokens + i] = (int32_t)i;
    }
    for (size_t i = 0; i <= tokens; i++)
        ids[4 * tokens + i] = (int32_t)(i < batch->segment_count ? i : tokens);
    enum sdp_status rc = sdp_upload_cuda((void *)(uintptr_t)batch->ids, ids, sdp_batch_elements(tokens) * sizeof *ids, stream);
    free(ids);
    return rc;
}

/* -- times of operations, told with --verbose ------------------------------------------------------- */

struct op_times {
    const struct sdp_layer_io *io;
    double last;
    double seconds[SDP_PASSES][MAX_TIMED_OPS];
};

static void after_op(void *context, size_t op, enum sdp_op_pass pass)
{
    struct op_times *times = context;
    double now;
    if (sdp_synchronize_cuda(times->io->device->stream) != SDP_OK || op >= MAX_TIMED_OPS)
        return;
    now = sdp_now();
    times->seconds[pass][op] = now - times->last;
    times->last = now;
}

static void tell_op_times(const struct sdp_layer_plan *plan, const struct op_times *times)
{
    for (size_t o = 0; o < plan->layer->op_count && o < MAX_TIMED_OPS; o++) {
        const struct sdp_op_node *node = &plan->layer->ops[o].node;
        double forward = times->seconds[SDP_PASS_FORWARD][o], backward = times->seconds[SDP_PASS_BACKWARD][o];
        double flops[2];
        for (int b = 0; b < 2; b++)
            flops[b] = node->op->flops(node, plan->tokens, plan->sequence_length, b == 1);
        sdp_debug("%s, %s (%s): forward %.3f ms, %.0f TFLOP/s; again %.3f ms; backward %.3f ms, %.0f TFLOP/s",
                  plan->layer->name, node->name, node->op->name, forward * 1e3, forward > 0 ? flops[0] / forward / 1e12 : 0,
                  times->seconds[SDP_PASS_RECOMPUTE][o] * 1e3, backward * 1e3,
                  backward > 0 ? flops[1] / backward / 1e12 : 0);
    }
}

/* Once more with a wait after each operation: a little slower than in a step. */
static enum sdp_status time_ops(struct sdp_layer_io *io)
{
    struct op_times times = {.io = io, .last = sdp_now()};
    struct sdp_layer_io timed = *io;
    timed.after_op = after_op;
    timed.context = &times;
    enum sdp_status rc = io->plan->layer->is_loss ? SDP_OK : sdp_layer_forward(&timed);
    times.last = sdp_now();
    if (!rc)
        rc = sdp_layer_backward(&timed);
    if (!rc)
        rc = sdp_synchronize_cuda(io->device->stream);
    if (!rc)
        tell_op_times(io->plan, &times);
    return rc;
}

/* Forward, backward that overwrites gradients, and backward that adds: what a step does. Seconds of the last two runs. */
static enum sdp_status run_layer(struct sdp_layer_io *io, double *forward, double *backward)
{
    void *stream = io->device->stream;
    enum sdp_status rc = SDP_OK;
    double since = 0;
    for (int i = 0; !rc && i < 2; i++) {
        since = sdp_now();
        if (!io->plan->layer->is_loss)
            rc = sdp_layer_forward(io);
        if (!rc)
            rc = sdp_synchronize_cuda(stream);
        *forward = sdp_now() - since;
    }
    for (int i = 0; !rc && i < 3; i++) {
        io->add_gradients = i > 0;
        since = sdp_now();
        rc = sdp_layer_backward(io);
        if (!rc)
            rc = sdp_synchronize_cuda(stream);
        *backward = sdp_now() - since;
    }
    return rc || sdp_log_level() < SDP_LOG_DEBUG ? rc : time_ops(io);
}

static enum sdp_status warm_up_layer(struct sdp_engine *e, struct sdpi_device *d, size_t layer, double *forward, double *backward)
{
    struct sdp_op_device device = d->compute.ops;
    struct sdp_op_batch batch;
    struct areas areas = {d->memory, 0};
    struct sdp_layer_io io = lay_out(e, layer, &batch, &areas);
    device.tuning = true;
    io.device = &device;
    enum sdp_status rc = sdp_noise_cuda(d->memory, areas.used, device.stream);
    if (!rc)
        rc = fill_batch(e, &batch, device.stream);
    return rc ? rc : run_layer(&io, forward, backward);
}

struct warmup {
    struct sdp_engine *engine;
    struct sdpi_device *device;
    enum sdp_status rc;
};

static bool seen_before(const struct sdp_plan *plan, size_t layer)
{
    for (size_t l = 0; l < layer; l++)
        if (plan->layers[l] == plan->layers[layer])
            return true;
    return false;
}

/* Runs on the device's own worker. */
static void warm_up(void *arg)
{
    struct warmup *w = arg;
    struct sdp_engine *e = w->engine;
    const struct sdp_plan *plan = e->plan;
    double started = sdp_now(), forward_sum = 0, backward_sum = 0;
    for (size_t l = 0; !w->rc && l < e->graph->layer_count; l++) {
        double forward = 0, backward = 0;
        size_t layers = 0;
        struct sdp_op_batch batch;
        struct areas size = {NULL, 0};
        (void)lay_out(e, l, &batch, &size);
        if (seen_before(plan, l) || size.used > w->device->bytes)
            continue; /* too little memory for a rehearsal: its first task chooses by the heuristic */
        w->rc = warm_up_layer(e, w->device, l, &forward, &backward);
        for (size_t k = l; k < e->graph->layer_count; k++)
            layers += plan->layers[k] == plan->layers[l];
        forward_sum += forward * (double)(layers * plan->micro_batches * w->device->ranks);
        backward_sum += backward * (double)(layers * plan->micro_batches * w->device->ranks);
    }
    sdp_gemm_save_cuda();
    uint64_t algorithms = 0;
    size_t products = sdp_gemm_fingerprint_cuda(&algorithms);
    sdp_info("GPU %zu: algorithms of %zu products: %016llx (runs with the same give the same bits)", w->device->index, products,
             (unsigned long long)algorithms);
    sdp_info("GPU %zu: warmed up in %.1f s; the kernels of a step alone take %.3f s forward and %.3f s backward",
              w->device->index, sdp_now() - started, forward_sum, backward_sum);
    e->kernel_seconds = SDP_MAX(e->kernel_seconds, forward_sum + backward_sum);
}

enum sdp_status sdpi_engine_warm_up(struct sdp_engine *e, struct sdpi_device *d, struct sdp_error *err)
{
    struct warmup w = {e, d, SDP_OK};
    unsigned worker = (unsigned)d->compute_worker;
    if (!e->plan->cuda)
        return SDP_OK;
    const char *folder = getenv("STARPU_HOME"); /* set by the engine: the cache folder */
    if (folder)
        sdp_gemm_load_cuda((int)d->index, folder);
    starpu_execute_on_specific_workers(warm_up, &w, 1, &worker, "warm-up");
    return w.rc ? sdp_fail(err, w.rc, "GPU %zu: the layers' kernels do not run", d->index) : SDP_OK;
}

#else

enum sdp_status sdpi_engine_warm_up(struct sdp_engine *e, struct sdpi_device *d, struct sdp_error *err)
{
    (void)e;
    (void)d;
    (void)err;
    return SDP_OK;
}

#endif
