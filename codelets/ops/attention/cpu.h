/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of attention (graph/op.h for the contract). */
#ifndef SDP_CODELETS_OPS_ATTENTION_CPU_H
#define SDP_CODELETS_OPS_ATTENTION_CPU_H

#include "graph/op.h"

enum sdp_status sdp_attention_forward_cpu(const struct sdp_op_call *call);
enum sdp_status sdp_attention_backward_cpu(const struct sdp_op_call *call);
size_t sdp_attention_work_cpu(const struct sdp_op_node *node, size_t tokens,
                              size_t sequence_length, bool backward);

#endif
