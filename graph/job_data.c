/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The section "data" of a job file. Which keys are allowed follows from the format: a key
 * that would do nothing is refused. */
#define _GNU_SOURCE
#include "graph/job_internal.h"
#include "graph/job_value.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#define MAX_SEQUENCE ((size_t)1 << 24) /* tokens of a sequence */

static const char *const formats[] = {"synthetic", "tokens", "text",
                                      "messages",  "alpaca", NULL};

/* -- files ------------------------------------------------------------------ */

static bool read_file_name(const struct sdp_json *at, const char *folder, char **out)
{
    const char *name;

    if (!sdp_json_expect_string(at, &name))
        return false;
    if (!*name)
        return sdp_json_fail(at, "is an empty string; must be the path of a file");
    *out = sdp_path_join(folder, name);
    return sdpi_job_check_file(at, *out);
}

/* A file by its name, or {"path": name, "weight": how often an epoch has its samples}. */
static bool read_file(const struct sdp_json *at, const char *folder, double *weight,
                      char **out)
{
    static const char *const keys[] = {"path", "weight", NULL};
    static const char *const no_weight[] = {"path", NULL};
    struct sdp_json path;

    if (!json_is_object(at->value))
        return read_file_name(at, folder, out);
    if (!sdp_json_only_keys(at, weight ? keys : no_weight))
        return false;
    path = sdp_json_member(at, "path");
    if (!path.value)
        return sdp_json_missing(at, "path");
    return read_file_name(&path, folder, out) &&
           (!weight || sdpi_job_above(at, "weight", 0.0, weight));
}

/* A list of files; *out is NULL-ended also when it is empty or absent. */
static bool read_files(const struct sdp_json *data, const char *key, const char *folder,
                       char ***out, size_t *count, double **weights)
{
    struct sdp_json at = sdp_json_member(data, key);
    size_t length = 0;

    if (at.value && !sdp_json_expect_array(&at, &length))
        return false;
    *out = sdp_xcalloc(length + 1, sizeof **out);
    *count = length;
    if (weights)
        *weights = sdp_xcalloc(length + 1, sizeof **weights);
    for (size_t i = 0; i < length; i++) {
        struct sdp_json element = sdp_json_element(&at, i);
        double weight = 1.0;

        if (!read_file(&element, folder, weights ? &weight : NULL, &(*out)[i]))
            return false;
        if (weight > 1e6)
            return sdp_json_fail(&element, "has the weight %.9g; must be at most 1000000",
                                 weight);
        if (weights)
            (*weights)[i] = weight;
    }
    return true;
}

static bool read_format(const struct sdp_json *at, struct sdp_job *job)
{
    int format = SDP_DATA_SYNTHETIC;

    if (!json_object_get(at->value, "format"))
        return sdp_json_missing(at, "format");
    if (!sdpi_job_choice(at, "format", formats, NULL, &format))
        return false;
    job->data.format = (enum sdp_data_format)format;
    return true;
}

/* Refuses a key that another format than the job's has. */
static bool only_with(const struct sdp_json *at, const char *key,
                      const struct sdp_job *job, enum sdp_data_format format)
{
    struct sdp_json member = sdp_json_member(at, key);

    if (!member.value || job->data.format == format)
        return true;
    return sdp_json_fail(&member,
                         "goes with format \"%s\" only, and the format is \"%s\"; leave "
                         "it out",
                         formats[format], formats[job->data.format]);
}

static bool is_npy(const char *path)
{
    size_t length = strlen(path);

    return length > 4 && strcasecmp(path + length - 4, ".npy") == 0;
}

/* A wrong guess of the element type would train on nonsense unnoticed. */
static bool need_token_dtype(const struct sdp_json *at, char **files, size_t count)
{
    struct sdp_json member = sdp_json_member(at, "token_dtype");

    for (size_t i = 0; i < count; i++)
        if (!is_npy(files[i]))
            return sdp_json_fail(
                &member,
                "is missing; \"%s\" is a raw token file, so say \"uint16\" "
                "or \"uint32\" (.npy files say it themselves)",
                files[i]);
    return true;
}

static bool read_token_dtype(const struct sdp_json *at, struct sdp_job *job)
{
    static const char *const words[] = {"uint16", "uint32", NULL};
    int choice = 0;

    if (!only_with(at, "token_dtype", job, SDP_DATA_TOKENS) ||
        !sdp_json_get_choice(at, "token_dtype", words, &choice))
        return false;
    job->data.token_dtype = choice ? SDP_UINT32 : SDP_UINT16;
    if (job->data.format != SDP_DATA_TOKENS || json_object_get(at->value, "token_dtype"))
        return true;
    return need_token_dtype(at, job->data.train, job->data.train_count) &&
           need_token_dtype(at, job->data.validation, job->data.validation_count);
}

