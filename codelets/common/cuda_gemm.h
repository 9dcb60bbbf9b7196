/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Matrix products through cuBLASLt, in row-major terms. The algorithm for a shape is the fastest of those that the
 * library's heuristic names, timed once before the first step (device->tuning) and then kept in a file, so that
 * every later run on this machine has the same one; a shape that was never timed gets what the heuristic names first.
 * Split-K partial sums go through scratch memory only, so each algorithm gives the same bits every time. */
#ifndef SDP_CODELETS_COMMON_CUDA_GEMM_H
#define SDP_CODELETS_COMMON_CUDA_GEMM_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* d = op(a) op(b) + beta * c + bias, all row-major: op(a) is m x k, op(b) is k x n, c and d are m x n.
 * A transposed operand is stored as k x m (a) or n x k (b). Leading dimensions are the elements from
 * one stored row to the next. */
struct sdp_gemm {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    const void *a, *b;
    const void *c;           /* read where beta is not 0; may be d */
    void *d;
    const void *bias;        /* n elements of d's type added to every row, or NULL */
    size_t lda, ldb, ldd;    /* c has d's leading dimension */
    enum sdp_dtype in_dtype; /* of a and b: fp32 (no TF32) or bf16 */
    enum sdp_dtype out_dtype; /* of c and d; products are summed in fp32 */
    float beta;
};

/** Enqueues the product on device->stream. An empty m or n is fine; k must not be 0. */
enum sdp_status sdp_gemm_cuda(const struct sdp_op_device *device, const struct sdp_gemm *gemm);

/** Algorithms found by earlier runs on this kind of device and library are read from `folder`/gemm-*.txt (a file that is
 * missing, foreign or damaged is no error: its shapes are timed again) and written back by sdp_gemm_save_cuda(). Once a
 * process; any thread. */
void sdp_gemm_load_cuda(int ordinal, const char *folder);
void sdp_gemm_save_cuda(void);

/** Number of shapes with an algorithm so far and a fingerprint of shapes and algorithms: runs with equal ones make equal
 * bits. */
size_t sdp_gemm_fingerprint_cuda(uint64_t *fingerprint);

#ifdef __cplusplus
}
#endif
#endif
