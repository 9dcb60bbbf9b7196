/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads one operation of a layer: what its table (sdp_ops) says it takes is
 * looked up, checked and resolved to indices, then the operation infers the
 * columns of its outputs. */
#include "graph/model_graph_internal.h"

#include <stdlib.h>

#define MAX_DIMENSION ((size_t)INT32_MAX)
#define MAX_ELEMENTS  ((size_t)1 << 48) /* of a graph */
#define DEFAULT_STD   0.02

/* An operation while it is read. */
struct op_reader {
    struct sdpi_layer_reader *layer;
    struct sdp_layer_op *op;
    size_t index;              /* in the layer */
    const struct sdp_json *at; /* the operation's object */
};

/* -- tensors ------------------------------------------------------------------ */

int sdpi_graph_add_tensor(struct sdpi_layer_reader *reader, char *name, size_t cols,
                          bool fp32, int producer, int slot)
{
    struct sdp_layer *layer = reader->layer;
    size_t t = layer->tensor_count++;

    layer->tensors =
        sdp_xrealloc(layer->tensors, layer->tensor_count * sizeof *layer->tensors);
    reader->read = sdp_xrealloc(reader->read, layer->tensor_count * sizeof *reader->read);
    reader->read[t] = false;
    layer->tensors[t] = (struct sdp_graph_tensor){
        .name = name,
        .cols = cols,
        .fp32 = fp32,
        .producer = producer,
        .producer_slot = slot,
    };
    return (int)t;
}

static const char *json_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* Index of an operation, this one or a later one, that names `tensor` among its
 * outputs; SIZE_MAX if there is none. */
static size_t find_later_producer(const struct op_reader *reader, const char *tensor)
{
    for (size_t o = reader->index; o < json_array_size(reader->layer->ops); o++) {
        const json_t *op = json_array_get(reader->layer->ops, o), *value;
        json_t *outputs = json_object_get(op, "outputs");
        const char *key,
            *name = json_text(op, "name") ? json_text(op, "name") : json_text(op, "op");

        if (!outputs && name && strcmp(name, tensor) == 0)
            return o;
        json_object_foreach(outputs, key, value)
        {
            const char *text = json_string_value(value);
            if (text && strcmp(text, tensor) == 0)
                return o;
        }
    }
    return SIZE_MAX;
}

static bool fail_tensor(const struct op_reader *reader, const struct sdp_json *at,
                        const char *name)
{
    const struct sdp_layer *layer = reader->layer->layer;
    size_t later = find_later_producer(reader, name), count = 0;
    const char **names, *nearest;

    if (later == reader->index)
        return sdp_json_fail(at, "reads \"%s\", which the operation itself makes", name);
    if (later != SIZE_MAX)
        return sdp_json_fail(at,
                             "reads \"%s\", which only operation %zu makes; "
                             "operations run in the order in which they stand",
                             name, later);
    if (strcmp(name, SDPI_INPUT) == 0)
        return sdp_json_fail(at,
                             "reads \"" SDPI_INPUT "\", but the first layer has none; "
                             "it begins with an operation on the token ids");
    names = sdp_xcalloc(layer->tensor_count + 1, sizeof *names);
    for (size_t t = 0; t < layer->tensor_count; t++)
        if (!layer->tensors[t].fp32)
            names[count++] = layer->tensors[t].name;
    nearest = sdp_nearest(name, names);
    free(names);
    if (nearest)
        return sdp_json_fail(at,
                             "reads \"%s\", which no operation makes; did you mean "
                             "\"%s\"?",
                             name, nearest);
    return sdp_json_fail(at, "reads \"%s\", which no operation of the layer makes", name);
}