/* -- text ------------------------------------------------------------------- */

static bool is_records(const struct sdp_job *job)
{
    return job->data.format == SDP_DATA_MESSAGES || job->data.format == SDP_DATA_ALPACA;
}

/* Refuses a key that belongs to texts and records. */
static bool only_with_text(const struct sdp_json *at, const char *key,
                           const struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, key);

    if (!sdpi_job_has(at, key) || job->data.format == SDP_DATA_TEXT || is_records(job))
        return true;
    return sdp_json_fail(
        &member,
        "goes with format \"text\", \"messages\" or \"alpaca\" only, and the "
        "format is \"%s\"; leave it out",
        formats[job->data.format]);
}

static bool only_with_records(const struct sdp_json *at, const char *key,
                              const struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, key);

    if (!sdpi_job_has(at, key) || is_records(job))
        return true;
    return sdp_json_fail(
        &member,
        "goes with format \"messages\" or \"alpaca\" only, and the format is "
        "\"%s\"; leave it out",
        formats[job->data.format]);
}

/* The checkpoint's folder has a tokenizer, which is then the default. */
static bool checkpoint_has_tokenizer(const struct sdp_job *job)
{
    char *path;
    bool has;

    if (!job->model.checkpoint)
        return false;
    path = sdp_path_join(job->model.checkpoint, "tokenizer.json");
    has = sdp_path_exists(path);
    free(path);
    return has;
}

static bool need_tokenizer(const struct sdp_json *at, const struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, "tokenizer");

    if (!is_records(job) || checkpoint_has_tokenizer(job))
        return true;
    return sdp_json_fail(
        &member,
        "is missing; name a tokenizer.json or the folder of a Hugging Face model%s",
        job->model.checkpoint ? ", for the checkpoint's folder has none" : "");
}

static bool read_tokenizer(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, "tokenizer");
    char *path, *inside;
    bool good;

    if (!sdpi_job_has(at, "tokenizer"))
        return need_tokenizer(at, job);
    if (!only_with_text(at, "tokenizer", job) ||
        !sdpi_job_text(at, "tokenizer", true, &job->data.tokenizer))
        return false;
    if (strcmp(job->data.tokenizer, "bytes") == 0)
        return true;
    path = sdp_path_join(job->folder, job->data.tokenizer);
    if (!sdp_path_exists(path)) {
        good = sdp_json_fail(
            &member,
            "there is no file or folder \"%s\"; must be \"bytes\", a tokenizer.json or "
            "the folder of a Hugging Face model",
            path);
    } else if (sdp_path_is_folder(path)) {
        inside = sdp_path_join(path, "tokenizer.json");
        good = sdp_path_exists(inside) ||
               sdp_json_fail(&member, "the folder \"%s\" holds no tokenizer.json", path);
        free(inside);
    } else {
        good = sdpi_job_check_file(&member, path);
    }
    free(job->data.tokenizer);
    job->data.tokenizer = path;
    return good;
}

static bool read_template_date(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, "template_date");
    const char *text = json_string_value(member.value), *end;
    struct tm date;

    if (!sdpi_job_has(at, "template_date"))
        return true;
    memset(&date, 0, sizeof date);
    end = text ? strptime(text, "%Y-%m-%d", &date) : NULL;
    if (!end || *end || strlen(text) != 10)
        return sdp_json_wrong(&member, "a date such as \"2025-01-31\"");
    job->data.template_date = (int64_t)timegm(&date);
    return true;
}

static bool read_template(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json file = sdp_json_member(at, "chat_template");
    struct sdp_json values = sdp_json_member(at, "template_values");

    if (!only_with_records(at, "chat_template", job) ||
        !only_with_records(at, "template_values", job) ||
        !only_with_records(at, "template_date", job) ||
        !only_with_records(at, "tools", job))
        return false;
    if (sdpi_job_has(at, "chat_template") &&
        !read_file_name(&file, job->folder, &job->data.chat_template))
        return false;
    if (sdpi_job_has(at, "template_values")) {
        if (!sdp_json_expect_object(&values))
            return false;
        job->data.template_values = json_dumps(values.value, JSON_COMPACT);
    }
    return read_template_date(at, job);
}

