/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The sections of a job file but for data (job_data.c), one function each: defaults, types, ranges, and
 * what cannot go together. Keys are checked first, so that a misspelt key is
 * told before what its absence causes. */
#define _GNU_SOURCE
#include "graph/job_internal.h"
#include "graph/job_value.h"

#include <stdlib.h>

#define MAX_TOKENS     ((size_t)1 << 40) /* of a step */
#define MAX_BYTES      ((size_t)1 << 50)
#define MIN_CHUNK      ((size_t)64 << 10)
#define MAX_CHUNK      ((size_t)4 << 30)
#define DEFAULT_STEPS  100
#define DEFAULT_TOKENS ((size_t)65536) /* of a step */

bool sdpi_job_section(const struct sdp_json *parent, const char *key, struct sdp_json *at)
{
    *at = sdp_json_member(parent, key);
    return !at->value || sdpi_job_only_keys(at);
}

/* -- model ------------------------------------------------------------------ */

static bool names_file(const char *graph)
{
    size_t length = strlen(graph);

    return strchr(graph, '/') || (length > 5 && strcmp(graph + length - 5, ".json") == 0);
}

/* A family is looked up when the model is built; a file must be there now. */
static bool read_graph(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json graph = sdp_json_member(at, "graph"),
                    config = sdp_json_member(at, "config");
    char *path;

    if (sdpi_job_has(at, "config")) {
        if (!sdp_json_expect_object(&config))
            return false;
        if (names_file(job->model.graph))
            return sdp_json_fail(
                &graph,
                "is the file \"%s\"; with \"config\" it must be the name "
                "of a model family",
                job->model.graph);
        job->model.config_text = json_dumps(config.value, JSON_COMPACT);
        return job->model.config_text ||
               sdp_json_fail(&config, "cannot be written as text");
    }
    path = sdp_path_join(job->folder, job->model.graph);
    free(job->model.graph);
    job->model.graph = path;
    if (!sdp_path_exists(path) && !names_file(json_string_value(graph.value)))
        return sdp_json_fail(&graph,
                             "there is no file \"%s\"; the name of a model family needs "
                             "\"config\" next to it",
                             path);
    return sdpi_job_check_file(&graph, path);
}

static bool read_checkpoint(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json checkpoint = sdp_json_member(at, "checkpoint");
    char *path = sdp_path_join(job->folder, job->model.checkpoint);

    free(job->model.checkpoint);
    job->model.checkpoint = path;
    if (sdpi_job_has(at, "config")) {
        struct sdp_json config = sdp_json_member(at, "config");
        return sdp_json_fail(&config,
                             "cannot go with \"checkpoint\", whose folder has its own "
                             "config.json; leave it out");
    }
    if (sdpi_job_has(at, "init_seed")) {
        struct sdp_json seed = sdp_json_member(at, "init_seed");
        return sdp_json_fail(&seed,
                             "cannot go with \"checkpoint\", which gives the weights; "
                             "leave it out");
    }
    return sdpi_job_check_checkpoint(&checkpoint, path);
}

static bool read_model(const struct sdp_json *root, struct sdp_job *job)
{
    struct sdp_json at;
    int64_t seed = 0;

    if (!sdpi_job_section(root, "model", &at))
        return false;
    if (!at.value)
        return sdp_json_missing(root, "model");
    if (!sdpi_job_text(&at, "checkpoint", true, &job->model.checkpoint) ||
        !sdpi_job_text(&at, "graph", true, &job->model.graph) ||
        !sdp_json_get_int(&at, "init_seed", 0, INT64_MAX, &seed))
        return false;
    job->model.init_seed = (uint64_t)seed;
    if (job->model.checkpoint && job->model.graph)
        return sdp_json_fail(
            &at, "has both \"checkpoint\" and \"graph\"; must have one of them");
    if (job->model.checkpoint)
        return read_checkpoint(&at, job);
    if (job->model.graph)
        return read_graph(&at, job);
    return sdp_json_fail(
        &at, "names no model; must have \"checkpoint\" (a Hugging Face folder) or "
             "\"graph\" (a model-graph file, or a family name with \"config\")");
}

