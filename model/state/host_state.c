/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Blocks, chunks and arrays of the host state. */
#include "model/state/host_state.h"

#include "model/state/limits.h"
#include "model/state/normal.h"

#include <pthread.h>
#include <stdlib.h>

/* -- layout ---------------------------------------------------------------------------- */

static size_t block_count_of(const struct sdp_storage *storage)
{
    size_t count = 0;
    for (size_t p = 0; p < storage->param_count; p++)
        count += (storage->params[p].count + SDP_BLOCK - 1) / SDP_BLOCK;
    return count;
}

static void make_blocks(const struct sdp_storage *storage, struct sdp_state_storage *out,
                        size_t *index)
{
    out->blocks = sdp_xcalloc(block_count_of(storage), sizeof *out->blocks);
    for (size_t p = 0; p < storage->param_count; p++) {
        const struct sdp_param *param = &storage->params[p];
        for (size_t done = 0; done < param->count; done += SDP_BLOCK)
            out->blocks[out->block_count++] =
                (struct sdp_block){.offset = param->offset + done,
                                   .count = SDP_MIN(SDP_BLOCK, param->count - done),
                                   .param = p,
                                   .index = (*index)++,
                                   .decay = param->decay};
    }
}

/* End of block b: the next one's start, so that padding belongs to the block before it. */
static size_t block_end(const struct sdp_state_storage *s, size_t b)
{
    return b + 1 < s->block_count ? s->blocks[b + 1].offset : s->count;
}

static size_t cut(struct sdp_state_storage *s, size_t elements, struct sdp_chunk *chunks)
{
    size_t count = 0, start = 0, first = 0;
    for (size_t b = 0; b < s->block_count; b++) {
        size_t end = block_end(s, b);
        if (end - start < elements && b + 1 < s->block_count)
            continue;
        if (chunks)
            chunks[count] = (struct sdp_chunk){start, end - start, first, b + 1 - first};
        count++;
        start = end;
        first = b + 1;
    }
    return count;
}

static void make_chunks(struct sdp_state_storage *s, size_t chunk_bytes)
{
    size_t elements = SDP_MAX(chunk_bytes / 2 + chunk_bytes % 2, (size_t)1);
    while (cut(s, elements, NULL) > SDP_MAX_CHUNKS)
        elements += elements / 4 + 1;
    s->chunk_count = cut(s, elements, NULL);
    s->chunks = sdp_xcalloc(s->chunk_count, sizeof *s->chunks);
    (void)cut(s, elements, s->chunks);
}

enum sdp_status sdp_host_state_layout(const struct sdp_model_graph *graph, size_t chunk_bytes,
                                      struct sdp_host_state **out, struct sdp_error *err)
{
    struct sdp_host_state *state = sdp_xcalloc(1, sizeof *state);
    (void)err;
    state->graph = graph;
    state->storages = sdp_xcalloc(graph->storage_count, sizeof *state->storages);
    for (size_t s = 0; s < graph->storage_count; s++) {
        struct sdp_state_storage *storage = &state->storages[s];
        storage->count = graph->storages[s].count;
        make_blocks(&graph->storages[s], storage, &state->block_count);
        make_chunks(storage, chunk_bytes);
    }
    *out = state;
    return SDP_OK;
}

static size_t storage_bytes(size_t count)
{
    return 2 * sdp_round_up(count * 2, 4096) + 2 * sdp_round_up(count * 4, 4096);
}

size_t sdp_host_state_bytes(const struct sdp_model_graph *graph)
{
    size_t bytes = 0;
    for (size_t s = 0; s < graph->storage_count; s++)
        bytes += storage_bytes(graph->storages[s].count);
    return bytes;
}

