/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The CPU twin of attention against a plain double-precision one: forward, backward,
 * central differences, windows, grouped heads, adding, and several threads at once.
 * Outputs and scratch hold NaNs before each call. */
#include "codelets/ops/attention/cpu.h"

#include "tests/sdp_test.h"

#include <cblas.h>
#include <pthread.h>

#define TOLERANCE 1e-5
#define GUARD     64 /* floats behind scratch that must not change */

struct setup {
    size_t sequences, length, heads, kv_heads, head_dim, window;
    double scale;
    float spread; /* of q and k: how far scores go apart */
};

/* Inputs, results of the twin and of the reference. */
struct data {
    struct setup s;
    struct sdp_op_node node;
    struct sdp_op_batch batch;
    size_t tokens, width, columns;
    float *qkv, *dout, *out, *lse, *din;
    double *ref_out, *ref_lse, *ref_din;
};

static const struct sdp_op table = {
    .name = "attention",
    .attrs =
        (const struct sdp_op_attr[]){
            {.name = "heads"},
            {.name = "kv_heads"},
            {.name = "head_dim"},
            {.name = "scale"},
            {.name = "window"},
            {0},
        },
};

static void *new_array(size_t count, size_t size)
{
    void *array = calloc(count ? count : 1, size);

    REQUIRE(array != NULL);
    return array;
}

static float *new_random(const char *name, size_t count, float spread)
{
    uint64_t key = sdp_random_key(7, name);
    float *x = new_array(count, sizeof *x);

    for (size_t i = 0; i < count; i++)
        x[i] = spread * sdp_random_normal(key, i);
    return x;
}

static void poison(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = NAN;
}

static struct data *new_data(const struct setup *s)
{
    struct data *d = new_array(1, sizeof *d);
    size_t qk;

    d->s = *s;
    d->tokens = s->sequences * s->length;
    d->columns = s->heads * s->head_dim;
    d->width = d->columns + 2 * s->kv_heads * s->head_dim;
    d->node.op = &table;
    d->node.attr[0] = (double)s->heads;
    d->node.attr[1] = (double)s->kv_heads;
    d->node.attr[2] = (double)s->head_dim;
    d->node.attr[3] = s->scale;
    d->node.attr[4] = (double)s->window;
    d->batch.tokens = d->tokens;
    d->batch.sequences = s->sequences;
    d->batch.sequence_length = s->length;
    d->qkv = new_random("qkv", d->tokens * d->width, 1.0f);
    qk = (s->heads + s->kv_heads) * s->head_dim;
    for (size_t t = 0; t < d->tokens; t++)
        for (size_t i = 0; i < qk; i++)
            d->qkv[t * d->width + i] *= s->spread;
    d->dout = new_random("dout", d->tokens * d->columns, 1.0f);
    d->out = new_array(d->tokens * d->columns, sizeof *d->out);
    d->lse = new_array(d->tokens * s->heads, sizeof *d->lse);
    d->din = new_array(d->tokens * d->width, sizeof *d->din);
    d->ref_out = new_array(d->tokens * d->columns, sizeof *d->ref_out);
    d->ref_lse = new_array(d->tokens * s->heads, sizeof *d->ref_lse);
    d->ref_din = new_array(d->tokens * d->width, sizeof *d->ref_din);
    poison(d->out, d->tokens * d->columns);
    poison(d->lse, d->tokens * s->heads);
    poison(d->din, d->tokens * d->width);
    return d;
}

static void free_data(struct data *d)
{
    free(d->qkv);
    free(d->dout);
    free(d->out);
    free(d->lse);
    free(d->din);
    free(d->ref_out);
    free(d->ref_lse);
    free(d->ref_din);
    free(d);
}

/* -- reference ----------------------------------------------------------- */

