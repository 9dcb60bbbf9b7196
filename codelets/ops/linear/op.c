/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `linear`: products with a list of weights whose outputs stand side by side. */
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(linear);

enum role { ROLE_WEIGHT, ROLE_BIAS };

/* Biases follow the weights, in the same order, one for each. */
static enum sdp_status check_biases(const struct sdp_op_node *node, size_t weights,
                                    struct sdp_error *err)
{
    size_t biases = node->weight_count - weights;

    if (biases == 0)
        return SDP_OK;
    if (biases != weights)
        return sdp_fail(
            err, SDP_INPUT,
            "\"bias\" lists %zu vectors; must list %zu, one for each \"weight\"", biases,
            weights);
    for (size_t i = 0; i < weights; i++) {
        if (node->weight_cols[weights + i] != node->weight_rows[i])
            return sdp_fail(err, SDP_INPUT,
                            "\"bias\" %zu has %zu elements; must have %zu, as its "
                            "\"weight\" has rows",
                            i, node->weight_cols[weights + i], node->weight_rows[i]);
    }
    return SDP_OK;
}

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    size_t weights = 0;

    node->output_cols[0] = 0;
    for (size_t i = 0; i < node->weight_count && node->weight_role[i] == ROLE_WEIGHT;
         i++) {
        if (node->weight_cols[i] != node->input_cols[0])
            return sdp_fail(err, SDP_INPUT,
                            "\"weight\" %zu has %zu columns; must have %zu, as many as "
                            "\"x\"",
                            i, node->weight_cols[i], node->input_cols[0]);
        node->output_cols[0] += node->weight_rows[i];
        weights++;
    }
    status = check_biases(node, weights, err);
    if (status == SDP_OK && node->input_cols[1])
        status = sdpi_op_check(err, "residual", node->input_cols[1], "columns",
                               node->output_cols[0], "as the weights have rows");
    return status;
}

static int passthrough_input(const struct sdp_op_node *node)
{
    return node->input_cols[1] ? 1 : -1;
}

static double flops(const struct sdp_op_node *node, size_t tokens, size_t sequence_length,
                    bool backward)
{
    double product =
        2.0 * (double)tokens * (double)node->input_cols[0] * (double)node->output_cols[0];

    (void)sequence_length;
    return backward ? 2.0 * product : product;
}

static size_t work_bytes(const struct sdp_op_node *node, size_t tokens,
                         size_t sequence_length, enum sdp_dtype dtype, bool backward,
                         bool cuda)
{
    return SDPI_OP_WORK(linear, 0);
}

const struct sdp_op sdp_op_linear = {
    .name = "linear",
    .summary = "out = x W^T (+ bias) (+ residual); a list of W is one matrix",
    .inputs = (const char *const[]){"x", "residual?", NULL},
    .outputs = (const char *const[]){"out", NULL},
    .weights =
        (const struct sdp_op_weight[]){
            [ROLE_WEIGHT] = {.name = "weight", .many = true, .decay = true},
            [ROLE_BIAS] =
                {.name = "bias", .optional = true, .many = true, .is_vector = true},
            {0},
        },
    .backward_needs_weights = true,
    .infer = infer,
    .backward_needs = sdpi_op_needs_input,
    .passthrough_input = passthrough_input,
    .flops = flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_linear_forward_cpu,
    .backward_cpu = sdp_linear_backward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_linear_forward_cuda),
    .backward_cuda = SDP_OP_CUDA(sdp_linear_backward_cuda),
};
