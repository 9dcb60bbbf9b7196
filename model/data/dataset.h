/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Training data: sequences of token ids with targets. Which sequence comes when
 * depends only on the seed and the position in the stream, never on the number
 * of ranks. */
#ifndef SDP_MODEL_DATA_DATASET_H
#define SDP_MODEL_DATA_DATASET_H

#include "graph/job.h"

struct sdp_dataset;

/** Opens the job's training data (`validation` false) or validation data, and reads it
 * once in full, so that whatever is wrong with it is told now, with file and line. Token
 * ids are checked against `vocabulary`. [new] *out.
 *
 * synthetic: uniform random ids from the seed.
 * tokens: raw uint16/uint32 little endian, or .npy int32/int64/uint16/uint32 (1-D).
 * text: a file named .jsonl or .ndjson holds one record a line, whose text field is a
 * document; any other file is one stream of text. messages, alpaca: one record a line,
 * rendered with the chat template; the assistant's turns alone count as targets.
 *
 * Streams are cut into sequences of sequence_length + 1 ids with one id of overlap, so
 * that every id but the first of a file is a target once; an incomplete tail is dropped,
 * and told. A document of n ids takes n - 1 places of a sequence, for its last id is a
 * target alone; documents that are too long are treated as data.too_long says, those
 * without any target are left out and told.
 *
 * In memory stay about 60 bytes a record, and the ids of all records as far as they take
 * no more than 256 MiB; beyond that, records are read and encoded again when their
 * sequence is asked for. */
SDP_CHECK_RESULT enum sdp_status sdp_dataset_open(const struct sdp_job *job,
                                                  bool validation, size_t vocabulary,
                                                  struct sdp_dataset **out,
                                                  struct sdp_error *err);
void sdp_dataset_close(struct sdp_dataset *data);

/** Sequences of one epoch (synthetic: SIZE_MAX). At least 1. */
size_t sdp_dataset_sequences(const struct sdp_dataset *data);

/** Sequence number `index` of the stream (epoch = index / sequences; each epoch
 * shuffled anew by seed unless told not to): fills ids[L], targets[L] (-1: not
 * counted), positions[L] (within the document) and starts[L] (index within the sequence
 * at which the token's document begins; padding at the end is a document of its own);
 * returns the number of counted targets. No target crosses from one document into the
 * next. `starts` may be NULL. Thread safe. */
size_t sdp_dataset_sequence(const struct sdp_dataset *data, uint64_t index, int32_t *ids,
                            int32_t *targets, int32_t *positions, int32_t *starts);

/** Text that identifies the data for resuming (files, sizes, template, tokenizer,
 * options, sequence length). [borrowed] */
const char *sdp_dataset_fingerprint(const struct sdp_dataset *data);

#endif
