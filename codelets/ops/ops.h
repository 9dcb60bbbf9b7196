/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the tables of the operations (codelets/ops/<op>/op.c) share: the declarations of
 * an operation's twins, and the checks of shapes and attributes that infer() makes. */
#ifndef SDP_CODELETS_OPS_OPS_H
#define SDP_CODELETS_OPS_OPS_H

#include "codelets/ops/shapes.h"

/* Declares the twins of the operation `op`. Those that it has not are never named. */
#define SDPI_OP_TWINS(op)                                                                \
    enum sdp_status sdp_##op##_forward_cpu(const struct sdp_op_call *call);              \
    enum sdp_status sdp_##op##_backward_cpu(const struct sdp_op_call *call);             \
    size_t sdp_##op##_work_cpu(const struct sdp_op_node *node, size_t tokens,            \
                               size_t sequence_length, bool backward);                   \
    enum sdp_status sdp_##op##_forward_cuda(const struct sdp_op_call *call);             \
    enum sdp_status sdp_##op##_backward_cuda(const struct sdp_op_call *call);            \
    size_t sdp_##op##_work_cuda(const struct sdp_op_node *node, size_t tokens,           \
                                size_t sequence_length, enum sdp_dtype dtype,            \
                                bool backward)

/* Value of a work_bytes(): from the CUDA twin where it is built, or `cpu`. */
#ifdef SDP_HAVE_CUDA
#define SDPI_OP_WORK(op, cpu)                                                            \
    (cuda ? sdp_##op##_work_cuda(node, tokens, sequence_length, dtype, backward) : (cpu))
#else
#define SDPI_OP_WORK(op, cpu)                                                            \
    ((void)cuda, (void)dtype, (void)node, (void)tokens, (void)sequence_length,           \
     (void)backward, (cpu))
#endif

/* Largest attribute that counts something; all of them fit a size_t and an int. */
#define SDPI_OP_MAX_SIZE 1073741824.0

/** SDP_OK if has == wanted; else fails with `"name" has ... unit; must have ..., why`. */
enum sdp_status sdpi_op_check(struct sdp_error *err, const char *name, size_t has,
                              const char *unit, size_t wanted, const char *why);

/** Fails unless the attribute is a whole number; *out is its value. */
enum sdp_status sdpi_op_whole(const struct sdp_op_node *node, struct sdp_error *err,
                              const char *name, size_t *out);

/** Reads and checks the attributes heads, kv_heads and head_dim, against each other and
 * the columns of the input "qkv". */
enum sdp_status sdpi_heads_check(const struct sdp_op_node *node, struct sdp_error *err,
                                 struct sdpi_heads *out);

/** backward_needs() of an operation that needs its first input only, and of one that
 * needs nothing. */
unsigned sdpi_op_needs_input(const struct sdp_op_node *node);
unsigned sdpi_op_needs_nothing(const struct sdp_op_node *node);

/** flops() of an elementwise operation, which is not counted: 0. */
double sdpi_op_no_flops(const struct sdp_op_node *node, size_t tokens,
                        size_t sequence_length, bool backward);

#endif
