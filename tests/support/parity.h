/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a golden model (tests/golden) through the engine, for comparison with
 * PyTorch: on CPU ranks and, with the same code, on GPUs. */
#ifndef SDP_TESTS_SUPPORT_PARITY_H
#define SDP_TESTS_SUPPORT_PARITY_H

#include "graph/engine.h"
#include "model/checkpoint/safetensors.h"

struct parity {
    char *folder;                   /* tests/golden/<name> */
    struct sdp_safetensors *golden;
    struct sdp_job *job;
    struct sdp_model_graph *graph;
    struct sdp_plan *plan;
    struct sdp_host_state *state;
    struct sdp_engine *engine;
    size_t batches, rows, length;
    const int32_t *tokens, *targets;
    int32_t *aligned;               /* the two above, copied */
    bool one_batch;                 /* probe: batch 0 only; else two batches a step */
    struct sdp_sequences sequences;
};

/** Loads model and goldens and starts the engine. `settings` are --set words ("runtime.ranks=2"), NULL-ended.
 * one_batch: a step is batch 0; else steps cycle as the goldens'. Exits the test with a message on failure. */
void parity_open(struct parity *p, const char *name, bool one_batch, const char *const *settings);
void parity_close(struct parity *p);

/** Golden tensor as fp64 values. [new] *count values; exits if missing. */
double *parity_golden(const struct parity *p, const char *prefix, const char *name, size_t *count);

/** ||a - b|| / ||b|| of fp32 values against fp64 goldens (b - base when base is given, and a - base). */
double parity_error(const float *a, const double *b, const float *base, size_t count);

/** Current weights of a parameter. [new] */
float *parity_weights(const struct parity *p, size_t storage, size_t param);

#endif
