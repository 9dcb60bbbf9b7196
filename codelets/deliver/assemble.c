/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* fp32 weights from their two stored halves. As 16-bit halves, (weight << 16) + remainder
 * is the remainder below and the weight above, less one where the remainder is negative:
 * eight elements at a time in SSE2, which every x86-64 has. Memory is the limit, so large
 * outputs are written around the caches: their lines need not be read to be written. */
#include "codelets/deliver/assemble.h"

#ifdef __x86_64__
#include <emmintrin.h>

#define GROUP  ((size_t)8)
#define STREAM ((size_t)1 << 18) /* elements from which on an output is large */

static void assemble_groups(const uint16_t *weight, const int16_t *remainder, float *out,
                            size_t count)
{
    bool stream = count >= STREAM && (uintptr_t)out % 16 == 0;
    for (size_t i = 0; i < count; i += GROUP) {
        __m128i w = _mm_loadu_si128((const void *)(weight + i));
        __m128i low = _mm_loadu_si128((const void *)(remainder + i));
        __m128i high = _mm_add_epi16(w, _mm_srai_epi16(low, 15));
        __m128 first = _mm_castsi128_ps(_mm_unpacklo_epi16(low, high));
        __m128 second = _mm_castsi128_ps(_mm_unpackhi_epi16(low, high));
        if (stream) {
            _mm_stream_ps(out + i, first);
            _mm_stream_ps(out + i + 4, second);
        } else {
            _mm_storeu_ps(out + i, first);
            _mm_storeu_ps(out + i + 4, second);
        }
    }
    if (stream)
        _mm_sfence();
}
#endif

void sdp_assemble(const uint16_t *weight, const int16_t *remainder, float *out, size_t count)
{
    size_t i = 0;
#ifdef __x86_64__
    i = count / GROUP * GROUP;
    assemble_groups(weight, remainder, out, i);
#endif
    for (; i < count; i++)
        out[i] = sdp_master_join(weight[i], remainder[i]);
}
