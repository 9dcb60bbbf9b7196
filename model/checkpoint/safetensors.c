/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The reader. Each check has its own message, because the usual causes differ: a
 * download that broke off, a Git LFS pointer, a file of another format, a writer with a
 * bug, an attack. Alignment is not one of the checks: the format does not promise it and
 * older writers did not pad, so whoever reads elements copies them. */
#include "model/checkpoint/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are read as they lie in the file, which is little endian");

static const struct {
    const char *name;
    size_t bits;
} dtypes[] = {
#define XX(name, bits) {#name, bits},
    SDP_SAFETENSORS_DTYPE_MAP(XX)
#undef XX
};

const char *sdp_safetensors_dtype_name(enum sdp_safetensors_dtype dtype)
{
    return (size_t)dtype < SDP_COUNT_OF(dtypes) ? dtypes[dtype].name : "unknown";
}

size_t sdp_safetensors_dtype_bits(enum sdp_safetensors_dtype dtype)
{
    return (size_t)dtype < SDP_COUNT_OF(dtypes) ? dtypes[dtype].bits : 0;
}

char *sdp_safetensors_format_shape(const size_t *shape, size_t dims, char *buffer,
                                   size_t size)
{
    size_t used = 1;

    snprintf(buffer, size, "[");
    for (size_t d = 0; d < dims && used < size; d++) {
        int length =
            snprintf(buffer + used, size - used, "%s%zu", d > 0 ? ", " : "", shape[d]);
        used += length > 0 ? (size_t)length : 0;
    }
    if (used < size)
        snprintf(buffer + used, size - used, "]");
    return buffer;
}

/* -- one tensor's entry ------------------------------------------------------- */

SDP_PRINTF(3, 4)
static enum sdp_status fail_file(const struct sdp_safetensors *file,
                                 struct sdp_error *err, const char *format, ...)
{
    char text[sizeof err->text];
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    return sdp_fail_at(err, SDP_INPUT, file->path, NULL, 0, 0, "%s", text);
}

static bool read_size(const json_t *value, size_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (size_t)json_integer_value(value);
    return true;
}

static enum sdp_status read_dtype(const struct sdp_safetensors *file,
                                  struct sdp_safetensor *tensor, const json_t *info,
                                  struct sdp_error *err)
{
    const json_t *value = json_object_get(info, "dtype");
    const char *name = json_string_value(value);

    if (!name)
        return fail_file(file, err, "tensor \"%s\" has no \"dtype\" text in the header",
                         tensor->name);
    for (size_t i = 0; i < SDP_COUNT_OF(dtypes); i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            tensor->dtype = (enum sdp_safetensors_dtype)i;
            return SDP_OK;
        }
    return fail_file(file, err, "tensor \"%s\" has the unknown dtype \"%s\"",
                     tensor->name, name);
}

/* Shape, number of elements and of bytes, none of which may overflow. */
static enum sdp_status read_shape(const struct sdp_safetensors *file,
                                  struct sdp_safetensor *tensor, const json_t *info,
                                  struct sdp_error *err)
{
    const json_t *shape = json_object_get(info, "shape");
    size_t bits;

    if (!json_is_array(shape))
        return fail_file(file, err, "tensor \"%s\" has no \"shape\" list in the header",
                         tensor->name);
    tensor->dims = json_array_size(shape);
    if (tensor->dims > SDP_SAFETENSORS_MAX_DIMS)
        return fail_file(file, err,
                         "tensor \"%s\" has %zu dimensions; at most %d are read",
                         tensor->name, tensor->dims, SDP_SAFETENSORS_MAX_DIMS);
    tensor->count = 1;
    for (size_t d = 0; d < tensor->dims; d++) {
        if (!read_size(json_array_get(shape, d), &tensor->shape[d]))
            return fail_file(file, err,
                             "the shape of tensor \"%s\" must be whole numbers of at "
                             "least 0",
                             tensor->name);
        if (!sdp_size_mul(tensor->count, tensor->shape[d], &tensor->count))
            return fail_file(file, err, "the shape of tensor \"%s\" overflows",
                             tensor->name);
    }
    if (!sdp_size_mul(tensor->count, dtypes[tensor->dtype].bits, &bits))
        return fail_file(file, err, "the shape of tensor \"%s\" overflows", tensor->name);
    if (bits % 8 != 0)
        return fail_file(file, err, "tensor \"%s\" does not fill whole bytes",
                         tensor->name);
    tensor->bytes = bits / 8;
    return SDP_OK;
}

static enum sdp_status read_offsets(const struct sdp_safetensors *file,
                                    struct sdp_safetensor *tensor, const json_t *info,
                                    size_t data_size, struct sdp_error *err)
{
    const json_t *offsets = json_object_get(info, "data_offsets");
    size_t begin, end;
    char shape[128];

    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_size(json_array_get(offsets, 0), &begin) ||
        !read_size(json_array_get(offsets, 1), &end))
        return fail_file(
            file, err,
            "the \"data_offsets\" of tensor \"%s\" must be two whole numbers "
            "of at least 0",
            tensor->name);
    if (begin > end)
        return fail_file(file, err, "tensor \"%s\" ends (%zu) before it begins (%zu)",
                         tensor->name, end, begin);
    if (end > data_size)
        return fail_file(file, err,
                         "tensor \"%s\" ends at byte %zu of the data, and there are only "
                         "%zu; the file is incomplete or damaged",
                         tensor->name, end, data_size);
    if (end - begin != tensor->bytes)
        return fail_file(
            file, err, "tensor \"%s\" is %s of shape %s, which takes %zu bytes, not %zu",
            tensor->name, dtypes[tensor->dtype].name,
            sdp_safetensors_format_shape(tensor->shape, tensor->dims, shape,
                                         sizeof shape),
            tensor->bytes, end - begin);
    tensor->offset = begin;
    return SDP_OK;
}

