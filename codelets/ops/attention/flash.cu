/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Our own attention kernels; see flash.h. Tiles of B queries by B keys, in shared memory as
 * float; 8 threads share a row of a tile, each with every 8th column. Scores never reach
 * device memory. The backward pass computes them twice, once by blocks of queries for dq
 * and once by blocks of keys for dk and dv, so that every sum has one owner and one order.
 *
 * Floor: 4 T^2 / 2 * heads * head_dim operations for each sequence of T tokens forward, here
 * at the rate of plain fp32 units and about two shared-memory reads an operation; backward
 * 3.5 times that. Bytes: qkv, out and their gradients once, keys and values again for every
 * block of queries (from L2). */
#include "codelets/ops/attention/flash.h"

#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

constexpr int lanes = 8; /* threads of a tile row */

struct Problem {
    int length, heads, kv_heads, head_dim, window, blocks; /* blocks: tiles in a sequence */
    float scale;
    const int32_t *positions; /* NULL: a sequence is one document */

    __device__ size_t row() const { return static_cast<size_t>(heads + 2 * kv_heads) * head_dim; }
    /* First key that a query sees; more than any for a query behind the sequence. Later ones see no earlier keys. */
    __device__ int first_key(size_t token0, int query) const
    {
        if (query >= length)
            return length;
        const int in_window = window == 0 || query < window ? 0 : query - window + 1;
        return positions ? max(in_window, query - positions[token0 + query]) : in_window;
    }
};

/* tile[r][d] = rows first + r of a matrix with the given stride; zero beyond `length` rows and `width` columns. */
template <typename T, int D, int B>
__device__ __forceinline__ void load_tile(float (*tile)[D + 1], const T *from, size_t stride, int first, int length,
                                          int width)
{
    constexpr int warps = B * lanes / 32;
    for (int r = threadIdx.x / 32; r < B; r += warps) {
        const T *source = from + static_cast<size_t>(first + r) * stride;
        for (int d = threadIdx.x % 32; d < D; d += 32)
            tile[r][d] = first + r < length && d < width ? to_float(source[d]) : 0.0f;
    }
}

template <int D> __device__ __forceinline__ float dot(const float *a, const float *b, int width)
{
    float sum = 0.0f;
#pragma unroll 8
    for (int d = 0; d < width; d++)
        sum += a[d] * b[d];
    return sum;
}

/* Block: B queries of one head of one sequence. */
template <typename T, int D, int B>
__global__ void __launch_bounds__(B *lanes)
    flash_forward_kernel(Problem p, const T *qkv, T *out, float *lse)
{
    extern __shared__ float shared[];
    auto q = reinterpret_cast<float(*)[D + 1]>(shared);
    auto kv = q + B;
    auto weight = reinterpret_cast<float(*)[B + 1]>(kv + B);
    const int q0 = static_cast<int>(blockIdx.x % p.blocks) * B;
    const int head = static_cast<int>(blockIdx.x / p.blocks % p.heads);
    const size_t token0 = static_cast<size_t>(blockIdx.x / p.blocks / p.heads) * p.length;
    const int kv_head = head / (p.heads / p.kv_heads);
    const T *base = qkv + token0 * p.row();
    const T *keys = base + static_cast<size_t>(p.heads + kv_head) * p.head_dim;
    const T *values = keys + static_cast<size_t>(p.kv_heads) * p.head_dim;
    const int r = threadIdx.x / lanes, part = threadIdx.x % lanes, i = q0 + r;
    const int end = min(p.length, q0 + B);
    const int first = p.first_key(token0, i);
    float acc[D / lanes] = {}, largest = -INFINITY, total = 0.0f;

    load_tile<T, D, B>(q, base + static_cast<size_t>(head) * p.head_dim, p.row(), q0, p.length, p.head_dim);
    for (int k0 = p.first_key(token0, q0); k0 < end; k0 += B) {
        float score[B / lanes], top = -INFINITY, sum = 0.0f;

        load_tile<T, D, B>(kv, keys, p.row(), k0, p.length, p.head_dim);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < B / lanes; n++) {
            const int c = part + lanes * n;
            score[n] = first <= k0 + c && k0 + c <= i ? p.scale * dot<D>(q[r], kv[c], p.head_dim) : -INFINITY;
            top = fmaxf(top, score[n]);
        }
        top = fmaxf(largest, lanes_max(top, lanes));
        /* A row may see nothing of this tile nor of those before it (a window, or no such row). */
        const float shrink = top == -INFINITY ? 1.0f : expf(largest - top);
#pragma unroll
        for (int n = 0; n < B / lanes; n++) {
            const float w = top == -INFINITY ? 0.0f : expf(score[n] - top);
            weight[r][part + lanes * n] = w;
            sum += w;
        }
        total = total * shrink + lanes_sum(sum, lanes);
        largest = top;
        __syncthreads(); /* the keys have been read */
        load_tile<T, D, B>(kv, values, p.row(), k0, p.length, p.head_dim);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < D / lanes; n++)
            acc[n] *= shrink;
