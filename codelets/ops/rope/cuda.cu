/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `rope`: each row of qkv (T, (heads + 2 kv_heads) * head_dim) is q heads, k
 * heads, v heads. q and k heads are RMS-normalised where a weight is given, then rotated:
 * elements i and i + head_dim / 2 by the angle position * frequency[i]; v is copied.
 *
 * One block does a token: sine and cosine of its angles are computed once, into shared
 * memory, and serve all heads. A group of lanes (a power of two) owns a head; a lane holds
 * packs of N elements of the first half and their partners of the second, so nothing but
 * the sums of squares crosses lanes, and a head is read before it is written: input and
 * output may be the same memory, in both directions.
 *
 * Backward with a norm: a fixed number of blocks each take every so-manyth token and keep
 * the gradients of the norm weights in registers; lanes, groups and blocks are added in order.
 *
 * Floor, bytes (e = bytes of an element, C = (heads + 2 kv_heads) * head_dim): forward 2 T C e;
 * backward 2 T C e (3 when adding), + T C e of the input where there is a norm. */
#include "codelets/common/cuda_columns.h"
#include "codelets/common/cuda_vector.cuh"
#include "codelets/ops/rope/frequencies.h"

using namespace sdp;

namespace {

constexpr unsigned block = 128;
constexpr int max_half = SDP_ROPE_MAX_HEAD_DIM / 2;

struct Problem {
    const int32_t *positions;
    const void *q_norm, *k_norm; /* null: that part is not normalised */
    float *rstd;                 /* (T, heads + kv_heads), or null without norms */
    size_t tokens;
    int heads, kv_heads, head_dim, half;
    int lanes;                   /* of a group */
    float eps;
    struct sdp_rope_frequencies frequencies;
};

/* The pair of packs that a lane holds in its j-th turn: elements k ... and half + k .... */
template <int N> __device__ __forceinline__ int pack_start(const Problem &p, int lane, int j)
{
    return (lane + j * p.lanes) * N;
}

/* Fills the tables for one token; the barriers guard them against the token before. */
__device__ __forceinline__ void fill_angles(const Problem &p, size_t t, float *cosine, float *sine)
{
    __syncthreads();
    const float position = static_cast<float>(p.positions[t]);
    for (int i = threadIdx.x; i < p.half; i += blockDim.x) {
        float s, c;
        sincosf(position * p.frequencies.inverse[i], &s, &c);
        cosine[i] = c * p.frequencies.magnitude;
        sine[i] = s * p.frequencies.magnitude;
    }
    __syncthreads();
}

template <typename T> __device__ __forceinline__ const T *norm_of(const Problem &p, int slot)
{
    return static_cast<const T *>(slot < p.heads ? p.q_norm : slot < p.heads + p.kv_heads ? p.k_norm : nullptr);
}

/* Block: one token. J: most turns of a lane (head_dim up to 2 * 32 * N * J). */
template <typename T, int N, int J>
__global__ void __launch_bounds__(block) rope_kernel(Problem p, const T *x, T *y)
{
    __shared__ float cosine[max_half], sine[max_half];
    const size_t t = blockIdx.x;
    const int group = threadIdx.x / p.lanes, groups = blockDim.x / p.lanes, lane = threadIdx.x % p.lanes;
    const int rotated = p.heads + p.kv_heads, slots = rotated + p.kv_heads;
    const T *in = x + t * slots * p.head_dim;
    T *out = y + t * slots * p.head_dim;

    fill_angles(p, t, cosine, sine);
    for (int first = 0; first < slots; first += groups) { /* all lanes of a warp stay for the sums */
        const int slot = first + group;
        const T *norm = norm_of<T>(p, slot);
        float a[J][N] = {}, b[J][N] = {}, sum = 0.0f;

#pragma unroll
        for (int j = 0; j < J; j++) {
            const int k = pack_start<N>(p, lane, j);
            if (slot < slots && k < p.half) {
                load<T, N>(in + slot * p.head_dim + k, a[j]);
                load<T, N>(in + slot * p.head_dim + p.half + k, b[j]);
            }
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += a[j][i] * a[j][i] + b[j][i] * b[j][i];
        }
        sum = lanes_sum(sum, p.lanes);
        const float r = rsqrtf(sum / static_cast<float>(p.head_dim) + p.eps);
        if (norm && lane == 0)
            p.rstd[t * rotated + slot] = r;
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int k = pack_start<N>(p, lane, j);
            if (slot >= slots || k >= p.half)
                continue;
            if (norm) {
                float w[N];
                load<T, N>(norm + k, w);
#pragma unroll
                for (int i = 0; i < N; i++)
                    a[j][i] *= r * w[i];
                load<T, N>(norm + p.half + k, w);
#pragma unroll
                for (int i = 0; i < N; i++)
                    b[j][i] *= r * w[i];
            }
            if (slot < rotated) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float c = cosine[k + i], s = sine[k + i], u = a[j][i], v = b[j][i];
                    a[j][i] = u * c - v * s;
                    b[j][i] = v * c + u * s;
                }
            }
            store<T, N>(out + slot * p.head_dim + k, a[j]);
            store<T, N>(out + slot * p.head_dim + p.half + k, b[j]);
        }
    }
}

