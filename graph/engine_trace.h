/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef SDP_GRAPH_ENGINE_TRACE_H
#define SDP_GRAPH_ENGINE_TRACE_H

#include "graph/base/util.h"

/** Turns folder/trace.fxt into paje.trace, tasks.rec, data.rec, dag.dot and the
 * rest that StarPU writes, in the same folder. After StarPU was shut down. */
SDP_CHECK_RESULT enum sdp_status sdp_trace_convert(const char *folder, struct sdp_error *err);

#endif
