/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Device memory and device facts behind one interface, so that the engine reads
 * the same with and without CUDA. Without CUDA there are no devices. */
#ifndef SDP_CODELETS_COMMON_DEVICE_MEMORY_H
#define SDP_CODELETS_COMMON_DEVICE_MEMORY_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sdp_cuda_info {
    char name[128];
    int major, minor;        /* compute capability */
    size_t free_bytes, total_bytes;
    int multiprocessors;
    double clock_hz;         /* highest */
    double memory_bytes_per_s, link_bytes_per_s; /* of its memory and of one direction of its PCIe link, as specified */
};

/** Number of usable CUDA devices; 0 without CUDA, driver or device. */
size_t sdp_cuda_device_count(void);

/** Facts of one device. \return SDP_DEVICE with a message when CUDA fails. */
SDP_CHECK_RESULT enum sdp_status sdp_cuda_device_info(int ordinal, struct sdp_cuda_info *out, struct sdp_error *err);

/** Device memory; once before the first step, never inside one. NULL when there is none left. */
void *sdp_cuda_malloc(int ordinal, size_t bytes);
void sdp_cuda_free(int ordinal, void *pointer);

/** Enqueues a copy within a device on device->stream (cuda), or copies at once. */
enum sdp_status sdp_device_copy(void *to, const void *from, size_t bytes, const struct sdp_op_device *device, bool cuda);

/** Copies from host memory to a device on a stream, and waits for it; waits for a stream. CUDA only. */
enum sdp_status sdp_upload_cuda(void *to, const void *from, size_t bytes, void *stream);
enum sdp_status sdp_synchronize_cuda(void *stream);

#ifdef __cplusplus
}
#endif
#endif
