/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory of a twin between guards, with its values in double beside it. */
#ifndef SDP_TESTS_CODELETS_OP_ARRAY_H
#define SDP_TESTS_CODELETS_OP_ARRAY_H

#include "tests/codelets/op_check.h"

enum op_kind { OP_FP32, OP_BF16, OP_INT32, OP_FP64 };

struct op_array {
    const struct sdp_op_check *check; /* [borrowed] whose memory it is */
    enum op_kind kind;
    size_t count;
    char *memory; /* guard, data, guard; NULL: the array is absent */
    double *value;
};

/* How many random values were drawn: the next ones follow from it. */
extern uint64_t op_array_drawn;

size_t op_kind_size(enum op_kind kind);
enum op_kind op_kind_of(enum sdp_dtype dtype);

/** Data undefined, values 0. Ends the test if there is no memory. [new] */
struct op_array op_array_new(const struct sdp_op_check *check, enum op_kind kind,
                             size_t count);
void op_array_destroy(struct op_array *a);

size_t op_array_bytes(const struct op_array *a);
/** The data, or NULL. */
void *op_array_data(const struct op_array *a);
/** Its n-th element, or NULL. */
void *op_array_at(const struct op_array *a, size_t n);
/** Value of the element at `from`. */
double op_array_decode(enum op_kind kind, const char *from);

/** Puts the values into the memory; they become what it can hold. */
void op_array_store(struct op_array *a);
/** Sets all values: normal ones, or NaN. */
void op_array_random(struct op_array *a);
void op_array_poison(struct op_array *a);
/** Sets all bytes of the data; the values stay. */
void op_array_fill_bytes(struct op_array *a, int byte);

/** The data's bytes, and how many bytes beside it were written. [new] free() it. */
char *op_array_load(const struct op_array *a, size_t *beside);

#endif
