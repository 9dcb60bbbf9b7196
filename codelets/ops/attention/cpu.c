/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* attention on the CPU: blocks of queries by blocks of keys through OpenBLAS, with the
 * softmax of a block of queries built up key block after key block; blocks that no query
 * sees are never visited. Keys and values (and their gradients) of a key head stand in
 * scratch without gaps. Backward makes the probabilities again from the log-sum-exp.
 *
 * A key head's gradients are summed over its query heads, then blocks of queries, in
 * ascending order: results depend on the inputs alone. */
#include "codelets/ops/attention/cpu.h"

#include "codelets/common/vector_math.h"

#include <cblas.h>

#define QUERIES 64  /* of a block */
#define KEYS    256 /* of a block; a multiple of LANES */
#define LANES   16  /* rows of scores are worked on in pieces of this many */
#define ALIGN   64  /* floats between starts of scratch arrays */

struct shape {
    size_t heads, kv_heads, group, head_dim;
    size_t width, columns; /* of qkv, of out */
    size_t length, window; /* window: length if there is none */
    float scale;
    const int32_t *positions; /* of the sequence's tokens where it holds several documents, else NULL */
};

/* Scratch of one call. */
struct scratch {
    float *scores;              /* [QUERIES, PITCH] */
    float *keys, *values;       /* [length, head_dim] */
    float *rows;                /* [QUERIES, head_dim]: of out, or of dq */
    float *max, *sum;           /* [QUERIES] */
    float *dscores;             /* backward: as scores */
    float *dkeys, *dvalues;     /* backward: as keys */
};

/* Queries [q, q + rows) against keys [k, k + keys) of a sequence. */
struct block {
    size_t q, rows, k, keys;
    size_t pitch; /* floats from a row of scores to the next */
};

/* The columns of one head, at the first token of a sequence. */
struct head {
    const float *q, *out, *dout;
    float *lse, *dq;
};

