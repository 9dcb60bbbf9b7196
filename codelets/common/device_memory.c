/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Device memory and facts, with the CUDA runtime where it is built in. */
#include "codelets/common/device_memory.h"

#include "graph/base/log.h"

#ifdef SDP_HAVE_CUDA
#include <cuda_runtime_api.h>

size_t sdp_cuda_device_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError(); /* no driver or no device: not an error here */
        return 0;
    }
    return count > 0 ? (size_t)count : 0;
}

enum sdp_status sdp_cuda_device_info(int ordinal, struct sdp_cuda_info *out, struct sdp_error *err)
{
    struct cudaDeviceProp properties;
    struct sdp_cuda_info info = {{0}, 0, 0, 0, 0};
    cudaError_t rc = cudaGetDeviceProperties(&properties, ordinal);
    if (rc == cudaSuccess)
        rc = cudaSetDevice(ordinal);
    if (rc == cudaSuccess)
        rc = cudaMemGetInfo(&info.free_bytes, &info.total_bytes);
    if (rc != cudaSuccess)
        return sdp_fail(err, SDP_DEVICE, "CUDA device %d: %s", ordinal, cudaGetErrorString(rc));
    memcpy(info.name, properties.name, sizeof info.name - 1);
    info.major = properties.major;
    info.minor = properties.minor;
    *out = info;
    return SDP_OK;
}

void *sdp_cuda_malloc(int ordinal, size_t bytes)
{
    void *pointer = NULL;
    cudaError_t rc = cudaSetDevice(ordinal);
    if (rc == cudaSuccess)
        rc = cudaMalloc(&pointer, bytes);
    if (rc != cudaSuccess) {
        (void)cudaGetLastError(); /* else the next launch would report it again */
        return NULL;
    }
    return pointer;
}

void sdp_cuda_free(int ordinal, void *pointer)
{
    if (!pointer)
        return;
    if (cudaSetDevice(ordinal) != cudaSuccess || cudaFree(pointer) != cudaSuccess)
        sdp_warn("CUDA device %d: freeing memory failed", ordinal);
}
#else
size_t sdp_cuda_device_count(void)
{
    return 0;
}

enum sdp_status sdp_cuda_device_info(int ordinal, struct sdp_cuda_info *out, struct sdp_error *err)
{
    (void)out;
    return sdp_fail(err, SDP_DEVICE, "CUDA device %d: this build has no CUDA", ordinal);
}

void *sdp_cuda_malloc(int ordinal, size_t bytes)
{
    (void)ordinal;
    (void)bytes;
    return NULL;
}

void sdp_cuda_free(int ordinal, void *pointer)
{
    (void)ordinal;
    (void)pointer;
}
#endif

enum sdp_status sdp_device_copy(void *to, const void *from, size_t bytes, const struct sdp_op_device *device, bool cuda)
{
    if (!cuda) {
        memcpy(to, from, bytes);
        return SDP_OK;
    }
#ifdef SDP_HAVE_CUDA
    cudaError_t rc = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)device->stream);
    if (rc != cudaSuccess) {
        sdp_warn("copy on the device: %s", cudaGetErrorString(rc));
        return SDP_DEVICE;
    }
    return SDP_OK;
#else
    (void)device;
    return SDP_DEVICE;
#endif
}
