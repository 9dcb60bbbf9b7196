/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slidedp tokenize: the ids of a text file or of the lines of a JSONL file, as a token
 * file for data.format "tokens" (token_file.h), or printed. */
#include "graph/base/json.h"
#include "graph/base/log.h"
#include "graph/options.h"
#include "model/tokenizer/token_file.h"
#include "model/tokenizer/tokenizer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum format { FORMAT_AUTO, FORMAT_TEXT, FORMAT_LINES, FORMAT_JSONL, FORMAT_IDS };

struct request {
    const char *input, *tokenizer, *output, *field, *separator;
    int format, dtype;
    bool print, plain, skip_special;
};

struct state {
    const struct request *request;
    struct sdp_tokenizer *tokenizer;
    struct sdp_token_file *file; /* NULL: ids are printed */
    struct sdp_ids ids;
    int32_t separator; /* -1: none */
    size_t documents, bytes, tokens;
    double seconds;
    struct sdp_error *err;
};

static int run(int argc, char **argv);

const struct sdp_verb sdp_verb_tokenize = {
    .name = "tokenize",
    .summary = "Writes the token ids of a text as a token file",
    .usage = "FILE --tokenizer FILE|FOLDER (--output FILE | --print) [options]",
    .run = run,
};

/* -- documents ------------------------------------------------------------ */

static enum sdp_status print_ids(const struct sdp_ids *ids, struct sdp_error *err)
{
    for (size_t i = 0; i < ids->count; i++)
        if (fprintf(stdout, "%s%d", i ? " " : "", (int)ids->ids[i]) < 0)
            return sdp_fail(err, SDP_IO, "standard output: %s", strerror(errno));
    return fputc('\n', stdout) == EOF
               ? sdp_fail(err, SDP_IO, "standard output: %s", strerror(errno))
               : SDP_OK;
}

static enum sdp_status add_document(struct state *s, const char *text, size_t length)
{
    double start = sdp_now();
    enum sdp_status status;

    s->ids.count = 0;
    status = sdp_tokenizer_encode(s->tokenizer, text, length, !s->request->plain, &s->ids,
                                  s->err);
    if (status != SDP_OK)
        return status;
    if (s->separator >= 0)
        sdp_ids_add(&s->ids, &s->separator, 1);
    s->seconds += sdp_now() - start;
    s->documents++;
    s->bytes += length;
    s->tokens += s->ids.count;
    return s->file ? sdp_token_file_add(s->file, s->ids.ids, s->ids.count, s->err)
                   : print_ids(&s->ids, s->err);
}

static enum sdp_status add_object(struct state *s, const char *line, size_t length,
                                  size_t number)
{
    const struct request *r = s->request;
    struct sdp_error own = SDP_ERROR_INIT;
    struct sdp_json root, field;
    json_t *document = NULL;
    enum sdp_status status =
        sdp_json_parse(line, length, r->input, &document, &root, &own);
    const char *text = NULL;

    if (status == SDP_OK) {
        field = sdp_json_member(&root, r->field);
        if (!sdp_json_expect_object(&root) ||
            (!field.value && !sdp_json_missing(&root, r->field)) ||
            !sdp_json_expect_string(&field, &text))
            status = own.status;
    }
    if (status == SDP_OK)
        status = add_document(s, text, json_string_length(field.value));
    else
        sdp_fail_at(s->err, status, r->input, own.pointer,
                    (int)SDP_MIN(number, (size_t)1 << 30), own.line == 1 ? own.column : 0,
                    "%s", own.text);
    json_decref(document);
    return status;
}

/* Prints the text of a line of ids, as a JSON string. */
static enum sdp_status decode_line(struct state *s, const char *line, size_t length,
                                   size_t number)
{
    const struct request *r = s->request;
    size_t at = 0, size = 0;
    enum sdp_status status;
    char *text = NULL, *quoted;
    json_t *value;

    s->ids.count = 0;
    while (at < length) {
        int64_t id = 0;
        int32_t one;

        for (; at < length && isdigit((unsigned char)line[at]) && id <= INT32_MAX; at++)
            id = id * 10 + (line[at] - '0');
        if (id > INT32_MAX || (at < length && line[at] != ' '))
            return sdp_fail_at(s->err, SDP_INPUT, r->input, NULL, (int)number,
                               (int)at + 1,
                               "is no list of ids; must be numbers with single spaces "
                               "between them");
        at++;
        one = (int32_t)id;
        sdp_ids_add(&s->ids, &one, 1);
    }
    status = sdp_tokenizer_decode(s->tokenizer, s->ids.ids, s->ids.count, r->skip_special,
                                  &text, &size, s->err);
    if (status != SDP_OK)
        return status;
    value = json_stringn(text, size);
    quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (!quoted || fprintf(stdout, "%s\n", quoted) < 0)
        status =
            sdp_fail(s->err, SDP_IO, "the text of line %zu cannot be printed", number);
    free(quoted);
    json_decref(value);
    free(text);
    return status;
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!isspace((unsigned char)line[i]))
            return false;
    return true;
}

static enum sdp_status add_lines(struct state *s, const char *text, size_t size,
                                 int format)
{
    enum sdp_status status = SDP_OK;
    size_t number = 0;

    for (size_t at = 0; at < size && status == SDP_OK;) {
        const char *line = text + at, *newline = memchr(line, '\n', size - at);
        size_t length = newline ? (size_t)(newline - line) : size - at;

        number++;
        at += length + 1;
        if (format == FORMAT_LINES)
            status = add_document(s, line, length);
        else if (format == FORMAT_IDS)
            status = decode_line(s, line, length, number);
        else if (!is_blank(line, length))
            status = add_object(s, line, length, number);
    }
    return status;
}

