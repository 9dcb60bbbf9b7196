/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The CPU twins of add, embedding, linear, rmsnorm, rope and swiglu against plain
 * references in double: forward element by element, backward by central differences of
 * the reference. Every output is NaN before the call, so that one left out shows; then
 * once more with what is added to. What backward does not declare as needed is not there.
 */
#include "codelets/common/vector_math.h"
#include "codelets/ops/rope/frequencies.h"
#include "tests/sdp_test.h"

#define STEP      1e-5
#define TOLERANCE 2e-5

struct test;
typedef void (*reference_of)(const struct test *test, double *const *in,
                             double *const *weight, double *out);

/* One op on one shape. */
struct test {
    const char *label;
    struct sdp_op_node node;
    struct sdp_op_batch batch;
    reference_of reference;
    bool one_block; /* weights lie in one run of memory, as do their gradients */
    float *in[SDP_OP_MAX_INPUTS], *weight[SDP_OP_MAX_WEIGHTS], *out, *aux, *dout;
    double *dbl_in[SDP_OP_MAX_INPUTS], *dbl_weight[SDP_OP_MAX_WEIGHTS];
    double *grad_in[SDP_OP_MAX_INPUTS], *grad_weight[SDP_OP_MAX_WEIGHTS];
};

/* -- set-up ------------------------------------------------------------------- */

static uint64_t drawn;

static float draw(void)
{
    return sdp_random_normal(7, drawn++);
}

