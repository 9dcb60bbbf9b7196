/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `attention`: causal, grouped heads, optional window, on qkv (T, (heads + 2
 * kv_heads) * head_dim). See cuda.h for who does the work.
 *
 * Host code only: it is hidden from the compiler's device passes, which would read cuDNN's
 * large headers once more for each GPU generation.
 *
 * Floor: 2 T S heads head_dim operations forward (causal, sequences of S), 2.5 times that
 * backward; bytes (e = bytes of an element) e T (2 heads + 2 kv_heads) head_dim forward, twice
 * that backward, 4 T heads for lse. Turning cuDNN's statistics adds 8 T heads each way. */
#ifndef __CUDA_ARCH__

#include "codelets/ops/attention/cuda.h"

#include "codelets/common/cuda_check.h"
#include "codelets/ops/attention/flash.h"

#ifdef SDP_HAVE_CUDNN
#include "codelets/ops/attention/cudnn.cuh"
#endif

namespace {

struct sdpi_attention shape_of(const struct sdp_op_node *node, size_t sequences, size_t length, enum sdp_dtype dtype)
{
    struct sdpi_attention a = {};

    a.sequences = sequences;
    a.length = length;
    a.heads = static_cast<size_t>(sdp_op_attr(node, "heads"));
    a.kv_heads = static_cast<size_t>(sdp_op_attr(node, "kv_heads"));
    a.head_dim = static_cast<size_t>(sdp_op_attr(node, "head_dim"));
    a.window = static_cast<size_t>(sdp_op_attr(node, "window"));
    a.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.head_dim)));
    a.dtype = dtype;
    return a;
}

struct sdpi_attention shape_of_call(const struct sdp_op_call *call)
{
    struct sdpi_attention a = shape_of(call->node, call->batch->sequences, call->batch->sequence_length, call->dtype);

    a.positions = call->batch->packed ? call->batch->positions : nullptr;
    return a;
}

/* Start of what follows the T * heads floats at the start of the scratch memory. */
size_t lse_bytes(const struct sdpi_attention &a)
{
    return sdp_round_up(a.sequences * a.length * a.heads * sizeof(float), 256);
}

#ifdef SDP_HAVE_CUDNN

bool aligned(const void *pointer)
{
    return (reinterpret_cast<uintptr_t>(pointer) & 15u) == 0;
}

/* The plan for this call, or NULL where the own kernels must do it. */
const sdp_cudnn::Plan *plan_for(const struct sdp_op_call *call, const struct sdpi_attention &a, bool backward)
{
    if (!call->device->cudnn || a.positions || !sdp_cudnn::may_take(a))
        return nullptr;
    if (!aligned(call->in[0]) || !aligned(call->out[0]))
        return nullptr;
    /* cuDNN overwrites; a sum needs the own kernels (no model here has a second reader of qkv). */
    if (backward && (call->add_din[0] || !aligned(call->dout[0]) || !aligned(call->din[0])))
        return nullptr;
    const sdp_cudnn::Plan &plan = sdp_cudnn::plan_to_run(a, backward, call->device);
    return plan.parts.empty() ? nullptr : &plan;
}

sdp_cudnn::Memory memory_of(const struct sdp_op_call *call, const struct sdpi_attention &a)
{
    sdp_cudnn::Memory m = {};
    m.qkv = static_cast<const char *>(call->in[0]);
    m.out = static_cast<const char *>(call->out[0]);
    m.forward_out = static_cast<char *>(call->out[0]);
    m.dout = static_cast<const char *>(call->dout[0]);
    m.dqkv = static_cast<char *>(call->din[0]);
    m.stats = static_cast<float *>(call->work);
    m.workspace = static_cast<char *>(call->work) + lse_bytes(a);
    return m;
}

/* Handle that builds plans where a caller has none of its own: one for each device, kept. */
cudnnHandle_t builder(int ordinal)
{
    static std::mutex lock;
    static std::map<int, cudnnHandle_t> handles;
    const std::lock_guard<std::mutex> guard(lock);
    const auto known = handles.find(ordinal);
    cudnnHandle_t handle = nullptr;

    if (known != handles.end())
        return known->second;
    if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS)
        return nullptr;
    return handles[ordinal] = handle;
}

/* Scratch of the plan for a shape on the current device; 0 where there is no device. */
size_t plan_workspace(const struct sdpi_attention &a, bool backward)
{
    int ordinal = 0;

    if (!sdp_cudnn::may_take(a))
        return 0;
    const cudnnHandle_t handle = cudaGetDevice(&ordinal) == cudaSuccess ? builder(ordinal) : nullptr;
    if (!handle) {
        static_cast<void>(cudaGetLastError()); /* no driver, no device: not for the next call to find */
        return 0;
    }
    return sdp_cudnn::scratch_bytes(a, sdp_cudnn::plan_of(a, backward, true, ordinal, handle));
}

#endif

} // namespace

