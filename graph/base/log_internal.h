/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What log.c shares with error.c: one locked way to stderr. */
#ifndef SDP_GRAPH_BASE_LOG_INTERNAL_H
#define SDP_GRAPH_BASE_LOG_INTERNAL_H

/** Writes "slidedp: TEXT" and a newline to stderr whatever the level, after
 * closing an open progress line. Thread safe. */
void sdpi_log_write(const char *text);

#endif
