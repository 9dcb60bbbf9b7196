/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A folder is a test case: each graph.json in graphs/valid must load, and what it
 * dumps to must load again and dump to the same text; each in graphs/invalid must
 * be refused with exactly the line in its file "error". Where the message is an
 * operation's, "error-starts" holds what comes before it.
 *
 * `test_graph_model_graph_cases --accept` writes the "error" files anew: read the
 * diff. */
#include "graph/base/json.h"
#include "graph/model_graph.h"
#include "tests/sdp_test.h"
#include "tests/support/case_folders.h"

#define CASES SDP_SOURCE_DIR "/tests/graph/graphs/"

static bool accept_messages;

static char *dump_text(const struct sdp_model_graph *graph)
{
    json_t *document = sdp_model_graph_dump(graph);
    char *text = json_dumps(document, JSON_INDENT(1));

    REQUIRE(text != NULL);
    json_decref(document);
    return text;
}

static void check_valid(const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *graph = NULL, *again = NULL;
    char *first, *second, text[SDP_ERROR_TEXT_SIZE];
    json_t *document = NULL;

    if (sdp_model_graph_load("graph.json", &graph, &err) != SDP_OK) {
        SDP_TEST_FAIL("valid/%s was refused: %s", name,
                      sdp_error_format(&err, text, sizeof text));
        return;
    }
    first = dump_text(graph);
    REQUIRE_OK(sdp_json_parse(first, strlen(first), "dump", &document, NULL, &err), &err);
    REQUIRE_OK(sdp_model_graph_from_json(document, "dump", &again, &err), &err);
    second = dump_text(again);
    CHECK_STR(second, first);
    CHECK_EQ(again->layer_count, graph->layer_count);
    CHECK_EQ(again->parameters, graph->parameters);
    json_decref(document);
    free(first);
    free(second);
    sdp_model_graph_destroy(graph);
    sdp_model_graph_destroy(again);
}

static void check_invalid(const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_model_graph *untouched = (struct sdp_model_graph *)&err,
                           *graph = untouched;
    enum sdp_status status = sdp_model_graph_load("graph.json", &graph, &err);

    sdp_test_checks++;
    if (status != SDP_INPUT || err.status != SDP_INPUT || graph != untouched) {
        SDP_TEST_FAIL("invalid/%s: status is %s", name, sdp_status_name(status));
        return;
    }
    CHECK(sdp_test_message_is_expected(name, &err, accept_messages));
    CHECK_EQ(sdp_model_graph_load("graph.json", &graph, NULL), SDP_INPUT);
}

int main(int argc, char **argv)
{
    size_t valid, invalid;

    accept_messages = argc > 1 && strcmp(argv[1], "--accept") == 0;
    valid = sdp_test_walk_cases(CASES "valid", check_valid);
    invalid = sdp_test_walk_cases(CASES "invalid", check_invalid);
    CHECK(valid >= 10);
    CHECK(invalid >= 60);
    return sdp_test_end();
}
