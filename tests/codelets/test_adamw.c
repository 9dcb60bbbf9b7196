/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The update and reduction kernels: versions agree to the bit on random bits (NaN, infinity,
 * denormals among them), any offset and count; accuracy against double; 1000 steps beside
 * AdamW written plainly in fp32; sums of squares; nothing outside the block is written. */
#include "codelets/update/adamw.h"
#include "tests/sdp_test.h"

#include <fenv.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#define COUNT 1237 /* elements of an array */

struct arrays {
    uint16_t weight[COUNT];
    int16_t remainder[COUNT];
    float m[COUNT], v[COUNT], out[COUNT];
    double squares;
};

enum fill { FILL_BITS, FILL_SPECIAL, FILL_NORMAL, FILL_SMALL, FILL_COUNT };

static uint64_t drawn;
static struct arrays start, want, got;
static float gradients32[SDP_ADAMW_MAX_RANKS][COUNT];
static uint16_t gradients16[SDP_ADAMW_MAX_RANKS][COUNT];
static const void *sources32[SDP_ADAMW_MAX_RANKS], *sources16[SDP_ADAMW_MAX_RANKS];

static uint32_t draw_bits(void)
{
    return (uint32_t)(sdp_random_u64(11, drawn++) >> 32);
}

static float draw(enum fill fill, float scale)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345,
        0x7fffffff, 0x3f800000, 0xbf800000, 0x3f808000, 0x3f818000, 0x00008000, 0x1e3ce508};
    if (fill == FILL_BITS)
        return sdp_float_from_bits(draw_bits());
    if (fill == FILL_SPECIAL)
        return sdp_float_from_bits(special[draw_bits() % SDP_COUNT_OF(special)]);
    return sdp_random_normal(13, drawn++) * (fill == FILL_SMALL ? 1e-38f : scale);
}

static void fill_gradients(enum fill fill, float scale)
{
    for (size_t r = 0; r < SDP_ADAMW_MAX_RANKS; r++) {
        sources32[r] = gradients32[r];
        sources16[r] = gradients16[r];
        for (size_t i = 0; i < COUNT; i++) {
            gradients32[r][i] = draw(fill, scale);
            gradients16[r][i] = (uint16_t)(sdp_bits_from_float(draw(fill, scale)) >> 16);
        }
    }
}

static void fill_state(struct arrays *a, enum fill fill)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (fill == FILL_BITS) { /* pairs that no split makes, too */
            a->weight[i] = (uint16_t)draw_bits();
            a->remainder[i] = (int16_t)(uint16_t)draw_bits();
        } else {
            sdp_master_split(draw(fill, 0.02f), &a->weight[i], &a->remainder[i]);
        }
        a->m[i] = draw(fill, 1e-3f);
        a->v[i] = draw(fill, 1e-3f);
        if (fill == FILL_NORMAL || fill == FILL_SMALL)
            a->v[i] = fabsf(a->v[i]);
        a->out[i] = -77.0f;
    }
    a->squares = -1;
}

static struct sdp_adamw_args args_of(struct arrays *a, size_t ranks, enum sdp_dtype dtype)
{
    return (struct sdp_adamw_args){.weight = a->weight, .remainder = a->remainder, .m = a->m,
                                   .v = a->v,
                                   .gradients = dtype == SDP_FP32 ? sources32 : sources16,
                                   .ranks = ranks, .gradient_dtype = dtype};
}

static void set_scalars(struct sdp_adamw_args *args)
{
    sdp_adamw_set(args, 1e-3, 0.9, 0.95, 1e-8, 0.1, 3, 0.7f);
}

static void run_update(struct arrays *a, size_t ranks, enum sdp_dtype dtype, size_t offset,
                       size_t count)
{
    struct sdp_adamw_args args = args_of(a, ranks, dtype);
    set_scalars(&args);
    sdp_adamw_block(&args, offset, count, &a->squares);
}

