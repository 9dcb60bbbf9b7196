/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef SDP_CODELETS_METRICS_NORM_H
#define SDP_CODELETS_METRICS_NORM_H

#include <stddef.h>

/** Square root of the sum of the blocks' sums of squares, in block order. */
double sdp_norm_of_blocks(const double *norms, size_t block_count);

#endif