static float *random_floats(size_t count)
{
    float *x = sdp_xcalloc(count, sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = draw();
    return x;
}

static void poison(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = NAN;
}

static double *to_double(const float *x, size_t count)
{
    double *y = sdp_xcalloc(count, sizeof *y);
    for (size_t i = 0; i < count; i++)
        y[i] = (double)x[i];
    return y;
}

static struct test *new_test(const char *label, const char *op, size_t tokens,
                             reference_of reference)
{
    struct test *t = sdp_xcalloc(1, sizeof *t);
    t->label = label;
    t->reference = reference;
    t->node.op = sdp_op_find(op);
    REQUIRE(t->node.op);
    for (size_t i = 0; t->node.op->inputs[i]; i++)
        t->node.input_count++;
    t->node.output_count = 1;
    for (size_t a = 0; t->node.op->attrs && t->node.op->attrs[a].name; a++)
        t->node.attr[a] = t->node.op->attrs[a].fallback;
    t->batch.tokens = t->batch.sequence_length = tokens;
    t->batch.sequences = 1;
    return t;
}

static void set_attr(struct test *t, const char *name, double value)
{
    for (size_t a = 0; t->node.op->attrs[a].name; a++) {
        if (strcmp(t->node.op->attrs[a].name, name) == 0) {
            t->node.attr[a] = value;
            return;
        }
    }
    REQUIRE(!"attribute");
}

static void add_weight(struct test *t, unsigned role, size_t rows, size_t cols)
{
    size_t w = t->node.weight_count++;
    t->node.weight_role[w] = role;
    t->node.weight_rows[w] = rows;
    t->node.weight_cols[w] = cols;
}

static size_t weight_size(const struct test *t, size_t w)
{
    return t->node.weight_rows[w] * t->node.weight_cols[w];
}

static size_t in_size(const struct test *t, size_t i)
{
    return t->batch.tokens * t->node.input_cols[i];
}

static size_t out_size(const struct test *t)
{
    return t->batch.tokens * t->node.output_cols[0];
}

static size_t aux_size(const struct test *t)
{
    return t->node.aux_count ? t->batch.tokens * t->node.aux_cols[0] : 0;
}

/* Memory for the weights or their gradients, in one run or each its own. */
static void new_weights(const struct test *t, float **weight)
{
    size_t total = 0, at = 0;
    float *block;
    for (size_t w = 0; w < t->node.weight_count; w++)
        total += weight_size(t, w);
    block = t->one_block ? random_floats(total) : NULL;
    for (size_t w = 0; w < t->node.weight_count; w++) {
        weight[w] = t->one_block ? block + at : random_floats(weight_size(t, w));
        at += weight_size(t, w);
    }
}

static void free_weights(const struct test *t, float **weight)
{
    for (size_t w = 0; w < t->node.weight_count && (w == 0 || !t->one_block); w++)
        free(weight[w]);
}

/* After the node is set: infers it and makes inputs, weights and outputs. */
static void make(struct test *t)
{
    struct sdp_error err = SDP_ERROR_INIT;
    REQUIRE_OK(t->node.op->infer(&t->node, &err), &err);
    CHECK_EQ(t->node.op->work_bytes(&t->node, t->batch.tokens, t->batch.sequence_length,
                                    SDP_FP32, true, false),
             0);
    for (size_t i = 0; i < t->node.input_count; i++) {
        if (t->node.input_cols[i] == 0)
            continue;
        t->in[i] = random_floats(in_size(t, i));
        t->dbl_in[i] = to_double(t->in[i], in_size(t, i));
    }
    new_weights(t, t->weight);
    for (size_t w = 0; w < t->node.weight_count; w++)
        t->dbl_weight[w] = to_double(t->weight[w], weight_size(t, w));
    t->out = random_floats(out_size(t));
    t->dout = random_floats(out_size(t));
    t->aux = random_floats(aux_size(t));
}

static void destroy(struct test *t)
{
    for (size_t i = 0; i < SDP_OP_MAX_INPUTS; i++) {
        free(t->in[i]);
        free(t->dbl_in[i]);
        free(t->grad_in[i]);
    }
    free_weights(t, t->weight);
    for (size_t w = 0; w < SDP_OP_MAX_WEIGHTS; w++) {
        free(t->dbl_weight[w]);
        free(t->grad_weight[w]);
    }
    free(t->out);
    free(t->dout);
    free(t->aux);
    free(t);
}

/* -- comparison --------------------------------------------------------------- */

/* got must be before (or 0) + wanted. */
static void compare(const struct test *t, const char *what, const float *got,
                    const float *before, const double *wanted, size_t count)
{
    double scale = 1.0, worst = -1.0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        scale = fmax(scale, fabs(wanted[i]));
    for (size_t i = 0; i < count; i++) {
        double error =
            fabs((double)got[i] - (before ? (double)before[i] : 0.0) - wanted[i]);
        if (!(error <= worst)) { /* NaN stays the worst */
            worst = error;
            at = i;
        }
        if (isnan(error))
            break;
    }
    sdp_test_checks++;
    if (count && !(worst <= TOLERANCE * scale))
        SDP_TEST_FAIL("%s %s, %s [%zu of %zu]: %.9g%s instead of %.9g", t->node.op->name,
                      t->label, what, at, count, (double)got[at],
                      before ? " with what was there" : "", wanted[at]);
}

static void check_same(const struct test *t, const char *what, const float *got,
                       const float *wanted, size_t count)
{
    sdp_test_checks++;
    if (memcmp(got, wanted, count * sizeof *got) != 0)
        SDP_TEST_FAIL("%s %s, %s: other bits", t->node.op->name, t->label, what);
}

/* Sum of dout * out of the reference. */
static double weighed(const struct test *t, double *scratch)
{
    double sum = 0.0;
    t->reference(t, t->dbl_in, t->dbl_weight, scratch);
    for (size_t i = 0; i < out_size(t); i++)
        sum += (double)t->dout[i] * scratch[i];
    return sum;
}

/* Gradient of weighed() in the count elements at x. [new] */
static double *differences(const struct test *t, double *x, size_t count, double *scratch)
{
    double *gradient = sdp_xcalloc(count, sizeof *gradient);
    for (size_t i = 0; i < count; i++) {
        double before = x[i], up, down;
        x[i] = before + STEP;
        up = weighed(t, scratch);
        x[i] = before - STEP;
        down = weighed(t, scratch);
        x[i] = before;
        gradient[i] = (up - down) / (2.0 * STEP);
    }
    return gradient;
}

/* -- running ------------------------------------------------------------------ */

static struct sdp_op_call call_of(const struct test *t)
{
    struct sdp_op_call call = {.node = &t->node, .batch = &t->batch, .dtype = SDP_FP32};
    for (size_t i = 0; i < t->node.input_count; i++)
        call.in[i] = t->in[i];
    for (size_t w = 0; w < t->node.weight_count; w++)
        call.weight[w] = t->weight[w];
    call.out[0] = t->out;
    call.aux[0] = t->node.aux_count ? t->aux : NULL;
    return call;
}

static struct sdp_op_call backward_call_of(const struct test *t)
{
    struct sdp_op_call call = call_of(t);
    unsigned needs = t->node.op->backward_needs(&t->node);
    for (size_t i = 0; i < t->node.input_count; i++)
        if (!(needs & SDP_NEED_IN(i)))
            call.in[i] = NULL;
    if (!(needs & SDP_NEED_OUT(0)))
        call.out[0] = NULL;
    if (!(needs & SDP_NEED_AUX(0)))
        call.aux[0] = NULL;
    for (size_t w = 0; w < t->node.weight_count && !t->node.op->backward_needs_weights;
         w++)
        call.weight[w] = NULL;
    call.dout[0] = t->dout;
    return call;
}

static void check_forward(const struct test *t, double *scratch)
{
    struct sdp_op_call call = call_of(t);
    poison(t->out, out_size(t));
    poison(t->aux, aux_size(t));
    CHECK_EQ(t->node.op->forward_cpu(&call), SDP_OK);
    t->reference(t, t->dbl_in, t->dbl_weight, scratch);
    compare(t, "out", t->out, NULL, scratch, out_size(t));
    for (size_t i = 0; i < aux_size(t); i++)
        CHECK(isfinite(t->aux[i]));
}

static float *copy_of(const float *x, size_t count)
{
    float *y = sdp_xcalloc(count, sizeof *y);
    memcpy(y, x, count * sizeof *y);
    return y;
}

/* One backward call that overwrites or adds; without_inputs: gradients of weights only.
 */
static void check_backward(const struct test *t, bool add, bool without_inputs)
{
    struct sdp_op_call call = backward_call_of(t);
    float *before_in[SDP_OP_MAX_INPUTS] = {NULL},
          *before_weight[SDP_OP_MAX_WEIGHTS] = {NULL};

    call.add_dweight = add;
    new_weights(t, call.dweight);
    for (size_t w = 0; w < t->node.weight_count; w++) {
        if (!add)
            poison(call.dweight[w], weight_size(t, w));
        before_weight[w] = copy_of(call.dweight[w], weight_size(t, w));
    }
    for (size_t i = 0; i < t->node.input_count; i++) {
        if (!t->in[i] || without_inputs)
            continue;
        call.din[i] = random_floats(in_size(t, i));
        call.add_din[i] = add;
        if (!add)
            poison(call.din[i], in_size(t, i));
        before_in[i] = copy_of(call.din[i], in_size(t, i));
    }
    CHECK_EQ(t->node.op->backward_cpu(&call), SDP_OK);
    for (size_t w = 0; w < t->node.weight_count; w++) {
        compare(t, t->node.op->weights[t->node.weight_role[w]].name, call.dweight[w],
                add ? before_weight[w] : NULL, t->grad_weight[w], weight_size(t, w));
        free(before_weight[w]);
    }
    for (size_t i = 0; i < t->node.input_count; i++) {
        if (call.din[i])
            compare(t, t->node.op->inputs[i], call.din[i], add ? before_in[i] : NULL,
                    t->grad_in[i], in_size(t, i));
        free(before_in[i]);
        free(call.din[i]);
    }
    free_weights(t, call.dweight);
}

/* The gradient of input i goes where dout is: a residual's is not written, another op
 * replaces dout by it. */
static void check_shared(const struct test *t, size_t i, bool is_passthrough)
{
    struct sdp_op_call call = backward_call_of(t);
    float *dout = copy_of(t->dout, out_size(t));

    new_weights(t, call.dweight);
    for (size_t k = 0; k < t->node.input_count; k++)
        if (t->in[k] && k != i)
            call.din[k] = random_floats(in_size(t, k));
    call.dout[0] = call.din[i] = dout;
    CHECK_EQ(t->node.op->backward_cpu(&call), SDP_OK);
    if (is_passthrough)
        check_same(t, "dout", dout, t->dout, out_size(t));
    for (size_t k = 0; k < t->node.input_count; k++)
        if (call.din[k])
            compare(t, "input gradient beside or in dout", call.din[k], NULL,
                    t->grad_in[k], in_size(t, k));
    for (size_t w = 0; w < t->node.weight_count; w++)
        compare(t, "weight gradient", call.dweight[w], NULL, t->grad_weight[w],
                weight_size(t, w));
    for (size_t k = 0; k < t->node.input_count; k++)
        free(call.din[k]);
    free_weights(t, call.dweight);
}

static void run(struct test *t)
{
    double *scratch;
    int through;
    make(t);
    through = t->node.op->passthrough_input(&t->node);
    scratch = sdp_xcalloc(out_size(t), sizeof *scratch);
    check_forward(t, scratch);
    for (size_t i = 0; i < t->node.input_count; i++)
        if (t->in[i])
            t->grad_in[i] = differences(t, t->dbl_in[i], in_size(t, i), scratch);
    for (size_t w = 0; w < t->node.weight_count; w++)
        t->grad_weight[w] = differences(t, t->dbl_weight[w], weight_size(t, w), scratch);
    check_backward(t, false, false);
    check_backward(t, true, false);
    check_backward(t, false, true);
    if (through >= 0)
        check_shared(t, (size_t)through, true);
    if (strcmp(t->node.op->name, "rope") == 0)
        check_shared(t, 0, false);
    free(scratch);
    destroy(t);
}

/* -- add, swiglu, rmsnorm ------------------------------------------------------- */

static void add_reference(const struct test *t, double *const *in, double *const *weight,
                          double *out)
{
    (void)weight;
    for (size_t i = 0; i < out_size(t); i++)
        out[i] = in[0][i] + in[1][i];
}

static void swiglu_reference(const struct test *t, double *const *in,
                             double *const *weight, double *out)
{
    size_t cols = t->node.output_cols[0];
    (void)weight;
    for (size_t r = 0; r < t->batch.tokens; r++) {
        for (size_t c = 0; c < cols; c++) {
            double gate = in[0][r * 2 * cols + c];
            out[r * cols + c] =
                gate / (1.0 + exp(-gate)) * in[0][r * 2 * cols + cols + c];
        }
    }
}

static double root_mean_square(const double *x, size_t count, double eps)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)count + eps);
}

