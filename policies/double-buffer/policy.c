/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* double-buffer: MegaTrain's order, with two buffers of a layer.
 *
 * Rule. A delivery or fetch for visit v of a device starts when the kernels of visit v - 1 have begun: one layer is ahead.
 * Everything else runs in program order; a chunk's update follows its drain, as the graph has it.
 *
 * Invariants. At most one visit beyond the one whose kernels run is delivered or under way.
 *
 * No deadlock. The first visit may always be delivered. The kernels of visit v - 1 wait for their own deliveries, which
 * their predecessors' kernels have let start, and for updates, which are never held back; so they begin, and visit v
 * may be delivered. */
#include "policies/list.h"

static bool may_start(const struct sdp_list *list, const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    if (!info || (info->kind != SDP_TASK_DELIVER && info->kind != SDP_TASK_FETCH) || info->device < 0)
        return true;
    return info->visit <= list->visits_begun[info->device];
}

static const struct sdp_list_rules rules = {.reserve_copy_workers = true, .may_start = may_start};

static void init(unsigned ctx)
{
    sdp_list_init(ctx, &rules);
}

extern struct starpu_sched_policy sdp_policy_double_buffer;
struct starpu_sched_policy sdp_policy_double_buffer = {
    .init_sched = init,
    SDP_LIST_HOOKS,
    .policy_name = "double-buffer",
    .policy_description = "MegaTrain's order: one layer ahead, updates after their drains",
};
