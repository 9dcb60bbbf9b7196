/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The options of a verb: long ones only, "--name VALUE" or "--name=VALUE", in
 * any order with the positional arguments; "--" ends the options. A wrong option
 * is told with the nearest right one. */
#ifndef SDP_GRAPH_OPTIONS_H
#define SDP_GRAPH_OPTIONS_H

#include "graph/base/error.h"
#include "graph/verb.h"

#include <stdbool.h>
#include <stddef.h>

enum sdp_option_kind {
    SDP_OPTION_FLAG,  /* bool: set to true */
    SDP_OPTION_TEXT,  /* const char *: the last one given */
    SDP_OPTION_LIST,  /* struct sdp_option_list: may be repeated */
    SDP_OPTION_RANGE, /* struct sdp_option_range: FIRST:LAST, or one number for both */
    SDP_OPTION_SIZE,  /* size_t: a decimal number */
    SDP_OPTION_BYTES, /* size_t: "22GiB" */
    SDP_OPTION_CHOICE /* int: index into choices */
};

/* Texts are [borrowed] from argv. */
struct sdp_option_list {
    const char **items; /* [new] free() it; in the order given */
    size_t count;
};

struct sdp_option_range {
    size_t first, last; /* 1 <= first <= last; untouched (0 0) when not given */
};

struct sdp_option {
    const char *name; /* without the dashes */
    enum sdp_option_kind kind;
    void *value;          /* what the kind says; holds the default */
    const char *argument; /* its name in the help: "KEY=VALUE"; NULL for a flag */
    const char *help;
    const char *const *choices; /* NULL-ended; SDP_OPTION_CHOICE only */
};

/** Reads a verb's arguments. `options` ends with name NULL. The positional
 * arguments, between `min` and `max` of them, are put in `positional` (room for
 * max, the rest is left as it was) and *count (may be NULL). Returns -1 when the verb
 * shall go on, or the exit code to return: 0 after --help (printed to stdout), 2 after a
 * message. */
int sdp_options_parse(const struct sdp_verb *verb, const struct sdp_option *options,
                      int argc, char **argv, size_t min, size_t max,
                      const char **positional, size_t *count);

#endif
