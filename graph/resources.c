/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Busy times as unions of intervals. A kernel launched while another still runs is not counted twice; a copy's time is
 * that during which its task waited for the data. Where a device idles, the next compute task tells why: it was ready
 * already (StarPU's share), or its last delivery was still copying, or had not even been allowed to start. */
#include "graph/resources.h"

#include "graph/base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define TOLD_WAIT 1e-3 /* seconds: shorter waits are not told with --verbose */
#define MAX_RECORDS ((size_t)1 << 21)

struct record {
    uint32_t kind;
    int32_t step, layer, device;
    uint64_t visit;
    uint64_t bytes;
    double ready, waiting, have, start, end; /* seconds: pushed to the scheduler; data acquired from .. to; runs from .. to */
};

struct sdp_resources {
    const struct sdp_plan *plan;
    pthread_mutex_t lock;
    struct record *records;
    size_t count, room;
};

struct sdp_resources *sdp_resources_create(const struct sdp_plan *plan)
{
    struct sdp_resources *r = sdp_xcalloc(1, sizeof *r);
    r->plan = plan;
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void sdp_resources_destroy(struct sdp_resources *r)
{
    if (!r)
        return;
    pthread_mutex_destroy(&r->lock);
    free(r->records);
    free(r);
}

static double seconds(const struct timespec *t)
{
    return (double)t->tv_sec + (double)t->tv_nsec * 1e-9;
}

void sdp_resources_note(struct sdp_resources *r, const struct starpu_task *task)
{
    const struct sdp_task_info *info = sdp_task_info(task);
    const struct starpu_profiling_task_info *p = task->profiling_info;
    if (!info || !p)
        return;
    struct record record = {.kind = info->kind, .step = info->step, .layer = info->layer, .device = info->device, .visit = info->visit,
                            .bytes = info->bytes, .ready = seconds(&p->push_start_time),
                            .waiting = seconds(&p->acquire_data_start_time), .have = seconds(&p->acquire_data_end_time),
                            .start = seconds(&p->start_time), .end = seconds(&p->end_time)};
    pthread_mutex_lock(&r->lock);
    if (r->count == r->room && r->room < MAX_RECORDS) {
        r->room = r->room ? 2 * r->room : 4096;
        r->records = sdp_xrealloc(r->records, r->room * sizeof *r->records);
    }
    if (r->count < r->room)
        r->records[r->count++] = record;
    pthread_mutex_unlock(&r->lock);
}

/* -- intervals --------------------------------------------------------------------------------- */

struct interval {
    double from, to;
    const struct record *record;
};

struct intervals {
    struct interval *items;
    size_t count;
};

static int by_from(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

static bool on_device(const struct record *r)
{
    return r->kind == SDP_TASK_FORWARD || r->kind == SDP_TASK_BACKWARD || (r->kind == SDP_TASK_UPDATE && r->device >= 0) ||
           (r->kind == SDP_TASK_REDUCE && r->device >= 0);
}

static bool is_in(const struct record *r)
{
    return r->kind == SDP_TASK_DELIVER || r->kind == SDP_TASK_FETCH;
}

static bool is_out(const struct record *r)
{
    return r->kind == SDP_TASK_DRAIN || r->kind == SDP_TASK_STORE;
}

static bool is_host_work(const struct record *r)
{
    return (r->kind == SDP_TASK_UPDATE || r->kind == SDP_TASK_REDUCE) && r->device < 0;
}

/* The intervals of one device's (-1: any) tasks of a sort, by start. `copies`: while they waited for data. */
static struct intervals pick(const struct sdp_resources *r, bool (*sort)(const struct record *), int device, bool copies)
{
    struct intervals list = {sdp_xcalloc(r->count + 1, sizeof *list.items), 0};
    for (size_t i = 0; i < r->count; i++) {
        const struct record *record = &r->records[i];
        if (sort(record) && (device < 0 || record->device == device))
            list.items[list.count++] = (struct interval){copies ? record->waiting : record->start,
                                                         copies ? record->have : record->end, record};
    }
    qsort(list.items, list.count, sizeof *list.items, by_from);
    return list;
}

static double clip(double x, double from, double to)
{
    return SDP_MIN(SDP_MAX(x, from), to);
}

/* Length of the union of sorted intervals within [from, to]. */
static double covered(const struct intervals *list, double from, double to)
{
    double sum = 0, end = from;
    for (size_t i = 0; i < list->count; i++) {
        double a = clip(SDP_MAX(list->items[i].from, end), from, to), b = clip(list->items[i].to, from, to);
        sum += SDP_MAX(b - a, 0.0);
        end = SDP_MAX(end, list->items[i].to);
    }
    return sum;
}

/* -- idle time ------------------------------------------------------------------------------------ */

/* The last to end of the visit's deliveries, or NULL. Until it was ready the task waited for an update or the slot of a
 * layer; after it, for the slot of a gradient, that is for an update too. */
static const struct record *last_delivery(const struct intervals *copies, const struct record *task)
{
    const struct record *last = NULL;
    for (size_t i = 0; i < copies->count; i++) {
        const struct record *r = copies->items[i].record;
        if (r->visit == task->visit && (!last || r->end > last->end))
            last = r;
    }
    return last;
}

static void tell_wait(const struct sdp_resources *r, const struct record *task, double waited, double update, double copy)
{
    if (waited < TOLD_WAIT || sdp_log_level() < SDP_LOG_DEBUG)
        return;
    sdp_debug("step %d: %s of layer %d (%s) began %.1f ms late: %.1f ms for an update or a slot, %.1f ms for a copy",
              (int)task->step, sdp_task_kind_name(task->kind), (int)task->layer,
              task->layer >= 0 ? r->plan->graph->layers[task->layer].name : "", waited * 1e3, update * 1e3, copy * 1e3);
}

/* Shares out the time in which a device ran nothing. */
static void explain_idle(const struct sdp_resources *r, const struct intervals *compute, const struct intervals *copies,
                         double from, double to, struct sdp_resource_report *out)
{
    double end = from;
    for (size_t i = 0; i < compute->count; i++) {
        const struct record *task = compute->items[i].record;
        double a = clip(end, from, to), b = clip(compute->items[i].from, from, to);
        end = SDP_MAX(end, compute->items[i].to);
        if (b <= a)
            continue;
        const struct record *delivery = last_delivery(copies, task);
        double ready = clip(task->ready, a, b);
        double copy = delivery ? clip(delivery->have, a, ready) - clip(delivery->ready, a, ready) : 0;
        out->idle_ready += b - ready;
        out->idle_delivery += copy;
        out->idle_update += ready - a - copy;
        tell_wait(r, task, b - a, ready - a - copy, copy);
    }
}

/* -- report ----------------------------------------------------------------------------------------- */

static double step_end(const struct sdp_resources *r, size_t step)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->records[i].kind == SDP_TASK_METRICS && (size_t)r->records[i].step == step)
            return r->records[i].end;
    return -1;
}

static double bytes_within(const struct intervals *list, double from, double to)
{
    double sum = 0;
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].to >= from && list->items[i].to < to)
            sum += (double)list->items[i].record->bytes;
    return sum;
}

