/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Deliveries. On CPU ranks a task writes the exact fp32 weights of a chunk into
 * the layer slot. For a GPU the task is empty: it reads the chunk on the GPU's
 * memory node, so that StarPU makes the copy, and its worker is the only one that waits for it. */
#include "codelets/task.h"

#include "codelets/deliver/assemble.h"
#include "graph/slab.h"
#include "model/state/host_state.h"

/* buffers: weight R, remainder R, slot chunk W */
static void deliver_cpu(void *buffers[], void *arg)
{
    const struct sdp_task *task = arg;
    if (atomic_load(&task->state->failed))
        return;
    sdp_assemble(SDP_CHUNK_PTR(buffers[0]), SDP_CHUNK_PTR(buffers[1]), SDP_CHUNK_PTR(buffers[2]),
                 task->u.deliver.chunk->count);
}

static void nothing(void *buffers[], void *arg)
{
    (void)buffers;
    (void)arg;
}

struct starpu_codelet sdp_codelet_deliver_cpu = {
    .cpu_funcs = {deliver_cpu},
    .cpu_funcs_name = {"deliver_cpu"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "deliver",
    .color = 0x57b894,
};

/* The engine copies this one for each device and sets nodes[0] to its memory node;
 * the slot and storage handles that follow are void handles. */
struct starpu_codelet sdp_codelet_deliver_cuda = {
    .cpu_funcs = {nothing},
    .cpu_funcs_name = {"nothing"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .specific_nodes = 1,
    .name = "deliver",
    .color = 0x57b894,
};

/* Reads a gradient chunk in main memory: StarPU brings it there. */
struct starpu_codelet sdp_codelet_drain = {
    .cpu_funcs = {nothing},
    .cpu_funcs_name = {"nothing"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "drain",
    .color = 0xe8a33d,
};
