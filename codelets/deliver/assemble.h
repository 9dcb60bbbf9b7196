/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef SDP_CODELETS_DELIVER_ASSEMBLE_H
#define SDP_CODELETS_DELIVER_ASSEMBLE_H

#include "graph/base/util.h"

/** out[i] = the exact fp32 master weight of weight[i] (bf16) and remainder[i]. */
void sdp_assemble(const uint16_t *weight, const int16_t *remainder, float *out, size_t count);

#endif
