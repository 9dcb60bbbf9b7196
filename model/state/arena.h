/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Host memory that lives as long as a run: our own mmap with huge pages, touched
 * in parallel before it is registered with CUDA (page-locking untouched pages is
 * an order of magnitude slower), in pieces of at most 64 GiB. */
#ifndef SDP_MODEL_STATE_ARENA_H
#define SDP_MODEL_STATE_ARENA_H

#include "graph/base/util.h"

struct sdp_arena;

/** Maps `bytes` and touches them with zeros on `threads` threads (0: all cores
 * of the process's cpuset); with `pin`, areas are registered with CUDA as portable
 * page-locked memory when they are taken. If page-locking fails, a warning names the
 * limit to raise, CUDA's error is cleared, and the arena stays pageable. `what` names it in
 * messages ("host state"). [new] *out. */
SDP_CHECK_RESULT enum sdp_status sdp_arena_create(size_t bytes, unsigned threads, bool pin, const char *what,
                                 struct sdp_arena **out, struct sdp_error *err);
void sdp_arena_destroy(struct sdp_arena *arena);

/** Takes the next `bytes` (rounded up to 4096) of the arena; copies to and from devices stay within one area.
 * Aborts when the arena was made too small: the caller computed its size. Not thread safe. */
void *sdp_arena_take(struct sdp_arena *arena, size_t bytes);

size_t sdp_arena_bytes(const struct sdp_arena *arena);
bool sdp_arena_is_pinned(const struct sdp_arena *arena);

#endif
