/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The streaming writer: the header first, from what is known of the tensors, then their
 * bytes as they come. */
#include "model/checkpoint/checkpoint_internal.h"
#include "model/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct sdp_safetensors_writer {
    char *path;
    int fd;
    size_t left; /* bytes still to come */
};

/* Bytes of a tensor; false where they overflow or do not fill whole bytes. */
static bool entry_bytes(const struct sdp_safetensors_entry *entry, size_t *out)
{
    size_t bits = sdp_safetensors_dtype_bits(entry->dtype);

    for (size_t d = 0; d < entry->dims; d++)
        if (!sdp_size_mul(bits, entry->shape[d], &bits))
            return false;
    *out = bits / 8;
    return bits % 8 == 0;
}

/* The header's entry of a tensor at `offset`, which moves behind it. NULL: the entry is
 * not one that may be written. [new] */
static json_t *describe_entry(const struct sdp_safetensors_entry *entry, size_t *offset)
{
    size_t bytes, element = sdp_safetensors_dtype_bits(entry->dtype) / 8;
    json_t *shape;

    if (!entry_bytes(entry, &bytes) || bytes > (size_t)INT64_MAX - *offset ||
        (element > 1 && *offset % element != 0))
        return NULL;
    shape = json_array();
    for (size_t d = 0; d < entry->dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)entry->shape[d]));
    *offset += bytes;
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                     sdp_safetensors_dtype_name(entry->dtype), "shape", shape,
                     "data_offsets", (json_int_t)(*offset - bytes), (json_int_t)*offset);
}

/* The header as text, and the number of bytes that follow it. [new] */
static char *make_header(const struct sdp_safetensors_entry *entries, size_t count,
                         json_t *metadata, size_t *data_size)
{
    json_t *header = json_object();
    char *text = NULL;
    bool good = true;

    *data_size = 0;
    if (metadata)
        good = json_object_set(header, "__metadata__", metadata) == 0;
    for (size_t i = 0; i < count && good; i++)
        good = !json_object_get(header, entries[i].name) &&
               json_object_set_new(header, entries[i].name,
                                   describe_entry(&entries[i], data_size)) == 0;
    if (good)
        text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static enum sdp_status write_bytes(struct sdp_safetensors_writer *writer,
                                   const void *data, size_t size, struct sdp_error *err)
{
    const char *from = data;

    while (size > 0) {
        ssize_t put = write(writer->fd, from, size);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return sdpi_fail_errno(err, writer->path, "write");
        from += put;
        size -= (size_t)put;
    }
    return SDP_OK;
}

static enum sdp_status write_header(struct sdp_safetensors_writer *writer,
                                    const char *text, struct sdp_error *err)
{
    static const char spaces[8] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
    size_t length = strlen(text), padded = sdp_round_up(length, sizeof spaces);
    uint64_t size = padded;
    enum sdp_status status = write_bytes(writer, &size, sizeof size, err);

    if (status == SDP_OK)
        status = write_bytes(writer, text, length, err);
    if (status == SDP_OK)
        status = write_bytes(writer, spaces, padded - length, err);
    return status;
}

enum sdp_status sdp_safetensors_create(const char *path,
                                       const struct sdp_safetensors_entry *entries,
                                       size_t count, json_t *metadata,
                                       struct sdp_safetensors_writer **out,
                                       struct sdp_error *err)
{
    struct sdp_safetensors_writer *writer;
    enum sdp_status status;
    size_t data_size;
    char *header = make_header(entries, count, metadata, &data_size);

    if (!header)
        return sdp_fail_at(
            err, SDP_INTERNAL, path, NULL, 0, 0,
            "cannot be laid out: a name is there twice, a shape overflows, "
            "or narrower elements come before wider ones");
    writer = sdp_xcalloc(1, sizeof *writer);
    writer->path = sdp_xstrdup(path);
    writer->left = data_size;
    writer->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        status = sdpi_fail_errno(err, path, "create");
        free(writer->path);
        free(writer);
    } else {
        status = write_header(writer, header, err);
        if (status == SDP_OK)
            *out = writer;
        else
            sdp_safetensors_abort_take(writer);
    }
    free(header);
    return status;
}

enum sdp_status sdp_safetensors_put(struct sdp_safetensors_writer *writer,
                                    const void *data, size_t bytes, struct sdp_error *err)
{
    if (bytes > writer->left)
        return sdp_fail_at(err, SDP_INTERNAL, writer->path, NULL, 0, 0,
                           "%zu bytes more than the header has room for",
                           bytes - writer->left);
    writer->left -= bytes;
    return write_bytes(writer, data, bytes, err);
}

enum sdp_status sdp_safetensors_finish_take(struct sdp_safetensors_writer *writer,
                                            struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;

    if (writer->left > 0)
        status = sdp_fail_at(err, SDP_INTERNAL, writer->path, NULL, 0, 0,
                             "lacks %zu bytes of its tensors", writer->left);
    else if (fsync(writer->fd) != 0)
        status = sdpi_fail_errno(err, writer->path, "sync");
    if (close(writer->fd) != 0 && status == SDP_OK)
        status = sdpi_fail_errno(err, writer->path, "close");
    if (status != SDP_OK)
        unlink(writer->path); /* best effort: the first error is the one to tell */
    free(writer->path);
    free(writer);
    return status;
}

void sdp_safetensors_abort_take(struct sdp_safetensors_writer *writer)
{
    if (!writer)
        return;
    close(writer->fd);
    unlink(writer->path); /* best effort: the file is unfinished anyway */
    free(writer->path);
    free(writer);
}
