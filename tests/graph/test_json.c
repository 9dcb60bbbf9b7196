/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* graph/base/json: what the strict reader accepts, and every kind of message. */
#define _GNU_SOURCE
#include "graph/base/json.h"
#include "graph/base/util.h"
#include "tests/sdp_test.h"

#include <unistd.h>

static struct sdp_error err;
static json_t *document;

/* Parses a text that is valid; the cursor on its root. */
static struct sdp_json parse(const char *text)
{
    struct sdp_json root;

    json_decref(document);
    document = NULL;
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_json_parse(text, strlen(text), "t.json", &document, &root, &err),
               &err);
    return root;
}

static void check_message(const char *wanted)
{
    char text[SDP_ERROR_TEXT_SIZE];

    CHECK_EQ(err.status, SDP_INPUT);
    CHECK_STR(sdp_error_format(&err, text, sizeof text), wanted);
    err = (struct sdp_error)SDP_ERROR_INIT;
}

static void check_syntax(const char *text, const char *wanted)
{
    json_t *none = NULL;
    struct sdp_json root = {.file = "untouched"};

    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_json_parse(text, strlen(text), "t.json", &none, &root, &err), SDP_INPUT);
    CHECK(none == NULL);
    CHECK_STR(root.file, "untouched");
    check_message(wanted);
}

static void test_syntax(void)
{
    check_syntax("{\"a\": 1,\n \"a\": 2}",
                 "t.json:2:4: is not valid JSON: duplicate object key near '\"a\"'");
    check_syntax("{\"a\": 1} x",
                 "t.json:1:10: is not valid JSON: end of file expected near 'x'");
    check_syntax("{\n  \"a\": 1,\n}",
                 "t.json:3:1: is not valid JSON: string or '}' expected near '}'");
    check_syntax("{\"a\": None}",
                 "t.json:1:10: is not valid JSON: invalid token near 'None'");
    check_syntax("", "t.json: is empty; a JSON document is needed");
    check_syntax(" \n", "t.json: is empty; a JSON document is needed");
    check_syntax("{\"a\": 1e999}",
                 "t.json:1:11: is not valid JSON: real number overflow near '1e999'");
    parse("\xef\xbb\xbf{}"); /* a byte order mark is passed over */
    parse("3");
}

static void test_only_keys(void)
{
    static const char *const keys[] = {"steps", "epochs", NULL}, *const none[] = {NULL};
    struct sdp_json root = parse(
                        "{\"train\": {\"step\": 1}, \"a/b~c\": {\"x\": 0}, \"s\": 3}"),
                    at;

    at = sdp_json_member(&root, "train");
    CHECK(!sdp_json_only_keys(&at, keys));
    check_message("t.json: /train/step: unknown key; did you mean \"steps\"?");
    CHECK(!sdp_json_only_keys(&at, none));
    check_message("t.json: /train/step: unknown key; no key is known here");
    at = sdp_json_member(&root, "a/b~c");
    CHECK(!sdp_json_only_keys(&at, keys));
    check_message("t.json: /a~1b~0c/x: unknown key; known here: \"steps\", \"epochs\"");
    at = sdp_json_member(&root, "s");
    CHECK(!sdp_json_only_keys(&at, keys));
    check_message("t.json: /s: is 3; must be an object: { ... }");
    root = parse("{\"epochs\": 1}");
    CHECK(sdp_json_only_keys(&root, keys));
    root = parse("[1]");
    CHECK(!sdp_json_only_keys(&root, keys));
    check_message("t.json: is a list; must be an object: { ... }");
}

static void test_absent(void)
{
    struct sdp_json root = parse("{\"n\": null}"), at;
    bool flag = true;
    size_t size = 7, length = 9;
    int64_t number = -3;
    double real = 0.5;
    const char *text = "default";
    int choice = 4;
    static const char *const choices[] = {"a", NULL};

    CHECK(sdp_json_get_bool(&root, "x", &flag) && flag);
    CHECK(sdp_json_get_size(&root, "x", 0, 1, &size) && size == 7);
    CHECK(sdp_json_get_int(&root, "x", 0, 1, &number) && number == -3);
    CHECK(sdp_json_get_double(&root, "x", 9, 9, &real) && real == 0.5);
    CHECK(sdp_json_get_string(&root, "x", &text) && strcmp(text, "default") == 0);
    CHECK(sdp_json_get_choice(&root, "x", choices, &choice) && choice == 4);
    CHECK(sdp_json_get_bytes(&root, "x", &size) && size == 7);
    CHECK_EQ(err.status, SDP_OK);
    at = sdp_json_member(&root, "x");
    CHECK(at.value == NULL && !sdp_json_is_null(&at));
    at = sdp_json_member(&root, "n");
    CHECK(at.value != NULL && sdp_json_is_null(&at));
    CHECK(!sdp_json_get_size(&root, "n", 1, SIZE_MAX, &size) && size == 7);
    check_message("t.json: /n: is null; must be an integer of at least 1");
    at = sdp_json_member(&root, "x");
    CHECK(!sdp_json_expect_array(&at, &length) && length == 9);
    check_message("t.json: /x: is missing; must be a list: [ ... ]");
    CHECK(!sdp_json_missing(&root, "x"));
    check_message("t.json: /x: is missing; this key is required");
}

