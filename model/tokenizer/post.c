/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/post.h"

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/part.h"

/* A template puts its tokens around those of the parts before it. */
static void wrap(struct sdpi_post *post, const struct sdp_ids *before,
                 const struct sdp_ids *behind)
{
    struct sdp_ids joint = {NULL, 0, 0};

    sdp_ids_add(&joint, before->ids, before->count);
    sdp_ids_add(&joint, post->before.ids, post->before.count);
    sdp_ids_free(&post->before);
    post->before = joint;
    sdp_ids_add(&post->behind, behind->ids, behind->count);
}

/* The ids of a template's special token, {"id": "<s>", "ids": [1], "tokens": ["<s>"]}. */
static bool read_special(const struct sdp_json *specials, const struct sdp_json *at,
                         struct sdp_ids *out)
{
    const char *name = NULL;
    size_t length = 0, count = 0;
    struct sdp_json token, ids, element;
    int64_t id = 0;

    if (!sdp_json_expect_object(at) || !sdpi_part_text(at, "id", &name, &length))
        return false;
    token = sdp_json_member(specials, name);
    if (!token.value)
        return sdp_json_missing(specials, name);
    if (!sdp_json_expect_object(&token))
        return false;
    ids = sdp_json_member(&token, "ids");
    if (!sdp_json_expect_array(&ids, &count))
        return false;
    for (size_t i = 0; i < count; i++) {
        int32_t one;

        element = sdp_json_element(&ids, i);
        if (!sdp_json_expect_int(&element, 0, SDPI_MAX_ID - 1, &id))
            return false;
        one = (int32_t)id;
        sdp_ids_add(out, &one, 1);
    }
    return true;
}

/* One element of "single": {"Sequence": ...} or {"SpecialToken": ...}. */
static bool read_piece(const struct sdp_json *specials, const struct sdp_json *at,
                       struct sdp_ids lists[2], size_t *sequences)
{
    struct sdp_json sequence = sdp_json_member(at, "Sequence");
    struct sdp_json special = sdp_json_member(at, "SpecialToken");
    static const char *const keys[] = {"Sequence", "SpecialToken", NULL};
    const char *name = "A";

    if (!sdp_json_only_keys(at, keys))
        return false;
    if (special.value)
        return read_special(specials, &special, &lists[*sequences ? 1 : 0]);
    if (!sequence.value)
        return sdp_json_fail(at, "is empty; must be {\"Sequence\": ...} or "
                                 "{\"SpecialToken\": ...}");
    if (!sdp_json_expect_object(&sequence) ||
        !sdp_json_get_string(&sequence, "id", &name))
        return false;
    if (strcmp(name, "A") != 0 || ++*sequences > 1)
        return sdp_json_fail(&sequence,
                             "a template with more than the one sequence \"A\" "
                             "is not supported");
    return true;
}

static bool read_template(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    struct sdp_json single = sdp_json_member(at, "single");
    struct sdp_json specials = sdp_json_member(at, "special_tokens");
    struct sdp_ids lists[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    size_t count = 0, sequences = 0;
    bool good = sdp_json_only_keys(at, keys);

    (void)depth;
    if (good && !single.value)
        good = sdp_json_missing(at, "single");
    if (good && specials.value)
        good = sdp_json_expect_object(&specials);
    good = good && sdp_json_expect_array(&single, &count);
    for (size_t i = 0; good && i < count; i++) {
        struct sdp_json piece = sdp_json_element(&single, i);

        good = read_piece(&specials, &piece, lists, &sequences);
    }
    if (good && sequences == 0)
        good = sdp_json_fail(&single, "has no {\"Sequence\": ...}: texts would vanish");
    if (good)
        wrap(out, &lists[0], &lists[1]);
    sdp_ids_free(&lists[0]);
    sdp_ids_free(&lists[1]);
    return good;
}

/* ["</s>", 2] */
static bool read_pair(const struct sdp_json *at, const char *key, struct sdp_ids *out)
{
    struct sdp_json pair = sdp_json_member(at, key), element;
    size_t count = 0;
    int64_t id = 0;
    int32_t one;

    if (!pair.value)
        return sdp_json_missing(at, key);
    if (!sdp_json_expect_array(&pair, &count))
        return false;
    if (count != 2)
        return sdp_json_fail(&pair, "must be a token and its id");
    element = sdp_json_element(&pair, 1);
    if (!sdp_json_expect_int(&element, 0, SDPI_MAX_ID - 1, &id))
        return false;
    one = (int32_t)id;
    sdp_ids_add(out, &one, 1);
    return true;
}

static bool read_around(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {
        "type", "sep", "cls", "trim_offsets", "add_prefix_space", NULL};
    struct sdp_ids before = {NULL, 0, 0}, behind = {NULL, 0, 0};
    bool good = sdp_json_only_keys(at, keys) && read_pair(at, "cls", &before) &&
                read_pair(at, "sep", &behind);

    (void)depth;
    if (good)
        wrap(out, &before, &behind);
    sdp_ids_free(&before);
    sdp_ids_free(&behind);
    return good;
}

/* It only says where in the text the tokens are. */
static bool read_bytes(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets",
                                       "use_regex", NULL};

    (void)out;
    (void)depth;
    return sdp_json_only_keys(at, keys);
}

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth);

static const struct sdpi_part_kind kinds[] = {
    {"TemplateProcessing", read_template}, {"ByteLevel", read_bytes},
    {"BertProcessing", read_around},       {"RobertaProcessing", read_around},
    {"Sequence", read_sequence},           {NULL, NULL},
};

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "processors", NULL};

    return sdp_json_only_keys(at, keys) &&
           sdpi_part_read_all(kinds, "post-processor", out, at, "processors", depth);
}

bool sdpi_post_read(struct sdpi_post *post, const struct sdp_json *at)
{
    return !at->value || sdp_json_is_null(at) ||
           sdpi_part_read(kinds, "post-processor", post, at, 0);
}

void sdpi_post_free(struct sdpi_post *post)
{
    sdp_ids_free(&post->before);
    sdp_ids_free(&post->behind);
}
