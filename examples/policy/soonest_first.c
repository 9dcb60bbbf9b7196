/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* soonest-first: a policy outside slidedp's tree; README.md explains it line by line.
 *
 * Rule. Among the ready tasks that a worker can run it takes the one whose result is wanted soonest: an update by the
 * program order of the delivery that reads it, everything else by its own program order.
 * No deadlock. No ready task is held back. */
#include <task_info.h>

#include <starpu_scheduler.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 65536 /* ready tasks at a time */

struct state {
    starpu_pthread_mutex_t lock;
    struct starpu_task *tasks[ROOM];
    size_t count;
};

static uint64_t wanted(const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    if (!info)
        return 0;
    return info->kind == SDP_TASK_UPDATE ? info->next_use : info->order;
}

static void init(unsigned ctx)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    STARPU_PTHREAD_MUTEX_INIT(&s->lock, NULL);
    starpu_sched_ctx_set_policy_data(ctx, s);
}

static void deinit(unsigned ctx)
{
    struct state *s = starpu_sched_ctx_get_policy_data(ctx);
    STARPU_PTHREAD_MUTEX_DESTROY(&s->lock);
    free(s);
}

static int push(struct starpu_task *task)
{
    unsigned ctx = task->sched_ctx;
    struct state *s = starpu_sched_ctx_get_policy_data(ctx);
    starpu_worker_relax_on();
    STARPU_PTHREAD_MUTEX_LOCK(&s->lock);
    starpu_worker_relax_off();
    if (s->count == ROOM)
        abort();
    s->tasks[s->count++] = task;
    starpu_push_task_end(task);
    STARPU_PTHREAD_MUTEX_UNLOCK(&s->lock);
    struct starpu_worker_collection *workers = starpu_sched_ctx_get_worker_collection(ctx);
    struct starpu_sched_ctx_iterator it;
    for (workers->init_iterator(workers, &it); workers->has_next(workers, &it);)
        starpu_wake_worker_relax_light((unsigned)workers->get_next(workers, &it));
    return 0;
}

static struct starpu_task *pop(unsigned ctx)
{
    struct state *s = starpu_sched_ctx_get_policy_data(ctx);
    struct starpu_task *task = NULL;
    size_t best = ROOM;
    starpu_worker_relax_on();
    STARPU_PTHREAD_MUTEX_LOCK(&s->lock);
    starpu_worker_relax_off();
    for (size_t i = 0; i < s->count; i++)
        if (starpu_worker_can_execute_task_first_impl(starpu_worker_get_id_check(), s->tasks[i], NULL) &&
            (best == ROOM || wanted(s->tasks[i]) < wanted(s->tasks[best])))
            best = i;
    if (best != ROOM) {
        task = s->tasks[best];
        s->tasks[best] = s->tasks[--s->count];
    }
    STARPU_PTHREAD_MUTEX_UNLOCK(&s->lock);
    return task;
}

static struct starpu_sched_policy policy = {
    .init_sched = init, .deinit_sched = deinit, .push_task = push, .pop_task = pop,
    .policy_name = "soonest-first", .policy_description = "what is wanted soonest", .worker_type = STARPU_WORKER_LIST};

struct starpu_sched_policy *starpu_get_sched_lib_policy(const char *name)
{
    return strcmp(name, policy.policy_name) == 0 ? &policy : NULL;
}
