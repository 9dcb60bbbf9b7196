/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of the data room share. dataset.c mixes the files of a job into one
 * stream of sequences; a file is a source: stream.c cuts a stream of ids or bytes into
 * sequences, documents.c lays out the records of a JSONL file, which record.c reads,
 * chat.c renders and masks, and layout.c places. encoder.c knows how text becomes ids. */
#ifndef SDP_MODEL_DATA_INTERNAL_H
#define SDP_MODEL_DATA_INTERNAL_H

#include "graph/base/json.h"
#include "model/data/dataset.h"
#include "model/template/template.h"
#include "model/tokenizer/tokenizer.h"

#include <stdatomic.h>

#define SDPI_MAX_LINE ((size_t)64 << 20) /* bytes of a record */

/* -- how text becomes ids ------------------------------------------------------ */

struct sdpi_encoder {
    struct sdp_tokenizer *tokenizer; /* NULL: every byte is an id */
    struct sdp_template *template;   /* NULL: there is none */
    char *template_name;             /* where it is from */
    json_t *variables;               /* of the template, without the conversation */
    int32_t bos, eos;                /* -1: unknown */
    size_t vocabulary;               /* the model's */
    int64_t now;                     /* that strftime_now tells */
    uint64_t hash;                   /* of all of it */
    atomic_size_t *room;             /* bytes of ids that may still be kept in memory */
};

enum sdp_status sdpi_encoder_open(const struct sdp_job *job, size_t vocabulary,
                                  struct sdpi_encoder *out, struct sdp_error *err);
void sdpi_encoder_close(struct sdpi_encoder *e);
/* Appends the ids of a text; an id that the model does not have is refused. */
enum sdp_status sdpi_encode(const struct sdpi_encoder *e, const char *text, size_t length,
                            bool add_special, struct sdp_ids *out, struct sdp_error *err);
/* Takes bytes from what may be kept; false: there is not enough. */
bool sdpi_may_keep(const struct sdpi_encoder *e, size_t bytes);

/* -- a sample -------------------------------------------------------------------- */

struct sdpi_sample {
    struct sdp_ids ids, part; /* part: scratch */
    bool *counts;             /* of each id: whether it is a target */
    size_t room;
};

void sdpi_sample_free(struct sdpi_sample *sample);
/* Makes counts as long as ids, all `value` beyond `from`. */
void sdpi_sample_counts(struct sdpi_sample *sample, size_t from, bool value);

/* A conversation in `messages` (role, content, ...) and tools (or NULL) becomes ids of
 * which the assistant's turns count. */
enum sdp_status sdpi_chat_sample(const struct sdpi_encoder *e, json_t *messages,
                                 json_t *tools, struct sdpi_sample *out,
                                 struct sdp_error *err);

struct sdpi_records { /* how records are read */
    const struct sdpi_encoder *encoder;
    enum sdp_data_format format;
    char *fields[SDP_FIELD_COUNT];
    bool given[SDP_FIELD_COUNT]; /* the job names this field */
    bool pass_tools, append_eos;
};

/* A line of a JSONL file as sample; messages give file and line. */
enum sdp_status sdpi_record_sample(const struct sdpi_records *how, const char *path,
                                   size_t number, const char *line, size_t length,
                                   struct sdpi_sample *out, struct sdp_error *err);

/* The next line that is not blank, from *at on; false at the end. *number counts all
 * lines. */
bool sdpi_next_line(const struct sdp_map *map, size_t *at, size_t *number,
                    const char **line, size_t *length);

/* -- layout -------------------------------------------------------------------------- */

struct sdpi_piece { /* inputs first .. first+count-1 of a document, and a target for each
                     */
    uint32_t document, first, count;
};

struct sdpi_layout {
    struct sdpi_piece *pieces; /* in the order of the sequences */
    size_t piece_count;
    size_t *first; /* piece of each sequence, and the end */
    size_t sequences;
    size_t inputs; /* of all pieces */
};

/* Places pieces (sorted into *layout, [takes] pieces) into sequences of `length`: one
 * each, or as many as fit, in an order by `seed` if `shuffle`. */
void sdpi_layout_make(struct sdpi_piece *pieces, size_t count, size_t length, bool pack,
                      bool shuffle, uint64_t seed, struct sdpi_layout *layout);
void sdpi_layout_free(struct sdpi_layout *layout);

/* -- sources ---------------------------------------------------------------------------
 */

struct sdpi_sequence {
    int32_t *ids, *targets, *positions, *starts; /* starts may be NULL */
    size_t length;
};

struct sdpi_facts { /* for messages */
    size_t samples, too_long, without_target, left_ids, left_files;
    size_t inputs, targets; /* of records */
    bool ends;              /* the end token is a target somewhere */
};

struct sdpi_source {
    void *self;
    size_t sequences;
    uint64_t hash;
    /* Fills a sequence; returns the targets that count. */
    size_t (*fill)(const void *self, size_t index, const struct sdpi_sequence *to);
    void (*close)(void *self);
};

enum sdp_status sdpi_stream_open(const struct sdp_job *job, const char *path,
                                 const struct sdpi_encoder *e, size_t vocabulary,
                                 struct sdpi_source *out, struct sdpi_facts *facts,
                                 struct sdp_error *err);
enum sdp_status sdpi_documents_open(const struct sdp_job *job, const char *path,
                                    const struct sdpi_encoder *e, size_t number,
                                    struct sdpi_source *out, struct sdpi_facts *facts,
                                    struct sdp_error *err);

/* Work on 0 .. count-1 on all cores, in runs; of several failures the one of the lowest
 * number is told, so that the message does not depend on the cores. `scratch` is the
 * worker's own. */
typedef enum sdp_status sdpi_data_work(void *arg, size_t item,
                                       struct sdpi_sample *scratch,
                                       struct sdp_error *err);
enum sdp_status sdpi_data_parallel(size_t count, sdpi_data_work *work, void *arg,
                                   struct sdp_error *err);

uint64_t sdpi_hash_bytes(uint64_t hash, const void *bytes, size_t size);

#endif
