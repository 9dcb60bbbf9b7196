/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/token_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HEADER 128 /* bytes of a .npy header, room for any count included */

struct sdp_token_file {
    char *path, *temporary;
    FILE *stream;
    bool npy;
    size_t size, count; /* of an element; elements */
};

static enum sdp_status fail(const struct sdp_token_file *file, struct sdp_error *err)
{
    return sdp_fail_at(err, SDP_IO, file->path, NULL, 0, 0, "cannot be written: %s",
                       strerror(errno));
}

/* Magic, version 1.0, length of the rest, a dictionary, spaces, a newline. */
static void make_header(const struct sdp_token_file *file, char header[HEADER])
{
    int length;

    memset(header, ' ', HEADER);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER - 10;
    header[9] = 0;
    length = snprintf(header + 10, HEADER - 10,
                      "{'descr': '<u%zu', 'fortran_order': False, 'shape': (%zu,), }",
                      file->size, file->count);
    header[10 + length] = ' ';
    header[HEADER - 1] = '\n';
}

static void free_file(struct sdp_token_file *file)
{
    free(file->path);
    free(file->temporary);
    free(file);
}

enum sdp_status sdp_token_file_open(const char *path, size_t vocabulary,
                                    enum sdp_token_dtype dtype,
                                    struct sdp_token_file **out, struct sdp_error *err)
{
    struct sdp_token_file *file;
    size_t length = strlen(path);
    enum sdp_status status = SDP_OK;
    char header[HEADER];

    if (dtype == SDP_TOKENS_UINT16 && vocabulary > 65536)
        return sdp_fail(err, SDP_INPUT,
                        "uint16 holds ids below 65536, but the tokenizer has "
                        "ids up to %zu; use uint32",
                        vocabulary - 1);
    file = sdp_xcalloc(1, sizeof *file);
    file->path = sdp_xstrdup(path);
    file->temporary = sdp_xprintf("%s.part", path);
    file->npy = length > 4 && strcmp(path + length - 4, ".npy") == 0;
    file->size = dtype == SDP_TOKENS_UINT32 || vocabulary > 65536 ? 4 : 2;
    file->stream = fopen(file->temporary, "wb");
    make_header(file, header);
    if (!file->stream ||
        (file->npy && fwrite(header, sizeof header, 1, file->stream) != 1)) {
        status = fail(file, err);
        if (file->stream && fclose(file->stream) != 0)
            status = SDP_IO;
        free_file(file);
        return status;
    }
    *out = file;
    return SDP_OK;
}

enum sdp_status sdp_token_file_add(struct sdp_token_file *file, const int32_t *ids,
                                   size_t count, struct sdp_error *err)
{
    uint8_t bytes[4096];

    file->count += count;
    while (count > 0) {
        size_t some = SDP_MIN(count, sizeof bytes / file->size);

        for (size_t i = 0; i < some; i++)
            for (size_t b = 0; b < file->size; b++)
                bytes[i * file->size + b] = (uint8_t)((uint32_t)ids[i] >> 8 * b);
        if (fwrite(bytes, file->size, some, file->stream) != some)
            return fail(file, err);
        ids += some;
        count -= some;
    }
    return SDP_OK;
}

enum sdp_status sdp_token_file_close(struct sdp_token_file *file, enum sdp_status status,
                                     struct sdp_error *err)
{
    char header[HEADER];

    make_header(file, header);
    if (status == SDP_OK && file->npy &&
        (fseek(file->stream, 0, SEEK_SET) != 0 ||
         fwrite(header, sizeof header, 1, file->stream) != 1))
        status = fail(file, err);
    if (status == SDP_OK &&
        (fflush(file->stream) != 0 || fsync(fileno(file->stream)) != 0))
        status = fail(file, err);
    if (fclose(file->stream) != 0 && status == SDP_OK)
        status = fail(file, err);
    if (status == SDP_OK && rename(file->temporary, file->path) != 0)
        status = fail(file, err);
    if (status != SDP_OK && remove(file->temporary) != 0 && errno != ENOENT)
        status = SDP_IO;
    free_file(file);
    return status;
}
