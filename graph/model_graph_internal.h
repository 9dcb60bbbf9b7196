/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of the model graph share: model_graph_load.c reads documents
 * and layers, model_graph_op.c the operations of a layer, model_graph_dump.c
 * writes, model_graph.c answers questions. */
#ifndef SDP_GRAPH_MODEL_GRAPH_INTERNAL_H
#define SDP_GRAPH_MODEL_GRAPH_INTERNAL_H

#include "graph/base/json.h"
#include "graph/model_graph.h"

#define SDPI_INDEX "{i}"   /* in names of repeated layers: the number of the copy */
#define SDPI_INPUT "input" /* the boundary tensor that a layer reads */

/* One layer while it is read. Pointers into the graph's arrays are only good
 * until the next layer is begun. */
struct sdpi_layer_reader {
    struct sdp_model_graph *graph;
    struct sdp_layer *layer;
    json_t *params;    /* [borrowed] set of the parameter names of the whole graph */
    bool repeated;     /* names carry SDPI_INDEX ... */
    size_t copy;       /* ... which stands for this number */
    bool owns_storage; /* false: may only name parameters that are there */
    const json_t *ops; /* [borrowed] all operations of the layer, to look ahead */
    bool *read;        /* per tensor: some operation reads it, or it is the output */
    bool *param_used;  /* per parameter of the storage: an op of this layer names it */
};

/** Reads the next operation of the layer, from the cursor. */
bool sdpi_graph_read_op(struct sdpi_layer_reader *reader, const struct sdp_json *at);

/** Adds a tensor to the layer; its index. [steals] name. */
int sdpi_graph_add_tensor(struct sdpi_layer_reader *reader, char *name, size_t cols,
                          bool fp32, int producer, int slot);
/** Index of the layer's tensor of that name, or -1. */
int sdpi_graph_find_tensor(const struct sdp_layer *layer, const char *name);

/** Checks a name of a layer, operation or tensor: letters, digits and _ . - only, and
 * "{i}" where `indexed`. */
bool sdpi_graph_check_name(const struct sdp_json *at, const char *name, bool indexed);
/** The pattern with every "{i}" replaced by the number. [new] free() it. */
char *sdpi_graph_expand_name(const char *pattern, size_t number);

/** An input of an operation's table without its mark: "residual?" is "residual".
 * [new] free() it. `optional` may be NULL. */
char *sdpi_graph_input_name(const char *entry, bool *optional);
/** The op has no input but the token ids. */
bool sdpi_graph_reads_ids(const struct sdp_op *op);

#endif
