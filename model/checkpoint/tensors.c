/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tensors of a checkpoint, between files and host state. Reading and writing go
 * through the maps and the state's own arrays: at no time does a second copy of the model
 * exist, only PIECE elements a thread. */
#include "model/checkpoint/checkpoint_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 22) /* elements that a thread reads at a time */
#define WRITE_PIECE                                                                      \
    ((size_t)1 << 18) /* elements of a master that are rounded at a time */
#define LISTED 5u     /* tensors that a message names */

void sdpi_tensors_add(struct sdpi_tensors *tensors, const struct sdp_host_state *state,
                      const char *prefix, enum sdpi_part part,
                      enum sdp_safetensors_dtype dtype)
{
    const struct sdp_model_graph *graph = state->graph;
    size_t count = tensors->count;

    for (size_t s = 0; s < graph->storage_count; s++)
        count += graph->storages[s].param_count;
    tensors->all = sdp_xrealloc(tensors->all, count * sizeof *tensors->all);
    for (size_t s = 0; s < graph->storage_count; s++)
        for (size_t p = 0; p < graph->storages[s].param_count; p++) {
            const struct sdp_param *param = &graph->storages[s].params[p];

            tensors->all[tensors->count++] = (struct sdpi_tensor){
                .name = sdp_xprintf("%s%s", prefix, param->name),
                .part = part,
                .dtype = dtype,
                .param = param,
                .storage = &state->storages[s],
                .bytes = param->count * (sdp_safetensors_dtype_bits(dtype) / 8),
            };
        }
}

void sdpi_tensors_free(struct sdpi_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++)
        free(tensors->all[i].name);
    free(tensors->all);
    *tensors = (struct sdpi_tensors){NULL, 0};
}

/* -- matching ----------------------------------------------------------------- */

/* Names for a message: the first few, and how many in all. */
struct name_list {
    char text[600];
    size_t count;
};

static void list_name(struct name_list *list, const char *name)
{
    size_t used = strlen(list->text);

    if (list->count++ < LISTED)
        snprintf(list->text + used, sizeof list->text - used, "%s%s",
                 used > 0 ? ", " : "", name);
    else if (list->count == LISTED + 1)
        snprintf(list->text + used, sizeof list->text - used, ", ...");
}

static size_t param_shape(const struct sdp_param *param, size_t *shape)
{
    if (param->dims == 1) {
        shape[0] = param->cols;
        return 1;
    }
    shape[0] = param->rows;
    shape[1] = param->cols;
    return 2;
}

static bool same_shape(const struct sdp_safetensor *found, const struct sdp_param *param)
{
    size_t shape[2], dims = param_shape(param, shape);

    return found->dims == dims && memcmp(found->shape, shape, dims * sizeof *shape) == 0;
}

static bool same_dtype(const struct sdpi_tensor *tensor)
{
    enum sdp_safetensors_dtype dtype = tensor->found->dtype;

    if (tensor->part == SDPI_MASTER)
        return dtype == SDP_ST_BF16 || dtype == SDP_ST_F16 || dtype == SDP_ST_F32;
    return dtype == tensor->dtype;
}

/* The first tensor of a wrong shape, with both shapes, and which others have one. */
static enum sdp_status check_shapes(const struct sdpi_tensors *tensors,
                                    const char *folder, struct sdp_error *err)
{
    struct name_list wrong = {"", 0};
    const struct sdpi_tensor *first = NULL;
    char is[128], must[128];
    size_t shape[2], dims;

    for (size_t i = 0; i < tensors->count; i++)
        if (!same_shape(tensors->all[i].found, tensors->all[i].param)) {
            if (!first)
                first = &tensors->all[i];
            else
                list_name(&wrong, tensors->all[i].name);
        }
    if (!first)
        return SDP_OK;
    dims = param_shape(first->param, shape);
    return sdp_fail_at(
        err, SDP_INPUT, folder, NULL, 0, 0,
        "tensor \"%s\" has shape %s, in the model it has %s%s%s%s", first->name,
        sdp_safetensors_format_shape(first->found->shape, first->found->dims, is,
                                     sizeof is),
        sdp_safetensors_format_shape(shape, dims, must, sizeof must),
        wrong.count ? "; the shapes of these differ too: " : "", wrong.text,
        wrong.count ? "; the checkpoint is another model's" : "");
}

