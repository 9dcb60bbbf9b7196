/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Names, messages and exit codes of the status enum, all from its X-macro. */
#include "graph/base/status.h"

const char *sdp_status_name(enum sdp_status status)
{
    switch (status) {
#define XX(code, name, message)                                                          \
    case SDP_##name:                                                                     \
        return "SDP_" #name;
        SDP_STATUS_MAP(XX)
#undef XX
    }
    return "SDP_UNKNOWN";
}

const char *sdp_status_message(enum sdp_status status)
{
    switch (status) {
#define XX(code, name, message)                                                          \
    case SDP_##name:                                                                     \
        return message;
        SDP_STATUS_MAP(XX)
#undef XX
    }
    return "unknown status";
}

int sdp_status_exit_code(enum sdp_status status)
{
    switch (status) {
    case SDP_OK:
        return 0;
    case SDP_INPUT:
        return 2;
    case SDP_INTERRUPTED:
        return 3;
    default:
        return 1;
    }
}
