/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the system allows this process: memory and processors. */
#ifndef SDP_MODEL_STATE_LIMITS_H
#define SDP_MODEL_STATE_LIMITS_H

#include "graph/base/util.h"

#include <hwloc.h>

/** The lowest memory limit of the process's cgroup and the groups above it, in bytes; SIZE_MAX
 * when there is none. `groups` is a file like /proc/self/cgroup, `root` where the hierarchies are
 * mounted (/sys/fs/cgroup): version 2 at the root or in unified/, version 1 in memory/. */
size_t sdpi_cgroup_memory_limit(const char *groups, const char *root);

/** MemAvailable; SIZE_MAX when the system does not say. */
size_t sdpi_available_memory(void);

/** The processing units this process may run on: allowed to it by its cpuset and by the affinity
 * of its threads (the caller alone may be bound to one of them). At least one. [new]
 * hwloc_bitmap_free(). NULL when hwloc fails. */
hwloc_bitmap_t sdpi_process_pus(hwloc_topology_t topology);

/** `threads`, or one a processing unit of the process when it is 0. Never 0. */
unsigned sdpi_thread_count(unsigned threads);

#endif
