/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Limits of the process. A cgroup's limit binds the groups below it, so every level up to
 * the root is read; where a container shows its own group as the root, the path of
 * /proc/self/cgroup is not there and the root's file is what counts. */
#include "model/state/limits.h"

#include <stdio.h>
#include <stdlib.h>

/* -- memory ----------------------------------------------------------------------- */

/* A number in a file; SIZE_MAX when there is no file or it says "max". */
static size_t read_limit(const char *path)
{
    unsigned long long value;
    size_t limit = SIZE_MAX;
    FILE *file = fopen(path, "r");

    if (!file)
        return limit;
    if (fscanf(file, "%llu", &value) == 1)
        limit = (size_t)value;
    (void)fclose(file); /* only read */
    return limit;
}

/* The lowest limit of the group `path` ("/a/b") and those above it. */
static size_t lowest_limit(const char *root, const char *path, const char *name)
{
    char *group = sdp_xstrdup(path);
    size_t limit = SIZE_MAX;

    for (;;) {
        char *file = sdp_xprintf("%s%s/%s", root, group, name);
        char *slash;

        limit = SDP_MIN(limit, read_limit(file));
        free(file);
        slash = strrchr(group, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    free(group);
    return limit;
}

/* Whether the comma-separated list of controllers names `memory`. */
static bool names_memory(const char *list, size_t length)
{
    const size_t word = strlen("memory");

    for (size_t start = 0, end; start < length; start = end + 1) {
        for (end = start; end < length && list[end] != ',';)
            end++;
        if (end - start == word && memcmp(list + start, "memory", word) == 0)
            return true;
    }
    return false;
}

/* One line "ID:CONTROLLERS:PATH" of /proc/self/cgroup. */
static size_t line_limit(char *line, const char *root)
{
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL, *unified, *memory;
    size_t limit = SIZE_MAX;

    if (!path)
        return limit;
    path++;
    path[strcspn(path, "\n")] = '\0';
    unified = sdp_xprintf("%s/unified", root);
    memory = sdp_xprintf("%s/memory", root);
    if (list + 2 == path) /* no controllers: version 2 */
        limit = SDP_MIN(lowest_limit(root, path, "memory.max"),
                        lowest_limit(unified, path, "memory.max"));
    else if (names_memory(list + 1, (size_t)(path - list) - 2))
        limit = lowest_limit(memory, path, "memory.limit_in_bytes");
    free(unified);
    free(memory);
    return limit;
}

size_t sdpi_cgroup_memory_limit(const char *groups, const char *root)
{
    size_t limit = SIZE_MAX, size = 0;
    char *line = NULL;
    FILE *file = fopen(groups, "r");

    if (!file)
        return limit;
    while (getline(&line, &size, file) > 0) {
        size_t one = line_limit(line, root);
        limit = SDP_MIN(limit, one);
    }
    free(line);
    (void)fclose(file);
    return limit;
}

size_t sdpi_available_memory(void)
{
    char line[128];
    unsigned long long kib;
    size_t available = SIZE_MAX;
    FILE *file = fopen("/proc/meminfo", "r");

    if (!file)
        return available;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            available = (size_t)kib << 10;
    (void)fclose(file);
    return available;
}

/* -- processors ------------------------------------------------------------------- */

hwloc_bitmap_t sdpi_process_pus(hwloc_topology_t topology)
{
    hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(topology);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();

    if (!set || !allowed) {
        hwloc_bitmap_free(set);
        return NULL;
    }
    if (hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) != 0 ||
        hwloc_bitmap_and(set, set, allowed) != 0 || hwloc_bitmap_iszero(set)) {
        if (hwloc_bitmap_copy(set, allowed) != 0 || hwloc_bitmap_iszero(set)) {
            hwloc_bitmap_free(set);
            return NULL;
        }
    }
    return set;
}

unsigned sdpi_thread_count(unsigned threads)
{
    hwloc_topology_t topology;
    hwloc_bitmap_t set = NULL;
    int count = 0;

    if (threads)
        return threads;
    if (hwloc_topology_init(&topology) != 0)
        return 1;
    if (hwloc_topology_load(topology) == 0)
        set = sdpi_process_pus(topology);
    if (set)
        count = hwloc_bitmap_weight(set);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topology);
    return count > 0 ? (unsigned)count : 1;
}
