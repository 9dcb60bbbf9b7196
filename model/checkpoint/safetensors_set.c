/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Several safetensors files that are one checkpoint, and the index that says so:
 * {"metadata": {"total_size": N}, "weight_map": {"tensor": "file", ...}}. The names in
 * an index are used to open files, so they must stay within the folder. */
#include "model/checkpoint/safetensors.h"

#include "graph/base/json.h"

#include <stdlib.h>

static int compare_members(const void *a, const void *b)
{
    const struct sdp_safetensors_member *x = a, *y = b;

    return strcmp(x->tensor->name, y->tensor->name);
}

static int compare_name(const void *name, const void *member)
{
    return strcmp(name, ((const struct sdp_safetensors_member *)member)->tensor->name);
}

const struct sdp_safetensors_member *
sdp_safetensors_set_find(const struct sdp_safetensors_set *set, const char *name)
{
    return bsearch(name, set->members, set->count, sizeof *set->members, compare_name);
}

static bool is_plain_name(const char *name)
{
    return *name && !strchr(name, '/') && !strchr(name, '\\') && !strstr(name, "..");
}

/* Sorts the tensors of all files by name; each may be there once. */
static enum sdp_status gather_members(struct sdp_safetensors_set *set,
                                      struct sdp_error *err)
{
    for (size_t f = 0; f < set->file_count; f++)
        set->count += set->files[f]->count;
    set->members = sdp_xcalloc(set->count, sizeof *set->members);
    set->count = 0;
    for (size_t f = 0; f < set->file_count; f++)
        for (size_t t = 0; t < set->files[f]->count; t++)
            set->members[set->count++] = (struct sdp_safetensors_member){
                &set->files[f]->tensors[t], set->files[f]};
    qsort(set->members, set->count, sizeof *set->members, compare_members);
    for (size_t i = 1; i < set->count; i++)
        if (compare_members(&set->members[i - 1], &set->members[i]) == 0)
            return sdp_fail_at(err, SDP_INPUT, set->members[i].file->path, NULL, 0, 0,
                               "holds the tensor \"%s\", and so does %s",
                               set->members[i].tensor->name,
                               set->members[i - 1].file->path);
    return SDP_OK;
}

enum sdp_status sdp_safetensors_set_open(const char *folder, const char *const *names,
                                         size_t count, struct sdp_safetensors_set **out,
                                         struct sdp_error *err)
{
    struct sdp_safetensors_set *set = sdp_xcalloc(1, sizeof *set);
    enum sdp_status status = SDP_OK;

    set->files = sdp_xcalloc(count, sizeof *set->files);
    for (size_t i = 0; i < count && status == SDP_OK; i++) {
        char *path = sdp_path_join(folder, names[i]);

        if (!is_plain_name(names[i]))
            status =
                sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                            "names the file \"%s\"; must be a plain file name in the "
                            "folder",
                            names[i]);
        else
            status = sdp_safetensors_open(path, &set->files[i], err);
        if (status == SDP_OK)
            set->file_count++;
        free(path);
    }
    if (status == SDP_OK)
        status = gather_members(set, err);
    if (status == SDP_OK)
        *out = set;
    else
        sdp_safetensors_set_close(set);
    return status;
}

void sdp_safetensors_set_close(struct sdp_safetensors_set *set)
{
    if (!set)
        return;
    for (size_t f = 0; f < set->file_count; f++)
        sdp_safetensors_close(set->files[f]);
    free(set->files);
    free(set->members);
    free(set);
}

/* -- the index ---------------------------------------------------------------- */

/* The names of the shards, each once, in the order in which the index has them. The
 * object keeps them. */
static bool list_shards(const struct sdp_json *map, const char *folder, json_t *shards)
{
    const char *tensor;
    json_t *value;

    if (!sdp_json_expect_object(map))
        return false;
    if (json_object_size(map->value) == 0)
        return sdp_json_fail(map, "is empty; must say in which file each tensor is");
    json_object_foreach(map->value, tensor, value)
    {
        struct sdp_json at = sdp_json_member(map, tensor);
        const char *name;
        bool there;
        char *path;

        if (!sdp_json_expect_string(&at, &name))
            return false;
        if (!is_plain_name(name))
            return sdp_json_fail(
                &at, "is \"%s\"; must be the plain name of a file in the same folder",
                name);
        if (json_object_get(shards, name))
            continue;
        path = sdp_path_join(folder, name);
        there = sdp_path_exists(path);
        free(path);
        if (!there)
            return sdp_json_fail(
                &at, "the file \"%s\" is not in the folder; the checkpoint is incomplete",
                name);
        json_object_set_new(shards, name, json_true());
    }
    return true;
}

