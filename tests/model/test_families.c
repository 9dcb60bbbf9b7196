/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A folder of tests/model/families is a config.json. The ones named refused-* must
 * be refused with exactly the line in their file "error"; of the others, what
 * "expect.json" says must hold. The golden models' configs, in the form of
 * transformers 4 and 5, must give exactly the parameters that transformers made.
 *
 * `test_model_families --accept` writes the "error" files anew: read the diff. */
#include "graph/base/json.h"
#include "model/families/family.h"
#include "tests/sdp_test.h"
#include "tests/support/case_folders.h"

#include <unistd.h>

static bool accept_messages;

static json_t *load(const char *path)
{
    struct sdp_error err = SDP_ERROR_INIT;
    json_t *document = NULL;

    REQUIRE_OK(sdp_json_load(path, &document, NULL, &err), &err);
    return document;
}

static struct sdp_model_graph *build(const char *path)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = NULL;
    json_t *config = load(path);

    REQUIRE_OK(sdp_family_build(config, path, NULL, &graph, &err), &err);
    json_decref(config);
    return graph;
}

/* -- what a config becomes ------------------------------------------------------- */

static const struct sdp_op_node *find_node(const struct sdp_model_graph *graph,
                                           const char *op)
{
    for (size_t o = 0; o < graph->layers[1].op_count; o++)
        if (strcmp(graph->layers[1].ops[o].node.op->name, op) == 0)
            return &graph->layers[1].ops[o].node;
    return NULL;
}

static void expect_attrs(const char *name, const struct sdp_model_graph *graph,
                         const char *op, json_t *expected)
{
    const struct sdp_op_node *node = find_node(graph, op);
    const char *key;
    json_t *value;

    REQUIRE(node != NULL);
    json_object_foreach(expected, key, value)
    {
        double wanted = json_number_value(value), is = sdp_op_attr(node, key);

        sdp_test_checks++;
        if (fabs(is - wanted) > 1e-9 * fabs(wanted))
            SDP_TEST_FAIL("%s: %s of %s is %.17g, wanted %.17g", name, key, op, is,
                          wanted);
    }
}

static void expect_size(const char *name, json_t *expected, const char *key, size_t is)
{
    json_t *value = json_object_get(expected, key);

    sdp_test_checks++;
    if (value && (size_t)json_integer_value(value) != is)
        SDP_TEST_FAIL("%s: %s is %zu, wanted %lld", name, key, is,
                      (long long)json_integer_value(value));
}

static void check_built(const char *name)
{
    struct sdp_model_graph *graph = build("config.json");
    json_t *expected = load("expect.json"), *tied = json_object_get(expected, "tied");
    const struct sdp_layer *head = &graph->layers[graph->layer_count - 1];

    if (json_object_get(expected, "name"))
        CHECK_STR(graph->name, json_string_value(json_object_get(expected, "name")));
    expect_size(name, expected, "parameters", graph->parameters);
    expect_size(name, expected, "layers", graph->layer_count);
    expect_size(name, expected, "max_sequence_length", graph->max_sequence_length);
    expect_attrs(name, graph, "rope", json_object_get(expected, "rope"));
    expect_attrs(name, graph, "attention", json_object_get(expected, "attention"));
    if (tied) {
        CHECK_EQ(head->storage == graph->layers[0].storage, json_is_true(tied));
        CHECK_EQ(graph->parameters - graph->parameters_without_embedding,
                 json_is_true(tied) ? 0 : graph->vocabulary * graph->hidden);
    }
    sdp_model_graph_destroy(graph);
    json_decref(expected);
}

/* -- what is refused --------------------------------------------------------------- */

static void check_refused(const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *untouched = (struct sdp_model_graph *)&err,
                           *graph = untouched;
    json_t *config = load("config.json");
    enum sdp_status status = sdp_family_build(config, "config.json", NULL, &graph, &err);

    sdp_test_checks++;
    if (status != SDP_INPUT || err.status != SDP_INPUT || graph != untouched)
        SDP_TEST_FAIL("%s: status is %s", name, sdp_status_name(status));
    else
        CHECK(sdp_test_message_is_expected(name, &err, accept_messages));
    CHECK_EQ(sdp_family_build(config, "config.json", NULL, &graph, NULL), SDP_INPUT);
    json_decref(config);
}

static void check_case(const char *name)
{
    if (strncmp(name, "refused-", 8) == 0)
        check_refused(name);
    else
        check_built(name);
}

/* -- golden models ------------------------------------------------------------------ */