/* -- train ------------------------------------------------------------------ */

static bool read_length(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json steps = sdp_json_member(at, "steps"),
                    epochs = sdp_json_member(at, "epochs");
    bool has_steps = sdpi_job_has(at, "steps"), has_epochs = sdpi_job_has(at, "epochs");

    job->train.steps = SDP_AUTO;
    if (has_steps && has_epochs)
        return sdp_json_fail(
            at, "has both \"steps\" and \"epochs\"; one of them must be null or "
                "left out");
    if (has_epochs) {
        if (job->data.format == SDP_DATA_SYNTHETIC)
            return sdp_json_fail(&epochs,
                                 "cannot go with format \"synthetic\", whose data never "
                                 "ends; use \"steps\"");
        return sdpi_job_above(at, "epochs", 0.0, &job->train.epochs);
    }
    if (steps.value && !has_steps)
        return sdp_json_fail(
            at, "has neither \"steps\" nor \"epochs\"; one of them must be a "
                "number");
    job->train.steps = DEFAULT_STEPS;
    return sdp_json_get_size(at, "steps", 1, SIZE_MAX, &job->train.steps);
}

static bool read_tokens_per_step(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, "tokens_per_step");
    size_t length = job->data.sequence_length, below, tokens;

    job->train.tokens_per_step = SDP_MAX(DEFAULT_TOKENS / length, (size_t)1) * length;
    if (!sdp_json_get_size(at, "tokens_per_step", 1, MAX_TOKENS,
                           &job->train.tokens_per_step))
        return false;
    tokens = job->train.tokens_per_step;
    below = tokens / length * length;
    if (below == tokens)
        return true;
    if (below == 0)
        return sdp_json_fail(&member,
                             "is %zu; must be a multiple of sequence_length (%zu), at "
                             "least %zu",
                             tokens, length, length);
    return sdp_json_fail(&member,
                         "is %zu; must be a multiple of sequence_length (%zu), such as "
                         "%zu or %zu",
                         tokens, length, below, below + length);
}

static bool read_betas(const struct sdp_json *optimizer, struct sdp_job *job)
{
    struct sdp_json at = sdp_json_member(optimizer, "betas");
    double *out[] = {&job->train.beta1, &job->train.beta2};
    size_t length = 0;

    if (!at.value)
        return true;
    if (!sdp_json_expect_array(&at, &length))
        return false;
    if (length != 2)
        return sdp_json_fail(
            &at, "is a list of %zu; must be two numbers, such as [0.9, 0.95]", length);
    for (size_t i = 0; i < 2; i++) {
        struct sdp_json beta = sdp_json_element(&at, i), silent = beta;

        silent.err = NULL;
        if (!sdp_json_expect_double(&silent, 0.0, 1.0, out[i]) || *out[i] >= 1.0)
            return sdp_json_wrong(&beta, "a number of at least 0 and below 1");
    }
    return true;
}

static bool read_optimizer(const struct sdp_json *train, struct sdp_job *job)
{
    static const char *const names[] = {"adamw", NULL};
    struct sdp_json at;
    int name = 0;

    job->train.lr = 1e-5;
    job->train.beta1 = 0.9;
    job->train.beta2 = 0.95;
    job->train.eps = 1e-8;
    job->train.weight_decay = 0.1;
    return sdpi_job_section(train, "optimizer", &at) &&
           sdp_json_get_choice(&at, "name", names, &name) &&
           sdp_json_get_double(&at, "lr", 0.0, INFINITY, &job->train.lr) &&
           read_betas(&at, job) && sdpi_job_above(&at, "eps", 0.0, &job->train.eps) &&
           sdp_json_get_double(&at, "weight_decay", 0.0, INFINITY,
                               &job->train.weight_decay);
}

