/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shapes of `attention`: sequences of less than a block, of some blocks and a rest;
 * windows from one key to more than the sequence. */
#include "tests/codelets/op_cases.h"

#define HEADS(h, kv, dim)                                                                \
    {"heads", h}, {"kv_heads", kv},                                                      \
    {                                                                                    \
        "head_dim", dim                                                                  \
    }

static const struct sdp_op_case cases[] = {
    {.label = "one token",
     .sequences = 1,
     .length = 1,
     .inputs = {3 * 16},
     .attrs = {HEADS(1, 1, 16)}},
    {.label = "sequences of one token",
     .sequences = 5,
     .length = 1,
     .inputs = {4 * 64},
     .attrs = {HEADS(2, 1, 64)}},
    {.label = "1:1",
     .sequences = 2,
     .length = 37,
     .inputs = {6 * 64},
     .attrs = {HEADS(2, 2, 64)}},
    {.label = "4:1",
     .sequences = 2,
     .length = 130,
     .inputs = {12 * 64},
     .attrs = {HEADS(8, 2, 64)}},
    {.label = "4:1, large heads",
     .sequences = 1,
     .length = 101,
     .inputs = {6 * 128},
     .attrs = {HEADS(4, 1, 128)}},
    {.label = "2:1, small heads",
     .sequences = 3,
     .length = 64,
     .inputs = {8 * 16},
     .attrs = {HEADS(4, 2, 16)}},
    {.label = "window",
     .sequences = 2,
     .length = 150,
     .inputs = {8 * 64},
     .attrs = {HEADS(4, 2, 64), {"window", 40}}},
    {.label = "window over blocks",
     .sequences = 1,
     .length = 203,
     .inputs = {4 * 32},
     .attrs = {HEADS(2, 1, 32), {"window", 97}}},
    {.label = "long",
     .sequences = 1,
     .length = 333,
     .inputs = {4 * 32},
     .attrs = {HEADS(2, 1, 32)}},
    {.label = "long window",
     .sequences = 2,
     .length = 601,
     .inputs = {4 * 16},
     .attrs = {HEADS(2, 1, 16), {"window", 290}}},
    {.label = "window of one key",
     .sequences = 1,
     .length = 70,
     .inputs = {4 * 64},
     .attrs = {HEADS(2, 1, 64), {"window", 1}}},
    {.label = "window of more than the sequence",
     .sequences = 2,
     .length = 65,
     .inputs = {4 * 128},
     .attrs = {HEADS(2, 1, 128), {"window", 66}}},
};

const struct sdp_op_cases sdp_op_cases_attention = {"attention", cases,
                                                    SDP_COUNT_OF(cases)};
