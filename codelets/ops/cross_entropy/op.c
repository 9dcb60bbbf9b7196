/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `cross_entropy`: the head and the loss in one, with gradients on request. */
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(cross_entropy);

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    return sdpi_op_check(err, "x", node->input_cols[0], "columns", node->weight_cols[0],
                         "as many as \"weight\"");
}

static int passthrough_input(const struct sdp_op_node *node)
{
    (void)node;
    return -1;
}

static double flops(const struct sdp_op_node *node, size_t tokens, size_t sequence_length,
                    bool backward)
{
    double product = 2.0 * (double)tokens * (double)node->weight_rows[0] *
                     (double)node->weight_cols[0];

    (void)sequence_length;
    return backward ? 2.0 * product : product;
}

static size_t work_bytes(const struct sdp_op_node *node, size_t tokens,
                         size_t sequence_length, enum sdp_dtype dtype, bool backward,
                         bool cuda)
{
    return SDPI_OP_WORK(cross_entropy, sdp_cross_entropy_work_cpu(
                                           node, tokens, sequence_length, backward));
}

const struct sdp_op sdp_op_cross_entropy = {
    .name = "cross_entropy",
    .summary = "cross-entropy of softmax(x W^T) and the next token ids",
    .inputs = (const char *const[]){"x", NULL},
    .outputs = (const char *const[]){NULL},
    .weights = (const struct sdp_op_weight[]){{.name = "weight", .decay = true}, {0}},
    .is_loss = true,
    .backward_needs_weights = true,
    .infer = infer,
    .backward_needs = sdpi_op_needs_input,
    .passthrough_input = passthrough_input,
    .flops = flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_cross_entropy_forward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_cross_entropy_forward_cuda),
};
