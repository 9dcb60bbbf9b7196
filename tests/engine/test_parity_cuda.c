/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* GPUs against PyTorch (tests/golden): in bf16 every gradient within 1.5 times the
 * error of PyTorch's own bf16 run and 5e-2, thirty losses within 1 % and the same to the bit under every activation
 * policy, state resident or streamed; in fp32 as close as CPU ranks. Several ranks share the device. */
#include "tests/sdp_test.h"
#include "tests/support/parity.h"

#include "codelets/common/device_memory.h"
#include "model/state/host_state.h"

static const char *const models[] = {"llama", "llama-tied", "qwen2", "qwen3", "mistral"};

static void check_gradients(const char *name, const char *const *settings, bool bf16)
{
    struct parity p;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_step_result result;
    size_t count;
    double worst = 0, worst_ratio = 0;
    parity_open(&p, name, true, settings);
    REQUIRE_OK(sdp_engine_probe(p.engine, &p.sequences, 1, NULL, &result, &err), &err);
    double *golden = parity_golden(&p, "", "loss", &count);
    CHECK_NEAR(result.loss / golden[0], 1, bf16 ? 1e-2 : 1e-5);
    free(golden);
    for (size_t s = 0; s < p.graph->storage_count; s++)
        for (size_t i = 0; i < p.graph->storages[s].param_count; i++) {
            const struct sdp_param *param = &p.graph->storages[s].params[i];
            float *gradient = sdp_xcalloc(param->count, sizeof *gradient);
            sdp_engine_gradient(p.engine, s, i, gradient);
            golden = parity_golden(&p, "grad.", param->name, &count);
            double error = parity_error(gradient, golden, NULL, count), limit = 1e-4;
            free(golden);
            golden = parity_golden(&p, "bf16.grad_error.", param->name, &count);
            if (bf16)
                limit = fmin(1.5 * golden[0], 5e-2);
            sdp_test_checks++;
            if (!(error <= limit))
                SDP_TEST_FAIL("%s: gradient of %s off by %.3e, limit %.3e", name, param->name, error, limit);
            worst = SDP_MAX(worst, error);
            worst_ratio = SDP_MAX(worst_ratio, error / golden[0]);
            free(golden);
            free(gradient);
        }
    fprintf(stderr, "%s %s: loss %.6f, worst gradient error %.2e (%.2f x PyTorch's bf16 error)\n", name,
            bf16 ? "bf16" : "fp32", result.loss, worst, worst_ratio);
    CHECK_EQ(sdp_engine_slot_failures(p.engine), 0);
    parity_close(&p);
}

static double check_loss(size_t i, double loss, const double *golden, double tolerance, double *losses)
{
    CHECK_NEAR(loss / golden[i], 1, tolerance);
    CHECK(losses[i] != losses[i] || losses[i] == loss);
    losses[i] = loss;
    return fabs(loss / golden[i] - 1);
}

static double *no_losses(double losses[30])
{
    for (size_t i = 0; i < 30; i++)
        losses[i] = NAN;
    return losses;
}

/* `losses`: 30 of them out; what is there already (not NaN) must come out again to the bit. */
static void check_losses(const char *name, const char *const *settings, double tolerance, double *losses)
{
    struct parity p;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_step_result result;
    size_t count;
    double worst = 0;
    parity_open(&p, name, false, settings);
    double *golden = parity_golden(&p, "", "losses30", &count);
    for (size_t step = 1; step <= 30; step++) {
        REQUIRE_OK(sdp_engine_submit(p.engine, &p.sequences, step, &err), &err);
        if (step > 1) { /* one step ahead, as runs do */
            REQUIRE_OK(sdp_engine_wait(p.engine, step - 1, &result, &err), &err);
            worst = SDP_MAX(worst, check_loss(step - 2, result.loss, golden, tolerance, losses));
        }
    }
    REQUIRE_OK(sdp_engine_wait(p.engine, 30, &result, &err), &err);
    worst = SDP_MAX(worst, check_loss(29, result.loss, golden, tolerance, losses));
    fprintf(stderr, "%s: worst of 30 losses off by %.2e\n", name, worst);
    free(golden);
    parity_close(&p);
}

/* bf16: one result whatever is kept and wherever the state lies. */
static const char *const policies[][6] = {
    {"runtime.ranks=1", "runtime.activations=keep", NULL},
    {"runtime.ranks=1", "runtime.activations=keep", "runtime.gpu_state=0", NULL},
    {"runtime.ranks=1", "runtime.activations=selective", "runtime.gpu_state=0", NULL},
    {"runtime.ranks=1", "runtime.activations=recompute", "runtime.gpu_state=0", NULL},
    {"runtime.ranks=1", "runtime.activations=offload", "runtime.gpu_state=0", NULL},
    {"runtime.ranks=1", "runtime.activations=offload", NULL},
};

int main(void)
{
    const char *const two[] = {"runtime.ranks=2", "runtime.micro_batch=1", "runtime.gpus=1", NULL};
    const char *const fp32[] = {"runtime.ranks=1", "runtime.compute=fp32", NULL};
    double losses[30];
    if (sdp_cuda_device_count() == 0)
        SKIP("no CUDA device");
    for (size_t i = 0; i < SDP_COUNT_OF(models); i++) {
        check_gradients(models[i], fp32, false);
        check_losses(models[i], fp32, 1e-4, no_losses(losses));
        check_losses(models[i], two, 1e-2, no_losses(losses));
        no_losses(losses);
        for (size_t k = 0; k < SDP_COUNT_OF(policies); k++) {
            check_gradients(models[i], policies[k], true);
            check_losses(models[i], policies[k], 1e-2, losses);
        }
    }
    return sdp_test_end();
}
