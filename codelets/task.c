/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Failure inside tasks. */
#include "codelets/task.h"

#include <stdio.h>

void sdp_run_fail(struct sdp_run_state *state, enum sdp_status status, const char *format, ...)
{
    va_list arguments;
    pthread_mutex_lock(&state->lock);
    if (!atomic_load(&state->failed)) {
        state->err.status = status;
        va_start(arguments, format);
        vsnprintf(state->err.text, sizeof state->err.text, format, arguments);
        va_end(arguments);
        atomic_store(&state->failed, (int)status);
    }
    pthread_mutex_unlock(&state->lock);
}
