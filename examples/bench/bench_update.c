/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory speed of the update, reduction and assembly kernels on 1, 2, 4, ... and all cores,
 * beside a triad a[i] = b[i] + s * c[i] in the same process.
 *     bench_update [millions of parameters, default 64] [most threads, default all cores]
 * Counted are the bytes that the code names, once for each read and each write: triad 12 an
 * element; update 26 a parameter with one bf16 gradient; reduction of two bf16 gradients to
 * fp32 8; assembly 8. Not counted is what a core reads only to overwrite: 4 bytes for the
 * triad, so that it moves 16; none for the others. Best of several passes. */
#include "codelets/deliver/assemble.h"
#include "codelets/update/adamw.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK  ((size_t)1 << 20) /* parameters a call, as the engine's */
#define PASSES 7
#define ANY_ISA ((enum sdp_isa)SDP_ISA_COUNT)

enum work { WORK_TOUCH, WORK_TRIAD, WORK_UPDATE, WORK_REDUCE, WORK_ASSEMBLE };

static struct {
    uint16_t *weight, *gradient[2];
    int16_t *remainder;
    float *m, *v, *out; /* out, m, v are the triad's arrays too */
    size_t blocks;
} data;

static struct {
    cpu_set_t cpus;
    size_t threads, cores;
    enum work work;
    pthread_barrier_t barrier;
    bool end;
} team;

/* Not inlined, so that the compiler sees no more of the arrays than the kernels' does. */
static __attribute__((noinline)) void triad(float *a, const float *b, const float *c, float s,
                                            size_t count)
{
    for (size_t i = 0; i < count; i++)
        a[i] = b[i] + s * c[i];
}

static void touch(size_t at)
{
    for (size_t i = at; i < at + BLOCK; i++) {
        sdp_master_split(0.02f * (float)(i % 1023) - 10.0f, &data.weight[i], &data.remainder[i]);
        data.m[i] = 1e-3f * (float)(i % 511);
        data.v[i] = 1e-6f * (float)(i % 509);
        data.out[i] = 0;
        for (size_t r = 0; r < 2; r++)
            data.gradient[r][i] = sdp_bf16_from_float(1e-3f * (float)(i % 253 + r));
    }
}

static void do_block(enum work work, const struct sdp_adamw_args *args, size_t at)
{
    double squares = 0;
    switch (work) {
    case WORK_TOUCH:
        touch(at);
        break;
    case WORK_TRIAD:
        triad(data.out + at, data.m + at, data.v + at, 0.5f, BLOCK);
        break;
    case WORK_UPDATE:
        sdp_adamw_block(args, at, BLOCK, &squares);
        break;
    case WORK_REDUCE:
        sdp_reduce_block(args->gradients, 2, SDP_BF16, data.out, SDP_FP32, at, BLOCK, &squares);
        break;
    case WORK_ASSEMBLE:
        sdp_assemble(data.weight + at, data.remainder + at, data.out + at, BLOCK);
        break;
    }
}

/* Each thread works on its own run of blocks. */
static void do_share(size_t thread, enum work work)
{
    const void *gradients[] = {data.gradient[0], data.gradient[1]};
    struct sdp_adamw_args args = {.weight = data.weight, .remainder = data.remainder,
                                  .m = data.m, .v = data.v, .gradients = gradients, .ranks = 1,
                                  .gradient_dtype = SDP_BF16};
    size_t first = data.blocks * thread / team.threads;
    size_t end = data.blocks * (thread + 1) / team.threads;
    sdp_adamw_set(&args, 1e-5, 0.9, 0.95, 1e-8, 0.1, 10, 1.0f);
    for (size_t b = first; b < end; b++)
        do_block(work, &args, b * BLOCK);
}

static void bind_to(size_t thread)
{
    for (size_t cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &team.cpus) || seen++ != thread % team.cores)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (pthread_setaffinity_np(pthread_self(), sizeof one, &one) != 0)
            fprintf(stderr, "bench_update: thread %zu is not bound\n", thread);
        return;
    }
}

static void meet(void)
{
    int rc = pthread_barrier_wait(&team.barrier);
    if (rc != 0 && rc != PTHREAD_BARRIER_SERIAL_THREAD)
        abort();
}

static void *member(void *arg)
{
    size_t thread = (size_t)(uintptr_t)arg;
    bind_to(thread);
    for (;;) {
        meet();
        if (team.end)
            return NULL;
        do_share(thread, team.work);
        meet();
    }
}

