/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of `rmsnorm`, fp32: y = x * rstd * (offset + weight). Backward, with n = x *
 * rstd and g = dy * (offset + weight): dx = rstd * (g - n * mean(g * n)),   dweight = sum
 * over tokens of dy * n. */
#include "codelets/common/vector_math.h"
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(rmsnorm);

SDPI_CLONES
static float forward_row(const float *restrict x, const float *restrict weight,
                         float *restrict y, size_t cols, float eps, float offset)
{
    float rstd = 1.0f / sqrtf(sdpi_dot(x, x, cols) / (float)cols + eps);

    for (size_t c = 0; c < cols; c++)
        y[c] = x[c] * rstd * (offset + weight[c]);
    return rstd;
}

/* Mean of g * n over a row. */
SDPI_CLONES
static float mean_product(const float *x, const float *weight, const float *dy,
                          size_t cols, float rstd, float offset)
{
    float lanes[SDPI_LANES] = {0.0f};
    size_t c = 0;

    for (; c + SDPI_LANES <= cols; c += SDPI_LANES)
        for (size_t l = 0; l < SDPI_LANES; l++)
            lanes[l] += dy[c + l] * (offset + weight[c + l]) * x[c + l];
    for (size_t l = 0; c < cols; c++, l++)
        lanes[l] += dy[c] * (offset + weight[c]) * x[c];
    return sdpi_lanes_sum(lanes) * rstd / (float)cols;
}

/* dx may be dy. */
SDPI_CLONES
static void backward_row(const float *x, const float *weight, const float *dy, float *dx,
                         size_t cols, float rstd, float offset, bool add)
{
    float mean = mean_product(x, weight, dy, cols, rstd, offset) * rstd;

    if (add) {
        for (size_t c = 0; c < cols; c++)
            dx[c] += rstd * (dy[c] * (offset + weight[c]) - x[c] * mean);
    } else {
        for (size_t c = 0; c < cols; c++)
            dx[c] = rstd * (dy[c] * (offset + weight[c]) - x[c] * mean);
    }
}

SDPI_CLONES
static void add_products(double *restrict sum, const float *restrict x,
                         const float *restrict dy, size_t cols, float rstd)
{
    for (size_t c = 0; c < cols; c++)
        sum[c] += (double)(dy[c] * x[c] * rstd);
}

static void weight_gradient(const struct sdp_op_call *call)
{
    const float *x = call->in[0], *dy = call->dout[0];
    size_t cols = call->node->input_cols[0];

    for (size_t first = 0; first < cols; first += SDPI_COLUMN_TILE) {
        size_t width = SDP_MIN(cols - first, (size_t)SDPI_COLUMN_TILE);
        double sum[SDPI_COLUMN_TILE] = {0.0};

        for (size_t t = 0; t < call->batch->tokens; t++)
            add_products(sum, x + t * cols + first, dy + t * cols + first, width,
                         call->aux[0][t]);
        sdpi_tile_store(call->dweight[0] + first, sum, 1.0, width, call->add_dweight);
    }
}

enum sdp_status sdp_rmsnorm_forward_cpu(const struct sdp_op_call *call)
{
    size_t cols = call->node->input_cols[0];
    float eps = (float)sdp_op_attr(call->node, "eps");
    float offset = (float)sdp_op_attr(call->node, "offset");
    const float *x = call->in[0];
    float *y = call->out[0];

    for (size_t t = 0; t < call->batch->tokens; t++)
        call->aux[0][t] =
            forward_row(x + t * cols, call->weight[0], y + t * cols, cols, eps, offset);
    return SDP_OK;
}

enum sdp_status sdp_rmsnorm_backward_cpu(const struct sdp_op_call *call)
{
    size_t cols = call->node->input_cols[0];
    float offset = (float)sdp_op_attr(call->node, "offset");
    const float *x = call->in[0], *dy = call->dout[0];
    float *dx = call->din[0];

    if (call->dweight[0])
        weight_gradient(call);
    for (size_t t = 0; dx && t < call->batch->tokens; t++)
        backward_row(x + t * cols, call->weight[0], dy + t * cols, dx + t * cols, cols,
                     call->aux[0][t], offset, call->add_din[0]);
    return SDP_OK;
}
