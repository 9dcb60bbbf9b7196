/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Clip tasks of two-phase steps: the exact global norm, and the factor that every
 * update of the step applies. */
#include "codelets/task.h"

#include "codelets/metrics/norm.h"

static void clip_cpu(void *buffers[], void *arg)
{
    const struct sdp_task *task = arg;
    const struct sdp_clip_args *u = &task->u.clip;
    const double *device_norms =
        u->device_norms < 0 ? NULL : (const double *)STARPU_VARIABLE_GET_PTR(buffers[u->device_norms]);
    double norm = sdp_norm_of_blocks(u->norms, device_norms, u->block_count);
    *u->norm = norm;
    *u->scale = norm > u->clip_norm ? (float)(u->clip_norm / norm) : 1.0f;
}

struct starpu_codelet sdp_codelet_clip = {
    .cpu_funcs = {clip_cpu},
    .cpu_funcs_name = {"clip_cpu"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "clip",
    .color = 0xb05fd9,
};
