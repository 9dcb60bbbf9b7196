/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What leaves a GPU after a layer's backward pass: its fp32 gradient accumulator, as
 * bf16 or fp32. All calls only enqueue on `stream` (cudaStream_t). */
#ifndef SDP_CODELETS_BACKWARD_GRADIENT_CUDA_H
#define SDP_CODELETS_BACKWARD_GRADIENT_CUDA_H

#include "graph/base/util.h"

#ifdef __cplusplus
extern "C" {
#endif

/** out[i] = accumulator[i] as out_dtype: SDP_BF16 (round to nearest, ties to even; NaN stays NaN) or
 * SDP_FP32 (a copy; nothing is done where out is the accumulator itself). */
enum sdp_status sdp_gradient_pack_cuda(const float *accumulator, void *out, enum sdp_dtype out_dtype, size_t count,
                                       void *stream);

/** out[i] = value. */
enum sdp_status sdp_fill_cuda(float *out, float value, size_t count, void *stream);

/** Numbers between -0.1 and 0.1, for kernels to be timed on: `bytes` (a multiple of 4) as bf16, so that read as fp32 they are
 * in that range too. */
enum sdp_status sdp_noise_cuda(void *out, size_t bytes, void *stream);

#ifdef __cplusplus
}
#endif
#endif