/* Adds a lane's norm gradients of all groups of the block, in order, into partial (head_dim). */
template <int N, int J>
__device__ __forceinline__ void reduce_groups(const Problem &p, const float (&a)[J][N], const float (&b)[J][N],
                                              float *shared, float *partial)
{
    const int group = threadIdx.x / p.lanes, groups = blockDim.x / p.lanes, lane = threadIdx.x % p.lanes;

    __syncthreads();
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int k = pack_start<N>(p, lane, j);
        if (k >= p.half)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            shared[group * p.head_dim + k + i] = a[j][i];
            shared[group * p.head_dim + p.half + k + i] = b[j][i];
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < p.head_dim; c += blockDim.x) {
        float sum = 0.0f;
        for (int g = 0; g < groups; g++)
            sum += shared[g * p.head_dim + c];
        partial[c] = sum;
    }
}

/* A lane's share of the norm gradients. */
template <int N, int J> struct NormGradient {
    float qa[J][N], qb[J][N], ka[J][N], kb[J][N];
};

/* One head's share: turns the gradient (a, b) of a normalised head into that of its input x, and adds to the norm's
 * gradient. norm is null where this group has no head that is normalised; its lanes come here all the same, for the
 * sum. */
template <typename T, int N, int J>
__device__ __forceinline__ void norm_gradient(const Problem &p, const T *norm, const T *x, float r, bool is_q, int lane,
                                              float (&a)[J][N], float (&b)[J][N], NormGradient<N, J> *sum)
{
    float na[J][N] = {}, nb[J][N] = {}, dot = 0.0f;

#pragma unroll
    for (int j = 0; j < J; j++) {
        const int k = pack_start<N>(p, lane, j);
        if (!norm || k >= p.half)
            continue;
        float wa[N], wb[N];
        load<T, N>(x + k, na[j]);
        load<T, N>(x + p.half + k, nb[j]);
        load<T, N>(norm + k, wa);
        load<T, N>(norm + p.half + k, wb);
#pragma unroll
        for (int i = 0; i < N; i++) {
            na[j][i] *= r;
            nb[j][i] *= r;
            sum->qa[j][i] += is_q ? a[j][i] * na[j][i] : 0.0f;
            sum->qb[j][i] += is_q ? b[j][i] * nb[j][i] : 0.0f;
            sum->ka[j][i] += is_q ? 0.0f : a[j][i] * na[j][i];
            sum->kb[j][i] += is_q ? 0.0f : b[j][i] * nb[j][i];
            a[j][i] *= wa[i];
            b[j][i] *= wb[i];
            dot += a[j][i] * na[j][i] + b[j][i] * nb[j][i];
        }
    }
    const float mean = lanes_sum(dot, p.lanes) / static_cast<float>(p.head_dim);
    if (!norm)
        return;
#pragma unroll
    for (int j = 0; j < J; j++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            a[j][i] = r * (a[j][i] - na[j][i] * mean);
            b[j][i] = r * (b[j][i] - nb[j][i] * mean);
        }
    }
}

/* Block: tokens blockIdx.x, + gridDim.x, .... slots: heads to do, those of v last (none where dx is dy).
 * partial is (blocks, 2, head_dim), for q and k. */
