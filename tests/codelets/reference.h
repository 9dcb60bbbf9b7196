/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the operations should compute: plain loops in double, written from the formulas,
 * with nothing in common with the twins. */
#ifndef SDP_TESTS_CODELETS_REFERENCE_H
#define SDP_TESTS_CODELETS_REFERENCE_H

#include "graph/op.h"

/* The memory of a call, as in struct sdp_op_call but in double. Absent ones are NULL.
 * Gradients are of sum(dout * out), or of loss * loss_scale. */
struct sdp_reference {
    const struct sdp_op_node *node;
    const struct sdp_op_batch *batch;
    double *in[SDP_OP_MAX_INPUTS], *weight[SDP_OP_MAX_WEIGHTS];
    double *out[SDP_OP_MAX_OUTPUTS], *aux[SDP_OP_MAX_OUTPUTS];
    double *dout[SDP_OP_MAX_OUTPUTS], *din[SDP_OP_MAX_INPUTS];
    double *dweight[SDP_OP_MAX_WEIGHTS];
    double *logits; /* of a loss */
    double loss, loss_scale;
};

struct sdp_reference_op {
    const char *name;
    /** Sets out and aux, or logits and loss. NaN: may be anything. */
    void (*forward)(struct sdp_reference *r);
    /** Adds the gradients to din and dweight. Called after forward. */
    void (*backward)(struct sdp_reference *r);
};

/** The reference of an operation, or NULL. */
const struct sdp_reference_op *sdp_reference_find(const char *op);

#endif
