/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* libFuzzer target: a tokenizer.json, a line "\n---\n", and a text. Whatever the bytes,
 * the tokenizer is read or refused with a message, and what it encodes it can decode. */
#include "model/tokenizer/tokenizer.h"

#include <stdlib.h>

#define LIMIT 2048 /* bytes of text: expressions may be slow by design */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct sdp_tokenizer *t, const char *text, size_t length)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_ids ids = {NULL, 0, 0};
    size_t size = 0;
    char *decoded = NULL;

    if (sdp_tokenizer_encode(t, text, SDP_MIN(length, (size_t)LIMIT), true, &ids, &err) ==
        SDP_OK) {
        for (size_t i = 0; i < ids.count; i++)
            if (ids.ids[i] < 0 || (size_t)ids.ids[i] >= sdp_tokenizer_vocabulary(t))
                abort();
        if (sdp_tokenizer_decode(t, ids.ids, ids.count, false, &decoded, &size, &err) !=
                SDP_OK &&
            err.text[0] == '\0')
            abort();
    } else if (err.text[0] == '\0') {
        abort();
    }
    free(decoded);
    sdp_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mark[] = "\n---\n";
    const uint8_t *found = memmem(data, size, mark, sizeof mark - 1);
    size_t length = found ? (size_t)(found - data) : size;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_tokenizer *t = NULL;

    if (sdp_tokenizer_parse((const char *)data, length, "fuzz", &t, &err) != SDP_OK) {
        if (err.text[0] == '\0' || t)
            abort();
        return 0;
    }
    if (found)
        use(t, (const char *)found + sizeof mark - 1, size - length - (sizeof mark - 1));
    use(t, (const char *)data, length);
    sdp_tokenizer_destroy(t);
    return 0;
}
