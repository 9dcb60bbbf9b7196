/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The safetensors header: every tensor that is accepted lies within the file, byte for
 * byte. */
#include "model/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors *file = NULL;
    char path[64];
    int fd = fuzz_file(data, size, path, sizeof path);
    volatile uint8_t sum = 0;

    if (sdp_safetensors_open(path, &file, &err) == SDP_OK) {
        for (size_t t = 0; t < file->count; t++) {
            const struct sdp_safetensor *tensor = &file->tensors[t];

            FUZZ_CHECK(tensor->bytes == 0 ||
                       (tensor->data >= file->map.data &&
                        tensor->data + tensor->bytes <= file->map.data + file->map.size));
            if (tensor->bytes > 0)
                sum = (uint8_t)(sum + tensor->data[0] + tensor->data[tensor->bytes - 1]);
        }
    } else {
        FUZZ_CHECK(err.status != SDP_OK && err.text[0]);
    }
    sdp_safetensors_close(file);
    close(fd);
    return 0;
}
