/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One stream of ids, cut into sequences that overlap by one id: token files, bytes, and
 * text with a tokenizer. Files stay mapped, and a sequence is converted when it is asked
 * for.
 *
 * Text with a tokenizer is encoded in blocks that end with a line (of at least BLOCK
 * bytes, before a line that begins with no white space), all of them once when the file
 * is opened, to know where each begins in the stream; their ids are kept as far as memory
 * for them goes, else a block is encoded again when a sequence needs it. */
#include "model/data/data_internal.h"

#include "model/data/npy.h"
#include "model/tokenizer/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define BLOCK     ((size_t)8 << 10)
#define MAX_BLOCK ((size_t)1 << 20) /* of a text without a fitting line end */

struct block {
    size_t offset, length; /* bytes */
    size_t first, count;   /* ids */
    int32_t *kept;
};

struct token_file {
    const char *path; /* [borrowed] from the job, while opening only */
    struct sdp_map map;
    bool is_text;
    const uint8_t *data;  /* the elements; may be unaligned */
    enum sdp_dtype dtype; /* of a token file */
    size_t count;         /* elements */
    size_t length;        /* tokens of a sequence */
    size_t vocabulary;
    const struct sdpi_encoder *encoder; /* of a text that has a tokenizer, else NULL */
    struct block *blocks;
    size_t block_count;
};

/* -- text with a tokenizer ------------------------------------------------------ */

/* Where a block that begins at `start` ends. */
static size_t block_end(const struct sdp_map *map, size_t start)
{
    size_t at = start + BLOCK, limit = SDP_MIN(map->size, start + MAX_BLOCK);

    while (at < limit) {
        const uint8_t *end = memchr(map->data + at, '\n', limit - at);

        if (!end)
            break;
        at = (size_t)(end - map->data) + 1;
        if (at < map->size && !strchr(" \t\r\n\v\f", map->data[at]) &&
            map->data[at] < 0x80 && map->data[at])
            return at;
    }
    for (at = limit; at < map->size && at > start + 1 && (map->data[at] & 0xc0) == 0x80;)
        at--; /* not within a character */
    return at;
}

static enum sdp_status encode_block(void *arg, size_t item, struct sdpi_sample *sample,
                                    struct sdp_error *err)
{
    struct token_file *file = arg;
    struct block *block = &file->blocks[item];
    enum sdp_status status;

    sample->ids.count = 0;
    status = sdpi_encode(file->encoder, (const char *)file->map.data + block->offset,
                         block->length, false, &sample->ids, err);
    if (status != SDP_OK) {
        sdp_error_set_file(err, file->path);
        return status;
    }
    block->count = sample->ids.count;
    if (block->count > 0 &&
        sdpi_may_keep(file->encoder, block->count * sizeof *block->kept)) {
        block->kept = sdp_xcalloc(block->count, sizeof *block->kept);
        memcpy(block->kept, sample->ids.ids, block->count * sizeof *block->kept);
    }
    return SDP_OK;
}

static enum sdp_status open_blocks(struct token_file *file, struct sdp_error *err)
{
    size_t room = 0;
    enum sdp_status status;

    for (size_t at = 0; at < file->map.size;) {
        size_t end = block_end(&file->map, at);

        if (file->block_count == room) {
            room = room * 2 + 64;
            file->blocks = sdp_xrealloc(file->blocks, room * sizeof *file->blocks);
        }
        file->blocks[file->block_count++] =
            (struct block){.offset = at, .length = end - at};
        at = end;
    }
    status = sdpi_data_parallel(file->block_count, encode_block, file, err);
    file->count = 0;
    for (size_t b = 0; b < file->block_count; b++) {
        file->blocks[b].first = file->count;
        file->count += file->blocks[b].count;
    }
    return status;
}

