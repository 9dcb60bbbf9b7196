/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arenas. Pages are touched by one thread a processing unit, each its own contiguous
 * part, so that memory spreads over the NUMA nodes of the process. Each area is registered
 * with CUDA when it is taken: a copy must not cross two registrations, and areas are what
 * copies stay in. */
#include "model/state/arena.h"

#include "graph/base/log.h"
#include "model/state/limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#ifdef SDP_HAVE_CUDA
#include "codelets/common/device_memory.h"
#include <cuda_runtime_api.h>
#endif

#define PIECE     ((size_t)64 << 30) /* larger registrations fail */
#define PAGE      ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)

struct sdp_arena {
    uint8_t *base;
    size_t bytes, used;
    char *what;
    bool pin;      /* register areas; false once that has failed */
    void **pinned; /* registrations */
    size_t pinned_count;
};

/* -- limits ----------------------------------------------------------------------- */

static enum sdp_status check_limits(size_t bytes, const char *what, struct sdp_error *err)
{
    size_t limit = sdpi_cgroup_memory_limit("/proc/self/cgroup", "/sys/fs/cgroup");
    char need[32], have[32];
    sdp_format_bytes(bytes, need);
    if (bytes > limit)
        return sdp_fail(err, SDP_NOMEM, "%s needs %s; this process may use %s (its cgroup's limit)",
                        what, need, sdp_format_bytes(limit, have));
    size_t available = sdpi_available_memory();
    if (bytes > available) /* some virtual machines grow their memory as it is used */
        sdp_warn("%s needs %s and %s are available now", what, need,
                 sdp_format_bytes(available, have));
    return SDP_OK;
}

/* -- first touch -------------------------------------------------------------------- */

struct toucher {
    pthread_t thread;
    uint8_t *base;
    size_t bytes;
    hwloc_topology_t topology; /* NULL: not bound */
    int pu;                    /* where it runs, so where its pages are */
    bool started;
};

static void touch_pages(const struct toucher *t)
{
    for (size_t i = 0; i < t->bytes; i += PAGE)
        ((volatile uint8_t *)t->base)[i] = 0;
}

static void *touch(void *arg)
{
    struct toucher *t = arg;
    hwloc_bitmap_t set = t->topology && t->pu >= 0 ? hwloc_bitmap_alloc() : NULL;
    if (set && hwloc_bitmap_only(set, (unsigned)t->pu) == 0) /* unbound costs locality only */
        (void)hwloc_set_cpubind(t->topology, set, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(set);
    touch_pages(t);
    return NULL;
}

/* The place of thread i of n: the threads spread evenly over the set; -1 without a set. */
static int place_of(hwloc_const_bitmap_t set, unsigned i, unsigned n)
{
    int weight = set ? hwloc_bitmap_weight(set) : 0, pu = -1;
    if (weight <= 0)
        return -1;
    for (size_t k = 0; k <= (size_t)i * (size_t)weight / n; k++)
        pu = hwloc_bitmap_next(set, pu);
    return pu;
}

static void touch_parts(uint8_t *base, size_t bytes, unsigned threads, hwloc_topology_t topology,
                        hwloc_const_bitmap_t set)
{
    size_t part = sdp_round_up(bytes / threads + 1, HUGE_PAGE);
    struct toucher *touchers = sdp_xcalloc(threads, sizeof *touchers);
    for (unsigned i = 0; i < threads; i++) {
        struct toucher *t = &touchers[i];
        size_t first = SDP_MIN(part * i, bytes);
        *t = (struct toucher){.base = base + first,
                              .bytes = SDP_MIN(part, bytes - first),
                              .topology = topology,
                              .pu = place_of(set, i, threads)};
        t->started = threads > 1 && t->bytes && pthread_create(&t->thread, NULL, touch, t) == 0;
        if (!t->started) /* here, unbound: the caller keeps its own binding */
            touch_pages(t);
    }
    for (unsigned i = 0; i < threads; i++)
        if (touchers[i].started)
            (void)pthread_join(touchers[i].thread, NULL); /* joinable, and joined once */
    free(touchers);
}

static void touch_all(uint8_t *base, size_t bytes, unsigned threads)
{
    hwloc_topology_t topology = NULL;
    hwloc_bitmap_t set = NULL;
    bool loaded = false;
    if (hwloc_topology_init(&topology) == 0)
        loaded = hwloc_topology_load(topology) == 0;
    else
        topology = NULL;
    if (loaded)
        set = sdpi_process_pus(topology);
    if (threads == 0)
        threads = set ? (unsigned)SDP_MAX(hwloc_bitmap_weight(set), 1) : 1;
    touch_parts(base, bytes, threads, loaded ? topology : NULL, set);
    hwloc_bitmap_free(set);
    if (topology)
        hwloc_topology_destroy(topology);
}

/* -- page-locking ----------------------------------------------------------------------- */

#ifdef SDP_HAVE_CUDA
static void warn_unpinned(const char *what, const char *reason)
{
    struct rlimit limit = {0, 0};
    char text[32] = "unlimited";
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY)
        sdp_format_bytes((size_t)limit.rlim_cur, text);
    sdp_warn("%s cannot be page-locked (%s); copies will be slow. The limit on locked memory is "
             "%s: raise it with `ulimit -l unlimited`",
             what, reason, text);
}