static enum sdp_status check_dtypes(const struct sdpi_tensors *tensors,
                                    const char *folder, struct sdp_error *err)
{
    for (size_t i = 0; i < tensors->count; i++) {
        const struct sdpi_tensor *tensor = &tensors->all[i];

        if (!same_dtype(tensor))
            return sdp_fail_at(
                err, SDP_INPUT, folder, NULL, 0, 0,
                "tensor \"%s\" is of dtype %s; must be %s", tensor->name,
                sdp_safetensors_dtype_name(tensor->found->dtype),
                tensor->part == SDPI_MASTER
                    ? "BF16, F16 or F32 (quantised weights cannot be trained)"
                    : sdp_safetensors_dtype_name(tensor->dtype));
    }
    return SDP_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Tensors of the files that the list lacks and that are not harmless. */
static void list_unknown(const struct sdpi_tensors *tensors,
                         const struct sdp_model_graph *graph,
                         const struct sdp_safetensors_set *set, sdpi_harmless harmless,
                         struct name_list *unknown)
{
    const char **names = sdp_xcalloc(tensors->count, sizeof *names);

    for (size_t i = 0; i < tensors->count; i++)
        names[i] = tensors->all[i].name;
    qsort(names, tensors->count, sizeof *names, compare_names);
    for (size_t i = 0; i < set->count; i++) {
        const char *name = set->members[i].tensor->name;

        if (!bsearch(&name, names, tensors->count, sizeof *names, compare_names) &&
            !(harmless && harmless(graph, name)))
            list_name(unknown, name);
    }
    free(names);
}

enum sdp_status sdpi_tensors_match(struct sdpi_tensors *tensors,
                                   const struct sdp_model_graph *graph,
                                   const struct sdp_safetensors_set *set,
                                   sdpi_harmless harmless, const char *folder,
                                   struct sdp_error *err)
{
    struct name_list missing = {"", 0}, unknown = {"", 0};
    enum sdp_status status;

    for (size_t i = 0; i < tensors->count; i++) {
        const struct sdp_safetensors_member *member =
            sdp_safetensors_set_find(set, tensors->all[i].name);

        tensors->all[i].found = member ? member->tensor : NULL;
        if (!member)
            list_name(&missing, tensors->all[i].name);
    }
    list_unknown(tensors, graph, set, harmless, &unknown);
    if (missing.count == 1 && strcmp(missing.text, "lm_head.weight") == 0)
        return sdp_fail_at(
            err, SDP_INPUT, folder, NULL, 0, 0,
            "lacks the tensor lm_head.weight; perhaps config.json must say "
            "\"tie_word_embeddings\": true");
    if (missing.count > 0 && unknown.count > 0)
        return sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                           "lacks %zu of the model's tensors (%s) and has %zu that the "
                           "model lacks (%s)",
                           missing.count, missing.text, unknown.count, unknown.text);
    if (missing.count > 0)
        return sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                           "lacks %zu of the model's tensors: %s", missing.count,
                           missing.text);
    if (unknown.count > 0)
        return sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                           "has %zu tensors that the model lacks: %s", unknown.count,
                           unknown.text);
    status = check_dtypes(tensors, folder, err);
    return status == SDP_OK ? check_shapes(tensors, folder, err) : status;
}

/* -- reading ------------------------------------------------------------------ */

/* Elements [first, first + count) of a tensor. */
struct piece {
    const struct sdpi_tensor *tensor;
    size_t first, count;
};

/* The state's array of a part, where the tensor begins. Masters have two arrays; the
 * weight's is given. */
static void *part_array(const struct sdpi_tensor *tensor)
{
    const struct sdp_state_storage *storage = tensor->storage;
    size_t offset = tensor->param->offset;

    switch (tensor->part) {
    case SDPI_REMAINDER:
        return storage->remainder + offset;
    case SDPI_M:
        return storage->m + offset;
    case SDPI_V:
        return storage->v + offset;
    default:
        return storage->weight + offset;
    }
}

static void read_master(const struct piece *piece, const uint8_t *from)
{
    const struct sdpi_tensor *tensor = piece->tensor;
    size_t offset = tensor->param->offset + piece->first;
    uint16_t *weight = tensor->storage->weight + offset;
    int16_t *remainder = tensor->storage->remainder + offset;

    switch (tensor->found->dtype) {
    case SDP_ST_BF16: /* exact: nothing remains */
        memcpy(weight, from, piece->count * sizeof *weight);
        memset(remainder, 0, piece->count * sizeof *remainder);
        break;
    case SDP_ST_F16:
        for (size_t i = 0; i < piece->count; i++) {
            uint16_t half;
            memcpy(&half, from + i * sizeof half, sizeof half);
            sdp_master_split(sdp_fp16_to_float(half), &weight[i], &remainder[i]);
        }
        break;
    default: /* F32: nothing else gets past the match */
        for (size_t i = 0; i < piece->count; i++) {
            float master;
            memcpy(&master, from + i * sizeof master, sizeof master);
            sdp_master_split(master, &weight[i], &remainder[i]);
        }
        break;
    }
}

