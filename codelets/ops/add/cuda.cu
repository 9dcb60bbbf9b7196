/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `add`: out = a + b, all (T, D).
 *
 * Floor, bytes (e = bytes of an element): forward 3 T D e; backward 2 T D e for each input
 * gradient that is not dout itself (3 T D e when adding). */
#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

template <typename T, int N>
__global__ void __launch_bounds__(256) add_kernel(const T *a, const T *b, T *out, size_t packs)
{
    const size_t p = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (p >= packs)
        return;

    float x[N], y[N];
    load<T, N>(a + p * N, x);
    load<T, N>(b + p * N, y);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] += y[i];
    store<T, N>(out + p * N, x);
}

template <typename T, int N>
enum sdp_status launch(const struct sdp_op_call *call, const void *a, const void *b, void *out)
{
    const size_t packs = call->batch->tokens * call->node->output_cols[0] / N;

    add_kernel<T, N><<<static_cast<unsigned>(divide_up(packs, 256)), 256, 0, stream_of(call)>>>(
        static_cast<const T *>(a), static_cast<const T *>(b), static_cast<T *>(out), packs);
    SDP_CUDA_LAUNCHED("add_kernel");
    return SDP_OK;
}

enum sdp_status sum(const struct sdp_op_call *call, const void *a, const void *b, void *out)
{
    const size_t count = call->batch->tokens * call->node->output_cols[0];
    const size_t pack = call->dtype == SDP_BF16 ? 8 : 4;
    const bool packed = count % pack == 0 && aligned16(a) && aligned16(b) && aligned16(out);

    if (count == 0)
        return SDP_OK;
    return SDP_DISPATCH(call->dtype, packed, launch, call, a, b, out);
}

} // namespace

extern "C" size_t sdp_add_work_cuda(const struct sdp_op_node *, size_t, size_t, enum sdp_dtype, bool)
{
    return 0;
}

extern "C" enum sdp_status sdp_add_forward_cuda(const struct sdp_op_call *call)
{
    return sum(call, call->in[0], call->in[1], call->out[0]);
}

extern "C" enum sdp_status sdp_add_backward_cuda(const struct sdp_op_call *call)
{
    const size_t bytes = call->batch->tokens * call->node->output_cols[0] * sdp_dtype_size(call->dtype);

    for (int i = 0; i < 2; i++) {
        if (!call->din[i])
            continue;
        if (call->add_din[i])
            SDP_TRY(sum(call, call->din[i], call->dout[0], call->din[i]));
        else if (call->din[i] != call->dout[0] && bytes > 0)
            SDP_CUDA(cudaMemcpyAsync(call->din[i], call->dout[0], bytes, cudaMemcpyDeviceToDevice,
                                     stream_of(call)));
    }
    return SDP_OK;
}
