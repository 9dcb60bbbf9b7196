/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A table of strings (any bytes), each with an id. */
#ifndef SDP_MODEL_TOKENIZER_NAMES_H
#define SDP_MODEL_TOKENIZER_NAMES_H

#include "model/tokenizer/unicode.h"

struct sdpi_name {
    size_t offset;
    uint32_t length;
    int32_t id;
};

struct sdpi_names { /* begin with zeros */
    struct sdpi_text text;
    struct sdpi_name *items; /* in the order they were added */
    size_t count, room;
    uint32_t *slots; /* hash table of numbers of items, plus 1 */
    size_t mask;
};

void sdpi_names_free(struct sdpi_names *names);

/** Adds a string; false when it is there already. */
bool sdpi_names_add(struct sdpi_names *names, const char *text, size_t length,
                    int32_t id);

/** The item; NULL: none. [borrowed] until the next one is added */
const struct sdpi_name *sdpi_names_find(const struct sdpi_names *names, const char *text,
                                        size_t length);

/** The id; -1: no such string. */
static inline int32_t sdpi_names_id(const struct sdpi_names *names, const char *text,
                                    size_t length)
{
    const struct sdpi_name *name = sdpi_names_find(names, text, length);

    return name ? name->id : -1;
}

#endif
