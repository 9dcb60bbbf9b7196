/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CPU twin of `add`, fp32. */
#include "codelets/common/vector_math.h"
#include "codelets/ops/ops.h"

SDPI_OP_TWINS(add);

SDPI_CLONES
static void sum(const float *a, const float *b, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

enum sdp_status sdp_add_forward_cpu(const struct sdp_op_call *call)
{
    sum(call->in[0], call->in[1], call->out[0],
        call->batch->tokens * call->node->output_cols[0]);
    return SDP_OK;
}

enum sdp_status sdp_add_backward_cpu(const struct sdp_op_call *call)
{
    size_t count = call->batch->tokens * call->node->output_cols[0];

    for (size_t i = 0; i < 2; i++) {
        if (!call->din[i])
            continue;
        if (call->add_din[i])
            sum(call->din[i], call->dout[0], call->din[i], count);
        else if (call->din[i] != call->dout[0])
            memcpy(call->din[i], call->dout[0], count * sizeof(float));
    }
    return SDP_OK;
}