static enum sdp_status add_file(struct state *s)
{
    const struct request *r = s->request;
    size_t name = strlen(r->input);
    struct sdp_map map = {NULL, 0};
    enum sdp_status status = sdp_map_open(r->input, &map, s->err);
    int format = r->format;

    if (status != SDP_OK)
        return status;
    if (format == FORMAT_AUTO)
        format = name > 6 && strcmp(r->input + name - 6, ".jsonl") == 0 ? FORMAT_JSONL
                                                                        : FORMAT_TEXT;
    if (format == FORMAT_TEXT)
        status = add_document(s, (const char *)map.data, map.size);
    else
        status = add_lines(s, (const char *)map.data, map.size, format);
    sdp_map_close(&map);
    return status;
}

/* -- the verb ------------------------------------------------------------- */

static enum sdp_status load(struct state *s)
{
    const struct request *r = s->request;
    char *path = sdp_path_is_folder(r->tokenizer)
                     ? sdp_path_join(r->tokenizer, "tokenizer.json")
                     : sdp_xstrdup(r->tokenizer);
    enum sdp_status status = sdp_tokenizer_load(path, &s->tokenizer, s->err);

    free(path);
    s->separator = -1;
    if (status != SDP_OK || !r->separator)
        return status;
    s->separator = sdp_tokenizer_id(s->tokenizer, r->separator, strlen(r->separator));
    if (s->separator < 0)
        return sdp_fail(s->err, SDP_INPUT,
                        "--separator: the tokenizer has no token \"%s\"", r->separator);
    return SDP_OK;
}

static enum sdp_status check(const struct request *r, struct sdp_error *err)
{
    const char *const usage = "usage: slidedp tokenize FILE --tokenizer FILE|FOLDER "
                              "(--output FILE | --print)";

    if (!r->tokenizer)
        return sdp_fail(err, SDP_INPUT, "tokenize: --tokenizer is missing; %s", usage);
    if (r->format == FORMAT_IDS && r->output)
        return sdp_fail(err, SDP_INPUT,
                        "tokenize: --format ids prints text; there is no "
                        "--output for it");
    if (!r->output == !r->print && r->format != FORMAT_IDS)
        return sdp_fail(err, SDP_INPUT, "tokenize: %s; %s",
                        r->output ? "--output and --print exclude each other"
                                  : "--output or --print is missing",
                        usage);
    return SDP_OK;
}

static enum sdp_status tokenize(struct state *s)
{
    const struct request *r = s->request;
    enum sdp_status status = load(s);

    if (status == SDP_OK && r->output)
        status = sdp_token_file_open(r->output, sdp_tokenizer_vocabulary(s->tokenizer),
                                     (enum sdp_token_dtype)r->dtype, &s->file, s->err);
    if (status == SDP_OK)
        status = add_file(s);
    if (s->file) /* also where that failed: then nothing is left behind */
        status = sdp_token_file_close(s->file, status, s->err);
    if (status == SDP_OK && r->output)
        sdp_info("%s: %zu documents, %zu bytes, %zu tokens (%.1f MB/s)", r->output,
                 s->documents, s->bytes, s->tokens,
                 s->seconds > 0 ? (double)s->bytes / 1e6 / s->seconds : 0.0);
    return status;
}

static int run(int argc, char **argv)
{
    static const char *const formats[] = {"auto", "text", "lines", "jsonl", "ids", NULL};
    static const char *const dtypes[] = {"auto", "uint16", "uint32", NULL};
    struct request r = {.field = "text"};
    const struct sdp_option options[] = {
        {"tokenizer", SDP_OPTION_TEXT, &r.tokenizer, "FILE|FOLDER",
         "tokenizer.json, or the folder that holds it", NULL},
        {"output", SDP_OPTION_TEXT, &r.output, "FILE",
         "token file to write: .npy, or else raw little endian", NULL},
        {"print", SDP_OPTION_FLAG, &r.print, NULL, "print the ids, a line a document",
         NULL},
        {"format", SDP_OPTION_CHOICE, &r.format, "FORMAT",
         "auto (by the name), text (one document), lines or jsonl (one a line), "
         "ids (prints text)",
         formats},
        {"field", SDP_OPTION_TEXT, &r.field, "NAME",
         "jsonl: the key that holds the text (default text)", NULL},
        {"dtype", SDP_OPTION_CHOICE, &r.dtype, "TYPE",
         "auto (by the vocabulary), uint16 or uint32", dtypes},
        {"separator", SDP_OPTION_TEXT, &r.separator, "TOKEN",
         "a token to put behind each document", NULL},
        {"no-special", SDP_OPTION_FLAG, &r.plain, NULL,
         "without the tokens that the tokenizer puts around a text", NULL},
        {"skip-special", SDP_OPTION_FLAG, &r.skip_special, NULL,
         "ids: without special tokens", NULL},
        {NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL},
    };
    struct sdp_error err = SDP_ERROR_INIT;
    struct state s = {.request = &r, .err = &err};
    enum sdp_status status;
    int code =
        sdp_options_parse(&sdp_verb_tokenize, options, argc, argv, 1, 1, &r.input, NULL);

    if (code >= 0)
        return code;
    status = check(&r, &err);
    if (status == SDP_OK)
        status = tokenize(&s);
    if (status != SDP_OK)
        sdp_error_print(&err);
    sdp_ids_free(&s.ids);
    sdp_tokenizer_destroy(s.tokenizer);
    return sdp_status_exit_code(status);
}
