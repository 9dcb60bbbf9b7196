/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The update kernel: AdamW on one block, in one pass over memory (26 bytes a
 * parameter with one bf16 gradient: 2 read; weight 2, remainder 2, m 4, v 4 read and written).
 *
 * As torch.optim.AdamW: p *= 1 - lr * wd; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
 * p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps), in fp32 with explicit fma, denormals
 * kept. The AVX-512, AVX2 and plain versions are one source compiled three times
 * and agree to the bit; the best one is chosen at run time. */
#ifndef SDP_CODELETS_UPDATE_ADAMW_H
#define SDP_CODELETS_UPDATE_ADAMW_H

#include "graph/base/util.h"

#define SDP_ADAMW_MAX_RANKS 16

struct sdp_adamw_args {
    uint16_t *weight; /* bf16 */
    int16_t *remainder;
    float *m, *v;
    const void *const *gradients; /* one array a rank, added in rank order */
    size_t ranks;
    enum sdp_dtype gradient_dtype; /* SDP_BF16 or SDP_FP32 */
    /* set by sdp_adamw_set */
    float shrink, beta1, one_minus_beta1, beta2, one_minus_beta2, rate, root, eps, scale;
};

/** Scalars of step `step` (from 1), computed in double. grad_scale multiplies the gradient (clipping). */
void sdp_adamw_set(struct sdp_adamw_args *args, double lr, double beta1, double beta2, double eps, double weight_decay,
                   uint64_t step, float grad_scale);

/** Updates elements [offset, offset + count) of all arrays. *sum_of_squares: of the summed, unscaled gradient,
 * in double, element i of the block in lane i % 16. Any thread; blocks of one array may run side by side. */
void sdp_adamw_block(const struct sdp_adamw_args *args, size_t offset, size_t count, double *sum_of_squares);

/** out[offset ...] = sum over ranks, as out_dtype (bf16: nearest even); *sum_of_squares of the values stored. */
void sdp_reduce_block(const void *const *gradients, size_t ranks, enum sdp_dtype dtype, void *out,
                      enum sdp_dtype out_dtype, size_t offset, size_t count, double *sum_of_squares);

/* For tests and benchmarks: which version runs. */
enum sdp_isa { SDP_ISA_C = 0, SDP_ISA_AVX2, SDP_ISA_AVX512 };
enum sdp_isa sdp_adamw_isa(void);
/** Runs sdp_adamw_block with a given version; false if this processor cannot. */
bool sdp_adamw_block_isa(enum sdp_isa isa, const struct sdp_adamw_args *args, size_t offset, size_t count,
                         double *sum_of_squares);

#endif