static bool read_schedule(const struct sdp_json *train, struct sdp_job *job)
{
    static const char *const names[] = {"constant", "linear", "cosine", NULL};
    struct sdp_json at, member;
    int name = SDP_SCHEDULE_COSINE;

    job->train.warmup_steps = 10;
    job->train.min_lr = job->train.lr / 10.0;
    if (!sdpi_job_section(train, "schedule", &at) ||
        !sdp_json_get_choice(&at, "name", names, &name) ||
        !sdp_json_get_size(&at, "warmup_steps", 0, SIZE_MAX, &job->train.warmup_steps) ||
        !sdp_json_get_double(&at, "min_lr", 0.0, INFINITY, &job->train.min_lr))
        return false;
    job->train.schedule = (enum sdp_schedule)name;
    member = sdp_json_member(&at, "min_lr");
    if (job->train.min_lr > job->train.lr)
        return sdp_json_fail(&member,
                             "is %.9g; must be at most the learning rate, "
                             "/train/optimizer/lr = %.9g",
                             job->train.min_lr, job->train.lr);
    return true;
}

static bool read_clip_norm(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json member = sdp_json_member(at, "clip_norm"), silent = *at;

    if (!sdpi_job_has(at, "clip_norm"))
        return true;
    silent.err = NULL;
    if (!sdpi_job_above(&silent, "clip_norm", 0.0, &job->train.clip_norm))
        return sdp_json_wrong(&member, "a number above 0, or null for no clipping");
    return true;
}

static bool read_train(const struct sdp_json *root, struct sdp_job *job)
{
    static const char *const on_nonfinite[] = {"stop", "warn", NULL};
    struct sdp_json at;
    int choice = SDP_NONFINITE_STOP;

    if (!sdpi_job_section(root, "train", &at) || !read_length(&at, job) ||
        !read_tokens_per_step(&at, job) || !read_optimizer(&at, job) ||
        !read_schedule(&at, job) || !read_clip_norm(&at, job) ||
        !sdp_json_get_bool(&at, "decay_all", &job->train.decay_all) ||
        !sdp_json_get_choice(&at, "on_nonfinite", on_nonfinite, &choice))
        return false;
    job->train.on_nonfinite = (enum sdp_nonfinite)choice;
    return !sdpi_job_has(&at, "evaluate_every") || sdp_json_get_size(&at, "evaluate_every", 0, SIZE_MAX,
                                                                     &job->train.evaluate_every);
}

/* -- runtime ---------------------------------------------------------------- */

static bool read_sizes(const struct sdp_json *at, struct sdp_job *job)
{
    job->runtime.ranks = job->runtime.gpus = SDP_AUTO;
    job->runtime.gpu_memory = job->runtime.host_memory = SDP_AUTO;
    job->runtime.window = job->runtime.chunk = job->runtime.micro_batch = SDP_AUTO;
    job->runtime.group = job->runtime.gpu_state = SDP_AUTO;
    return sdpi_job_auto_size(at, "ranks", 1, SDP_MAX_RANKS, &job->runtime.ranks) &&
           sdpi_job_auto_size(at, "gpus", 0, SDP_MAX_RANKS, &job->runtime.gpus) &&
           sdpi_job_auto_bytes(at, "gpu_memory", (size_t)1 << 20, MAX_BYTES,
                               &job->runtime.gpu_memory) &&
           sdpi_job_auto_bytes(at, "gpu_state", 0, MAX_BYTES, &job->runtime.gpu_state) &&
           sdpi_job_auto_bytes(at, "host_memory", (size_t)1 << 20, MAX_BYTES,
                               &job->runtime.host_memory) &&
           sdpi_job_auto_size(at, "window", 1, 4096, &job->runtime.window) &&
           sdpi_job_auto_bytes(at, "chunk", MIN_CHUNK, MAX_CHUNK, &job->runtime.chunk) &&
           sdpi_job_auto_size(at, "micro_batch", 1, (size_t)1 << 24,
                              &job->runtime.micro_batch) &&
           sdpi_job_auto_size(at, "group", 1, (size_t)1 << 24, &job->runtime.group);
}

