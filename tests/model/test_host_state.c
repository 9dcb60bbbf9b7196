/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Host state and its arena: sizes, areas, limits; blocks and chunks for many chunk
 * sizes; exact values; random weights that depend on seed, name and index alone. */
#include "model/state/host_state.h"
#include "model/state/limits.h"
#include "model/state/normal.h"

#include "codelets/common/device_memory.h"
#include "graph/base/log.h"
#include "tests/model/temp_folder.h"

enum { TABLE, BLOCK, EMPTY, MANY, STORAGES };

/* -- a graph by hand ---------------------------------------------------------------- */

static void add_param(struct sdp_storage *storage, const char *name, size_t rows, size_t cols,
                      double init_std, double init_value)
{
    struct sdp_param *param;

    storage->params =
        sdp_xrealloc(storage->params, (storage->param_count + 1) * sizeof *storage->params);
    param = &storage->params[storage->param_count++];
    *param = (struct sdp_param){.name = sdp_xstrdup(name),
                                .rows = rows,
                                .cols = cols,
                                .dims = rows > 1 ? 2 : 1,
                                .count = rows * cols,
                                .offset = storage->count,
                                .decay = rows > 1,
                                .init_std = init_std,
                                .init_value = init_value};
    storage->count += sdp_round_up(param->count, SDP_PARAM_ALIGN);
    storage->parameters += param->count;
}

/* A table of several blocks, a layer with padding (and a tensor of one element more than a
 * block), a storage without parameters, and one of more blocks than chunks are allowed. */
static struct sdp_model_graph *make_graph(void)
{
    struct sdp_model_graph *graph = sdp_xcalloc(1, sizeof *graph);
    struct sdp_storage *s;

    graph->storage_count = STORAGES;
    graph->storages = s = sdp_xcalloc(STORAGES, sizeof *s);
    add_param(&s[TABLE], "embed.weight", 3000, 1024, 0.02, 0);
    add_param(&s[BLOCK], "norm.weight", 1, 77, 0, 1);
    add_param(&s[BLOCK], "up.weight", 999, 333, 0.5, 0);
    add_param(&s[BLOCK], "wide.weight", 1, SDP_BLOCK + 1, 1, 0);
    add_param(&s[BLOCK], "bias", 1, 3, 0, -0.1);
    for (size_t i = 0; i < 150; i++) {
        char *name = sdp_xprintf("many.%zu", i);
        add_param(&s[MANY], name, 1, 100 + 37 * (i % 5), 1, 0);
        free(name);
    }
    return graph;
}

static void free_graph(struct sdp_model_graph *graph)
{
    for (size_t s = 0; s < graph->storage_count; s++) {
        for (size_t p = 0; p < graph->storages[s].param_count; p++)
            free(graph->storages[s].params[p].name);
        free(graph->storages[s].params);
    }
    free(graph->storages);
    free(graph);
}

/* -- blocks and chunks -------------------------------------------------------------- */

/* The blocks of a storage cover every parameter in order, each up to SDP_BLOCK. */
static void check_blocks(const struct sdp_storage *storage, const struct sdp_state_storage *s,
                         size_t *index)
{
    size_t b = 0;

    for (size_t p = 0; p < storage->param_count; p++) {
        const struct sdp_param *param = &storage->params[p];
        for (size_t done = 0; done < param->count; b++) {
            const struct sdp_block *block = &s->blocks[b];
            REQUIRE(b < s->block_count);
            CHECK_EQ(block->param, p);
            CHECK_EQ(block->offset, param->offset + done);
            CHECK_EQ(block->count, SDP_MIN(SDP_BLOCK, param->count - done));
            CHECK_EQ(block->index, (*index)++);
            CHECK(block->decay == param->decay);
            done += block->count;
        }
    }
    CHECK_EQ(s->block_count, b);
}

/* Chunks tile the storage and its blocks; each ends at the first block end (padding
 * included) at or past the size, or later where there would be too many. */
