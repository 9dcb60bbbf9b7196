/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Byte pair encoding: a piece of text begins as one symbol for each character (or each
 * byte), and of all neighbours that make a pair of the list the pair of lowest rank, the
 * leftmost first, is merged until there is none left. */
#ifndef SDP_MODEL_TOKENIZER_BPE_H
#define SDP_MODEL_TOKENIZER_BPE_H

#include "graph/base/json.h"
#include "model/tokenizer/names.h"
#include "model/tokenizer/tokenizer.h"

#define SDPI_MAX_ID    ((int32_t)1 << 22) /* ids are below */
#define SDPI_WORD_SIZE 24                 /* longest word that is remembered, in bytes */
#define SDPI_WORD_IDS  8                  /* and the most ids it may have */

struct sdpi_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    uint32_t rank;
    int32_t id;
};

struct sdpi_bpe {
    struct sdpi_names names; /* the vocabulary, as written in the file */
    size_t limit;            /* highest id and one */
    uint32_t *by_id;         /* numbers of names by id, plus 1; 0: none */
    struct sdpi_merge *merges;
    size_t merge_mask, merge_count;
    unsigned merge_shift;

    bool bytes; /* pieces are bytes, of which each is a character of the vocabulary */
    struct sdpi_names raw; /* then: the vocabulary with its characters as bytes */
    int32_t byte_id[256];  /* then: the id of each byte, or -1 */

    bool byte_fallback, fuse_unknown, ignore_merges;
    int32_t unknown;          /* -1: none */
    int32_t fallback_id[256]; /* of <0x00> to <0xFF>, or -1 */
    int32_t
        *pages[0x110000 >> 8]; /* ids of single characters by code point; NULL: none */

    /* Between a character that is not in `joined` and U+2581 no merge can happen, so a
     * piece can be cut there. */
    bool can_cut;
    uint32_t joined[8];
    size_t joined_count;
};

/* A word and its ids. */
struct sdpi_word {
    uint64_t key[SDPI_WORD_SIZE / 8];
    int32_t ids[SDPI_WORD_IDS];
    uint8_t length, count; /* length 0: free */
};

/* What one thread at a time works with. */
struct sdpi_bpe_scratch { /* begin with zeros */
    struct sdpi_word *words;
    int32_t *ids;
    uint32_t *previous, *next;
    uint64_t *heap; /* rank << 32 | position of the left symbol */
    size_t room, heap_count, heap_room;
};

/** Reads the object "model" of a tokenizer.json. */
bool sdpi_bpe_read(struct sdpi_bpe *bpe, const struct sdp_json *at);
/** To be called once it is known whether pieces are bytes. */
void sdpi_bpe_prepare(struct sdpi_bpe *bpe, bool bytes);
void sdpi_bpe_free(struct sdpi_bpe *bpe);
void sdpi_bpe_scratch_free(struct sdpi_bpe_scratch *scratch);

/** Appends the ids of a piece. `end`: up to where the text around it may be read. */
void sdpi_bpe_encode(const struct sdpi_bpe *bpe, struct sdpi_bpe_scratch *scratch,
                     const char *text, size_t length, const char *end,
                     struct sdp_ids *out);

/** The characters that stand for bytes in vocabularies of byte-level BPE, and back (-1:
 * the code point stands for none). */
uint32_t sdpi_byte_character(uint8_t byte);
int sdpi_character_byte(uint32_t point);

/** The name of an id; NULL: it is not in the vocabulary. */
static inline const struct sdpi_name *sdpi_bpe_name(const struct sdpi_bpe *bpe,
                                                    int32_t id)
{
    if (id < 0 || (size_t)id >= bpe->limit || bpe->by_id[id] == 0)
        return NULL;
    return &bpe->names.items[bpe->by_id[id] - 1];
}

static inline const struct sdpi_merge *sdpi_bpe_merge(const struct sdpi_bpe *bpe,
                                                      int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t slot = (size_t)(pair * 0x9e3779b97f4a7c15u >> bpe->merge_shift);

    for (;; slot = (slot + 1) & bpe->merge_mask) {
        const struct sdpi_merge *merge = &bpe->merges[slot];

        if (merge->pair == pair)
            return merge;
        if (merge->pair == UINT64_MAX)
            return NULL;
    }
}

#endif
