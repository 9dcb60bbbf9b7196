/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `slidedp eval`: loss, perplexity and logits of a model on a job's data, without training. */
#ifndef SDP_GRAPH_EVALUATE_H
#define SDP_GRAPH_EVALUATE_H

#include "graph/job.h"

struct sdp_evaluate_options {
    const char *weights; /* Hugging Face folder whose weights are taken instead of the job's; NULL */
    const char *logits;  /* .npy file to write, fp32 [sequences, sequence length, vocabulary]; NULL */
    bool train;          /* data.train instead of data.validation */
};

/** Prints what it found on stdout. The logits file is whole or not there. */
SDP_CHECK_RESULT enum sdp_status sdp_evaluate_job(const struct sdp_job *job, const struct sdp_evaluate_options *options,
                                                  struct sdp_error *err);

#endif
