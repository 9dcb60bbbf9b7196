/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Box-Muller in single precision with polynomials for log, sin and cos, so that the
 * loop vectorises (libm's calls would take most of a large model's start). Elements
 * 2n and 2n + 1 come from one 64-bit mix of (key, n). */
#include "model/state/normal.h"

#include "codelets/common/vector_math.h"

static inline __attribute__((always_inline)) uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ln of u in (0, 1]: exponent and a polynomial in the mantissa around 1. */
static inline __attribute__((always_inline)) float log_of(float u)
{
    uint32_t bits = sdp_bits_from_float(u);
    int32_t e = (int32_t)(bits >> 23) - 127;
    float m = sdp_float_from_bits((bits & 0x7fffffu) | 0x3f800000u); /* [1, 2) */
    float big = m > 1.41421356f ? 1.0f : 0.0f;
    m = m * (1.0f - 0.5f * big);
    float n = (float)e + big, x = m - 1.0f, z = x * x, p = 7.0376836292e-2f;
    p = p * x - 1.1514610310e-1f;
    p = p * x + 1.1676998740e-1f;
    p = p * x - 1.2420140846e-1f;
    p = p * x + 1.4249322787e-1f;
    p = p * x - 1.6668057665e-1f;
    p = p * x + 2.0000714765e-1f;
    p = p * x - 2.4999993993e-1f;
    p = p * x + 3.3333331174e-1f;
    return x - 0.5f * z + p * x * z + n * 0.693147181f;
}

/* sin and cos of 2 pi t for t in [-1/8, 1/8]. */
static inline __attribute__((always_inline)) void turn(float t, float *sine, float *cosine)
{
    float x = t * 6.28318531f, z = x * x;
    *sine = x * (1.0f + z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f)));
    *cosine =
        1.0f - 0.5f * z +
        z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
}

SDPI_CLONES static void fill_pairs(float *values, uint64_t key, uint64_t first, size_t pairs,
                                  float std)
{
    for (size_t i = 0; i < pairs; i++) {
        uint64_t bits = mix(mix(key) + first + i);
        float u = ((float)(uint32_t)(bits >> 41) + 0.5f) * 1.1920929e-7f; /* 23 bits, never 0 */
        float t = (float)(int32_t)(uint32_t)((bits >> 10) & 0x1fffffu) * 1.1920929e-7f -
                  0.125f; /* 21 bits */
        uint32_t quarter = (uint32_t)bits & 3u;
        float radius = std * sqrtf(-2.0f * log_of(u)), s, c;
        turn(t, &s, &c);
        float a = quarter & 1u ? s : c, b = quarter & 1u ? c : s;
        float sign_a = quarter & 2u ? -radius : radius,
              sign_b = (quarter + 1u) & 2u ? -radius : radius;
        values[2 * i] = sign_a * a;
        values[2 * i + 1] = sign_b * b;
    }
}

void sdpi_fill_normal(float *values, uint64_t key, uint64_t first, size_t count, float std)
{
    float last[2];
    fill_pairs(values, key, first / 2, count / 2, std);
    if (count % 2) {
        fill_pairs(last, key, (first + count - 1) / 2, 1, std);
        values[count - 1] = last[0];
    }
}
