/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA twins against CPU twins, in fp32 and bf16, over odd shapes, on random data:
 * forward, backward, added gradients, repeated bits. Outputs are filled with NaN
 * before each call, so that every element must be written. The CPU twins are held
 * against double-precision references by the other tests of this folder. */
#include "tests/sdp_test.h"

#include "codelets/common/cuda_device.h"
#include "codelets/common/device_memory.h"
#include "codelets/ops/attention/cuda.h"
#include "graph/op.h"

#include <cuda_runtime_api.h>

#define SHORT_LIMIT ((size_t)64 << 10) /* bytes of scratch: blocks of 128 queries */

struct config {
    const char *op;
    size_t sequences, length;
    size_t inputs[2];           /* columns; 0: absent */
    size_t weights[6][2];       /* rows, cols */
    unsigned roles[6];
    size_t weight_count;
    struct {
        const char *name;
        double value;
    } attrs[6];
};

#define QKV(h, kv, d) {((h) + 2 * (kv)) * (d), 0}

static const struct config configs[] = {
    {"embedding", 3, 17, {0, 0}, {{199, 64}}, {0}, 1, {{NULL, 0}}},
    {"embedding", 1, 1, {0, 0}, {{301, 24}}, {0}, 1, {{"scale", 3}}},
    {"rmsnorm", 1, 1, {64, 0}, {{1, 64}}, {0}, 1, {{NULL, 0}}},
    {"rmsnorm", 2, 33, {172, 0}, {{1, 172}}, {0}, 1, {{"eps", 1e-5}}},
    {"rmsnorm", 1, 129, {4096, 0}, {{1, 4096}}, {0}, 1, {{"offset", 1}}},
    {"linear", 1, 1, {64, 0}, {{96, 64}}, {0}, 1, {{NULL, 0}}},
    {"linear", 3, 11, {72, 88}, {{88, 72}}, {0}, 1, {{NULL, 0}}},
    {"linear", 2, 40, {128, 0}, {{128, 128}, {64, 128}, {64, 128}}, {0, 0, 0}, 3, {{NULL, 0}}},
    {"linear", 2, 19, {64, 0}, {{64, 64}, {32, 64}, {32, 64}, {1, 64}, {1, 32}, {1, 32}}, {0, 0, 0, 1, 1, 1}, 6, {{NULL, 0}}},
    {"linear", 1, 48, {64, 96}, {{96, 64}, {1, 96}}, {0, 1}, 2, {{NULL, 0}}},
    {"rope", 2, 13, QKV(4, 2, 16), {{0, 0}}, {0}, 0, {{"heads", 4}, {"kv_heads", 2}, {"head_dim", 16}}},
    {"rope", 1, 1, QKV(2, 1, 64), {{0, 0}}, {0}, 0,
     {{"heads", 2}, {"kv_heads", 1}, {"head_dim", 64}, {"type", 2}, {"factor", 8}, {"original_max_position", 40}}},
    {"rope", 2, 37, QKV(4, 2, 128), {{1, 128}, {1, 128}}, {0, 1}, 2, {{"heads", 4}, {"kv_heads", 2}, {"head_dim", 128}, {"theta", 1e6}}},
    {"attention", 1, 1, QKV(2, 2, 64), {{0, 0}}, {0}, 0, {{"heads", 2}, {"kv_heads", 2}, {"head_dim", 64}}},
    {"attention", 2, 37, QKV(4, 1, 64), {{0, 0}}, {0}, 0, {{"heads", 4}, {"kv_heads", 1}, {"head_dim", 64}}},
    {"attention", 2, 130, QKV(4, 2, 128), {{0, 0}}, {0}, 0, {{"heads", 4}, {"kv_heads", 2}, {"head_dim", 128}}},
    {"attention", 1, 300, QKV(2, 1, 128), {{0, 0}}, {0}, 0, {{"heads", 2}, {"kv_heads", 1}, {"head_dim", 128}, {"window", 50}}},
    {"attention", 2, 48, QKV(4, 2, 16), {{0, 0}}, {0}, 0, {{"heads", 4}, {"kv_heads", 2}, {"head_dim", 16}, {"window", 1}}},
    {"attention", 1, 1024, QKV(8, 2, 128), {{0, 0}}, {0}, 0, {{"heads", 8}, {"kv_heads", 2}, {"head_dim", 128}}},
    {"swiglu", 1, 1, {96, 0}, {{0, 0}}, {0}, 0, {{NULL, 0}}},
    {"swiglu", 3, 21, {344, 0}, {{0, 0}}, {0}, 0, {{NULL, 0}}},
    {"swiglu", 1, 5, {54, 0}, {{0, 0}}, {0}, 0, {{NULL, 0}}},
    {"add", 2, 9, {77, 77}, {{0, 0}}, {0}, 0, {{NULL, 0}}},
    {"cross_entropy", 2, 24, {64, 0}, {{199, 64}}, {0}, 1, {{NULL, 0}}},
    {"cross_entropy", 1, 1, {128, 0}, {{1003, 128}}, {0}, 1, {{NULL, 0}}},
    {"cross_entropy", 1, 5000, {64, 0}, {{777, 64}}, {0}, 1, {{NULL, 0}}},
};

