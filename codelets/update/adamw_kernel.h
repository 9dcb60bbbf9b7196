/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The body of the update kernel. Included once for each instruction set, with
 * KERNEL(name) giving the function its own name and TARGET its attribute; only
 * the compiler's choice of instructions differs. LANES elements at a time in local arrays, which
 * become vector registers; a rest is padded and goes through the same code. */

#define LANES 16

TARGET static inline void KERNEL(load_gradient)(float *g, const void *source, enum sdp_dtype dtype, size_t i, size_t n)
{
    if (dtype == SDP_FP32) {
        const float *x = (const float *)source + i;
        for (size_t k = 0; k < n; k++)
            g[k] = x[k];
    } else {
        const uint16_t *x = (const uint16_t *)source + i;
        for (size_t k = 0; k < n; k++)
            g[k] = sdp_bf16_to_float(x[k]);
    }
}

TARGET static inline void KERNEL(sum_gradients)(float *g, const void *const *sources, size_t ranks, enum sdp_dtype dtype,
                                                size_t i, size_t n)
{
    KERNEL(load_gradient)(g, sources[0], dtype, i, n);
    for (size_t r = 1; r < ranks; r++) {
        float other[LANES] = {0};
        KERNEL(load_gradient)(other, sources[r], dtype, i, n);
        for (size_t k = 0; k < n; k++)
            g[k] += other[k];
    }
}

/* NaN has one form in all versions: whose payload an operation keeps is the compiler's choice. */
TARGET static inline void KERNEL(update_lanes)(const struct sdp_adamw_args *a, const float *g, size_t i, size_t n)
{
    uint16_t *restrict weight = a->weight + i;
    int16_t *restrict remainder = a->remainder + i;
    float *restrict m = a->m + i, *restrict v = a->v + i;
    const float shrink = a->shrink, beta1 = a->beta1, rest1 = a->one_minus_beta1, beta2 = a->beta2;
    const float rest2 = a->one_minus_beta2, rate = a->rate, root = a->root, eps = a->eps, scale = a->scale;
    for (size_t k = 0; k < n; k++) {
        float p = sdp_float_from_bits(((uint32_t)weight[k] << 16) + (uint32_t)(int32_t)remainder[k]);
        float x = g[k] * scale;
        float mean = __builtin_fmaf(beta1, m[k], rest1 * x);
        float square = __builtin_fmaf(beta2, v[k], rest2 * x * x);
        float denominator = __builtin_fmaf(__builtin_sqrtf(square), root, eps);
        p = __builtin_fmaf(-rate, mean / denominator, p * shrink);
        m[k] = mean == mean ? mean : sdp_float_from_bits(0x7fc00000u);
        v[k] = square == square ? square : sdp_float_from_bits(0x7fc00000u);
        uint32_t bits = p == p ? sdp_bits_from_float(p) : 0x7fc00000u;
        uint32_t high = bits == 0x7fc00000u ? 0x7fc0u : (bits + 0x8000u) >> 16;
        weight[k] = (uint16_t)high;
        remainder[k] = (int16_t)(uint16_t)(bits - (high << 16));
    }
}

TARGET static void KERNEL(adamw)(const struct sdp_adamw_args *a, size_t offset, size_t count, double *lanes)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        float g[LANES];
        KERNEL(sum_gradients)(g, a->gradients, a->ranks, a->gradient_dtype, offset + i, LANES);
        for (size_t k = 0; k < LANES; k++)
            lanes[k] += (double)g[k] * (double)g[k];
        KERNEL(update_lanes)(a, g, offset + i, LANES);
    }
    if (i < count) {
        float g[LANES] = {0};
        KERNEL(sum_gradients)(g, a->gradients, a->ranks, a->gradient_dtype, offset + i, count - i);
        for (size_t k = 0; k < LANES; k++)
            lanes[k] += (double)g[k] * (double)g[k];
        KERNEL(update_lanes)(a, g, offset + i, count - i);
    }
}

TARGET static void KERNEL(reduce)(const void *const *sources, size_t ranks, enum sdp_dtype dtype, void *out,
                                  enum sdp_dtype out_dtype, size_t offset, size_t count, double *lanes)
{
    for (size_t i = 0; i < count; i += LANES) {
        float g[LANES] = {0};
        size_t n = count - i < LANES ? count - i : LANES, at = offset + i;
        KERNEL(sum_gradients)(g, sources, ranks, dtype, at, n);
        for (size_t k = 0; k < n; k++) {
            if (out_dtype == SDP_FP32) {
                ((float *)out)[at + k] = g[k];
                continue;
            }
            uint16_t stored = sdp_bf16_from_float(g[k]);
            ((uint16_t *)out)[at + k] = stored;
            g[k] = sdp_bf16_to_float(stored);
        }
        for (size_t k = 0; k < LANES; k++)
            lanes[k] += (double)g[k] * (double)g[k];
    }
}

#undef LANES
#undef KERNEL
#undef TARGET
