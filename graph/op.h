/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CONTRACT of an operation (codelets/ops/<op>/): what the forward and backward
 * codelets call for each node of a layer.
 *
 * Every activation is a row-major matrix of T rows (T = tokens of one
 * micro-batch = sequences * sequence_length) and a fixed number of columns. Its
 * element type is the compute dtype of the run (fp32 or bf16), unless the op
 * says fp32 or int32 (statistics, token ids). Weights are row-major [rows, cols]
 * (vectors: rows = 1) in the compute dtype. Weight gradients are always fp32,
 * accumulated over the micro-batches.
 *
 * Folder: op.c (the const struct sdp_op sdp_op_<name>), cpu.c (fp32 twin,
 * OpenBLAS), cuda.cu (bf16 and fp32 twin, extern "C"), cases.c (inputs for the
 * twin tests). Adding an op is adding a folder. */
#ifndef SDP_GRAPH_OP_H
#define SDP_GRAPH_OP_H

#include "graph/base/util.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SDP_OP_MAX_INPUTS 4
#define SDP_OP_MAX_WEIGHTS 8
#define SDP_OP_MAX_OUTPUTS 2
#define SDP_OP_MAX_ATTRS 24

struct sdp_op;

/* An attribute's value: a number (booleans are 0 and 1, words their index). */
struct sdp_attr {
    const char *name; /* [borrowed] from the op's table */
    double value;
};

/* One node of a layer, resolved and checked: what infer() fills and kernels read. */
struct sdp_op_node {
    const struct sdp_op *op;
    char *name;                             /* unique within its layer, e.g. "q_proj" */
    size_t input_count, weight_count, output_count, aux_count;
    size_t input_cols[SDP_OP_MAX_INPUTS];   /* 0: the input is absent (optional) */
    size_t output_cols[SDP_OP_MAX_OUTPUTS];
    /* What the forward pass leaves for the backward pass besides in/outputs
     * (fp32, T x aux_cols): rstd, log-sum-exp. */
    size_t aux_cols[SDP_OP_MAX_OUTPUTS];
    /* Weights in the op's own order: for each its shape and role. */
    size_t weight_rows[SDP_OP_MAX_WEIGHTS], weight_cols[SDP_OP_MAX_WEIGHTS];
    unsigned weight_role[SDP_OP_MAX_WEIGHTS]; /* index into op->weights */
    double attr[SDP_OP_MAX_ATTRS];          /* by index into op->attrs, defaults filled in */
};

/* Where the tokens of a call stand. Sequences all have sequence_length tokens. */
struct sdp_op_batch {
    size_t tokens;          /* T */
    size_t sequences;       /* T = sequences * sequence_length */
    size_t sequence_length;
    const int32_t *ids;       /* [T] token ids, each < vocabulary (device memory on CUDA) */
    const int32_t *targets;   /* [T] target ids, -1: not counted in the loss */
    const int32_t *positions; /* [T] position of each token in its document */
    /* Some sequence holds several documents, each from the position 0 on: token i of a sequence attends to the tokens
     * i - position .. i alone. false: a sequence is one document. */
    bool packed;
    /* For a deterministic embedding gradient: order[0..T) lists token indices sorted by
     * (id, index); segments[s]..segments[s+1] is the run of one id; segment_count runs.
     * segments has T + 1 entries. */
    const int32_t *order, *segments;
    size_t segment_count;
};

/* Library handles and scratch of the calling worker. CPU: cuda and stream NULL. */
struct sdp_op_device {
    void *stream;        /* cudaStream_t */
    void *cublaslt;      /* cublasLtHandle_t */
    void *cudnn;         /* cudnnHandle_t, or NULL where cuDNN is not built in */
    void *blas_workspace; /* device memory for cuBLASLt, blas_workspace_bytes */
    size_t blas_workspace_bytes;
    int multiprocessors;
    int ordinal;          /* CUDA device number */
    bool deterministic;
    bool tuning;          /* before the first step: choices between algorithms may be timed, outputs are overwritten at will */
};

struct sdp_op_call {
    const struct sdp_op_node *node;
    const struct sdp_op_batch *batch;
    const struct sdp_op_device *device;
    enum sdp_dtype dtype; /* compute dtype: SDP_FP32 or SDP_BF16 */

    const void *in[SDP_OP_MAX_INPUTS];   /* NULL: absent, or not needed by backward (see needs) */
    const void *weight[SDP_OP_MAX_WEIGHTS];
    void *out[SDP_OP_MAX_OUTPUTS];       /* backward: read only */
    float *aux[SDP_OP_MAX_OUTPUTS];

