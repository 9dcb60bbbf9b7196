/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the element-wise and row-wise kernels share: conversion between the compute
 * dtype and float, 16-byte loads and stores, sums over a warp and over a block.
 *
 * A kernel is a template over the element type T and the pack width N, the number of
 * neighbouring elements a thread handles at once: 16 / sizeof(T) where columns and
 * pointers allow 16-byte accesses, else 1. Everything is computed in float. */
#ifndef SDP_CODELETS_COMMON_CUDA_VECTOR_CUH
#define SDP_CODELETS_COMMON_CUDA_VECTOR_CUH

#include "codelets/common/cuda_check.h"
#include "graph/op.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace sdp {

using bf16 = __nv_bfloat16;

constexpr unsigned all_lanes = 0xffffffffu;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

/* N elements that are read or written in one access of N * sizeof(T) bytes. */
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T value[N];
};

template <typename T, int N>
__device__ __forceinline__ void load(const T *from, float (&to)[N])
{
    const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(from);
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = to_float(pack.value[i]);
}

template <typename T, int N>
__device__ __forceinline__ void store(T *to, const float (&from)[N])
{
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++)
        pack.value[i] = from_float<T>(from[i]);
    *reinterpret_cast<Pack<T, N> *>(to) = pack;
}

/* to = from, or to += from: the two ways a gradient is delivered. */
template <typename T, int N>
__device__ __forceinline__ void deliver(T *to, const float (&from)[N], bool add)
{
    float sum[N];
    if (add) {
        load<T, N>(to, sum);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += from[i];
        store<T, N>(to, sum);
    } else {
        store<T, N>(to, from);
    }
}

/* Sum over the `width` lanes (a power of two, at most 32) that a lane belongs to; every lane gets it. */
__device__ __forceinline__ float lanes_sum(float x, int width)
{
    for (int step = width / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(all_lanes, x, step);
    return x;
}

__device__ __forceinline__ float lanes_max(float x, int width)
{
    for (int step = width / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
    return x;
}

/* Sum over a block of a multiple of 32 threads; every thread gets it. `scratch` holds 32 floats.
 * Ends with all threads past their last read, so that it may be called again at once. */
__device__ __forceinline__ float block_sum(float x, float *scratch)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = lanes_sum(x, 32);
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    x = lanes_sum(lane < warps ? scratch[lane] : 0.0f, 32);
    __syncthreads();
    return x;
}

inline bool aligned16(const void *pointer)
{
    return (reinterpret_cast<uintptr_t>(pointer) & 15u) == 0;
}

inline cudaStream_t stream_of(const struct sdp_op_call *call)
{
    return static_cast<cudaStream_t>(call->device->stream);
}

inline size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* A block size for rows of `packs` packs: a multiple of 32 threads, at most `most`. */
inline unsigned row_threads(size_t packs, unsigned most)
{
    return packs >= most ? most : static_cast<unsigned>(sdp_round_up(packs ? packs : 1, 32));
}

} // namespace sdp

/* Calls function<T, N>(...) for the call's dtype, with 16-byte packs where `packed` holds. */
#define SDP_DISPATCH(dtype, packed, function, ...)                                                 \
    ((dtype) == SDP_BF16                                                                           \
         ? ((packed) ? function<sdp::bf16, 8>(__VA_ARGS__) : function<sdp::bf16, 1>(__VA_ARGS__))  \
         : ((packed) ? function<float, 4>(__VA_ARGS__) : function<float, 1>(__VA_ARGS__)))

#endif
