/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The update and reduction kernels with AVX2 and FMA: one group of 16 lanes is two
 * vectors. The operations and their order are those of the C version in adamw.c; a rest
 * of fewer than 16 elements goes there. */
#include "codelets/update/adamw.h"

#ifdef __x86_64__
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define LANES  SDPI_ADAMW_LANES
#define HALF   8 /* elements of a vector */

INLINE __m256 one_nan(__m256 x)
{
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan);
}

INLINE __m256i load_halves(const uint16_t *source)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)source));
}

/* The low halves of 8 and 8 elements, side by side. */
INLINE void store_halves(void *target, __m256i low, __m256i high, bool stream)
{
    __m256i mask = _mm256_set1_epi32(0xffff);
    __m256i x = _mm256_packus_epi32(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
    x = _mm256_permute4x64_epi64(x, 0xd8);
    if (stream)
        _mm256_stream_si256(target, x);
    else
        _mm256_storeu_si256(target, x);
}

INLINE void store_floats(float *target, __m256 x, bool stream)
{
    if (stream)
        _mm256_stream_ps(target, x);
    else
        _mm256_storeu_ps(target, x);
}

INLINE __m256 load(const void *source, enum sdp_dtype dtype, size_t i)
{
    if (dtype == SDP_FP32)
        return _mm256_loadu_ps((const float *)source + i);
    return _mm256_castsi256_ps(_mm256_slli_epi32(load_halves((const uint16_t *)source + i), 16));
}

INLINE __m256 sum_ranks(const void *const *sources, size_t ranks, enum sdp_dtype dtype, size_t i)
{
    __m256 g = load(sources[0], dtype, i);
    for (size_t r = 1; r < ranks; r++)
        g = _mm256_add_ps(g, load(sources[r], dtype, i));
    return g;
}

INLINE void add_squares(__m256 g, __m256d *low, __m256d *high)
{
    __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(g));
    __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(g, 1));
    *low = _mm256_fmadd_pd(a, a, *low);
    *high = _mm256_fmadd_pd(b, b, *high);
}

INLINE __m256 join(const uint16_t *weight, const int16_t *remainder)
{
    __m256i low = _mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)remainder));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(load_halves(weight), 16), low));
}

/* 8 elements; the new master weights' bits, NaN in its one form. */
INLINE __m256i update(const struct sdp_adamw_args *a, size_t i, __m256 g)
{
    __m256 p = join(a->weight + i, a->remainder + i);
    __m256 x = _mm256_mul_ps(g, _mm256_set1_ps(a->scale));
    __m256 mx = _mm256_mul_ps(_mm256_set1_ps(a->rest1), x);
    __m256 vx = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(a->rest2), x), x);
    __m256 m = _mm256_fmadd_ps(_mm256_set1_ps(a->beta1), _mm256_loadu_ps(a->m + i), mx);
    __m256 v = _mm256_fmadd_ps(_mm256_set1_ps(a->beta2), _mm256_loadu_ps(a->v + i), vx);
    __m256 denominator =
        _mm256_fmadd_ps(_mm256_sqrt_ps(v), _mm256_set1_ps(a->root), _mm256_set1_ps(a->eps));
    __m256 shrunk = _mm256_mul_ps(p, _mm256_set1_ps(a->shrink));
    p = _mm256_fmadd_ps(_mm256_set1_ps(-a->rate), _mm256_div_ps(m, denominator), shrunk);
    _mm256_storeu_ps(a->m + i, one_nan(m));
    _mm256_storeu_ps(a->v + i, one_nan(v));
    return _mm256_castps_si256(one_nan(p));
}

/* The remainder is the low half of the bits, whichever way the weight was rounded. */
INLINE void store_split(const struct sdp_adamw_args *a, size_t i, __m256i low, __m256i high)
{
    __m256i half = _mm256_set1_epi32(0x8000);
    store_halves(a->weight + i, _mm256_srli_epi32(_mm256_add_epi32(low, half), 16),
                 _mm256_srli_epi32(_mm256_add_epi32(high, half), 16), false);
    store_halves(a->remainder + i, low, high, false);
}

struct squares {
    __m256d of[4];
};

INLINE struct squares load_lanes(const double *lanes)
{
    return (struct squares){{_mm256_loadu_pd(lanes), _mm256_loadu_pd(lanes + 4),
                             _mm256_loadu_pd(lanes + 8), _mm256_loadu_pd(lanes + 12)}};
}