static bool read_input(struct op_reader *reader, const struct sdp_json *inputs,
                       const char *key, size_t slot)
{
    struct sdp_layer *layer = reader->layer->layer;
    struct sdp_json member = sdp_json_member(inputs, key);
    const char *name = NULL;
    int tensor;

    if (!sdp_json_expect_string(&member, &name))
        return false;
    tensor = sdpi_graph_find_tensor(layer, name);
    if (tensor < 0 || layer->tensors[tensor].fp32)
        return fail_tensor(reader, &member, name);
    reader->op->inputs[slot] = tensor;
    reader->op->node.input_cols[slot] = layer->tensors[tensor].cols;
    reader->layer->read[tensor] = true;
    return true;
}

/* Reads one entry of the table of inputs; "#ids" is not in the file. */
static bool read_input_entry(struct op_reader *reader, const struct sdp_json *inputs,
                             const char *entry, size_t slot)
{
    bool optional, good = true;
    char *key;

    reader->op->inputs[slot] = -1;
    if (*entry == '#')
        return true;
    key = sdpi_graph_input_name(entry, &optional);
    if (json_object_get(inputs->value, key))
        good = read_input(reader, inputs, key, slot);
    else if (!optional)
        good = sdp_json_missing(inputs, key);
    free(key);
    return good;
}

static bool read_inputs(struct op_reader *reader)
{
    const struct sdp_op *op = reader->op->node.op;
    struct sdp_json inputs = sdp_json_member(reader->at, "inputs");
    char *keys[SDP_OP_MAX_INPUTS + 1] = {NULL};
    size_t count = 0;
    bool good;

    for (size_t i = 0; op->inputs && op->inputs[i]; i++) {
        if (op->inputs[i][0] != '#')
            keys[count++] = sdpi_graph_input_name(op->inputs[i], NULL);
        reader->op->node.input_count++;
    }
    good = !inputs.value || sdp_json_only_keys(&inputs, (const char *const *)keys);
    for (size_t i = 0; good && op->inputs && op->inputs[i]; i++)
        good = read_input_entry(reader, &inputs, op->inputs[i], i);
    while (count > 0)
        free(keys[--count]);
    if (good && sdpi_graph_reads_ids(op) && reader->layer->layer->index > 0)
        return sdp_json_fail(reader->at,
                             "\"%s\" reads the token ids, which only the "
                             "first layer can",
                             op->name);
    return good;
}

/* -- attributes --------------------------------------------------------------- */

static bool read_number_attr(const struct sdp_json *attrs, const struct sdp_op_attr *attr,
                             double *out)
{
    struct sdp_json member = sdp_json_member(attrs, attr->name);
    bool bounded = attr->min != 0.0 || attr->max != 0.0;

    if (json_is_boolean(member.value)) {
        *out = json_is_true(member.value) ? 1.0 : 0.0;
        return true;
    }
    return sdp_json_expect_double(&member, bounded ? attr->min : -HUGE_VAL,
                                  bounded ? attr->max : HUGE_VAL, out);
}

static bool read_attrs(struct op_reader *reader)
{
    const struct sdp_op_attr *table = reader->op->node.op->attrs;
    struct sdp_json attrs = sdp_json_member(reader->at, "attrs");
    const char *keys[SDP_OP_MAX_ATTRS + 1] = {NULL};
    double *values = reader->op->node.attr;

    for (size_t a = 0; table && table[a].name; a++)
        keys[a] = table[a].name;
    if (attrs.value && !sdp_json_only_keys(&attrs, keys))
        return false;
    for (size_t a = 0; table && table[a].name; a++) {
        int word = (int)table[a].fallback;
        bool good = true;

        values[a] = table[a].fallback;
        if (!json_object_get(attrs.value, table[a].name)) {
            if (table[a].required)
                return sdp_json_missing(&attrs, table[a].name);
        } else if (table[a].words) {
            good = sdp_json_get_choice(&attrs, table[a].name, table[a].words, &word);
            values[a] = word;
        } else {
            good = read_number_attr(&attrs, &table[a], &values[a]);
        }
        if (!good)
            return false;
    }
    return true;
}

/* -- parameters --------------------------------------------------------------- */