static void run_reduce(struct arrays *a, size_t ranks, enum sdp_dtype dtype,
                       enum sdp_dtype out_dtype, size_t offset, size_t count)
{
    sdp_reduce_block(dtype == SDP_FP32 ? sources32 : sources16, ranks, dtype, a->out, out_dtype,
                     offset, count, &a->squares);
}

/* -- versions ---------------------------------------------------------------------- */

static void compare_case(enum sdp_isa isa, enum fill fill, size_t ranks, enum sdp_dtype dtype,
                         size_t offset, size_t count)
{
    static const enum sdp_dtype outs[] = {SDP_FP32, SDP_BF16};
    for (size_t k = 0; k < 3; k++) { /* update, reduce to fp32, reduce to bf16 */
        struct arrays *both[] = {&want, &got};
        for (size_t j = 0; j < 2; j++) {
            *both[j] = start;
            REQUIRE(sdp_adamw_set_isa(j == 0 ? SDP_ISA_C : isa));
            if (k == 0)
                run_update(both[j], ranks, dtype, offset, count);
            else
                run_reduce(both[j], ranks, dtype, outs[k - 1], offset, count);
        }
        sdp_test_checks++;
        if (memcmp(&want, &got, sizeof want) != 0)
            SDP_TEST_FAIL("%s differs from c: fill %d, %zu ranks of %s, %zu + %zu, kernel %zu",
                          sdp_isa_name(isa), (int)fill, ranks, sdp_dtype_name(dtype), offset,
                          count, k);
    }
}

static void test_versions(enum sdp_isa isa)
{
    static const size_t ranks[] = {1, 2, 3, 8, SDP_ADAMW_MAX_RANKS};
    static const size_t places[][2] = {{0, COUNT}, {0, 16},   {1, 15},  {3, 17},   {5, 1},
                                       {7, 64},    {9, 1023}, {16, 32}, {31, 500}, {8, 0}};
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        for (size_t r = 0; r < SDP_COUNT_OF(ranks); r++) {
            fill_gradients((enum fill)fill, 1e-2f);
            fill_state(&start, (enum fill)fill);
            for (size_t p = 0; p < SDP_COUNT_OF(places); p++) {
                compare_case(isa, (enum fill)fill, ranks[r], SDP_FP32, places[p][0], places[p][1]);
                compare_case(isa, (enum fill)fill, ranks[r], SDP_BF16, places[p][0], places[p][1]);
            }
        }
    }
}

/* Where a block begins and ends does not change its elements, and no others are touched. */
static void test_outside(void)
{
    fill_gradients(FILL_NORMAL, 1e-2f);
    fill_state(&start, FILL_NORMAL);
    want = got = start;
    run_update(&want, 2, SDP_BF16, 0, COUNT);
    for (size_t i = 0; i < COUNT; i += 101)
        run_update(&got, 2, SDP_BF16, i, SDP_MIN((size_t)101, COUNT - i));
    got.squares = want.squares;
    CHECK(memcmp(&want, &got, sizeof want) == 0);
    got = start;
    run_update(&got, 2, SDP_BF16, 100, 37);
    CHECK(memcmp(got.m, start.m, 100 * sizeof *got.m) == 0);
    CHECK(memcmp(got.m + 137, start.m + 137, (COUNT - 137) * sizeof *got.m) == 0);
    CHECK(memcmp(got.weight + 137, start.weight + 137, (COUNT - 137) * sizeof *got.weight) == 0);
    CHECK(memcmp(got.m + 100, want.m + 100, 37 * sizeof *got.m) == 0);
}

