/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of `swiglu`, fp32: each row of gate_up is gate, then up. */
#include "codelets/common/vector_math.h"
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(swiglu);

SDPI_CLONES
static void forward_row(const float *restrict gate, const float *restrict up,
                        float *restrict out, size_t cols)
{
    for (size_t c = 0; c < cols; c++)
        out[c] = gate[c] * sdpi_sigmoid(gate[c]) * up[c];
}

/* d gate = dout * up * s * (1 + gate * (1 - s)), d up = dout * gate * s, s =
 * sigmoid(gate). */
SDPI_CLONES
static void backward_row(const float *restrict gate, const float *restrict up,
                         const float *restrict dout, float *restrict dgate,
                         float *restrict dup, size_t cols)
{
    for (size_t c = 0; c < cols; c++) {
        float s = sdpi_sigmoid(gate[c]);

        dgate[c] = dout[c] * up[c] * s * (1.0f + gate[c] * (1.0f - s));
        dup[c] = dout[c] * gate[c] * s;
    }
}

SDPI_CLONES
static void add_backward_row(const float *restrict gate, const float *restrict up,
                             const float *restrict dout, float *restrict dgate,
                             float *restrict dup, size_t cols)
{
    for (size_t c = 0; c < cols; c++) {
        float s = sdpi_sigmoid(gate[c]);

        dgate[c] += dout[c] * up[c] * s * (1.0f + gate[c] * (1.0f - s));
        dup[c] += dout[c] * gate[c] * s;
    }
}

enum sdp_status sdp_swiglu_forward_cpu(const struct sdp_op_call *call)
{
    size_t cols = call->node->output_cols[0];
    const float *gate = call->in[0];
    float *out = call->out[0];

    for (size_t t = 0; t < call->batch->tokens; t++)
        forward_row(gate + t * 2 * cols, gate + t * 2 * cols + cols, out + t * cols,
                    cols);
    return SDP_OK;
}

enum sdp_status sdp_swiglu_backward_cpu(const struct sdp_op_call *call)
{
    size_t cols = call->node->output_cols[0];
    const float *gate = call->in[0], *dout = call->dout[0];
    float *din = call->din[0];

    for (size_t t = 0; din && t < call->batch->tokens; t++) {
        const float *row = gate + t * 2 * cols;
        float *drow = din + t * 2 * cols;

        if (call->add_din[0])
            add_backward_row(row, row + cols, dout + t * cols, drow, drow + cols, cols);
        else
            backward_row(row, row + cols, dout + t * cols, drow, drow + cols, cols);
    }
    return SDP_OK;
}
