/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tokenizer that a model brings along: tokenizer.json of a Hugging Face folder, with
 * BPE on bytes (GPT-2, Llama 3, Qwen, SmolLM, newer Mistral) or on characters with
 * Metaspace and byte fallback (Llama 2, older Mistral). Text gets the ids that the
 * reference implementation (the Python package `tokenizers`) gives it.
 *
 * Read are: the model BPE; the normalizers NFC, NFD, NFKC, NFKD, Lowercase, Strip,
 * StripAccents, Prepend, Replace; the pre-tokenizers ByteLevel, Split, Digits, Metaspace,
 * Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit; the post-processors
 * TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing; the decoders ByteLevel,
 * ByteFallback, Replace, Strip, Fuse, Metaspace; and a Sequence of each of these four kinds.
 *
 * A tokenizer does not change once it is loaded, and all calls but sdp_tokenizer_destroy
 * may be made from several threads at once. */
#ifndef SDP_MODEL_TOKENIZER_TOKENIZER_H
#define SDP_MODEL_TOKENIZER_TOKENIZER_H

#include "graph/base/util.h"

struct sdp_tokenizer;

/** Reads a tokenizer.json. What is not supported is refused by its name, with its JSON
 * pointer. How long texts may be ("truncation", "padding") is no matter of the tokenizer
 * here: both are ignored. [new] *out. */
SDP_CHECK_RESULT enum sdp_status
sdp_tokenizer_load(const char *path, struct sdp_tokenizer **out, struct sdp_error *err);
/** The same for the text of a tokenizer.json; `name` stands for the file in messages. */
SDP_CHECK_RESULT enum sdp_status sdp_tokenizer_parse(const char *text, size_t size,
                                                     const char *name,
                                                     struct sdp_tokenizer **out,
                                                     struct sdp_error *err);
void sdp_tokenizer_destroy(struct sdp_tokenizer *t);

/** The highest id and one. */
size_t sdp_tokenizer_vocabulary(const struct sdp_tokenizer *t);

/** The id of a token as the file writes it (added tokens come first); -1: no such token.
 */
int32_t sdp_tokenizer_id(const struct sdp_tokenizer *t, const char *token, size_t length);

/** The token of an id as the file writes it; NULL: no such id. [borrowed] */
const char *sdp_tokenizer_token(const struct sdp_tokenizer *t, int32_t id,
                                size_t *length);

struct sdp_ids {
    int32_t *ids; /* [new] sdp_ids_free() */
    size_t count, room;
};

void sdp_ids_free(struct sdp_ids *ids);
/** Room for `more` ids behind the last one. */
void sdp_ids_reserve(struct sdp_ids *ids, size_t more);
void sdp_ids_add(struct sdp_ids *ids, const int32_t *from, size_t count);

/** Appends the ids of a text. Bytes that are no UTF-8 count as U+FFFD, one for each
 * longest part of a character, as most decoders have it. Added tokens in the text become
 * their ids. add_special: with the tokens of the post-processor (the begin of a text,
 * ...). */
SDP_CHECK_RESULT enum sdp_status
sdp_tokenizer_encode(const struct sdp_tokenizer *t, const char *text, size_t length,
                     bool add_special, struct sdp_ids *out, struct sdp_error *err);

/** The text of ids; ids that are no token are left out, and special tokens where asked
 * for. [new] *text, with a NUL behind its end: free() it. */
SDP_CHECK_RESULT enum sdp_status sdp_tokenizer_decode(const struct sdp_tokenizer *t,
                                                      const int32_t *ids, size_t count,
                                                      bool skip_special, char **text,
                                                      size_t *length,
                                                      struct sdp_error *err);

#endif
