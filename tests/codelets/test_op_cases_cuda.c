/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The CUDA twins of all operations against the reference, on the cases of their folders,
 * in fp32 and in bf16 (of which inputs, outputs and their gradients are rounded). */
#include "tests/codelets/op_check.h"

#include "codelets/common/cuda_device.h"
#include "tests/sdp_test.h"

#include <cuda_runtime_api.h>

static cudaStream_t stream;

static void must(cudaError_t rc)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(rc));
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;

    must(cudaMalloc(&memory, bytes));
    return memory;
}

static void release(void *memory)
{
    must(cudaFree(memory));
}

static void upload(void *memory, const void *from, size_t bytes)
{
    must(cudaMemcpyAsync(memory, from, bytes, cudaMemcpyHostToDevice, stream));
    must(cudaStreamSynchronize(stream));
}

static void download(void *to, const void *memory, size_t bytes)
{
    must(cudaMemcpyAsync(to, memory, bytes, cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
}

int main(void)
{
    struct sdp_op_device device = {0};
    struct sdp_op_check check = {.cuda = true,
                                 .device = &device,
                                 .allocate = allocate,
                                 .release = release,
                                 .upload = upload,
                                 .download = download};
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        SKIP("no CUDA device");
    must(cudaSetDevice(0));
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    REQUIRE(sdp_op_device_create_cuda(0, stream, &device) == SDP_OK);
    check.dtype = SDP_FP32;
    check.tolerance = 1e-5;
    CHECK_EQ(sdp_op_check_all(&check), 0);
    check.dtype = SDP_BF16;
    check.tolerance = 1e-2;
    CHECK_EQ(sdp_op_check_all(&check), 0);
    sdp_op_device_destroy_cuda(&device);
    must(cudaStreamDestroy(stream));
    return sdp_test_end();
}
