/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A JSONL file as source: a first pass finds its lines, a second one reads and encodes
 * all records on all cores, which tells what is wrong and how long each is; then their
 * pieces are laid out in sequences. The file stays mapped; ids are kept as far as memory
 * that was set aside for them goes, else a record is encoded again when its sequence is
 * asked for, with the same result. */
#include "model/data/data_internal.h"

#include "graph/base/log.h"

#include <stdlib.h>

#define COUNTS 0x80000000u /* in a kept id: it is a target */

struct document {
    size_t offset;
    uint32_t length; /* bytes of the line */
    uint32_t line;
    uint32_t ids;
    uint32_t targets; /* of the ids that are used */
    uint32_t *kept;   /* ids with COUNTS, or NULL */
    uint8_t
        *empty; /* of a split one: a bit for each piece without target; or NULL: none */
};

struct documents {
    struct sdp_map map;
    char *path;
    struct sdpi_records how;
    struct document *documents;
    size_t count, length; /* of documents; tokens of a sequence */
    enum sdp_too_long too_long;
    atomic_bool ends; /* some target is the end token */
    struct sdpi_layout layout;
};

/* -- reading a document
 * --------------------------------------------------------------------- */

static enum sdp_status read_document(const struct documents *d,
                                     const struct document *document,
                                     struct sdpi_sample *sample, struct sdp_error *err)
{
    return sdpi_record_sample(&d->how, d->path, document->line,
                              (const char *)d->map.data + document->offset,
                              document->length, sample, err);
}

static size_t count_targets(const struct sdpi_sample *sample, size_t first, size_t count)
{
    size_t targets = 0;

    for (size_t i = first + 1; i <= first + count; i++)
        targets += sample->counts[i];
    return targets;
}

static void note_end(struct documents *d, const struct sdpi_sample *sample)
{
    for (size_t i = sample->ids.count; i-- > 0 && !atomic_load(&d->ends);)
        if (sample->counts[i] && sample->ids.ids[i] == d->how.encoder->eos)
            atomic_store(&d->ends, true);
}

static void keep(const struct documents *d, struct document *document,
                 const struct sdpi_sample *sample)
{
    if (!sdpi_may_keep(d->how.encoder, sample->ids.count * sizeof *document->kept))
        return;
    document->kept = sdp_xcalloc(sample->ids.count, sizeof *document->kept);
    for (size_t i = 0; i < sample->ids.count; i++)
        document->kept[i] =
            (uint32_t)sample->ids.ids[i] | (sample->counts[i] ? COUNTS : 0);
}

/* Targets of a document in pieces of a sequence each; notes the pieces that have none. */
static void mark_pieces(const struct documents *d, struct document *document,
                        const struct sdpi_sample *sample)
{
    size_t inputs = sample->ids.count - 1, pieces = (inputs + d->length - 1) / d->length;

    for (size_t p = 0; p < pieces; p++) {
        size_t first = p * d->length;
        size_t targets = count_targets(sample, first, SDP_MIN(d->length, inputs - first));

        document->targets += (uint32_t)targets;
        if (targets > 0)
            continue;
        if (!document->empty)
            document->empty = sdp_xcalloc(pieces / 8 + 1, 1);
        document->empty[p / 8] |= (uint8_t)(1u << p % 8);
    }
}

static enum sdp_status fail_long(const struct documents *d,
                                 const struct document *document, size_t ids,
                                 struct sdp_error *err)
{
    return sdp_fail_at(err, SDP_INPUT, d->path, NULL, (int)document->line, 0,
                       "has %zu tokens; a sequence of %zu holds %zu of a document. "
                       "data.too_long can be \"truncate\", "
                       "\"split\" or \"drop\"",
                       ids, d->length, d->length + 1);
}

static enum sdp_status measure(void *arg, size_t item, struct sdpi_sample *sample,
                               struct sdp_error *err)
{
    struct documents *d = arg;
    struct document *document = &d->documents[item];
    enum sdp_status status = read_document(d, document, sample, err);
    size_t ids = sample->ids.count;

    if (status != SDP_OK)
        return status;
    document->ids = (uint32_t)ids;
    note_end(d, sample);
    if (ids < 2)
        return SDP_OK;
    if (ids <= d->length + 1) {
        document->targets = (uint32_t)count_targets(sample, 0, ids - 1);
    } else if (d->too_long == SDP_TOO_LONG_TRUNCATE) {
        document->targets = (uint32_t)count_targets(sample, 0, d->length);
    } else if (d->too_long == SDP_TOO_LONG_SPLIT) {
        mark_pieces(d, document, sample);
    } else if (d->too_long == SDP_TOO_LONG_ERROR) {
        return fail_long(d, document, ids, err);
    }
    if (document->targets > 0)
        keep(d, document, sample);
    return SDP_OK;
}

