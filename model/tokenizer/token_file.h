/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Token files, which data.format "tokens" reads: uint16 or uint32, raw little endian or,
 * where the name ends in .npy, as numpy.save writes them. */
#ifndef SDP_MODEL_TOKENIZER_TOKEN_FILE_H
#define SDP_MODEL_TOKENIZER_TOKEN_FILE_H

#include "graph/base/util.h"

struct sdp_token_file;

enum sdp_token_dtype { SDP_TOKENS_AUTO, SDP_TOKENS_UINT16, SDP_TOKENS_UINT32 };

/** Begins a file, under a temporary name. Auto: uint16 where ids below `vocabulary` fit.
 * [new] *out. */
SDP_CHECK_RESULT enum sdp_status sdp_token_file_open(const char *path, size_t vocabulary,
                                                     enum sdp_token_dtype dtype,
                                                     struct sdp_token_file **out,
                                                     struct sdp_error *err);
SDP_CHECK_RESULT enum sdp_status sdp_token_file_add(struct sdp_token_file *file,
                                                    const int32_t *ids, size_t count,
                                                    struct sdp_error *err);
/** Ends the file and gives it its name; or, where `status` is an error, removes it.
 * Returns status, or what went wrong now. */
SDP_CHECK_RESULT enum sdp_status sdp_token_file_close(struct sdp_token_file *file,
                                                      enum sdp_status status,
                                                      struct sdp_error *err);

#endif
