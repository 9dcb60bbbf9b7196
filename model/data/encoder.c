/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a job's text becomes ids: the tokenizer, the chat template and the names of special
 * tokens, from the folder of a Hugging Face model or as the job says. */
#include "model/data/data_internal.h"

#include "graph/base/log.h"
#include "model/tokenizer/bytes.h"

#include <stdlib.h>
#include <time.h>

/* -- ids -------------------------------------------------------------------------------
 */

enum sdp_status sdpi_encode(const struct sdpi_encoder *e, const char *text, size_t length,
                            bool add_special, struct sdp_ids *out, struct sdp_error *err)
{
    size_t first = out->count;
    enum sdp_status status;

    if (!e->tokenizer) {
        sdp_ids_reserve(out, length + 1);
        sdp_bytes_encode((const uint8_t *)text, length, out->ids + out->count);
        out->count += length;
    } else {
        status = sdp_tokenizer_encode(e->tokenizer, text, length, add_special, out, err);
        if (status != SDP_OK)
            return status;
    }
    for (size_t i = first; i < out->count; i++)
        if (out->ids[i] < 0 || (size_t)out->ids[i] >= e->vocabulary)
            return sdp_fail(err, SDP_INPUT,
                            "the tokenizer gives the id %ld, but the model's vocabulary "
                            "has only the ids 0 to %zu; "
                            "the tokenizer must be the model's own",
                            (long)out->ids[i], e->vocabulary - 1);
    return SDP_OK;
}

bool sdpi_may_keep(const struct sdpi_encoder *e, size_t bytes)
{
    size_t room = atomic_load(e->room);

    while (room >= bytes)
        if (atomic_compare_exchange_weak(e->room, &room, room - bytes))
            return true;
    return false;
}

uint64_t sdpi_hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *from = bytes;

    for (; size >= 8; size -= 8, from += 8) {
        uint64_t word;

        memcpy(&word, from, sizeof word);
        hash = sdp_random_u64(hash, word);
    }
    for (; size > 0; size--)
        hash = sdp_random_u64(hash, *from++);
    return sdp_random_u64(hash, size);
}

void sdpi_sample_free(struct sdpi_sample *sample)
{
    sdp_ids_free(&sample->ids);
    sdp_ids_free(&sample->part);
    free(sample->counts);
}

void sdpi_sample_counts(struct sdpi_sample *sample, size_t from, bool value)
{
    if (sample->ids.count > sample->room) {
        sample->room = sample->ids.count + sample->ids.count / 2;
        sample->counts =
            sdp_xrealloc(sample->counts, sample->room * sizeof *sample->counts);
    }
    for (size_t i = from; i < sample->ids.count; i++)
        sample->counts[i] = value;
}

/* -- the tokenizer's folder
 * ---------------------------------------------------------------- */

/* The text of a special token: a string, or an object with its content. */
static const char *token_text(const json_t *value)
{
    return json_string_value(json_is_object(value) ? json_object_get(value, "content")
                                                   : value);
}

static void take_tokens(struct sdpi_encoder *e, const json_t *config)
{
    static const char *const names[] = {"bos_token",  "eos_token", "unk_token",
                                        "sep_token",  "pad_token", "cls_token",
                                        "mask_token", NULL};

    for (size_t i = 0; names[i]; i++) {
        const char *text = token_text(json_object_get(config, names[i]));

        if (text && !json_object_get(e->variables, names[i]))
            json_object_set_new(e->variables, names[i], json_string(text));
    }
}

static int32_t token_id(const struct sdpi_encoder *e, const char *name)
{
    const char *text = json_string_value(json_object_get(e->variables, name));

    return text && e->tokenizer ? sdp_tokenizer_id(e->tokenizer, text, strlen(text)) : -1;
}

/* chat_template is a text, or a list of named ones of which "default" is taken. */
static const char *template_text(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");

    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(value);
}

static enum sdp_status take_template(struct sdpi_encoder *e, const char *text,
                                     size_t length, char *name_take,
                                     struct sdp_error *err)
{
    e->template_name = name_take;
    e->hash = sdpi_hash_bytes(e->hash, text, length);
    return sdp_template_parse(text, length, name_take, &e->template, err);
}

static enum sdp_status read_template_file(struct sdpi_encoder *e, const char *path,
                                          struct sdp_error *err)
{
    size_t size = 0;
    char *text = NULL;
    enum sdp_status status = sdp_read_text(path, &text, &size, err);

    if (status == SDP_OK)
        status = take_template(e, text, size, sdp_xstrdup(path), err);
    free(text);
    return status;
}

/* Special tokens, and the template where none was read yet, from one JSON file of the
 * folder. */
static enum sdp_status read_config(struct sdpi_encoder *e, const char *folder,
                                   const char *name, bool wants_template,
                                   struct sdp_error *err)
{
    char *path = sdp_path_join(folder, name);
    struct sdp_json root;
    json_t *document = NULL;
    const char *text;
    enum sdp_status status = SDP_OK;