static bool read_choices(const struct sdp_json *at, struct sdp_job *job)
{
    static const char *const compute[] = {"auto", "bf16", "fp32", NULL};
    static const char *const activations[] = {"auto", "keep", "selective", "recompute", "offload", NULL};
    static const char *const delivery[] = {"auto", "replicated", NULL};
    static const char *const later_delivery[] = {"sharded", "relay", NULL};
    static const char *const reduction[] = {"auto", "host", NULL};
    static const char *const later_reduction[] = {"device", NULL};
    int c = SDP_COMPUTE_AUTO, a = SDP_ACTIVATIONS_AUTO, g = SDP_GRADIENTS_AUTO,
        only_one = 0;

    if (!sdp_json_get_choice(at, "compute", compute, &c) ||
        !sdp_json_get_choice(at, "activations", activations, &a) ||
        !sdp_json_get_choice(at, "gradients", compute, &g) ||
        !sdpi_job_choice(at, "delivery", delivery, later_delivery, &only_one) ||
        !sdpi_job_choice(at, "reduction", reduction, later_reduction, &only_one))
        return false;
    job->runtime.compute = (enum sdp_compute)c;
    job->runtime.activations = (enum sdp_activations)a;
    job->runtime.gradients = (enum sdp_gradients)g; /* the same words in the same order */
    return true;
}

/* Keys that the design names and that have one value so far. */
static bool read_reserved(const struct sdp_json *at)
{
    struct sdp_json plan = sdp_json_member(at, "plan");

    if (sdpi_job_has(at, "plan"))
        return sdp_json_fail(&plan,
                             "a plan from a file is not available yet; must be null");
    return true;
}

static bool read_policy(const struct sdp_json *at, struct sdp_job *job)
{
    struct sdp_json options = sdp_json_member(at, "policy_options");

    if (!sdpi_job_text(at, "policy", false, &job->runtime.policy))
        return false;
    if (!options.value)
        return true;
    if (!sdp_json_expect_object(&options))
        return false;
    free(job->runtime.policy_options);
    job->runtime.policy_options = json_dumps(options.value, JSON_COMPACT);
    return job->runtime.policy_options ||
           sdp_json_fail(&options, "cannot be written as text");
}

static bool check_runtime(const struct sdp_json *at, const struct sdp_job *job)
{
    struct sdp_json gpus = sdp_json_member(at, "gpus"),
                    compute = sdp_json_member(at, "compute");
    struct sdp_json gradients = sdp_json_member(at, "gradients");
    struct sdp_json activations = sdp_json_member(at, "activations");
    struct sdp_json micro_batch = sdp_json_member(at, "micro_batch");
    size_t sequences = job->train.tokens_per_step / job->data.sequence_length;

    if (job->runtime.gpus != SDP_AUTO && job->runtime.ranks != SDP_AUTO &&
        job->runtime.gpus > job->runtime.ranks)
        return sdp_json_fail(&gpus,
                             "is %zu; must be at most /runtime/ranks = %zu, for each GPU "
                             "serves at least one rank",
                             job->runtime.gpus, job->runtime.ranks);
    if (job->runtime.gpus == 0 && job->runtime.compute == SDP_COMPUTE_BF16)
        return sdp_json_fail(&compute,
                             "is \"bf16\"; must be \"fp32\" or \"auto\" without GPUs "
                             "(/runtime/gpus is 0)");
    if (job->runtime.gpus == 0 && job->runtime.activations == SDP_ACTIVATIONS_OFFLOAD)
        return sdp_json_fail(&activations, "is \"offload\"; must be another choice without GPUs "
                                           "(/runtime/gpus is 0): CPU ranks' activations are in host memory already");
    if (job->runtime.compute == SDP_COMPUTE_FP32 &&
        job->runtime.gradients == SDP_GRADIENTS_BF16)
        return sdp_json_fail(&gradients, "is \"bf16\"; must be \"fp32\" or \"auto\" when "
                                         "/runtime/compute is \"fp32\"");
    if (job->runtime.micro_batch != SDP_AUTO && sequences % job->runtime.micro_batch != 0)
        return sdp_json_fail(&micro_batch,
                             "is %zu; must divide the %zu sequences of a step",
                             job->runtime.micro_batch, sequences);
    return true;
}