/* The block that id number `first` is in: the last one that begins at or before it. */
static size_t find_block(const struct token_file *file, size_t first)
{
    size_t low = 0, high = file->block_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (file->blocks[middle].first <= first)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void read_blocks(const struct token_file *file, size_t first, size_t count,
                        int32_t *ids)
{
    struct sdp_ids own = {NULL, 0, 0};

    for (size_t b = find_block(file, first); count > 0 && b < file->block_count; b++) {
        const struct block *block = &file->blocks[b];
        const int32_t *from = block->kept;
        size_t skip = first - block->first, take = SDP_MIN(count, block->count - skip);

        if (!from) {
            own.count = 0;
            if (sdpi_encode(file->encoder, (const char *)file->map.data + block->offset,
                            block->length, false, &own, NULL) != SDP_OK ||
                own.count != block->count) {
                memset(ids, 0,
                       count * sizeof *ids); /* the file has changed, which it must not */
                break;
            }
            from = own.ids;
        }
        memcpy(ids, from + skip, take * sizeof *ids);
        ids += take;
        first += take;
        count -= take;
    }
    sdp_ids_free(&own);
}

/* -- ids ---------------------------------------------------------------------- */

/* Elements first .. first+count-1 of a file as ids that were checked. */
static void read_ids(const struct token_file *file, size_t first, size_t count,
                     int32_t *ids)
{
    size_t size = sdp_dtype_size(file->dtype);
    const uint8_t *from;

    if (file->encoder) {
        read_blocks(file, first, count, ids);
        return;
    }
    if (file->is_text) {
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

static enum sdp_status read_file(const struct sdp_job *job, struct token_file *file,
                                 struct sdp_error *err)
{
    const char *unit = file->is_text && !file->encoder ? "bytes" : "ids";
    enum sdp_status status = sdp_map_open(file->path, &file->map, err);

    if (status != SDP_OK)
        return status;
    if (file->map.size == 0)
        return sdp_fail_at(err, SDP_INPUT, file->path, NULL, 0, 0,
                           "is empty; a sequence of %zu needs %zu %s", file->length,
                           file->length + 1, unit);
    if (file->encoder) {
        status = open_blocks(file, err);
    } else if (file->is_text) {
        file->data = file->map.data;
        file->count = file->map.size;
    } else {
        status = open_tokens(job, file, err);
    }
    if (status == SDP_OK && file->count <= file->length)
        status = sdp_fail_at(err, SDP_INPUT, file->path, NULL, 0, 0,
                             "has %zu %s; a sequence of %zu needs %zu, one more for the "
                             "last target",
                             file->count, unit, file->length, file->length + 1);
    if (status == SDP_OK && !file->is_text)
        status = check_ids(file, file->vocabulary, err);
    return status;
}

/* -- the source ----------------------------------------------------------------- */

static size_t fill(const void *self, size_t index, const struct sdpi_sequence *to)
{
    const struct token_file *file = self;
    size_t first = index * file->length;

    read_ids(file, first, file->length, to->ids);
    memcpy(to->targets, to->ids + 1, (file->length - 1) * sizeof *to->targets);
    read_ids(file, first + file->length, 1, &to->targets[file->length - 1]);
    for (size_t i = 0; i < file->length; i++) {
        to->positions[i] = (int32_t)i;
        if (to->starts)
            to->starts[i] = 0;
    }
    return file->length;
}

static void close_stream(void *self)
{
    struct token_file *file = self;

    for (size_t b = 0; b < file->block_count; b++)
        free(file->blocks[b].kept);
    free(file->blocks);
    sdp_map_close(&file->map);
    free(file);
}

enum sdp_status sdpi_stream_open(const struct sdp_job *job, const char *path,
                                 const struct sdpi_encoder *e, size_t vocabulary,
                                 struct sdpi_source *out, struct sdpi_facts *facts,
                                 struct sdp_error *err)
{
    struct token_file *file = sdp_xcalloc(1, sizeof *file);
    enum sdp_status status;
    size_t left;

    *out = (struct sdpi_source){.self = file, .fill = fill, .close = close_stream};
    file->path = path;
    file->is_text = job->data.format == SDP_DATA_TEXT;
    file->encoder = file->is_text && e->tokenizer ? e : NULL;
    file->length = job->data.sequence_length;
    file->vocabulary = vocabulary;
    status = read_file(job, file, err);
    file->path = NULL;
    if (status != SDP_OK)
        return status;
    out->sequences = (file->count - 1) / file->length;
    out->hash = sdp_random_u64(sdp_random_u64(file->map.size, file->count), file->dtype);
    left = (file->count - 1) % file->length;
    facts->left_ids += left;
    facts->left_files += left > 0;
    return SDP_OK;
}