static void check_parameters(const char *name, const struct sdp_model_graph *graph,
                             json_t *golden)
{
    size_t count = 0;
    const char *key;
    json_t *shape;

    for (size_t s = 0; s < graph->storage_count; s++)
        count += graph->storages[s].param_count;
    CHECK_EQ(count, json_object_size(golden));
    json_object_foreach(golden, key, shape)
    {
        size_t s = 0, p = 0, dims = json_array_size(shape);
        const struct sdp_param *param;

        sdp_test_checks++;
        if (!sdp_model_graph_find_param(graph, key, &s, &p)) {
            SDP_TEST_FAIL("%s: no parameter %s", name, key);
            continue;
        }
        param = &graph->storages[s].params[p];
        CHECK_EQ(param->dims, dims);
        CHECK_EQ(param->cols, json_integer_value(json_array_get(shape, dims - 1)));
        CHECK_EQ(param->rows,
                 dims == 2 ? json_integer_value(json_array_get(shape, 0)) : 1);
        CHECK_EQ(param->decay, dims == 2);
        CHECK_EQ(param->init_std > 0.0, dims == 2);
        CHECK_NEAR(param->init_value, dims == 1 && !strstr(key, "bias") ? 1.0 : 0.0, 0.0);
    }
}

static void test_golden(const char *name)
{
    char *folder = sdp_xprintf("%s/tests/golden/%s", SDP_SOURCE_DIR, name);
    struct sdp_model_graph *graph[2];
    json_t *golden, *dump[2];

    REQUIRE(chdir(folder) == 0);
    golden = load("golden.json");
    graph[0] = build("model/config.json");
    graph[1] = build("config-v4.json");
    for (size_t i = 0; i < 2; i++) {
        check_parameters(name, graph[i], json_object_get(golden, "parameters"));
        dump[i] = sdp_model_graph_dump(graph[i]);
    }
    CHECK(json_equal(dump[0], dump[1]));
    for (size_t i = 0; i < 2; i++) {
        sdp_model_graph_destroy(graph[i]);
        json_decref(dump[i]);
    }
    json_decref(golden);
    free(folder);
}

/* -- the rest -------------------------------------------------------------------- */

static void check_named(const char *text, const char *family, enum sdp_status wanted,
                        const char *part)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = NULL;
    json_t *config = json_loads(text, 0, NULL);

    REQUIRE(config != NULL);
    CHECK_EQ(sdp_family_build(config, "config.json", family, &graph, &err), wanted);
    if (part)
        CHECK_CONTAINS(err.text, part);
    sdp_model_graph_destroy(graph);
    json_decref(config);
}

#define SIZES                                                                            \
    "\"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 48, "               \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2"

static void test_named(void)
{
    check_named("{" SIZES "}", "llama", SDP_OK, NULL);
    check_named("{\"model_type\": \"llama\", " SIZES "}", "llama", SDP_OK, NULL);
    check_named("{\"model_type\": \"mistral\", " SIZES "}", "llama", SDP_INPUT,
                "the family asked for is \"llama\"");
    check_named("{" SIZES "}", "lama", SDP_INPUT, "did you mean \"llama\"?");
    check_named("[]", "llama", SDP_INPUT, "must be an object");
}

/* The formula of the peers' script: 6 N + causal attention. */
static void test_flops(void)
{
    char *path =
        sdp_xprintf("%s/tests/model/families/qwen3-8b/config.json", SDP_SOURCE_DIR);
    struct sdp_model_graph *graph = build(path);
    double tokens = 16384, n = 8190735360.0 - 151936.0 * 4096.0;
    double wanted = 6 * n * tokens + 6 * 36.0 * 32 * 128 * 4096 * tokens;

    CHECK_NEAR(sdp_model_graph_flops(graph, 16384, 4096) / wanted, 1.0, 1e-14);
    sdp_model_graph_destroy(graph);
    free(path);
    path =
        sdp_xprintf("%s/tests/model/families/smollm2-135m/config.json", SDP_SOURCE_DIR);
    graph = build(path);
    wanted = 6 * 134515008.0 * 2048 + 6 * 30.0 * 9 * 64 * 1024 * 2048;
    CHECK_NEAR(sdp_model_graph_flops(graph, 2048, 1024) / wanted, 1.0, 1e-14);
    sdp_model_graph_destroy(graph);
    free(path);
}

int main(int argc, char **argv)
{
    static const char *const golden[] = {"llama", "llama-tied", "qwen2", "qwen3",
                                         "mistral"};

    accept_messages = argc > 1 && strcmp(argv[1], "--accept") == 0;
    CHECK(sdp_test_walk_cases(SDP_SOURCE_DIR "/tests/model/families", check_case) >= 50);
    for (size_t i = 0; i < SDP_COUNT_OF(golden); i++)
        test_golden(golden[i]);
    test_named();
    test_flops();
    return sdp_test_end();
}
