/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Our own attention kernels: what the twin uses for fp32, for shapes that cuDNN does not
 * take, and where cuDNN is not built in. Plain arithmetic in fp32, any sequence length,
 * head sizes up to 256; the gradients are ordered sums without atomics. */
#ifndef SDP_CODELETS_OPS_ATTENTION_FLASH_H
#define SDP_CODELETS_OPS_ATTENTION_FLASH_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A call's shape. qkv is (T, (heads + 2 kv_heads) * head_dim): the q, then the k, then the v heads. */
struct sdpi_attention {
    size_t sequences, length; /* T = sequences * length */
    size_t heads, kv_heads, head_dim;
    size_t window;            /* keys a query sees, itself included; 0: all up to itself */
    float scale;
    enum sdp_dtype dtype;
    const int32_t *positions; /* [T], where sequences hold several documents (struct sdp_op_batch), else NULL */
};

/** out (T, heads * head_dim) and lse (T, heads), the natural logarithm of the sum of exp(scaled scores). */
enum sdp_status sdpi_flash_forward(const struct sdpi_attention *a, const void *qkv, void *out, float *lse,
                                   void *stream);

/** dqkv = or += the gradient; `delta` is scratch of T * heads floats. */
enum sdp_status sdpi_flash_backward(const struct sdpi_attention *a, const void *qkv, const void *out,
                                    const float *lse, const void *dout, void *dqkv, bool add, float *delta,
                                    void *stream);

/** Between the lse of the contract (sequence, token, head) and cuDNN's (sequence, head, token). */
enum sdp_status sdpi_lse_by_head(const struct sdpi_attention *a, const float *by_token, float *by_head, void *stream);
enum sdp_status sdpi_lse_by_token(const struct sdpi_attention *a, const float *by_head, float *by_token,
                                  void *stream);

/** dk_sum, dv_sum (length, head_dim) fp32 = or += the packed bf16 gradients dk, dv of the first `keys` keys. */
enum sdp_status sdpi_key_sums(const struct sdpi_attention *a, size_t keys, const void *dk, const void *dv, float *dk_sum,
                              float *dv_sum, bool add, void *stream);
/** Rounds the sums into the rows of dqkv (bf16): sequence s, key head h. */
enum sdp_status sdpi_key_gradient(const struct sdpi_attention *a, size_t s, size_t h, const float *dk_sum,
                                  const float *dv_sum, void *dqkv, void *stream);

#ifdef __cplusplus
}
#endif
#endif
