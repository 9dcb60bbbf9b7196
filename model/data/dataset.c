/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Data sets stay in their files, which are mapped; a sequence is converted when it is
 * asked for. Which sequence that is follows from the seed and its number in the stream
 * alone (shuffle.h), so nothing has to be kept between steps, and any number of ranks and
 * threads see the same stream. Files must not change while they are open: ids are checked
 * once, at the start. Validation data is never shuffled. */
#include "model/data/dataset.h"

#include "graph/base/log.h"
#include "model/data/npy.h"
#include "model/data/shuffle.h"
#include "model/tokenizer/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

struct token_file {
    const char *path; /* [borrowed] from the job, while opening only */
    struct sdp_map map;
    const uint8_t *data;  /* the elements; may be unaligned */
    enum sdp_dtype dtype; /* of a token file */
    size_t count;         /* elements */
    size_t first;         /* number of the file's first sequence */
    size_t sequences;
};

struct sdp_dataset {
    enum sdp_data_format format;
    size_t length; /* tokens of a sequence */
    size_t vocabulary;
    uint64_t seed;
    bool shuffle;
    size_t
        repeat; /* synthetic: sequences after which the stream begins again; 0: never */
    struct token_file *files;
    size_t file_count;
    size_t sequences;
    char fingerprint[128]; /* as long as a checkpoint's */
};

/* -- ids ---------------------------------------------------------------------- */

/* Elements first .. first+count-1 of a file as ids that were checked. */
static void read_ids(const struct sdp_dataset *data, const struct token_file *file,
                     size_t first, size_t count, int32_t *ids)
{
    size_t size = sdp_dtype_size(file->dtype);
    const uint8_t *from;

    if (data->format == SDP_DATA_TEXT) {
        sdp_bytes_encode(file->data + first, count, ids);
        return;
    }
    from = file->data + first * size;
    if (file->dtype == SDP_UINT16) {
        for (size_t i = 0; i < count; i++) {
            uint16_t id;
            memcpy(&id, from + i * sizeof id, sizeof id);
            ids[i] = id;
        }
    } else if (file->dtype == SDP_INT64) { /* below 2^31: the low half is the id */
        for (size_t i = 0; i < count; i++)
            memcpy(&ids[i], from + i * sizeof(int64_t), sizeof ids[i]);
    } else {
        memcpy(ids, from, count * sizeof *ids);
    }
}

/* Any element as a number that can be compared and printed. */
static long long element_at(const struct token_file *file, size_t i)
{
    const uint8_t *from = file->data + i * sdp_dtype_size(file->dtype);
    uint16_t u2 = 0;
    uint32_t u4 = 0;
    int64_t i8 = 0;

    switch (file->dtype) {
    case SDP_UINT16:
        memcpy(&u2, from, sizeof u2);
        return u2;
    case SDP_UINT32:
        memcpy(&u4, from, sizeof u4);
        return u4;
    case SDP_INT32:
        memcpy(&u4, from, sizeof u4);
        return (int32_t)u4;
    default:
        memcpy(&i8, from, sizeof i8);
        return i8;
    }
}

/* Whether an element of a run is out of range, in a loop without branches: as unsigned
 * numbers, negative ones are too large as well. */
static bool any_outside(const struct token_file *file, size_t first, size_t count,
                        size_t vocabulary)
{
    const uint8_t *from = file->data + first * sdp_dtype_size(file->dtype);
    unsigned bad = 0;

    if (file->dtype == SDP_UINT16) {
        for (size_t i = 0; i < count; i++) {
            uint16_t id;
            memcpy(&id, from + i * sizeof id, sizeof id);
            bad |= id >= vocabulary;
        }
    } else if (file->dtype == SDP_INT64) {
        for (size_t i = 0; i < count; i++) {
            uint64_t id;
            memcpy(&id, from + i * sizeof id, sizeof id);
            bad |= id >= vocabulary;
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            uint32_t id;
            memcpy(&id, from + i * sizeof id, sizeof id);
            bad |= id >= vocabulary;
        }
    }
    return bad != 0;
}

static enum sdp_status check_ids(const struct token_file *file, size_t vocabulary,
                                 struct sdp_error *err)
{
    const size_t run = (size_t)1 << 16;

    for (size_t first = 0; first < file->count; first += run) {
        size_t count = SDP_MIN(run, file->count - first);

        if (!any_outside(file, first, count, vocabulary))
            continue;
        for (size_t i = first; i < first + count; i++) {
            long long id = element_at(file, i);

            if (id < 0 || (unsigned long long)id >= vocabulary)
                return sdp_fail_at(err, SDP_INPUT, file->path, NULL, 0, 0,
                                   "element %zu is %lld; the model's vocabulary has the "
                                   "ids 0 to %zu",
                                   i, id, vocabulary - 1);
        }
    }
    return SDP_OK;
}

