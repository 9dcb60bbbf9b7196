/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shapes of `cross_entropy`: vocabularies that no vector divides, and more tokens than a
 * chunk has. */
#include "tests/codelets/op_cases.h"

static const struct sdp_op_case cases[] = {
    {.label = "one token",
     .sequences = 1,
     .length = 1,
     .inputs = {16},
     .weights = {{0, 7, 16}}},
    {.label = "odd",
     .sequences = 3,
     .length = 9,
     .inputs = {33},
     .weights = {{0, 101, 33}}},
    {.label = "even",
     .sequences = 2,
     .length = 32,
     .inputs = {64},
     .weights = {{0, 512, 64}}},
    {.label = "some chunks",
     .sequences = 3,
     .length = 67,
     .inputs = {24},
     .weights = {{0, 16411, 24}}},
};

const struct sdp_op_cases sdp_op_cases_cross_entropy = {"cross_entropy", cases,
                                                        SDP_COUNT_OF(cases)};
