/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arithmetic of the CPU twins' hot loops, written so that the compiler makes vectors of
 * it, and the mark for functions that are built for several generations of processors. */
#ifndef SDP_CODELETS_COMMON_VECTOR_MATH_H
#define SDP_CODELETS_COMMON_VECTOR_MATH_H

#include "graph/base/util.h"

/* Before a function: builds it for x86-64 as it is and for two later levels; the loader
 * picks one. Not with the thread sanitizer, which cannot run the code that picks. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) &&                  \
    defined(__GNUC__) && __GNUC__ >= 12 && !defined(__SANITIZE_THREAD__)
#define SDPI_CLONES                                                                      \
    __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define SDPI_CLONES
#endif

/* Partial sums of a reduction: as many as the widest registers take in two. */
#define SDPI_LANES 32

/* Columns whose sums over rows are kept at a time, in double. */
#define SDPI_COLUMN_TILE 256

/** exp(x) with an error below 1 ulp; 0 and infinity beyond the range, NaN for NaN. */
static inline float sdpi_exp(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float n, r, p;
    uint32_t whole, half;

    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    n = x * 1.44269504f + shift;
    whole = sdp_bits_from_float(n) - 0x4b400000u; /* as two's complement */
    n -= shift;
    r = x - n * 0.693359375f; /* ln 2 in two parts; the product with the first is exact */
    r = r - n * -2.12194440e-4f;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* 2^n in two factors, since n leaves the range of one exponent at both ends. */
    half = (whole + 256u) / 2u - 128u;
    return p * sdp_float_from_bits((half + 127u) << 23) *
           sdp_float_from_bits((whole - half + 127u) << 23);
}

/** 1 / (1 + exp(-x)). */
static inline float sdpi_sigmoid(float x)
{
    return 1.0f / (1.0f + sdpi_exp(-x));
}

/** Sum of SDPI_LANES partial sums, in a fixed order. */
static inline float sdpi_lanes_sum(const float *lanes)
{
    float sum[SDPI_LANES];

    memcpy(sum, lanes, sizeof sum);
    for (size_t n = SDPI_LANES / 2; n > 0; n /= 2)
        for (size_t i = 0; i < n; i++)
            sum[i] += sum[i + n];
    return sum[0];
}

/** Sum of a[i] * b[i]. */
static inline float sdpi_dot(const float *a, const float *b, size_t count)
{
    float lanes[SDPI_LANES] = {0.0f};
    size_t i = 0;

    for (; i + SDPI_LANES <= count; i += SDPI_LANES)
        for (size_t l = 0; l < SDPI_LANES; l++)
            lanes[l] += a[i + l] * b[i + l];
    for (size_t l = 0; i < count; i++, l++)
        lanes[l] += a[i] * b[i];
    return sdpi_lanes_sum(lanes);
}

/** sum[i] += x[i]. */
static inline void sdpi_tile_add(double *restrict sum, const float *restrict x,
                                 size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += (double)x[i];
}

/** to[i] (=|+=) scale * sum[i]. */
static inline void sdpi_tile_store(float *restrict to, const double *restrict sum,
                                   double scale, size_t count, bool add)
{
    if (add) {
        for (size_t i = 0; i < count; i++)
            to[i] = (float)((double)to[i] + scale * sum[i]);
    } else {
        for (size_t i = 0; i < count; i++)
            to[i] = (float)(scale * sum[i]);
    }
}

#endif
