/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* fp32 weights from their two stored halves, for ranks that compute in fp32 on the CPU. */
#ifndef SDP_CODELETS_DELIVER_ASSEMBLE_H
#define SDP_CODELETS_DELIVER_ASSEMBLE_H

#include "graph/base/util.h"

/** out[i] = the exact fp32 master weight of weight[i] (bf16) and remainder[i]. out overlaps
 * neither. No alignment beyond the types' own is needed. */
void sdp_assemble(const uint16_t *weight, const int16_t *remainder, float *out, size_t count);

#endif
