/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The top of a tokenizer.json. */
#include "model/tokenizer/part.h"
#include "model/tokenizer/tokenizer_internal.h"

#include <stdlib.h>

static bool read_version(const struct sdp_json *root)
{
    struct sdp_json member = sdp_json_member(root, "version");
    const char *version = "1.0";

    if (!sdp_json_get_string(root, "version", &version))
        return false;
    return strcmp(version, "1.0") == 0 ||
           sdp_json_fail(&member, "is \"%s\"; only version \"1.0\" is known", version);
}

static void find_limit(struct sdp_tokenizer *t)
{
    t->limit = t->bpe.limit;
    for (size_t i = 0; i < t->added.count; i++)
        t->limit = SDP_MAX(t->limit, (size_t)t->added.tokens[i].id + 1);
    t->added_by_id = sdp_xcalloc(t->limit + 1, sizeof *t->added_by_id);
    for (size_t i = 0; i < t->added.count; i++)
        t->added_by_id[t->added.tokens[i].id] = (uint32_t)i + 1;
}

/* The template's tokens must be tokens. */
static bool check_post(const struct sdp_tokenizer *t, const struct sdp_json *at)
{
    const struct sdp_ids *lists[] = {&t->post.before, &t->post.behind};
    size_t length;

    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < lists[l]->count; i++)
            if (!sdp_tokenizer_token(t, lists[l]->ids[i], &length))
                return sdp_json_fail(at, "adds the id %d, which no token has",
                                     (int)lists[l]->ids[i]);
    return true;
}

static bool read_parts(struct sdp_tokenizer *t, const struct sdp_json *root)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    struct sdp_json model = sdp_json_member(root, "model");
    struct sdp_json added = sdp_json_member(root, "added_tokens");
    struct sdp_json normalizer = sdp_json_member(root, "normalizer");
    struct sdp_json splitter = sdp_json_member(root, "pre_tokenizer");
    struct sdp_json post = sdp_json_member(root, "post_processor");
    struct sdp_json decoder = sdp_json_member(root, "decoder");

    if (!sdp_json_only_keys(root, keys) || !read_version(root))
        return false;
    if (!model.value)
        return sdp_json_missing(root, "model");
    if (!sdpi_bpe_read(&t->bpe, &model) ||
        !sdpi_normalizer_read(&t->normalizer, &normalizer) ||
        !sdpi_splitter_read(&t->splitter, &splitter) ||
        !sdpi_added_read(&t->added, &added, &t->bpe, &t->normalizer) ||
        !sdpi_post_read(&t->post, &post) || !sdpi_decoder_read(&t->decoder, &decoder))
        return false;
    sdpi_bpe_prepare(&t->bpe, t->splitter.bytes);
    find_limit(t);
    return check_post(t, &post);
}

static struct sdp_tokenizer *new_tokenizer(void)
{
    struct sdp_tokenizer *t = sdp_xcalloc(1, sizeof *t);

    t->pool = sdp_xcalloc(1, sizeof *t->pool);
    if (pthread_mutex_init(&t->pool->lock, NULL) != 0)
        abort(); /* cannot happen with default attributes */
    return t;
}

enum sdp_status sdp_tokenizer_parse(const char *text, size_t size, const char *name,
                                    struct sdp_tokenizer **out, struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    struct sdp_tokenizer *t;
    struct sdp_json root;
    json_t *document = NULL;
    enum sdp_status status;

    if (!err)
        err = &own;
    status = sdp_json_parse(text, size, name, &document, &root, err);
    if (status != SDP_OK)
        return status;
    t = new_tokenizer();
    if (!read_parts(t, &root)) {
        status = err->status;
        sdp_tokenizer_destroy(t);
    } else {
        *out = t;
    }
    json_decref(document);
    return status;
}

enum sdp_status sdp_tokenizer_load(const char *path, struct sdp_tokenizer **out,
                                   struct sdp_error *err)
{
    size_t size = 0;
    char *text = NULL;
    enum sdp_status status = sdp_read_text(path, &text, &size, err);

    if (status == SDP_OK)
        status = sdp_tokenizer_parse(text, size, path, out, err);
    if (status != SDP_OK && err)
        sdp_json_locate_error(err);
    free(text);
    return status;
}
