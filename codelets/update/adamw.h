/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The update kernel: AdamW on one block, in one pass over memory. With one bf16 gradient
 * that is 26 bytes a parameter: gradient 2 read; weight 2, remainder 2, m 4 and v 4 read
 * and written. With it the reduction kernel: the sum of the ranks' gradients alone.
 * All versions (plain C, AVX2, AVX-512, CUDA in adamw_cuda.cu) agree to the bit on any input: every one
 * rounds in the same places, keeps denormals, and gives NaN one form (0x7fc00000; as a
 * weight 0x7fc0 with remainder 0). The best is chosen at run time. */
#ifndef SDP_CODELETS_UPDATE_ADAMW_H
#define SDP_CODELETS_UPDATE_ADAMW_H

#include "graph/base/util.h"

#define SDP_ADAMW_MAX_RANKS 16
#define SDP_NORM_SEGMENT ((size_t)4096)

struct sdp_adamw_args {
    uint16_t *weight; /* bf16 */
    int16_t *remainder;
    float *m, *v;
    const void *const *gradients; /* one array a rank, added in rank order */
    size_t ranks;                 /* 1 to SDP_ADAMW_MAX_RANKS */
    enum sdp_dtype gradient_dtype; /* SDP_BF16 or SDP_FP32 */
    /* private: set by sdp_adamw_set */
    float shrink;          /* 1 - lr * weight_decay */
    float beta1, rest1;    /* rest: 1 - beta */
    float beta2, rest2;
    float rate;            /* lr / (1 - beta1^step) */
    float root;            /* 1 / sqrt(1 - beta2^step) */
    float eps, scale;
};

/** Scalars of step `step` (from 1), computed in double. grad_scale multiplies the
 * gradient (clipping). */
void sdp_adamw_set(struct sdp_adamw_args *args, double lr, double beta1, double beta2, double eps,
                   double weight_decay, uint64_t step, float grad_scale);

/** Updates elements [offset, offset + count) of all arrays, in fp32, as torch.optim.AdamW:
 *     p *= 1 - lr wd;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g
 *     p -= lr / (1 - b1^step) * m / (sqrt(v) / sqrt(1 - b2^step) + eps)
 * *sum_of_squares: of the summed, unscaled gradient, in double: of segments of
 * SDP_NORM_SEGMENT elements; element i of a segment goes to lane i % 16, the lanes are added in order, and so are the
 * segments. (Sixteen lanes fit the vector units of a core, and a GPU adds up many segments at once.) No alignment is needed. Any
 * thread; blocks of one array may run side by side. */
void sdp_adamw_block(const struct sdp_adamw_args *args, size_t offset, size_t count,
                     double *sum_of_squares);

/** out[offset ...] = the sum over ranks, in rank order and fp32, as out_dtype (SDP_FP32, or
 * SDP_BF16 to nearest even). *sum_of_squares: of the values as stored, lanes as above. */
void sdp_reduce_block(const void *const *gradients, size_t ranks, enum sdp_dtype dtype, void *out,
                      enum sdp_dtype out_dtype, size_t offset, size_t count,
                      double *sum_of_squares);

/* -- versions: for tests and benchmarks -------------------------------------- */

enum sdp_isa { SDP_ISA_C = 0, SDP_ISA_AVX2, SDP_ISA_AVX512 };
#define SDP_ISA_COUNT 3

/** "c", "avx2", "avx512". */
const char *sdp_isa_name(enum sdp_isa isa);
/** The version in use: the best that this processor has, or the one set. */
enum sdp_isa sdp_adamw_isa(void);
/** Sets the version for all threads; false, changing nothing, if this processor lacks it. */
bool sdp_adamw_set_isa(enum sdp_isa isa);

/* -- shared by the versions ----------------------------------------------------- */

#define SDPI_ADAMW_LANES 16

/* Reductions of at least so many elements write around the caches: nobody reads the sums
 * before the whole step's norm is known, and their lines need not be read to be written. */
#define SDPI_REDUCE_STREAM ((size_t)1 << 16)

/* Asks for the arrays' cache lines this many bytes ahead of elements [i, i + 16), each line
 * once; past an array's end that does nothing. With five arrays and more, one core gains
 * nearly a tenth over what the processor foresees by itself (Zen 4). */
#define SDPI_ADAMW_AHEAD 2048

static inline __attribute__((always_inline)) void sdpi_adamw_ask(const struct sdp_adamw_args *a,
                                                                 size_t i, enum sdp_dtype dtype)
{
    size_t wide = i * 4 + SDPI_ADAMW_AHEAD, narrow = i * 2 + SDPI_ADAMW_AHEAD; /* bytes */
    __builtin_prefetch((const char *)a->m + wide);
    __builtin_prefetch((const char *)a->v + wide);
    if (i & 16) { /* 32 narrow elements make a line */
        __builtin_prefetch((const char *)a->weight + narrow);
        __builtin_prefetch((const char *)a->remainder + narrow);
    }
    for (size_t r = 0; r < a->ranks && (dtype == SDP_FP32 || (i & 16)); r++)
        __builtin_prefetch((const char *)a->gradients[r] + (dtype == SDP_FP32 ? wide : narrow));
}

/* One reduction: the arguments of sdp_reduce_block. */
struct sdpi_reduce_args {
    const void *const *gradients;
    size_t ranks;
    enum sdp_dtype dtype, out_dtype;
    void *out;
    bool stream; /* write around the caches, where the output is aligned to 64 bytes */
};

/* Each adds squares to lanes[SDPI_ADAMW_LANES]. The vector versions take whole groups of
 * lanes and leave a shorter rest to the C version. */
void sdpi_adamw_c(const struct sdp_adamw_args *args, size_t offset, size_t count, double *lanes);
void sdpi_reduce_c(const struct sdpi_reduce_args *args, size_t offset, size_t count,
                   double *lanes);
#ifdef __x86_64__
void sdpi_adamw_avx2(const struct sdp_adamw_args *args, size_t offset, size_t count,
                     double *lanes);
void sdpi_reduce_avx2(const struct sdpi_reduce_args *args, size_t offset, size_t count,
                      double *lanes);
void sdpi_adamw_avx512(const struct sdp_adamw_args *args, size_t offset, size_t count,
                       double *lanes);
void sdpi_reduce_avx512(const struct sdpi_reduce_args *args, size_t offset, size_t count,
                        double *lanes);
#endif

#endif
