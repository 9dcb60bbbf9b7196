/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Hugging Face folders: config.json, model.safetensors or its shards with an index, and
 * the tokenizer's files, which travel along unread. */
#include "model/checkpoint/checkpoint_internal.h"

#include "graph/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#define STEM          "model"
#define INDEX         STEM ".safetensors.index.json"
#define SHARD_BYTES   ((size_t)5000000000) /* transformers' default was 5 GB for years */
#define WRITE_THREADS 4u /* a few streams keep a disk busy; each holds a small buffer */
#define TIED_NAME     "lm_head.weight"

/* -- loading ------------------------------------------------------------------ */

/* The parameter that the loss shares with the embedding, or NULL when nothing is tied. */
static const struct sdp_param *tied_param(const struct sdp_model_graph *graph)
{
    const struct sdp_layer *loss;
    const struct sdp_layer_op *op;

    if (graph->layer_count < 2)
        return NULL;
    loss = &graph->layers[graph->layer_count - 1];
    op = &loss->ops[loss->op_count - 1]; /* a layer has at least one */
    if (!loss->is_loss || op->node.weight_count == 0)
        return NULL;
    for (size_t l = 0; l + 1 < graph->layer_count; l++)
        if (graph->layers[l].storage == loss->storage)
            return &graph->storages[loss->storage].params[op->weights[0]];
    return NULL;
}

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);

    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Older checkpoints hold tables that follow from the config, and tied heads twice. */
static bool is_harmless(const struct sdp_model_graph *graph, const char *name)
{
    return ends_in(name, ".rotary_emb.inv_freq") ||
           (strcmp(name, TIED_NAME) == 0 && tied_param(graph) != NULL);
}

static float element_at(const struct sdp_safetensor *tensor, size_t i)
{
    uint16_t half;
    float single;

    if (tensor->dtype == SDP_ST_F32) {
        memcpy(&single, tensor->data + i * sizeof single, sizeof single);
        return single;
    }
    memcpy(&half, tensor->data + i * sizeof half, sizeof half);
    return tensor->dtype == SDP_ST_BF16 ? sdp_bf16_to_float(half)
                                        : sdp_fp16_to_float(half);
}

static bool same_values(const struct sdp_safetensor *a, const struct sdp_safetensor *b)
{
    if (a->count != b->count)
        return false;
    if (a->dtype == b->dtype)
        return memcmp(a->data, b->data, a->bytes) == 0;
    if (b->dtype != SDP_ST_F32 && b->dtype != SDP_ST_BF16 && b->dtype != SDP_ST_F16)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (sdp_bits_from_float(element_at(a, i)) !=
            sdp_bits_from_float(element_at(b, i)))
            return false;
    return true;
}

/* A tied head that was written all the same should be the embedding again. */
static void check_tied(const struct sdpi_tensors *tensors,
                       const struct sdp_model_graph *graph,
                       const struct sdp_safetensors_set *set, const char *folder)
{
    const struct sdp_param *param = tied_param(graph);
    const struct sdp_safetensors_member *head = sdp_safetensors_set_find(set, TIED_NAME);

    if (!param || !head || strcmp(param->name, TIED_NAME) == 0)
        return;
    for (size_t i = 0; i < tensors->count; i++)
        if (tensors->all[i].param == param &&
            !same_values(tensors->all[i].found, head->tensor))
            sdp_warn("%s: " TIED_NAME " differs from %s, to which the model ties it; it "
                     "is not used. Where the head was trained on its own, config.json "
                     "must say \"tie_word_embeddings\": false",
                     folder, param->name);
}

enum sdp_status sdp_checkpoint_load_hf(const char *folder, struct sdp_host_state *state,
                                       unsigned threads, struct sdp_error *err)
{
    struct sdp_safetensors_set *set = NULL;
    struct sdpi_tensors tensors = {NULL, 0};
    enum sdp_status status = sdp_safetensors_set_open_index(folder, STEM, &set, err);

    if (status != SDP_OK)
        return status;
    sdpi_tensors_add(&tensors, state, "", SDPI_MASTER, SDP_ST_F32);
    status = sdpi_tensors_match(&tensors, state->graph, set, is_harmless, folder, err);
    if (status == SDP_OK) {
        check_tied(&tensors, state->graph, set, folder);
        status = sdpi_tensors_read(&tensors, threads, err);
    }
    sdpi_tensors_free(&tensors);
    sdp_safetensors_set_close(set);
    return status;
}

/* -- saving ------------------------------------------------------------------- */

static enum sdp_status write_json(const char *folder, const char *name,
                                  const json_t *document, size_t flags,
                                  struct sdp_error *err)
{
    char *path = sdp_path_join(folder, name);
    char *text = json_dumps(document, JSON_INDENT(2) | flags);
    enum sdp_status status;

