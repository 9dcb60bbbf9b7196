/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Files: mapping, reading, writing so that a crash leaves the old file or the
 * new one, folders, paths. What the user named wrongly is SDP_INPUT; what the
 * system could not do is SDP_IO. */
#define _GNU_SOURCE
#include "graph/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_MAX ((size_t)1 << 30) /* of a file that is read as a text */

/* Records that `action` on a file failed with errno. */
static enum sdp_status fail_errno(struct sdp_error *err, const char *path,
                                  const char *action)
{
    int code = errno;
    bool input = code == ENOENT || code == EACCES || code == EPERM || code == ENOTDIR ||
                 code == EISDIR || code == ELOOP || code == ENAMETOOLONG;
    const char *reason = strerror(code);

    if (code == ENOENT)
        reason = "no such file or folder";
    else if (code == EACCES)
        reason = "permission denied";
    return sdp_fail_at(err, input ? SDP_INPUT : SDP_IO, path, NULL, 0, 0, "cannot %s: %s",
                       action, reason);
}

/* Opens a file for reading; a folder is refused. Returns the descriptor or -1. */
static int open_read(const char *path, struct stat *info, enum sdp_status *status,
                     struct sdp_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        *status = fail_errno(err, path, "open");
        return -1;
    }
    if (fstat(fd, info) != 0) {
        *status = fail_errno(err, path, "examine");
    } else if (S_ISDIR(info->st_mode)) {
        *status = sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                              "is a folder; a file is needed");
    } else {
        return fd;
    }
    close(fd);
    return -1;
}

enum sdp_status sdp_map_open(const char *path, struct sdp_map *out, struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    struct sdp_map map = {NULL, 0};
    struct stat info;
    int fd = open_read(path, &info, &status, err);

    if (fd < 0)
        return status;
    if (!S_ISREG(info.st_mode)) {
        status = sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                             "is a device or a pipe; a regular file is needed");
    } else if (info.st_size > 0) {
        void *data;

        map.size = (size_t)info.st_size;
        data = mmap(NULL, map.size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            status = fail_errno(err, path, "map");
        else
            map.data = data;
    }
    close(fd); /* only read from: nothing to lose */
    if (status == SDP_OK)
        *out = map;
    return status;
}

void sdp_map_close(struct sdp_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    map->data = NULL;
    map->size = 0;
}

/* Reads to the end of a file whose size may be unknown (a pipe). [new] *out. */
static enum sdp_status read_all(int fd, size_t guess, const char *path, char **out,
                                size_t *size, struct sdp_error *err)
{
    size_t room = guess + 2, used = 0; /* one for the end of file to show, one for NUL */
    char *text = sdp_xcalloc(room, 1);

    for (;;) {
        ssize_t got = read(fd, text + used, room - used - 1);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(text);
            return fail_errno(err, path, "read");
        }
        used += (size_t)got;
        if (got == 0)
            break;
        if (used > TEXT_MAX) {
            free(text);
            return sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                               "is larger than 1 GiB; a text file is needed");
        }
        if (used + 1 == room)
            text = sdp_xrealloc(text, room *= 2);
    }
    text[used] = '\0';
    *out = text;
    if (size)
        *size = used;
    return SDP_OK;
}

enum sdp_status sdp_read_text(const char *path, char **out, size_t *size,
                              struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    struct stat info;
    int fd = open_read(path, &info, &status, err);

    if (fd < 0)
        return status;
    if (info.st_size > (off_t)TEXT_MAX)
        status = sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                             "is larger than 1 GiB; a text file is needed");
    else
        status = read_all(fd, info.st_size > 0 ? (size_t)info.st_size : 4096, path, out,
                          size, err);
    close(fd);
    return status;
}

static bool write_all(int fd, const void *data, size_t size)
{
    const char *from = data;

    while (size > 0) {
        ssize_t put = write(fd, from, size);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return false;
        from += put;
        size -= (size_t)put;
    }
    return true;
}

/* A rename is durable once its folder is on disk. Some file systems cannot sync
 * a folder (EINVAL) and need not be told. */
static enum sdp_status sync_folder(const char *path, struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    char *folder = sdp_path_folder(path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        status = fail_errno(err, folder, "open");
    } else {
        if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
            status = fail_errno(err, folder, "sync");
        close(fd);
    }
    free(folder);
    return status;
}

/* Creates the temporary file next to `path`, whose name no other writer has. */
static int open_temporary(const char *path, char **name)
{
    static atomic_uint counter;
    int fd = -1;

    for (int attempt = 0; attempt < 100; attempt++) {
        *name = sdp_xprintf("%s.tmp-%ld-%u", path, (long)getpid(),
                            atomic_fetch_add(&counter, 1u));
        fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            break;
        free(*name);
        *name = NULL;
    }
    return fd;
}

enum sdp_status sdp_write_file(const char *path, const void *data, size_t size,
                               struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    char *name = NULL;
    int fd = open_temporary(path, &name);

    if (fd < 0) {
        status = fail_errno(err, path, "create");
        free(name);
        return status;
    }
    if (!write_all(fd, data, size))
        status = fail_errno(err, path, "write");
    else if (fsync(fd) != 0)
        status = fail_errno(err, path, "sync");
    if (close(fd) != 0 && status == SDP_OK)
        status = fail_errno(err, path, "close");
    if (status == SDP_OK && rename(name, path) != 0)
        status = fail_errno(err, path, "replace");
    if (status == SDP_OK)
        status = sync_folder(path, err);
    else
        unlink(name); /* best effort: the first error is the one to tell */
    free(name);
    return status;
}

/* One level of mkdir -p. */
static enum sdp_status make_dir(const char *path, struct sdp_error *err)
{
    int code;

    if (mkdir(path, 0777) == 0)
        return SDP_OK;
    code = errno;
    if (sdp_path_is_folder(path))
        return SDP_OK;
    errno = code;
    if (errno == EEXIST || errno == ENOTDIR)
        return sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                           "is in the way of a folder; remove it or choose another path");
    return fail_errno(err, path, "create the folder");
}

enum sdp_status sdp_make_dirs(const char *path, struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    char *copy;

    if (!*path)
        return sdp_fail(err, SDP_INPUT, "a folder's name is empty");
    copy = sdp_xstrdup(path);
    for (char *at = copy + 1; *at && status == SDP_OK; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        status = make_dir(copy, err);
        *at = '/';
    }
    if (status == SDP_OK)
        status = make_dir(copy, err);
    free(copy);
    return status;
}

char *sdp_path_join(const char *folder, const char *name)
{
    size_t length = strlen(folder);

    if (name[0] == '/' || length == 0 || strcmp(folder, ".") == 0)
        return sdp_xstrdup(name);
    return sdp_xprintf("%s%s%s", folder, folder[length - 1] == '/' ? "" : "/", name);
}

char *sdp_path_folder(const char *path)
{
    size_t length = strlen(path);
    char *folder;

    while (length > 1 && path[length - 1] == '/') /* trailing */
        length--;
    while (length > 0 && path[length - 1] != '/') /* the last name */
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length == 0)
        return sdp_xstrdup(".");
    folder = sdp_xcalloc(length + 1, 1);
    memcpy(folder, path, length);
    return folder;
}

bool sdp_path_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool sdp_path_is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}
