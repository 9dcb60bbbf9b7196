/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* From a Hugging Face config.json to a model graph: picks the family, reads the
 * config as the family's template declares it, fills in the template's graph.
 *
 * A template (model/families/<family>/family.json) has
 *     "model_types"  the values of "model_type" that the family serves
 *     "config"       the keys it reads: see config.c; "refuse" and "warn" likewise
 *     "graph"        a model graph with expressions: see expand.c
 * Besides the keys of "config" its expressions know "rope", the attributes of the
 * operation rope, and "max_sequence_length": see rope.c. */
#include "model/families/family_internal.h"

#include "graph/base/util.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_MODEL_TYPES 256

/* -- templates ---------------------------------------------------------------- */

/* A template that is being used. */
struct opened {
    char *file; /* stands for the template in messages */
    json_t *document;
    struct sdp_json root;
};

static bool open_template(const struct sdp_family *family, struct opened *out,
                          struct sdp_error *err)
{
    static const char *const keys[] = {"model_types", "config", "refuse",
                                       "warn",        "graph",  NULL};

    out->file = sdp_xprintf("model/families/%s/family.json", family->name);
    out->document = NULL;
    return sdp_json_parse(family->template_text, family->template_size, out->file,
                          &out->document, &out->root, err) == SDP_OK &&
           sdp_json_only_keys(&out->root, keys);
}

static void close_template(struct opened *opened)
{
    json_decref(opened->document);
    free(opened->file);
}

static bool serves(const struct opened *opened, const char *model_type)
{
    json_t *types = json_object_get(opened->document, "model_types");
    size_t i;
    json_t *type;

    json_array_foreach(types, i, type)
    {
        if (json_is_string(type) && strcmp(json_string_value(type), model_type) == 0)
            return true;
    }
    return false;
}

/* -- which family ------------------------------------------------------------- */

static const struct sdp_family *find_named(const char *name)
{
    for (size_t f = 0; sdp_families[f]; f++)
        if (strcmp(sdp_families[f]->name, name) == 0)
            return sdp_families[f];
    return NULL;
}

static const struct sdp_family *find_serving(const char *model_type,
                                             struct sdp_error *err)
{
    const struct sdp_family *found = NULL;

    for (size_t f = 0; sdp_families[f] && !found; f++) {
        struct opened opened;

        if (open_template(sdp_families[f], &opened, err) && serves(&opened, model_type))
            found = sdp_families[f];
        close_template(&opened);
    }
    return found;
}

/* "is "lstm"; must be a family that is there: "llama", ..." */
static bool fail_type(const struct sdp_json *at, const char *text, const char *what)
{
    const char *words[MAX_MODEL_TYPES + 1] = {NULL}, *nearest;
    char list[512] = "";
    size_t used = 0;

    for (size_t f = 0; sdp_families[f] && f < MAX_MODEL_TYPES; f++) {
        words[f] = sdp_families[f]->name;
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"",
                                     f ? ", " : "", words[f]);
    }
    nearest = sdp_nearest(text, words);
    return sdp_json_fail(at, "%s \"%s\" is not supported; must be one of %s%s%s%s", what,
                         text, list, nearest ? "; did you mean \"" : "",
                         nearest ? nearest : "", nearest ? "\"?" : "");
}

static const struct sdp_family *choose(const struct sdp_json *config, const char *named)
{
    struct sdp_json member = sdp_json_member(config, "model_type");
    const struct sdp_family *family;
    struct opened opened;
    const char *type = NULL;

    if (!sdp_json_expect_object(config) ||
        (member.value && !sdp_json_expect_string(&member, &type)))
        return NULL;
    if (!type && !named) {
        sdp_json_missing(config, "model_type");
        return NULL;
    }
    family = named ? find_named(named) : find_serving(type, config->err);
    if (!family) {
        if (config->err->status == SDP_OK)
            fail_type(named ? config : &member, named ? named : type,
                      named ? "the model family" : "the model type");
        return NULL;
    }
    if (named && type) {
        if (open_template(family, &opened, config->err) && !serves(&opened, type))
            sdp_json_fail(&member, "is \"%s\", but the family asked for is \"%s\"", type,
                          named);
        close_template(&opened);
    }
    return config->err->status == SDP_OK ? family : NULL;
}

/* -- building ----------------------------------------------------------------- */

/* A message about the filled-in graph must not seem to point into the config. */
static enum sdp_status build_graph(const json_t *document, const struct sdp_json *config,
                                   const struct sdp_family *family,
                                   struct sdp_model_graph **out)
{
    char *file =
        sdp_xprintf("%s (as a graph of the family %s)", config->file, family->name);
    enum sdp_status status = sdp_model_graph_from_json(document, file, out, config->err);

    free(file);
    return status;
}

static bool build(const struct opened *opened, const struct sdp_json *config,
                  const struct sdp_family *family, struct sdp_model_graph **out)
{
    json_t *variables = json_object(), *document = NULL;
    struct sdp_json graph = sdp_json_member(&opened->root, "graph");
    bool good = sdpi_family_read_config(&opened->root, config, variables) &&
                sdpi_family_read_rope(config, variables);

    if (good && sdp_json_expect_object(&graph))
        document = sdpi_template_expand(&graph, variables);
    good = document && build_graph(document, config, family, out) == SDP_OK;
    json_decref(document);
    json_decref(variables);
    return good;
}

enum sdp_status sdp_family_build(const json_t *config, const char *config_file,
                                 const char *family, struct sdp_model_graph **out,
                                 struct sdp_error *err)
{
    struct sdp_error own = SDP_ERROR_INIT;
    struct sdp_json root = {.value = (json_t *)config,
                            .file = config_file,
                            .pointer = "",
                            .err = err ? err : &own};
    const struct sdp_family *chosen = choose(&root, family);
    struct opened opened;
    bool good = chosen != NULL;

    if (!good)
        return root.err->status;
    good = open_template(chosen, &opened, root.err) && build(&opened, &root, chosen, out);
    close_template(&opened);
    return good ? SDP_OK : root.err->status;
}
