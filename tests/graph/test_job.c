/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The job reader beyond its messages (test_job_cases.c): defaults, values,
 * overrides, that schema and reader know the same keys and defaults, learning
 * rates, and the checks against a model. */
#define _GNU_SOURCE
#include "graph/base/json.h"
#include "graph/job.h"
#include "tests/sdp_test.h"

#include <unistd.h>

#define CASES SDP_SOURCE_DIR "/tests/graph/jobs/valid/"

static struct sdp_job *load(const char *name, const char *const *overrides, size_t count)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = NULL;
    char *path = sdp_xprintf(CASES "%s/job.json", name);

    REQUIRE_OK(sdp_job_load(path, overrides, count, &job, &err), &err);
    CHECK_STR(job->path, path);
    free(path);
    return job;
}

static void test_defaults(void)
{
    struct sdp_job *job = load("minimal", NULL, 0);

    CHECK(job->model.checkpoint == NULL);
    CHECK_STR(job->model.graph, "llama");
    CHECK_STR(job->model.config_text, "{\"hidden_size\":64}");
    CHECK_EQ(job->model.init_seed, 0);
    CHECK(job->data.train && !job->data.train[0] && job->data.train_count == 0);
    CHECK(job->data.validation && !job->data.validation[0]);
    CHECK_EQ(job->data.format, SDP_DATA_SYNTHETIC);
    CHECK_EQ(job->data.sequence_length, 128);
    CHECK(job->data.shuffle && !job->data.repeat_batch);
    CHECK(job->train.steps == 100 && job->train.epochs == 0.0);
    CHECK_EQ(job->train.tokens_per_step, 65536);
    CHECK(job->train.lr == 1e-5 && job->train.beta1 == 0.9 && job->train.beta2 == 0.95);
    CHECK(job->train.eps == 1e-8 && job->train.weight_decay == 0.1 &&
          !job->train.decay_all);
    CHECK_EQ(job->train.schedule, SDP_SCHEDULE_COSINE);
    CHECK(job->train.warmup_steps == 10 && job->train.min_lr == 1e-5 / 10.0);
    CHECK(job->train.clip_norm == 0.0 && job->train.on_nonfinite == SDP_NONFINITE_STOP);
    CHECK(job->runtime.ranks == SDP_AUTO && job->runtime.gpus == SDP_AUTO);
    CHECK(job->runtime.gpu_memory == SDP_AUTO && job->runtime.host_memory == SDP_AUTO);
    CHECK(job->runtime.window == SDP_AUTO && job->runtime.chunk == SDP_AUTO);
    CHECK(job->runtime.micro_batch == SDP_AUTO && job->runtime.deterministic);
    CHECK_EQ(job->runtime.compute, SDP_COMPUTE_AUTO);
    CHECK_EQ(job->runtime.activations, SDP_ACTIVATIONS_AUTO);
    CHECK_EQ(job->runtime.gradients, SDP_GRADIENTS_AUTO);
    CHECK_STR(job->runtime.policy, "slide");
    CHECK_STR(job->runtime.policy_options, "{}");
    CHECK_STR(job->output.dir, "out");
    CHECK(job->output.checkpoint_every == 0 && job->output.export_hf);
    CHECK_EQ(job->output.export_dtype, SDP_BF16);
    CHECK(job->trace.first == 0 && job->trace.last == 0);
    sdp_job_destroy(job);
    sdp_job_destroy(NULL);
}

