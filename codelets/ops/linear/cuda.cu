/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twin of `linear`: out (T, N) = x (T, K) W^T (+ bias) (+ residual). The weights are a
 * list of (N_i, K) whose outputs stand side by side (q, k, v or gate, up), with a list of
 * as many biases or none. Where the list is one block of memory it is one product, else
 * one for each weight; the same for their gradients.
 *
 * Backward: dx = dout W, dW = dout^T x in fp32, dbias the column sums of dout, and the
 * residual's gradient is dout.
 *
 * Floor: 2 T N K operations forward, twice that backward, at the matrix units' rate; bytes
 * (e = bytes of an element) e (T K + N K + T N) a product, 4 N K for dW (8 when adding). */
#include "codelets/common/cuda_columns.h"
#include "codelets/common/cuda_gemm.h"
#include "codelets/common/cuda_vector.cuh"

using namespace sdp;

namespace {

constexpr unsigned weight_role = 0; /* the other role is bias */

/* The weight list of a node: indices of weights and biases, and where each one's columns start. */
struct Parts {
    size_t count, biases;
    size_t weight[SDP_OP_MAX_WEIGHTS], bias[SDP_OP_MAX_WEIGHTS];
    size_t rows[SDP_OP_MAX_WEIGHTS], column[SDP_OP_MAX_WEIGHTS];
};

Parts parts_of(const struct sdp_op_node *node)
{
    Parts p = {};
    size_t column = 0;

    for (size_t i = 0; i < node->weight_count; i++) {
        if (node->weight_role[i] != weight_role) {
            p.bias[p.biases++] = i;
            continue;
        }
        p.weight[p.count] = i;
        p.rows[p.count] = node->weight_rows[i];
        p.column[p.count++] = column;
        column += node->weight_rows[i];
    }
    return p;
}

/* Whether what `pointer` lists for `index` is one run of memory, each rows[i] * cols elements long. */
template <typename Pointer>
bool contiguous(const Pointer *pointer, const size_t *index, const Parts &p, size_t count, size_t cols, size_t size)
{
    for (size_t i = 1; i < count; i++) {
        const char *before = reinterpret_cast<const char *>(pointer[index[i - 1]]);
        if (!before || before + p.rows[i - 1] * cols * size != reinterpret_cast<const char *>(pointer[index[i]]))
            return false;
    }
    return true;
}

/* All parts as one: for a list that is one run of memory. */
Parts merged(const Parts &p, size_t columns)
{
    Parts one = p;
    one.count = 1;
    one.biases = p.biases ? 1 : 0;
    one.rows[0] = columns;
    return one;
}

const char *at(const void *base, size_t elements, enum sdp_dtype dtype)
{
    return static_cast<const char *>(base) + elements * sdp_dtype_size(dtype);
}

enum sdp_status input_gradient(const struct sdp_op_call *call, const Parts &all)
{
    const struct sdp_op_node *node = call->node;
    const size_t cols = node->output_cols[0], k = node->input_cols[0], size = sdp_dtype_size(call->dtype);
    const Parts p = contiguous(call->weight, all.weight, all, all.count, k, size) ? merged(all, cols) : all;

    for (size_t i = 0; i < p.count; i++) {
        struct sdp_gemm g = {};
        g.m = call->batch->tokens;
        g.n = k;
        g.k = p.rows[i];
        g.a = at(call->dout[0], p.column[i], call->dtype);
        g.lda = cols;
        g.b = call->weight[p.weight[i]];
        g.ldb = k;
        g.c = call->din[0];
        g.d = call->din[0];
        g.ldd = k;
        g.in_dtype = call->dtype;
        g.out_dtype = call->dtype;
        g.beta = i > 0 || call->add_din[0] ? 1.0f : 0.0f;
        SDP_TRY(sdp_gemm_cuda(call->device, &g));
    }
    return SDP_OK;
}

enum sdp_status weight_gradients(const struct sdp_op_call *call, const Parts &all)
{
    const struct sdp_op_node *node = call->node;
    const size_t cols = node->output_cols[0], k = node->input_cols[0];
    const Parts p =
        contiguous(call->dweight, all.weight, all, all.count, k, sizeof(float)) ? merged(all, cols) : all;

    for (size_t i = 0; i < p.count; i++) {
        struct sdp_gemm g = {};
        if (!call->dweight[p.weight[i]])
            continue;
        g.transpose_a = true;
        g.m = p.rows[i];
        g.n = k;
        g.k = call->batch->tokens;
        g.a = at(call->dout[0], p.column[i], call->dtype);
        g.lda = cols;
        g.b = call->in[0];
        g.ldb = k;
        g.c = call->dweight[p.weight[i]];
        g.d = call->dweight[p.weight[i]];
        g.ldd = k;
        g.in_dtype = call->dtype;
        g.out_dtype = SDP_FP32;
        g.beta = call->add_dweight ? 1.0f : 0.0f;
        SDP_TRY(sdp_gemm_cuda(call->device, &g));
    }
    return SDP_OK;
}

enum sdp_status bias_gradients(const struct sdp_op_call *call, const Parts &all)
{
    const size_t cols = call->node->output_cols[0];
    const Parts p =
        contiguous(call->dweight, all.bias, all, all.biases, 1, sizeof(float)) ? merged(all, cols) : all;

