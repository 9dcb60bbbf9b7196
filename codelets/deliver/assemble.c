/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* fp32 weights from their two stored halves. */
#include "codelets/deliver/assemble.h"

#include "codelets/common/vector.h"

SDP_VECTOR void sdp_assemble(const uint16_t *weight, const int16_t *remainder, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = sdp_master_join(weight[i], remainder[i]);
}