/* A thread that flushes denormals or rounds otherwise gets the same bits, and its setting back. */
static void test_denormals(void)
{
    fill_gradients(FILL_SMALL, 0);
    fill_state(&start, FILL_SMALL);
    want = got = start;
    run_update(&want, 2, SDP_FP32, 0, COUNT);
    size_t denormal = 0;
    for (size_t i = 0; i < COUNT; i++)
        denormal += fpclassify(want.m[i]) == FP_SUBNORMAL;
    CHECK(denormal > COUNT / 2);
#ifdef __x86_64__
    unsigned before = _mm_getcsr(), flush = before | 0x8040u; /* FTZ and DAZ */
    _mm_setcsr(flush);
    run_update(&got, 2, SDP_FP32, 0, COUNT);
    unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK_EQ(after & 0x8040u, 0x8040u);
    CHECK(memcmp(&want, &got, sizeof want) == 0);
#endif
    got = start;
    struct sdp_adamw_args args = args_of(&got, 2, SDP_FP32);
    set_scalars(&args);
    REQUIRE(fesetround(FE_UPWARD) == 0);
    sdp_adamw_block(&args, 0, COUNT, &got.squares);
    CHECK_EQ(fegetround(), FE_UPWARD);
    REQUIRE(fesetround(FE_TONEAREST) == 0);
    CHECK(memcmp(&want, &got, sizeof want) == 0);
}

static void test_nan(void)
{
    fill_gradients(FILL_NORMAL, 1.0f);
    fill_state(&start, FILL_NORMAL);
    got = start;
    gradients32[0][5] = sdp_float_from_bits(0xff812345u);
    run_update(&got, 1, SDP_FP32, 0, 32);
    CHECK_EQ(sdp_bits_from_float(got.m[5]), 0x7fc00000);
    CHECK_EQ(sdp_bits_from_float(got.v[5]), 0x7fc00000);
    CHECK_EQ(got.weight[5], 0x7fc0);
    CHECK_EQ(got.remainder[5], 0);
    CHECK(isnan(got.squares) && !signbit(got.squares));
    CHECK(isfinite(got.m[4]) && isfinite(got.m[6]));
    run_reduce(&got, 1, SDP_FP32, SDP_FP32, 0, 32);
    CHECK_EQ(sdp_bits_from_float(got.out[5]), 0x7fc00000);
    run_reduce(&got, 1, SDP_FP32, SDP_BF16, 0, 32);
    CHECK_EQ(((uint16_t *)got.out)[5], 0x7fc0);
}

/* -- values ------------------------------------------------------------------------- */

/* One step from a given state, against double: errors in units of the last place. */
static void test_one_step(void)
{
    double worst_m = 0, worst_v = 0, worst_p = 0, lr = 1e-3, decay = 0.1, eps = 1e-8;
    fill_gradients(FILL_NORMAL, 1e-2f);
    fill_state(&start, FILL_NORMAL);
    got = start;
    struct sdp_adamw_args args = args_of(&got, 3, SDP_FP32);
    sdp_adamw_set(&args, lr, 0.9, 0.95, eps, decay, 7, 0.5f);
    sdp_adamw_block(&args, 0, COUNT, &got.squares);
    for (size_t i = 0; i < COUNT; i++) {
        double g = 0.5 * ((double)gradients32[0][i] + gradients32[1][i] + gradients32[2][i]);
        double a = 0.5 * (fabs(gradients32[0][i]) + fabs(gradients32[1][i]) +
                          fabs(gradients32[2][i])); /* what cancels in g leaves its rounding */
        double m = 0.9 * start.m[i] + 0.1 * g, v = 0.95 * start.v[i] + 0.05 * g * g;
        double p = sdp_master_join(start.weight[i], start.remainder[i]);
        double step = lr / (1 - pow(0.9, 7)) * m / (sqrt(v / (1 - pow(0.95, 7))) + eps);
        double result = p * (1 - lr * decay) - step;
        worst_m = fmax(worst_m, fabs(got.m[i] - m) / (0.9 * fabs(start.m[i]) + 0.1 * a));
        worst_v = fmax(worst_v, fabs(got.v[i] - v) / (v + 0.05 * a * a));
        worst_p = fmax(worst_p, fabs(sdp_master_join(got.weight[i], got.remainder[i]) - result) /
                                    (fabs(p) + fabs(step)));
    }
    CHECK_NEAR(worst_m, 0, 4 * 0x1p-24);
    CHECK_NEAR(worst_v, 0, 6 * 0x1p-24);
    CHECK_NEAR(worst_p, 0, 4 * 0x1p-24);
}

/* AdamW in the order and the roundings of the usual single-tensor code. */
struct plain {
    float p[COUNT], m[COUNT], v[COUNT];
};