/* One tensor on both sides: host fp32 (values as the device holds them) and device. */
struct tensor {
    float *host;
    void *device;
    size_t count;
    enum sdp_dtype dtype;
};

static uint64_t counter;

static void must(cudaError_t rc)
{
    if (rc != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(rc));
        exit(1);
    }
}

static void upload(const struct tensor *t)
{
    size_t bytes = t->count * sdp_dtype_size(t->dtype);
    if (t->dtype == SDP_FP32) {
        must(cudaMemcpy(t->device, t->host, bytes, cudaMemcpyHostToDevice));
        return;
    }
    uint16_t *half = sdp_xcalloc(t->count, 2);
    for (size_t i = 0; i < t->count; i++)
        half[i] = sdp_bf16_from_float(t->host[i]);
    must(cudaMemcpy(t->device, half, bytes, cudaMemcpyHostToDevice));
    free(half);
}

static float *download(const struct tensor *t)
{
    size_t bytes = t->count * sdp_dtype_size(t->dtype);
    float *values = sdp_xcalloc(t->count, sizeof *values);
    if (t->dtype == SDP_FP32) {
        must(cudaMemcpy(values, t->device, bytes, cudaMemcpyDeviceToHost));
        return values;
    }
    uint16_t *half = sdp_xcalloc(t->count, 2);
    must(cudaMemcpy(half, t->device, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < t->count; i++)
        values[i] = sdp_bf16_to_float(half[i]);
    free(half);
    return values;
}

/* std > 0: normal values; 0: NaN on both sides. */
static struct tensor make(size_t count, enum sdp_dtype dtype, double std, double mean)
{
    struct tensor t = {sdp_xcalloc(count + 1, sizeof(float)), NULL, count, dtype};
    must(cudaMalloc(&t.device, count * 4 + 256));
    for (size_t i = 0; i < count; i++) {
        t.host[i] = std > 0 ? (float)(mean + std * (double)sdp_random_normal(17, counter++)) : NAN;
        if (dtype == SDP_BF16 && std > 0)
            t.host[i] = sdp_bf16_to_float(sdp_bf16_from_float(t.host[i]));
    }
    upload(&t);
    return t;
}

static void drop(struct tensor *t)
{
    free(t->host);
    if (t->device)
        must(cudaFree(t->device));
    memset(t, 0, sizeof *t);
}

static double difference(const struct tensor *t, const float *got)
{
    double d = 0, n = 0;
    for (size_t i = 0; i < t->count; i++) {
        d += ((double)got[i] - t->host[i]) * ((double)got[i] - t->host[i]);
        n += (double)t->host[i] * t->host[i];
    }
    return n > 0 ? sqrt(d / n) : sqrt(d);
}

static void compare(const struct config *c, const char *what, size_t i, const struct tensor *t, double tolerance)
{
    float *got = download(t);
    double error = difference(t, got);
    sdp_test_checks++;
    if (!(error <= tolerance))
        SDP_TEST_FAIL("%s %zux%zu %s: %s %zu off by %.3e, tolerance %.1e", c->op, c->sequences, c->length,
                      sdp_dtype_name(t->dtype), what, i, error, tolerance);
    free(got);
}

struct fixture {
    const struct config *c;
    struct sdp_op_node node;
    struct sdp_op_batch host, device;
    int32_t *ids, *device_ids;
    struct tensor in[2], weight[6], out, aux, dout, din[2], dweight[6], loss_logits;
    void *work_host, *work_device;
    double loss, *device_loss;
    enum sdp_dtype dtype;
};

static void make_node(struct fixture *f)
{
    const struct config *c = f->c;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_op_node *n = &f->node;
    n->op = sdp_op_find(c->op);
    REQUIRE(n->op != NULL);
    n->name = (char *)"node";
    for (n->input_count = 0; n->op->inputs && n->op->inputs[n->input_count]; n->input_count++)
        n->input_cols[n->input_count] = c->inputs[n->input_count];
    for (n->output_count = 0; n->op->outputs && n->op->outputs[n->output_count]; n->output_count++)
        ;
    n->weight_count = c->weight_count;
    for (size_t i = 0; i < c->weight_count; i++) {
        n->weight_rows[i] = c->weights[i][0];
        n->weight_cols[i] = c->weights[i][1];
        n->weight_role[i] = c->roles[i];
    }
    for (size_t a = 0; n->op->attrs && n->op->attrs[a].name; a++) {
        n->attr[a] = n->op->attrs[a].fallback;
        for (size_t k = 0; k < 6 && c->attrs[k].name; k++)
            if (!strcmp(n->op->attrs[a].name, c->attrs[k].name))
                n->attr[a] = c->attrs[k].value;
    }
    REQUIRE_OK(n->op->infer(n, &err), &err);
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* ids, targets, positions, order and segments lie one after the other. */
static struct sdp_op_batch batch_at(const struct config *c, const int32_t *at, size_t segments)
{
    size_t t = c->sequences * c->length;
    return (struct sdp_op_batch){.tokens = t, .sequences = c->sequences, .sequence_length = c->length, .ids = at,
                                 .targets = at + t, .positions = at + 2 * t, .order = at + 3 * t, .segments = at + 4 * t,
                                 .segment_count = segments};
}

static void make_batch(struct fixture *f)
{
    size_t t = f->c->sequences * f->c->length, vocabulary = f->c->weight_count ? f->c->weights[0][0] : 100, runs = 0;
    int32_t *ids = sdp_xcalloc(5 * t + 1, sizeof *ids), *order = ids + 3 * t, *segments = ids + 4 * t;
    uint64_t *keys = sdp_xcalloc(t, sizeof *keys);
    for (size_t i = 0; i < t; i++) {
        ids[i] = (int32_t)(sdp_random_u64(3, counter++) % vocabulary);
        ids[t + i] = i % 7 == 3 ? -1 : (int32_t)(sdp_random_u64(4, counter++) % vocabulary);
        ids[2 * t + i] = (int32_t)(i % f->c->length);
        keys[i] = (uint64_t)ids[i] << 32 | i;
    }
    qsort(keys, t, sizeof *keys, by_key);
    for (size_t i = 0; i < t; i++) {
        order[i] = (int32_t)(keys[i] & 0xffffffffu);
        if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32)
            segments[runs++] = (int32_t)i;
    }
    segments[runs] = (int32_t)t;
    free(keys);
    f->ids = ids;
    must(cudaMalloc((void **)&f->device_ids, (5 * t + 1) * sizeof *ids));
    must(cudaMemcpy(f->device_ids, ids, (5 * t + 1) * sizeof *ids, cudaMemcpyHostToDevice));
    f->host = batch_at(f->c, ids, runs);
    f->device = batch_at(f->c, f->device_ids, runs);
}

/* Weights of one op lie one after the other, as in a storage: fused products are possible. */
static void make_tensors(struct fixture *f)
{
    const struct sdp_op_node *n = &f->node;
    size_t t = f->host.tokens, total = 0;
    for (size_t i = 0; i < n->weight_count; i++)
        total += n->weight_rows[i] * n->weight_cols[i];
    for (size_t i = 0; i < n->input_count; i++)
        if (n->input_cols[i]) {
            f->in[i] = make(t * n->input_cols[i], f->dtype, 1, 0);
            f->din[i] = make(t * n->input_cols[i], f->dtype, 0, 0);
        }
    if (total) {
        bool vector = n->weight_rows[0] == 1;
        f->weight[0] = make(total, f->dtype, vector ? 0.2 : 0.05, vector ? 1 : 0);
        f->dweight[0] = make(total, SDP_FP32, 0, 0);
    }
    if (n->output_count) {
        f->out = make(t * n->output_cols[0], f->dtype, 0, 0);
        f->dout = make(t * n->output_cols[0], f->dtype, 1, 0);
    }
    if (n->aux_count)
        f->aux = make(t * n->aux_cols[0], SDP_FP32, 0, 0);
    size_t host = 0, device = 0;
    for (int backward = 0; backward < 2; backward++) {
        host = SDP_MAX(host, n->op->work_bytes(n, t, f->c->length, SDP_FP32, backward, false));
        device = SDP_MAX(device, n->op->work_bytes(n, t, f->c->length, f->dtype, backward, true));
    }
    f->work_host = sdp_xcalloc(host + 256, 1);
    must(cudaMalloc(&f->work_device, device + 256));
    must(cudaMemset(f->work_device, 0xff, device + 256));
    must(cudaMalloc((void **)&f->device_loss, sizeof(double)));
}

static struct sdp_op_call make_call(struct fixture *f, const struct sdp_op_device *device, bool cuda, bool add)
{
    const struct sdp_op_node *n = &f->node;
    struct sdp_op_call call = {.node = n, .batch = cuda ? &f->device : &f->host, .device = device,
                               .dtype = cuda ? f->dtype : SDP_FP32, .work = cuda ? f->work_device : f->work_host,
                               .add_dweight = add, .loss_scale = 1.0f / 128, .want_gradient = true,
                               .loss = cuda ? f->device_loss : &f->loss};
#define SIDE(t) (cuda ? (t).device : (void *)(t).host)
    size_t offset = 0;
    for (size_t i = 0; i < n->input_count; i++) {
        call.in[i] = n->input_cols[i] ? SIDE(f->in[i]) : NULL;
        call.din[i] = n->input_cols[i] ? SIDE(f->din[i]) : NULL;
        call.add_din[i] = add;
    }
    for (size_t i = 0; i < n->weight_count; i++) {
        size_t element = cuda ? sdp_dtype_size(f->dtype) : 4;
        call.weight[i] = (char *)SIDE(f->weight[0]) + offset * element;
        call.dweight[i] = (float *)SIDE(f->dweight[0]) + offset;
        offset += n->weight_rows[i] * n->weight_cols[i];
    }
    if (n->output_count) {
        call.out[0] = SIDE(f->out);
        call.dout[0] = SIDE(f->dout);
    }
    if (n->aux_count)
        call.aux[0] = SIDE(f->aux);
#undef SIDE
    return call;
}

static void run_both(struct fixture *f, const struct sdp_op_device *device, bool backward, bool add)
{
    const struct sdp_op *op = f->node.op;
    struct sdp_op_call cpu = make_call(f, device, false, add), cuda = make_call(f, device, true, add);
    CHECK_EQ(backward ? op->backward_cpu(&cpu) : op->forward_cpu(&cpu), SDP_OK);
    CHECK_EQ(backward ? op->backward_cuda(&cuda) : op->forward_cuda(&cuda), SDP_OK);
    must(cudaStreamSynchronize((cudaStream_t)device->stream));
}

static void compare_gradients(struct fixture *f, double tolerance)
{
    for (size_t i = 0; i < f->node.input_count; i++)
        if (f->node.input_cols[i])
            compare(f->c, "din", i, &f->din[i], tolerance);
    if (f->node.weight_count)
        compare(f->c, "dweight", 0, &f->dweight[0], tolerance);
}

/* The device works on the CPU's outputs, rounded: each direction is checked by itself. */
static void share(struct tensor *t)
{
    if (!t->device)
        return;
    for (size_t i = 0; i < t->count && t->dtype == SDP_BF16; i++)
        t->host[i] = sdp_bf16_to_float(sdp_bf16_from_float(t->host[i]));
    upload(t);
}

static void check_backward(struct fixture *f, const struct sdp_op_device *device, double tolerance)
{
    bool loss = f->node.op->is_loss;
    share(&f->out);
    share(&f->aux);
    run_both(f, device, !loss, false);
    compare_gradients(f, tolerance);
    for (size_t i = 0; i < 2; i++)
        share(&f->din[i]);
    share(&f->dweight[0]);
    run_both(f, device, !loss, true); /* added to what is there */
    compare_gradients(f, tolerance);
    float *first = f->node.weight_count ? download(&f->dweight[0]) : NULL;
    if (!first)
        return;
    run_both(f, device, !loss, false);
    float *once = download(&f->dweight[0]);
    run_both(f, device, !loss, false);
    float *twice = download(&f->dweight[0]);
    CHECK(!memcmp(once, twice, f->dweight[0].count * sizeof *once));
    free(first);
    free(once);
    free(twice);
}

static void check_config(const struct config *c, enum sdp_dtype dtype, const struct sdp_op_device *device)
{
    struct fixture f = {.c = c, .dtype = dtype};
    double tolerance = dtype == SDP_FP32 ? 2e-5 : 1e-2;
    make_node(&f);
    make_batch(&f);
    make_tensors(&f);
    if (f.node.op->is_loss) {
        double loss = NAN;
        run_both(&f, device, false, false);
        must(cudaMemcpy(&loss, f.device_loss, sizeof loss, cudaMemcpyDeviceToHost));
        CHECK_NEAR(loss / f.loss, 1, dtype == SDP_FP32 ? 1e-5 : 2e-3);
    } else {
        run_both(&f, device, false, false);
        compare(c, "out", 0, &f.out, tolerance);
        if (f.node.aux_count)
            compare(c, "aux", 0, &f.aux, dtype == SDP_FP32 ? 1e-5 : 5e-3);
    }
    check_backward(&f, device, tolerance);
    for (size_t i = 0; i < 2; i++) {
        drop(&f.in[i]);
        drop(&f.din[i]);
    }
    drop(&f.weight[0]);
    drop(&f.dweight[0]);
    drop(&f.out);
    drop(&f.dout);
    drop(&f.aux);
    free(f.ids);
    free(f.work_host);
    must(cudaFree(f.device_ids));
    must(cudaFree(f.work_device));
    must(cudaFree(f.device_loss));
}

int main(void)
{
    struct sdp_op_device device = {0};
    cudaStream_t stream;
    if (sdp_cuda_device_count() == 0)
        SKIP("no CUDA device");
    must(cudaSetDevice(0));
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    REQUIRE(sdp_op_device_create_cuda(0, stream, &device) == SDP_OK);
    device.deterministic = true;
    for (size_t i = 0; i < SDP_COUNT_OF(configs); i++) {
        check_config(&configs[i], SDP_FP32, &device);
        check_config(&configs[i], SDP_BF16, &device);
    }
    /* Long sequences are taken in blocks of queries: with a low limit short ones are, too. */
    sdp_attention_limit_scratch_cuda(SHORT_LIMIT);
    for (size_t i = 0; i < SDP_COUNT_OF(configs); i++)
        if (!strcmp(configs[i].op, "attention"))
            check_config(&configs[i], SDP_BF16, &device);
    sdp_attention_limit_scratch_cuda(0);
    sdp_op_device_destroy_cuda(&device);
    must(cudaStreamDestroy(stream));
    return sdp_test_end();
}
