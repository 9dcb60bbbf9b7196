/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* offload: ZeRO-Offload's order, updates after the backward pass.
 *
 * Rule. An update on host cores starts when no task of a forward or backward pass (copies included) is ready or runs.
 *
 * Invariants. Updates and passes do not overlap, but for updates under way when a pass goes on. Where fewer gradients can
 * wait than the model has layers, the backward pass stops for want of a gradient's place, and the updates that free some
 * run then.
 *
 * No deadlock. Passes are never held back. When none has a ready or running task, updates are free to start. */
#include "policies/list.h"

static bool may_start(const struct sdp_list *list, const struct starpu_task *task)
{
    return !sdp_list_is_update(task) || list->passes_ready + list->passes_running == 0;
}

static const struct sdp_list_rules rules = {.reserve_copy_workers = true, .may_start = may_start};

static void init(unsigned ctx)
{
    sdp_list_init(ctx, &rules);
}

extern struct starpu_sched_policy sdp_policy_offload;
struct starpu_sched_policy sdp_policy_offload = {
    .init_sched = init,
    SDP_LIST_HOOKS,
    .policy_name = "offload",
    .policy_description = "ZeRO-Offload's order: updates when no pass has work",
};
