/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of `rope`, fp32: each row of qkv is q heads, k heads, v heads. q and k heads
 * are RMS-normalised where a weight is given, then elements i and i + head_dim / 2 turn
 * by the angle position * frequency[i]; v is copied. A head is read as a whole before it
 * is written, so input and output may be the same memory, in both directions. */
#include "codelets/common/vector_math.h"
#include "codelets/ops/ops.h"
#include "codelets/ops/rope/frequencies.h"

SDPI_OP_TWINS(rope);

#define MAX_HALF (SDP_ROPE_MAX_HEAD_DIM / 2)

/* Sine and cosine of one token's angles, times the magnitude. */
struct angles {
    float cosine[MAX_HALF], sine[MAX_HALF];
};

/* A call: its heads, frequencies and norms (weights and gradients, [0] of q, [1] of k;
 * NULL where there is none or where it is not wanted). */
struct problem {
    struct sdpi_heads h;
    size_t half;
    float eps;
    struct sdp_rope_frequencies frequencies;
    const float *norm[2];
    float *dnorm[2];
};

static struct problem problem_of(const struct sdp_op_call *call)
{
    const struct sdp_op_node *node = call->node;
    struct problem p = {.h = sdpi_heads_of(node)};

    p.half = p.h.head_dim / 2;
    p.eps = (float)sdp_op_attr(node, "norm_eps");
    sdp_rope_frequencies_of(node, &p.frequencies);
    for (size_t i = 0; i < node->weight_count; i++) {
        p.norm[node->weight_role[i]] = call->weight[i];
        p.dnorm[node->weight_role[i]] = call->dweight[i];
    }
    return p;
}

static void turn(const struct problem *p, int32_t position, struct angles *out)
{
    for (size_t i = 0; i < p->half; i++) {
        float angle = (float)position * p->frequencies.inverse[i];

        out->cosine[i] = cosf(angle) * p->frequencies.magnitude;
        out->sine[i] = sinf(angle) * p->frequencies.magnitude;
    }
}

/* -- forward ------------------------------------------------------------------ */

/* y = x turned; x is not y. */
SDPI_CLONES
static void rotate(const float *restrict x, float *restrict y,
                   const struct angles *restrict angles, size_t half)
{
    for (size_t i = 0; i < half; i++) {
        y[i] = x[i] * angles->cosine[i] - x[half + i] * angles->sine[i];
        y[half + i] = x[half + i] * angles->cosine[i] + x[i] * angles->sine[i];
    }
}

/* y = x * rstd * norm; returns rstd. */
SDPI_CLONES
static float normalise(const float *restrict x, const float *restrict norm,
                       float *restrict y, size_t head_dim, float eps)
{
    float rstd = 1.0f / sqrtf(sdpi_dot(x, x, head_dim) / (float)head_dim + eps);

    for (size_t i = 0; i < head_dim; i++)
        y[i] = x[i] * rstd * norm[i];
    return rstd;
}

/* rstd: of the token's q and k heads, or NULL. */
static void forward_token(const struct problem *p, const struct angles *angles,
                          const float *x, float *y, float *rstd)
{
    size_t dim = p->h.head_dim, rotated = p->h.heads + p->h.kv_heads;
    float head[SDP_ROPE_MAX_HEAD_DIM];

    for (size_t s = 0; s < rotated; s++) {
        const float *norm = p->norm[s >= p->h.heads];
        float r = 0.0f;

        if (norm)
            r = normalise(x + s * dim, norm, head, dim, p->eps);
        else
            memcpy(head, x + s * dim, dim * sizeof *head);
        if (rstd)
            rstd[s] = r;
        rotate(head, y + s * dim, angles, p->half);
    }
    if (x != y)
        memcpy(y + rotated * dim, x + rotated * dim, p->h.kv_heads * dim * sizeof *y);
}

