/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Statements: from tokens to a tree. Tags that these templates do not use are refused by
 * name, so that nothing is rendered in another way than was meant. */
#include "model/template/template_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define WHAT_TO_DO "; give the job a chat template without it (data.chat_template)"

static bool parse_body(struct sdpi_parser *p, const char *const *ends,
                       struct sdpi_node **out);

/* -- tools that parse_expression.c shares ----------------------------------------------
 */

bool sdpi_parse_fail(struct sdpi_parser *p, const struct sdpi_token *at,
                     const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    sdp_fail_at(p->err, SDP_INPUT, p->t->name, NULL, at->line, at->column, "%s", text);
    return false;
}

static bool token_is(const struct sdpi_token *token, enum sdpi_token_kind kind,
                     const char *text)
{
    return token->kind == kind && token->length == strlen(text) &&
           memcmp(token->text, text, token->length) == 0;
}

bool sdpi_parse_is(const struct sdpi_parser *p, const char *text)
{
    return token_is(p->at, SDPI_T_OP, text);
}

bool sdpi_parse_is_name(const struct sdpi_parser *p, const char *name)
{
    return token_is(p->at, SDPI_T_NAME, name);
}

bool sdpi_parse_accept(struct sdpi_parser *p, const char *text)
{
    if (!sdpi_parse_is(p, text))
        return false;
    p->at++;
    return true;
}

bool sdpi_parse_accept_name(struct sdpi_parser *p, const char *name)
{
    if (!sdpi_parse_is_name(p, name))
        return false;
    p->at++;
    return true;
}

bool sdpi_parse_expect(struct sdpi_parser *p, const char *text)
{
    return sdpi_parse_accept(p, text) ||
           sdpi_parse_fail(p, p->at, "\"%s\" is expected here", text);
}

struct sdpi_node *sdpi_parse_node(struct sdpi_parser *p, enum sdpi_node_kind kind)
{
    struct sdpi_node *node = sdpi_arena_take(&p->t->arena, sizeof *node);

    if (!node) {
        sdpi_parse_fail(p, p->at, "the template is too large");
        return NULL;
    }
    node->kind = kind;
    node->line = p->at->line;
    node->column = p->at->column;
    node->text = p->at->text;
    node->length = p->at->length;
    return node;
}

bool sdpi_parse_add(struct sdpi_parser *p, struct sdpi_node *to, struct sdpi_node *item)
{
    if (to->count == to->room) {
        size_t room = to->room * 2 + 4;
        struct sdpi_node **items = sdpi_arena_take(&p->t->arena, room * sizeof *items);

        if (!items)
            return sdpi_parse_fail(p, p->at, "the template is too large");
        if (to->count > 0)
            memcpy(items, to->items, to->count * sizeof *items);
        to->items = items;
        to->room = room;
    }
    to->items[to->count++] = item;
    return true;
}

/* -- statements -------------------------------------------------------------------------
 */

static bool close_tag(struct sdpi_parser *p)
{
    if (p->at->kind != SDPI_T_CLOSE_BLOCK)
        return sdpi_parse_fail(p, p->at, "the tag should end here with \"%%}\"");
    p->at++;
    return true;
}

static bool parse_target_name(struct sdpi_parser *p, struct sdpi_node **out)
{
    if (p->at->kind != SDPI_T_NAME)
        return sdpi_parse_fail(p, p->at, "the name of a variable is expected here");
    *out = sdpi_parse_node(p, SDPI_N_NAME);
    p->at++;
    return *out != NULL;
}

/* A name, or names with commas between them. */
static bool parse_target(struct sdpi_parser *p, struct sdpi_node **out)
{
    bool in_brackets = sdpi_parse_accept(p, "(");
    struct sdpi_node *tuple, *name = NULL;

    if (!parse_target_name(p, out))
        return false;
    if (sdpi_parse_is(p, ",")) {
        tuple = sdpi_parse_node(p, SDPI_N_TUPLE);
        if (!tuple || !sdpi_parse_add(p, tuple, *out))
            return false;
        while (sdpi_parse_accept(p, ","))
            if (!parse_target_name(p, &name) || !sdpi_parse_add(p, tuple, name))
                return false;
        *out = tuple;
    }
    return !in_brackets || sdpi_parse_expect(p, ")");
}

