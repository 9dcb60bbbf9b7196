/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A small model and its host state made by hand, for tests of what lies on top of them:
 * no StarPU, no arena, arrays from malloc. */
#ifndef SDP_TESTS_MODEL_FAKE_STATE_H
#define SDP_TESTS_MODEL_FAKE_STATE_H

#include "model/state/host_state.h"
#include "tests/sdp_test.h"

#include <stdlib.h>

#define FAKE_BLOCKS 2u

/* Appends a parameter of [rows, cols], or of [cols] when rows is 0. */
static inline void fake_param(struct sdp_storage *storage, const char *name, size_t rows,
                              size_t cols)
{
    struct sdp_param *param;

    storage->params = sdp_xrealloc(storage->params,
                                   (storage->param_count + 1) * sizeof *storage->params);
    param = &storage->params[storage->param_count++];
    *param = (struct sdp_param){
        .name = sdp_xstrdup(name),
        .rows = rows ? rows : 1,
        .cols = cols,
        .dims = rows ? 2 : 1,
        .count = (rows ? rows : 1) * cols,
        .offset = storage->count,
    };
    storage->count += sdp_round_up(param->count, SDP_PARAM_ALIGN);
    storage->parameters += param->count;
}

/* An embedding of `vocabulary` ids, FAKE_BLOCKS blocks (one of their tensors has an odd
 * number of elements), a norm and a head, which may be tied to the embedding. */
static inline struct sdp_model_graph *fake_graph(size_t vocabulary, bool tied)
{
    static const struct sdp_op loss = {.name = "cross_entropy", .is_loss = true};
    struct sdp_model_graph *graph = sdp_xcalloc(1, sizeof *graph);
    size_t head = FAKE_BLOCKS + 2, hidden = 8;

    graph->name = sdp_xstrdup("fake");
    graph->vocabulary = vocabulary;
    graph->hidden = hidden;
    graph->layer_count = head + 1;
    graph->layers = sdp_xcalloc(graph->layer_count, sizeof *graph->layers);
    graph->storage_count = tied ? head : head + 1;
    graph->storages = sdp_xcalloc(graph->storage_count, sizeof *graph->storages);
    fake_param(&graph->storages[0], "model.embed_tokens.weight", vocabulary, hidden);
    for (size_t b = 0; b < FAKE_BLOCKS; b++) {
        static const struct {
            const char *name;
            size_t rows, cols;
        } params[] = {{"input_layernorm.weight", 0, 8},
                      {"self_attn.q_proj.weight", 16, 8},
                      {"self_attn.q_proj.bias", 0, 15},
                      {"mlp.down_proj.weight", 8, 33}};

        for (size_t p = 0; p < SDP_COUNT_OF(params); p++) {
            char *name = sdp_xprintf("model.layers.%zu.%s", b, params[p].name);
            fake_param(&graph->storages[1 + b], name, params[p].rows, params[p].cols);
            free(name);
        }
    }
    fake_param(&graph->storages[head - 1], "model.norm.weight", 0, hidden);
    if (!tied)
        fake_param(&graph->storages[head], "lm_head.weight", vocabulary, hidden);
    for (size_t l = 0; l < graph->layer_count; l++) {
        struct sdp_layer *layer = &graph->layers[l];

        layer->index = l;
        layer->storage = l == head && tied ? 0 : l;
        layer->op_count = 1;
        layer->ops = sdp_xcalloc(1, sizeof *layer->ops);
        layer->is_loss = l == head;
        if (layer->is_loss) {
            layer->ops[0].node.op = &loss;
            layer->ops[0].node.weight_count = 1;
        }
    }
    for (size_t s = 0; s < graph->storage_count; s++)
        graph->parameters += graph->storages[s].parameters;
    return graph;
}

static inline void fake_graph_free(struct sdp_model_graph *graph)
{
    for (size_t s = 0; s < graph->storage_count; s++) {
        for (size_t p = 0; p < graph->storages[s].param_count; p++)
            free(graph->storages[s].params[p].name);
        free(graph->storages[s].params);
    }
    for (size_t l = 0; l < graph->layer_count; l++)
        free(graph->layers[l].ops);
    free(graph->storages);
    free(graph->layers);
    free(graph->name);
    free(graph);
}

/* All arrays filled with bytes 0xa5, so that padding and tensors that nothing wrote can
 * be told. */
static inline struct sdp_host_state *fake_state(const struct sdp_model_graph *graph)
{
    struct sdp_host_state *state = sdp_xcalloc(1, sizeof *state);

    state->graph = graph;
    state->storages = sdp_xcalloc(graph->storage_count, sizeof *state->storages);
    for (size_t s = 0; s < graph->storage_count; s++) {
        struct sdp_state_storage *storage = &state->storages[s];
        size_t count = graph->storages[s].count;

        storage->count = count;
        storage->weight = sdp_xcalloc(count, sizeof *storage->weight);
        storage->remainder = sdp_xcalloc(count, sizeof *storage->remainder);
        storage->m = sdp_xcalloc(count, sizeof *storage->m);
        storage->v = sdp_xcalloc(count, sizeof *storage->v);
        memset(storage->weight, 0xa5, count * sizeof *storage->weight);
        memset(storage->remainder, 0xa5, count * sizeof *storage->remainder);
        memset(storage->m, 0xa5, count * sizeof *storage->m);
        memset(storage->v, 0xa5, count * sizeof *storage->v);
    }
    return state;
}

static inline void fake_state_free(struct sdp_host_state *state)
{
    for (size_t s = 0; s < state->graph->storage_count; s++) {
        free(state->storages[s].weight);
        free(state->storages[s].remainder);
        free(state->storages[s].m);
        free(state->storages[s].v);
    }
    free(state->storages);
    free(state);
}

/* Random masters of all magnitudes (also bits that rounding ties on) and moments. */
static inline void fake_state_fill(struct sdp_host_state *state, uint64_t seed)
{
    uint64_t n = 0;

    for (size_t s = 0; s < state->graph->storage_count; s++) {
        const struct sdp_storage *storage = &state->graph->storages[s];

        for (size_t p = 0; p < storage->param_count; p++)
            for (size_t i = 0; i < storage->params[p].count; i++, n++) {
                struct sdp_state_storage *to = &state->storages[s];
                size_t at = storage->params[p].offset + i;
                uint32_t bits = (uint32_t)sdp_random_u64(seed, 3 * n);

                if (n % 5 == 0) /* halfway between two bf16 */
                    bits = (bits & 0xffff0000u) | 0x8000u;
                if ((bits & 0x7f800000u) == 0x7f800000u) /* no NaN: it has one form */
                    bits &= 0xff7fffffu;
                sdp_master_split(sdp_float_from_bits(bits), &to->weight[at],
                                 &to->remainder[at]);
                to->m[at] = sdp_random_normal(seed, 3 * n + 1);
                to->v[at] = sdp_float_from_bits((uint32_t)n * 7919u); /* denormals too */
            }
    }
}

#endif
