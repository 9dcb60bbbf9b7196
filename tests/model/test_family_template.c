/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The language of the family templates: expressions, members and elements left
 * out, objects spread. */
#include "model/families/family_internal.h"
#include "tests/sdp_test.h"

static json_t *variables;

/* JSON text of what a template's JSON text becomes; NULL where it is refused. [new] */
static char *expand(const char *text, struct sdp_error *err)
{
    json_t *document = json_loads(text, JSON_DECODE_ANY, NULL), *value;
    struct sdp_json at = {.value = document, .file = "t", .pointer = "", .err = err};
    char *out = NULL;

    REQUIRE(document != NULL);
    value = sdpi_template_expand(&at, variables);
    CHECK_EQ(value == NULL, err->status != SDP_OK);
    if (value)
        out = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
    json_decref(document);
    return out;
}

static void check(const char *text, const char *wanted)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *is = expand(text, &err);

    CHECK_STR(is ? is : err.text, wanted);
    free(is);
}

static void check_expression(const char *expression, const char *wanted)
{
    char *text = sdp_xprintf("\"${%s}\"", expression);

    check(text, wanted);
    free(text);
}

static void check_refused(const char *text, const char *pointer, const char *part)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *is = expand(text, &err);

    CHECK(is == NULL);
    CHECK_STR(err.pointer, pointer);
    CHECK_CONTAINS(err.text, part);
    free(is);
}

static void test_values(void)
{
    check_expression("12", "12");
    check_expression(" 1e-2 ", "0.01");
    check_expression("2.50", "2.5");
    check_expression("9223372036854775807", "9223372036854775807");
    check_expression("'a b'", "\"a b\"");
    check_expression("true", "true");
    check_expression("null", "null");
    check_expression("five", "5");
    check_expression("word", "\"silu\"");
    check_expression("rope", "{\"theta\":10}");
}

static void test_operators(void)
{
    check_expression("1 + 2 * 3 - 4", "3");
    check_expression("10 - 4 - 3", "3");
    check_expression("(1 + 2) * -five", "-15");
    check_expression("576 / 9", "64");
    check_expression("five / 2", "2.5");
    check_expression("five % 3", "2");
    check_expression("2.5 % 2", "0.5");
    check_expression("9223372036854775807 + 1 > 9e18", "true");
    check_expression("1 < 2 && 2 <= 2 && 3 > 2.5 && 3 >= 3", "true");
    check_expression("1 == 1.0 && word == 'silu' && word != 'gelu' && none == null",
                     "true");
    check_expression("1 == '1' || true == 1", "false");
    check_expression("false && false || true", "true");
    check_expression("!yes", "false");
    check_expression("!!yes != !yes", "true");
    check_expression("yes ? 1 : 2", "1");
    check_expression("five > 5 ? 'a' : five == 5 ? 'b' : 'c'", "\"b\"");
}

static void test_wrong_expressions(void)
{
    check_refused("\"${}\"", "", "a value is missing");
    check_refused("\"${1 +}\"", "", "a value is missing");
    check_refused("\"${1 2}\"", "", "nothing may follow");
    check_refused("\"${(1}\"", "", "\")\" is missing");
    check_refused("\"${yes ? 1}\"", "", "\":\" is missing");
    check_refused("\"${1 ? 2 : 3}\"", "", "? needs true or false");
    check_refused("\"${1 && yes}\"", "", "&& and || need true or false");
    check_refused("\"${word * 2}\"", "", "need numbers");
    check_refused("\"${word < 2}\"", "", "need numbers");
    check_refused("\"${-word}\"", "", "- needs a number");
    check_refused("\"${!five}\"", "", "! needs true or false");
    check_refused("\"${1 / 0}\"", "", "a division by 0");
    check_refused("\"${1 % 0}\"", "", "a division by 0");
    check_refused("\"${1e999}\"", "", "too large");
    check_refused("\"${1e308 * 10}\"", "", "too large");
    check_refused("\"${'open}\"", "", "not closed");
    check_refused("[0, {\"a\": \"${fiv}\"}]", "/1/a",
                  "unknown variable \"fiv\"; did you mean \"five\"?");
    check_refused("\"${unheard_of}\"", "", "unknown variable \"unheard_of\"");
}

static void test_deep_expression(void)
{
    char text[4096] = "\"${";

    memset(text + 3, '(', 2000);
    memcpy(text + 2003, "}\"", 3);
    check_refused(text, "", "nested too deeply");
    memset(text + 3, '!', 2000);
    check_refused(text, "", "nested too deeply");
}

static void test_texts(void)
{
    check("\"a.{i}.${five}.${word}\"", "\"a.{i}.5.silu\"");
    check("\"${five}${yes}${none}\"", "\"5truenull\"");
    check("\"no ${ end\"", "\"no ${ end\"");
    check("\"\"", "\"\"");
}

static void test_left_out(void)
{
    check("{\"a\": \"${none}\", \"b\": \"${yes ? null : 1}\", \"c\": 3}", "{\"c\":3}");
    check("{\"a\": {\"when\": \"${!yes}\", \"x\": 1}, \"b\": {\"when\": \"${yes}\"}}",
          "{\"b\":{}}");
    check("[{\"when\": \"${five > 9}\"}, 1, {\"when\": \"${yes}\", \"x\": [2]}]",
          "[1,{\"x\":[2]}]");
    check("{\"when\": \"${!yes}\"}", "null");
    check("{\"a\": 1, \"...\": \"${rope}\", \"b\": true}",
          "{\"a\":1,\"theta\":10,\"b\":true}");
    check_refused("{\"a\": {\"when\": \"${five}\"}}", "/a/when",
                  "is 5; must be an expression that is true or false");
    check_refused("{\"when\": true}", "/when", "must be a string");
    check_refused("{\"...\": \"${five}\"}", "/...", "an expression for an object");
    check("{\"a\": [{\"...\": {\"when\": \"${!yes}\"}}]}", "{\"a\":[{}]}");
}

int main(void)
{
    variables = json_pack("{s:i, s:b, s:s, s:n, s:{s:i}}", "five", 5, "yes", 1, "word",
                          "silu", "none", "rope", "theta", 10);
    REQUIRE(variables != NULL);
    test_values();
    test_operators();
    test_wrong_expressions();
    test_deep_expression();
    test_texts();
    test_left_out();
    json_decref(variables);
    return sdp_test_end();
}
