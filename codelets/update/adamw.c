/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The update and reduction kernels in plain C, and the choice between their versions.
 * No plain addition in any version takes a product that could round otherwise if a
 * compiler fused the two (the squares' products are exact in double), so -ffp-contract
 * changes nothing. */
#include "codelets/update/adamw.h"

#include <fenv.h>
#include <stdatomic.h>

#define LANES SDPI_ADAMW_LANES

/* -- plain C ---------------------------------------------------------------------- */

static inline float one_nan(float x)
{
    return x == x ? x : sdp_float_from_bits(0x7fc00000u);
}

static inline float element(const void *source, enum sdp_dtype dtype, size_t i)
{
    if (dtype == SDP_FP32)
        return ((const float *)source)[i];
    return sdp_bf16_to_float(((const uint16_t *)source)[i]);
}

/* The sums of n <= LANES elements from i on. */
static inline void sum_ranks(const void *const *sources, size_t ranks, enum sdp_dtype dtype,
                             size_t i, size_t n, float *g)
{
    for (size_t k = 0; k < n; k++)
        g[k] = element(sources[0], dtype, i + k);
    for (size_t r = 1; r < ranks; r++) {
        for (size_t k = 0; k < n; k++)
            g[k] += element(sources[r], dtype, i + k);
    }
}

static inline void add_squares(const float *g, size_t n, double *lanes)
{
    for (size_t k = 0; k < n; k++)
        lanes[k] += (double)g[k] * (double)g[k];
}

static inline void update(const struct sdp_adamw_args *a, size_t i, float g)
{
    float p = sdp_master_join(a->weight[i], a->remainder[i]);
    float x = g * a->scale;
    float m = fmaf(a->beta1, a->m[i], a->rest1 * x);
    float v = fmaf(a->beta2, a->v[i], a->rest2 * x * x);
    float denominator = fmaf(sqrtf(v), a->root, a->eps);
    p = fmaf(-a->rate, m / denominator, p * a->shrink);
    a->m[i] = one_nan(m);
    a->v[i] = one_nan(v);
    sdp_master_split(p, &a->weight[i], &a->remainder[i]);
}

void sdpi_adamw_c(const struct sdp_adamw_args *args, size_t offset, size_t count, double *lanes)
{
    for (size_t i = 0; i < count; i += LANES) {
        float g[LANES];
        size_t n = SDP_MIN(count - i, (size_t)LANES);
        sum_ranks(args->gradients, args->ranks, args->gradient_dtype, offset + i, n, g);
        add_squares(g, n, lanes);
        for (size_t k = 0; k < n; k++)
            update(args, offset + i + k, g[k]);
    }
}

void sdpi_reduce_c(const struct sdpi_reduce_args *args, size_t offset, size_t count,
                   double *lanes)
{
    for (size_t i = 0; i < count; i += LANES) {
        float g[LANES];
        size_t n = SDP_MIN(count - i, (size_t)LANES), at = offset + i;
        sum_ranks(args->gradients, args->ranks, args->dtype, at, n, g);
        for (size_t k = 0; k < n; k++) {
            g[k] = one_nan(g[k]);
            if (args->out_dtype == SDP_FP32) {
                ((float *)args->out)[at + k] = g[k];
            } else {
                uint16_t stored = sdp_bf16_from_float(g[k]);
                ((uint16_t *)args->out)[at + k] = stored;
                g[k] = sdp_bf16_to_float(stored);
            }
        }
        add_squares(g, n, lanes);
    }
}

/* -- the choice -------------------------------------------------------------------- */

struct version {
    const char *name;
    void (*adamw)(const struct sdp_adamw_args *args, size_t offset, size_t count, double *lanes);
    void (*reduce)(const struct sdpi_reduce_args *args, size_t offset, size_t count,
                   double *lanes);
};

static const struct version versions[SDP_ISA_COUNT] = {
    [SDP_ISA_C] = {"c", sdpi_adamw_c, sdpi_reduce_c},
#ifdef __x86_64__
    [SDP_ISA_AVX2] = {"avx2", sdpi_adamw_avx2, sdpi_reduce_avx2},
    [SDP_ISA_AVX512] = {"avx512", sdpi_adamw_avx512, sdpi_reduce_avx512},
#else
    [SDP_ISA_AVX2] = {"avx2", NULL, NULL},
    [SDP_ISA_AVX512] = {"avx512", NULL, NULL},
#endif
};

static atomic_int chosen = -1;

static bool supported(enum sdp_isa isa)
{
    switch (isa) {
    case SDP_ISA_C:
        return true;
#ifdef __x86_64__
    case SDP_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case SDP_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
    default:
        return false;
    }
}

const char *sdp_isa_name(enum sdp_isa isa)
{
    return (unsigned)isa < SDP_ISA_COUNT ? versions[isa].name : "unknown";
}

enum sdp_isa sdp_adamw_isa(void)
{
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        int unset = -1;
        isa = supported(SDP_ISA_AVX512) ? SDP_ISA_AVX512
              : supported(SDP_ISA_AVX2) ? SDP_ISA_AVX2
                                        : SDP_ISA_C;
        if (!atomic_compare_exchange_strong(&chosen, &unset, isa))
            isa = unset; /* set meanwhile */
    }
    return (enum sdp_isa)isa;
}