    /* backward only */
    const void *dout[SDP_OP_MAX_OUTPUTS];
    void *din[SDP_OP_MAX_INPUTS];        /* NULL: not wanted */
    bool add_din[SDP_OP_MAX_INPUTS];     /* add to what is there instead of overwriting it */
    float *dweight[SDP_OP_MAX_WEIGHTS];  /* fp32 */
    bool add_dweight;                    /* false: first micro-batch, overwrite every element */

    void *work;          /* scratch of work_bytes() bytes, 256-byte aligned; contents undefined */

    /* loss ops only (op->is_loss) */
    float loss_scale;    /* 1 / valid target tokens of the whole step: multiplies every gradient */
    double *loss;        /* += or =: *loss is SET to the sum over this call's counted tokens of the
                            cross-entropy (unscaled); memory of the device that runs */
    float *logits;       /* [T, V] fp32, or NULL: wanted by tests and evaluation only */
    bool want_gradient;  /* false: loss (and logits) only */
};

struct sdp_op_weight {
    const char *name;    /* key in the graph's JSON: "weight", "bias", "table" */
    bool optional;
    bool many;           /* a list: the outputs' columns are concatenated (fused q, k, v) */
    bool is_vector;
    bool decay;          /* gets weight decay by default (matrices and tables yes, norms and biases no) */
};

struct sdp_op_attr {
    const char *name;
    bool required;
    double fallback;
    const char *const *words; /* NULL-ended: the attribute is one of these words; NULL: a number */
    double min, max;
};

/* Bits of backward_needs */
#define SDP_NEED_IN(i) (1u << (i))
#define SDP_NEED_OUT(i) (1u << (8 + (i)))
#define SDP_NEED_AUX(i) (1u << (16 + (i)))

struct sdp_op {
    const char *name;
    const char *summary; /* one line for `slidedp graph --ops` */
    const char *const *inputs;  /* names, NULL-ended; "residual?" with ? is optional; "#ids" is the token ids */
    const char *const *outputs; /* names, NULL-ended */
    const struct sdp_op_weight *weights; /* ended by name NULL */
    const struct sdp_op_attr *attrs;     /* ended by name NULL; at most SDP_OP_MAX_ATTRS */
    bool is_loss;               /* has no output; backward is done by forward with want_gradient */
    bool backward_needs_weights; /* false: the backward visit needs no delivery for this op */

    /** Checks shapes and fills output_cols, aux_count and aux_cols from
     * input_cols, weight shapes and attributes. Weight shapes are declared by the
     * graph; infer checks them. Message via err (text only; the caller adds the place). */
    enum sdp_status (*infer)(struct sdp_op_node *node, struct sdp_error *err);

    /** Which of in/out/aux backward reads (bits above), for this node. */
    unsigned (*backward_needs)(const struct sdp_op_node *node);

    /** Index of an input whose gradient IS dout[0] when nothing was added to it before (a residual), or -1. The
     * engine then lets din[i] and dout[0] be the same memory and the op must not write it. */
    int (*passthrough_input)(const struct sdp_op_node *node);

    /** Floating-point operations of one forward call on T tokens in sequences of the given length (2mnk for a product; causal
     * attention counts half the square); backward is `backward_flops`. */
    double (*flops)(const struct sdp_op_node *node, size_t tokens, size_t sequence_length, bool backward);

    /** Scratch bytes a call needs; on CPU (cuda false) or CUDA. */
    size_t (*work_bytes)(const struct sdp_op_node *node, size_t tokens, size_t sequence_length,
                         enum sdp_dtype dtype, bool backward, bool cuda);

    /** The twins. Return SDP_OK or a failure (already logged). CUDA twins only enqueue on
     * device->stream and never allocate or synchronise. NULL where not built. */
    enum sdp_status (*forward_cpu)(const struct sdp_op_call *call);
    enum sdp_status (*backward_cpu)(const struct sdp_op_call *call);
    enum sdp_status (*forward_cuda)(const struct sdp_op_call *call);
    enum sdp_status (*backward_cuda)(const struct sdp_op_call *call);
};

/** All ops, NULL-ended, sorted by name (generated by the build from the folders of codelets/ops). */
extern const struct sdp_op *const sdp_ops[];

/** The op of that name or NULL. */
const struct sdp_op *sdp_op_find(const char *name);

/** Value of an attribute by name; aborts if the op has no such attribute. */
double sdp_op_attr(const struct sdp_op_node *node, const char *name);

/* Description of the operator the CUDA twin is compiled in as: cuda.cu defines
 * sdp_<op>_forward_cuda and sdp_<op>_backward_cuda (extern "C"); op.c names them through SDP_OP_CUDA. */
#ifdef SDP_HAVE_CUDA
#define SDP_OP_CUDA(function) function
#else
#define SDP_OP_CUDA(function) NULL
#endif

#ifdef __cplusplus
}
#endif
#endif
