/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shapes of `add`: less than a vector, and with a rest. */
#include "tests/codelets/op_cases.h"

static const struct sdp_op_case cases[] = {
    {.label = "one element", .sequences = 1, .length = 1, .inputs = {1, 1}},
    {.label = "odd", .sequences = 3, .length = 5, .inputs = {67, 67}},
    {.label = "even", .sequences = 2, .length = 32, .inputs = {256, 256}},
};

const struct sdp_op_cases sdp_op_cases_add = {"add", cases, SDP_COUNT_OF(cases)};
