/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The .npy header: what is accepted lies within the file. */
#include "model/data/npy.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_map map = {size ? data : NULL, size};
    struct sdp_npy npy = {SDP_UINT16, 0, NULL};

    if (sdp_npy_parse(&map, "input.npy", &npy, &err) == SDP_OK) {
        FUZZ_CHECK(npy.data >= data && npy.data <= data + size);
        FUZZ_CHECK(npy.count * sdp_dtype_size(npy.dtype) == (size_t)(data + size - npy.data));
    } else {
        FUZZ_CHECK(err.status == SDP_INPUT && err.text[0]);
    }
    return 0;
}
