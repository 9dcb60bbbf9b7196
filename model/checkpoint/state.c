/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Training checkpoints: a folder step-00000050 with position.json and safetensors files
 * of the tensors weight.NAME (BF16), remainder.NAME (I16), m.NAME and v.NAME (F32). They
 * are keyed by tensor, not by rank or chunk, so that any number of ranks can go on with
 * them; other programs can read them too. position.json is written last and lists the
 * files with their sizes; the folder gets its name once all is on disk. */
#include "model/checkpoint/checkpoint_internal.h"

#include "graph/base/json.h"
#include "graph/base/log.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#define STEM           "state"
#define POSITION       "position.json"
#define FORMAT_VERSION 1
#define SHARD_BYTES    ((size_t)4000000000)
#define WRITE_THREADS  4u /* a few streams keep a disk busy */
#define FOLDER_PREFIX  "step-"
#define FOLDER_DIGITS  8u

/* Wide elements first, so that all are aligned in the files. */
static void add_tensors(struct sdpi_tensors *tensors, const struct sdp_host_state *state)
{
    sdpi_tensors_add(tensors, state, "m.", SDPI_M, SDP_ST_F32);
    sdpi_tensors_add(tensors, state, "v.", SDPI_V, SDP_ST_F32);
    sdpi_tensors_add(tensors, state, "weight.", SDPI_WEIGHT, SDP_ST_BF16);
    sdpi_tensors_add(tensors, state, "remainder.", SDPI_REMAINDER, SDP_ST_I16);
}

/* -- saving ------------------------------------------------------------------- */

/* The seed may use all 64 bits; JSON integers of jansson are signed. */
static enum sdp_status write_position(const char *folder,
                                      const struct sdp_train_position *position,
                                      const struct sdpi_shards *shards,
                                      struct sdp_error *err)
{
    char *path = sdp_path_join(folder, POSITION), *text;
    json_t *files = json_object(), *document;
    enum sdp_status status;

    for (size_t i = 0; i < shards->count; i++)
        json_object_set_new(files, shards->names[i],
                            json_integer((json_int_t)shards->bytes[i]));
    document =
        json_pack("{s:i, s:I, s:I, s:I, s:s, s:o}", "slidedp_checkpoint", FORMAT_VERSION,
                  "step", (json_int_t)position->step, "seed", (json_int_t)position->seed,
                  "sequences", (json_int_t)position->sequences, "fingerprint",
                  position->fingerprint, "files", files);
    text = document ? json_dumps(document, JSON_INDENT(2)) : NULL;
    if (text)
        status = sdp_write_file(path, text, strlen(text), err);
    else
        status = sdp_fail_at(err, SDP_INTERNAL, path, NULL, 0, 0,
                             "the data's fingerprint is no UTF-8 text");
    free(text);
    json_decref(document);
    free(path);
    return status;
}

enum sdp_status sdp_checkpoint_save_state(const char *folder,
                                          const struct sdp_host_state *state,
                                          const struct sdp_train_position *position,
                                          struct sdp_error *err)
{
    struct sdpi_tensors tensors = {NULL, 0};
    struct sdpi_shards shards;
    struct sdpi_saving saving;
    enum sdp_status status = sdpi_saving_begin(folder, &saving, err);

    if (status != SDP_OK)
        return status;
    add_tensors(&tensors, state);
    status = sdpi_tensors_write(&tensors, saving.temp, STEM, SHARD_BYTES, WRITE_THREADS,
                                &shards, err);
    if (status == SDP_OK) {
        status = write_position(saving.temp, position, &shards, err);
        sdpi_shards_free(&shards);
    }
    sdpi_tensors_free(&tensors);
    if (status == SDP_OK)
        return sdpi_saving_commit_take(&saving, err);
    sdpi_saving_abort_take(&saving);
    return status;
}

/* -- loading ------------------------------------------------------------------ */

/* Every file that position.json lists is there and has its size. */
static bool check_files(const struct sdp_json *files, const char *folder)
{
    const char *name;
    json_t *value;

    if (!sdp_json_expect_object(files))
        return false;
    json_object_foreach(files->value, name, value)
    {
        struct sdp_json at = sdp_json_member(files, name);
        struct stat info;
        int64_t bytes = 0;
        char *path;
        bool there;

        if (!sdp_json_expect_int(&at, 0, INT64_MAX, &bytes))
            return false;
        path = sdp_path_join(folder, name);
        there = stat(path, &info) == 0;
        free(path);
        if (!there)
            return sdp_json_fail(&at, "the file is not in the folder; the checkpoint is "
                                      "incomplete");
        if ((int64_t)info.st_size != bytes)
            return sdp_json_fail(&at,
                                 "the file should have %lld bytes and has %lld; the "
                                 "checkpoint is damaged",
                                 (long long)bytes, (long long)info.st_size);
    }
    return true;
}

static bool read_position(const struct sdp_json *root, const char *folder,
                          struct sdp_train_position *position)
{
    static const char *const keys[] = {"slidedp_checkpoint", "step",  "seed", "sequences",
                                       "fingerprint",        "files", NULL};
    int64_t version = 0, step = 0, seed = 0, sequences = 0;
    const char *fingerprint = NULL;
    struct sdp_json files;

