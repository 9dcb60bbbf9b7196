/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Each thing that may be wrong in a tokenizer.json, or that is not supported, with what is
 * said about it: the JSON pointer and a part of the message. */
#include "model/tokenizer/tokenizer.h"
#include "tests/model/temp_folder.h"

#define MODEL                                                                                      \
    "'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'ab': 2, '▁': 3}, 'merges': ['a b']}"
#define NORMALIZER(text) "{" MODEL ", 'normalizer': " text "}"
#define SPLITTER(text)   "{" MODEL ", 'pre_tokenizer': " text "}"
#define REGEX(text)                                                                                \
    SPLITTER("{'type': 'Split', 'pattern': {'Regex': '" text "'}, 'behavior': 'Isolated'}")
#define POST(text)    "{" MODEL ", 'post_processor': " text "}"
#define DECODER(text) "{" MODEL ", 'decoder': " text "}"
#define ADDED(text)   "{" MODEL ", 'added_tokens': [" text "]}"
#define PATTERN       "/pre_tokenizer/pattern/Regex"

static const struct {
    const char *text, *pointer, *message;
} cases[] = {
    {"", "", "is empty; a JSON document is needed"},
    {"{'model': ", "", "is not valid JSON"},
    {"[]", "", "is a list; must be an object"},
    {"{'model': {}, 'model': {}}", "", "duplicate object key"},
    {"{}", "/model", "is missing; this key is required"},
    {"{" MODEL ", 'version': '2.0'}", "/version", "is \"2.0\"; only version \"1.0\" is known"},
    {"{" MODEL ", 'modle': 1}", "/modle", "did you mean \"model\"?"},
    {"{'model': 5}", "/model", "is 5; must be an object"},
    {"{'model': {'type': 'Unigram', 'vocab': []}}", "/model/type",
     "the model \"Unigram\" is not supported; only \"BPE\" is"},
    {"{'model': {'type': 'WordPiece', 'vocab': {}}}", "/model/type",
     "\"WordPiece\" is not supported"},
    {"{'model': {'merges': []}}", "/model/vocab", "is missing"},
    {"{'model': {'vocab': {}}}", "/model/merges", "is missing"},
    {"{'model': {'vocab': ['a'], 'merges': []}}", "/model/vocab", "must be an object"},
    {"{'model': {'vocab': {'a': -1}, 'merges': []}}", "/model/vocab/a",
     "is -1; must be an integer from 0 to"},
    {"{'model': {'vocab': {'a': 4194304}, 'merges': []}}", "/model/vocab/a", "is 4194304; must be"},
    {"{'model': {'vocab': {'a': 1.5}, 'merges': []}}", "/model/vocab/a", "is 1.5; must be"},
    {"{'model': {'vocab': {'a': '1'}, 'merges': []}}", "/model/vocab/a",
     "numbers are written without quotes"},
    {"{'model': {'vocab': {'a': 1, 'b/c': 1}, 'merges': []}}", "/model/vocab/b~1c",
     "has the id 1, as another token"},
    {"{'model': {'vocab': {'a': 1}, 'merges': {}}}", "/model/merges", "must be a list"},
    {"{'model': {'vocab': {'a': 1}, 'merges': ['ab']}}", "/model/merges/0",
     "is no merge; must be [\"a\", \"b\"] or \"a b\""},
    {"{'model': {'vocab': {'a': 1}, 'merges': ['a a a']}}", "/model/merges/0", "is no merge"},
    {"{'model': {'vocab': {'a': 1}, 'merges': [['a', 1]]}}", "/model/merges/0", "is no merge"},
    {"{'model': {'vocab': {'a': 1}, 'merges': ['#version: 0.2', 'a q']}}", "/model/merges/1",
     "merges to or from \"q\", which is no token of the vocabulary"},
    {"{'model': {'vocab': {'a': 1}, 'merges': [['a', 'a']]}}", "/model/merges/0",
     "merges to or from \"aa\""},
    {"{'model': {'vocab': {}, 'merges': [], 'unk_token': 'x'}}", "/model/unk_token",
     "is \"x\", which is no token of the vocabulary"},
    {"{'model': {'vocab': {}, 'merges': [], 'dropout': 0.1}}", "/model/dropout",
     "dropout is not supported"},
    {"{'model': {'vocab': {}, 'merges': [], 'end_of_word_suffix': '</w>'}}",
     "/model/end_of_word_suffix", "is not supported; must be null or empty"},
    {"{'model': {'vocab': {}, 'merges': [], 'continuing_subword_prefix': '##'}}",
     "/model/continuing_subword_prefix", "is not supported"},
    {"{'model': {'vocab': {}, 'merges': [], 'byte_fallback': 1}}", "/model/byte_fallback",
     "is 1; must be true or false"},
    {NORMALIZER("{'type': 'Precompiled'}"), "/normalizer/type",
     "the normalizer \"Precompiled\" is not supported; supported are \"NFC\", \"NFD\""},
    {NORMALIZER("{'type': 'BertNormalizer'}"), "/normalizer/type",
     "\"BertNormalizer\" is not supported"},
    {NORMALIZER("{}"), "/normalizer/type", "is missing"},
    {NORMALIZER("{'type': 'Sequence'}"), "/normalizer/normalizers", "is missing"},
    {NORMALIZER("{'type': 'Sequence', 'normalizers': [{'type': 'NFC'}, {'type': 'Nmt'}]}"),
     "/normalizer/normalizers/1/type", "the normalizer \"Nmt\" is not supported"},
    {NORMALIZER("{'type': 'Replace', 'pattern': {'String': ''}, 'content': ''}"),
     "/normalizer/pattern/String", "is empty"},
    {NORMALIZER("{'type': 'Replace', 'pattern': {}, 'content': ''}"), "/normalizer/pattern/String",
     "is missing"},
    {SPLITTER("{'type': 'BertPreTokenizer'}"), "/pre_tokenizer/type",
     "the pre-tokenizer \"BertPreTokenizer\" is not supported"},
    {SPLITTER("{'type': 'UnicodeScripts'}"), "/pre_tokenizer/type", "not supported"},
    {SPLITTER("{'type': 'Split', 'pattern': {'String': 'a'}, 'behavior': 'Isolate'}"),
     "/pre_tokenizer/behavior", "did you mean \"Isolated\"?"},
    {SPLITTER("{'type': 'Split', 'behavior': 'Isolated'}"), "/pre_tokenizer/pattern", "is missing"},
    {SPLITTER("{'type': 'Metaspace', 'replacement': '__'}"), "/pre_tokenizer/replacement",
     "must be a string of one character"},
    {SPLITTER("{'type': 'Metaspace', 'replacement': '_', 'add_prefix_space': false, "
              "'prepend_scheme': 'first'}"),
     "/pre_tokenizer/add_prefix_space", "contradicts"},
    {REGEX("(a)\\\\1"), PATTERN, "the expression is not supported: \\1"},
    {REGEX("a\\\\b"), PATTERN, "not supported: \\b"},
    {REGEX("[a[b]]"), PATTERN, "brackets within brackets"},
    {REGEX("[a&&b]"), PATTERN, "&& within brackets"},
    {REGEX("[a"), PATTERN, "a bracket that is not closed"},
    {REGEX("(?m:a)"), PATTERN, "the group (?m:"},
    {REGEX("a(?i)b"), PATTERN, "the group (?i)"},
    {REGEX("(?i:asse)"), PATTERN, "\"ss\" in any case"},
    {REGEX("a{2}+"), PATTERN, "the interval {2}+"},
    {REGEX("\\\\p{Klingon}"), PATTERN, "the property \"Klingon\""},
    {REGEX("(a"), PATTERN, "missing closing parenthesis"},
    {REGEX("a)"), PATTERN, "unmatched closing parenthesis"},
    {POST("{'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': 'x'}}], "
          "'special_tokens': {}}"),
     "/post_processor/special_tokens/x", "is missing"},
    {POST("{'type': 'TemplateProcessing', 'single': []}"), "/post_processor/single",
     "texts would vanish"},
    {POST("{'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A'}}, {'SpecialToken': "
          "{'id': 'x'}}], 'special_tokens': {'x': {'ids': [77]}}}"),
     "/post_processor", "adds the id 77, which no token has"},
    {POST("{'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A'}}, {'Sequence': "
          "{'id': 'B'}}]}"),
     "/post_processor/single/1/Sequence", "more than the one sequence \"A\" is not supported"},
    {POST("{'type': 'BertProcessing', 'sep': ['a']}"), "/post_processor/cls", "is missing"},
    {DECODER("{'type': 'WordPiece'}"), "/decoder/type",
     "the decoder \"WordPiece\" is not supported"},
    {DECODER("{'type': 'Strip', 'content': 'a', 'start': -1}"), "/decoder/start", "is -1; must be"},
    {ADDED("{'content': 'x'}"), "/added_tokens/0/id", "is missing"},
    {ADDED("{'id': 4}"), "/added_tokens/0/content", "is missing"},
    {ADDED("{'id': 9, 'content': 'x'}"), "/added_tokens/0/id", "is 9, but the next free id is 4"},
    {ADDED("{'id': 4, 'content': 'a'}"), "/added_tokens/0/id",
     "is 4, but \"a\" has the id 0 in the vocabulary"},
    {ADDED("{'id': 4, 'content': 'x'}, {'id': 5, 'content': 'x'}"), "/added_tokens/1",
     "has the content of another added token"},
    {ADDED("{'id': 4, 'content': 'x', 'specail': true}"), "/added_tokens/0/specail",
     "did you mean \"special\"?"},
};

