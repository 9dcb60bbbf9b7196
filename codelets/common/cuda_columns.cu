/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Ordered column sums in two stages; see cuda_columns.h.
 *
 * Floor: rows * cols * sizeof(T) read; the partial sums add groups * cols * 8 bytes. */
#include "codelets/common/cuda_columns.h"

#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

constexpr int rows_at_once = 8;  /* of a block of 32 x 8 threads */
constexpr int finish_rows = 32;  /* of a block of 32 x 32 threads */

/* x is (rows, cols). Block (tile, group): columns tile * 32 * N ..., rows group * span ....
 * Thread (tx, ty) sums its N columns over every 8th row, then the 8 sums meet in shared memory. */
template <typename T, int N>
__global__ void __launch_bounds__(256) column_partial_kernel(const T *x, size_t rows, size_t cols, size_t stride,
                                                             size_t span, float *partial)
{
    __shared__ float shared[rows_at_once][32 * N];
    const size_t c = (static_cast<size_t>(blockIdx.x) * 32 + threadIdx.x) * N;
    const size_t first = blockIdx.y * span;
    const size_t last = first + span < rows ? first + span : rows;
    float sum[N] = {};

    if (c < cols) {
#pragma unroll 4
        for (size_t r = first + threadIdx.y; r < last; r += rows_at_once) {
            float value[N];
            load<T, N>(x + r * stride + c, value);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += value[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        shared[threadIdx.y][threadIdx.x * N + i] = sum[i];
    __syncthreads();
    /* 256 threads, 32 * N columns: thread k finishes column k of the tile. */
    const int k = threadIdx.y * 32 + threadIdx.x;
    const size_t column = static_cast<size_t>(blockIdx.x) * 32 * N + k;
    if (k < 32 * N && column < cols) {
        float total = 0.0f;
#pragma unroll
        for (int r = 0; r < rows_at_once; r++)
            total += shared[r][k];
        partial[blockIdx.y * cols + column] = total;
    }
}

/* partial is (groups, cols) with a stride. Block of 32 columns x 32 rows of threads. */
__global__ void __launch_bounds__(1024) column_finish_kernel(const float *partial, size_t groups, size_t cols,
                                                             size_t stride, float *sum, bool add)
{
    __shared__ float shared[finish_rows][32];
    const size_t c = static_cast<size_t>(blockIdx.x) * 32 + threadIdx.x;
    float total = 0.0f;

    if (c < cols) {
        for (size_t g = threadIdx.y; g < groups; g += finish_rows)
            total += partial[g * stride + c];
    }
    shared[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
        total = 0.0f;
#pragma unroll
        for (int r = 0; r < finish_rows; r++)
            total += shared[r][threadIdx.x];
        sum[c] = add ? sum[c] + total : total;
    }
}

template <typename T, int N>
enum sdp_status launch_partial(const void *x, size_t rows, size_t cols, size_t stride, float *partial,
                               cudaStream_t stream)
{
    const size_t groups = sdpi_column_groups(rows);
    const size_t span = divide_up(rows, groups);
    const dim3 grid(static_cast<unsigned>(divide_up(cols, 32 * N)), static_cast<unsigned>(groups));

    column_partial_kernel<T, N><<<grid, dim3(32, rows_at_once), 0, stream>>>(
        static_cast<const T *>(x), rows, cols, stride, span, partial);
    SDP_CUDA_LAUNCHED("column_partial_kernel");
    return SDP_OK;
}

} // namespace

extern "C" size_t sdpi_column_groups(size_t rows)
{
    const size_t groups = divide_up(rows, 64);
    return groups == 0 ? 1 : groups < 128 ? groups : 128;
}

extern "C" enum sdp_status sdpi_column_finish(const float *partial, size_t groups, size_t cols, size_t stride,
                                              float *sum, bool add, void *stream)
{
    if (cols == 0)
        return SDP_OK;
    column_finish_kernel<<<static_cast<unsigned>(divide_up(cols, 32)), dim3(32, finish_rows), 0,
                           static_cast<cudaStream_t>(stream)>>>(partial, groups, cols, stride, sum, add);
    SDP_CUDA_LAUNCHED("column_finish_kernel");
    return SDP_OK;
}

extern "C" enum sdp_status sdpi_column_sum(const void *x, enum sdp_dtype dtype, size_t rows, size_t cols,
                                           size_t stride, float *scratch, float *sum, bool add, void *stream)
{
    const size_t pack = dtype == SDP_BF16 ? 8 : 4;
    const bool packed = cols % pack == 0 && stride % pack == 0 && aligned16(x);

    if (cols == 0)
        return SDP_OK;
    SDP_TRY(SDP_DISPATCH(dtype, packed, launch_partial, x, rows, cols, stride, scratch,
                         static_cast<cudaStream_t>(stream)));
    return sdpi_column_finish(scratch, sdpi_column_groups(rows), cols, cols, sum, add, stream);
}