static bool read_shape(const struct sdp_json *at, bool is_vector, struct sdp_param *param)
{
    struct sdp_json shape = sdp_json_member(at, "shape");
    size_t length, wanted = is_vector ? 1 : 2;
    int64_t sizes[2] = {1, 1};

    if (!shape.value)
        return sdp_json_missing(at, "shape");
    if (!sdp_json_expect_array(&shape, &length))
        return false;
    if (length != wanted)
        return sdp_json_fail(&shape, "has %zu dimensions; must have %zu: %s", length,
                             wanted, is_vector ? "[length]" : "[rows, columns]");
    for (size_t d = 0; d < length; d++) {
        struct sdp_json size = sdp_json_element(&shape, d);
        if (!sdp_json_expect_int(&size, 1, (int64_t)MAX_DIMENSION, &sizes[d]))
            return false;
    }
    param->dims = (int)length;
    param->rows = is_vector ? 1 : (size_t)sizes[0];
    param->cols = (size_t)sizes[is_vector ? 0 : 1];
    param->count = param->rows * param->cols; /* both below 2^31 */
    return true;
}

static bool read_init(const struct sdp_json *at, struct sdp_param *param)
{
    static const char *const keys[] = {"std", "value", NULL};
    struct sdp_json init = sdp_json_member(at, "init");
    bool has_std, has_value;

    if (!init.value)
        return true;
    if (!sdp_json_only_keys(&init, keys))
        return false;
    has_std = json_object_get(init.value, "std") != NULL;
    has_value = json_object_get(init.value, "value") != NULL;
    if (has_std == has_value)
        return sdp_json_fail(&init, "must have either \"std\" or \"value\"");
    param->init_std = param->init_value = 0.0;
    if (has_value)
        return sdp_json_get_double(&init, "value", -1e30, 1e30, &param->init_value);
    if (!sdp_json_get_double(&init, "std", 0.0, 1e30, &param->init_std))
        return false;
    return param->init_std > 0.0 ||
           sdp_json_fail(&init, "has a \"std\" of 0; for a constant give \"value\"");
}

static bool check_owner(const struct op_reader *reader, const struct sdp_json *at,
                        const char *key)
{
    const struct sdpi_layer_reader *layer = reader->layer;
    struct sdp_json member = sdp_json_member(at, key);

    return layer->owns_storage || !member.value ||
           sdp_json_fail(&member, "is for the layer \"%s\" to say, whose storage this is",
                         layer->graph->storages[layer->layer->storage].name);
}

/* Reads a parameter's object; its name is left to the caller. */
static bool read_spec(const struct op_reader *reader, const struct sdp_json *at,
                      const struct sdp_op_weight *weight, struct sdp_param *out)
{
    static const char *const keys[] = {"name", "shape", "init", "decay", NULL};

    *out = (struct sdp_param){
        .decay = weight->decay,
        .init_std = weight->is_vector ? 0.0 : DEFAULT_STD,
        .init_value = weight->is_vector && strcmp(weight->name, "bias") != 0 ? 1.0 : 0.0,
    };
    return sdp_json_only_keys(at, keys) && check_owner(reader, at, "init") &&
           check_owner(reader, at, "decay") && read_shape(at, weight->is_vector, out) &&
           read_init(at, out) && sdp_json_get_bool(at, "decay", &out->decay);
}

static bool read_param_name(const struct op_reader *reader, const struct sdp_json *at,
                            char **out)
{
    struct sdp_json member = sdp_json_member(at, "name");
    const char *pattern = NULL;

    if (!member.value)
        return sdp_json_missing(at, "name");
    if (!sdp_json_expect_string(&member, &pattern) ||
        !sdpi_graph_check_name(&member, pattern, reader->layer->repeated))
        return false;
    *out = sdpi_graph_expand_name(pattern, reader->layer->copy);
    return true;
}

static bool add_param(struct op_reader *reader, const struct sdp_json *at,
                      struct sdp_param *param, size_t *index)
{
    struct sdp_model_graph *graph = reader->layer->graph;
    struct sdp_storage *storage = &graph->storages[reader->layer->layer->storage];
    struct sdp_json member = sdp_json_member(at, "name");

