/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See op_fixture.h. */
#include "tests/codelets/op_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#define GAP 128 /* each weight starts at a multiple of so many elements */

size_t op_weight_size(const struct op_fixture *f, size_t w)
{
    return f->node.weight_rows[w] * f->node.weight_cols[w];
}

size_t op_weight_array(const struct op_fixture *f, size_t w)
{
    return f->test->apart ? w : 0;
}

static void set_attr(struct sdp_op_node *node, const char *name, double value)
{
    for (size_t a = 0; node->op->attrs && node->op->attrs[a].name; a++) {
        if (strcmp(node->op->attrs[a].name, name) == 0) {
            node->attr[a] = value;
            return;
        }
    }
    fprintf(stderr, "%s has no attribute \"%s\"\n", node->op->name, name);
    exit(1);
}

static void make_node(struct op_fixture *f, const struct sdp_op *op)
{
    const struct sdp_op_case *test = f->test;
    struct sdp_op_node *node = &f->node;
    struct sdp_error err = SDP_ERROR_INIT;

    node->op = op;
    node->name = (char *)test->label;
    for (size_t i = 0; op->inputs[i]; i++) {
        if (op->inputs[i][0] == '#')
            continue;
        node->input_cols[node->input_count] = test->inputs[node->input_count];
        node->input_count++;
    }
    while (op->outputs[node->output_count])
        node->output_count++;
    for (size_t w = 0; w < SDP_OP_MAX_WEIGHTS && test->weights[w].rows; w++) {
        node->weight_role[w] = test->weights[w].role;
        node->weight_rows[w] = test->weights[w].rows;
        node->weight_cols[w] = test->weights[w].cols;
        node->weight_count++;
    }
    for (size_t a = 0; op->attrs && op->attrs[a].name; a++)
        node->attr[a] = op->attrs[a].fallback;
    for (size_t a = 0; a < SDP_OP_CASE_ATTRS && test->attrs[a].name; a++)
        set_attr(node, test->attrs[a].name, test->attrs[a].value);
    if (op->infer(node, &err) == SDP_OK)
        return;
    fprintf(stderr, "%s \"%s\": %s\n", op->name, test->label, err.text);
    exit(1);
}

/* Tokens by id, then by index; returns the number of runs. */
static size_t group(const int32_t *ids, size_t tokens, int32_t vocabulary, int32_t *order,
                    int32_t *segments)
{
    size_t runs = 0, at = 0;

    for (int32_t id = 0; id < vocabulary; id++) {
        size_t first = at;
        for (size_t t = 0; t < tokens; t++)
            if (ids[t] == id)
                order[at++] = (int32_t)t;
        if (at > first)
            segments[runs++] = (int32_t)first;
    }
    segments[runs] = (int32_t)at;
    return runs;
}

#define DOCUMENT 40 /* tokens of one, on average */

/* Ids and targets below the first weight's rows, some targets not counted; a document
 * that ends within the first sequence. */
static void draw_indices(struct op_fixture *f, int32_t *ids, size_t tokens)
{
    uint64_t rows = SDP_MAX(f->node.weight_rows[0], (size_t)1);
    int32_t *targets = ids + tokens, *positions = ids + 2 * tokens;
    size_t length = f->test->length, document = length - length / 3;

    for (size_t t = 0; t < tokens; t++) {
        ids[t] = (int32_t)(sdp_random_u64(12, op_array_drawn++) % rows);
        targets[t] = (int32_t)(sdp_random_u64(13, op_array_drawn++) % rows);
        targets[t] = t % 5 == 2 ? -1 : targets[t];
        positions[t] = (int32_t)(t < length ? t % document : t % length);
    }
    for (size_t t = 0; f->test->documents && t < tokens; t++) {
        bool begins = t % length == 0 || sdp_random_u64(14, op_array_drawn++) % DOCUMENT == 0;
        positions[t] = begins ? 0 : positions[t - 1] + 1;
    }
    targets[0] = (int32_t)rows - 1;
    if (tokens > 1)
        targets[1] = 0;
}

