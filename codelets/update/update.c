/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Update tasks: AdamW on one chunk, block by block. A one-phase step sums the
 * ranks' gradients in the same pass over memory. State that is resident on a device is updated there, from its fp32
 * accumulator; in two-phase steps the same kernel finds the norm first (a reduce task). */
#include "codelets/task.h"

#include "codelets/update/adamw.h"
#ifdef SDP_HAVE_CUDA
#include "codelets/backward/gradient_cuda.h"
#include "codelets/update/adamw_cuda.h"
#endif
#include "graph/slab.h"
#include "model/state/host_state.h"

/* buffers: weight RW, remainder RW, gradients R (from u.update.gradients on) */
static void update_cpu(void *buffers[], void *arg)
{
    const struct sdp_task *task = arg;
    const struct sdp_update_args *u = &task->u.update;
    const struct sdp_chunk *chunk = u->chunk;
    if (atomic_load(&task->state->failed))
        return;
    const void *gradients[SDP_ADAMW_MAX_RANKS];
    for (int r = 0; r < u->rank_count; r++)
        gradients[r] = SDP_CHUNK_PTR(buffers[u->gradients + r]);
    struct sdp_adamw_args args = {
        .weight = u->storage->weight + chunk->offset, .remainder = u->storage->remainder + chunk->offset,
        .m = u->storage->m + chunk->offset, .v = u->storage->v + chunk->offset,
        .gradients = gradients, .ranks = (size_t)u->rank_count, .gradient_dtype = u->gradient};
    float scale = u->clip_scale ? *u->clip_scale : 1.0f;
    for (size_t b = chunk->first_block; b < chunk->first_block + chunk->block_count; b++) {
        const struct sdp_block *block = &u->storage->blocks[b];
        double decay = block->decay || u->adamw.decay_all ? u->adamw.weight_decay : 0.0;
        double squares = 0;
        sdp_adamw_set(&args, u->adamw.lr, u->adamw.beta1, u->adamw.beta2, u->adamw.eps, decay, u->adamw.step,
                      scale);
        sdp_adamw_block(&args, block->offset - chunk->offset, block->count, &squares);
        if (u->norms)
            u->norms[block->index] = squares;
    }
}

#ifdef SDP_HAVE_CUDA

/* The next blocks of a chunk, up to what one call takes. */
static size_t list_blocks(const struct sdp_update_args *u, size_t first, struct sdp_adamw_cuda_block *blocks)
{
    const struct sdp_chunk *chunk = u->chunk;
    size_t end = chunk->first_block + chunk->block_count, n = 0;
    for (size_t b = first; b < end && n < SDP_ADAMW_CUDA_BLOCKS; b++, n++) {
        const struct sdp_block *block = &u->storage->blocks[b];
        struct sdp_adamw_args scalars;
        double decay = block->decay || u->adamw.decay_all ? u->adamw.weight_decay : 0.0;
        sdp_adamw_set(&scalars, u->adamw.lr, u->adamw.beta1, u->adamw.beta2, u->adamw.eps, decay, u->adamw.step, 1.0f);
        blocks[n] = (struct sdp_adamw_cuda_block){.offset = block->offset - chunk->offset, .count = block->count,
                                                  .norm = block->index, .shrink = scalars.shrink};
    }
    return n;
}

static enum sdp_status launch(const struct sdp_update_args *u, void *buffers[])
{
    struct sdp_adamw_cuda_block blocks[SDP_ADAMW_CUDA_BLOCKS];
    struct sdp_adamw_cuda args = {.blocks = blocks, .update = u->update, .gradient = u->gradient};
    void *stream = u->device->ops.stream;
    enum sdp_status rc = SDP_OK;
    if (u->update) {
        args.scalars.weight = SDP_CHUNK_PTR(buffers[0]);
        args.scalars.remainder = SDP_CHUNK_PTR(buffers[1]);
        args.scalars.m = SDP_CHUNK_PTR(buffers[u->m]);
        args.scalars.v = SDP_CHUNK_PTR(buffers[u->v]);
    }
    sdp_adamw_set(&args.scalars, u->adamw.lr, u->adamw.beta1, u->adamw.beta2, u->adamw.eps, 0, u->adamw.step,
                  u->clip_scale ? *u->clip_scale : 1.0f);
    args.accumulator = (const float *)STARPU_VARIABLE_GET_PTR(buffers[u->accumulator]) + u->chunk->offset;
    args.partial = (double *)(void *)u->device->scratch[starpu_worker_get_id()];
    if (u->device_norms >= 0)
        args.norms = (double *)STARPU_VARIABLE_GET_PTR(buffers[u->device_norms]);
    if (args.norms && u->first_norms)
        rc = sdp_fill_cuda((float *)args.norms, 0.0f, u->norm_count * 2, stream);
    for (size_t done = 0; !rc && done < u->chunk->block_count; done += args.block_count) {
        args.block_count = list_blocks(u, u->chunk->first_block + done, blocks);
        rc = sdp_adamw_cuda(&args, stream);
    }
    return rc;
}

/* buffers: weight RW, remainder RW, m RW, v RW (not for the norm alone), accumulator R, norms */
void sdp_update_cuda_task(void *buffers[], void *arg)
{
    const struct sdp_task *task = arg;
    if (atomic_load(&task->state->failed))
        return;
    enum sdp_status rc = launch(&task->u.update, buffers);
    if (rc)
        sdp_run_fail(task->state, rc, "%s: %s", task->name, sdp_status_message(rc));
}

#endif

struct starpu_codelet sdp_codelet_update = {
    .cpu_funcs = {update_cpu},
    .cpu_funcs_name = {"update_cpu"},
#ifdef SDP_HAVE_CUDA
    .cuda_funcs = {sdp_update_cuda_task},
    .cuda_flags = {STARPU_CUDA_ASYNC},
#endif
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "update",
    .color = 0xc94f4f,
};