/* -- opening ------------------------------------------------------------------ */

static bool is_named_npy(const char *path)
{
    size_t length = strlen(path);

    return length > 4 && strcasecmp(path + length - 4, ".npy") == 0;
}

static enum sdp_status open_tokens(const struct sdp_job *job, struct token_file *file,
                                   struct sdp_error *err)
{
    size_t size = sdp_dtype_size(job->data.token_dtype);
    struct sdp_npy npy;
    enum sdp_status status;

    if (is_named_npy(file->path)) {
        status = sdp_npy_parse(&file->map, file->path, &npy, err);
        if (status != SDP_OK)
            return status;
        file->dtype = npy.dtype;
        file->count = npy.count;
        file->data = npy.data;
        return SDP_OK;
    }
    if (sdp_npy_has_magic(&file->map))
        return sdp_fail_at(err, SDP_INPUT, file->path, NULL, 0, 0,
                           "is a .npy file by its content; its name must end in .npy");
    if (file->map.size % size != 0)
        return sdp_fail_at(err, SDP_INPUT, file->path, NULL, 0, 0,
                           "has %zu bytes, which is no multiple of the %zu bytes of a "
                           "%s",
                           file->map.size, size, sdp_dtype_name(job->data.token_dtype));
    file->dtype = job->data.token_dtype;
    file->count = file->map.size / size;
    file->data = file->map.data;
    return SDP_OK;
}

static enum sdp_status open_file(const struct sdp_job *job, struct sdp_dataset *data,
                                 const char *path, struct token_file *file,
                                 struct sdp_error *err)
{
    bool is_text = data->format == SDP_DATA_TEXT;
    enum sdp_status status;

    file->path = path;
    status = sdp_map_open(path, &file->map, err);
    if (status != SDP_OK)
        return status;
    if (file->map.size == 0)
        return sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                           "is empty; a sequence of %zu needs %zu %s", data->length,
                           data->length + 1, is_text ? "bytes" : "ids");
    if (is_text) {
        file->data = file->map.data;
        file->count = file->map.size;
    } else {
        status = open_tokens(job, file, err);
    }
    if (status == SDP_OK && file->count <= data->length)
        status = sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                             "has %zu %s; a sequence of %zu needs %zu, one more for the "
                             "last target",
                             file->count, is_text ? "bytes" : "ids", data->length,
                             data->length + 1);
    if (status == SDP_OK && !is_text)
        status = check_ids(file, data->vocabulary, err);
    return status;
}

/* The key of the model's or the data's that says what a vocabulary is too small for. */
static enum sdp_status check_vocabulary(const struct sdp_job *job, size_t vocabulary,
                                        struct sdp_error *err)
{
    if (vocabulary == 0 || vocabulary > (size_t)INT32_MAX)
        return sdp_fail(err, SDP_INPUT,
                        "a vocabulary of %zu ids cannot be used; must be 1 to %d ids",
                        vocabulary, INT32_MAX);
    if (job->data.format != SDP_DATA_TEXT || vocabulary >= SDP_BYTES_VOCABULARY)
        return SDP_OK;
    return sdp_fail_at(err, SDP_INPUT, sdp_job_source(job, "/data/format"),
                       "/data/format", 0, 0,
                       "is \"text\", which makes %u ids, one for each byte; the model's "
                       "vocabulary has only %zu",
                       SDP_BYTES_VOCABULARY, vocabulary);
}

/* An incomplete last sequence of each file is dropped. */
static void tell_dropped(const struct sdp_dataset *data, bool validation)
{
    size_t ids = 0, files = 0;

    for (size_t f = 0; f < data->file_count; f++) {
        size_t left = (data->files[f].count - 1) % data->length;

        ids += left;
        files += left > 0;
    }
    if (ids > 0)
        sdp_info("%s data: the last %zu ids of %zu of %zu files make no full sequence of "
                 "%zu and are left out",
                 validation ? "validation" : "training", ids, files, data->file_count,
                 data->length);
}

static enum sdp_status open_files(const struct sdp_job *job, bool validation,
                                  struct sdp_dataset *data, struct sdp_error *err)
{
    char *const *paths = validation ? job->data.validation : job->data.train;
    size_t count = validation ? job->data.validation_count : job->data.train_count;

