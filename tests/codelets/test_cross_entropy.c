/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The CPU twin of cross_entropy against a plain double-precision one: loss, logits,
 * gradients, central differences, uncounted tokens, several chunks, adding, threads.
 * Outputs and scratch hold NaNs before each call. */
#include "codelets/ops/cross_entropy/cpu.h"

#include "tests/sdp_test.h"

#include <cblas.h>
#include <pthread.h>

#define TOLERANCE  1e-5
#define GUARD      64 /* floats behind scratch that must not change */
#define LOSS_SCALE 0.0625f

enum counted { COUNT_ALL, COUNT_NONE, COUNT_SOME, COUNT_LATE };

struct setup {
    size_t tokens, vocabulary, columns;
    enum counted counted;
    float spread; /* of the weight */
};

struct data {
    struct setup s;
    struct sdp_op_node node;
    struct sdp_op_batch batch;
    int32_t *targets;
    float *x, *weight, *logits, *dx, *dweight;
    double *ref_logits, *ref_dx, *ref_dweight;
    double loss, ref_loss;
};

static void *new_array(size_t count, size_t size)
{
    void *array = calloc(count ? count : 1, size);

    REQUIRE(array != NULL);
    return array;
}

static float *new_random(const char *name, size_t count, float spread)
{
    uint64_t key = sdp_random_key(11, name);
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

static bool is_counted(const struct setup *s, size_t token)
{
    switch (s->counted) {
    case COUNT_ALL:
        return true;
    case COUNT_NONE:
        return false;
    case COUNT_SOME:
        return token % 3 != 1;
    case COUNT_LATE: /* whole chunks without a counted token, then some */
        return token + 3 >= s->tokens;
    }
    return false;
}

static struct data *new_data(const struct setup *s)
{
    struct data *d = new_array(1, sizeof *d);
    size_t t = s->tokens, v = s->vocabulary, n = s->columns;

    d->s = *s;
    d->node.weight_rows[0] = v;
    d->node.weight_cols[0] = n;
    d->node.input_cols[0] = n;
    d->targets = new_array(t, sizeof *d->targets);
    for (size_t i = 0; i < t; i++)
        d->targets[i] = is_counted(s, i) ? (int32_t)(sdp_random_u64(5, i) % v) : -1;
    if (s->counted == COUNT_ALL)
        d->targets[t - 1] = (int32_t)v - 1;
    d->batch.tokens = t;
    d->batch.sequences = 1;
    d->batch.sequence_length = t;
    d->batch.targets = d->targets;
    d->x = new_random("x", t * n, 1.0f);
    d->weight = new_random("weight", v * n, s->spread);
    d->logits = new_array(t * v, sizeof *d->logits);
    d->dx = new_array(t * n, sizeof *d->dx);
    d->dweight = new_array(v * n, sizeof *d->dweight);
    d->ref_logits = new_array(t * v, sizeof *d->ref_logits);
    d->ref_dx = new_array(t * n, sizeof *d->ref_dx);
    d->ref_dweight = new_array(v * n, sizeof *d->ref_dweight);
    poison(d->logits, t * v);
    poison(d->dx, t * n);
    poison(d->dweight, v * n);
    d->loss = NAN;
    return d;
}

static void free_data(struct data *d)
{
    free(d->targets);
    free(d->x);
    free(d->weight);
    free(d->logits);
    free(d->dx);
    free(d->dweight);
    free(d->ref_logits);
    free(d->ref_dx);
    free(d->ref_dweight);
    free(d);
}

/* -- reference ------------------------------------------------------------ */

static void reference_token(struct data *d, const double *x, const double *weight,
                            size_t t, bool gradient)
{
    size_t v = d->s.vocabulary, n = d->s.columns;
    double *logits = d->ref_logits + t * v, max = -INFINITY, sum = 0.0;

    for (size_t j = 0; j < v; j++) {
        logits[j] = 0.0;
        for (size_t i = 0; i < n; i++)
            logits[j] += x[t * n + i] * weight[j * n + i];
        max = logits[j] > max ? logits[j] : max;
    }
    if (d->targets[t] < 0)
        return;
    for (size_t j = 0; j < v; j++)
        sum += exp(logits[j] - max);
    d->ref_loss += max + log(sum) - logits[d->targets[t]];
    for (size_t j = 0; gradient && j < v; j++) {
        double g = exp(logits[j] - max) / sum - ((int32_t)j == d->targets[t] ? 1.0 : 0.0);

        g *= (double)LOSS_SCALE;
        for (size_t i = 0; i < n; i++) {
            d->ref_dx[t * n + i] += g * weight[j * n + i];
            d->ref_dweight[j * n + i] += g * x[t * n + i];
        }
    }
}

static void reference(struct data *d, const double *x, const double *weight,
                      bool gradient)
{
    d->ref_loss = 0.0;
    for (size_t t = 0; t < d->s.tokens; t++)
        reference_token(d, x, weight, t, gradient);
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
                               .in = {d->x},
                               .weight = {d->weight},
                               .din = {d->dx},
                               .dweight = {d->dweight},
                               .loss_scale = LOSS_SCALE,
                               .loss = &d->loss,
                               .logits = d->logits,
                               .want_gradient = true};
    return call;
}

