/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `cross_entropy`, the head: logits = x W^T for x (T, D) and W (V, D), the loss
 * and its gradients, by chunks of tokens so that the logits of the whole batch never exist.
 *
 * A chunk's logits are fp32, so their rounding does not show in the loss; their gradient
 * takes their place as the compute dtype, each row at the start of the memory of its fp32
 * row. One block does a row: maximum and sum in one pass, the gradient in a second. Losses
 * of tokens go to scratch and are added up in a fixed order, in double.
 *
 * Floor: 6 T V D operations with gradients. Bytes: for each chunk of C tokens 4 C V written
 * by the product, 4 C V + 4 C V read and e C V written by the row kernel, 2 e C V read by the
 * products, e V D three times for W, 8 V D for its gradient. Small chunks are thus paid for
 * by reading W and its gradient more often; see chunk_tokens(). */
#include "codelets/common/cuda_gemm.h"
#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

constexpr size_t logits_bytes = static_cast<size_t>(1) << 30; /* of one chunk, about */
constexpr unsigned row_block = 512, loss_block = 1024;

/* Tokens of a chunk: from V and T alone, so that the bits are too. */
size_t chunk_tokens(size_t tokens, size_t vocabulary)
{
    size_t chunk = logits_bytes / (vocabulary * sizeof(float)) / 128 * 128;

    chunk = chunk < 128 ? 128 : chunk > 4096 ? 4096 : chunk;
    return tokens < chunk ? tokens : chunk;
}

template <typename T> __device__ __forceinline__ float exponential(float x);
template <> __device__ __forceinline__ float exponential<bf16>(float x) { return __expf(x); }
template <> __device__ __forceinline__ float exponential<float>(float x) { return expf(x); }

/* N fp32 logits in loads of 16 bytes. */
template <int N> __device__ __forceinline__ void load_logits(const float *from, float (&to)[N])
{
    if constexpr (N == 8) {
        float half[4];
        load<float, 4>(from, half);
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = half[i];
        load<float, 4>(from + 4, half);
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[4 + i] = half[i];
    } else {
        load<float, N>(from, to);
    }
}

__device__ __forceinline__ float block_max(float x, float *scratch)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = lanes_max(x, 32);
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    x = lanes_max(lane < warps ? scratch[lane] : -INFINITY, 32);
    __syncthreads();
    return x;
}

/* Largest logit of a row and the sum of exp(logit - largest); every thread gets both. */
template <typename T, int N>
__device__ __forceinline__ void row_statistics(const float *row, size_t vocabulary, float *scratch, float *largest,
                                               float *sum)
{
    float m = -INFINITY, s = 0.0f;

    for (size_t c = static_cast<size_t>(threadIdx.x) * N; c < vocabulary; c += static_cast<size_t>(blockDim.x) * N) {
        float x[N];
        load_logits<N>(row + c, x);
        float top = m;
#pragma unroll
        for (int i = 0; i < N; i++)
            top = fmaxf(top, x[i]);
        s *= exponential<T>(m - top);
#pragma unroll
        for (int i = 0; i < N; i++)
            s += exponential<T>(x[i] - top);
        m = top;
    }
    *largest = block_max(m, scratch);
    *sum = block_sum(s * exponential<T>(m - *largest), scratch);
}

/* logits (rows, V) fp32; block: one token. The gradient overwrites them, element c of row r at element
 * c of the T that start where the fp32 row starts. A bf16 tile [c, c + n) lies at bytes [2 c, 2 c + 2 n) of the
 * row: over logits of this tile, which the barrier guards, or of earlier ones; never over a later tile's. */
template <typename T, int N>
__global__ void __launch_bounds__(row_block)
    loss_row_kernel(float *logits, const int32_t *targets, float *losses, size_t vocabulary, float scale,
                    bool want_gradient)
{
    __shared__ float scratch[32];
    float *row = logits + blockIdx.x * vocabulary;
    T *drow = reinterpret_cast<T *>(row);
    const int32_t target = targets[blockIdx.x];
    const bool counted = target >= 0;
    float largest = 0.0f, sum = 1.0f;

    if (counted) { /* the same for the whole block */
        const float at_target = row[target]; /* before the barriers below, hence before it is overwritten */
        row_statistics<T, N>(row, vocabulary, scratch, &largest, &sum);
        if (threadIdx.x == 0)
            losses[blockIdx.x] = largest - at_target + logf(sum);
    } else if (threadIdx.x == 0) {
        losses[blockIdx.x] = 0.0f;
    }
    if (!want_gradient)
        return;

    const float factor = scale / sum;
    for (size_t tile = 0; tile < vocabulary; tile += static_cast<size_t>(blockDim.x) * N) {
        const size_t c = tile + static_cast<size_t>(threadIdx.x) * N;
        float x[N] = {};
        if (counted && c < vocabulary) {
            load_logits<N>(row + c, x);
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] = exponential<T>(x[i] - largest) * factor;
                if (c + i == static_cast<size_t>(target))
                    x[i] -= scale;
            }
        }
        __syncthreads();
        if (c < vocabulary)
            store<T, N>(drow + c, x);
    }
}

/* One block: thread k adds the losses k, k + 1024, ... in order, then a tree over the threads. */
__global__ void __launch_bounds__(loss_block) loss_sum_kernel(const float *losses, size_t tokens, double *loss)
{
    __shared__ double shared[loss_block];
    double sum = 0.0;

    for (size_t t = threadIdx.x; t < tokens; t += loss_block)
        sum += static_cast<double>(losses[t]);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = loss_block / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *loss = shared[0];
}