    if (count == 0)
        return sdp_fail(err, SDP_INPUT, "the job names no %s files",
                        validation ? "validation" : "training");
    data->files = sdp_xcalloc(count, sizeof *data->files);
    for (size_t f = 0; f < count; f++) {
        struct token_file *file = &data->files[data->file_count++];
        enum sdp_status status = open_file(job, data, paths[f], file, err);

        if (status != SDP_OK)
            return status;
        file->first = data->sequences;
        file->sequences = (file->count - 1) / data->length;
        data->sequences += file->sequences;
    }
    tell_dropped(data, validation);
    return SDP_OK;
}

static uint64_t add_size(uint64_t hash, size_t size)
{
    return sdp_random_u64(hash, size);
}

/* The files' own names, not where they lie: data may move between a stop and a resume. */
static void make_fingerprint(struct sdp_dataset *data)
{
    static const char *const formats[] = {
        [SDP_DATA_SYNTHETIC] = "synthetic",
        [SDP_DATA_TOKENS] = "tokens",
        [SDP_DATA_TEXT] = "text",
    };
    uint64_t hash = add_size(data->format, data->length);

    if (data->format == SDP_DATA_SYNTHETIC)
        hash = add_size(add_size(hash, data->vocabulary), data->repeat);
    for (size_t f = 0; f < data->file_count; f++) {
        const struct token_file *file = &data->files[f];
        const char *name = strrchr(file->path, '/');

        hash = sdp_random_key(hash, name ? name + 1 : file->path);
        hash = add_size(add_size(hash, file->map.size), file->dtype);
    }
    snprintf(data->fingerprint, sizeof data->fingerprint,
             "%s, %zu files, sequence length %zu, %s, %016llx", formats[data->format],
             data->file_count, data->length, data->shuffle ? "shuffled" : "in order",
             (unsigned long long)hash);
}

enum sdp_status sdp_dataset_open(const struct sdp_job *job, bool validation,
                                 size_t vocabulary, struct sdp_dataset **out,
                                 struct sdp_error *err)
{
    struct sdp_dataset *data;
    enum sdp_status status = check_vocabulary(job, vocabulary, err);

    if (status != SDP_OK)
        return status;
    data = sdp_xcalloc(1, sizeof *data);
    data->format = job->data.format;
    data->length = job->data.sequence_length;
    data->vocabulary = vocabulary;
    data->seed = job->data.seed;
    data->shuffle = job->data.shuffle && !validation;
    if (data->format == SDP_DATA_SYNTHETIC) {
        data->sequences = SIZE_MAX;
        data->shuffle = false; /* random anyway */
        if (job->data.repeat_batch)
            data->repeat = job->train.tokens_per_step / data->length;
    } else {
        status = open_files(job, validation, data, err);
    }
    if (status == SDP_OK) {
        make_fingerprint(data);
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
    for (size_t f = 0; f < data->file_count; f++)
        sdp_map_close(&data->files[f].map);
    free(data->files);
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
static void make_ids(const struct sdp_dataset *data, uint64_t index, int32_t *ids,
                     int32_t *last)
{
    uint64_t key = sdp_random_u64(sdp_random_key(data->seed, "synthetic"),
                                  data->repeat ? index % data->repeat : index);

    for (size_t i = 0; i <= data->length; i++) {
        uint64_t random = sdp_random_u64(key, i) >> 32;

        *(i < data->length ? &ids[i] : last) = (int32_t)(random * data->vocabulary >> 32);
    }
}

/* The file that a sequence of an epoch is in: the last one that begins at or before it.
 */
static const struct token_file *find_file(const struct sdp_dataset *data, size_t sequence)
{
    size_t low = 0, high = data->file_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (data->files[middle].first <= sequence)
            low = middle;
        else
            high = middle;
    }
    return &data->files[low];
}

size_t sdp_dataset_sequence(const struct sdp_dataset *data, uint64_t index, int32_t *ids,
                            int32_t *targets, int32_t *positions)
{
    int32_t last = 0;

    if (data->format == SDP_DATA_SYNTHETIC) {
        make_ids(data, index, ids, &last);
    } else {
        uint64_t epoch = index / data->sequences, sequence = index % data->sequences;
        const struct token_file *file;
        size_t first;

        if (data->shuffle)
            sequence = sdp_shuffle(data->seed, epoch, data->sequences, sequence);
        file = find_file(data, (size_t)sequence);
        first = ((size_t)sequence - file->first) * data->length;
        read_ids(data, file, first, data->length, ids);
        read_ids(data, file, first + data->length, 1, &last);
    }
    memcpy(targets, ids + 1, (data->length - 1) * sizeof *targets);
    targets[data->length - 1] = last;
    for (size_t i = 0; i < data->length; i++)
        positions[i] = (int32_t)i;
    return data->length;
}
