/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Rotary frequencies of a `rope` node, for both twins: element pair i turns by position *
 * inverse[i], and sine and cosine are multiplied by magnitude.
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
enum sdp_rope_type {
    SDP_ROPE_DEFAULT = 0,
    SDP_ROPE_LINEAR,
    SDP_ROPE_LLAMA3,
    SDP_ROPE_YARN
};

struct sdp_rope_frequencies {
    float inverse[SDP_ROPE_MAX_HEAD_DIM / 2]; /* head_dim / 2 of them are used */
    float magnitude;
};

/** Fills *out from the node's attributes; head_dim is at most SDP_ROPE_MAX_HEAD_DIM
 * (infer checks it). */
void sdp_rope_frequencies_of(const struct sdp_op_node *node,
                             struct sdp_rope_frequencies *out);

#ifdef __cplusplus
}
#endif
#endif