static void check_case(size_t index)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_tokenizer *t = NULL;
    char *text = sdp_xstrdup(cases[index].text);

    for (char *at = text; *at; at++)
        if (*at == '\'')
            *at = '"';
    CHECK_EQ(sdp_tokenizer_parse(text, strlen(text), "test", &t, &err), SDP_INPUT);
    CHECK(t == NULL);
    CHECK_STR(err.pointer, cases[index].pointer);
    CHECK_CONTAINS(err.text, cases[index].message);
    CHECK_STR(err.file, "test");
    sdp_tokenizer_destroy(t);
    free(text);
}

static void check_depth(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_tokenizer *t = NULL;
    char text[8192] = "{\"model\":{\"vocab\":{},\"merges\":[]},\"decoder\":";

    for (int i = 0; i < 40; i++)
        strcat(text, "{\"type\":\"Sequence\",\"decoders\":[");
    for (int i = 0; i < 40; i++)
        strcat(text, "]}");
    strcat(text, "}");
    CHECK_EQ(sdp_tokenizer_parse(text, strlen(text), "test", &t, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "more than 16 sequences within each other");
}

static void check_file(void)
{
    static const char text[] = "{\n  \"model\": {\n    \"type\": \"Unigram\"\n  }\n}\n";
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_tokenizer *t = NULL;
    char *path;

    temp_begin();
    path = temp_file("tokenizer.json", text, sizeof text - 1);
    CHECK_EQ(sdp_tokenizer_load(path, &t, &err), SDP_INPUT);
    CHECK_STR(err.file, path);
    CHECK_EQ(err.line, 3);
    free(path);
    path = temp_path("absent.json");
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK(sdp_tokenizer_load(path, &t, &err) != SDP_OK);
    CHECK_STR(err.file, path);
    free(path);
    temp_end();
}

int main(void)
{
    for (size_t i = 0; i < SDP_COUNT_OF(cases); i++)
        check_case(i);
    check_depth();
    check_file();
    return sdp_test_end();
}