    if (text) {
        char *line = sdp_xprintf("%s\n", text);
        status = sdp_write_file(path, line, strlen(line), err);
        free(line);
    } else {
        status = sdp_fail_at(err, SDP_INTERNAL, path, NULL, 0, 0, "is not valid JSON");
    }
    free(text);
    free(path);
    return status;
}

/* Made from the tensors that were written, so that it cannot differ from the files. */
static enum sdp_status write_index(const char *folder, const struct sdpi_tensors *tensors,
                                   const struct sdpi_shards *shards,
                                   struct sdp_error *err)
{
    json_t *map = json_object(), *index;
    json_int_t bytes = 0, parameters = 0;
    enum sdp_status status;

    for (size_t i = 0; i < tensors->count; i++) {
        bytes += (json_int_t)tensors->all[i].bytes;
        parameters += (json_int_t)tensors->all[i].param->count;
        json_object_set_new(map, tensors->all[i].name,
                            json_string(shards->names[shards->of[i]]));
    }
    index = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", parameters,
                      "total_size", bytes, "weight_map", map);
    status = write_json(folder, INDEX, index, JSON_SORT_KEYS, err);
    json_decref(index);
    return status;
}

/* transformers 5 reads "dtype", older versions "torch_dtype". */
static enum sdp_status write_config(const char *folder, const json_t *config,
                                    enum sdp_dtype dtype, struct sdp_error *err)
{
    const char *name = dtype == SDP_BF16 ? "bfloat16" : "float32";
    json_t *copy = json_deep_copy(config);
    enum sdp_status status;

    json_object_set_new(copy, "dtype", json_string(name));
    json_object_set_new(copy, "torch_dtype", json_string(name));
    status = write_json(folder, "config.json", copy, 0, err);
    json_decref(copy);
    return status;
}

/* Whether a file of the source belongs to the tokenizer or to generation. */
static bool travels_along(const char *name)
{
    static const char *const whole[] = {
        "generation_config.json",  "vocab.json",       "vocab.txt", "merges.txt",
        "special_tokens_map.json", "added_tokens.json"};

    if (strncmp(name, "tokenizer", 9) == 0 || strncmp(name, "chat_template", 13) == 0)
        return true;
    for (size_t i = 0; i < SDP_COUNT_OF(whole); i++)
        if (strcmp(name, whole[i]) == 0)
            return true;
    return false;
}

static enum sdp_status copy_others(const char *source, const char *folder,
                                   struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    DIR *list = opendir(source);
    struct dirent *entry;

    if (!list)
        return sdpi_fail_errno(err, source, "open");
    while (status == SDP_OK && (entry = readdir(list)) != NULL) {
        struct stat info;
        char *from, *to;

        if (!travels_along(entry->d_name))
            continue;
        from = sdp_path_join(source, entry->d_name);
        to = sdp_path_join(folder, entry->d_name);
        /* stat follows links: the hub's cache is made of them */
        if (stat(from, &info) == 0 && S_ISREG(info.st_mode))
            status = sdpi_copy_file(from, to, err);
        free(to);
        free(from);
    }
    closedir(list);
    return status;
}

static enum sdp_status fill_folder(const char *folder, const struct sdp_host_state *state,
                                   enum sdp_dtype dtype, const json_t *config,
                                   const char *source, size_t shard_bytes,
                                   struct sdp_error *err)
{
    struct sdpi_tensors tensors = {NULL, 0};
    struct sdpi_shards shards;
    enum sdp_status status;

    sdpi_tensors_add(&tensors, state, "", SDPI_MASTER,
                     dtype == SDP_BF16 ? SDP_ST_BF16 : SDP_ST_F32);
    status = sdpi_tensors_write(&tensors, folder, STEM,
                                shard_bytes ? shard_bytes : SHARD_BYTES, WRITE_THREADS,
                                &shards, err);
    if (status == SDP_OK) {
        if (shards.count > 1)
            status = write_index(folder, &tensors, &shards, err);
        sdpi_shards_free(&shards);
    }
    if (status == SDP_OK && config)
        status = write_config(folder, config, dtype, err);
    if (status == SDP_OK && source)
        status = copy_others(source, folder, err);
    sdpi_tensors_free(&tensors);
    return status;
}

enum sdp_status sdp_checkpoint_save_hf(const char *folder,
                                       const struct sdp_host_state *state,
                                       enum sdp_dtype dtype, const json_t *config,
                                       const char *source_folder, size_t shard_bytes,
                                       struct sdp_error *err)
{
    struct sdpi_saving saving;
    enum sdp_status status;

    if (dtype != SDP_BF16 && dtype != SDP_FP32)
        return sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                           "weights cannot be written as %s; must be bf16 or fp32",
                           sdp_dtype_name(dtype));
    status = sdpi_saving_begin(folder, &saving, err);
    if (status != SDP_OK)
        return status;
    status =
        fill_folder(saving.temp, state, dtype, config, source_folder, shard_bytes, err);
    if (status == SDP_OK)
        return sdpi_saving_commit_take(&saving, err);
    sdpi_saving_abort_take(&saving);
    return status;
}
