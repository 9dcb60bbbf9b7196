/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A temporary folder for one test program, and files in it. */
#ifndef SDP_TESTS_MODEL_TEMP_FOLDER_H
#define SDP_TESTS_MODEL_TEMP_FOLDER_H

#include "graph/base/util.h"
#include "tests/sdp_test.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char *temp_root;

static inline int temp_remove_one(const char *path, const struct stat *info, int kind,
                                  struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline void temp_remove(const char *path)
{
    if (sdp_path_exists(path))
        CHECK(nftw(path, temp_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

static inline void temp_begin(void)
{
    const char *root = getenv("TMPDIR");

    temp_root = sdp_path_join(root && *root ? root : "/tmp", "sdp-test-XXXXXX");
    REQUIRE(mkdtemp(temp_root) != NULL);
}

static inline void temp_end(void)
{
    temp_remove(temp_root);
    free(temp_root);
}

/* A path in the folder. [new] */
static inline char *temp_path(const char *name)
{
    return sdp_path_join(temp_root, name);
}

/* Writes a file in the folder. [new] path. */
static inline char *temp_file(const char *name, const void *data, size_t size)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *path = temp_path(name);

    REQUIRE_OK(sdp_write_file(path, data, size, &err), &err);
    return path;
}

#endif
