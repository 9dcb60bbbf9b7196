/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The strict JSON reader behind json.h. A message says what stands there, then
 * what would be right; a text that was meant as null, true, false or a number
 * (users coming from YAML or a command line write these) gets its own hint. */
#define _GNU_SOURCE
#include "graph/base/json.h"

#include "graph/base/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define WORDS_SIZE 768 /* of a list of keys or choices in a message */

/* -- loading ---------------------------------------------------------------- */

/* jansson's text without its " near '...'" tail, which may quote half a file. */
static enum sdp_status fail_syntax(const char *name, const json_error_t *error,
                                   struct sdp_error *err)
{
    char text[JSON_ERROR_TEXT_LENGTH];
    char *near;

    snprintf(text, sizeof text, "%s", error->text);
    near = strstr(text, " near '");
    if (near && strlen(near) > 60)
        *near = '\0';
    return sdp_fail_at(err, SDP_INPUT, name, NULL, SDP_MAX(error->line, 0),
                       SDP_MAX(error->column, 0), "is not valid JSON: %s", text);
}

static bool is_blank(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!text[i] || !strchr(" \t\r\n", text[i]))
            return false;
    return true;
}

enum sdp_status sdp_json_parse(const char *text, size_t size, const char *name,
                               json_t **document, struct sdp_json *root,
                               struct sdp_error *err)
{
    json_error_t error;
    json_t *value;

    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
        text += 3;
        size -= 3;
    }
    if (is_blank(text, size))
        return sdp_fail_at(err, SDP_INPUT, name, NULL, 0, 0,
                           "is empty; a JSON document is needed");
    value = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!value)
        return fail_syntax(name, &error, err);
    *document = value;
    if (root)
        *root =
            (struct sdp_json){.value = value, .file = name, .pointer = "", .err = err};
    return SDP_OK;
}

enum sdp_status sdp_json_load(const char *path, json_t **document, struct sdp_json *root,
                              struct sdp_error *err)
{
    enum sdp_status status;
    size_t size = 0;
    char *text = NULL;

    status = sdp_read_text(path, &text, &size, err);
    if (status != SDP_OK)
        return status;
    status = sdp_json_parse(text, size, path, document, root, err);
    free(text);
    return status;
}

/* -- messages ----------------------------------------------------------------- */

/* Appends "/key" with ~ and / escaped as RFC 6901 wants. A pointer too long for
 * its buffer ends in "...". */
static void push_key(char *pointer, size_t size, const char *key)
{
    size_t used = strlen(pointer);
    const char *piece = "/";
    char one[2] = "";

    for (;; key++) {
        size_t length = strlen(piece);

        if (used + length + 4 > size) {
            memcpy(pointer + used, "...", SDP_MIN((size_t)4, size - used));
            pointer[size - 1] = '\0';
            return;
        }
        memcpy(pointer + used, piece, length + 1);
        used += length;
        if (!*key)
            return;
        one[0] = *key;
        piece = *key == '~' ? "~0" : *key == '/' ? "~1" : one;
    }
}

SDP_PRINTF(2, 0)
static bool fail_args(const struct sdp_json *at, const char *format, va_list args)
{
    char text[sizeof at->err->text];

    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    sdp_fail_at(at->err, SDP_INPUT, at->file, at->pointer, 0, 0, "%s", text);
    return false;
}

bool sdp_json_fail(const struct sdp_json *at, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fail_args(at, format, args);
    va_end(args);
    return false;
}

bool sdp_json_missing(const struct sdp_json *at, const char *key)
{
    struct sdp_json member = *at;

    push_key(member.pointer, sizeof member.pointer, key);
    return sdp_json_fail(&member, "is missing; this key is required");
}

/* A JSON value as it would be written, shortened, for messages. */
static void describe(const json_t *value, char *buffer, size_t size)
{
    char *text;

    if (!value) {
        snprintf(buffer, size, "missing");
    } else if (json_is_object(value)) {
        snprintf(buffer, size, "an object");
    } else if (json_is_array(value)) {
        snprintf(buffer, size, "a list");
    } else if (json_is_real(value)) {
        snprintf(buffer, size, "%.9g", json_real_value(value));
    } else {
        text = json_dumps(value, JSON_ENCODE_ANY);
        snprintf(buffer, size, "%.60s%s", text ? text : "",
                 text && strlen(text) > 60 ? "..." : "");
        free(text);
    }
}

