/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Attention through cuDNN's graph API: one graph for each shape, direction and device, built
 * once and kept. Part of cuda.cu, which alone sees cuDNN's headers; host code only.
 *
 * A graph reads and writes the heads where they lie in the rows of qkv and its gradient, so
 * nothing is copied. cuDNN's softmax statistics are its own packed (sequence, head, token)
 * fp32 tensor: releases before 9.26 read no other layout in the backward pass.
 *
 * Deterministic gradients: the algorithm cuDNN then takes on Hopper and before keeps the score
 * gradients of a call in scratch, 2 bytes for each query and key of each head. A call is
 * therefore made for as many sequences and heads as fit into scratch_limit, but at least for
 * one key head and those that share it. Where even these need more than group_limit, a call is
 * made for each query head and block of queries, on the keys up to the block's end, and the
 * gradients of the keys are summed in fp32 in a fixed order. */
#ifndef SDP_CODELETS_OPS_ATTENTION_CUDNN_CUH
#define SDP_CODELETS_OPS_ATTENTION_CUDNN_CUH

#include "codelets/ops/attention/flash.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace sdp_cudnn {

namespace fe = cudnn_frontend;

constexpr size_t scratch_limit = static_cast<size_t>(2) << 30; /* 8B shapes, 4 x 4096 tokens: 404 TFLOP/s; with a quarter of it 278 */
inline size_t group_limit = SDPI_ATTENTION_GROUP_SCRATCH; /* a test lowers it */

/* Tensors of a graph; q, k, v name their gradients' counterparts too. */
enum Tensor : int64_t { Q = 1, K, V, O, Stats, DO, DQ, DK, DV };

/* The queries first .. first + rows - 1 on the keys 0 .. keys - 1. */
struct Part {
    std::shared_ptr<fe::graph::Graph> graph;
    size_t first, rows, keys;
};

struct Plan {
    std::vector<Part> parts;            /* none: cuDNN does not take the shape */
    size_t workspace = 0;               /* of cuDNN's */
    size_t sequences = 0, kv_heads = 0; /* of one execution */
    size_t heads = 0;                   /* query heads of one execution; fewer than share a key head: in blocks */
    bool in_blocks = false;
};

using Key = std::vector<int64_t>;

/* Plans are only added: their addresses stay. */
inline std::mutex plan_lock;
inline std::map<Key, Plan> plans;

/* Some that divides count and is at most `most`, the largest such; most is at least 1. */
inline size_t divisor_up_to(size_t count, size_t most)
{
    size_t d = most < count ? most : count;
    while (count % d != 0)
        d--;
    return d;
}

/* Blocks of queries of one head: scratch of half the limit each. */
inline void split_queries(const struct sdpi_attention &a, Plan *plan)
{
    const size_t rows = group_limit / 2 / (2 * sdp_round_up(a.length, 128)) / 128 * 128;
    const size_t block = rows > 128 ? rows : 128;

    plan->in_blocks = true;
    plan->sequences = plan->kv_heads = plan->heads = 1;
    plan->parts.clear();
    for (size_t first = 0; first < a.length; first += block) {
        const size_t end = first + block < a.length ? first + block : a.length;
        plan->parts.push_back({nullptr, first, end - first, end});
    }
}

inline void split(const struct sdpi_attention &a, bool scratch, Plan *plan)
{
    const size_t tokens = sdp_round_up(a.length, 128), group = a.heads / a.kv_heads;
    const size_t bytes = 2 * tokens * tokens * group; /* of a key head and those that share it */
    const size_t fit = scratch_limit / bytes;

    plan->parts = {{nullptr, 0, a.length, a.length}};
    plan->sequences = a.sequences;
    plan->kv_heads = a.kv_heads;
    if (scratch && fit >= a.kv_heads) {
        plan->sequences = divisor_up_to(a.sequences, fit / a.kv_heads);
    } else if (scratch) {
        plan->sequences = 1;
        plan->kv_heads = divisor_up_to(a.kv_heads, fit > 0 ? fit : 1);
    }
    plan->heads = plan->kv_heads * group;
    if (scratch && bytes > group_limit)
        split_queries(a, plan);
}