    if (sdp_path_exists(path)) {
        status = sdp_json_load(path, &document, &root, err);
        if (status == SDP_OK && !sdp_json_expect_object(&root))
            status = SDP_INPUT;
        if (status == SDP_OK)
            take_tokens(e, document);
        text = status == SDP_OK && wants_template && !e->template
                   ? template_text(document)
                   : NULL;
        if (text)
            status = take_template(e, text, strlen(text),
                                   sdp_xprintf("%s: chat_template", path), err);
        json_decref(document);
    }
    free(path);
    return status;
}

static enum sdp_status read_folder(struct sdpi_encoder *e, const char *folder,
                                   bool wants_template, struct sdp_error *err)
{
    char *path = sdp_path_join(folder, "chat_template.jinja");
    enum sdp_status status = SDP_OK;

    if (wants_template && !e->template && sdp_path_exists(path))
        status = read_template_file(e, path, err);
    free(path);
    if (status == SDP_OK)
        status = read_config(e, folder, "tokenizer_config.json", wants_template, err);
    if (status == SDP_OK)
        status = read_config(e, folder, "special_tokens_map.json", false, err);
    return status;
}

static enum sdp_status load_tokenizer(struct sdpi_encoder *e, const char *path,
                                      struct sdp_error *err)
{
    struct sdp_map map = {NULL, 0};
    enum sdp_status status = sdp_map_open(path, &map, err);

    if (status != SDP_OK)
        return status;
    e->hash = sdpi_hash_bytes(e->hash, map.data, map.size);
    sdp_map_close(&map);
    return sdp_tokenizer_load(path, &e->tokenizer, err);
}

/* The tokenizer's file, or NULL for bytes. [new] */
static char *tokenizer_path(const struct sdp_job *job)
{
    const char *named = job->data.tokenizer;
    char *path;

    if (named && strcmp(named, "bytes") == 0)
        return NULL;
    if (named && !sdp_path_is_folder(named))
        return sdp_xstrdup(named);
    if (!named && !job->model.checkpoint)
        return NULL;
    path = sdp_path_join(named ? named : job->model.checkpoint, "tokenizer.json");
    if (named || sdp_path_exists(path))
        return path;
    free(path);
    return NULL;
}

/* -- all of it
 * ---------------------------------------------------------------------------------- */

static enum sdp_status set_values(const struct sdp_job *job, struct sdpi_encoder *e,
                                  struct sdp_error *err)
{
    json_t *values = NULL;
    struct sdp_json root;
    enum sdp_status status;

    if (!job->data.template_values)
        return SDP_OK;
    e->hash = sdpi_hash_bytes(e->hash, job->data.template_values,
                              strlen(job->data.template_values));
    status = sdp_json_parse(job->data.template_values, strlen(job->data.template_values),
                            "data.template_values", &values, &root, err);
    if (status == SDP_OK)
        json_object_update(e->variables, values);
    json_decref(values);
    return status;
}

static enum sdp_status check_template(const struct sdp_job *job, struct sdpi_encoder *e,
                                      struct sdp_error *err)
{
    if (!e->template && job->data.format == SDP_DATA_MESSAGES)
        return sdp_fail_at(
            err, SDP_INPUT, sdp_job_source(job, "/data/chat_template"),
            "/data/chat_template", 0, 0,
            "is missing, and %s has no chat template; name a file with one",
            e->tokenizer ? "the tokenizer's folder" : "the tokenizer \"bytes\"");
    e->now = job->data.template_date ? job->data.template_date
                                     : (int64_t)time(NULL) / 86400 * 86400;
    if (!e->template || !sdp_template_uses(e->template, "strftime_now"))
        return SDP_OK;
    e->hash = sdp_random_u64(e->hash, (uint64_t)e->now);
    if (!job->data.template_date)
        sdp_info("the chat template asks for the date, and is told today's; "
                 "data.template_date fixes it, which "
                 "resuming on another day needs");
    return SDP_OK;
}

enum sdp_status sdpi_encoder_open(const struct sdp_job *job, size_t vocabulary,
                                  struct sdpi_encoder *out, struct sdp_error *err)
{
    bool records =
        job->data.format == SDP_DATA_MESSAGES || job->data.format == SDP_DATA_ALPACA;
    char *path = tokenizer_path(job), *folder = path ? sdp_path_folder(path) : NULL;
    enum sdp_status status = SDP_OK;

    *out = (struct sdpi_encoder){.vocabulary = vocabulary, .bos = -1, .eos = -1};
    out->variables = json_pack("{s:n, s:n}", "tools", "documents");
    if (path)
        status = load_tokenizer(out, path, err);
    if (status == SDP_OK && records && job->data.chat_template)
        status = read_template_file(out, job->data.chat_template, err);
    if (status == SDP_OK && folder)
        status = read_folder(out, folder, records, err);
    free(path);
    free(folder);
    if (status == SDP_OK)
        status = set_values(job, out, err);
    if (status == SDP_OK && records)
        status = check_template(job, out, err);
    if (status != SDP_OK)
        return status;
    out->bos = token_id(out, "bos_token");
    out->eos = token_id(out, "eos_token");
    return SDP_OK;
}

void sdpi_encoder_close(struct sdpi_encoder *e)
{
    sdp_tokenizer_destroy(e->tokenizer);
    sdp_template_destroy(e->template);
    free(e->template_name);
    json_decref(e->variables);
}
