/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of this room share: the tensors of a checkpoint as a list that can be
 * matched against files, read and written; folders that are complete or not there; work
 * spread over threads. */
#ifndef SDP_MODEL_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define SDP_MODEL_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"

/** Records that `action` on a file failed with errno. */
enum sdp_status sdpi_fail_errno(struct sdp_error *err, const char *path,
                                const char *action);

/* -- work on threads ---------------------------------------------------------- */

/** Work on one of the items; called from several threads at once. */
typedef enum sdp_status (*sdpi_work)(void *arg, size_t item, struct sdp_error *err);

/** Calls `work` for items 0 .. count-1, each once, on `threads` threads (0: one a core of
 * the process). After a failure no further item is begun; the first error is told. */
SDP_CHECK_RESULT enum sdp_status sdpi_parallel(size_t count, unsigned threads,
                                               sdpi_work work, void *arg,
                                               struct sdp_error *err);

/* -- folders ------------------------------------------------------------------ */

/* A folder is filled under another name, FOLDER.saving, and takes the place of FOLDER
 * once all is on disk. What a crash left under that name goes at the next save. */
struct sdpi_saving {
    char *folder;   /* without trailing slashes */
    char *temp;     /* FOLDER.saving */
    char *replaced; /* FOLDER.replaced: the old folder, for a moment */
};

/** Makes the parents and the empty temporary folder. [new]: commit or abort it. */
SDP_CHECK_RESULT enum sdp_status
sdpi_saving_begin(const char *folder, struct sdpi_saving *saving, struct sdp_error *err);
/** Syncs, renames, removes the old folder's files. On failure the old folder is as it
 * was. [takes] saving, even on failure. */
SDP_CHECK_RESULT enum sdp_status sdpi_saving_commit_take(struct sdpi_saving *saving,
                                                         struct sdp_error *err);
/** Removes the temporary folder. [takes] saving. */
void sdpi_saving_abort_take(struct sdpi_saving *saving);

/** Copies a file and syncs the copy. */
SDP_CHECK_RESULT enum sdp_status sdpi_copy_file(const char *from, const char *to,
                                                struct sdp_error *err);

/* -- tensors ------------------------------------------------------------------ */

/* Which part of a parameter's state a tensor holds. */
enum sdpi_part {
    SDPI_MASTER, /* the fp32 master: weight and remainder */
    SDPI_WEIGHT,
    SDPI_REMAINDER,
    SDPI_M,
    SDPI_V
};

struct sdpi_tensor {
    char *name; /* in the files */
    enum sdpi_part part;
    enum sdp_safetensors_dtype dtype; /* in the files; masters are read from others too */
    const struct sdp_param *param;    /* [borrowed] from the graph */
    const struct sdp_state_storage *storage; /* [borrowed] from the state */
    size_t bytes;
    const struct sdp_safetensor *found; /* where sdpi_tensors_match() found it */
};

struct sdpi_tensors {
    struct sdpi_tensor *all;
    size_t count;
};

/** Appends one part of every parameter, in the graph's order, named PREFIX + its name. */
void sdpi_tensors_add(struct sdpi_tensors *tensors, const struct sdp_host_state *state,
                      const char *prefix, enum sdpi_part part,
                      enum sdp_safetensors_dtype dtype);
void sdpi_tensors_free(struct sdpi_tensors *tensors);

/** Says whether a tensor that the model lacks may be passed over. */
typedef bool (*sdpi_harmless)(const struct sdp_model_graph *graph, const char *name);

/** Finds all tensors in the files and checks dtypes and shapes; a tensor that the model
 * lacks is refused unless `harmless` (may be NULL) allows it. Messages name `folder` and
 * the first few tensors. */
SDP_CHECK_RESULT enum sdp_status
sdpi_tensors_match(struct sdpi_tensors *tensors, const struct sdp_model_graph *graph,
                   const struct sdp_safetensors_set *set, sdpi_harmless harmless,
                   const char *folder, struct sdp_error *err);

/** Reads all tensors, found before, from the maps into the state. */
SDP_CHECK_RESULT enum sdp_status sdpi_tensors_read(const struct sdpi_tensors *tensors,
                                                   unsigned threads,
                                                   struct sdp_error *err);

/* The files that sdpi_tensors_write() makes. */
struct sdpi_shards {
    char **names;
    size_t *bytes; /* of each file, header included */
    size_t *of;    /* for each tensor its file */
    size_t count;
};

/** Writes STEM.safetensors, or STEM-00001-of-00003.safetensors ... of at most
 * `shard_bytes` of tensors (a larger tensor has a file of its own), on `threads` threads,
 * then opens each file to see that it holds what it should. [new] *shards. */
SDP_CHECK_RESULT enum sdp_status sdpi_tensors_write(const struct sdpi_tensors *tensors,
                                                    const char *folder, const char *stem,
                                                    size_t shard_bytes, unsigned threads,
                                                    struct sdpi_shards *shards,
                                                    struct sdp_error *err);
void sdpi_shards_free(struct sdpi_shards *shards);

#endif
