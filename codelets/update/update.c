/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Update tasks: AdamW on one chunk, block by block. A one-phase step sums the
 * ranks' gradients in the same pass over memory. */
#include "codelets/task.h"

#include "codelets/update/adamw.h"
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

struct starpu_codelet sdp_codelet_update = {
    .cpu_funcs = {update_cpu},
    .cpu_funcs_name = {"update_cpu"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "update",
    .color = 0xc94f4f,
};