    for (size_t i = 0; i < p.biases; i++) {
        if (!call->dweight[p.bias[i]])
            continue;
        SDP_TRY(sdpi_column_sum(at(call->dout[0], p.column[i], call->dtype), call->dtype, call->batch->tokens,
                                p.rows[i], cols, static_cast<float *>(call->work), call->dweight[p.bias[i]],
                                call->add_dweight, call->device->stream));
    }
    return SDP_OK;
}

/* din (=|+=) dout, unless they are one: how the residual gets its gradient. */
template <typename T, int N>
__global__ void __launch_bounds__(256) residual_kernel(const T *dout, T *din, size_t packs)
{
    const size_t p = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (p >= packs)
        return;

    float value[N];
    load<T, N>(dout + p * N, value);
    deliver<T, N>(din + p * N, value, true);
}

template <typename T, int N> enum sdp_status add_residual(const struct sdp_op_call *call, size_t count)
{
    residual_kernel<T, N><<<static_cast<unsigned>(divide_up(count / N, 256)), 256, 0, stream_of(call)>>>(
        static_cast<const T *>(call->dout[0]), static_cast<T *>(call->din[1]), count / N);
    SDP_CUDA_LAUNCHED("residual_kernel");
    return SDP_OK;
}

enum sdp_status residual_gradient(const struct sdp_op_call *call)
{
    const size_t count = call->batch->tokens * call->node->output_cols[0];
    const size_t pack = call->dtype == SDP_BF16 ? 8 : 4;
    const bool packed = count % pack == 0 && aligned16(call->dout[0]) && aligned16(call->din[1]);

    if (call->add_din[1])
        return SDP_DISPATCH(call->dtype, packed, add_residual, call, count);
    if (call->din[1] != call->dout[0])
        SDP_CUDA(cudaMemcpyAsync(call->din[1], call->dout[0], count * sdp_dtype_size(call->dtype),
                                 cudaMemcpyDeviceToDevice, stream_of(call)));
    return SDP_OK;
}

} // namespace

extern "C" size_t sdp_linear_work_cuda(const struct sdp_op_node *node, size_t tokens, size_t, enum sdp_dtype,
                                       bool backward)
{
    if (!backward || parts_of(node).biases == 0)
        return 0;
    return sdpi_column_groups(tokens) * node->output_cols[0] * sizeof(float);
}

extern "C" enum sdp_status sdp_linear_forward_cuda(const struct sdp_op_call *call)
{
    const struct sdp_op_node *node = call->node;
    const size_t cols = node->output_cols[0], k = node->input_cols[0], size = sdp_dtype_size(call->dtype);
    const Parts all = parts_of(node);
    const bool one = contiguous(call->weight, all.weight, all, all.count, k, size) &&
                     contiguous(call->weight, all.bias, all, all.biases, 1, size);
    const Parts p = one ? merged(all, cols) : all;

    for (size_t i = 0; i < p.count; i++) {
        struct sdp_gemm g = {};
        g.transpose_b = true;
        g.m = call->batch->tokens;
        g.n = p.rows[i];
        g.k = k;
        g.a = call->in[0];
        g.lda = k;
        g.b = call->weight[p.weight[i]];
        g.ldb = k;
        g.c = call->in[1] ? at(call->in[1], p.column[i], call->dtype) : nullptr;
        g.d = const_cast<char *>(at(call->out[0], p.column[i], call->dtype));
        g.ldd = cols;
        g.bias = p.biases ? call->weight[p.bias[i]] : nullptr;
        g.in_dtype = call->dtype;
        g.out_dtype = call->dtype;
        g.beta = call->in[1] ? 1.0f : 0.0f;
        SDP_TRY(sdp_gemm_cuda(call->device, &g));
    }
    return SDP_OK;
}

extern "C" enum sdp_status sdp_linear_backward_cuda(const struct sdp_op_call *call)
{
    const Parts all = parts_of(call->node);

    if (call->batch->tokens == 0)
        return SDP_OK;
    SDP_TRY(weight_gradients(call, all));
    if (all.biases)
        SDP_TRY(bias_gradients(call, all));
    if (call->din[0])
        SDP_TRY(input_gradient(call, all));
    if (call->din[1])
        SDP_TRY(residual_gradient(call));
    return SDP_OK;
}