static void rmsnorm_reference(const struct test *t, double *const *in,
                              double *const *weight, double *out)
{
    size_t cols = t->node.output_cols[0];
    double offset = sdp_op_attr(&t->node, "offset");
    for (size_t r = 0; r < t->batch.tokens; r++) {
        const double *x = in[0] + r * cols;
        double rms = root_mean_square(x, cols, sdp_op_attr(&t->node, "eps"));
        for (size_t c = 0; c < cols; c++)
            out[r * cols + c] = x[c] / rms * (offset + weight[0][c]);
    }
}

static void test_elementwise(void)
{
    static const size_t shapes[][2] = {{1, 1}, {1, 5}, {3, 32}, {4, 67}, {2, 300}};
    for (size_t s = 0; s < SDP_COUNT_OF(shapes); s++) {
        size_t tokens = shapes[s][0], cols = shapes[s][1];
        struct test *t = new_test("", "add", tokens, add_reference);
        t->node.input_cols[0] = t->node.input_cols[1] = cols;
        run(t);

        t = new_test("", "swiglu", tokens, swiglu_reference);
        t->node.input_cols[0] = 2 * cols;
        run(t);

        t = new_test("plain", "rmsnorm", tokens, rmsnorm_reference);
        t->node.input_cols[0] = cols;
        add_weight(t, 0, 1, cols);
        run(t);

        t = new_test("with offset", "rmsnorm", tokens, rmsnorm_reference);
        t->node.input_cols[0] = cols;
        add_weight(t, 0, 1, cols);
        set_attr(t, "eps", 0.25);
        set_attr(t, "offset", 1.0);
        run(t);
    }
}

