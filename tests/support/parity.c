/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Golden models through the engine. */
#include "tests/support/parity.h"

#include "graph/job_model.h"
#include "model/checkpoint/checkpoint.h"
#include "tests/sdp_test.h"

#include <unistd.h>

static void die(const char *what, const struct sdp_error *err)
{
    fprintf(stderr, "%s: %s %s: %s\n", what, err->file, err->pointer, err->text);
    exit(1);
}

#define MUST(expression)                  \
    do {                                  \
        if ((expression) != SDP_OK)       \
            die(#expression, &err);       \
    } while (0)

static size_t read_sequence(const void *context, uint64_t index, int32_t *ids, int32_t *targets, int32_t *positions)
{
    const struct parity *p = context;
    size_t per_step = p->rows * (p->one_batch ? 1 : 2), step = (size_t)(index / per_step), i = (size_t)(index % per_step);
    size_t batch = p->one_batch ? 0 : (step * 2 + i / p->rows) % p->batches;
    size_t row = (batch * p->rows + i % p->rows) * p->length, counted = 0;
    for (size_t t = 0; t < p->length; t++) {
        ids[t] = p->tokens[row + t];
        targets[t] = p->targets[row + t];
        positions[t] = (int32_t)t;
        counted += targets[t] >= 0;
    }
    return counted;
}

static const struct sdp_safetensor *find(const struct parity *p, const char *name)
{
    for (size_t i = 0; i < p->golden->count; i++)
        if (!strcmp(p->golden->tensors[i].name, name))
            return &p->golden->tensors[i];
    fprintf(stderr, "%s/golden.safetensors lacks %s\n", p->folder, name);
    exit(1);
}

static void load_batches(struct parity *p)
{
    const struct sdp_safetensor *tokens = find(p, "batch.tokens"), *targets = find(p, "batch.targets");
    p->batches = tokens->shape[0];
    p->rows = tokens->shape[1];
    p->length = tokens->shape[2];
    p->aligned = sdp_xcalloc(2 * tokens->count, sizeof *p->aligned);
    memcpy(p->aligned, tokens->data, tokens->bytes);
    memcpy(p->aligned + tokens->count, targets->data, targets->bytes);
    p->tokens = p->aligned;
    p->targets = p->aligned + tokens->count;
}

/* A job file in a temporary folder, since jobs are files. */
static void load_job(struct parity *p, const char *const *settings)
{
    char path[] = "/tmp/sdp-parity-XXXXXX";
    struct sdp_error err = SDP_ERROR_INIT;
    size_t per_step = p->rows * (p->one_batch ? 1 : 2) * p->length, count = 0;
    int fd = mkstemp(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    REQUIRE(file != NULL);
    fprintf(file,
            "{\"model\": {\"checkpoint\": \"%s/model\"}, \"data\": {\"format\": \"synthetic\", \"sequence_length\": %zu},"
            " \"train\": {\"steps\": 30, \"tokens_per_step\": %zu, \"clip_norm\": %s, \"optimizer\": {\"name\": \"adamw\", \"lr\": 1e-3,"
            " \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}, \"schedule\": {\"name\": \"constant\", \"warmup_steps\": 0}},"
            " \"runtime\": {\"micro_batch\": %zu}, \"output\": {\"dir\": \"/tmp/sdp-parity-unused\"}}\n",
            p->folder, p->length, per_step, p->one_batch ? "1e30" : "null", p->rows);
    fclose(file);
    while (settings && settings[count])
        count++;
    MUST(sdp_job_load(path, settings, count, &p->job, &err));
    unlink(path);
}

void parity_open(struct parity *p, const char *name, bool one_batch, const char *const *settings)
{
    struct sdp_error err = SDP_ERROR_INIT;
    memset(p, 0, sizeof *p);
    const char *source = getenv("SDP_SOURCE_DIR");
    p->folder = sdp_xprintf("%s/tests/golden/%s", source ? source : ".", name);
    p->one_batch = one_batch;
    char *path = sdp_path_join(p->folder, "golden.safetensors"), *model = sdp_path_join(p->folder, "model");
    MUST(sdp_safetensors_open(path, &p->golden, &err));
    load_batches(p);
    load_job(p, settings);
    MUST(sdp_job_build_graph(p->job, &p->graph, NULL, &err));
    MUST(sdp_plan_create(p->job, p->graph, SIZE_MAX, &p->plan, &err));
    struct sdp_host_state_options options = {.chunk_bytes = p->plan->chunk_bytes, .threads = 1, .pin = p->plan->cuda};
    MUST(sdp_host_state_create(p->graph, &options, &p->state, &err));
    MUST(sdp_checkpoint_load_hf(model, p->state, 1, &err));
    struct sdp_engine_options engine = {.policy = p->job->runtime.policy};
    MUST(sdp_engine_create(p->plan, p->state, &engine, &p->engine, &err));
    p->sequences = (struct sdp_sequences){read_sequence, p};
    free(path);
    free(model);
}

void parity_close(struct parity *p)
{
    sdp_engine_destroy(p->engine);
    sdp_host_state_destroy(p->state);
    sdp_plan_destroy(p->plan);
    sdp_model_graph_destroy(p->graph);
    sdp_job_destroy(p->job);
    sdp_safetensors_close(p->golden);
    free(p->aligned);
    free(p->folder);
}

double *parity_golden(const struct parity *p, const char *prefix, const char *name, size_t *count)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct sdp_safetensor *tensor = find(p, full);
    double *values = sdp_xcalloc(tensor->count, sizeof *values);
    for (size_t i = 0; i < tensor->count; i++) {
        float x;
        if (tensor->dtype == SDP_ST_F64) {
            memcpy(&values[i], tensor->data + 8 * i, 8);
            continue;
        }
        memcpy(&x, tensor->data + 4 * i, 4);
        values[i] = x;
    }
    *count = tensor->count;
    return values;
}

double parity_error(const float *a, const double *b, const float *base, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - b[i], reference = b[i] - (base ? (double)base[i] : 0.0);
        difference += d * d;
        norm += reference * reference;
    }
    return sqrt(difference / norm);
}

float *parity_weights(const struct parity *p, size_t storage, size_t param)
{
    size_t count = p->graph->storages[storage].params[param].count;
    float *values = sdp_xcalloc(count, sizeof *values);
    sdp_host_state_get(p->state, storage, param, 0, count, values);
    return values;
}
