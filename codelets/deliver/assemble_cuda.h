/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For runs that compute in fp32 on a GPU: the exact fp32 weights from what is delivered,
 * the bf16 weight and the 16-bit remainder (sdp_master_join). */
#ifndef SDP_CODELETS_DELIVER_ASSEMBLE_CUDA_H
#define SDP_CODELETS_DELIVER_ASSEMBLE_CUDA_H

#include "graph/base/util.h"

#ifdef __cplusplus
extern "C" {
#endif

/** out[i] = the fp32 number whose bits are (weight[i] << 16) + remainder[i]. Only enqueues on `stream`
 * (cudaStream_t). */
enum sdp_status sdp_assemble_cuda(const uint16_t *weight, const int16_t *remainder, float *out, size_t count,
                                  void *stream);

#ifdef __cplusplus
}
#endif
#endif
