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

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
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
std::map<Key, cublasLtMatmulAlgo_t> stored; /* from the file: used after a check by the library */
std::string file_path, file_head;
bool table_grew;

constexpr int candidates = 12, timed_runs = 3;
constexpr float worth = 0.99f; /* part of the first candidate's time that another must stay below */

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

/* cuBLASLt wants a c even where beta is 0, and does not read it then. */
cublasStatus_t multiply(const struct sdp_op_device *device, const struct sdp_gemm *g, Problem *p,
                        const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1.0f;
    return cublasLtMatmul(static_cast<cublasLtHandle_t>(device->cublaslt), &p->operation, &one, g->b, &p->a, g->a, &p->b,
                          &g->beta, g->beta != 0.0f ? g->c : g->d, &p->c, g->d, &p->c, algo, device->blas_workspace,
                          device->blas_workspace_bytes, static_cast<cudaStream_t>(device->stream));
}

/* Milliseconds of one run, or a negative number where the algorithm fails. */
float time_of(const struct sdp_op_device *device, const struct sdp_gemm *g, Problem *p, const cublasLtMatmulAlgo_t *algo,
              cudaEvent_t from, cudaEvent_t to)
{
    const cudaStream_t stream = static_cast<cudaStream_t>(device->stream);
    float best = -1.0f;

    for (int i = 0; i <= timed_runs; i++) { /* the first one warms up */
        float ms = 0.0f;
        if (cudaEventRecord(from, stream) != cudaSuccess || multiply(device, g, p, algo) != CUBLAS_STATUS_SUCCESS ||
            cudaEventRecord(to, stream) != cudaSuccess || cudaEventSynchronize(to) != cudaSuccess ||
            cudaEventElapsedTime(&ms, from, to) != cudaSuccess) {
            static_cast<void>(cudaGetLastError());
            return -1.0f;
        }
        if (i > 0 && (best < 0.0f || ms < best))
            best = ms;
    }
    return best;
}

/* Index of the fastest candidate; the first unless another is clearly faster. */
int fastest(const struct sdp_op_device *device, const struct sdp_gemm *g, Problem *p,
            const cublasLtMatmulHeuristicResult_t *results, int count)
{
    cudaEvent_t from = nullptr, to = nullptr;
    int best = 0;
    float first = -1.0f, least = -1.0f;

    if (count > 1 && cudaEventCreate(&from) == cudaSuccess && cudaEventCreate(&to) == cudaSuccess)
        for (int i = 0; i < count; i++) {
            if (results[i].state != CUBLAS_STATUS_SUCCESS)
                continue;
            const float ms = time_of(device, g, p, &results[i].algo, from, to);
            if (i == 0)
                first = ms;
            if (ms >= 0.0f && (least < 0.0f || ms < least)) {
                least = ms;
                best = i;
            }
        }
    if (from)
        static_cast<void>(cudaEventDestroy(from));
    if (to)
        static_cast<void>(cudaEventDestroy(to));
    return first >= 0.0f && least >= worth * first ? 0 : best;
}

/* Whether a stored algorithm is one that this library runs for the problem in the workspace there is. */
bool usable(const struct sdp_op_device *device, Problem *p, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(static_cast<cublasLtHandle_t>(device->cublaslt), &p->operation, &p->a, &p->b, &p->c,
                                   &p->c, algo, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= device->blas_workspace_bytes;
}

enum sdp_status ask(const struct sdp_op_device *device, const struct sdp_gemm *g, Problem *p, cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t results[candidates];
    int found = 0;

    SDP_TRY(make_preference(&preference, device, g));
    const cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(
        static_cast<cublasLtHandle_t>(device->cublaslt), &p->operation, &p->a, &p->b, &p->c, &p->c, &preference,
        device->tuning ? candidates : 1, results, &found);
    if (rc != CUBLAS_STATUS_SUCCESS || found == 0) {
        sdp_warn("cuBLASLt has no algorithm for m %zu, n %zu, k %zu, transposed %d %d, %s to %s: %s", g->m, g->n,
                 g->k, g->transpose_a, g->transpose_b, sdp_dtype_name(g->in_dtype), sdp_dtype_name(g->out_dtype),
                 cublasLtGetStatusString(rc));
        return SDP_DEVICE;
    }
    *algo = results[device->tuning ? fastest(device, g, p, results, found) : 0].algo;
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

    const auto old = stored.find(key);
    if (old != stored.end() && usable(device, p, &old->second)) {
        *algo = old->second;
    } else {
        SDP_TRY(ask(device, g, p, algo));
        table_grew |= device->tuning;
    }
    table.emplace(key, *algo);
    return SDP_OK;
}

/* -- the file: a head line, then for each shape its words and its algorithm's, in hexadecimal --------------- */

constexpr size_t algorithm_words = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t);