static double dot(const double *a, const double *b, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One query of one head; q, k, v and their gradients as columns of qkv at x and dx. */
static void reference_query(struct data *d, const double *x, size_t t, size_t h,
                            double *p, bool backward)
{
    size_t n = d->s.head_dim, place = t % d->s.length, w = d->width;
    size_t first = d->s.window && place + 1 > d->s.window ? place + 1 - d->s.window : 0;
    size_t at_k = (d->s.heads + h * d->s.kv_heads / d->s.heads) * n;
    size_t at_v = at_k + d->s.kv_heads * n, start = t - place;
    double scale = d->s.scale != 0.0 ? d->s.scale : 1.0 / sqrt((double)n);
    double max = -INFINITY, sum = 0.0, delta = 0.0;
    double *out = d->ref_out + t * d->columns + h * n;

    for (size_t j = first; j <= place; j++) {
        p[j] = scale * dot(x + t * w + h * n, x + (start + j) * w + at_k, n);
        max = p[j] > max ? p[j] : max;
    }
    for (size_t j = first; j <= place; j++)
        sum += p[j] = exp(p[j] - max);
    d->ref_lse[t * d->s.heads + h] = max + log(sum);
    for (size_t i = 0; i < n; i++)
        out[i] = 0.0;
    for (size_t j = first; j <= place; j++)
        for (size_t i = 0; i < n; i++)
            out[i] += p[j] / sum * x[(start + j) * w + at_v + i];
    if (!backward)
        return;
    const float *dout = d->dout + t * d->columns + h * n;
    for (size_t i = 0; i < n; i++)
        delta += (double)dout[i] * out[i];
    for (size_t j = first; j <= place; j++) {
        const double *row = x + (start + j) * w;
        double *drow = d->ref_din + (start + j) * w, dp = 0.0, ds;

        for (size_t i = 0; i < n; i++)
            dp += (double)dout[i] * row[at_v + i];
        ds = p[j] / sum * (dp - delta) * scale;
        for (size_t i = 0; i < n; i++) {
            drow[at_v + i] += p[j] / sum * (double)dout[i];
            drow[at_k + i] += ds * x[t * w + h * n + i];
            d->ref_din[t * w + h * n + i] += ds * row[at_k + i];
        }
    }
}

static void reference(struct data *d, const double *x, bool backward)
{
    double *p = new_array(d->s.length, sizeof *p);

    for (size_t t = 0; t < d->tokens; t++)
        for (size_t h = 0; h < d->s.heads; h++)
            reference_query(d, x, t, h, p, backward);
    free(p);
}

static double *new_double(const float *x, size_t count)
{
    double *to = new_array(count, sizeof *to);

    for (size_t i = 0; i < count; i++)
        to[i] = (double)x[i];
    return to;
}

/* -- the twin ------------------------------------------------------------- */

static struct sdp_op_call call_of(struct data *d)
{
    struct sdp_op_call call = {.node = &d->node,
                               .batch = &d->batch,
                               .dtype = SDP_FP32,
                               .in = {d->qkv},
                               .out = {d->out},
                               .aux = {d->lse},
                               .dout = {d->dout},
                               .din = {d->din}};
    return call;
}

/* One call with fresh scratch; false if it fails or writes behind that. Counts no checks,
 * so that any thread may call it. */
static bool run_quietly(const struct sdp_op_call *given, bool backward)
{
    struct sdp_op_call call = *given;
    size_t length = call.batch->sequence_length, count;
    size_t bytes =
        sdp_attention_work_cpu(call.node, call.batch->tokens, length, backward);
    float *work;
    bool ok;

    count = bytes / sizeof *work + GUARD;
    work = aligned_alloc(256, (count * sizeof *work + 255) / 256 * 256);
    if (!work)
        return false;
    poison(work, count);
    for (size_t i = 0; i < GUARD; i++)
        work[count - 1 - i] = (float)i;
    call.work = work;
    ok = (backward ? sdp_attention_backward_cpu(&call)
                   : sdp_attention_forward_cpu(&call)) == SDP_OK;
    for (size_t i = 0; i < GUARD; i++)
        ok = ok && work[count - 1 - i] == (float)i;
    free(work);
    return ok;
}

static void run(const struct sdp_op_call *given, bool backward)
{
    CHECK(run_quietly(given, backward));
}

/* |x - reference| / |reference| over columns [first, first + columns) of all rows. */
static double distance(const float *x, const double *reference_x, size_t rows,
                       size_t pitch, size_t first, size_t columns)
{
    double difference = 0.0, norm = 0.0;

    for (size_t r = 0; r < rows; r++)
        for (size_t c = first; c < first + columns; c++) {
            double b = reference_x[r * pitch + c], a = (double)x[r * pitch + c] - b;

            difference += a * a;
            norm += b * b;
        }
    /* Gradients that are 0 in theory: rounding against the norm of inputs of about 1 each. */
    return sqrt(difference / (sqrt(norm) > 1e-3 ? norm : (double)(rows * columns)));
}

static void check_gradient(const struct data *d, const float *din)
{
    size_t q = d->columns, k = d->s.kv_heads * d->s.head_dim, w = d->width;

    CHECK_NEAR(distance(din, d->ref_din, d->tokens, w, 0, q), 0.0, TOLERANCE);
    CHECK_NEAR(distance(din, d->ref_din, d->tokens, w, q, k), 0.0, TOLERANCE);
    CHECK_NEAR(distance(din, d->ref_din, d->tokens, w, q + k, k), 0.0, TOLERANCE);
}

/* The twin adds to what is there; the same bits as adding afterwards. */
static void check_add(struct data *d)
{
    size_t count = d->tokens * d->width;
    float *base = new_random("base", count, 1.0f), *sum = new_array(count, sizeof *sum);
    struct sdp_op_call call = call_of(d);

    memcpy(sum, base, count * sizeof *sum);
    call.din[0] = sum;
    call.add_din[0] = true;
    run(&call, true);
    for (size_t i = 0; i < count; i++) {
        volatile float wanted = base[i] + d->din[i];

        if (sum[i] != wanted) {
            SDP_TEST_FAIL("element %zu is %.9g, not %.9g", i, (double)sum[i],
                          (double)wanted);
            break;
        }
    }
    free(base);
    free(sum);
}

static void test_setup(const struct setup *s)
{
    int before = sdp_test_failures;
    struct data *d = new_data(s);
    struct sdp_op_call call = call_of(d);
    double *x = new_double(d->qkv, d->tokens * d->width);

    reference(d, x, true);
    run(&call, false);
    CHECK_NEAR(distance(d->out, d->ref_out, d->tokens, d->columns, 0, d->columns), 0.0,
               TOLERANCE);
    CHECK_NEAR(distance(d->lse, d->ref_lse, d->tokens, s->heads, 0, s->heads), 0.0,
               TOLERANCE);
    run(&call, true);
    check_gradient(d, d->din);
    check_add(d);
    call.din[0] = NULL;
    run(&call, true);
    if (sdp_test_failures != before)
        fprintf(stderr, "  %zu x %zu tokens, %zu:%zu heads of %zu, window %zu\n",
                s->sequences, s->length, s->heads, s->kv_heads, s->head_dim, s->window);
    free(x);
    free_data(d);
}

/* -- tests ---------------------------------------------------------------- */

static void test_shapes(void)
{
    static const size_t lengths[] = {1, 5, 33, 130, 257}, dims[] = {16, 64, 128};

    for (size_t l = 0; l < 5; l++)
        for (size_t n = 0; n < 3; n++)
            for (size_t grouped = 0; grouped < 2; grouped++) {
                struct setup s = {.sequences = 1 + (l + n) % 3,
                                  .length = lengths[l],
                                  .heads = grouped ? 4 : 2,
                                  .kv_heads = grouped ? 1 : 2,
                                  .head_dim = dims[n],
                                  .spread = 1.0f};
                test_setup(&s);
            }
}

static void test_windows(void)
{
    static const size_t windows[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 299, 300, 1000};

    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        struct setup s = {.sequences = 2,
                          .length = 300,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .window = windows[i],
                          .spread = 1.0f};
        test_setup(&s);
    }
}

