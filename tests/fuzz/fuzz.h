/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What fuzz targets share: the entry point that libFuzzer calls, and inputs as files. */
#ifndef SDP_TESTS_FUZZ_H
#define SDP_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold whatever the input. */
#define FUZZ_CHECK(condition)                                                            \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__,             \
                    #condition);                                                         \
            abort();                                                                     \
        }                                                                                \
    } while (0)

/* A file in memory with these bytes: its descriptor, and a path to it. */
static inline int fuzz_file(const uint8_t *data, size_t size, char *path,
                            size_t path_size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    size_t done = 0;

    FUZZ_CHECK(fd >= 0);
    while (done < size) {
        ssize_t wrote = write(fd, data + done, size - done);

        FUZZ_CHECK(wrote > 0);
        done += (size_t)wrote;
    }
    FUZZ_CHECK(snprintf(path, path_size, "/proc/self/fd/%d", fd) > 0);
    return fd;
}

#endif