static void check_chunks(const struct sdp_state_storage *s, size_t chunk_bytes)
{
    size_t offset = 0, block = 0;
    bool grown = false;

    CHECK(s->chunk_count <= SDP_MAX_CHUNKS);
    for (size_t c = 0; c < s->chunk_count; c++) {
        const struct sdp_chunk *chunk = &s->chunks[c];
        const struct sdp_block *first = &s->blocks[chunk->first_block];
        size_t last = chunk->first_block + chunk->block_count - 1;

        CHECK_EQ(chunk->offset, offset);
        CHECK_EQ(chunk->first_block, block);
        REQUIRE(chunk->block_count > 0 && last < s->block_count);
        CHECK_EQ(first->offset, chunk->offset);
        CHECK(s->blocks[last].offset + s->blocks[last].count <= offset + chunk->count);
        CHECK_EQ(chunk->offset % SDP_PARAM_ALIGN, 0);
        if (c + 1 < s->chunk_count)
            CHECK(2 * chunk->count >= chunk_bytes);
        if (2 * (s->blocks[last].offset - offset) >= chunk_bytes && chunk->block_count > 1)
            grown = true;
        offset += chunk->count;
        block += chunk->block_count;
    }
    CHECK_EQ(offset, s->count);
    CHECK_EQ(block, s->block_count);
    CHECK(!grown || (s->block_count > SDP_MAX_CHUNKS && s->chunk_count >= SDP_MAX_CHUNKS / 2));
}

static void test_layout(const struct sdp_model_graph *graph)
{
    static const size_t sizes[] = {
        0,       1, 255, 4097, (size_t)1 << 20, 2 << 20, (2 << 20) + 1, 6000001, (size_t)32 << 20,
        SIZE_MAX};
    struct sdp_error err = SDP_ERROR_INIT;

    for (size_t i = 0; i < SDP_COUNT_OF(sizes); i++) {
        struct sdp_host_state *state = NULL;
        size_t index = 0;

        REQUIRE_OK(sdp_host_state_layout(graph, sizes[i], &state, &err), &err);
        CHECK(state->graph == graph && !state->arena);
        for (size_t s = 0; s < graph->storage_count; s++) {
            const struct sdp_state_storage *storage = &state->storages[s];
            CHECK(!storage->weight && !storage->remainder && !storage->m && !storage->v);
            CHECK_EQ(storage->count, graph->storages[s].count);
            check_blocks(&graph->storages[s], storage, &index);
            check_chunks(storage, sizes[i]);
        }
        CHECK_EQ(state->block_count, index);
        CHECK_EQ(state->storages[EMPTY].chunk_count, 0);
        if (sizes[i] == 2 << 20) /* one block each */
            CHECK_EQ(state->storages[TABLE].chunk_count, 3);
        if (sizes[i] == (2 << 20) + 1) /* two, and the one left */
            CHECK_EQ(state->storages[TABLE].chunk_count, 2);
        if (sizes[i] == SIZE_MAX)
            CHECK_EQ(state->storages[MANY].chunk_count, 1);
        sdp_host_state_destroy(state);
    }
    sdp_host_state_destroy(NULL);
}

/* A layer far larger than this machine's memory: only laid out. */
static void test_large_layout(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = sdp_xcalloc(1, sizeof *graph);
    struct sdp_host_state *state = NULL;
    size_t index = 0;

    graph->storage_count = 1;
    graph->storages = sdp_xcalloc(1, sizeof *graph->storages);
    add_param(&graph->storages[0], "huge", (size_t)1 << 20, (size_t)1 << 15, 1, 0);
    REQUIRE_OK(sdp_host_state_layout(graph, (size_t)32 << 20, &state, &err), &err);
    check_blocks(&graph->storages[0], &state->storages[0], &index);
    check_chunks(&state->storages[0], (size_t)32 << 20);
    CHECK_EQ(sdp_host_state_bytes(graph), (long long)12 << 35);
    sdp_host_state_destroy(state);
    free_graph(graph);
}