static void test_swiglu_extremes(void)
{
    float in[] = {-200.0f, -100.0f, 88.0f, 200.0f, 0.0f, 3.0f, 3.0f, 3.0f, 3.0f, 3.0f};
    float wanted[] = {0.0f, 0.0f, 264.0f, 600.0f, 0.0f}, out[5],
          dout[5] = {1, 1, 1, 1, 1};
    float dwanted[] = {0.0f, 0.0f, 3.0f, 3.0f, 1.5f}, din[10];
    struct test *t = new_test("extremes", "swiglu", 1, swiglu_reference);
    struct sdp_op_call call = {
        .node = &t->node, .batch = &t->batch, .in = {in}, .out = {out}};
    t->node.input_cols[0] = 10;
    t->node.output_cols[0] = 5;
    call.dout[0] = dout;
    call.din[0] = din;
    CHECK_EQ(t->node.op->forward_cpu(&call), SDP_OK);
    CHECK_EQ(t->node.op->backward_cpu(&call), SDP_OK);
    for (size_t i = 0; i < 5; i++) {
        CHECK_NEAR(out[i], wanted[i], 1e-30);
        CHECK_NEAR(din[i], dwanted[i], 1e-30);
    }
    destroy(t);
}

/* -- embedding ---------------------------------------------------------------- */