    if (json_object_get(reader->layer->params, param->name))
        return sdp_json_fail(&member,
                             "there are two parameters \"%s\"; their names must "
                             "be unique",
                             param->name);
    if (param->count > MAX_ELEMENTS - graph->parameters)
        return sdp_json_fail(at, "the graph has more than 2^48 parameters");
    json_object_set_new(reader->layer->params, param->name, json_true());
    param->offset = storage->count;
    storage->count = sdp_round_up(storage->count + param->count, SDP_PARAM_ALIGN);
    storage->parameters += param->count;
    graph->parameters += param->count;
    storage->params = sdp_xrealloc(storage->params,
                                   (storage->param_count + 1) * sizeof *storage->params);
    storage->params[storage->param_count] = *param;
    param->name = NULL; /* the storage's now */
    *index = storage->param_count++;
    return true;
}

static bool fail_shared(const struct sdp_storage *storage, const struct sdp_json *at,
                        const char *name)
{
    const char **names = sdp_xcalloc(storage->param_count + 1, sizeof *names), *nearest;

    for (size_t p = 0; p < storage->param_count; p++)
        names[p] = storage->params[p].name;
    nearest = sdp_nearest(name, names);
    free(names);
    return sdp_json_fail(at,
                         "\"%s\" is no parameter of the storage \"%s\"; a layer that "
                         "shares one has none of its own%s%s%s",
                         name, storage->name, nearest ? "; did you mean \"" : "",
                         nearest ? nearest : "", nearest ? "\"?" : "");
}

static bool share_param(struct op_reader *reader, const struct sdp_json *at,
                        const struct sdp_param *param, size_t *index)
{
    struct sdpi_layer_reader *layer = reader->layer;
    const struct sdp_storage *storage = &layer->graph->storages[layer->layer->storage];
    struct sdp_json name = sdp_json_member(at, "name"), shape;
    const struct sdp_param *there = NULL;

    for (size_t p = 0; p < storage->param_count && !there; p++) {
        if (strcmp(storage->params[p].name, param->name) == 0) {
            there = &storage->params[p];
            *index = p;
        }
    }
    if (!there)
        return fail_shared(storage, &name, param->name);
    if (layer->param_used[*index])
        return sdp_json_fail(&name, "\"%s\" is named twice in the layer", param->name);
    layer->param_used[*index] = true;
    shape = sdp_json_member(at, "shape");
    if (there->rows != param->rows || there->cols != param->cols ||
        there->dims != param->dims)
        return sdp_json_fail(&shape,
                             "\"%s\" is %zu x %zu here, but %zu x %zu in the "
                             "layer \"%s\"",
                             param->name, param->rows, param->cols, there->rows,
                             there->cols, storage->name);
    return true;
}

static bool read_weight(struct op_reader *reader, const struct sdp_json *at,
                        unsigned role)
{
    struct sdp_op_node *node = &reader->op->node;
    struct sdp_param param;
    size_t w = node->weight_count;
    bool good;

    if (w == SDP_OP_MAX_WEIGHTS)
        return sdp_json_fail(at, "the operation has more than %d weights",
                             SDP_OP_MAX_WEIGHTS);
    if (!sdp_json_expect_object(at) ||
        !read_spec(reader, at, &node->op->weights[role], &param) ||
        !read_param_name(reader, at, &param.name))
        return false;
    node->weight_rows[w] = param.rows;
    node->weight_cols[w] = param.cols;
    node->weight_role[w] = role;
    node->weight_count++;
    if (reader->layer->owns_storage)
        good = add_param(reader, at, &param, &reader->op->weights[w]);
    else
        good = share_param(reader, at, &param, &reader->op->weights[w]);
    free(param.name);
    return good;
}