enum sdp_status sdp_host_state_create(const struct sdp_model_graph *graph,
                                      const struct sdp_host_state_options *options,
                                      struct sdp_host_state **out, struct sdp_error *err)
{
    struct sdp_host_state *state = NULL;
    enum sdp_status rc = sdp_host_state_layout(graph, options->chunk_bytes, &state, err);
    if (!rc)
        rc = sdp_arena_create(sdp_host_state_bytes(graph), options->threads, options->pin,
                              "the host state", &state->arena, err);
    if (rc) {
        sdp_host_state_destroy(state);
        return rc;
    }
    for (size_t s = 0; s < graph->storage_count; s++) {
        struct sdp_state_storage *storage = &state->storages[s];
        storage->weight = sdp_arena_take(state->arena, storage->count * sizeof *storage->weight);
        storage->remainder =
            sdp_arena_take(state->arena, storage->count * sizeof *storage->remainder);
        storage->m = sdp_arena_take(state->arena, storage->count * sizeof *storage->m);
        storage->v = sdp_arena_take(state->arena, storage->count * sizeof *storage->v);
    }
    *out = state;
    return SDP_OK;
}

void sdp_host_state_destroy(struct sdp_host_state *state)
{
    if (!state)
        return;
    for (size_t s = 0; s < state->graph->storage_count; s++) {
        free(state->storages[s].blocks);
        free(state->storages[s].chunks);
    }
    free(state->storages);
    sdp_arena_destroy(state->arena);
    free(state);
}

/* -- values -------------------------------------------------------------------------------- */

void sdp_host_state_set(struct sdp_host_state *state, size_t storage, size_t param, size_t first,
                        size_t count, const float *values)
{
    struct sdp_state_storage *s = &state->storages[storage];
    size_t offset = state->graph->storages[storage].params[param].offset + first;
    for (size_t i = 0; i < count; i++)
        sdp_master_split(values[i], &s->weight[offset + i], &s->remainder[offset + i]);
}

void sdp_host_state_get(const struct sdp_host_state *state, size_t storage, size_t param,
                        size_t first, size_t count, float *values)
{
    const struct sdp_state_storage *s = &state->storages[storage];
    size_t offset = state->graph->storages[storage].params[param].offset + first;
    for (size_t i = 0; i < count; i++)
        values[i] = sdp_master_join(s->weight[offset + i], s->remainder[offset + i]);
}

/* -- random weights ------------------------------------------------------------------------- */

struct init {
    struct sdp_host_state *state;
    uint64_t seed;
    size_t next; /* block, atomically */
};

static void init_block(const struct init *init, size_t storage, const struct sdp_block *block)
{
    float values[4096];
    const struct sdp_param *param = &init->state->graph->storages[storage].params[block->param];
    uint64_t key = sdp_random_key(init->seed, param->name);
    size_t start = block->offset - param->offset;
    for (size_t done = 0; done < block->count; done += SDP_COUNT_OF(values)) {
        size_t count = SDP_MIN(SDP_COUNT_OF(values), block->count - done);
        if (param->init_std > 0)
            sdpi_fill_normal(values, key, start + done, count, (float)param->init_std);
        for (size_t i = 0; param->init_std <= 0 && i < count; i++)
            values[i] = (float)param->init_value;
        sdp_host_state_set(init->state, storage, block->param, start + done, count, values);
    }
}

static void *init_thread(void *arg)
{
    struct init *init = arg;
    const struct sdp_host_state *state = init->state;
    for (;;) {
        size_t index = __atomic_fetch_add(&init->next, 1, __ATOMIC_RELAXED), storage = 0;
        if (index >= state->block_count)
            return NULL;
        while (index >= state->storages[storage].block_count) /* which may be 0 */
            index -= state->storages[storage++].block_count;
        init_block(init, storage, &state->storages[storage].blocks[index]);
    }
}

void sdp_host_state_init_random(struct sdp_host_state *state, uint64_t seed, unsigned threads)
{
    struct init init = {state, seed, 0};
    unsigned count = sdpi_thread_count(threads), started = 0;
    pthread_t *others = sdp_xcalloc(count, sizeof *others);
    while (started + 1 < count && pthread_create(&others[started], NULL, init_thread, &init) == 0)
        started++;
    init_thread(&init);
    for (unsigned i = 0; i < started; i++)
        (void)pthread_join(others[i], NULL);
    free(others);
}