/* The same, or an attribute of a namespace. */
static bool parse_set_target(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *space;

    if (!parse_target(p, out))
        return false;
    if ((*out)->kind != SDPI_N_NAME || !sdpi_parse_accept(p, "."))
        return true;
    if (p->at->kind != SDPI_T_NAME)
        return sdpi_parse_fail(p, p->at, "the name of an attribute is expected here");
    space = *out;
    *out = sdpi_parse_node(p, SDPI_N_ATTR);
    p->at++;
    if (*out)
        (*out)->a = space;
    return *out != NULL;
}

static bool parse_set(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const char *const ends[] = {"endset", NULL};
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_SET);

    p->at++;
    if (!node || !parse_set_target(p, &node->a))
        return false;
    *out = node;
    if (sdpi_parse_accept(p, "="))
        return sdpi_parse_tuple(p, true, &node->b) && close_tag(p);
    node->kind = SDPI_N_CAPTURE;
    if (node->a->kind == SDPI_N_TUPLE)
        return sdpi_parse_fail(p, p->at, "\"=\" is expected here");
    if (sdpi_parse_is(p, "|"))
        return sdpi_parse_fail(
            p, p->at, "a filter on a {%% set %%} block is not supported" WHAT_TO_DO);
    return close_tag(p) && parse_body(p, ends, &node->b) && (p->at++, close_tag(p));
}

static bool parse_if(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_IF), *condition, *body;

    if (!node)
        return false;
    *out = node;
    do {
        p->at++; /* if, elif */
        if (!sdpi_parse_tuple(p, false, &condition) || !close_tag(p) ||
            !parse_body(p, ends, &body) || !sdpi_parse_add(p, node, condition) ||
            !sdpi_parse_add(p, node, body))
            return false;
    } while (sdpi_parse_is_name(p, "elif"));
    if (sdpi_parse_accept_name(p, "else") &&
        (!close_tag(p) || !parse_body(p, last, &node->a)))
        return false;
    p->at++;
    return close_tag(p);
}

static bool parse_for(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_FOR), *body = NULL,
                     *otherwise = NULL;

    p->at++;
    if (!node || !parse_target(p, &node->a))
        return false;
    *out = node;
    if (!sdpi_parse_accept_name(p, "in"))
        return sdpi_parse_fail(p, p->at, "\"in\" is expected here");
    if (!sdpi_parse_tuple(p, false, &node->b))
        return false;
    if (sdpi_parse_accept_name(p, "if") && !sdpi_parse_expression(p, true, &node->c))
        return false;
    if (sdpi_parse_is_name(p, "recursive"))
        return sdpi_parse_fail(p, p->at, "a recursive loop is not supported" WHAT_TO_DO);
    if (!close_tag(p))
        return false;
    p->loops++;
    if (!parse_body(p, ends, &body))
        return false;
    p->loops--;
    if (sdpi_parse_accept_name(p, "else") &&
        (!close_tag(p) || !parse_body(p, last, &otherwise)))
        return false;
    p->at++;
    return sdpi_parse_add(p, node, body) && sdpi_parse_add(p, node, otherwise) &&
           close_tag(p);
}

static bool parse_parameter(struct sdpi_parser *p, struct sdpi_node *macro)
{
    struct sdpi_node *parameter;

    if (p->at->kind != SDPI_T_NAME)
        return sdpi_parse_fail(p, p->at, "the name of a parameter is expected here");
    parameter = sdpi_parse_node(p, SDPI_N_KEYWORD);
    p->at++;
    if (!parameter || !sdpi_parse_add(p, macro, parameter))
        return false;
    return !sdpi_parse_accept(p, "=") || sdpi_parse_expression(p, true, &parameter->a);
}