/* -- opening
 * ------------------------------------------------------------------------------------ */

static enum sdp_status find_lines(struct documents *d, struct sdp_error *err)
{
    size_t at = 0, number = 0, length, room = 0;
    const char *line;

    while (sdpi_next_line(&d->map, &at, &number, &line, &length)) {
        if (length > SDPI_MAX_LINE || number > INT32_MAX || d->count == INT32_MAX)
            return sdp_fail_at(
                err, SDP_INPUT, d->path, NULL, (int)SDP_MIN(number, (size_t)INT32_MAX), 0,
                length > SDPI_MAX_LINE
                    ? "the line has %zu bytes; a record may have at most %zu"
                    : "the file has more lines than can be counted (%zu, %zu)",
                length, SDPI_MAX_LINE);
        if (d->count == room) {
            room = room * 2 + 256;
            d->documents = sdp_xrealloc(d->documents, room * sizeof *d->documents);
        }
        d->documents[d->count++] =
            (struct document){.offset = (size_t)(line - (const char *)d->map.data),
                              .length = (uint32_t)length,
                              .line = (uint32_t)number};
    }
    if (d->count == 0)
        return sdp_fail_at(err, SDP_INPUT, d->path, NULL, 0, 0,
                           "has no records; each line should hold one");
    return SDP_OK;
}

static void add_piece(struct sdpi_piece **pieces, size_t *count, size_t *room,
                      size_t document, size_t first, size_t inputs)
{
    if (*count == *room) {
        *room = *room * 2 + 256;
        *pieces = sdp_xrealloc(*pieces, *room * sizeof **pieces);
    }
    (*pieces)[(*count)++] =
        (struct sdpi_piece){(uint32_t)document, (uint32_t)first, (uint32_t)inputs};
}

static struct sdpi_piece *make_pieces(const struct documents *d, size_t *count,
                                      struct sdpi_facts *facts)
{
    struct sdpi_piece *pieces = NULL;
    size_t room = 0;

    for (size_t i = 0; i < d->count; i++) {
        const struct document *document = &d->documents[i];
        size_t inputs = document->ids > 0 ? document->ids - 1 : 0;
        bool too_long = inputs > d->length;

        facts->too_long += too_long;
        if (too_long && d->too_long == SDP_TOO_LONG_DROP)
            continue;
        facts->without_target += document->targets == 0;
        facts->targets += document->targets;
        if (document->targets == 0)
            continue;
        if (!too_long || d->too_long == SDP_TOO_LONG_TRUNCATE) {
            add_piece(&pieces, count, &room, i, 0, SDP_MIN(inputs, d->length));
            continue;
        }
        for (size_t first = 0; first < inputs; first += d->length) {
            size_t p = first / d->length;

            if (!document->empty || !(document->empty[p / 8] >> p % 8 & 1))
                add_piece(&pieces, count, &room, i, first,
                          SDP_MIN(d->length, inputs - first));
        }
    }
    return pieces;
}

static size_t fill(const void *self, size_t index, const struct sdpi_sequence *to);
static void close_documents(void *self);

static uint64_t hash_documents(const struct documents *d)
{
    uint64_t hash = sdp_random_u64(d->map.size, d->count);

    for (size_t i = 0; i < d->count; i++)
        hash = sdp_random_u64(hash, (uint64_t)d->documents[i].ids << 32 |
                                        d->documents[i].targets);
    return sdp_random_u64(hash, d->layout.sequences);
}

static void set_fields(const struct sdp_job *job, const struct sdpi_encoder *e,
                       struct sdpi_records *how)
{
    static const char *const usual[] = {"text",        "messages", "role",
                                        "content",     "system",   "tools",
                                        "instruction", "input",    "output"};

    how->encoder = e;
    how->format = job->data.format;
    how->pass_tools = job->data.pass_tools;
    how->append_eos = job->data.append_eos;
    for (size_t i = 0; i < SDP_FIELD_COUNT; i++) {
        how->given[i] = job->data.fields[i] != NULL;
        how->fields[i] = sdp_xstrdup(how->given[i] ? job->data.fields[i] : usual[i]);
    }
}