static void plain_step(struct plain *x, const float *g, double lr, double beta1, double beta2,
                       double eps, double decay, uint64_t step)
{
    float shrink = (float)(1 - lr * decay), rest1 = (float)(1 - beta1);
    float rest2 = (float)(1 - beta2), b2 = (float)beta2;
    float rate = (float)(-lr / (1 - pow(beta1, (double)step)));
    float root = (float)sqrt(1 - pow(beta2, (double)step));
    for (size_t i = 0; i < COUNT; i++) {
        x->p[i] *= shrink;
        x->m[i] = x->m[i] + rest1 * (g[i] - x->m[i]);
        x->v[i] = x->v[i] * b2 + rest2 * g[i] * g[i];
        x->p[i] = x->p[i] + rate * x->m[i] / (sqrtf(x->v[i]) / root + (float)eps);
    }
}

static void double_step(double *p, double *m, double *v, const float *g, double lr, double beta1,
                        double beta2, double eps, double decay, uint64_t step)
{
    for (size_t i = 0; i < COUNT; i++) {
        double x = g[i], root = sqrt(1 - pow(beta2, (double)step));
        m[i] = beta1 * m[i] + (1 - beta1) * x;
        v[i] = beta2 * v[i] + (1 - beta2) * x * x;
        p[i] = p[i] * (1 - lr * decay) -
               lr / (1 - pow(beta1, (double)step)) * m[i] / (sqrt(v[i]) / root + eps);
    }
}

/* Errors of the kernel and of the plain fp32 code, both against double, after 1000 steps:
 * the kernel's is no larger (a bf16 master would be off by a thousand times as much). */
static void test_thousand_steps(void)
{
    static struct plain plain;
    static double p[COUNT], m[COUNT], v[COUNT];
    const double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.01;
    fill_state(&got, FILL_NORMAL);
    for (size_t i = 0; i < COUNT; i++) {
        got.m[i] = got.v[i] = plain.m[i] = plain.v[i] = 0;
        m[i] = v[i] = 0;
        p[i] = plain.p[i] = sdp_master_join(got.weight[i], got.remainder[i]);
    }
    struct sdp_adamw_args args = args_of(&got, 1, SDP_FP32);
    for (uint64_t step = 1; step <= 1000; step++) {
        for (size_t i = 0; i < COUNT; i++)
            gradients32[0][i] = 0.3f * sdp_random_normal(17, drawn++) + 10.0f * plain.p[i];
        sources32[0] = gradients32[0];
        sdp_adamw_set(&args, lr, beta1, beta2, eps, decay, step, 1.0f);
        sdp_adamw_block(&args, 0, COUNT, &got.squares);
        plain_step(&plain, gradients32[0], lr, beta1, beta2, eps, decay, step);
        double_step(p, m, v, gradients32[0], lr, beta1, beta2, eps, decay, step);
    }
    double ours = 0, theirs = 0, apart = 0, size = 0;
    for (size_t i = 0; i < COUNT; i++) {
        double mine = sdp_master_join(got.weight[i], got.remainder[i]);
        ours += (mine - p[i]) * (mine - p[i]);
        theirs += (plain.p[i] - p[i]) * (plain.p[i] - p[i]);
        apart = fmax(apart, fabs(mine - plain.p[i]));
        size += p[i] * p[i];
    }
    CHECK(ours <= 1.2 * 1.2 * theirs);
    CHECK_NEAR(sqrt(ours / size), 0, 1e-5);
    CHECK_NEAR(apart, 0, 2e-7);
}

/* Squares of the unscaled sum; the same whether reduced first or in the update's pass, and
 * then the same update. A plain sum over the lanes as described gives the same bits. */
