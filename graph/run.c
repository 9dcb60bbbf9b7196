/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The step loop. One step is submitted ahead of the one that is waited for, so
 * that the devices never wait for the main thread. */
#include "graph/run.h"

#include "codelets/common/device_memory.h"
#include "graph/base/log.h"
#include "graph/engine.h"
#include "graph/resources.h"
#include "graph/engine_trace.h"
#include "graph/job_model.h"
#include "graph/output.h"
#include "model/checkpoint/checkpoint.h"
#include "model/data/dataset.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

struct run {
    const struct sdp_job *job;
    const struct sdp_run_options *options;
    struct sdp_model_graph *graph;
    json_t *config;          /* Hugging Face config, or NULL */
    struct sdp_dataset *data, *validation; /* validation: NULL without */
    struct sdp_plan *plan;
    struct sdp_host_state *state;
    struct sdp_engine *engine;
    struct sdp_output output;
    struct sdp_train_position position;
    size_t trace_first, trace_last;
    double first_loss, last_loss, last_finished;
    size_t start;            /* steps done by earlier processes */
    size_t steps_done;       /* of this process */
    double *seconds;         /* of each of them */
};

/* -- start -------------------------------------------------------------------------- */

static enum sdp_status prepare_output(struct run *r, struct sdp_error *err)
{
    enum sdp_status rc = sdp_output_open(r->job, r->options, &r->output, err);
    if (rc)
        return rc;
    json_t *dump = sdp_plan_dump(r->plan);
    char *text = dump ? json_dumps(dump, JSON_INDENT(2)) : NULL;
    if (text)
        rc = sdp_write_file(r->output.plan_path, text, strlen(text), err);
    else
        rc = sdp_fail(err, SDP_INTERNAL, "plan.json cannot be made");
    free(text);
    json_decref(dump);
    if (!rc && r->job->output.export_hf) /* a full disk is told now, not after the last step */
        rc = sdp_checkpoint_probe(r->output.dir, r->graph->parameters * sdp_dtype_size(r->job->output.export_dtype), err);
    return rc;
}

static enum sdp_status load_weights(struct run *r, struct sdp_error *err)
{
    if (r->job->model.checkpoint)
        return sdp_checkpoint_load_hf(r->job->model.checkpoint, r->state, 0, err);
    sdp_host_state_init_random(r->state, r->job->model.init_seed, 0);
    return SDP_OK;
}

static enum sdp_status resume_or_load(struct run *r, struct sdp_error *err)
{
    char *latest = NULL;
    const char *fingerprint = sdp_dataset_fingerprint(r->data);
    enum sdp_status rc = SDP_OK;
    if (r->options->resume && sdp_path_exists(r->output.checkpoints))
        rc = sdp_checkpoint_find_latest(r->output.checkpoints, &latest, err);
    if (!rc && latest) {
        rc = sdp_checkpoint_load_state(latest, r->state, &r->position, err);
        if (!rc && (strcmp(r->position.fingerprint, fingerprint) != 0 || r->position.seed != r->job->data.seed))
            rc = sdp_fail_at(err, SDP_INPUT, latest, NULL, 0, 0,
                             "was made with other data (\"%s\", seed %llu; the job has \"%s\", seed %llu); resume with the same data",
                             r->position.fingerprint, (unsigned long long)r->position.seed, fingerprint,
                             (unsigned long long)r->job->data.seed);
        if (!rc)
            sdp_info("resuming from %s, step %llu", latest, (unsigned long long)r->position.step);
    } else if (!rc) {
        if (r->options->resume)
            sdp_info("there is no checkpoint in %s yet: starting from the first step", r->output.checkpoints);
        rc = load_weights(r, err);
    }
    free(latest);
    r->position.seed = r->job->data.seed;
    snprintf(r->position.fingerprint, sizeof r->position.fingerprint, "%s", fingerprint);
    return rc;
}

static enum sdp_status prepare_state(struct run *r, struct sdp_error *err)
{
    double start = sdp_now();
    char text[32];
    struct sdp_host_state_options options = {.chunk_bytes = r->plan->chunk_bytes, .threads = 0, .pin = r->plan->cuda};
    sdp_info("making the host state (%s) ...", sdp_format_bytes(sdp_host_state_bytes(r->graph), text));
    enum sdp_status rc = sdp_host_state_create(r->graph, &options, &r->state, err);
    double created = sdp_now();
    if (!rc)
        rc = resume_or_load(r, err);
    if (!rc)
        sdp_info("host state ready: %.1f s to make, %.1f s to fill", created - start, sdp_now() - created);
    return rc;
}