/* One block more than chunks are allowed, and exactly as many. */
static void test_chunk_limit(void)
{
    struct sdp_error err = SDP_ERROR_INIT;

    for (size_t blocks = SDP_MAX_CHUNKS; blocks <= SDP_MAX_CHUNKS + 1; blocks++) {
        struct sdp_model_graph *graph = sdp_xcalloc(1, sizeof *graph);
        struct sdp_host_state *state = NULL;

        graph->storage_count = 1;
        graph->storages = sdp_xcalloc(1, sizeof *graph->storages);
        add_param(&graph->storages[0], "edge", blocks, SDP_BLOCK, 1, 0);
        REQUIRE_OK(sdp_host_state_layout(graph, 1, &state, &err), &err);
        check_chunks(&state->storages[0], 1);
        CHECK_EQ(state->storages[0].chunk_count, blocks == SDP_MAX_CHUNKS ? blocks : 33);
        sdp_host_state_destroy(state);
        free_graph(graph);
    }
}

/* -- memory ------------------------------------------------------------------------- */

static void test_arena(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    const size_t takes[] = {1, 4096, 4097, 0, (3 << 20) + 5}, page = 4096;
    size_t total = 0, used = 0;

    for (size_t i = 0; i < SDP_COUNT_OF(takes); i++)
        total += sdp_round_up(takes[i], page);
    for (unsigned threads = 0; threads <= 67; threads = threads ? threads * 8 + 3 : 1) {
        struct sdp_arena *arena = NULL;
        uint8_t *base = NULL;

        REQUIRE_OK(sdp_arena_create(total, threads, true, "test", &arena, &err), &err);
        CHECK(sdp_arena_bytes(arena) >= total);
        for (size_t i = used = 0; i < SDP_COUNT_OF(takes); i++) {
            uint8_t *area = sdp_arena_take(arena, takes[i]);
            base = base ? base : area;
            CHECK_EQ((uintptr_t)area % page, 0);
            CHECK(area == base + used);
            for (size_t k = 0; k < takes[i]; k++)
                if (area[k] != 0) {
                    SDP_TEST_FAIL("byte %zu of area %zu is not zero", k, i);
                    break;
                }
            memset(area, 0xff, takes[i]);
            used += sdp_round_up(takes[i], page);
        }
        if (sdp_cuda_device_count() == 0)
            CHECK(!sdp_arena_is_pinned(arena));
        sdp_arena_destroy(arena);
    }
    sdp_arena_destroy(NULL);
}

static void test_arena_too_large(void)
{
    const size_t sizes[] = {(size_t)1 << 60, SIZE_MAX};
    enum sdp_log_level level = sdp_log_level();

    sdp_log_set_level(SDP_LOG_QUIET); /* more than is available: warned of */
    for (size_t i = 0; i < SDP_COUNT_OF(sizes); i++) {
        struct sdp_error err = SDP_ERROR_INIT;
        struct sdp_arena *arena = NULL;
        CHECK_EQ(sdp_arena_create(sizes[i], 1, false, "a giant", &arena, &err), SDP_NOMEM);
        CHECK_CONTAINS(err.text, "a giant");
        CHECK(!arena);
    }
    sdp_log_set_level(level);
}

static void put(const char *name, const char *text)
{
    char *path = temp_path(name), *folder = sdp_path_folder(path);
    struct sdp_error err = SDP_ERROR_INIT;

    REQUIRE_OK(sdp_make_dirs(folder, &err), &err);
    REQUIRE_OK(sdp_write_file(path, text, strlen(text), &err), &err);
    free(folder);
    free(path);
}

static size_t limit_of(const char *groups)
{
    char *file = temp_path("groups");
    size_t limit;

    put("groups", groups);
    limit = sdpi_cgroup_memory_limit(file, temp_root);
    free(file);
    return limit;
}

