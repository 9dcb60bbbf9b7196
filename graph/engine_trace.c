/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What FxT recorded, as StarPU's own trace files. */
#include "graph/engine_trace.h"

#include <starpu_fxt.h>
#include <stdio.h>
#include <stdlib.h>

enum sdp_status sdp_trace_convert(const char *folder, struct sdp_error *err)
{
    char *raw = sdp_path_join(folder, "trace.fxt"), *written = sdp_path_join(folder, "trace.fxt_0");
    /* StarPU adds the number of its instance to the suffix it is given. */
    bool there = sdp_path_exists(written) ? rename(written, raw) == 0 : sdp_path_exists(raw);
    free(written);
    if (!there) {
        enum sdp_status rc = sdp_fail(err, SDP_RUNTIME, "%s was not written; is StarPU built with FxT?", raw);
        free(raw);
        return rc;
    }
    struct starpu_fxt_options options;
    starpu_fxt_options_init(&options);
    options.filenames[0] = sdp_xstrdup(raw);
    options.ninputfiles = 1;
    options.dir = sdp_xstrdup(folder);
    starpu_fxt_generate_trace(&options);
    starpu_fxt_options_shutdown(&options);
    free(raw);
    return SDP_OK;
}