static void test_numbers(void)
{
    struct sdp_json root =
        parse("{\"i\": 5, \"r\": 1e5, \"h\": 0.5, \"s\": \"1e-4\", \"m\": -1,"
              " \"big\": 9223372036854775807, \"huge\": 1e300}");
    size_t size = 0;
    int64_t number = 0;
    double real = 0;

    CHECK(sdp_json_get_size(&root, "i", 5, 5, &size) && size == 5);
    CHECK(sdp_json_get_size(&root, "r", 0, SIZE_MAX, &size) && size == 100000);
    CHECK(sdp_json_get_int(&root, "m", -1, 0, &number) && number == -1);
    CHECK(sdp_json_get_int(&root, "big", 0, INT64_MAX, &number) && number == INT64_MAX);
    CHECK(sdp_json_get_double(&root, "i", 0, 5, &real) && real == 5.0);
    CHECK(sdp_json_get_double(&root, "h", 0, 1, &real) && real == 0.5);
    CHECK(!sdp_json_get_size(&root, "i", 6, 9, &size));
    check_message("t.json: /i: is 5; must be an integer from 6 to 9");
    CHECK(!sdp_json_get_size(&root, "h", 0, SIZE_MAX, &size));
    check_message("t.json: /h: is 0.5; must be an integer of at least 0");
    CHECK(!sdp_json_get_size(&root, "huge", 0, SIZE_MAX, &size));
    check_message("t.json: /huge: is 1e+300; must be an integer of at least 0");
    CHECK(!sdp_json_get_int(&root, "h", INT64_MIN, INT64_MAX, &number));
    check_message("t.json: /h: is 0.5; must be an integer");
    CHECK(!sdp_json_get_double(&root, "s", 0, INFINITY, &real));
    check_message("t.json: /s: is \"1e-4\"; must be a number of at least 0 "
                  "(numbers are written without quotes)");
    CHECK(!sdp_json_get_double(&root, "m", 0, 1, &real));
    check_message("t.json: /m: is -1; must be a number from 0 to 1");
    CHECK(size == 100000 && number == INT64_MAX && real == 0.5);
}

static void test_texts(void)
{
    static const char *const choices[] = {"constant", "linear", "cosine", NULL};
    struct sdp_json root =
        parse("{\"t\": \"abc\", \"none\": \"None\", \"b\": \"True\", \"f\": false,"
              " \"c\": \"cosin\", \"d\": \"exponential\", \"l\": \"linear\"}");
    const char *text = NULL;
    bool flag = true;
    int choice = -1;

    CHECK(sdp_json_get_string(&root, "t", &text));
    CHECK_STR(text, "abc");
    CHECK(!sdp_json_get_string(&root, "f", &text));
    check_message("t.json: /f: is false; must be a string");
    CHECK(sdp_json_get_bool(&root, "f", &flag) && !flag);
    CHECK(!sdp_json_get_bool(&root, "b", &flag));
    check_message("t.json: /b: is \"True\"; must be true or false (true is written "
                  "without quotes)");
    CHECK(!sdp_json_get_bool(&root, "none", &flag));
    check_message("t.json: /none: is \"None\"; must be true or false "
                  "(for no value, leave the key out or write null without quotes)");
    CHECK(sdp_json_get_choice(&root, "l", choices, &choice) && choice == 1);
    CHECK(!sdp_json_get_choice(&root, "c", choices, &choice));
    check_message(
        "t.json: /c: is \"cosin\"; must be one of \"constant\", \"linear\", \"cosine\"; "
        "did you mean \"cosine\"?");
    CHECK(!sdp_json_get_choice(&root, "d", choices, &choice));
    check_message("t.json: /d: is \"exponential\"; must be one of \"constant\", "
                  "\"linear\", \"cosine\"");
    CHECK(!sdp_json_get_choice(&root, "f", choices, &choice) && choice == 1);
    check_message(
        "t.json: /f: is false; must be one of \"constant\", \"linear\", \"cosine\"");
}

