/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Tokenizers of Hugging Face folders (tokenizer.json). */
#ifndef SDP_MODEL_TOKENIZER_TOKENIZER_H
#define SDP_MODEL_TOKENIZER_TOKENIZER_H

#include "graph/base/util.h"

struct sdp_tokenizer;

/** Reads a tokenizer.json. What is not supported is refused by name, with JSON pointer.
 * [new] *out. */
SDP_CHECK_RESULT enum sdp_status
sdp_tokenizer_load(const char *path, struct sdp_tokenizer **out, struct sdp_error *err);
void sdp_tokenizer_destroy(struct sdp_tokenizer *t);

/** Highest id + 1. */
size_t sdp_tokenizer_vocabulary(const struct sdp_tokenizer *t);
/** Id of a token, added or of the vocabulary; -1: there is none. */
int32_t sdp_tokenizer_id(const struct sdp_tokenizer *t, const char *token, size_t length);
/** Text of a token, or NULL. [borrowed] */
const char *sdp_tokenizer_token(const struct sdp_tokenizer *t, int32_t id,
                                size_t *length);

struct sdp_ids {
    int32_t *ids;
    size_t count, room;
};
void sdp_ids_free(struct sdp_ids *ids);

/** Appends the ids of UTF-8 text; add_special: with the post-processor's tokens. Thread:
 * any. */
SDP_CHECK_RESULT enum sdp_status
sdp_tokenizer_encode(const struct sdp_tokenizer *t, const char *text, size_t length,
                     bool add_special, struct sdp_ids *out, struct sdp_error *err);
/** Text of ids. [new] *text. */
SDP_CHECK_RESULT enum sdp_status sdp_tokenizer_decode(const struct sdp_tokenizer *t,
                                                      const int32_t *ids, size_t count,
                                                      bool skip_special, char **text,
                                                      size_t *length,
                                                      struct sdp_error *err);

#endif