#pragma unroll 2
        for (int c = 0; c < B; c++) {
#pragma unroll
            for (int n = 0; n < D / lanes; n++)
                acc[n] += weight[r][c] * kv[c][part + lanes * n];
        }
        __syncthreads(); /* the values have been read */
    }
    if (i >= p.length)
        return;
    T *to = out + ((token0 + i) * p.heads + head) * p.head_dim;
#pragma unroll
    for (int n = 0; n < D / lanes; n++) {
        if (part + lanes * n < p.head_dim)
            to[part + lanes * n] = from_float<T>(acc[n] / total);
    }
    if (part == 0)
        lse[(token0 + i) * p.heads + head] = largest + logf(total);
}

/* delta (T, heads): dout . out of each head. Warp: one token and head. */
template <typename T>
__global__ void __launch_bounds__(256) delta_kernel(const T *out, const T *dout, float *delta, size_t rows, int width)
{
    const size_t row = static_cast<size_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    float sum = 0.0f;

    if (row >= rows) /* whole warps */
        return;
    for (int d = threadIdx.x % 32; d < width; d += 32)
        sum += to_float(out[row * width + d]) * to_float(dout[row * width + d]);
    sum = lanes_sum(sum, 32);
    if (threadIdx.x % 32 == 0)
        delta[row] = sum;
}

/* What both gradient kernels compute for query row q[r] and key row k[c]: the softmax weight and the gradient
 * of the unscaled score. lse and delta are the query's. */
template <int D>
__device__ __forceinline__ void score_gradient(const Problem &p, bool seen, const float *q, const float *k,
                                               const float *dout, const float *v, float lse, float delta,
                                               float *weight, float *dscore)
{
    *weight = seen ? expf(p.scale * dot<D>(q, k, p.head_dim) - lse) : 0.0f;
    *dscore = seen ? *weight * (dot<D>(dout, v, p.head_dim) - delta) * p.scale : 0.0f;
}

/* Block: B queries of one head of one sequence. */
template <typename T, int D, int B>
__global__ void __launch_bounds__(B *lanes)
    flash_dq_kernel(Problem p, const T *qkv, const float *lse, const T *dout, const float *delta, T *dqkv, bool add)
{
    extern __shared__ float shared[];
    auto q = reinterpret_cast<float(*)[D + 1]>(shared);
    auto d_out = q + B, k = d_out + B, v = k + B;
    auto dscore = reinterpret_cast<float(*)[B + 1]>(v + B);
    const int q0 = static_cast<int>(blockIdx.x % p.blocks) * B;
    const int head = static_cast<int>(blockIdx.x / p.blocks % p.heads);
    const size_t token0 = static_cast<size_t>(blockIdx.x / p.blocks / p.heads) * p.length;
    const int kv_head = head / (p.heads / p.kv_heads);
    const T *base = qkv + token0 * p.row();
    const T *keys = base + static_cast<size_t>(p.heads + kv_head) * p.head_dim;
    const T *values = keys + static_cast<size_t>(p.kv_heads) * p.head_dim;
    const size_t out_row = static_cast<size_t>(p.heads) * p.head_dim;
    const size_t column = static_cast<size_t>(head) * p.head_dim;
    const int r = threadIdx.x / lanes, part = threadIdx.x % lanes, i = q0 + r;
    const int end = min(p.length, q0 + B);
    const bool real = i < p.length;
    const float my_lse = real ? lse[(token0 + i) * p.heads + head] : 0.0f;
    const float my_delta = real ? delta[(token0 + i) * p.heads + head] : 0.0f;
    const int first = p.first_key(token0, i);
    float acc[D / lanes] = {};

    load_tile<T, D, B>(q, base + column, p.row(), q0, p.length, p.head_dim);
    load_tile<T, D, B>(d_out, dout + token0 * out_row + column, out_row, q0, p.length, p.head_dim);
    for (int k0 = p.first_key(token0, q0); k0 < end; k0 += B) {
        load_tile<T, D, B>(k, keys, p.row(), k0, p.length, p.head_dim);
        load_tile<T, D, B>(v, values, p.row(), k0, p.length, p.head_dim);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < B / lanes; n++) {
            const int c = part + lanes * n;
            float weight;
            score_gradient<D>(p, first <= k0 + c && k0 + c <= i, q[r], k[c], d_out[r], v[c], my_lse, my_delta, &weight,
                              &dscore[r][c]);
        }
        __syncwarp(); /* a row of dscore is written and read by 8 lanes of one warp */
#pragma unroll 2
        for (int c = 0; c < B; c++) {
#pragma unroll
            for (int n = 0; n < D / lanes; n++)
                acc[n] += dscore[r][c] * k[c][part + lanes * n];
        }
        __syncthreads(); /* the tiles have been read */
    }
    if (!real)
        return;
    T *to = dqkv + (token0 + i) * p.row() + column;