enum sdp_status sdp_rope_forward_cpu(const struct sdp_op_call *call)
{
    struct problem p = problem_of(call);
    size_t rotated = p.h.heads + p.h.kv_heads;
    bool normed = p.norm[0] || p.norm[1];
    const float *x = call->in[0];
    float *y = call->out[0];
    struct angles angles;

    for (size_t t = 0; t < call->batch->tokens; t++) {
        turn(&p, call->batch->positions[t], &angles);
        forward_token(&p, &angles, x + t * p.h.width, y + t * p.h.width,
                      normed ? call->aux[0] + t * rotated : NULL);
    }
    return SDP_OK;
}

/* -- backward ----------------------------------------------------------------- */

/* dx = dy turned back. */
SDPI_CLONES
static void rotate_back(const float *restrict dy, float *restrict dx,
                        const struct angles *restrict angles, size_t half)
{
    for (size_t i = 0; i < half; i++) {
        dx[i] = dy[i] * angles->cosine[i] + dy[half + i] * angles->sine[i];
        dx[half + i] = dy[half + i] * angles->cosine[i] - dy[i] * angles->sine[i];
    }
}

/* Turns the gradient g of a normalised head into that of x, in place, and adds that of
 * the norm to sum. */
SDPI_CLONES
static void normalise_back(const float *restrict x, const float *restrict norm,
                           float *restrict g, double *restrict sum, size_t head_dim,
                           float rstd)
{
    float n[SDP_ROPE_MAX_HEAD_DIM], mean;

    for (size_t i = 0; i < head_dim; i++) {
        n[i] = x[i] * rstd;
        sum[i] += (double)(g[i] * n[i]);
        g[i] *= norm[i];
    }
    mean = sdpi_dot(g, n, head_dim) / (float)head_dim;
    for (size_t i = 0; i < head_dim; i++)
        g[i] = rstd * (g[i] - n[i] * mean);
}

SDPI_CLONES
static void deliver(const float *from, float *to, size_t count, bool add)
{
    if (!add) {
        memmove(to, from, count * sizeof *to);
        return;
    }
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* x and rstd are NULL without norms, dx where it is not wanted. */
static void backward_token(const struct problem *p, const struct angles *angles,
                           const float *x, const float *rstd, const float *dy, float *dx,
                           bool add, double (*sums)[SDP_ROPE_MAX_HEAD_DIM])
{
    size_t dim = p->h.head_dim, rotated = p->h.heads + p->h.kv_heads;
    float head[SDP_ROPE_MAX_HEAD_DIM];

    for (size_t s = 0; s < rotated; s++) {
        size_t kind = s >= p->h.heads;

        rotate_back(dy + s * dim, head, angles, p->half);
        if (p->norm[kind])
            normalise_back(x + s * dim, p->norm[kind], head, sums[kind], dim, rstd[s]);
        if (dx)
            deliver(head, dx + s * dim, dim, add);
    }
    if (dx && (dx != dy || add))
        deliver(dy + rotated * dim, dx + rotated * dim, p->h.kv_heads * dim, add);
}

enum sdp_status sdp_rope_backward_cpu(const struct sdp_op_call *call)
{
    struct problem p = problem_of(call);
    size_t rotated = p.h.heads + p.h.kv_heads;
    bool normed = p.norm[0] || p.norm[1];
    const float *x = call->in[0], *dy = call->dout[0];
    float *dx = call->din[0];
    double sums[2][SDP_ROPE_MAX_HEAD_DIM] = {{0.0}};
    struct angles angles;

    for (size_t t = 0; t < call->batch->tokens; t++) {
        turn(&p, call->batch->positions[t], &angles);
        backward_token(&p, &angles, normed ? x + t * p.h.width : NULL,
                       normed ? call->aux[0] + t * rotated : NULL, dy + t * p.h.width,
                       dx ? dx + t * p.h.width : NULL, call->add_din[0], sums);
    }
    for (size_t i = 0; i < 2; i++)
        if (p.dnorm[i])
            sdpi_tile_store(p.dnorm[i], sums[i], 1.0, p.h.head_dim, call->add_dweight);
    return SDP_OK;
}
