/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Decoders: from tokens as the file writes them to text. */
#ifndef SDP_MODEL_TOKENIZER_DECODER_H
#define SDP_MODEL_TOKENIZER_DECODER_H

#include "model/tokenizer/pattern.h"

enum sdpi_decode_kind {
    SDPI_DECODE_BYTES,    /* ByteLevel: characters stand for bytes */
    SDPI_DECODE_FALLBACK, /* <0x41> is a byte */
    SDPI_DECODE_REPLACE,
    SDPI_DECODE_STRIP,
    SDPI_DECODE_FUSE,
    SDPI_DECODE_META
};

struct sdpi_decode_step {
    enum sdpi_decode_kind kind;
    struct sdpi_pattern pattern; /* REPLACE */
    char *content;
    size_t content_length;
    uint32_t point;     /* STRIP, META */
    size_t start, stop; /* STRIP: how many at most */
    bool drop_first;    /* META: of the first token */
};

struct sdpi_decoder { /* begin with zeros */
    struct sdpi_decode_step *steps;
    size_t count;
    bool given; /* else tokens are joined with spaces */
};

/* Tokens one behind another. */
struct sdpi_parts { /* begin with zeros */
    struct sdpi_text text;
    size_t *ends;
    size_t count, room;
};

/** Reads "decoder" of a tokenizer.json (null: none). */
bool sdpi_decoder_read(struct sdpi_decoder *decoder, const struct sdp_json *at);
void sdpi_decoder_free(struct sdpi_decoder *decoder);

/** Ends a part behind what parts->text holds. */
void sdpi_parts_end(struct sdpi_parts *parts);
void sdpi_parts_free(struct sdpi_parts *parts);

/** Decodes in place: afterwards parts->text is the text. */
SDP_CHECK_RESULT enum sdp_status sdpi_decode(const struct sdpi_decoder *decoder,
                                             struct sdpi_parts *parts,
                                             struct sdp_error *err);

#endif
