/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is done to a text before it is split: Unicode's normal forms, lower case, accents
 * and blanks taken away, replacements. */
#ifndef SDP_MODEL_TOKENIZER_NORMALIZER_H
#define SDP_MODEL_TOKENIZER_NORMALIZER_H

#include "model/tokenizer/pattern.h"

enum sdpi_normal_kind {
    SDPI_NFC,
    SDPI_NFD,
    SDPI_NFKC,
    SDPI_NFKD,
    SDPI_LOWERCASE,
    SDPI_STRIP,
    SDPI_STRIP_ACCENTS,
    SDPI_PREPEND,
    SDPI_REPLACE
};

struct sdpi_normal_step {
    enum sdpi_normal_kind kind;
    bool left, right;            /* STRIP */
    struct sdpi_pattern pattern; /* REPLACE */
    char *content;               /* REPLACE, PREPEND */
    size_t content_length;
};

struct sdpi_normalizer { /* begin with zeros */
    struct sdpi_normal_step *steps;
    size_t count;
};

struct sdpi_normal_scratch { /* begin with zeros */
    struct sdpi_text texts[2];
    struct sdpi_pattern_scratch pattern;
    int32_t *points; /* of a normal form */
    size_t room;
};

/** Reads "normalizer" of a tokenizer.json (null: none). */
bool sdpi_normalizer_read(struct sdpi_normalizer *normalizer, const struct sdp_json *at);
void sdpi_normalizer_free(struct sdpi_normalizer *normalizer);
void sdpi_normal_scratch_free(struct sdpi_normal_scratch *scratch);

/** The normalized text, which is the text itself or lies in the scratch until the next
 * call. *cut: whether what the text begins with was taken away. */
SDP_CHECK_RESULT enum sdp_status sdpi_normalize(const struct sdpi_normalizer *normalizer,
                                                struct sdpi_normal_scratch *scratch,
                                                const char **text, size_t *length,
                                                bool *cut, struct sdp_error *err);

/** Appends a normal form of a text; *same when that is the text itself, and then nothing
 * is appended. False: no memory or a text too long. */
bool sdpi_normal_form(enum sdpi_normal_kind kind, struct sdpi_normal_scratch *scratch,
                      const char *text, size_t length, struct sdpi_text *out, bool *same);

#endif
