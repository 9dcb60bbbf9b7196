/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of `linear`, fp32: out (T, N) = x (T, K) W^T (+ bias) (+ residual). The
 * weights are a list of (N_i, K) whose outputs stand side by side. Where the list is one
 * block of memory it is one product, else one for each weight; the same for their
 * gradients.
 *
 * Backward: dx = dout W, dW = dout^T x, dbias the column sums of dout, and the residual's
 * gradient is dout. */
#include "codelets/common/vector_math.h"
#include "codelets/ops/ops.h"

#include <cblas.h>

SDPI_OP_TWINS(linear);

/* The weights of a node: their rows, and where the columns of each one's outputs start.
 * Bias i is weight count + i of the node. */
struct parts {
    size_t count, biases;
    size_t rows[SDP_OP_MAX_WEIGHTS], column[SDP_OP_MAX_WEIGHTS];
};

static struct parts parts_of(const struct sdp_op_node *node)
{
    struct parts p = {0};
    size_t column = 0;

    for (size_t i = 0; i < node->weight_count && node->weight_role[i] == 0; i++) {
        p.rows[i] = node->weight_rows[i];
        p.column[i] = column;
        column += p.rows[i];
        p.count++;
    }
    p.biases = node->weight_count - p.count;
    return p;
}

/* One part for all of the list where it is one run of memory. matrices: p->count
 * pointers. */
static struct parts merged(const struct parts *p, const float *const *matrices,
                           size_t cols)
{
    struct parts one = *p;

    for (size_t i = 1; i < p->count; i++) {
        if (!matrices[i - 1] || matrices[i - 1] + p->rows[i - 1] * cols != matrices[i])
            return *p;
        one.rows[0] += p->rows[i];
    }
    one.count = SDP_MIN(p->count, (size_t)1);
    return one;
}

static struct parts weight_parts(const struct sdp_op_call *call)
{
    struct parts p = parts_of(call->node);
    const float *matrices[SDP_OP_MAX_WEIGHTS] = {NULL};

    for (size_t i = 0; i < p.count; i++)
        matrices[i] = call->weight[i];
    return merged(&p, matrices, call->node->input_cols[0]);
}

static struct parts gradient_parts(const struct sdp_op_call *call)
{
    struct parts p = parts_of(call->node);
    const float *matrices[SDP_OP_MAX_WEIGHTS] = {NULL};

    for (size_t i = 0; i < p.count; i++)
        matrices[i] = call->dweight[i];
    return merged(&p, matrices, call->node->input_cols[0]);
}

/* -- forward ------------------------------------------------------------------ */

SDPI_CLONES
static void add_to(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* What the products are added to: the residual, the bias or both. */
static void fill(const struct sdp_op_call *call)
{
    struct parts p = parts_of(call->node);
    size_t cols = call->node->output_cols[0];
    const float *residual = call->in[1];

    for (size_t t = 0; t < call->batch->tokens; t++) {
        float *row = (float *)call->out[0] + t * cols;

        if (residual)
            memcpy(row, residual + t * cols, cols * sizeof *row);
        for (size_t i = 0; i < p.biases; i++) {
            if (residual)
                add_to(row + p.column[i], call->weight[p.count + i], p.rows[i]);
            else
                memcpy(row + p.column[i], call->weight[p.count + i],
                       p.rows[i] * sizeof *row);
        }
    }
}

enum sdp_status sdp_linear_forward_cpu(const struct sdp_op_call *call)
{
    struct parts p = weight_parts(call);
    size_t cols = call->node->output_cols[0], k = call->node->input_cols[0];
    bool filled = call->in[1] || p.biases > 0;

    if (call->batch->tokens == 0)
        return SDP_OK;
    if (filled)
        fill(call);
    for (size_t i = 0; i < p.count; i++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)call->batch->tokens,
                    (blasint)p.rows[i], (blasint)k, 1.0f, call->in[0], (blasint)k,
                    call->weight[i], (blasint)k, filled ? 1.0f : 0.0f,
                    (float *)call->out[0] + p.column[i], (blasint)cols);
    return SDP_OK;
}

/* -- backward ----------------------------------------------------------------- */

/* Column sums of dout, in double. */
SDPI_CLONES
static void column_sums(const float *dout, size_t tokens, size_t stride, size_t cols,
                        float *to, bool add)
{
    for (size_t first = 0; first < cols; first += SDPI_COLUMN_TILE) {
        size_t width = SDP_MIN(cols - first, (size_t)SDPI_COLUMN_TILE);
        double sum[SDPI_COLUMN_TILE] = {0.0};

        for (size_t t = 0; t < tokens; t++)
            sdpi_tile_add(sum, dout + t * stride + first, width);
        sdpi_tile_store(to + first, sum, 1.0, width, add);
    }
}

static void weight_gradients(const struct sdp_op_call *call)
{
    struct parts p = gradient_parts(call);
    size_t cols = call->node->output_cols[0], k = call->node->input_cols[0];

    for (size_t i = 0; i < p.count; i++) {
        if (!call->dweight[i])
            continue;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)p.rows[i],
                    (blasint)k, (blasint)call->batch->tokens, 1.0f,
                    (const float *)call->dout[0] + p.column[i], (blasint)cols,
                    call->in[0], (blasint)k, call->add_dweight ? 1.0f : 0.0f,
                    call->dweight[i], (blasint)k);
    }
}

static void bias_gradients(const struct sdp_op_call *call)
{
    struct parts p = parts_of(call->node);

    for (size_t i = 0; i < p.biases; i++)
        if (call->dweight[p.count + i])
            column_sums((const float *)call->dout[0] + p.column[i], call->batch->tokens,
                        call->node->output_cols[0], p.rows[i], call->dweight[p.count + i],
                        call->add_dweight);
}

static void input_gradient(const struct sdp_op_call *call)
{
    struct parts p = weight_parts(call);
    size_t cols = call->node->output_cols[0], k = call->node->input_cols[0];

    for (size_t i = 0; i < p.count; i++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans,
                    (blasint)call->batch->tokens, (blasint)k, (blasint)p.rows[i], 1.0f,
                    (const float *)call->dout[0] + p.column[i], (blasint)cols,
                    call->weight[i], (blasint)k, i > 0 || call->add_din[0] ? 1.0f : 0.0f,
                    call->din[0], (blasint)k);
}

static void residual_gradient(const struct sdp_op_call *call)
{
    size_t count = call->batch->tokens * call->node->output_cols[0];

    if (call->add_din[1])
        add_to(call->din[1], call->dout[0], count);
    else if (call->din[1] != call->dout[0])
        memcpy(call->din[1], call->dout[0], count * sizeof(float));
}

static void zero_gradients(const struct sdp_op_call *call)
{
    const struct sdp_op_node *node = call->node;

    for (size_t i = 0; i < node->weight_count; i++)
        if (call->dweight[i])
            memset(call->dweight[i], 0,
                   node->weight_rows[i] * node->weight_cols[i] * sizeof(float));
}

enum sdp_status sdp_linear_backward_cpu(const struct sdp_op_call *call)
{
    if (call->batch->tokens == 0) {
        if (!call->add_dweight)
            zero_gradients(call);
        return SDP_OK;
    }
    weight_gradients(call);
    bias_gradients(call);
    if (call->din[0])
        input_gradient(call);
    if (call->din[1])
        residual_gradient(call); /* last: it may write what the others read */
    return SDP_OK;
}
