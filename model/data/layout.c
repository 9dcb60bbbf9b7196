/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pieces of documents in sequences. Packing looks for the sequence with the least room
 * that still fits among OPEN open ones (best fit with bounded look-around): linear time,
 * and typical data fills more than 98 % of the places. Each file is packed for itself,
 * once: the sequences of an epoch come in a new order, their content stays. */
#include "model/data/data_internal.h"
#include "model/data/shuffle.h"

#include <stdlib.h>

#define OPEN 128

struct open_sequence {
    size_t number, room;
};

struct packer {
    struct open_sequence open[OPEN];
    size_t count, sequences, length;
};

/* The sequence that a piece of `size` goes to. */
static size_t place(struct packer *p, size_t size)
{
    size_t best = OPEN, full = 0, number;

    for (size_t i = 0; i < p->count; i++) {
        if (p->open[i].room >= size &&
            (best == OPEN || p->open[i].room < p->open[best].room))
            best = i;
        if (p->open[i].room < p->open[full].room)
            full = i;
    }
    if (best == OPEN) {
        best = p->count < OPEN ? p->count++ : full;
        p->open[best] = (struct open_sequence){p->sequences++, p->length};
    }
    number = p->open[best].number;
    p->open[best].room -= size;
    if (p->open[best].room == 0)
        p->open[best] = p->open[--p->count];
    return number;
}

/* Pieces sorted by their sequence, in the order in which they were placed. */
static void sort_pieces(struct sdpi_layout *layout, const struct sdpi_piece *placed,
                        const size_t *numbers)
{
    size_t *at;

    layout->first = sdp_xcalloc(layout->sequences + 1, sizeof *layout->first);
    for (size_t i = 0; i < layout->piece_count; i++)
        layout->first[numbers[i] + 1]++;
    for (size_t s = 0; s < layout->sequences; s++)
        layout->first[s + 1] += layout->first[s];
    at = sdp_xcalloc(layout->sequences + 1, sizeof *at);
    memcpy(at, layout->first, layout->sequences * sizeof *at);
    for (size_t i = 0; i < layout->piece_count; i++)
        layout->pieces[at[numbers[i]]++] = placed[i];
    free(at);
}

static void pack(struct sdpi_layout *layout, size_t length, bool shuffle, uint64_t seed)
{
    size_t count = layout->piece_count,
           *numbers = sdp_xcalloc(count + 1, sizeof *numbers);
    struct sdpi_piece *placed = sdp_xcalloc(count + 1, sizeof *placed);
    struct packer p = {.length = length};

    for (size_t i = 0; i < count; i++) {
        placed[i] = layout->pieces[shuffle ? sdp_shuffle(seed, 0, count, i) : i];
        numbers[i] = place(&p, placed[i].count);
    }
    layout->sequences = p.sequences;
    sort_pieces(layout, placed, numbers);
    free(placed);
    free(numbers);
}

void sdpi_layout_make(struct sdpi_piece *pieces, size_t count, size_t length, bool packed,
                      bool shuffle, uint64_t seed, struct sdpi_layout *layout)
{
    *layout = (struct sdpi_layout){.pieces = pieces, .piece_count = count};
    for (size_t i = 0; i < count; i++)
        layout->inputs += pieces[i].count;
    if (packed) {
        pack(layout, length, shuffle, sdp_random_key(seed, "packing"));
        return;
    }
    layout->sequences = count;
    layout->first = sdp_xcalloc(count + 1, sizeof *layout->first);
    for (size_t i = 0; i <= count; i++)
        layout->first[i] = i;
}

void sdpi_layout_free(struct sdpi_layout *layout)
{
    free(layout->pieces);
    free(layout->first);
}