static bool read_fields(const struct sdp_json *data, struct sdp_job *job)
{
    const char *const *keys = sdpi_job_keys("/data/fields");
    struct sdp_json at;

    if (!sdpi_job_section(data, "fields", &at) || !only_with_text(data, "fields", job))
        return false;
    for (size_t i = 0; at.value && i < SDP_FIELD_COUNT; i++)
        if (!sdpi_job_text(&at, keys[i], false, &job->data.fields[i]))
            return false;
    return true;
}

static bool read_samples(const struct sdp_json *at, struct sdp_job *job)
{
    static const char *const too_long[] = {"truncate", "split", "drop", "error", NULL};
    static const char *const packing[] = {"none", "pack", NULL};
    static const char *const tools[] = {"refuse", "pass", NULL};
    int long_choice = is_records(job) ? SDP_TOO_LONG_TRUNCATE : SDP_TOO_LONG_SPLIT;
    int packing_choice = SDP_PACKING_NONE, tools_choice = 0;

    job->data.append_eos = true;
    if (!only_with_text(at, "too_long", job) || !only_with_text(at, "packing", job) ||
        !only_with(at, "append_eos", job, SDP_DATA_TEXT) ||
        !sdp_json_get_choice(at, "too_long", too_long, &long_choice) ||
        !sdp_json_get_choice(at, "packing", packing, &packing_choice) ||
        !sdp_json_get_choice(at, "tools", tools, &tools_choice) ||
        !sdp_json_get_bool(at, "append_eos", &job->data.append_eos))
        return false;
    job->data.too_long = (enum sdp_too_long)long_choice;
    job->data.packing = (enum sdp_packing)packing_choice;
    job->data.pass_tools = tools_choice == 1;
    return true;
}

static bool read_pack(const struct sdp_json *at, const struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, "pack");
    bool pack = true;

    if (!sdp_json_get_bool(at, "pack", &pack))
        return false;
    if (member.value && is_records(job))
        return sdp_json_fail(
            &member,
            "does not go with format \"%s\"; whether records share a sequence says "
            "\"packing\": \"none\" or \"pack\"",
            formats[job->data.format]);
    if (pack)
        return true;
    return sdp_json_fail(&member,
                         "is false; must be true: these formats are one stream of "
                         "tokens, cut into full sequences");
}

static bool check_files(const struct sdp_json *at, const struct sdp_job *job)
{
    struct sdp_json train = sdp_json_member(at, "train");
    struct sdp_json validation = sdp_json_member(at, "validation");

    if (job->data.format != SDP_DATA_SYNTHETIC) {
        if (job->data.train_count > 0)
            return true;
        return sdp_json_fail(&train, "%s; format \"%s\" needs at least one file",
                             train.value ? "is an empty list" : "is missing",
                             formats[job->data.format]);
    }
    if (job->data.train_count > 0)
        return sdp_json_fail(&train,
                             "cannot go with format \"synthetic\", which makes its own "
                             "tokens; leave it out, or choose \"tokens\" or \"text\"");
    if (job->data.validation_count > 0)
        return sdp_json_fail(&validation,
                             "cannot go with format \"synthetic\", which makes its own "
                             "tokens; leave it out");
    return true;
}

bool sdpi_job_read_data(const struct sdp_json *root, struct sdp_job *job)
{
    struct sdp_json at;
    int64_t seed = 0;

    job->data.shuffle = true;
    if (!sdpi_job_section(root, "data", &at))
        return false;
    if (!at.value)
        return sdp_json_missing(root, "data");
    if (!read_format(&at, job) ||
        !read_files(&at, "train", job->folder, &job->data.train, &job->data.train_count,
                    &job->data.weights) ||
        !read_files(&at, "validation", job->folder, &job->data.validation,
                    &job->data.validation_count, NULL) ||
        !check_files(&at, job) || !read_token_dtype(&at, job) ||
        !read_tokenizer(&at, job) || !read_template(&at, job) || !read_fields(&at, job) ||
        !read_samples(&at, job) || !read_pack(&at, job) ||
        !sdp_json_get_int(&at, "seed", 0, INT64_MAX, &seed) ||
        !sdp_json_get_bool(&at, "shuffle", &job->data.shuffle) ||
        !only_with(&at, "repeat_batch", job, SDP_DATA_SYNTHETIC) ||
        !sdp_json_get_bool(&at, "repeat_batch", &job->data.repeat_batch))
        return false;
    job->data.seed = (uint64_t)seed;
    if (!json_object_get(at.value, "sequence_length"))
        return sdp_json_missing(&at, "sequence_length");
    return sdp_json_get_size(&at, "sequence_length", 1, MAX_SEQUENCE,
                             &job->data.sequence_length);
}
