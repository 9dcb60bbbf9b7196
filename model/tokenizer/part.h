/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the parts of a tokenizer.json have in common: an object with a "type", parts that
 * are sequences of others, and settings that may be null. All return false after they
 * recorded an error. */
#ifndef SDP_MODEL_TOKENIZER_PART_H
#define SDP_MODEL_TOKENIZER_PART_H

#include "graph/base/json.h"

#define SDPI_PART_DEPTH 16 /* sequences of sequences of ... */

/* A kind of part: reads the object `at` into `out`. */
struct sdpi_part_kind {
    const char *type;
    bool (*read)(void *out, const struct sdp_json *at, unsigned depth);
};

/** Reads a part by its "type" from a NULL-ended table; `what` names it in messages. */
bool sdpi_part_read(const struct sdpi_part_kind *kinds, const char *what, void *out,
                    const struct sdp_json *at, unsigned depth);
/** Reads each part of the list `key` of a sequence. */
bool sdpi_part_read_all(const struct sdpi_part_kind *kinds, const char *what, void *out,
                        const struct sdp_json *at, const char *key, unsigned depth);

/** true, false or null: *out as it is where null or absent. */
bool sdpi_part_flag(const struct sdp_json *at, const char *key, bool *out);
/** A string that must be there. */
bool sdpi_part_text(const struct sdp_json *at, const char *key, const char **out,
                    size_t *length);
/** A string of one character that must be there. */
bool sdpi_part_point(const struct sdp_json *at, const char *key, uint32_t *out);
/** Refuses a setting that is neither absent nor null nor empty. */
bool sdpi_part_refuse_text(const struct sdp_json *at, const char *key);

#endif