static struct sdp_op_batch batch_at(const struct op_fixture *f, const int32_t *at,
                                    size_t runs)
{
    size_t tokens = f->test->sequences * f->test->length;

    return (struct sdp_op_batch){.tokens = tokens,
                                 .sequences = f->test->sequences,
                                 .sequence_length = f->test->length,
                                 .ids = at,
                                 .targets = at + tokens,
                                 .positions = at + 2 * tokens,
                                 .packed = f->test->documents,
                                 .order = at + 3 * tokens,
                                 .segments = at + 4 * tokens,
                                 .segment_count = runs};
}

static void make_batch(struct op_fixture *f)
{
    size_t tokens = f->test->sequences * f->test->length, count = 5 * tokens + 1, runs;
    int32_t *at = sdp_xcalloc(count, sizeof *at);

    draw_indices(f, at, tokens);
    runs = group(at, tokens, SDP_MAX((int32_t)f->node.weight_rows[0], 1), at + 3 * tokens,
                 at + 4 * tokens);
    f->indices = op_array_new(f->check, OP_INT32, count);
    for (size_t i = 0; i < count; i++)
        f->indices.value[i] = (double)at[i];
    op_array_store(&f->indices);
    f->host_indices = at;
    f->host_batch = batch_at(f, at, runs);
    f->batch = batch_at(f, op_array_data(&f->indices), runs);
}

/* Weights or their gradients: one run, or each its own. */
static void make_weights(struct op_fixture *f, enum op_kind kind, struct op_array *to)
{
    size_t last = f->node.weight_count;

    for (size_t w = 0; w < last && f->test->apart; w++)
        to[w] = op_array_new(f->check, kind, op_weight_size(f, w));
    if (last > 0 && !f->test->apart)
        to[0] = op_array_new(f->check, kind,
                             f->offset[last - 1] + op_weight_size(f, last - 1));
}

static void make_inputs(struct op_fixture *f)
{
    size_t tokens = f->batch.tokens, end = 0;
    enum op_kind kind = op_kind_of(f->check->dtype);

    for (size_t w = 0; w < f->node.weight_count && !f->test->apart; w++) {
        f->offset[w] = sdp_round_up(end, GAP);
        end = f->offset[w] + op_weight_size(f, w);
    }
    make_weights(f, kind, f->weight);
    for (size_t w = 0; w < SDP_OP_MAX_WEIGHTS; w++)
        if (f->weight[w].memory)
            op_array_random(&f->weight[w]);
    for (size_t i = 0; i < f->node.input_count; i++) {
        if (f->node.input_cols[i] == 0)
            continue;
        f->in[i] = op_array_new(f->check, kind, tokens * f->node.input_cols[i]);
        op_array_random(&f->in[i]);
    }
    for (size_t o = 0; o < f->node.output_count; o++) {
        f->dout[o] = op_array_new(f->check, kind, tokens * f->node.output_cols[o]);
        op_array_random(&f->dout[o]);
    }
}

static void make_reference(struct op_fixture *f)
{
    struct sdp_reference *r = &f->reference;
    size_t tokens = f->batch.tokens;

    r->node = &f->node;
    r->batch = &f->host_batch;
    r->loss_scale = OP_LOSS_SCALE;
    for (size_t i = 0; i < f->node.input_count; i++) {
        r->in[i] = f->in[i].value;
        r->din[i] = f->in[i].value ? sdp_xcalloc(f->in[i].count, sizeof(double)) : NULL;
    }
    for (size_t w = 0; w < f->node.weight_count; w++) {
        r->weight[w] = f->weight[op_weight_array(f, w)].value + f->offset[w];
        r->dweight[w] = sdp_xcalloc(op_weight_size(f, w), sizeof(double));
    }
    for (size_t o = 0; o < f->node.output_count; o++) {
        r->dout[o] = f->dout[o].value;
        r->out[o] = sdp_xcalloc(f->dout[o].count, sizeof(double));
    }
    for (size_t a = 0; a < f->node.aux_count; a++)
        r->aux[a] = sdp_xcalloc(tokens * f->node.aux_cols[a], sizeof(double));
    if (f->node.op->is_loss)
        r->logits = sdp_xcalloc(tokens * f->node.weight_rows[0], sizeof(double));
    f->reference_op->forward(r);
    f->reference_op->backward(r);
}

