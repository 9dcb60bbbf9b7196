/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Holds the place of the reader of tokenizer.json. */
#include "model/tokenizer/tokenizer.h"

#include <stdlib.h>

enum sdp_status sdp_tokenizer_load(const char *path, struct sdp_tokenizer **out,
                                   struct sdp_error *err)
{
    (void)out;
    return sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                       "tokenizer.json cannot be read yet; use \"bytes\"");
}

enum sdp_status sdp_tokenizer_parse(const char *text, size_t size, const char *name,
                                    struct sdp_tokenizer **out, struct sdp_error *err)
{
    (void)text;
    (void)size;
    return sdp_tokenizer_load(name, out, err);
}

void sdp_tokenizer_destroy(struct sdp_tokenizer *t)
{
    (void)t;
}

size_t sdp_tokenizer_vocabulary(const struct sdp_tokenizer *t)
{
    (void)t;
    return 0;
}

int32_t sdp_tokenizer_id(const struct sdp_tokenizer *t, const char *token, size_t length)
{
    (void)t;
    (void)token;
    (void)length;
    return -1;
}

const char *sdp_tokenizer_token(const struct sdp_tokenizer *t, int32_t id, size_t *length)
{
    (void)t;
    (void)id;
    (void)length;
    return NULL;
}

void sdp_ids_free(struct sdp_ids *ids)
{
    free(ids->ids);
    *ids = (struct sdp_ids){NULL, 0, 0};
}

void sdp_ids_reserve(struct sdp_ids *ids, size_t more)
{
    if (ids->room - ids->count >= more)
        return;
    ids->room = SDP_MAX(ids->count + more, ids->room + ids->room / 2);
    ids->ids = sdp_xrealloc(ids->ids, ids->room * sizeof *ids->ids);
}

void sdp_ids_add(struct sdp_ids *ids, const int32_t *from, size_t count)
{
    sdp_ids_reserve(ids, count);
    if (count > 0)
        memcpy(ids->ids + ids->count, from, count * sizeof *from);
    ids->count += count;
}

enum sdp_status sdp_tokenizer_encode(const struct sdp_tokenizer *t, const char *text,
                                     size_t length, bool add_special, struct sdp_ids *out,
                                     struct sdp_error *err)
{
    (void)t;
    (void)text;
    (void)length;
    (void)add_special;
    (void)out;
    return sdp_fail(err, SDP_INTERNAL, "there is no tokenizer");
}

enum sdp_status sdp_tokenizer_decode(const struct sdp_tokenizer *t, const int32_t *ids,
                                     size_t count, bool skip_special, char **text,
                                     size_t *length, struct sdp_error *err)
{
    (void)t;
    (void)ids;
    (void)count;
    (void)skip_special;
    (void)text;
    (void)length;
    return sdp_fail(err, SDP_INTERNAL, "there is no tokenizer");
}
