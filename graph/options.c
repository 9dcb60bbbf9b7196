/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The option parser that all verbs share, and the help it makes from the same
 * table, so that help and parser cannot differ. */
#define _GNU_SOURCE
#include "graph/options.h"

#include "graph/base/util.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_OPTIONS 32 /* of one verb, for the list of names */

struct reader {
    const struct sdp_verb *verb;
    const struct sdp_option *options;
    int argc, at; /* at: the next argument */
    char **argv;
    struct sdp_error err;
};

SDP_PRINTF(2, 3)
static bool fail(struct reader *reader, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    sdp_fail_at(&reader->err, SDP_INPUT, reader->verb->name, NULL, 0, 0, "%s", text);
    return false;
}

/* -- values ----------------------------------------------------------------- */

/* Decimal digits from *text on, which moves past them. */
static bool read_number(const char **text, size_t *out)
{
    const char *at = *text;
    size_t value = 0;

    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        size_t digit = (size_t)(*at - '0');
        if (value > (SIZE_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *text = at;
    *out = value;
    return true;
}

static bool read_range(const char *text, struct sdp_option_range *out)
{
    struct sdp_option_range range;

    if (!read_number(&text, &range.first))
        return false;
    range.last = range.first;
    if (*text == ':') {
        text++;
        if (!read_number(&text, &range.last))
            return false;
    }
    if (*text || range.first < 1 || range.last < range.first)
        return false;
    *out = range;
    return true;
}

static bool read_choice(struct reader *reader, const struct sdp_option *option,
                        const char *text)
{
    const char *nearest = sdp_nearest(text, option->choices);
    char words[256] = "";
    size_t used = 0;

    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *(int *)option->value = i;
            return true;
        }
        if (used < sizeof words)
            used += (size_t)snprintf(words + used, sizeof words - used, "%s%s",
                                     i ? ", " : "", option->choices[i]);
    }
    return fail(reader, "--%s is \"%s\"; must be one of %s%s%s%s", option->name, text,
                words, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                nearest ? "\"?" : "");
}

static void append(struct sdp_option_list *list, const char *text)
{
    list->items = sdp_xrealloc(list->items, (list->count + 1) * sizeof *list->items);
    list->items[list->count++] = text;
}

static bool set_value(struct reader *reader, const struct sdp_option *option,
                      const char *text)
{
    const char *end = text;
    size_t number;

    switch (option->kind) {
    case SDP_OPTION_FLAG:
        break;
    case SDP_OPTION_TEXT:
        *(const char **)option->value = text;
        break;
    case SDP_OPTION_LIST:
        append(option->value, text);
        break;
    case SDP_OPTION_RANGE:
        if (!read_range(text, option->value))
            return fail(reader,
                        "--%s is \"%s\"; must be FIRST:LAST, counted from 1, such as 3:5",
                        option->name, text);
        break;
    case SDP_OPTION_SIZE:
        if (!read_number(&end, &number) || *end)
            return fail(reader, "--%s is \"%s\"; must be a whole number", option->name,
                        text);
        *(size_t *)option->value = number;
        break;
    case SDP_OPTION_BYTES:
        if (!sdp_parse_bytes(text, option->value))
            return fail(reader,
                        "--%s is \"%s\"; must be bytes, such as 33554432 or \"22GiB\"",
                        option->name, text);
        break;
    case SDP_OPTION_CHOICE:
        return read_choice(reader, option, text);
    }
    return true;
}

/* -- arguments -------------------------------------------------------------- */

static bool fail_unknown(struct reader *reader, const char *name, size_t length)
{
    const char *names[MAX_OPTIONS + 2], *nearest;
    char *copy = sdp_xprintf("%.*s", (int)SDP_MIN(length, (size_t)200), name);
    size_t count = 0;

    for (; reader->options[count].name && count < MAX_OPTIONS; count++)
        names[count] = reader->options[count].name;
    names[count++] = "help";
    names[count] = NULL;
    nearest = sdp_nearest(copy, names);
    if (nearest)
        fail(reader, "unknown option --%s; did you mean --%s?", copy, nearest);
    else
        fail(reader, "unknown option --%s; see `slidedp %s --help`", copy,
             reader->verb->name);
    free(copy);
    return false;
}

/* One "--name", "--name=value" or "--name value". */
static bool read_option(struct reader *reader, const char *name)
{
    const struct sdp_option *option = reader->options;
    size_t length = strcspn(name, "=");
    const char *text = name[length] ? name + length + 1 : NULL;

    while (option->name &&
           (strlen(option->name) != length || strncmp(option->name, name, length)))
        option++;
    if (!option->name)
        return fail_unknown(reader, name, length);
    if (option->kind == SDP_OPTION_FLAG) {
        if (text)
            return fail(reader, "--%s takes no value", option->name);
        *(bool *)option->value = true;
        return true;
    }
    if (!text && reader->at < reader->argc &&
        strncmp(reader->argv[reader->at], "--", 2) != 0)
        text = reader->argv[reader->at++];
    if (!text)
        return fail(reader, "--%s needs a value: --%s %s", option->name, option->name,
                    option->argument);
    return set_value(reader, option, text);
}

static bool read_positional(struct reader *reader, const char *text, size_t max,
                            const char **positional, size_t *used)
{
    if (*used == max)
        return fail(reader, "unexpected argument \"%s\"; usage: slidedp %s %s", text,
                    reader->verb->name, reader->verb->usage);
    positional[(*used)++] = text;
    return true;
}

static void print_help(const struct sdp_verb *verb, const struct sdp_option *options)
{
    fprintf(stdout, "usage: slidedp %s %s\n\n%s.\n", verb->name, verb->usage,
            verb->summary);
    if (options->name)
        fputs("\nOptions:\n", stdout);
    for (; options->name; options++) {
        int width =
            fprintf(stdout, "  --%s%s%s", options->name, options->argument ? " " : "",
                    options->argument ? options->argument : "");
        fprintf(stdout, "%*s%s\n", width < 26 ? 26 - width : 2, "", options->help);
    }
}

static bool wants_help(const char *text)
{
    return strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0;
}

int sdp_options_parse(const struct sdp_verb *verb, const struct sdp_option *options,
                      int argc, char **argv, size_t min, size_t max,
                      const char **positional, size_t *count)
{
    struct reader reader = {verb, options, argc, 1, argv, SDP_ERROR_INIT};
    bool good = true, only_positional = false;
    size_t used = 0;

    while (good && reader.at < argc) {
        const char *text = argv[reader.at++];

        if (only_positional || text[0] != '-' || !text[1]) {
            good = read_positional(&reader, text, max, positional, &used);
        } else if (wants_help(text)) {
            print_help(verb, options);
            return 0;
        } else if (text[1] != '-') {
            good = fail(&reader,
                        "unknown option %s; options have long names, see `slidedp %s "
                        "--help`",
                        text, verb->name);
        } else if (!text[2]) {
            only_positional = true;
        } else {
            good = read_option(&reader, text + 2);
        }
    }
    if (good && used < min)
        good = fail(&reader, "an argument is missing; usage: slidedp %s %s", verb->name,
                    verb->usage);
    if (good && count)
        *count = used;
    if (!good)
        sdp_error_print(&reader.err);
    return good ? -1 : 2;
}
