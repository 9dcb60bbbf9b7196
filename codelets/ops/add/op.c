/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `add`: out = a + b. */
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(add);

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    node->output_cols[0] = node->input_cols[0];
    return sdpi_op_check(err, "b", node->input_cols[1], "columns", node->input_cols[0],
                         "as many as \"a\"");
}

static int passthrough_input(const struct sdp_op_node *node)
{
    (void)node;
    return 0;
}

static size_t work_bytes(const struct sdp_op_node *node, size_t tokens,
                         size_t sequence_length, enum sdp_dtype dtype, bool backward,
                         bool cuda)
{
    return SDPI_OP_WORK(add, 0);
}

const struct sdp_op sdp_op_add = {
    .name = "add",
    .summary = "out = a + b",
    .inputs = (const char *const[]){"a", "b", NULL},
    .outputs = (const char *const[]){"out", NULL},
    .infer = infer,
    .backward_needs = sdpi_op_needs_nothing,
    .passthrough_input = passthrough_input,
    .flops = sdpi_op_no_flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_add_forward_cpu,
    .backward_cpu = sdp_add_backward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_add_forward_cuda),
    .backward_cuda = SDP_OP_CUDA(sdp_add_backward_cuda),
};
