/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What engine.c (life), step.c (submission) and dot.c (picture) share. */
#ifndef SDP_GRAPH_ENGINE_INTERNAL_H
#define SDP_GRAPH_ENGINE_INTERNAL_H

#include "codelets/task.h"
#include "graph/engine.h"
#include "graph/resources.h"
#include "graph/slab.h"
#include "model/state/arena.h"

#define SDPI_MAX_BUFFERS 225 /* FxT's records overflow beyond */

/* A StarPU handle, and for the picture who wrote and read it last. */
struct sdpi_data {
    starpu_data_handle_t handle; /* NULL in a picture */
    size_t writer;               /* node + 1 of the last writer; 0: none */
    size_t *readers;             /* nodes since then */
    size_t reader_count;
};

/* An activation area that lives on the device or, offloaded, in host memory between forward and backward. */
enum sdpi_area { SDPI_BOUNDARY, SDPI_SAVED, SDPI_AREAS };

/* Slots of a device for one kind of offloaded area. */
struct sdpi_offload {
    size_t slots;               /* 0: nothing offloaded */
    struct sdpi_data *admission; /* [slots] void handles */
    size_t tenants;             /* so far */
    size_t *token_of;           /* [layer * units + k] admission handle of the last tenancy */
};

/* Argument of the callback that frees what its task was the last to use; made by sdpi_task_release(). */
struct sdpi_release {
    struct sdp_engine *engine;
    const struct sdpi_device *device;
    bool weights;               /* the layer slot of `storage` */
    size_t storage;
    starpu_data_handle_t areas[4];
    size_t area_count;
};

/* Pools of a node's slabs: these of each class of storages, and two for offloaded activations. */
enum sdpi_pool { SDPI_POOL_WEIGHTS, SDPI_POOL_REMAINDERS, SDPI_POOL_GRADIENTS, SDPI_POOL_RESIDENT_WEIGHTS,
                 SDPI_POOL_RESIDENT_REMAINDERS, SDPI_POOL_RESIDENT_FIRST, SDPI_POOL_RESIDENT_SECOND, SDPI_POOLS };

static inline uint32_t sdpi_pool(size_t class, enum sdpi_pool pool)
{
    return (uint32_t)(class * SDPI_POOLS + (size_t)pool);
}

static inline uint32_t sdpi_offload_pool(enum sdpi_area area)
{
    return (uint32_t)(SDP_SLAB_POOLS - SDPI_AREAS + area);
}

struct sdpi_device {
    size_t index, first_rank, ranks;
    unsigned node;              /* StarPU memory node */
    int compute_worker, deliver_worker, drain_worker; /* -1: any */
    uint32_t compute_mask[(STARPU_NMAXWORKERS + 31) / 32]; /* the bit of compute_worker */
    struct sdp_compute_device compute;
    struct starpu_codelet deliver, fetch; /* with this device's node */
    size_t bytes;               /* of the next */
    uint8_t *memory;            /* one area for all of the below; CUDA: device memory */
    struct sdp_arena *arena;    /* where memory lies on the host */

    struct sdpi_data **slots;       /* CPU: [class][slot * chunks + chunk] fp32 weights */
    struct sdpi_data **assembled;   /* CUDA fp32: [class][slot] */
    struct sdpi_data **admission;   /* CUDA: [class][slot] void handles */
    struct sdpi_data *stays;        /* CUDA: [storage] void handles: a storage leaves before it comes again */
    struct sdpi_data *boundaries;   /* [layer * units + k], unit: a micro-batch of the group, of one rank */
    struct sdpi_data *saved;        /* the same */
    struct sdpi_offload offload[SDPI_AREAS];
    struct sdpi_data *boundary_gradients; /* [k] */
    struct sdpi_data accumulator;   /* of all storages that share it */
    struct sdpi_data **own_accumulators; /* [storage][rank of the device] or NULL */
    struct sdpi_data *batches, *losses;   /* [step % in flight][k] */

    size_t *tenures;            /* [class] so far */
    size_t *slot_of;            /* [storage] */
    uint64_t visits;
};

struct sdpi_ring {              /* one step in flight */
    size_t step;
    bool submitted, done;
    double *norms;              /* [block] */
    bool device_norms;          /* a submitted task writes this step's device norms */
    double norm;
    float clip_scale;
    double submitted_at;
    struct sdp_step_result result;
};

struct sdp_engine {
    const struct sdp_plan *plan;
    const struct sdp_model_graph *graph;
    struct sdp_host_state *state;     /* or the plan's layout in a picture */
    struct sdp_run_state run;
    size_t per_device_max;

    struct sdpi_device *devices;
    size_t *chunk_base;               /* [storage] first chunk in the arrays below */
    size_t chunk_total;
    struct sdpi_data *weights, *remainders; /* [chunk] */
    struct sdpi_data *first_moments, *second_moments; /* [chunk] of resident storages */
    struct sdpi_data *waiting;        /* [chunk] two-phase */
    struct sdpi_data **gradients;     /* [class][(slot * ranks + rank) * chunks + chunk] */
    struct sdpi_data norm_ready[SDP_STEPS_IN_FLIGHT], clip_ready[SDP_STEPS_IN_FLIGHT];
    struct sdpi_data device_norms[SDP_STEPS_IN_FLIGHT]; /* resident state: squared norms by block */
    size_t *gradients_taken;          /* [class] so far */
    size_t *gradient_slot;            /* [storage] */
    uint8_t *waiting_memory;
    struct sdp_arena *landing, *batch_arena, *offload_arena;

