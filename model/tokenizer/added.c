/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/added.h"

#include "model/tokenizer/part.h"

#include <stdlib.h>

/* -- reading -------------------------------------------------------------- */

/* The id must be that of the vocabulary or the next free one behind it, which is what the
 * reference gives the token whatever the file says. */
static bool check_id(const struct sdp_json *at, const struct sdpi_added_token *token,
                     const struct sdpi_bpe *bpe, size_t *next)
{
    const struct sdp_json member = sdp_json_member(at, "id");
    int32_t known = sdpi_names_id(&bpe->names, token->content, token->length);

    if (known >= 0 && known != token->id)
        return sdp_json_fail(&member,
                             "is %d, but \"%.80s\" has the id %d in the vocabulary",
                             (int)token->id, token->content, (int)known);
    if (known < 0 && *next != (size_t)token->id)
        return sdp_json_fail(&member,
                             "is %d, but the next free id is %zu; added tokens must "
                             "follow the vocabulary without gaps",
                             (int)token->id, *next);
    if (known < 0 && sdpi_bpe_name(bpe, token->id))
        return sdp_json_fail(&member, "is %d, which is another token of the vocabulary",
                             (int)token->id);
    *next += known < 0;
    return true;
}

static bool read_token(const struct sdp_json *at, struct sdpi_added_token *token)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    struct sdp_json id = sdp_json_member(at, "id");
    const char *content = NULL;
    int64_t number = 0;

    token->normalized = true;
    if (!sdp_json_only_keys(at, keys))
        return false;
    if (!id.value)
        return sdp_json_missing(at, "id");
    if (!sdp_json_expect_int(&id, 0, SDPI_MAX_ID - 1, &number) ||
        !sdpi_part_text(at, "content", &content, &token->length) ||
        !sdpi_part_flag(at, "single_word", &token->single_word) ||
        !sdpi_part_flag(at, "lstrip", &token->left) ||
        !sdpi_part_flag(at, "rstrip", &token->right) ||
        !sdpi_part_flag(at, "normalized", &token->normalized) ||
        !sdpi_part_flag(at, "special", &token->special))
        return false;
    token->id = (int32_t)number;
    token->content = sdp_xstrdup(content);
    return true;
}

static bool set_pattern(struct sdpi_added_token *token, const struct sdp_json *at,
                        const struct sdpi_normalizer *normalizer)
{
    struct sdpi_normal_scratch scratch = {.points = NULL};
    const char *text = token->content;
    size_t length = token->length;
    bool cut = false;
    enum sdp_status status = SDP_OK;

    if (token->normalized)
        status = sdpi_normalize(normalizer, &scratch, &text, &length, &cut, at->err);
    if (status == SDP_OK) {
        token->pattern = sdp_xcalloc(length + 1, 1);
        memcpy(token->pattern, text, length);
        token->pattern_length = length;
    }
    sdpi_normal_scratch_free(&scratch);
    return status == SDP_OK;
}

/* -- the trees ------------------------------------------------------------ */

static uint32_t new_node(struct sdpi_added_tree *tree, uint8_t byte)
{
    if (tree->count == tree->room) {
        tree->room = SDP_MAX(tree->room * 2, (size_t)64);
        tree->nodes = sdp_xrealloc(tree->nodes, tree->room * sizeof *tree->nodes);
    }
    tree->nodes[tree->count] = (struct sdpi_added_node){0, 0, -1, byte};
    return (uint32_t)tree->count++;
}

static uint32_t find_child(const struct sdpi_added_tree *tree, uint32_t node,
                           uint8_t byte)
{
    uint32_t child = tree->nodes[node].child;

    while (child && tree->nodes[child].byte != byte)
        child = tree->nodes[child].sibling;
    return child;
}

static void add_pattern(struct sdpi_added_tree *tree,
                        const struct sdpi_added_token *token, int32_t index)
{
    const uint8_t *bytes = (const uint8_t *)token->pattern;
    uint32_t node;

    if (token->pattern_length == 0)
        return; /* its normalized form is empty: it is never found */
    if (tree->count == 0)
        new_node(tree, 0);
    if (!tree->roots[bytes[0]]) {
        uint32_t root = new_node(tree, bytes[0]);

        tree->roots[bytes[0]] = root;
        tree->only = tree->only == -2 ? bytes[0] : -1;
    }
    node = tree->roots[bytes[0]];
    for (size_t i = 1; i < token->pattern_length; i++) {
        uint32_t child = find_child(tree, node, bytes[i]);

        if (!child) {
            child = new_node(tree, bytes[i]);
            tree->nodes[child].sibling = tree->nodes[node].child;
            tree->nodes[node].child = child;
        }
        node = child;
    }
    tree->nodes[node].token = index;
}

/* Reads the token at `at` as number added->count. */
static bool add_token(struct sdpi_added *added, const struct sdp_json *at,
                      const struct sdpi_bpe *bpe,
                      const struct sdpi_normalizer *normalizer, size_t *next)
{
    int32_t index = (int32_t)added->count;
    struct sdpi_added_token *token = &added->tokens[index];

    if (!read_token(at, token))
        return false;
    if (token->length == 0) { /* means nothing */
        free(token->content);
        *token = (struct sdpi_added_token){.content = NULL};
        return true;
    }
    added->count++;
    if (!sdpi_names_add(&added->ids, token->content, token->length, index))
        return sdp_json_fail(at, "has the content of another added token");
    if (!check_id(at, token, bpe, next) || !set_pattern(token, at, normalizer))
        return false;
    add_pattern(token->normalized ? &added->normalized : &added->plain, token, index);
    return true;
}

