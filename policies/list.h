/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A list scheduler that the policies of this folder share: ready tasks wait in sorted queues, and a policy is a rule for
 * their order and for which of them may start. StarPU's public API and graph/task_info.h, nothing else.
 *
 * Queues: one for each worker that tasks are meant for (sdp_task_info.workerid: a GPU's deliveries, drains, kernels), one
 * shared by all others. A worker takes the first task that may start from its own queue, else from the shared one. All
 * fields are protected by the lock; rules are called with it held. */
#ifndef SDP_POLICIES_LIST_H
#define SDP_POLICIES_LIST_H

#include "graph/task_info.h"
#include "policies/policy.h"

#include <stdbool.h>

/* Sorted by key: few tasks are ready at a time, and most come in order. */
struct sdp_list_queue {
    struct starpu_task **tasks;
    uint64_t *keys;
    size_t count, room;
};

struct sdp_list;

struct sdp_list_rules {
    /** Whether a worker that copies for a GPU takes nothing else: an update would keep a copy waiting. */
    bool reserve_copy_workers;
    /** Position of a task that just became ready; NULL: its program order. */
    uint64_t (*key)(struct sdp_list *list, const struct starpu_task *task);
    /** Whether a ready task may start now; NULL: always. Asked again whenever a task starts or ends. */
    bool (*may_start)(const struct sdp_list *list, const struct starpu_task *task);
};

struct sdp_list {
    const struct sdp_list_rules *rules;
    starpu_pthread_mutex_t lock;
    struct sdp_list_queue shared, own[STARPU_NMAXWORKERS];
    bool reserved[STARPU_NMAXWORKERS];
    uint64_t arrived;                    /* tasks so far */
    size_t running;                      /* taken and not ended */
    size_t passes_ready, passes_running; /* deliveries, kernels, drains, stores, fetches */
    size_t updates_running;              /* updates and reductions on host cores */
    uint64_t visits_begun[STARPU_MAXCUDADEVS + 1]; /* per device: number of the last visit whose kernels began, plus 1 */
};

/** Sort of a task: of a forward or backward pass (copies included), or a host update. */
bool sdp_list_is_pass(const struct starpu_task *task);
bool sdp_list_is_update(const struct starpu_task *task);
/** Smallest key of all ready tasks; UINT64_MAX: none. */
uint64_t sdp_list_first_key(const struct sdp_list *list);
/** Key by program order; tasks of other programs in the order they come. */
uint64_t sdp_list_program_order(struct sdp_list *list, const struct starpu_task *task);

/** The hooks of a policy; init is called by the policy's own with its rules, which must stay. */
void sdp_list_init(unsigned ctx, const struct sdp_list_rules *rules);
void sdp_list_deinit(unsigned ctx);
int sdp_list_push(struct starpu_task *task);
struct starpu_task *sdp_list_pop(unsigned ctx);
void sdp_list_ended(struct starpu_task *task, unsigned ctx);

/** What every such policy says of itself but its name, description and init. */
#define SDP_LIST_HOOKS                                                                             \
    .deinit_sched = sdp_list_deinit, .push_task = sdp_list_push, .pop_task = sdp_list_pop,         \
    .post_exec_hook = sdp_list_ended, .prefetches = 1 /* copies are tasks: StarPU need not prefetch */, \
    .worker_type = STARPU_WORKER_LIST

#endif