    struct sdpi_ring ring[SDP_STEPS_IN_FLIGHT];
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint64_t order;                   /* of the next task */
    uint64_t step_order;              /* of the current step's first task */
    uint64_t step_tasks;              /* tasks of a step */
    uint64_t *first_delivery;         /* [storage] offset from the step's first task */
    bool skip_update;
    float *logits;
    double kernel_seconds;            /* of a step, measured alone in the warm-up; 0: not known */

    struct sdp_resources *resources;  /* NULL: not wanted */
    FILE *dot;                        /* not NULL: picture */
    size_t dot_nodes;
    bool started;
    const char *trace_dir;
};

/* A task under construction. */
struct sdpi_builder {
    struct sdp_engine *engine;
    struct starpu_task *task;         /* NULL in a picture */
    struct sdp_task *arg;
    struct sdpi_data *data[SDPI_MAX_BUFFERS];
    enum starpu_data_access_mode modes[SDPI_MAX_BUFFERS];
    int count;
    struct sdpi_release *release;     /* NULL: nothing to free */
    size_t node;                      /* in a picture */
};

/** Starts a task of a kind; fields of info are filled in except order. */
void sdpi_task_begin(struct sdpi_builder *b, struct sdp_engine *engine, struct starpu_codelet *codelet,
                     enum sdp_task_kind kind, size_t step);
/** Adds a buffer; returns its index. */
int sdpi_task_buffer(struct sdpi_builder *b, struct sdpi_data *data, enum starpu_data_access_mode mode);
/** Names the task and fixes its buffers: call before declaring dependencies. */
void sdpi_task_seal(struct sdpi_builder *b);
/** `task` starts after `before` (both sealed, neither submitted). */
void sdpi_task_after(struct sdpi_builder *task, struct sdpi_builder *before, size_t count);
SDP_CHECK_RESULT enum sdp_status sdpi_task_submit(struct sdpi_builder *b, struct sdp_error *err);

/** Submits tasks in order; after a failure the rest is destroyed. */
SDP_CHECK_RESULT enum sdp_status sdpi_task_submit_all(struct sdpi_builder *tasks, size_t count, struct sdp_error *err);
/** The task may run on this device's compute worker alone, whatever the policy. */
void sdpi_task_on_device(struct sdpi_builder *b, const struct sdpi_device *device);
/** What the task frees when it ends; made at the first call. Not in a picture. */
struct sdpi_release *sdpi_task_release(struct sdpi_builder *b, const struct sdpi_device *device);
/** Where a rank's gradient of a storage is summed on its device. */
struct sdpi_data *sdpi_accumulator(const struct sdp_engine *engine, struct sdpi_device *device, size_t storage, size_t rank);

/* What the host knows of a micro-batch before its tasks run. */
struct sdpi_batch_facts {
    size_t segments; /* distinct token ids */
    bool packed;     /* some sequence holds several documents */
};

/** Adds the tasks of one step; `facts` of each rank's micro-batches (NULL: a picture). */
SDP_CHECK_RESULT enum sdp_status sdpi_submit_step(struct sdp_engine *engine, size_t step, size_t counted,
                                 const struct sdpi_batch_facts *facts, struct sdp_error *err);

SDP_CHECK_RESULT enum sdp_status sdpi_submit_evaluation(struct sdp_engine *engine, size_t step,
                                                        const struct sdpi_batch_facts *facts, struct sdp_error *err);

/** Fills one micro-batch from number `first` of the stream on, and *facts; returns in *counted how many targets count
 * (added). Waits until its last readers have ended. */
SDP_CHECK_RESULT enum sdp_status sdpi_fill_batch(struct sdp_engine *engine, const struct sdp_sequences *data,
                                                 struct sdpi_data *batch, uint64_t first, struct sdpi_batch_facts *facts,
                                                 size_t *counted, struct sdp_error *err);
/** The first failure of a task, if there was one. */
enum sdp_status sdpi_engine_failure(struct sdp_engine *engine, struct sdp_error *err);

/** Unit k of an area of a layer; whether it is offloaded. */
struct sdpi_data *sdpi_area(const struct sdpi_device *d, enum sdpi_area area, size_t layer, size_t units, size_t k);
bool sdpi_area_offloaded(const struct sdp_plan *plan, enum sdpi_area area, size_t layer);

/** Rehearses every distinct layer on a GPU; see engine_warmup.c. Nothing on CPU ranks. */
SDP_CHECK_RESULT enum sdp_status sdpi_engine_warm_up(struct sdp_engine *engine, struct sdpi_device *device, struct sdp_error *err);

/** Brings the host's copy of resident state up to date; no task may be under way. */
SDP_CHECK_RESULT enum sdp_status sdpi_engine_refresh_host(struct sdp_engine *engine, struct sdp_error *err);

/** Allocates the arrays of handles (no handle yet). */
void sdpi_engine_allocate(struct sdp_engine *engine, const struct sdp_plan *plan, struct sdp_host_state *state);
void sdpi_engine_free(struct sdp_engine *engine);

static inline size_t sdpi_per_step(const struct sdp_engine *engine, const struct sdpi_device *device)
{
    return device->ranks * engine->plan->micro_batches;
}

/* Micro-batches of a group, of all ranks of the device. */
static inline size_t sdpi_units(const struct sdp_engine *engine, const struct sdpi_device *device)
{
    return device->ranks * engine->plan->group;
}

#endif
