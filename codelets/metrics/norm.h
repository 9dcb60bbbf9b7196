/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef SDP_CODELETS_METRICS_NORM_H
#define SDP_CODELETS_METRICS_NORM_H

#include <stddef.h>

/** Square root of the sum of the blocks' sums of squares, in block order. A block's is in `norms`, or in `device_norms`
 * (NULL: none) where a device holds its state; the other is 0. */
double sdp_norm_of_blocks(const double *norms, const double *device_norms, size_t block_count);

#endif
