/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Slabs of layer slots, behind a StarPU data interface ("chunk").
 *
 * A chunk handle's home is in host memory. Its replica on a GPU is not allocated
 * by StarPU but lies in a slot of a preallocated slab: all chunks of one storage
 * side by side in one slot, so that a tensor may cross chunk boundaries, pointers
 * are stable, and nothing is allocated or freed in steady state (cudaFree would
 * synchronise the device). On other nodes without a slab StarPU allocates as usual. */
#ifndef SDP_GRAPH_SLAB_H
#define SDP_GRAPH_SLAB_H

#include "graph/base/util.h"

#include <starpu.h>

#define SDP_SLAB_POOLS 456 /* pools of one node: seven for each of 64 storage classes, and a few more */

/* What the chunk interface holds on each node; a codelet reads ptr. */
struct sdp_chunk_interface {
    enum starpu_data_interface_id id;
    uintptr_t ptr;
    size_t bytes;
    uint32_t pool;       /* which slab of the node */
    uint32_t owner;      /* chunks of one owner share a slot: the storage (weights) or the slot itself (gradients) */
    size_t offset;       /* bytes from the start of the slot */
    uint32_t slot;       /* where the replica lies, while ptr is set */
    bool fixed;          /* the owner number is the slot number */
};

/* Pointer of buffer i of a task. */
#define SDP_CHUNK_PTR(buffer) ((void *)((struct sdp_chunk_interface *)(buffer))->ptr)

/** Registers the interface with StarPU; once after starpu_init. */
void sdp_slab_init(void);

/** Declares `slots` slots of slot_bytes bytes at `base` as pool `pool` of a node. */
void sdp_slab_add_pool(unsigned node, uint32_t pool, void *base, size_t slot_bytes, uint32_t slots);
void sdp_slab_remove_pools(unsigned node);

/** Allocations that found no free slot since the pool was added (0 in a healthy run). */
size_t sdp_slab_failures(unsigned node);

/** Registers a chunk: home at `ptr` in main memory. */
void sdp_chunk_register(starpu_data_handle_t *handle, void *ptr, size_t bytes, uint32_t pool, uint32_t owner,
                        size_t offset, bool fixed);

#endif
