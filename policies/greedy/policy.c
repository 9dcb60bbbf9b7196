/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* greedy: the control, without any knowledge of the pipeline.
 *
 * Rule. Tasks run in the order in which they became ready; an idle worker takes the first that it can run, copies for a GPU
 * and updates alike.
 *
 * Invariants. None but the graph's own.
 *
 * No deadlock. No ready task is held back. */
#include "policies/list.h"

static uint64_t arrival(struct sdp_list *list, const struct starpu_task *task)
{
    (void)task;
    return list->arrived;
}

static const struct sdp_list_rules rules = {.key = arrival};

static void init(unsigned ctx)
{
    sdp_list_init(ctx, &rules);
}

extern struct starpu_sched_policy sdp_policy_greedy;
struct starpu_sched_policy sdp_policy_greedy = {
    .init_sched = init,
    SDP_LIST_HOOKS,
    .policy_name = "greedy",
    .policy_description = "control: whatever became ready first, by whoever is idle",
};
