/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Training data: sequences of token ids with targets. Which sequence comes when
 * depends only on the seed and the position in the stream, never on the number
 * of ranks. */
#ifndef SDP_MODEL_DATA_DATASET_H
#define SDP_MODEL_DATA_DATASET_H

#include "graph/job.h"

struct sdp_dataset;

/** Opens the job's training data (`validation` false) or validation data. Token ids are checked against `vocabulary` (message with file and position).
 * synthetic: uniform random ids from the seed. tokens: raw uint16/uint32 little endian, or .npy int32/int64/uint16/uint32 (1-D). text: UTF-8 or any bytes, each byte one
 * id (model/tokenizer/bytes.h). Files are cut into sequences of sequence_length + 1 ids with one id of overlap, so that every id but the first of a
 * file is a target once; an incomplete tail is dropped, and told. [new] *out. */
SDP_CHECK_RESULT enum sdp_status sdp_dataset_open(const struct sdp_job *job, bool validation, size_t vocabulary,
                                 struct sdp_dataset **out, struct sdp_error *err);
void sdp_dataset_close(struct sdp_dataset *data);

/** Sequences of one epoch (synthetic: SIZE_MAX). At least 1. */
size_t sdp_dataset_sequences(const struct sdp_dataset *data);

/** Sequence number `index` of the stream (epoch = index / sequences; each epoch
 * shuffled anew by seed unless told not to): fills ids[L], targets[L] (-1: not
 * counted) and positions[L]; returns the number of counted targets. Thread safe. */
size_t sdp_dataset_sequence(const struct sdp_dataset *data, uint64_t index, int32_t *ids, int32_t *targets, int32_t *positions);

/** Text that identifies the data for resuming (files, sizes, sequence length). [borrowed] */
const char *sdp_dataset_fingerprint(const struct sdp_dataset *data);

#endif
