/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `rmsnorm`: rows divided by their root mean square. */
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(rmsnorm);

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    node->output_cols[0] = node->input_cols[0];
    node->aux_count = 1;
    node->aux_cols[0] = 1; /* rstd */
    return sdpi_op_check(err, "weight", node->weight_cols[0], "elements",
                         node->input_cols[0], "as \"x\" has columns");
}

static unsigned backward_needs(const struct sdp_op_node *node)
{
    (void)node;
    return SDP_NEED_IN(0) | SDP_NEED_AUX(0);
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
    return SDPI_OP_WORK(rmsnorm, 0);
}

const struct sdp_op sdp_op_rmsnorm = {
    .name = "rmsnorm",
    .summary = "out = x / sqrt(mean(x^2) + eps) * (offset + weight), row by row",
    .inputs = (const char *const[]){"x", NULL},
    .outputs = (const char *const[]){"out", NULL},
    .weights = (const struct sdp_op_weight[]){{.name = "weight", .is_vector = true}, {0}},
    .attrs = (const struct sdp_op_attr[]){{.name = "eps", .fallback = 1e-6, .max = 1.0},
                                          {.name = "offset", .fallback = 0.0},
                                          {0}},
    .backward_needs_weights = true,
    .infer = infer,
    .backward_needs = backward_needs,
    .passthrough_input = passthrough_input,
    .flops = sdpi_op_no_flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_rmsnorm_forward_cpu,
    .backward_cpu = sdp_rmsnorm_backward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_rmsnorm_forward_cuda),
    .backward_cuda = SDP_OP_CUDA(sdp_rmsnorm_backward_cuda),
};