static void embedding_reference(const struct test *t, double *const *in,
                                double *const *weight, double *out)
{
    size_t cols = t->node.output_cols[0];
    (void)in;
    for (size_t r = 0; r < t->batch.tokens; r++)
        for (size_t c = 0; c < cols; c++)
            out[r * cols + c] = sdp_op_attr(&t->node, "scale") *
                                weight[0][(size_t)t->batch.ids[r] * cols + c];
}

/* Runs of equal ids, in id order; returns how many. */
static size_t group(const int32_t *ids, size_t tokens, int32_t *order, int32_t *segments)
{
    size_t count = 0, at = 0;
    for (int32_t id = 0; at < tokens; id++) {
        size_t first = at;
        for (size_t r = 0; r < tokens; r++)
            if (ids[r] == id)
                order[at++] = (int32_t)r;
        if (at > first)
            segments[count++] = (int32_t)first;
        segments[count] = (int32_t)at;
    }
    return count;
}

static void test_embedding(void)
{
    static const int32_t ids[] = {4, 1, 4, 0, 1, 4, 6};
    static const size_t shapes[][2] = {{1, 3}, {7, 1}, {7, 19}, {6, 300}};
    int32_t order[7], segments[8];
    for (size_t s = 0; s < SDP_COUNT_OF(shapes); s++) {
        struct test *t = new_test("", "embedding", shapes[s][0], embedding_reference);
        add_weight(t, 0, 8, shapes[s][1]);
        set_attr(t, "scale", s % 2 ? 2.5 : 1.0);
        t->batch.ids = ids;
        t->batch.order = order;
        t->batch.segments = segments;
        t->batch.segment_count = group(ids, shapes[s][0], order, segments);
        run(t);
    }
}

/* -- linear ------------------------------------------------------------------- */

static void linear_reference(const struct test *t, double *const *in,
                             double *const *weight, double *out)
{
    const struct sdp_op_node *node = &t->node;
    size_t k = node->input_cols[0], parts = 0, column = 0;
    while (parts < node->weight_count && node->weight_role[parts] == 0)
        parts++;
    for (size_t w = 0; w < parts; w++) {
        for (size_t n = 0; n < node->weight_rows[w]; n++, column++) {
            for (size_t r = 0; r < t->batch.tokens; r++) {
                size_t at = r * node->output_cols[0] + column;
                double sum = parts < node->weight_count ? weight[parts + w][n] : 0.0;
                if (node->input_cols[1])
                    sum += in[1][at];
                for (size_t i = 0; i < k; i++)
                    sum += in[0][r * k + i] * weight[w][n * k + i];
                out[at] = sum;
            }
        }
    }
}

