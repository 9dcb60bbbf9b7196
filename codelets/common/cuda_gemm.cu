/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Matrix products through cuBLASLt; see cuda_gemm.h.
 *
 * cuBLASLt is column-major. A row-major d of m x n is a column-major n x m of the same
 * memory, so what is computed is d^T = op(b)^T op(a)^T: the operands change places and
 * a stored matrix is transposed for cuBLASLt exactly where it is in row-major terms. The
 * bias, along n here, is along cuBLASLt's rows, which is what its epilogue wants. */
#include "codelets/common/cuda_gemm.h"

#include "codelets/common/cuda_check.h"

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <vector>

#define SDP_BLAS(expression)                                                                       \
    do {                                                                                           \
        cublasStatus_t sdp_blas_rc = (expression);                                                 \
        if (sdp_blas_rc != CUBLAS_STATUS_SUCCESS)                                                  \
            return sdpi_cuda_failed(__FILE__, __LINE__, #expression,                               \
                                    cublasLtGetStatusString(sdp_blas_rc));                         \
    } while (0)

namespace {

/* All that the heuristic's answer depends on, as words, so that keys compare simply. */
using Key = std::vector<uint64_t>;

std::mutex table_lock;
std::map<Key, cublasLtMatmulAlgo_t> table;

struct Problem {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, c;
};

cudaDataType_t type_of(enum sdp_dtype dtype)
{
    return dtype == SDP_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Largest power of two up to 256 that divides the address. */
uint32_t alignment_of(const void *pointer)
{
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer) | 256u;
    return static_cast<uint32_t>(address & (~address + 1));
}

Key key_of(const struct sdp_op_device *device, const struct sdp_gemm *g)
{
    return {static_cast<uint64_t>(device->ordinal), device->blas_workspace_bytes, g->m, g->n, g->k, g->lda,
            g->ldb, g->ldd, static_cast<uint64_t>(g->in_dtype), static_cast<uint64_t>(g->out_dtype),
            static_cast<uint64_t>(g->transpose_a), static_cast<uint64_t>(g->transpose_b),
            static_cast<uint64_t>(g->bias != nullptr), static_cast<uint64_t>(g->beta != 0.0f),
            static_cast<uint64_t>(g->beta != 0.0f && g->c == g->d),
            alignment_of(g->a), alignment_of(g->b), g->beta != 0.0f ? alignment_of(g->c) : 0,
            alignment_of(g->d)};
}

/* A stored matrix of rows x cols elements is cols x rows to cuBLASLt. */
enum sdp_status make_layout(cublasLtMatrixLayoutOpaque_t *layout, enum sdp_dtype dtype, size_t rows, size_t cols,
                            size_t stride)
{
    SDP_BLAS(cublasLtMatrixLayoutInit(layout, type_of(dtype), cols, rows, static_cast<int64_t>(stride)));
    return SDP_OK;
}

enum sdp_status make_operation(cublasLtMatmulDescOpaque_t *operation, const struct sdp_gemm *g)
{
    const cublasOperation_t first = g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;

    SDP_BLAS(cublasLtMatmulDescInit(operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SDP_BLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    SDP_BLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    if (g->bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const cudaDataType_t type = type_of(g->out_dtype);
        SDP_BLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                sizeof epilogue));
        SDP_BLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias,
                                                sizeof g->bias));
        SDP_BLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                                sizeof type));
    }
    return SDP_OK;
}

enum sdp_status make_problem(Problem *p, const struct sdp_gemm *g)
{
    SDP_TRY(make_operation(&p->operation, g));
    SDP_TRY(make_layout(&p->a, g->in_dtype, g->transpose_b ? g->n : g->k, g->transpose_b ? g->k : g->n, g->ldb));
    SDP_TRY(make_layout(&p->b, g->in_dtype, g->transpose_a ? g->k : g->m, g->transpose_a ? g->m : g->k, g->lda));
    return make_layout(&p->c, g->out_dtype, g->m, g->n, g->ldd);
}

enum sdp_status make_preference(cublasLtMatmulPreferenceOpaque_t *preference, const struct sdp_op_device *device,
                                const struct sdp_gemm *g)
{
    const uint64_t bytes = device->blas_workspace_bytes;
    /* Not in place: that scheme adds in the order in which blocks finish. */
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t d = alignment_of(g->d);
    const uint32_t c = g->beta != 0.0f ? alignment_of(g->c) : d;
    const uint32_t a = alignment_of(g->b), b = alignment_of(g->a);

    SDP_BLAS(cublasLtMatmulPreferenceInit(preference));
    SDP_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                  sizeof bytes));
    SDP_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                                  sizeof schemes));
    SDP_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a,
                                                  sizeof a));
    SDP_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b,
                                                  sizeof b));
    SDP_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c,
                                                  sizeof c));
    SDP_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d,
                                                  sizeof d));
    return SDP_OK;
}

enum sdp_status choose(const struct sdp_op_device *device, const struct sdp_gemm *g, Problem *p,
                       cublasLtMatmulAlgo_t *algo)
{
    const Key key = key_of(device, g);
    const std::lock_guard<std::mutex> guard(table_lock);
    const auto known = table.find(key);
    if (known != table.end()) {
        *algo = known->second;
        return SDP_OK;
    }

    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    SDP_TRY(make_preference(&preference, device, g));
    const cublasStatus_t rc =
        cublasLtMatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(device->cublaslt), &p->operation, &p->a, &p->b,
                                       &p->c, &p->c, &preference, 1, &result, &found);
    if (rc != CUBLAS_STATUS_SUCCESS || found == 0) {
        sdp_warn("cuBLASLt has no algorithm for m %zu, n %zu, k %zu, transposed %d %d, %s to %s: %s", g->m, g->n,
                 g->k, g->transpose_a, g->transpose_b, sdp_dtype_name(g->in_dtype), sdp_dtype_name(g->out_dtype),
                 cublasLtGetStatusString(rc));
        return SDP_DEVICE;
    }
    table.emplace(key, result.algo);
    *algo = result.algo;
    return SDP_OK;
}

} // namespace

extern "C" enum sdp_status sdp_gemm_cuda(const struct sdp_op_device *device, const struct sdp_gemm *g)
{
    const float one = 1.0f;
    Problem p;
    cublasLtMatmulAlgo_t algo;

    if (g->m == 0 || g->n == 0)
        return SDP_OK;
    SDP_TRY(make_problem(&p, g));
    SDP_TRY(choose(device, g, &p, &algo));
    /* cuBLASLt wants a c even where beta is 0, and does not read it then. */
    SDP_BLAS(cublasLtMatmul(static_cast<cublasLtHandle_t>(device->cublaslt), &p.operation, &one, g->b, &p.a, g->a,
                            &p.b, &g->beta, g->beta != 0.0f ? g->c : g->d, &p.c, g->d, &p.c, &algo,
                            device->blas_workspace, device->blas_workspace_bytes,
                            static_cast<cudaStream_t>(device->stream)));
    return SDP_OK;
}
