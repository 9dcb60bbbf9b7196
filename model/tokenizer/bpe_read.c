/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The object "model" of a tokenizer.json. */
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/part.h"

#include <stdlib.h>

#define MAX_MERGES ((size_t)1 << 24)

static bool read_kind(const struct sdp_json *at)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    const char *type = "BPE";
    struct sdp_json member;

    if (!sdp_json_expect_object(at) || !sdp_json_get_string(at, "type", &type))
        return false;
    member = sdp_json_member(at, "type");
    if (strcmp(type, "BPE") != 0)
        return sdp_json_fail(&member,
                             "the model \"%s\" is not supported; only \"BPE\" is", type);
    if (!sdp_json_only_keys(at, keys))
        return false;
    member = sdp_json_member(at, "dropout");
    if (member.value && !sdp_json_is_null(&member) &&
        json_number_value(member.value) != 0.0)
        return sdp_json_fail(&member, "dropout is not supported: ids would be random; "
                                      "must be null or 0");
    return sdpi_part_refuse_text(at, "continuing_subword_prefix") &&
           sdpi_part_refuse_text(at, "end_of_word_suffix");
}

static bool read_vocabulary(struct sdpi_bpe *bpe, const struct sdp_json *at)
{
    uint8_t *seen = sdp_xcalloc(SDPI_MAX_ID / 8, 1);
    const char *key;
    json_t *value;
    bool good = true;

    json_object_foreach(at->value, key, value)
    {
        struct sdp_json member;
        int64_t id = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;

        good = id >= 0 && id < SDPI_MAX_ID;
        if (!good) {
            member = sdp_json_member(at, key);
            sdp_json_expect_int(&member, 0, SDPI_MAX_ID - 1, &id);
            break;
        }
        good = !(seen[id / 8] & 1u << id % 8);
        if (!good) {
            member = sdp_json_member(at, key);
            sdp_json_fail(&member,
                          "has the id %lld, as another token; each id may be "
                          "there once",
                          (long long)id);
            break;
        }
        seen[id / 8] = (uint8_t)(seen[id / 8] | 1u << id % 8);
        sdpi_names_add(&bpe->names, key, strlen(key), (int32_t)id);
        bpe->limit = SDP_MAX(bpe->limit, (size_t)id + 1);
    }
    free(seen);
    bpe->by_id = sdp_xcalloc(bpe->limit + 1, sizeof *bpe->by_id);
    for (size_t i = 0; i < bpe->names.count; i++)
        bpe->by_id[bpe->names.items[i].id] = (uint32_t)i + 1;
    return good;
}

/* The two tokens of a merge: ["a", "b"] or "a b". */
static bool split_merge(const json_t *value, const char *tokens[2], size_t lengths[2])
{
    const char *text = json_string_value(value), *space;

    if (json_is_array(value) && json_array_size(value) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *one = json_array_get(value, i);

            tokens[i] = json_string_value(one);
            if (!tokens[i])
                return false;
            lengths[i] = json_string_length(one);
        }
        return true;
    }
    space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return false;
    tokens[0] = text;
    lengths[0] = (size_t)(space - text);
    tokens[1] = space + 1;
    lengths[1] = strlen(space + 1);
    return true;
}

/* A pair that is there again takes the later rank. */
static void store_merge(struct sdpi_bpe *bpe, uint64_t pair, uint32_t rank, int32_t id)
{
    size_t slot = (size_t)(pair * 0x9e3779b97f4a7c15u >> bpe->merge_shift);

    while (bpe->merges[slot].pair != UINT64_MAX && bpe->merges[slot].pair != pair)
        slot = (slot + 1) & bpe->merge_mask;
    bpe->merges[slot] = (struct sdpi_merge){pair, rank, id};
}

