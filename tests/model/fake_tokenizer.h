/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A tokenizer for tests in place of the real one: bytes, a few special tokens, and pairs
 * that become one token, so that an answer may begin or end within a token. It reads any
 * file. */
#ifndef SDP_TESTS_MODEL_FAKE_TOKENIZER_H
#define SDP_TESTS_MODEL_FAKE_TOKENIZER_H

#include "model/tokenizer/tokenizer.h"

#include <stdlib.h>

#define FAKE_BOS 256
#define FAKE_EOS 257

static const char *const fake_tokens[] = {
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "\n\n", "ab", NULL};

struct sdp_tokenizer {
    int unused;
};

enum sdp_status sdp_tokenizer_load(const char *path, struct sdp_tokenizer **out,
                                   struct sdp_error *err)
{
    if (!sdp_path_exists(path))
        return sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0, "there is no such file");
    *out = sdp_xcalloc(1, sizeof **out);
    return SDP_OK;
}

void sdp_tokenizer_destroy(struct sdp_tokenizer *t)
{
    free(t);
}

size_t sdp_tokenizer_vocabulary(const struct sdp_tokenizer *t)
{
    (void)t;
    return 256 + SDP_COUNT_OF(fake_tokens) - 1;
}

int32_t sdp_tokenizer_id(const struct sdp_tokenizer *t, const char *token, size_t length)
{
    (void)t;
    for (int32_t i = 0; fake_tokens[i]; i++)
        if (strlen(fake_tokens[i]) == length &&
            memcmp(fake_tokens[i], token, length) == 0)
            return 256 + i;
    return -1;
}

const char *sdp_tokenizer_token(const struct sdp_tokenizer *t, int32_t id, size_t *length)
{
    (void)t;
    if (id < 256 || (size_t)id >= 256 + SDP_COUNT_OF(fake_tokens) - 1)
        return NULL;
    *length = strlen(fake_tokens[id - 256]);
    return fake_tokens[id - 256];
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

static inline void fake_push(struct sdp_ids *out, int32_t id)
{
    sdp_ids_reserve(out, 1);
    out->ids[out->count++] = id;
}

enum sdp_status sdp_tokenizer_encode(const struct sdp_tokenizer *t, const char *text,
                                     size_t length, bool add_special, struct sdp_ids *out,
                                     struct sdp_error *err)
{
    (void)t;
    (void)err;
    if (add_special)
        fake_push(out, FAKE_BOS);
    for (size_t at = 0; at < length;) {
        int32_t id = (uint8_t)text[at];
        size_t taken = 1;

        for (int32_t i = 0; fake_tokens[i]; i++) {
            size_t bytes = strlen(fake_tokens[i]);

            if (i == 4 && at + 2 < length && text[at + 2] >= 'a' && text[at + 2] <= 'z')
                continue; /* two ids before a small letter: what follows has its say */
            if (bytes <= length - at && memcmp(text + at, fake_tokens[i], bytes) == 0) {
                id = 256 + i;
                taken = bytes;
            }
        }
        fake_push(out, id);
        at += taken;
    }
    return SDP_OK;
}

enum sdp_status sdp_tokenizer_decode(const struct sdp_tokenizer *t, const int32_t *ids,
                                     size_t count, bool skip_special, char **text,
                                     size_t *length, struct sdp_error *err)
{
    size_t used = 0;

    (void)skip_special;
    (void)err;
    *text = sdp_xcalloc(count * 16 + 1, 1);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 1;
        const char *token = sdp_tokenizer_token(t, ids[i], &bytes);
        char byte = (char)ids[i];

        memcpy(*text + used, token ? token : &byte, bytes);
        used += bytes;
    }
    *length = used;
    return SDP_OK;
}

#endif
