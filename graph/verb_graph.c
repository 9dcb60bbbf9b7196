/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slidedp graph: prints the model graph of a job, of a Hugging Face config.json
 * or of a graph file as the JSON that jobs accept as "graph"; or lists the
 * operations that graphs are made of. */
#include "graph/base/json.h"
#include "graph/engine.h"
#include "graph/job_model.h"
#include "graph/options.h"
#include "model/families/family.h"

#include <stdio.h>
#include <stdlib.h>

/* -- operations --------------------------------------------------------------- */

static void print_names(const char *title, const char *const *names)
{
    if (!names || !names[0])
        return;
    fprintf(stdout, "    %-9s", title);
    for (size_t i = 0; names[i]; i++) {
        size_t length = strlen(names[i]);
        bool optional = names[i][length - 1] == '?';

        fprintf(stdout, "%s%.*s%s", i ? ", " : "", (int)(length - optional), names[i],
                optional ? " (optional)" : "");
    }
    fputc('\n', stdout);
}

static void print_weights(const struct sdp_op_weight *weights)
{
    for (size_t w = 0; weights && weights[w].name; w++)
        fprintf(stdout, "    %-9s%s: %s%s%s\n", w ? "" : "weights", weights[w].name,
                weights[w].many ? "list of " : "",
                weights[w].is_vector ? (weights[w].many ? "vectors" : "vector")
                                     : (weights[w].many ? "matrices" : "matrix"),
                weights[w].optional ? " (optional)" : "");
}

static void print_attrs(const struct sdp_op_attr *attrs)
{
    for (size_t a = 0; attrs && attrs[a].name; a++) {
        fprintf(stdout, "    %-9s%s: ", a ? "" : "attrs", attrs[a].name);
        if (!attrs[a].words)
            fputs("number", stdout);
        for (size_t w = 0; attrs[a].words && attrs[a].words[w]; w++)
            fprintf(stdout, "%s%s", w ? " | " : "", attrs[a].words[w]);
        if (attrs[a].required)
            fputs(" (required)\n", stdout);
        else if (attrs[a].words)
            fprintf(stdout, " (default %s)\n", attrs[a].words[(size_t)attrs[a].fallback]);
        else
            fprintf(stdout, " (default %.9g)\n", attrs[a].fallback);
    }
}

static void print_ops(void)
{
    for (size_t i = 0; sdp_ops[i]; i++) {
        const struct sdp_op *op = sdp_ops[i];

        fprintf(stdout, "%s%s: %s%s\n", i ? "\n" : "", op->name, op->summary,
                op->is_loss ? " (loss)" : "");
        print_names("inputs", op->inputs);
        print_weights(op->weights);
        print_attrs(op->attrs);
        print_names("outputs", op->outputs);
    }
}

/* -- graphs ------------------------------------------------------------------- */

static enum sdp_status build_from_job(const char *path, struct sdp_model_graph **out,
                                      struct sdp_error *err)
{
    struct sdp_job *job = NULL;
    enum sdp_status status = sdp_job_load(path, NULL, 0, &job, err);

    if (status == SDP_OK)
        status = sdp_job_build_graph(job, out, NULL, err);
    sdp_job_destroy(job);
    return status;
}

static enum sdp_status build(const char *path, struct sdp_model_graph **out,
                             struct sdp_error *err)
{
    json_t *document = NULL;
    enum sdp_status status = sdp_json_load(path, &document, NULL, err);

    if (status != SDP_OK)
        return status;
    if (json_object_get(document, "slidedp_graph"))
        status = sdp_model_graph_from_json(document, path, out, err);
    else if (json_object_get(document, "model_type"))
        status = sdp_family_build(document, path, NULL, out, err);
    else if (json_object_get(document, "model"))
        status = build_from_job(path, out, err);
    else
        status = sdp_fail_at(err, SDP_INPUT, path, NULL, 0, 0,
                             "is neither a job (\"model\"), nor a config.json "
                             "(\"model_type\"), nor a graph (\"slidedp_graph\")");
    if (status != SDP_OK)
        sdp_json_locate_error(err);
    json_decref(document);
    return status;
}

