/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Files of the safetensors format: 8 bytes of header length (little endian), a
 * JSON header {"name": {"dtype", "shape", "data_offsets"}, ...}, then the tensors'
 * bytes without holes. A file comes from strangers: everything the header says is
 * checked against the file before any tensor's byte is read. Messages name the file. */
#ifndef SDP_MODEL_CHECKPOINT_SAFETENSORS_H
#define SDP_MODEL_CHECKPOINT_SAFETENSORS_H

#include "graph/base/util.h"

#include <jansson.h>

#define SDP_SAFETENSORS_MAX_DIMS   8
#define SDP_SAFETENSORS_MAX_HEADER ((size_t)100000000) /* the format's own limit */

/* name in the file, bits of one element */
#define SDP_SAFETENSORS_DTYPE_MAP(XX)                                                    \
    XX(BOOL, 8)                                                                          \
    XX(U8, 8)                                                                            \
    XX(I8, 8)                                                                            \
    XX(I16, 16)                                                                          \
    XX(U16, 16)                                                                          \
    XX(I32, 32)                                                                          \
    XX(U32, 32)                                                                          \
    XX(I64, 64)                                                                          \
    XX(U64, 64)                                                                          \
    XX(F16, 16)                                                                          \
    XX(BF16, 16)                                                                         \
    XX(F32, 32)                                                                          \
    XX(F64, 64)                                                                          \
    XX(C64, 64)                                                                          \
    XX(F8_E4M3, 8)                                                                       \
    XX(F8_E5M2, 8)                                                                       \
    XX(F8_E8M0, 8)                                                                       \
    XX(F6_E2M3, 6)                                                                       \
    XX(F6_E3M2, 6)                                                                       \
    XX(F4, 4)

enum sdp_safetensors_dtype {
#define XX(name, bits) SDP_ST_##name,
    SDP_SAFETENSORS_DTYPE_MAP(XX)
#undef XX
};

/** "BF16", ... as in the file. Never NULL. */
const char *sdp_safetensors_dtype_name(enum sdp_safetensors_dtype dtype);
/** Bits of one element. */
size_t sdp_safetensors_dtype_bits(enum sdp_safetensors_dtype dtype);

struct sdp_safetensor {
    const char *name; /* [borrowed] from the file's header */
    enum sdp_safetensors_dtype dtype;
    size_t dims, shape[SDP_SAFETENSORS_MAX_DIMS];
    size_t count; /* elements */
    size_t bytes;
    size_t offset;       /* from the start of the tensors' bytes */
    const uint8_t *data; /* [borrowed] from the map; files of others need not align it, so
                            elements are read with memcpy */
};

/** "[64, 128]" into the caller's buffer; returns it. */
char *sdp_safetensors_format_shape(const size_t *shape, size_t dims, char *buffer,
                                   size_t size);

/* -- reading ---------------------------------------------------------------- */

struct sdp_safetensors {
    char *path;
    struct sdp_map map;
    json_t *header;
    struct sdp_safetensor *tensors; /* in the order of their bytes */
    size_t count;
};

/** Maps and checks a file. The file must not change while it is open. [new] *out. */
SDP_CHECK_RESULT enum sdp_status sdp_safetensors_open(const char *path,
                                                      struct sdp_safetensors **out,
                                                      struct sdp_error *err);
void sdp_safetensors_close(struct sdp_safetensors *file); /* NULL is fine */

/* The tensors of one checkpoint: of one file, or of several shards. */
struct sdp_safetensors_member {
    const struct sdp_safetensor *tensor;
    const struct sdp_safetensors *file;
};

struct sdp_safetensors_set {
    struct sdp_safetensors **files;
    size_t file_count;
    struct sdp_safetensors_member *members; /* sorted by name */
    size_t count;
};

/** Opens `names` (plain names, each once) in a folder; a tensor may be in one of
 * them only. [new] *out. */
SDP_CHECK_RESULT enum sdp_status
sdp_safetensors_set_open(const char *folder, const char *const *names, size_t count,
                         struct sdp_safetensors_set **out, struct sdp_error *err);

/** Opens STEM.safetensors, or the shards that STEM.safetensors.index.json lists: every
 * shard must be there, and hold just the tensors that the index says. [new] *out. */
SDP_CHECK_RESULT enum sdp_status
sdp_safetensors_set_open_index(const char *folder, const char *stem,
                               struct sdp_safetensors_set **out, struct sdp_error *err);
void sdp_safetensors_set_close(struct sdp_safetensors_set *set); /* NULL is fine */

/** The tensor of that name, or NULL. [borrowed] from the set. */
const struct sdp_safetensors_member *
sdp_safetensors_set_find(const struct sdp_safetensors_set *set, const char *name);

/* -- writing ------------------------------------------------------------------ */

/* What is known of a tensor before its bytes are. */
struct sdp_safetensors_entry {
    const char *name; /* [borrowed] during the call */
    enum sdp_safetensors_dtype dtype;
    size_t dims, shape[SDP_SAFETENSORS_MAX_DIMS];
};

struct sdp_safetensors_writer;

/** Creates a new file (an existing one is refused) and writes its header, padded to 8
 * bytes. The tensors' bytes follow in the order of the entries; wider elements must come
 * first, so that all are aligned. `metadata` is an object of strings, or NULL. The caller
 * chooses a temporary name or folder and renames it when all is written. [new] *out. */
SDP_CHECK_RESULT enum sdp_status
sdp_safetensors_create(const char *path, const struct sdp_safetensors_entry *entries,
                       size_t count, json_t *metadata,
                       struct sdp_safetensors_writer **out, struct sdp_error *err);

/** Appends bytes; a tensor may come in pieces. */
SDP_CHECK_RESULT enum sdp_status
sdp_safetensors_put(struct sdp_safetensors_writer *writer, const void *data, size_t bytes,
                    struct sdp_error *err);

/** Checks that all bytes came, syncs and closes. [takes] writer, even on failure. */
SDP_CHECK_RESULT enum sdp_status
sdp_safetensors_finish_take(struct sdp_safetensors_writer *writer, struct sdp_error *err);

/** Closes and removes an unfinished file. [takes] writer; NULL is fine. */
void sdp_safetensors_abort_take(struct sdp_safetensors_writer *writer);

#endif
