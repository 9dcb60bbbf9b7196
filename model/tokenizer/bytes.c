/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "model/tokenizer/bytes.h"

void sdp_bytes_encode(const uint8_t *text, size_t count, int32_t *ids)
{
    for (size_t i = 0; i < count; i++)
        ids[i] = text[i];
}