/* One role of the table of weights: an object, or a list where the op takes many. */
static bool read_role(struct op_reader *reader, const struct sdp_json *weights,
                      unsigned role)
{
    const struct sdp_op_weight *weight = &reader->op->node.op->weights[role];
    struct sdp_json member = sdp_json_member(weights, weight->name);
    size_t count = 0;

    if (!member.value)
        return weight->optional || sdp_json_missing(weights, weight->name);
    if (!json_is_array(member.value))
        return read_weight(reader, &member, role);
    if (!weight->many)
        return sdp_json_wrong(&member, "one parameter: {\"name\": ..., \"shape\": ...}");
    count = json_array_size(member.value);
    if (count == 0 && !weight->optional)
        return sdp_json_fail(&member, "is empty; at least one parameter is needed");
    for (size_t i = 0; i < count; i++) {
        struct sdp_json element = sdp_json_element(&member, i);
        if (!read_weight(reader, &element, role))
            return false;
    }
    return true;
}

static bool read_weights(struct op_reader *reader)
{
    const struct sdp_op_weight *table = reader->op->node.op->weights;
    struct sdp_json weights = sdp_json_member(reader->at, "weights");
    const char *keys[SDP_OP_MAX_WEIGHTS + 1] = {NULL};

    for (size_t r = 0; table && table[r].name && r < SDP_OP_MAX_WEIGHTS; r++)
        keys[r] = table[r].name;
    if (weights.value && !sdp_json_only_keys(&weights, keys))
        return false;
    for (unsigned r = 0; table && table[r].name; r++)
        if (!read_role(reader, &weights, r))
            return false;
    return true;
}

/* -- outputs ------------------------------------------------------------------ */

static bool infer(struct op_reader *reader)
{
    struct sdp_op_node *node = &reader->op->node;
    struct sdp_error err = SDP_ERROR_INIT;
    enum sdp_status status;

    while (node->op->outputs && node->op->outputs[node->output_count])
        node->output_count++;
    status = node->op->infer(node, &err);
    return status == SDP_OK ||
           sdp_json_fail(reader->at, "%s",
                         err.text[0] ? err.text : sdp_status_message(status));
}

/* The tensor's name as the file says, or the operation's own. [new] */
static bool output_name(const struct op_reader *reader, const struct sdp_json *outputs,
                        size_t slot, char **out)
{
    const struct sdp_op_node *node = &reader->op->node;
    struct sdp_json member = sdp_json_member(outputs, node->op->outputs[slot]);
    const char *text = node->name;

    if (member.value && (!sdp_json_expect_string(&member, &text) ||
                         !sdpi_graph_check_name(&member, text, false)))
        return false;
    if (member.value || slot == 0)
        *out = sdp_xstrdup(text);
    else
        *out = sdp_xprintf("%s.%s", text, node->op->outputs[slot]);
    if (strcmp(*out, SDPI_INPUT) == 0)
        return sdp_json_fail(&member, "the name \"" SDPI_INPUT "\" is taken by what the "
                                      "layer reads");
    if (sdpi_graph_find_tensor(reader->layer->layer, *out) >= 0)
        return sdp_json_fail(&member,
                             "makes \"%s\" a second time; each tensor is made "
                             "once",
                             *out);
    return true;
}

static bool add_outputs(struct op_reader *reader)
{
    struct sdp_layer_op *op = reader->op;
    struct sdp_json outputs = sdp_json_member(reader->at, "outputs");

    if (outputs.value && !sdp_json_only_keys(&outputs, op->node.op->outputs))
        return false;
    for (size_t i = 0; i < op->node.output_count; i++) {
        char *name = NULL;

        if (!output_name(reader, &outputs, i, &name)) {
            free(name);
            return false;
        }
        op->outputs[i] =
            sdpi_graph_add_tensor(reader->layer, name, op->node.output_cols[i], false,
                                  (int)reader->index, (int)i);
    }
    for (size_t i = 0; i < op->node.aux_count; i++)
        op->aux[i] = sdpi_graph_add_tensor(
            reader->layer, sdp_xprintf("%s#aux%zu", op->node.name, i),
            op->node.aux_cols[i], true, (int)reader->index, SDP_OP_MAX_OUTPUTS + (int)i);
    return true;
}

