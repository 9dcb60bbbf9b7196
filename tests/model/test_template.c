/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* model/template: what transformers renders, for templates of the common families and for
 * expressions of all kinds (template/make_template_cases.py made the expected texts);
 * what is refused, with which message; and that hostile templates end. */
#include "graph/base/json.h"
#include "model/template/template.h"
#include "tests/sdp_test.h"

#include <dirent.h>

#define CASES SDP_SOURCE_DIR "/tests/model/template/cases"

static json_t *load(const char *path)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_json root;
    json_t *document = NULL;

    REQUIRE_OK(sdp_json_load(path, &document, &root, &err), &err);
    return document;
}

/* What a template sees beside a case's own variables. */
static json_t *make_variables(const json_t *own)
{
    json_t *all =
        json_pack("{s:[], s:n, s:n, s:b, s:s, s:s}", "messages", "tools", "documents",
                  "add_generation_prompt", 0, "bos_token", "<s>", "eos_token", "</s>");

    REQUIRE(all != NULL);
    if (own)
        CHECK(json_object_update(all, (json_t *)(uintptr_t)own) == 0);
    return all;
}

static enum sdp_status render(const char *text, const json_t *own,
                              struct sdp_template_text *out, struct sdp_error *err)
{
    struct sdp_template *t = NULL;
    json_t *variables = make_variables(own);
    enum sdp_status status = sdp_template_parse(text, strlen(text), "template", &t, err);

    if (status == SDP_OK)
        status = sdp_template_render(t, variables, 1735689600, out, err);
    sdp_template_destroy(t);
    json_decref(variables);
    return status;
}

static void check_spans(const char *name, const json_t *expected,
                        const struct sdp_template_text *out)
{
    const json_t *spans = json_object_get(expected, "spans");

    CHECK_EQ(json_array_size(spans), out->span_count);
    for (size_t i = 0; i < json_array_size(spans) && i < out->span_count; i++) {
        const json_t *span = json_array_get(spans, i);
        long long first = json_integer_value(json_array_get(span, 0)),
                  last = json_integer_value(json_array_get(span, 1));

        sdp_test_checks++;
        if ((long long)out->spans[i].first != first ||
            (long long)out->spans[i].last != last)
            SDP_TEST_FAIL("%s: span %zu is %zu to %zu, wanted %lld to %lld", name, i,
                          out->spans[i].first, out->spans[i].last, first, last);
    }
}

static void check_case(const char *name, const char *template, const json_t *own,
                       const json_t *expected)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_template_text out = {.text = NULL};
    enum sdp_status status = render(template, own, &out, &err);
    const json_t *text = json_object_get(expected, "text"),
                 *refused = json_object_get(expected, "refused");

    sdp_test_checks++;
    if (refused) {
        if (status == SDP_OK || !strstr(err.text, json_string_value(refused)))
            SDP_TEST_FAIL("%s: should be refused with \"%s\", but says \"%s\"", name,
                          json_string_value(refused), status ? err.text : out.text);
    } else if (!text && status == SDP_OK) {
        SDP_TEST_FAIL("%s: transformers says %s; here it is \"%s\"", name,
                      json_string_value(json_object_get(expected, "error")), out.text);
    } else if (text && status != SDP_OK) {
        SDP_TEST_FAIL("%s: %d:%d: %s", name, err.line, err.column, err.text);
    } else if (text && (json_string_length(text) != out.length ||
                        memcmp(json_string_value(text), out.text, out.length))) {
        SDP_TEST_FAIL("%s:\nis     \"%s\"\nwanted \"%s\"", name, out.text,
                      json_string_value(text));
    } else if (text) {
        check_spans(name, expected, &out);
    }
    if (status == SDP_OK)
        sdp_template_text_free(&out);
}

/* Every conversation, with the template of one folder. */
static void check_folder(const char *folder, const json_t *conversations)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *path = sdp_path_join(folder, "template.jinja"),
         *results_path = sdp_path_join(folder, "expected.json");
    char *template = NULL;
    json_t *expected = load(results_path),
           *results = json_object_get(expected, "results");

    REQUIRE_OK(sdp_read_text(path, &template, NULL, &err), &err);
    CHECK_EQ(json_array_size(results), json_array_size(conversations));
    for (size_t i = 0; i < json_array_size(results); i++) {
        char *name = sdp_xprintf(
            "%s: %s", folder,
            json_string_value(json_object_get(json_array_get(results, i), "name")));

        check_case(name, template, json_array_get(conversations, i),
                   json_array_get(results, i));
        free(name);
    }
    json_decref(expected);
    free(template);
    free(results_path);
    free(path);
}

static void test_families(const char *root)
{
    json_t *conversations = load(CASES "/conversations.json");
    DIR *folder = opendir(root);
    struct dirent *entry;
    size_t count = 0;

    REQUIRE(folder != NULL);
    while ((entry = readdir(folder))) {
        char *path = sdp_path_join(root, entry->d_name);

        if (entry->d_name[0] != '.' && sdp_path_is_folder(path)) {
            check_folder(path, conversations);
            count++;
        }
        free(path);
    }
    CHECK(closedir(folder) == 0);
    CHECK(count >= 10);
    json_decref(conversations);
}

