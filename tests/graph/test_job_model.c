/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* From a job to its model and data: the three ways to name a model, the checks
 * that need both, and messages that point into the file the user wrote. */
#define _GNU_SOURCE
#include "graph/base/json.h"
#include "graph/job_model.h"
#include "tests/sdp_test.h"

#include <unistd.h>

#define CONFIG                                                                           \
    "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 64,"              \
    " \"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4," \
    " \"num_key_value_heads\": 2, \"hidden_act\": \"silu\", "                            \
    "\"max_position_embeddings\": 128,"                                                  \
    " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}"

/* Two tables of 256 x 64; two blocks of q, o 64 x 64, k, v 32 x 64, three of 64 x 128,
 * two norms; one last norm. */
#define PARAMETERS                                                                       \
    (2 * 256 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64) + 64)

static char *folder;

static void write_text(const char *name, const char *text)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *path = sdp_path_join(folder, name);

    REQUIRE_OK(sdp_write_file(path, text, strlen(text), &err), &err);
    free(path);
}

static struct sdp_job *load(const char *model, const char *data, const char *train)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = NULL;
    char *text =
        sdp_xprintf("{\"model\": %s, \"data\": %s, \"train\": %s}", model, data, train);
    char *path = sdp_path_join(folder, "job.json");

    write_text("job.json", text);
    REQUIRE_OK(sdp_job_load(path, NULL, 0, &job, &err), &err);
    free(path);
    free(text);
    return job;
}

#define FAMILY    "{\"graph\": \"llama\", \"config\": " CONFIG "}"
#define SYNTHETIC "{\"format\": \"synthetic\", \"sequence_length\": 64}"
#define TEXT      "{\"format\": \"text\", \"sequence_length\": 8, \"train\": [\"a.txt\"]}"

/* The check fails at `file` (relative to the folder) and `pointer`. */
static void check_refused(const char *model, const char *data, const char *train,
                          const char *file, const char *pointer, const char *part)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = load(model, data, train);
    char *path = sdp_path_join(folder, file);

    CHECK_EQ(sdp_check_model(job, &err), SDP_INPUT);
    CHECK_STR(err.file, path);
    if (pointer)
        CHECK_STR(err.pointer, pointer);
    CHECK_CONTAINS(err.text, part);
    free(path);
    sdp_job_destroy(job);
}

static void test_family(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = load(FAMILY, SYNTHETIC, "{\"steps\": 9}");
    struct sdp_model_graph *graph = NULL;
    struct sdp_job_facts facts;
    json_t *config = NULL;

    REQUIRE_OK(sdp_job_build_graph(job, &graph, &config, &err), &err);
    CHECK_EQ(graph->parameters, PARAMETERS);
    CHECK_EQ(json_integer_value(json_object_get(config, "hidden_size")), 64);
    json_decref(config);
    sdp_model_graph_destroy(graph);
    REQUIRE_OK(sdp_job_build_graph(job, &graph, NULL, &err), &err);
    sdp_model_graph_destroy(graph);
    REQUIRE_OK(sdp_job_check(job, &facts, &err), &err);
    CHECK(facts.parameters == PARAMETERS && facts.steps == 9 &&
          facts.sequences == SIZE_MAX);
    sdp_job_destroy(job);
    check_refused("{\"graph\": \"lama\", \"config\": {}}", SYNTHETIC, "{}", "job.json",
                  "/model/graph", "did you mean \"llama\"?");
    check_refused(
        "{\"graph\": \"llama\", \"config\": {\"model_type\": \"llama\", \"vocab_size\": "
        "\"many\"}}",
        SYNTHETIC, "{}", "job.json", "/model/config/vocab_size", "");
    check_refused(FAMILY, "{\"format\": \"synthetic\", \"sequence_length\": 256}", "{}",
                  "job.json", "/data/sequence_length", "must be at most 128");
}

static void test_checkpoint(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = NULL;
    struct sdp_job *job;
    json_t *config = NULL;

    write_text("ckpt/config.json", CONFIG);
    job = load("{\"checkpoint\": \"ckpt\"}", SYNTHETIC, "{}");
    REQUIRE_OK(sdp_job_build_graph(job, &graph, &config, &err), &err);
    CHECK_EQ(graph->parameters, PARAMETERS);
    CHECK_EQ(json_integer_value(json_object_get(config, "vocab_size")), 256);
    json_decref(config);
    sdp_model_graph_destroy(graph);
    sdp_job_destroy(job);
    check_refused("{\"checkpoint\": \"ckpt\"}", SYNTHETIC, "{}", "job.json",
                  "/model/checkpoint", "holds no weights; must have model.safetensors");
    write_text("ckpt/model.safetensors", "x");
    job = load("{\"checkpoint\": \"ckpt\"}", SYNTHETIC, "{}");
    REQUIRE_OK(sdp_check_model(job, &err), &err);
    sdp_job_destroy(job);
    write_text("ckpt/config.json", "{\"model_type\": \"llama\",}");
    check_refused("{\"checkpoint\": \"ckpt\"}", SYNTHETIC, "{}", "ckpt/config.json", "",
                  "is not valid JSON");
    write_text("ckpt/config.json", "{\"model_type\": \"lstm\"}");
    check_refused("{\"checkpoint\": \"ckpt\"}", SYNTHETIC, "{}", "ckpt/config.json", NULL,
                  "lstm");
}

static void test_data(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job;
    struct sdp_job_facts facts;
    size_t steps = 0;

    write_text(
        "a.txt",
        "0123456789012345678901234567890123456789\n"); /* 41 bytes: 5 x 8 targets */
    job = load(FAMILY, TEXT, "{\"epochs\": 3, \"tokens_per_step\": 16}");
    REQUIRE_OK(sdp_job_check(job, &facts, &err), &err);
    CHECK_EQ(facts.sequences, 5);
    CHECK_EQ(facts.steps, 7); /* 15 sequences, two a step */
    REQUIRE_OK(sdp_job_steps(job, 4, &steps, &err), &err);
    CHECK_EQ(steps, 6);
    sdp_job_destroy(job);
    check_refused(FAMILY, TEXT, "{\"epochs\": 1, \"tokens_per_step\": 48}", "job.json",
                  "/train/epochs",
                  "less than one step: the data has 5 sequences and a step takes 6");
    write_text("b.bin", "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a"); /* ids up to 2569 */
    check_refused(
        FAMILY,
        "{\"format\": \"tokens\", \"sequence_length\": 2, \"train\": [\"b.bin\"],"
        " \"token_dtype\": \"uint16\"}",
        "{}", "b.bin", NULL, "");
}

int main(void)
{
    static const char *const files[] = {"job.json", "a.txt", "b.bin", "ckpt/config.json",
                                        "ckpt/model.safetensors"};
    const char *root = getenv("TMPDIR");
    struct sdp_error err = SDP_ERROR_INIT;
    char *checkpoint;

    folder = sdp_path_join(root && *root ? root : "/tmp", "sdp-test-job-model-XXXXXX");
    REQUIRE(mkdtemp(folder) != NULL);
    checkpoint = sdp_path_join(folder, "ckpt");
    REQUIRE_OK(sdp_make_dirs(checkpoint, &err), &err);
    test_family();
    test_checkpoint();
    test_data();
    for (size_t i = 0; i < SDP_COUNT_OF(files); i++) {
        char *path = sdp_path_join(folder, files[i]);
        CHECK(unlink(path) == 0);
        free(path);
    }
    CHECK(rmdir(checkpoint) == 0 && rmdir(folder) == 0);
    free(checkpoint);
    free(folder);
    return sdp_test_end();
}
