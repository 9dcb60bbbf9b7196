/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of the update kernel, for state that is resident on a device: the gradient is the fp32 accumulator there. */
#ifndef SDP_CODELETS_UPDATE_ADAMW_CUDA_H
#define SDP_CODELETS_UPDATE_ADAMW_CUDA_H

#include "codelets/update/adamw.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SDP_ADAMW_CUDA_BLOCKS 64 /* norm blocks of one call */

/* A norm block: see model/state/host_state.h. */
struct sdp_adamw_cuda_block {
    size_t offset;  /* elements from the start of the arrays */
    size_t count;
    size_t norm;    /* index in norms */
    float shrink;   /* 1 - lr * weight decay of its tensor */
};

struct sdp_adamw_cuda {
    struct sdp_adamw_args scalars; /* from sdp_adamw_set(); its pointers are device memory; gradients, ranks and shrink are
                                      not read */
    const float *accumulator;      /* fp32, not written */
    enum sdp_dtype gradient;       /* what an element is rounded to first: SDP_BF16 as a gradient that leaves the device,
                                      or SDP_FP32: not at all */
    bool update;                   /* false: norms alone */
    double *norms;                 /* by block index, or NULL: not wanted */
    double *partial;               /* scratch: one for each SDP_NORM_SEGMENT elements begun of each block */
    const struct sdp_adamw_cuda_block *blocks; /* host memory; read before the call returns */
    size_t block_count;            /* at most SDP_ADAMW_CUDA_BLOCKS */
};

/** Enqueues the update of the blocks on `stream` (cudaStream_t). The same bits as sdp_adamw_block() with one gradient
 * array of the rounded elements. Bytes an element: 28 (accumulator 4, others as on the host). */
enum sdp_status sdp_adamw_cuda(const struct sdp_adamw_cuda *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