#pragma unroll
    for (int n = 0; n < D / lanes; n++) {
        const float value[1] = {acc[n]};
        if (part + lanes * n < p.head_dim)
            deliver<T, 1>(to + part + lanes * n, value, add);
    }
}

/* Block: B keys of one key head of one sequence, for all heads that share it. */
template <typename T, int D, int B>
__global__ void __launch_bounds__(B *lanes)
    flash_dkv_kernel(Problem p, const T *qkv, const float *lse, const T *dout, const float *delta, T *dqkv, bool add)
{
    extern __shared__ float shared[];
    auto q = reinterpret_cast<float(*)[D + 1]>(shared);
    auto d_out = q + B, k = d_out + B, v = k + B;
    auto weight = reinterpret_cast<float(*)[B + 1]>(v + B);
    auto dscore = weight + B;
    const int k0 = static_cast<int>(blockIdx.x % p.blocks) * B;
    const int kv_head = static_cast<int>(blockIdx.x / p.blocks % p.kv_heads);
    const size_t token0 = static_cast<size_t>(blockIdx.x / p.blocks / p.kv_heads) * p.length;
    const int group = p.heads / p.kv_heads;
    const T *base = qkv + token0 * p.row();
    const size_t key_column = static_cast<size_t>(p.heads + kv_head) * p.head_dim;
    const size_t value_column = key_column + static_cast<size_t>(p.kv_heads) * p.head_dim;
    const size_t out_row = static_cast<size_t>(p.heads) * p.head_dim;
    const int r = threadIdx.x / lanes, part = threadIdx.x % lanes;
    const int end = p.window == 0 || p.length - k0 < B - 1 + p.window ? p.length : k0 + B - 1 + p.window;
    float dk[D / lanes] = {}, dv[D / lanes] = {};

    load_tile<T, D, B>(k, base + key_column, p.row(), k0, p.length, p.head_dim);
    load_tile<T, D, B>(v, base + value_column, p.row(), k0, p.length, p.head_dim);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const size_t column = static_cast<size_t>(head) * p.head_dim;
        for (int q0 = k0; q0 < end && p.first_key(token0, q0) < k0 + B; q0 += B) {
            const int i = q0 + r, first = p.first_key(token0, i);
            const bool real = i < p.length;
            const float my_lse = real ? lse[(token0 + i) * p.heads + head] : 0.0f;
            const float my_delta = real ? delta[(token0 + i) * p.heads + head] : 0.0f;

            load_tile<T, D, B>(q, base + column, p.row(), q0, p.length, p.head_dim);
            load_tile<T, D, B>(d_out, dout + token0 * out_row + column, out_row, q0, p.length, p.head_dim);
            __syncthreads();
#pragma unroll
            for (int n = 0; n < B / lanes; n++) { /* row r is a query here, and a key below */
                const int c = part + lanes * n;
                score_gradient<D>(p, first <= k0 + c && k0 + c <= i, q[r], k[c], d_out[r], v[c], my_lse, my_delta,
                                  &weight[r][c], &dscore[r][c]);
            }
            __syncthreads();
#pragma unroll 2
            for (int c = 0; c < B; c++) {
#pragma unroll
                for (int n = 0; n < D / lanes; n++) {
                    dv[n] += weight[c][r] * d_out[c][part + lanes * n];
                    dk[n] += dscore[c][r] * q[c][part + lanes * n];
                }
            }
            __syncthreads(); /* the tiles have been read */
        }
    }
    if (k0 + r >= p.length)
        return;
    T *to = dqkv + (token0 + k0 + r) * p.row();
#pragma unroll
    for (int n = 0; n < D / lanes; n++) {
        const float key[1] = {dk[n]}, value[1] = {dv[n]};
        const int d = part + lanes * n;
        if (d < p.head_dim) {
            deliver<T, 1>(to + key_column + d, key, add);
            deliver<T, 1>(to + value_column + d, value, add);
        }
    }
}

