/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Every key of a job file, and what the keys of other training programs are
 * called here: a user who writes "learning_rate" is told where it goes. */
#include "graph/job_internal.h"

static const char *const root_keys[] = {"model",  "data",  "train",   "runtime",
                                        "output", "trace", "$schema", NULL};
static const char *const model_keys[] = {"checkpoint", "graph", "config", "init_seed",
                                         NULL};
static const char *const data_keys[] = {
    "train",  "validation", "format",   "tokenizer", "chat_template", "template_values", "template_date",
    "fields", "tools",      "append_eos", "too_long", "packing",      "token_dtype",     "pack",
    "sequence_length", "seed", "shuffle", "repeat_batch", NULL};
static const char *const field_keys[] = {"text",  "messages",    "role",  "content", "system",
                                         "tools", "instruction", "input", "output",  NULL};
static const char *const train_keys[] = {"steps",     "epochs",       "tokens_per_step",
                                         "optimizer", "decay_all",    "schedule",
                                         "clip_norm", "on_nonfinite", "evaluate_every",
                                         NULL};
static const char *const optimizer_keys[] = {"name", "lr",           "betas",
                                             "eps",  "weight_decay", NULL};
static const char *const schedule_keys[] = {"name", "warmup_steps", "min_lr", NULL};
static const char *const runtime_keys[] = {
    "ranks",       "gpus",          "gpu_memory", "gpu_state",      "host_memory",
    "compute",     "policy",        "policy_options", "window",     "delivery",
    "reduction",   "chunk",         "activations", "group",         "gradients",
    "micro_batch", "deterministic", "plan",       NULL};
static const char *const output_keys[] = {"dir", "checkpoint_every", "export",
                                          "export_dtype", NULL};
static const char *const trace_keys[] = {"steps", NULL};

static const struct {
    const char *pointer;
    const char *const *keys;
} sections[] = {
    {"", root_keys},
    {"/model", model_keys},
    {"/data", data_keys},
    {"/data/fields", field_keys},
    {"/train", train_keys},
    {"/train/optimizer", optimizer_keys},
    {"/train/schedule", schedule_keys},
    {"/runtime", runtime_keys},
    {"/output", output_keys},
    {"/trace", trace_keys},
};

/* Names that other programs use, and the place of the same thing here. */
static const struct {
    const char *name, *place;
} elsewhere[] = {
    {"learning_rate", "/train/optimizer/lr"},
    {"adam_epsilon", "/train/optimizer/eps"},
    {"adam_beta1", "/train/optimizer/betas"},
    {"adam_beta2", "/train/optimizer/betas"},
    {"beta1", "/train/optimizer/betas"},
    {"beta2", "/train/optimizer/betas"},
    {"optim", "/train/optimizer"},
    {"lr_scheduler", "/train/schedule"},
    {"lr_scheduler_type", "/train/schedule/name"},
    {"scheduler", "/train/schedule"},
    {"warmup", "/train/schedule/warmup_steps"},
    {"num_warmup_steps", "/train/schedule/warmup_steps"},
    {"max_grad_norm", "/train/clip_norm"},
    {"gradient_clipping", "/train/clip_norm"},
    {"grad_clip", "/train/clip_norm"},
    {"max_steps", "/train/steps"},
    {"num_train_epochs", "/train/epochs"},
    {"num_epochs", "/train/epochs"},
    {"batch_size", "/train/tokens_per_step"},
    {"global_batch_size", "/train/tokens_per_step"},
    {"gradient_accumulation_steps", "/train/tokens_per_step"},
    {"per_device_train_batch_size", "/runtime/micro_batch"},
    {"micro_batch_size", "/runtime/micro_batch"},
    {"seq_len", "/data/sequence_length"},
    {"seq_length", "/data/sequence_length"},
    {"max_seq_len", "/data/sequence_length"},
    {"max_seq_length", "/data/sequence_length"},
    {"max_length", "/data/sequence_length"},
    {"cutoff_len", "/data/sequence_length"},
    {"block_size", "/data/sequence_length"},
    {"dataset", "/data/train"},
    {"train_file", "/data/train"},
    {"files", "/data/train"},
    {"neat_packing", "/data/packing"},
    {"sample_packing", "/data/packing"},
    {"template", "/data/chat_template"},
    {"dataset_text_field", "/data/fields/text"},
    {"text_column", "/data/fields/text"},
    {"columns", "/data/fields"},
    {"truncation", "/data/too_long"},
    {"mix_weights", "/data/train"},
    {"token", "/data/tokenizer"},
    {"model_name_or_path", "/model/checkpoint"},
    {"path", "/model/checkpoint"},
    {"family", "/model/graph"},
    {"bf16", "/runtime/compute"},
    {"fp32", "/runtime/compute"},
    {"dtype", "/runtime/compute"},
    {"precision", "/runtime/compute"},
    {"gradient_checkpointing", "/runtime/activations"},
    {"num_gpus", "/runtime/gpus"},
    {"world_size", "/runtime/ranks"},
    {"output_dir", "/output/dir"},
    {"save_steps", "/output/checkpoint_every"},
};

const char *const *sdpi_job_keys(const char *pointer)
{
    for (size_t i = 0; i < SDP_COUNT_OF(sections); i++)
        if (strcmp(sections[i].pointer, pointer) == 0)
            return sections[i].keys;
    return NULL;
}

static bool has_key(const char *const *keys, const char *key)
{
    for (; *keys; keys++)
        if (strcmp(*keys, key) == 0)
            return true;
    return false;
}

/* Section that has this key, or NULL; a key that several have is no help. */
static const char *owner_of(const char *key)
{
    const char *owner = NULL;

    for (size_t i = 1; i < SDP_COUNT_OF(sections); i++) {
        if (!has_key(sections[i].keys, key))
            continue;
        if (owner)
            return NULL;
        owner = sections[i].pointer;
    }
    return owner;
}

static bool fail_elsewhere(const struct sdp_json *at, const char *key)
{
    struct sdp_json member = sdp_json_member(at, key);
    const char *owner = owner_of(key);

    if (owner)
        return sdp_json_fail(&member, "unknown key; \"%s\" belongs in %s", key, owner);
    for (size_t i = 0; i < SDP_COUNT_OF(elsewhere); i++)
        if (strcmp(elsewhere[i].name, key) == 0)
            return sdp_json_fail(&member, "unknown key; here this is %s",
                                 elsewhere[i].place);
    return true;
}

bool sdpi_job_only_keys(const struct sdp_json *at)
{
    const char *const *keys = sdpi_job_keys(at->pointer);
    const char *key;
    json_t *value;

    if (!sdp_json_expect_object(at))
        return false;
    json_object_foreach(at->value, key, value)
    {
        if (!has_key(keys, key) && !fail_elsewhere(at, key))
            return false;
    }
    return sdp_json_only_keys(at, keys);
}
