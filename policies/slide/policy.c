/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slide: the pipeline of SlideDP as a list scheduler in program order.
 *
 * Rule. Every ready task waits in one of these queues, each sorted by program
 * order (sdp_task_info.order):
 *  - a queue for each worker that tasks are meant for: a GPU's deliveries, its
 *    drains, its forward and backward tasks;
 *  - one shared queue for the rest: updates, reductions, metrics, everything on
 *    CPU ranks, and tasks of other programs (in the order they come).
 * A worker takes the first task of its own queue; a worker that nobody named takes
 * the first task of the shared queue that it can run. A CPU worker named by a delivery
 * or a drain is reserved: it would keep a copy waiting if it took up an update.
 *
 * Invariants. Deliveries to a device start in program order; a delivery is ready
 * only when the graph has freed its layer slot, so the window is never exceeded.
 * Program order also makes updates release gradient slots first come, first served, and
 * lets the next step's first layers find their updates done early.
 *
 * No deadlock. A queue never holds a ready task back: whoever may run the first
 * task does so when it becomes idle. Tasks on the shared queue can always run on a
 * worker that is not reserved; the engine reserves workers only where one is left over. */
#include "policies/policy.h"

#include "graph/task_info.h"

#include <stdbool.h>
#include <stdlib.h>

/* Sorted list: few tasks are ready at a time, and most come in order. */
struct queue {
    struct starpu_task **tasks;
    uint64_t *keys;
    size_t count, room;
};

struct slide {
    starpu_pthread_mutex_t lock;
    struct queue shared;
    struct queue own[STARPU_NMAXWORKERS];
    bool reserved[STARPU_NMAXWORKERS];
    uint64_t foreign; /* key of the next task without information */
};

static void queue_insert(struct queue *q, struct starpu_task *task, uint64_t key)
{
    if (q->count == q->room) {
        q->room = q->room ? 2 * q->room : 64;
        q->tasks = realloc(q->tasks, q->room * sizeof *q->tasks);
        q->keys = realloc(q->keys, q->room * sizeof *q->keys);
        if (!q->tasks || !q->keys)
            abort();
    }
    size_t i = q->count++;
    for (; i > 0 && q->keys[i - 1] > key; i--) {
        q->keys[i] = q->keys[i - 1];
        q->tasks[i] = q->tasks[i - 1];
    }
    q->keys[i] = key;
    q->tasks[i] = task;
}

static struct starpu_task *queue_remove(struct queue *q, size_t i)
{
    struct starpu_task *task = q->tasks[i];
    for (q->count--; i < q->count; i++) {
        q->tasks[i] = q->tasks[i + 1];
        q->keys[i] = q->keys[i + 1];
    }
    return task;
}

/* The first task of the queue that this worker can run. */
static struct starpu_task *queue_take(struct queue *q, unsigned worker)
{
    for (size_t i = 0; i < q->count; i++)
        if (starpu_worker_can_execute_task_first_impl(worker, q->tasks[i], NULL))
            return queue_remove(q, i);
    return NULL;
}

static void slide_init(unsigned ctx)
{
    struct slide *slide = calloc(1, sizeof *slide);
    if (!slide)
        abort();
    STARPU_PTHREAD_MUTEX_INIT(&slide->lock, NULL);
    starpu_sched_ctx_set_policy_data(ctx, slide);
}

static void slide_deinit(unsigned ctx)
{
    struct slide *slide = starpu_sched_ctx_get_policy_data(ctx);
    free(slide->shared.tasks);
    free(slide->shared.keys);
    for (size_t w = 0; w < STARPU_NMAXWORKERS; w++) {
        free(slide->own[w].tasks);
        free(slide->own[w].keys);
    }
    STARPU_PTHREAD_MUTEX_DESTROY(&slide->lock);
    free(slide);
}

static void wake_shared(const struct slide *slide, unsigned ctx)
{
    struct starpu_worker_collection *workers = starpu_sched_ctx_get_worker_collection(ctx);
    struct starpu_sched_ctx_iterator it;
    workers->init_iterator(workers, &it);
    while (workers->has_next(workers, &it)) {
        int w = workers->get_next(workers, &it);
        if (!slide->reserved[w])
            starpu_wake_worker_relax_light((unsigned)w);
    }
}

static int slide_push(struct starpu_task *task)
{
    struct slide *slide = starpu_sched_ctx_get_policy_data(task->sched_ctx);
    const struct sdp_task_info *info = sdp_task_info(task);
    int worker = info ? info->workerid : -1;
    starpu_worker_relax_on();
    STARPU_PTHREAD_MUTEX_LOCK(&slide->lock);
    starpu_worker_relax_off();
    if (worker >= 0) {
        if (info->kind == SDP_TASK_DELIVER || info->kind == SDP_TASK_DRAIN)
            slide->reserved[worker] = true;
        queue_insert(&slide->own[worker], task, info->order);
    } else {
        queue_insert(&slide->shared, task, info ? info->order : slide->foreign++);
    }
    starpu_push_task_end(task);
    STARPU_PTHREAD_MUTEX_UNLOCK(&slide->lock);
    if (worker >= 0)
        starpu_wake_worker_relax_light((unsigned)worker);
    else
        wake_shared(slide, task->sched_ctx);
    return 0;
}

static struct starpu_task *slide_pop(unsigned ctx)
{
    struct slide *slide = starpu_sched_ctx_get_policy_data(ctx);
    unsigned worker = starpu_worker_get_id_check();
    struct starpu_task *task = NULL;
    /* A glance without the lock: idle workers poll, and would keep the others out. */
    if (!__atomic_load_n(&slide->own[worker].count, __ATOMIC_RELAXED) &&
        (slide->reserved[worker] || !__atomic_load_n(&slide->shared.count, __ATOMIC_RELAXED)))
        return NULL;
    starpu_worker_relax_on();
    STARPU_PTHREAD_MUTEX_LOCK(&slide->lock);
    starpu_worker_relax_off();
    if (slide->own[worker].count)
        task = queue_remove(&slide->own[worker], 0);
    else if (!slide->reserved[worker])
        task = queue_take(&slide->shared, worker);
    STARPU_PTHREAD_MUTEX_UNLOCK(&slide->lock);
    return task;
}

extern struct starpu_sched_policy sdp_policy_slide;
struct starpu_sched_policy sdp_policy_slide = {
    .init_sched = slide_init,
    .deinit_sched = slide_deinit,
    .push_task = slide_push,
    .pop_task = slide_pop,
    .prefetches = 1, /* deliveries are tasks: StarPU need not prefetch */
    .policy_name = "slide",
    .policy_description = "SlideDP's pipeline: program order, own workers for copies",
    .worker_type = STARPU_WORKER_LIST,
};
