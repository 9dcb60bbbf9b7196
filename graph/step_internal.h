/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The parts of a step: step.c (order), step_visit.c (a layer on a device), step_offload.c (activations in host memory),
 * step_tail.c (gradients, updates, metrics). */
#ifndef SDP_GRAPH_STEP_INTERNAL_H
#define SDP_GRAPH_STEP_INTERNAL_H

#include "graph/engine_internal.h"

/* One visit of a layer by a device. */
struct sdpi_visit {
    struct sdp_engine *engine;
    struct sdpi_device *device;
    const struct sdp_visit *plan;
    const struct sdp_layer *layer;
    size_t step, storage, class, slot, chunks;
    float loss_scale;
    const struct sdpi_batch_facts *facts;
};

SDP_CHECK_RESULT enum sdp_status sdpi_submit_visit(struct sdpi_visit *v, struct sdp_error *err);

/** Adds an area to a forward or backward task: its buffer, and what keeps its slot while it is offloaded. `mode`:
 * STARPU_W writes it (its layer's forward), STARPU_R reads it. Returns the buffer's index. */
int sdpi_offload_buffer(struct sdpi_visit *v, struct sdpi_builder *b, enum sdpi_area area, size_t layer, size_t k,
                        enum starpu_data_access_mode mode);
/** Builds the task that brings an offloaded area back before its backward visit, or that takes it to the host after its
 * last use in the forward pass. Returns the number of tasks: 1, or 0 for an area that is not offloaded. */
size_t sdpi_offload_fetch(struct sdpi_visit *v, struct sdpi_builder *b, enum sdpi_area area, size_t layer, size_t k);
size_t sdpi_offload_store(struct sdpi_visit *v, struct sdpi_builder *b, enum sdpi_area area, size_t layer, size_t k);

/** After the last backward visit of a storage: drains and updates, or the reductions of a two-phase step. */
SDP_CHECK_RESULT enum sdp_status sdpi_submit_tail(struct sdp_engine *e, size_t step, size_t storage, size_t layer,
                                                  struct sdp_error *err);
/** Two-phase: the norm, then (if wanted) all updates in forward order. */
SDP_CHECK_RESULT enum sdp_status sdpi_submit_clip(struct sdp_engine *e, size_t step, bool update, struct sdp_error *err);
SDP_CHECK_RESULT enum sdp_status sdpi_submit_metrics(struct sdp_engine *e, size_t step, double scale, struct sdp_error *err);

#endif
