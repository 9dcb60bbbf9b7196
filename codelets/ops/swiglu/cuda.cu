/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `swiglu`: gate_up (T, 2 I) holds gate then up; out (T, I) = silu(gate) * up.
 *
 * Floor, bytes (e = bytes of an element): forward 3 T I e; backward 5 T I e (7 when adding). */
#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

/* bf16 results do not show the last bits of exp: the fast one keeps the kernel bound by memory. */
template <typename T> __device__ __forceinline__ float sigmoid(float x);
template <> __device__ __forceinline__ float sigmoid<bf16>(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}
template <> __device__ __forceinline__ float sigmoid<float>(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Block: one token and a stretch of blockDim.x * N of the I columns. */
template <typename T, int N>
__global__ void __launch_bounds__(256) swiglu_kernel(const T *gate_up, T *out, size_t cols, unsigned tiles)
{
    const size_t t = blockIdx.x / tiles;
    const size_t c = (static_cast<size_t>(blockIdx.x % tiles) * blockDim.x + threadIdx.x) * N;
    if (c >= cols)
        return;

    float gate[N], up[N];
    load<T, N>(gate_up + t * 2 * cols + c, gate);
    load<T, N>(gate_up + t * 2 * cols + cols + c, up);
#pragma unroll
    for (int i = 0; i < N; i++)
        up[i] *= gate[i] * sigmoid<T>(gate[i]);
    store<T, N>(out + t * cols + c, up);
}

/* d gate = dout * up * s * (1 + gate * (1 - s)), d up = dout * gate * s, s = sigmoid(gate). */
template <typename T, int N>
__global__ void __launch_bounds__(256) swiglu_gradient_kernel(const T *gate_up, const T *dout, T *din, size_t cols,
                                                              unsigned tiles, bool add)
{
    const size_t t = blockIdx.x / tiles;
    const size_t c = (static_cast<size_t>(blockIdx.x % tiles) * blockDim.x + threadIdx.x) * N;
    if (c >= cols)
        return;

    float gate[N], up[N], d[N];
    load<T, N>(gate_up + t * 2 * cols + c, gate);
    load<T, N>(gate_up + t * 2 * cols + cols + c, up);
    load<T, N>(dout + t * cols + c, d);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float s = sigmoid<T>(gate[i]);
        const float dgate = d[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
        up[i] = d[i] * gate[i] * s;
        gate[i] = dgate;
    }
    deliver<T, N>(din + t * 2 * cols + c, gate, add);
    deliver<T, N>(din + t * 2 * cols + cols + c, up, add);
}

template <typename T, int N>
enum sdp_status forward(const struct sdp_op_call *call)
{
    const size_t cols = call->node->output_cols[0];
    const unsigned threads = row_threads(divide_up(cols, N), 256);
    const unsigned tiles = static_cast<unsigned>(divide_up(cols, static_cast<size_t>(threads) * N));

    swiglu_kernel<T, N><<<static_cast<unsigned>(call->batch->tokens * tiles), threads, 0, stream_of(call)>>>(
        static_cast<const T *>(call->in[0]), static_cast<T *>(call->out[0]), cols, tiles);
    SDP_CUDA_LAUNCHED("swiglu_kernel");
    return SDP_OK;
}

template <typename T, int N>
enum sdp_status backward(const struct sdp_op_call *call)
{
    const size_t cols = call->node->output_cols[0];
    const unsigned threads = row_threads(divide_up(cols, N), 256);
    const unsigned tiles = static_cast<unsigned>(divide_up(cols, static_cast<size_t>(threads) * N));

    swiglu_gradient_kernel<T, N>
        <<<static_cast<unsigned>(call->batch->tokens * tiles), threads, 0, stream_of(call)>>>(
            static_cast<const T *>(call->in[0]), static_cast<const T *>(call->dout[0]),
            static_cast<T *>(call->din[0]), cols, tiles, call->add_din[0]);
    SDP_CUDA_LAUNCHED("swiglu_gradient_kernel");
    return SDP_OK;
}

bool can_pack(const struct sdp_op_call *call, const void *a, const void *b, const void *c)
{
    const size_t pack = call->dtype == SDP_BF16 ? 8 : 4;
    return call->node->output_cols[0] % pack == 0 && aligned16(a) && aligned16(b) && aligned16(c);
}

} // namespace

extern "C" size_t sdp_swiglu_work_cuda(const struct sdp_op_node *, size_t, size_t, enum sdp_dtype, bool)
{
    return 0;
}

extern "C" enum sdp_status sdp_swiglu_forward_cuda(const struct sdp_op_call *call)
{
    const bool packed = can_pack(call, call->in[0], call->out[0], call->out[0]);

    if (call->batch->tokens == 0 || call->node->output_cols[0] == 0)
        return SDP_OK;
    return SDP_DISPATCH(call->dtype, packed, forward, call);
}

extern "C" enum sdp_status sdp_swiglu_backward_cuda(const struct sdp_op_call *call)
{
    const bool packed = can_pack(call, call->in[0], call->dout[0], call->din[0]);

    if (!call->din[0] || call->batch->tokens == 0 || call->node->output_cols[0] == 0)
        return SDP_OK;
    return SDP_DISPATCH(call->dtype, packed, backward, call);
}
