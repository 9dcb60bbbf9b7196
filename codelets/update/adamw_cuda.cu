/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of the update kernel; see adamw_cuda.h and adamw.h. Every operation is rounded where the host's is: the
 * intrinsics with _rn are never fused, fmaf is one fused operation on both sides, square root and division are correctly
 * rounded, and denormals are kept (the build must not flush them).
 *
 * A thread block does one segment of SDP_NORM_SEGMENT elements. For the norm its (rounded) gradients lie in shared memory,
 * where one thread a lane adds up squares in order, as the definition wants; that hides behind other blocks' traffic.
 *
 * Floor: 28 bytes an element at the device's memory bandwidth. */
#include "codelets/update/adamw_cuda.h"

#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

constexpr int threads = 256, lanes = SDPI_ADAMW_LANES;
constexpr int segment = 4096;
static_assert(segment == SDP_NORM_SEGMENT, "one thread block does one segment");
constexpr int width = 4, rounds = segment / (threads * width);

struct Block {
    unsigned first_segment; /* of the call */
    unsigned count;         /* elements: a norm block has at most 2^20 */
    size_t offset;
    float shrink;
    unsigned norm;
};

struct Call {
    uint16_t *weight;
    int16_t *remainder;
    float *m, *v;
    const float *accumulator;
    double *partial;
    float beta1, rest1, beta2, rest2, rate, root, eps, scale;
    bool update, norms, round;
    int block_count;
    Block blocks[SDP_ADAMW_CUDA_BLOCKS];
};

__device__ __forceinline__ float one_nan(float x)
{
    return x == x ? x : __uint_as_float(0x7fc00000u);
}

__device__ __forceinline__ float join(uint16_t weight, int16_t remainder)
{
    return __uint_as_float((static_cast<uint32_t>(weight) << 16) + static_cast<uint32_t>(static_cast<int32_t>(remainder)));
}

__device__ __forceinline__ void split(float master, uint16_t *weight, int16_t *remainder)
{
    const uint32_t bits = __float_as_uint(master);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint16_t high = static_cast<uint16_t>((bits + 0x8000u) >> 16);

    *weight = nan ? 0x7fc0u : high;
    *remainder = nan ? 0 : static_cast<int16_t>(static_cast<uint16_t>(bits - (static_cast<uint32_t>(high) << 16)));
}

__device__ __forceinline__ void element(const Call &c, float shrink, float g, uint16_t *weight, int16_t *remainder, float *m,
                                        float *v)
{
    const float p = join(*weight, *remainder), x = __fmul_rn(g, c.scale);
    const float m1 = __fmaf_rn(c.beta1, *m, __fmul_rn(c.rest1, x));
    const float v1 = __fmaf_rn(c.beta2, *v, __fmul_rn(__fmul_rn(c.rest2, x), x));
    const float denominator = __fmaf_rn(__fsqrt_rn(v1), c.root, c.eps);

    split(__fmaf_rn(-c.rate, __fdiv_rn(m1, denominator), __fmul_rn(p, shrink)), weight, remainder);
    *m = one_nan(m1);
    *v = one_nan(v1);
}

__device__ __forceinline__ float rounded(const Call &c, float g)
{
    return c.round ? to_float(from_float<bf16>(g)) : g;
}

/* `width` neighbours, all there and aligned. */
__device__ __forceinline__ void update_pack(const Call &c, float shrink, size_t i, const float (&g)[width])
{
    ushort4 weight = *reinterpret_cast<const ushort4 *>(c.weight + i);
    short4 remainder = *reinterpret_cast<const short4 *>(c.remainder + i);
    float4 m = *reinterpret_cast<const float4 *>(c.m + i), v = *reinterpret_cast<const float4 *>(c.v + i);

    element(c, shrink, g[0], &weight.x, &remainder.x, &m.x, &v.x);
    element(c, shrink, g[1], &weight.y, &remainder.y, &m.y, &v.y);
    element(c, shrink, g[2], &weight.z, &remainder.z, &m.z, &v.z);
    element(c, shrink, g[3], &weight.w, &remainder.w, &m.w, &v.w);
    *reinterpret_cast<ushort4 *>(c.weight + i) = weight;
    *reinterpret_cast<short4 *>(c.remainder + i) = remainder;
    *reinterpret_cast<float4 *>(c.m + i) = m;
    *reinterpret_cast<float4 *>(c.v + i) = v;
}

__device__ __forceinline__ const Block &block_of(const Call &c, unsigned number)
{
    int b = 0;
    while (b + 1 < c.block_count && c.blocks[b + 1].first_segment <= number)
        b++;
    return c.blocks[b];
}

