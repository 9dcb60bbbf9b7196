/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The model graph: layers, each a list of operations on named tensors, with
 * shapes inferred and checked. It is made from a JSON graph (written by hand or
 * by `slidedp graph`) or from a family template and a Hugging Face config.json
 * (model/families/), and says nothing about devices or tasks.
 *
 * A layer is the unit that streams. Its parameters are packed into one *storage*
 * (layers may share one: a tied head names the embedding's storage); a storage
 * is split into blocks and chunks by model/state/. Each layer reads one boundary
 * tensor and writes one (the first reads token ids, the last is the loss). */
#ifndef SDP_GRAPH_MODEL_GRAPH_H
#define SDP_GRAPH_MODEL_GRAPH_H

#include "graph/op.h"

#include <jansson.h>

/* Elements between the starts of packed tensors: 256 bytes of bf16. */
#define SDP_PARAM_ALIGN 128u

struct sdp_param {
    char *name;          /* checkpoint name: "model.layers.3.mlp.up_proj.weight" */
    size_t rows, cols;   /* vectors: rows = 1 */
    int dims;            /* 1 or 2 as in the checkpoint */
    size_t count;        /* rows * cols */
    size_t offset;       /* elements from the start of its storage; multiple of SDP_PARAM_ALIGN */
    bool decay;          /* gets weight decay by default */
    double init_std;     /* random initialisation: normal(0, init_std); 0: constant init_value */
    double init_value;
};

struct sdp_storage {
    char *name;               /* name of the layer that owns it */
    struct sdp_param *params; /* in packed order: the order in which ops name them */
    size_t param_count;
    size_t count;             /* packed elements, padding included; multiple of SDP_PARAM_ALIGN */
    size_t parameters;        /* without padding */
};

struct sdp_graph_tensor {
    char *name;             /* unique within the layer */
    size_t cols;
    bool fp32;              /* aux statistics; else the compute dtype */
    int producer;           /* op index, or -1: the layer's input */
    int producer_slot;      /* which output; aux tensors: SDP_OP_MAX_OUTPUTS + index */
};

struct sdp_layer_op {
    struct sdp_op_node node;
    int inputs[SDP_OP_MAX_INPUTS];   /* tensor index in the layer, or -1: absent */
    int outputs[SDP_OP_MAX_OUTPUTS]; /* tensor index */
    int aux[SDP_OP_MAX_OUTPUTS];     /* tensor index */
    size_t weights[SDP_OP_MAX_WEIGHTS]; /* parameter index in the layer's storage */
};

struct sdp_layer {
    char *name;             /* "embedding", "block.3", "norm", "head" */
    char *template_name;    /* name of the (repeated) layer it came from: layers of one template
                               have equal ops and shapes, so one plan serves all */
    size_t index;           /* in the graph */
    size_t storage;         /* in the graph */
    struct sdp_graph_tensor *tensors;
    size_t tensor_count;
    struct sdp_layer_op *ops;
    size_t op_count;
    int input;              /* tensor index of the boundary input, -1: token ids only */
    int output;             /* tensor index of the boundary output, -1: the loss */
    bool is_loss;
    bool backward_needs_weights;
};

struct sdp_model_graph {
    char *name;             /* "qwen3" or what the file says */
    size_t vocabulary;      /* rows of the embedding */
    size_t hidden;          /* columns of the boundary tensors */
    size_t max_sequence_length; /* 0: unlimited */
    struct sdp_layer *layers;
    size_t layer_count;
    struct sdp_storage *storages;
    size_t storage_count;
    size_t parameters;      /* all, tied ones once, without padding */
    size_t parameters_without_embedding; /* without tables of embedding ops unless they are tied to a loss layer */
};

/** Builds a graph from a JSON graph document. `file` is used in messages.
 * [new] *out: sdp_model_graph_destroy(). */
SDP_CHECK_RESULT enum sdp_status sdp_model_graph_from_json(const json_t *document, const char *file,
                                          struct sdp_model_graph **out, struct sdp_error *err);
SDP_CHECK_RESULT enum sdp_status sdp_model_graph_load(const char *path, struct sdp_model_graph **out, struct sdp_error *err);

/** The expanded graph as JSON, accepted again by sdp_model_graph_from_json (repeated layers written once with
 * "repeat"). [new] json_decref(). */
SDP_CHECK_RESULT json_t *sdp_model_graph_dump(const struct sdp_model_graph *graph);

void sdp_model_graph_destroy(struct sdp_model_graph *graph);

/** Model FLOPs of one step: 6 x parameters (without an untied embedding) x tokens + causal attention
 * (6 x layers x heads x head_dim x sequence x tokens); recompute not counted. */
double sdp_model_graph_flops(const struct sdp_model_graph *graph, size_t tokens, size_t sequence_length);

/** Finds a parameter by checkpoint name; false if there is none. */
bool sdp_model_graph_find_param(const struct sdp_model_graph *graph, const char *name, size_t *storage, size_t *param);

#endif