template <typename T, int N, int J, bool has_norm>
__global__ void __launch_bounds__(block)
    rope_gradient_kernel(Problem p, const T *x, const T *dy, T *dx, bool add, int slots, float *partial)
{
    __shared__ float cosine[max_half], sine[max_half];
    __shared__ float shared[has_norm ? 2 * block * N * J : 1]; /* groups * head_dim at most */
    const int group = threadIdx.x / p.lanes, groups = blockDim.x / p.lanes, lane = threadIdx.x % p.lanes;
    const int rotated = p.heads + p.kv_heads;
    const size_t row = static_cast<size_t>(rotated + p.kv_heads) * p.head_dim;
    NormGradient<N, J> dnorm = {};

    for (size_t t = blockIdx.x; t < p.tokens; t += gridDim.x) {
        fill_angles(p, t, cosine, sine);
        for (int first = 0; first < slots; first += groups) { /* all lanes of a warp stay for the sums */
            const int slot = first + group;
            const size_t head = t * row + static_cast<size_t>(slot) * p.head_dim;
            float a[J][N] = {}, b[J][N] = {};

#pragma unroll
            for (int j = 0; j < J; j++) {
                const int k = pack_start<N>(p, lane, j);
                if (slot >= slots || k >= p.half)
                    continue;
                load<T, N>(dy + head + k, a[j]);
                load<T, N>(dy + head + p.half + k, b[j]);
                if (slot >= rotated)
                    continue;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float c = cosine[k + i], s = sine[k + i], u = a[j][i], v = b[j][i];
                    a[j][i] = u * c + v * s;
                    b[j][i] = v * c - u * s;
                }
            }
            if (has_norm) {
                const T *norm = norm_of<T>(p, slot);
                const float r = norm ? p.rstd[t * rotated + slot] : 0.0f;
                norm_gradient<T, N, J>(p, norm, x + head, r, slot < p.heads, lane, a, b, &dnorm);
            }
#pragma unroll
            for (int j = 0; j < J; j++) {
                const int k = pack_start<N>(p, lane, j);
                if (slot >= slots || k >= p.half || !dx) /* no dx: norms only */
                    continue;
                deliver<T, N>(dx + head + k, a[j], add);
                deliver<T, N>(dx + head + p.half + k, b[j], add);
            }
        }
    }
    if (has_norm) {
        float *mine = partial + static_cast<size_t>(blockIdx.x) * 2 * p.head_dim;
        reduce_groups<N, J>(p, dnorm.qa, dnorm.qb, shared, mine);
        reduce_groups<N, J>(p, dnorm.ka, dnorm.kb, shared, mine + p.head_dim);
    }
}

/* Blocks of the backward pass: without norms there is nothing to keep, so one for each token. */
size_t gradient_blocks(bool has_norm, size_t tokens)
{
    return has_norm && tokens > 512 ? 512 : tokens;
}

/* Index of a weight by its role (0: q_norm, 1: k_norm), or -1. */
int weight_index(const struct sdp_op_node *node, unsigned role)
{
    for (size_t i = 0; i < node->weight_count; i++) {
        if (node->weight_role[i] == role)
            return static_cast<int>(i);
    }
    return -1;
}

Problem problem_of(const struct sdp_op_call *call)
{
    const struct sdp_op_node *node = call->node;
    const int q_norm = weight_index(node, 0), k_norm = weight_index(node, 1);
    Problem p = {};

    p.positions = call->batch->positions;
    p.q_norm = q_norm >= 0 ? call->weight[q_norm] : nullptr;
    p.k_norm = k_norm >= 0 ? call->weight[k_norm] : nullptr;
    p.rstd = call->aux[0];
    p.tokens = call->batch->tokens;
    p.heads = static_cast<int>(sdp_op_attr(node, "heads"));
    p.kv_heads = static_cast<int>(sdp_op_attr(node, "kv_heads"));
    p.head_dim = static_cast<int>(sdp_op_attr(node, "head_dim"));
    p.half = p.head_dim / 2;
    p.eps = static_cast<float>(sdp_op_attr(node, "norm_eps"));
    sdp_rope_frequencies_of(node, &p.frequencies);
    return p;
}

/* Lanes that a head's packs of N take: a power of two, at most a warp. */
int lanes_of(const Problem &p, int pack)
{
    int lanes = 1;
    while (lanes < 32 && lanes * pack < p.half)
        lanes *= 2;
    return lanes;
}

