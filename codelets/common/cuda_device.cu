/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See cuda_device.h. cuDNN is reached through the attention operation alone, the only
 * one that uses it, so that everything else builds without it. */
#include "codelets/common/cuda_device.h"

#include "codelets/common/cuda_check.h"
#include "codelets/ops/attention/cuda.h"

#include <cublasLt.h>

namespace {

constexpr size_t mebibyte = static_cast<size_t>(1) << 20;

enum sdp_status create(int ordinal, void *stream, struct sdp_op_device *out)
{
    int major = 0;
    cublasLtHandle_t cublaslt = nullptr;

    SDP_CUDA(cudaSetDevice(ordinal));
    SDP_CUDA(cudaDeviceGetAttribute(&out->multiprocessors, cudaDevAttrMultiProcessorCount, ordinal));
    SDP_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
    out->ordinal = ordinal;
    out->stream = stream;
    out->deterministic = true;
    const cublasStatus_t rc = cublasLtCreate(&cublaslt);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return sdpi_cuda_failed(__FILE__, __LINE__, "cublasLtCreate", cublasLtGetStatusString(rc));
    out->cublaslt = cublaslt;
    out->blas_workspace_bytes = (major >= 9 ? 64 : 32) * mebibyte;
    SDP_CUDA(cudaMalloc(&out->blas_workspace, out->blas_workspace_bytes));
    return sdp_attention_library_create_cuda(stream, &out->cudnn);
}

} // namespace

extern "C" enum sdp_status sdp_op_device_create_cuda(int ordinal, void *stream, struct sdp_op_device *out)
{
    *out = sdp_op_device();
    const enum sdp_status rc = create(ordinal, stream, out);
    if (rc != SDP_OK)
        sdp_op_device_destroy_cuda(out);
    return rc;
}

extern "C" void sdp_op_device_destroy_cuda(struct sdp_op_device *device)
{
    cudaError_t rc = cudaSuccess;

    if (!device || !device->cublaslt) {
        if (device)
            *device = sdp_op_device();
        return;
    }
    if (cudaSetDevice(device->ordinal) == cudaSuccess)
        rc = cudaStreamSynchronize(static_cast<cudaStream_t>(device->stream));
    if (rc != cudaSuccess)
        sdp_warn("device %d: %s", device->ordinal, cudaGetErrorString(rc));
    sdp_attention_library_destroy_cuda(device->cudnn);
    const cublasStatus_t blas = cublasLtDestroy(static_cast<cublasLtHandle_t>(device->cublaslt));
    if (blas != CUBLAS_STATUS_SUCCESS)
        sdp_warn("cublasLtDestroy: %s", cublasLtGetStatusString(blas));
    rc = cudaFree(device->blas_workspace);
    if (rc != cudaSuccess)
        sdp_warn("device %d: %s", device->ordinal, cudaGetErrorString(rc));
    *device = sdp_op_device();
}
