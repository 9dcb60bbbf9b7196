/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arrays that numpy.save wrote (.npy, format 1.0 and 2.0). */
#ifndef SDP_MODEL_DATA_NPY_H
#define SDP_MODEL_DATA_NPY_H

#include "graph/base/util.h"

struct sdp_npy {
    enum sdp_dtype dtype; /* SDP_UINT16, SDP_UINT32, SDP_INT32 or SDP_INT64 */
    size_t count;         /* elements; the array has one dimension */
    const uint8_t *data;  /* [borrowed] from the map; may be unaligned */
};

/** Whether a file begins as a .npy file does. */
bool sdp_npy_has_magic(const struct sdp_map *map);

/** Header of a C-contiguous fp32 array as numpy.save writes it: `text` of at least SDP_NPY_HEADER bytes is filled with
 * exactly as many. At most 4 dimensions. */
#define SDP_NPY_HEADER 128
void sdp_npy_fp32_header(const size_t *shape, size_t dimensions, char *text);

/** Reads the header of a mapped file and checks it against the file's size. Messages name
 * `path`. */
SDP_CHECK_RESULT enum sdp_status sdp_npy_parse(const struct sdp_map *map,
                                               const char *path, struct sdp_npy *out,
                                               struct sdp_error *err);

#endif
