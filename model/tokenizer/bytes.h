/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tokenizer that needs no file: each byte is one id. Enough for tests, examples and
 * models trained on bytes.
 *
 * The tokenizers that models bring along (tokenizer.json) are read by tokenizer.h. */
#ifndef SDP_MODEL_TOKENIZER_BYTES_H
#define SDP_MODEL_TOKENIZER_BYTES_H

#include "graph/base/util.h"

#define SDP_BYTES_VOCABULARY 256u

/** ids[i] = text[i], for `count` bytes. */
void sdp_bytes_encode(const uint8_t *text, size_t count, int32_t *ids);

#endif
