/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/names.h"

#include <stdlib.h>

static uint64_t hash(const char *text, size_t length)
{
    uint64_t h = length * 0x9e3779b97f4a7c15u, part;

    for (; length >= sizeof part; length -= sizeof part, text += sizeof part) {
        memcpy(&part, text, sizeof part);
        h = (h ^ part) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    part = 0;
    if (length > 0)
        memcpy(&part, text, length);
    h = (h ^ part) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 29;
}

void sdpi_names_free(struct sdpi_names *names)
{
    sdpi_text_free(&names->text);
    free(names->items);
    free(names->slots);
    *names = (struct sdpi_names){.items = NULL};
}

/* The slot that holds the string or is free for it. */
static size_t slot_of(const struct sdpi_names *names, const char *text, size_t length)
{
    size_t slot = hash(text, length) & names->mask;

    for (; names->slots[slot]; slot = (slot + 1) & names->mask) {
        const struct sdpi_name *name = &names->items[names->slots[slot] - 1];

        if (name->length == length &&
            (length == 0 || memcmp(names->text.data + name->offset, text, length) == 0))
            break;
    }
    return slot;
}

static void grow(struct sdpi_names *names)
{
    names->room = SDP_MAX(names->room * 2, (size_t)64);
    names->items = sdp_xrealloc(names->items, names->room * sizeof *names->items);
    free(names->slots);
    names->slots = sdp_xcalloc(names->room * 2, sizeof *names->slots);
    names->mask = names->room * 2 - 1;
    for (size_t i = 0; i < names->count; i++) {
        const struct sdpi_name *name = &names->items[i];
        size_t slot = slot_of(names, names->text.data + name->offset, name->length);

        names->slots[slot] = (uint32_t)i + 1;
    }
}

bool sdpi_names_add(struct sdpi_names *names, const char *text, size_t length, int32_t id)
{
    size_t slot;

    if (names->count == names->room)
        grow(names);
    slot = slot_of(names, text, length);
    if (names->slots[slot])
        return false;
    names->items[names->count] =
        (struct sdpi_name){names->text.length, (uint32_t)length, id};
    sdpi_text_add(&names->text, text, length);
    names->slots[slot] = (uint32_t)++names->count;
    return true;
}

const struct sdpi_name *sdpi_names_find(const struct sdpi_names *names, const char *text,
                                        size_t length)
{
    size_t slot;

    if (names->count == 0)
        return NULL;
    slot = slot_of(names, text, length);
    return names->slots[slot] ? &names->items[names->slots[slot] - 1] : NULL;
}