void op_fixture_make(struct op_fixture *f, const struct sdp_op_check *check,
                     const struct sdp_op *op, const struct sdp_op_case *test)
{
    op_array_drawn = 0;
    *f = (struct op_fixture){.check = check, .test = test};
    f->label =
        sdp_xprintf("%s %s \"%s\"", op->name, sdp_dtype_name(check->dtype), test->label);
    f->reference_op = sdp_reference_find(op->name);
    make_node(f, op);
    make_batch(f);
    make_inputs(f);
    make_reference(f);
}

void op_fixture_destroy(struct op_fixture *f)
{
    for (size_t i = 0; i < SDP_OP_MAX_INPUTS; i++) {
        op_array_destroy(&f->in[i]);
        free(f->reference.din[i]);
    }
    for (size_t w = 0; w < SDP_OP_MAX_WEIGHTS; w++) {
        op_array_destroy(&f->weight[w]);
        free(f->reference.dweight[w]);
    }
    for (size_t o = 0; o < SDP_OP_MAX_OUTPUTS; o++) {
        op_array_destroy(&f->dout[o]);
        free(f->reference.out[o]);
        free(f->reference.aux[o]);
    }
    op_array_destroy(&f->indices);
    free(f->reference.logits);
    free(f->host_indices);
    free(f->label);
}

/* -- outputs ------------------------------------------------------------------ */

struct op_outputs op_outputs_new(struct op_fixture *f)
{
    const struct sdp_op_check *check = f->check;
    const struct sdp_op_node *node = &f->node;
    enum op_kind kind = op_kind_of(check->dtype);
    struct op_outputs o = {0};
    size_t tokens = f->batch.tokens, work = 0;

    for (size_t i = 0; i < node->output_count; i++)
        o.out[i] = op_array_new(check, kind, tokens * node->output_cols[i]);
    for (size_t i = 0; i < node->aux_count; i++)
        o.aux[i] = op_array_new(check, OP_FP32, tokens * node->aux_cols[i]);
    for (size_t i = 0; i < node->input_count; i++)
        if (node->input_cols[i])
            o.din[i] = op_array_new(check, kind, tokens * node->input_cols[i]);
    make_weights(f, OP_FP32, o.dweight);
    for (int backward = 0; backward < 2; backward++)
        work = SDP_MAX(work, node->op->work_bytes(node, tokens, f->batch.sequence_length,
                                                  check->dtype, backward, check->cuda));
    o.work = op_array_new(check, OP_FP32, (work + 3) / 4);
    if (node->op->is_loss) {
        o.loss = op_array_new(check, OP_FP64, 1);
        o.logits = op_array_new(check, OP_FP32, tokens * node->weight_rows[0]);
    }
    return o;
}

void op_outputs_destroy(struct op_outputs *o)
{
    for (size_t i = 0; i < SDP_OP_MAX_OUTPUTS; i++) {
        op_array_destroy(&o->out[i]);
        op_array_destroy(&o->aux[i]);
    }
    for (size_t i = 0; i < SDP_OP_MAX_INPUTS; i++)
        op_array_destroy(&o->din[i]);
    for (size_t w = 0; w < SDP_OP_MAX_WEIGHTS; w++)
        op_array_destroy(&o->dweight[w]);
    op_array_destroy(&o->work);
    op_array_destroy(&o->loss);
    op_array_destroy(&o->logits);
}

void op_prepare_forward(struct op_outputs *o, int scratch)
{
    for (size_t i = 0; i < SDP_OP_MAX_OUTPUTS; i++) {
        if (o->out[i].memory)
            op_array_poison(&o->out[i]);
        if (o->aux[i].memory)
            op_array_poison(&o->aux[i]);
    }
    if (o->loss.memory) {
        op_array_poison(&o->loss);
        op_array_poison(&o->logits);
    }
    op_array_fill_bytes(&o->work, scratch);
}

