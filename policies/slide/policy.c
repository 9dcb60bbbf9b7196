/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slide: the pipeline of SlideDP as a list scheduler in program order.
 *
 * Rule. Ready tasks run in program order (sdp_task_info.order), each worker from its own queue, the rest from the
 * shared one. A CPU worker that copies for a GPU is reserved: it would keep a copy waiting if it took up an update.
 *
 * Invariants. Deliveries to a device start in program order; a delivery is ready only when the graph has freed its layer
 * slot, so the window is never exceeded. Program order also makes updates release gradient slots first come, first served,
 * and lets the next step's first layers find their updates done early.
 *
 * No deadlock. A queue never holds a ready task back: whoever may run the first task does so when it becomes idle. Tasks
 * on the shared queue can always run on a worker that is not reserved; the engine reserves workers only where one is left
 * over. */
#include "policies/list.h"

static const struct sdp_list_rules rules = {.reserve_copy_workers = true};

static void init(unsigned ctx)
{
    sdp_list_init(ctx, &rules);
}

extern struct starpu_sched_policy sdp_policy_slide;
struct starpu_sched_policy sdp_policy_slide = {
    .init_sched = init,
    SDP_LIST_HOOKS,
    .policy_name = "slide",
    .policy_description = "SlideDP's pipeline: program order, own workers for copies",
};
