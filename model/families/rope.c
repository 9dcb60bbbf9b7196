/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rotary embedding's settings of a config.json, the same for all families.
 * transformers 5 writes one object
 *
 *     "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8, ...}
 *
 * and versions before
 *
 *     "rope_theta": 5e5, "rope_scaling": {"rope_type" or "type": "llama3", "factor": 8,
 * ...}
 *
 * Where both are there, "rope_scaling" goes first, as in transformers. They become the
 * attributes of the operation `rope`. Kinds that it does not compute are refused.
 *
 * The longest sequence is max_position_embeddings; "linear" and "yarn" stretch it: some
 * published configs have the number before stretching there and some the one after, so
 * the larger reading is taken. */
#include "model/families/family_internal.h"

#include "graph/base/util.h"

#include <math.h>

#define DEFAULT_THETA 10000.0

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope {
    enum rope_type type;
    double theta, factor, original;
    double max_position; /* max_position_embeddings */
    json_t *attrs;       /* [borrowed] what the operation gets */
};

static void set_attr(struct rope *rope, const char *name, double value)
{
    bool whole = value == floor(value) && fabs(value) < 0x1p53;

    json_object_set_new(rope->attrs, name,
                        whole ? json_integer((json_int_t)value) : json_real(value));
}

/* A number of the section; null is as good as absent. */
static bool get_number(const struct sdp_json *section, const char *key, double min,
                       double *out)
{
    return json_is_null(json_object_get(section->value, key)) ||
           sdp_json_get_double(section, key, min, HUGE_VAL, out);
}

static bool require(const struct sdp_json *section, const char *key)
{
    json_t *value = json_object_get(section->value, key);

    return (value && !json_is_null(value)) || sdp_json_missing(section, key);
}

/* 0 is as good as absent, too: transformers takes the default then. */
static bool get_attr(struct rope *rope, const struct sdp_json *section, const char *key,
                     double fallback)
{
    double value = 0.0;

    if (!get_number(section, key, 0.0, &value))
        return false;
    set_attr(rope, key, value > 0.0 ? value : fallback);
    return true;
}

/* -- the kinds ---------------------------------------------------------------- */

static bool read_type(const struct sdp_json *section, enum rope_type *out)
{
    static const char *const words[] = {"default", "linear", "llama3", "yarn", NULL};
    static const char *const keys[] = {"rope_type", "type"};
    const char *before = NULL;
    int index = ROPE_DEFAULT;

    for (size_t i = 0; i < SDP_COUNT_OF(keys); i++) {
        struct sdp_json member = sdp_json_member(section, keys[i]);
        const char *word = NULL;

        if (!member.value || json_is_null(member.value))
            continue;
        if (!sdp_json_expect_string(&member, &word))
            return false;
        if (strcmp(word, "dynamic") == 0)
            return sdp_json_fail(&member, "is \"dynamic\", which scales each text by its "
                                          "own length and is not supported; must be one "
                                          "of \"default\", \"linear\", \"llama3\", "
                                          "\"yarn\"");
        if (before && strcmp(before, word) != 0)
            return sdp_json_fail(&member,
                                 "is \"%s\", but \"rope_type\" is \"%s\"; they "
                                 "must agree",
                                 word, before);
        before = word;
        if (!sdp_json_get_choice(section, keys[i], words, &index))
            return false;
    }
    *out = (enum rope_type)index;
    return true;
}

/* Length before stretching: beside the section, in it, or the length itself. */
static bool read_original(struct rope *rope, const struct sdp_json *config,
                          const struct sdp_json *section)
{
    static const char key[] = "original_max_position_embeddings";

    rope->original = rope->max_position;
    return get_number(section, key, 1.0, &rope->original) &&
           get_number(config, key, 1.0, &rope->original);
}

static bool read_llama3(struct rope *rope, const struct sdp_json *section)
{
    double low = 0.0, high = 0.0;
    struct sdp_json member = sdp_json_member(section, "high_freq_factor");

    if (!require(section, "low_freq_factor") || !require(section, "high_freq_factor") ||
        !get_number(section, "low_freq_factor", 0.0, &low) ||
        !get_number(section, "high_freq_factor", 0.0, &high))
        return false;
    if (low <= 0.0 || high <= low)
        return sdp_json_fail(&member,
                             "is %.9g; must be larger than low_freq_factor, "
                             "%.9g, which must be larger than 0",
                             high, low);
    set_attr(rope, "low_freq_factor", low);
    set_attr(rope, "high_freq_factor", high);
    set_attr(rope, "original_max_position", rope->original);
    return true;
}

static double magnitude(double factor, double scale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * scale * log(factor) + 1.0;
}