static void test_values(void)
{
    struct sdp_job *job = load("everything", NULL, 0);

    CHECK_EQ(job->model.init_seed, 7);
    CHECK_EQ(job->data.train_count, 2);
    CHECK_STR(job->data.train[0], CASES "everything/a.bin");
    CHECK_STR(job->data.train[1], CASES "everything/sub/b.npy");
    CHECK(job->data.train[2] == NULL && job->data.validation_count == 1);
    CHECK(job->data.format == SDP_DATA_TOKENS && job->data.token_dtype == SDP_UINT32);
    CHECK(job->data.seed == 3 && !job->data.shuffle);
    CHECK(job->train.steps == 20 && job->train.tokens_per_step == 64);
    CHECK(job->train.lr == 1e-4 && job->train.beta1 == 0.0 && job->train.beta2 == 0.999);
    CHECK(job->train.eps == 1e-6 && job->train.weight_decay == 0.0 &&
          job->train.decay_all);
    CHECK(job->train.schedule == SDP_SCHEDULE_LINEAR && job->train.warmup_steps == 1000);
    CHECK(job->train.clip_norm == 1.0 && job->train.on_nonfinite == SDP_NONFINITE_WARN);
    CHECK(job->runtime.ranks == 4 && job->runtime.gpus == 2 && job->runtime.window == 3);
    CHECK_EQ(job->runtime.gpu_memory, (size_t)22 << 30);
    CHECK_EQ(job->runtime.host_memory, (size_t)64 << 30);
    CHECK(job->runtime.chunk == 65536 && job->runtime.micro_batch == 2);
    CHECK_EQ(job->runtime.compute, SDP_COMPUTE_BF16);
    CHECK_EQ(job->runtime.activations, SDP_ACTIVATIONS_RECOMPUTE);
    CHECK_EQ(job->runtime.gradients, SDP_GRADIENTS_FP32);
    CHECK_STR(job->runtime.policy_options, "{\"depth\":2}");
    CHECK(!job->runtime.deterministic && !job->output.export_hf);
    CHECK_STR(job->output.dir, "runs/one"); /* relative to the working folder */
    CHECK(job->output.checkpoint_every == 10 && job->output.export_dtype == SDP_FP32);
    CHECK(job->trace.first == 3 && job->trace.last == 5);
    sdp_job_destroy(job);
    job = load("checkpoint", NULL, 0);
    CHECK_STR(job->model.checkpoint, CASES "checkpoint/ckpt");
    CHECK(job->data.format == SDP_DATA_TEXT && job->model.config_text == NULL);
    CHECK(job->train.steps == SDP_AUTO && job->train.epochs == 1.5);
    sdp_job_destroy(job);
    job = load("odd-length", NULL, 0);
    CHECK(job->train.tokens_per_step == 65000 && job->data.repeat_batch);
    sdp_job_destroy(job);
    job = load("graph-file", NULL, 0);
    CHECK_STR(job->model.graph, CASES "graph-file/model.json");
    sdp_job_destroy(job);
}

static void test_overrides(void)
{
    static const char *const overrides[] = {
        "train.lr=1e-4",
        "/train/optimizer/betas=[0.5, 0.6]",
        "train.optimizer.betas.1=0.75",
        "train.schedule.min_lr=0",
        "runtime.gpu_memory=22GiB",
        "output.dir=a=b",
        "train.steps=7",
        "train.steps=9",
        "trace={\"steps\": [1, 9]}",
        "train.schedule.name=constant",
    };
    struct sdp_job *job = load("minimal", overrides, SDP_COUNT_OF(overrides));

    CHECK(job->train.lr == 1e-4 && job->train.beta1 == 0.5 && job->train.beta2 == 0.75);
    CHECK(job->train.min_lr == 0.0 && job->train.steps == 9 && job->trace.last == 9);
    CHECK_EQ(job->train.schedule, SDP_SCHEDULE_CONSTANT);
    CHECK_EQ(job->runtime.gpu_memory, (size_t)22 << 30);
    CHECK_STR(job->output.dir, "a=b");
    CHECK_STR(sdp_job_source(job, "/train/optimizer/lr"), "--set train.lr=1e-4");
    CHECK_STR(sdp_job_source(job, "/train/steps"), "--set train.steps=9");
    CHECK_STR(sdp_job_source(job, "/data/format"), job->path);
    sdp_job_destroy(job);
}

