/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See op_check.h. */
#include "tests/codelets/op_check.h"

#include "tests/codelets/op_fixture.h"
#include "tests/sdp_test.h"

#include <pthread.h>

#define STEP    1e-5 /* of central differences */
#define SAMPLES 4    /* elements of an array that they are taken in */

/* -- comparison --------------------------------------------------------------- */

/* The data's bytes; guards are checked. [new] */
static char *load(const struct op_array *a, const char *label, const char *what)
{
    size_t beside;
    char *bytes = op_array_load(a, &beside);

    sdp_test_checks++;
    if (beside > 0)
        SDP_TEST_FAIL("%s, %s: %zu bytes beside it were written", label, what, beside);
    return bytes;
}

/* got against before (or 0) + wanted; elements wanted as NaN may be anything. */
static void compare(const struct op_array *a, const char *label, const char *what,
                    const double *before, const double *wanted)
{
    char *got = load(a, label, what);
    double error = 0.0, norm = 0.0, worst = 0.0, most = 0.0, off;
    size_t at = 0, size = op_kind_size(a->kind);

    for (size_t i = 0; i < a->count; i++) {
        double want = wanted[i] + (before ? before[i] : 0.0);
        if (isnan(want))
            continue;
        off = fabs(op_array_decode(a->kind, got + i * size) - want);
        error += off * off;
        norm += want * want;
        most = fmax(most, fabs(want));
        if (!(off <= worst)) {
            worst = off;
            at = i;
        }
        if (isnan(off))
            break;
    }
    error = norm > 0.0 ? sqrt(error / norm) : sqrt(error);
    sdp_test_checks++;
    if (!(error <= a->check->tolerance) ||
        !(worst <= 8.0 * a->check->tolerance * fmax(most, 1e-3)))
        SDP_TEST_FAIL("%s, %s: off by %.3e of the norm; [%zu of %zu] is %.9g instead of "
                      "%.9g",
                      label, what, error, at, a->count,
                      op_array_decode(a->kind, got + at * size),
                      wanted[at] + (before ? before[at] : 0.0));
    free(got);
}

static void check_same(const struct op_array *a, const struct op_array *b,
                       const char *label, const char *what)
{
    char *x, *y;

    if (!a->memory || !b->memory)
        return;
    x = load(a, label, what);
    y = load(b, label, what);
    sdp_test_checks++;
    if (memcmp(x, y, op_array_bytes(a)) != 0)
        SDP_TEST_FAIL("%s, %s: other bits in another run", label, what);
    free(x);
    free(y);
}

/* -- checks ------------------------------------------------------------------- */

static enum sdp_status run(const struct sdp_op_call *call, bool cuda, bool backward)
{
    const struct sdp_op *op = call->node->op;

    if (backward && !op->is_loss)
        return cuda ? op->backward_cuda(call) : op->backward_cpu(call);
    return cuda ? op->forward_cuda(call) : op->forward_cpu(call);
}

static void compare_forward(const struct op_fixture *f, const struct op_outputs *o)
{
    const struct sdp_reference *r = &f->reference;

    for (size_t i = 0; i < f->node.output_count; i++)
        compare(&o->out[i], f->label, f->node.op->outputs[i], NULL, r->out[i]);
    for (size_t i = 0; i < f->node.aux_count; i++)
        compare(&o->aux[i], f->label, "aux", NULL, r->aux[i]);
    if (f->node.op->is_loss) {
        compare(&o->loss, f->label, "loss", NULL, &r->loss);
        compare(&o->logits, f->label, "logits", NULL, r->logits);
    }
    free(load(&o->work, f->label, "scratch"));
}

/* A run of weights, with what stands between them unchanged. */
static void compare_weights(const struct op_fixture *f, const struct op_outputs *o,
                            unsigned flags)
{
    for (size_t a = 0; a < SDP_OP_MAX_WEIGHTS; a++) {
        const struct op_array *to = &o->dweight[a];
        double *wanted;
        if (!to->memory)
            continue;
        wanted = sdp_xcalloc(to->count, sizeof *wanted);
        memcpy(wanted, to->value, to->count * sizeof *wanted);
        for (size_t w = 0; w < f->node.weight_count; w++)
            for (size_t i = 0; op_weight_array(f, w) == a && i < op_weight_size(f, w);
                 i++) {
                double *at = &wanted[f->offset[w] + i];
                *at = f->reference.dweight[w][i] + (flags & OP_ADD ? *at : 0.0);
            }
        compare(to, f->label,
                flags & OP_ADD ? "weight gradient, added"
                               : "weight "
                                 "gradient",
                NULL, wanted);
        free(wanted);
    }
}