static void test_squares(void)
{
    double lanes[16] = {0}, sum = 0;
    fill_gradients(FILL_NORMAL, 1.0f);
    fill_state(&start, FILL_NORMAL);
    want = got = start;
    run_update(&want, 3, SDP_BF16, 11, 1000);
    for (size_t i = 0; i < 1000; i++) {
        float g = sdp_bf16_to_float(gradients16[0][11 + i]);
        g += sdp_bf16_to_float(gradients16[1][11 + i]);
        g += sdp_bf16_to_float(gradients16[2][11 + i]);
        lanes[i % 16] += (double)g * g;
    }
    for (size_t k = 0; k < 16; k++)
        sum += lanes[k];
    CHECK(want.squares == sum);
    run_reduce(&got, 3, SDP_BF16, SDP_FP32, 11, 1000);
    CHECK(got.squares == sum);
    const void *reduced[] = {got.out};
    struct sdp_adamw_args args = args_of(&got, 1, SDP_FP32);
    args.gradients = reduced;
    set_scalars(&args);
    sdp_adamw_block(&args, 11, 1000, &got.squares);
    memcpy(got.out, want.out, sizeof got.out);
    CHECK(memcmp(&want, &got, sizeof want) == 0);

    /* Of the values as stored: bf16 halves of the sums. */
    double stored[16] = {0};
    run_reduce(&got, 3, SDP_BF16, SDP_BF16, 11, 1000);
    for (size_t i = 0; i < 1000; i++) {
        float g = sdp_bf16_to_float(((uint16_t *)got.out)[11 + i]);
        stored[i % 16] += (double)g * g;
    }
    sum = 0;
    for (size_t k = 0; k < 16; k++)
        sum += stored[k];
    CHECK(got.squares == sum && sum > 0);
}

/* Long reductions take another way to memory; aligned or not, into either type. */
static void test_long_reduction(void)
{
    const size_t count = SDPI_REDUCE_STREAM + 37, bytes = (count + 64) * sizeof(float);
    static const enum sdp_dtype types[] = {SDP_FP32, SDP_BF16};
    enum sdp_isa isa = sdp_adamw_isa();
    char *in = sdp_xcalloc(bytes, 1), *memory[2] = {sdp_xcalloc(bytes, 2), sdp_xcalloc(bytes, 2)};
    for (size_t i = 0; i < bytes / 2; i++) /* as fp32, too, these are ordinary numbers */
        ((uint16_t *)(void *)in)[i] = sdp_bf16_from_float(draw(FILL_NORMAL, 1.0f));
    const void *sources[] = {in, in + 16, in + 4};
    for (size_t k = 0; k < 12; k++) { /* two input types, two output types, three offsets */
        size_t offset = (size_t[]){0, 1, 16}[k / 4];
        double squares[2];
        for (size_t j = 0; j < 2; j++) {
            char *out = memory[j] + (64 - (uintptr_t)memory[j] % 64);
            memset(memory[j], 0x77, bytes * 2);
            REQUIRE(sdp_adamw_set_isa(j == 0 ? SDP_ISA_C : isa));
            sdp_reduce_block(sources, 3, types[k % 2], out, types[k / 2 % 2], offset,
                             count, &squares[j]);
        }
        size_t shift = 64 - (uintptr_t)memory[0] % 64, other = 64 - (uintptr_t)memory[1] % 64;
        CHECK(squares[0] == squares[1] && squares[0] > 0);
        CHECK(memcmp(memory[0] + shift, memory[1] + other, bytes) == 0);
    }
    free(in);
    free(memory[0]);
    free(memory[1]);
}

int main(void)
{
    enum sdp_isa best = sdp_adamw_isa();
    CHECK(!sdp_adamw_set_isa((enum sdp_isa)SDP_ISA_COUNT));
    CHECK_EQ(sdp_adamw_isa(), best);
    for (int isa = 0; isa < SDP_ISA_COUNT; isa++) {
        if (!sdp_adamw_set_isa((enum sdp_isa)isa))
            continue;
        fprintf(stderr, "version %s\n", sdp_isa_name((enum sdp_isa)isa));
        test_outside();
        test_denormals();
        test_nan();
        test_one_step();
        test_thousand_steps();
        test_squares();
        test_long_reduction();
        test_versions((enum sdp_isa)isa);
    }
    return sdp_test_end();
}
