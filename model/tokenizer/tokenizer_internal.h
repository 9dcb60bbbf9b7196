/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A tokenizer's parts. */
#ifndef SDP_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H
#define SDP_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H

#include "model/tokenizer/added.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/decoder.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/post.h"
#include "model/tokenizer/splitter.h"
#include "model/tokenizer/tokenizer.h"

#include <pthread.h>

/* What one call of sdp_tokenizer_encode works with. */
struct sdpi_scratch {
    struct sdpi_bpe_scratch bpe;
    struct sdpi_normal_scratch normal;
    struct sdpi_split_scratch split;
    struct sdpi_text repaired;
    struct sdpi_scratch *next;
};

struct sdpi_pool {
    pthread_mutex_t lock;
    struct sdpi_scratch *idle;
};

struct sdp_tokenizer {
    struct sdpi_bpe bpe;
    struct sdpi_added added;
    uint32_t *added_by_id; /* numbers of added tokens, plus 1; 0: none */
    size_t limit;          /* the highest id and one */
    struct sdpi_normalizer normalizer;
    struct sdpi_splitter splitter;
    struct sdpi_post post;
    struct sdpi_decoder decoder;
    struct sdpi_pool *pool;
};

#endif