/* Every tensor is where the index says, and the index says all of them. */
static bool check_index(const struct sdp_json *map, const char *folder,
                        const struct sdp_safetensors_set *set)
{
    const char *name;
    json_t *value;

    json_object_foreach(map->value, name, value)
    {
        const struct sdp_safetensors_member *member = sdp_safetensors_set_find(set, name);
        char *path = sdp_path_join(folder, json_string_value(value));
        bool right = member && strcmp(member->file->path, path) == 0;

        free(path);
        if (!right) {
            struct sdp_json at = sdp_json_member(map, name);
            return sdp_json_fail(&at, "the file \"%s\" does not hold this tensor",
                                 json_string_value(value));
        }
    }
    for (size_t i = 0; i < set->count; i++)
        if (!json_object_get(map->value, set->members[i].tensor->name))
            return sdp_json_fail(map,
                                 "does not list the tensor \"%s\", which is in %s; index "
                                 "and files do not belong together",
                                 set->members[i].tensor->name,
                                 set->members[i].file->path);
    return true;
}

static enum sdp_status open_shards(const struct sdp_json *map, const char *folder,
                                   struct sdp_safetensors_set **out,
                                   struct sdp_error *err)
{
    json_t *shards = json_object(), *value;
    enum sdp_status status = SDP_INPUT;
    const char **names, *name;
    size_t count = 0;

    if (list_shards(map, folder, shards)) {
        names = sdp_xcalloc(json_object_size(shards), sizeof *names);
        json_object_foreach(shards, name, value) names[count++] = name;
        status = sdp_safetensors_set_open(folder, names, count, out, err);
        free(names);
    }
    json_decref(shards);
    return status;
}

static enum sdp_status open_index(const char *folder, const char *path,
                                  struct sdp_safetensors_set **out, struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    struct sdp_safetensors_set *set = NULL;
    json_t *document = NULL;
    struct sdp_json root, map;
    enum sdp_status status;

    if (!err)
        err = &own;
    status = sdp_json_load(path, &document, &root, err);
    if (status != SDP_OK)
        return status;
    map = sdp_json_member(&root, "weight_map");
    if (!json_is_object(root.value) || !map.value) {
        sdp_json_missing(&root, "weight_map");
        status = SDP_INPUT;
    } else {
        status = open_shards(&map, folder, &set, err);
    }
    if (status == SDP_OK && !check_index(&map, folder, set)) {
        sdp_safetensors_set_close(set);
        status = SDP_INPUT;
    }
    if (status == SDP_OK)
        *out = set;
    json_decref(document);
    return status;
}

/* A folder without weights, with a word on weights of a kind that is not read. */
static enum sdp_status fail_no_weights(const char *folder, const char *stem,
                                       struct sdp_error *err)
{
    static const char *const others[] = {"pytorch_model.bin",
                                         "pytorch_model.bin.index.json"};

    for (size_t i = 0; i < SDP_COUNT_OF(others); i++) {
        char *path = sdp_path_join(folder, others[i]);
        bool there = sdp_path_exists(path);

        free(path);
        if (there)
            return sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                               "has its weights in the pickle format (%s), which is not "
                               "read; convert them to safetensors",
                               others[i]);
    }
    return sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                       "has neither %s.safetensors nor %s.safetensors.index.json", stem,
                       stem);
}

enum sdp_status sdp_safetensors_set_open_index(const char *folder, const char *stem,
                                               struct sdp_safetensors_set **out,
                                               struct sdp_error *err)
{
    char *single = sdp_xprintf("%s.safetensors", stem);
    char *index = sdp_xprintf("%s.index.json", single);
    char *single_path = sdp_path_join(folder, single);
    char *index_path = sdp_path_join(folder, index);
    enum sdp_status status;

    if (sdp_path_exists(single_path))
        status =
            sdp_safetensors_set_open(folder, (const char *const *)&single, 1, out, err);
    else if (sdp_path_exists(index_path))
        status = open_index(folder, index_path, out, err);
    else if (sdp_path_is_folder(folder))
        status = fail_no_weights(folder, stem, err);
    else
        status = sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                             "no such folder; must be one with %s", single);
    free(index_path);
    free(single_path);
    free(index);
    free(single);
    return status;
}
