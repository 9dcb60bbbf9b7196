/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* From a job to its model graph and data sets: what `slidedp check` looks at
 * and `slidedp run` starts with. */
#define _GNU_SOURCE
#include "graph/job_model.h"

#include "graph/base/json.h"
#include "model/data/dataset.h"
#include "model/families/family.h"

#include <stdio.h>
#include <stdlib.h>

/* -- the model -------------------------------------------------------------- */

/* A message about the job's "config" points below /model/config of the job. */
static void point_into_job(struct sdp_error *err, const struct sdp_job *job)
{
    char pointer[sizeof err->pointer];
    int length;

    if (!err || strcmp(err->file, job->path) != 0)
        return;
    length = snprintf(pointer, sizeof pointer, "/model/config%s", err->pointer);
    if (length > 0 && (size_t)length < sizeof pointer)
        memcpy(err->pointer, pointer, (size_t)length + 1);
    err->file[0] = '\0';
    sdp_error_set_file(err, sdp_job_source(job, err->pointer));
}

static enum sdp_status check_family(const struct sdp_job *job, struct sdp_error *err)
{
    char list[512] = "";
    const char **names, *nearest;
    size_t count = 0, used = 0;
    bool known = false;

    while (sdp_families[count])
        count++;
    names = sdp_xcalloc(count + 1, sizeof *names);
    for (size_t i = 0; i < count; i++) {
        names[i] = sdp_families[i]->name;
        known = known || strcmp(names[i], job->model.graph) == 0;
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"",
                                     i ? ", " : "", names[i]);
    }
    nearest = sdp_nearest(job->model.graph, names);
    free(names);
    if (known)
        return SDP_OK;
    return sdp_fail_at(err, SDP_INPUT, sdp_job_source(job, "/model/graph"),
                       "/model/graph", 0, 0,
                       "is \"%s\", no known model family; must be one of %s%s%s%s",
                       job->model.graph, list, nearest ? "; did you mean \"" : "",
                       nearest ? nearest : "", nearest ? "\"?" : "");
}

static enum sdp_status build_from_config(const struct sdp_job *job,
                                         struct sdp_model_graph **out, json_t **config,
                                         struct sdp_error *err)
{
    enum sdp_status status = check_family(job, err);
    struct sdp_json root;

    if (status == SDP_OK)
        status = sdp_json_parse(job->model.config_text, strlen(job->model.config_text),
                                job->path, config, &root, err);
    if (status != SDP_OK)
        return status;
    status = sdp_family_build(*config, job->path, job->model.graph, out, err);
    if (status != SDP_OK)
        point_into_job(err, job);
    else if (!json_object_get(*config, "model_type")) /* transformers wants it in what is exported; families are named so */
        json_object_set_new(*config, "model_type", json_string(job->model.graph));
    return status;
}

static enum sdp_status build_from_checkpoint(const struct sdp_job *job,
                                             struct sdp_model_graph **out,
                                             json_t **config, struct sdp_error *err)
{
    char *path = sdp_path_join(job->model.checkpoint, "config.json");
    struct sdp_json root;
    enum sdp_status status = sdp_json_load(path, config, &root, err);

    if (status == SDP_OK)
        status = sdp_family_build(*config, path, NULL, out, err);
    if (status != SDP_OK)
        sdp_error_set_file(err, path);
    free(path);
    return status;
}

enum sdp_status sdp_job_build_graph(const struct sdp_job *job,
                                    struct sdp_model_graph **out, json_t **hf_config,
                                    struct sdp_error *err)
{
    struct sdp_model_graph *graph = NULL;
    json_t *config = NULL;
    enum sdp_status status;

    if (job->model.checkpoint)
        status = build_from_checkpoint(job, &graph, &config, err);
    else if (job->model.config_text)
        status = build_from_config(job, &graph, &config, err);
    else
        status = sdp_model_graph_load(job->model.graph, &graph, err);
    if (status != SDP_OK || !hf_config)
        json_decref(config);
    else
        *hf_config = config;
    if (status == SDP_OK)
        *out = graph;
    else
        sdp_json_locate_error(err);
    return status;
}