/* `count` tokens of `heads` heads that lie in rows of `row` elements. */
inline fe::graph::Tensor_attributes in_rows(const struct sdpi_attention &a, const Plan &plan, const char *name,
                                            Tensor uid, size_t heads, size_t count, size_t row)
{
    const auto n = [](size_t x) { return static_cast<int64_t>(x); };

    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(uid)
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({n(plan.sequences), n(heads), n(count), n(a.head_dim)})
        .set_stride({n(a.length * row), n(a.head_dim), n(row), 1});
}

inline fe::graph::Tensor_attributes statistics(const Plan &plan, const Part &part)
{
    const auto n = [](size_t x) { return static_cast<int64_t>(x); };

    return fe::graph::Tensor_attributes()
        .set_name("statistics")
        .set_uid(Stats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({n(plan.sequences), n(plan.heads), n(part.rows), 1})
        .set_stride({n(plan.heads * part.rows), n(part.rows), 1, 1});
}

/* Makes an output tensor what `like` says. */
inline void set_output(const std::shared_ptr<fe::graph::Tensor_attributes> &tensor,
                       const fe::graph::Tensor_attributes &like)
{
    tensor->set_output(true)
        .set_name(like.get_name())
        .set_uid(like.get_uid())
        .set_data_type(like.get_data_type())
        .set_dim(like.get_dim())
        .set_stride(like.get_stride());
}

/* Causal, and at most window keys. */
template <typename Options> void set_mask(const struct sdpi_attention &a, const Part &part, Options *options)
{
    options->set_attn_scale(a.scale);
    options->set_diagonal_alignment(part.rows == part.keys ? fe::DiagonalAlignment_t::TOP_LEFT
                                                           : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    options->set_diagonal_band_right_bound(0);
    if (a.window > 0 && a.window < part.keys)
        options->set_diagonal_band_left_bound(static_cast<int>(a.window));
}

/* The gradients of keys and values lie in qkv's gradient, or, of a block, packed in scratch. */
inline void describe(const struct sdpi_attention &a, bool backward, bool deterministic, const Plan &plan, Part *part)
{
    fe::graph::Graph &g = *part->graph;
    const size_t row = (a.heads + 2 * a.kv_heads) * a.head_dim, out_row = a.heads * a.head_dim;
    const size_t key_row = plan.in_blocks ? a.head_dim : row;

    g.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto q = g.tensor(in_rows(a, plan, "q", Q, plan.heads, part->rows, row));
    const auto k = g.tensor(in_rows(a, plan, "k", K, plan.kv_heads, part->keys, row));
    const auto v = g.tensor(in_rows(a, plan, "v", V, plan.kv_heads, part->keys, row));
    if (!backward) {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
        set_mask(a, *part, &options);
        const auto outputs = g.sdpa(q, k, v, options);
        set_output(outputs[0], in_rows(a, plan, "o", O, plan.heads, part->rows, out_row));
        set_output(outputs[1], statistics(plan, *part));
        return;
    }
    const auto o = g.tensor(in_rows(a, plan, "o", O, plan.heads, part->rows, out_row));
    const auto d_o = g.tensor(in_rows(a, plan, "do", DO, plan.heads, part->rows, out_row));
    const auto stats = g.tensor(statistics(plan, *part));
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
    set_mask(a, *part, &options);
    options.set_deterministic_algorithm(deterministic);
    const auto outputs = g.sdpa_backward(q, k, v, o, d_o, stats, options);
    set_output(outputs[0], in_rows(a, plan, "dq", DQ, plan.heads, part->rows, row));
    set_output(outputs[1], in_rows(a, plan, "dk", DK, plan.kv_heads, part->keys, key_row));
    set_output(outputs[2], in_rows(a, plan, "dv", DV, plan.kv_heads, part->keys, key_row));
}

/* Builds the graphs of plan->parts; false with a message in *why where cuDNN does not take one. */
inline bool build(const struct sdpi_attention &a, bool backward, bool deterministic, cudnnHandle_t handle,
                  Plan *plan, std::string *why)
{
    split(a, backward && deterministic, plan);
    for (Part &part : plan->parts) {
        int64_t bytes = 0;
        part.graph = std::make_shared<fe::graph::Graph>();
        describe(a, backward, deterministic, *plan, &part);
        auto built = part.graph->build(handle, {fe::HeurMode_t::A});
        if (built.is_bad()) {
            *why = built.get_message();
            return false;
        }
        auto sized = part.graph->get_workspace_size(bytes);
        if (sized.is_bad()) {
            *why = sized.get_message();
            return false;
        }
        plan->workspace = SDP_MAX(plan->workspace, static_cast<size_t>(bytes));
    }
    return true;
}

inline bool may_take(const struct sdpi_attention &a)
{
    return a.dtype == SDP_BF16 && a.head_dim % 8 == 0 && a.length > 1 && a.sequences > 0;
}

/* The plan of a shape on a device, built at the first call. It has no parts where cuDNN does not take it.
 * The forward pass is always deterministic and is asked for as such. */
inline const Plan &plan_of(const struct sdpi_attention &a, bool backward, bool deterministic, int ordinal,
                           cudnnHandle_t handle)
{
    int32_t scale = 0;
    std::memcpy(&scale, &a.scale, sizeof scale);
    const auto n = [](size_t x) { return static_cast<int64_t>(x); };
    const Key key = {ordinal,       backward,         deterministic,  n(a.sequences), n(a.length),
                     n(a.heads),    n(a.kv_heads),    n(a.head_dim),  n(a.window),    scale};
    const std::lock_guard<std::mutex> guard(plan_lock);
    const auto known = plans.find(key);
    if (known != plans.end())
        return known->second;

    Plan plan;
    std::string why;
    bool good = false;
    try {
        good = build(a, backward, deterministic, handle, &plan, &why);
    } catch (const std::exception &e) {
        why = e.what();
    }
    if (!good) {
        plan = Plan();
        sdp_warn("cuDNN %zu does not take attention %s with %zu and %zu heads of %zu columns, %zu sequences of %zu "
                 "tokens: %s; the slower own kernels are used",
                 cudnnGetVersion(), backward ? "backward" : "forward", a.heads, a.kv_heads, a.head_dim, a.sequences,
                 a.length, why.c_str());
        if (cudaGetLastError() != cudaSuccess) /* so that no later launch is blamed */
            sdp_debug("a CUDA error of cuDNN's was cleared");
    }
    return plans.emplace(key, plan).first->second;
}

/* The plan that a run uses. One that need not be deterministic takes the other backward algorithm only if that
 * lives with the scratch of the deterministic one, by which the engine reserves memory. */
inline const Plan &plan_to_run(const struct sdpi_attention &a, bool backward, const struct sdp_op_device *device)
{
    const cudnnHandle_t handle = static_cast<cudnnHandle_t>(device->cudnn);
    const Plan &plan = plan_of(a, backward, true, device->ordinal, handle);

    if (!backward || device->deterministic || plan.parts.empty())
        return plan;
    const Plan &other = plan_of(a, backward, false, device->ordinal, handle);
    return !other.parts.empty() && other.workspace <= plan.workspace ? other : plan;
}

/* Memory of one call: what the graph's tensors are, for the whole batch. */
struct Memory {
    const char *qkv, *out, *dout;
    char *forward_out, *dqkv;
    float *stats;
    void *workspace;
};

inline void *pointer(const char *p)
{
    return const_cast<void *>(static_cast<const void *>(p));
}

/* One execution: sequences from s, key heads from h, query heads from q_head. dk and dv: where their gradients go. */
inline enum sdp_status execute_part(const struct sdpi_attention &a, const Part &part, bool backward, const Memory &m,
                                    size_t s, size_t h, size_t q_head, char *dk, char *dv, cudnnHandle_t handle)
{
    constexpr size_t e = 2; /* bytes of a bf16 */
    const size_t row = (a.heads + 2 * a.kv_heads) * a.head_dim, out_row = a.heads * a.head_dim;
    const size_t token = s * a.length + part.first;
    const size_t q = (token * row + q_head * a.head_dim) * e, o = (token * out_row + q_head * a.head_dim) * e;
    const size_t k = (s * a.length * row + (a.heads + h) * a.head_dim) * e, v = k + a.kv_heads * a.head_dim * e;
    std::unordered_map<int64_t, void *> pointers = {
        {Q, pointer(m.qkv + q)},
        {K, pointer(m.qkv + k)},
        {V, pointer(m.qkv + v)},
        {Stats, m.stats + (s * a.heads + q_head) * a.length + part.first},
        {O, backward ? pointer(m.out + o) : m.forward_out + o},
    };
    if (backward) {
        pointers[DO] = pointer(m.dout + o);
        pointers[DQ] = m.dqkv + q;
        pointers[DK] = dk ? dk : m.dqkv + k;
        pointers[DV] = dv ? dv : m.dqkv + v;
    }
    auto rc = part.graph->execute(handle, pointers, m.workspace);
    if (rc.is_good())
        return SDP_OK;
    sdp_warn("cuDNN attention %s: %s", backward ? "backward" : "forward", rc.get_message().c_str());
    return SDP_DEVICE;
}

/* Scratch of a plan: cuDNN's, and for blocks the gradients of one key head: two packed bf16, two fp32 sums. */
inline size_t block_bytes(const struct sdpi_attention &a)
{
    return sdp_round_up(a.length * a.head_dim, 128) * 2;
}

inline size_t scratch_bytes(const struct sdpi_attention &a, const Plan &plan)
{
    return sdp_round_up(plan.workspace, 256) + (plan.in_blocks ? 6 * block_bytes(a) : 0);
}

/* Backward in blocks: dq of each block is final; dk and dv are summed over the blocks and heads in their order. */
inline enum sdp_status execute_blocks(const struct sdpi_attention &a, const Plan &plan, const Memory &m,
                                      cudnnHandle_t handle, void *stream)
{
    const size_t group = a.heads / a.kv_heads, bytes = block_bytes(a);
    char *const dk = static_cast<char *>(m.workspace) + sdp_round_up(plan.workspace, 256), *const dv = dk + bytes;
    float *const sums = reinterpret_cast<float *>(dv + bytes);

    for (size_t i = 0; i < a.sequences * a.kv_heads; i++) {
        const size_t s = i / a.kv_heads, h = i % a.kv_heads;
        bool add = false;
        for (size_t q = h * group; q < (h + 1) * group; q++) {
            for (size_t b = plan.parts.size(); b-- > 0; add = true) { /* the last block has all keys: it sets the sums */
                const Part &part = plan.parts[b];
                SDP_TRY(execute_part(a, part, true, m, s, h, q, dk, dv, handle));
                SDP_TRY(sdpi_key_sums(&a, part.keys, dk, dv, sums, sums + bytes / 2, add, stream));
            }
        }
        SDP_TRY(sdpi_key_gradient(&a, s, h, sums, sums + bytes / 2, m.dqkv, stream));
    }
    return SDP_OK;
}

/* Executes a plan for all sequences and heads. */
inline enum sdp_status execute(const struct sdpi_attention &a, const Plan &plan, bool backward, const Memory &m,
                               const struct sdp_op_device *device)
{
    const cudnnHandle_t handle = static_cast<cudnnHandle_t>(device->cudnn);
    const size_t group = a.heads / a.kv_heads;

    if (plan.in_blocks)
        return execute_blocks(a, plan, m, handle, device->stream);
    for (size_t s = 0; s < a.sequences; s += plan.sequences)
        for (size_t h = 0; h < a.kv_heads; h += plan.kv_heads)
            SDP_TRY(execute_part(a, plan.parts[0], backward, m, s, h, h * group, nullptr, nullptr, handle));
    return SDP_OK;
}

} // namespace sdp_cudnn

#endif
