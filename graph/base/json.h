/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Typed, strict reading of JSON on jansson: every message carries the JSON
 * pointer, and a wrong key the nearest valid one.
 *
 * A struct sdp_json is a cursor: the value and where it stands. Getters return
 * false after recording an error in the reader (first error wins), and leave
 * *out untouched when the key is absent, so that *out holds the default. */
#ifndef SDP_GRAPH_BASE_JSON_H
#define SDP_GRAPH_BASE_JSON_H

#include "graph/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sdp_json {
    json_t *value;         /* [borrowed] from the document; NULL when absent */
    const char *file;      /* [borrowed] for messages */
    char pointer[256];     /* "/train/lr"; "" for the root */
    struct sdp_error *err; /* [borrowed] where messages go */
};

/** Parses a file; duplicate keys, trailing text, and syntax errors are refused with line
 * and column. [new] *document: json_decref() it. */
SDP_CHECK_RESULT enum sdp_status sdp_json_load(const char *path, json_t **document,
                                               struct sdp_json *root,
                                               struct sdp_error *err);
/** The same for text in memory; `name` stands for the file in messages. */
SDP_CHECK_RESULT enum sdp_status sdp_json_parse(const char *text, size_t size,
                                                const char *name, json_t **document,
                                                struct sdp_json *root,
                                                struct sdp_error *err);

/** Refuses any key of the object `at` that is not in the NULL-ended list. */
bool sdp_json_only_keys(const struct sdp_json *at, const char *const *keys);

/** Cursor on a member (value NULL when absent; `null` counts as present) or an array
 * element. */
struct sdp_json sdp_json_member(const struct sdp_json *at, const char *key);
struct sdp_json sdp_json_element(const struct sdp_json *at, size_t index);

bool sdp_json_is_null(const struct sdp_json *at);

/** Require a kind at the cursor itself. */
bool sdp_json_expect_object(const struct sdp_json *at);
bool sdp_json_expect_array(const struct sdp_json *at, size_t *length);
bool sdp_json_expect_string(const struct sdp_json *at, const char **out);
bool sdp_json_expect_int(const struct sdp_json *at, int64_t min, int64_t max,
                         int64_t *out);
bool sdp_json_expect_double(const struct sdp_json *at, double min, double max,
                            double *out);

/** Members of the object `at`; absent: *out keeps its default, true is returned. */
bool sdp_json_get_bool(const struct sdp_json *at, const char *key, bool *out);
bool sdp_json_get_size(const struct sdp_json *at, const char *key, size_t min, size_t max,
                       size_t *out);
bool sdp_json_get_int(const struct sdp_json *at, const char *key, int64_t min,
                      int64_t max, int64_t *out);
bool sdp_json_get_double(const struct sdp_json *at, const char *key, double min,
                         double max, double *out);
bool sdp_json_get_string(const struct sdp_json *at, const char *key, const char **out);
/** One of a NULL-ended list of words; *out gets its index. */
bool sdp_json_get_choice(const struct sdp_json *at, const char *key,
                         const char *const *choices, int *out);
/** Bytes: a number, or text such as "22GiB". */
bool sdp_json_get_bytes(const struct sdp_json *at, const char *key, size_t *out);

/** Line and column (1-based, in characters) where the key or element of a pointer stands
 * in a JSON text: of the deepest part that is there. False, and both untouched, when none
 * is. */
bool sdp_json_locate(const char *text, size_t size, const char *pointer, int *line,
                     int *column);
/** Fills in the line and column of an error that has a file and a pointer, by
 * looking into the file; leaves the error as it is where that cannot be done. */
void sdp_json_locate_error(struct sdp_error *err);

/** Records "POINTER: text" for the value at the cursor; returns false. */
bool sdp_json_fail(const struct sdp_json *at, const char *format, ...) SDP_PRINTF(2, 3);
/** Records "is VALUE; must be TEXT" for the value at the cursor, with a hint
 * where a text was perhaps meant as null, true, false or a number; returns false. */
bool sdp_json_wrong(const struct sdp_json *at, const char *format, ...) SDP_PRINTF(2, 3);
/** Records that a required member is missing; returns false. */
bool sdp_json_missing(const struct sdp_json *at, const char *key);

#endif
