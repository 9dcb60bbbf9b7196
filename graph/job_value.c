/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reading the kinds of values that job files have, and looking at the files
 * that a job names. */
#define _GNU_SOURCE
#include "graph/job_value.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_word(const struct sdp_json *at, const char *word)
{
    return json_is_string(at->value) && strcmp(json_string_value(at->value), word) == 0;
}

bool sdpi_job_has(const struct sdp_json *at, const char *key)
{
    json_t *value = json_object_get(at->value, key);

    return value && !json_is_null(value);
}

bool sdpi_job_auto_size(const struct sdp_json *at, const char *key, size_t min,
                        size_t max, size_t *out)
{
    struct sdp_json member = sdp_json_member(at, key);
    struct sdp_json silent = member;
    int64_t value;

    if (!member.value)
        return true;
    silent.err = NULL; /* this reader words the message itself */
    if (is_word(&member, "auto"))
        *out = SDP_AUTO;
    else if (sdp_json_expect_int(&silent, (int64_t)min, (int64_t)max, &value))
        *out = (size_t)value;
    else
        return sdp_json_wrong(&member, "\"auto\" or an integer from %zu to %zu", min,
                              max);
    return true;
}

bool sdpi_job_auto_bytes(const struct sdp_json *at, const char *key, size_t min,
                         size_t max, size_t *out)
{
    struct sdp_json member = sdp_json_member(at, key);
    struct sdp_json silent = *at;
    char size[32], low[32], high[32];
    size_t bytes = 0;

    if (!member.value)
        return true;
    if (is_word(&member, "auto")) {
        *out = SDP_AUTO;
        return true;
    }
    silent.err = NULL;
    if (!sdp_json_get_bytes(&silent, key, &bytes))
        return sdp_json_wrong(&member,
                              "\"auto\" or bytes, such as 33554432 or \"32MiB\"");
    if (bytes < min || bytes > max)
        return sdp_json_fail(&member, "is %s; must be \"auto\" or from %s to %s",
                             sdp_format_bytes(bytes, size), sdp_format_bytes(min, low),
                             sdp_format_bytes(max, high));
    *out = bytes;
    return true;
}

bool sdpi_job_choice(const struct sdp_json *at, const char *key, const char *const *words,
                     const char *const *later, int *out)
{
    struct sdp_json member = sdp_json_member(at, key);
    char list[256] = "";
    size_t used = 0;

    for (; later && *later; later++) {
        if (!is_word(&member, *later))
            continue;
        for (size_t i = 0; words[i] && used < sizeof list; i++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"",
                                     i ? ", " : "", words[i]);
        return sdp_json_fail(&member,
                             "is \"%s\", which is not available yet; must be %s%s",
                             *later, words[1] ? "one of " : "", list);
    }
    return sdp_json_get_choice(at, key, words, out);
}

bool sdpi_job_above(const struct sdp_json *at, const char *key, double low, double *out)
{
    struct sdp_json member = sdp_json_member(at, key);
    struct sdp_json silent = *at;
    double value = INFINITY;

    if (!member.value)
        return true;
    silent.err = NULL;
    if (!sdp_json_get_double(&silent, key, low, INFINITY, &value) || value <= low)
        return sdp_json_wrong(&member, "a number above %.9g", low);
    *out = value;
    return true;
}

bool sdpi_job_text(const struct sdp_json *at, const char *key, bool nullable, char **out)
{
    struct sdp_json member = sdp_json_member(at, key);
    const char *text = NULL;

    if (!member.value || (nullable && sdp_json_is_null(&member)))
        return true;
    if (!sdp_json_expect_string(&member, &text))
        return false;
    if (!*text)
        return sdp_json_fail(&member, "is an empty string; must be a name%s",
                             nullable ? ", or null for none" : "");
    if (!strcasecmp(text, "none") || !strcasecmp(text, "null"))
        return sdp_json_fail(&member,
                             "is the string \"%s\"; for no value leave the key out%s",
                             text, nullable ? " or write null without quotes" : "");
    free(*out);
    *out = sdp_xstrdup(text);
    return true;
}

/* -- files ------------------------------------------------------------------ */

static bool fail_open(const struct sdp_json *at, const char *path)
{
    if (errno == ENOENT || errno == ENOTDIR)
        return sdp_json_fail(at,
                             "there is no file \"%s\"; a relative path starts at the job "
                             "file's folder",
                             path);
    return sdp_json_fail(at, "cannot read \"%s\": %s", path,
                         errno == EACCES ? "permission denied; make it readable"
                                         : strerror(errno));
}

bool sdpi_job_check_file(const struct sdp_json *at, const char *path)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    bool known;

    if (fd < 0)
        return fail_open(at, path);
    known = fstat(fd, &info) == 0;
    close(fd);
    if (!known)
        return fail_open(at, path);
    if (S_ISDIR(info.st_mode))
        return sdp_json_fail(at, "\"%s\" is a folder; must be a file", path);
    if (!S_ISREG(info.st_mode))
        return sdp_json_fail(at, "\"%s\" is a device or a pipe; must be a regular file",
                             path);
    return true;
}

bool sdpi_job_check_checkpoint(const struct sdp_json *at, const char *path)
{
    char *config;
    bool good;

    if (!sdp_path_exists(path))
        return sdp_json_fail(
            at,
            "there is no folder \"%s\"; must be the folder of a downloaded "
            "Hugging Face model (a relative path starts at the job file's "
            "folder)",
            path);
    if (!sdp_path_is_folder(path))
        return sdp_json_fail(
            at, "\"%s\" is a file; must be the folder of a Hugging Face model", path);
    config = sdp_path_join(path, "config.json");
    if (sdp_path_exists(config))
        good = sdpi_job_check_file(at, config);
    else
        good = sdp_json_fail(
            at,
            "the folder \"%s\" holds no config.json; must be the folder of a "
            "Hugging Face model",
            path);
    free(config);
    return good;
}