INLINE void store_lanes(double *lanes, const struct squares *s)
{
    _mm256_storeu_pd(lanes, s->of[0]);
    _mm256_storeu_pd(lanes + 4, s->of[1]);
    _mm256_storeu_pd(lanes + 8, s->of[2]);
    _mm256_storeu_pd(lanes + 12, s->of[3]);
}

INLINE void adamw(const struct sdp_adamw_args *args, size_t first, size_t end,
                  enum sdp_dtype dtype, double *lanes)
{
    const struct sdp_adamw_args a = *args; /* stores through a->m cannot change it */
    struct squares s = load_lanes(lanes);
    for (size_t i = first; i < end; i += LANES) {
        sdpi_adamw_ask(&a, i, dtype);
        __m256 low = sum_ranks(a.gradients, a.ranks, dtype, i);
        __m256 high = sum_ranks(a.gradients, a.ranks, dtype, i + HALF);
        add_squares(low, &s.of[0], &s.of[1]);
        add_squares(high, &s.of[2], &s.of[3]);
        __m256i low_bits = update(&a, i, low), high_bits = update(&a, i + HALF, high);
        store_split(&a, i, low_bits, high_bits);
    }
    store_lanes(lanes, &s);
}

TARGET void sdpi_adamw_avx2(const struct sdp_adamw_args *args, size_t offset, size_t count,
                            double *lanes)
{
    size_t whole = count / LANES * LANES;
    if (args->gradient_dtype == SDP_FP32)
        adamw(args, offset, offset + whole, SDP_FP32, lanes);
    else
        adamw(args, offset, offset + whole, SDP_BF16, lanes);
    sdpi_adamw_c(args, offset + whole, count - whole, lanes);
}

/* To nearest, ties to even. x is never a NaN of another form, which could overflow. */
INLINE __m256i round_to_halves(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_srli_epi32(bits, 16);
}

INLINE void reduce(const struct sdpi_reduce_args *a, size_t first, size_t end,
                   enum sdp_dtype dtype, enum sdp_dtype out_dtype, double *lanes)
{
    const char *start = (char *)a->out + first * (out_dtype == SDP_FP32 ? 4 : 2);
    bool stream = a->stream && (uintptr_t)start % 64 == 0;
    struct squares s = load_lanes(lanes);
    for (size_t i = first; i < end; i += LANES) {
        __m256 low = one_nan(sum_ranks(a->gradients, a->ranks, dtype, i));
        __m256 high = one_nan(sum_ranks(a->gradients, a->ranks, dtype, i + HALF));
        if (out_dtype == SDP_FP32) {
            store_floats((float *)a->out + i, low, stream);
            store_floats((float *)a->out + i + HALF, high, stream);
        } else {
            __m256i low_half = round_to_halves(low), high_half = round_to_halves(high);
            store_halves((uint16_t *)a->out + i, low_half, high_half, stream);
            low = _mm256_castsi256_ps(_mm256_slli_epi32(low_half, 16));
            high = _mm256_castsi256_ps(_mm256_slli_epi32(high_half, 16));
        }
        add_squares(low, &s.of[0], &s.of[1]);
        add_squares(high, &s.of[2], &s.of[3]);
    }
    if (stream)
        _mm_sfence();
    store_lanes(lanes, &s);
}

TARGET void sdpi_reduce_avx2(const struct sdpi_reduce_args *args, size_t offset, size_t count,
                             double *lanes)
{
    size_t whole = count / LANES * LANES, end = offset + whole;
    if (args->dtype == SDP_FP32 && args->out_dtype == SDP_FP32)
        reduce(args, offset, end, SDP_FP32, SDP_FP32, lanes);
    else if (args->dtype == SDP_FP32)
        reduce(args, offset, end, SDP_FP32, SDP_BF16, lanes);
    else if (args->out_dtype == SDP_FP32)
        reduce(args, offset, end, SDP_BF16, SDP_FP32, lanes);
    else
        reduce(args, offset, end, SDP_BF16, SDP_BF16, lanes);
    sdpi_reduce_c(args, end, count - whole, lanes);
}
#else
typedef int sdpi_adamw_avx2_unused; /* a source file is never empty */
#endif
