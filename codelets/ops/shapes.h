/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Checks that the ops' infer() functions share; messages give both numbers. */
#ifndef SDP_CODELETS_OPS_SHAPES_H
#define SDP_CODELETS_OPS_SHAPES_H

#include "graph/op.h"

/** `what` must be `wanted`. */
static inline enum sdp_status sdpi_expect(struct sdp_error *err, const char *what, size_t found, size_t wanted)
{
    if (found == wanted)
        return SDP_OK;
    return sdp_fail(err, SDP_INPUT, "%s is %zu; must be %zu", what, found, wanted);
}

static inline size_t sdpi_attr_size(const struct sdp_op_node *node, const char *name)
{
    return (size_t)sdp_op_attr(node, name);
}

/** heads, kv_heads and head_dim of rope and attention, and the width of q, k and v side by side. */
struct sdpi_heads {
    size_t heads, kv_heads, head_dim, width;
};

static inline struct sdpi_heads sdpi_heads_of(const struct sdp_op_node *node)
{
    struct sdpi_heads h = {sdpi_attr_size(node, "heads"), sdpi_attr_size(node, "kv_heads"),
                           sdpi_attr_size(node, "head_dim"), 0};
    h.width = (h.heads + 2 * h.kv_heads) * h.head_dim;
    return h;
}

static inline enum sdp_status sdpi_check_heads(const struct sdp_op_node *node, struct sdp_error *err)
{
    struct sdpi_heads h = sdpi_heads_of(node);
    if (h.heads % h.kv_heads)
        return sdp_fail(err, SDP_INPUT, "heads (%zu) must be a multiple of kv_heads (%zu)", h.heads, h.kv_heads);
    return sdpi_expect(err, "width of qkv", node->input_cols[0], h.width);
}

#endif