/* Tells the kernel that bytes of a map are soon read, or will not be again. Only advice:
 * whether it is taken does not matter. */
static void advise(const uint8_t *data, size_t bytes, bool done)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data,
              end = begin + bytes;

    if (done) { /* whole pages of this piece only: a neighbour's may still be wanted */
        begin = (begin + page - 1) / page * page;
        end = end / page * page;
    } else {
        begin = begin / page * page;
    }
    if (begin < end)
        (void)madvise((void *)begin, end - begin, done ? MADV_DONTNEED : MADV_WILLNEED);
}

static enum sdp_status read_piece(void *arg, size_t item, struct sdp_error *err)
{
    const struct piece *piece = (const struct piece *)arg + item;
    const struct sdpi_tensor *tensor = piece->tensor;
    size_t element = sdp_safetensors_dtype_bits(tensor->found->dtype) / 8;
    const uint8_t *from = tensor->found->data + piece->first * element;
    size_t bytes = piece->count * element;

    (void)err;
    advise(from, bytes, false);
    if (tensor->part == SDPI_MASTER)
        read_master(piece, from);
    else
        memcpy((uint8_t *)part_array(tensor) + piece->first * element, from, bytes);
    advise(from, bytes, true);
    return SDP_OK;
}

enum sdp_status sdpi_tensors_read(const struct sdpi_tensors *tensors, unsigned threads,
                                  struct sdp_error *err)
{
    struct piece *pieces;
    enum sdp_status status;
    size_t count = 0;

    for (size_t i = 0; i < tensors->count; i++)
        count += (tensors->all[i].param->count + PIECE - 1) / PIECE;
    pieces = sdp_xcalloc(count, sizeof *pieces);
    count = 0;
    for (size_t i = 0; i < tensors->count; i++)
        for (size_t first = 0; first < tensors->all[i].param->count; first += PIECE)
            pieces[count++] =
                (struct piece){&tensors->all[i], first,
                               SDP_MIN(PIECE, tensors->all[i].param->count - first)};
    status = sdpi_parallel(count, threads, read_piece, pieces, err);
    free(pieces);
    return status;
}

/* -- writing ------------------------------------------------------------------ */

struct write_job {
    const struct sdpi_tensors *tensors;
    const char *folder;
    struct sdpi_shards *shards;
};

void sdpi_shards_free(struct sdpi_shards *shards)
{
    for (size_t i = 0; i < shards->count; i++)
        free(shards->names[i]);
    free(shards->names);
    free(shards->bytes);
    free(shards->of);
    *shards = (struct sdpi_shards){NULL, NULL, NULL, 0};
}

/* Cuts the list where a file would become too large, and names the files. */
static void plan_shards(const struct sdpi_tensors *tensors, const char *stem,
                        size_t shard_bytes, struct sdpi_shards *shards)
{
    size_t used = 0;

    *shards = (struct sdpi_shards){NULL, NULL, NULL, 1};
    shards->of = sdp_xcalloc(tensors->count, sizeof *shards->of);
    for (size_t i = 0; i < tensors->count; i++) {
        size_t bytes = tensors->all[i].bytes;

        if (used > 0 && (used >= shard_bytes || bytes > shard_bytes - used)) {
            shards->count++;
            used = 0;
        }
        used += bytes;
        shards->of[i] = shards->count - 1;
    }
    shards->names = sdp_xcalloc(shards->count, sizeof *shards->names);
    shards->bytes = sdp_xcalloc(shards->count, sizeof *shards->bytes);
    for (size_t i = 0; i < shards->count; i++)
        shards->names[i] = shards->count == 1
                               ? sdp_xprintf("%s.safetensors", stem)
                               : sdp_xprintf("%s-%05zu-of-%05zu.safetensors", stem, i + 1,
                                             shards->count);
}

/* The exact fp32 master, rounded once where bf16 is asked for: to nearest, ties to even.
 * The stored weight is not that rounding (its ties go away from zero). */
