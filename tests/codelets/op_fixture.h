/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A case with its values, what the reference makes of it, and the memory and the calls
 * with which a twin makes the same. */
#ifndef SDP_TESTS_CODELETS_OP_FIXTURE_H
#define SDP_TESTS_CODELETS_OP_FIXTURE_H

#include "tests/codelets/op_array.h"
#include "tests/codelets/op_cases.h"
#include "tests/codelets/reference.h"

#define OP_LOSS_SCALE 0.125 /* exact in fp32 */

struct op_fixture {
    const struct sdp_op_check *check;
    const struct sdp_op_case *test;
    char *label;
    struct sdp_op_node node;
    struct sdp_op_batch batch, host_batch;
    struct op_array indices; /* what batch points into */
    int32_t *host_indices;
    struct op_array in[SDP_OP_MAX_INPUTS], dout[SDP_OP_MAX_OUTPUTS];
    struct op_array weight[SDP_OP_MAX_WEIGHTS]; /* only the first if they are one run */
    size_t offset[SDP_OP_MAX_WEIGHTS];          /* of a weight in that run */
    const struct sdp_reference_op *reference_op;
    struct sdp_reference reference;
};

/* What one call writes. */
struct op_outputs {
    struct op_array out[SDP_OP_MAX_OUTPUTS], aux[SDP_OP_MAX_OUTPUTS];
    struct op_array din[SDP_OP_MAX_INPUTS], dweight[SDP_OP_MAX_WEIGHTS];
    struct op_array work, loss, logits;
};

enum op_flags {
    OP_ADD = 1,    /* gradients are added to what is there */
    OP_WEIGHTS = 2 /* gradients of weights only */
};

/** Draws all values, always the same, and runs the reference. Ends the test if infer()
 * refuses the case. [new] */
void op_fixture_make(struct op_fixture *f, const struct sdp_op_check *check,
                     const struct sdp_op *op, const struct sdp_op_case *test);
void op_fixture_destroy(struct op_fixture *f);

size_t op_weight_size(const struct op_fixture *f, size_t w);
/** Index of the array that holds weight w, from element offset[w] on. */
size_t op_weight_array(const struct op_fixture *f, size_t w);

/** Memory for all that any call may write; scratch for the larger of both directions.
 * [new] */
struct op_outputs op_outputs_new(struct op_fixture *f);
void op_outputs_destroy(struct op_outputs *o);

/** Fills what a call is to write with NaN, and scratch with that byte. With OP_ADD,
 * gradients are random instead; what lies between weights always is. */
void op_prepare_forward(struct op_outputs *o, int scratch);
void op_prepare_backward(const struct op_fixture *f, struct op_outputs *o, unsigned flags,
                         int scratch);

/** Calls of a twin; the backward one has out and aux of `forward`, and nothing that the
 * operation does not declare as needed. */
struct sdp_op_call op_forward_call(const struct op_fixture *f,
                                   const struct op_outputs *o);
struct sdp_op_call op_backward_call(const struct op_fixture *f,
                                    const struct op_outputs *forward,
                                    const struct op_outputs *o, unsigned flags);

#endif
