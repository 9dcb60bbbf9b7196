/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Statements of a template, run. A loop's body has a scope of its own in each turn, a
 * {% generation %} block too; {% if %} has none, as in Jinja. */
#include "model/template/template_internal.h"

#include <stdio.h>
#include <stdlib.h>

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL };

static enum flow run_body(struct sdpi_render *r, struct sdpi_scope *scope,
                          const struct sdpi_node *body);

/* -- tools
 * ----------------------------------------------------------------------------------- */

bool sdpi_fail(struct sdpi_render *r, const struct sdpi_node *at, const char *format, ...)
{
    char text[sizeof r->err->text];
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    sdp_fail_at(r->err, SDP_INPUT, r->t->name, NULL, at ? at->line : 0,
                at ? at->column : 0, "%s", text);
    return false;
}

bool sdpi_charge(struct sdpi_render *r, size_t steps)
{
    r->steps += steps;
    return r->steps <= SDPI_MAX_STEPS ||
           sdpi_fail(r, r->at,
                     "the template does more than %zu steps for one conversation; it is "
                     "stopped",
                     SDPI_MAX_STEPS);
}

void *sdpi_take(struct sdpi_render *r, size_t size)
{
    void *memory = sdpi_arena_take(&r->arena, size);

    if (!memory)
        sdpi_fail(
            r, r->at,
            "the template needs more than %zu MiB for one conversation; it is stopped",
            SDPI_MAX_ARENA >> 20);
    return memory;
}

bool sdpi_check_out(struct sdpi_render *r, const struct sdpi_out *out)
{
    return !out->full || sdpi_fail(r, r->at,
                                   "the template writes more than %zu MiB for one "
                                   "conversation; it is stopped",
                                   SDPI_MAX_OUTPUT >> 20);
}

const struct sdpi_value *sdpi_scope_find(const struct sdpi_scope *scope, const char *name,
                                         size_t length)
{
    for (; scope; scope = scope->parent)
        for (size_t i = 0; i < scope->count; i++)
            if (scope->items[i].length == length &&
                memcmp(scope->items[i].name, name, length) == 0)
                return &scope->items[i].value;
    return NULL;
}

bool sdpi_scope_set(struct sdpi_render *r, struct sdpi_scope *scope, const char *name,
                    size_t length, const struct sdpi_value *value)
{
    for (size_t i = 0; i < scope->count; i++)
        if (scope->items[i].length == length &&
            memcmp(scope->items[i].name, name, length) == 0) {
            scope->items[i].value = *value;
            return true;
        }
    if (scope->count == scope->room) {
        size_t room = scope->room * 2 + 4;
        struct sdpi_binding *items = sdpi_take(r, room * sizeof *items);

        if (!items)
            return false;
        if (scope->count > 0)
            memcpy(items, scope->items, scope->count * sizeof *items);
        scope->items = items;
        scope->room = room;
    }
    scope->items[scope->count++] = (struct sdpi_binding){name, length, *value};
    return true;
}

static struct sdpi_scope *new_scope(struct sdpi_render *r, struct sdpi_scope *parent)
{
    struct sdpi_scope *scope = sdpi_take(r, sizeof *scope);

    if (scope)
        scope->parent = parent;
    return scope;
}

/* -- assigning
 * ---------------------------------------------------------------------------------- */

static bool assign_attribute(struct sdpi_render *r, struct sdpi_scope *scope,
                             const struct sdpi_node *target,
                             const struct sdpi_value *value)
{
    const struct sdpi_node *name = target->a;
    const struct sdpi_value *space = sdpi_scope_find(scope, name->text, name->length);
    struct sdpi_value key = sdpi_string(target->text, target->length);

    if (!space || space->kind != SDPI_NAMESPACE)
        return sdpi_fail(
            r, target,
            "\"%.*s\" is no namespace; attributes can be set of namespaces only",
            (int)name->length, name->text);
    if (target->text[0] == '_')
        return sdpi_fail(r, target,
                         "an attribute whose name begins with \"_\" cannot be set");
    return sdpi_dict_set(r, space->p.dict, &key, value);
}

static bool assign(struct sdpi_render *r, struct sdpi_scope *scope,
                   const struct sdpi_node *target, const struct sdpi_value *value)
{
    const struct sdpi_list *list = NULL;

    if (target->kind == SDPI_N_NAME)
        return sdpi_scope_set(r, scope, target->text, target->length, value);
    if (target->kind == SDPI_N_ATTR)
        return assign_attribute(r, scope, target, value);
    if (value->kind == SDPI_UNDEFINED)
        return sdpi_fail(r, target, "an undefined value cannot be taken apart");
    if (!sdpi_iterate(r, value, &list))
        return false;
    if (list->count != target->count)
        return sdpi_fail(r, target, "%zu values cannot be given to %zu variables",
                         list->count, target->count);
    for (size_t i = 0; i < list->count; i++)
        if (!sdpi_scope_set(r, scope, target->items[i]->text, target->items[i]->length,
                            &list->items[i]))
            return false;
    return true;
}

