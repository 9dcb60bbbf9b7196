/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tokenizer on small tables written by hand: what each part does, the fast matchers
 * against PCRE2, token files, long texts. */
#include "model/data/npy.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/pattern.h"
#include "model/tokenizer/token_file.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/model/temp_folder.h"

#include <pthread.h>

#define LLAMA3                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2                                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"      \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char bytes_model[] =
    "'model': {'type': 'BPE', 'unk_token': '?', 'vocab': {'?': 0, 'a': 1, 'b': 2, 'Ġ': 3, 'ab': 4, "
    "'Ġab': 5, 'Ċ': 6, 'c': 7, 'abc': 8, 'aa': 9}, 'merges': ['a b', ['Ġ', 'ab'], ['ab', 'c'], "
    "['a', 'a']]}";
static const char meta_model[] =
    "'model': {'vocab': {'<unk>': 0, '<0xE2>': 1, '<0x82>': 2, '<0xAC>': 3, '▁': 4, 'a': 5, 'b': "
    "6, "
    "'▁a': 7, '▁ab': 8, 'a▁': 9}, 'merges': [['▁', 'a'], ['▁a', 'b']], 'unk_token': '<unk>', "
    "'byte_fallback': true, 'fuse_unk': true}";

/* A tokenizer from JSON with single quotes for double ones. */
static struct sdp_tokenizer *parse(const char *parts, const char *model)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_tokenizer *t = NULL;
    char *text = sdp_xprintf("{%s%s%s}", parts, *parts ? ", " : "", model);

    for (char *at = text; *at; at++)
        if (*at == '\'')
            *at = '"';
    REQUIRE_OK(sdp_tokenizer_parse(text, strlen(text), "test", &t, &err), &err);
    free(text);
    return t;
}

static void check_ids(const struct sdp_tokenizer *t, const char *text, const char *wanted)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_ids ids = {NULL, 0, 0};
    char got[256] = "";

    REQUIRE_OK(sdp_tokenizer_encode(t, text, strlen(text), true, &ids, &err), &err);
    for (size_t i = 0; i < ids.count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "",
                 (int)ids.ids[i]);
    CHECK_STR(got, wanted);
    sdp_ids_free(&ids);
}

static void check_text(const struct sdp_tokenizer *t, const int32_t *ids, size_t count, bool skip,
                       const char *wanted)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *text = NULL;
    size_t length = 0;

    REQUIRE_OK(sdp_tokenizer_decode(t, ids, count, skip, &text, &length, &err), &err);
    CHECK_EQ(length, strlen(wanted));
    CHECK_STR(text, wanted);
    free(text);
}

static void test_bytes(void)
{
    struct sdp_tokenizer *t = parse(
        "'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false}, 'decoder': {'type': "
        "'ByteLevel'}, 'added_tokens': [{'id': 10, 'content': '<x>', 'special': true, "
        "'normalized': false}]",
        bytes_model);
    const int32_t ids[] = {4, 10, 5, 6, 99, 8};
    size_t length = 0;

    CHECK_EQ(sdp_tokenizer_vocabulary(t), 11);
    CHECK_EQ(sdp_tokenizer_id(t, "Ġab", strlen("Ġab")), 5);
    CHECK_EQ(sdp_tokenizer_id(t, "<x>", 3), 10);
    CHECK_EQ(sdp_tokenizer_id(t, "<y>", 3), -1);
    CHECK_STR(sdp_tokenizer_token(t, 10, &length), "<x>");
    CHECK(sdp_tokenizer_token(t, 11, &length) == NULL);
    CHECK(sdp_tokenizer_token(t, -1, &length) == NULL);
    check_ids(t, "", "");
    check_ids(t, "ab", "4");
    check_ids(t, "ab ab\nabc", "4 5 6 8");
    check_ids(t, "ab<x> ab", "4 10 5");
    check_ids(t, "aaab", "9 4"); /* 'a b' comes before 'a a' */
    check_ids(t, "aqb", "1 0 2");
    check_text(t, ids, 6, false, "ab<x> ab\nabc");
    check_text(t, ids, 6, true, "ab ab\nabc");
    sdp_tokenizer_destroy(t);
}

