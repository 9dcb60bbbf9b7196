/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The option parser of the verbs: every kind, every message. */
#define _GNU_SOURCE
#include "graph/base/util.h"
#include "graph/options.h"
#include "tests/sdp_test.h"

#include <unistd.h>

static int never(int argc, char **argv)
{
    (void)argv;
    return argc;
}

static const struct sdp_verb verb = {"try", "Tries options", "JOB [OTHER]", never};
static const char *const colours[] = {"red", "green", NULL};

static struct {
    bool quiet;
    const char *policy;
    struct sdp_option_list set;
    struct sdp_option_range trace;
    size_t threads, memory;
    int colour;
    const char *positional[2];
    size_t count;
} got;

static char printed[8192]; /* what the last call wrote to stdout and stderr */

/* Runs the parser on a command line cut at spaces. */
static int parse(const char *line)
{
    const struct sdp_option options[] = {
        {"quiet", SDP_OPTION_FLAG, &got.quiet, NULL, "say less", NULL},
        {"policy", SDP_OPTION_TEXT, &got.policy, "NAME", "use this policy", NULL},
        {"set", SDP_OPTION_LIST, &got.set, "KEY=VALUE", "change the job", NULL},
        {"trace", SDP_OPTION_RANGE, &got.trace, "FIRST:LAST", "record these steps", NULL},
        {"threads", SDP_OPTION_SIZE, &got.threads, "N", "use so many", NULL},
        {"memory", SDP_OPTION_BYTES, &got.memory, "BYTES", "use so much", NULL},
        {"colour", SDP_OPTION_CHOICE, &got.colour, "NAME", "one of red, green", colours},
        {NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL},
    };
    char *copy = sdp_xprintf("try %s", line), *save = NULL, *argv[32];
    static char *kept; /* texts are borrowed from argv */
    int argc = 0, rc, fds[2], out, errors;
    ssize_t size;

    free(kept);
    kept = copy;
    free(got.set.items);
    memset(&got, 0, sizeof got);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    argv[argc] = NULL;
    fflush(stdout);
    out = dup(STDOUT_FILENO);
    errors = dup(STDERR_FILENO);
    REQUIRE(out >= 0 && errors >= 0 && pipe(fds) == 0);
    REQUIRE(dup2(fds[1], STDOUT_FILENO) >= 0 && dup2(fds[1], STDERR_FILENO) >= 0);
    rc = sdp_options_parse(&verb, options, argc, argv, 1, 2, got.positional, &got.count);
    fflush(stdout);
    REQUIRE(dup2(out, STDOUT_FILENO) >= 0 && dup2(errors, STDERR_FILENO) >= 0);
    close(out);
    close(errors);
    close(fds[1]);
    size = read(fds[0], printed, sizeof printed - 1);
    close(fds[0]);
    printed[size > 0 ? size : 0] = '\0';
    return rc;
}

static void check_refused(const char *line, const char *message)
{
    char *wanted = sdp_xprintf("slidedp: try: %s\n", message);

    CHECK_EQ(parse(line), 2);
    CHECK_STR(printed, wanted);
    free(wanted);
}

static void test_accepted(void)
{
    CHECK_EQ(parse("job.json"), -1);
    CHECK_STR(got.positional[0], "job.json");
    CHECK(got.count == 1 && !got.quiet && got.set.count == 0 && got.trace.first == 0);
    CHECK_EQ(
        parse("--quiet a --set x=1 --set=y=2=3 b --trace 3:5 --policy eager --threads 12 "
              "--memory 2MiB --colour green"),
        -1);
    CHECK(got.quiet && got.count == 2 && got.set.count == 2);
    CHECK_STR(got.positional[1], "b");
    CHECK_STR(got.set.items[0], "x=1");
    CHECK_STR(got.set.items[1], "y=2=3");
    CHECK_STR(got.policy, "eager");
    CHECK(got.trace.first == 3 && got.trace.last == 5 && got.threads == 12 &&
          got.colour == 1);
    CHECK_EQ(got.memory, (size_t)2 << 20);
    CHECK_EQ(parse("- --trace=4 -- --quiet"), -1);
    CHECK(got.trace.first == 4 && got.trace.last == 4 && !got.quiet);
    CHECK_STR(got.positional[0], "-");
    CHECK_STR(got.positional[1], "--quiet");
    CHECK_EQ(parse("a --policy eager --policy=lws"), -1);
    CHECK_STR(got.policy, "lws");
    CHECK_STR(printed, "");
}

static void test_refused(void)
{
    check_refused("", "an argument is missing; usage: slidedp try JOB [OTHER]");
    check_refused("a b c", "unexpected argument \"c\"; usage: slidedp try JOB [OTHER]");
    check_refused("a --quite", "unknown option --quite; did you mean --quiet?");
    check_refused("a --polcy=x", "unknown option --polcy; did you mean --policy?");
    check_refused("a --nothing-like",
                  "unknown option --nothing-like; see `slidedp try --help`");
    check_refused("a -q",
                  "unknown option -q; options have long names, see `slidedp try --help`");
    check_refused("a --quiet=yes", "--quiet takes no value");
    check_refused("a --set", "--set needs a value: --set KEY=VALUE");
    check_refused("a --set --quiet", "--set needs a value: --set KEY=VALUE");
    check_refused("a --trace 5:3",
                  "--trace is \"5:3\"; must be FIRST:LAST, counted from 1, such as 3:5");
    check_refused("a --trace 0:3",
                  "--trace is \"0:3\"; must be FIRST:LAST, counted from 1, such as 3:5");
    check_refused("a --trace 1:3x",
                  "--trace is \"1:3x\"; must be FIRST:LAST, counted from 1, such as 3:5");
    check_refused("a --trace :",
                  "--trace is \":\"; must be FIRST:LAST, counted from 1, such as 3:5");
    check_refused("a --threads -3", "--threads is \"-3\"; must be a whole number");
    check_refused("a --threads 99999999999999999999",
                  "--threads is \"99999999999999999999\"; must be a whole number");
    check_refused("a --memory lots",
                  "--memory is \"lots\"; must be bytes, such as 33554432 or \"22GiB\"");
    check_refused(
        "a --colour gren",
        "--colour is \"gren\"; must be one of red, green; did you mean \"green\"?");
}

static void test_help(void)
{
    CHECK_EQ(parse("--help"), 0);
    CHECK_STR(printed, "usage: slidedp try JOB [OTHER]\n\nTries options.\n\nOptions:\n"
                       "  --quiet                 say less\n"
                       "  --policy NAME           use this policy\n"
                       "  --set KEY=VALUE         change the job\n"
                       "  --trace FIRST:LAST      record these steps\n"
                       "  --threads N             use so many\n"
                       "  --memory BYTES          use so much\n"
                       "  --colour NAME           one of red, green\n");
    CHECK_EQ(parse("a --quiet -h"), 0);
}

int main(void)
{
    test_accepted();
    test_refused();
    test_help();
    parse("job.json"); /* frees what the last call left */
    free(got.set.items);
    return sdp_test_end();
}
