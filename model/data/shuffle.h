/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A shuffled order that needs no memory: the i-th element is computed, so that a run can
 * begin anywhere in the stream. */
#ifndef SDP_MODEL_DATA_SHUFFLE_H
#define SDP_MODEL_DATA_SHUFFLE_H

#include <stdint.h>

/** Where element `index` of 0 .. count-1 (count at most 2^62) goes in the order chosen by
 * `seed` and `epoch`: for each pair of these a permutation of 0 .. count-1. Thread: any.
 */
uint64_t sdp_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t index);

#endif
