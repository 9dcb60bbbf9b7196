/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The plan: every choice the job left open, and what the run will need of each
 * memory. `slidedp plan` prints it, plan.json records it, the engine follows it. */
#ifndef SDP_GRAPH_PLAN_H
#define SDP_GRAPH_PLAN_H

#include "graph/job.h"
#include "graph/layer_plan.h"
#include "graph/model_graph.h"
#include "graph/step_time.h"
#include "model/state/host_state.h"

#include <jansson.h>

#define SDP_MAX_DEVICES 16
#define SDP_MAX_MICRO_BATCHES 220 /* of one step, all ranks */
#define SDP_LANDING_BYTES ((size_t)4 << 30) /* at most: gradients of a class of storages on their way to the host */
#define SDP_OFFLOAD_SLOTS 3       /* offloaded saved areas on a device at once; of boundaries, that many more than a group has */
#define SDP_STEPS_IN_FLIGHT 3 /* batches, losses and norms are kept for so many steps */

/* Storages with the same size and the same chunks share slots. */
struct sdp_storage_class {
    size_t first;          /* a member; all have its chunk layout */
    size_t members;
    size_t resident;       /* members whose state stays on the device: neither slots nor landing gradients */
    size_t count;          /* packed elements */
    size_t chunk_count;
    size_t weight_slots;   /* layers of this class a device holds at once */
    size_t gradient_slots; /* gradients of this class on their way, of each rank */
};

/* One visit of a layer by a device, in the order of a step. */
struct sdp_visit {
    size_t layer;
    size_t group;          /* of micro-batches */
    bool backward;
    bool needs_weights;
    size_t tenure;         /* which stay of its storage in a slot; SIZE_MAX: needs none (no weights, or resident ones) */
    bool first_of_tenure, last_of_tenure;
    bool first_gradient, last_gradient; /* of its storage in the step (backward visits) */
};

struct sdp_memory_item {
    const char *name;
    size_t bytes;
    bool device;           /* on each device, else on the host */
};

struct sdp_task_counts {
    size_t deliver, forward, backward, drain, reduce, clip, update, metrics, store, fetch;
};

struct sdp_plan {
    const struct sdp_job *job;             /* [borrowed] */
    const struct sdp_model_graph *graph;   /* [borrowed] */

    size_t cores;
    bool cuda;
    size_t device_count;                   /* CPU ranks share one device, the host */
    size_t ranks;
    size_t first_rank[SDP_MAX_DEVICES + 1]; /* device d serves ranks first_rank[d] .. first_rank[d + 1] - 1 */

    size_t steps, sequence_length, sequences_per_step;
    size_t micro_batch;                    /* sequences */
    size_t micro_batches;                  /* of one rank and step */
    size_t group;                          /* micro-batches of a rank that pass a layer before the next layer */
    size_t groups;                         /* of a step */
    size_t tokens;                         /* of one micro-batch */

    enum sdp_dtype compute, gradient;      /* gradient: as it leaves the rank */
    bool accumulator;                      /* gradients are summed in fp32 on the device and leave as bf16 */
    bool two_phase;                        /* clipping: all gradients first, then all updates */
    enum sdp_dtype reduced;                /* dtype of the waiting gradients of two-phase steps */
    size_t *levels;                        /* per layer: rung of its layer plan (what it saves) */
    size_t offloaded;                      /* layers 0 .. offloaded - 1: saved and boundary tensors go to the host */
    bool *resident;                        /* per storage: weights and optimiser state stay on the device, which updates
                                              them; the host's copy is refreshed when it is read */
    size_t *resident_slot;                 /* per storage: which resident one of its class */
    size_t window;
    size_t chunk_bytes;

    struct sdp_host_state *layout;         /* blocks and chunks without memory */
    size_t *class_of;                      /* per storage */
    struct sdp_storage_class *classes;
    size_t class_count;
    bool *own_accumulator;                 /* per storage: several visits of a step add to its gradient, or it waits */
    struct sdp_layer_plan **layers;        /* per layer; layers of one template and level share one */
    struct sdp_layer_plan **owned_layers;  /* the distinct ones, owned_layer_count */
    size_t owned_layer_count;
    struct sdp_visit *visits;
    size_t visit_count;
    struct sdp_visit *evaluation;          /* the visits of a forward pass of one group, the loss layer's included */
    size_t evaluation_count;

    struct sdp_memory_item *items;
    size_t item_count;
    size_t host_bytes, device_bytes;       /* sums */
    size_t device_available;               /* what a device offers (or runtime.gpu_memory) */
    struct sdp_task_counts tasks;          /* of one step */
    double flops;                          /* model FLOPs of one step */
    struct sdp_rates rates;                /* that the choice was made with */
    struct sdp_step_time time;             /* predicted */
};

/** Resolves a job for this machine. `sequences` of the training data (SIZE_MAX: endless) turns epochs into steps.
 * [new] *out; job and graph must outlive it. Does not start StarPU. */
SDP_CHECK_RESULT enum sdp_status sdp_plan_create(const struct sdp_job *job, const struct sdp_model_graph *graph, size_t sequences,
                                struct sdp_plan **out, struct sdp_error *err);
void sdp_plan_destroy(struct sdp_plan *plan);

/** Whether the planned memory is there. \return SDP_INPUT with the sums when it is not. */
SDP_CHECK_RESULT enum sdp_status sdp_plan_check_fits(const struct sdp_plan *plan, struct sdp_error *err);

/** plan.json. [new] */
SDP_CHECK_RESULT json_t *sdp_plan_dump(const struct sdp_plan *plan);

/** Bytes of the parts that the engine lays out in a device's arena. */
struct sdp_device_layout {
    size_t weights, gradients, accumulators, boundaries, boundary_gradients, saved, offload, resident, scratch, workspace;
};
void sdp_plan_device_layout(const struct sdp_plan *plan, size_t device, struct sdp_device_layout *out);

/** Bytes of a boundary tensor of one micro-batch, of the tensors that a layer saves for one, and of the largest saved
 * area of the offloaded layers. */
size_t sdp_plan_boundary_bytes(const struct sdp_plan *plan);
size_t sdp_plan_saved_bytes(const struct sdp_plan *plan, size_t layer);
size_t sdp_plan_offloaded_saved_bytes(const struct sdp_plan *plan);
/** Whether the output of a layer goes to the host between the forward and the backward pass. */
bool sdp_plan_offloads_boundary(const struct sdp_plan *plan, size_t layer);
/** Bytes of the host area for offloaded activations, all devices. */
size_t sdp_plan_offload_host_bytes(const struct sdp_plan *plan);

/** "kept", "recomputed", "costly operations kept", ... for a line of output; in `text`. */
const char *sdp_plan_activations_text(const struct sdp_plan *plan, char text[96]);

/** Elements (int32) of one micro-batch's batch buffer: ids, targets, positions,
 * order (each tokens) and segments (tokens + 1). */
static inline size_t sdp_batch_elements(size_t tokens)
{
    return 5 * tokens + 1;
}

#endif
