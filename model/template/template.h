/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Chat templates: the part of the Jinja language that the templates of Hugging Face
 * models use, rendered as transformers' apply_chat_template does (trim_blocks,
 * lstrip_blocks, its tojson, break and continue, {% generation %}). What is not part of
 * it is refused when the template is read, with line and column; nothing is guessed. A
 * template is a program that a stranger wrote: steps, memory, output and depth are
 * limited. */
#ifndef SDP_MODEL_TEMPLATE_TEMPLATE_H
#define SDP_MODEL_TEMPLATE_TEMPLATE_H

#include "graph/base/util.h"

#include <jansson.h>

struct sdp_template;

struct sdp_template_span {
    size_t first, last; /* bytes first .. last-1 of the text */
};

struct sdp_template_text {
    char *text; /* UTF-8, NUL-ended */
    size_t length;
    struct sdp_template_span *spans; /* what {% generation %} blocks wrote, in order */
    size_t span_count;
};

/** Reads a template. Messages give `name` as file, with line and column in the template's
 * text. [new] *out. Thread: any. */
SDP_CHECK_RESULT enum sdp_status sdp_template_parse(const char *text, size_t length,
                                                    const char *name,
                                                    struct sdp_template **out,
                                                    struct sdp_error *err);
void sdp_template_destroy(struct sdp_template *t);

/** Whether the template has {% generation %} blocks; whether it calls `name`, a global
 * function such as "strftime_now". */
bool sdp_template_has_generation(const struct sdp_template *t);
bool sdp_template_uses(const struct sdp_template *t, const char *name);

/** Renders with the variables of a JSON object. `now` (seconds since 1970) is the time
 * that strftime_now tells, in UTC. A template's own raise_exception is SDP_INPUT with its
 * text. [new] *out: sdp_template_text_free() it. Thread: any number at once with one
 * template. */
SDP_CHECK_RESULT enum sdp_status sdp_template_render(const struct sdp_template *t,
                                                     const json_t *variables, int64_t now,
                                                     struct sdp_template_text *out,
                                                     struct sdp_error *err);
void sdp_template_text_free(struct sdp_template_text *text);

#endif