/* (sequence, token, head) to (sequence, head, token) or back. */
__global__ void __launch_bounds__(256)
    lse_kernel(const float *from, float *to, size_t count, size_t length, size_t heads, bool to_heads)
{
    const size_t n = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; /* by token */
    if (n >= count)
        return;

    const size_t token = n / heads, head = n % heads;
    const size_t m = (token / length * heads + head) * length + token % length; /* by head */
    if (to_heads)
        to[m] = from[n];
    else
        to[n] = from[m];
}

Problem problem_of(const struct sdpi_attention *a, int block)
{
    Problem p = {};
    p.length = static_cast<int>(a->length);
    p.heads = static_cast<int>(a->heads);
    p.kv_heads = static_cast<int>(a->kv_heads);
    p.head_dim = static_cast<int>(a->head_dim);
    p.window = a->window < a->length ? static_cast<int>(a->window) : 0;
    p.blocks = static_cast<int>(divide_up(a->length, static_cast<size_t>(block)));
    p.scale = a->scale;
    p.positions = a->positions;
    return p;
}

struct Arguments {
    const void *qkv, *out, *dout;
    void *forward_out, *dqkv;
    const float *lse;
    float *forward_lse, *delta;
    bool add;
    cudaStream_t stream;
};

template <int D, int B> constexpr size_t shared_bytes(int tiles, int squares)
{
    return sizeof(float) * (static_cast<size_t>(tiles) * B * (D + 1) + static_cast<size_t>(squares) * B * (B + 1));
}

template <typename T, int D, int B> enum sdp_status forward(const struct sdpi_attention *a, const Arguments &x)
{
    const Problem p = problem_of(a, B);
    const size_t grid = a->sequences * a->heads * static_cast<size_t>(p.blocks);

    flash_forward_kernel<T, D, B><<<static_cast<unsigned>(grid), B * lanes, shared_bytes<D, B>(2, 1), x.stream>>>(
        p, static_cast<const T *>(x.qkv), static_cast<T *>(x.forward_out), x.forward_lse);
    SDP_CUDA_LAUNCHED("flash_forward_kernel");
    return SDP_OK;
}

template <typename T, int D, int B> enum sdp_status backward(const struct sdpi_attention *a, const Arguments &x)
{
    const Problem p = problem_of(a, B);
    const size_t rows = a->sequences * a->length * a->heads;
    const size_t blocks = a->sequences * static_cast<size_t>(p.blocks);
    const T *qkv = static_cast<const T *>(x.qkv), *dout = static_cast<const T *>(x.dout);
    T *dqkv = static_cast<T *>(x.dqkv);

    SDP_CUDA(cudaFuncSetAttribute(flash_dq_kernel<T, D, B>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes<D, B>(4, 1))));
    SDP_CUDA(cudaFuncSetAttribute(flash_dkv_kernel<T, D, B>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes<D, B>(4, 2))));
    delta_kernel<T><<<static_cast<unsigned>(divide_up(rows, 8)), 256, 0, x.stream>>>(
        static_cast<const T *>(x.out), dout, x.delta, rows, p.head_dim);
    SDP_CUDA_LAUNCHED("delta_kernel");
    flash_dq_kernel<T, D, B>
        <<<static_cast<unsigned>(blocks * a->heads), B * lanes, shared_bytes<D, B>(4, 1), x.stream>>>(
            p, qkv, x.lse, dout, x.delta, dqkv, x.add);
    SDP_CUDA_LAUNCHED("flash_dq_kernel");
    flash_dkv_kernel<T, D, B>
        <<<static_cast<unsigned>(blocks * a->kv_heads), B * lanes, shared_bytes<D, B>(4, 2), x.stream>>>(
            p, qkv, x.lse, dout, x.delta, dqkv, x.add);
    SDP_CUDA_LAUNCHED("flash_dkv_kernel");
    return SDP_OK;
}

template <typename T> enum sdp_status choose(const struct sdpi_attention *a, const Arguments &x, bool is_backward)
{
    if (a->head_dim <= 64)
        return is_backward ? backward<T, 64, 32>(a, x) : forward<T, 64, 32>(a, x);
    if (a->head_dim <= 128)
        return is_backward ? backward<T, 128, 32>(a, x) : forward<T, 128, 32>(a, x);
    if (a->head_dim <= 256)
        return is_backward ? backward<T, 256, 16>(a, x) : forward<T, 256, 16>(a, x);
    sdp_warn("attention heads of %zu columns; on a GPU they may have 256 at most", a->head_dim);
    return SDP_INTERNAL;
}

