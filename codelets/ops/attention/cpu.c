/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* attention on the CPU through OpenBLAS. For each head and each block of queries:
 * scores of the keys it may see (one product), softmax, output (one product); so
 * scratch is a block of rows, never the square. The backward pass makes the
 * probabilities again from the log-sum-exp.
 *
 * qkv is (T, (H + 2 KV) D), out is (T, H D), lse is (T, H); sequences follow one
 * another. Query head h reads key head h * KV / H; its dk and dv are summed in head order. */
#include "codelets/ops/attention/cpu.h"

#include "codelets/common/vector.h"
#include "codelets/ops/shapes.h"

#include <cblas.h>

#define QUERIES 64 /* of a block */

struct attention {
    struct sdpi_heads h;
    size_t length, window;
    float scale;
};

/* One block: queries [q, q + rows), keys [first, first + keys), of one sequence and head. */
struct block {
    size_t q, rows, first, keys;
};

static struct attention attention_of(const struct sdp_op_call *call)
{
    struct attention a = {sdpi_heads_of(call->node), call->batch->sequence_length,
                          sdpi_attr_size(call->node, "window"), 0};
    a.scale = 1.0f / sqrtf((float)a.h.head_dim);
    return a;
}

static struct block block_of(const struct attention *a, size_t q)
{
    struct block b = {q, SDP_MIN((size_t)QUERIES, a->length - q), 0, 0};
    if (a->window && q + 1 > a->window)
        b.first = q + 1 - a->window;
    b.keys = q + b.rows - b.first;
    return b;
}

/* Keys of row r of a block: [*from, *to) relative to its first key. */
static void visible(const struct attention *a, const struct block *b, size_t r, size_t *from, size_t *to)
{
    size_t query = b->q + r;
    *to = query + 1 - b->first;
    *from = a->window && query + 1 > a->window ? query + 1 - a->window - b->first : 0;
}

SDP_VECTOR static float row_max(const float *x, size_t n)
{
    float lanes[16], max = x[0];
    size_t i = 0;
    for (size_t k = 0; k < 16; k++)
        lanes[k] = x[0];
    for (; i + 16 <= n; i += 16)
        for (size_t k = 0; k < 16; k++)
            lanes[k] = lanes[k] > x[i + k] ? lanes[k] : x[i + k];
    for (size_t k = 0; k < 16; k++)
        max = max > lanes[k] ? max : lanes[k];
    for (; i < n; i++)
        max = max > x[i] ? max : x[i];
    return max;
}

/* x = e^(x - shift); returns the sum, in a fixed order. */
SDP_VECTOR static float row_exp(float *x, float shift, size_t n)
{
    float lanes[16] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t k = 0; k < 16; k++) {
            x[i + k] = sdpi_exp(x[i + k] - shift);
            lanes[k] += x[i + k];
        }
    for (; i < n; i++) {
        x[i] = sdpi_exp(x[i] - shift);
        sum += x[i];
    }
    for (size_t k = 0; k < 16; k++)
        sum += lanes[k];
    return sum;
}

SDP_VECTOR static void row_scale(float *x, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* ds = p * (dp - delta) * scale, over dp. */
SDP_VECTOR static void row_score_gradient(float *dp, const float *p, float delta, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dp[i] = p[i] * (dp[i] - delta) * scale;
}

static void hide(float *row, size_t from, size_t to, size_t keys)
{
    memset(row, 0, from * sizeof *row);
    memset(row + to, 0, (keys - to) * sizeof *row);
}

static void scores(const struct attention *a, const struct block *b, const float *q, const float *k, float *out)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)b->rows, (blasint)b->keys, (blasint)a->h.head_dim,
                a->scale, q + b->q * a->h.width, (blasint)a->h.width, k + b->first * a->h.width, (blasint)a->h.width, 0.0f,
                out, (blasint)b->keys);
}

/* q, k, v, out and lse point at the head's columns of the sequence's first row. */
static void forward_block(const struct attention *a, const struct block *b, const float *q, const float *k,
                          const float *v, float *out, float *lse, float *p)
{
    size_t from, to, columns = a->h.heads * a->h.head_dim;
    scores(a, b, q, k, p);
    for (size_t r = 0; r < b->rows; r++) {
        float *row = p + r * b->keys;
        visible(a, b, r, &from, &to);
        float max = row_max(row + from, to - from);
        float sum = row_exp(row + from, max, to - from);
        row_scale(row + from, 1.0f / sum, to - from);
        hide(row, from, to, b->keys);
        lse[(b->q + r) * a->h.heads] = max + logf(sum);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)b->rows, (blasint)a->h.head_dim, (blasint)b->keys,
                1.0f, p, (blasint)b->keys, v + b->first * a->h.width, (blasint)a->h.width, 0.0f, out + b->q * columns,
                (blasint)columns);
}

