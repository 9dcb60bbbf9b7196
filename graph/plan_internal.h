/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the parts of a plan share: plan_machine.c (devices, batch, dtypes), plan_visits.c (storages, visits, slots),
 * plan_memory.c (bytes), plan_search.c (micro-batch, group, activations, resident state). */
#ifndef SDP_GRAPH_PLAN_INTERNAL_H
#define SDP_GRAPH_PLAN_INTERNAL_H

#include "graph/plan.h"

/** Largest divisor of n that is at most `limit` (at least 1). */
size_t sdpi_largest_divisor(size_t n, size_t limit);

SDP_CHECK_RESULT enum sdp_status sdpi_plan_devices(struct sdp_plan *plan, struct sdp_error *err);
SDP_CHECK_RESULT enum sdp_status sdpi_plan_check_devices(const struct sdp_plan *plan, struct sdp_error *err);
SDP_CHECK_RESULT enum sdp_status sdpi_plan_batch(struct sdp_plan *plan, size_t sequences, struct sdp_error *err);
SDP_CHECK_RESULT enum sdp_status sdpi_plan_dtypes(struct sdp_plan *plan, struct sdp_error *err);
/** Bytes that may be used: the least of all devices; the host's. */
size_t sdpi_plan_device_memory(const struct sdp_plan *plan);
size_t sdpi_plan_host_memory(const struct sdp_plan *plan);

/** Groups storages into classes. */
SDP_CHECK_RESULT enum sdp_status sdpi_plan_classify(struct sdp_plan *plan, struct sdp_error *err);
/** From group, resident storages and layer plans: visits, accumulators and slots. */
void sdpi_plan_visits(struct sdp_plan *plan);
/** From all of these: the memory items. */
void sdpi_plan_memory(struct sdp_plan *plan);
/** Bytes by which the plan exceeds what may be used of a device and of the host. */
void sdpi_plan_excess(const struct sdp_plan *plan, size_t *device, size_t *host);

/** Micro-batch, group, activation levels, offloaded layers, resident storages: the fastest by the step-time model of
 * what fits. Leaves the plan with that choice, or, when nothing fits, with the one that lacks least. */
SDP_CHECK_RESULT enum sdp_status sdpi_plan_search(struct sdp_plan *plan, struct sdp_error *err);
void sdpi_plan_destroy_layers(struct sdp_plan *plan);

#endif
