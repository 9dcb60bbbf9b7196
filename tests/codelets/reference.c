/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plain loops in double (see reference.h). */
#include "tests/codelets/reference.h"

#include <stdlib.h>

static size_t attr_size(const struct sdp_reference *r, const char *name)
{
    return (size_t)sdp_op_attr(r->node, name);
}

/* -- add, swiglu -------------------------------------------------------------- */

static void add_forward(struct sdp_reference *r)
{
    for (size_t i = 0; i < r->batch->tokens * r->node->output_cols[0]; i++)
        r->out[0][i] = r->in[0][i] + r->in[1][i];
}

static void add_backward(struct sdp_reference *r)
{
    for (size_t i = 0; i < r->batch->tokens * r->node->output_cols[0]; i++) {
        r->din[0][i] += r->dout[0][i];
        r->din[1][i] += r->dout[0][i];
    }
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static void swiglu_forward(struct sdp_reference *r)
{
    size_t cols = r->node->output_cols[0];

    for (size_t t = 0; t < r->batch->tokens; t++) {
        const double *gate = r->in[0] + t * 2 * cols, *up = gate + cols;
        for (size_t c = 0; c < cols; c++)
            r->out[0][t * cols + c] = silu(gate[c]) * up[c];
    }
}

static void swiglu_backward(struct sdp_reference *r)
{
    size_t cols = r->node->output_cols[0];

    for (size_t t = 0; t < r->batch->tokens; t++) {
        const double *gate = r->in[0] + t * 2 * cols, *up = gate + cols;
        double *dgate = r->din[0] + t * 2 * cols, *dup = dgate + cols;
        for (size_t c = 0; c < cols; c++) {
            double s = 1.0 / (1.0 + exp(-gate[c])), dy = r->dout[0][t * cols + c];
            dgate[c] += dy * up[c] * (s + gate[c] * s * (1.0 - s));
            dup[c] += dy * silu(gate[c]);
        }
    }
}

/* -- embedding ---------------------------------------------------------------- */

static void embedding_forward(struct sdp_reference *r)
{
    size_t cols = r->node->weight_cols[0];
    double scale = sdp_op_attr(r->node, "scale");

    for (size_t t = 0; t < r->batch->tokens; t++)
        for (size_t c = 0; c < cols; c++)
            r->out[0][t * cols + c] =
                scale * r->weight[0][(size_t)r->batch->ids[t] * cols + c];
}

static void embedding_backward(struct sdp_reference *r)
{
    size_t cols = r->node->weight_cols[0];
    double scale = sdp_op_attr(r->node, "scale");

    for (size_t t = 0; t < r->batch->tokens; t++)
        for (size_t c = 0; c < cols; c++)
            r->dweight[0][(size_t)r->batch->ids[t] * cols + c] +=
                scale * r->dout[0][t * cols + c];
}

/* -- rmsnorm ------------------------------------------------------------------ */

/* y = x / rms(x) * gain; returns 1 / rms(x). */
static double normalise(const double *x, const double *gain, double offset, double eps,
                        size_t count, double *y)
{
    double square = 0.0, rstd;

    for (size_t i = 0; i < count; i++)
        square += x[i] * x[i];
    rstd = 1.0 / sqrt(square / (double)count + eps);
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] * rstd * (offset + gain[i]);
    return rstd;
}

/* dx += and dgain += of y as normalise() makes it. d rstd / d x_j = -rstd^3 x_j / count.
 */
static void normalise_back(const double *x, const double *gain, double offset,
                           double rstd, size_t count, const double *dy, double *dx,
                           double *dgain)
{
    double along = 0.0;

    for (size_t i = 0; i < count; i++)
        along += dy[i] * (offset + gain[i]) * x[i];
    for (size_t i = 0; i < count; i++) {
        dx[i] += dy[i] * (offset + gain[i]) * rstd -
                 along * rstd * rstd * rstd * x[i] / (double)count;
        dgain[i] += dy[i] * x[i] * rstd;
    }
}

static void rmsnorm_forward(struct sdp_reference *r)
{
    size_t cols = r->node->input_cols[0];

    for (size_t t = 0; t < r->batch->tokens; t++)
        r->aux[0][t] =
            normalise(r->in[0] + t * cols, r->weight[0], sdp_op_attr(r->node, "offset"),
                      sdp_op_attr(r->node, "eps"), cols, r->out[0] + t * cols);
}

static void rmsnorm_backward(struct sdp_reference *r)
{
    size_t cols = r->node->input_cols[0];

    for (size_t t = 0; t < r->batch->tokens; t++)
        normalise_back(r->in[0] + t * cols, r->weight[0], sdp_op_attr(r->node, "offset"),
                       r->aux[0][t], cols, r->dout[0] + t * cols, r->din[0] + t * cols,
                       r->dweight[0]);
}

