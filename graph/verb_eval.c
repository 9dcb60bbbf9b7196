/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slidedp eval JOB */
#include "graph/evaluate.h"
#include "graph/options.h"

#include <stdlib.h>

extern const struct sdp_verb sdp_verb_eval;

static int run(int argc, char **argv)
{
    struct sdp_evaluate_options options = {0};
    struct sdp_option_list set = {0};
    const char *path = NULL;
    const struct sdp_option table[] = {
        {"weights", SDP_OPTION_TEXT, &options.weights, "FOLDER", "Hugging Face folder with the weights, instead of the job's", NULL},
        {"train", SDP_OPTION_FLAG, &options.train, NULL, "evaluate on data.train instead of data.validation", NULL},
        {"logits", SDP_OPTION_TEXT, &options.logits, "FILE.npy",
         "write the logits, fp32 [sequences, sequence length, vocabulary]; CPU ranks", NULL},
        {"set", SDP_OPTION_LIST, &set, "KEY=VALUE", "change a value of the job, e.g. data.sequence_length=512", NULL},
        {NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL}};
    int rc = sdp_options_parse(&sdp_verb_eval, table, argc, argv, 1, 1, &path, NULL);
    if (rc >= 0)
        return rc;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = NULL;
    enum sdp_status status = sdp_job_load(path, set.items, set.count, &job, &err);
    if (!status)
        status = sdp_evaluate_job(job, &options, &err);
    if (status)
        sdp_error_print(&err);
    sdp_job_destroy(job);
    free(set.items);
    return sdp_status_exit_code(status);
}

const struct sdp_verb sdp_verb_eval = {"eval", "loss and perplexity of a model on a job's data", "JOB [options]", run};