/* -- statements
 * ---------------------------------------------------------------------------------- */

/* Runs a body into a text of its own. */
static bool capture(struct sdpi_render *r, struct sdpi_scope *scope,
                    const struct sdpi_node *body, struct sdpi_value *out)
{
    struct sdpi_out text = {.text = NULL}, *outer = r->out;
    bool nested = r->nested, good;

    r->out = &text;
    r->nested = true;
    good = run_body(r, scope, body) != FLOW_FAIL && sdpi_check_out(r, &text);
    r->out = outer;
    r->nested = nested;
    good = good && sdpi_copy_string(r, text.text ? text.text : "", text.length, out);
    free(text.text);
    return good;
}

bool sdpi_call_macro(struct sdpi_render *r, const struct sdpi_node *at,
                     const struct sdpi_macro *macro, const struct sdpi_args *args,
                     struct sdpi_value *out)
{
    struct sdpi_scope *scope = new_scope(r, macro->scope);
    const struct sdpi_node *node = macro->node;
    size_t used = 0;

    if (!scope)
        return false;
    if (args->count > node->count)
        return sdpi_fail(r, at, "the macro \"%.*s\" takes at most %zu arguments, not %zu",
                         (int)node->length, node->text, node->count, args->count);
    for (size_t i = 0; i < node->count; i++) {
        const struct sdpi_node *parameter = node->items[i];
        struct sdpi_value value = sdpi_undefined(NULL);
        bool given = i < args->count;

        if (given)
            value = args->items[i];
        for (size_t k = 0; k < args->keyword_count; k++)
            if (args->keywords[k].length == parameter->length &&
                memcmp(args->keywords[k].name, parameter->text, parameter->length) == 0) {
                value = args->keywords[k].value;
                given = true;
                used++;
            }
        if (!given && parameter->a && !sdpi_eval(r, scope, parameter->a, &value))
            return false;
        if (!sdpi_scope_set(r, scope, parameter->text, parameter->length, &value))
            return false;
    }
    if (used != args->keyword_count)
        return sdpi_fail(r, at,
                         "the macro \"%.*s\" has no parameter of a name that is given",
                         (int)node->length, node->text);
    return capture(r, scope, node->b, out);
}

static enum flow run_if(struct sdpi_render *r, struct sdpi_scope *scope,
                        const struct sdpi_node *node)
{
    struct sdpi_value value;

    for (size_t i = 0; i + 1 < node->count; i += 2) {
        if (!sdpi_eval(r, scope, node->items[i], &value))
            return FLOW_FAIL;
        if (sdpi_truth(&value))
            return run_body(r, scope, node->items[i + 1]);
    }
    return node->a ? run_body(r, scope, node->a) : FLOW_ON;
}

/* The items of a loop that its condition lets through. */
static bool filter_items(struct sdpi_render *r, struct sdpi_scope *scope,
                         const struct sdpi_node *node, const struct sdpi_list **items)
{
    struct sdpi_value kept, value;
    const struct sdpi_list *all = *items;

    if (!node->c)
        return true;
    if (!sdpi_new_list(r, SDPI_LIST, &kept))
        return false;
    for (size_t i = 0; i < all->count; i++) {
        struct sdpi_scope *inner = new_scope(r, scope);

        if (!inner || !assign(r, inner, node->a, &all->items[i]) ||
            !sdpi_eval(r, inner, node->c, &value))
            return false;
        if (sdpi_truth(&value) && !sdpi_list_add(r, kept.p.list, &all->items[i]))
            return false;
    }
    *items = kept.p.list;
    return true;
}

static enum flow run_for(struct sdpi_render *r, struct sdpi_scope *scope,
                         const struct sdpi_node *node)
{
    const struct sdpi_list *items = NULL;
    struct sdpi_value over, loop = {.kind = SDPI_LOOP};

    if (!sdpi_eval(r, scope, node->b, &over))
        return FLOW_FAIL;
    r->at = node;
    if (!sdpi_iterate(r, &over, &items) || !filter_items(r, scope, node, &items))
        return FLOW_FAIL;
    if (!(loop.p.loop = sdpi_take(r, sizeof *loop.p.loop)))
        return FLOW_FAIL;
    loop.p.loop->items = items;
    for (size_t i = 0; i < items->count; i++) {
        struct sdpi_scope *inner = new_scope(r, scope);
        enum flow flow;

        loop.p.loop->at = i;
        if (!inner || !sdpi_scope_set(r, inner, "loop", 4, &loop) ||
            !assign(r, inner, node->a, &items->items[i]))
            return FLOW_FAIL;
        flow = run_body(r, inner, node->items[0]);
        if (flow == FLOW_FAIL)
            return flow;
        if (flow == FLOW_BREAK)
            return FLOW_ON;
    }
    if (items->count == 0 && node->items[1])
        return run_body(r, scope, node->items[1]);
    return FLOW_ON;
}

