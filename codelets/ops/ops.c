/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds operations and attributes by name; checks that several operations make. */
#include "codelets/ops/ops.h"

#include "graph/base/log.h"

#include <stdlib.h>

const struct sdp_op *sdp_op_find(const char *name)
{
    for (size_t i = 0; sdp_ops[i]; i++)
        if (strcmp(sdp_ops[i]->name, name) == 0)
            return sdp_ops[i];
    return NULL;
}

double sdp_op_attr(const struct sdp_op_node *node, const char *name)
{
    const struct sdp_op_attr *attrs = node->op->attrs;

    for (size_t a = 0; attrs && attrs[a].name; a++)
        if (strcmp(attrs[a].name, name) == 0)
            return node->attr[a];
    sdp_warn("operation \"%s\" has no attribute \"%s\"", node->op->name, name);
    abort();
}

enum sdp_status sdpi_op_check(struct sdp_error *err, const char *name, size_t has,
                              const char *unit, size_t wanted, const char *why)
{
    if (has == wanted)
        return SDP_OK;
    return sdp_fail(err, SDP_INPUT, "\"%s\" has %zu %s; must have %zu, %s", name, has,
                    unit, wanted, why);
}

enum sdp_status sdpi_op_whole(const struct sdp_op_node *node, struct sdp_error *err,
                              const char *name, size_t *out)
{
    double value = sdp_op_attr(node, name);

    if (value < 0.0 || value > SDPI_OP_MAX_SIZE || value != floor(value))
        return sdp_fail(err, SDP_INPUT, "\"%s\" is %.9g; must be a whole number", name,
                        value);
    *out = (size_t)value;
    return SDP_OK;
}

enum sdp_status sdpi_heads_check(const struct sdp_op_node *node, struct sdp_error *err,
                                 struct sdpi_heads *out)
{
    enum sdp_status status = sdpi_op_whole(node, err, "heads", &out->heads);

    if (status == SDP_OK)
        status = sdpi_op_whole(node, err, "kv_heads", &out->kv_heads);
    if (status == SDP_OK)
        status = sdpi_op_whole(node, err, "head_dim", &out->head_dim);
    if (status != SDP_OK)
        return status;
    if (out->kv_heads == 0 || out->heads % out->kv_heads != 0)
        return sdp_fail(err, SDP_INPUT, "\"kv_heads\" is %zu; must divide \"heads\", %zu",
                        out->kv_heads, out->heads);
    out->width = (out->heads + 2 * out->kv_heads) * out->head_dim;
    return sdpi_op_check(err, "qkv", node->input_cols[0], "columns", out->width,
                         "which is (heads + 2 kv_heads) * head_dim");
}

unsigned sdpi_op_needs_input(const struct sdp_op_node *node)
{
    (void)node;
    return SDP_NEED_IN(0);
}

unsigned sdpi_op_needs_nothing(const struct sdp_op_node *node)
{
    (void)node;
    return 0;
}

double sdpi_op_no_flops(const struct sdp_op_node *node, size_t tokens,
                        size_t sequence_length, bool backward)
{
    (void)node;
    (void)tokens;
    (void)sequence_length;
    (void)backward;
    return 0.0;
}