static bool parse_macro(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct sdpi_node *node;
    int loops = p->loops;

    p->at++;
    if (p->at->kind != SDPI_T_NAME)
        return sdpi_parse_fail(p, p->at, "the name of a macro is expected here");
    if (!(node = sdpi_parse_node(p, SDPI_N_MACRO)))
        return false;
    p->at++;
    *out = node;
    if (!sdpi_parse_expect(p, "("))
        return false;
    while (!sdpi_parse_accept(p, ")")) {
        if (node->count > 0 && !sdpi_parse_expect(p, ","))
            return false;
        if (!parse_parameter(p, node))
            return false;
    }
    p->loops = 0;
    if (!close_tag(p) || !parse_body(p, ends, &node->b))
        return false;
    p->loops = loops;
    p->at++;
    if (p->at->kind == SDPI_T_NAME)
        p->at++;
    return close_tag(p);
}

static bool parse_jump(struct sdpi_parser *p, struct sdpi_node **out)
{
    bool is_break = sdpi_parse_is_name(p, "break");

    if (p->loops == 0)
        return sdpi_parse_fail(p, p->at, "\"%s\" stands outside of a loop",
                               is_break ? "break" : "continue");
    *out = sdpi_parse_node(p, is_break ? SDPI_N_BREAK : SDPI_N_CONTINUE);
    p->at++;
    return *out && close_tag(p);
}

static bool parse_generation(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_GENERATION);
    int loops = p->loops;

    p->at++;
    p->t->has_generation = true;
    p->loops = 0; /* a function of its own to Jinja */
    if (!node || !close_tag(p) || !parse_body(p, ends, &node->a))
        return false;
    p->loops = loops;
    *out = node;
    p->at++;
    return close_tag(p);
}

static bool parse_statement(struct sdpi_parser *p, struct sdpi_node **out)
{
    static const struct {
        const char *name;
        bool (*parse)(struct sdpi_parser *p, struct sdpi_node **out);
    } known[] = {{"if", parse_if},
                 {"for", parse_for},
                 {"set", parse_set},
                 {"macro", parse_macro},
                 {"break", parse_jump},
                 {"continue", parse_jump},
                 {"generation", parse_generation}};
    static const char *const others[] = {
        "include", "import",     "from", "extends", "block", "call", "filter",
        "with",    "autoescape", "do",   "trans",   "debug", NULL};

    for (size_t i = 0; i < SDP_COUNT_OF(known); i++)
        if (sdpi_parse_is_name(p, known[i].name))
            return known[i].parse(p, out);
    for (size_t i = 0; others[i]; i++)
        if (sdpi_parse_is_name(p, others[i]))
            return sdpi_parse_fail(p, p->at, "{%% %s %%} is not supported" WHAT_TO_DO,
                                   others[i]);
    return sdpi_parse_fail(p, p->at, "\"%.*s\" is no tag that is known here" WHAT_TO_DO,
                           (int)SDP_MIN(p->at->length, (size_t)40), p->at->text);
}

static bool parse_output(struct sdpi_parser *p, struct sdpi_node **out)
{
    struct sdpi_node *node = sdpi_parse_node(p, SDPI_N_OUTPUT);

    p->at++;
    if (!node || !sdpi_parse_tuple(p, true, &node->a))
        return false;
    if (p->at->kind != SDPI_T_CLOSE_OUTPUT)
        return sdpi_parse_fail(p, p->at, "the expression should end here with \"}}\"");
    p->at++;
    *out = node;
    return true;
}

static bool is_end(const struct sdpi_parser *p, const char *const *ends)
{
    struct sdpi_parser inner = *p;

    if (p->at->kind != SDPI_T_OPEN_BLOCK)
        return false;
    inner.at++;
    for (; ends && *ends; ends++)
        if (sdpi_parse_is_name(&inner, *ends))
            return true;
    return false;
}

/* Statements up to a tag of `ends` (NULL: up to the end), whose name is then at p->at. */
static bool parse_body(struct sdpi_parser *p, const char *const *ends,
                       struct sdpi_node **out)
{
    struct sdpi_node *body = sdpi_parse_node(p, SDPI_N_BODY), *node = NULL;
    const struct sdpi_token *start = p->at;

