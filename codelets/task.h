/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a task carries (its cl_arg) and how codelets report failure.
 *
 * struct sdp_task_info comes first: policies read it. A task names its buffers by
 * index, -1 for absent ones. Inside a StarPU task nothing can be returned: a
 * failure is noted in struct sdp_run_state, later tasks then do nothing, so that
 * the graph drains and the main thread reports the first cause. */
#ifndef SDP_CODELETS_TASK_H
#define SDP_CODELETS_TASK_H

#include "graph/layer_plan.h"
#include "graph/task_info.h"

#include <pthread.h>
#include <stdatomic.h>

struct sdp_state_storage;
struct sdp_chunk;
struct sdp_resources;

struct sdp_run_state {
    atomic_int failed; /* enum sdp_status of the first failure, or 0 */
    pthread_mutex_t lock;
    struct sdp_error err;
};

/** Notes a failure (the first one wins). Any thread. */
void sdp_run_fail(struct sdp_run_state *state, enum sdp_status status, const char *format, ...) SDP_PRINTF(3, 4);

/* A device as codelets see it. */
struct sdp_compute_device {
    struct sdp_op_device ops;
    uint8_t **scratch;  /* by worker id: a GPU's one worker, or each CPU worker */
};

struct sdp_compute_args {
    const struct sdp_layer_plan *plan;
    const struct sdp_storage *storage;
    const struct sdp_compute_device *device;
    size_t elements;       /* packed parameters of the storage */
    size_t segment_count;  /* distinct ids of the micro-batch */
    bool packed;           /* its sequences hold several documents */
    size_t sequences;
    float loss_scale;
    float *logits;         /* loss layers: wanted by tests, else NULL */
    bool add_gradients, pack, assemble, want_gradient;
    enum sdp_dtype gradient; /* dtype of the gradient chunks */
    int weights;           /* first weight chunk; one of each chunk follows */
    int remainders;        /* fp32 on CUDA: first remainder chunk */
    int assembled;         /* fp32 on CUDA: where the first task of a tenure puts the fp32 weights */
    int batch, input, output, boundary_gradient, saved, loss, accumulator;
    int gradients;         /* first gradient chunk */
};

struct sdp_deliver_args {
    const struct sdp_state_storage *storage;
    const struct sdp_chunk *chunk;
};

struct sdp_adamw_step {
    double lr, beta1, beta2, eps, weight_decay;
    uint64_t step;         /* from 1 */
    bool decay_all;
};

struct sdp_update_args {
    struct sdp_state_storage *storage;
    const struct sdp_chunk *chunk;
    struct sdp_adamw_step adamw;
    int gradients, rank_count; /* first gradient buffer; ranks, or 1 waiting gradient */
    enum sdp_dtype gradient;   /* dtype of the gradients; of an accumulator: what its sums are rounded to */
    const float *clip_scale;   /* two-phase: set by the clip task; else NULL */
    double *norms;             /* by block index: sums of squares; NULL in two-phase updates */
    /* state resident on a device: it updates from its accumulator; else -1 */
    const struct sdp_compute_device *device;
    int m, v, accumulator;
    int device_norms;          /* fp64 by block index; -1: no norm wanted */
    bool first_norms;          /* make all of them 0 first */
    bool update;               /* false: the norm alone */
    size_t norm_count;         /* blocks of all storages */
};

struct sdp_reduce_args {
    const struct sdp_state_storage *storage;
    const struct sdp_chunk *chunk;
    int gradients, rank_count, sum;
    enum sdp_dtype gradient, reduced;
    double *norms;
};

/* Norms and losses of a step become its metrics. */
struct sdp_clip_args {
    const double *norms;
    size_t block_count;
    int device_norms; /* buffer: norms of blocks whose state a device holds; -1: none */
    double clip_norm;
    float *scale;     /* out */
    double *norm;     /* out */
};

struct sdp_metrics_args {
    const double *norms;
    size_t block_count;
    int device_norms;    /* as above */
    const double *norm;  /* two-phase: known already; else NULL */
    int loss_count;      /* buffers 0 .. loss_count - 1 hold one loss each */
    double scale;        /* 1 / counted targets of the step */
    void (*done)(void *context, double loss, double norm); /* called by the task */
    void *context;
};

struct sdp_task {
    struct sdp_task_info info;
    struct sdp_run_state *state;
    struct sdp_resources *resources; /* where its times are noted, or NULL */
    char name[64];
    union {
        struct sdp_compute_args compute;
        struct sdp_deliver_args deliver;
        struct sdp_update_args update;
        struct sdp_reduce_args reduce;
        struct sdp_clip_args clip;
        struct sdp_metrics_args metrics;
    } u;
};

/* The codelets, one folder each. */
extern struct starpu_codelet sdp_codelet_deliver_cpu;  /* weight R, remainder R -> fp32 slot chunk W */
extern struct starpu_codelet sdp_codelet_deliver_cuda; /* chunk R on the device of task->u: see deliver.c */
extern struct starpu_codelet sdp_codelet_forward;
extern struct starpu_codelet sdp_codelet_backward;
extern struct starpu_codelet sdp_codelet_drain;
extern struct starpu_codelet sdp_codelet_reduce;
extern struct starpu_codelet sdp_codelet_clip;
extern struct starpu_codelet sdp_codelet_update;
extern struct starpu_codelet sdp_codelet_metrics;
extern struct starpu_codelet sdp_codelet_store; /* area R: StarPU brings it to main memory */
extern struct starpu_codelet sdp_codelet_fetch; /* area R on the device: see codelets/offload/ */

/** Body of updates (and of norms) of state resident on a device; builds with CUDA. */
void sdp_update_cuda_task(void *buffers[], void *arg);

/** Body of forward and backward tasks. */
void sdp_compute_task(void *buffers[], void *arg);

#endif