static void report_device(struct sdp_resources *r, int device, double from, double to, struct sdp_resource_report *out)
{
    struct intervals compute = pick(r, on_device, device, false), in = pick(r, is_in, device, true),
                     away = pick(r, is_out, device, true);
    double busy = covered(&compute, from, to);
    if (device == 0 || busy > out->compute) {
        out->compute = busy;
        out->link_in = covered(&in, from, to);
        out->link_out = covered(&away, from, to);
        out->in_bytes = bytes_within(&in, from, to);
        out->out_bytes = bytes_within(&away, from, to);
        out->idle_ready = out->idle_delivery = out->idle_update = 0;
        explain_idle(r, &compute, &in, from, to, out);
    }
    free(compute.items);
    free(in.items);
    free(away.items);
}

static double host_work(struct sdp_resources *r, double from, double to)
{
    size_t busy = r->plan->cuda ? 3 * r->plan->device_count + 1 : 0;
    double sum = 0;
    for (size_t i = 0; i < r->count; i++)
        if (is_host_work(&r->records[i]))
            sum += clip(r->records[i].end, from, to) - clip(r->records[i].start, from, to);
    return sum / (double)(r->plan->cores > busy ? r->plan->cores - busy : 1);
}

bool sdp_resources_report(struct sdp_resources *r, size_t first, struct sdp_resource_report *out)
{
    size_t last = first;
    memset(out, 0, sizeof *out);
    while (step_end(r, last + 1) >= 0)
        last++;
    if (last == first || step_end(r, first) < 0)
        return false;
    double from = step_end(r, first), to = step_end(r, last), n = (double)(last - first);
    for (size_t d = 0; d < r->plan->device_count; d++)
        report_device(r, (int)d, from, to, out);
    out->steps = last - first;
    out->step = (to - from) / n;
    out->host_update = host_work(r, from, to) / n;
    double *const sums[] = {&out->compute, &out->link_in, &out->link_out, &out->idle_ready, &out->idle_delivery,
                            &out->idle_update, &out->in_bytes, &out->out_bytes};
    for (size_t i = 0; i < SDP_COUNT_OF(sums); i++)
        *sums[i] /= n;
    out->idle = out->step - out->compute;
    return true;
}

static void print_row(const char *name, double measured, double step, double predicted, double bytes)
{
    printf("  %-38s %9.3f %6.1f %%", name, measured, 100 * measured / step);
    if (predicted >= 0)
        printf(" %12.3f", predicted);
    if (bytes > 0)
        printf("  %7.1f GB, %.1f GB/s", bytes / 1e9, bytes / 1e9 / measured);
    putchar('\n');
}

void sdp_resources_print(const struct sdp_plan *plan, const struct sdp_resource_report *r)
{
    const struct sdp_step_time *t = &plan->time;
    printf("resources: seconds of a step, means over %zu steps%s\n", r->steps,
           plan->device_count > 1 ? "; of the busiest device" : "");
    printf("  %-38s %9s %8s %12s\n", "", "busy", "of step", "predicted");
    print_row("step", r->step, r->step, t->step, 0);
    print_row("compute", r->compute, r->step, t->compute, 0);
    if (plan->cuda) {
        print_row("link, host to device", r->link_in, r->step, t->link_in, r->in_bytes);
        print_row("link, device to host", r->link_out, r->step, t->link_out, r->out_bytes);
    }
    print_row("updates on host cores", r->host_update, r->step, t->host_update, 0);
    print_row("no kernel running", r->idle, r->step, t->exposed_update + t->exposed_delivery, 0);
    print_row("  a delivered, ready task waits", r->idle_ready, r->step, -1, 0);
    print_row("  for a copy under way", r->idle_delivery, r->step, t->exposed_delivery, 0);
    print_row("  for an update or a free slot", r->idle_update, r->step, t->exposed_update, 0);
}