void read_lines(std::istream &in)
{
    std::string line;
    if (!std::getline(in, line) || line != file_head)
        return;
    while (std::getline(in, line)) {
        std::istringstream words(line);
        size_t count = 0;
        cublasLtMatmulAlgo_t algo;
        words >> std::hex >> count;
        if (!words || count == 0 || count > 64)
            return;
        Key key(count);
        for (uint64_t &word : key)
            words >> word;
        for (size_t i = 0; i < algorithm_words; i++)
            words >> algo.data[i];
        if (!words)
            return; /* a damaged line: what was read so far holds */
        stored.emplace(key, algo);
    }
}

void write_line(std::ostream &out, const Key &key, const cublasLtMatmulAlgo_t &algo)
{
    out << std::hex << key.size();
    for (uint64_t word : key)
        out << ' ' << word;
    for (size_t i = 0; i < algorithm_words; i++)
        out << ' ' << algo.data[i];
    out << '\n';
}

} // namespace

extern "C" enum sdp_status sdp_gemm_cuda(const struct sdp_op_device *device, const struct sdp_gemm *g)
{
    Problem p;
    cublasLtMatmulAlgo_t algo;

    if (g->m == 0 || g->n == 0)
        return SDP_OK;
    SDP_TRY(make_problem(&p, g));
    SDP_TRY(choose(device, g, &p, &algo));
    SDP_BLAS(multiply(device, g, &p, &algo));
    return SDP_OK;
}

extern "C" void sdp_gemm_load_cuda(int ordinal, const char *folder)
{
    const std::lock_guard<std::mutex> guard(table_lock);
    cudaDeviceProp properties;
    std::ostringstream name, head;

    if (!file_path.empty() || cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess)
        return;
    head << "slidedp products 1, " << properties.name << ", cuBLASLt " << cublasLtGetVersion();
    file_head = head.str();
    uint64_t hash = 14695981039346656037ull; /* FNV-1a: a device's name may hold any character */
    for (const char c : file_head)
        hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    name << folder << "/gemm-" << std::hex << hash << ".txt";
    file_path = name.str();
    std::ifstream in(file_path);
    if (in)
        read_lines(in);
}

extern "C" void sdp_gemm_save_cuda(void)
{
    const std::lock_guard<std::mutex> guard(table_lock);
    if (!table_grew || file_path.empty())
        return;
    for (const auto &entry : table)
        stored[entry.first] = entry.second;
    const std::string part = file_path + "." + std::to_string(static_cast<long>(getpid())) + ".part";
    std::ofstream out(part, std::ios::trunc);
    out << file_head << '\n';
    for (const auto &entry : stored)
        write_line(out, entry.first, entry.second);
    out.close();
    if (!out || std::rename(part.c_str(), file_path.c_str()) != 0) {
        static_cast<void>(std::remove(part.c_str()));
        sdp_warn("%s: cannot be written: products will be timed again in the next run", file_path.c_str());
        return;
    }
    table_grew = false;
}

extern "C" size_t sdp_gemm_fingerprint_cuda(uint64_t *fingerprint)
{
    const std::lock_guard<std::mutex> guard(table_lock);
    uint64_t hash = 14695981039346656037ull;
    for (const auto &entry : table) {
        for (uint64_t word : entry.first)
            hash = (hash ^ word) * 1099511628211ull;
        for (size_t i = 0; i < algorithm_words; i++)
            hash = (hash ^ entry.second.data[i]) * 1099511628211ull;
    }
    *fingerprint = hash;
    return table.size();
}
