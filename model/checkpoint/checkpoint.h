/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Checkpoints: Hugging Face folders in and out, and training checkpoints. */
#ifndef SDP_MODEL_CHECKPOINT_CHECKPOINT_H
#define SDP_MODEL_CHECKPOINT_CHECKPOINT_H

#include "graph/model_graph.h"
#include "model/state/host_state.h"

/** Reads the weights of a Hugging Face folder (single or sharded safetensors;
 * bf16, fp16, fp32) by mmap straight into the host state, in parallel. Names,
 * shapes, dtypes, offsets, overlaps and sizes are checked before any byte is
 * read. A tied duplicate (lm_head.weight next to a tied embedding) is accepted; missing and unknown tensors are listed
 * in the message. */
SDP_CHECK_RESULT enum sdp_status sdp_checkpoint_load_hf(const char *folder, struct sdp_host_state *state, unsigned threads, struct sdp_error *err);

/** Writes a Hugging Face folder that transformers loads: model.safetensors, or shards of at most
 * shard_bytes (0: 5 GB) with index; the tied duplicate left out; config.json made from `config` (a copy of the source's
 * with dtype recorded; may be NULL: then only weights are written); other files of `source_folder` (tokenizer*, generation_config.json, chat template, vocab, merges,
 * special_tokens_map.json; may be NULL) copied. Written to a temporary folder name, fsynced, renamed; an older folder
 * of that name is replaced only once the new one is complete. */
SDP_CHECK_RESULT enum sdp_status sdp_checkpoint_save_hf(const char *folder, const struct sdp_host_state *state, enum sdp_dtype dtype,
                                       const json_t *config, const char *source_folder, size_t shard_bytes, struct sdp_error *err);

/* What a training checkpoint holds besides the tensors. */
struct sdp_train_position {
    uint64_t step;      /* optimiser steps done */
    uint64_t seed;      /* data seed */
    uint64_t sequences; /* sequences consumed so far (position in the shuffled stream) */
    char fingerprint[128]; /* of the data set: files, sizes, sequence length; must match on resume */
};

/** Saves weights, remainders and moments, keyed by tensor name (so that any
 * number of ranks can resume), into `folder` (temporary name, fsync, rename): bit-exact. */
SDP_CHECK_RESULT enum sdp_status sdp_checkpoint_save_state(const char *folder, const struct sdp_host_state *state,
                                          const struct sdp_train_position *position, struct sdp_error *err);
SDP_CHECK_RESULT enum sdp_status sdp_checkpoint_load_state(const char *folder, struct sdp_host_state *state,
                                          struct sdp_train_position *position, struct sdp_error *err);

/** Tries, before step 1, what a save will do at the end: makes `folder`, writes a file in it, renames and removes it,
 * and asks for `bytes` of free space (a training checkpoint takes 12 bytes a parameter, an export 2 or 4; and while a
 * save replaces an older folder of the same name, both are there). `folder` stays. */
SDP_CHECK_RESULT enum sdp_status sdp_checkpoint_probe(const char *folder, size_t bytes, struct sdp_error *err);

/** Newest complete training checkpoint below `folder` (names step-00000050): [new] path in *out, or NULL when there is none. */
SDP_CHECK_RESULT enum sdp_status sdp_checkpoint_find_latest(const char *folder, char **out, struct sdp_error *err);

#endif
