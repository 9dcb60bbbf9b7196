/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The authoritative host state: weights, remainders and Adam moments of every
 * parameter, once for all devices; 12 bytes a parameter (design section 4).
 *
 * A storage (the packed parameters of a layer) is cut into *blocks*: at most
 * SDP_BLOCK consecutive elements of one tensor. Blocks are the unit of the
 * gradient norm and of the optimiser's per-tensor settings, and do not depend on
 * the chunk size. A *chunk* is a run of consecutive blocks of one storage: the
 * unit of a StarPU handle, of delivery, reduction and update. Padding between
 * tensors belongs to the block before it, holds zero, and is never updated.
 *
 * Arrays of a storage are contiguous (one for weights, one for remainders, one
 * for m, one for v), each chunk a slice of them, inside one arena. */
#ifndef SDP_MODEL_STATE_HOST_STATE_H
#define SDP_MODEL_STATE_HOST_STATE_H

#include "graph/model_graph.h"
#include "model/state/arena.h"

#define SDP_BLOCK ((size_t)1 << 20)  /* elements of a norm block */
#define SDP_MAX_CHUNKS 64            /* of one storage */

struct sdp_block {
    size_t offset;   /* elements from the start of the storage */
    size_t count;    /* elements of the tensor in this block (<= SDP_BLOCK) */
    size_t param;    /* index in the storage */
    size_t index;    /* global number of the block: position in the array of norms */
    bool decay;
};

struct sdp_chunk {
    size_t offset, count; /* elements of the storage, padding included */
    size_t first_block, block_count; /* into the storage's blocks */
};

struct sdp_state_storage {
    uint16_t *weight;    /* bf16 [count], padding included */
    int16_t *remainder;  /* [count] */
    float *m, *v;        /* [count] */
    size_t count;
    struct sdp_block *blocks;
    size_t block_count;
    struct sdp_chunk *chunks;
    size_t chunk_count;
};

struct sdp_host_state {
    const struct sdp_model_graph *graph; /* [borrowed] */
    struct sdp_state_storage *storages;  /* graph->storage_count */
    size_t block_count;                  /* all storages */
    struct sdp_arena *arena;
};

struct sdp_host_state_options {
    size_t chunk_bytes;  /* of bf16 weights; a chunk ends at the first block end at or past this */
    unsigned threads;    /* for first touch; 0: all cores */
    bool pin;            /* register with CUDA */
};

/** Bytes sdp_host_state_create will map. */
size_t sdp_host_state_bytes(const struct sdp_model_graph *graph);

/** Chunks and blocks only (no memory for tensors): for plans. The arrays' pointers are NULL. [new] */
SDP_CHECK_RESULT enum sdp_status sdp_host_state_layout(const struct sdp_model_graph *graph, size_t chunk_bytes,
                                      struct sdp_host_state **out, struct sdp_error *err);

/** Maps and touches the state: moments and padding are zero, weights undefined
 * until loaded or initialised. [new] *out. */
SDP_CHECK_RESULT enum sdp_status sdp_host_state_create(const struct sdp_model_graph *graph, const struct sdp_host_state_options *options,
                                      struct sdp_host_state **out, struct sdp_error *err);
void sdp_host_state_destroy(struct sdp_host_state *state);

/** Random weights: every element is a function of (seed, tensor name, element
 * index) only. Runs on `threads` threads. */
void sdp_host_state_init_random(struct sdp_host_state *state, uint64_t seed, unsigned threads);

/** Sets / gets elements [first, first+count) of a parameter as fp32 (exact). No
 * StarPU task may be using the storage. */
void sdp_host_state_set(struct sdp_host_state *state, size_t storage, size_t param, size_t first, size_t count, const float *values);
void sdp_host_state_get(const struct sdp_host_state *state, size_t storage, size_t param, size_t first, size_t count, float *values);

#endif
