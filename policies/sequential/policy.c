/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* sequential: nothing overlaps; the floor that a pipeline is measured against.
 *
 * Rule. A task starts when no other runs, and it is the first ready one in program order.
 *
 * Invariants. At most one task runs, over all devices and cores.
 *
 * No deadlock. When nothing runs, the first of all ready tasks may start, and every change wakes the worker that has it. */
#include "policies/list.h"

static bool may_start(const struct sdp_list *list, const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    return list->running == 0 && (!info || info->order <= sdp_list_first_key(list));
}

static const struct sdp_list_rules rules = {.may_start = may_start};

static void init(unsigned ctx)
{
    sdp_list_init(ctx, &rules);
}

extern struct starpu_sched_policy sdp_policy_sequential;
struct starpu_sched_policy sdp_policy_sequential = {
    .init_sched = init,
    SDP_LIST_HOOKS,
    .policy_name = "sequential",
    .policy_description = "the floor: one task at a time, in program order",
};
