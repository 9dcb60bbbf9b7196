/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program: finds the verb in the generated table and runs it. */
#include "graph/base/log.h"
#include "graph/base/util.h"
#include "graph/verb.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef SDP_VERSION
#define SDP_VERSION "0.1.0"
#endif

static void print_help(FILE *to)
{
    fputs("usage: slidedp VERB [arguments]\n\n"
          "Fine-tunes language models whose state lives in host memory.\n\nVerbs:\n",
          to);
    for (size_t i = 0; sdp_verbs[i]; i++)
        fprintf(to, "  %-12s%s\n", sdp_verbs[i]->name, sdp_verbs[i]->summary);
    fputs("\n`slidedp VERB --help` tells more about a verb, `slidedp --version` the "
          "version.\n",
          to);
}

static const struct sdp_verb *find_verb(const char *name)
{
    for (size_t i = 0; sdp_verbs[i]; i++)
        if (strcmp(sdp_verbs[i]->name, name) == 0)
            return sdp_verbs[i];
    return NULL;
}

static int fail_unknown(const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    const char **names, *nearest;
    size_t count = 0;

    while (sdp_verbs[count])
        count++;
    names = sdp_xcalloc(count + 1, sizeof *names);
    for (size_t i = 0; i < count; i++)
        names[i] = sdp_verbs[i]->name;
    nearest = sdp_nearest(name, names);
    if (nearest)
        sdp_fail(&err, SDP_INPUT, "unknown verb \"%s\"; did you mean \"%s\"?", name,
                 nearest);
    else
        sdp_fail(&err, SDP_INPUT, "unknown verb \"%s\"; see `slidedp --help`", name);
    sdp_error_print(&err);
    free(names);
    return sdp_status_exit_code(err.status);
}

/* `slidedp help VERB` is `slidedp VERB --help`. */
static int help(int argc, char **argv)
{
    static char option[] = "--help";
    const struct sdp_verb *verb;
    char *args[] = {NULL, option, NULL};

    if (argc < 3) {
        print_help(stdout);
        return 0;
    }
    verb = find_verb(argv[2]);
    if (!verb)
        return fail_unknown(argv[2]);
    args[0] = argv[2];
    return verb->run(2, args);
}

static int dispatch(int argc, char **argv)
{
    const struct sdp_verb *verb;

    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return help(argc, argv);
    if (strcmp(argv[1], "--version") == 0) {
        fputs("slidedp " SDP_VERSION "\n", stdout);
        return 0;
    }
    verb = find_verb(argv[1]);
    return verb ? verb->run(argc - 1, argv + 1) : fail_unknown(argv[1]);
}

int main(int argc, char **argv)
{
    struct sdp_error err = SDP_ERROR_INIT;
    int code = dispatch(argc, argv);

    /* A full disk or a closed pipe shows here at the latest. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        sdp_fail(&err, SDP_IO, "writing to stdout failed");
        sdp_error_print(&err);
        return code ? code : 1;
    }
    return code;
}
