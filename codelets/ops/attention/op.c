/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Table of `attention`: causal attention of grouped heads, within sequences. */
#include "codelets/ops/ops.h"

#define MAX_HEAD_DIM 256.0

SDPI_OP_TWINS(attention);

/* The twins take 1 / sqrt(head_dim); another scale would be ignored. */
static enum sdp_status check_scale(const struct sdp_op_node *node, size_t head_dim,
                                   struct sdp_error *err)
{
    double scale = sdp_op_attr(node, "scale"), usual = 1.0 / sqrt((double)head_dim);

    if (scale == 0.0 || fabs(scale - usual) <= 1e-6 * usual)
        return SDP_OK;
    return sdp_fail(err, SDP_INPUT,
                    "\"scale\" is %.9g, which is not supported; must be 0 or %.9g, "
                    "1 / sqrt(head_dim)",
                    scale, usual);
}

static enum sdp_status infer(struct sdp_op_node *node, struct sdp_error *err)
{
    struct sdpi_heads h;
    size_t window;
    enum sdp_status status = sdpi_heads_check(node, err, &h);

    if (status == SDP_OK)
        status = sdpi_op_whole(node, err, "window", &window);
    if (status == SDP_OK)
        status = check_scale(node, h.head_dim, err);
    if (status != SDP_OK)
        return status;
    node->output_cols[0] = h.heads * h.head_dim;
    node->aux_count = 1;
    node->aux_cols[0] = h.heads; /* log of the sum of exponentials */
    return SDP_OK;
}

static unsigned backward_needs(const struct sdp_op_node *node)
{
    (void)node;
    return SDP_NEED_IN(0) | SDP_NEED_OUT(0) | SDP_NEED_AUX(0);
}

static int passthrough_input(const struct sdp_op_node *node)
{
    (void)node;
    return -1;
}

/* Two products over the keys that a token sees: on average half the sequence, or fewer
 * where the window is shorter. Backward makes five. */
static double flops(const struct sdp_op_node *node, size_t tokens, size_t sequence_length,
                    bool backward)
{
    double length = (double)sequence_length, window = sdp_op_attr(node, "window");
    double seen = length / 2.0, forward;

    if (window > 0.0 && window < length)
        seen = window - window * window / (2.0 * length);
    forward = 4.0 * (double)tokens * seen * sdp_op_attr(node, "heads") *
              sdp_op_attr(node, "head_dim");
    return backward ? 2.5 * forward : forward;
}

static size_t work_bytes(const struct sdp_op_node *node, size_t tokens,
                         size_t sequence_length, enum sdp_dtype dtype, bool backward,
                         bool cuda)
{
    return SDPI_OP_WORK(attention,
                        sdp_attention_work_cpu(node, tokens, sequence_length, backward));
}

const struct sdp_op sdp_op_attention = {
    .name = "attention",
    .summary =
        "causal attention; qkv is [q heads, k heads, v heads] in each row; scale 0 "
        "is 1 / sqrt(head_dim), window 0 sees all",
    .inputs = (const char *const[]){"qkv", NULL},
    .outputs = (const char *const[]){"out", NULL},
    .attrs =
        (const struct sdp_op_attr[]){
            {.name = "heads", .required = true, .min = 1.0, .max = SDPI_OP_MAX_SIZE},
            {.name = "kv_heads", .required = true, .min = 1.0, .max = SDPI_OP_MAX_SIZE},
            {.name = "head_dim", .required = true, .min = 1.0, .max = MAX_HEAD_DIM},
            {.name = "scale", .fallback = 0.0, .min = 0.0, .max = 1e9},
            {.name = "window", .fallback = 0.0, .min = 0.0, .max = SDPI_OP_MAX_SIZE},
            {0},
        },
    .infer = infer,
    .backward_needs = backward_needs,
    .passthrough_input = passthrough_input,
    .flops = flops,
    .work_bytes = work_bytes,
    .forward_cpu = sdp_attention_forward_cpu,
    .backward_cpu = sdp_attention_backward_cpu,
    .forward_cuda = SDP_OP_CUDA(sdp_attention_forward_cuda),
    .backward_cuda = SDP_OP_CUDA(sdp_attention_backward_cuda),
};
