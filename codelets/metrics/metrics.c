/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Loss and gradient norm of a step, summed on the host in a fixed order. */
#include "codelets/task.h"

#include "codelets/metrics/norm.h"

double sdp_norm_of_blocks(const double *norms, const double *device_norms, size_t block_count)
{
    double sum = 0;
    for (size_t b = 0; b < block_count; b++)
        sum += norms[b] + (device_norms ? device_norms[b] : 0); /* one of them is 0 */
    return sqrt(sum);
}

static void metrics_cpu(void *buffers[], void *arg)
{
    const struct sdp_task *task = arg;
    const struct sdp_metrics_args *u = &task->u.metrics;
    const double *device_norms =
        u->device_norms < 0 ? NULL : (const double *)STARPU_VARIABLE_GET_PTR(buffers[u->device_norms]);
    double loss = 0;
    for (int i = 0; i < u->loss_count; i++)
        loss += *(const double *)STARPU_VARIABLE_GET_PTR(buffers[i]);
    double norm = u->norm ? *u->norm : sdp_norm_of_blocks(u->norms, device_norms, u->block_count);
    u->done(u->context, loss * u->scale, norm);
}

struct starpu_codelet sdp_codelet_metrics = {
    .cpu_funcs = {metrics_cpu},
    .cpu_funcs_name = {"metrics_cpu"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "metrics",
    .color = 0x8f8f8f,
};