#ifdef SDP_HAVE_CUDNN

extern "C" enum sdp_status sdp_attention_library_create_cuda(void *stream, void **handle)
{
    cudnnHandle_t cudnn = nullptr;
    cudnnStatus_t rc = cudnnCreate(&cudnn);

    if (rc == CUDNN_STATUS_SUCCESS)
        rc = cudnnSetStream(cudnn, static_cast<cudaStream_t>(stream));
    if (rc != CUDNN_STATUS_SUCCESS) {
        sdp_attention_library_destroy_cuda(cudnn);
        return sdpi_cuda_failed(__FILE__, __LINE__, "creating a cuDNN handle", cudnnGetErrorString(rc));
    }
    *handle = cudnn;
    return SDP_OK;
}

extern "C" void sdp_attention_library_destroy_cuda(void *handle)
{
    const cudnnStatus_t rc = handle ? cudnnDestroy(static_cast<cudnnHandle_t>(handle)) : CUDNN_STATUS_SUCCESS;
    if (rc != CUDNN_STATUS_SUCCESS)
        sdp_warn("cudnnDestroy: %s", cudnnGetErrorString(rc));
}

extern "C" enum sdp_status sdp_attention_prepare_cuda(const struct sdp_op_node *node,
                                                      const struct sdp_op_batch *batch,
                                                      const struct sdp_op_device *device)
{
    const struct sdpi_attention a = shape_of(node, batch->sequences, batch->sequence_length, SDP_BF16);

    if (!device->cudnn || !sdp_cudnn::may_take(a))
        return SDP_OK;
    SDP_CUDA(cudaSetDevice(device->ordinal));
    for (int backward = 0; backward < 2; backward++)
        static_cast<void>(sdp_cudnn::plan_to_run(a, backward != 0, device));
    return SDP_OK;
}

extern "C" void sdp_attention_limit_scratch_cuda(size_t bytes)
{
    const std::lock_guard<std::mutex> guard(sdp_cudnn::plan_lock);
    sdp_cudnn::group_limit = bytes ? bytes : SDPI_ATTENTION_GROUP_SCRATCH;
    sdp_cudnn::plans.clear();
}

#else

extern "C" enum sdp_status sdp_attention_library_create_cuda(void *, void **handle)
{
    *handle = nullptr;
    return SDP_OK;
}

extern "C" void sdp_attention_library_destroy_cuda(void *)
{
}

extern "C" enum sdp_status sdp_attention_prepare_cuda(const struct sdp_op_node *, const struct sdp_op_batch *,
                                                      const struct sdp_op_device *)
{
    return SDP_OK;
}

extern "C" void sdp_attention_limit_scratch_cuda(size_t)
{
}

#endif

extern "C" bool sdp_attention_lse_is_bhs_cuda(void)
{
    return false;
}

extern "C" size_t sdp_attention_work_cuda(const struct sdp_op_node *node, size_t tokens, size_t sequence_length,
                                          enum sdp_dtype dtype, bool backward)
{
    const size_t sequences = sequence_length ? tokens / sequence_length : 0;
    const struct sdpi_attention a = shape_of(node, sequences, sequence_length, dtype);
    size_t bytes = lse_bytes(a);

#ifdef SDP_HAVE_CUDNN
    bytes += plan_workspace(a, backward);
#endif
    return backward || dtype == SDP_BF16 ? bytes : 0;
}

extern "C" enum sdp_status sdp_attention_forward_cuda(const struct sdp_op_call *call)
{
    const struct sdpi_attention a = shape_of_call(call);

#ifdef SDP_HAVE_CUDNN
    if (const sdp_cudnn::Plan *plan = plan_for(call, a, false)) {
        const sdp_cudnn::Memory m = memory_of(call, a);
        SDP_TRY(sdp_cudnn::execute(a, *plan, false, m, call->device));
        return sdpi_lse_by_token(&a, m.stats, call->aux[0], call->device->stream);
    }
#endif
    return sdpi_flash_forward(&a, call->in[0], call->out[0], call->aux[0], call->device->stream);
}

extern "C" enum sdp_status sdp_attention_backward_cuda(const struct sdp_op_call *call)
{
    const struct sdpi_attention a = shape_of_call(call);

    if (!call->din[0])
        return SDP_OK;
#ifdef SDP_HAVE_CUDNN
    if (const sdp_cudnn::Plan *plan = plan_for(call, a, true)) {
        const sdp_cudnn::Memory m = memory_of(call, a);
        SDP_TRY(sdpi_lse_by_head(&a, call->aux[0], m.stats, call->device->stream));
        return sdp_cudnn::execute(a, *plan, true, m, call->device);
    }
#endif
    return sdpi_flash_backward(&a, call->in[0], call->out[0], call->aux[0], call->dout[0], call->din[0],
                               call->add_din[0], static_cast<float *>(call->work), call->device->stream);
}

#endif /* __CUDA_ARCH__ */
