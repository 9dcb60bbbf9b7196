/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The model and the data that a job names, and the checks that need both. */
#ifndef SDP_GRAPH_JOB_MODEL_H
#define SDP_GRAPH_JOB_MODEL_H

#include "graph/job.h"
#include "graph/model_graph.h"

/** Builds the job's model graph: from the checkpoint's config.json, from the
 * family and config of the job, or from the graph file. [new] *out:
 * sdp_model_graph_destroy(). [new] *hf_config: the Hugging Face config (json_decref()),
 * or NULL for a graph file; hf_config itself may be NULL. On failure both are untouched.
 */
SDP_CHECK_RESULT enum sdp_status sdp_job_build_graph(const struct sdp_job *job,
                                                     struct sdp_model_graph **out,
                                                     json_t **hf_config,
                                                     struct sdp_error *err);

/** Optimiser steps of the run: the job's steps, or its epochs' full steps when
 * an epoch has `sequences` sequences. An error when that is none. */
SDP_CHECK_RESULT enum sdp_status sdp_job_steps(const struct sdp_job *job,
                                               size_t sequences, size_t *steps,
                                               struct sdp_error *err);

/* What a check of model and data finds. */
struct sdp_job_facts {
    char model[64]; /* name of the graph */
    size_t parameters;
    size_t layers;
    size_t sequences; /* of an epoch; SIZE_MAX: without end */
    size_t steps;
};

/** Builds the model, opens the data and checks them against the job: sequence length,
 * ranks, token ids within the vocabulary, at least one step. `facts` may be NULL. */
SDP_CHECK_RESULT enum sdp_status sdp_job_check(const struct sdp_job *job,
                                               struct sdp_job_facts *facts,
                                               struct sdp_error *err);
/** The same without the facts. */
SDP_CHECK_RESULT enum sdp_status sdp_check_model(const struct sdp_job *job,
                                                 struct sdp_error *err);

#endif