enum sdp_status sdp_attention_forward_cpu(const struct sdp_op_call *call)
{
    struct attention a = attention_of(call);
    size_t d = a.h.head_dim, columns = a.h.heads * d, group = a.h.heads / a.h.kv_heads;
    for (size_t s = 0; s < call->batch->sequences; s++) {
        size_t row = s * a.length;
        const float *qkv = (const float *)call->in[0] + row * a.h.width;
        for (size_t h = 0; h < a.h.heads; h++)
            for (size_t q = 0; q < a.length; q += QUERIES) {
                struct block b = block_of(&a, q);
                const float *k = qkv + (a.h.heads + h / group) * d;
                forward_block(&a, &b, qkv + h * d, k, k + a.h.kv_heads * d,
                              (float *)call->out[0] + row * columns + h * d, call->aux[0] + row * a.h.heads + h, call->work);
            }
    }
    return SDP_OK;
}

struct gradients {
    float *dq, *dk, *dv; /* the head's columns of the sequence's first row */
    const float *dout, *out, *lse;
    float *p, *dp;
    float dq_beta;
};

static float row_dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return (float)sum;
}

static void backward_block(const struct attention *a, const struct block *b, const float *q, const float *k,
                           const float *v, const struct gradients *g)
{
    size_t from, to, d = a->h.head_dim, columns = a->h.heads * d, w = a->h.width;
    const float *dout = g->dout + b->q * columns;
    blasint rows = (blasint)b->rows, keys = (blasint)b->keys, width = (blasint)w, depth = (blasint)d;
    scores(a, b, q, k, g->p);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, depth, 1.0f, dout, (blasint)columns,
                v + b->first * w, width, 0.0f, g->dp, keys);
    for (size_t r = 0; r < b->rows; r++) {
        float *p = g->p + r * b->keys, *dp = g->dp + r * b->keys;
        visible(a, b, r, &from, &to);
        row_exp(p + from, g->lse[(b->q + r) * a->h.heads], to - from);
        hide(p, from, to, b->keys);
        float delta = row_dot(dout + r * columns, g->out + (b->q + r) * columns, d);
        row_score_gradient(dp + from, p + from, delta, a->scale, to - from);
        hide(dp, from, to, b->keys);
    }
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, depth, rows, 1.0f, g->p, keys, dout, (blasint)columns, 1.0f,
                g->dv + b->first * w, width);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, depth, keys, 1.0f, g->dp, keys, k + b->first * w, width,
                g->dq_beta, g->dq + b->q * w, width);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, depth, rows, 1.0f, g->dp, keys, q + b->q * w, width, 1.0f,
                g->dk + b->first * w, width);
}

static void clear_key_gradients(const struct attention *a, float *din, size_t tokens)
{
    size_t offset = a->h.heads * a->h.head_dim;
    for (size_t t = 0; t < tokens; t++)
        memset(din + t * a->h.width + offset, 0, (a->h.width - offset) * sizeof *din);
}

enum sdp_status sdp_attention_backward_cpu(const struct sdp_op_call *call)
{
    struct attention a = attention_of(call);
    size_t d = a.h.head_dim, columns = a.h.heads * d, group = a.h.heads / a.h.kv_heads;
    size_t block = QUERIES * a.length;
    if (!call->add_din[0])
        clear_key_gradients(&a, call->din[0], call->batch->tokens);
    for (size_t s = 0; s < call->batch->sequences; s++) {
        size_t row = s * a.length;
        const float *qkv = (const float *)call->in[0] + row * a.h.width;
        float *din = (float *)call->din[0] + row * a.h.width;
        for (size_t h = 0; h < a.h.heads; h++)
            for (size_t q = 0; q < a.length; q += QUERIES) {
                struct block b = block_of(&a, q);
                size_t key = (a.h.heads + h / group) * d, value = key + a.h.kv_heads * d;
                struct gradients g = {din + h * d, din + key, din + value,
                                      (const float *)call->dout[0] + row * columns + h * d,
                                      (const float *)call->out[0] + row * columns + h * d,
                                      call->aux[0] + row * a.h.heads + h, call->work, (float *)call->work + block,
                                      call->add_din[0] ? 1.0f : 0.0f};
                backward_block(&a, &b, qkv + h * d, qkv + key, qkv + value, &g);
            }
    }
    return SDP_OK;
}

size_t sdp_attention_work_cpu(const struct sdp_op_node *node, size_t tokens, size_t sequence_length, bool backward)
{
    (void)node;
    (void)tokens;
    return (backward ? 2 : 1) * QUERIES * sequence_length * sizeof(float);
}