/* One call with fresh scratch; false if it fails or writes behind that. Counts no checks,
 * so that any thread may call it. */
static bool run_quietly(const struct sdp_op_call *given)
{
    struct sdp_op_call call = *given;
    size_t t = call.batch->tokens, count;
    size_t bytes = sdp_cross_entropy_work_cpu(call.node, t, t, call.want_gradient);
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
    ok = sdp_cross_entropy_forward_cpu(&call) == SDP_OK;
    for (size_t i = 0; i < GUARD; i++)
        ok = ok && work[count - 1 - i] == (float)i;
    free(work);
    return ok;
}

static void run(const struct sdp_op_call *given)
{
    CHECK(run_quietly(given));
}

/* |x - (reference + base)| / |reference + base|; base may be NULL. */
static double distance(const float *x, const double *reference_x, const float *base,
                       size_t count)
{
    double difference = 0.0, norm = 0.0;

    for (size_t i = 0; i < count; i++) {
        double wanted = reference_x[i] + (base ? (double)base[i] : 0.0);
        double a = (double)x[i] - wanted;

        difference += a * a;
        norm += wanted * wanted;
    }
    return norm > 0.0 ? sqrt(difference / norm) : sqrt(difference);
}

static void check_loss(const struct data *d)
{
    CHECK_NEAR(d->loss, d->ref_loss, TOLERANCE * fabs(d->ref_loss));
}

/* Without logits, without gradients, and without those of one side. */
static void check_less(struct data *d)
{
    size_t nx = d->s.tokens * d->s.columns, nw = d->s.vocabulary * d->s.columns;
    float *dx = new_array(nx, sizeof *dx), *dweight = new_array(nw, sizeof *dweight);
    struct sdp_op_call call = call_of(d);
    double loss = d->loss;

    poison(dx, nx);
    poison(dweight, nw);
    call.logits = NULL;
    call.din[0] = dx;
    call.dweight[0] = dweight;
    run(&call);
    CHECK(d->loss == loss);
    CHECK(memcmp(dx, d->dx, nx * sizeof *dx) == 0);
    CHECK(memcmp(dweight, d->dweight, nw * sizeof *dweight) == 0);
    poison(dweight, nw);
    call.din[0] = NULL;
    run(&call);
    CHECK(memcmp(dweight, d->dweight, nw * sizeof *dweight) == 0);
    poison(dx, nx);
    call.din[0] = dx;
    call.dweight[0] = NULL;
    run(&call);
    CHECK(memcmp(dx, d->dx, nx * sizeof *dx) == 0);
    poison(dx, nx);
    call.want_gradient = false;
    d->loss = NAN;
    run(&call);
    CHECK(d->loss == loss);
    for (size_t i = 0; i < nx; i++)
        CHECK(isnan(dx[i]));
    free(dx);
    free(dweight);
}

static void check_add(struct data *d)
{
    size_t nx = d->s.tokens * d->s.columns, nw = d->s.vocabulary * d->s.columns;
    float *bx = new_random("bx", nx, 0.01f), *bw = new_random("bw", nw, 0.01f);
    float *dx = new_array(nx, sizeof *dx), *dweight = new_array(nw, sizeof *dweight);
    struct sdp_op_call call = call_of(d);

    memcpy(dx, bx, nx * sizeof *dx);
    memcpy(dweight, bw, nw * sizeof *dweight);
    call.din[0] = dx;
    call.dweight[0] = dweight;
    call.add_din[0] = true;
    call.add_dweight = true;
    run(&call);
    CHECK_NEAR(distance(dx, d->ref_dx, bx, nx), 0.0, TOLERANCE);
    CHECK_NEAR(distance(dweight, d->ref_dweight, bw, nw), 0.0, TOLERANCE);
    free(bx);
    free(bw);
    free(dx);
    free(dweight);
}

