/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shapes of `rmsnorm`. */
#include "tests/codelets/op_cases.h"

static const struct sdp_op_case cases[] = {
    {.label = "one token",
     .sequences = 1,
     .length = 1,
     .inputs = {8},
     .weights = {{.rows = 1, .cols = 8}}},
    {.label = "odd",
     .sequences = 3,
     .length = 7,
     .inputs = {67},
     .weights = {{.rows = 1, .cols = 67}},
     .attrs = {{"eps", 1e-5}}},
    {.label = "offset",
     .sequences = 2,
     .length = 32,
     .inputs = {256},
     .weights = {{.rows = 1, .cols = 256}},
     .attrs = {{"eps", 0.25}, {"offset", 1.0}}},
    {.label = "wide",
     .sequences = 5,
     .length = 27,
     .inputs = {1032},
     .weights = {{.rows = 1, .cols = 1032}}},
};

const struct sdp_op_cases sdp_op_cases_rmsnorm = {"rmsnorm", cases, SDP_COUNT_OF(cases)};
