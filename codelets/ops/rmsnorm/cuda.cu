/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `rmsnorm`: x (T, D), y = x * rstd * (offset + weight), rstd (T) fp32.
 *
 * Backward, with n = x * rstd and g = dy * (offset + weight):
 *   dx = rstd * (g - n * mean(g * n)),   dweight = sum over tokens of dy * n.
 * A fixed number of blocks each take every so-manyth row and keep their own dweight, one
 * owner per column, in shared memory (in scratch where a row is too long for it); the
 * blocks' sums are added in order. So the bits depend on T and D alone.
 *
 * Floor, bytes (e = bytes of an element): forward 2 T D e; backward 3 T D e (4 when adding)
 * + 8 D for each block, at most 512. Rows are read twice, the second time from cache. */
#include "codelets/common/cuda_columns.h"
#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

constexpr size_t shared_limit = 40 * 1024; /* bytes of a block's dweight in shared memory */

/* Block: one token. */
template <typename T, int N>
__global__ void __launch_bounds__(512) rmsnorm_kernel(const T *x, const T *weight, T *y, float *rstd, size_t cols,
                                                      float eps, float offset)
{
    __shared__ float scratch[32];
    const size_t t = blockIdx.x;
    const T *row = x + t * cols;

    float sum = 0.0f;
    for (size_t c = static_cast<size_t>(threadIdx.x) * N; c < cols; c += static_cast<size_t>(blockDim.x) * N) {
        float value[N];
        load<T, N>(row + c, value);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += value[i] * value[i];
    }
    sum = block_sum(sum, scratch);
    const float r = rsqrtf(sum / static_cast<float>(cols) + eps);
    if (threadIdx.x == 0)
        rstd[t] = r;
    for (size_t c = static_cast<size_t>(threadIdx.x) * N; c < cols; c += static_cast<size_t>(blockDim.x) * N) {
        float value[N], w[N];
        load<T, N>(row + c, value);
        load<T, N>(weight + c, w);
#pragma unroll
        for (int i = 0; i < N; i++)
            value[i] = value[i] * r * (offset + w[i]);
        store<T, N>(y + t * cols + c, value);
    }
}

/* Where element i of the pack that starts at column c has its dweight: in shared memory the elements i of all packs
 * lie together, so that a warp's accesses fall into different banks. */
template <int N, bool in_shared> __device__ __forceinline__ size_t slot_of(size_t c, int i, size_t cols)
{
    return in_shared ? i * (cols / N) + c / N : c + i;
}

/* partial is (blocks, D). Thread k owns the packs k, k + blockDim.x, ... of every row. */
template <typename T, int N, bool in_shared>
__global__ void __launch_bounds__(512)
    rmsnorm_gradient_kernel(const T *x, const T *weight, const float *rstd, const T *dy, T *dx, float *partial,
                            size_t tokens, size_t cols, float offset, bool add)
{
    extern __shared__ float shared_dweight[];
    __shared__ float scratch[32];
    float *mine = partial + blockIdx.x * cols;
    float *dweight = in_shared ? shared_dweight : mine;
    const size_t start = static_cast<size_t>(threadIdx.x) * N, step = static_cast<size_t>(blockDim.x) * N;

    for (size_t c = start; c < cols; c += step) {
#pragma unroll
        for (int i = 0; i < N; i++)
            dweight[slot_of<N, in_shared>(c, i, cols)] = 0.0f;
    }
    for (size_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        const float r = rstd[t];
        float dot = 0.0f;
        for (size_t c = start; c < cols; c += step) {
            float value[N], d[N], w[N];
            load<T, N>(x + t * cols + c, value);
            load<T, N>(dy + t * cols + c, d);
            load<T, N>(weight + c, w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float product = d[i] * value[i] * r;
                dot += product * (offset + w[i]);
                dweight[slot_of<N, in_shared>(c, i, cols)] += product;
            }
        }
        if (!dx)
            continue; /* the same for all threads: block_sum is not missed by some */
        const float mean = block_sum(dot, scratch) / static_cast<float>(cols);
        for (size_t c = start; c < cols; c += step) {
            float value[N], d[N], w[N];
            load<T, N>(x + t * cols + c, value);
            load<T, N>(dy + t * cols + c, d);
            load<T, N>(weight + c, w);
#pragma unroll
            for (int i = 0; i < N; i++)
                value[i] = r * (d[i] * (offset + w[i]) - value[i] * r * mean);
            deliver<T, N>(dx + t * cols + c, value, add);
        }
    }
    if (in_shared) { /* each thread copies what it owns */
        for (size_t c = start; c < cols; c += step) {
#pragma unroll
            for (int i = 0; i < N; i++)
                mine[c + i] = dweight[slot_of<N, in_shared>(c, i, cols)];
        }
    }
}