static bool read_runtime(const struct sdp_json *root, struct sdp_job *job)
{
    struct sdp_json at;

    job->runtime.policy = sdp_xstrdup("slide");
    job->runtime.policy_options = sdp_xstrdup("{}");
    job->runtime.deterministic = true;
    return sdpi_job_section(root, "runtime", &at) && read_sizes(&at, job) &&
           read_choices(&at, job) && read_reserved(&at) && read_policy(&at, job) &&
           sdp_json_get_bool(&at, "deterministic", &job->runtime.deterministic) &&
           check_runtime(&at, job);
}

/* -- output and trace ------------------------------------------------------- */

static bool read_export(const struct sdp_json *at, struct sdp_job *job)
{
    static const char *const kinds[] = {"hf", NULL}, *const dtypes[] = {"fp32", "bf16",
                                                                        NULL};
    struct sdp_json member = sdp_json_member(at, "export");
    int kind = 0, dtype = 1;

    job->output.export_hf = !sdp_json_is_null(&member);
    if (job->output.export_hf && member.value && !json_is_string(member.value))
        return sdp_json_wrong(&member, "\"hf\", or null for no export");
    if (job->output.export_hf && !sdp_json_get_choice(at, "export", kinds, &kind))
        return false;
    if (!sdp_json_get_choice(at, "export_dtype", dtypes, &dtype))
        return false;
    job->output.export_dtype = dtype ? SDP_BF16 : SDP_FP32;
    return true;
}

static bool read_output(const struct sdp_json *root, struct sdp_job *job)
{
    struct sdp_json at, dir;

    job->output.dir = sdp_xstrdup("out");
    if (!sdpi_job_section(root, "output", &at) ||
        !sdpi_job_text(&at, "dir", false, &job->output.dir))
        return false;
    dir = sdp_json_member(&at, "dir");
    if (sdp_path_exists(job->output.dir) && !sdp_path_is_folder(job->output.dir))
        return sdp_json_fail(&dir,
                             "\"%s\" is a file; must be a folder, or a name that is not "
                             "taken",
                             job->output.dir);
    return (!sdpi_job_has(&at, "checkpoint_every") ||
            sdp_json_get_size(&at, "checkpoint_every", 0, SIZE_MAX,
                              &job->output.checkpoint_every)) &&
           read_export(&at, job);
}

static bool read_trace(const struct sdp_json *root, struct sdp_job *job)
{
    struct sdp_json at, steps;
    int64_t bounds[2] = {0, 0};
    size_t length = 0;

    if (!sdpi_job_has(root, "trace"))
        return true;
    if (!sdpi_job_section(root, "trace", &at))
        return false;
    steps = sdp_json_member(&at, "steps");
    if (!sdpi_job_has(&at, "steps"))
        return true;
    if (!sdp_json_expect_array(&steps, &length))
        return false;
    if (length != 2)
        return sdp_json_fail(
            &steps, "is a list of %zu; must be two step numbers: [first, last]", length);
    for (size_t i = 0; i < 2; i++) {
        struct sdp_json step = sdp_json_element(&steps, i);
        if (!sdp_json_expect_int(&step, 1, INT64_MAX, &bounds[i]))
            return false;
    }
    if (bounds[0] > bounds[1])
        return sdp_json_fail(&steps,
                             "is [%lld, %lld]; the first step must not be after the last",
                             (long long)bounds[0], (long long)bounds[1]);
    if (job->train.steps != SDP_AUTO && (size_t)bounds[1] > job->train.steps)
        return sdp_json_fail(
            &steps, "is [%lld, %lld]; must end by step %zu, the last of the run",
            (long long)bounds[0], (long long)bounds[1], job->train.steps);
    job->trace.first = (size_t)bounds[0];
    job->trace.last = (size_t)bounds[1];
    return true;
}

bool sdpi_job_read(const struct sdp_json *root, struct sdp_job *job)
{
    const char *schema; /* for editors; any string will do */

    return sdpi_job_only_keys(root) && sdp_json_get_string(root, "$schema", &schema) &&
           read_model(root, job) && sdpi_job_read_data(root, job) && read_train(root, job) &&
           read_runtime(root, job) && read_output(root, job) && read_trace(root, job);
}
