/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of `embedding`, fp32. The gradient of a row of the table is the sum over the
 * tokens that have its id, in token order, kept in double: always the same bits. */
#include "codelets/common/vector_math.h"
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(embedding);

SDPI_CLONES
static void copy_scaled(const float *restrict from, float *restrict to, size_t cols,
                        float scale)
{
    for (size_t c = 0; c < cols; c++)
        to[c] = scale * from[c];
}

/* to[c] (=|+=) scale * the sum of the rows of dout that order lists. */
SDPI_CLONES
static void sum_rows(const float *dout, const int32_t *order, size_t count, size_t cols,
                     double scale, float *to, bool add)
{
    for (size_t first = 0; first < cols; first += SDPI_COLUMN_TILE) {
        size_t width = SDP_MIN(cols - first, (size_t)SDPI_COLUMN_TILE);
        double sum[SDPI_COLUMN_TILE] = {0.0};

        for (size_t k = 0; k < count; k++)
            sdpi_tile_add(sum, dout + (size_t)order[k] * cols + first, width);
        sdpi_tile_store(to + first, sum, scale, width, add);
    }
}

enum sdp_status sdp_embedding_forward_cpu(const struct sdp_op_call *call)
{
    size_t cols = call->node->output_cols[0];
    float scale = (float)sdp_op_attr(call->node, "scale");
    const float *table = call->weight[0];
    float *out = call->out[0];

    for (size_t t = 0; t < call->batch->tokens; t++)
        copy_scaled(table + (size_t)call->batch->ids[t] * cols, out + t * cols, cols,
                    scale);
    return SDP_OK;
}

enum sdp_status sdp_embedding_backward_cpu(const struct sdp_op_call *call)
{
    const struct sdp_op_batch *batch = call->batch;
    size_t cols = call->node->output_cols[0];
    double scale = (double)(float)sdp_op_attr(call->node, "scale");
    float *dtable = call->dweight[0];

    if (!dtable)
        return SDP_OK;
    if (!call->add_dweight)
        memset(dtable, 0, call->node->weight_rows[0] * cols * sizeof *dtable);
    for (size_t s = 0; s < batch->segment_count; s++) {
        const int32_t *order = batch->order + batch->segments[s];
        size_t count = (size_t)(batch->segments[s + 1] - batch->segments[s]);

        sum_rows(call->dout[0], order, count, cols, scale,
                 dtable + (size_t)batch->ids[order[0]] * cols, call->add_dweight);
    }
    return SDP_OK;
}
