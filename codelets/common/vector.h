/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Loops of the CPU twins: SDP_VECTOR compiles a function for several instruction
 * sets and picks one at run time; sdpi_exp is an exponential that vectorises. */
#ifndef SDP_CODELETS_COMMON_VECTOR_H
#define SDP_CODELETS_COMMON_VECTOR_H

#include "graph/base/util.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define SDP_VECTOR __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"), optimize("O3")))
#else
#define SDP_VECTOR
#endif

/* e^x by 2^n times a degree-6 polynomial on [-ln2/2, ln2/2]; relative error below 2e-7. x below -87
 * gives about 1e-38, above 88 about 2e38: no infinities inside a softmax. */
static inline __attribute__((always_inline)) float sdpi_exp(float x)
{
    float y = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = (y * 1.44269504f + 12582912.0f) - 12582912.0f; /* round to nearest */
    float r = y - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * sdp_float_from_bits((uint32_t)((int32_t)n + 127) << 23);
}

#endif