/* With 15 digits of reals where these give back the same numbers, else with 17. */
static char *json_text(const json_t *document)
{
    const size_t flags = JSON_INDENT(2);
    char *text = json_dumps(document, flags | JSON_REAL_PRECISION(15));
    json_t *again = text ? json_loads(text, 0, NULL) : NULL;
    bool exact = again && json_equal(document, again);

    json_decref(again);
    if (exact)
        return text;
    free(text);
    return json_dumps(document, flags | JSON_REAL_PRECISION(17));
}

static enum sdp_status print_graph(const char *path, struct sdp_error *err)
{
    struct sdp_model_graph *graph = NULL;
    enum sdp_status status = build(path, &graph, err);
    json_t *document;
    char *text;

    if (status != SDP_OK)
        return status;
    document = sdp_model_graph_dump(graph);
    text = json_text(document);
    if (text)
        fprintf(stdout, "%s\n", text);
    else
        status = sdp_fail(err, SDP_INTERNAL, "the graph cannot be written as JSON");
    free(text);
    json_decref(document);
    sdp_model_graph_destroy(graph);
    return status;
}

/* -- the task graph ------------------------------------------------------------- */

static enum sdp_status print_tasks(const char *path, const struct sdp_option_list *set,
                                   struct sdp_error *err)
{
    struct sdp_job *job = NULL;
    struct sdp_model_graph *graph = NULL;
    struct sdp_plan *plan = NULL;
    enum sdp_status status = sdp_job_load(path, set->items, set->count, &job, err);

    if (status == SDP_OK)
        status = sdp_job_build_graph(job, &graph, NULL, err);
    if (status == SDP_OK) /* an endless stream: the number of steps does not matter here */
        status = sdp_plan_create(job, graph, 1, &plan, err);
    if (status == SDP_OK)
        status = sdp_engine_write_dot(plan, stdout, err);
    sdp_plan_destroy(plan);
    sdp_model_graph_destroy(graph);
    sdp_job_destroy(job);
    return status;
}

/* -- the verb ------------------------------------------------------------------- */

static int run(int argc, char **argv);

const struct sdp_verb sdp_verb_graph = {
    .name = "graph",
    .summary = "Prints the model graph of a job, a config.json or a graph file",
    .usage = "JOB|CONFIG|GRAPH [--dot] [--ops]",
    .run = run,
};

static int run(int argc, char **argv)
{
    bool ops = false, dot = false;
    struct sdp_option_list set = {0};
    const struct sdp_option options[] = {
        {"ops", SDP_OPTION_FLAG, &ops, NULL, "list the operations instead", NULL},
        {"dot", SDP_OPTION_FLAG, &dot, NULL, "print the task graph of one step of a job (Graphviz)", NULL},
        {"set", SDP_OPTION_LIST, &set, "KEY=VALUE", "with --dot: change a value of the job", NULL},
        {NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL},
    };
    struct sdp_error err = SDP_ERROR_INIT;
    const char *path = NULL;
    enum sdp_status status = SDP_OK;
    int code = sdp_options_parse(&sdp_verb_graph, options, argc, argv, 0, 1, &path, NULL);

    if (code >= 0)
        return code;
    if (ops)
        print_ops();
    else if (path && dot)
        status = print_tasks(path, &set, &err);
    else if (path)
        status = print_graph(path, &err);
    else
        status = sdp_fail(&err, SDP_INPUT,
                          "graph: an argument is missing; usage: "
                          "slidedp graph JOB|CONFIG|GRAPH [--dot] [--ops]");
    free(set.items);
    if (status != SDP_OK)
        sdp_error_print(&err);
    return sdp_status_exit_code(status);
}
