/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The files of a job as one stream of sequences. Which sequence comes when follows from
 * the seed and its number in the stream alone (shuffle.h), so nothing has to be kept
 * between steps, and any number of ranks and threads see the same stream. Files must not
 * change while they are open: they are checked once, at the start. Validation data is
 * never shuffled.
 *
 * An epoch takes round(weight * sequences) sequences of each file. A file whose weight is
 * not 1 goes on in the next epoch where this one stopped, so that all of its sequences
 * come equally often, in an order that is new each time it begins again. */
#include "model/data/dataset.h"

#include "graph/base/log.h"
#include "model/data/data_internal.h"
#include "model/data/shuffle.h"
#include "model/tokenizer/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define KEPT ((size_t)256 << 20) /* bytes of ids that stay in memory */

struct part { /* a file of the stream */
    struct sdpi_source source;
    size_t take;  /* sequences of an epoch */
    size_t first; /* number of the file's first one in an epoch */
};

struct sdp_dataset {
    enum sdp_data_format format;
    size_t length; /* tokens of a sequence */
    size_t vocabulary;
    uint64_t seed;
    bool shuffle;
    size_t
        repeat; /* synthetic: sequences after which the stream begins again; 0: never */
    struct sdpi_encoder encoder;
    atomic_size_t room; /* of KEPT */
    struct part *parts;
    size_t part_count;
    size_t sequences;
    uint64_t names;        /* hash of the files' names */
    char fingerprint[128]; /* as long as a checkpoint's */
};

static const char *const formats[] = {"synthetic", "tokens", "text", "messages",
                                      "alpaca"};

/* -- messages -------------------------------------------------------------------- */

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

/* An incomplete last sequence of each stream is dropped. */
static void tell_dropped(const struct sdp_dataset *data, const struct sdpi_facts *facts,
                         const char *what)
{
    if (facts->left_ids > 0)
        sdp_info("%s data: the last %zu ids of %zu of %zu files make no full sequence of "
                 "%zu and are left out",
                 what, facts->left_ids, facts->left_files, data->part_count,
                 data->length);
}

static void tell_samples(const struct sdp_job *job, const struct sdp_dataset *data,
                         const struct sdpi_facts *facts, const char *what)
{
    static const char *const done[] = {"truncated", "split", "left out", ""};
    double places = (double)data->length;
    size_t sequences = 0;

    if (facts->samples == 0)
        return;
    for (size_t p = 0; p < data->part_count; p++)
        sequences += data->parts[p].source.sequences;
    sdp_info("%s data: %zu samples in %zu file%s make %zu sequences of %zu, %.1f %% of "
             "them filled; %.1f %% of the "
             "tokens are targets%s%s",
             what, facts->samples, data->part_count, plural(data->part_count), sequences,
             data->length,
             sequences ? 100.0 * (double)facts->inputs / (places * (double)sequences)
                       : 0.0,
             facts->inputs ? 100.0 * (double)facts->targets / (double)facts->inputs : 0.0,
             data->encoder.template ? "; chat template: " : "",
             data->encoder.template ? data->encoder.template_name : "");
    if (data->encoder.template && data->encoder.eos >= 0 && !facts->ends)
        sdp_warn("%s data: no answer ends with the tokenizer's eos_token; whoever "
                 "generates with the model must stop at "
                 "the end of turn that the chat template writes",
                 what);
    if (facts->too_long > 0)
        sdp_info("%s data: %zu sample%s longer than a sequence %s %s (data.too_long)",
                 what, facts->too_long, plural(facts->too_long),
                 facts->too_long == 1 ? "was" : "were", done[job->data.too_long]);
    if (facts->without_target > 0)
        sdp_info("%s data: %zu sample%s without any target %s left out", what,
                 facts->without_target, plural(facts->without_target),
                 facts->without_target == 1 ? "was" : "were");
}

/* -- opening ------------------------------------------------------------------------ */

static enum sdp_status check_vocabulary(size_t vocabulary, struct sdp_error *err)
{
    if (vocabulary == 0 || vocabulary > (size_t)INT32_MAX)
        return sdp_fail(err, SDP_INPUT,
                        "a vocabulary of %zu ids cannot be used; must be 1 to %d ids",
                        vocabulary, INT32_MAX);
    return SDP_OK;
}

/* Bytes need a vocabulary for them. */
static enum sdp_status check_bytes(const struct sdp_job *job,
                                   const struct sdp_dataset *data, struct sdp_error *err)
{
    if (data->encoder.tokenizer || data->vocabulary >= SDP_BYTES_VOCABULARY)
        return SDP_OK;
    return sdp_fail_at(err, SDP_INPUT, sdp_job_source(job, "/data/format"),
                       "/data/format", 0, 0,
                       "is \"%s\", which makes %u ids, one for each byte; the model's "
                       "vocabulary has only %zu",
                       formats[job->data.format], SDP_BYTES_VOCABULARY, data->vocabulary);
}

