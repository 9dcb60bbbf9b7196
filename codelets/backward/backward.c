/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Backward tasks run the same body as forward tasks (codelets/forward/compute.c). */
#include "codelets/task.h"

struct starpu_codelet sdp_codelet_backward = {
    .cpu_funcs = {sdp_compute_task},
    .cpu_funcs_name = {"sdp_compute_task"},
#ifdef SDP_HAVE_CUDA
    .cuda_funcs = {sdp_compute_task},
    .cuda_flags = {STARPU_CUDA_ASYNC},
#endif
    .nbuffers = STARPU_VARIABLE_NBUFFERS,
    .name = "backward",
    .color = 0x2f6db5,
};
