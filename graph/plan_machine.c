/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the machine offers and the job fixes: devices, ranks, batch, number formats. */
#include "graph/plan_internal.h"

#include "codelets/common/device_memory.h"

#include <hwloc.h>
#include <stdlib.h>
#include <unistd.h>

/* -- machine ------------------------------------------------------------------------ */

/* Cores that this process may use: the topology's, within its own CPU binding (taskset, batch systems). */
static size_t allowed_cores(void)
{
    hwloc_topology_t topology;
    int cores = 0;
    if (hwloc_topology_init(&topology))
        return 1;
    if (hwloc_topology_load(topology) == 0) {
        hwloc_bitmap_t bound = hwloc_bitmap_alloc();
        cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
        if (bound && hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0)
            cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, bound, HWLOC_OBJ_CORE);
        hwloc_bitmap_free(bound);
    }
    hwloc_topology_destroy(topology);
    return cores > 0 ? (size_t)cores : 1;
}

size_t sdpi_largest_divisor(size_t n, size_t limit)
{
    size_t best = 1;
    for (size_t d = 1; d <= n && d <= limit; d++)
        if (n % d == 0)
            best = d;
    return best;
}

enum sdp_status sdpi_plan_devices(struct sdp_plan *plan, struct sdp_error *err)
{
    const struct sdp_job *job = plan->job;
    size_t found = sdp_cuda_device_count();
    plan->cores = allowed_cores();
    if (job->runtime.gpus != SDP_AUTO && job->runtime.gpus > found)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/runtime/gpus", 0, 0,
                           "%zu GPUs are asked for, %zu can be used here; use \"auto\" or 0 for CPU ranks",
                           job->runtime.gpus, found);
    size_t gpus = job->runtime.gpus == SDP_AUTO ? found : job->runtime.gpus;
    gpus = SDP_MIN(gpus, (size_t)SDP_MAX_DEVICES);
    plan->ranks = job->runtime.ranks;
    if (plan->ranks == SDP_AUTO) { /* as many as can share the sequences evenly */
        size_t sequences = SDP_MAX(job->train.tokens_per_step / job->data.sequence_length, (size_t)1);
        plan->ranks = sdpi_largest_divisor(sequences, SDP_MIN(gpus ? gpus : plan->cores, (size_t)SDP_MAX_RANKS));
    }
    plan->cuda = gpus > 0;
    plan->device_count = plan->cuda ? SDP_MIN(gpus, plan->ranks) : 1;
    for (size_t d = 0; d <= plan->device_count; d++)
        plan->first_rank[d] = d * plan->ranks / plan->device_count;
    return SDP_OK;
}

enum sdp_status sdpi_plan_check_devices(const struct sdp_plan *plan, struct sdp_error *err)
{
    for (size_t d = 0; plan->cuda && d < plan->device_count; d++) {
        struct sdp_cuda_info info;
        enum sdp_status rc = sdp_cuda_device_info((int)d, &info, err);
        if (rc)
            return rc;
        if (info.major < 8)
            return sdp_fail_at(err, SDP_INPUT, plan->job->path, "/runtime/gpus", 0, 0,
                               "GPU %zu (%s) has compute capability %d.%d; 8.0 or later is needed: set 0 to run on CPU ranks",
                               d, info.name, info.major, info.minor);
    }
    return SDP_OK;
}

size_t sdpi_plan_device_memory(const struct sdp_plan *plan)
{
    size_t least = SIZE_MAX;
    for (size_t d = 0; plan->cuda && d < plan->device_count; d++) {
        struct sdp_cuda_info info;
        if (sdp_cuda_device_info((int)d, &info, NULL) == SDP_OK)
            least = SDP_MIN(least, info.free_bytes);
    }
    return SDP_MIN(least, plan->job->runtime.gpu_memory); /* SDP_AUTO is the largest size */
}

size_t sdpi_plan_host_memory(const struct sdp_plan *plan)
{
    size_t pages = (size_t)sysconf(_SC_PHYS_PAGES), page = (size_t)sysconf(_SC_PAGESIZE);
    return SDP_MIN(pages * page, plan->job->runtime.host_memory);
}

/* -- batch, dtypes -------------------------------------------------------------------- */

enum sdp_status sdpi_plan_batch(struct sdp_plan *plan, size_t sequences, struct sdp_error *err)
{
    const struct sdp_job *job = plan->job;
    plan->sequence_length = job->data.sequence_length;
    plan->sequences_per_step = job->train.tokens_per_step / plan->sequence_length;
    enum sdp_status rc = sdp_job_check_model(job, plan->graph->max_sequence_length, plan->ranks, err);
    if (rc)
        return rc;
    plan->steps = job->train.steps;
    if (plan->steps != SDP_AUTO)
        return SDP_OK;
    if (sequences == SIZE_MAX)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/train/epochs", 0, 0,
                           "synthetic data has no epochs; give train.steps instead");
    double steps = ceil(job->train.epochs * (double)sequences / (double)plan->sequences_per_step);
    plan->steps = steps < 1 ? 1 : (size_t)steps;
    return SDP_OK;
}

enum sdp_status sdpi_plan_dtypes(struct sdp_plan *plan, struct sdp_error *err)
{
    const struct sdp_job *job = plan->job;
    plan->compute = plan->cuda ? SDP_BF16 : SDP_FP32;
    if (job->runtime.compute == SDP_COMPUTE_FP32)
        plan->compute = SDP_FP32;
    if (job->runtime.compute == SDP_COMPUTE_BF16 && !plan->cuda)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/runtime/compute", 0, 0,
                           "\"bf16\" needs a GPU; CPU ranks compute in fp32: use \"auto\" or \"fp32\"");
    if (job->runtime.activations == SDP_ACTIVATIONS_OFFLOAD && !plan->cuda)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/runtime/activations", 0, 0,
                           "\"offload\" needs a GPU; CPU ranks' activations are in host memory already: use another choice");
    plan->gradient = plan->compute;
    if (job->runtime.gradients == SDP_GRADIENTS_FP32)
        plan->gradient = SDP_FP32;
    if (job->runtime.gradients == SDP_GRADIENTS_BF16 && plan->compute == SDP_FP32)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/runtime/gradients", 0, 0,
                           "\"bf16\" goes with compute bf16; this run computes in fp32: use \"auto\" or \"fp32\"");
    plan->accumulator = plan->gradient == SDP_BF16;
    plan->two_phase = job->train.clip_norm > 0;
    plan->reduced = plan->gradient == SDP_BF16 && plan->ranks == 1 ? SDP_BF16 : SDP_FP32;
    return SDP_OK;
}
