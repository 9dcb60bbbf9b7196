/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One line of a JSONL file: a text, a conversation (OpenAI's role and content, or
 * ShareGPT's from and value), or an instruction as Alpaca has it. Members that are not
 * asked for are ignored; whatever is asked for must be right. */
#include "model/data/data_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* -- lines
 * --------------------------------------------------------------------------------- */

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

bool sdpi_next_line(const struct sdp_map *map, size_t *at, size_t *number,
                    const char **line, size_t *length)
{
    if (*at == 0 && map->size >= 3 && memcmp(map->data, "\xef\xbb\xbf", 3) == 0)
        *at = 3; /* a byte order mark */
    while (*at < map->size) {
        const char *start = (const char *)map->data + *at;
        const char *end = memchr(start, '\n', map->size - *at);

        *length = end ? (size_t)(end - start) : map->size - *at;
        *at += *length + (end != NULL);
        ++*number;
        if (is_blank(start, SDP_MIN(*length, (size_t)4096)) &&
            (*length <= 4096 || is_blank(start, *length)))
            continue;
        *line = start;
        return true;
    }
    return false;
}

/* -- conversations
 * --------------------------------------------------------------------------- */

struct reader {
    const struct sdpi_records *how;
    json_t *messages, *tools; /* [new] what the template sees */
};

static bool need_text(const struct sdp_json *at, const char **out)
{
    if (!at->value)
        return sdp_json_fail(at, "is missing; this member is required");
    if (!sdp_json_expect_string(at, out))
        return false;
    return **out || sdp_json_fail(at, "is empty; must be a text");
}

static const char *find_role(const char *name)
{
    static const char *const known[][2] = {
        {"user", "user"},     {"human", "user"},       {"assistant", "assistant"},
        {"gpt", "assistant"}, {"model", "assistant"},  {"chatgpt", "assistant"},
        {"bot", "assistant"}, {"system", "system"},    {"developer", "system"},
        {"tool", "tool"},     {"observation", "tool"}, {"ipython", "tool"},
        {"function", "tool"}};

    for (size_t i = 0; i < SDP_COUNT_OF(known); i++)
        if (strcmp(known[i][0], name) == 0)
            return known[i][1];
    return NULL;
}

static bool refuse_tools(const struct reader *r, const struct sdp_json *at)
{
    return r->how->pass_tools ||
           sdp_json_fail(at, "is about tools, which are refused unless the job says "
                             "\"tools\": \"pass\" in data "
                             "(the chat template must then know them)");
}

/* A list of parts {"type": "text", "text": ...} becomes one text. */
static json_t *join_parts(const struct sdp_json *at)
{
    size_t count = json_array_size(at->value), used = 0, room = 1;
    char *text = sdp_xcalloc(1, 1);
    json_t *joined;

    for (size_t i = 0; i < count; i++) {
        struct sdp_json part = sdp_json_element(at, i), piece;
        const char *kind = json_string_value(json_object_get(part.value, "type")), *words;
        size_t length;

        if (!kind || strcmp(kind, "text") != 0) {
            sdp_json_fail(&part,
                          "is no part of type \"text\"; only texts can be trained on");
            free(text);
            return NULL;
        }
        piece = sdp_json_member(&part, "text");
        if (!piece.value || !sdp_json_expect_string(&piece, &words)) {
            sdp_json_missing(&part, "text");
            free(text);
            return NULL;
        }
        length = strlen(words);
        room += length;
        text = sdp_xrealloc(text, room);
        memcpy(text + used, words, length + 1);
        used += length;
    }
    joined = json_string(text);
    free(text);
    return joined;
}

/* The content of a turn. An answer that calls tools may have none. [new] *out */
static bool read_content(const struct sdp_json *turn, const char *key, const char *role,
                         bool calls, json_t **out)
{
    struct sdp_json at = sdp_json_member(turn, key);
    const char *text = "";
    bool may_be_empty = calls || strcmp(role, "system") == 0 || strcmp(role, "tool") == 0;

    *out = NULL;
    if (calls && (!at.value || json_is_null(at.value))) {
        *out = at.value ? json_null() : NULL; /* as the template would be given it */
        return true;
    }
    if (json_is_array(at.value)) {
        *out = join_parts(&at);
        if (*out && json_string_length(*out) == 0 && !may_be_empty) {
            json_decref(*out);
            *out = NULL;
            return sdp_json_fail(&at, "is empty; must be a text");
        }
        return *out != NULL;
    }
    if (may_be_empty && json_is_string(at.value))
        text = json_string_value(at.value);
    else if (!need_text(&at, &text))
        return false;
    *out = json_string(text);
    return true;
}

/* Members that templates know, as they are. */
static void copy_members(const struct sdp_json *turn, bool tools, json_t *message)
{
    static const char *const always[] = {"reasoning_content", "name", NULL};
    static const char *const with_tools[] = {"tool_calls", "tool_call_id", NULL};

    for (size_t i = 0; always[i]; i++)
        if (json_is_string(json_object_get(turn->value, always[i])))
            json_object_set(message, always[i], json_object_get(turn->value, always[i]));
    for (size_t i = 0; tools && with_tools[i]; i++)
        if (json_object_get(turn->value, with_tools[i]) &&
            !json_is_null(json_object_get(turn->value, with_tools[i])))
            json_object_set(message, with_tools[i],
                            json_object_get(turn->value, with_tools[i]));
}

static bool read_turn(struct reader *r, const struct sdp_json *turn)
{
    const struct sdpi_records *how = r->how;
    bool sharegpt = !how->given[SDP_FIELD_ROLE] && json_object_get(turn->value, "from") &&
                    !json_object_get(turn->value, how->fields[SDP_FIELD_ROLE]);
    bool value = sharegpt && !how->given[SDP_FIELD_CONTENT];
    const char *role_key = sharegpt ? "from" : how->fields[SDP_FIELD_ROLE];
    const char *content_key = value ? "value" : how->fields[SDP_FIELD_CONTENT];
    struct sdp_json role_at, calls;
    const char *name, *role;
    json_t *content = NULL, *message;
    bool has_calls;

    if (!sdp_json_expect_object(turn))
        return false;
    role_at = sdp_json_member(turn, role_key);
    if (!need_text(&role_at, &name))
        return false;
    role = find_role(name);
    if (!role)
        return sdp_json_fail(
            &role_at,
            "is \"%.60s\"; must be one of \"system\", \"user\", \"assistant\", \"tool\" "
            "(or ShareGPT's \"human\", \"gpt\")",
            name);
    calls = sdp_json_member(turn, "tool_calls");
    has_calls = json_array_size(calls.value) > 0;
    if ((has_calls && !refuse_tools(r, &calls)) ||
        (strcmp(role, "tool") == 0 && !refuse_tools(r, &role_at)))
        return false;
    if (!read_content(turn, content_key, role, has_calls, &content))
        return false;
    message = json_object();
    json_object_set_new(message, "role", json_string(role));
    if (content)
        json_object_set_new(message, "content", content);
    copy_members(turn, how->pass_tools, message);
    json_array_append_new(r->messages, message);
    return true;
}

/* A conversation may have its system message beside its turns. */
static bool read_system(struct reader *r, const struct sdp_json *root)
{
    struct sdp_json at = sdp_json_member(root, r->how->fields[SDP_FIELD_SYSTEM]);
    const char *text;

    if (!at.value || json_is_null(at.value))
        return true;
    if (!sdp_json_expect_string(&at, &text))
        return false;
    if (*text)
        json_array_append_new(r->messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", text));
    return true;
}

static bool read_tools(struct reader *r, const struct sdp_json *root)
{
    struct sdp_json at = sdp_json_member(root, r->how->fields[SDP_FIELD_TOOLS]);
    const char *text = json_string_value(at.value);
    json_t *parsed = NULL;

    if (!at.value || json_is_null(at.value) || (text && !*text) ||
        (json_is_array(at.value) && !json_array_size(at.value)))
        return true;
    if (!refuse_tools(r, &at))
        return false;
    if (text)
        parsed =
            json_loads(text, JSON_REJECT_DUPLICATES, NULL); /* a list written as text */
    if (text ? !json_is_array(parsed) : !json_is_array(at.value)) {
        json_decref(parsed);
        return sdp_json_wrong(&at, "a list of tools, or the JSON text of one");
    }
    r->tools = text ? parsed : json_incref(at.value);
    return true;
}

static bool read_conversation(struct reader *r, const struct sdp_json *root)
{
    struct sdp_json at = sdp_json_member(root, r->how->fields[SDP_FIELD_MESSAGES]);
    size_t count = 0;

    if (!at.value && !r->how->given[SDP_FIELD_MESSAGES] &&
        json_object_get(root->value, "conversations"))
        at = sdp_json_member(root, "conversations");
    if (!at.value)
        return sdp_json_fail(
            &at,
            "is missing; this member is required (data.fields.messages names another)");
    if (!sdp_json_expect_array(&at, &count))
        return false;
    if (count == 0)
        return sdp_json_fail(&at,
                             "is an empty list; a conversation has at least one turn");
    if (!read_system(r, root) || !read_tools(r, root))
        return false;
    for (size_t i = 0; i < count; i++) {
        struct sdp_json turn = sdp_json_element(&at, i);

        if (!read_turn(r, &turn))
            return false;
    }
    return true;
}

/* -- Alpaca
 * --------------------------------------------------------------------------------------
 */

struct alpaca {
    const char *instruction, *input, *output;
};

static bool read_alpaca(const struct sdpi_records *how, const struct sdp_json *root,
                        struct alpaca *out)
{
    struct sdp_json instruction =
        sdp_json_member(root, how->fields[SDP_FIELD_INSTRUCTION]);
    struct sdp_json input = sdp_json_member(root, how->fields[SDP_FIELD_INPUT]);
    struct sdp_json output = sdp_json_member(root, how->fields[SDP_FIELD_OUTPUT]);

    out->input = "";
    return need_text(&instruction, &out->instruction) &&
           (!input.value || json_is_null(input.value) ||
            sdp_json_expect_string(&input, &out->input)) &&
           need_text(&output, &out->output);
}

/* As a conversation: input, if any, is the second line of the question. */
static void alpaca_messages(const struct alpaca *record, json_t *messages)
{
    char *question = sdp_xprintf("%s%s%s", record->instruction,
                                 *record->input ? "\n" : "", record->input);

    json_array_append_new(messages,
                          json_pack("{s:s, s:s}", "role", "user", "content", question));
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant",
                                              "content", record->output));
    free(question);
}

