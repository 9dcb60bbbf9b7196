/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads a config.json as a family declares it:
 *
 *     "config": {
 *       "hidden_size": {"kind": "size"},
 *       "head_dim": {"kind": "size", "default": "${hidden_size / num_attention_heads}"}
 *     },
 *     "refuse": [{"when": "${head_dim % 2 != 0}", "key": "head_dim",
 *                 "message": "is ${head_dim}; must be even"}],
 *     "warn": [the same]
 *
 * Each key becomes a variable. kind: "size" (an integer of at least 1), "count" (of at
 * least 0), "number" (of at least 0), "bool", "word" (of the list "one_of", if given),
 * "present" (true unless the key is missing, null or false), "layer_types" (a list with
 * a word for each layer: the word, or "mixed"). A key without "default" is required. null
 * means the same as leaving the key out, unless "null" says what it means.
 * All other keys of a config.json are ignored. */
#include "model/families/family_internal.h"

#include "graph/base/log.h"
#include "graph/base/util.h"

#include <stdlib.h>

#define MAX_WORDS 32

/* -- one key ------------------------------------------------------------------ */

static json_t *read_integer(const struct sdp_json *at, int64_t min)
{
    int64_t value;

    return sdp_json_expect_int(at, min, INT32_MAX, &value)
               ? json_integer((json_int_t)value)
               : NULL;
}

static json_t *read_number(const struct sdp_json *at)
{
    double value;

    return sdp_json_expect_double(at, 0.0, HUGE_VAL, &value) ? json_incref(at->value)
                                                             : NULL;
}

static json_t *read_bool(const struct sdp_json *at)
{
    if (!json_is_boolean(at->value)) {
        sdp_json_wrong(at, "true or false");
        return NULL;
    }
    return json_incref(at->value);
}

static json_t *read_word(const struct sdp_json *config, const char *key,
                         const json_t *one_of)
{
    struct sdp_json at = sdp_json_member(config, key);
    const char *words[MAX_WORDS + 1] = {NULL}, *text = NULL;
    int index;

    if (!one_of)
        return sdp_json_expect_string(&at, &text) ? json_string(text) : NULL;
    for (size_t i = 0; i < json_array_size(one_of) && i < MAX_WORDS; i++)
        words[i] = json_string_value(json_array_get(one_of, i));
    return sdp_json_get_choice(config, key, words, &index) ? json_string(words[index])
                                                           : NULL;
}

/* The word that all layers have in common, or "mixed". */
static json_t *read_layer_types(const struct sdp_json *at, const json_t *variables)
{
    json_int_t layers =
        json_integer_value(json_object_get(variables, "num_hidden_layers"));
    const char *common = NULL, *word = NULL;
    size_t count;

    if (!sdp_json_expect_array(at, &count))
        return NULL;
    if ((json_int_t)count != layers) {
        sdp_json_fail(at, "has %zu words; must have one for each of the %lld layers",
                      count, (long long)layers);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        struct sdp_json element = sdp_json_element(at, i);

        if (!sdp_json_expect_string(&element, &word))
            return NULL;
        common = i == 0 || strcmp(common, word) == 0 ? word : "mixed";
    }
    return json_string(common ? common : "");
}

static json_t *read_kind(const struct sdp_json *declared, const struct sdp_json *config,
                         const char *key, const json_t *variables)
{
    static const char *const kinds[] = {"size", "count",   "number",      "bool",
                                        "word", "present", "layer_types", NULL};
    struct sdp_json at = sdp_json_member(config, key);
    int kind = -1;

    if (!sdp_json_get_choice(declared, "kind", kinds, &kind))
        return NULL;
    switch (kind) {
    case 0:
        return read_integer(&at, 1);
    case 1:
        return read_integer(&at, 0);
    case 2:
        return read_number(&at);
    case 3:
        return read_bool(&at);
    case 4:
        return read_word(config, key, json_object_get(declared->value, "one_of"));
    case 5:
        return json_boolean(!json_is_false(at.value));
    case 6:
        return read_layer_types(&at, variables);
    default:
        sdp_json_missing(declared, "kind");
        return NULL;
    }
}

/* What stands for a key that is not there, or null. */
static json_t *fallback(const struct sdp_json *declared, const struct sdp_json *config,
                        const char *key, const json_t *variables)
{
    struct sdp_json at = sdp_json_member(config, key), value;
    bool is_null = at.value && json_object_get(declared->value, "null");

    value = sdp_json_member(declared, is_null ? "null" : "default");
    if (value.value)
        return sdpi_template_expand(&value, variables);
    if (at.value)
        sdp_json_fail(&at, "is null; this key is required");
    else
        sdp_json_missing(config, key);
    return NULL;
}

static bool read_key(const struct sdp_json *declared, const struct sdp_json *config,
                     const char *key, json_t *variables)
{
    static const char *const keys[] = {"kind", "default", "null", "one_of", NULL};
    struct sdp_json at = sdp_json_member(config, key);
    json_t *value;

    if (!sdp_json_only_keys(declared, keys))
        return false;
    value = !at.value || json_is_null(at.value)
                ? fallback(declared, config, key, variables)
                : read_kind(declared, config, key, variables);
    if (!value)
        return false;
    json_object_set_new(variables, key, value);
    return true;
}

/* -- refusals and warnings ------------------------------------------------------ */

static bool read_objection(const struct sdp_json *at, const struct sdp_json *config,
                           const json_t *variables, bool refuse)
{
    static const char *const keys[] = {"when", "key", "message", NULL};
    struct sdp_json message = sdp_json_member(at, "message"), member;
    const char *key = "", *text = "";
    json_t *filled;
    bool applies;

    if (!sdp_json_only_keys(at, keys) ||
        !sdpi_template_condition(at, variables, &applies) ||
        !sdp_json_get_string(at, "key", &key) ||
        !sdp_json_get_string(at, "message", &text))
        return false;
    if (!applies)
        return true;
    filled = sdpi_expression_text(&message, text, variables);
    if (!filled)
        return false;
    member = sdp_json_member(config, key);
    if (refuse)
        sdp_json_fail(&member, "%s", json_string_value(filled));
    else
        sdp_warn("%s: %s: %s", config->file, member.pointer, json_string_value(filled));
    json_decref(filled);
    return !refuse;
}

static bool read_objections(const struct sdp_json *list, const struct sdp_json *config,
                            const json_t *variables, bool refuse)
{
    bool good = true;

    for (size_t i = 0; good && i < json_array_size(list->value); i++) {
        struct sdp_json at = sdp_json_element(list, i);
        good = read_objection(&at, config, variables, refuse);
    }
    return good;
}

bool sdpi_family_read_config(const struct sdp_json *family, const struct sdp_json *config,
                             json_t *variables)
{
    struct sdp_json declared = sdp_json_member(family, "config");
    struct sdp_json refuse = sdp_json_member(family, "refuse");
    struct sdp_json warn = sdp_json_member(family, "warn");
    const char *key;
    json_t *value;

    if (!sdp_json_expect_object(&declared) || !sdp_json_expect_object(config))
        return false;
    json_object_foreach(declared.value, key, value)
    {
        struct sdp_json at = sdp_json_member(&declared, key);
        if (!read_key(&at, config, key, variables))
            return false;
    }
    return read_objections(&refuse, config, variables, true) &&
           read_objections(&warn, config, variables, false);
}
