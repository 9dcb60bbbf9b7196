/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Post-processors: the tokens that stand before and behind each text. */
#ifndef SDP_MODEL_TOKENIZER_POST_H
#define SDP_MODEL_TOKENIZER_POST_H

#include "graph/base/json.h"
#include "model/tokenizer/tokenizer.h"

struct sdpi_post { /* begin with zeros */
    struct sdp_ids before, behind;
};

/** Reads "post_processor" of a tokenizer.json (null: none). */
bool sdpi_post_read(struct sdpi_post *post, const struct sdp_json *at);
void sdpi_post_free(struct sdpi_post *post);

#endif