/* -- linear ------------------------------------------------------------------- */

/* Weights come first, then as many biases or none. */
static size_t linear_weights(const struct sdp_op_node *node)
{
    size_t count = 0;

    while (count < node->weight_count && node->weight_role[count] == 0)
        count++;
    return count;
}

static void linear_forward(struct sdp_reference *r)
{
    size_t weights = linear_weights(r->node), k = r->node->input_cols[0];
    size_t column = 0, cols = r->node->output_cols[0];
    bool biased = r->node->weight_count > weights;

    for (size_t w = 0; w < weights; w++) {
        for (size_t n = 0; n < r->node->weight_rows[w]; n++, column++) {
            for (size_t t = 0; t < r->batch->tokens; t++) {
                double sum = biased ? r->weight[weights + w][n] : 0.0;
                if (r->in[1])
                    sum += r->in[1][t * cols + column];
                for (size_t i = 0; i < k; i++)
                    sum += r->in[0][t * k + i] * r->weight[w][n * k + i];
                r->out[0][t * cols + column] = sum;
            }
        }
    }
}

static void linear_backward(struct sdp_reference *r)
{
    size_t weights = linear_weights(r->node), k = r->node->input_cols[0];
    size_t column = 0, cols = r->node->output_cols[0];
    bool biased = r->node->weight_count > weights;

    for (size_t w = 0; w < weights; w++) {
        for (size_t n = 0; n < r->node->weight_rows[w]; n++, column++) {
            for (size_t t = 0; t < r->batch->tokens; t++) {
                double dy = r->dout[0][t * cols + column];
                if (biased)
                    r->dweight[weights + w][n] += dy;
                if (r->in[1])
                    r->din[1][t * cols + column] += dy;
                for (size_t i = 0; i < k; i++) {
                    r->din[0][t * k + i] += dy * r->weight[w][n * k + i];
                    r->dweight[w][n * k + i] += dy * r->in[0][t * k + i];
                }
            }
        }
    }
}

/* -- rope --------------------------------------------------------------------- */

/* Frequency of pair i by the published formulas; *magnitude of sine and cosine. */
static double frequency(const struct sdp_reference *r, size_t i, double *magnitude)
{
    double dim = sdp_op_attr(r->node, "head_dim"), theta = sdp_op_attr(r->node, "theta");
    double factor = sdp_op_attr(r->node, "factor"), turn = 2.0 * acos(-1.0);
    double original = sdp_op_attr(r->node, "original_max_position");
    double plain = pow(theta, -2.0 * (double)i / dim), turns = original * plain / turn;
    double low = sdp_op_attr(r->node, "low_freq_factor"), first, last, ramp;
    double high = sdp_op_attr(r->node, "high_freq_factor");

    *magnitude = 1.0;
    switch ((int)sdp_op_attr(r->node, "type")) {
    case 1: /* linear */
        return plain / factor;
    case 2: /* llama3: in turns within the original length */
        ramp = fmin(fmax((turns - low) / (high - low), 0.0), 1.0);
        return (1.0 - ramp) * plain / factor + ramp * plain;
    case 3: /* yarn */
        first = sdp_op_attr(r->node, "beta_fast") * turn;
        last = sdp_op_attr(r->node, "beta_slow") * turn;
        first = fmax(floor(dim * log(original / first) / (2.0 * log(theta))), 0.0);
        last = fmin(ceil(dim * log(original / last) / (2.0 * log(theta))), dim - 1.0);
        ramp = ((double)i - first) / (first == last ? 0.001 : last - first);
        ramp = fmin(fmax(ramp, 0.0), 1.0);
        *magnitude = sdp_op_attr(r->node, "attention_factor");
        if (*magnitude == 0.0)
            *magnitude = factor > 1.0 ? 0.1 * log(factor) + 1.0 : 1.0;
        return ramp * plain / factor + (1.0 - ramp) * plain;
    default:
        return plain;
    }
}

/* Turns the pairs of one head from x to y; direction -1 is back. */
static void turn_head(const struct sdp_reference *r, size_t token, double direction,
                      const double *x, double *y)
{
    size_t half = attr_size(r, "head_dim") / 2;

    for (size_t i = 0; i < half; i++) {
        double magnitude, f = frequency(r, i, &magnitude), a = x[i], b = x[half + i];
        double angle = direction * (double)r->batch->positions[token] * f;
        y[i] = magnitude * (a * cos(angle) - b * sin(angle));
        y[half + i] = magnitude * (b * cos(angle) + a * sin(angle));
    }
}