size_t gradient_blocks(size_t tokens)
{
    return tokens < 512 ? tokens : 512;
}

template <typename T, int N>
enum sdp_status forward(const struct sdp_op_call *call, float eps, float offset)
{
    const size_t cols = call->node->input_cols[0];

    rmsnorm_kernel<T, N><<<static_cast<unsigned>(call->batch->tokens), row_threads(divide_up(cols, N), 512), 0,
                           stream_of(call)>>>(
        static_cast<const T *>(call->in[0]), static_cast<const T *>(call->weight[0]), static_cast<T *>(call->out[0]),
        call->aux[0], cols, eps, offset);
    SDP_CUDA_LAUNCHED("rmsnorm_kernel");
    return SDP_OK;
}

template <typename T, int N>
enum sdp_status backward(const struct sdp_op_call *call, float offset)
{
    const size_t cols = call->node->input_cols[0], tokens = call->batch->tokens;
    const unsigned blocks = static_cast<unsigned>(gradient_blocks(tokens));
    const unsigned threads = row_threads(divide_up(cols, N), 512);
    const bool in_shared = cols * sizeof(float) <= shared_limit;
    const size_t shared = in_shared ? cols * sizeof(float) : 0;
    float *partial = static_cast<float *>(call->work);
    const auto kernel = in_shared ? rmsnorm_gradient_kernel<T, N, true> : rmsnorm_gradient_kernel<T, N, false>;

    kernel<<<blocks, threads, shared, stream_of(call)>>>(
        static_cast<const T *>(call->in[0]), static_cast<const T *>(call->weight[0]), call->aux[0],
        static_cast<const T *>(call->dout[0]), static_cast<T *>(call->din[0]), partial, tokens, cols, offset,
        call->add_din[0]);
    SDP_CUDA_LAUNCHED("rmsnorm_gradient_kernel");
    if (!call->dweight[0])
        return SDP_OK;
    return sdpi_column_finish(partial, blocks, cols, cols, call->dweight[0], call->add_dweight,
                              call->device->stream);
}

bool can_pack(const struct sdp_op_call *call, const void *a, const void *b, const void *c)
{
    const size_t pack = call->dtype == SDP_BF16 ? 8 : 4;
    return call->node->input_cols[0] % pack == 0 && aligned16(call->weight[0]) && aligned16(a) && aligned16(b) &&
           aligned16(c);
}

} // namespace

extern "C" size_t sdp_rmsnorm_work_cuda(const struct sdp_op_node *node, size_t tokens, size_t, enum sdp_dtype,
                                        bool backward)
{
    return backward ? gradient_blocks(tokens) * node->input_cols[0] * sizeof(float) : 0;
}

extern "C" enum sdp_status sdp_rmsnorm_forward_cuda(const struct sdp_op_call *call)
{
    const float eps = static_cast<float>(sdp_op_attr(call->node, "eps"));
    const float offset = static_cast<float>(sdp_op_attr(call->node, "offset"));

    if (call->batch->tokens == 0 || call->node->input_cols[0] == 0)
        return SDP_OK;
    return SDP_DISPATCH(call->dtype, can_pack(call, call->in[0], call->out[0], call->out[0]), forward, call, eps,
                        offset);
}

extern "C" enum sdp_status sdp_rmsnorm_backward_cuda(const struct sdp_op_call *call)
{
    const float offset = static_cast<float>(sdp_op_attr(call->node, "offset"));
    const struct sdp_op_node *node = call->node;

    if (call->batch->tokens == 0 || node->input_cols[0] == 0) {
        if (call->dweight[0] && !call->add_dweight)
            SDP_CUDA(cudaMemsetAsync(call->dweight[0], 0, node->input_cols[0] * sizeof(float), stream_of(call)));
        return SDP_OK;
    }
    return SDP_DISPATCH(call->dtype, can_pack(call, call->in[0], call->dout[0], call->din[0]), backward, call,
                        offset);
}
