/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How busy the resources of a run were: from StarPU's task profiling, over whole steps. What `slidedp run --resources`
 * prints, next to what the plan predicted. */
#ifndef SDP_GRAPH_RESOURCES_H
#define SDP_GRAPH_RESOURCES_H

#include "graph/plan.h"
#include "graph/task_info.h"

struct sdp_resources;

/* Seconds a step, means over the measured steps; of the busiest device unless said. */
struct sdp_resource_report {
    size_t steps;            /* measured */
    double step;             /* from one step's end to the next's */
    double compute;          /* some kernel of the device was under way */
    double link_in, link_out; /* some delivery or fetch, drain or store, waited for its copy */
    double host_update;      /* time of updates and reductions on host cores, divided by the cores */
    double idle;             /* step - compute */
    double idle_ready;       /* of that: a compute task whose data were delivered waited: StarPU's share */
    double idle_delivery;    /* the next compute task waited for a copy under way */
    double idle_update;      /* it waited for something else: an update, or the slot of a layer */
    double in_bytes, out_bytes;
};

/** [new] */
struct sdp_resources *sdp_resources_create(const struct sdp_plan *plan);
void sdp_resources_destroy(struct sdp_resources *resources);

/** Notes a task that has ended. Any thread. */
void sdp_resources_note(struct sdp_resources *resources, const struct starpu_task *task);

/** Evaluates steps after `first` (whose end starts the clock) up to the last noted. No task may be under way.
 * \return false when fewer than one whole step was noted. */
bool sdp_resources_report(struct sdp_resources *resources, size_t first, struct sdp_resource_report *out);

/** Prints the report beside the plan's prediction, as a table on stdout. */
void sdp_resources_print(const struct sdp_plan *plan, const struct sdp_resource_report *report);

#endif