__global__ void __launch_bounds__(threads) update_kernel(const __grid_constant__ Call c)
{
    __shared__ float gradient[segment];
    __shared__ double sums[lanes];
    const Block &block = block_of(c, blockIdx.x);
    const unsigned first = (blockIdx.x - block.first_segment) * segment;
    const int count = min(segment, static_cast<int>(block.count - first));

    for (int r = 0; r < rounds; r++) {
        const int at = (r * threads + static_cast<int>(threadIdx.x)) * width;
        const size_t i = block.offset + first + at;
        if (at + width <= count && i % width == 0) {
            float g[width];
            load<float, width>(c.accumulator + i, g);
#pragma unroll
            for (int k = 0; k < width; k++) {
                g[k] = rounded(c, g[k]);
                gradient[at + k] = g[k];
            }
            if (c.update)
                update_pack(c, block.shrink, i, g);
        } else {
            for (int k = 0; k < width && at + k < count; k++) {
                const float g = rounded(c, c.accumulator[i + k]);
                gradient[at + k] = g;
                if (c.update)
                    element(c, block.shrink, g, c.weight + i + k, c.remainder + i + k, c.m + i + k, c.v + i + k);
            }
        }
    }
    if (!c.norms)
        return;
    __syncthreads();
    if (threadIdx.x < lanes) {
        double sum = 0;
#pragma unroll 8
        for (int k = static_cast<int>(threadIdx.x); k < count; k += lanes) {
            const double g = gradient[k];
            sum = __dadd_rn(sum, __dmul_rn(g, g));
        }
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int k = 0; k < lanes; k++)
            sum = __dadd_rn(sum, sums[k]);
        c.partial[blockIdx.x] = sum;
    }
}

/* One thread block a norm block: its segments' sums, in order. */
__global__ void __launch_bounds__(threads) norm_kernel(const __grid_constant__ Call c, double *norms)
{
    __shared__ double sums[threads];
    const Block &block = c.blocks[blockIdx.x];
    const unsigned segments = (block.count + segment - 1) / segment;
    double sum = 0;

    for (unsigned first = 0; first < segments; first += threads) {
        const unsigned number = min(static_cast<unsigned>(threads), segments - first);
        if (threadIdx.x < number)
            sums[threadIdx.x] = c.partial[block.first_segment + first + threadIdx.x];
        __syncthreads();
        for (unsigned k = 0; threadIdx.x == 0 && k < number; k++)
            sum = __dadd_rn(sum, sums[k]);
        __syncthreads();
    }
    if (threadIdx.x == 0)
        norms[block.norm] = sum == sum ? sum : static_cast<double>(__uint_as_float(0x7fc00000u));
}

Call call_of(const struct sdp_adamw_cuda *a)
{
    const struct sdp_adamw_args *s = &a->scalars;
    Call c = {};
    c.weight = s->weight;
    c.remainder = s->remainder;
    c.m = s->m;
    c.v = s->v;
    c.accumulator = a->accumulator;
    c.partial = a->partial;
    c.beta1 = s->beta1;
    c.rest1 = s->rest1;
    c.beta2 = s->beta2;
    c.rest2 = s->rest2;
    c.rate = s->rate;
    c.root = s->root;
    c.eps = s->eps;
    c.scale = s->scale;
    c.update = a->update;
    c.norms = a->norms != nullptr;
    c.round = a->gradient == SDP_BF16;
    return c;
}

} // namespace

extern "C" enum sdp_status sdp_adamw_cuda(const struct sdp_adamw_cuda *a, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    Call c = call_of(a);
    unsigned segments = 0;

    if (a->block_count > SDP_ADAMW_CUDA_BLOCKS)
        return SDP_INTERNAL;
    for (size_t b = 0; b < a->block_count; b++) {
        const struct sdp_adamw_cuda_block *block = &a->blocks[b];
        c.blocks[b] = {segments, static_cast<unsigned>(block->count), block->offset, block->shrink,
                       static_cast<unsigned>(block->norm)};
        segments += static_cast<unsigned>(divide_up(block->count, segment));
    }
    c.block_count = static_cast<int>(a->block_count);
    if (segments == 0 || (!a->update && !a->norms))
        return SDP_OK;
    update_kernel<<<segments, threads, 0, s>>>(c);
    SDP_CUDA_LAUNCHED("update_kernel");
    if (a->norms) {
        norm_kernel<<<static_cast<unsigned>(a->block_count), threads, 0, s>>>(c, a->norms);
        SDP_CUDA_LAUNCHED("norm_kernel");
    }
    return SDP_OK;
}
