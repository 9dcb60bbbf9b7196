/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Questions to a model graph, and its end. */
#include "graph/model_graph_internal.h"

#include <stdlib.h>

static void destroy_layer(struct sdp_layer *layer)
{
    for (size_t t = 0; t < layer->tensor_count; t++)
        free(layer->tensors[t].name);
    for (size_t o = 0; o < layer->op_count; o++)
        free(layer->ops[o].node.name);
    free(layer->tensors);
    free(layer->ops);
    free(layer->name);
    free(layer->template_name);
}

static void destroy_storage(struct sdp_storage *storage)
{
    for (size_t p = 0; p < storage->param_count; p++)
        free(storage->params[p].name);
    free(storage->params);
    free(storage->name);
}

void sdp_model_graph_destroy(struct sdp_model_graph *graph)
{
    if (!graph)
        return;
    for (size_t l = 0; l < graph->layer_count; l++)
        destroy_layer(&graph->layers[l]);
    for (size_t s = 0; s < graph->storage_count; s++)
        destroy_storage(&graph->storages[s]);
    free(graph->layers);
    free(graph->storages);
    free(graph->name);
    free(graph);
}

bool sdp_model_graph_find_param(const struct sdp_model_graph *graph, const char *name,
                                size_t *storage, size_t *param)
{
    for (size_t s = 0; s < graph->storage_count; s++) {
        for (size_t p = 0; p < graph->storages[s].param_count; p++) {
            if (strcmp(graph->storages[s].params[p].name, name) != 0)
                continue;
            *storage = s;
            *param = p;
            return true;
        }
    }
    return false;
}

/* Columns of all heads of an attention operation; 0 for any other. */
static double attention_width(const struct sdp_op_node *node)
{
    if (strcmp(node->op->name, "attention") != 0)
        return 0.0;
    return sdp_op_attr(node, "heads") * sdp_op_attr(node, "head_dim");
}

double sdp_model_graph_flops(const struct sdp_model_graph *graph, size_t tokens,
                             size_t sequence_length)
{
    double width = 0.0;

    for (size_t l = 0; l < graph->layer_count; l++)
        for (size_t o = 0; o < graph->layers[l].op_count; o++)
            width += attention_width(&graph->layers[l].ops[o].node);
    return 6.0 * (double)tokens *
           ((double)graph->parameters_without_embedding +
            width * (double)sequence_length);
}

/* -- for the other files ------------------------------------------------------ */

int sdpi_graph_find_tensor(const struct sdp_layer *layer, const char *name)
{
    for (size_t t = 0; t < layer->tensor_count; t++)
        if (strcmp(layer->tensors[t].name, name) == 0)
            return (int)t;
    return -1;
}

char *sdpi_graph_input_name(const char *entry, bool *optional)
{
    size_t length = strlen(entry);
    char *name = sdp_xstrdup(entry);
    bool marked = length > 0 && entry[length - 1] == '?';

    if (marked)
        name[length - 1] = '\0';
    if (optional)
        *optional = marked;
    return name;
}

bool sdpi_graph_reads_ids(const struct sdp_op *op)
{
    for (size_t i = 0; op->inputs && op->inputs[i]; i++)
        if (op->inputs[i][0] != '#')
            return false;
    return true;
}

char *sdpi_graph_expand_name(const char *pattern, size_t number)
{
    char *name = sdp_xstrdup("");

    for (;;) {
        const char *mark = strstr(pattern, SDPI_INDEX);
        char *longer;

        if (!mark) {
            longer = sdp_xprintf("%s%s", name, pattern);
            free(name);
            return longer;
        }
        longer = sdp_xprintf("%s%.*s%zu", name, (int)(mark - pattern), pattern, number);
        free(name);
        name = longer;
        pattern = mark + strlen(SDPI_INDEX);
    }
}
