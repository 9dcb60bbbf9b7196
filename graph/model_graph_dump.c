/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writes a model graph as the JSON that model_graph_load.c reads. Layers of one
 * template are written once: where the names of the first and the second copy
 * differ, the number of the copy stands, and "{i}" is written. */
#include "graph/model_graph_internal.h"

#include <ctype.h>
#include <stdlib.h>

/* A layer to write and, where it is repeated, its second copy. */
struct writer {
    const struct sdp_model_graph *graph;
    const struct sdp_layer *layer, *second; /* second may be NULL */
    bool shares;                            /* the layer's storage is another's */
};

static size_t digits_at(const char *text)
{
    size_t length = 0;

    while (isdigit((unsigned char)text[length]))
        length++;
    return length;
}

/* The pattern that gives both names; `number` is what {i} is in the first. [new] */
static char *common_pattern(const char *first, const char *second, size_t *number)
{
    char *pattern = sdp_xcalloc(strlen(first) * strlen(SDPI_INDEX) + 1, 1), *to = pattern;

    while (*first) {
        size_t a = digits_at(first), b = digits_at(second);

        if (a == 0) {
            *to++ = *first++;
            second++;
            continue;
        }
        if (a == b && memcmp(first, second, a) == 0) {
            for (size_t i = 0; i < a; i++)
                *to++ = first[i];
        } else {
            *number = strtoul(first, NULL, 10);
            for (const char *mark = SDPI_INDEX; *mark; mark++)
                *to++ = *mark;
        }
        first += a;
        second += b;
    }
    return pattern;
}

static json_t *number_value(double value)
{
    if (value == floor(value) && fabs(value) < 0x1p53)
        return json_integer((json_int_t)value);
    return json_real(value);
}

/* -- operations --------------------------------------------------------------- */

static const struct sdp_param *param_of(const struct sdp_model_graph *graph,
                                        const struct sdp_layer *layer, size_t o, size_t w)
{
    return &graph->storages[layer->storage].params[layer->ops[o].weights[w]];
}

static json_t *param_value(const struct writer *writer, size_t o, size_t w)
{
    const struct sdp_param *param = param_of(writer->graph, writer->layer, o, w);
    json_t *value = json_object(), *shape = json_array(), *init = json_object();
    size_t number = 0;
    char *name;

    name =
        writer->second
            ? common_pattern(param->name,
                             param_of(writer->graph, writer->second, o, w)->name, &number)
            : sdp_xstrdup(param->name);
    json_object_set_new(value, "name", json_string(name));
    free(name);
    if (param->dims == 2)
        json_array_append_new(shape, json_integer((json_int_t)param->rows));
    json_array_append_new(shape, json_integer((json_int_t)param->cols));
    json_object_set_new(value, "shape", shape);
    if (param->init_std > 0.0)
        json_object_set_new(init, "std", number_value(param->init_std));
    else
        json_object_set_new(init, "value", number_value(param->init_value));
    if (!writer->shares) {
        json_object_set(value, "init", init);
        json_object_set_new(value, "decay", json_boolean(param->decay));
    }
    json_decref(init);
    return value;
}

static json_t *weights_value(const struct writer *writer, size_t o)
{
    const struct sdp_op_node *node = &writer->layer->ops[o].node;
    json_t *weights = json_object();

    for (size_t w = 0; w < node->weight_count; w++) {
        const struct sdp_op_weight *weight = &node->op->weights[node->weight_role[w]];
        json_t *list = json_object_get(weights, weight->name);

        if (!weight->many) {
            json_object_set_new(weights, weight->name, param_value(writer, o, w));
            continue;
        }
        if (!list) {
            list = json_array();
            json_object_set_new(weights, weight->name, list);
        }
        json_array_append_new(list, param_value(writer, o, w));
    }
    return weights;
}

static json_t *inputs_value(const struct sdp_layer *layer, const struct sdp_layer_op *op)
{
    json_t *inputs = json_object();

    for (size_t i = 0; i < op->node.input_count; i++) {
        char *name;

        if (op->inputs[i] < 0)
            continue;
        name = sdpi_graph_input_name(op->node.op->inputs[i], NULL);
        json_object_set_new(inputs, name,
                            json_string(layer->tensors[op->inputs[i]].name));
        free(name);
    }
    return inputs;
}