static bool ends_in(const char *path, const char *end)
{
    size_t length = strlen(path), more = strlen(end);

    return length > more && strcasecmp(path + length - more, end) == 0;
}

static bool is_records(const struct sdp_job *job, const char *path)
{
    return job->data.format == SDP_DATA_MESSAGES || job->data.format == SDP_DATA_ALPACA ||
           (job->data.format == SDP_DATA_TEXT &&
            (ends_in(path, ".jsonl") || ends_in(path, ".ndjson")));
}

static enum sdp_status open_part(const struct sdp_job *job, struct sdp_dataset *data,
                                 const char *path, double weight,
                                 struct sdpi_facts *facts, struct sdp_error *err)
{
    size_t number = data->part_count++;
    struct part *part = &data->parts[number];
    const char *name = strrchr(path, '/');
    enum sdp_status status;

    if (is_records(job, path))
        status = sdpi_documents_open(job, path, &data->encoder, number, &part->source,
                                     facts, err);
    else
        status = sdpi_stream_open(job, path, &data->encoder, data->vocabulary,
                                  &part->source, facts, err);
    if (status != SDP_OK)
        return status;
    part->take = part->source.sequences;
    if (weight != 1.0 && part->take > 0)
        part->take = SDP_MAX((size_t)llround(weight * (double)part->take), (size_t)1);
    part->first = data->sequences;
    data->sequences += part->take;
    data->names = sdp_random_key(data->names, name ? name + 1 : path);
    return SDP_OK;
}

static enum sdp_status open_files(const struct sdp_job *job, bool validation,
                                  struct sdp_dataset *data, struct sdp_error *err)
{
    char *const *paths = validation ? job->data.validation : job->data.train;
    size_t count = validation ? job->data.validation_count : job->data.train_count;
    const char *what = validation ? "validation" : "training";
    struct sdpi_facts facts = {.samples = 0};

    if (count == 0)
        return sdp_fail(err, SDP_INPUT, "the job names no %s files", what);
    data->parts = sdp_xcalloc(count, sizeof *data->parts);
    for (size_t f = 0; f < count; f++) {
        double weight = validation || !job->data.weights ? 1.0 : job->data.weights[f];
        enum sdp_status status = open_part(job, data, paths[f], weight, &facts, err);

        if (status != SDP_OK)
            return status;
    }
    tell_dropped(data, &facts, what);
    tell_samples(job, data, &facts, what);
    if (data->sequences == 0)
        return sdp_fail_at(err, SDP_INPUT, paths[0], NULL, 0, 0,
                           "holds nothing to train on: of %zu samples %zu were too long "
                           "and %zu had no target",
                           facts.samples, facts.too_long, facts.without_target);
    return SDP_OK;
}

static uint64_t add_size(uint64_t hash, size_t size)
{
    return sdp_random_u64(hash, size);
}

/* The files' own names, not where they lie: data may move between a stop and a resume. */
static void make_fingerprint(const struct sdp_job *job, struct sdp_dataset *data)
{
    uint64_t hash = add_size(data->format, data->length);

    hash = add_size(add_size(hash, data->names), data->encoder.hash);
    if (data->format == SDP_DATA_SYNTHETIC)
        hash = add_size(add_size(hash, data->vocabulary), data->repeat);
    else
        hash = add_size(hash,
                        (size_t)job->data.too_long * 64 + (size_t)job->data.packing * 8 +
                            (size_t)job->data.pass_tools * 2 + job->data.append_eos);
    for (size_t i = 0; i < SDP_FIELD_COUNT; i++)
        hash = sdp_random_key(add_size(hash, i),
                              job->data.fields[i] ? job->data.fields[i] : "");
    for (size_t p = 0; p < data->part_count; p++)
        hash = add_size(add_size(hash, data->parts[p].source.hash), data->parts[p].take);
    snprintf(data->fingerprint, sizeof data->fingerprint,
             "%s, %zu files, sequence length %zu, %s%s, %016llx", formats[data->format],
             data->part_count, data->length, job->data.packing ? "packed, " : "",
             data->shuffle ? "shuffled" : "in order", (unsigned long long)hash);
}

static enum sdp_status open_data(const struct sdp_job *job, bool validation,
                                 struct sdp_dataset *data, struct sdp_error *err)
{
    enum sdp_status status;