static double seconds(enum work work)
{
    team.work = work;
    double start = sdp_now();
    meet();
    meet();
    return sdp_now() - start;
}

/* The columns of the table. */
static const struct column {
    const char *title;
    enum work work;
    size_t bytes; /* of one element */
    enum sdp_isa isa;
} columns[] = {
    {"triad", WORK_TRIAD, 12, SDP_ISA_C},        {"c", WORK_UPDATE, 26, SDP_ISA_C},
    {"avx2", WORK_UPDATE, 26, SDP_ISA_AVX2},     {"avx512", WORK_UPDATE, 26, SDP_ISA_AVX512},
    {"reduce", WORK_REDUCE, 8, ANY_ISA},         {"assemble", WORK_ASSEMBLE, 8, ANY_ISA},
};

/* All columns in turn, several times, so that a disturbance hits no column alone. */
static void print_rates(enum sdp_isa best_isa)
{
    double best[SDP_COUNT_OF(columns)];
    for (size_t pass = 0; pass < PASSES; pass++) {
        for (size_t c = 0; c < SDP_COUNT_OF(columns); c++) {
            bool any = columns[c].isa == ANY_ISA;
            if (pass == 0)
                best[c] = INFINITY;
            if (sdp_adamw_set_isa(any ? best_isa : columns[c].isa))
                best[c] = fmin(best[c], seconds(columns[c].work));
        }
    }
    for (size_t c = 0; c < SDP_COUNT_OF(columns); c++) {
        double bytes = (double)(data.blocks * BLOCK * columns[c].bytes);
        printf(" %8.1f", bytes / best[c] * 1e-9); /* 0 where there is no such version */
    }
    putchar('\n');
}

/* One line of the table. */
static void measure(size_t threads, enum sdp_isa best_isa)
{
    pthread_t *ids = sdp_xcalloc(threads, sizeof *ids);
    team.threads = threads;
    team.end = false;
    if (pthread_barrier_init(&team.barrier, NULL, (unsigned)threads + 1) != 0)
        abort();
    for (size_t t = 0; t < threads; t++) {
        if (pthread_create(&ids[t], NULL, member, (void *)(uintptr_t)t) != 0)
            abort();
    }
    (void)seconds(WORK_TOUCH); /* the same values for every line; places memory the first time */
    printf("%7zu", threads);
    print_rates(best_isa);
    team.end = true;
    meet();
    for (size_t t = 0; t < threads; t++) {
        if (pthread_join(ids[t], NULL) != 0)
            abort();
    }
    if (pthread_barrier_destroy(&team.barrier) != 0)
        abort();
    free(ids);
}

static void *map_array(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "bench_update: no memory for %zu bytes\n", size);
        exit(1);
    }
    (void)madvise(p, size, MADV_HUGEPAGE); /* slower without, that is all */
    return p;
}

static size_t number(const char *text)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (n == 0 || n > 1000000 || *end || end == text) {
        fprintf(stderr, "bench_update: %s: not a number from 1 to 1000000\n", text);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    if (sched_getaffinity(0, sizeof team.cpus, &team.cpus) != 0) {
        fprintf(stderr, "bench_update: cannot read which cores may be used\n");
        return 1;
    }
    team.cores = (size_t)CPU_COUNT(&team.cpus);
    size_t most = argc > 2 ? number(argv[2]) : team.cores;
    data.blocks = (argc > 1 ? number(argv[1]) * 1000000 : (size_t)64 << 20) / BLOCK;
    data.blocks = SDP_MAX(data.blocks, most);
    size_t count = data.blocks * BLOCK;
    data.weight = map_array(count * sizeof *data.weight);
    data.remainder = map_array(count * sizeof *data.remainder);
    for (size_t r = 0; r < 2; r++)
        data.gradient[r] = map_array(count * sizeof *data.gradient[r]);
    data.m = map_array(count * sizeof *data.m);
    data.v = map_array(count * sizeof *data.v);
    data.out = map_array(count * sizeof *data.out);
    enum sdp_isa best = sdp_adamw_isa();
    printf("%zu parameters, %zu cores; GB/s as named (update: c, avx2, avx512; in use: %s)\n",
           count, team.cores, sdp_isa_name(best));
    printf("%7s", "threads");
    for (size_t c = 0; c < SDP_COUNT_OF(columns); c++)
        printf(" %8s", columns[c].title);
    putchar('\n');
    for (size_t threads = 1; threads < most; threads *= 2)
        measure(threads, best);
    measure(most, best);
    return 0;
}
