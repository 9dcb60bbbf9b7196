/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Small things every room needs: dtypes, allocation that cannot return NULL
 * unnoticed, sizes as text, time, random numbers, files. */
#ifndef SDP_GRAPH_BASE_UTIL_H
#define SDP_GRAPH_BASE_UTIL_H

#include "graph/base/error.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -- dtypes ------------------------------------------------------------- */

enum sdp_dtype {
    SDP_FP32 = 0,
    SDP_BF16,
    SDP_FP16,
    SDP_INT32,
    SDP_INT64,
    SDP_UINT16,
    SDP_UINT32
};

/** Bytes of one element. */
size_t sdp_dtype_size(enum sdp_dtype dtype);
/** "fp32", "bf16", ... */
const char *sdp_dtype_name(enum sdp_dtype dtype);

static inline float sdp_float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t sdp_bits_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float sdp_bf16_to_float(uint16_t x)
{
    return sdp_float_from_bits((uint32_t)x << 16);
}

/** Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t sdp_bf16_from_float(float x)
{
    uint32_t bits = sdp_bits_from_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float sdp_fp16_to_float(uint16_t x);

/* The fp32 master weight is stored as a bf16 weight (what is delivered) and a
 * signed 16-bit remainder: master bits = (weight << 16) + remainder. Ties round
 * away, never to even, else the remainder would leave int16 (design section 4).
 * NaN becomes weight 0x7fc0, remainder 0. */
static inline void sdp_master_split(float master, uint16_t *weight, int16_t *remainder)
{
    uint32_t bits = sdp_bits_from_float(master);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        *weight = 0x7fc0u;
        *remainder = 0;
        return;
    }
    *weight = (uint16_t)((bits + 0x8000u) >> 16);
    *remainder = (int16_t)(uint16_t)(bits - ((uint32_t)*weight << 16));
}

static inline float sdp_master_join(uint16_t weight, int16_t remainder)
{
    return sdp_float_from_bits(((uint32_t)weight << 16) + (uint32_t)(int32_t)remainder);
}

/* -- memory ------------------------------------------------------------- */

/** Allocation for bookkeeping (never for tensors): aborts with a message when
 * the system has no memory left, so callers need no check. [new], free() it. */
void *sdp_xcalloc(size_t count, size_t size);
void *sdp_xrealloc(void *pointer, size_t size);
char *sdp_xstrdup(const char *text);
char *sdp_xprintf(const char *format, ...) SDP_PRINTF(1, 2);

/** Product of two sizes; false on overflow (out untouched). */
bool sdp_size_mul(size_t a, size_t b, size_t *out);

static inline size_t sdp_round_up(size_t x, size_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}
#define SDP_MIN(a, b)       ((a) < (b) ? (a) : (b))
#define SDP_MAX(a, b)       ((a) > (b) ? (a) : (b))
#define SDP_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/** "1.25 GiB" into a caller's buffer of at least 32 bytes; returns it. */
char *sdp_format_bytes(size_t bytes, char *buffer);
/** "562.9 TFLOP/s" in the same way. */
char *sdp_format_flops(double per_second, char *buffer);
/** Reads "22GiB", "32 MiB", "1000", "1.5GB"; false if it is none. */
bool sdp_parse_bytes(const char *text, size_t *out);

/* -- time and random numbers -------------------------------------------- */

/** Seconds of a monotonic clock. */
double sdp_now(void);

/* Counter-based (splitmix64 of key and counter): the n-th number does not
 * depend on who draws the others, so parallel initialisation is reproducible. */
uint64_t sdp_random_u64(uint64_t key, uint64_t counter);
/** Uniform in [0, 1). */
double sdp_random_uniform(uint64_t key, uint64_t counter);
/** Standard normal (Box-Muller of counters 2n and 2n+1). */
float sdp_random_normal(uint64_t key, uint64_t counter);
/** Key of a text (FNV-1a, mixed with seed). */
uint64_t sdp_random_key(uint64_t seed, const char *text);

/* -- files --------------------------------------------------------------- */

struct sdp_map {
    const uint8_t *data; /* NULL when the file is empty */
    size_t size;
};

/** Maps a regular file for reading. Errors name the file. */
SDP_CHECK_RESULT enum sdp_status sdp_map_open(const char *path, struct sdp_map *out,
                                              struct sdp_error *err);
void sdp_map_close(struct sdp_map *map);

/** Reads a whole text file; NUL-terminated. [new] *out: free() it. */
SDP_CHECK_RESULT enum sdp_status sdp_read_text(const char *path, char **out, size_t *size,
                                               struct sdp_error *err);

/** Writes a whole file through a temporary name, fsync and rename. */
SDP_CHECK_RESULT enum sdp_status sdp_write_file(const char *path, const void *data,
                                                size_t size, struct sdp_error *err);

/** mkdir -p. */
SDP_CHECK_RESULT enum sdp_status sdp_make_dirs(const char *path, struct sdp_error *err);

/** Joins folder and name unless name is absolute. [new]: free() it. */
char *sdp_path_join(const char *folder, const char *name);
/** Folder part of a path ("." if none). [new]: free() it. */
char *sdp_path_folder(const char *path);
bool sdp_path_exists(const char *path);
bool sdp_path_is_folder(const char *path);

#ifdef __cplusplus
}
#endif
#endif