static float *take(float *base, size_t *used, size_t count)
{
    float *at = base ? base + *used : NULL;

    *used += (count + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Floats of scratch; lays it out at base unless that is NULL. */
static size_t lay_out(float *base, size_t length, size_t head_dim, bool backward,
                      struct scratch *out)
{
    size_t used = 0, queries = SDP_MIN(length, (size_t)QUERIES);
    size_t block = queries * (SDP_MIN(length, (size_t)KEYS) + 2 * LANES);

    *out = (struct scratch){.scores = take(base, &used, block)};
    out->keys = take(base, &used, length * head_dim);
    out->values = take(base, &used, length * head_dim);
    out->rows = take(base, &used, queries * head_dim);
    out->max = take(base, &used, queries);
    out->sum = take(base, &used, queries);
    if (backward) {
        out->dscores = take(base, &used, block);
        out->dkeys = take(base, &used, length * head_dim);
        out->dvalues = take(base, &used, length * head_dim);
    }
    return used;
}

size_t sdp_attention_work_cpu(const struct sdp_op_node *node, size_t tokens,
                              size_t sequence_length, bool backward)
{
    struct scratch ignored;

    (void)tokens;
    return sizeof(float) * lay_out(NULL, sequence_length,
                                   (size_t)sdp_op_attr(node, "head_dim"), backward,
                                   &ignored);
}

static struct shape shape_of(const struct sdp_op_call *call)
{
    struct shape s = {.heads = (size_t)sdp_op_attr(call->node, "heads"),
                      .kv_heads = (size_t)sdp_op_attr(call->node, "kv_heads"),
                      .head_dim = (size_t)sdp_op_attr(call->node, "head_dim"),
                      .length = call->batch->sequence_length,
                      .window = (size_t)sdp_op_attr(call->node, "window")};
    double scale = sdp_op_attr(call->node, "scale");

    s.group = s.heads / s.kv_heads;
    s.width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    s.columns = s.heads * s.head_dim;
    if (s.window == 0 || s.window > s.length)
        s.window = s.length;
    s.scale = (float)(scale != 0.0 ? scale : 1.0 / sqrt((double)s.head_dim));
    return s;
}

/* First key that a query sees: of the window, and of its document. Later queries see no earlier ones. */
static inline size_t first_key(const struct shape *s, size_t query)
{
    size_t window = query + 1 > s->window ? query + 1 - s->window : 0;

    return s->positions ? SDP_MAX(window, query - (size_t)s->positions[query]) : window;
}

static struct block block_of(const struct shape *s, size_t q, size_t k)
{
    struct block b = {.q = q, .k = k, .rows = SDP_MIN((size_t)QUERIES, s->length - q)};

    b.keys = SDP_MIN((size_t)KEYS, q + b.rows - k);
    /* One piece more than needed: rows a power of two apart would share cache sets. */
    b.pitch = (b.keys + LANES - 1) / LANES * LANES + LANES;
    return b;
}

/* Keys of the block that its row sees: [*from, *to), counted from the block's first;
 * false if there are none. */
static inline bool visible(const struct shape *s, const struct block *b, size_t row,
                           size_t *from, size_t *to)
{
    size_t query = b->q + row, first = first_key(s, query);

    *from = first > b->k ? first - b->k : 0;
    *to = query + 1 > b->k ? SDP_MIN(query + 1 - b->k, b->keys) : 0;
    return *from < *to;
}

static inline size_t piece_down(size_t i)
{
    return i / LANES * LANES;
}

static inline size_t piece_up(size_t i)
{
    return (i + LANES - 1) / LANES * LANES;
}

static inline void fill(float *x, size_t from, size_t to, float value)
{
    for (size_t i = from; i < to; i++)
        x[i] = value;
}

/* Largest of x[from..to), a whole number of pieces. */
static inline float piece_max(const float *x, size_t from, size_t to)
{
    float lanes[LANES];

    memcpy(lanes, x + from, sizeof lanes);
    for (size_t i = from + LANES; i < to; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] = lanes[l] > x[i + l] ? lanes[l] : x[i + l];
    for (size_t n = LANES / 2; n > 0; n /= 2)
        for (size_t l = 0; l < n; l++)
            lanes[l] = lanes[l] > lanes[l + n] ? lanes[l] : lanes[l + n];
    return lanes[0];
}

/* x = exp(x - shift) over whole pieces; returns the sum. */
static inline float piece_exp(float *x, float shift, size_t from, size_t to)
{
    float lanes[LANES] = {0.0f};

    for (size_t i = from; i < to; i += LANES)
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

/* Scores become exp(score - running maximum), 0 where hidden; what was summed so far
 * follows the maximum. w->max is -infinity and w->sum and w->rows are 0 at first. */
SDPI_CLONES static void softmax_block(const struct shape *s, const struct block *b,
                                      const struct scratch *w)
{
    for (size_t r = 0; r < b->rows; r++) {
        float *x = w->scores + r * b->pitch, *rows = w->rows + r * s->head_dim;
        size_t from, to, low, high;
        float max, factor;

        if (!visible(s, b, r, &from, &to)) {
            fill(x, 0, b->keys, 0.0f);
            continue;
        }
        low = piece_down(from);
        high = piece_up(to);
        fill(x, low, from, -INFINITY);
        fill(x, to, high, -INFINITY);
        max = piece_max(x, low, high);
        if (max > w->max[r]) {
            factor = sdpi_exp(w->max[r] - max);
            w->max[r] = max;
            w->sum[r] *= factor;
            for (size_t i = 0; i < s->head_dim; i++)
                rows[i] *= factor;
        }
        w->sum[r] += piece_exp(x, w->max[r], low, high);
        fill(x, 0, low, 0.0f);
        fill(x, high, b->keys, 0.0f);
    }
}

/* Scores become probabilities p, dscores (gradients of p) become those of q k^T:
 * p * (dp - delta) * scale. w->sum holds the deltas, w->max the log-sum-exps. */
SDPI_CLONES static void softmax_gradient(const struct shape *s, const struct block *b,
                                         const struct scratch *w)
{
    for (size_t r = 0; r < b->rows; r++) {
        float *restrict p = w->scores + r * b->pitch;
        float *restrict dp = w->dscores + r * b->pitch;
        float delta = w->sum[r], lse = w->max[r], scale = s->scale;
        size_t from, to, low, high;

        if (!visible(s, b, r, &from, &to)) {
            fill(p, 0, b->keys, 0.0f);
            fill(dp, 0, b->keys, 0.0f);
            continue;
        }
        low = piece_down(from);
        high = piece_up(to);
        fill(p, low, from, -INFINITY);
        fill(p, to, high, -INFINITY);
        fill(dp, to, high, 0.0f);
        for (size_t i = low; i < high; i += LANES)
            for (size_t l = 0; l < LANES; l++) {
                float e = sdpi_exp(p[i + l] - lse);

                p[i + l] = e;
                dp[i + l] = e * (dp[i + l] - delta) * scale;
            }
        fill(p, 0, low, 0.0f);
        fill(dp, 0, low, 0.0f);
        fill(p, high, b->keys, 0.0f);
        fill(dp, high, b->keys, 0.0f);
    }
}

/* out (rows x keys of a block) = alpha * a b^T. */
static void product_nt(const struct shape *s, const struct block *b, float alpha,
                       const float *rows, size_t row_pitch, const float *keys, float *out)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)b->rows,
                (blasint)b->keys, (blasint)s->head_dim, alpha, rows, (blasint)row_pitch,
                keys + b->k * s->head_dim, (blasint)s->head_dim, 0.0f, out,
                (blasint)b->pitch);
}

