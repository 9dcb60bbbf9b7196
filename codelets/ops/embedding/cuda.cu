/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `embedding`: out[t] = scale * table[ids[t]], table (V, D).
 *
 * The gradient of a table row is the sum over the tokens that have its id, in token
 * order: one block owns one run of equal ids, so no atomics and always the same bits.
 *
 * Floor, bytes (e = bytes of an element): forward 2 T D e; backward T D e, + 4 D for each
 * distinct id (+ 4 D more when adding), + 4 V D of zeros when overwriting. */
#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

/* Block: one token and a stretch of blockDim.x * N columns. */
template <typename T, int N>
__global__ void __launch_bounds__(256) embed_kernel(const T *table, const int32_t *ids, T *out, size_t cols,
                                                    unsigned tiles, float scale)
{
    const size_t t = blockIdx.x / tiles;
    const size_t c = (static_cast<size_t>(blockIdx.x % tiles) * blockDim.x + threadIdx.x) * N;
    if (c >= cols)
        return;

    float value[N];
    load<T, N>(table + static_cast<size_t>(ids[t]) * cols + c, value);
#pragma unroll
    for (int i = 0; i < N; i++)
        value[i] *= scale;
    store<T, N>(out + t * cols + c, value);
}

/* Block: one run of equal ids and a stretch of blockDim.x * N columns. */
template <typename T, int N>
__global__ void __launch_bounds__(256) embed_gradient_kernel(const T *dout, struct sdp_op_batch batch, float *dtable,
                                                             size_t cols, unsigned tiles, float scale, bool add)
{
    const size_t s = blockIdx.x / tiles;
    const size_t c = (static_cast<size_t>(blockIdx.x % tiles) * blockDim.x + threadIdx.x) * N;
    if (c >= cols)
        return;

    const int32_t first = batch.segments[s], last = batch.segments[s + 1];
    float sum[N] = {};
#pragma unroll 4
    for (int32_t k = first; k < last; k++) {
        float value[N];
        load<T, N>(dout + static_cast<size_t>(batch.order[k]) * cols + c, value);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += value[i];
    }
    const size_t id = static_cast<size_t>(batch.ids[batch.order[first]]);
    float *row = dtable + id * cols + c;
#pragma unroll
    for (int i = 0; i < N; i++)
        row[i] = add ? row[i] + scale * sum[i] : scale * sum[i];
}

template <typename T, int N>
enum sdp_status forward(const struct sdp_op_call *call, float scale)
{
    const size_t cols = call->node->output_cols[0];
    const unsigned threads = row_threads(divide_up(cols, N), 256);
    const unsigned tiles = static_cast<unsigned>(divide_up(cols, static_cast<size_t>(threads) * N));

    embed_kernel<T, N><<<static_cast<unsigned>(call->batch->tokens * tiles), threads, 0, stream_of(call)>>>(
        static_cast<const T *>(call->weight[0]), call->batch->ids, static_cast<T *>(call->out[0]), cols, tiles,
        scale);
    SDP_CUDA_LAUNCHED("embed_kernel");
    return SDP_OK;
}

template <typename T, int N>
enum sdp_status backward(const struct sdp_op_call *call, float scale)
{
    const size_t cols = call->node->output_cols[0];
    const unsigned threads = row_threads(divide_up(cols, N), 256);
    const unsigned tiles = static_cast<unsigned>(divide_up(cols, static_cast<size_t>(threads) * N));

    embed_gradient_kernel<T, N>
        <<<static_cast<unsigned>(call->batch->segment_count * tiles), threads, 0, stream_of(call)>>>(
            static_cast<const T *>(call->dout[0]), *call->batch, call->dweight[0], cols, tiles, scale,
            call->add_dweight);
    SDP_CUDA_LAUNCHED("embed_gradient_kernel");
    return SDP_OK;
}

bool can_pack(const struct sdp_op_call *call, const void *a, const void *b)
{
    const size_t pack = call->dtype == SDP_BF16 ? 8 : 4;
    return call->node->output_cols[0] % pack == 0 && aligned16(a) && aligned16(b);
}

} // namespace

extern "C" size_t sdp_embedding_work_cuda(const struct sdp_op_node *, size_t, size_t, enum sdp_dtype, bool)
{
    return 0;
}

extern "C" enum sdp_status sdp_embedding_forward_cuda(const struct sdp_op_call *call)
{
    const float scale = static_cast<float>(sdp_op_attr(call->node, "scale"));

    if (call->batch->tokens == 0 || call->node->output_cols[0] == 0)
        return SDP_OK;
    return SDP_DISPATCH(call->dtype, can_pack(call, call->weight[0], call->out[0]), forward, call, scale);
}

extern "C" enum sdp_status sdp_embedding_backward_cuda(const struct sdp_op_call *call)
{
    const struct sdp_op_node *node = call->node;
    const float scale = static_cast<float>(sdp_op_attr(node, "scale"));

    if (!call->dweight[0])
        return SDP_OK;
    if (!call->add_dweight)
        SDP_CUDA(cudaMemsetAsync(call->dweight[0], 0, node->weight_rows[0] * node->weight_cols[0] * sizeof(float),
                                 stream_of(call)));
    if (call->batch->segment_count == 0 || node->output_cols[0] == 0)
        return SDP_OK;
    return SDP_DISPATCH(call->dtype, can_pack(call, call->dout[0], call->dout[0]), backward, call, scale);
}
