/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Library handles and scratch of a CUDA worker: what struct sdp_op_device carries to
 * the operations. Made once per worker, before the first step. */
#ifndef SDP_CODELETS_COMMON_CUDA_DEVICE_H
#define SDP_CODELETS_COMMON_CUDA_DEVICE_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Creates the cuBLASLt and cuDNN handles and the cuBLASLt scratch (64 MiB from Hopper on, 32 MiB
 * before) on device `ordinal`, all work going to `stream` (cudaStream_t, [borrowed]). The device is
 * current afterwards; out->deterministic is true. [new] *out: sdp_op_device_destroy_cuda(). On
 * failure *out is all zero. */
enum sdp_status sdp_op_device_create_cuda(int ordinal, void *stream, struct sdp_op_device *out);

/** Waits for the stream, then frees. A device that is all zero is fine. */
void sdp_op_device_destroy_cuda(struct sdp_op_device *device);

#ifdef __cplusplus
}
#endif
#endif
