/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For tests in which a folder is a case: walking the folders, and comparing a
 * message with the one that a case's file holds. */
#ifndef SDP_TESTS_SUPPORT_CASE_FOLDERS_H
#define SDP_TESTS_SUPPORT_CASE_FOLDERS_H

#include "graph/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/** Calls `check` with the name of each folder in `folder`, sorted, with that folder as
 * working folder (so that messages have the paths that users see). Returns how many there
 * were, 0 also when `folder` cannot be read. */
size_t sdp_test_walk_cases(const char *folder, void (*check)(const char *name));

/** Whether the line that `err` prints is what the file "error" of the working folder
 * holds, or starts with what "error-starts" holds; if not, tells both on stderr. With
 * `accept`, writes "error" instead. */
bool sdp_test_message_is_expected(const char *name, const struct sdp_error *err,
                                  bool accept);

#endif