static void test_setup(const struct setup *s)
{
    int before = sdp_test_failures;
    struct data *d = new_data(s);
    struct sdp_op_call call = call_of(d);
    double *x = new_double(d->x, s->tokens * s->columns);
    double *weight = new_double(d->weight, s->vocabulary * s->columns);

    reference(d, x, weight, true);
    run(&call);
    check_loss(d);
    CHECK_NEAR(distance(d->logits, d->ref_logits, NULL, s->tokens * s->vocabulary), 0.0,
               TOLERANCE);
    CHECK_NEAR(distance(d->dx, d->ref_dx, NULL, s->tokens * s->columns), 0.0, TOLERANCE);
    CHECK_NEAR(distance(d->dweight, d->ref_dweight, NULL, s->vocabulary * s->columns),
               0.0, TOLERANCE);
    if (s->counted == COUNT_NONE)
        CHECK(d->loss == 0.0);
    check_less(d);
    check_add(d);
    if (sdp_test_failures != before)
        fprintf(stderr, "  %zu tokens, vocabulary %zu, %zu columns, counted %d\n",
                s->tokens, s->vocabulary, s->columns, (int)s->counted);
    free(x);
    free(weight);
    free_data(d);
}

/* -- tests ---------------------------------------------------------------- */

static void test_shapes(void)
{
    static const struct setup setups[] = {
        {1, 199, 24, COUNT_ALL, 0.3f},    {5, 199, 24, COUNT_SOME, 0.3f},
        {33, 199, 64, COUNT_SOME, 0.3f},  {130, 199, 17, COUNT_NONE, 0.3f},
        {257, 512, 32, COUNT_SOME, 0.3f}, {7, 1, 8, COUNT_ALL, 0.3f},
        {9, 2, 8, COUNT_ALL, 0.3f},       {20, 16, 1, COUNT_ALL, 0.3f},
        {64, 64, 64, COUNT_ALL, 0.3f},    {40, 4099, 16, COUNT_SOME, 0.3f},
    };

    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        test_setup(&setups[i]);
}

/* Logits of a chunk hold 4 MB: 31 tokens of this vocabulary. */
static void test_chunks(void)
{
    for (int counted = COUNT_ALL; counted <= COUNT_LATE; counted++) {
        struct setup s = {100, 33001, 8, (enum counted)counted, 0.3f};

        test_setup(&s);
    }
    struct setup many = {17, 70001, 4, COUNT_ALL, 0.3f};
    test_setup(&many);
}

/* Logits of hundreds: no overflow, and a loss that large. */
static void test_far_logits(void)
{
    struct setup s = {30, 199, 64, COUNT_ALL, 12.0f};

    test_setup(&s);
}

static void test_differences(void)
{
    struct setup s = {23, 199, 24, COUNT_SOME, 0.3f};
    struct data *d = new_data(&s);
    struct sdp_op_call call = call_of(d);
    size_t nx = s.tokens * s.columns, nw = s.vocabulary * s.columns;
    double *x = new_double(d->x, nx), *weight = new_double(d->weight, nw);

    run(&call);
    for (size_t sample = 0; sample < 60; sample++) {
        bool of_x = sample % 2 == 0;
        size_t i = (size_t)(sdp_random_u64(3, sample) % (of_x ? nx : nw));
        double *at = of_x ? x + i : weight + i, kept = *at, step = 1e-4, up, slope;

        *at = kept + step;
        reference(d, x, weight, false);
        up = d->ref_loss;
        *at = kept - step;
        reference(d, x, weight, false);
        *at = kept;
        slope = (up - d->ref_loss) / (2.0 * step) * (double)LOSS_SCALE;
        CHECK_NEAR(of_x ? d->dx[i] : d->dweight[i], slope, 1e-6);
    }
    free(x);
    free(weight);
    free_data(d);
}

static void *run_some(void *argument)
{
    struct sdp_op_call call = call_of(argument);

    for (size_t i = 0; i < 3; i++)
        if (!run_quietly(&call))
            return NULL;
    return argument;
}

/* Threads with data of their own get the bits that one thread gets. */
static void test_threads(void)
{
    struct setup s = {60, 33001, 16, COUNT_SOME, 0.3f};
    struct data *d[4];
    pthread_t thread[4];
    void *done[4];

    for (size_t i = 0; i < 4; i++)
        d[i] = new_data(&s);
    REQUIRE(run_some(d[0]) == d[0]);
    for (size_t i = 1; i < 4; i++)
        REQUIRE(pthread_create(&thread[i], NULL, run_some, d[i]) == 0);
    for (size_t i = 1; i < 4; i++) {
        REQUIRE(pthread_join(thread[i], &done[i]) == 0);
        CHECK(done[i] == d[i]);
        CHECK(d[i]->loss == d[0]->loss);
        CHECK(memcmp(d[i]->dx, d[0]->dx, s.tokens * s.columns * 4) == 0);
        CHECK(memcmp(d[i]->dweight, d[0]->dweight, s.vocabulary * s.columns * 4) == 0);
        free_data(d[i]);
    }
    free_data(d[0]);
}

int main(void)
{
    openblas_set_num_threads(1);
    test_shapes();
    test_chunks();
    test_far_logits();
    test_differences();
    test_threads();
    return sdp_test_end();
}