static void test_metaspace(void)
{
    struct sdp_tokenizer *t = parse(
        "'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'Prepend', 'prepend': '▁'}, "
        "{'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}]}, 'decoder': {'type': "
        "'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '}, "
        "{'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, "
        "'stop': 0}]}",
        meta_model);
    const int32_t ids[] = {8, 7, 1, 2, 3, 5, 1, 2};

    check_ids(t, "ab a€", "8 7 1 2 3");
    check_ids(t, "qq\xff\xff", "4 0"); /* U+FFFD has no byte tokens here: all one unknown */
    check_ids(t, "a  b", "7 4 4 6");
    check_text(t, ids, 8, false, "ab a€a\xef\xbf\xbd\xef\xbf\xbd");
    sdp_tokenizer_destroy(t);
    t = parse(
        "'pre_tokenizer': {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'first'},"
        "'added_tokens': [{'id': 10, 'content': '|', 'normalized': false, 'lstrip': true}]",
        meta_model);
    check_ids(t, "a b  | a|a", "7 4 6 10 7 10 5");
    sdp_tokenizer_destroy(t);
}

static void test_template(void)
{
    struct sdp_tokenizer *t = parse(
        "'post_processor': {'type': 'Sequence', 'processors': [{'type': 'ByteLevel'}, {'type': "
        "'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'X', 'type_id': 0}}, "
        "{'Sequence': "
        "{'id': 'A', 'type_id': 0}}, {'SpecialToken': {'id': 'Y', 'type_id': 0}}], 'pair': [], "
        "'special_tokens': {'X': {'id': 'X', 'ids': [7], 'tokens': ['c']}, 'Y': {'id': 'Y', 'ids': "
        "[1, 2], 'tokens': ['a', 'b']}}}]}",
        bytes_model);

    check_ids(t, "ab", "7 4 1 2");
    check_ids(t, "", "7 1 2");
    sdp_tokenizer_destroy(t);
}

/* -- matchers ------------------------------------------------------------------------------ */

/* Random text of what matters to the expressions. */
static size_t random_text(uint64_t key, char *out, size_t pieces)
{
    static const char *const parts[] = {"a",        "B",
                                        "s",        "'",
                                        "'s",       "'LL",
                                        "\xc5\xbf", "1",
                                        "²",        "٣",
                                        " ",        "  ",
                                        "\n",       "\r",
                                        "\t",       "\xc2\xa0",
                                        "。",       "\xe2\x80\xa8",
                                        "!",        "é",
                                        "你",       "\xe1\xa0\x8e",
                                        "\xcc\x81", "😀"};
    size_t length = 0;

    for (size_t i = 0; i < pieces; i++) {
        const char *part = parts[sdp_random_u64(key, i) % SDP_COUNT_OF(parts)];

        memcpy(out + length, part, strlen(part));
        length += strlen(part);
    }
    return length;
}

/* The expression as PCRE2 has it, in a group so that it is not recognized. */
static void compare(const char *regex, uint64_t seed)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdpi_pattern fast = {NULL, 0, NULL, NULL, NULL}, slow = fast;
    struct sdpi_pattern_scratch scratch = {.data = NULL};
    char *group = sdp_xprintf("(?:%s)", regex), text[512];

    REQUIRE_OK(sdpi_pattern_compile(&fast, regex, &err), &err);
    REQUIRE_OK(sdpi_pattern_compile(&slow, group, &err), &err);
    REQUIRE(fast.matcher && !slow.matcher);
    for (uint64_t n = 0; n < 20000; n++) {
        size_t length = random_text(seed * 1000003 + n, text, 1 + n % 40), at = 0;
        size_t starts[2] = {0, 0}, ends[2] = {0, 0};

        sdpi_pattern_begin(&slow, &scratch, text, length);
        while (at < length) {
            int found =
                sdpi_pattern_next(&fast, &scratch, text, length, at, &starts[0], &ends[0], &err);

            REQUIRE(found == 1);
            REQUIRE(sdpi_pattern_next(&slow, &scratch, text, length, at, &starts[1], &ends[1],
                                      &err) == 1);
            if (starts[0] != starts[1] || ends[0] != ends[1]) {
                SDP_TEST_FAIL("%s: at %zu of \"%.*s\": %zu..%zu, wanted %zu..%zu", regex, at,
                              (int)length, text, starts[0], ends[0], starts[1], ends[1]);
                break;
            }
            at = ends[0];
        }
    }
    sdpi_pattern_scratch_free(&scratch);
    sdpi_pattern_free(&fast);
    sdpi_pattern_free(&slow);
    free(group);
}

