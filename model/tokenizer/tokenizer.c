/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A text goes through the parts in this order: added tokens are taken out, what is
 * between them is normalized, the added tokens of normalized text are taken out, what is
 * between them is cut into pieces, and each piece goes to the model. */
#include "model/tokenizer/tokenizer.h"

#include "model/tokenizer/tokenizer_internal.h"

#include <stdlib.h>

/* -- lists of ids --------------------------------------------------------- */

void sdp_ids_free(struct sdp_ids *ids)
{
    free(ids->ids);
    *ids = (struct sdp_ids){NULL, 0, 0};
}

void sdp_ids_reserve(struct sdp_ids *ids, size_t more)
{
    size_t room = SDP_MAX(ids->room, (size_t)64);

    while (room - ids->count < more)
        room *= 2;
    if (room == ids->room)
        return;
    ids->ids = sdp_xrealloc(ids->ids, room * sizeof *ids->ids);
    ids->room = room;
}

void sdp_ids_add(struct sdp_ids *ids, const int32_t *from, size_t count)
{
    if (count == 0)
        return;
    sdp_ids_reserve(ids, count);
    memcpy(ids->ids + ids->count, from, count * sizeof *from);
    ids->count += count;
}

/* -- what one call works with --------------------------------------------- */

static void free_scratch(struct sdpi_scratch *s)
{
    sdpi_bpe_scratch_free(&s->bpe);
    sdpi_normal_scratch_free(&s->normal);
    sdpi_split_scratch_free(&s->split);
    sdpi_text_free(&s->repaired);
    free(s);
}

static struct sdpi_scratch *take_scratch(struct sdpi_pool *pool)
{
    struct sdpi_scratch *scratch;

    pthread_mutex_lock(&pool->lock);
    scratch = pool->idle;
    if (scratch)
        pool->idle = scratch->next;
    pthread_mutex_unlock(&pool->lock);
    return scratch ? scratch : sdp_xcalloc(1, sizeof *scratch);
}

static void give_scratch(struct sdpi_pool *pool, struct sdpi_scratch *scratch)
{
    pthread_mutex_lock(&pool->lock);
    scratch->next = pool->idle;
    pool->idle = scratch;
    pthread_mutex_unlock(&pool->lock);
}

void sdp_tokenizer_destroy(struct sdp_tokenizer *t)
{
    struct sdpi_scratch *next;

    if (!t)
        return;
    for (struct sdpi_scratch *s = t->pool->idle; s; s = next) {
        next = s->next;
        free_scratch(s);
    }
    pthread_mutex_destroy(&t->pool->lock);
    free(t->pool);
    free(t->added_by_id);
    sdpi_bpe_free(&t->bpe);
    sdpi_added_free(&t->added);
    sdpi_normalizer_free(&t->normalizer);
    sdpi_splitter_free(&t->splitter);
    sdpi_post_free(&t->post);
    sdpi_decoder_free(&t->decoder);
    free(t);
}

/* -- the vocabulary ------------------------------------------------------- */

size_t sdp_tokenizer_vocabulary(const struct sdp_tokenizer *t)
{
    return t->limit;
}

int32_t sdp_tokenizer_id(const struct sdp_tokenizer *t, const char *token, size_t length)
{
    int32_t index = sdpi_names_id(&t->added.ids, token, length);

    return index >= 0 ? t->added.tokens[index].id
                      : sdpi_names_id(&t->bpe.names, token, length);
}

static const struct sdpi_added_token *added_token(const struct sdp_tokenizer *t,
                                                  int32_t id)
{
    if (id < 0 || (size_t)id >= t->limit || t->added_by_id[id] == 0)
        return NULL;
    return &t->added.tokens[t->added_by_id[id] - 1];
}

const char *sdp_tokenizer_token(const struct sdp_tokenizer *t, int32_t id, size_t *length)
{
    const struct sdpi_added_token *added = added_token(t, id);
    const struct sdpi_name *name = sdpi_bpe_name(&t->bpe, id);

    if (added) {
        *length = added->length;
        return added->content;
    }
    if (!name)
        return NULL;
    *length = name->length;
    return t->bpe.names.text.data + name->offset;
}

/* -- encoding ------------------------------------------------------------- */

struct encoding {
    const struct sdp_tokenizer *t;
    struct sdpi_scratch *scratch;
    struct sdp_ids *out;
    struct sdp_error *err;
};