static void pin_area(struct sdp_arena *arena, uint8_t *area, size_t bytes)
{
    for (size_t done = 0; arena->pin && done < bytes; done += PIECE) {
        cudaError_t rc =
            cudaHostRegister(area + done, SDP_MIN(PIECE, bytes - done), cudaHostRegisterPortable);
        if (rc != cudaSuccess) {
            (void)cudaGetLastError(); /* else the next launch would report it */
            warn_unpinned(arena->what, cudaGetErrorString(rc));
            arena->pin = false;
            return;
        }
        arena->pinned =
            sdp_xrealloc(arena->pinned, (arena->pinned_count + 1) * sizeof *arena->pinned);
        arena->pinned[arena->pinned_count++] = area + done;
    }
}

static void unpin_arena(struct sdp_arena *arena)
{
    for (size_t i = 0; i < arena->pinned_count; i++)
        if (cudaHostUnregister(arena->pinned[i]) != cudaSuccess)
            (void)cudaGetLastError();
}

static bool can_pin(void)
{
    return sdp_cuda_device_count() > 0;
}
#else
static void pin_area(struct sdp_arena *arena, uint8_t *area, size_t bytes)
{
    (void)arena;
    (void)area;
    (void)bytes;
}

static void unpin_arena(struct sdp_arena *arena)
{
    (void)arena;
}

static bool can_pin(void)
{
    return false;
}
#endif

/* -- the arena ------------------------------------------------------------------------------- */

enum sdp_status sdp_arena_create(size_t bytes, unsigned threads, bool pin, const char *what,
                                 struct sdp_arena **out, struct sdp_error *err)
{
    if (bytes > SIZE_MAX - PAGE)
        return sdp_fail(err, SDP_NOMEM, "%s: %zu bytes are more than can be mapped", what, bytes);
    size_t total = sdp_round_up(SDP_MAX(bytes, PAGE), PAGE);
    enum sdp_status rc = check_limits(bytes, what, err);
    if (rc)
        return rc;
    void *base = mmap(NULL, total, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return sdp_fail(err, SDP_NOMEM, "%s: mapping %zu bytes failed: %s", what, total,
                        strerror(errno));
    (void)madvise(base, total, MADV_HUGEPAGE); /* small pages work too, only slower */
    struct sdp_arena *arena = sdp_xcalloc(1, sizeof *arena);
    arena->base = base;
    arena->bytes = total;
    arena->what = sdp_xstrdup(what);
    arena->pin = pin && can_pin();
    touch_all(base, total, threads);
    *out = arena;
    return SDP_OK;
}

void sdp_arena_destroy(struct sdp_arena *arena)
{
    if (!arena)
        return;
    unpin_arena(arena);
    (void)munmap(arena->base, arena->bytes);
    free(arena->pinned);
    free(arena->what);
    free(arena);
}

void *sdp_arena_take(struct sdp_arena *arena, size_t bytes)
{
    size_t start = arena->used, left = arena->bytes - start, size = sdp_round_up(bytes, PAGE);
    if (size > left || size < bytes) {
        sdp_warn("internal error: an arena of %zu bytes was asked for %zu more after %zu",
                 arena->bytes, bytes, start);
        abort();
    }
    arena->used = start + size;
    if (arena->pin && size)
        pin_area(arena, arena->base + start, size);
    return arena->base + start;
}

size_t sdp_arena_bytes(const struct sdp_arena *arena)
{
    return arena->bytes;
}

bool sdp_arena_is_pinned(const struct sdp_arena *arena)
{
    return arena->pin;
}
