/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See op_array.h. */
#include "tests/codelets/op_array.h"

#include <stdio.h>
#include <stdlib.h>

#define GUARD      256 /* bytes before and after the data */
#define GUARD_BYTE 0xa5

size_t op_kind_size(enum op_kind kind)
{
    static const size_t sizes[] = {4, 2, 4, 8};

    return sizes[kind];
}

enum op_kind op_kind_of(enum sdp_dtype dtype)
{
    return dtype == SDP_BF16 ? OP_BF16 : OP_FP32;
}

size_t op_array_bytes(const struct op_array *a)
{
    return a->count * op_kind_size(a->kind);
}

void *op_array_data(const struct op_array *a)
{
    return a->memory ? a->memory + GUARD : NULL;
}

void *op_array_at(const struct op_array *a, size_t n)
{
    return a->memory ? a->memory + GUARD + n * op_kind_size(a->kind) : NULL;
}

struct op_array op_array_new(const struct sdp_op_check *check, enum op_kind kind,
                             size_t count)
{
    struct op_array a = {check, kind, count, NULL, NULL};
    size_t bytes = op_array_bytes(&a) + 2 * GUARD;
    char *fill = sdp_xcalloc(bytes, 1);

    a.memory = check->allocate(sdp_round_up(bytes, GUARD));
    if (!a.memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    a.value = sdp_xcalloc(count, sizeof *a.value);
    memset(fill, GUARD_BYTE, bytes);
    check->upload(a.memory, fill, bytes);
    free(fill);
    return a;
}

void op_array_destroy(struct op_array *a)
{
    if (a->memory)
        a->check->release(a->memory);
    free(a->value);
    memset(a, 0, sizeof *a);
}

static void encode(enum op_kind kind, char *to, double value)
{
    float single = (float)value;
    uint16_t half = sdp_bf16_from_float(single);
    int32_t whole = kind == OP_INT32 ? (int32_t)value : 0;

    if (kind == OP_FP32)
        memcpy(to, &single, sizeof single);
    else if (kind == OP_BF16)
        memcpy(to, &half, sizeof half);
    else if (kind == OP_INT32)
        memcpy(to, &whole, sizeof whole);
    else
        memcpy(to, &value, sizeof value);
}

double op_array_decode(enum op_kind kind, const char *from)
{
    double value = 0.0;
    float single;
    uint16_t half;

    if (kind == OP_FP32) {
        memcpy(&single, from, sizeof single);
        return (double)single;
    }
    if (kind == OP_BF16) {
        memcpy(&half, from, sizeof half);
        return (double)sdp_bf16_to_float(half);
    }
    if (kind == OP_FP64)
        memcpy(&value, from, sizeof value);
    return value;
}

void op_array_store(struct op_array *a)
{
    size_t size = op_kind_size(a->kind);
    char *bytes = sdp_xcalloc(a->count, size);

    for (size_t i = 0; i < a->count; i++) {
        encode(a->kind, bytes + i * size, a->value[i]);
        if (a->kind != OP_INT32)
            a->value[i] = op_array_decode(a->kind, bytes + i * size);
    }
    a->check->upload(op_array_data(a), bytes, op_array_bytes(a));
    free(bytes);
}

void op_array_fill_bytes(struct op_array *a, int byte)
{
    char *bytes = sdp_xcalloc(op_array_bytes(a), 1);

    memset(bytes, byte, op_array_bytes(a));
    a->check->upload(op_array_data(a), bytes, op_array_bytes(a));
    free(bytes);
}

uint64_t op_array_drawn;

void op_array_random(struct op_array *a)
{
    for (size_t i = 0; i < a->count; i++)
        a->value[i] = (double)sdp_random_normal(11, op_array_drawn++);
    op_array_store(a);
}

void op_array_poison(struct op_array *a)
{
    for (size_t i = 0; i < a->count; i++)
        a->value[i] = NAN;
    op_array_store(a);
}

char *op_array_load(const struct op_array *a, size_t *beside)
{
    size_t bytes = op_array_bytes(a);
    unsigned char *all = sdp_xcalloc(bytes + 2 * GUARD, 1);
    char *data = sdp_xcalloc(bytes, 1);

    a->check->download(all, a->memory, bytes + 2 * GUARD);
    *beside = 0;
    for (size_t i = 0; i < GUARD; i++)
        *beside += (all[i] != GUARD_BYTE) + (all[GUARD + bytes + i] != GUARD_BYTE);
    memcpy(data, all + GUARD, bytes);
    free(all);
    return data;
}