static void add_piece(void *context, const char *text, size_t length, const char *end)
{
    struct encoding *e = context;

    sdpi_bpe_encode(&e->t->bpe, &e->scratch->bpe, text, length, end, e->out);
}

/* Normalized text from one of the plain added tokens to the next. */
static enum sdp_status encode_section(struct encoding *e, const char *text, size_t length,
                                      const char *end, bool first)
{
    const struct sdpi_split_sink sink = {e, add_piece};
    struct sdpi_added_walk walk = {.added = &e->t->added,
                                   .tree = &e->t->added.normalized};
    const char *before = text;
    enum sdp_status status;
    size_t from, to;
    bool cut = false;
    int32_t id;

    status = sdpi_normalize(&e->t->normalizer, &e->scratch->normal, &text, &length, &cut,
                            e->err);
    if (text != before)
        end = text + length;
    walk.text = text;
    walk.length = length;
    while (status == SDP_OK && sdpi_added_next(&walk, &from, &to, &id)) {
        status = sdpi_split(&e->t->splitter, &e->scratch->split, text + from, to - from,
                            end, first && from == 0 && !cut, &sink, e->err);
        if (id >= 0)
            sdp_ids_add(e->out, &id, 1);
    }
    return status;
}

static enum sdp_status encode_text(struct encoding *e, const char *text, size_t length)
{
    struct sdpi_added_walk walk = {.added = &e->t->added,
                                   .tree = &e->t->added.plain,
                                   .text = text,
                                   .length = length};
    enum sdp_status status = SDP_OK;
    size_t from, to;
    int32_t id;

    while (status == SDP_OK && sdpi_added_next(&walk, &from, &to, &id)) {
        if (to > from)
            status = encode_section(e, text + from, to - from, text + length, from == 0);
        if (id >= 0)
            sdp_ids_add(e->out, &id, 1);
    }
    return status;
}

enum sdp_status sdp_tokenizer_encode(const struct sdp_tokenizer *t, const char *text,
                                     size_t length, bool add_special, struct sdp_ids *out,
                                     struct sdp_error *err)
{
    struct encoding e = {.t = t, .out = out, .err = err};
    size_t before = out->count;
    enum sdp_status status;

    if (length > UINT32_MAX / 2)
        return sdp_fail(err, SDP_INPUT,
                        "a text has %zu bytes; at most %u can be tokenized "
                        "at once",
                        length, UINT32_MAX / 2);
    e.scratch = take_scratch(t->pool);
    if (sdpi_utf8_valid(text, length) < length) {
        e.scratch->repaired.length = 0;
        sdpi_utf8_repair(&e.scratch->repaired, text, length);
        text = e.scratch->repaired.data;
        length = e.scratch->repaired.length;
    }
    if (add_special)
        sdp_ids_add(out, t->post.before.ids, t->post.before.count);
    status = encode_text(&e, text, length);
    if (add_special)
        sdp_ids_add(out, t->post.behind.ids, t->post.behind.count);
    give_scratch(t->pool, e.scratch);
    if (status != SDP_OK)
        out->count = before;
    return status;
}

/* -- decoding ------------------------------------------------------------- */

/* Tokens that were looked for in normalized text are written as they stand there. */
static void add_token(const struct sdp_tokenizer *t, int32_t id, bool skip_special,
                      struct sdpi_parts *parts)
{
    const struct sdpi_added_token *added = added_token(t, id);
    size_t length = 0;
    const char *token = sdp_tokenizer_token(t, id, &length);

    if (!token || (added && added->special && skip_special))
        return;
    if (parts->count > 0 && !t->decoder.given)
        sdpi_text_add(&parts->text, " ", 1);
    if (added)
        sdpi_text_add(&parts->text, added->pattern, added->pattern_length);
    else
        sdpi_text_add(&parts->text, token, length);
    sdpi_parts_end(parts);
}

enum sdp_status sdp_tokenizer_decode(const struct sdp_tokenizer *t, const int32_t *ids,
                                     size_t count, bool skip_special, char **text,
                                     size_t *length, struct sdp_error *err)
{
    struct sdpi_parts parts = {.ends = NULL};
    enum sdp_status status;

    for (size_t i = 0; i < count; i++)
        add_token(t, ids[i], skip_special, &parts);
    status = sdpi_decode(&t->decoder, &parts, err);
    if (status == SDP_OK) {
        *length = parts.text.length;
        sdpi_text_add(&parts.text, "", 1);
        *text = parts.text.data;
        parts.text.data = NULL;
    }
    sdpi_parts_free(&parts);
    return status;
}
