/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slidedp check: reads a job with its model and data, says what it found, and
 * does no work. What passes here fails later only for want of memory or disk. */
#define _GNU_SOURCE
#include "graph/job_model.h"
#include "graph/options.h"

#include <stdio.h>
#include <stdlib.h>

static void count_text(double count, char *buffer, size_t size)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " K"}};

    for (size_t i = 0; i < SDP_COUNT_OF(units); i++) {
        if (count >= units[i].unit) {
            snprintf(buffer, size, "%.2f%s", count / units[i].unit, units[i].name);
            return;
        }
    }
    snprintf(buffer, size, "%.0f", count);
}

/* "job.json: ok: qwen3, 8.19 B parameters in 39 layers, 100 steps of 65536 tokens" */
static void print_facts(const struct sdp_job *job, const struct sdp_job_facts *facts)
{
    char parameters[32];

    count_text((double)facts->parameters, parameters, sizeof parameters);
    fprintf(stdout, "%s: ok: %s, %s parameters in %zu layers, ", job->path, facts->model,
            parameters, facts->layers);
    if (facts->sequences != SIZE_MAX)
        fprintf(stdout, "%zu sequences of %zu tokens, ", facts->sequences,
                job->data.sequence_length);
    fprintf(stdout, "%zu steps of %zu tokens\n", facts->steps,
            job->train.tokens_per_step);
}

static int run(int argc, char **argv);

const struct sdp_verb sdp_verb_check = {
    .name = "check",
    .summary = "Reads a job, its model and its data, and reports what is wrong",
    .usage = "JOB [--set KEY=VALUE ...]",
    .run = run,
};

static int run(int argc, char **argv)
{
    struct sdp_option_list set = {NULL, 0};
    const struct sdp_option options[] = {
        {"set", SDP_OPTION_LIST, &set, "KEY=VALUE",
         "change the job, such as train.lr=1e-4", NULL},
        {NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL},
    };
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job_facts facts;
    struct sdp_job *job = NULL;
    const char *path = NULL;
    enum sdp_status status;
    int code = sdp_options_parse(&sdp_verb_check, options, argc, argv, 1, 1, &path, NULL);

    if (code < 0) {
        status = sdp_job_load(path, set.items, set.count, &job, &err);
        if (status == SDP_OK)
            status = sdp_job_check(job, &facts, &err);
        if (status == SDP_OK)
            print_facts(job, &facts);
        else
            sdp_error_print(&err);
        code = sdp_status_exit_code(status);
    }
    sdp_job_destroy(job);
    free(set.items);
    return code;
}
