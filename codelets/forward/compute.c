/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Forward and backward tasks: a whole layer on one micro-batch. Both unpack the
 * same buffers; on CUDA they only enqueue kernels on the worker's stream. */
#include "codelets/task.h"

#include "graph/slab.h"

#ifdef SDP_HAVE_CUDA
#include "codelets/backward/gradient_cuda.h"
#include "codelets/deliver/assemble_cuda.h"
#endif

static void *variable(void *buffers[], int index)
{
    return index < 0 ? NULL : (void *)STARPU_VARIABLE_GET_PTR(buffers[index]);
}

static void *chunks(void *buffers[], int first)
{
    return first < 0 ? NULL : SDP_CHUNK_PTR(buffers[first]);
}

static struct sdp_op_batch read_batch(const struct sdp_compute_args *a, const int32_t *ids)
{
    size_t t = a->plan->tokens;
    struct sdp_op_batch batch = {
        .tokens = t, .sequences = a->sequences, .sequence_length = a->plan->sequence_length,
        .ids = ids, .targets = ids + t, .positions = ids + 2 * t, .order = ids + 3 * t,
        .segments = ids + 4 * t, .segment_count = a->segment_count,
        .packed = a->packed};
    return batch;
}

/* fp32 on CUDA: the first task of a tenure puts delivered halves together. */
static enum sdp_status assemble(const struct sdp_task *task, void *buffers[], void *weights)
{
#ifdef SDP_HAVE_CUDA
    const struct sdp_compute_args *a = &task->u.compute;
    if (a->assemble)
        return sdp_assemble_cuda(chunks(buffers, a->weights), chunks(buffers, a->remainders), weights,
                                 a->elements, a->device->ops.stream);
#else
    (void)task;
    (void)buffers;
    (void)weights;
#endif
    return SDP_OK;
}

/* The last contribution to an fp32 accumulator leaves it as gradient chunks. */
static enum sdp_status pack(const struct sdp_task *task, void *buffers[], const float *accumulator)
{
#ifdef SDP_HAVE_CUDA
    const struct sdp_compute_args *a = &task->u.compute;
    if (a->pack)
        return sdp_gradient_pack_cuda(accumulator, chunks(buffers, a->gradients), a->gradient, a->elements,
                                      a->device->ops.stream);
#else
    (void)task;
    (void)buffers;
    (void)accumulator;
#endif
    return SDP_OK;
}

static enum sdp_status run(const struct sdp_task *task, void *buffers[])
{
    const struct sdp_compute_args *a = &task->u.compute;
    bool backward = task->info.kind == SDP_TASK_BACKWARD;
    struct sdp_op_batch batch = read_batch(a, variable(buffers, a->batch));
    struct sdp_layer_io io = {
        .plan = a->plan, .batch = &batch, .device = &a->device->ops, .storage = a->storage,
        .input = variable(buffers, a->input), .output = variable(buffers, a->output),
        .gradient = variable(buffers, a->boundary_gradient), .saved = variable(buffers, a->saved),
        .scratch = a->device->scratch[starpu_worker_get_id()], .add_gradients = a->add_gradients,
        .loss_scale = a->loss_scale, .logits = a->logits, .loss = variable(buffers, a->loss), .want_gradient = a->want_gradient};
    void *assembled = variable(buffers, a->assembled);
    io.weights = assembled ? assembled : chunks(buffers, a->weights);
    if (backward)
        io.gradients = a->accumulator >= 0 ? variable(buffers, a->accumulator) : chunks(buffers, a->gradients);
    enum sdp_status rc = assemble(task, buffers, assembled);
    if (!rc)
        rc = backward ? sdp_layer_backward(&io) : sdp_layer_forward(&io);
    if (!rc && backward)
        rc = pack(task, buffers, io.gradients);
    return rc;
}

void sdp_compute_task(void *buffers[], void *arg)
{
    const struct sdp_task *task = arg;
    if (atomic_load(&task->state->failed))
        return;
    enum sdp_status rc = run(task, buffers);
    if (rc)
        sdp_run_fail(task->state, rc, "%s: %s", task->name, sdp_status_message(rc));
}

struct starpu_codelet sdp_codelet_forward = {
    .cpu_funcs = {sdp_compute_task},
    .cpu_funcs_name = {"sdp_compute_task"},
#ifdef SDP_HAVE_CUDA
    .cuda_funcs = {sdp_compute_task},
    .cuda_flags = {STARPU_CUDA_ASYNC},
#endif
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "forward",
    .color = 0x4c9be8,
};
