/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The update and reduction kernels with AVX-512: one group of 16 lanes a vector. The
 * operations and their order are those of the C version in adamw.c; a rest of fewer
 * than 16 elements goes there. */
#include "codelets/update/adamw.h"

#ifdef __x86_64__
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define LANES  SDPI_ADAMW_LANES

INLINE __m512 one_nan(__m512 x)
{
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(nan, x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

INLINE __m512i load_halves(const uint16_t *source)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)source));
}

INLINE void store_halves(void *target, __m512i x, bool stream)
{
    if (stream)
        _mm256_stream_si256(target, _mm512_cvtepi32_epi16(x));
    else
        _mm256_storeu_si256(target, _mm512_cvtepi32_epi16(x));
}

INLINE __m512 load(const void *source, enum sdp_dtype dtype, size_t i)
{
    if (dtype == SDP_FP32)
        return _mm512_loadu_ps((const float *)source + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(load_halves((const uint16_t *)source + i), 16));
}

INLINE __m512 sum_ranks(const void *const *sources, size_t ranks, enum sdp_dtype dtype, size_t i)
{
    __m512 g = load(sources[0], dtype, i);
    for (size_t r = 1; r < ranks; r++)
        g = _mm512_add_ps(g, load(sources[r], dtype, i));
    return g;
}

INLINE void add_squares(__m512 g, __m512d *low, __m512d *high)
{
    __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(g));
    __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(g, 1));
    *low = _mm512_fmadd_pd(a, a, *low);
    *high = _mm512_fmadd_pd(b, b, *high);
}

INLINE __m512 join(const uint16_t *weight, const int16_t *remainder)
{
    __m512i low = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)remainder));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(load_halves(weight), 16), low));
}

/* The remainder is the low half of the bits, whichever way the weight was rounded. */
INLINE void split(__m512 p, uint16_t *weight, int16_t *remainder)
{
    __m512i bits = _mm512_castps_si512(one_nan(p));
    __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
    store_halves(weight, _mm512_srli_epi32(up, 16), false);
    store_halves(remainder, bits, false);
}

INLINE void update(const struct sdp_adamw_args *a, size_t i, __m512 g)
{
    __m512 p = join(a->weight + i, a->remainder + i);
    __m512 x = _mm512_mul_ps(g, _mm512_set1_ps(a->scale));
    __m512 mx = _mm512_mul_ps(_mm512_set1_ps(a->rest1), x);
    __m512 vx = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(a->rest2), x), x);
    __m512 m = _mm512_fmadd_ps(_mm512_set1_ps(a->beta1), _mm512_loadu_ps(a->m + i), mx);
    __m512 v = _mm512_fmadd_ps(_mm512_set1_ps(a->beta2), _mm512_loadu_ps(a->v + i), vx);
    __m512 denominator =
        _mm512_fmadd_ps(_mm512_sqrt_ps(v), _mm512_set1_ps(a->root), _mm512_set1_ps(a->eps));
    __m512 shrunk = _mm512_mul_ps(p, _mm512_set1_ps(a->shrink));
    p = _mm512_fmadd_ps(_mm512_set1_ps(-a->rate), _mm512_div_ps(m, denominator), shrunk);
    _mm512_storeu_ps(a->m + i, one_nan(m));
    _mm512_storeu_ps(a->v + i, one_nan(v));
    split(p, a->weight + i, a->remainder + i);
}

INLINE void adamw(const struct sdp_adamw_args *args, size_t first, size_t end,
                  enum sdp_dtype dtype, double *lanes)
{
    const struct sdp_adamw_args a = *args; /* stores through a->m cannot change it */
    __m512d low = _mm512_loadu_pd(lanes), high = _mm512_loadu_pd(lanes + 8);
    for (size_t i = first; i < end; i += LANES) {
        sdpi_adamw_ask(&a, i, dtype);
        __m512 g = sum_ranks(a.gradients, a.ranks, dtype, i);
        add_squares(g, &low, &high);
        update(&a, i, g);
    }
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
}

TARGET void sdpi_adamw_avx512(const struct sdp_adamw_args *args, size_t offset, size_t count,
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
INLINE __m512i round_to_halves(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_srli_epi32(bits, 16);
}

INLINE void reduce(const struct sdpi_reduce_args *a, size_t first, size_t end,
                   enum sdp_dtype dtype, enum sdp_dtype out_dtype, double *lanes)
{
    const char *start = (char *)a->out + first * (out_dtype == SDP_FP32 ? 4 : 2);
    bool stream = a->stream && (uintptr_t)start % 64 == 0;
    __m512d low = _mm512_loadu_pd(lanes), high = _mm512_loadu_pd(lanes + 8);
    for (size_t i = first; i < end; i += LANES) {
        __m512 g = one_nan(sum_ranks(a->gradients, a->ranks, dtype, i));
        if (out_dtype == SDP_FP32 && stream) {
            _mm512_stream_ps((float *)a->out + i, g);
        } else if (out_dtype == SDP_FP32) {
            _mm512_storeu_ps((float *)a->out + i, g);
        } else {
            __m512i stored = round_to_halves(g);
            store_halves((uint16_t *)a->out + i, stored, stream);
            g = _mm512_castsi512_ps(_mm512_slli_epi32(stored, 16));
        }
        add_squares(g, &low, &high);
    }
    if (stream)
        _mm_sfence();
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
}

TARGET void sdpi_reduce_avx512(const struct sdpi_reduce_args *args, size_t offset, size_t count,
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
typedef int sdpi_adamw_avx512_unused; /* a source file is never empty */
#endif