static enum sdp_status prepare(struct run *r, struct sdp_error *err)
{
    enum sdp_status rc = sdp_job_build_graph(r->job, &r->graph, &r->config, err);
    if (!rc)
        rc = sdp_dataset_open(r->job, false, r->graph->vocabulary, &r->data, err);
    if (!rc && r->job->data.validation_count > 0)
        rc = sdp_dataset_open(r->job, true, r->graph->vocabulary, &r->validation, err);
    if (!rc)
        rc = sdp_plan_create(r->job, r->graph, sdp_dataset_sequences(r->data), &r->plan, err);
    if (!rc)
        rc = sdp_plan_check_fits(r->plan, err);
    if (!rc)
        rc = prepare_output(r, err);
    if (!rc)
        rc = prepare_state(r, err);
    if (rc)
        return rc;
    r->trace_first = r->options->trace_first ? r->options->trace_first : r->job->trace.first;
    r->trace_last = r->options->trace_first ? r->options->trace_last : r->job->trace.last;
    if (r->trace_last > r->plan->steps)
        return sdp_fail(err, SDP_INPUT, "--trace %zu:%zu: the run has %zu steps", r->trace_first, r->trace_last,
                        r->plan->steps);
    struct sdp_engine_options options = {.policy = r->options->policy ? r->options->policy : r->job->runtime.policy,
                                         .trace_dir = r->trace_first ? r->output.trace : NULL,
                                         .resources = r->options->resources};
    if (options.trace_dir)
        rc = sdp_make_dirs(options.trace_dir, err);
    if (!rc)
        rc = sdp_engine_create(r->plan, r->state, &options, &r->engine, err);
    return rc;
}

static void describe(const struct run *r)
{
    const struct sdp_plan *p = r->plan;
    char host[32], device[32], activations[96];
    sdp_info("%s: %.3f M parameters; %zu rank%s on %s, %s, activations %s; %zu steps of %zu tokens "
             "(%zu micro-batch%s of %zu x %zu a rank)",
             r->graph->name, (double)r->graph->parameters / 1e6, p->ranks, p->ranks == 1 ? "" : "s",
             p->cuda ? (p->device_count == 1 ? "1 GPU" : "GPUs") : "CPU cores", sdp_dtype_name(p->compute),
             sdp_plan_activations_text(p, activations), p->steps, p->sequences_per_step * p->sequence_length, p->micro_batches,
             p->micro_batches == 1 ? "" : "es", p->micro_batch, p->sequence_length);
    sdp_format_bytes(p->host_bytes, host);
    sdp_format_bytes(p->device_bytes, device);
    if (p->cuda && r->job->data.packing == SDP_PACKING_PACK)
        sdp_info("packed sequences: attention runs in this program's own kernels, slower than cuDNN's");
    sdp_info("planned memory: host %s%s%s", host, p->cuda ? ", each GPU " : "", p->cuda ? device : "");
}

/* -- steps ------------------------------------------------------------------------------ */

static enum sdp_status save_state(struct run *r, size_t step, struct sdp_error *err)
{
    enum sdp_status rc = sdp_engine_drain(r->engine, err);
    if (rc)
        return rc;
    char *folder = sdp_xprintf("%s/step-%08zu", r->output.checkpoints, step);
    r->position.step = step;
    r->position.sequences = (uint64_t)step * r->plan->sequences_per_step;
    rc = sdp_make_dirs(r->output.checkpoints, err);
    if (!rc)
        rc = sdp_checkpoint_save_state(folder, r->state, &r->position, err);
    if (!rc)
        sdp_info("saved %s", folder);
    free(folder);
    return rc;
}

static void show_progress(const struct run *r, size_t step, const struct sdp_step_result *result, double seconds)
{
    size_t tokens = r->plan->sequences_per_step * r->plan->sequence_length;
    double left = seconds * (double)(r->plan->steps - step);
    char speed[32];
    if (r->options->quiet)
        return;
    sdp_progress("step %zu/%zu  loss %.4f  grad norm %.3f  lr %.2e  %.0f tokens/s  %s  %.0f s left", step,
                 r->plan->steps, result->loss, result->grad_norm, result->lr, (double)tokens / seconds,
                 sdp_format_flops(r->plan->flops / seconds, speed), left);
}