/* -- checks ----------------------------------------------------------------- */

/* A folder that was only half downloaded, or has another format's weights. */
static enum sdp_status check_weights(const struct sdp_job *job, struct sdp_error *err)
{
    static const char *const names[] = {"model.safetensors",
                                        "model.safetensors.index.json"};
    bool found = false;

    for (size_t i = 0; i < SDP_COUNT_OF(names); i++) {
        char *path = sdp_path_join(job->model.checkpoint, names[i]);
        found = found || sdp_path_exists(path);
        free(path);
    }
    if (found)
        return SDP_OK;
    return sdp_fail_at(
        err, SDP_INPUT, sdp_job_source(job, "/model/checkpoint"), "/model/checkpoint", 0,
        0,
        "the folder \"%s\" holds no weights; must have model.safetensors, or "
        "model.safetensors.index.json and its shards",
        job->model.checkpoint);
}

enum sdp_status sdp_job_steps(const struct sdp_job *job, size_t sequences, size_t *steps,
                              struct sdp_error *err)
{
    size_t a_step = job->train.tokens_per_step / job->data.sequence_length;
    double count = job->train.epochs * (double)sequences / (double)a_step;

    if (job->train.steps != SDP_AUTO) {
        *steps = job->train.steps;
        return SDP_OK;
    }
    if (count < 1.0)
        return sdp_fail_at(
            err, SDP_INPUT, sdp_job_source(job, "/train/epochs"), "/train/epochs", 0, 0,
            "is %.9g, which is less than one step: the data has %zu sequences and a "
            "step takes %zu; must be larger, or /train/tokens_per_step smaller",
            job->train.epochs, sequences, a_step);
    *steps = count < 0x1p62 ? (size_t)count : (size_t)1 << 62;
    return SDP_OK;
}

/* Opens and closes one data set: opening checks every id. */
static enum sdp_status check_data(const struct sdp_job *job, bool validation,
                                  size_t vocabulary, size_t *sequences,
                                  struct sdp_error *err)
{
    struct sdp_dataset *data = NULL;
    enum sdp_status status = sdp_dataset_open(job, validation, vocabulary, &data, err);

    if (status != SDP_OK)
        return status;
    *sequences = sdp_dataset_sequences(data);
    sdp_dataset_close(data);
    return SDP_OK;
}

enum sdp_status sdp_job_check(const struct sdp_job *job, struct sdp_job_facts *facts,
                              struct sdp_error *err)
{
    struct sdp_job_facts own;
    struct sdp_model_graph *graph = NULL;
    size_t ranks = job->runtime.ranks == SDP_AUTO ? 1 : job->runtime.ranks, ignored;
    enum sdp_status status = sdp_job_build_graph(job, &graph, NULL, err);

    if (!facts)
        facts = &own;
    if (status != SDP_OK)
        return status;
    if (job->model.checkpoint)
        status = check_weights(job, err);
    if (status == SDP_OK)
        status = sdp_job_check_model(job, graph->max_sequence_length, ranks, err);
    if (status == SDP_OK)
        status = check_data(job, false, graph->vocabulary, &facts->sequences, err);
    if (status == SDP_OK && job->data.validation_count > 0)
        status = check_data(job, true, graph->vocabulary, &ignored, err);
    if (status == SDP_OK)
        status = sdp_job_steps(job, facts->sequences, &facts->steps, err);
    snprintf(facts->model, sizeof facts->model, "%s", graph->name);
    facts->parameters = graph->parameters;
    facts->layers = graph->layer_count;
    sdp_model_graph_destroy(graph);
    return status;
}

enum sdp_status sdp_check_model(const struct sdp_job *job, struct sdp_error *err)
{
    return sdp_job_check(job, NULL, err);
}
