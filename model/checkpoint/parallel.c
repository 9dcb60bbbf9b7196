/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Items spread over threads that live for one call. The caller's thread works too, so a
 * system that gives no threads still gets everything done. */
#include "model/checkpoint/checkpoint_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

struct crew {
    size_t count;
    sdpi_work work;
    void *arg;
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t lock; /* of what follows */
    enum sdp_status status;
    struct sdp_error error;
};

static void *run_items(void *arg)
{
    struct crew *crew = arg;

    while (!atomic_load(&crew->failed)) {
        size_t item = atomic_fetch_add(&crew->next, 1);
        struct sdp_error error = SDP_ERROR_INIT;
        enum sdp_status status;

        if (item >= crew->count)
            break;
        status = crew->work(crew->arg, item, &error);
        if (status == SDP_OK)
            continue;
        pthread_mutex_lock(&crew->lock);
        if (!atomic_exchange(&crew->failed, true)) {
            crew->status = status;
            crew->error = error;
        }
        pthread_mutex_unlock(&crew->lock);
    }
    return NULL;
}

/* Cores that the process may run on. */
static size_t count_cores(void)
{
    cpu_set_t set;
    long online;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (size_t)CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (size_t)online : 1;
}

enum sdp_status sdpi_parallel(size_t count, unsigned threads, sdpi_work work, void *arg,
                              struct sdp_error *err)
{
    struct crew crew = {
        .count = count, .work = work, .arg = arg, .error = SDP_ERROR_INIT};
    size_t wanted = SDP_MIN(threads > 0 ? threads : count_cores(), count), started = 0;
    pthread_t *ids = sdp_xcalloc(wanted, sizeof *ids);

    atomic_init(&crew.next, 0);
    atomic_init(&crew.failed, false);
    pthread_mutex_init(&crew.lock, NULL);
    while (started + 1 < wanted &&
           pthread_create(&ids[started], NULL, run_items, &crew) == 0)
        started++;
    run_items(&crew);
    for (size_t i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    pthread_mutex_destroy(&crew.lock);
    free(ids);
    if (crew.status != SDP_OK)
        sdp_fail_at(err, crew.status, crew.error.file, crew.error.pointer,
                    crew.error.line, crew.error.column, "%s", crew.error.text);
    return crew.status;
}
