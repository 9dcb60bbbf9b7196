/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads a model graph from JSON. The format:
 *
 *     {
 *       "slidedp_graph": 1,               version of the format
 *       "name": "tiny",
 *       "max_sequence_length": 4096,      left out: no limit
 *       "layers": [
 *         {"name": "embedding", "ops": [
 *           {"op": "embedding", "outputs": {"out": "x"},
 *            "weights": {"table": {"name": "embed.weight", "shape": [256, 64]}}}]},
 *         {"name": "block.{i}", "repeat": 2, "ops": [
 *           {"op": "rmsnorm", "inputs": {"x": "input"}, "outputs": {"out": "h"},
 *            "weights": {"weight": {"name": "layers.{i}.norm.weight", "shape": [64]}},
 *            "attrs": {"eps": 1e-5}},
 *           {"op": "linear", "inputs": {"x": "h", "residual": "input"},
 *            "weights": {"weight": [{"name": "layers.{i}.w", "shape": [64, 64]}]}}]},
 *         {"name": "head", "storage": "embedding", "ops": [
 *           {"op": "cross_entropy", "inputs": {"x": "input"},
 *            "weights": {"weight": {"name": "embed.weight", "shape": [256, 64]}}}]}
 *       ]
 *     }
 *
 * Layers run in order. The first turns token ids into a boundary tensor, each of
 * the others reads the boundary tensor as "input" and writes the next one, of as
 * many columns; the last is the loss.
 *
 * layer    name      letters, digits and _ . -; unique
 *          repeat    N: copies 0 .. N-1, or {"first": F, "count": N}: copies F .. F+N-1.
 *                    "{i}" in the name and in the names of all parameters stands for
 *                    the number of the copy
 *          storage   an earlier layer, all of whose parameters this one may name: a head
 *                    tied to the embedding. It has no parameters of its own
 *          output    the tensor that leaves the layer (default: the last op's first
 * output) ops       in the order in which they run op       op        an operation
 * (`slidedp graph --ops` lists them) name      unique in the layer (default: the
 * operation's) inputs    for each input a tensor of the layer: "input", or one an op
 * before wrote weights   for each weight a parameter, or a list of them where the op
 * takes many; an empty list is none attrs     numbers, words, true or false outputs   for
 * each output the name of the tensor it makes (default: the op's name) parameter  name in
 * the checkpoint; unique in the graph shape     [rows, columns], or [length] of a vector
 *          init      {"std": S} normal, or {"value": V} constant, where there is no
 * checkpoint (default: std 0.02; vectors 1, but 0 those called "bias") decay     gets
 * weight decay (default: as the op says)
 *
 * Parameters are packed in the order in which the operations name them. */
#include "graph/model_graph_internal.h"

#include <ctype.h>
#include <stdlib.h>

#define FORMAT_VERSION 1
#define MAX_LAYERS     16384

/* -- names -------------------------------------------------------------------- */

static bool is_digit_at(const char *from, const char *at)
{
    return at >= from && isdigit((unsigned char)*at);
}

/* "{i}" must not stand next to a digit: "1{i}" could not be told from a number. */
static bool check_index(const struct sdp_json *at, const char *name, bool indexed)
{
    const char *mark = strstr(name, SDPI_INDEX);

    if (!mark)
        return !indexed || sdp_json_fail(at,
                                         "is \"%s\"; in a repeated layer it must "
                                         "contain {i}, the number of the copy",
                                         name);
    if (!indexed)
        return sdp_json_fail(at, "is \"%s\"; {i} is only for layers with \"repeat\"",
                             name);
    for (; mark; mark = strstr(mark + 1, SDPI_INDEX))
        if (is_digit_at(name, mark - 1) || is_digit_at(name, mark + strlen(SDPI_INDEX)))
            return sdp_json_fail(at, "is \"%s\"; {i} must not stand next to a digit",
                                 name);
    return true;
}

bool sdpi_graph_check_name(const struct sdp_json *at, const char *name, bool indexed)
{
    const char *letter = name;

    while (*letter && (isalnum((unsigned char)*letter) || strchr("_.-", *letter) ||
                       strncmp(letter, SDPI_INDEX, strlen(SDPI_INDEX)) == 0))
        letter += *letter == '{' ? strlen(SDPI_INDEX) : 1;
    if (!*name || *letter)
        return sdp_json_wrong(at, "a name of letters, digits and _ . - only");
    return check_index(at, name, indexed);
}

/* -- layers ------------------------------------------------------------------- */

struct repeat {
    bool given;
    size_t first, count;
};

static bool read_repeat(const struct sdp_json *at, struct repeat *out)
{
    static const char *const keys[] = {"first", "count", NULL};
    struct sdp_json repeat = sdp_json_member(at, "repeat");

    *out = (struct repeat){repeat.value != NULL, 0, 1};
    if (!repeat.value)
        return true;
    if (!json_is_object(repeat.value))
        return sdp_json_get_size(at, "repeat", 1, MAX_LAYERS, &out->count);
    if (!json_object_get(repeat.value, "count"))
        return sdp_json_missing(&repeat, "count");
    return sdp_json_only_keys(&repeat, keys) &&
           sdp_json_get_size(&repeat, "first", 0, MAX_LAYERS, &out->first) &&
           sdp_json_get_size(&repeat, "count", 1, MAX_LAYERS, &out->count);
}

/* Layers of one entry share a template; entries with the same pattern do not. */
static char *template_name(const char *pattern, const struct repeat *repeat)
{
    const char *mark = strstr(pattern, SDPI_INDEX);

    if (!mark || repeat->first == 0)
        return sdp_xstrdup(pattern);
    return sdp_xprintf("%.*s{%zu..%zu}%s", (int)(mark - pattern), pattern, repeat->first,
                       repeat->first + repeat->count - 1, mark + strlen(SDPI_INDEX));
}

static const struct sdp_layer *find_layer(const struct sdp_model_graph *graph,
                                          size_t count, const char *name)
{
    for (size_t l = 0; l < count; l++)
        if (strcmp(graph->layers[l].name, name) == 0)
            return &graph->layers[l];
    return NULL;
}

static bool fail_storage(const struct sdpi_layer_reader *reader,
                         const struct sdp_json *at, const char *name)
{
    const char **names = sdp_xcalloc(reader->layer->index + 1, sizeof *names), *nearest;

    for (size_t l = 0; l < reader->layer->index; l++)
        names[l] = reader->graph->layers[l].name;
    nearest = sdp_nearest(name, names);
    free(names);
    return sdp_json_fail(at, "is \"%s\"; must be the name of an earlier layer%s%s%s",
                         name, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                         nearest ? "\"?" : "");
}

/* The storage of the layer: another layer's, or a new one. */
static bool choose_storage(struct sdpi_layer_reader *reader, const struct sdp_json *at)
{
    struct sdp_model_graph *graph = reader->graph;
    struct sdp_json member = sdp_json_member(at, "storage");
    const struct sdp_layer *owner;
    const char *name = NULL;

    reader->owns_storage = !member.value;
    if (member.value) {
        if (!sdp_json_expect_string(&member, &name))
            return false;
        if (reader->repeated)
            return sdp_json_fail(&member, "a repeated layer cannot share a storage; each "
                                          "copy needs its own");
        owner = find_layer(graph, reader->layer->index, name);
        if (!owner)
            return fail_storage(reader, &member, name);
        reader->layer->storage = owner->storage;
    } else {
        graph->storages = sdp_xrealloc(graph->storages, (graph->storage_count + 1) *
                                                            sizeof *graph->storages);
        reader->layer->storage = graph->storage_count;
        graph->storages[graph->storage_count++] =
            (struct sdp_storage){.name = sdp_xstrdup(reader->layer->name)};
    }
    reader->param_used =
        sdp_xcalloc(graph->storages[reader->layer->storage].param_count + 1,
                    sizeof *reader->param_used);
    return true;
}

static bool check_unread(const struct sdpi_layer_reader *reader,
                         const struct sdp_json *ops)
{
    const struct sdp_layer *layer = reader->layer;

    for (size_t t = 0; t < layer->tensor_count; t++) {
        const struct sdp_graph_tensor *tensor = &layer->tensors[t];
        struct sdp_json at = *ops;

        if (reader->read[t] || tensor->producer_slot >= SDP_OP_MAX_OUTPUTS)
            continue;
        if (tensor->producer < 0)
            return sdp_json_fail(&at, "no operation reads \"" SDPI_INPUT "\", what the "
                                      "layer before wrote");
        at = sdp_json_element(ops, (size_t)tensor->producer);
        return sdp_json_fail(&at,
                             "makes \"%s\", which no operation reads; leave the "
                             "operation out, or make it the layer's output",
                             tensor->name);
    }
    return true;
}

static bool fail_output(const struct sdp_layer *layer, const struct sdp_json *at,
                        const char *name)
{
    const char **names = sdp_xcalloc(layer->tensor_count + 1, sizeof *names), *nearest;
    size_t count = 0;

    for (size_t t = 0; t < layer->tensor_count; t++)
        if (layer->tensors[t].producer >= 0 && !layer->tensors[t].fp32)
            names[count++] = layer->tensors[t].name;
    nearest = sdp_nearest(name, names);
    free(names);
    return sdp_json_fail(
        at, "is \"%s\"; must be a tensor that an operation of the layer makes%s%s%s",
        name, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
        nearest ? "\"?" : "");
}

/* The tensor of that name, if an operation makes it for others to read. */
static int find_made(const struct sdp_layer *layer, const char *name)
{
    for (size_t t = 0; t < layer->tensor_count; t++)
        if (layer->tensors[t].producer >= 0 && !layer->tensors[t].fp32 &&
            strcmp(layer->tensors[t].name, name) == 0)
            return (int)t;
    return -1;
}

/* Finds the boundary output and checks its columns. */
static bool choose_output(struct sdpi_layer_reader *reader, const struct sdp_json *at)
{
    struct sdp_model_graph *graph = reader->graph;
    struct sdp_layer *layer = reader->layer;
    struct sdp_json member = sdp_json_member(at, "output");
    const struct sdp_layer_op *last;
    const char *name = NULL;
    size_t cols;

    if (layer->is_loss)
        return !member.value || sdp_json_fail(&member, "the loss layer has no output");
    last = layer->ops ? &layer->ops[layer->op_count - 1] : NULL;
    layer->output = last && last->node.output_count > 0 ? last->outputs[0] : -1;
    if (member.value) {
        if (!sdp_json_expect_string(&member, &name))
            return false;
        layer->output = find_made(layer, name);
        if (layer->output < 0)
            return fail_output(layer, &member, name);
    }
    if (layer->output < 0 || !reader->read)
        return sdp_json_missing(at, "output");
    reader->read[layer->output] = true;
    cols = layer->tensors[layer->output].cols;
    if (layer->index == 0)
        graph->hidden = cols;
    if (cols != graph->hidden)
        return sdp_json_fail(
            at,
            "the layer's output \"%s\" has %zu columns, its input %zu; all tensors "
            "between layers must have as many",
            layer->tensors[layer->output].name, cols, graph->hidden);
    return true;
}

static bool read_ops(struct sdpi_layer_reader *reader, const struct sdp_json *ops)
{
    size_t count;

    if (!ops->value)
        return sdp_json_fail(ops, "is missing; this key is required");
    if (!sdp_json_expect_array(ops, &count))
        return false;
    if (count == 0)
        return sdp_json_fail(ops, "is empty; a layer needs at least one operation");
    reader->ops = ops->value;
    reader->layer->ops = sdp_xcalloc(count, sizeof *reader->layer->ops);
    for (size_t o = 0; o < count; o++) {
        struct sdp_json at = sdp_json_element(ops, o);

        if (reader->layer->is_loss)
            return sdp_json_fail(&at, "follows the loss, which must be the last "
                                      "operation of the last layer");
        if (!sdpi_graph_read_op(reader, &at))
            return false;
    }
    return true;
}

static bool has_weights(const struct sdp_layer *layer)
{
    for (size_t o = 0; o < layer->op_count; o++)
        if (layer->ops[o].node.weight_count > 0)
            return true;
    return false;
}

static bool fill_layer(struct sdpi_layer_reader *reader, const struct sdp_json *at)
{
    struct sdp_json ops = sdp_json_member(at, "ops");

    if (!choose_storage(reader, at))
        return false;
    if (reader->layer->index > 0)
        reader->layer->input = sdpi_graph_add_tensor(reader, sdp_xstrdup(SDPI_INPUT),
                                                     reader->graph->hidden, false, -1, 0);
    if (!read_ops(reader, &ops) || !choose_output(reader, at) ||
        !check_unread(reader, &ops))
        return false;
    if (reader->graph->vocabulary == 0)
        return sdp_json_fail(&ops, "the first layer must begin with an operation on the "
                                   "token ids that has a table, such as \"embedding\"");
    return has_weights(reader->layer) ||
           sdp_json_fail(&ops, "no operation has weights; every layer needs some");
}

static bool add_layer(struct sdp_model_graph *graph, const struct sdp_json *at,
                      json_t *params, const char *pattern, const struct repeat *repeat,
                      size_t copy)
{
    struct sdpi_layer_reader reader = {
        .graph = graph, .params = params, .repeated = repeat->given, .copy = copy};
    struct sdp_json member = sdp_json_member(at, "name");
    size_t index = graph->layer_count;
    bool good;

    if (index == MAX_LAYERS)
        return sdp_json_fail(at, "the graph has more than %d layers", MAX_LAYERS);
    if (index > 0 && graph->layers[index - 1].is_loss)
        return sdp_json_fail(at, "follows the loss layer \"%s\", which must be the last",
                             graph->layers[index - 1].name);
    graph->layers = sdp_xrealloc(graph->layers, (index + 1) * sizeof *graph->layers);
    graph->layer_count++;
    graph->layers[index] = (struct sdp_layer){
        .name = sdpi_graph_expand_name(pattern, copy),
        .template_name = template_name(pattern, repeat),
        .index = index,
        .input = -1,
        .output = -1,
    };
    reader.layer = &graph->layers[index];
    if (find_layer(graph, index, reader.layer->name))
        return sdp_json_fail(&member,
                             "there are two layers \"%s\"; names of layers must "
                             "be unique",
                             reader.layer->name);
    good = fill_layer(&reader, at);
    free(reader.read);
    free(reader.param_used);
    return good;
}

static bool read_layer(struct sdp_model_graph *graph, const struct sdp_json *at,
                       json_t *params)
{
    static const char *const keys[] = {"name",   "repeat", "storage",
                                       "output", "ops",    NULL};
    struct sdp_json member;
    const char *pattern = NULL;
    struct repeat repeat;

    if (!sdp_json_only_keys(at, keys))
        return false;
    member = sdp_json_member(at, "name");
    if (!member.value)
        return sdp_json_missing(at, "name");
    if (!sdp_json_expect_string(&member, &pattern) || !read_repeat(at, &repeat) ||
        !sdpi_graph_check_name(&member, pattern, repeat.given))
        return false;
    for (size_t i = 0; i < repeat.count; i++)
        if (!add_layer(graph, at, params, pattern, &repeat, repeat.first + i))
            return false;
    return true;
}

/* -- the whole ---------------------------------------------------------------- */

/* A table of an embedding that no loss shares does no products. */
static size_t idle_elements(const struct sdp_model_graph *graph,
                            const struct sdp_layer *layer, const struct sdp_layer_op *op)
{
    const struct sdp_layer *last = &graph->layers[graph->layer_count - 1];
    size_t elements = 0;

    if (!sdpi_graph_reads_ids(op->node.op))
        return 0;
    for (size_t w = 0; w < op->node.weight_count; w++) {
        bool tied = false;

        for (size_t o = 0; last->storage == layer->storage && o < last->op_count; o++)
            for (size_t v = 0; v < last->ops[o].node.weight_count; v++)
                tied = tied || (last->ops[o].node.op->is_loss &&
                                last->ops[o].weights[v] == op->weights[w]);
        if (!tied)
            elements += op->node.weight_rows[w] * op->node.weight_cols[w];
    }
    return elements;
}

static void add_totals(struct sdp_model_graph *graph)
{
    const struct sdp_layer *first = &graph->layers[0];

    graph->parameters_without_embedding = graph->parameters;
    for (size_t o = 0; o < first->op_count; o++)
        graph->parameters_without_embedding -=
            idle_elements(graph, first, &first->ops[o]);
}

/* The last layer has the loss, over as many ids as the embedding has rows. */
static bool check_loss(const struct sdp_model_graph *graph, const struct sdp_json *layers)
{
    const struct sdp_layer *last = &graph->layers[graph->layer_count - 1];
    struct sdp_json at = sdp_json_element(layers, json_array_size(layers->value) - 1);
    const struct sdp_op_node *node = &last->ops[last->op_count - 1].node;

    if (!last->is_loss)
        return sdp_json_fail(&at, "the last layer must end with a loss operation, such "
                                  "as \"cross_entropy\"");
    if (node->weight_count > 0 && node->weight_rows[0] != graph->vocabulary)
        return sdp_json_fail(
            &at, "\"%s\" has a vocabulary of %zu ids, the embedding one of %zu",
            node->name, node->weight_rows[0], graph->vocabulary);
    return true;
}

static bool read_layers(struct sdp_model_graph *graph, const struct sdp_json *layers)
{
    json_t *params = json_object();
    bool good = true;
    size_t count;

    if (!sdp_json_expect_array(layers, &count))
        good = false;
    else if (count < 2)
        good = sdp_json_fail(layers, "a graph needs at least two layers, an embedding "
                                     "and a loss");
    for (size_t l = 0; good && l < count; l++) {
        struct sdp_json at = sdp_json_element(layers, l);
        good = read_layer(graph, &at, params);
    }
    json_decref(params);
    if (!good || !check_loss(graph, layers))
        return false;
    add_totals(graph);
    return true;
}

static bool read_version(const struct sdp_json *root)
{
    struct sdp_json member = sdp_json_member(root, "slidedp_graph");

    if (!member.value)
        return sdp_json_missing(root, "slidedp_graph");
    return json_integer_value(member.value) == FORMAT_VERSION ||
           sdp_json_wrong(&member, "%d, the version of the format", FORMAT_VERSION);
}

static bool read_graph(struct sdp_model_graph *graph, const struct sdp_json *root)
{
    static const char *const keys[] = {"slidedp_graph", "name", "max_sequence_length",
                                       "layers", NULL};
    struct sdp_json name, layers;
    const char *text = NULL;

    if (!sdp_json_only_keys(root, keys) || !read_version(root))
        return false;
    name = sdp_json_member(root, "name");
    layers = sdp_json_member(root, "layers");
    if (!name.value)
        return sdp_json_missing(root, "name");
    if (!layers.value)
        return sdp_json_missing(root, "layers");
    if (!sdp_json_expect_string(&name, &text) ||
        !sdpi_graph_check_name(&name, text, false) ||
        !sdp_json_get_size(root, "max_sequence_length", 1, INT32_MAX,
                           &graph->max_sequence_length))
        return false;
    graph->name = sdp_xstrdup(text);
    return read_layers(graph, &layers);
}

enum sdp_status sdp_model_graph_from_json(const json_t *document, const char *file,
                                          struct sdp_model_graph **out,
                                          struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = sdp_xcalloc(1, sizeof *graph);
    struct sdp_json root = {.value = (json_t *)document,
                            .file = file,
                            .pointer = "",
                            .err = err ? err : &own};

    if (!read_graph(graph, &root)) {
        sdp_model_graph_destroy(graph);
        return root.err->status;
    }
    *out = graph;
    return SDP_OK;
}

enum sdp_status sdp_model_graph_load(const char *path, struct sdp_model_graph **out,
                                     struct sdp_error *err)
{
    json_t *document = NULL;
    enum sdp_status status = sdp_json_load(path, &document, NULL, err);

    if (status == SDP_OK)
        status = sdp_model_graph_from_json(document, path, out, err);
    if (status != SDP_OK)
        sdp_json_locate_error(err);
    json_decref(document);
    return status;
}
