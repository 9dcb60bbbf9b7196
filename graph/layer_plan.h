/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The plan of one layer on one device: for each tensor where it lies in the
 * forward and in the backward pass, which operations the backward pass repeats,
 * and which gradients are written and which added to. Layers of one template
 * share a plan. Offsets are found once by liveness, so that a step allocates nothing. */
#ifndef SDP_GRAPH_LAYER_PLAN_H
#define SDP_GRAPH_LAYER_PLAN_H

#include "graph/model_graph.h"

enum sdp_place_kind {
    SDP_PLACE_NONE = 0,  /* not there in this pass */
    SDP_PLACE_INPUT,     /* the boundary tensor the layer reads */
    SDP_PLACE_OUTPUT,    /* the boundary tensor it writes */
    SDP_PLACE_SAVED,     /* kept from forward to backward: one area a (layer, micro-batch) */
    SDP_PLACE_SCRATCH,   /* the worker's scratch */
    SDP_PLACE_GRADIENT   /* the boundary gradient: output's on entry, input's on exit */
};

struct sdp_place {
    enum sdp_place_kind kind;
    size_t offset; /* bytes in its area */
};

struct sdp_layer_plan {
    const struct sdp_layer *layer; /* the first of its template */
    size_t tokens, sequence_length;
    enum sdp_dtype dtype;
    bool cuda;

    struct sdp_place *forward;  /* per tensor */
    struct sdp_place *backward; /* per tensor, in the backward pass */
    struct sdp_place *gradient; /* per tensor: its gradient */
    bool *saved;                /* per tensor */
    bool *recompute;            /* per op: run its forward again in the backward pass */
    bool (*add_din)[SDP_OP_MAX_INPUTS]; /* per op */
    bool copy_input_gradient;   /* the input's gradient ends in scratch: copy it to the boundary */
    size_t level, levels;       /* which rung of the ladder of saved tensors; rungs there are */

    size_t tensor_bytes_total;  /* all tensors once, for reports */
    size_t saved_bytes;         /* of one (layer, micro-batch) */
    size_t forward_scratch, backward_scratch; /* bytes, work included */
    /* Per op: offset of its work area in scratch, when it runs in the forward pass, again in the backward pass, backward. */
    size_t *forward_work, *recompute_work, *backward_work;
    double forward_flops, backward_flops;     /* backward without recompute */
    double recompute_flops;
};

/* What a layer saves is a ladder: level 0 saves nothing (all is recomputed from the layer's input); each further
 * level saves the outputs of one more operation, those first that cost the most time to recompute for a byte saved;
 * the level before the last saves the outputs of every costly operation, so that only cheap ones (no FLOPs: norms,
 * rotations, activations) run again; the last saves all that the backward pass reads. The bits of the result are
 * the same on every level. */
#define SDP_LEVEL_ALL SIZE_MAX

/** `level`: see above; larger ones than there are mean the last. [new] *out. */
SDP_CHECK_RESULT enum sdp_status sdp_layer_plan_create(const struct sdp_layer *layer, size_t tokens, size_t sequence_length,
                                      enum sdp_dtype dtype, bool cuda, size_t level,
                                      struct sdp_layer_plan **out, struct sdp_error *err);
void sdp_layer_plan_destroy(struct sdp_layer_plan *plan);

enum sdp_op_pass { SDP_PASS_FORWARD, SDP_PASS_RECOMPUTE, SDP_PASS_BACKWARD, SDP_PASSES };

/* What a layer needs to run on one micro-batch. */
struct sdp_layer_io {
    const struct sdp_layer_plan *plan;
    const struct sdp_op_batch *batch;
    const struct sdp_op_device *device;
    const void *weights;   /* start of the packed weights, compute dtype */
    float *gradients;      /* start of the packed fp32 gradients (backward) */
    bool add_gradients;    /* add to them: not the first contribution of the step */
    const struct sdp_storage *storage;
    void *input, *output;  /* boundary tensors [tokens, hidden] */
    void *gradient;        /* boundary gradient [tokens, hidden] */
    uint8_t *saved, *scratch;
    float loss_scale;      /* loss layers */
    double *loss;
    float *logits;
    bool want_gradient;
    /* For measurements: called after each operation was run (CUDA: enqueued). NULL: not wanted. */
    void (*after_op)(void *context, size_t op, enum sdp_op_pass pass);
    void *context;
};

/** Runs the layer's operations; CUDA: enqueues them. A loss layer runs its loss and gradient in sdp_layer_backward
 * (forward alone with want_gradient false evaluates). Any thread; scratch must be the caller's own. */
enum sdp_status sdp_layer_forward(const struct sdp_layer_io *io);
enum sdp_status sdp_layer_backward(const struct sdp_layer_io *io);

#endif