/* options: bit 0 biases, bit 1 a residual, bit 2 one block of memory. */
static void test_linear_shape(size_t tokens, size_t k, const size_t *rows, size_t parts,
                              unsigned options)
{
    static const char *const labels[] = {
        "plain",          "bias",          "residual",          "bias, residual",
        "plain, one run", "bias, one run", "residual, one run", "bias, residual, one run",
    };
    struct test *t = new_test(labels[options], "linear", tokens, linear_reference);
    t->node.input_cols[0] = k;
    t->one_block = options & 4;
    for (size_t w = 0; w < parts; w++) {
        add_weight(t, 0, rows[w], k);
        t->node.input_cols[1] += options & 2 ? rows[w] : 0;
    }
    for (size_t w = 0; w < parts && options & 1; w++)
        add_weight(t, 1, 1, rows[w]);
    run(t);
}

static void test_linear(void)
{
    static const size_t rows[] = {5, 3, 2}, many[] = {290};
    for (unsigned options = 0; options < 8; options++) {
        test_linear_shape(1, 1, rows, 1, options);
        test_linear_shape(1, 7, rows, 2, options);
        test_linear_shape(6, 10, rows, 3, options); /* K == N */
        test_linear_shape(2, 2, many, 1, options);
    }
}

/* -- rope --------------------------------------------------------------------- */

/* The published formulas, in double. */
static double reference_frequency(const struct sdp_op_node *node, size_t i,
                                  double *magnitude)
{
    double dim = sdp_op_attr(node, "head_dim"), theta = sdp_op_attr(node, "theta");
    double factor = sdp_op_attr(node, "factor"), pi = acos(-1.0);
    double original = sdp_op_attr(node, "original_max_position");
    double f = pow(theta, -2.0 * (double)i / dim), wave = 2.0 * pi / f;
    int type = (int)sdp_op_attr(node, "type");

    *magnitude = 1.0;
    if (type == SDP_ROPE_LINEAR)
        return f / factor;
    if (type == SDP_ROPE_LLAMA3) {
        double low = sdp_op_attr(node, "low_freq_factor");
        double high = sdp_op_attr(node, "high_freq_factor");
        double smooth = (original / wave - low) / (high - low);
        if (wave < original / high)
            return f;
        return wave > original / low ? f / factor
                                     : (1.0 - smooth) * f / factor + smooth * f;
    }
    if (type == SDP_ROPE_YARN) {
        double fast = sdp_op_attr(node, "beta_fast"),
               slow = sdp_op_attr(node, "beta_slow");
        double low = dim * log(original / (fast * 2.0 * pi)) / (2.0 * log(theta));
        double high = dim * log(original / (slow * 2.0 * pi)) / (2.0 * log(theta));
        double ramp;
        low = fmax(floor(low), 0.0);
        high = fmin(ceil(high), dim - 1.0);
        ramp =
            fmin(fmax(((double)i - low) / (high == low ? 0.001 : high - low), 0.0), 1.0);
        *magnitude = sdp_op_attr(node, "attention_factor");
        if (*magnitude == 0.0)
            *magnitude = 0.1 * log(factor) + 1.0;
        return f / factor * ramp + f * (1.0 - ramp);
    }
    return f;
}

static const double *norm_of(const struct test *t, double *const *weight, unsigned role)
{
    for (size_t w = 0; w < t->node.weight_count; w++)
        if (t->node.weight_role[w] == role)
            return weight[w];
    return NULL;
}

static void rope_reference(const struct test *t, double *const *in, double *const *weight,
                           double *out)
{
    const struct sdp_op_node *node = &t->node;
    size_t heads = (size_t)sdp_op_attr(node, "heads"), dim;
    size_t kv_heads = (size_t)sdp_op_attr(node, "kv_heads"), all = heads + 2 * kv_heads;
    const double *norms[] = {norm_of(t, weight, 0), norm_of(t, weight, 1)};

    dim = (size_t)sdp_op_attr(node, "head_dim");
    memcpy(out, in[0], out_size(t) * sizeof *out);
    for (size_t s = 0; s < t->batch.tokens * all; s++) {
        const double *norm = norms[s % all >= heads], *x = in[0] + s * dim;
        double *y = out + s * dim, rms = 1.0;
        if (s % all >= heads + kv_heads)
            continue;
        if (norm)
            rms = root_mean_square(x, dim, sdp_op_attr(node, "norm_eps"));
        for (size_t i = 0; i < dim / 2; i++) {
            double magnitude, f = reference_frequency(node, i, &magnitude);
            double angle = (double)t->batch.positions[s / all] * f;
            double a = x[i] / rms * (norm ? norm[i] : 1.0);
            double b = x[dim / 2 + i] / rms * (norm ? norm[dim / 2 + i] : 1.0);
            y[i] = magnitude * (a * cos(angle) - b * sin(angle));
            y[dim / 2 + i] = magnitude * (b * cos(angle) + a * sin(angle));
        }
    }
}