static enum sdp_status put_master(struct sdp_safetensors_writer *writer,
                                  const struct sdpi_tensor *tensor, struct sdp_error *err)
{
    const uint16_t *weight = tensor->storage->weight + tensor->param->offset;
    const int16_t *remainder = tensor->storage->remainder + tensor->param->offset;
    bool is_fp32 = tensor->dtype == SDP_ST_F32;
    float *wide = sdp_xcalloc(WRITE_PIECE, sizeof *wide);
    uint16_t *narrow = sdp_xcalloc(WRITE_PIECE, sizeof *narrow);
    enum sdp_status status = SDP_OK;

    for (size_t first = 0; first < tensor->param->count && status == SDP_OK;
         first += WRITE_PIECE) {
        size_t count = SDP_MIN(WRITE_PIECE, tensor->param->count - first);

        for (size_t i = 0; i < count; i++)
            wide[i] = sdp_master_join(weight[first + i], remainder[first + i]);
        for (size_t i = 0; i < count && !is_fp32; i++)
            narrow[i] = sdp_bf16_from_float(wide[i]);
        status = is_fp32
                     ? sdp_safetensors_put(writer, wide, count * sizeof *wide, err)
                     : sdp_safetensors_put(writer, narrow, count * sizeof *narrow, err);
    }
    free(narrow);
    free(wide);
    return status;
}

/* What the file must hold: read back from its header. */
static enum sdp_status check_written(const char *path, const struct write_job *job,
                                     size_t shard, struct sdp_error *err)
{
    struct sdp_safetensors *file = NULL;
    enum sdp_status status = sdp_safetensors_open(path, &file, err);
    size_t t = 0;

    if (status != SDP_OK)
        return status;
    job->shards->bytes[shard] = file->map.size;
    for (size_t i = 0; i < job->tensors->count && status == SDP_OK; i++) {
        const struct sdpi_tensor *tensor = &job->tensors->all[i];

        if (job->shards->of[i] != shard)
            continue;
        if (t >= file->count || strcmp(file->tensors[t].name, tensor->name) != 0 ||
            file->tensors[t].bytes != tensor->bytes ||
            !same_shape(&file->tensors[t], tensor->param))
            status = sdp_fail_at(err, SDP_IO, path, NULL, 0, 0,
                                 "was written, but does not hold the tensor \"%s\" as it "
                                 "should",
                                 tensor->name);
        t++;
    }
    sdp_safetensors_close(file);
    return status;
}

static enum sdp_status create_shard(const char *path, const struct write_job *job,
                                    size_t shard, struct sdp_safetensors_writer **out,
                                    struct sdp_error *err)
{
    const struct sdpi_tensors *tensors = job->tensors;
    struct sdp_safetensors_entry *entries = sdp_xcalloc(tensors->count, sizeof *entries);
    json_t *metadata = json_pack("{s:s}", "format", "pt"); /* transformers asks for it */
    enum sdp_status status;
    size_t count = 0;

    for (size_t i = 0; i < tensors->count; i++) {
        struct sdp_safetensors_entry *entry = &entries[count];

        if (job->shards->of[i] != shard)
            continue;
        entry->name = tensors->all[i].name;
        entry->dtype = tensors->all[i].dtype;
        entry->dims = param_shape(tensors->all[i].param, entry->shape);
        count++;
    }
    status = sdp_safetensors_create(path, entries, count, metadata, out, err);
    json_decref(metadata);
    free(entries);
    return status;
}

static enum sdp_status write_shard(void *arg, size_t shard, struct sdp_error *err)
{
    const struct write_job *job = arg;
    char *path = sdp_path_join(job->folder, job->shards->names[shard]);
    struct sdp_safetensors_writer *writer = NULL;
    enum sdp_status status = create_shard(path, job, shard, &writer, err);

    for (size_t i = 0; i < job->tensors->count && status == SDP_OK; i++) {
        const struct sdpi_tensor *tensor = &job->tensors->all[i];

        if (job->shards->of[i] != shard)
            continue;
        status =
            tensor->part == SDPI_MASTER
                ? put_master(writer, tensor, err)
                : sdp_safetensors_put(writer, part_array(tensor), tensor->bytes, err);
    }
    if (status == SDP_OK)
        status = sdp_safetensors_finish_take(writer, err);
    else
        sdp_safetensors_abort_take(writer);
    if (status == SDP_OK)
        status = check_written(path, job, shard, err);
    free(path);
    return status;
}

enum sdp_status sdpi_tensors_write(const struct sdpi_tensors *tensors, const char *folder,
                                   const char *stem, size_t shard_bytes, unsigned threads,
                                   struct sdpi_shards *shards, struct sdp_error *err)
{
    struct write_job job = {tensors, folder, shards};
    enum sdp_status status;

    plan_shards(tensors, stem, shard_bytes, shards);
    status = sdpi_parallel(shards->count, threads, write_shard, &job, err);
    if (status != SDP_OK)
        sdpi_shards_free(shards);
    return status;
}