static bool read_yarn(struct rope *rope, const struct sdp_json *section)
{
    struct sdp_json truncate = sdp_json_member(section, "truncate");
    double mscale = 0.0, all = 0.0, attention;

    if (json_is_false(truncate.value))
        return sdp_json_fail(&truncate, "is false, which is not supported; must be true");
    if (!get_number(section, "mscale", 0.0, &mscale) ||
        !get_number(section, "mscale_all_dim", 0.0, &all))
        return false;
    attention = mscale > 0.0 && all > 0.0
                    ? magnitude(rope->factor, mscale) / magnitude(rope->factor, all)
                    : magnitude(rope->factor, 1.0);
    set_attr(rope, "original_max_position", rope->original);
    return get_attr(rope, section, "attention_factor", attention) &&
           get_attr(rope, section, "beta_fast", 32.0) &&
           get_attr(rope, section, "beta_slow", 1.0);
}

static bool read_factor(struct rope *rope, const struct sdp_json *section)
{
    if (rope->type == ROPE_YARN) /* null: from the two lengths */
        rope->factor = SDP_MAX(rope->max_position / rope->original, 1.0);
    if (!json_object_get(section->value, "factor"))
        return sdp_json_missing(section, "factor");
    if (rope->type != ROPE_YARN && !require(section, "factor"))
        return false;
    if (!get_number(section, "factor", 1.0, &rope->factor))
        return false;
    set_attr(rope, "factor", rope->factor);
    return true;
}

static bool read_scaling(struct rope *rope, const struct sdp_json *config,
                         const struct sdp_json *section)
{
    if (rope->type == ROPE_DEFAULT)
        return true;
    if (!read_original(rope, config, section) || !read_factor(rope, section))
        return false;
    if (rope->type == ROPE_LLAMA3)
        return read_llama3(rope, section);
    return rope->type != ROPE_YARN || read_yarn(rope, section);
}

/* -- the section -------------------------------------------------------------- */

/* What is set for all of a head's columns only. */
static bool check_partial(const struct sdp_json *at)
{
    struct sdp_json member = sdp_json_member(at, "partial_rotary_factor");
    double part = 1.0;

    if (!get_number(at, "partial_rotary_factor", 0.0, &part))
        return false;
    return part == 1.0 || sdp_json_fail(&member,
                                        "is %.9g, which is not supported; must "
                                        "be 1",
                                        part);
}

/* transformers 5 may have one object for each kind of layer. */
static bool check_flat(const struct sdp_json *section)
{
    const char *key;
    json_t *value;

    json_object_foreach(section->value, key, value)
    {
        struct sdp_json member = sdp_json_member(section, key);
        if (json_is_object(value))
            return sdp_json_fail(&member, "settings for one kind of layer only are not "
                                          "supported");
    }
    return true;
}

static bool has_members(const struct sdp_json *at)
{
    return json_is_object(at->value) && json_object_size(at->value) > 0;
}

static bool find_section(const struct sdp_json *config, struct sdp_json *out)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    struct sdp_json at;

    *out = *config;
    out->value = NULL;
    for (size_t i = SDP_COUNT_OF(names); i-- > 0;) {
        at = sdp_json_member(config, names[i]);
        if (at.value && !json_is_null(at.value) && !sdp_json_expect_object(&at))
            return false;
        if (has_members(&at))
            *out = at;
    }
    return true;
}

static bool read_rope(struct rope *rope, const struct sdp_json *config)
{
    static const char *const words[] = {"default", "linear", "llama3", "yarn"};
    struct sdp_json section;

    if (!find_section(config, &section) || !check_flat(&section) ||
        !check_partial(config) || !check_partial(&section) ||
        !get_number(config, "rope_theta", 1.0, &rope->theta) ||
        !get_number(&section, "rope_theta", 1.0, &rope->theta) ||
        !read_type(&section, &rope->type))
        return false;
    json_object_set_new(rope->attrs, "type", json_string(words[rope->type]));
    set_attr(rope, "theta", rope->theta);
    return read_scaling(rope, config, &section);
}

static double longest_sequence(const struct rope *rope)
{
    switch (rope->type) {
    case ROPE_LINEAR:
        return rope->max_position * rope->factor;
    case ROPE_YARN:
        return SDP_MAX(rope->max_position, rope->original * rope->factor);
    default:
        return rope->max_position;
    }
}

bool sdpi_family_read_rope(const struct sdp_json *config, json_t *variables)
{
    struct rope rope = {.theta = DEFAULT_THETA, .factor = 1.0, .attrs = json_object()};
    double longest;

    json_object_set_new(variables, "rope", rope.attrs);
    rope.max_position =
        json_number_value(json_object_get(variables, "max_position_embeddings"));
    if (!read_rope(&rope, config))
        return false;
    longest = SDP_MIN(floor(longest_sequence(&rope)), (double)INT32_MAX);
    json_object_set_new(variables, "max_sequence_length",
                        json_integer((json_int_t)longest));
    return true;
}