/* Longer than a block of keys, odd columns, another scale, scores far apart. */
static void test_others(void)
{
    static const struct setup setups[] = {
        {2, 700, 2, 1, 16, 0, 0.0, 1.0f},   {1, 700, 2, 1, 16, 270, 0.0, 1.0f},
        {1, 1025, 1, 1, 8, 513, 0.0, 1.0f}, {3, 70, 3, 3, 5, 0, 0.0, 1.0f},
        {2, 70, 4, 2, 80, 33, 0.125, 1.0f}, {1, 256, 8, 2, 32, 0, 0.5, 1.0f},
        {1, 300, 2, 1, 1, 0, 0.0, 1.0f},
    };

    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        test_setup(&setups[i]);
}

/* Scores of hundreds: no overflow, and keys of weight 0. The exponential magnifies the
 * rounding of such scores, hence the wider tolerances. */
static void test_far_scores(void)
{
    struct setup s = {1, 600, 2, 1, 16, 0, 0.0, 12.0f};
    struct data *d = new_data(&s);
    struct sdp_op_call call = call_of(d);
    double *x = new_double(d->qkv, d->tokens * d->width);

    reference(d, x, true);
    run(&call, false);
    run(&call, true);
    CHECK_NEAR(distance(d->out, d->ref_out, d->tokens, d->columns, 0, d->columns), 0.0,
               1e-4);
    CHECK_NEAR(distance(d->lse, d->ref_lse, d->tokens, 2, 0, 2), 0.0, TOLERANCE);
    CHECK_NEAR(distance(d->din, d->ref_din, d->tokens, d->width, 0, d->width), 0.0, 1e-3);
    free(x);
    free_data(d);
}

