/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Added tokens: strings that become one id wherever they stand in a text, before anything
 * else looks at it. Those that are not "normalized" are looked for in the text as it is,
 * the others in the normalized text. */
#ifndef SDP_MODEL_TOKENIZER_ADDED_H
#define SDP_MODEL_TOKENIZER_ADDED_H

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/normalizer.h"

struct sdpi_added_token {
    char *content; /* as the file has it */
    size_t length;
    char *pattern; /* what is looked for: the content, normalized where it shall be */
    size_t pattern_length;
    int32_t id;
    bool single_word, left, right, normalized, special;
};

/* All patterns of one kind as a tree of bytes. */
struct sdpi_added_node {
    uint32_t child, sibling; /* 0: none */
    int32_t token;           /* index of the token that ends here, or -1 */
    uint8_t byte;
};

struct sdpi_added_tree {
    struct sdpi_added_node *nodes; /* [0] is none */
    size_t count, room;
    uint32_t roots[256];
    int only; /* the one byte that patterns begin with; -1: several; -2: no patterns */
};

struct sdpi_added { /* begin with zeros */
    struct sdpi_added_token *tokens;
    size_t count;
    struct sdpi_names ids; /* content to index */
    struct sdpi_added_tree plain, normalized;
};

/** Reads "added_tokens" of a tokenizer.json. The model and the normalizer must be there.
 */
bool sdpi_added_read(struct sdpi_added *added, const struct sdp_json *at,
                     const struct sdpi_bpe *bpe,
                     const struct sdpi_normalizer *normalizer);
void sdpi_added_free(struct sdpi_added *added);

/* A walk over the tokens in a text. */
struct sdpi_added_walk {
    const struct sdpi_added *added;
    const struct sdpi_added_tree *tree;
    const char *text;
    size_t length;
    size_t at;    /* where the next match is looked for */
    size_t done;  /* up to where the text was handed out */
    size_t blank; /* the end of the blanks that a token took last */
};

/** The next part: false at the end of the text. *id: of an added token, which takes the
 * part; or -1: plain text from *from to *to, perhaps empty. */
bool sdpi_added_next(struct sdpi_added_walk *walk, size_t *from, size_t *to, int32_t *id);

#endif