enum sdp_status sdpi_documents_open(const struct sdp_job *job, const char *path,
                                    const struct sdpi_encoder *e, size_t number,
                                    struct sdpi_source *out, struct sdpi_facts *facts,
                                    struct sdp_error *err)
{
    struct documents *d = sdp_xcalloc(1, sizeof *d);
    struct sdpi_piece *pieces;
    size_t count = 0;
    enum sdp_status status;

    *out = (struct sdpi_source){.self = d, .fill = fill, .close = close_documents};
    d->path = sdp_xstrdup(path);
    d->length = job->data.sequence_length;
    d->too_long = job->data.too_long;
    set_fields(job, e, &d->how);
    status = sdp_map_open(path, &d->map, err);
    if (status == SDP_OK)
        status = find_lines(d, err);
    if (status == SDP_OK)
        status = sdpi_data_parallel(d->count, measure, d, err);
    if (status != SDP_OK)
        return status;
    pieces = make_pieces(d, &count, facts);
    sdpi_layout_make(pieces, count, d->length, job->data.packing == SDP_PACKING_PACK,
                     job->data.shuffle, sdp_random_u64(job->data.seed, number),
                     &d->layout);
    facts->samples += d->count;
    facts->ends = facts->ends || atomic_load(&d->ends);
    facts->inputs += d->layout.inputs;
    out->sequences = d->layout.sequences;
    out->hash = hash_documents(d);
    return SDP_OK;
}

static void close_documents(void *self)
{
    struct documents *d = self;

    for (size_t i = 0; i < d->count; i++) {
        free(d->documents[i].kept);
        free(d->documents[i].empty);
    }
    for (size_t i = 0; i < SDP_FIELD_COUNT; i++)
        free(d->how.fields[i]);
    sdpi_layout_free(&d->layout);
    sdp_map_close(&d->map);
    free(d->documents);
    free(d->path);
    free(d);
}

/* -- sequences
 * --------------------------------------------------------------------------------------
 */

/* One piece at places at .. at+count-1; returns its targets. */
static size_t place_piece(const struct documents *d, const struct sdpi_piece *piece,
                          size_t at, const struct sdpi_sequence *to,
                          struct sdpi_sample *sample)
{
    const struct document *document = &d->documents[piece->document];
    size_t targets = 0;

    for (size_t i = 0; i < piece->count; i++) {
        size_t k = piece->first + i;
        int32_t id, next;
        bool counts;

        if (document->kept) {
            id = (int32_t)(document->kept[k] & ~COUNTS);
            next = (int32_t)(document->kept[k + 1] & ~COUNTS);
            counts = document->kept[k + 1] & COUNTS;
        } else {
            id = sample->ids.ids[k];
            next = sample->ids.ids[k + 1];
            counts = sample->counts[k + 1];
        }
        to->ids[at + i] = id;
        to->targets[at + i] = counts ? next : -1;
        to->positions[at + i] = (int32_t)i;
        if (to->starts)
            to->starts[at + i] = (int32_t)at;
        targets += counts;
    }
    return targets;
}

/* Encodes a document whose ids are not kept. Files do not change while they are open. */
static bool load(const struct documents *d, const struct document *document,
                 struct sdpi_sample *sample)
{
    struct sdp_error err = SDP_ERROR_INIT;

    if (document->kept)
        return true;
    if (read_document(d, document, sample, &err) == SDP_OK &&
        sample->ids.count == document->ids)
        return true;
    sdp_warn("%s:%lu: the record has changed while the file is in use; it is left out",
             d->path, (unsigned long)document->line);
    return false;
}

static size_t fill(const void *self, size_t index, const struct sdpi_sequence *to)
{
    const struct documents *d = self;
    const struct sdpi_layout *layout = &d->layout;
    struct sdpi_sample sample = {.counts = NULL};
    size_t at = 0, targets = 0;

    for (size_t p = layout->first[index]; p < layout->first[index + 1]; p++) {
        const struct sdpi_piece *piece = &layout->pieces[p];

        if (!load(d, &d->documents[piece->document], &sample))
            continue;
        targets += place_piece(d, piece, at, to, &sample);
        at += piece->count;
    }
    for (size_t i = at; i < to->length;
         i++) { /* padding: a document that counts nothing */
        to->ids[i] = 0;
        to->targets[i] = -1;
        to->positions[i] = (int32_t)(i - at);
        if (to->starts)
            to->starts[i] = (int32_t)at;
    }
    sdpi_sample_free(&sample);
    return targets;
}