/* Turns of a lane: one where packs are used (128 / 4 = 32 lanes at most), else up to 4. */
constexpr int turns(int pack) { return pack == 1 ? 4 : 1; }

template <typename T, int N> enum sdp_status forward(const struct sdp_op_call *call, Problem p)
{
    p.lanes = lanes_of(p, N);
    rope_kernel<T, N, turns(N)><<<static_cast<unsigned>(p.tokens), block, 0, stream_of(call)>>>(
        p, static_cast<const T *>(call->in[0]), static_cast<T *>(call->out[0]));
    SDP_CUDA_LAUNCHED("rope_kernel");
    return SDP_OK;
}

enum sdp_status finish_norms(const struct sdp_op_call *call, size_t head_dim, size_t blocks)
{
    const float *partial = static_cast<const float *>(call->work);

    for (unsigned role = 0; role < 2; role++) {
        const int i = weight_index(call->node, role);
        if (i >= 0 && call->dweight[i])
            SDP_TRY(sdpi_column_finish(partial + role * head_dim, blocks, head_dim, 2 * head_dim, call->dweight[i],
                                       call->add_dweight, call->device->stream));
    }
    return SDP_OK;
}

template <typename T, int N> enum sdp_status backward(const struct sdp_op_call *call, Problem p)
{
    const bool has_norm = p.q_norm || p.k_norm;
    const size_t blocks = gradient_blocks(has_norm, p.tokens);
    const bool in_place = call->din[0] == call->dout[0] && !call->add_din[0];
    const int slots = p.heads + (in_place ? 1 : 2) * p.kv_heads;
    const auto kernel =
        has_norm ? rope_gradient_kernel<T, N, turns(N), true> : rope_gradient_kernel<T, N, turns(N), false>;

    p.lanes = lanes_of(p, N);
    kernel<<<static_cast<unsigned>(blocks), block, 0, stream_of(call)>>>(
        p, static_cast<const T *>(call->in[0]), static_cast<const T *>(call->dout[0]), static_cast<T *>(call->din[0]),
        call->add_din[0], slots, static_cast<float *>(call->work));
    SDP_CUDA_LAUNCHED("rope_gradient_kernel");
    return has_norm ? finish_norms(call, static_cast<size_t>(p.head_dim), blocks) : SDP_OK;
}

bool can_pack(const struct sdp_op_call *call, const Problem &p, const void *a, const void *b, const void *c)
{
    const int pack = call->dtype == SDP_BF16 ? 8 : 4;
    return p.half % pack == 0 && aligned16(p.q_norm) && aligned16(p.k_norm) && aligned16(a) && aligned16(b) &&
           aligned16(c);
}

enum sdp_status check(const Problem &p)
{
    if (p.half <= max_half && p.head_dim % 2 == 0)
        return SDP_OK;
    sdp_warn("rope: heads of %d columns; on a GPU they may have %d at most", p.head_dim, 2 * max_half);
    return SDP_INTERNAL;
}

} // namespace

extern "C" size_t sdp_rope_work_cuda(const struct sdp_op_node *node, size_t tokens, size_t, enum sdp_dtype,
                                     bool backward)
{
    const size_t head_dim = static_cast<size_t>(sdp_op_attr(node, "head_dim"));

    if (!backward || node->weight_count == 0)
        return 0;
    return gradient_blocks(true, tokens) * 2 * head_dim * sizeof(float);
}

extern "C" enum sdp_status sdp_rope_forward_cuda(const struct sdp_op_call *call)
{
    const Problem p = problem_of(call);

    if (p.tokens == 0)
        return SDP_OK;
    SDP_TRY(check(p));
    return SDP_DISPATCH(call->dtype, can_pack(call, p, call->in[0], call->out[0], call->out[0]), forward, call, p);
}

extern "C" enum sdp_status sdp_rope_backward_cuda(const struct sdp_op_call *call)
{
    const Problem p = problem_of(call);

    if (p.tokens == 0 || (!call->din[0] && call->node->weight_count == 0))
        return SDP_OK;
    SDP_TRY(check(p));
    return SDP_DISPATCH(call->dtype, can_pack(call, p, call->in[0], call->dout[0], call->din[0]), backward, call, p);
}
