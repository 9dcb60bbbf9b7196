/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sums over the rows of a matrix, always in the same order (no atomics): first each
 * of a fixed number of row groups by itself, then the groups. How many groups there
 * are depends on the rows alone and never on the GPU, so equal shapes give equal bits.
 * Gradients of norm weights and biases are such sums. */
#ifndef SDP_CODELETS_COMMON_CUDA_COLUMNS_H
#define SDP_CODELETS_COMMON_CUDA_COLUMNS_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Row groups of sdpi_column_sum(); its scratch is this times cols floats. */
size_t sdpi_column_groups(size_t rows);

/** sum[c] = or += the sum over rows of x[r * stride + c]; x is fp32 or bf16. */
enum sdp_status sdpi_column_sum(const void *x, enum sdp_dtype dtype, size_t rows, size_t cols, size_t stride,
                                float *scratch, float *sum, bool add, void *stream);

/** The second half alone: sum[c] = or += the sum over groups of partial[g * stride + c]. */
enum sdp_status sdpi_column_finish(const float *partial, size_t groups, size_t cols, size_t stride, float *sum,
                                   bool add, void *stream);

#ifdef __cplusplus
}
#endif
#endif