/* Index of the weight with that role (0 of q, 1 of k), or -1. */
static int norm_of(const struct sdp_reference *r, unsigned role)
{
    for (size_t w = 0; w < r->node->weight_count; w++)
        if (r->node->weight_role[w] == role)
            return (int)w;
    return -1;
}

static void rope_forward(struct sdp_reference *r)
{
    size_t heads = attr_size(r, "heads"), kv_heads = attr_size(r, "kv_heads");
    size_t dim = attr_size(r, "head_dim"), turned = heads + kv_heads;
    size_t all = turned + kv_heads;
    double eps = sdp_op_attr(r->node, "norm_eps"), head[512];

    for (size_t t = 0; t < r->batch->tokens; t++) {
        for (size_t h = 0; h < all; h++) {
            const double *x = r->in[0] + (t * all + h) * dim;
            double *y = r->out[0] + (t * all + h) * dim;
            int norm = h < turned ? norm_of(r, h >= heads) : -1;
            double rstd = NAN; /* of a head without a norm: not said */
            memcpy(h < turned ? head : y, x, dim * sizeof *x);
            if (h >= turned)
                continue;
            if (norm >= 0)
                rstd = normalise(x, r->weight[norm], 0.0, eps, dim, head);
            if (r->aux[0])
                r->aux[0][t * turned + h] = rstd;
            turn_head(r, t, 1.0, head, y);
        }
    }
}

static void rope_backward(struct sdp_reference *r)
{
    size_t heads = attr_size(r, "heads"), kv_heads = attr_size(r, "kv_heads");
    size_t dim = attr_size(r, "head_dim"), turned = heads + kv_heads;
    size_t all = turned + kv_heads;
    double head[512];

    for (size_t t = 0; t < r->batch->tokens; t++) {
        for (size_t h = 0; h < all; h++) {
            size_t at = (t * all + h) * dim;
            int norm = h < turned ? norm_of(r, h >= heads) : -1;
            memcpy(head, r->dout[0] + at, dim * sizeof *head);
            if (h < turned)
                turn_head(r, t, -1.0, r->dout[0] + at, head);
            if (norm >= 0)
                normalise_back(r->in[0] + at, r->weight[norm], 0.0,
                               r->aux[0][t * turned + h], dim, head, r->din[0] + at,
                               r->dweight[norm]);
            else
                for (size_t i = 0; i < dim; i++)
                    r->din[0][at + i] += head[i];
        }
    }
}

/* -- attention ---------------------------------------------------------------- */

struct attention {
    size_t heads, kv_heads, dim, width, length, window;
    double scale;
    const int32_t *positions; /* of the sequence, if it holds several documents */
};

static struct attention attention_of(const struct sdp_reference *r)
{
    struct attention a = {attr_size(r, "heads"),        attr_size(r, "kv_heads"),
                          attr_size(r, "head_dim"),     r->node->input_cols[0],
                          r->batch->sequence_length,    attr_size(r, "window"),
                          sdp_op_attr(r->node, "scale"),        NULL};

    if (a.scale == 0.0)
        a.scale = 1.0 / sqrt((double)a.dim);
    return a;
}

static size_t first_key(const struct attention *a, size_t query)
{
    size_t window = a->window && query + 1 > a->window ? query + 1 - a->window : 0;
    size_t document = a->positions ? query - (size_t)a->positions[query] : 0;

    return window > document ? window : document;
}

