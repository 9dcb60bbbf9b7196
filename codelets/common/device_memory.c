/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Device memory and facts, with the CUDA runtime where it is built in. */
#include "codelets/common/device_memory.h"

#include "graph/base/log.h"

#include <stdio.h>
#include <stdlib.h>

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

/* 0 where CUDA does not say. */
static double attribute(enum cudaDeviceAttr which, int ordinal)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (double)value;
}

/* What the kernel knows of the PCIe link; a link that says nothing is taken for 16 lanes of the fourth generation. */
static double link_rate(int ordinal)
{
    char id[32], path[96], text[32] = "";
    double rate = 0, lanes = 0;
    if (cudaDeviceGetPCIBusId(id, sizeof id, ordinal) != cudaSuccess)
        return 32e9;
    for (char *c = id; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    const char *const names[] = {"max_link_speed", "max_link_width"};
    double *const values[] = {&rate, &lanes};
    for (size_t i = 0; i < SDP_COUNT_OF(names); i++) {
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", id, names[i]);
        FILE *file = fopen(path, "r");
        if (file && fgets(text, sizeof text, file))
            *values[i] = strtod(text, NULL);
        if (file)
            fclose(file);
    }
    if (!(rate > 0) || !(lanes > 0) || lanes > 32)
        return 32e9;
    return rate * 1e9 / 8 * lanes; /* GT/s carry a bit each */
}

enum sdp_status sdp_cuda_device_info(int ordinal, struct sdp_cuda_info *out, struct sdp_error *err)
{
    struct cudaDeviceProp properties;
    struct sdp_cuda_info info;
    memset(&info, 0, sizeof info);
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
    info.multiprocessors = properties.multiProcessorCount;
    info.clock_hz = attribute(cudaDevAttrClockRate, ordinal) * 1e3;
    info.memory_bytes_per_s = attribute(cudaDevAttrMemoryClockRate, ordinal) * 1e3 * 2 / 8 *
                              attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal);
    info.link_bytes_per_s = link_rate(ordinal);
    *out = info;
    return SDP_OK;
}

static enum sdp_status told(const char *what, cudaError_t rc)
{
    if (rc == cudaSuccess)
        return SDP_OK;
    sdp_warn("%s: %s", what, cudaGetErrorString(rc));
    return SDP_DEVICE;
}

enum sdp_status sdp_synchronize_cuda(void *stream)
{
    return told("waiting for kernels", cudaStreamSynchronize((cudaStream_t)stream));
}

enum sdp_status sdp_upload_cuda(void *to, const void *from, size_t bytes, void *stream)
{
    enum sdp_status rc = told("copying to the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream));
    return rc ? rc : sdp_synchronize_cuda(stream);
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
