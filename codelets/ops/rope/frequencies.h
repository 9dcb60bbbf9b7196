/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Rotary frequencies of a `rope` node, for both twins: element pair i turns by position *
 * inverse[i], and sine and cosine are multiplied by magnitude. Computed in double and
 * rounded once, from the attributes type, theta and those of the type's scaling.
 *
 * type "linear" stretches all frequencies; "llama3" only those whose wavelength is long
 * against the original length, with a ramp between; "yarn" ramps over the pair index and
 * changes the magnitude. */
#ifndef SDP_CODELETS_OPS_ROPE_FREQUENCIES_H
#define SDP_CODELETS_OPS_ROPE_FREQUENCIES_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SDP_ROPE_MAX_HEAD_DIM 256

/* The words of the attribute `type`, by index. */
enum sdp_rope_type { SDP_ROPE_DEFAULT = 0, SDP_ROPE_LINEAR, SDP_ROPE_LLAMA3, SDP_ROPE_YARN };

struct sdp_rope_frequencies {
    float inverse[SDP_ROPE_MAX_HEAD_DIM / 2]; /* head_dim / 2 of them are used */
    float magnitude;
};

#define SDP_ROPE_TURN 6.283185307179586 /* 2 pi */

/* Keeps short waves, divides long ones by factor, ramps between. */
static inline double sdpi_rope_llama3(const struct sdp_op_node *node, double inverse)
{
    double factor = sdp_op_attr(node, "factor"), original = sdp_op_attr(node, "original_max_position");
    double low = sdp_op_attr(node, "low_freq_factor"), high = sdp_op_attr(node, "high_freq_factor");
    double waves = original * inverse / SDP_ROPE_TURN; /* in the original length */
    double keep = waves >= high ? 1.0 : waves <= low ? 0.0 : (waves - low) / (high - low);

    return keep * inverse + (1.0 - keep) * inverse / factor;
}

/* Index of the pair that turns `turns` times within the original length. */
static inline double sdpi_rope_yarn_index(const struct sdp_op_node *node, double turns)
{
    double original = sdp_op_attr(node, "original_max_position");

    return sdp_op_attr(node, "head_dim") * log(original / (turns * SDP_ROPE_TURN)) /
           (2.0 * log(sdp_op_attr(node, "theta")));
}

static inline double sdpi_rope_yarn(const struct sdp_op_node *node, size_t i, double inverse)
{
    double first = fmax(floor(sdpi_rope_yarn_index(node, sdp_op_attr(node, "beta_fast"))), 0.0);
    double last = fmin(ceil(sdpi_rope_yarn_index(node, sdp_op_attr(node, "beta_slow"))),
                       sdp_op_attr(node, "head_dim") - 1.0);
    double ramp = ((double)i - first) / (last == first ? 0.001 : last - first);

    ramp = fmin(fmax(ramp, 0.0), 1.0);
    return (1.0 - ramp) * inverse + ramp * inverse / sdp_op_attr(node, "factor");
}

/** Fills *out; head_dim is at most SDP_ROPE_MAX_HEAD_DIM (infer checks it). */
static inline void sdp_rope_frequencies_of(const struct sdp_op_node *node, struct sdp_rope_frequencies *out)
{
    size_t head_dim = (size_t)sdp_op_attr(node, "head_dim");
    enum sdp_rope_type type = (enum sdp_rope_type)(int)sdp_op_attr(node, "type");

    out->magnitude = type == SDP_ROPE_YARN ? (float)sdp_op_attr(node, "attention_factor") : 1.0f;
    for (size_t i = 0; i < head_dim / 2 && i < SDP_ROPE_MAX_HEAD_DIM / 2; i++) {
        double inverse = pow(sdp_op_attr(node, "theta"), -2.0 * (double)i / (double)head_dim);

        if (type == SDP_ROPE_LINEAR)
            inverse /= sdp_op_attr(node, "factor");
        else if (type == SDP_ROPE_LLAMA3)
            inverse = sdpi_rope_llama3(node, inverse);
        else if (type == SDP_ROPE_YARN)
            inverse = sdpi_rope_yarn(node, i, inverse);
        out->inverse[i] = (float)inverse;
    }
}

#ifdef __cplusplus
}
#endif
#endif