static enum sdp_status check_finite(const struct run *r, size_t step, const struct sdp_step_result *result, struct sdp_error *err)
{
    if (isfinite(result->loss) && isfinite(result->grad_norm))
        return SDP_OK;
    if (r->job->train.on_nonfinite == SDP_NONFINITE_WARN) {
        sdp_warn("step %zu: loss %g, gradient norm %g", step, result->loss, result->grad_norm);
        return SDP_OK;
    }
    return sdp_fail(err, SDP_NONFINITE,
                    "step %zu: loss %g, gradient norm %g; nothing was exported, the last checkpoint is untouched "
                    "(lower the learning rate, or set train.clip_norm)", step, result->loss, result->grad_norm);
}

static enum sdp_status finish_step(struct run *r, size_t step, struct sdp_error *err)
{
    struct sdp_step_result result;
    enum sdp_status rc = sdp_engine_wait(r->engine, step, &result, err);
    if (rc)
        return rc;
    /* The pipeline overlaps steps: a step's time is that between two ends. */
    double seconds = r->steps_done ? result.finished - r->last_finished : result.seconds;
    r->last_finished = result.finished;
    if (r->steps_done++ == 0)
        r->first_loss = result.loss;
    r->seconds = sdp_xrealloc(r->seconds, r->steps_done * sizeof *r->seconds);
    r->seconds[r->steps_done - 1] = seconds;
    r->last_loss = result.loss;
    rc = sdp_output_metrics(&r->output, r->plan, step, &result, seconds, err);
    show_progress(r, step, &result, seconds);
    return rc ? rc : check_finite(r, step, &result, err);
}

static bool is_checkpoint_step(const struct run *r, size_t step)
{
    size_t every = r->job->output.checkpoint_every;
    return every && step % every == 0;
}

static bool is_evaluation_step(const struct run *r, size_t step)
{
    size_t every = r->job->train.evaluate_every;
    return r->validation && (step == 0 || step == r->plan->steps || (every && step % every == 0));
}

static size_t read_sequence(const void *data, uint64_t index, int32_t *ids, int32_t *targets, int32_t *positions)
{
    return sdp_dataset_sequence(data, index, ids, targets, positions, NULL);
}

static enum sdp_status evaluate(struct run *r, size_t step, struct sdp_error *err)
{
    const struct sdp_sequences sequences = {read_sequence, r->validation};
    struct sdp_evaluation result;
    double start = sdp_now();
    enum sdp_status rc = sdp_engine_evaluate(r->engine, &sequences, sdp_dataset_sequences(r->validation), NULL, &result, err);
    if (rc)
        return rc;
    r->last_finished = sdp_now(); /* no step's time */
    sdp_info("step %zu: validation loss %.4f, perplexity %.3f on %zu tokens (%.1f s)", step, result.loss, exp(result.loss),
             result.counted, r->last_finished - start);
    return sdp_output_evaluation(&r->output, step, &result, r->last_finished - start, err);
}

/* Steps at which everything must have ended, and the host's state be whole, before the next is submitted. */
static bool must_drain_after(const struct run *r, size_t step)
{
    return is_checkpoint_step(r, step) || step + 1 == r->trace_first || step == r->trace_last || step == r->plan->steps;
}

static enum sdp_status run_steps(struct run *r, struct sdp_error *err)
{
    const struct sdp_sequences sequences = {read_sequence, r->data};
    size_t waited = r->start = (size_t)r->position.step;
    enum sdp_status rc = waited == 0 && is_evaluation_step(r, 0) ? evaluate(r, 0, err) : SDP_OK;
    for (size_t step = waited + 1; !rc && step <= r->plan->steps; step++) {
        if (step == r->trace_first)
            sdp_engine_trace_start(r->engine);
        rc = sdp_engine_submit(r->engine, &sequences, step, err);
        const int stop = stop_signal; /* read once: it may come at any moment */
        const bool drain = stop || must_drain_after(r, step), evaluation = is_evaluation_step(r, step);
        while (!rc && waited < (drain || evaluation ? step : step - 1))
            rc = finish_step(r, ++waited, err);
        if (!rc && drain)
            rc = sdp_engine_drain(r->engine, err);
        if (!rc && step == r->trace_last)
            sdp_engine_trace_stop(r->engine);
        if (!rc && evaluation && !stop)
            rc = evaluate(r, step, err);
        if (!rc && (stop || is_checkpoint_step(r, step)))
            rc = save_state(r, step, err);
        if (!rc && stop && step < r->plan->steps)
            return sdp_fail(err, SDP_INTERRUPTED, "stopped by signal %d after step %zu; the state is saved: go on with --resume",
                            stop, step);
    }
    sdp_progress_end();
    return rc;
}

