/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `swiglu`: the first half of each row gates the second. */
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(swiglu);

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    size_t half = node->input_cols[0] / 2;

    node->output_cols[0] = half;
    if (node->input_cols[0] % 2 == 0)
        return SDP_OK;
    return sdp_fail(err, SDP_INPUT,
                    "\"gate_up\" has %zu columns; must have an even number, such as %zu: "
                    "gate and up, of as many each",
                    node->input_cols[0], 2 * half + 2);
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
    return SDPI_OP_WORK(swiglu, 0);
}

const struct sdp_op sdp_op_swiglu = {
    .name = "swiglu",
    .summary = "out = silu(gate) * up, where gate_up is [gate, up]",
    .inputs = (const char *const[]){"gate_up", NULL},
    .outputs = (const char *const[]){"out", NULL},
    .infer = infer,
    .backward_needs = sdpi_op_needs_input,
    .passthrough_input = passthrough_input,
    .flops = sdpi_op_no_flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_swiglu_forward_cpu,
    .backward_cpu = sdp_swiglu_backward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_swiglu_forward_cuda),
    .backward_cuda = SDP_OP_CUDA(sdp_swiglu_backward_cuda),
};