static enum sdp_status encode_end(const struct sdpi_encoder *e, struct sdpi_sample *out)
{
    if (e->eos >= 0 &&
        (out->ids.count == 0 || out->ids.ids[out->ids.count - 1] != e->eos)) {
        sdp_ids_reserve(&out->ids, 1);
        out->ids.ids[out->ids.count++] = e->eos;
    }
    return SDP_OK;
}

/* Alpaca's own prompt has no place for a system message. */
static bool need_template(const struct sdpi_records *how, const struct sdp_json *root,
                          bool system)
{
    struct sdp_json at = sdp_json_member(root, how->fields[SDP_FIELD_SYSTEM]);

    return !system || how->encoder->template ||
           sdp_json_fail(&at,
                         "needs a chat template, and there is none (data.chat_template)");
}

/* Without a chat template: the prompt that the Alpaca models were trained with. */
static enum sdp_status alpaca_sample(const struct sdpi_records *how,
                                     const struct alpaca *record, struct sdpi_sample *out,
                                     struct sdp_error *err)
{
    bool input = *record->input != '\0';
    char *prompt = sdp_xprintf(
        "Below is an instruction that describes a task%s. Write a response that "
        "appropriately completes the request.\n\n### Instruction:\n%s\n\n%s%s%s### "
        "Response:\n",
        input ? ", paired with an input that provides further context" : "",
        record->instruction, input ? "### Input:\n" : "", record->input,
        input ? "\n\n" : "");
    size_t answer;
    enum sdp_status status;

