/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CONTRACT between slidedp's task graph and scheduling policies: what a task
 * says of itself. Installed; needs StarPU's public headers and nothing else.
 *
 * Every task that slidedp submits carries a struct sdp_task_info at the start of
 * its cl_arg; sdp_task_info() finds it, and gives NULL for tasks of other
 * programs, so that a policy works (with some default) under any StarPU program.
 * The information is constant from submission on and may be read from any hook
 * (submit_hook, push_task, pop_task, pre/post_exec_hook) without a lock.
 * task->sched_data is left to the policy.
 *
 * What the graph already guarantees, whatever the policy does:
 *  - data dependencies, also across the step boundary;
 *  - admission: a delivery becomes ready only when its layer slot is free, so no
 *    order of ready tasks can overfill a device or deadlock;
 *  - results do not depend on the order: sums are ordered by explicit tasks.
 * A policy decides which ready task runs next and where. */
#ifndef SDP_GRAPH_TASK_INFO_H
#define SDP_GRAPH_TASK_INFO_H

#include <starpu.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sdp_task_kind {
    SDP_TASK_DELIVER,  /* host -> device copy of a chunk of weights */
    SDP_TASK_FORWARD,  /* a layer, one micro-batch of one rank */
    SDP_TASK_BACKWARD, /* the same; the loss layer is one backward task */
    SDP_TASK_DRAIN,    /* device -> host copy of a gradient chunk */
    SDP_TASK_REDUCE,   /* sum of a chunk's gradients over ranks (two-phase steps) */
    SDP_TASK_CLIP,     /* global norm and clip factor (two-phase steps) */
    SDP_TASK_UPDATE,   /* AdamW on a chunk; one-phase steps reduce in the same task */
    SDP_TASK_METRICS,  /* loss and norm of a step, on the host */
    SDP_TASK_STORE,    /* device -> host copy of offloaded activations */
    SDP_TASK_FETCH,    /* host -> device copy of offloaded activations */
    SDP_TASK_KINDS
};

/* Bits of sdp_task_info.flags */
#define SDP_TASK_FIRST_OF_VISIT 1u /* first compute task of a layer's visit on its device */
#define SDP_TASK_LAST_OF_VISIT 2u  /* last one: frees the layer slot when it ends */
#define SDP_TASK_REDUCES 4u        /* an update that also sums the ranks' gradients */

#define SDP_TASK_INFO_MAGIC 0x53445031u /* "SDP1": changes with the layout below */

struct sdp_task_info {
    uint32_t magic;      /* SDP_TASK_INFO_MAGIC */
    uint32_t kind;       /* enum sdp_task_kind */
    uint32_t flags;
    int32_t step;        /* optimiser step, from 1 */
    int32_t layer;       /* index in the model graph; -1: none */
    int32_t chunk;       /* of the layer's storage; -1: none */
    int32_t rank;        /* data-parallel rank; -1: serves all ranks of the device */
    int32_t micro_batch; /* -1: none */
    int32_t device;      /* index of the device (GPU number among those in use; CPU ranks: 0); -1: host only */
    int32_t workerid;    /* the worker this task is meant for, or -1: any worker that can run it. Deliveries and fetches, drains and stores have
                            their own CPU worker per GPU, so that no compute or update worker waits for a copy. */
    uint64_t bytes;      /* bytes moved (deliver, drain) or touched (reduce, update) */
    double flops;        /* of forward and backward */
    uint64_t order;      /* program order: strictly increasing in submission order over the run */
    uint64_t next_use;   /* order of the task that next needs what this one writes (an update's: the next
                            delivery of its chunk); UINT64_MAX: nobody known */
    uint64_t visit;      /* number of the layer visit on the device that this task belongs to (deliver, forward, backward), counted over the run */
    uint32_t window;     /* layers the device may hold at once (runtime.window) */
};

static inline const struct sdp_task_info *sdp_task_info(const struct starpu_task *task)
{
    const struct sdp_task_info *info = (const struct sdp_task_info *)task->cl_arg;
    if (!info || task->cl_arg_size < sizeof *info || info->magic != SDP_TASK_INFO_MAGIC)
        return 0;
    return info;
}

/** "deliver", "forward", ... */
static inline const char *sdp_task_kind_name(uint32_t kind)
{
    static const char *const names[SDP_TASK_KINDS] = {"deliver", "forward", "backward", "drain",
                                                      "reduce", "clip", "update", "metrics",
                                                      "store", "fetch"};
    return kind < SDP_TASK_KINDS ? names[kind] : "task";
}

#ifdef __cplusplus
}
#endif
#endif