static void test_limits(void)
{
    temp_begin();
    put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("memory/job/memory.limit_in_bytes", "3000\n");
    put("memory/job/step/memory.limit_in_bytes", "5000\n");
    put("slice/memory.max", "700\n");
    put("slice/scope/memory.max", "max\n");
    put("unified/u/memory.max", "42\n");
    CHECK(limit_of("4:cpu:/job\n0::/\n") == SIZE_MAX);
    CHECK_EQ(limit_of("4:memory:/job/step\n0::/\n"), 3000); /* the group above binds */
    CHECK_EQ(limit_of("4:cpu,memory:/job\n"), 3000);
    CHECK(limit_of("4:memory2,amemory:/job\n") == SIZE_MAX);
    CHECK_EQ(limit_of("4:memory:/not/seen/from/here\n"), 9223372036854771712ll);
    CHECK_EQ(limit_of("0::/slice/scope\n"), 700);
    CHECK_EQ(limit_of("4:memory:/job\n0::/u"), 42);
    CHECK(limit_of("") == SIZE_MAX);
    CHECK(limit_of("nonsense\n1:\n::\n") == SIZE_MAX);
    CHECK(sdpi_cgroup_memory_limit("/nonexistent", temp_root) == SIZE_MAX);
    temp_end();
    CHECK(sdpi_available_memory() > 0);
    CHECK(sdpi_thread_count(0) >= 1);
    CHECK_EQ(sdpi_thread_count(5), 5);
}

/* -- values ------------------------------------------------------------------------- */

static struct sdp_host_state *make_state(const struct sdp_model_graph *graph, size_t chunk_bytes)
{
    struct sdp_host_state_options options = {.chunk_bytes = chunk_bytes, .threads = 2};
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_host_state *state = NULL;

    REQUIRE_OK(sdp_host_state_create(graph, &options, &state, &err), &err);
    return state;
}

static void check_zero(const void *data, size_t bytes, const char *what)
{
    const uint8_t *byte = data;

    for (size_t i = 0; i < bytes; i++)
        if (byte[i]) {
            SDP_TEST_FAIL("%s: byte %zu is not zero", what, i);
            return;
        }
    CHECK(bytes == 0 || byte != NULL);
}

/* Moments are zero, and so is what lies between the tensors. */
static void check_rest_is_zero(const struct sdp_host_state *state)
{
    for (size_t s = 0; s < state->graph->storage_count; s++) {
        const struct sdp_storage *storage = &state->graph->storages[s];
        const struct sdp_state_storage *to = &state->storages[s];

        check_zero(to->m, to->count * sizeof *to->m, "m");
        check_zero(to->v, to->count * sizeof *to->v, "v");
        for (size_t p = 0; p < storage->param_count; p++) {
            size_t end = storage->params[p].offset + storage->params[p].count;
            size_t next =
                p + 1 < storage->param_count ? storage->params[p + 1].offset : storage->count;
            check_zero(to->weight + end, (next - end) * 2, "padding of weights");
            check_zero(to->remainder + end, (next - end) * 2, "padding of remainders");
        }
    }
}

static void test_state_memory(const struct sdp_model_graph *graph)
{
    struct sdp_host_state *state = make_state(graph, 1 << 20);
    size_t bytes = 0;

    for (size_t s = 0; s < graph->storage_count; s++) {
        const struct sdp_state_storage *to = &state->storages[s];
        CHECK_EQ((uintptr_t)to->weight % 4096, 0);
        CHECK_EQ((uintptr_t)to->remainder % 4096, 0);
        CHECK_EQ((uintptr_t)to->m % 4096, 0);
        CHECK_EQ((uintptr_t)to->v % 4096, 0);
        bytes += 12 * to->count;
    }
    CHECK(sdp_host_state_bytes(graph) >= bytes);
    CHECK(sdp_host_state_bytes(graph) <= bytes + graph->storage_count * 4 * 4096);
    CHECK_EQ(sdp_arena_bytes(state->arena), sdp_host_state_bytes(graph));
    check_rest_is_zero(state);
    sdp_host_state_destroy(state);
}

