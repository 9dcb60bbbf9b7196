/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `rope`: rotary positions of the q and k heads, normalised first on request. */
#include "codelets/ops/ops.h"
#include "codelets/ops/rope/frequencies.h"

SDPI_OP_TWINS(rope);

static enum sdp_status check_norms(const struct sdp_op_node *node, size_t head_dim,
                                   struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;

    for (size_t i = 0; status == SDP_OK && i < node->weight_count; i++)
        status =
            sdpi_op_check(err, node->op->weights[node->weight_role[i]].name,
                          node->weight_cols[i], "elements", head_dim, "the head_dim");
    return status;
}

static enum sdp_status check_scaling(const struct sdp_op_node *node,
                                     struct sdp_error *err)
{
    int type = (int)sdp_op_attr(node, "type");
    double low = sdp_op_attr(node, "low_freq_factor");
    double high = sdp_op_attr(node, "high_freq_factor");

    if (type == SDP_ROPE_LLAMA3 && high <= low)
        return sdp_fail(err, SDP_INPUT,
                        "\"high_freq_factor\" is %.9g; must be larger than "
                        "\"low_freq_factor\", %.9g",
                        high, low);
    if (type == SDP_ROPE_YARN && sdp_op_attr(node, "theta") <= 1.0)
        return sdp_fail(err, SDP_INPUT,
                        "\"theta\" is %.9g; must be larger than %d for yarn",
                        sdp_op_attr(node, "theta"), 1);
    return SDP_OK;
}

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    struct sdpi_heads h;
    enum sdp_status status = sdpi_heads_check(node, err, &h);

    if (status == SDP_OK && (h.head_dim % 2 != 0 || h.head_dim > SDP_ROPE_MAX_HEAD_DIM))
        status =
            sdp_fail(err, SDP_INPUT, "\"head_dim\" is %zu; must be even and at most %d",
                     h.head_dim, SDP_ROPE_MAX_HEAD_DIM);
    if (status == SDP_OK)
        status = check_norms(node, h.head_dim, err);
    if (status == SDP_OK)
        status = check_scaling(node, err);
    if (status != SDP_OK)
        return status;
    node->output_cols[0] = node->input_cols[0];
    node->aux_count = node->weight_count > 0 ? 1 : 0;
    node->aux_cols[0] = node->weight_count > 0 ? h.heads + h.kv_heads : 0; /* rstd */
    return SDP_OK;
}

static unsigned backward_needs(const struct sdp_op_node *node)
{
    return node->weight_count > 0 ? SDP_NEED_IN(0) | SDP_NEED_AUX(0) : 0;
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
    return SDPI_OP_WORK(rope, 0);
}

const struct sdp_op sdp_op_rope = {
    .name = "rope",
    .summary =
        "rotary positions of q and k heads, RMS-normalised first where a norm is given",
    .inputs = (const char *const[]){"qkv", NULL},
    .outputs = (const char *const[]){"out", NULL},
    .weights =
        (const struct sdp_op_weight[]){
            {.name = "q_norm", .optional = true, .is_vector = true},
            {.name = "k_norm", .optional = true, .is_vector = true},
            {0},
        },
    .attrs =
        (const struct sdp_op_attr[]){
            {.name = "heads", .required = true, .min = 1.0, .max = SDPI_OP_MAX_SIZE},
            {.name = "kv_heads", .required = true, .min = 1.0, .max = SDPI_OP_MAX_SIZE},
            {.name = "head_dim",
             .required = true,
             .min = 2.0,
             .max = SDP_ROPE_MAX_HEAD_DIM},
            {.name = "theta", .fallback = 10000.0, .min = 1.0, .max = 1e30},
            {.name = "type",
             .words = (const char *const[]){"default", "linear", "llama3", "yarn", NULL}},
            {.name = "factor", .fallback = 1.0, .min = 1.0, .max = 1e9},
            {.name = "low_freq_factor", .fallback = 1.0, .min = 1e-6, .max = 1e9},
            {.name = "high_freq_factor", .fallback = 4.0, .min = 1e-6, .max = 1e9},
            {.name = "original_max_position",
             .fallback = 8192.0,
             .min = 1.0,
             .max = 1e12},
            {.name = "attention_factor", .fallback = 0.0, .min = 0.0, .max = 1e9},
            {.name = "beta_fast", .fallback = 32.0, .min = 1e-6, .max = 1e9},
            {.name = "beta_slow", .fallback = 1.0, .min = 1e-6, .max = 1e9},
            {.name = "norm_eps", .fallback = 1e-6, .min = 0.0, .max = 1.0},
            {0},
        },
    .backward_needs_weights = true,
    .infer = infer,
    .backward_needs = backward_needs,
    .passthrough_input = passthrough_input,
    .flops = sdpi_op_no_flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_rope_forward_cpu,
    .backward_cpu = sdp_rope_backward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_rope_forward_cuda),
    .backward_cuda = SDP_OP_CUDA(sdp_rope_backward_cuda),
};
