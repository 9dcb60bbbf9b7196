/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The folder a run writes. Nothing that a run did not write is ever removed. */
#include "graph/output.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const written[] = {"metrics.jsonl", "plan.json", "checkpoints", "model", "trace", NULL};

static bool is_empty(const char *path)
{
    DIR *dir = opendir(path);
    bool empty = true;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        empty &= !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
    if (dir)
        closedir(dir);
    return empty;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

static enum sdp_status remove_written(const char *dir, struct sdp_error *err)
{
    for (size_t i = 0; written[i]; i++) {
        char *path = sdp_path_join(dir, written[i]);
        int rc = nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        bool failed = rc != 0 && errno != ENOENT;
        if (failed)
            sdp_fail_at(err, SDP_IO, path, NULL, 0, 0, "removing it failed: %s", strerror(errno));
        free(path);
        if (failed)
            return SDP_IO;
    }
    return SDP_OK;
}

enum sdp_status sdp_output_open(const struct sdp_job *job, const struct sdp_run_options *options, struct sdp_output *out,
                                struct sdp_error *err)
{
    memset(out, 0, sizeof *out);
    if (sdp_path_exists(job->output.dir) && !is_empty(job->output.dir) && !options->resume && !options->overwrite)
        return sdp_fail_at(err, SDP_INPUT, sdp_job_source(job, "/output/dir"), "/output/dir", 0, 0,
                           "folder \"%s\" is not empty; use --resume to go on, --overwrite to start anew, or another folder",
                           job->output.dir);
    enum sdp_status rc = sdp_make_dirs(job->output.dir, err);
    if (!rc && options->overwrite && !options->resume)
        rc = remove_written(job->output.dir, err);
    if (rc)
        return rc;
    out->dir = sdp_xstrdup(job->output.dir);
    out->metrics_path = sdp_path_join(out->dir, "metrics.jsonl");
    out->plan_path = sdp_path_join(out->dir, "plan.json");
    out->checkpoints = sdp_path_join(out->dir, "checkpoints");
    out->model = sdp_path_join(out->dir, "model");
    out->trace = sdp_path_join(out->dir, "trace");
    return SDP_OK;
}

/* Length of the lines whose step is at most last_step. */
static size_t kept_length(const char *text, size_t last_step)
{
    size_t kept = 0;
    for (const char *line = text; *line;) {
        const char *end = strchr(line, '\n');
        size_t step = 0;
        if (!end || sscanf(line, "{\"step\": %zu", &step) != 1 || step > last_step)
            break;
        kept = (size_t)(end + 1 - text);
        line = end + 1;
    }
    return kept;
}

enum sdp_status sdp_output_start_metrics(struct sdp_output *out, size_t last_step, struct sdp_error *err)
{
    if (sdp_path_exists(out->metrics_path)) {
        char *text = NULL;
        size_t size = 0;
        enum sdp_status rc = sdp_read_text(out->metrics_path, &text, &size, err);
        if (!rc)
            rc = sdp_write_file(out->metrics_path, text, kept_length(text, last_step), err);
        free(text);
        if (rc)
            return rc;
    }
    out->metrics = fopen(out->metrics_path, "a");
    if (!out->metrics)
        return sdp_fail_at(err, SDP_IO, out->metrics_path, NULL, 0, 0, "cannot be opened for writing: %s", strerror(errno));
    return SDP_OK;
}

static enum sdp_status line_written(const struct sdp_output *out, int printed, struct sdp_error *err)
{
    if (printed < 0 || fflush(out->metrics) != 0)
        return sdp_fail_at(err, SDP_IO, out->metrics_path, NULL, 0, 0, "writing failed: %s", strerror(errno));
    return SDP_OK;
}

enum sdp_status sdp_output_evaluation(struct sdp_output *out, size_t step, const struct sdp_evaluation *result,
                                      double seconds, struct sdp_error *err)
{
    char loss[40], perplexity[40];
    snprintf(loss, sizeof loss, isfinite(result->loss) ? "%.9g" : "null", result->loss);
    snprintf(perplexity, sizeof perplexity, isfinite(exp(result->loss)) ? "%.9g" : "null", exp(result->loss));
    return line_written(out, fprintf(out->metrics,
                                "{\"step\": %zu, \"validation_loss\": %s, \"validation_perplexity\": %s, "
                                "\"validation_tokens\": %zu, \"seconds\": %.6f}\n",
                                step, loss, perplexity, result->counted, seconds), err);
}

enum sdp_status sdp_output_metrics(struct sdp_output *out, const struct sdp_plan *plan, size_t step,
                                   const struct sdp_step_result *result, double seconds, struct sdp_error *err)
{
    size_t tokens = plan->sequences_per_step * plan->sequence_length;
    char loss[40], norm[40];
    /* JSON has no NaN: null says that it was none */
    snprintf(loss, sizeof loss, isfinite(result->loss) ? "%.9g" : "null", result->loss);
    snprintf(norm, sizeof norm, isfinite(result->grad_norm) ? "%.9g" : "null", result->grad_norm);
    int n = fprintf(out->metrics,
                    "{\"step\": %zu, \"loss\": %s, \"grad_norm\": %s, \"lr\": %.9g, \"tokens\": %zu, \"target_tokens\": %zu, "
                    "\"seconds\": %.6f, \"tokens_per_second\": %.1f, \"model_tflops\": %.3f}\n",
                    step, loss, norm, result->lr, tokens, result->counted, seconds, (double)tokens / seconds,
                    plan->flops / seconds / 1e12);
    return line_written(out, n, err);
}

void sdp_output_close(struct sdp_output *out)
{
    if (out->metrics)
        fclose(out->metrics);
    free(out->dir);
    free(out->metrics_path);
    free(out->plan_path);
    free(out->checkpoints);
    free(out->model);
    free(out->trace);
    memset(out, 0, sizeof *out);
}