static double dot(const double *x, const double *y, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Weights of the keys that a token sees, p[first_key..query]; returns the log-sum-exp. */
static double attend(const struct attention *a, const double *q, const double *k,
                     size_t query, double *p)
{
    double most = -INFINITY, sum = 0.0;

    for (size_t j = first_key(a, query); j <= query; j++) {
        p[j] = a->scale * dot(q, k + j * a->width, a->dim);
        most = fmax(most, p[j]);
    }
    for (size_t j = first_key(a, query); j <= query; j++)
        sum += exp(p[j] - most);
    for (size_t j = first_key(a, query); j <= query; j++)
        p[j] = exp(p[j] - most) / sum;
    return most + log(sum);
}

static void attention_forward(struct sdp_reference *r)
{
    struct attention a = attention_of(r);
    double *p = sdp_xcalloc(a.length, sizeof *p);

    for (size_t t = 0; t < r->batch->tokens; t++) {
        size_t query = t % a.length;
        const double *sequence = r->in[0] + (t - query) * a.width;
        a.positions = r->batch->packed ? r->batch->positions + t - query : NULL;
        for (size_t h = 0; h < a.heads; h++) {
            size_t kv = h * a.kv_heads / a.heads;
            const double *q = r->in[0] + t * a.width + h * a.dim;
            const double *k = sequence + (a.heads + kv) * a.dim;
            const double *v = k + a.kv_heads * a.dim;
            double *out = r->out[0] + (t * a.heads + h) * a.dim;
            r->aux[0][t * a.heads + h] = attend(&a, q, k, query, p);
            for (size_t i = 0; i < a.dim; i++)
                out[i] = 0.0;
            for (size_t j = first_key(&a, query); j <= query; j++)
                for (size_t i = 0; i < a.dim; i++)
                    out[i] += p[j] * v[j * a.width + i];
        }
    }
    free(p);
}

/* One query of one head. q, k and v as in attention_forward; d... their gradients. */
static void attend_back(const struct attention *a, size_t query, const double *q,
                        const double *k, const double *v, const double *dout, double *dq,
                        double *dk, double *dv, double *p)
{
    double mean = 0.0;

    attend(a, q, k, query, p);
    for (size_t j = first_key(a, query); j <= query; j++)
        mean += p[j] * dot(dout, v + j * a->width, a->dim);
    for (size_t j = first_key(a, query); j <= query; j++) {
        double dp = dot(dout, v + j * a->width, a->dim);
        double ds = p[j] * (dp - mean) * a->scale;
        for (size_t i = 0; i < a->dim; i++) {
            dv[j * a->width + i] += p[j] * dout[i];
            dq[i] += ds * k[j * a->width + i];
            dk[j * a->width + i] += ds * q[i];
        }
    }
}

static void attention_backward(struct sdp_reference *r)
{
    struct attention a = attention_of(r);
    double *p = sdp_xcalloc(a.length, sizeof *p);

    for (size_t t = 0; t < r->batch->tokens; t++) {
        size_t query = t % a.length, sequence = (t - query) * a.width;
        a.positions = r->batch->packed ? r->batch->positions + t - query : NULL;
        for (size_t h = 0; h < a.heads; h++) {
            size_t q = t * a.width + h * a.dim;
            size_t k = sequence + (a.heads + h * a.kv_heads / a.heads) * a.dim;
            size_t v = k + a.kv_heads * a.dim;
            attend_back(&a, query, r->in[0] + q, r->in[0] + k, r->in[0] + v,
                        r->dout[0] + (t * a.heads + h) * a.dim, r->din[0] + q,
                        r->din[0] + k, r->din[0] + v, p);
        }
    }
    free(p);
}

/* -- cross_entropy ------------------------------------------------------------ */

static double log_sum_exp(const double *x, size_t count)
{
    double most = -INFINITY, sum = 0.0;

    for (size_t i = 0; i < count; i++)
        most = fmax(most, x[i]);
    for (size_t i = 0; i < count; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

static void cross_entropy_forward(struct sdp_reference *r)
{
    size_t v = r->node->weight_rows[0], d = r->node->weight_cols[0];

    r->loss = 0.0;
    for (size_t t = 0; t < r->batch->tokens; t++) {
        double *logits = r->logits + t * v;
        int32_t target = r->batch->targets[t];
        for (size_t n = 0; n < v; n++)
            logits[n] = dot(r->in[0] + t * d, r->weight[0] + n * d, d);
        if (target >= 0)
            r->loss += log_sum_exp(logits, v) - logits[target];
    }
}

static void cross_entropy_backward(struct sdp_reference *r)
{
    size_t v = r->node->weight_rows[0], d = r->node->weight_cols[0];

    for (size_t t = 0; t < r->batch->tokens; t++) {
        const double *logits = r->logits + t * v;
        int32_t target = r->batch->targets[t];
        double lse = log_sum_exp(logits, v);
        for (size_t n = 0; target >= 0 && n < v; n++) {
            double dlogit = exp(logits[n] - lse) - ((size_t)target == n ? 1.0 : 0.0);
            for (size_t i = 0; i < d; i++) {
                r->din[0][t * d + i] += r->loss_scale * dlogit * r->weight[0][n * d + i];
                r->dweight[0][n * d + i] += r->loss_scale * dlogit * r->in[0][t * d + i];
            }
        }
    }
}

static const struct sdp_reference_op references[] = {
    {"add", add_forward, add_backward},
    {"attention", attention_forward, attention_backward},
    {"cross_entropy", cross_entropy_forward, cross_entropy_backward},
    {"embedding", embedding_forward, embedding_backward},
    {"linear", linear_forward, linear_backward},
    {"rmsnorm", rmsnorm_forward, rmsnorm_backward},
    {"rope", rope_forward, rope_backward},
    {"swiglu", swiglu_forward, swiglu_backward},
};

const struct sdp_reference_op *sdp_reference_find(const char *op)
{
    for (size_t i = 0; i < SDP_COUNT_OF(references); i++)
        if (strcmp(references[i].name, op) == 0)
            return &references[i];
    return NULL;
}
