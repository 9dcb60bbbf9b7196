/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Rotary frequencies as Hugging Face transformers computes them. Its roundings to fp32
 * are kept, for a last bit of a frequency is a visible angle at a far position; only the
 * power is better than there, as it is rounded once. */
#include "codelets/ops/rope/frequencies.h"

#define TURN 6.283185307179586 /* 2 pi */

/* theta^(2 i / head_dim): the inverse of pair i's frequency before scaling. */
static float power_of(const struct sdp_op_node *node, size_t i)
{
    float exponent = (float)(2 * i) / (float)sdp_op_attr(node, "head_dim");

    return (float)pow((double)(float)sdp_op_attr(node, "theta"), (double)exponent);
}

/* Keeps short waves, divides long ones by factor, ramps between. */
static float llama3(const struct sdp_op_node *node, float inverse)
{
    double original = sdp_op_attr(node, "original_max_position");
    double low = sdp_op_attr(node, "low_freq_factor");
    double high = sdp_op_attr(node, "high_freq_factor");
    float factor = (float)sdp_op_attr(node, "factor");
    float wavelength = (float)TURN / inverse, smooth;

    if (wavelength > (float)(original / low))
        return inverse / factor;
    if (wavelength < (float)(original / high))
        return inverse;
    smooth = ((float)original / wavelength - (float)low) / (float)(high - low);
    return (1.0f - smooth) * inverse / factor + smooth * inverse;
}

/* Index of the pair that turns `turns` times within the original length. */
static double yarn_index(const struct sdp_op_node *node, double turns)
{
    double original = sdp_op_attr(node, "original_max_position");

    return sdp_op_attr(node, "head_dim") * log(original / (turns * TURN)) /
           (2.0 * log(sdp_op_attr(node, "theta")));
}

/* Keeps the pairs that turn often, divides those that turn seldom by factor. */
static float yarn(const struct sdp_op_node *node, size_t i, float power)
{
    double fast = yarn_index(node, sdp_op_attr(node, "beta_fast"));
    double slow = yarn_index(node, sdp_op_attr(node, "beta_slow"));
    double first = fmax(floor(fast), 0.0);
    double last = fmin(ceil(slow), sdp_op_attr(node, "head_dim") - 1.0);
    float width = (float)(last == first ? 0.001 : last - first);
    float ramp = fminf(fmaxf(((float)i - (float)first) / width, 0.0f), 1.0f);
    float keep = 1.0f - ramp;

    return 1.0f / ((float)sdp_op_attr(node, "factor") * power) * (1.0f - keep) +
           1.0f / power * keep;
}

static float yarn_magnitude(const struct sdp_op_node *node)
{
    double given = sdp_op_attr(node, "attention_factor");
    double factor = sdp_op_attr(node, "factor");

    if (given > 0.0)
        return (float)given;
    return factor > 1.0 ? (float)(0.1 * log(factor) + 1.0) : 1.0f;
}

void sdp_rope_frequencies_of(const struct sdp_op_node *node,
                             struct sdp_rope_frequencies *out)
{
    size_t half = (size_t)sdp_op_attr(node, "head_dim") / 2;
    int type = (int)sdp_op_attr(node, "type");

    *out = (struct sdp_rope_frequencies){.magnitude = 1.0f};
    if (type == SDP_ROPE_YARN)
        out->magnitude = yarn_magnitude(node);
    for (size_t i = 0; i < half && i < SDP_COUNT_OF(out->inverse); i++) {
        float power = power_of(node, i), inverse = 1.0f / power;

        if (type == SDP_ROPE_LINEAR)
            inverse /= (float)sdp_op_attr(node, "factor");
        else if (type == SDP_ROPE_LLAMA3)
            inverse = llama3(node, inverse);
        else if (type == SDP_ROPE_YARN)
            inverse = yarn(node, i, power);
        out->inverse[i] = inverse;
    }
}