static void test_set_get(const struct sdp_model_graph *graph)
{
    enum { COUNT = 5000, FIRST = 1234 };
    static const uint32_t special[] = {
        0,           0x80000000u, 1,           0x80000001u, 0x7f800000u, 0xff800000u, 0x3f808000u,
        0x3f807fffu, 0x3f818000u, 0x007fffffu, 0x7f7fffffu, 0xff7fffffu, 0x0000ffffu, 0xbf808000u};
    static float values[COUNT], back[COUNT + 2];
    struct sdp_host_state *state = make_state(graph, 4096);
    float nan = sdp_float_from_bits(0xffc12345u);

    for (size_t i = 0; i < COUNT; i++) {
        uint32_t bits = (uint32_t)sdp_random_u64(7, i);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            bits &= 0xff7fffffu;
        values[i] = sdp_float_from_bits(i < SDP_COUNT_OF(special) ? special[i] : bits);
    }
    sdp_host_state_set(state, BLOCK, 1, FIRST, COUNT, values);
    sdp_host_state_get(state, BLOCK, 1, FIRST - 1, COUNT + 2, back);
    CHECK(memcmp(back + 1, values, sizeof values) == 0);
    CHECK(back[0] == 0.0f && back[COUNT + 1] == 0.0f);
    check_rest_is_zero(state);
    sdp_host_state_set(state, BLOCK, 3, 2, 1, &nan);
    sdp_host_state_get(state, BLOCK, 3, 2, 1, back);
    CHECK_EQ(sdp_bits_from_float(back[0]), 0x7fc00000);
    sdp_host_state_set(state, BLOCK, 3, 0, 0, NULL);
    sdp_host_state_destroy(state);
}

/* -- random weights ----------------------------------------------------------------- */

static bool same_weights(const struct sdp_host_state *a, const struct sdp_host_state *b, size_t s)
{
    size_t bytes = a->storages[s].count * 2;

    return memcmp(a->storages[s].weight, b->storages[s].weight, bytes) == 0 &&
           memcmp(a->storages[s].remainder, b->storages[s].remainder, bytes) == 0;
}

static void test_init(struct sdp_model_graph *graph)
{
    static const unsigned threads[] = {2, 3, 9, 0};
    struct sdp_host_state *one = make_state(graph, 1 << 20), *other = NULL;
    float value[2], moved[2];

    sdp_host_state_init_random(one, 42, 1);
    check_rest_is_zero(one);
    for (size_t i = 0; i < SDP_COUNT_OF(threads); i++) {
        other = make_state(graph, (size_t)4096 << i);
        sdp_host_state_init_random(other, 42, threads[i]);
        for (size_t s = 0; s < STORAGES; s++)
            CHECK(s == EMPTY || same_weights(one, other, s));
        sdp_host_state_destroy(other);
    }
    other = make_state(graph, 1 << 20);
    sdp_host_state_init_random(other, 43, 2);
    CHECK(!same_weights(one, other, TABLE));
    for (size_t p = 0; p < 4; p += 3)
        for (size_t i = 0; i < graph->storages[BLOCK].params[p].count; i++) {
            sdp_host_state_get(other, BLOCK, p, i, 1, value);
            CHECK(value[0] == (float)graph->storages[BLOCK].params[p].init_value);
        }
    for (size_t b = 0; b < one->storages[TABLE].block_count; b++) { /* the index goes on */
        uint64_t key = sdp_random_key(42, graph->storages[TABLE].params[0].name);
        sdpi_fill_normal(moved, key, b * SDP_BLOCK + 5000, 2, 0.02f);
        sdp_host_state_get(one, TABLE, 0, b * SDP_BLOCK + 5000, 2, value);
        CHECK(memcmp(value, moved, sizeof value) == 0);
    }
    /* By name and index, not by place: the same name elsewhere gives the same numbers. */
    sdp_host_state_get(other, MANY, 3, 98, 2, value);
    free(graph->storages[MANY].params[144].name);
    graph->storages[MANY].params[144].name = sdp_xstrdup(graph->storages[MANY].params[3].name);
    sdp_host_state_init_random(other, 43, 2);
    sdp_host_state_get(other, MANY, 144, 98, 2, moved);
    CHECK(memcmp(value, moved, sizeof value) == 0);
    sdp_host_state_get(other, MANY, 4, 98, 2, moved);
    CHECK(value[0] != moved[0] && value[1] != moved[1]);
    sdp_host_state_destroy(one);
    sdp_host_state_destroy(other);
}

