/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See gradient_cuda.h. Floor, bytes for each element: pack 6 (bf16) or 8 (fp32), fill 4. */
#include "codelets/backward/gradient_cuda.h"

#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

/* Thread: N elements; the few behind the last whole pack are the last block's, one a thread. */
template <int N>
__global__ void __launch_bounds__(256) pack_kernel(const float *accumulator, bf16 *out, size_t count)
{
    const size_t first = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;

    if (first + N <= count) {
        float value[N];
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float part[4];
            load<float, 4>(accumulator + first + i, part);
#pragma unroll
            for (int k = 0; k < 4; k++)
                value[i + k] = part[k];
        }
        store<bf16, N>(out + first, value);
    } else {
        for (size_t i = first; i < count; i++)
            out[i] = from_float<bf16>(accumulator[i]);
    }
}

__global__ void __launch_bounds__(256) pack_single_kernel(const float *accumulator, bf16 *out, size_t count)
{
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = from_float<bf16>(accumulator[i]);
}

__global__ void __launch_bounds__(256) fill_kernel(float *out, float value, size_t count)
{
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        out[i] = value;
}

/* Two bf16 of one word: the upper is also what fp32 shows. */
__global__ void __launch_bounds__(256) noise_kernel(uint32_t *out, size_t count)
{
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x ^= x >> 27;
        const float low = (static_cast<float>(x & 0xffff) / 32768.0f - 1.0f) * 0.1f;
        const float high = (static_cast<float>((x >> 16) & 0xffff) / 32768.0f - 1.0f) * 0.1f;
        out[i] = (__float_as_uint(high) & 0xffff0000u) | (__float_as_uint(low) >> 16);
    }
}

} // namespace

extern "C" enum sdp_status sdp_noise_cuda(void *out, size_t bytes, void *stream)
{
    noise_kernel<<<2048, 256, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<uint32_t *>(out), bytes / 4);
    SDP_CUDA_LAUNCHED("noise_kernel");
    return SDP_OK;
}

extern "C" enum sdp_status sdp_gradient_pack_cuda(const float *accumulator, void *out, enum sdp_dtype out_dtype,
                                                  size_t count, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);

    if (count == 0)
        return SDP_OK;
    if (out_dtype == SDP_FP32) {
        if (out != accumulator)
            SDP_CUDA(cudaMemcpyAsync(out, accumulator, count * sizeof(float), cudaMemcpyDeviceToDevice, s));
        return SDP_OK;
    }
    if (out_dtype != SDP_BF16) {
        sdp_warn("a gradient cannot be packed as %s", sdp_dtype_name(out_dtype));
        return SDP_INTERNAL;
    }
    if (aligned16(accumulator) && aligned16(out))
        pack_kernel<8><<<static_cast<unsigned>(divide_up(count, 256 * 8)), 256, 0, s>>>(
            accumulator, static_cast<bf16 *>(out), count);
    else
        pack_single_kernel<<<static_cast<unsigned>(divide_up(count, 256)), 256, 0, s>>>(
            accumulator, static_cast<bf16 *>(out), count);
    SDP_CUDA_LAUNCHED("pack_kernel");
    return SDP_OK;
}

extern "C" enum sdp_status sdp_fill_cuda(float *out, float value, size_t count, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);

    if (count == 0)
        return SDP_OK;
    if (sdp_bits_from_float(value) == 0) {
        SDP_CUDA(cudaMemsetAsync(out, 0, count * sizeof(float), s));
        return SDP_OK;
    }
    const size_t blocks = divide_up(count, 256);
    fill_kernel<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), 256, 0, s>>>(out, value, count);
    SDP_CUDA_LAUNCHED("fill_kernel");
    return SDP_OK;
}
