/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of the families share: family.c picks a family and builds its
 * graph, config.c reads a config.json as the template declares it, rope.c its
 * rotary embedding, expand.c fills in the template, expression.c computes. */
#ifndef SDP_MODEL_FAMILIES_FAMILY_INTERNAL_H
#define SDP_MODEL_FAMILIES_FAMILY_INTERNAL_H

#include "graph/base/json.h"
#include "model/families/family.h"

/** Value of a text: the value of the expression where the text is one "${...}" as a
 * whole, else the text with every "${...}" written out. `at` is where it stands, for
 * messages. [new], or NULL after a message. */
json_t *sdpi_expression_text(const struct sdp_json *at, const char *text,
                             const json_t *variables);

/** A copy of the JSON at the cursor with all expressions filled in and all members and
 * elements dropped that are not wanted. [new], or NULL after a message. */
json_t *sdpi_template_expand(const struct sdp_json *at, const json_t *variables);

/** Expands a condition or message of the template. */
bool sdpi_template_condition(const struct sdp_json *at, const json_t *variables,
                             bool *out);

/** Reads the keys of `config` that the template's "config" declares into `variables`,
 * which then has each of them, and refuses what the template's "refuse" names. */
bool sdpi_family_read_config(const struct sdp_json *family, const struct sdp_json *config,
                             json_t *variables);

/** Reads the rotary embedding's settings, in the form of transformers 5 or before.
 * Sets the variables "rope", the attributes of the operation, and
 * "max_sequence_length". */
bool sdpi_family_read_rope(const struct sdp_json *config, json_t *variables);

#endif