/* -- schema and reader ------------------------------------------------------ */

/* The keys of a schema's object as the reader's message lists them. */
static void schema_keys(const json_t *schema, char *buffer, size_t size)
{
    const char *key;
    json_t *value;
    size_t used = 0;

    buffer[0] = '\0';
    json_object_foreach(json_object_get(schema, "properties"), key, value) used +=
        (size_t)snprintf(buffer + used, size - used, "%s\"%s\"", used ? ", " : "", key);
}

/* The reader, asked for a key unlike any, lists its keys: the schema's, in its order. */
static void check_keys(const json_t *schema, const char *pointer)
{
    char *override = sdp_xprintf("%s/zzzzzzzzzzzzzzzzzzzzzz=1", pointer), listed[1024],
         wanted[1100];
    const char *overrides[] = {override};
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = NULL;

    schema_keys(schema, listed, sizeof listed);
    snprintf(wanted, sizeof wanted, "unknown key; known here: %s", listed);
    CHECK_EQ(sdp_job_load(CASES "minimal/job.json", overrides, 1, &job, &err), SDP_INPUT);
    CHECK_STR(err.text, wanted);
    free(override);
}

/* A default of the schema, written out, is accepted and changes nothing. */
static void check_default(const json_t *value, const char *pointer, struct sdp_job *plain)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    char *override = sdp_xprintf("%s=%s", pointer, text);
    const char *overrides[] = {override};
    struct sdp_job *job;

    if (strcmp(pointer, "/data/tokenizer") != 0) { /* goes with text only */
        job = load("minimal", overrides, 1);
        CHECK(memcmp(&job->train, &plain->train, sizeof job->train) == 0);
        CHECK(job->runtime.ranks == plain->runtime.ranks &&
              job->runtime.gpus == plain->runtime.gpus);
        CHECK(job->runtime.window == plain->runtime.window);
        CHECK(job->runtime.compute == plain->runtime.compute);
        CHECK(job->data.shuffle == plain->data.shuffle &&
              job->data.seed == plain->data.seed);
        CHECK(job->output.export_hf == plain->output.export_hf);
        CHECK(job->output.export_dtype == plain->output.export_dtype);
        CHECK_STR(job->output.dir, plain->output.dir);
        CHECK_STR(job->runtime.policy, plain->runtime.policy);
        CHECK_EQ(job->output.checkpoint_every, plain->output.checkpoint_every);
        sdp_job_destroy(job);
    }
    free(override);
    free(text);
}

static size_t walk_schema(const json_t *schema, const char *pointer,
                          struct sdp_job *plain)
{
    const char *key;
    json_t *value;
    size_t defaults = 0;

    check_keys(schema, pointer);
    json_object_foreach(json_object_get(schema, "properties"), key, value)
    {
        char *below = sdp_xprintf("%s/%s", pointer, key);
        json_t *fallback = json_object_get(value, "default");

        if (fallback) {
            check_default(fallback, below, plain);
            defaults++;
        }
        if (json_object_get(value, "properties"))
            defaults += walk_schema(value, below, plain);
        if (!json_object_get(value, "description") && strcmp(key, "name") != 0)
            SDP_TEST_FAIL("the schema does not describe %s", below);
        free(below);
    }
    return defaults;
}

static void test_schema(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *plain = load("minimal", NULL, 0);
    json_t *schema = NULL;

    REQUIRE_OK(sdp_json_parse(sdp_job_schema(), strlen(sdp_job_schema()), "schema",
                              &schema, NULL, &err),
               &err);
    CHECK(walk_schema(schema, "", plain) >= 30);
    json_decref(schema);
    sdp_job_destroy(plain);
}

/* -- learning rates --------------------------------------------------------- */