void op_prepare_backward(const struct op_fixture *f, struct op_outputs *o, unsigned flags,
                         int scratch)
{
    uint64_t before = op_array_drawn;

    op_array_drawn = 1u << 20; /* the same values each time */
    for (size_t i = 0; i < SDP_OP_MAX_INPUTS; i++) {
        if (!o->din[i].memory)
            continue;
        op_array_random(&o->din[i]);
        if (!(flags & OP_ADD))
            op_array_poison(&o->din[i]);
    }
    for (size_t w = 0; w < SDP_OP_MAX_WEIGHTS; w++)
        if (o->dweight[w].memory)
            op_array_random(&o->dweight[w]);
    for (size_t w = 0; w < f->node.weight_count && !(flags & OP_ADD); w++) {
        struct op_array *a = &o->dweight[op_weight_array(f, w)];
        for (size_t i = 0; i < op_weight_size(f, w); i++)
            a->value[f->offset[w] + i] = NAN;
        op_array_store(a);
    }
    if (o->loss.memory)
        op_array_poison(&o->loss);
    op_array_fill_bytes(&o->work, scratch);
    op_array_drawn = before;
}

struct sdp_op_call op_forward_call(const struct op_fixture *f, const struct op_outputs *o)
{
    struct sdp_op_call call = {.node = &f->node,
                               .batch = &f->batch,
                               .device = f->check->device,
                               .dtype = f->check->dtype,
                               .work = op_array_data(&o->work),
                               .loss = op_array_data(&o->loss),
                               .logits = op_array_data(&o->logits),
                               .loss_scale = (float)OP_LOSS_SCALE};

    for (size_t i = 0; i < f->node.input_count; i++)
        call.in[i] = op_array_data(&f->in[i]);
    for (size_t w = 0; w < f->node.weight_count; w++)
        call.weight[w] = op_array_at(&f->weight[op_weight_array(f, w)], f->offset[w]);
    for (size_t i = 0; i < f->node.output_count; i++)
        call.out[i] = op_array_data(&o->out[i]);
    for (size_t i = 0; i < f->node.aux_count; i++)
        call.aux[i] = op_array_data(&o->aux[i]);
    return call;
}

static void withhold(const struct op_fixture *f, struct sdp_op_call *call)
{
    unsigned needs = f->node.op->backward_needs(&f->node);

    for (size_t i = 0; i < f->node.input_count; i++)
        if (!(needs & SDP_NEED_IN(i)))
            call->in[i] = NULL;
    for (size_t i = 0; i < SDP_OP_MAX_OUTPUTS; i++) {
        if (!(needs & SDP_NEED_OUT(i)))
            call->out[i] = NULL;
        if (!(needs & SDP_NEED_AUX(i)))
            call->aux[i] = NULL;
    }
    for (size_t w = 0; w < f->node.weight_count && !f->node.op->backward_needs_weights;
         w++)
        call->weight[w] = NULL;
}

struct sdp_op_call op_backward_call(const struct op_fixture *f,
                                    const struct op_outputs *forward,
                                    const struct op_outputs *o, unsigned flags)
{
    struct sdp_op_call call = op_forward_call(f, forward);

    call.work = op_array_data(&o->work);
    call.loss = op_array_data(&o->loss);
    call.logits = NULL;
    call.want_gradient = true;
    call.add_dweight = flags & OP_ADD;
    withhold(f, &call);
    for (size_t i = 0; i < f->node.output_count; i++)
        call.dout[i] = op_array_data(&f->dout[i]);
    for (size_t i = 0; i < f->node.input_count && !(flags & OP_WEIGHTS); i++) {
        call.din[i] = op_array_data(&o->din[i]);
        call.add_din[i] = flags & OP_ADD;
    }
    for (size_t w = 0; w < f->node.weight_count; w++)
        call.dweight[w] = op_array_at(&o->dweight[op_weight_array(f, w)], f->offset[w]);
    return call;
}
