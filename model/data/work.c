/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reading data on all cores, with one message whatever their number: of several failures
 * the one of the lowest item wins. */
#include "model/data/data_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define MAX_THREADS 32
#define RUN         32 /* items that a thread takes at once */

struct crew {
    size_t count;
    sdpi_data_work *work;
    void *arg;
    atomic_size_t next;
    atomic_size_t failed; /* the lowest item that failed */
    pthread_mutex_t lock; /* of what follows */
    enum sdp_status status;
    struct sdp_error error;
};

static void note_failure(struct crew *crew, size_t item, enum sdp_status status,
                         const struct sdp_error *error)
{
    pthread_mutex_lock(&crew->lock);
    if (item < atomic_load(&crew->failed)) {
        atomic_store(&crew->failed, item);
        crew->status = status;
        crew->error = *error;
    }
    pthread_mutex_unlock(&crew->lock);
}

static void *run(void *arg)
{
    struct crew *crew = arg;
    struct sdpi_sample scratch = {.counts = NULL};

    for (;;) {
        size_t first = atomic_fetch_add(&crew->next, RUN);

        if (first >= crew->count || first > atomic_load(&crew->failed))
            break;
        for (size_t item = first; item < SDP_MIN(first + RUN, crew->count); item++) {
            struct sdp_error error = SDP_ERROR_INIT;
            enum sdp_status status = crew->work(crew->arg, item, &scratch, &error);

            if (status != SDP_OK) {
                note_failure(crew, item, status, &error);
                break;
            }
        }
    }
    sdpi_sample_free(&scratch);
    return NULL;
}

static size_t core_count(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? (size_t)CPU_COUNT(&set) : 1;
}

enum sdp_status sdpi_data_parallel(size_t count, sdpi_data_work *work, void *arg,
                                   struct sdp_error *err)
{
    struct crew crew = {.count = count, .work = work, .arg = arg, .status = SDP_OK};
    size_t threads = SDP_MIN(SDP_MIN(core_count(), (size_t)MAX_THREADS), count / RUN + 1),
           started = 0;
    pthread_t ids[MAX_THREADS];

    atomic_init(&crew.next, 0);
    atomic_init(&crew.failed, SIZE_MAX);
    crew.error = (struct sdp_error)SDP_ERROR_INIT;
    pthread_mutex_init(&crew.lock, NULL);
    while (started + 1 < threads && pthread_create(&ids[started], NULL, run, &crew) == 0)
        started++;
    run(&crew);
    for (size_t i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    pthread_mutex_destroy(&crew.lock);
    if (crew.status != SDP_OK && err && err->status == SDP_OK)
        *err = crew.error;
    return crew.status;
}