static void test_lr(void)
{
    struct sdp_job job = {.train = {.lr = 1.0, .min_lr = 0.2, .warmup_steps = 4}};
    double last = INFINITY;

    for (int schedule = SDP_SCHEDULE_CONSTANT; schedule <= SDP_SCHEDULE_COSINE;
         schedule++) {
        job.train.schedule = (enum sdp_schedule)schedule;
        CHECK_NEAR(sdp_job_lr(&job, 1, 12), 0.25, 0);
        CHECK_NEAR(sdp_job_lr(&job, 3, 12), 0.75, 0);
        CHECK_NEAR(sdp_job_lr(&job, 4, 12), 1.0, 0);
        CHECK_NEAR(sdp_job_lr(&job, 2, 3), 0.5, 0); /* warm-up longer than the run */
    }
    job.train.schedule = SDP_SCHEDULE_CONSTANT;
    CHECK_NEAR(sdp_job_lr(&job, 12, 12), 1.0, 0);
    job.train.schedule = SDP_SCHEDULE_LINEAR;
    CHECK_NEAR(sdp_job_lr(&job, 6, 12), 0.8, 1e-15);
    CHECK_NEAR(sdp_job_lr(&job, 12, 12), 0.2, 1e-15);
    CHECK_NEAR(sdp_job_lr(&job, 99, 12), 0.2, 1e-15);
    job.train.schedule = SDP_SCHEDULE_COSINE;
    CHECK_NEAR(sdp_job_lr(&job, 8, 12), 0.6, 1e-15);
    CHECK_NEAR(sdp_job_lr(&job, 6, 12), 0.2 + 0.4 * (1.0 + sqrt(0.5)), 1e-15);
    CHECK_NEAR(sdp_job_lr(&job, 12, 12), 0.2, 1e-15);
    for (size_t step = 4; step <= 12; step++) {
        CHECK(sdp_job_lr(&job, step, 12) < last);
        last = sdp_job_lr(&job, step, 12);
    }
    job.train.warmup_steps = 0;
    CHECK(sdp_job_lr(&job, 1, 100) < 1.0 && sdp_job_lr(&job, 1, 100) > 0.99);
    CHECK_NEAR(sdp_job_lr(&job, 1, 1), 0.2, 1e-15);
}

/* -- against a model -------------------------------------------------------- */

static void check_against(size_t limit, size_t ranks, const char *set,
                          const char *pointer, const char *text)
{
    const char *overrides[] = {"train.tokens_per_step=1280", set};
    struct sdp_job *job = load("minimal", overrides, set ? 2 : 1);
    struct sdp_error err = SDP_ERROR_INIT;
    enum sdp_status status = sdp_job_check_model(job, limit, ranks, &err);

    CHECK_EQ(status, pointer ? SDP_INPUT : SDP_OK);
    CHECK_STR(err.pointer, pointer ? pointer : "");
    CHECK_STR(err.text, text ? text : "");
    CHECK_STR(err.file, pointer ? sdp_job_source(job, pointer) : "");
    CHECK_EQ(err.line > 0, pointer && strcmp(err.file, job->path) == 0);
    sdp_job_destroy(job);
}

static void test_check_model(void)
{
    check_against(0, 1, NULL, NULL, NULL);
    check_against(128, 5, NULL, NULL, NULL);
    check_against(0, 2, "runtime.micro_batch=5", NULL, NULL);
    check_against(127, 1, NULL, "/data/sequence_length",
                  "is 128; must be at most 127, the longest this model takes");
    check_against(
        0, 4, NULL, "/train/tokens_per_step",
        "is 1280, or 10 sequences, which 4 ranks cannot share evenly; must be a multiple "
        "of 512, such as 1536, or /runtime/ranks 2");
    check_against(0, 5, "runtime.micro_batch=5", "/runtime/micro_batch",
                  "is 5; must divide the 2 sequences that a step gives each of 5 ranks");
}

int main(void)
{
    test_defaults();
    test_values();
    test_overrides();
    test_schema();
    test_lr();
    test_check_model();
    return sdp_test_end();
}
