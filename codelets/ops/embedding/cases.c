/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shapes of `embedding`: rows that many tokens share, and rows that none has. */
#include "tests/codelets/op_cases.h"

static const struct sdp_op_case cases[] = {
    {.label = "one token",
     .sequences = 1,
     .length = 1,
     .weights = {{.rows = 3, .cols = 5}}},
    {.label = "one row",
     .sequences = 2,
     .length = 50,
     .weights = {{.rows = 1, .cols = 64}}},
    {.label = "odd",
     .sequences = 3,
     .length = 17,
     .weights = {{.rows = 11, .cols = 67}},
     .attrs = {{"scale", 2.5}}},
    {.label = "many rows",
     .sequences = 2,
     .length = 64,
     .weights = {{.rows = 1009, .cols = 256}}},
};

const struct sdp_op_cases sdp_op_cases_embedding = {"embedding", cases,
                                                    SDP_COUNT_OF(cases)};
