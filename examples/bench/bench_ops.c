/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Times the CPU twins of one decoder block on one core, forward and backward, beside the
 * sgemm of the same machine:
 *
 *     bench_ops [HIDDEN HEADS KV_HEADS HEAD_DIM INTERMEDIATE SEQUENCES LENGTH]
 *
 * GFLOP/s counts what struct sdp_op's flops() counts; elementwise operations count 0. */
#include "graph/op.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#define REPEATS   7
#define VALUE_STD 0.5

enum shape { HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, SEQUENCES, LENGTH, SHAPES };

/* One operation with memory for all that its calls read and write. */
struct bench {
    struct sdp_op_node node;
    struct sdp_op_call forward, backward;
    double seconds[2]; /* best of REPEATS: forward, backward */
};

static struct sdp_op_batch batch;

static float *values(size_t count)
{
    float *x = sdp_xcalloc(count, sizeof *x);

    for (size_t i = 0; i < count; i++)
        x[i] = (float)VALUE_STD * sdp_random_normal(5, i);
    return x;
}

static struct bench *start(const char *op, size_t cols)
{
    struct bench *b = sdp_xcalloc(1, sizeof *b);

    b->node.op = sdp_op_find(op);
    b->node.input_cols[0] = cols;
    while (b->node.op->inputs[b->node.input_count])
        b->node.input_count++;
    while (b->node.op->outputs[b->node.output_count])
        b->node.output_count++;
    for (size_t a = 0; b->node.op->attrs && b->node.op->attrs[a].name; a++)
        b->node.attr[a] = b->node.op->attrs[a].fallback;
    return b;
}

static void weight(struct bench *b, size_t rows, size_t cols)
{
    size_t w = b->node.weight_count++;

    b->node.weight_rows[w] = rows;
    b->node.weight_cols[w] = cols;
    b->forward.weight[w] = values(rows * cols);
    b->backward.dweight[w] = values(rows * cols);
}

static void heads(struct bench *b, const size_t *shape)
{
    for (size_t a = 0; b->node.op->attrs[a].name; a++) {
        const char *name = b->node.op->attrs[a].name;
        if (strcmp(name, "heads") == 0)
            b->node.attr[a] = (double)shape[HEADS];
        else if (strcmp(name, "kv_heads") == 0)
            b->node.attr[a] = (double)shape[KV_HEADS];
        else if (strcmp(name, "head_dim") == 0)
            b->node.attr[a] = (double)shape[HEAD_DIM];
    }
}

static void allocate(struct bench *b)
{
    struct sdp_op_node *node = &b->node;
    struct sdp_op_call *call = &b->forward;
    struct sdp_error err = SDP_ERROR_INIT;
    size_t work = 0;

    if (node->op->infer(node, &err) != SDP_OK) {
        fprintf(stderr, "bench_ops: %s: %s\n", node->op->name, err.text);
        exit(2);
    }
    call->node = node;
    call->batch = &batch;
    for (size_t i = 0; i < node->input_count; i++)
        call->in[i] =
            node->input_cols[i] ? values(batch.tokens * node->input_cols[i]) : NULL;
    for (size_t i = 0; i < node->output_count; i++)
        call->out[i] = values(batch.tokens * node->output_cols[i]);
    for (size_t i = 0; i < node->aux_count; i++)
        call->aux[i] = values(batch.tokens * node->aux_cols[i]);
    for (int backward = 0; backward < 2; backward++)
        work =
            SDP_MAX(work, node->op->work_bytes(node, batch.tokens, batch.sequence_length,
                                               SDP_FP32, backward, false));
    call->work = aligned_alloc(256, sdp_round_up(work + 1, 256));
}

/* The backward call: what the forward call had, and gradients. */
static void gradients(struct bench *b)
{
    float *dweight[SDP_OP_MAX_WEIGHTS];

    memcpy(dweight, b->backward.dweight, sizeof dweight);
    b->backward = b->forward;
    memcpy(b->backward.dweight, dweight, sizeof dweight);
    b->backward.add_dweight = true;
    for (size_t i = 0; i < b->node.output_count; i++)
        b->backward.dout[i] = values(batch.tokens * b->node.output_cols[i]);
    for (size_t i = 0; i < b->node.input_count; i++)
        if (b->forward.in[i])
            b->backward.din[i] = values(batch.tokens * b->node.input_cols[i]);
}

static double best(enum sdp_status (*twin)(const struct sdp_op_call *),
                   const struct sdp_op_call *call)
{
    double least = INFINITY;

    for (int i = 0; i <= REPEATS; i++) { /* the first warms up */
        double since = sdp_now();
        if (twin(call) != SDP_OK)
            exit(1);
        if (i > 0)
            least = fmin(least, sdp_now() - since);
    }
    return least;
}

