/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The chunk data interface and its slabs of slots. */
#include "graph/slab.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct pool {
    uint8_t *base;
    size_t slot_bytes;
    uint32_t slots;
    uint32_t *used;  /* chunks in the slot */
    uint32_t *owner; /* of a slot in use */
    size_t failures;
};

static struct pool pools[STARPU_MAXNODES][SDP_SLAB_POOLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void register_handle(starpu_data_handle_t handle, int home, void *interface)
{
    const struct sdp_chunk_interface *from = interface;
    for (unsigned node = 0; node < STARPU_MAXNODES; node++) {
        struct sdp_chunk_interface *to = starpu_data_get_interface_on_node(handle, node);
        *to = *from;
        to->ptr = (int)node == home ? from->ptr : 0;
    }
}

/* Slot for a chunk: its owner's, else a free one; UINT32_MAX if none. */
static uint32_t find_slot(const struct pool *pool, const struct sdp_chunk_interface *chunk)
{
    if (chunk->fixed)
        return chunk->owner;
    uint32_t free_slot = UINT32_MAX;
    for (uint32_t s = pool->slots; s-- > 0;) {
        if (pool->used[s] && pool->owner[s] == chunk->owner)
            return s;
        if (!pool->used[s])
            free_slot = s;
    }
    return free_slot;
}

static starpu_ssize_t allocate(void *interface, unsigned node)
{
    struct sdp_chunk_interface *chunk = interface;
    struct pool *pool = &pools[node][chunk->pool];
    if (!pool->slots) {
        chunk->ptr = starpu_malloc_on_node(node, chunk->bytes);
        return chunk->ptr ? (starpu_ssize_t)chunk->bytes : -ENOMEM;
    }
    pthread_mutex_lock(&lock);
    uint32_t slot = find_slot(pool, chunk);
    if (slot == UINT32_MAX) {
        pool->failures++;
        pthread_mutex_unlock(&lock);
        return -ENOMEM; /* StarPU throws out a replica that nobody uses and asks again */
    }
    pool->used[slot]++;
    pool->owner[slot] = chunk->owner;
    pthread_mutex_unlock(&lock);
    chunk->slot = slot;
    chunk->ptr = (uintptr_t)(pool->base + (size_t)slot * pool->slot_bytes + chunk->offset);
    return (starpu_ssize_t)chunk->bytes;
}

static void release(void *interface, unsigned node)
{
    struct sdp_chunk_interface *chunk = interface;
    struct pool *pool = &pools[node][chunk->pool];
    if (!pool->slots) {
        starpu_free_on_node(node, chunk->ptr, chunk->bytes);
    } else {
        pthread_mutex_lock(&lock);
        pool->used[chunk->slot]--;
        pthread_mutex_unlock(&lock);
    }
    chunk->ptr = 0;
}

static size_t get_size(starpu_data_handle_t handle)
{
    struct sdp_chunk_interface *chunk = starpu_data_get_interface_on_node(handle, STARPU_MAIN_RAM);
    return chunk->bytes;
}

static uint32_t footprint(starpu_data_handle_t handle)
{
    return starpu_hash_crc32c_be(get_size(handle), 0);
}

static int compare(void *a, void *b)
{
    return ((struct sdp_chunk_interface *)a)->bytes == ((struct sdp_chunk_interface *)b)->bytes;
}

static starpu_ssize_t describe(void *interface, char *text, size_t size)
{
    return snprintf(text, size, "C%zu", ((struct sdp_chunk_interface *)interface)->bytes);
}

static int copy(void *from, unsigned from_node, void *to, unsigned to_node, void *data)
{
    struct sdp_chunk_interface *a = from, *b = to;
    return starpu_interface_copy(a->ptr, 0, from_node, b->ptr, 0, to_node, a->bytes, data);
}

static void *to_pointer(void *interface, unsigned node)
{
    (void)node;
    return (void *)((struct sdp_chunk_interface *)interface)->ptr;
}

static struct starpu_data_copy_methods copy_methods = {.any_to_any = copy};

static struct starpu_data_interface_ops ops = {
    .register_data_handle = register_handle,
    .allocate_data_on_node = allocate,
    .free_data_on_node = release,
    .to_pointer = to_pointer,
    .copy_methods = &copy_methods,
    .get_size = get_size,
    .footprint = footprint,
    .compare = compare,
    .describe = describe,
    .interfaceid = STARPU_UNKNOWN_INTERFACE_ID,
    .interface_size = sizeof(struct sdp_chunk_interface),
    .dontcache = 1,
    .name = (char *)"sdp_chunk",
};

void sdp_slab_init(void)
{
    if (ops.interfaceid == STARPU_UNKNOWN_INTERFACE_ID)
        starpu_data_register_ops(&ops);
}

void sdp_slab_add_pool(unsigned node, uint32_t pool, void *base, size_t slot_bytes, uint32_t slots)
{
    struct pool *p = &pools[node][pool];
    p->base = base;
    p->slot_bytes = slot_bytes;
    p->slots = slots;
    p->used = sdp_xcalloc(slots, sizeof *p->used);
    p->owner = sdp_xcalloc(slots, sizeof *p->owner);
    p->failures = 0;
}

void sdp_slab_remove_pools(unsigned node)
{
    for (size_t i = 0; i < SDP_SLAB_POOLS; i++) {
        free(pools[node][i].used);
        free(pools[node][i].owner);
        memset(&pools[node][i], 0, sizeof pools[node][i]);
    }
}

size_t sdp_slab_failures(unsigned node)
{
    size_t sum = 0;
    for (size_t i = 0; i < SDP_SLAB_POOLS; i++)
        sum += pools[node][i].failures;
    return sum;
}

void sdp_chunk_register(starpu_data_handle_t *handle, void *ptr, size_t bytes, uint32_t pool, uint32_t owner,
                        size_t offset, bool fixed)
{
    struct sdp_chunk_interface chunk;
    memset(&chunk, 0, sizeof chunk);
    chunk.id = ops.interfaceid;
    chunk.ptr = (uintptr_t)ptr;
    chunk.bytes = bytes;
    chunk.pool = pool;
    chunk.owner = owner;
    chunk.offset = offset;
    chunk.fixed = fixed;
    starpu_data_register(handle, STARPU_MAIN_RAM, &chunk, &ops);
}