bool sdp_adamw_set_isa(enum sdp_isa isa)
{
    if (!supported(isa))
        return false;
    atomic_store(&chosen, (int)isa);
    return true;
}

/* -- the calls ---------------------------------------------------------------------- */

static double sum_lanes(const double *lanes)
{
    double sum = 0;
    for (size_t k = 0; k < LANES; k++)
        sum += lanes[k];
    return sum;
}

static double one_nan_of(double sum)
{
    return sum == sum ? sum : (double)sdp_float_from_bits(0x7fc00000u);
}

void sdp_adamw_set(struct sdp_adamw_args *args, double lr, double beta1, double beta2, double eps,
                   double weight_decay, uint64_t step, float grad_scale)
{
    args->shrink = (float)(1.0 - lr * weight_decay);
    args->beta1 = (float)beta1;
    args->rest1 = (float)(1.0 - beta1);
    args->beta2 = (float)beta2;
    args->rest2 = (float)(1.0 - beta2);
    args->rate = (float)(lr / (1.0 - pow(beta1, (double)step)));
    args->root = (float)(1.0 / sqrt(1.0 - pow(beta2, (double)step)));
    args->eps = (float)eps;
    args->scale = grad_scale;
}

/* The default floating-point environment around a kernel: a library loaded into the
 * program may have set this thread to flush denormals. */
void sdp_adamw_block(const struct sdp_adamw_args *args, size_t offset, size_t count,
                     double *sum_of_squares)
{
    double sum = 0;
    fenv_t saved;
    bool restore = fegetenv(&saved) == 0 && fesetenv(FE_DFL_ENV) == 0;
    for (size_t i = 0; i < count; i += SDP_NORM_SEGMENT) {
        double lanes[LANES] = {0};
        versions[sdp_adamw_isa()].adamw(args, offset + i, SDP_MIN(count - i, SDP_NORM_SEGMENT), lanes);
        sum += sum_lanes(lanes);
    }
    *sum_of_squares = one_nan_of(sum);
    if (restore)
        (void)fesetenv(&saved);
}

void sdp_reduce_block(const void *const *gradients, size_t ranks, enum sdp_dtype dtype, void *out,
                      enum sdp_dtype out_dtype, size_t offset, size_t count,
                      double *sum_of_squares)
{
    const struct sdpi_reduce_args args = {.gradients = gradients, .ranks = ranks, .dtype = dtype,
                                          .out_dtype = out_dtype, .out = out,
                                          .stream = count >= SDPI_REDUCE_STREAM};
    double sum = 0;
    fenv_t saved;
    bool restore = fegetenv(&saved) == 0 && fesetenv(FE_DFL_ENV) == 0;
    for (size_t i = 0; i < count; i += SDP_NORM_SEGMENT) {
        double lanes[LANES] = {0};
        versions[sdp_adamw_isa()].reduce(&args, offset + i, SDP_MIN(count - i, SDP_NORM_SEGMENT), lanes);
        sum += sum_lanes(lanes);
    }
    *sum_of_squares = one_nan_of(sum);
    if (restore)
        (void)fesetenv(&saved);
}