static void compare_backward(const struct op_fixture *f, const struct op_outputs *o,
                             unsigned flags)
{
    char what[64];

    for (size_t i = 0; i < f->node.input_count && !(flags & OP_WEIGHTS); i++) {
        snprintf(what, sizeof what, "gradient of input %zu%s", i,
                 flags & OP_ADD ? ", added" : "");
        if (o->din[i].memory)
            compare(&o->din[i], f->label, what, flags & OP_ADD ? o->din[i].value : NULL,
                    f->reference.din[i]);
    }
    compare_weights(f, o, flags);
    if (f->node.op->is_loss)
        compare(&o->loss, f->label, "loss", NULL, &f->reference.loss);
    free(load(&o->work, f->label, "scratch"));
}

static void check_same_outputs(const struct op_fixture *f, const struct op_outputs *a,
                               const struct op_outputs *b)
{
    for (size_t i = 0; i < SDP_OP_MAX_OUTPUTS; i++) {
        check_same(&a->out[i], &b->out[i], f->label, "output");
        check_same(&a->aux[i], &b->aux[i], f->label, "aux");
    }
    check_same(&a->loss, &b->loss, f->label, "loss");
}

static void check_same_gradients(const struct op_fixture *f, const struct op_outputs *a,
                                 const struct op_outputs *b)
{
    for (size_t i = 0; i < SDP_OP_MAX_INPUTS; i++)
        check_same(&a->din[i], &b->din[i], f->label, "input gradient");
    for (size_t w = 0; w < SDP_OP_MAX_WEIGHTS; w++)
        check_same(&a->dweight[w], &b->dweight[w], f->label, "weight gradient");
}

/* Central differences of the reference: sum of dout * out, or the scaled loss. */
static double objective(struct op_fixture *f)
{
    struct sdp_reference *r = &f->reference;
    double sum = 0.0;

    f->reference_op->forward(r);
    if (f->node.op->is_loss)
        return r->loss * r->loss_scale;
    for (size_t o = 0; o < f->node.output_count; o++)
        for (size_t i = 0; i < f->dout[o].count; i++)
            sum += r->dout[o][i] * r->out[o][i];
    return sum;
}

static void check_differences(struct op_fixture *f, double *x, const double *gradient,
                              size_t count, const char *what)
{
    double most = 1.0;

    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs(gradient[i]));
    for (size_t s = 0; s < SAMPLES; s++) {
        size_t i = (size_t)(sdp_random_u64(14, op_array_drawn++) % count);
        double was = x[i], up, down;
        x[i] = was + STEP;
        up = objective(f);
        x[i] = was - STEP;
        down = objective(f);
        x[i] = was;
        sdp_test_checks++;
        if (!(fabs((up - down) / (2.0 * STEP) - gradient[i]) <= 1e-5 * most))
            SDP_TEST_FAIL("%s: reference gradient of %s [%zu] is %.9g, differences give "
                          "%.9g",
                          f->label, what, i, gradient[i], (up - down) / (2.0 * STEP));
    }
    objective(f);
}

static void check_reference(struct op_fixture *f)
{
    struct sdp_reference *r = &f->reference;

    for (size_t i = 0; i < f->node.input_count; i++)
        if (r->in[i])
            check_differences(f, r->in[i], r->din[i], f->in[i].count, "an input");
    for (size_t w = 0; w < f->node.weight_count; w++)
        check_differences(f, r->weight[w], r->dweight[w], op_weight_size(f, w),
                          "a weight");
}

/* The gradient of input i goes where dout is. */
static void check_shared(struct op_fixture *f, const struct op_outputs *forward,
                         struct op_outputs *o, size_t i, bool passthrough)
{
    struct sdp_op_call call;
    struct op_array *dout = &f->dout[0];

    op_prepare_backward(f, o, 0, 0);
    call = op_backward_call(f, forward, o, 0);
    call.din[i] = op_array_data(dout);
    CHECK_EQ(run(&call, f->check->cuda, true), SDP_OK);
    compare(dout, f->label,
            passthrough ? "dout, which is not to be written"
                        : "gradient in the place of dout",
            NULL, passthrough ? dout->value : f->reference.din[i]);
    for (size_t k = 0; k < f->node.input_count; k++)
        if (k != i && o->din[k].memory)
            compare(&o->din[k], f->label, "gradient beside one in dout", NULL,
                    f->reference.din[k]);
    compare_weights(f, o, 0);
    op_array_store(dout);
}