/* A test that the caller may set more attributes of. norms: bit 0 of q, bit 1 of k. */
static struct test *new_rope(const char *label, size_t heads, size_t kv_heads,
                             size_t head_dim, unsigned norms)
{
    static const int32_t positions[] = {11, 0, 3, 1};
    struct test *t = new_test(label, "rope", head_dim > 64 ? 1 : 4, rope_reference);
    t->batch.positions = positions;
    t->node.input_cols[0] = (heads + 2 * kv_heads) * head_dim;
    set_attr(t, "heads", (double)heads);
    set_attr(t, "kv_heads", (double)kv_heads);
    set_attr(t, "head_dim", (double)head_dim);
    for (unsigned role = 0; role < 2; role++)
        if (norms & (1u << role))
            add_weight(t, role, 1, head_dim);
    return t;
}

static void test_rope(void)
{
    struct test *t;
    run(new_rope("one head", 1, 1, 2, 0));
    run(new_rope("grouped", 6, 2, 6, 0));
    run(new_rope("large heads", 1, 1, 256, 3));
    run(new_rope("q norm", 4, 2, 8, 1));
    run(new_rope("k norm", 4, 2, 8, 2));

    t = new_rope("norms", 3, 1, 34, 3);
    set_attr(t, "norm_eps", 0.25);
    set_attr(t, "theta", 500000.0);
    run(t);
    t = new_rope("linear", 2, 1, 6, 0);
    set_attr(t, "type", SDP_ROPE_LINEAR);
    set_attr(t, "factor", 3.0);
    run(t);
    t = new_rope("llama3", 2, 1, 32, 0);
    set_attr(t, "type", SDP_ROPE_LLAMA3);
    set_attr(t, "factor", 8.0);
    set_attr(t, "original_max_position", 256.0);
    run(t);
    for (int given = 0; given < 2; given++) {
        t = new_rope(given ? "yarn, factor given" : "yarn", 2, 1, 32, 3);
        set_attr(t, "type", SDP_ROPE_YARN);
        set_attr(t, "factor", 4.0);
        set_attr(t, "original_max_position", 2048.0);
        set_attr(t, "attention_factor", given ? 0.75 : 0.0);
        run(t);
    }
}

static void test_frequencies(void)
{
    for (int type = SDP_ROPE_DEFAULT; type <= SDP_ROPE_YARN; type++) {
        struct test *t = new_rope("frequencies", 1, 1, 128, 0);
        struct sdp_rope_frequencies f;
        double magnitude;
        set_attr(t, "type", type);
        set_attr(t, "theta", 500000.0);
        set_attr(t, "factor", 32.0);
        sdp_rope_frequencies_of(&t->node, &f);
        for (size_t i = 0; i < 64; i++) {
            double wanted = reference_frequency(&t->node, i, &magnitude);
            CHECK_NEAR(f.inverse[i], wanted, 8e-7 * wanted);
        }
        CHECK_NEAR(f.magnitude, magnitude, 1e-7);
        destroy(t);
    }
}

/* -- tables and the rest -------------------------------------------------------- */

static void expect_refusal(struct test *t, const char *text)
{
    struct sdp_error err = SDP_ERROR_INIT;
    CHECK_EQ(t->node.op->infer(&t->node, &err), SDP_INPUT);
    CHECK_STR(err.text, text);
    destroy(t);
}

