/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Status codes: one X-macro gives the enum, the names and the messages. */
#ifndef SDP_GRAPH_BASE_STATUS_H
#define SDP_GRAPH_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* code, name, message */
#define SDP_STATUS_MAP(XX)                                                               \
    XX(0, OK, "success")                                                                 \
    XX(-1, INPUT, "the command line or an input file is wrong")                          \
    XX(-2, NOMEM, "out of host memory")                                                  \
    XX(-3, DEVICE_MEMORY, "out of device memory")                                        \
    XX(-4, IO, "reading or writing a file failed")                                       \
    XX(-5, DEVICE, "a CUDA, cuBLAS, cuDNN or NCCL call failed")                          \
    XX(-6, RUNTIME, "StarPU reported an error")                                          \
    XX(-7, NONFINITE, "the loss or a gradient is not finite")                            \
    XX(-8, INTERRUPTED, "stopped by a signal")                                           \
    XX(-9, INTERNAL, "internal error")

enum sdp_status {
#define XX(code, name, message) SDP_##name = code,
    SDP_STATUS_MAP(XX)
#undef XX
};

/** Name of a status ("SDP_INPUT") and its one-line message. Never NULL. */
const char *sdp_status_name(enum sdp_status status);
const char *sdp_status_message(enum sdp_status status);

/** Exit code of the program for a status: 0 done, 1 failed while running,
 * 2 an input was wrong, 3 stopped by a signal with the state saved. */
int sdp_status_exit_code(enum sdp_status status);

#ifdef __cplusplus
}
#endif
#endif