/* Attributes that are required or differ from their default. */
static json_t *attrs_value(const struct sdp_op_node *node)
{
    const struct sdp_op_attr *table = node->op->attrs;
    json_t *attrs = json_object();

    for (size_t a = 0; table && table[a].name; a++) {
        double value = node->attr[a];

        if (!table[a].required && value == table[a].fallback)
            continue;
        json_object_set_new(attrs, table[a].name,
                            table[a].words ? json_string(table[a].words[(size_t)value])
                                           : number_value(value));
    }
    return attrs;
}

static json_t *outputs_value(const struct sdp_layer *layer, const struct sdp_layer_op *op)
{
    json_t *outputs = json_object();

    for (size_t i = 0; i < op->node.output_count; i++)
        json_object_set_new(outputs, op->node.op->outputs[i],
                            json_string(layer->tensors[op->outputs[i]].name));
    return outputs;
}

/* Sets a member unless it is empty. [steals] value. */
static void set_filled(json_t *object, const char *key, json_t *value)
{
    if (json_object_size(value) > 0)
        json_object_set(object, key, value);
    json_decref(value);
}

static json_t *op_value(const struct writer *writer, size_t o)
{
    const struct sdp_layer_op *op = &writer->layer->ops[o];
    json_t *value = json_object();

    json_object_set_new(value, "op", json_string(op->node.op->name));
    json_object_set_new(value, "name", json_string(op->node.name));
    set_filled(value, "inputs", inputs_value(writer->layer, op));
    set_filled(value, "weights", weights_value(writer, o));
    set_filled(value, "attrs", attrs_value(&op->node));
    set_filled(value, "outputs", outputs_value(writer->layer, op));
    return value;
}

/* -- layers ------------------------------------------------------------------- */

static json_t *repeat_value(size_t first, size_t count)
{
    if (first == 0)
        return json_integer((json_int_t)count);
    return json_pack("{s:I, s:I}", "first", (json_int_t)first, "count",
                     (json_int_t)count);
}

static json_t *layer_value(const struct writer *writer, size_t copies)
{
    const struct sdp_layer *layer = writer->layer;
    json_t *value = json_object(), *ops = json_array();
    size_t first = 0;
    char *name = writer->second
                     ? common_pattern(layer->name, writer->second->name, &first)
                     : sdp_xstrdup(layer->name);

    json_object_set_new(value, "name", json_string(name));
    free(name);
    if (writer->second)
        json_object_set_new(value, "repeat", repeat_value(first, copies));
    if (writer->shares)
        json_object_set_new(value, "storage",
                            json_string(writer->graph->storages[layer->storage].name));
    if (layer->output >= 0 && layer->output != layer->ops[layer->op_count - 1].outputs[0])
        json_object_set_new(value, "output",
                            json_string(layer->tensors[layer->output].name));
    for (size_t o = 0; o < layer->op_count; o++)
        json_array_append_new(ops, op_value(writer, o));
    json_object_set_new(value, "ops", ops);
    return value;
}

static size_t copies_of(const struct sdp_model_graph *graph, size_t l)
{
    size_t end = l + 1;

    while (end < graph->layer_count &&
           strcmp(graph->layers[end].template_name, graph->layers[l].template_name) == 0)
        end++;
    return end - l;
}

json_t *sdp_model_graph_dump(const struct sdp_model_graph *graph)
{
    json_t *document = json_object(), *layers = json_array();

    json_object_set_new(document, "slidedp_graph", json_integer(1));
    json_object_set_new(document, "name", json_string(graph->name));
    if (graph->max_sequence_length > 0)
        json_object_set_new(document, "max_sequence_length",
                            json_integer((json_int_t)graph->max_sequence_length));
    for (size_t l = 0; l < graph->layer_count;) {
        const struct sdp_layer *layer = &graph->layers[l];
        size_t copies = copies_of(graph, l);
        struct writer writer = {
            .graph = graph,
            .layer = layer,
            .second = copies > 1 ? layer + 1 : NULL,
            .shares = strcmp(graph->storages[layer->storage].name, layer->name) != 0,
        };

        json_array_append_new(layers, layer_value(&writer, copies));
        l += copies;
    }
    json_object_set_new(document, "layers", layers);
    return document;
}