static void test_refusals(void)
{
    struct test *t = new_test("", "add", 1, NULL);
    t->node.input_cols[0] = 3;
    t->node.input_cols[1] = 4;
    expect_refusal(t, "\"b\" has 4 columns; must have 3, as many as \"a\"");
    t = new_test("", "linear", 1, NULL);
    t->node.input_cols[0] = 3;
    add_weight(t, 0, 4, 5);
    expect_refusal(t, "\"weight\" 0 has 5 columns; must have 3, as many as \"x\"");
    t = new_test("", "linear", 1, NULL);
    t->node.input_cols[0] = 3;
    add_weight(t, 0, 4, 3);
    add_weight(t, 1, 1, 5);
    expect_refusal(t,
                   "\"bias\" 0 has 5 elements; must have 4, as its \"weight\" has rows");
    t = new_test("", "linear", 1, NULL);
    t->node.input_cols[0] = 3;
    t->node.input_cols[1] = 3;
    add_weight(t, 0, 4, 3);
    expect_refusal(t,
                   "\"residual\" has 3 columns; must have 4, as the weights have rows");
    t = new_rope("", 4, 2, 8, 1);
    t->node.weight_cols[0] = 6;
    expect_refusal(t, "\"q_norm\" has 6 elements; must have 8, the head_dim");
    t = new_rope("", 4, 2, 8, 0);
    t->node.input_cols[0] = 63;
    expect_refusal(
        t, "\"qkv\" has 63 columns; must have 64, which is (heads + 2 kv_heads) * "
           "head_dim");
    expect_refusal(new_rope("", 4, 3, 8, 0),
                   "\"kv_heads\" is 3; must divide \"heads\", 4");
    expect_refusal(new_rope("", 4, 2, 7, 0),
                   "\"head_dim\" is 7; must be even and at most 256");
}

static void test_tables(void)
{
    struct test *t = new_test("", "linear", 1, NULL);
    t->node.input_cols[0] = 3;
    t->node.output_cols[0] = 5;
    CHECK_NEAR(t->node.op->flops(&t->node, 7, 7, false), 210.0, 0.0);
    CHECK_NEAR(t->node.op->flops(&t->node, 7, 7, true), 420.0, 0.0);
    destroy(t);
    t = new_test("", "attention", 1, NULL);
    set_attr(t, "heads", 4.0);
    set_attr(t, "head_dim", 8.0);
    CHECK_NEAR(t->node.op->flops(&t->node, 200, 100, false), 4.0 * 200 * 50 * 32, 0.0);
    set_attr(t, "window", 10.0);
    CHECK_NEAR(t->node.op->flops(&t->node, 200, 100, true), 10.0 * 200 * 9.5 * 32, 0.0);
    destroy(t);
    CHECK(!sdp_op_find("convolution"));
    for (size_t i = 0; sdp_ops[i]; i++) {
        CHECK(sdp_op_find(sdp_ops[i]->name) == sdp_ops[i]);
        CHECK(i == 0 || strcmp(sdp_ops[i - 1]->name, sdp_ops[i]->name) < 0);
        CHECK(sdp_ops[i]->forward_cpu && sdp_ops[i]->infer && sdp_ops[i]->flops);
        CHECK(sdp_ops[i]->is_loss || sdp_ops[i]->backward_cpu);
    }
}

static void test_exponential(void)
{
    double worst = 0.0;
    for (uint32_t step = 0; step < 1u << 20; step++) {
        float x = sdp_float_from_bits(step * 4096u + 77u);
        double wanted = exp((double)x), ulp;
        if (!(x > -104.0f && x < 88.7f))
            continue;
        ulp = (double)nextafterf((float)wanted, INFINITY) - (double)(float)wanted;
        worst = fmax(worst, fabs((double)sdpi_exp(x) - wanted) / ulp);
    }
    CHECK_NEAR(worst, 0.0, 2.0);
    CHECK(isnan(sdpi_exp(NAN)));
    CHECK(sdpi_exp(-INFINITY) == 0.0f && isinf(sdpi_exp(INFINITY)));
    CHECK(sdpi_exp(-1000.0f) == 0.0f && isinf(sdpi_exp(89.0f)) && sdpi_exp(0.0f) == 1.0f);
}

int main(void)
{
    test_exponential();
    test_tables();
    test_refusals();
    test_elementwise();
    test_swiglu_extremes();
    test_embedding();
    test_linear();
    test_frequencies();
    test_rope();
    return sdp_test_end();
}