static bool read_merge(struct sdpi_bpe *bpe, const struct sdp_json *at, size_t index,
                       uint32_t rank, struct sdpi_text *joint)
{
    const json_t *value = json_array_get(at->value, index);
    struct sdp_json element;
    const char *tokens[2] = {NULL, NULL};
    size_t lengths[2] = {0, 0};
    int32_t ids[3] = {-1, -1, -1};

    if (!split_merge(value, tokens, lengths)) {
        element = sdp_json_element(at, index);
        return sdp_json_fail(&element, "is no merge; must be [\"a\", \"b\"] or \"a b\"");
    }
    joint->length = 0;
    for (size_t i = 0; i < 2; i++) {
        ids[i] = sdpi_names_id(&bpe->names, tokens[i], lengths[i]);
        sdpi_text_add(joint, tokens[i], lengths[i]);
    }
    ids[2] = sdpi_names_id(&bpe->names, joint->data, joint->length);
    for (size_t i = 0; i < 3; i++) {
        if (ids[i] >= 0)
            continue;
        element = sdp_json_element(at, index);
        return sdp_json_fail(&element,
                             "merges to or from \"%.*s\", which is no token of "
                             "the vocabulary",
                             (int)SDP_MIN(i < 2 ? lengths[i] : joint->length, (size_t)80),
                             i < 2 ? tokens[i] : joint->data);
    }
    store_merge(bpe, (uint64_t)(uint32_t)ids[0] << 32 | (uint32_t)ids[1], rank, ids[2]);
    return true;
}

static bool read_merges(struct sdpi_bpe *bpe, const struct sdp_json *at)
{
    struct sdpi_text joint = {NULL, 0, 0};
    size_t count = 0, slots = 16;
    uint32_t rank = 0;
    bool good = true;

    if (!sdp_json_expect_array(at, &count))
        return false;
    if (count > MAX_MERGES)
        return sdp_json_fail(at, "has %zu merges; at most %zu are read", count,
                             MAX_MERGES);
    for (bpe->merge_shift = 60; slots < count * 2; slots *= 2)
        bpe->merge_shift--;
    bpe->merges = sdp_xcalloc(slots, sizeof *bpe->merges);
    bpe->merge_mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        bpe->merges[i].pair = UINT64_MAX;
    sdpi_text_reserve(&joint, 1);
    for (size_t i = 0; i < count && good; i++) {
        const char *text = json_string_value(json_array_get(at->value, i));

        if (text && strncmp(text, "#version", 8) == 0)
            continue; /* the first line of the old merges.txt */
        good = read_merge(bpe, at, i, rank++, &joint);
    }
    bpe->merge_count = rank;
    sdpi_text_free(&joint);
    return good;
}

static bool read_unknown(struct sdpi_bpe *bpe, const struct sdp_json *at)
{
    struct sdp_json member = sdp_json_member(at, "unk_token");
    const char *token = NULL;

    bpe->unknown = -1;
    if (!member.value || sdp_json_is_null(&member))
        return true;
    if (!sdp_json_expect_string(&member, &token))
        return false;
    bpe->unknown = sdpi_names_id(&bpe->names, token, strlen(token));
    return bpe->unknown >= 0 ||
           sdp_json_fail(&member, "is \"%s\", which is no token of the vocabulary",
                         token);
}

bool sdpi_bpe_read(struct sdpi_bpe *bpe, const struct sdp_json *at)
{
    struct sdp_json vocabulary, merges;

    if (!read_kind(at))
        return false;
    vocabulary = sdp_json_member(at, "vocab");
    merges = sdp_json_member(at, "merges");
    if (!vocabulary.value)
        return sdp_json_missing(at, "vocab");
    if (!merges.value)
        return sdp_json_missing(at, "merges");
    return sdp_json_expect_object(&vocabulary) && read_vocabulary(bpe, &vocabulary) &&
           read_merges(bpe, &merges) && read_unknown(bpe, at) &&
           sdpi_part_flag(at, "fuse_unk", &bpe->fuse_unknown) &&
           sdpi_part_flag(at, "byte_fallback", &bpe->byte_fallback) &&
           sdpi_part_flag(at, "ignore_merges", &bpe->ignore_merges);
}
