/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Folders that are complete or not there: filled under another name, synced, renamed.
 * Only plain files are ever removed: a folder that holds folders was not made here, and
 * is left to the user. */
#include "model/checkpoint/checkpoint_internal.h"

#include "graph/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define COPY_BYTES ((size_t)1 << 20)

enum sdp_status sdpi_fail_errno(struct sdp_error *err, const char *path,
                                const char *action)
{
    int code = errno;
    bool input = code == ENOENT || code == EACCES || code == EPERM || code == ENOTDIR ||
                 code == EROFS || code == ELOOP || code == ENAMETOOLONG;

    return sdp_fail_at(err, input ? SDP_INPUT : SDP_IO, path, NULL, 0, 0, "cannot %s: %s",
                       action, strerror(code));
}

static bool is_there(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

/* Removes a folder of plain files, a file or a link (never what a link leads to). What
 * is not there is fine. */
static enum sdp_status discard(const char *path, struct sdp_error *err)
{
    struct stat info;
    struct dirent *entry;
    DIR *folder;

    if (lstat(path, &info) != 0)
        return errno == ENOENT ? SDP_OK : sdpi_fail_errno(err, path, "examine");
    if (!S_ISDIR(info.st_mode))
        return unlink(path) == 0 ? SDP_OK : sdpi_fail_errno(err, path, "remove");
    folder = opendir(path);
    if (!folder)
        return sdpi_fail_errno(err, path, "open");
    while ((entry = readdir(folder)) != NULL)
        unlinkat(dirfd(folder), entry->d_name, 0); /* folders stay, and rmdir tells */
    closedir(folder);
    return rmdir(path) == 0 ? SDP_OK : sdpi_fail_errno(err, path, "remove");
}

static enum sdp_status sync_folder(const char *path, struct sdp_error *err)
{
    enum sdp_status status = SDP_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return sdpi_fail_errno(err, path, "open");
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) /* not all can */
        status = sdpi_fail_errno(err, path, "sync");
    close(fd);
    return status;
}

static void forget(struct sdpi_saving *saving)
{
    free(saving->folder);
    free(saving->temp);
    free(saving->replaced);
    *saving = (struct sdpi_saving){NULL, NULL, NULL};
}

/* Clears what an earlier save left behind: a crash between the two renames of a file
 * system that cannot exchange names leaves the old folder under its other name. */
static enum sdp_status clear_remains(const struct sdpi_saving *saving,
                                     struct sdp_error *err)
{
    enum sdp_status status = discard(saving->temp, err);

    if (status != SDP_OK || !is_there(saving->replaced))
        return status;
    if (is_there(saving->folder))
        return discard(saving->replaced, err);
    if (rename(saving->replaced, saving->folder) != 0)
        return sdpi_fail_errno(err, saving->replaced, "rename");
    return SDP_OK;
}

enum sdp_status sdpi_saving_begin(const char *folder, struct sdpi_saving *saving,
                                  struct sdp_error *err)
{
    size_t length = strlen(folder);
    enum sdp_status status;
    char *parent;

    while (length > 1 && folder[length - 1] == '/')
        length--;
    saving->folder = sdp_xprintf("%.*s", (int)length, folder);
    saving->temp = sdp_xprintf("%s.saving", saving->folder);
    saving->replaced = sdp_xprintf("%s.replaced", saving->folder);
    parent = sdp_path_folder(saving->folder);
    status = sdp_make_dirs(parent, err);
    if (status == SDP_OK && is_there(saving->folder) &&
        !sdp_path_is_folder(saving->folder))
        status = sdp_fail_at(err, SDP_INPUT, saving->folder, NULL, 0, 0,
                             "is in the way of a folder; remove it or choose another "
                             "path");
    if (status == SDP_OK)
        status = clear_remains(saving, err);
    if (status == SDP_OK && mkdir(saving->temp, 0777) != 0)
        status = sdpi_fail_errno(err, saving->temp, "create the folder");
    if (status != SDP_OK)
        forget(saving);
    free(parent);
    return status;
}

void sdpi_saving_abort_take(struct sdpi_saving *saving)
{
    struct sdp_error err = SDP_ERROR_INIT;

    if (discard(saving->temp, &err) != SDP_OK)
        sdp_warn("%s: %s", err.file, err.text);
    forget(saving);
}

/* Puts the new folder in the old one's place; the old one is at saving->temp or
 * saving->replaced afterwards, if there was one. */
