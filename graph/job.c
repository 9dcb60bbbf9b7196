/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Loading a job: the file, the command line's overrides, the sections; and what
 * follows from a job alone: learning rates, checks against a model. */
#define _GNU_SOURCE
#include "graph/job.h"

#include "graph/job_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

extern const char
    sdp_job_schema_text[]; /* graph/job.schema.json, embedded by the build */

const char *sdp_job_schema(void)
{
    return sdp_job_schema_text;
}

static void free_list(char **list, size_t count)
{
    for (size_t i = 0; list && i < count; i++)
        free(list[i]);
    free(list);
}

void sdp_job_destroy(struct sdp_job *job)
{
    if (!job)
        return;
    free(job->path);
    free(job->folder);
    free(job->model.checkpoint);
    free(job->model.graph);
    free(job->model.config_text);
    free_list(job->data.train, job->data.train_count);
    free_list(job->data.validation, job->data.validation_count);
    free(job->data.weights);
    free(job->data.tokenizer);
    free(job->data.chat_template);
    free(job->data.template_values);
    for (size_t i = 0; i < SDP_FIELD_COUNT; i++)
        free(job->data.fields[i]);
    free(job->runtime.policy);
    free(job->runtime.policy_options);
    free(job->output.dir);
    free_list(job->overrides.pointers, job->overrides.count);
    free_list(job->overrides.names, job->overrides.count);
    free(job);
}

/* -- loading ---------------------------------------------------------------- */

/* True when `pointer` is `base` or lies within it. */
static bool is_within(const char *pointer, const char *base)
{
    size_t length = strlen(base);

    return strncmp(pointer, base, length) == 0 &&
           (!pointer[length] || pointer[length] == '/');
}

const char *sdp_job_source(const struct sdp_job *job, const char *pointer)
{
    for (size_t i = job->overrides.count; i-- > 0;) /* the last one holds */
        if (is_within(pointer, job->overrides.pointers[i]))
            return job->overrides.names[i];
    return job->path;
}

static enum sdp_status apply_overrides(const struct sdp_json *root,
                                       const char *const *overrides, size_t count,
                                       struct sdp_job *job)
{
    enum sdp_status status = SDP_OK;

    job->overrides.pointers = sdp_xcalloc(count, sizeof *job->overrides.pointers);
    job->overrides.names = sdp_xcalloc(count, sizeof *job->overrides.names);
    if (count > 0 && !sdp_json_expect_object(root))
        return SDP_INPUT;
    for (size_t i = 0; i < count && status == SDP_OK; i++) {
        status = sdpi_job_override(root->value, overrides[i], &job->overrides.pointers[i],
                                   root->err);
        if (status == SDP_OK) {
            job->overrides.names[i] = sdp_xprintf("--set %s", overrides[i]);
            job->overrides.count++;
        }
    }
    return status;
}

static enum sdp_status apply_and_read(const struct sdp_json *root,
                                      const char *const *overrides, size_t count,
                                      struct sdp_job *job)
{
    struct sdp_error *err = root->err;
    enum sdp_status status = apply_overrides(root, overrides, count, job);

    if (status != SDP_OK || sdpi_job_read(root, job))
        return status;
    if (sdp_job_source(job, err->pointer) != job->path) {
        err->file[0] = '\0';
        sdp_error_set_file(err, sdp_job_source(job, err->pointer));
    }
    sdp_json_locate_error(err);
    return SDP_INPUT;
}

enum sdp_status sdp_job_load(const char *path, const char *const *overrides,
                             size_t override_count, struct sdp_job **out,
                             struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    struct sdp_json root;
    struct sdp_job *job;
    json_t *document = NULL;
    enum sdp_status status;

    if (!err)
        err = &own;
    status = sdp_json_load(path, &document, &root, err);
    if (status != SDP_OK)
        return status;
    job = sdp_xcalloc(1, sizeof *job);
    job->path = sdp_xstrdup(path);
    job->folder = sdp_path_folder(path);
    status = apply_and_read(&root, overrides, override_count, job);
    json_decref(document);
    if (status == SDP_OK)
        *out = job;
    else
        sdp_job_destroy(job);
    return status;
}

/* -- what follows from a job -------------------------------------------------- */

/* The nearest ranks (at most `ranks`) that share the sequences evenly. */
static size_t even_ranks(size_t sequences, size_t ranks)
{
    while (ranks > 1 && sequences % ranks != 0)
        ranks--;
    return ranks;
}

SDP_PRINTF(4, 5)
static enum sdp_status fail_value(const struct sdp_job *job, struct sdp_error *err,
                                  const char *pointer, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    sdp_fail_at(err, SDP_INPUT, sdp_job_source(job, pointer), pointer, 0, 0, "%s", text);
    sdp_json_locate_error(err);
    return SDP_INPUT;
}

enum sdp_status sdp_job_check_model(const struct sdp_job *job, size_t max_sequence_length,
                                    size_t ranks, struct sdp_error *err)
{
    size_t length = job->data.sequence_length, micro_batch = job->runtime.micro_batch;
    size_t sequences = job->train.tokens_per_step / length, unit = ranks * length;

    if (max_sequence_length && length > max_sequence_length)
        return fail_value(job, err, "/data/sequence_length",
                          "is %zu; must be at most %zu, the longest this model takes",
                          length, max_sequence_length);
    if (sequences % ranks != 0)
        return fail_value(
            job, err, "/train/tokens_per_step",
            "is %zu, or %zu sequences, which %zu ranks cannot share evenly; must be "
            "a multiple of %zu, such as %zu, or /runtime/ranks %zu",
            job->train.tokens_per_step, sequences, ranks, unit,
            (sequences / ranks + 1) * unit, even_ranks(sequences, ranks));
    if (micro_batch != SDP_AUTO && sequences / ranks % micro_batch != 0)
        return fail_value(
            job, err, "/runtime/micro_batch",
            "is %zu; must divide the %zu sequences that a step gives each of %zu "
            "rank%s",
            micro_batch, sequences / ranks, ranks, ranks == 1 ? "" : "s");
    return SDP_OK;
}

double sdp_job_lr(const struct sdp_job *job, size_t step, size_t steps)
{
    const double pi = 3.14159265358979323846;
    double lr = job->train.lr, low = job->train.min_lr, done;
    size_t warmup = job->train.warmup_steps;

    if (step <= warmup && warmup > 0)
        return lr * (double)step / (double)warmup;
    done = step >= steps ? 1.0 : (double)(step - warmup) / (double)(steps - warmup);
    switch (job->train.schedule) {
    case SDP_SCHEDULE_LINEAR:
        return lr + (low - lr) * done;
    case SDP_SCHEDULE_COSINE:
        return low + 0.5 * (lr - low) * (1.0 + cos(pi * done));
    case SDP_SCHEDULE_CONSTANT:
        break;
    }
    return lr;
}
