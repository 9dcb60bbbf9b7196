/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a model graph holds: tensors, parameters and their places, storages,
 * templates, totals. Files right and wrong are in test_model_graph_cases.c. */
#include "graph/base/json.h"
#include "graph/model_graph.h"
#include "tests/sdp_test.h"

static struct sdp_model_graph *load(const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = NULL;
    char *path =
        sdp_xprintf("%s/tests/graph/graphs/valid/%s/graph.json", SDP_SOURCE_DIR, name);

    REQUIRE_OK(sdp_model_graph_load(path, &graph, &err), &err);
    free(path);
    return graph;
}

static const struct sdp_param *find(const struct sdp_model_graph *graph, const char *name)
{
    size_t s = 0, p = 0;

    REQUIRE(sdp_model_graph_find_param(graph, name, &s, &p));
    return &graph->storages[s].params[p];
}

/* Packed in the order of the operations, each parameter at a multiple of the alignment.
 */
static void check_packed(const struct sdp_storage *storage)
{
    size_t end = 0, parameters = 0;

    for (size_t p = 0; p < storage->param_count; p++) {
        const struct sdp_param *param = &storage->params[p];

        CHECK_EQ(param->count, param->rows * param->cols);
        CHECK_EQ(param->offset, sdp_round_up(end, SDP_PARAM_ALIGN));
        end = param->offset + param->count;
        parameters += param->count;
    }
    CHECK_EQ(storage->count, sdp_round_up(end, SDP_PARAM_ALIGN));
    CHECK_EQ(storage->parameters, parameters);
}

static void check_layer(const struct sdp_model_graph *graph, size_t index)
{
    const struct sdp_layer *layer = &graph->layers[index];

    CHECK_EQ(layer->index, index);
    CHECK(layer->storage < graph->storage_count);
    CHECK_EQ(layer->input, index == 0 ? -1 : 0);
    CHECK_EQ(layer->is_loss, index + 1 == graph->layer_count);
    CHECK_EQ(layer->output >= 0, !layer->is_loss);
    for (size_t t = 0; t < layer->tensor_count; t++) {
        const struct sdp_graph_tensor *tensor = &layer->tensors[t];
        const struct sdp_layer_op *op;
        int slot = tensor->producer_slot;

        CHECK(tensor->cols > 0);
        CHECK_EQ(tensor->producer == -1, (int)t == layer->input);
        if (tensor->producer < 0)
            continue;
        op = &layer->ops[tensor->producer];
        CHECK_EQ(tensor->fp32, slot >= SDP_OP_MAX_OUTPUTS);
        CHECK_EQ(t,
                 tensor->fp32 ? op->aux[slot - SDP_OP_MAX_OUTPUTS] : op->outputs[slot]);
        CHECK_EQ(tensor->cols, tensor->fp32 ? op->node.aux_cols[slot - SDP_OP_MAX_OUTPUTS]
                                            : op->node.output_cols[slot]);
    }
    for (size_t o = 0; o < layer->op_count; o++) {
        const struct sdp_layer_op *op = &layer->ops[o];

        for (size_t i = 0; i < op->node.input_count; i++)
            if (op->inputs[i] >= 0)
                CHECK_EQ(layer->tensors[op->inputs[i]].cols, op->node.input_cols[i]);
        for (size_t w = 0; w < op->node.weight_count; w++)
            CHECK_EQ(graph->storages[layer->storage].params[op->weights[w]].rows,
                     op->node.weight_rows[w]);
    }
}

static void test_invariants(void)
{
    static const char *const names[] = {"tied",      "untied",     "ranges",     "biases",
                                        "attention", "output-key", "written-out"};

    for (size_t i = 0; i < SDP_COUNT_OF(names); i++) {
        struct sdp_model_graph *graph = load(names[i]);

        for (size_t s = 0; s < graph->storage_count; s++)
            check_packed(&graph->storages[s]);
        for (size_t l = 0; l < graph->layer_count; l++)
            check_layer(graph, l);
        sdp_model_graph_destroy(graph);
    }
}

static void test_tied(void)
{
    struct sdp_model_graph *graph = load("tied");
    const struct sdp_layer *block = &graph->layers[2];
    size_t s = 9, p = 9;

    CHECK_STR(graph->name, "tiny");
    CHECK_EQ(graph->vocabulary, 96);
    CHECK_EQ(graph->hidden, 32);
    CHECK_EQ(graph->max_sequence_length, 128);
    CHECK_EQ(graph->layer_count, 5);
    CHECK_EQ(graph->storage_count, 4); /* embedding and head share one */
    CHECK_EQ(graph->layers[4].storage, graph->layers[0].storage);
    CHECK_EQ(graph->parameters, 96 * 32 + 2 * (32 + 3 * 48 * 32) + 32);
    CHECK_EQ(graph->parameters_without_embedding, graph->parameters);
    CHECK_STR(block->name, "block.1");
    CHECK_STR(block->template_name, "block.{i}");
    CHECK_STR(graph->layers[1].template_name, block->template_name);
    CHECK_STR(graph->layers[3].template_name, "norm");
    CHECK(block->backward_needs_weights);
    CHECK_EQ(block->ops[1].node.weight_count, 2);
    CHECK_EQ(block->ops[1].node.output_cols[0], 96);
    CHECK_EQ(block->ops[3].inputs[1], block->input); /* the residual */
    CHECK_STR(block->tensors[block->output].name, "y");
    CHECK_STR(graph->storages[block->storage].name, "block.1");
    CHECK(sdp_model_graph_find_param(graph, "layers.1.up.weight", &s, &p));
    CHECK_EQ(s, block->storage);
    CHECK_EQ(p, 2);
    CHECK(!sdp_model_graph_find_param(graph, "layers.2.up.weight", &s, &p));
    CHECK_EQ(find(graph, "layers.1.up.weight")->offset, 128 + 48 * 32);
    sdp_model_graph_destroy(graph);
}