static enum sdp_status swap(const struct sdpi_saving *saving, struct sdp_error *err)
{
    if (!is_there(saving->folder))
        return rename(saving->temp, saving->folder) == 0
                   ? SDP_OK
                   : sdpi_fail_errno(err, saving->folder, "create");
    if (renameat2(AT_FDCWD, saving->temp, AT_FDCWD, saving->folder, RENAME_EXCHANGE) == 0)
        return SDP_OK;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
        return sdpi_fail_errno(err, saving->folder, "replace");
    if (rename(saving->folder, saving->replaced) != 0)
        return sdpi_fail_errno(err, saving->folder, "replace");
    if (rename(saving->temp, saving->folder) != 0) {
        enum sdp_status status = sdpi_fail_errno(err, saving->folder, "replace");
        if (rename(saving->replaced, saving->folder) != 0)
            sdp_warn("%s: the old folder is at %s", saving->folder, saving->replaced);
        return status;
    }
    return SDP_OK;
}

enum sdp_status sdpi_saving_commit_take(struct sdpi_saving *saving, struct sdp_error *err)
{
    struct sdp_error leftover = SDP_ERROR_INIT;
    enum sdp_status status = sync_folder(saving->temp, err);
    char *parent;

    if (status == SDP_OK)
        status = swap(saving, err);
    if (status != SDP_OK) {
        sdpi_saving_abort_take(saving);
        return status;
    }
    parent = sdp_path_folder(saving->folder);
    status = sync_folder(parent, err);
    free(parent);
    /* The new folder is complete whatever becomes of the old one. */
    if (discard(saving->temp, &leftover) != SDP_OK ||
        discard(saving->replaced, &leftover) != SDP_OK)
        sdp_warn("%s: the old folder was replaced, but not all of it could be removed: "
                 "%s",
                 leftover.file, leftover.text);
    forget(saving);
    return status;
}

/* -- copying ------------------------------------------------------------------ */

static enum sdp_status copy_bytes(int in, int out, const char *from, const char *to,
                                  struct sdp_error *err)
{
    char *buffer = sdp_xcalloc(COPY_BYTES, 1);
    enum sdp_status status = SDP_OK;
    ssize_t got = 1;

    while (status == SDP_OK && got > 0) {
        got = read(in, buffer, COPY_BYTES);
        if (got < 0) {
            status = sdpi_fail_errno(err, from, "read");
            break;
        }
        for (ssize_t done = 0, put; done < got; done += put) {
            put = write(out, buffer + done, (size_t)(got - done));
            if (put < 0) {
                status = sdpi_fail_errno(err, to, "write");
                break;
            }
        }
    }
    free(buffer);
    return status;
}

enum sdp_status sdpi_copy_file(const char *from, const char *to, struct sdp_error *err)
{
    enum sdp_status status;
    int in = open(from, O_RDONLY | O_CLOEXEC), out;

    if (in < 0)
        return sdpi_fail_errno(err, from, "open");
    out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out < 0) {
        status = sdpi_fail_errno(err, to, "create");
    } else {
        status = copy_bytes(in, out, from, to, err);
        if (status == SDP_OK && fsync(out) != 0)
            status = sdpi_fail_errno(err, to, "sync");
        if (close(out) != 0 && status == SDP_OK)
            status = sdpi_fail_errno(err, to, "close");
    }
    close(in);
    return status;
}

/* -- probing ------------------------------------------------------------------ */

static enum sdp_status probe_space(const char *folder, size_t bytes,
                                   struct sdp_error *err)
{
    char free_text[32], need_text[32];
    struct statvfs info;
    size_t available;

    if (statvfs(folder, &info) != 0)
        return sdpi_fail_errno(err, folder, "examine");
    if (!sdp_size_mul(info.f_bavail, info.f_frsize, &available) || available >= bytes)
        return SDP_OK;
    return sdp_fail_at(err, SDP_INPUT, folder, NULL, 0, 0,
                       "has %s of free space, and %s are needed; free some, or choose "
                       "another folder",
                       sdp_format_bytes(available, free_text),
                       sdp_format_bytes(bytes, need_text));
}

/* What a save does, in small: a folder under another name, a file in it, a rename. */
enum sdp_status sdp_checkpoint_probe(const char *folder, size_t bytes,
                                     struct sdp_error *err)
{
    enum sdp_status status = sdp_make_dirs(folder, err);
    char *name = sdp_xprintf(".probe-%ld", (long)getpid());
    char *path = sdp_path_join(folder, name);
    struct sdpi_saving saving;

    if (status == SDP_OK)
        status = sdpi_saving_begin(path, &saving, err);
    if (status == SDP_OK) {
        char *temp_file = sdp_path_join(saving.temp, "probe");

        status = sdp_write_file(temp_file, "probe", 5, err);
        free(temp_file);
        if (status == SDP_OK)
            status = sdpi_saving_commit_take(&saving, err);
        else
            sdpi_saving_abort_take(&saving);
    }
    if (status == SDP_OK)
        status = discard(path, err);
    if (status == SDP_OK)
        status = probe_space(folder, bytes, err);
    free(path);
    free(name);
    return status;
}