enum sdp_status run(const struct sdpi_attention *a, const Arguments &x, bool is_backward)
{
    if (a->sequences * a->length == 0)
        return SDP_OK;
    return a->dtype == SDP_BF16 ? choose<bf16>(a, x, is_backward) : choose<float>(a, x, is_backward);
}

enum sdp_status turn(const struct sdpi_attention *a, const float *from, float *to, bool to_heads, void *stream)
{
    const size_t count = a->sequences * a->length * a->heads;

    if (count == 0)
        return SDP_OK;
    lse_kernel<<<static_cast<unsigned>(divide_up(count, 256)), 256, 0, static_cast<cudaStream_t>(stream)>>>(
        from, to, count, a->length, a->heads, to_heads);
    SDP_CUDA_LAUNCHED("lse_kernel");
    return SDP_OK;
}

/* Element i of both packed gradients goes to its sum; add 0: it is the sum. */
__global__ void key_sums_kernel(const bf16 *dk, const bf16 *dv, float *dk_sum, float *dv_sum, size_t count, bool add)
{
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;

    if (i >= count)
        return;
    dk_sum[i] = to_float(dk[i]) + (add ? dk_sum[i] : 0.0f);
    dv_sum[i] = to_float(dv[i]) + (add ? dv_sum[i] : 0.0f);
}

/* dk, dv: the head's first row in dqkv. */
__global__ void key_gradient_kernel(const float *dk_sum, const float *dv_sum, bf16 *dk, bf16 *dv, size_t count,
                                    size_t width, size_t row)
{
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;

    if (i >= count)
        return;
    dk[i / width * row + i % width] = from_float<bf16>(dk_sum[i]);
    dv[i / width * row + i % width] = from_float<bf16>(dv_sum[i]);
}

} // namespace

extern "C" enum sdp_status sdpi_flash_forward(const struct sdpi_attention *a, const void *qkv, void *out, float *lse,
                                              void *stream)
{
    Arguments x = {};
    x.qkv = qkv;
    x.forward_out = out;
    x.forward_lse = lse;
    x.stream = static_cast<cudaStream_t>(stream);
    return run(a, x, false);
}

extern "C" enum sdp_status sdpi_flash_backward(const struct sdpi_attention *a, const void *qkv, const void *out,
                                               const float *lse, const void *dout, void *dqkv, bool add, float *delta,
                                               void *stream)
{
    Arguments x = {};
    x.qkv = qkv;
    x.out = out;
    x.lse = lse;
    x.dout = dout;
    x.dqkv = dqkv;
    x.add = add;
    x.delta = delta;
    x.stream = static_cast<cudaStream_t>(stream);
    return run(a, x, true);
}

extern "C" enum sdp_status sdpi_lse_by_head(const struct sdpi_attention *a, const float *by_token, float *by_head,
                                            void *stream)
{
    return turn(a, by_token, by_head, true, stream);
}

extern "C" enum sdp_status sdpi_lse_by_token(const struct sdpi_attention *a, const float *by_head, float *by_token,
                                             void *stream)
{
    return turn(a, by_head, by_token, false, stream);
}

extern "C" enum sdp_status sdpi_key_sums(const struct sdpi_attention *a, size_t keys, const void *dk, const void *dv,
                                         float *dk_sum, float *dv_sum, bool add, void *stream)
{
    const size_t count = keys * a->head_dim;

    key_sums_kernel<<<static_cast<unsigned>(divide_up(count, 256)), 256, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const bf16 *>(dk), static_cast<const bf16 *>(dv), dk_sum, dv_sum, count, add);
    SDP_CUDA_LAUNCHED("key_sums_kernel");
    return SDP_OK;
}

extern "C" enum sdp_status sdpi_key_gradient(const struct sdpi_attention *a, size_t s, size_t h, const float *dk_sum,
                                             const float *dv_sum, void *dqkv, void *stream)
{
    const size_t count = a->length * a->head_dim, row = (a->heads + 2 * a->kv_heads) * a->head_dim;
    bf16 *const dk = static_cast<bf16 *>(dqkv) + s * a->length * row + (a->heads + h) * a->head_dim;
    bf16 *const dv = dk + a->kv_heads * a->head_dim;

    key_gradient_kernel<<<static_cast<unsigned>(divide_up(count, 256)), 256, 0, static_cast<cudaStream_t>(stream)>>>(
        dk_sum, dv_sum, dk, dv, count, a->head_dim, row);
    SDP_CUDA_LAUNCHED("key_gradient_kernel");
    return SDP_OK;
}
