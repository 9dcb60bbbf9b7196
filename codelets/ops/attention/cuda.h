/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the attention operation offers besides its twins: the cuDNN handle of a worker, and
 * building what a shape needs before the first step.
 *
 * Forward and backward go to cuDNN in bf16 where it takes the shape, else to the kernels of
 * flash.h. Either way lse is (T, heads) as the contract says. */
#ifndef SDP_CODELETS_OPS_ATTENTION_CUDA_H
#define SDP_CODELETS_OPS_ATTENTION_CUDA_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/** cuDNN handle for the current device, its work going to `stream` (cudaStream_t). *handle is NULL where
 * cuDNN is not built in. [new]: sdp_attention_library_destroy_cuda(). */
enum sdp_status sdp_attention_library_create_cuda(void *stream, void **handle);
void sdp_attention_library_destroy_cuda(void *handle);

/** Builds the forward and backward plans of a node for batch->sequences and batch->sequence_length in bf16, so
 * that no step has to wait for it. Thread: any. */
enum sdp_status sdp_attention_prepare_cuda(const struct sdp_op_node *node, const struct sdp_op_batch *batch,
                                           const struct sdp_op_device *device);

/* Scratch of the deterministic backward pass for one key head and its query heads (2 bytes a query, key and head)
 * above which queries are taken in blocks: 4 query heads that share a key head at 32K tokens just fit. */
#define SDPI_ATTENTION_GROUP_SCRATCH ((size_t)8 << 30)

/** For tests: another limit (0: the usual one). Forgets all plans: nothing may be running. */
void sdp_attention_limit_scratch_cuda(size_t bytes);

/** Whether lse lies by sequence, head, token instead of by token, head: never, cuDNN's is turned. */
bool sdp_attention_lse_is_bhs_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