/* -- the operation ------------------------------------------------------------ */

static const struct sdp_op *find_op(const struct sdp_json *at)
{
    struct sdp_json member = sdp_json_member(at, "op");
    const struct sdp_op *op = NULL;
    const char **names, *name = NULL, *nearest;
    size_t count = 0;

    if (!member.value) {
        sdp_json_missing(at, "op");
        return NULL;
    }
    if (!sdp_json_expect_string(&member, &name))
        return NULL;
    while (sdp_ops[count])
        count++;
    names = sdp_xcalloc(count + 1, sizeof *names);
    for (size_t i = 0; i < count; i++) {
        names[i] = sdp_ops[i]->name;
        if (strcmp(name, names[i]) == 0)
            op = sdp_ops[i];
    }
    nearest = op ? NULL : sdp_nearest(name, names);
    free(names);
    if (nearest)
        sdp_json_fail(&member, "unknown operation \"%s\"; did you mean \"%s\"?", name,
                      nearest);
    else if (!op)
        sdp_json_fail(&member,
                      "unknown operation \"%s\"; `slidedp graph --ops` lists "
                      "them",
                      name);
    return op;
}

static bool read_name(struct op_reader *reader)
{
    struct sdp_json member = sdp_json_member(reader->at, "name");
    const struct sdp_layer *layer = reader->layer->layer;
    const char *name = reader->op->node.op->name;

    if (member.value && (!sdp_json_expect_string(&member, &name) ||
                         !sdpi_graph_check_name(&member, name, false)))
        return false;
    for (size_t o = 0; o < reader->index; o++)
        if (strcmp(layer->ops[o].node.name, name) == 0)
            return sdp_json_fail(&member,
                                 "there are two operations \"%s\" in the layer; "
                                 "give each a \"name\" of its own",
                                 name);
    reader->op->node.name = sdp_xstrdup(name);
    return true;
}

/* Tables of embeddings all have as many rows. */
static bool note_vocabulary(const struct op_reader *reader)
{
    struct sdp_model_graph *graph = reader->layer->graph;
    const struct sdp_op_node *node = &reader->op->node;

    if (graph->vocabulary == 0 && node->weight_count > 0)
        graph->vocabulary = node->weight_rows[0];
    if (node->weight_count == 0 || graph->vocabulary == node->weight_rows[0])
        return true;
    return sdp_json_fail(reader->at,
                         "\"%s\" has a vocabulary of %zu ids, the embedding "
                         "before it one of %zu",
                         node->name, node->weight_rows[0], graph->vocabulary);
}

bool sdpi_graph_read_op(struct sdpi_layer_reader *layer, const struct sdp_json *at)
{
    static const char *const keys[] = {"op",    "name",    "inputs", "weights",
                                       "attrs", "outputs", NULL};
    struct op_reader reader = {.layer = layer, .index = layer->layer->op_count, .at = at};
    const struct sdp_op *op;

    if (!sdp_json_only_keys(at, keys))
        return false;
    op = find_op(at);
    if (!op)
        return false;
    reader.op = &layer->layer->ops[reader.index];
    reader.op->node.op = op;
    for (size_t i = 0; i < SDP_OP_MAX_INPUTS; i++)
        reader.op->inputs[i] = -1;
    for (size_t i = 0; i < SDP_OP_MAX_OUTPUTS; i++)
        reader.op->outputs[i] = reader.op->aux[i] = -1;
    if (!read_name(&reader))
        return false;
    layer->layer->op_count++; /* from here on the graph frees the operation */
    if (!read_inputs(&reader) || !read_attrs(&reader) || !read_weights(&reader) ||
        !infer(&reader) || !add_outputs(&reader))
        return false;
    if (op->is_loss)
        layer->layer->is_loss = true;
    if (reader.op->node.weight_count > 0 && op->backward_needs_weights)
        layer->layer->backward_needs_weights = true;
    return !sdpi_graph_reads_ids(op) || note_vocabulary(&reader);
}