bool sdpi_added_read(struct sdpi_added *added, const struct sdp_json *at,
                     const struct sdpi_bpe *bpe, const struct sdpi_normalizer *normalizer)
{
    size_t count = 0, next = bpe->names.count;

    added->plain.only = added->normalized.only = -2;
    if (!at->value || sdp_json_is_null(at))
        return true;
    if (!sdp_json_expect_array(at, &count))
        return false;
    added->tokens = sdp_xcalloc(count + 1, sizeof *added->tokens);
    for (size_t i = 0; i < count; i++) {
        struct sdp_json element = sdp_json_element(at, i);

        if (!add_token(added, &element, bpe, normalizer, &next))
            return false;
    }
    return true;
}

void sdpi_added_free(struct sdpi_added *added)
{
    for (size_t i = 0; i < added->count; i++) {
        free(added->tokens[i].content);
        free(added->tokens[i].pattern);
    }
    free(added->tokens);
    free(added->plain.nodes);
    free(added->normalized.nodes);
    sdpi_names_free(&added->ids);
    *added = (struct sdpi_added){.tokens = NULL};
}

/* -- finding -------------------------------------------------------------- */

/* The longest pattern at a position: its token and end; -1: none. */
static int32_t longest_at(const struct sdpi_added_walk *walk, size_t at, size_t *end)
{
    const struct sdpi_added_tree *tree = walk->tree;
    const uint8_t *bytes = (const uint8_t *)walk->text;
    uint32_t node = tree->roots[bytes[at]];
    int32_t found = -1;

    while (node) {
        at++;
        if (tree->nodes[node].token >= 0) {
            found = tree->nodes[node].token;
            *end = at;
        }
        if (at == walk->length)
            break;
        node = find_child(tree, node, bytes[at]);
    }
    return found;
}

static int32_t leftmost(const struct sdpi_added_walk *walk, size_t *start, size_t *end)
{
    const struct sdpi_added_tree *tree = walk->tree;
    const uint8_t *bytes = (const uint8_t *)walk->text;

    for (size_t at = walk->at; at < walk->length; at++) {
        int32_t token;

        if (tree->only >= 0) {
            const uint8_t *next = memchr(bytes + at, tree->only, walk->length - at);

            if (!next)
                return -1;
            at = (size_t)(next - bytes);
        } else if (!tree->roots[bytes[at]]) {
            continue;
        }
        token = longest_at(walk, at, end);
        *start = at;
        if (token >= 0)
            return token;
    }
    return -1;
}

static bool is_word_at(const struct sdpi_added_walk *walk, size_t at)
{
    size_t step;

    return sdpi_unicode_flags()[sdpi_utf8_point((const uint8_t *)walk->text + at,
                                                &step)] &
           SDPI_WORD;
}

static bool is_space_at(const struct sdpi_added_walk *walk, size_t at, size_t *step)
{
    return sdpi_unicode_flags()[sdpi_utf8_point((const uint8_t *)walk->text + at, step)] &
           SDPI_SPACE;
}

/* A match that the token's settings allow, widened by the blanks it takes. */
static bool accept(struct sdpi_added_walk *walk, const struct sdpi_added_token *token,
                   size_t *start, size_t *end)
{
    size_t step = 1, from = *start;

    if (token->single_word &&
        ((from > 0 && is_word_at(walk, sdpi_utf8_before(walk->text, from))) ||
         (*end < walk->length && is_word_at(walk, *end))))
        return false;
    while (token->left && from > walk->done) {
        size_t before = sdpi_utf8_before(walk->text, from);

        if (!is_space_at(walk, before, &step))
            break;
        from = before;
    }
    *start = token->left ? SDP_MAX(from, walk->done) : from;
    if (!token->right)
        return true;
    if (*end < walk->blank && is_space_at(walk, *end, &step))
        *end = walk->blank; /* within a run that was walked before */
    while (*end < walk->length && is_space_at(walk, *end, &step))
        *end += step;
    walk->blank = *end;
    return true;
}

bool sdpi_added_next(struct sdpi_added_walk *walk, size_t *from, size_t *to, int32_t *id)
{
    while (walk->tree->only != -2 && walk->at < walk->length) {
        size_t start = 0, end = 0;
        int32_t index = leftmost(walk, &start, &end);
        const struct sdpi_added_token *token;

        if (index < 0)
            break;
        walk->at = end; /* matches do not overlap, whatever blanks they take */
        token = &walk->added->tokens[index];
        if (!accept(walk, token, &start, &end))
            continue;
        *from = walk->done;
        *to = SDP_MAX(start, walk->done);
        *id = token->id;
        walk->done = end;
        return true;
    }
    walk->at = walk->length;
    if (walk->done >= walk->length)
        return false;
    *from = walk->done;
    *to = walk->length;
    *id = -1;
    walk->done = walk->length;
    return true;
}