static double rate(const struct bench *b, bool backward)
{
    return b->node.op->flops(&b->node, batch.tokens, batch.sequence_length, backward) /
           b->seconds[backward] * 1e-9;
}

/* Adds the operation's times and flops to total[0..1] and total[2]. */
static void run(const char *label, struct bench *b, double *total)
{
    const struct sdp_op *op = b->node.op;

    allocate(b);
    gradients(b);
    b->seconds[0] = best(op->forward_cpu, &b->forward);
    b->seconds[1] = best(op->backward_cpu, &b->backward);
    printf("%-12s %9.3f %9.3f %9.1f %9.1f\n", label, 1e3 * b->seconds[0],
           1e3 * b->seconds[1], rate(b, false), rate(b, true));
    for (int backward = 0; backward < 2; backward++) {
        total[backward] += b->seconds[backward];
        total[2] += rate(b, backward) * b->seconds[backward];
    }
}

/* GFLOP/s of a product (tokens, k) x (n, k)^T. */
static double sgemm_rate(size_t n, size_t k)
{
    float *a = values(batch.tokens * k), *b = values(n * k),
          *c = values(batch.tokens * n);
    double least = INFINITY;

    for (int i = 0; i < 20; i++) {
        double since = sdp_now();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)batch.tokens,
                    (blasint)n, (blasint)k, 1.0f, a, (blasint)k, b, (blasint)k, 0.0f, c,
                    (blasint)n);
        least = fmin(least, sdp_now() - since);
    }
    free(a);
    free(b);
    free(c);
    return 2.0 * (double)(batch.tokens * n * k) / least * 1e-9;
}

static void run_block(const size_t *s, double *total)
{
    size_t query = s[HEADS] * s[HEAD_DIM], pair = s[KV_HEADS] * s[HEAD_DIM];
    struct bench *b = start("rmsnorm", s[HIDDEN]);

    weight(b, 1, s[HIDDEN]);
    run("rmsnorm", b, total);
    run("rmsnorm", b, total);
    b = start("linear", s[HIDDEN]);
    weight(b, query + 2 * pair, s[HIDDEN]);
    run("qkv", b, total);
    b = start("rope", query + 2 * pair);
    heads(b, s);
    run("rope", b, total);
    b = start("attention", query + 2 * pair);
    heads(b, s);
    run("attention", b, total);
    b = start("linear", query);
    b->node.input_cols[1] = s[HIDDEN];
    weight(b, s[HIDDEN], query);
    run("o", b, total);
    b = start("linear", s[HIDDEN]);
    weight(b, 2 * s[INTERMEDIATE], s[HIDDEN]);
    run("gate, up", b, total);
    b = start("swiglu", 2 * s[INTERMEDIATE]);
    run("swiglu", b, total);
    b = start("linear", s[INTERMEDIATE]);
    b->node.input_cols[1] = s[HIDDEN];
    weight(b, s[HIDDEN], s[INTERMEDIATE]);
    run("down", b, total);
}

int main(int argc, char **argv)
{
    size_t shape[SHAPES] = {256, 8, 8, 32, 688, 4, 256};
    double total[3] = {0.0}, seconds, large;
    int32_t *positions;

    if (argc != 1 && argc != SHAPES + 1) {
        fprintf(stderr, "usage: bench_ops [HIDDEN HEADS KV_HEADS HEAD_DIM INTERMEDIATE "
                        "SEQUENCES LENGTH]\n");
        return 2;
    }
    for (int i = 1; i < argc; i++)
        shape[i - 1] = (size_t)strtoul(argv[i], NULL, 10);
    batch.sequences = shape[SEQUENCES];
    batch.sequence_length = shape[LENGTH];
    batch.tokens = batch.sequences * batch.sequence_length;
    positions = sdp_xcalloc(batch.tokens, sizeof *positions);
    for (size_t t = 0; t < batch.tokens; t++)
        positions[t] = (int32_t)(t % batch.sequence_length);
    batch.positions = positions;
    openblas_set_num_threads(1);
    large = sgemm_rate(1024, 1024);
    printf("sgemm GFLOP/s: %.1f of 1024 columns and depth, %.1f of the block's qkv\n",
           large,
           sgemm_rate((shape[HEADS] + 2 * shape[KV_HEADS]) * shape[HEAD_DIM],
                      shape[HIDDEN]));
    printf("%-12s %9s %9s %9s %9s\n", "operation", "fwd ms", "bwd ms", "GFLOP/s",
           "GFLOP/s");
    run_block(shape, total);
    seconds = total[0] + total[1];
    printf("%-12s %9.3f %9.3f %9.1f GFLOP/s of both, %.0f %% of sgemm\n", "block",
           1e3 * total[0], 1e3 * total[1], total[2] / seconds,
           100.0 * total[2] / seconds / large);
    return 0;
}
