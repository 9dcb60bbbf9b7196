/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A conversation becomes ids, of which those that the assistant wrote count.
 *
 * Where an answer lies in the rendered text is found with the template itself: what it
 * makes of the messages before the answer, with the prompt for an answer, must be how the
 * whole begins, and the answer follows; what it makes of the messages up to the answer
 * tells where it ends, end-of-turn token included. Two habits of templates are allowed
 * for: a token that ends every whole conversation, and earlier answers without the
 * thinking that the last one has. A template with {% generation %} says it itself.
 * Anything else is refused: a mask that is wrong trains on the wrong text unnoticed.
 *
 * The whole is encoded at once, for pieces could be encoded differently; an id counts if
 * any of its text is of an answer. */
#include "model/data/data_internal.h"

#include <stdlib.h>

struct chat {
    const struct sdpi_encoder *e;
    json_t *messages, *variables;
    struct sdp_template_text whole;
    struct sdp_error *err;
};

struct span {
    size_t first, last; /* bytes of the whole */
};

/* -- rendering
 * --------------------------------------------------------------------------- */

static enum sdp_status render(struct chat *c, size_t count, bool prompt,
                              struct sdp_template_text *out)
{
    json_t *some = c->messages;
    struct sdp_error own = SDP_ERROR_INIT;
    char place[SDP_ERROR_TEXT_SIZE];
    enum sdp_status status;

    if (count < json_array_size(c->messages)) {
        some = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append(some, json_array_get(c->messages, i));
    } else {
        json_incref(some);
    }
    json_object_set_new(c->variables, "messages", some);
    json_object_set_new(c->variables, "add_generation_prompt", json_boolean(prompt));
    status = sdp_template_render(c->e->template, c->variables, c->e->now, out, &own);
    if (status != SDP_OK)
        sdp_fail(c->err, status, "the chat template cannot render this: %s",
                 sdp_error_format(&own, place, sizeof place));
    return status;
}

static bool begins_with(const char *text, size_t length, const char *start,
                        size_t start_length)
{
    return start_length <= length && memcmp(text, start, start_length) == 0;
}

/* -- where an answer lies
 * ------------------------------------------------------------------ */

/* The longest end of x that y begins with. */
static size_t overlap(const char *x, size_t x_length, const char *y, size_t y_length)
{
    size_t *fall = sdp_xcalloc(y_length + 1, sizeof *fall), matched = 0;

    for (size_t i = 1; i < y_length; i++) { /* Knuth, Morris, Pratt */
        size_t k = fall[i];

        while (k > 0 && y[i] != y[k])
            k = fall[k];
        fall[i + 1] = k + (y[i] == y[k]);
    }
    for (size_t i = 0; i < x_length; i++) {
        while (matched > 0 && (matched == y_length || x[i] != y[matched]))
            matched = fall[matched];
        matched += matched < y_length && x[i] == y[matched];
    }
    free(fall);
    return matched;
}

/* The end of the last line that the message says must be in what is found. */
static bool holds_content(const char *text, size_t length, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    const char *said = json_string_value(content);
    size_t said_length = json_string_length(content), tail = 0;

    while (said_length > 0 && strchr(" \t\r\n", said[said_length - 1]))
        said_length--;
    while (tail < SDP_MIN(said_length, (size_t)16) &&
           said[said_length - 1 - tail] != '\n')
        tail++;
    return tail > 0 && memmem(text, length, said + said_length - tail, tail);
}

/* Where an answer that begins at `first` ends, given the text up to its end. */
static bool find_end(const struct chat *c, size_t turn,
                     const struct sdp_template_text *upto, size_t first, size_t *last)
{
    const json_t *eos_value = json_object_get(c->e->variables, "eos_token");
    const char *eos = json_string_value(eos_value);
    size_t eos_length = json_string_length(eos_value), found;

    *last = upto->length;
    if (turn + 1 == json_array_size(c->messages) ||
        begins_with(c->whole.text, c->whole.length, upto->text, upto->length)) {
        *last = SDP_MIN(upto->length, c->whole.length);
        return true;
    }
    if (eos_length > 0 && upto->length > first + eos_length &&
        memcmp(upto->text + upto->length - eos_length, eos, eos_length) == 0 &&
        begins_with(c->whole.text, c->whole.length, upto->text,
                    upto->length - eos_length)) {
        *last = upto->length - eos_length;
        return true;
    }
    if (upto->length < first ||
        !begins_with(c->whole.text, c->whole.length, upto->text, first))
        return false;
    found = overlap(upto->text + first, upto->length - first, c->whole.text + first,
                    SDP_MIN(c->whole.length - first, upto->length - first));
    *last = first + found;
    return holds_content(c->whole.text + first, found, json_array_get(c->messages, turn));
}

static enum sdp_status find_turn(struct chat *c, size_t turn, struct span *out)
{
    struct sdp_template_text before = {.text = NULL}, upto = {.text = NULL};
    enum sdp_status status = render(c, turn, true, &before);
    bool good = false;

    if (status == SDP_OK)
        status = render(c, turn + 1, false, &upto);
    if (status == SDP_OK) {
        out->first = before.length;
        good = begins_with(c->whole.text, c->whole.length, before.text, before.length) &&
               find_end(c, turn, &upto, before.length, &out->last) &&
               out->last >= out->first;
        if (!good)
            status = sdp_fail(c->err, SDP_INPUT,
                              "/messages/%zu: the chat template writes this answer "
                              "otherwise when more messages "
                              "follow, so what to train on cannot be told; end the "
                              "conversation here, or mark the "
                              "answers with {%% generation %%} in a template of your own "
                              "(data.chat_template)",
                              turn);
    }
    sdp_template_text_free(&before);
    sdp_template_text_free(&upto);
    return status;
}

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role && strcmp(role, "assistant") == 0;
}

