/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of cross_entropy (graph/op.h for the contract). */
#ifndef SDP_CODELETS_OPS_CROSS_ENTROPY_CPU_H
#define SDP_CODELETS_OPS_CROSS_ENTROPY_CPU_H

#include "graph/op.h"

enum sdp_status sdp_cross_entropy_forward_cpu(const struct sdp_op_call *call);
size_t sdp_cross_entropy_work_cpu(const struct sdp_op_node *node, size_t tokens,
                                  size_t sequence_length, bool backward);

#endif