    if (data->format == SDP_DATA_SYNTHETIC) {
        data->sequences = SIZE_MAX;
        if (job->data.repeat_batch)
            data->repeat = job->train.tokens_per_step / data->length;
        return SDP_OK;
    }
    if (data->format != SDP_DATA_TOKENS) {
        status = sdpi_encoder_open(job, data->vocabulary, &data->encoder, err);
        if (status == SDP_OK)
            status = check_bytes(job, data, err);
        if (status != SDP_OK)
            return status;
    }
    if (job->data.append_eos && data->format == SDP_DATA_TEXT &&
        data->encoder.tokenizer && data->encoder.eos < 0)
        sdp_info("the tokenizer's folder names no eos_token: records of texts end "
                 "without one");
    data->encoder.room = &data->room;
    return open_files(job, validation, data, err);
}

enum sdp_status sdp_dataset_open(const struct sdp_job *job, bool validation,
                                 size_t vocabulary, struct sdp_dataset **out,
                                 struct sdp_error *err)
{
    struct sdp_dataset *data;
    enum sdp_status status = check_vocabulary(vocabulary, err);

    if (status != SDP_OK)
        return status;
    data = sdp_xcalloc(1, sizeof *data);
    data->format = job->data.format;
    data->length = job->data.sequence_length;
    data->vocabulary = vocabulary;
    data->seed = job->data.seed;
    data->shuffle = job->data.shuffle && !validation;
    atomic_init(&data->room, KEPT);
    status = open_data(job, validation, data, err);
    if (status == SDP_OK) {
        make_fingerprint(job, data);
        *out = data;
    } else {
        sdp_dataset_close(data);
    }
    return status;
}

void sdp_dataset_close(struct sdp_dataset *data)
{
    if (!data)
        return;
    for (size_t p = 0; p < data->part_count; p++)
        if (data->parts[p].source.close)
            data->parts[p].source.close(data->parts[p].source.self);
    sdpi_encoder_close(&data->encoder);
    free(data->parts);
    free(data);
}

/* -- reading ------------------------------------------------------------------ */

size_t sdp_dataset_sequences(const struct sdp_dataset *data)
{
    return data->sequences;
}

const char *sdp_dataset_fingerprint(const struct sdp_dataset *data)
{
    return data->fingerprint;
}

/* Ids of a synthetic sequence: a function of the seed and the number of the id. */
static size_t make_ids(const struct sdp_dataset *data, uint64_t index,
                       const struct sdpi_sequence *to)
{
    uint64_t key = sdp_random_u64(sdp_random_key(data->seed, "synthetic"),
                                  data->repeat ? index % data->repeat : index);

    for (size_t i = 0; i <= data->length; i++) {
        uint64_t random = sdp_random_u64(key, i) >> 32;
        int32_t id = (int32_t)(random * data->vocabulary >> 32);

        if (i > 0)
            to->targets[i - 1] = id;
        if (i == data->length)
            break;
        to->ids[i] = id;
        to->positions[i] = (int32_t)i;
        if (to->starts)
            to->starts[i] = 0;
    }
    return data->length;
}

/* The file that a sequence of an epoch is in: the last one that begins at or before it.
 */
static size_t find_part(const struct sdp_dataset *data, size_t sequence)
{
    size_t low = 0, high = data->part_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (data->parts[middle].first <= sequence)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Which sequence of its file the k-th one of an epoch is. */
static size_t choose(const struct sdp_dataset *data, size_t number, uint64_t epoch,
                     size_t k)
{
    const struct part *part = &data->parts[number];
    uint64_t count = part->source.sequences, drawn = epoch * part->take + k;

    if (part->take == count)
        return k;
    if (!data->shuffle)
        return (size_t)(drawn % count);
    return (size_t)sdp_shuffle(
        sdp_random_u64(sdp_random_key(data->seed, "weights"), number), drawn / count,
        count, drawn % count);
}

size_t sdp_dataset_sequence(const struct sdp_dataset *data, uint64_t index, int32_t *ids,
                            int32_t *targets, int32_t *positions, int32_t *starts)
{
    const struct sdpi_sequence to = {ids, targets, positions, starts, data->length};
    uint64_t epoch, sequence;
    size_t number;

    if (data->format == SDP_DATA_SYNTHETIC)
        return make_ids(data, index, &to);
    epoch = index / data->sequences;
    sequence = index % data->sequences;
    if (data->shuffle)
        sequence = sdp_shuffle(data->seed, epoch, data->sequences, sequence);
    number = find_part(data, (size_t)sequence);
    return data->parts[number].source.fill(
        data->parts[number].source.self,
        choose(data, number, epoch, (size_t)sequence - data->parts[number].first), &to);
}
