/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A job: what the user's JSON file asks for (the file is described by
 * graph/job.schema.json, tested against the same cases as the reader).
 * Every value is checked when it is read; only checks that need the model are
 * made later (sdp_job_check_model). */
#ifndef SDP_GRAPH_JOB_H
#define SDP_GRAPH_JOB_H

#include "graph/base/util.h"

#define SDP_AUTO      ((size_t)-1) /* a size that the plan chooses */
#define SDP_MAX_RANKS 16u          /* data-parallel ranks of one run */

enum sdp_data_format {
    SDP_DATA_SYNTHETIC,
    SDP_DATA_TOKENS,
    SDP_DATA_TEXT,
    SDP_DATA_MESSAGES,
    SDP_DATA_ALPACA
};
/* What becomes of a sample that is longer than a sequence. */
enum sdp_too_long {
    SDP_TOO_LONG_TRUNCATE,
    SDP_TOO_LONG_SPLIT,
    SDP_TOO_LONG_DROP,
    SDP_TOO_LONG_ERROR
};
enum sdp_packing { SDP_PACKING_NONE, SDP_PACKING_PACK };
/* Names of the members of a record, in the order of data.fields. */
enum sdp_data_field {
    SDP_FIELD_TEXT,
    SDP_FIELD_MESSAGES,
    SDP_FIELD_ROLE,
    SDP_FIELD_CONTENT,
    SDP_FIELD_SYSTEM,
    SDP_FIELD_TOOLS,
    SDP_FIELD_INSTRUCTION,
    SDP_FIELD_INPUT,
    SDP_FIELD_OUTPUT,
    SDP_FIELD_COUNT
};
enum sdp_schedule { SDP_SCHEDULE_CONSTANT, SDP_SCHEDULE_LINEAR, SDP_SCHEDULE_COSINE };
enum sdp_compute { SDP_COMPUTE_AUTO, SDP_COMPUTE_BF16, SDP_COMPUTE_FP32 };
enum sdp_activations {
    SDP_ACTIVATIONS_AUTO,
    SDP_ACTIVATIONS_KEEP,
    SDP_ACTIVATIONS_SELECTIVE,
    SDP_ACTIVATIONS_RECOMPUTE,
    SDP_ACTIVATIONS_OFFLOAD
};
enum sdp_gradients { SDP_GRADIENTS_AUTO, SDP_GRADIENTS_BF16, SDP_GRADIENTS_FP32 };
enum sdp_nonfinite { SDP_NONFINITE_STOP, SDP_NONFINITE_WARN };

struct sdp_job {
    char *path; /* the job file as given */
    char
        *folder; /* its folder; input paths are relative to it and already joined below */

    struct {
        char *checkpoint; /* Hugging Face folder, or NULL */
        char
            *graph; /* model-graph file, or a family name when config is given; or NULL */
        char *config_text;  /* "config" object re-dumped as JSON text, or NULL */
        uint64_t init_seed; /* random weights where there is no checkpoint */
    } model;

    struct {
        char **train; /* files; NULL-ended; empty for synthetic */
        size_t train_count;
        char **validation;
        size_t validation_count;
        enum sdp_data_format format;
        size_t sequence_length; /* tokens */
        uint64_t seed;
        bool shuffle;      /* default true; order of sequences by seed and epoch */
        bool repeat_batch; /* synthetic only: the same batch every step (overfit probe) */
        enum sdp_dtype
            token_dtype; /* raw token files: SDP_UINT16 or SDP_UINT32; .npy says itself */
        double *weights;  /* of the training files; NULL: all 1 */
        char *tokenizer;  /* "bytes", a tokenizer.json or its folder; NULL: the checkpoint's,
                             or bytes for texts */
        char *chat_template;   /* file; NULL: the one next to the tokenizer */
        char *template_values; /* JSON object of further variables of the template; or NULL */
        int64_t template_date; /* seconds since 1970 that strftime_now tells; 0: today */
        char *fields[SDP_FIELD_COUNT]; /* names that the job gives; NULL: the usual ones */
        bool pass_tools;               /* tools and calls go to the template, not refused */
        bool append_eos;               /* a record of a text ends with the end token */
        enum sdp_too_long too_long;
        enum sdp_packing packing;
    } data;