/* w->rows += scores * keys. */
static void product_nn(const struct shape *s, const struct block *b, const float *scores,
                       const float *keys, float *rows)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)b->rows,
                (blasint)s->head_dim, (blasint)b->keys, 1.0f, scores, (blasint)b->pitch,
                keys + b->k * s->head_dim, (blasint)s->head_dim, 1.0f, rows,
                (blasint)s->head_dim);
}

/* keys += scores^T * rows. */
static void product_tn(const struct shape *s, const struct block *b, const float *scores,
                       const float *rows, size_t row_pitch, float *keys)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)b->keys,
                (blasint)s->head_dim, (blasint)b->rows, 1.0f, scores, (blasint)b->pitch,
                rows, (blasint)row_pitch, 1.0f, keys + b->k * s->head_dim,
                (blasint)s->head_dim);
}

static void forward_queries(const struct shape *s, const struct head *h, size_t q,
                            const struct scratch *w, float *out)
{
    struct block b = block_of(s, q, q);
    size_t rows = b.rows, end = q + rows;

    fill(w->max, 0, rows, -INFINITY);
    fill(w->sum, 0, rows, 0.0f);
    fill(w->rows, 0, rows * s->head_dim, 0.0f);
    for (size_t k = first_key(s, q); k < end; k += KEYS) {
        b = block_of(s, q, k);
        product_nt(s, &b, s->scale, h->q + q * s->width, s->width, w->keys, w->scores);
        softmax_block(s, &b, w);
        product_nn(s, &b, w->scores, w->values, w->rows);
    }
    for (size_t r = 0; r < rows; r++) {
        const float *from = w->rows + r * s->head_dim;
        float *to = out + (q + r) * s->columns, factor = 1.0f / w->sum[r];

        for (size_t i = 0; i < s->head_dim; i++)
            to[i] = from[i] * factor;
        h->lse[(q + r) * s->heads] = (float)((double)w->max[r] + log((double)w->sum[r]));
    }
}

/* Copies the keys and values of a key head; qkv is at the sequence's first token. */
static void gather(const struct shape *s, const float *qkv, size_t kv_head,
                   const struct scratch *w)
{
    const float *keys = qkv + (s->heads + kv_head) * s->head_dim;
    const float *values = keys + s->kv_heads * s->head_dim;
    size_t bytes = s->head_dim * sizeof(float);

    for (size_t t = 0; t < s->length; t++) {
        memcpy(w->keys + t * s->head_dim, keys + t * s->width, bytes);
        memcpy(w->values + t * s->head_dim, values + t * s->width, bytes);
    }
}

enum sdp_status sdp_attention_forward_cpu(const struct sdp_op_call *call)
{
    struct shape s = shape_of(call);
    struct scratch w;