/* One chunk: tokens [first, first + rows). */
struct Chunk {
    size_t first, rows;
    float *logits, *losses; /* losses of the whole call */
};

template <typename T, int N> enum sdp_status launch_rows(const struct sdp_op_call *call, const Chunk &chunk)
{
    loss_row_kernel<T, N><<<static_cast<unsigned>(chunk.rows), row_block, 0, stream_of(call)>>>(
        chunk.logits, call->batch->targets + chunk.first, chunk.losses + chunk.first, call->node->weight_rows[0],
        call->loss_scale, call->want_gradient);
    SDP_CUDA_LAUNCHED("loss_row_kernel");
    return SDP_OK;
}

enum sdp_status loss_rows(const struct sdp_op_call *call, const Chunk &chunk)
{
    const size_t vocabulary = call->node->weight_rows[0];

    if (call->dtype == SDP_BF16)
        return vocabulary % 8 == 0 ? launch_rows<bf16, 8>(call, chunk) : launch_rows<bf16, 1>(call, chunk);
    return vocabulary % 4 == 0 ? launch_rows<float, 4>(call, chunk) : launch_rows<float, 1>(call, chunk);
}

const char *input_rows(const struct sdp_op_call *call, size_t first)
{
    return static_cast<const char *>(call->in[0]) +
           first * call->node->input_cols[0] * sdp_dtype_size(call->dtype);
}

enum sdp_status logits_product(const struct sdp_op_call *call, const Chunk &chunk)
{
    const size_t cols = call->node->input_cols[0], vocabulary = call->node->weight_rows[0];
    struct sdp_gemm g = {};

    g.transpose_b = true;
    g.m = chunk.rows;
    g.n = vocabulary;
    g.k = cols;
    g.a = input_rows(call, chunk.first);
    g.lda = cols;
    g.b = call->weight[0];
    g.ldb = cols;
    g.d = chunk.logits;
    g.ldd = vocabulary;
    g.in_dtype = call->dtype;
    g.out_dtype = SDP_FP32;
    return sdp_gemm_cuda(call->device, &g);
}

enum sdp_status gradient_products(const struct sdp_op_call *call, const Chunk &chunk)
{
    const size_t cols = call->node->input_cols[0], vocabulary = call->node->weight_rows[0];
    const size_t size = sdp_dtype_size(call->dtype);
    struct sdp_gemm g = {};

    g.m = chunk.rows;
    g.n = cols;
    g.k = vocabulary;
    g.a = chunk.logits;
    g.lda = vocabulary * (sizeof(float) / size); /* elements between the starts of fp32 rows */
    g.b = call->weight[0];
    g.ldb = cols;
    g.d = call->din[0] ? static_cast<char *>(call->din[0]) + chunk.first * cols * size : nullptr;
    g.c = g.d;
    g.ldd = cols;
    g.in_dtype = call->dtype;
    g.out_dtype = call->dtype;
    g.beta = call->add_din[0] ? 1.0f : 0.0f;
    if (g.d)
        SDP_TRY(sdp_gemm_cuda(call->device, &g));
    if (!call->dweight[0])
        return SDP_OK;
    g.transpose_a = true;
    g.m = vocabulary;
    g.k = chunk.rows;
    g.b = input_rows(call, chunk.first);
    g.d = call->dweight[0];
    g.c = g.d;
    g.out_dtype = SDP_FP32;
    g.beta = call->add_dweight || chunk.first > 0 ? 1.0f : 0.0f;
    return sdp_gemm_cuda(call->device, &g);
}

} // namespace

extern "C" size_t sdp_cross_entropy_work_cuda(const struct sdp_op_node *node, size_t tokens, size_t, enum sdp_dtype,
                                              bool)
{
    const size_t vocabulary = node->weight_rows[0];
    return sdp_round_up(chunk_tokens(tokens, vocabulary) * vocabulary * sizeof(float), 256) +
           tokens * sizeof(float);
}

extern "C" enum sdp_status sdp_cross_entropy_forward_cuda(const struct sdp_op_call *call)
{
    const size_t tokens = call->batch->tokens, vocabulary = call->node->weight_rows[0];
    const size_t rows = chunk_tokens(tokens, vocabulary);
    char *work = static_cast<char *>(call->work);
    Chunk chunk = {};

    chunk.logits = reinterpret_cast<float *>(work);
    chunk.losses = reinterpret_cast<float *>(work + sdp_round_up(rows * vocabulary * sizeof(float), 256));
    for (chunk.first = 0; chunk.first < tokens; chunk.first += rows) {
        chunk.rows = SDP_MIN(rows, tokens - chunk.first);
        SDP_TRY(logits_product(call, chunk));
        if (call->logits)
            SDP_CUDA(cudaMemcpyAsync(call->logits + chunk.first * vocabulary, chunk.logits,
                                     chunk.rows * vocabulary * sizeof(float), cudaMemcpyDeviceToDevice,
                                     stream_of(call)));
        SDP_TRY(loss_rows(call, chunk));
        if (call->want_gradient)
            SDP_TRY(gradient_products(call, chunk));
    }
    loss_sum_kernel<<<1, loss_block, 0, stream_of(call)>>>(chunk.losses, tokens, call->loss);
    SDP_CUDA_LAUNCHED("loss_sum_kernel");
    return SDP_OK;
}