static void test_expressions(void)
{
    json_t *document = load(CASES "/expressions.json"),
           *cases = json_object_get(document, "cases");

    CHECK(json_array_size(cases) >= 100);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const char *template = json_string_value(json_object_get(one, "template"));

        check_case(template, template, json_object_get(one, "variables"), one);
    }
    json_decref(document);
}

/* -- messages and limits ----------------------------------------------------------------
 */

static void check_message(const char *template, const char *wanted)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_template_text out = {.text = NULL};
    char text[SDP_ERROR_TEXT_SIZE];

    CHECK_EQ(render(template, NULL, &out, &err), SDP_INPUT);
    CHECK_STR(sdp_error_format(&err, text, sizeof text), wanted);
}

static void test_messages(void)
{
    check_message("a\n b {% include 'x' %}",
                  "template:2:7: {% include %} is not supported; give the job a chat "
                  "template without it "
                  "(data.chat_template)");
    check_message("\n{{ x | wordwrap(3) }}",
                  "template:2:8: the filter \"wordwrap\" is not supported; give the job "
                  "a chat template without it "
                  "(data.chat_template)");
    check_message("{{ raise_exception('Roles must alternate') }}",
                  "template:1:4: the template refuses this: Roles must alternate");
    check_message("{{ messages[0].role }}",
                  "template:1:16: item is undefined, so it has no parts");
    check_message("{{ bos_token + tools }}",
                  "template:1:14: \"+\" cannot take str and None");
    check_message("{{ bos_token + name }}",
                  "template:1:14: \"+\" cannot take str and undefined name");
    check_message("{% if x %}",
                  "template:1:11: the block before this has no {% endif %}");
    check_message("{{ 'x", "template:1:4: a text begins here and does not end");
    check_message("\xff", "template: is not valid UTF-8 text at byte 0");
}

static void test_limits(void)
{
    check_message("{% set ns = namespace(n=0) %}{% macro m(n) %}{% if n > 0 %}{{ m(n - "
                  "1) }}{{ m(n - 1) }}{% endif %}"
                  "{% endmacro %}{{ m(30) }}",
                  "template:1:60: the template needs more than 512 MiB for one "
                  "conversation; it is stopped");
    check_message("{% set l = range(99999) | list %}{% for a in l %}{% if 'x' in l %}{% "
                  "endif %}{% endfor %}",
                  "template:1:60: the template does more than 20000000 steps for one "
                  "conversation; it is stopped");
    check_message(
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "template:1:19: an expression is nested too deeply, or a macro calls itself");
    check_message("{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(100) "
                  "%}{% set ns.x = ns.x + ns.x %}"
                  "{% endfor %}",
                  "template:1:91: the template needs more than 512 MiB for one "
                  "conversation; it is stopped");
    check_message("{% for i in range(1000) %}{{ 'a' * 1000000 }}{% endfor %}",
                  "template:1:27: the template writes more than 256 MiB for one "
                  "conversation; it is stopped");
    check_message("{{ 'a' * 9223372036854775807 }}",
                  "template:1:8: a text or list becomes too long");
    check_message("{{ range(99999999) }}",
                  "template:1:4: range with more than 100000 numbers");
    check_message("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = "
                  "[ns.x] %}{% endfor %}{{ ns.x }}",
                  "template:1:92: lists are nested too deeply to be written");
}

/* Deep nesting of every kind must end in a message, not in the stack. */
static void test_depth(void)
{
    static const char *const pieces[][2] = {{"(", ")"},   {"[", "]"},     {"-", ""},
                                            {"not ", ""}, {"{'a':", "}"}, {"x[", "]"},
                                            {"f(", ")"}};

    for (size_t p = 0; p < SDP_COUNT_OF(pieces); p++) {
        struct sdp_error err = SDP_ERROR_INIT;
        struct sdp_template_text out = {.text = NULL};
        const size_t depth = 100000;
        size_t open = strlen(pieces[p][0]), close = strlen(pieces[p][1]), at = 3;
        char *text = sdp_xcalloc(depth * (open + close) + 16, 1);

        memcpy(text, "{{ ", 3);
        for (size_t i = 0; i < depth; i++, at += open)
            memcpy(text + at, pieces[p][0], open);
        text[at++] = '1';
        for (size_t i = 0; i < depth; i++, at += close)
            memcpy(text + at, pieces[p][1], close);
        memcpy(text + at, " }}", 3);
        CHECK_EQ(render(text, NULL, &out, &err), SDP_INPUT);
        CHECK_CONTAINS(err.text, "too deeply");
        free(text);
    }
}

static void test_time(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_template_text out = {.text = NULL};

    REQUIRE_OK(render("{{ strftime_now('%d %b %Y, %H:%M') }}", NULL, &out, &err), &err);
    CHECK_STR(out.text, "01 Jan 2025, 00:00");
    sdp_template_text_free(&out);
    check_message("{{ strftime_now('%Q') }}",
                  "template:1:4: %Q in the format of a time is not supported");
}

int main(int argc, char **argv)
{
    test_families(argc > 1 ? argv[1]
                           : CASES); /* a folder of templates and expected.json */
    test_expressions();
    test_messages();
    test_limits();
    test_depth();
    test_time();
    return sdp_test_end();
}