    out->ids.count = 0;
    status = sdpi_encode(how->encoder, prompt, strlen(prompt), true, &out->ids, err);
    if (status == SDP_OK && how->encoder->eos >= 0 && out->ids.count > 0 &&
        out->ids.ids[out->ids.count - 1] == how->encoder->eos)
        out->ids.count--; /* the answer follows */
    answer = out->ids.count;
    if (status == SDP_OK)
        status = sdpi_encode(how->encoder, record->output, strlen(record->output), false,
                             &out->ids, err);
    if (status == SDP_OK)
        status = encode_end(how->encoder, out);
    sdpi_sample_counts(out, 0, false);
    sdpi_sample_counts(out, answer, true);
    free(prompt);
    return status;
}

/* -- texts
 * ------------------------------------------------------------------------------------------
 */

static enum sdp_status text_sample(const struct sdpi_records *how, const char *text,
                                   struct sdpi_sample *out, struct sdp_error *err)
{
    int32_t bos = how->encoder->bos;
    enum sdp_status status;

    out->ids.count = 0;
    status = sdpi_encode(how->encoder, text, strlen(text), true, &out->ids, err);
    if (status == SDP_OK && bos >= 0 && out->ids.count > 1 && out->ids.ids[0] == bos &&
        out->ids.ids[1] == bos) {
        memmove(out->ids.ids, out->ids.ids + 1,
                (out->ids.count - 1) * sizeof *out->ids.ids);
        out->ids.count--; /* the text had it already */
    }
    if (status == SDP_OK && how->append_eos)
        status = encode_end(how->encoder, out);
    sdpi_sample_counts(out, 0, true);
    return status;
}

