/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slideformer: SlideFormer's order; one rank reduces and updates.
 *
 * Rule. Passes run in program order; of updates and reductions on host cores one runs at a time. Every device has its own
 * delivery of a layer, as the graph has it.
 *
 * Invariants. At most one update or reduction runs.
 *
 * No deadlock. Passes are never held back; when no update runs, the first ready one may start, and its end wakes the rest. */
#include "policies/list.h"

static bool may_start(const struct sdp_list *list, const struct starpu_task *task)
{
    return !sdp_list_is_update(task) || list->updates_running == 0;
}

static const struct sdp_list_rules rules = {.reserve_copy_workers = true, .may_start = may_start};

static void init(unsigned ctx)
{
    sdp_list_init(ctx, &rules);
}

extern struct starpu_sched_policy sdp_policy_slideformer;
struct starpu_sched_policy sdp_policy_slideformer = {
    .init_sched = init,
    SDP_LIST_HOOKS,
    .policy_name = "slideformer",
    .policy_description = "SlideFormer's order: one worker updates, while others compute",
};
