/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pre-tokenizers: a text is cut into pieces, each of which the model sees alone. They are
 * a list of stages; each hands its pieces to the next one as it finds them, so that a
 * long text needs no list of pieces. */
#ifndef SDP_MODEL_TOKENIZER_SPLITTER_H
#define SDP_MODEL_TOKENIZER_SPLITTER_H

#include "model/tokenizer/pattern.h"

enum sdpi_split_behavior { /* what becomes of a match */
                           SDPI_ISOLATED,
                           SDPI_REMOVED,
                           SDPI_MERGED_WITH_PREVIOUS,
                           SDPI_MERGED_WITH_NEXT,
                           SDPI_CONTIGUOUS
};

enum sdpi_split_kind {
    SDPI_SPLIT_PATTERN, /* at matches of a pattern */
    SDPI_SPLIT_FLAGS,   /* at characters with one of some flags */
    SDPI_SPLIT_POINT,   /* at one character */
    SDPI_SPLIT_SPACE,   /* nowhere, but a space is put in front of what has none */
    SDPI_SPLIT_META,    /* nowhere, but spaces are replaced (Metaspace) */
    SDPI_SPLIT_ALPHABET /* nowhere, but bytes become the characters that stand for them */
};

enum sdpi_prepend { SDPI_PREPEND_ALWAYS, SDPI_PREPEND_FIRST, SDPI_PREPEND_NEVER };

struct sdpi_split_stage {
    enum sdpi_split_kind kind;
    enum sdpi_split_behavior behavior;
    bool invert; /* matches are what is between matches */
    struct sdpi_pattern pattern;
    uint8_t flags;
    uint32_t point; /* POINT, META */
    enum sdpi_prepend prepend;
};

struct sdpi_splitter { /* begin with zeros */
    struct sdpi_split_stage *stages;
    size_t count;
    bool bytes; /* pieces go to the model as bytes, without becoming characters */
};

struct sdpi_split_scratch { /* begin with zeros */
    struct sdpi_pattern_scratch pattern;
    struct sdpi_text *texts; /* one a stage */
    size_t count;
};

/* Where pieces go. */
struct sdpi_split_sink {
    void *context;
    void (*piece)(void *context, const char *text, size_t length, const char *end);
};

/** Reads "pre_tokenizer" of a tokenizer.json (null: none). */
bool sdpi_splitter_read(struct sdpi_splitter *splitter, const struct sdp_json *at);
void sdpi_splitter_free(struct sdpi_splitter *splitter);
void sdpi_split_scratch_free(struct sdpi_split_scratch *scratch);

/** Cuts a text up. `first`: it begins where the whole text begins. `end`: up to where
 * memory behind the text may be read. */
SDP_CHECK_RESULT enum sdp_status
sdpi_split(const struct sdpi_splitter *splitter, struct sdpi_split_scratch *scratch,
           const char *text, size_t length, const char *end, bool first,
           const struct sdpi_split_sink *sink, struct sdp_error *err);

#endif