/* -- a record
 * ----------------------------------------------------------------------------------------
 */

static enum sdp_status read_record(const struct sdpi_records *how,
                                   const struct sdp_json *root, struct sdpi_sample *out)
{
    struct reader r = {.how = how};
    struct alpaca alpaca = {"", "", ""};
    struct sdp_json text;
    const char *words = "";
    bool good;
    enum sdp_status status = SDP_INPUT;

    if (!sdp_json_expect_object(root))
        return SDP_INPUT;
    if (how->format == SDP_DATA_TEXT) {
        text = sdp_json_member(root, how->fields[SDP_FIELD_TEXT]);
        return need_text(&text, &words) ? text_sample(how, words, out, root->err)
                                        : SDP_INPUT;
    }
    r.messages = json_array();
    if (how->format == SDP_DATA_ALPACA) {
        good = read_alpaca(how, root, &alpaca) && read_system(&r, root) &&
               need_template(how, root, json_array_size(r.messages) > 0);
        if (good && !how->encoder->template)
            status = alpaca_sample(how, &alpaca, out, root->err);
        else if (good)
            alpaca_messages(&alpaca, r.messages);
    } else {
        good = read_conversation(&r, root);
    }
    if (good && how->encoder->template)
        status = sdpi_chat_sample(how->encoder, r.messages, r.tools, out, root->err);
    json_decref(r.messages);
    json_decref(r.tools);
    return status;
}

static enum sdp_status parse_record(const struct sdpi_records *how, const char *path,
                                    const char *line, size_t length,
                                    struct sdpi_sample *out, struct sdp_error *err)
{
    const char *nul = memchr(line, '\0', length);
    struct sdp_error parse = SDP_ERROR_INIT;
    struct sdp_json root;
    json_t *document = NULL;
    enum sdp_status status;

    if (length > SDPI_MAX_LINE)
        return sdp_fail(err, SDP_INPUT,
                        "the line has %zu bytes; a record may have at most %zu", length,
                        SDPI_MAX_LINE);
    if (nul)
        return sdp_fail(err, SDP_INPUT,
                        "byte %zu of the line is NUL; is this a text file?",
                        (size_t)(nul - line) + 1);
    status = sdp_json_parse(line, length, path, &document, &root, &parse);
    if (status != SDP_OK && strstr(parse.text, "JSON_ALLOW_NUL"))
        snprintf(parse.text, sizeof parse.text,
                 "a text holds the character \\u0000, which no text should");
    if (status != SDP_OK)
        return sdp_fail_at(err, status, NULL, NULL, 0, parse.column, "%s", parse.text);
    root.err = err;
    status = read_record(how, &root, out);
    json_decref(document);
    return status;
}

enum sdp_status sdpi_record_sample(const struct sdpi_records *how, const char *path,
                                   size_t number, const char *line, size_t length,
                                   struct sdpi_sample *out, struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    enum sdp_status status = parse_record(how, path, line, length, out, &own);

    if (status != SDP_OK)
        sdp_fail_at(err, status, path, own.pointer,
                    (int)SDP_MIN(number, (size_t)INT32_MAX), own.column, "%s", own.text);
    return status;
}
