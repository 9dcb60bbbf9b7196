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
 * one key head and those that share it. */
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

constexpr size_t scratch_limit = static_cast<size_t>(512) << 20;

/* Tensors of a graph; q, k, v name their gradients' counterparts too. */
enum Tensor : int64_t { Q = 1, K, V, O, Stats, DO, DQ, DK, DV };

struct Plan {
    std::shared_ptr<fe::graph::Graph> graph; /* null: cuDNN does not take the shape */
    size_t workspace = 0;
    size_t sequences = 0, kv_heads = 0;      /* of one execution */
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

inline void split(const struct sdpi_attention &a, bool scratch, Plan *plan)
{
    const size_t tokens = sdp_round_up(a.length, 128);
    const size_t fit = scratch_limit / (2 * tokens * tokens * (a.heads / a.kv_heads));

    plan->sequences = a.sequences;
    plan->kv_heads = a.kv_heads;
    if (!scratch)
        return;
    if (fit >= a.kv_heads) {
        plan->sequences = divisor_up_to(a.sequences, fit / a.kv_heads);
    } else {
        plan->sequences = 1;
        plan->kv_heads = divisor_up_to(a.kv_heads, fit > 0 ? fit : 1);
    }
}

/* A tensor of `heads` heads that lies in rows of `row` elements. */
inline fe::graph::Tensor_attributes in_rows(const struct sdpi_attention &a, const Plan &plan, const char *name,
                                            Tensor uid, size_t heads, size_t row)
{
    const auto n = [](size_t x) { return static_cast<int64_t>(x); };

    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(uid)
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({n(plan.sequences), n(heads), n(a.length), n(a.head_dim)})
        .set_stride({n(a.length * row), n(a.head_dim), n(row), 1});
}

inline fe::graph::Tensor_attributes statistics(const struct sdpi_attention &a, const Plan &plan, size_t heads)
{
    const auto n = [](size_t x) { return static_cast<int64_t>(x); };

    return fe::graph::Tensor_attributes()
        .set_name("statistics")
        .set_uid(Stats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({n(plan.sequences), n(heads), n(a.length), 1})
        .set_stride({n(heads * a.length), n(a.length), 1, 1});
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
template <typename Options> void set_mask(const struct sdpi_attention &a, Options *options)
{
    options->set_attn_scale(a.scale);
    options->set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
    options->set_diagonal_band_right_bound(0);
    if (a.window > 0 && a.window < a.length)
        options->set_diagonal_band_left_bound(static_cast<int>(a.window));
}

inline void describe(const struct sdpi_attention &a, bool backward, bool deterministic, Plan *plan)
{
    fe::graph::Graph &g = *plan->graph;
    const size_t heads = plan->kv_heads * (a.heads / a.kv_heads);
    const size_t row = (a.heads + 2 * a.kv_heads) * a.head_dim, out_row = a.heads * a.head_dim;

    g.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto q = g.tensor(in_rows(a, *plan, "q", Q, heads, row));
    const auto k = g.tensor(in_rows(a, *plan, "k", K, plan->kv_heads, row));
    const auto v = g.tensor(in_rows(a, *plan, "v", V, plan->kv_heads, row));
    if (!backward) {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
        set_mask(a, &options);
        const auto outputs = g.sdpa(q, k, v, options);
        set_output(outputs[0], in_rows(a, *plan, "o", O, heads, out_row));
        set_output(outputs[1], statistics(a, *plan, heads));
        return;
    }
    const auto o = g.tensor(in_rows(a, *plan, "o", O, heads, out_row));
    const auto d_o = g.tensor(in_rows(a, *plan, "do", DO, heads, out_row));
    const auto stats = g.tensor(statistics(a, *plan, heads));
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
    set_mask(a, &options);
    options.set_deterministic_algorithm(deterministic);
    const auto outputs = g.sdpa_backward(q, k, v, o, d_o, stats, options);
    set_output(outputs[0], in_rows(a, *plan, "dq", DQ, heads, row));
    set_output(outputs[1], in_rows(a, *plan, "dk", DK, plan->kv_heads, row));
    set_output(outputs[2], in_rows(a, *plan, "dv", DV, plan->kv_heads, row));
}

/* Builds plan->graph; false with a message in *why where cuDNN does not take it. */
inline bool build(const struct sdpi_attention &a, bool backward, bool deterministic, cudnnHandle_t handle,
                  Plan *plan, std::string *why)
{
    int64_t bytes = 0;

    split(a, backward && deterministic, plan);
    plan->graph = std::make_shared<fe::graph::Graph>();
    describe(a, backward, deterministic, plan);
    auto built = plan->graph->build(handle, {fe::HeurMode_t::A});
    if (built.is_bad()) {
        *why = built.get_message();
        return false;
    }
    auto sized = plan->graph->get_workspace_size(bytes);
    if (sized.is_bad()) {
        *why = sized.get_message();
        return false;
    }
    plan->workspace = static_cast<size_t>(bytes);
    return true;
}

inline bool may_take(const struct sdpi_attention &a)
{
    return a.dtype == SDP_BF16 && a.head_dim % 8 == 0 && a.length > 1 && a.sequences > 0;
}

/* The plan of a shape on a device, built at the first call. Its graph is null where cuDNN does not take it.
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

    if (!backward || device->deterministic || !plan.graph)
        return plan;
    const Plan &other = plan_of(a, backward, false, device->ordinal, handle);
    return other.graph && other.workspace <= plan.workspace ? other : plan;
}

/* Memory of one call: what the graph's tensors are, for the whole batch. */
struct Memory {
    const char *qkv, *out, *dout;
    char *forward_out, *dqkv;
    float *stats;
    void *workspace;
};

/* Executes a plan for all sequences and heads. */
inline enum sdp_status execute(const struct sdpi_attention &a, const Plan &plan, bool backward, const Memory &m,
                               cudnnHandle_t handle)
{
    constexpr size_t e = 2; /* bytes of a bf16 */
    const size_t group = a.heads / a.kv_heads;
    const size_t row = (a.heads + 2 * a.kv_heads) * a.head_dim, out_row = a.heads * a.head_dim;

    for (size_t s = 0; s < a.sequences; s += plan.sequences) {
        for (size_t h = 0; h < a.kv_heads; h += plan.kv_heads) {
            const size_t q = (s * a.length * row + h * group * a.head_dim) * e;
            const size_t k = (s * a.length * row + (a.heads + h) * a.head_dim) * e;
            const size_t v = k + a.kv_heads * a.head_dim * e;
            const size_t o = (s * a.length * out_row + h * group * a.head_dim) * e;
            const auto input = [](const char *p) { return const_cast<void *>(static_cast<const void *>(p)); };
            std::unordered_map<int64_t, void *> pointers = {
                {Q, input(m.qkv + q)},
                {K, input(m.qkv + k)},
                {V, input(m.qkv + v)},
                {Stats, m.stats + (s * a.heads + h * group) * a.length},
                {O, backward ? input(m.out + o) : m.forward_out + o},
            };
            if (backward) {
                pointers[DO] = input(m.dout + o);
                pointers[DQ] = m.dqkv + q;
                pointers[DK] = m.dqkv + k;
                pointers[DV] = m.dqkv + v;
            }
            auto rc = plan.graph->execute(handle, pointers, m.workspace);
            if (rc.is_bad()) {
                sdp_warn("cuDNN attention %s: %s", backward ? "backward" : "forward", rc.get_message().c_str());
                return SDP_DEVICE;
            }
        }
    }
    return SDP_OK;
}

} // namespace sdp_cudnn

#endif
