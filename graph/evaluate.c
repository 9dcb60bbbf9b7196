/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See evaluate.h. The plan is that of the job's training run, so that an evaluation fits where the run does. */
#include "graph/evaluate.h"

#include "graph/base/log.h"
#include "graph/engine.h"
#include "graph/job_model.h"
#include "model/checkpoint/checkpoint.h"
#include "model/data/dataset.h"
#include "model/data/npy.h"

#include <errno.h>
#include <stdlib.h>

struct session {
    const struct sdp_job *job;
    const struct sdp_evaluate_options *options;
    struct sdp_model_graph *graph;
    struct sdp_dataset *data;
    struct sdp_plan *plan;
    struct sdp_host_state *state;
    struct sdp_engine *engine;
    FILE *logits;
    char *partial; /* the logits' file until it is whole */
};

static size_t read_sequence(const void *data, uint64_t index, int32_t *ids, int32_t *targets, int32_t *positions)
{
    return sdp_dataset_sequence(data, index, ids, targets, positions, NULL);
}

/* -- logits ---------------------------------------------------------------------------------- */

static enum sdp_status write_failed(const struct session *s, struct sdp_error *err)
{
    return sdp_fail_at(err, SDP_IO, s->options->logits, NULL, 0, 0, "writing failed: %s", strerror(errno));
}

static enum sdp_status open_logits(struct session *s, size_t sequences, struct sdp_error *err)
{
    const size_t shape[] = {sequences, s->plan->sequence_length, s->graph->vocabulary};
    char header[SDP_NPY_HEADER];
    if (s->plan->cuda)
        return sdp_fail(err, SDP_INPUT, "--logits needs CPU ranks: add --set runtime.gpus=0");
    s->partial = sdp_xprintf("%s.partial", s->options->logits);
    s->logits = fopen(s->partial, "wb");
    if (!s->logits)
        return sdp_fail_at(err, SDP_IO, s->partial, NULL, 0, 0, "cannot be opened for writing: %s", strerror(errno));
    sdp_npy_fp32_header(shape, SDP_COUNT_OF(shape), header);
    return fwrite(header, sizeof header, 1, s->logits) == 1 ? SDP_OK : write_failed(s, err);
}

/* Sequences come in order. */
static enum sdp_status take_logits(void *context, size_t sequence, const float *logits, struct sdp_error *err)
{
    struct session *s = context;
    (void)sequence;
    if (fwrite(logits, s->graph->vocabulary * sizeof *logits, s->plan->sequence_length, s->logits) != s->plan->sequence_length)
        return write_failed(s, err);
    return SDP_OK;
}

static enum sdp_status close_logits(struct session *s, enum sdp_status rc, struct sdp_error *err)
{
    if (!s->partial)
        return rc;
    if (s->logits && fclose(s->logits) != 0 && !rc)
        rc = write_failed(s, err);
    if (!rc && rename(s->partial, s->options->logits) != 0)
        rc = write_failed(s, err);
    if (rc)
        remove(s->partial);
    free(s->partial);
    return rc;
}

/* -- session ----------------------------------------------------------------------------------- */

static enum sdp_status load_weights(struct session *s, struct sdp_error *err)
{
    const char *folder = s->options->weights ? s->options->weights : s->job->model.checkpoint;
    if (folder)
        return sdp_checkpoint_load_hf(folder, s->state, 0, err);
    sdp_warn("the job names no checkpoint: the weights are random (--weights FOLDER names some)");
    sdp_host_state_init_random(s->state, s->job->model.init_seed, 0);
    return SDP_OK;
}

static enum sdp_status open_data(struct session *s, struct sdp_error *err)
{
    if (!s->options->train && s->job->data.validation_count == 0)
        return sdp_fail_at(err, SDP_INPUT, s->job->path, "/data/validation", 0, 0,
                           "is empty; name files there, or evaluate on the training data with --train");
    return sdp_dataset_open(s->job, !s->options->train, s->graph->vocabulary, &s->data, err);
}

static enum sdp_status start(struct session *s, struct sdp_error *err)
{
    enum sdp_status rc = sdp_job_build_graph(s->job, &s->graph, NULL, err);
    if (!rc)
        rc = open_data(s, err);
    if (!rc)
        rc = sdp_plan_create(s->job, s->graph, sdp_dataset_sequences(s->data), &s->plan, err);
    if (!rc)
        rc = sdp_plan_check_fits(s->plan, err);
    if (rc)
        return rc;
    struct sdp_host_state_options memory = {.chunk_bytes = s->plan->chunk_bytes, .pin = s->plan->cuda};
    struct sdp_engine_options engine = {.policy = s->job->runtime.policy};
    rc = sdp_host_state_create(s->graph, &memory, &s->state, err);
    if (!rc)
        rc = load_weights(s, err);
    return rc ? rc : sdp_engine_create(s->plan, s->state, &engine, &s->engine, err);
}

static enum sdp_status evaluate(struct session *s, struct sdp_error *err)
{
    const struct sdp_sequences sequences = {read_sequence, s->data};
    const struct sdp_logits_sink sink = {take_logits, s};
    size_t count = sdp_dataset_sequences(s->data);
    struct sdp_evaluation result;
    double begin = sdp_now();
    if (count == SIZE_MAX) /* synthetic data have no end */
        count = s->plan->sequences_per_step;
    enum sdp_status rc = s->options->logits ? open_logits(s, count, err) : SDP_OK;
    if (!rc)
        rc = sdp_engine_evaluate(s->engine, &sequences, count, s->options->logits ? &sink : NULL, &result, err);
    if (!rc)
        printf("loss %.6f  perplexity %.4f  tokens %zu  sequences %zu  seconds %.1f\n", result.loss, exp(result.loss),
               result.counted, count, sdp_now() - begin);
    return rc;
}

enum sdp_status sdp_evaluate_job(const struct sdp_job *job, const struct sdp_evaluate_options *options, struct sdp_error *err)
{
    struct session s = {.job = job, .options = options};
    enum sdp_status rc = start(&s, err);
    if (!rc)
        rc = evaluate(&s, err);
    rc = close_logits(&s, rc, err);
    sdp_engine_destroy(s.engine);
    sdp_host_state_destroy(s.state);
    sdp_plan_destroy(s.plan);
    sdp_dataset_close(s.data);
    sdp_model_graph_destroy(s.graph);
    return rc;
}