static void test_untied(void)
{
    struct sdp_model_graph *graph = load("untied");

    CHECK_EQ(graph->storage_count, 5);
    CHECK_EQ(graph->parameters - graph->parameters_without_embedding, 96 * 32);
    CHECK_NEAR(sdp_model_graph_flops(graph, 10, 5),
               60.0 * (double)graph->parameters_without_embedding, 0.0);
    sdp_model_graph_destroy(graph);
    graph = load("attention");
    CHECK_NEAR(sdp_model_graph_flops(graph, 10, 5),
               60.0 * ((double)graph->parameters_without_embedding + 2 * 4 * 8 * 5), 0.0);
    sdp_model_graph_destroy(graph);
}

/* Copies that stand in two entries have two templates: their operations may differ. */
static void test_ranges(void)
{
    struct sdp_model_graph *graph = load("ranges");

    CHECK_EQ(graph->layer_count, 8);
    CHECK_STR(graph->layers[2].name, "block.1");
    CHECK_STR(graph->layers[3].name, "block.2");
    CHECK_STR(graph->layers[3].template_name, "block.{2..4}");
    CHECK_STR(graph->layers[5].template_name, "block.{2..4}");
    CHECK_EQ(find(graph, "layers.4.inner.weight")->cols, 48);
    sdp_model_graph_destroy(graph);
}

static void test_parameters(void)
{
    struct sdp_model_graph *graph = load("init-and-decay");

    CHECK(find(graph, "layers.0.norm.weight")->decay);
    CHECK_NEAR(find(graph, "layers.0.norm.weight")->init_value, 0.5, 0.0);
    CHECK(!find(graph, "layers.1.gate.weight")->decay);
    CHECK_NEAR(find(graph, "layers.1.gate.weight")->init_std, 1.0 / 24, 1e-17);
    CHECK(find(graph, "layers.1.up.weight")->decay);
    CHECK_NEAR(find(graph, "layers.1.up.weight")->init_std, 0.02, 0.0);
    CHECK_NEAR(find(graph, "norm.weight")->init_value, 1.0, 0.0);
    CHECK_EQ(find(graph, "norm.weight")->dims, 1);
    sdp_model_graph_destroy(graph);
    graph = load("biases");
    CHECK_EQ(graph->layers[1].ops[1].node.weight_count, 4);
    CHECK_EQ(graph->layers[1].ops[1].node.weight_role[2], 1);
    CHECK_NEAR(find(graph, "layers.0.up.bias")->init_value, 0.0, 0.0);
    CHECK_EQ(find(graph, "layers.0.up.bias")->init_std > 0.0, 0);
    sdp_model_graph_destroy(graph);
}

static json_t *dump(const char *name)
{
    struct sdp_model_graph *graph = load(name);
    json_t *document = sdp_model_graph_dump(graph);

    sdp_model_graph_destroy(graph);
    return document;
}

static json_t *dumped_layer(json_t *document, size_t index)
{
    return json_array_get(json_object_get(document, "layers"), index);
}

static const char *text_of(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static void test_dump(void)
{
    json_t *document = dump("two-digit-copies"), *repeat;

    CHECK_EQ(json_array_size(json_object_get(document, "layers")), 4);
    CHECK_STR(text_of(dumped_layer(document, 1), "name"), "h{i}.2");
    CHECK_EQ(json_integer_value(json_object_get(dumped_layer(document, 1), "repeat")),
             12);
    json_decref(document);
    document = dump("ranges");
    repeat = json_object_get(dumped_layer(document, 2), "repeat");
    CHECK_EQ(json_integer_value(json_object_get(repeat, "first")), 2);
    CHECK_EQ(json_integer_value(json_object_get(repeat, "count")), 3);
    json_decref(document);
    document = dump("tied");
    CHECK_STR(text_of(dumped_layer(document, 3), "storage"), "embedding");
    CHECK(!json_object_get(dumped_layer(document, 1), "output"));
    json_decref(document);
    document = dump("output-key");
    CHECK(!json_object_get(dumped_layer(document, 1), "output")); /* it is the default */
    json_decref(document);
}

static void test_missing_file(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = NULL;

    CHECK(sdp_model_graph_load("no-such-graph.json", &graph, &err) != SDP_OK);
    CHECK(graph == NULL);
    CHECK_STR(err.file, "no-such-graph.json");
    sdp_model_graph_destroy(NULL);
}

int main(void)
{
    test_invariants();
    test_tied();
    test_untied();
    test_ranges();
    test_parameters();
    test_dump();
    test_missing_file();
    return sdp_test_end();
}
