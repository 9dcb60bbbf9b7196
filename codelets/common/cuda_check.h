/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Error handling of the CUDA twins: a failed call is logged once, with its place
 * and the library's own words, and becomes SDP_DEVICE. The macros return from the
 * enclosing function, which therefore returns enum sdp_status. */
#ifndef SDP_CODELETS_COMMON_CUDA_CHECK_H
#define SDP_CODELETS_COMMON_CUDA_CHECK_H

#include "graph/base/log.h"

#include <cuda_runtime_api.h>

static inline enum sdp_status sdpi_cuda_failed(const char *file, int line, const char *expression,
                                               const char *text)
{
    sdp_warn("%s:%d: %s: %s", file, line, expression, text);
    return SDP_DEVICE;
}

/* A CUDA runtime call. */
#define SDP_CUDA(expression)                                                                       \
    do {                                                                                           \
        cudaError_t sdp_cuda_rc = (expression);                                                    \
        if (sdp_cuda_rc != cudaSuccess)                                                            \
            return sdpi_cuda_failed(__FILE__, __LINE__, #expression,                               \
                                    cudaGetErrorString(sdp_cuda_rc));                              \
    } while (0)

/* After a kernel launch: the launch itself failed (bad configuration, no code for this GPU). */
#define SDP_CUDA_LAUNCHED(kernel)                                                                  \
    do {                                                                                           \
        cudaError_t sdp_cuda_rc = cudaGetLastError();                                              \
        if (sdp_cuda_rc != cudaSuccess)                                                            \
            return sdpi_cuda_failed(__FILE__, __LINE__, "launch of " kernel,                       \
                                    cudaGetErrorString(sdp_cuda_rc));                              \
    } while (0)

/* Something of ours that has logged its failure already. */
#define SDP_TRY(expression)                                                                        \
    do {                                                                                           \
        enum sdp_status sdp_try_rc = (expression);                                                 \
        if (sdp_try_rc != SDP_OK)                                                                  \
            return sdp_try_rc;                                                                     \
    } while (0)

#endif
