/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* cross_entropy on the CPU: logits of a chunk of tokens through OpenBLAS into scratch,
 * where they become their own gradient, which goes straight into those of x and of the
 * weight. x is [T, D], the weight [V, D]. Chunks follow one another in token order, so
 * results depend on the inputs alone. A chunk without a counted token costs next to
 * nothing. */
#include "codelets/ops/cross_entropy/cpu.h"

#include "codelets/common/vector_math.h"

#include <cblas.h>

#define CHUNK_BYTES ((size_t)4 << 20) /* of logits, */
#define MIN_CHUNK   ((size_t)16)      /* but never fewer tokens: each reads the weight */
#define LANES       16
#define TILE        ((size_t)4096) /* logits summed in float before going to double */

struct shape {
    size_t tokens, vocabulary, columns;
    size_t pitch; /* floats from a row of logits in scratch to the next */
    size_t chunk; /* tokens */
};

static struct shape shape_of(const struct sdp_op_node *node, size_t tokens)
{
    struct shape s = {.tokens = tokens,
                      .vocabulary = node->weight_rows[0],
                      .columns = node->weight_cols[0]};

    s.pitch = (s.vocabulary + LANES - 1) / LANES * LANES;
    s.chunk = SDP_MAX(CHUNK_BYTES / (s.pitch * sizeof(float)), MIN_CHUNK);
    s.chunk = SDP_MIN(s.chunk, SDP_MAX(tokens, (size_t)1));
    return s;
}

size_t sdp_cross_entropy_work_cpu(const struct sdp_op_node *node, size_t tokens,
                                  size_t sequence_length, bool backward)
{
    struct shape s = shape_of(node, tokens);

    (void)sequence_length;
    (void)backward;
    return s.chunk * s.pitch * sizeof(float);
}

static inline float piece_max(const float *x, size_t count)
{
    float lanes[LANES];

    memcpy(lanes, x, sizeof lanes);
    for (size_t i = LANES; i < count; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] = lanes[l] > x[i + l] ? lanes[l] : x[i + l];
    for (size_t n = LANES / 2; n > 0; n /= 2)
        for (size_t l = 0; l < n; l++)
            lanes[l] = lanes[l] > lanes[l + n] ? lanes[l] : lanes[l + n];
    return lanes[0];
}

/* x = exp(x - shift); returns the sum. */
static inline float piece_exp(float *x, float shift, size_t count)
{
    float lanes[LANES] = {0.0f};

    for (size_t i = 0; i < count; i += LANES)
        for (size_t l = 0; l < LANES; l++) {
            float e = sdpi_exp(x[i + l] - shift);

            x[i + l] = e;
            lanes[l] += e;
        }
    for (size_t n = LANES / 2; n > 0; n /= 2)
        for (size_t l = 0; l < n; l++)
            lanes[l] += lanes[l + n];
    return lanes[0];
}

/* Loss of one row of logits, which become d loss / d logits * loss_scale if wanted. */
SDPI_CLONES static double row_loss(const struct shape *s, float *row, size_t target,
                                   float loss_scale, bool gradient)
{
    float max, logit = row[target], factor;
    double sum = 0.0;

    for (size_t i = s->vocabulary; i < s->pitch; i++)
        row[i] = -INFINITY;
    max = piece_max(row, s->pitch);
    for (size_t i = 0; i < s->pitch; i += TILE)
        sum += (double)piece_exp(row + i, max, SDP_MIN(TILE, s->pitch - i));
    if (gradient) {
        factor = (float)((double)loss_scale / sum);
        for (size_t i = 0; i < s->vocabulary; i++)
            row[i] *= factor;
        row[target] -= loss_scale;
    }
    return log(sum) + (double)max - (double)logit;
}

/* logits = x weight^T for tokens [first, first + count). */
static void chunk_logits(const struct sdp_op_call *call, const struct shape *s,
                         size_t first, size_t count)
{
    float *logits = call->work;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)count,
                (blasint)s->vocabulary, (blasint)s->columns, 1.0f,
                (const float *)call->in[0] + first * s->columns, (blasint)s->columns,
                call->weight[0], (blasint)s->columns, 0.0f, logits, (blasint)s->pitch);
    if (!call->logits)
        return;
    for (size_t t = 0; t < count; t++)
        memcpy(call->logits + (first + t) * s->vocabulary, logits + t * s->pitch,
               s->vocabulary * sizeof *logits);
}

static double chunk_loss(const struct sdp_op_call *call, const struct shape *s,
                         const int32_t *targets, size_t count)
{
    double loss = 0.0;

    for (size_t t = 0; t < count; t++) {
        float *row = (float *)call->work + t * s->pitch;

        if (targets[t] >= 0)
            loss += row_loss(s, row, (size_t)targets[t], call->loss_scale,
                             call->want_gradient);
        else
            memset(row, 0, s->vocabulary * sizeof *row);
    }
    return loss;
}

/* Of a chunk whose logits are their gradient now. */
static void chunk_gradients(const struct sdp_op_call *call, const struct shape *s,
                            size_t first, size_t count, bool add_dweight)
{
    const float *dlogits = call->work;
    blasint v = (blasint)s->vocabulary, d = (blasint)s->columns, n = (blasint)count;

    if (call->din[0])
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, d, v, 1.0f, dlogits,
                    (blasint)s->pitch, call->weight[0], d, call->add_din[0] ? 1.0f : 0.0f,
                    (float *)call->din[0] + first * s->columns, d);
    if (call->dweight[0])
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, v, d, n, 1.0f, dlogits,
                    (blasint)s->pitch, (const float *)call->in[0] + first * s->columns, d,
                    add_dweight ? 1.0f : 0.0f, call->dweight[0], d);
}

static bool any_counted(const int32_t *targets, size_t count)
{
    for (size_t t = 0; t < count; t++)
        if (targets[t] >= 0)
            return true;
    return false;
}

enum sdp_status sdp_cross_entropy_forward_cpu(const struct sdp_op_call *call)
{
    struct shape s = shape_of(call->node, call->batch->tokens);
    bool add_dweight = call->add_dweight;
    double loss = 0.0;

    for (size_t first = 0; first < s.tokens; first += s.chunk) {
        size_t count = SDP_MIN(s.chunk, s.tokens - first);
        const int32_t *targets = call->batch->targets + first;
        bool counted = any_counted(targets, count);

        if (counted || call->logits)
            chunk_logits(call, &s, first, count);
        if (counted) {
            loss += chunk_loss(call, &s, targets, count);
            if (call->want_gradient) {
                chunk_gradients(call, &s, first, count, add_dweight);
                add_dweight = true;
            }
        } else if (call->want_gradient && call->din[0] && !call->add_din[0]) {
            memset((float *)call->din[0] + first * s.columns, 0,
                   count * s.columns * sizeof(float));
        }
    }
    if (call->want_gradient && call->dweight[0] && !add_dweight)
        memset(call->dweight[0], 0, s.vocabulary * s.columns * sizeof(float));
    *call->loss = loss;
    return SDP_OK;
}