static enum sdp_status find_spans(struct chat *c, struct span **out, size_t *count)
{
    size_t messages = json_array_size(c->messages);
    enum sdp_status status = SDP_OK;

    *count = 0;
    if (sdp_template_has_generation(c->e->template)) {
        *out = sdp_xcalloc(c->whole.span_count + 1, sizeof **out);
        for (size_t i = 0; i < c->whole.span_count; i++)
            (*out)[(*count)++] =
                (struct span){c->whole.spans[i].first, c->whole.spans[i].last};
        return SDP_OK;
    }
    *out = sdp_xcalloc(messages + 1, sizeof **out);
    for (size_t turn = 0; status == SDP_OK && turn < messages; turn++) {
        if (!is_answer(json_array_get(c->messages, turn)))
            continue;
        status = find_turn(c, turn, &(*out)[*count]);
        *count += status == SDP_OK;
    }
    return status;
}

/* -- ids
 * -------------------------------------------------------------------------------------
 */

/* The text of ids, from one place on, and whether another text is how it begins. */
static enum sdp_status compare_text(const struct chat *c, const struct sdp_ids *ids,
                                    size_t from, size_t to, const char *text,
                                    size_t length, bool *same, bool *longer)
{
    char *own = NULL;
    size_t own_length = 0;
    enum sdp_status status = sdp_tokenizer_decode(
        c->e->tokenizer, ids->ids + from, to - from, false, &own, &own_length, c->err);

    if (status != SDP_OK)
        return status;
    *same = own_length == length && memcmp(own, text, length) == 0;
    *longer = own_length > length && memcmp(own, text, length) == 0;
    free(own);
    return SDP_OK;
}

/* The ids of out->part from `count` on are other ones than those of the whole, for what
 * follows has its say. How many ids of the whole have the same text? They are looked for
 * one by one. */
static enum sdp_status match_text(const struct chat *c, struct sdpi_sample *out,
                                  size_t *count, bool *exact)
{
    size_t first = *count, rest = 0, last;
    char *text = NULL;
    bool same = false, longer = false;
    enum sdp_status status =
        sdp_tokenizer_decode(c->e->tokenizer, out->part.ids + first,
                             out->part.count - first, false, &text, &rest, c->err);

    last = SDP_MIN(out->ids.count, first + rest + 4);
    for (size_t n = first + 1; status == SDP_OK && !same && !longer && n <= last; n++) {
        status = compare_text(c, &out->ids, first, n, text, rest, &same, &longer);
        *count = same ? n : longer ? n - 1 : first;
    }
    *exact = same;
    free(text);
    return status;
}

/* How many ids of the whole lie within its first `length` bytes; *exact: they end there,
 * and no id goes on beyond. */
static enum sdp_status ids_before(const struct chat *c, size_t length,
                                  struct sdpi_sample *out, size_t *count, bool *exact)
{
    enum sdp_status status;

    *count = length;
    *exact = true;
    if (!c->e->tokenizer)
        return SDP_OK;
    *count = out->ids.count;
    if (length == c->whole.length)
        return SDP_OK;
    out->part.count = 0;
    status = sdpi_encode(c->e, c->whole.text, length, false, &out->part, c->err);
    *count = 0;
    while (*count < SDP_MIN(out->part.count, out->ids.count) &&
           out->part.ids[*count] == out->ids.ids[*count])
        ++*count;
    if (status != SDP_OK || *count == out->part.count)
        return status;
    return match_text(c, out, count, exact);
}

static enum sdp_status count_span(const struct chat *c, const struct span *span,
                                  struct sdpi_sample *out)
{
    size_t first = 0, last = 0;
    bool exact = true;
    enum sdp_status status = ids_before(c, span->first, out, &first, &exact);

    if (status == SDP_OK)
        status = ids_before(c, span->last, out, &last, &exact);
    if (status != SDP_OK || span->first == span->last)
        return status;
    last = SDP_MIN(last + !exact, out->ids.count);
    for (size_t i = first; i < last; i++)
        out->counts[i] = true;
    return SDP_OK;
}

static enum sdp_status make_sample(struct chat *c, struct sdpi_sample *out)
{
    struct span *spans = NULL;
    size_t count = 0;
    enum sdp_status status = render(c, json_array_size(c->messages), false, &c->whole);

    if (status == SDP_OK)
        status = find_spans(c, &spans, &count);
    out->ids.count = 0;
    if (status == SDP_OK)
        status =
            sdpi_encode(c->e, c->whole.text, c->whole.length, false, &out->ids, c->err);
    if (status == SDP_OK) {
        sdpi_sample_counts(out, 0, false);
        for (size_t i = 0; status == SDP_OK && i < count; i++)
            status = count_span(c, &spans[i], out);
    }
    free(spans);
    sdp_template_text_free(&c->whole);
    return status;
}

enum sdp_status sdpi_chat_sample(const struct sdpi_encoder *e, json_t *messages,
                                 json_t *tools, struct sdpi_sample *out,
                                 struct sdp_error *err)
{
    struct chat c = {.e = e, .messages = messages, .err = err};
    enum sdp_status status;

    /* A copy of the object only: its values are shared by threads, so none of them may
     * change its count of references here. */
    c.variables = json_deep_copy(e->variables);
    if (tools)
        json_object_set(c.variables, "tools", tools);
    status = make_sample(&c, out);
    json_decref(c.variables);
    return status;
}