    if (!body)
        return false;
    if (++p->depth > SDPI_MAX_PARSE)
        return sdpi_parse_fail(p, start, "tags are nested too deeply");
    for (*out = body; p->at->kind != SDPI_T_END && !is_end(p, ends);) {
        bool good = true;

        if (p->at->kind == SDPI_T_DATA) {
            node = sdpi_parse_node(p, SDPI_N_DATA);
            p->at++;
        } else if (p->at->kind == SDPI_T_OPEN_OUTPUT) {
            good = parse_output(p, &node);
        } else {
            p->at++; /* the tag's begin */
            good = parse_statement(p, &node);
        }
        if (!good || !node || !sdpi_parse_add(p, body, node))
            return false;
    }
    p->depth--;
    if (ends && p->at->kind == SDPI_T_END)
        return sdpi_parse_fail(p, start, "the block before this has no {%% %s %%}",
                               ends[0][0] == 'e' && ends[1] && ends[2] ? "endif"
                               : ends[1]                               ? ends[1]
                                                                       : ends[0]);
    if (ends)
        p->at++;
    return true;
}

enum sdp_status sdpi_template_tree(struct sdp_template *t,
                                   const struct sdpi_token *tokens, struct sdp_error *err)
{
    struct sdpi_parser p = {.t = t, .at = tokens, .err = err};

    return parse_body(&p, NULL, &t->body) ? SDP_OK : SDP_INPUT;
}

/* -- the template
 * ------------------------------------------------------------------------- */

/* The text with all newlines as "\n", and without the last one. */
static void take_text(struct sdp_template *t, const char *text, size_t length)
{
    t->text = sdp_xcalloc(length + 4, 1);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n')
            continue;
        t->text[t->length++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (t->length > 0 && t->text[t->length - 1] == '\n')
        t->text[--t->length] = '\0';
}

enum sdp_status sdp_template_parse(const char *text, size_t length, const char *name,
                                   struct sdp_template **out, struct sdp_error *err)
{
    struct sdpi_token *tokens = NULL;
    struct sdp_template *t;
    enum sdp_status status;
    size_t where = 0;
    const char *nul;

    if (length > SDPI_MAX_TEMPLATE)
        return sdp_fail_at(err, SDP_INPUT, name, NULL, 0, 0,
                           "has %zu bytes; a template of at most %zu is read", length,
                           SDPI_MAX_TEMPLATE);
    nul = length > 0 ? memchr(text, '\0', length) : NULL;
    if (!sdpi_characters_valid(text, length, &where) || nul)
        return sdp_fail_at(err, SDP_INPUT, name, NULL, 0, 0,
                           "is not valid UTF-8 text at byte %zu",
                           nul ? (size_t)(nul - text) : where);
    t = sdp_xcalloc(1, sizeof *t);
    t->name = sdp_xstrdup(name);
    t->arena.limit = 512 * SDPI_MAX_TEMPLATE;
    take_text(t, text, length);
    status = sdpi_template_lex(t, &tokens, err);
    if (status == SDP_OK)
        status = sdpi_template_tree(t, tokens, err);
    free(tokens);
    if (status == SDP_OK)
        *out = t;
    else
        sdp_template_destroy(t);
    return status;
}

void sdp_template_destroy(struct sdp_template *t)
{
    if (!t)
        return;
    sdpi_arena_free(&t->arena);
    free(t->name);
    free(t->text);
    free(t);
}

bool sdp_template_has_generation(const struct sdp_template *t)
{
    return t->has_generation;
}

static bool uses_name(const struct sdpi_node *node, const char *name)
{
    const struct sdpi_node *parts[3];

    if (!node)
        return false;
    if (node->kind == SDPI_N_CALL && node->a->kind == SDPI_N_NAME &&
        node->a->length == strlen(name) &&
        memcmp(node->a->text, name, node->a->length) == 0)
        return true;
    parts[0] = node->a;
    parts[1] = node->b;
    parts[2] = node->c;
    for (size_t i = 0; i < 3; i++)
        if (uses_name(parts[i], name))
            return true;
    for (size_t i = 0; i < node->count; i++)
        if (uses_name(node->items[i], name))
            return true;
    return false;
}

bool sdp_template_uses(const struct sdp_template *t, const char *name)
{
    return uses_name(t->body, name);
}