    lay_out(call->work, s.length, s.head_dim, false, &w);
    for (size_t n = 0; n < call->batch->sequences * s.kv_heads; n++) {
        size_t token = n / s.kv_heads * s.length, kv_head = n % s.kv_heads;
        const float *qkv = (const float *)call->in[0] + token * s.width;

        s.positions = call->batch->packed ? call->batch->positions + token : NULL;
        gather(&s, qkv, kv_head, &w);
        for (size_t i = kv_head * s.group; i < (kv_head + 1) * s.group; i++) {
            struct head h = {.q = qkv + i * s.head_dim,
                             .lse = call->aux[0] + token * s.heads + i};
            float *out = (float *)call->out[0] + token * s.columns + i * s.head_dim;

            for (size_t q = 0; q < s.length; q += QUERIES)
                forward_queries(&s, &h, q, &w, out);
        }
    }
    return SDP_OK;
}

/* Rows of head_dim columns from scratch into a gradient of pitch s->width. */
static void store(const struct shape *s, const float *from, size_t rows, bool add,
                  float *to)
{
    for (size_t r = 0; r < rows; r++, from += s->head_dim, to += s->width) {
        if (add) {
            for (size_t i = 0; i < s->head_dim; i++)
                to[i] += from[i];
        } else {
            memcpy(to, from, s->head_dim * sizeof *to);
        }
    }
}

/* Log-sum-exps and deltas (dout . out) of a block of queries. */
SDPI_CLONES static void row_statistics(const struct shape *s, const struct head *h,
                                       size_t q, size_t rows, const struct scratch *w)
{
    for (size_t r = 0; r < rows; r++) {
        size_t at = (q + r) * s->columns;

        w->max[r] = h->lse[(q + r) * s->heads];
        w->sum[r] = sdpi_dot(h->dout + at, h->out + at, s->head_dim);
    }
}

static void backward_queries(const struct shape *s, const struct head *h, size_t q,
                             const struct scratch *w, bool add)
{
    struct block b = block_of(s, q, q);
    size_t rows = b.rows, end = q + rows;
    const float *query = h->q + q * s->width, *dout = h->dout + q * s->columns;

    row_statistics(s, h, q, rows, w);
    fill(w->rows, 0, rows * s->head_dim, 0.0f);
    for (size_t k = first_key(s, q); k < end; k += KEYS) {
        b = block_of(s, q, k);
        product_nt(s, &b, s->scale, query, s->width, w->keys, w->scores);
        product_nt(s, &b, 1.0f, dout, s->columns, w->values, w->dscores);
        softmax_gradient(s, &b, w);
        product_tn(s, &b, w->scores, dout, s->columns, w->dvalues);
        product_tn(s, &b, w->dscores, query, s->width, w->dkeys);
        product_nn(s, &b, w->dscores, w->keys, w->rows);
    }
    store(s, w->rows, rows, add, h->dq + q * s->width);
}

enum sdp_status sdp_attention_backward_cpu(const struct sdp_op_call *call)
{
    struct shape s = shape_of(call);
    struct scratch w;
    bool add = call->add_din[0];

    if (!call->din[0])
        return SDP_OK;
    lay_out(call->work, s.length, s.head_dim, true, &w);
    for (size_t n = 0; n < call->batch->sequences * s.kv_heads; n++) {
        size_t token = n / s.kv_heads * s.length, kv_head = n % s.kv_heads;
        const float *qkv = (const float *)call->in[0] + token * s.width;
        float *din = (float *)call->din[0] + token * s.width;
        float *dkeys = din + (s.heads + kv_head) * s.head_dim;

        s.positions = call->batch->packed ? call->batch->positions + token : NULL;
        gather(&s, qkv, kv_head, &w);
        fill(w.dkeys, 0, s.length * s.head_dim, 0.0f);
        fill(w.dvalues, 0, s.length * s.head_dim, 0.0f);
        for (size_t i = kv_head * s.group; i < (kv_head + 1) * s.group; i++) {
            size_t at = token * s.columns + i * s.head_dim;
            struct head h = {.q = qkv + i * s.head_dim,
                             .out = (const float *)call->out[0] + at,
                             .dout = (const float *)call->dout[0] + at,
                             .lse = call->aux[0] + token * s.heads + i,
                             .dq = din + i * s.head_dim};

            for (size_t q = 0; q < s.length; q += QUERIES)
                backward_queries(&s, &h, q, &w, add);
        }
        store(&s, w.dkeys, s.length, add, dkeys);
        store(&s, w.dvalues, s.length, add, dkeys + s.kv_heads * s.head_dim);
    }
    return SDP_OK;
}
