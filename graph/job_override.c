/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* --set PATH=VALUE: writes a value into the job's document before it is checked,
 * so that a wrong path or value gets the message that the file would get.
 *
 * PATH is "train.steps" or "/train/steps"; a number picks an element of a list,
 * its length appends one. A key of /train/optimizer or /train/schedule may be
 * written below train ("train.lr"), for these are set most often. */
#define _GNU_SOURCE
#include "graph/job_internal.h"

#include <stdlib.h>

#define MAX_DEPTH 16

struct path {
    char *text; /* [new] cut into its keys */
    char *keys[MAX_DEPTH];
    size_t count;
};

/* ~1 and ~0 of a JSON pointer, in place. */
static void unescape(char *key)
{
    char *to = key;

    for (; *key; key++) {
        char letter = *key;

        if (letter == '~' && (key[1] == '0' || key[1] == '1'))
            letter = *++key == '1' ? '/' : '~';
        *to++ = letter;
    }
    *to = '\0';
}

/* Cuts "train.steps" or "/train/steps" (`length` bytes) into keys; false: an
 * empty key or too many. */
static bool split_path(const char *text, size_t length, struct path *path)
{
    bool pointer = text[0] == '/';
    char *at;

    path->text = sdp_xcalloc(length + 1, 1);
    memcpy(path->text, text, length);
    path->count = 0;
    for (at = path->text + pointer; at;) {
        char *end = strchr(at, pointer ? '/' : '.');

        if (end)
            *end++ = '\0';
        if (!*at || path->count == MAX_DEPTH)
            return false;
        if (pointer)
            unescape(at);
        path->keys[path->count++] = at;
        at = end;
    }
    return true;
}

/* "train.lr" means "train.optimizer.lr". */
static void expand_short(struct path *path)
{
    static char optimizer[] = "optimizer", schedule[] = "schedule";
    const char *const *keys;
    char *inner[] = {optimizer, schedule};

    if (path->count < 2 || path->count == MAX_DEPTH ||
        strcmp(path->keys[0], "train") != 0)
        return;
    for (size_t i = 0; i < SDP_COUNT_OF(inner); i++) {
        keys = sdpi_job_keys(i == 0 ? "/train/optimizer" : "/train/schedule");
        for (; *keys; keys++) {
            if (strcmp(*keys, "name") == 0 || strcmp(*keys, path->keys[1]) != 0)
                continue;
            memmove(path->keys + 2, path->keys + 1,
                    (path->count - 1) * sizeof *path->keys);
            path->keys[1] = inner[i];
            path->count++;
            return;
        }
    }
}

/* An index into a list of `length`, or SIZE_MAX. */
static size_t list_index(const char *key, size_t length)
{
    size_t index = 0;

    if (!*key || (key[0] == '0' && key[1]))
        return SIZE_MAX;
    for (; *key; key++) {
        if (*key < '0' || *key > '9' || index > length)
            return SIZE_MAX;
        index = index * 10 + (size_t)(*key - '0');
    }
    return index <= length ? index : SIZE_MAX;
}

/* Sets one member or element; takes value. */
static bool set_child(json_t *parent, const char *key, json_t *value)
{
    size_t index, length = json_array_size(parent);

    if (json_is_object(parent))
        return json_object_set_new(parent, key, value) == 0;
    index = json_is_array(parent) ? list_index(key, length) : SIZE_MAX;
    if (index < length)
        return json_array_set_new(parent, index, value) == 0;
    if (index == length)
        return json_array_append_new(parent, value) == 0;
    json_decref(value);
    return false;
}

static json_t *child(json_t *parent, const char *key)
{
    if (json_is_array(parent))
        return json_array_get(parent, list_index(key, json_array_size(parent)));
    return json_object_get(parent, key);
}

/* JSON, or the text itself where it is none. [new] */
static json_t *override_value(const char *text)
{
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);

    return value ? value : json_string(text);
}

static enum sdp_status fail_set(struct sdp_error *err, const char *text,
                                const char *pointer, const char *what)
{
    char *name = sdp_xprintf("--set %s", text);

    sdp_fail_at(err, SDP_INPUT, name, pointer, 0, 0, "%s", what);
    free(name);
    return SDP_INPUT;
}

/* Walks to the last key's parent, making objects where nothing (or null) is. The
 * pointer given back is that of the outermost thing made, which is the override's. */
static enum sdp_status set_value(json_t *document, const struct path *path,
                                 const char *text, char **pointer, struct sdp_error *err)
{
    struct sdp_json at = {.value = document, .file = text, .pointer = "", .err = err};
    json_t *parent = document, *value, *next;
    const char *problem = NULL;
    char *made = NULL;

    for (size_t i = 0; i + 1 < path->count; i++) {
        next = child(parent, path->keys[i]);
        at = sdp_json_member(&at, path->keys[i]);
        if (!next || json_is_null(next)) {
            next = json_object();
            if (!next || !set_child(parent, path->keys[i], next)) {
                free(made);
                return fail_set(err, text, at.pointer, "there is no such element to set");
            }
            if (!made)
                made = sdp_xstrdup(at.pointer);
        }
        parent = next;
    }
    at = sdp_json_member(&at, path->keys[path->count - 1]);
    value = override_value(strchr(text, '=') + 1);
    if (!value)
        problem = "the value is not valid UTF-8 text";
    else if (!set_child(parent, path->keys[path->count - 1], value))
        problem =
            "cannot be set: what holds it is neither an object nor a list with such an "
            "element";
    if (problem) {
        free(made);
        return fail_set(err, text, at.pointer, problem);
    }
    *pointer = made ? made : sdp_xstrdup(at.pointer);
    return SDP_OK;
}

enum sdp_status sdpi_job_override(json_t *document, const char *text, char **pointer,
                                  struct sdp_error *err)
{
    const char *equals = strchr(text, '=');
    struct path path = {.text = NULL};
    enum sdp_status status;

    if (!equals || equals == text)
        return fail_set(err, text, NULL, "must be PATH=VALUE, such as train.steps=100");
    if (split_path(text, (size_t)(equals - text), &path)) {
        expand_short(&path);
        status = set_value(document, &path, text, pointer, err);
    } else {
        status =
            fail_set(err, text, NULL,
                     "the path is wrong; it must look like train.steps or /train/steps");
    }
    free(path.text);
    return status;
}