static bool looks_like_number(const char *text)
{
    char *end;

    if (!*text || !strchr("+-.0123456789", *text))
        return false;
    strtod(text, &end);
    return !*end;
}

/* What the author of the text at the cursor perhaps meant. */
static const char *quotes_hint(const json_t *value)
{
    const char *text = json_string_value(value);

    if (!text)
        return "";
    if (!strcasecmp(text, "none") || !strcasecmp(text, "null"))
        return " (for no value, leave the key out or write null without quotes)";
    if (!strcasecmp(text, "true"))
        return " (true is written without quotes)";
    if (!strcasecmp(text, "false"))
        return " (false is written without quotes)";
    if (looks_like_number(text))
        return " (numbers are written without quotes)";
    return "";
}

bool sdp_json_wrong(const struct sdp_json *at, const char *format, ...)
{
    char what[96], wanted[WORDS_SIZE];
    va_list args;

    va_start(args, format);
    if (vsnprintf(wanted, sizeof wanted, format, args) < 0)
        wanted[0] = '\0';
    va_end(args);
    describe(at->value, what, sizeof what);
    return sdp_json_fail(at, "is %s; must be %s%s", what, wanted, quotes_hint(at->value));
}

/* "a", "b", "c" */
static void list_words(char *buffer, size_t size, const char *const *words)
{
    size_t used = 0;

    buffer[0] = '\0';
    for (size_t i = 0; words[i] && used < size; i++) {
        int length =
            snprintf(buffer + used, size - used, "%s\"%s\"", i ? ", " : "", words[i]);
        used += length > 0 ? (size_t)length : 0;
    }
}

static bool fail_unknown_key(const struct sdp_json *at, const char *key,
                             const char *const *keys)
{
    struct sdp_json member = *at;
    const char *nearest = sdp_nearest(key, keys);
    char words[WORDS_SIZE];

    push_key(member.pointer, sizeof member.pointer, key);
    if (nearest)
        return sdp_json_fail(&member, "unknown key; did you mean \"%s\"?", nearest);
    list_words(words, sizeof words, keys);
    if (!words[0])
        return sdp_json_fail(&member, "unknown key; no key is known here");
    return sdp_json_fail(&member, "unknown key; known here: %s", words);
}

/* -- cursors ---------------------------------------------------------------- */

bool sdp_json_only_keys(const struct sdp_json *at, const char *const *keys)
{
    const char *key;
    json_t *value;

    if (!sdp_json_expect_object(at))
        return false;
    json_object_foreach(at->value, key, value)
    {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0)
            i++;
        if (!keys[i])
            return fail_unknown_key(at, key, keys);
    }
    return true;
}

struct sdp_json sdp_json_member(const struct sdp_json *at, const char *key)
{
    struct sdp_json member = *at;

    member.value = json_object_get(at->value, key);
    push_key(member.pointer, sizeof member.pointer, key);
    return member;
}

struct sdp_json sdp_json_element(const struct sdp_json *at, size_t index)
{
    struct sdp_json element = *at;
    char key[32];

    snprintf(key, sizeof key, "%zu", index);
    element.value = json_array_get(at->value, index);
    push_key(element.pointer, sizeof element.pointer, key);
    return element;
}

bool sdp_json_is_null(const struct sdp_json *at)
{
    return json_is_null(at->value);
}

bool sdp_json_expect_object(const struct sdp_json *at)
{
    return json_is_object(at->value) || sdp_json_wrong(at, "an object: { ... }");
}

bool sdp_json_expect_array(const struct sdp_json *at, size_t *length)
{
    if (!json_is_array(at->value))
        return sdp_json_wrong(at, "a list: [ ... ]");
    *length = json_array_size(at->value);
    return true;
}

bool sdp_json_expect_string(const struct sdp_json *at, const char **out)
{
    const char *text = json_string_value(at->value);

    if (!text)
        return sdp_json_wrong(at, "a string");
    *out = text;
    return true;
}

/* -- getters ---------------------------------------------------------------- */

bool sdp_json_get_bool(const struct sdp_json *at, const char *key, bool *out)
{
    struct sdp_json member = sdp_json_member(at, key);

    if (!member.value)
        return true;
    if (!json_is_boolean(member.value))
        return sdp_json_wrong(&member, "true or false");
    *out = json_is_true(member.value);
    return true;
}

