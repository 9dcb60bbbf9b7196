/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reduce tasks of two-phase steps: the sum of a chunk's gradients over the ranks,
 * in rank order, kept in host memory until the global norm is known. */
#include "codelets/task.h"

#include "codelets/update/adamw.h"
#include "graph/slab.h"
#include "model/state/host_state.h"

/* buffers: gradients R (from u.reduce.gradients on), sum W */
static void reduce_cpu(void *buffers[], void *arg)
{
    const struct sdp_task *task = arg;
    const struct sdp_reduce_args *u = &task->u.reduce;
    const struct sdp_chunk *chunk = u->chunk;
    if (atomic_load(&task->state->failed))
        return;
    const void *gradients[SDP_ADAMW_MAX_RANKS];
    for (int r = 0; r < u->rank_count; r++)
        gradients[r] = SDP_CHUNK_PTR(buffers[u->gradients + r]);
    for (size_t b = chunk->first_block; b < chunk->first_block + chunk->block_count; b++) {
        const struct sdp_block *block = &u->storage->blocks[b];
        double squares = 0;
        sdp_reduce_block(gradients, (size_t)u->rank_count, u->gradient, SDP_CHUNK_PTR(buffers[u->sum]),
                         u->reduced, block->offset - chunk->offset, block->count, &squares);
        u->norms[block->index] = squares;
    }
}

struct starpu_codelet sdp_codelet_reduce = {
    .cpu_funcs = {reduce_cpu},
    .cpu_funcs_name = {"reduce_cpu"},
#ifdef SDP_HAVE_CUDA
    .cuda_funcs = {sdp_update_cuda_task}, /* resident state: the sum stays in its accumulator, only the norm is found */
    .cuda_flags = {STARPU_CUDA_ASYNC},
#endif
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "reduce",
    .color = 0xd98c5f,
};