static bool run_macro(struct sdpi_render *r, struct sdpi_scope *scope,
                      const struct sdpi_node *node)
{
    struct sdpi_macro *macro = sdpi_take(r, sizeof *macro);
    struct sdpi_value value = {.kind = SDPI_MACRO};

    if (!macro)
        return false;
    macro->node = node;
    macro->scope = scope;
    value.p.macro = macro;
    return sdpi_scope_set(r, scope, node->text, node->length, &value);
}

static bool run_output(struct sdpi_render *r, struct sdpi_scope *scope,
                       const struct sdpi_node *node)
{
    struct sdpi_value value, text;

    if (!sdpi_eval(r, scope, node->a, &value))
        return false;
    r->at = node;
    if (!sdpi_to_text(r, &value, &text))
        return false;
    sdpi_out_add(r->out, text.p.text, text.u.length);
    return sdpi_charge(r, text.u.length / 256) && sdpi_check_out(r, r->out);
}

static enum flow run_generation(struct sdpi_render *r, struct sdpi_scope *scope,
                                const struct sdpi_node *node)
{
    struct sdpi_scope *inner = new_scope(r, scope);
    size_t first = r->out->length;
    enum flow flow;

    if (r->nested) {
        sdpi_fail(r, node,
                  "{%% generation %%} within a macro or a set block is not supported");
        return FLOW_FAIL;
    }
    flow = inner ? run_body(r, inner, node->a) : FLOW_FAIL;
    if (flow == FLOW_FAIL)
        return flow;
    r->spans = sdp_xrealloc(r->spans, (r->span_count + 1) * sizeof *r->spans);
    r->spans[r->span_count++] = (struct sdp_template_span){first, r->out->length};
    return flow;
}

static enum flow run_node(struct sdpi_render *r, struct sdpi_scope *scope,
                          const struct sdpi_node *node)
{
    struct sdpi_value value;
    bool good = true;

    r->at = node;
    switch (node->kind) {
    case SDPI_N_DATA:
        sdpi_out_add(r->out, node->text, node->length);
        good = sdpi_check_out(r, r->out);
        break;
    case SDPI_N_OUTPUT:
        good = run_output(r, scope, node);
        break;
    case SDPI_N_IF:
        return run_if(r, scope, node);
    case SDPI_N_FOR:
        return run_for(r, scope, node);
    case SDPI_N_SET:
        good = sdpi_eval(r, scope, node->b, &value) && assign(r, scope, node->a, &value);
        break;
    case SDPI_N_CAPTURE:
        good = capture(r, scope, node->b, &value) && assign(r, scope, node->a, &value);
        break;
    case SDPI_N_MACRO:
        good = run_macro(r, scope, node);
        break;
    case SDPI_N_BREAK:
        return FLOW_BREAK;
    case SDPI_N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        return run_generation(r, scope, node);
    }
    return good ? FLOW_ON : FLOW_FAIL;
}

static enum flow run_body(struct sdpi_render *r, struct sdpi_scope *scope,
                          const struct sdpi_node *body)
{
    enum flow flow = FLOW_ON;

    if (++r->depth > SDPI_MAX_DEPTH) {
        sdpi_fail(r, body, "the template calls itself too deeply; it is stopped");
        return FLOW_FAIL;
    }
    for (size_t i = 0; flow == FLOW_ON && i < body->count; i++)
        flow = sdpi_charge(r, 1) ? run_node(r, scope, body->items[i]) : FLOW_FAIL;
    r->depth--;
    return flow;
}

/* -- the whole
 * ---------------------------------------------------------------------------------------
 */

static bool set_variables(struct sdpi_render *r, struct sdpi_scope *scope,
                          const json_t *variables)
{
    const char *name;
    json_t *json;

    json_object_foreach((json_t *)(uintptr_t)variables, name, json)
    {
        struct sdpi_value value;

        if (!sdpi_from_json(r, json, &value) ||
            !sdpi_scope_set(r, scope, name, strlen(name), &value))
            return false;
    }
    return true;
}

enum sdp_status sdp_template_render(const struct sdp_template *t, const json_t *variables,
                                    int64_t now, struct sdp_template_text *out,
                                    struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    struct sdpi_out text = {.text = NULL};
    struct sdpi_scope *globals, *scope;
    struct sdpi_render r = {
        .t = t, .err = err ? err : &own, .out = &text, .now = now, .at = t->body};
    bool good;

    r.arena.limit = SDPI_MAX_ARENA;
    globals = new_scope(&r, NULL);
    scope = globals ? new_scope(&r, globals) : NULL;
    good = scope && set_variables(&r, globals, variables) &&
           run_body(&r, scope, t->body) != FLOW_FAIL;
    sdpi_arena_free(&r.arena);
    if (!good) {
        free(text.text);
        free(r.spans);
        return SDP_INPUT;
    }
    sdpi_out_add(&text, "", 0);
    *out = (struct sdp_template_text){text.text, text.length, r.spans, r.span_count};
    return SDP_OK;
}

void sdp_template_text_free(struct sdp_template_text *text)
{
    free(text->text);
    free(text->spans);
    *text = (struct sdp_template_text){.text = NULL};
}