/* An integer, also written as 1e5 or 4.0, where a double holds it exactly. */
static bool integer_value(const json_t *value, int64_t *out)
{
    double real;

    if (json_is_integer(value)) {
        *out = (int64_t)json_integer_value(value);
        return true;
    }
    if (!json_is_real(value))
        return false;
    real = json_real_value(value);
    if (real != floor(real) || fabs(real) > 0x1p53)
        return false;
    *out = (int64_t)real;
    return true;
}

static bool wrong_integer(const struct sdp_json *at, int64_t min, int64_t max)
{
    if (max == INT64_MAX && min == INT64_MIN)
        return sdp_json_wrong(at, "an integer");
    if (max == INT64_MAX)
        return sdp_json_wrong(at, "an integer of at least %lld", (long long)min);
    if (min == INT64_MIN)
        return sdp_json_wrong(at, "an integer of at most %lld", (long long)max);
    return sdp_json_wrong(at, "an integer from %lld to %lld", (long long)min,
                          (long long)max);
}

bool sdp_json_expect_int(const struct sdp_json *at, int64_t min, int64_t max,
                         int64_t *out)
{
    int64_t value;

    if (!integer_value(at->value, &value) || value < min || value > max)
        return wrong_integer(at, min, max);
    *out = value;
    return true;
}

bool sdp_json_get_int(const struct sdp_json *at, const char *key, int64_t min,
                      int64_t max, int64_t *out)
{
    struct sdp_json member = sdp_json_member(at, key);

    return !member.value || sdp_json_expect_int(&member, min, max, out);
}

bool sdp_json_get_size(const struct sdp_json *at, const char *key, size_t min, size_t max,
                       size_t *out)
{
    int64_t value = 0;
    int64_t low = (int64_t)SDP_MIN(min, (size_t)INT64_MAX);
    int64_t high = (int64_t)SDP_MIN(max, (size_t)INT64_MAX);

    if (!json_object_get(at->value, key))
        return true;
    if (!sdp_json_get_int(at, key, low, high, &value))
        return false;
    *out = (size_t)value;
    return true;
}

static bool wrong_number(const struct sdp_json *at, double min, double max)
{
    if (isfinite(min) && isfinite(max))
        return sdp_json_wrong(at, "a number from %.9g to %.9g", min, max);
    if (isfinite(min))
        return sdp_json_wrong(at, "a number of at least %.9g", min);
    if (isfinite(max))
        return sdp_json_wrong(at, "a number of at most %.9g", max);
    return sdp_json_wrong(at, "a number");
}

bool sdp_json_expect_double(const struct sdp_json *at, double min, double max,
                            double *out)
{
    double value = json_number_value(at->value);

    if (!json_is_number(at->value) || !isfinite(value) || value < min || value > max)
        return wrong_number(at, min, max);
    *out = value;
    return true;
}

bool sdp_json_get_double(const struct sdp_json *at, const char *key, double min,
                         double max, double *out)
{
    struct sdp_json member = sdp_json_member(at, key);

    return !member.value || sdp_json_expect_double(&member, min, max, out);
}

bool sdp_json_get_string(const struct sdp_json *at, const char *key, const char **out)
{
    struct sdp_json member = sdp_json_member(at, key);

    return !member.value || sdp_json_expect_string(&member, out);
}

bool sdp_json_get_choice(const struct sdp_json *at, const char *key,
                         const char *const *choices, int *out)
{
    struct sdp_json member = sdp_json_member(at, key);
    const char *text, *nearest;
    char words[WORDS_SIZE];

    if (!member.value)
        return true;
    list_words(words, sizeof words, choices);
    text = json_string_value(member.value);
    for (int i = 0; text && choices[i]; i++) {
        if (strcmp(choices[i], text) == 0) {
            *out = i;
            return true;
        }
    }
    nearest = text ? sdp_nearest(text, choices) : NULL;
    return sdp_json_wrong(
        &member, "%s%s%s%s%s", choices[0] && choices[1] ? "one of " : "", words,
        nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

bool sdp_json_get_bytes(const struct sdp_json *at, const char *key, size_t *out)
{
    struct sdp_json member = sdp_json_member(at, key);
    const char *text = json_string_value(member.value);
    int64_t value;
    size_t bytes;

    if (!member.value)
        return true;
    if (integer_value(member.value, &value) && value >= 0) {
        *out = (size_t)value;
        return true;
    }
    if (!text || !sdp_parse_bytes(text, &bytes))
        return sdp_json_wrong(&member, "bytes, such as 33554432, \"32MiB\" or \"22GiB\"");
    *out = bytes;
    return true;
}
