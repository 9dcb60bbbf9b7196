/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slidedp run JOB */
#include "graph/base/log.h"
#include "graph/options.h"
#include "graph/run.h"

#include <stdlib.h>

extern const struct sdp_verb sdp_verb_run;

static int run(int argc, char **argv)
{
    struct sdp_run_options options = {0};
    struct sdp_option_list set = {0};
    struct sdp_option_range trace = {0};
    const char *path = NULL;
    bool verbose = false;
    const struct sdp_option table[] = {
        {"resume", SDP_OPTION_FLAG, &options.resume, NULL, "go on from the newest checkpoint in output.dir", NULL},
        {"overwrite", SDP_OPTION_FLAG, &options.overwrite, NULL, "start anew in an output.dir that is not empty", NULL},
        {"policy", SDP_OPTION_TEXT, &options.policy, "NAME", "scheduling policy instead of runtime.policy", NULL},
        {"trace", SDP_OPTION_RANGE, &trace, "FIRST:LAST", "record these steps with FxT into output.dir/trace", NULL},
        {"set", SDP_OPTION_LIST, &set, "KEY=VALUE", "change a value of the job, e.g. train.steps=20", NULL},
        {"resources", SDP_OPTION_FLAG, &options.resources, NULL, "print how busy GPUs, links and cores were in a step", NULL},
        {"verbose", SDP_OPTION_FLAG, &verbose, NULL, "also the times of operations alone, and what a GPU waited for", NULL},
        {"quiet", SDP_OPTION_FLAG, &options.quiet, NULL, "no progress line", NULL},
        {NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL}};
    int rc = sdp_options_parse(&sdp_verb_run, table, argc, argv, 1, 1, &path, NULL);
    if (rc >= 0)
        return rc;
    if (verbose)
        sdp_log_set_level(SDP_LOG_DEBUG);
    options.trace_first = trace.first;
    options.trace_last = trace.last;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = NULL;
    enum sdp_status status = sdp_job_load(path, set.items, set.count, &job, &err);
    if (!status)
        status = sdp_run_job(job, &options, &err);
    if (status)
        sdp_error_print(&err);
    sdp_job_destroy(job);
    free(set.items);
    return sdp_status_exit_code(status);
}

const struct sdp_verb sdp_verb_run = {"run", "fine-tune as a job file says", "JOB [options]", run};
