/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Offloaded activations: a store task reads an area in main memory, a fetch task on a device's memory node, so that StarPU
 * makes the copy; both run on the worker that waits for such copies, and do nothing else. */
#include "codelets/task.h"

static void nothing(void *buffers[], void *arg)
{
    (void)buffers;
    (void)arg;
}

/* buffers: area R, admission W */
struct starpu_codelet sdp_codelet_store = {
    .cpu_funcs = {nothing},
    .cpu_funcs_name = {"nothing"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "store",
    .color = 0xc9b26b,
};

/* The engine copies this one for each device and sets nodes[0] to its memory node. */
struct starpu_codelet sdp_codelet_fetch = {
    .cpu_funcs = {nothing},
    .cpu_funcs_name = {"nothing"},
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .specific_nodes = 1,
    .name = "fetch",
    .color = 0x8ecfb4,
};
