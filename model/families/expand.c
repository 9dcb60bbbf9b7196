/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fills in a family template (model/families/<family>/family.json):
 *
 *     "${expression}"            a value, where it is the whole text; see expression.c
 *     "text ${expression} text"  a text
 *     "key": "${... : null}"     a member whose expression is null is left out
 *     {"when": "${...}", ...}    an object that is left out, as a member of an object or
 *                                element of a list, unless this is true
 *     "...": "${variable}"       the members of the variable, an object, in place of this
 *
 * "{i}" is not touched: it belongs to the model graph. */
#include "model/families/family_internal.h"

#define CONDITION "when"
#define SPREAD    "..."

static bool expand(const struct sdp_json *at, const json_t *variables, json_t **out);

bool sdpi_template_condition(const struct sdp_json *at, const json_t *variables,
                             bool *out)
{
    struct sdp_json when = sdp_json_member(at, CONDITION);
    const char *text = NULL;
    json_t *value;

    *out = true;
    if (!when.value)
        return true;
    if (!sdp_json_expect_string(&when, &text))
        return false;
    value = sdpi_expression_text(&when, text, variables);
    if (!value)
        return false;
    *out = json_is_true(value);
    if (!json_is_boolean(value)) {
        when.value = value;
        sdp_json_wrong(&when, "an expression that is true or false");
        json_decref(value);
        return false;
    }
    json_decref(value);
    return true;
}

static bool spread(const struct sdp_json *at, json_t *value, json_t *object)
{
    bool good = !value || json_is_object(value); /* NULL: left out */

    if (good && value)
        json_object_update(object, value);
    else if (!good)
        sdp_json_fail(at, "must be an expression for an object");
    json_decref(value);
    return good;
}

/* *out is NULL where the object is left out. */
static bool expand_object(const struct sdp_json *at, const json_t *variables,
                          json_t **out)
{
    json_t *object, *value;
    const char *key;
    bool wanted, good = sdpi_template_condition(at, variables, &wanted);

    *out = NULL;
    if (!good || !wanted)
        return good;
    object = json_object();
    json_object_foreach(at->value, key, value)
    {
        struct sdp_json member = sdp_json_member(at, key);
        json_t *filled = NULL;

        if (strcmp(key, CONDITION) == 0)
            continue;
        good = expand(&member, variables, &filled);
        if (good && strcmp(key, SPREAD) == 0)
            good = spread(&member, filled, object);
        else if (json_is_null(filled))
            json_decref(filled);
        else if (filled)
            json_object_set_new(object, key, filled);
        if (!good)
            break;
    }
    if (good)
        *out = object;
    else
        json_decref(object);
    return good;
}

static bool expand_list(const struct sdp_json *at, const json_t *variables, json_t **out)
{
    json_t *list = json_array();

    for (size_t i = 0; i < json_array_size(at->value); i++) {
        struct sdp_json element = sdp_json_element(at, i);
        json_t *filled = NULL;

        if (!expand(&element, variables, &filled)) {
            json_decref(list);
            return false;
        }
        if (filled)
            json_array_append_new(list, filled);
    }
    *out = list;
    return true;
}

static bool expand(const struct sdp_json *at, const json_t *variables, json_t **out)
{
    if (json_is_object(at->value))
        return expand_object(at, variables, out);
    if (json_is_array(at->value))
        return expand_list(at, variables, out);
    if (json_is_string(at->value))
        *out = sdpi_expression_text(at, json_string_value(at->value), variables);
    else
        *out = json_incref(at->value);
    return *out != NULL;
}

json_t *sdpi_template_expand(const struct sdp_json *at, const json_t *variables)
{
    json_t *value = NULL;

    if (!expand(at, variables, &value))
        return NULL;
    return value ? value : json_null();
}