    struct {
        size_t steps;           /* optimiser steps; SDP_AUTO when epochs is given */
        double epochs;          /* 0 when steps is given */
        size_t tokens_per_step; /* over all ranks and micro-batches */
        double lr, beta1, beta2, eps, weight_decay;
        bool decay_all; /* also norms and biases (default false) */
        enum sdp_schedule schedule;
        size_t warmup_steps; /* may exceed steps */
        double min_lr;
        double clip_norm; /* 0: no clipping */
        enum sdp_nonfinite on_nonfinite;
        size_t evaluate_every; /* steps; 0: before the first and after the last one */
    } train;

    struct {
        size_t ranks;       /* SDP_AUTO: the GPUs, or the cores where there is none */
        size_t gpus;        /* devices to use: SDP_AUTO all; 0 runs on CPU ranks */
        size_t gpu_memory;  /* bytes a device may use; SDP_AUTO: what is free */
        size_t gpu_state;   /* bytes of parameter state that a device may keep; SDP_AUTO: what pays; 0: none */
        size_t host_memory; /* bytes; SDP_AUTO: what is available */
        enum sdp_compute compute; /* auto: bf16 on CUDA, fp32 on CPU */
        char *policy;             /* default "slide" */
        size_t window;            /* layers a device holds at once */
        size_t chunk;             /* bytes of bf16 weights */
        enum sdp_activations activations;
        enum sdp_gradients gradients;
        size_t micro_batch; /* sequences */
        size_t group;       /* micro-batches of a rank that pass a layer before the next layer */
        bool deterministic;
        char *policy_options; /* JSON text of an object, "{}" by default */
    } runtime;

    struct {
        char *dir;                   /* relative to the working folder; as given */
        size_t checkpoint_every;     /* steps; 0: never */
        bool export_hf;              /* write dir/model at the end (default true) */
        enum sdp_dtype export_dtype; /* fp32 or bf16; default bf16 */
    } output;

    struct {
        size_t first, last; /* steps recorded, inclusive, 1-based; 0 0: none */
    } trace;

    struct {
        char **pointers; /* what each override of the command line set ... */
        char **names;    /* ... and how messages call it: "--set train.lr=1e-4" */
        size_t count;
    } overrides;
};

/** Reads and checks a job file. `overrides` are "pointer=value" words of the
 * command line ("train.steps=9" or "/train/steps=9"; the value is JSON, or text
 * where it is not valid JSON; the keys of train's optimizer and schedule may stand below
 * train: "train.lr=1e-4"), applied before checking. [new] *out: sdp_job_destroy() it. On
 * failure *out is untouched. Checks that files exist and can be read. Thread: any. */
SDP_CHECK_RESULT enum sdp_status sdp_job_load(const char *path,
                                              const char *const *overrides,
                                              size_t override_count, struct sdp_job **out,
                                              struct sdp_error *err);

/** Checks that need the model: sequence length against the model's limit,
 * tokens_per_step against sequence length, ranks and micro-batch. `ranks` is the
 * resolved number. */
SDP_CHECK_RESULT enum sdp_status sdp_job_check_model(const struct sdp_job *job,
                                                     size_t max_sequence_length,
                                                     size_t ranks, struct sdp_error *err);

void sdp_job_destroy(struct sdp_job *job);

/** Where the value at a JSON pointer came from, for messages: the job file's
 * path, or "--set KEY=VALUE". [borrowed] from job. */
const char *sdp_job_source(const struct sdp_job *job, const char *pointer);

/** The JSON Schema's text (compiled in). */
const char *sdp_job_schema(void);

/** Learning rate of optimiser step `step` (1-based) out of `steps`: linear
 * warm-up from lr/warmup to lr, then constant, linear or cosine down to min_lr. */
double sdp_job_lr(const struct sdp_job *job, size_t step, size_t steps);

#endif
