/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The update kernel for three instruction sets, and the choice between them. */
#include "codelets/update/adamw.h"

#if defined(__GNUC__) && !defined(__clang__)
#define FLOAT_RULES "O3", "fp-contract=off", "no-math-errno", "no-trapping-math"
#define SDP_ATTRIBUTES __attribute__((optimize(FLOAT_RULES)))
#else
#pragma STDC FP_CONTRACT OFF
#define SDP_ATTRIBUTES
#endif

#define KERNEL(name) name##_c
#define TARGET SDP_ATTRIBUTES
#include "codelets/update/adamw_kernel.h"

#ifdef __x86_64__
#define KERNEL(name) name##_avx2
#define TARGET SDP_ATTRIBUTES __attribute__((target("avx2,fma")))
#include "codelets/update/adamw_kernel.h"

#define KERNEL(name) name##_avx512
#define TARGET                                                                                     \
    SDP_ATTRIBUTES __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")))
#include "codelets/update/adamw_kernel.h"
#endif

void sdp_adamw_set(struct sdp_adamw_args *a, double lr, double beta1, double beta2, double eps, double weight_decay,
                   uint64_t step, float grad_scale)
{
    a->shrink = (float)(1.0 - lr * weight_decay);
    a->beta1 = (float)beta1;
    a->one_minus_beta1 = (float)(1.0 - beta1);
    a->beta2 = (float)beta2;
    a->one_minus_beta2 = (float)(1.0 - beta2);
    a->rate = (float)(lr / (1.0 - pow(beta1, (double)step)));
    a->root = (float)(1.0 / sqrt(1.0 - pow(beta2, (double)step)));
    a->eps = (float)eps;
    a->scale = grad_scale;
}

enum sdp_isa sdp_adamw_isa(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return SDP_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return SDP_ISA_AVX2;
#endif
    return SDP_ISA_C;
}

static double sum_lanes(const double *lanes)
{
    double sum = 0;
    for (size_t k = 0; k < 16; k++)
        sum += lanes[k];
    return sum;
}

bool sdp_adamw_block_isa(enum sdp_isa isa, const struct sdp_adamw_args *args, size_t offset, size_t count,
                         double *sum_of_squares)
{
    double lanes[16] = {0};
    if (isa > sdp_adamw_isa())
        return false;
#ifdef __x86_64__
    if (isa == SDP_ISA_AVX512)
        adamw_avx512(args, offset, count, lanes);
    else if (isa == SDP_ISA_AVX2)
        adamw_avx2(args, offset, count, lanes);
    else
#endif
        adamw_c(args, offset, count, lanes);
    *sum_of_squares = sum_lanes(lanes);
    return true;
}

void sdp_adamw_block(const struct sdp_adamw_args *args, size_t offset, size_t count, double *sum_of_squares)
{
    (void)sdp_adamw_block_isa(sdp_adamw_isa(), args, offset, count, sum_of_squares);
}

void sdp_reduce_block(const void *const *gradients, size_t ranks, enum sdp_dtype dtype, void *out,
                      enum sdp_dtype out_dtype, size_t offset, size_t count, double *sum_of_squares)
{
    double lanes[16] = {0};
#ifdef __x86_64__
    enum sdp_isa isa = sdp_adamw_isa();
    if (isa == SDP_ISA_AVX512)
        reduce_avx512(gradients, ranks, dtype, out, out_dtype, offset, count, lanes);
    else if (isa == SDP_ISA_AVX2)
        reduce_avx2(gradients, ranks, dtype, out, out_dtype, offset, count, lanes);
    else
#endif
        reduce_c(gradients, ranks, dtype, out, out_dtype, offset, count, lanes);
    *sum_of_squares = sum_lanes(lanes);
}
