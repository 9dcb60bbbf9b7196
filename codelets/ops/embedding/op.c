/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `embedding`: a row of the table for each token id. */
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(embedding);

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    (void)err; /* any table will do */
    node->output_cols[0] = node->weight_cols[0];
    return SDP_OK;
}

static int passthrough_input(const struct sdp_op_node *node)
{
    (void)node;
    return -1;
}

static size_t work_bytes(const struct sdp_op_node *node, size_t tokens,
                         size_t sequence_length, enum sdp_dtype dtype, bool backward,
                         bool cuda)
{
    return SDPI_OP_WORK(embedding, 0);
}

const struct sdp_op sdp_op_embedding = {
    .name = "embedding",
    .summary = "out = scale * table[token id]",
    .inputs = (const char *const[]){"#ids", NULL},
    .outputs = (const char *const[]){"out", NULL},
    .weights = (const struct sdp_op_weight[]){{.name = "table", .decay = true}, {0}},
    .attrs = (const struct sdp_op_attr[]){{.name = "scale", .fallback = 1.0}, {0}},
    .infer = infer,
    .backward_needs = sdpi_op_needs_nothing,
    .passthrough_input = passthrough_input,
    .flops = sdpi_op_no_flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_embedding_forward_cpu,
    .backward_cpu = sdp_embedding_backward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_embedding_forward_cuda),
    .backward_cuda = SDP_OP_CUDA(sdp_embedding_backward_cuda),
};
