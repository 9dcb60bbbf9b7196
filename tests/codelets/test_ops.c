/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The CPU twins of all operations against the reference, on the cases of their folders.
 */
#include "tests/codelets/op_check.h"

#include <cblas.h>
#include <stdlib.h>

static void *allocate(size_t bytes)
{
    return aligned_alloc(256, bytes);
}

static void upload(void *memory, const void *from, size_t bytes)
{
    memcpy(memory, from, bytes);
}

static void download(void *to, const void *memory, size_t bytes)
{
    memcpy(to, memory, bytes);
}

int main(void)
{
    struct sdp_op_check check = {.dtype = SDP_FP32,
                                 .tolerance = 1e-5,
                                 .allocate = allocate,
                                 .release = free,
                                 .upload = upload,
                                 .download = download};

    openblas_set_num_threads(1);
    return sdp_op_check_all(&check);
}