/* Each code point alone and between others, so that all tables are compared. */
static void compare_points(const char *regex)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdpi_pattern fast = {NULL, 0, NULL, NULL, NULL}, slow = fast;
    struct sdpi_pattern_scratch scratch = {.data = NULL};
    char *group = sdp_xprintf("(?:%s)", regex);
    size_t differing = 0;

    REQUIRE_OK(sdpi_pattern_compile(&fast, regex, &err), &err);
    REQUIRE_OK(sdpi_pattern_compile(&slow, group, &err), &err);
    for (uint32_t point = 1; point < 0x110000; point++) {
        char text[16] = "a";
        size_t length, start, ends[4][2];

        if (point >= 0xd800 && point < 0xe000)
            continue;
        length = 1 + sdpi_utf8_write(point, text + 1);
        text[length++] = '1';
        sdpi_pattern_begin(&slow, &scratch, text, length);
        for (size_t at = 0, i = 0; i < 2 && at < length; i++, at = ends[i - 1][0]) {
            REQUIRE(sdpi_pattern_next(&fast, &scratch, text, length, at, &start, &ends[i][0],
                                      &err) == 1);
            REQUIRE(sdpi_pattern_next(&slow, &scratch, text, length, at, &start, &ends[i][1],
                                      &err) == 1);
            if (ends[i][0] != ends[i][1] && differing++ < 5)
                SDP_TEST_FAIL("%s: U+%04X: %zu, wanted %zu", regex, (unsigned)point, ends[i][0],
                              ends[i][1]);
        }
    }
    CHECK_EQ(differing, 0);
    sdpi_pattern_scratch_free(&scratch);
    sdpi_pattern_free(&fast);
    sdpi_pattern_free(&slow);
    free(group);
}

/* -- long texts, threads, files ---------------------------------------------------------------- */

static void encode_long(const struct sdp_tokenizer *t, const char *unit, const char *what)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_ids ids = {NULL, 0, 0};
    size_t size = (size_t)1 << 20, length = strlen(unit);
    char *text = sdp_xcalloc(size, 1);
    double start = sdp_now();

    for (size_t at = 0; at + length <= size; at += length)
        memcpy(text + at, unit, length);
    REQUIRE_OK(sdp_tokenizer_encode(t, text, size - size % length, false, &ids, &err), &err);
    if (sdp_now() - start > 20) /* a quadratic way takes many minutes */
        SDP_TEST_FAIL("1 MB of %s took %.1f s", what, sdp_now() - start);
    CHECK(ids.count > 0);
    sdp_ids_free(&ids);
    free(text);
}

static void test_long(void)
{
    static const char *const units[] = {"a", "ab", "aab", " ", "\n ", "1", "\xcc\x81\xcc\x96",
                                        "é", "<x"};
    static const char *const parts[] = {
        "'pre_tokenizer': {'type': 'ByteLevel'}, 'normalizer': {'type': 'NFC'}",
        "'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': "
        "{'Regex': "
        "'\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\p{L}+|\\\\s+|.'}, 'behavior': 'Isolated'}, "
        "{'type': "
        "'ByteLevel', 'use_regex': false}]}, 'normalizer': {'type': 'NFKD'}",
        "'added_tokens': [{'id': 10, 'content': '<x>', 'lstrip': true, 'rstrip': true}]"};

    for (size_t p = 0; p < SDP_COUNT_OF(parts); p++) {
        struct sdp_tokenizer *t = parse(parts[p], bytes_model);

        for (size_t u = 0; u < SDP_COUNT_OF(units); u++)
            encode_long(t, units[u], units[u]);
        sdp_tokenizer_destroy(t);
    }
}

