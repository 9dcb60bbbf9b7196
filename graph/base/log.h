/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages to stderr, each line starting with "slidedp: ". Thread safe. */
#ifndef SDP_GRAPH_BASE_LOG_H
#define SDP_GRAPH_BASE_LOG_H

#include "graph/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sdp_log_level {
    SDP_LOG_QUIET = 0,
    SDP_LOG_WARN = 1,
    SDP_LOG_INFO = 2,
    SDP_LOG_DEBUG = 3
};

/** Messages above this level are dropped (default SDP_LOG_INFO). */
void sdp_log_set_level(enum sdp_log_level level);
enum sdp_log_level sdp_log_level(void);

void sdp_warn(const char *format, ...) SDP_PRINTF(1, 2);
void sdp_info(const char *format, ...) SDP_PRINTF(1, 2);
void sdp_debug(const char *format, ...) SDP_PRINTF(1, 2);

/** A line that overwrites itself on a terminal (the progress line). It is
 * closed with a newline before the next message. */
void sdp_progress(const char *format, ...) SDP_PRINTF(1, 2);
void sdp_progress_end(void);

#ifdef __cplusplus
}
#endif
#endif
