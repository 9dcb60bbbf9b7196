/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Normal numbers by counter, fast enough for billions. */
#ifndef SDP_MODEL_STATE_NORMAL_H
#define SDP_MODEL_STATE_NORMAL_H

#include "graph/base/util.h"

/** values[i] = std times a standard normal number that depends on (key, first + i)
 * only. `first` is even. Thread safe. */
void sdpi_fill_normal(float *values, uint64_t key, uint64_t first, size_t count, float std);

#endif
