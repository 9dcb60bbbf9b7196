/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See assemble_cuda.h. Floor: 8 bytes for each element. */
#include "codelets/deliver/assemble_cuda.h"

#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

/* Thread: N elements, fewer at the end. */
template <int N>
__global__ void __launch_bounds__(256) assemble_kernel(const uint16_t *weight, const int16_t *remainder, float *out,
                                                       size_t count)
{
    const size_t first = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;

    if (first + N <= count) {
        const Pack<uint16_t, N> w = *reinterpret_cast<const Pack<uint16_t, N> *>(weight + first);
        const Pack<int16_t, N> r = *reinterpret_cast<const Pack<int16_t, N> *>(remainder + first);
        Pack<float, N> x;
#pragma unroll
        for (int i = 0; i < N; i++)
            x.value[i] = __uint_as_float((static_cast<uint32_t>(w.value[i]) << 16) +
                                         static_cast<uint32_t>(static_cast<int32_t>(r.value[i])));
        *reinterpret_cast<Pack<float, N> *>(out + first) = x;
    } else {
        for (size_t i = first; i < count; i++)
            out[i] = __uint_as_float((static_cast<uint32_t>(weight[i]) << 16) +
                                     static_cast<uint32_t>(static_cast<int32_t>(remainder[i])));
    }
}

} // namespace

extern "C" enum sdp_status sdp_assemble_cuda(const uint16_t *weight, const int16_t *remainder, float *out,
                                             size_t count, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);

    if (count == 0)
        return SDP_OK;
    /* Packs of 4: 8-byte loads, one 16-byte store. */
    if (aligned16(weight) && aligned16(remainder) && aligned16(out))
        assemble_kernel<4><<<static_cast<unsigned>(divide_up(count, 256 * 4)), 256, 0, s>>>(weight, remainder, out,
                                                                                           count);
    else
        assemble_kernel<1><<<static_cast<unsigned>(divide_up(count, 256)), 256, 0, s>>>(weight, remainder, out,
                                                                                       count);
    SDP_CUDA_LAUNCHED("assemble_kernel");
    return SDP_OK;
}