static enum sdp_status read_tensor(const struct sdp_safetensors *file,
                                   struct sdp_safetensor *tensor, const json_t *info,
                                   size_t data_size, struct sdp_error *err)
{
    enum sdp_status status;

    if (!json_is_object(info))
        return fail_file(file, err, "tensor \"%s\" is no object in the header",
                         tensor->name);
    status = read_dtype(file, tensor, info, err);
    if (status == SDP_OK)
        status = read_shape(file, tensor, info, err);
    if (status == SDP_OK)
        status = read_offsets(file, tensor, info, data_size, err);
    return status;
}

/* -- the header ------------------------------------------------------------- */

static enum sdp_status check_metadata(const struct sdp_safetensors *file,
                                      const json_t *metadata, struct sdp_error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return fail_file(file, err, "\"__metadata__\" in the header is no object");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) if (
        !json_is_string(
            value)) return fail_file(file, err,
                                     "\"%s\" in the header's metadata is no text", key);
    return SDP_OK;
}

/* Where the header stands, and its JSON. */
static enum sdp_status read_header(struct sdp_safetensors *file, size_t *header_size,
                                   struct sdp_error *err)
{
    static const char lfs[] = "version https://git-lfs";
    const struct sdp_map *map = &file->map;
    json_error_t error;
    uint64_t size;

    if (map->size > sizeof lfs && memcmp(map->data, lfs, sizeof lfs - 1) == 0)
        return fail_file(file, err,
                         "is a Git LFS pointer, not the tensors; get the file itself "
                         "(git lfs pull)");
    if (map->size < sizeof size)
        return fail_file(file, err,
                         "has %zu bytes; a safetensors file has at least 8 before its "
                         "header",
                         map->size);
    memcpy(&size, map->data, sizeof size);
    if (size > SDP_SAFETENSORS_MAX_HEADER)
        return fail_file(file, err,
                         "would have a header of %llu bytes, and the format allows 100 "
                         "MB; this is no safetensors file",
                         (unsigned long long)size);
    if (size > map->size - sizeof size)
        return fail_file(file, err,
                         "should have a header of %llu bytes, but has only %zu bytes in "
                         "all; the file is incomplete",
                         (unsigned long long)size, map->size);
    *header_size = (size_t)size;
    if (size == 0 || map->data[sizeof size] != '{')
        return fail_file(file, err,
                         "has a header that is no JSON object; this is no safetensors "
                         "file");
    file->header = json_loadb((const char *)map->data + sizeof size, (size_t)size,
                              JSON_REJECT_DUPLICATES, &error);
    if (!file->header)
        return fail_file(file, err, "has a header that is not valid JSON: %s (byte %d)",
                         error.text, error.position);
    return SDP_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct sdp_safetensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* In order of their offsets, tensors must fill the data without holes. */
static enum sdp_status check_layout(const struct sdp_safetensors *file, size_t data_size,
                                    struct sdp_error *err)
{
    const char *before = "the header";
    size_t at = 0;

    for (size_t i = 0; i < file->count; i++) {
        const struct sdp_safetensor *tensor = &file->tensors[i];

        if (tensor->offset < at)
            return fail_file(file, err, "tensors \"%s\" and \"%s\" overlap", before,
                             tensor->name);
        if (tensor->offset > at)
            return fail_file(file, err,
                             "%zu bytes before tensor \"%s\" belong to no tensor",
                             tensor->offset - at, tensor->name);
        at = tensor->offset + tensor->bytes;
        before = tensor->name;
    }
    if (at != data_size)
        return fail_file(file, err,
                         "%zu bytes at the end of the file belong to no tensor",
                         data_size - at);
    return SDP_OK;
}

static enum sdp_status read_tensors(struct sdp_safetensors *file, struct sdp_error *err)
{
    enum sdp_status status;
    size_t header_size = 0, data_size;
    const char *name;
    json_t *info;

    status = read_header(file, &header_size, err);
    if (status != SDP_OK)
        return status;
    data_size = file->map.size - sizeof(uint64_t) - header_size;
    file->tensors = sdp_xcalloc(json_object_size(file->header), sizeof *file->tensors);
    json_object_foreach(file->header, name, info)
    {
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(file, info, err);
        } else {
            struct sdp_safetensor *tensor = &file->tensors[file->count++];

            tensor->name = name;
            status = read_tensor(file, tensor, info, data_size, err);
            tensor->data = file->map.data + (file->map.size - data_size) + tensor->offset;
        }
        if (status != SDP_OK)
            return status;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_offsets);
    return check_layout(file, data_size, err);
}

enum sdp_status sdp_safetensors_open(const char *path, struct sdp_safetensors **out,
                                     struct sdp_error *err)
{
    struct sdp_safetensors *file = sdp_xcalloc(1, sizeof *file);
    enum sdp_status status;

    file->path = sdp_xstrdup(path);
    status = sdp_map_open(path, &file->map, err);
    if (status == SDP_OK)
        status = read_tensors(file, err);
    if (status == SDP_OK)
        *out = file;
    else
        sdp_safetensors_close(file);
    return status;
}

void sdp_safetensors_close(struct sdp_safetensors *file)
{
    if (!file)
        return;
    json_decref(file->header);
    sdp_map_close(&file->map);
    free(file->tensors);
    free(file->path);
    free(file);
}