/* Any even start and any length give the same numbers as one long run (the vector loop and
 * what is left after it agree). */
static void test_normal_parts(void)
{
    static float all[3000], part[300];

    sdpi_fill_normal(all, 5, 0, SDP_COUNT_OF(all), 1.0f);
    for (size_t count = 0; count < SDP_COUNT_OF(part); count++) {
        size_t first = 2 * (count * 7 % 1300);
        sdpi_fill_normal(part, 5, first, count, 1.0f);
        CHECK(memcmp(part, all + first, count * sizeof *part) == 0);
    }
}

/* Moments, neighbours, tails and 16 equally likely bins, each within five standard
 * deviations of what a normal law gives. */
static void test_distribution(void)
{
    enum { N = 1 << 22, BINS = 16 };
    static const double edges[BINS / 2 - 1] = {
        0.15731068461017067, 0.31863936396437514, 0.48877641111466946, 0.67448975019608171,
        0.88714655901887599, 1.1503493803760079,  1.5341205443525463};
    float *x = sdp_xcalloc(N, sizeof *x);
    double sum[5] = {0}, neighbours[3] = {0}, squares = 0, chi = 0, n = N;
    size_t bins[BINS] = {0}, beyond3 = 0, beyond4 = 0;

    sdpi_fill_normal(x, sdp_random_key(1, "a.weight"), 0, N, 1.0f);
    for (size_t i = 0; i < N; i++) {
        double v = x[i], size = fabs(v), power = 1;
        size_t bin = 0;
        for (size_t k = 0; k < 5; k++, power *= v)
            sum[k] += power;
        for (size_t k = 0; k < 3 && i > k; k++)
            neighbours[k] += v * (double)x[i - k - 1];
        if (i % 2) /* the two of a pair share a radius: their sizes must not show it */
            squares += (v * v - 1) * ((double)x[i - 1] * (double)x[i - 1] - 1);
        beyond3 += size > 3;
        beyond4 += size > 4;
        while (bin < BINS / 2 - 1 && size > edges[bin])
            bin++;
        bins[v < 0 ? BINS / 2 + bin : bin]++;
    }
    CHECK_NEAR(sum[1] / n, 0, 5 / sqrt(n));
    CHECK_NEAR(sum[2] / n, 1, 5 * sqrt(2 / n));
    CHECK_NEAR(sum[3] / n, 0, 5 * sqrt(15 / n));
    CHECK_NEAR(sum[4] / n, 3, 5 * sqrt(96 / n));
    for (size_t k = 0; k < 3; k++)
        CHECK_NEAR(neighbours[k] / n, 0, 5 / sqrt(n));
    CHECK_NEAR(squares / (n / 2), 0, 5 * 2 / sqrt(n / 2));
    CHECK_NEAR((double)beyond3, 2.6997960632601866e-3 * n, 5 * sqrt(2.7e-3 * n));
    CHECK_NEAR((double)beyond4, 6.3342483666239957e-5 * n, 5 * sqrt(6.34e-5 * n));
    for (size_t b = 0; b < BINS; b++)
        chi += ((double)bins[b] - n / BINS) * ((double)bins[b] - n / BINS) / (n / BINS);
    CHECK_NEAR(chi, 15, 5 * sqrt(2.0 * 15));
    free(x);
}

int main(void)
{
    struct sdp_model_graph *graph = make_graph();

    test_arena();
    test_arena_too_large();
    test_limits();
    test_layout(graph);
    test_large_layout();
    test_chunk_limit();
    test_state_memory(graph);
    test_set_get(graph);
    test_normal_parts();
    test_distribution();
    test_init(graph); /* renames a parameter: last */
    free_graph(graph);
    return sdp_test_end();
}