/* -- end ------------------------------------------------------------------------------------ */

static void report_memory(const struct run *r)
{
    struct rusage usage;
    char host[32], plan[32], device[32];
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return;
    sdp_format_bytes((size_t)usage.ru_maxrss * 1024, host);
    sdp_format_bytes(r->plan->host_bytes, plan);
    sdp_info("host memory: planned %s, peak %s", plan, host);
    for (size_t d = 0; r->plan->cuda && d < r->plan->device_count; d++) {
        struct sdp_cuda_info info;
        if (sdp_cuda_device_info((int)d, &info, NULL))
            continue;
        sdp_format_bytes(info.total_bytes - info.free_bytes, device);
        sdp_format_bytes(r->plan->device_bytes, plan);
        sdp_info("GPU %zu memory: planned %s, in use %s (context and libraries included)", d, plan, device);
    }
    size_t failures = sdp_engine_slot_failures(r->engine);
    if (failures)
        sdp_warn("%zu deliveries found no free layer slot", failures);
}

static int by_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Steps that a measurement leaves out: the first ones fill the pipeline. */
static size_t warm_up_steps(const struct run *r)
{
    return r->steps_done > 4 ? 3 : r->steps_done / 2;
}

static void report_speed(struct run *r)
{
    const struct sdp_plan *p = r->plan;
    size_t skip = warm_up_steps(r), n = r->steps_done - skip;
    if (!n)
        return;
    double *s = r->seconds + skip;
    qsort(s, n, sizeof *s, by_seconds);
    double median = n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
    char speed[32];
    sdp_info("median of %zu steps after %zu: %.3f s, %.0f tokens/s, model %s", n, skip, median,
             (double)(p->sequences_per_step * p->sequence_length) / median, sdp_format_flops(p->flops / median, speed));
    struct sdp_resource_report report;
    if (!r->options->resources)
        return;
    if (sdp_engine_resources(r->engine, r->start + skip, &report))
        sdp_resources_print(p, &report);
    else
        sdp_warn("--resources: too few steps to say how busy anything was; run at least two");
}

static enum sdp_status finish(struct run *r, struct sdp_error *err)
{
    enum sdp_status rc = SDP_OK;
    report_speed(r);
    report_memory(r);
    if (r->job->output.export_hf)
        rc = sdp_checkpoint_save_hf(r->output.model, r->state, r->job->output.export_dtype, r->config,
                                    r->job->model.checkpoint, 0, err);
    return rc;
}

static void clean_up(struct run *r)
{
    sdp_engine_destroy(r->engine);
    sdp_host_state_destroy(r->state);
    sdp_plan_destroy(r->plan);
    sdp_dataset_close(r->data);
    sdp_dataset_close(r->validation);
    free(r->seconds);
    json_decref(r->config);
    sdp_model_graph_destroy(r->graph);
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

enum sdp_status sdp_run_job(const struct sdp_job *job, const struct sdp_run_options *options, struct sdp_error *err)
{
    struct run r = {.job = job, .options = options};
    enum sdp_status rc = prepare(&r, err);
    catch_signals();
    if (!rc)
        describe(&r);
    if (!rc)
        rc = sdp_output_start_metrics(&r.output, (size_t)r.position.step, err);
    if (!rc)
        rc = run_steps(&r, err);
    if (!rc)
        rc = finish(&r, err);
    bool traced = r.trace_first != 0 && r.engine;
    clean_up(&r);
    if (!rc && traced)
        rc = sdp_trace_convert(r.output.trace, err);
    if (!rc && traced)
        sdp_info("trace of steps %zu to %zu in %s", r.trace_first, r.trace_last, r.output.trace);
    if (!rc && r.steps_done)
        sdp_info("done: loss %.4f at the first step, %.4f at the last; result in %s", r.first_loss, r.last_loss,
                 job->output.export_hf ? r.output.model : r.output.dir);
    sdp_output_close(&r.output);
    return rc;
}