/* A long word must merge as a short one does. */
static void test_heap(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_tokenizer *t = parse("", bytes_model);

    for (size_t n = 1; n < 200; n++) {
        struct sdp_ids ids = {NULL, 0, 0};
        char text[256];

        memset(text, 'a', n);
        text[n] = 'b';
        REQUIRE_OK(sdp_tokenizer_encode(t, text, n + 1, false, &ids, &err), &err);
        CHECK_EQ(ids.count, n / 2 + 1);
        for (size_t i = 0; i < ids.count; i++)
            CHECK_EQ(ids.ids[i], i + 1 == ids.count ? 4 : i + 2 == ids.count && n % 2 == 0 ? 1 : 9);
        sdp_ids_free(&ids);
    }
    sdp_tokenizer_destroy(t);
}

static void *encode_many(void *context)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_ids ids = {NULL, 0, 0};

    for (size_t i = 0; i < 2000; i++) {
        ids.count = 0;
        if (sdp_tokenizer_encode(context, "ab ab abc aaab", 14, false, &ids, &err) != SDP_OK ||
            ids.count != 7)
            return context;
    }
    sdp_ids_free(&ids);
    return NULL;
}

static void test_threads(void)
{
    struct sdp_tokenizer *t =
        parse("'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false}", bytes_model);
    pthread_t threads[4];
    void *failed = NULL;

    for (size_t i = 0; i < 4; i++)
        REQUIRE(pthread_create(&threads[i], NULL, encode_many, t) == 0);
    for (size_t i = 0; i < 4; i++)
        REQUIRE(pthread_join(threads[i], &failed) == 0 && !failed);
    sdp_tokenizer_destroy(t);
}

static void check_file(const char *name, size_t vocabulary, size_t header, size_t size)
{
    static const int32_t ids[] = {1, 2, 300, 65535};
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_token_file *file = NULL;
    struct sdp_map map = {NULL, 0};
    struct sdp_npy npy;
    char *path = temp_path(name);

    REQUIRE_OK(sdp_token_file_open(path, vocabulary, SDP_TOKENS_AUTO, &file, &err), &err);
    REQUIRE_OK(sdp_token_file_add(file, ids, 4, &err), &err);
    REQUIRE_OK(sdp_token_file_close(file, SDP_OK, &err), &err);
    REQUIRE_OK(sdp_map_open(path, &map, &err), &err);
    CHECK_EQ(map.size, header + 4 * size);
    CHECK_EQ(map.data[header + 2 * size] + 256 * map.data[header + 2 * size + 1], 300);
    if (header) {
        REQUIRE_OK(sdp_npy_parse(&map, path, &npy, &err), &err);
        CHECK_EQ(npy.count, 4);
        CHECK_EQ(npy.dtype, size == 2 ? SDP_UINT16 : SDP_UINT32);
    }
    sdp_map_close(&map);
    free(path);
}

int main(void)
{
    temp_begin();
    for (int byte = 0; byte < 256; byte++)
        CHECK_EQ(sdpi_character_byte(sdpi_byte_character((uint8_t)byte)), byte);
    CHECK_EQ(sdpi_byte_character(' '), 0x120);
    CHECK_EQ(sdpi_byte_character(0xad), 0x143);
    test_bytes();
    test_metaspace();
    test_template();
    test_heap();
    compare(SDPI_GPT2_PATTERN, 1);
    compare(LLAMA3, 2);
    compare(QWEN2, 3);
    compare_points(SDPI_GPT2_PATTERN);
    compare_points(LLAMA3);
    compare_points(QWEN2);
    test_long();
    test_threads();
    check_file("a.bin", 65536, 0, 2);
    check_file("b.bin", 65537, 0, 4);
    check_file("c.npy", 100, 128, 2);
    check_file("d.npy", 100000, 128, 4);
    temp_end();
    return sdp_test_end();
}
