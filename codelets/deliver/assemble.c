/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* fp32 weights from their two stored halves. As 16-bit halves, (weight << 16) + remainder
 * is the remainder below and the weight above, less one where the remainder is negative:
 * eight elements at a time in SSE2, which every x86-64 has. Memory is the limit. */
#include "codelets/deliver/assemble.h"

#ifdef __x86_64__
#include <emmintrin.h>

/* Whole groups of 8; how many elements were done. */
static size_t assemble_groups(const uint16_t *weight, const int16_t *remainder, float *out,
                              size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m128i w = _mm_loadu_si128((const void *)(weight + i));
        __m128i low = _mm_loadu_si128((const void *)(remainder + i));
        __m128i high = _mm_add_epi16(w, _mm_srai_epi16(low, 15));
        _mm_storeu_ps(out + i, _mm_castsi128_ps(_mm_unpacklo_epi16(low, high)));
        _mm_storeu_ps(out + i + 4, _mm_castsi128_ps(_mm_unpackhi_epi16(low, high)));
    }
    return i;
}
#endif

void sdp_assemble(const uint16_t *weight, const int16_t *remainder, float *out, size_t count)
{
    size_t i = 0;
#ifdef __x86_64__
    i = assemble_groups(weight, remainder, out, count);
#endif
    for (; i < count; i++)
        out[i] = sdp_master_join(weight[i], remainder[i]);
}
