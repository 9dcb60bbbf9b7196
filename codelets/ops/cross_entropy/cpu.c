/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* cross_entropy on the CPU; x is (T, D), weight is (V, D), logits of a chunk of
 * tokens are (chunk, V) in scratch and become their own gradient in place. */
#include "codelets/ops/cross_entropy/cpu.h"

#include "codelets/common/vector.h"

#include <cblas.h>

#define CHUNK_BYTES ((size_t)4 << 20)

static size_t chunk_tokens(const struct sdp_op_node *node, size_t tokens)
{
    size_t chunk = CHUNK_BYTES / (node->weight_rows[0] * sizeof(float));
    return SDP_MIN(SDP_MAX(chunk, (size_t)16), tokens);
}

size_t sdp_cross_entropy_work_cpu(const struct sdp_op_node *node, size_t tokens, size_t sequence_length, bool backward)
{
    (void)sequence_length;
    (void)backward;
    return chunk_tokens(node, tokens) * node->weight_rows[0] * sizeof(float);
}

SDP_VECTOR static float row_max(const float *x, size_t n)
{
    float max = x[0];
    for (size_t i = 1; i < n; i++)
        max = max > x[i] ? max : x[i];
    return max;
}

SDP_VECTOR static void row_exp(float *x, float shift, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = sdpi_exp(x[i] - shift);
}

SDP_VECTOR static void row_scale(float *x, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* Loss of one row; the row becomes d loss / d logits * loss_scale. */
static double loss_row(float *row, size_t vocabulary, int32_t target, float loss_scale)
{
    if (target < 0) {
        memset(row, 0, vocabulary * sizeof *row);
        return 0;
    }
    float max = row_max(row, vocabulary), logit = row[target];
    double sum = 0;
    row_exp(row, max, vocabulary);
    for (size_t i = 0; i < vocabulary; i++)
        sum += row[i];
    row_scale(row, (float)((double)loss_scale / sum), vocabulary);
    row[target] -= loss_scale;
    return log(sum) + (double)max - (double)logit;
}

static void chunk_gradients(const struct sdp_op_call *call, const float *dlogits, size_t first, size_t count)
{
    blasint v = (blasint)call->node->weight_rows[0], d = (blasint)call->node->weight_cols[0], n = (blasint)count;
    const float *x = (const float *)call->in[0] + first * (size_t)d;
    if (call->din[0])
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, d, v, 1.0f, dlogits, v, call->weight[0], d,
                    call->add_din[0] ? 1.0f : 0.0f, (float *)call->din[0] + first * (size_t)d, d);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, v, d, n, 1.0f, dlogits, v, x, d,
                call->add_dweight || first ? 1.0f : 0.0f, call->dweight[0], d);
}

enum sdp_status sdp_cross_entropy_forward_cpu(const struct sdp_op_call *call)
{
    size_t v = call->node->weight_rows[0], d = call->node->weight_cols[0], tokens = call->batch->tokens;
    size_t chunk = chunk_tokens(call->node, tokens);
    float *logits = call->work;
    double loss = 0;
    for (size_t first = 0; first < tokens; first += chunk) {
        size_t count = SDP_MIN(chunk, tokens - first);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)count, (blasint)v, (blasint)d, 1.0f,
                    (const float *)call->in[0] + first * d, (blasint)d, call->weight[0], (blasint)d, 0.0f, logits,
                    (blasint)v);
        if (call->logits)
            memcpy(call->logits + first * v, logits, count * v * sizeof *logits);
        for (size_t t = 0; t < count; t++)
            loss += loss_row(logits + t * v, v, call->batch->targets[first + t], call->loss_scale);
        if (call->want_gradient)
            chunk_gradients(call, logits, first, count);
    }
    *call->loss = loss;
    return SDP_OK;
}