/* A loss of which dout is the gradient. */
static double loss_of(struct data *d, const double *x)
{
    double sum = 0.0;

    reference(d, x, false);
    for (size_t i = 0; i < d->tokens * d->columns; i++)
        sum += (double)d->dout[i] * d->ref_out[i];
    return sum;
}

static void test_differences(void)
{
    static const struct setup setups[] = {
        {2, 33, 4, 1, 16, 0, 0.0, 1.0f},
        {1, 70, 2, 2, 16, 9, 0.3, 1.0f},
    };

    for (size_t n = 0; n < 2; n++) {
        struct data *d = new_data(&setups[n]);
        struct sdp_op_call call = call_of(d);
        size_t count = d->tokens * d->width;
        double *x = new_double(d->qkv, count);

        run(&call, false);
        run(&call, true);
        for (size_t sample = 0; sample < 60; sample++) {
            size_t i = (size_t)(sdp_random_u64(3, sample) % count);
            double step = 1e-4, at = x[i], up, down;

            x[i] = at + step;
            up = loss_of(d, x);
            x[i] = at - step;
            down = loss_of(d, x);
            x[i] = at;
            CHECK_NEAR(d->din[i], (up - down) / (2.0 * step), 2e-5);
        }
        free(x);
        free_data(d);
    }
}

static void *run_both(void *argument)
{
    struct data *d = argument;
    struct sdp_op_call call = call_of(d);

    for (size_t i = 0; i < 3; i++) {
        if (!run_quietly(&call, false) || !run_quietly(&call, true))
            return NULL;
    }
    return d;
}

/* Threads with data of their own get the bits that one thread gets. */
static void test_threads(void)
{
    struct setup s = {2, 257, 4, 1, 64, 0, 0.0, 1.0f};
    struct data *d[4];
    pthread_t thread[4];
    void *done[4];

    for (size_t i = 0; i < 4; i++)
        d[i] = new_data(&s);
    REQUIRE(run_both(d[0]) == d[0]);
    for (size_t i = 1; i < 4; i++)
        REQUIRE(pthread_create(&thread[i], NULL, run_both, d[i]) == 0);
    for (size_t i = 1; i < 4; i++) {
        REQUIRE(pthread_join(thread[i], &done[i]) == 0);
        CHECK(done[i] == d[i]);
        CHECK(memcmp(d[i]->out, d[0]->out, d[0]->tokens * d[0]->columns * 4) == 0);
        CHECK(memcmp(d[i]->lse, d[0]->lse, d[0]->tokens * s.heads * 4) == 0);
        CHECK(memcmp(d[i]->din, d[0]->din, d[0]->tokens * d[0]->width * 4) == 0);
        free_data(d[i]);
    }
    free_data(d[0]);
}

int main(void)
{
    openblas_set_num_threads(1);
    test_shapes();
    test_windows();
    test_others();
    test_far_scores();
    test_differences();
    test_threads();
    return sdp_test_end();
}
