/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See list.h. */
#include "policies/list.h"

#include <stdlib.h>

/* -- queues --------------------------------------------------------------------------------- */

static void insert(struct sdp_list_queue *q, struct starpu_task *task, uint64_t key)
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

static struct starpu_task *take(struct sdp_list_queue *q, size_t i)
{
    struct starpu_task *task = q->tasks[i];
    for (q->count--; i < q->count; i++) {
        q->tasks[i] = q->tasks[i + 1];
        q->keys[i] = q->keys[i + 1];
    }
    return task;
}

/* The first task that may start and that this worker can run. */
static struct starpu_task *first_startable(const struct sdp_list *list, struct sdp_list_queue *q, unsigned worker)
{
    for (size_t i = 0; i < q->count; i++) {
        if (list->rules->may_start && !list->rules->may_start(list, q->tasks[i]))
            continue;
        if (starpu_worker_can_execute_task_first_impl(worker, q->tasks[i], NULL))
            return take(q, i);
    }
    return NULL;
}

uint64_t sdp_list_first_key(const struct sdp_list *list)
{
    uint64_t first = list->shared.count ? list->shared.keys[0] : UINT64_MAX;
    for (size_t w = 0; w < STARPU_NMAXWORKERS; w++)
        if (list->own[w].count && list->own[w].keys[0] < first)
            first = list->own[w].keys[0];
    return first;
}

uint64_t sdp_list_program_order(struct sdp_list *list, const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    return info ? info->order : list->arrived;
}

/* -- what runs -------------------------------------------------------------------------------- */

bool sdp_list_is_pass(const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    if (!info)
        return false;
    switch (info->kind) {
    case SDP_TASK_DELIVER:
    case SDP_TASK_FORWARD:
    case SDP_TASK_BACKWARD:
    case SDP_TASK_DRAIN:
    case SDP_TASK_STORE:
    case SDP_TASK_FETCH:
        return true;
    default:
        return false;
    }
}

bool sdp_list_is_update(const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    return info && info->device < 0 && (info->kind == SDP_TASK_UPDATE || info->kind == SDP_TASK_REDUCE);
}

/* A task is taken (+1) or has ended (-1). */
static void count(struct sdp_list *list, const struct starpu_task *task, int change)
{
    list->running += (size_t)change;
    if (sdp_list_is_pass(task))
        list->passes_running += (size_t)change;
    if (sdp_list_is_update(task))
        list->updates_running += (size_t)change;
}

static void note_visit(struct sdp_list *list, const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    if (!info || info->device < 0 || info->device > STARPU_MAXCUDADEVS)
        return;
    if ((info->kind == SDP_TASK_FORWARD || info->kind == SDP_TASK_BACKWARD) && info->visit >= list->visits_begun[info->device])
        list->visits_begun[info->device] = info->visit + 1;
}

/* Every worker that may find something now. */
static void wake(const struct sdp_list *list, unsigned ctx)
{
    struct starpu_worker_collection *workers = starpu_sched_ctx_get_worker_collection(ctx);
    struct starpu_sched_ctx_iterator it;
    workers->init_iterator(workers, &it);
    while (workers->has_next(workers, &it)) {
        int w = workers->get_next(workers, &it);
        if (list->own[w].count || (!list->reserved[w] && list->shared.count))
            starpu_wake_worker_relax_light((unsigned)w);
    }
}

/* -- hooks ---------------------------------------------------------------------------------------- */

void sdp_list_init(unsigned ctx, const struct sdp_list_rules *rules)
{
    struct sdp_list *list = calloc(1, sizeof *list);
    if (!list)
        abort();
    list->rules = rules;
    STARPU_PTHREAD_MUTEX_INIT(&list->lock, NULL);
    starpu_sched_ctx_set_policy_data(ctx, list);
}

void sdp_list_deinit(unsigned ctx)
{
    struct sdp_list *list = starpu_sched_ctx_get_policy_data(ctx);
    free(list->shared.tasks);
    free(list->shared.keys);
    for (size_t w = 0; w < STARPU_NMAXWORKERS; w++) {
        free(list->own[w].tasks);
        free(list->own[w].keys);
    }
    STARPU_PTHREAD_MUTEX_DESTROY(&list->lock);
    free(list);
}

int sdp_list_push(struct starpu_task *task)
{
    unsigned ctx = task->sched_ctx; /* the task may be gone when the lock is */
    struct sdp_list *list = starpu_sched_ctx_get_policy_data(ctx);
    const struct sdp_task_info *info = sdp_task_info(task);
    int worker = info ? info->workerid : -1;
    starpu_worker_relax_on();
    STARPU_PTHREAD_MUTEX_LOCK(&list->lock);
    starpu_worker_relax_off();
    list->arrived++;
    list->passes_ready += sdp_list_is_pass(task);
    if (worker >= 0 && list->rules->reserve_copy_workers && info->kind != SDP_TASK_FORWARD && info->kind != SDP_TASK_BACKWARD &&
        sdp_list_is_pass(task))
        list->reserved[worker] = true;
    uint64_t key = list->rules->key ? list->rules->key(list, task) : sdp_list_program_order(list, task);
    insert(worker >= 0 ? &list->own[worker] : &list->shared, task, key);
    starpu_push_task_end(task);
    STARPU_PTHREAD_MUTEX_UNLOCK(&list->lock);
    if (worker >= 0)
        starpu_wake_worker_relax_light((unsigned)worker);
    else
        wake(list, ctx);
    return 0;
}

struct starpu_task *sdp_list_pop(unsigned ctx)
{
    struct sdp_list *list = starpu_sched_ctx_get_policy_data(ctx);
    unsigned worker = starpu_worker_get_id_check();
    struct starpu_task *task = NULL;
    /* A glance without the lock: idle workers poll, and would keep the others out. */
    if (!__atomic_load_n(&list->own[worker].count, __ATOMIC_RELAXED) &&
        (list->reserved[worker] || !__atomic_load_n(&list->shared.count, __ATOMIC_RELAXED)))
        return NULL;
    starpu_worker_relax_on();
    STARPU_PTHREAD_MUTEX_LOCK(&list->lock);
    starpu_worker_relax_off();
    task = first_startable(list, &list->own[worker], worker);
    if (!task && !list->reserved[worker])
        task = first_startable(list, &list->shared, worker);
    if (task) {
        list->passes_ready -= sdp_list_is_pass(task);
        count(list, task, 1);
        note_visit(list, task);
    }
    STARPU_PTHREAD_MUTEX_UNLOCK(&list->lock);
    if (task && list->rules->may_start)
        wake(list, ctx);
    return task;
}

void sdp_list_ended(struct starpu_task *task, unsigned ctx)
{
    struct sdp_list *list = starpu_sched_ctx_get_policy_data(ctx);
    STARPU_PTHREAD_MUTEX_LOCK(&list->lock);
    count(list, task, -1);
    STARPU_PTHREAD_MUTEX_UNLOCK(&list->lock);
    if (list->rules->may_start)
        wake(list, ctx);
}