    if (!sdp_json_only_keys(root, keys))
        return false;
    for (size_t i = 0; keys[i]; i++)
        if (!json_object_get(root->value, keys[i]))
            return sdp_json_missing(root, keys[i]);
    if (!sdp_json_get_int(root, "slidedp_checkpoint", FORMAT_VERSION, FORMAT_VERSION,
                          &version) ||
        !sdp_json_get_int(root, "step", 0, INT64_MAX, &step) ||
        !sdp_json_get_int(root, "seed", INT64_MIN, INT64_MAX, &seed) ||
        !sdp_json_get_int(root, "sequences", 0, INT64_MAX, &sequences) ||
        !sdp_json_get_string(root, "fingerprint", &fingerprint))
        return false;
    if (strlen(fingerprint) >= sizeof position->fingerprint) {
        struct sdp_json at = sdp_json_member(root, "fingerprint");
        return sdp_json_fail(&at, "is too long");
    }
    files = sdp_json_member(root, "files");
    if (!check_files(&files, folder))
        return false;
    *position = (struct sdp_train_position){(uint64_t)step, (uint64_t)seed,
                                            (uint64_t)sequences, ""};
    memcpy(position->fingerprint, fingerprint, strlen(fingerprint) + 1);
    return true;
}

/* Reads position.json and checks that its files are there. [new] *files. */
static enum sdp_status load_position(const char *folder,
                                     struct sdp_train_position *position, json_t **files,
                                     struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    char *path = sdp_path_join(folder, POSITION);
    json_t *document = NULL;
    struct sdp_json root;
    enum sdp_status status;

    if (!err)
        err = &own;
    status = sdp_json_load(path, &document, &root, err);
    if (status == SDP_OK && !(json_is_object(document) || sdp_json_expect_object(&root)))
        status = SDP_INPUT;
    if (status == SDP_OK && !read_position(&root, folder, position))
        status = SDP_INPUT;
    if (status == SDP_OK)
        *files = json_incref(json_object_get(document, "files"));
    json_decref(document);
    free(path);
    return status;
}

static enum sdp_status load_tensors(const char *folder, const json_t *files,
                                    struct sdp_host_state *state, struct sdp_error *err)
{
    const char **names = sdp_xcalloc(json_object_size(files), sizeof *names), *name;
    struct sdpi_tensors tensors = {NULL, 0};
    struct sdp_safetensors_set *set = NULL;
    enum sdp_status status;
    size_t count = 0;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)files, name, value) names[count++] = name;
    status = sdp_safetensors_set_open(folder, names, count, &set, err);
    free(names);
    if (status != SDP_OK)
        return status;
    add_tensors(&tensors, state);
    status = sdpi_tensors_match(&tensors, state->graph, set, NULL, folder, err);
    if (status == SDP_OK)
        status = sdpi_tensors_read(&tensors, 0, err);
    sdpi_tensors_free(&tensors);
    sdp_safetensors_set_close(set);
    return status;
}

enum sdp_status sdp_checkpoint_load_state(const char *folder,
                                          struct sdp_host_state *state,
                                          struct sdp_train_position *position,
                                          struct sdp_error *err)
{
    struct sdp_train_position read;
    json_t *files = NULL;
    enum sdp_status status = load_position(folder, &read, &files, err);

    if (status != SDP_OK)
        return status;
    status = load_tensors(folder, files, state, err);
    json_decref(files);
    if (status == SDP_OK)
        *position = read;
    return status;
}

/* -- finding ------------------------------------------------------------------ */

/* The step of a folder's name; false for all other names. */
static bool parse_step(const char *name, uint64_t *step)
{
    const char *digits = name + strlen(FOLDER_PREFIX);
    size_t length;

    if (strncmp(name, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) != 0)
        return false;
    length = strspn(digits, "0123456789");
    if (digits[length] || length < FOLDER_DIGITS || length > 19)
        return false;
    *step = strtoull(digits, NULL, 10);
    return true;
}

struct candidate {
    uint64_t step;
    char *name;
};

static int compare_newest(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return (x->step < y->step) - (x->step > y->step);
}

/* Checkpoints of a folder, newest first. [new] *out. */
static size_t list_candidates(DIR *list, struct candidate **out)
{
    struct candidate *all = NULL;
    struct dirent *entry;
    size_t count = 0;
    uint64_t step;

    while ((entry = readdir(list)) != NULL)
        if (parse_step(entry->d_name, &step)) {
            all = sdp_xrealloc(all, (count + 1) * sizeof *all);
            all[count++] = (struct candidate){step, sdp_xstrdup(entry->d_name)};
        }
    if (count > 0)
        qsort(all, count, sizeof *all, compare_newest);
    *out = all;
    return count;
}

/* A damaged checkpoint is passed over, and told: the one before it can still be used. */
static bool is_complete(const char *folder)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_train_position position;
    char text[SDP_ERROR_TEXT_SIZE];
    json_t *files = NULL;

    if (load_position(folder, &position, &files, &err) == SDP_OK) {
        json_decref(files);
        return true;
    }
    sdp_warn("%s: is passed over: %s", folder, sdp_error_format(&err, text, sizeof text));
    return false;
}

enum sdp_status sdp_checkpoint_find_latest(const char *folder, char **out,
                                           struct sdp_error *err)
{
    struct candidate *all;
    char *found = NULL;
    size_t count;
    DIR *list = opendir(folder);

    if (!list && errno != ENOENT)
        return sdpi_fail_errno(err, folder, "open");
    if (!list) {
        *out = NULL;
        return SDP_OK;
    }
    count = list_candidates(list, &all);
    closedir(list);
    for (size_t i = 0; i < count; i++) {
        char *path = sdp_path_join(folder, all[i].name);

        if (!found && is_complete(path))
            found = path;
        else
            free(path);
        free(all[i].name);
    }
    free(all);
    *out = found;
    return SDP_OK;
}