static void check_backward(struct op_fixture *f, const struct op_outputs *forward,
                           struct op_outputs *first, struct op_outputs *second)
{
    static const unsigned ways[] = {0, OP_ADD, OP_WEIGHTS};
    int through = f->node.op->passthrough_input(&f->node);

    for (size_t w = 0; w < SDP_COUNT_OF(ways); w++) {
        struct op_outputs *both[] = {first, second};
        for (size_t k = 0; k < 2; k++) {
            struct sdp_op_call call;
            op_prepare_backward(f, both[k], ways[w], k ? 0x3c : 0xff);
            call = op_backward_call(f, forward, both[k], ways[w]);
            CHECK_EQ(run(&call, f->check->cuda, true), SDP_OK);
        }
        compare_backward(f, first, ways[w]);
        check_same_gradients(f, first, second);
    }
    if (through >= 0)
        check_shared(f, forward, second, (size_t)through, true);
    if (f->test->in_place)
        check_shared(f, forward, second, 0, false);
}

struct thread {
    struct sdp_op_call forward, backward;
    bool failed;
};

static void *run_thread(void *argument)
{
    struct thread *thread = argument;

    for (int i = 0; i < 3 && !thread->failed; i++)
        thread->failed = run(&thread->forward, false, false) != SDP_OK ||
                         run(&thread->backward, false, true) != SDP_OK;
    return NULL;
}

/* Two threads at a time make what one made. */
static void check_threads(struct op_fixture *f, const struct op_outputs *alone)
{
    struct op_outputs o[2] = {op_outputs_new(f), op_outputs_new(f)};
    struct thread threads[2] = {{.failed = false}, {.failed = false}};
    pthread_t id;

    for (size_t k = 0; k < 2; k++) {
        op_prepare_forward(&o[k], 0xff);
        op_prepare_backward(f, &o[k], 0, 0xff);
        threads[k].forward = op_forward_call(f, &o[k]);
        threads[k].backward = op_backward_call(f, &o[k], &o[k], 0);
    }
    REQUIRE(pthread_create(&id, NULL, run_thread, &threads[0]) == 0);
    run_thread(&threads[1]);
    REQUIRE(pthread_join(id, NULL) == 0);
    for (size_t k = 0; k < 2; k++) {
        CHECK(!threads[k].failed);
        check_same_outputs(f, alone, &o[k]);
        check_same_gradients(f, alone, &o[k]);
        op_outputs_destroy(&o[k]);
    }
}

static void check_fixture(struct op_fixture *f)
{
    struct op_outputs first = op_outputs_new(f), second = op_outputs_new(f);
    struct sdp_op_call call;

    op_prepare_forward(&first, 0xff);
    call = op_forward_call(f, &first);
    CHECK_EQ(run(&call, f->check->cuda, false), SDP_OK);
    compare_forward(f, &first);
    op_prepare_forward(&second, 0x3c);
    call = op_forward_call(f, &second);
    CHECK_EQ(run(&call, f->check->cuda, false), SDP_OK);
    check_same_outputs(f, &first, &second);
    check_same(&first.logits, &second.logits, f->label, "logits");
    check_backward(f, &first, &first, &second);
    if (!f->check->cuda) {
        op_prepare_backward(f, &first, 0, 0xff);
        call = op_backward_call(f, &first, &first, 0);
        CHECK_EQ(run(&call, false, true), SDP_OK);
        check_threads(f, &first);
    }
    op_outputs_destroy(&first);
    op_outputs_destroy(&second);
}

static void check_case(const struct sdp_op_check *check, const struct sdp_op *op,
                       const struct sdp_op_case *test)
{
    struct op_fixture f;

    op_fixture_make(&f, check, op, test);
    if (check->dtype == SDP_FP32 && !check->cuda)
        check_reference(&f);
    check_fixture(&f);
    op_fixture_destroy(&f);
}

static const struct sdp_op_cases *cases_of(const struct sdp_op *op)
{
    for (size_t i = 0; sdp_op_case_tables[i]; i++)
        if (strcmp(sdp_op_case_tables[i]->op, op->name) == 0)
            return sdp_op_case_tables[i];
    return NULL;
}

int sdp_op_check_all(const struct sdp_op_check *check)
{
    for (size_t i = 0; sdp_ops[i]; i++) {
        const struct sdp_op_cases *table = cases_of(sdp_ops[i]);
        sdp_test_checks++;
        if (!table || !sdp_reference_find(sdp_ops[i]->name)) {
            SDP_TEST_FAIL("%s has no cases.c or no reference", sdp_ops[i]->name);
            continue;
        }
        for (size_t k = 0; k < table->count; k++)
            check_case(check, sdp_ops[i], &table->cases[k]);
    }
    return sdp_test_end();
}