static void test_bytes(void)
{
    struct sdp_json root =
        parse("{\"a\": \"22GiB\", \"b\": 4096, \"c\": \"lots\", \"d\": -1}");
    size_t bytes = 0;

    CHECK(sdp_json_get_bytes(&root, "a", &bytes) && bytes == (size_t)22 << 30);
    CHECK(sdp_json_get_bytes(&root, "b", &bytes) && bytes == 4096);
    CHECK(!sdp_json_get_bytes(&root, "c", &bytes));
    check_message("t.json: /c: is \"lots\"; must be bytes, such as 33554432, \"32MiB\" "
                  "or \"22GiB\"");
    CHECK(!sdp_json_get_bytes(&root, "d", &bytes) && bytes == 4096);
    check_message(
        "t.json: /d: is -1; must be bytes, such as 33554432, \"32MiB\" or \"22GiB\"");
}

/* Pointers of any depth and length stay within their buffer. */
static void test_long_pointer(void)
{
    struct sdp_json root = parse("{}"), at = root;
    char key[200];

    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = '\0';
    for (int i = 0; i < 5; i++)
        at = sdp_json_member(&at, key);
    CHECK(strlen(at.pointer) < sizeof at.pointer);
    CHECK_STR(at.pointer + strlen(at.pointer) - 4, "k...");
    root = parse("[[], [1, 2]]");
    at = sdp_json_element(&root, 1);
    at = sdp_json_element(&at, 0);
    CHECK_STR(at.pointer, "/1/0");
    CHECK_EQ(json_integer_value(at.value), 1);
    memset(key, '/', sizeof key - 1);
    at = sdp_json_member(&root, key);
    CHECK(strlen(at.pointer) < sizeof at.pointer);
    CHECK(!sdp_json_fail(&root, "free text %d", 4));
    check_message("t.json: free text 4");
}

static void check_place(const char *pointer, int line, int column)
{
    static const char text[] =
        "{\n"
        "  \"a\": {\"x\": [1, {\"y\": \"}]\\\"\"}, [2, 3]], \"z\": -1e5},\n"
        "  \"\u00e4\": \"\u00fc,\", \"b/c~\": true,\n"
        "\t\"\\u0064\": []\n"
        "}\n";
    int got_line = 0, got_column = 0;
    bool found = sdp_json_locate(text, sizeof text - 1, pointer, &got_line, &got_column);

    CHECK_EQ(found, line > 0);
    if (got_line != line || got_column != column)
        SDP_TEST_FAIL("%s is at %d:%d, wanted %d:%d", pointer, got_line, got_column, line,
                      column);
}

static void test_locate(void)
{
    check_place("/a", 2, 3);
    check_place("/a/x", 2, 9);
    check_place("/a/x/0", 2, 15);
    check_place("/a/x/1", 2, 18);
    check_place("/a/x/1/y", 2, 19);
    check_place("/a/x/2/1", 2, 37);
    check_place("/a/z", 2, 42);
    check_place("/\u00e4", 3, 3);
    check_place("/b~1c~0", 3, 14);
    check_place("/d", 4, 2); /* written with an escape */
    /* The deepest part that is there. */
    check_place("/a/none", 2, 3);
    check_place("/a/x/7", 2, 9);
    check_place("/a/x/1/y/2", 2, 19);
    check_place("/d/0", 4, 2);
    check_place("/none/x", 0, 0);
    check_place("", 0, 0);
}

static void test_load(void)
{
    const char *folder = getenv("TMPDIR");
    char *path =
        sdp_path_join(folder && *folder ? folder : "/tmp", "sdp-test-json-XXXXXX");
    struct sdp_json root;
    json_t *loaded = NULL;
    int fd = mkstemp(path);

    REQUIRE(fd >= 0);
    close(fd);
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_write_file(path, "{\"a\": [1]}", 10, &err), &err);
    REQUIRE_OK(sdp_json_load(path, &loaded, &root, &err), &err);
    CHECK(root.value == loaded && json_is_object(loaded));
    CHECK_STR(root.file, path);
    json_decref(loaded);
    loaded = NULL;
    CHECK(unlink(path) == 0);
    CHECK_EQ(sdp_json_load(path, &loaded, &root, &err), SDP_INPUT);
    CHECK_STR(err.text, "cannot open: no such file or folder");
    CHECK_STR(err.file, path);
    CHECK(loaded == NULL);
    free(path);
}

int main(void)
{
    test_syntax();
    test_only_keys();
    test_absent();
    test_numbers();
    test_texts();
    test_bytes();
    test_long_pointer();
    test_locate();
    test_load();
    json_decref(document);
    return sdp_test_end();
}
