/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* model/data: records of JSONL files. Masks of conversations for the templates of the
 * common families, texts, Alpaca, what is too long, packing, weights, what is the same
 * whatever stays in memory, and malformed records, each with its message. */
#include "graph/base/log.h"
#include "model/data/data_internal.h"
#include "model/data/dataset.h"
#include "tests/model/fake_tokenizer.h"
#include "tests/model/temp_folder.h"

#define VOCABULARY 300
#define CASES      SDP_SOURCE_DIR "/tests/model/template/cases/"
#define MAX_LENGTH 4096

/* -- jobs and sequences ----------------------------------------------------------------
 */

static char *folder; /* of the fake tokenizer */

static char *write_text(const char *name, const char *text)
{
    return temp_file(name, text, strlen(text));
}

static struct sdp_job make_job(enum sdp_data_format format, size_t length, char *template)
{
    struct sdp_job job;

    memset(&job, 0, sizeof job);
    job.path = "job.json";
    job.data.format = format;
    job.data.sequence_length = length;
    job.data.tokenizer = folder;
    job.data.chat_template = template;
    job.data.append_eos = true;
    job.data.too_long =
        format == SDP_DATA_TEXT ? SDP_TOO_LONG_SPLIT : SDP_TOO_LONG_TRUNCATE;
    job.train.tokens_per_step = 4 * length;
    return job;
}

static struct sdp_dataset *open_data(struct sdp_job *job, char **paths, size_t count)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data = NULL;

    job->data.train = paths;
    job->data.train_count = count;
    REQUIRE_OK(sdp_dataset_open(job, false, VOCABULARY, &data, &err), &err);
    return data;
}

struct sequence {
    int32_t ids[MAX_LENGTH], targets[MAX_LENGTH], positions[MAX_LENGTH],
        starts[MAX_LENGTH];
    size_t counted;
};

/* Reads a sequence and checks what holds for all: no target across a boundary, positions
 * from the start of the document, -1 or the next id as target. */
static void read_sequence(const struct sdp_dataset *data, size_t length, uint64_t index,
                          struct sequence *s)
{
    size_t counted = 0;

    REQUIRE(length <= MAX_LENGTH);
    s->counted =
        sdp_dataset_sequence(data, index, s->ids, s->targets, s->positions, s->starts);
    for (size_t i = 0; i < length; i++) {
        counted += s->targets[i] >= 0;
        CHECK_EQ(s->positions[i], (int32_t)i - s->starts[i]);
        CHECK(s->starts[i] >= 0 && s->starts[i] <= (int32_t)i &&
              (i == 0 || s->starts[i] >= s->starts[i - 1]));
        CHECK(s->targets[i] >= -1 && s->targets[i] < VOCABULARY && s->ids[i] >= 0 &&
              s->ids[i] < VOCABULARY);
        if (i + 1 < length && s->starts[i + 1] == s->starts[i] && s->targets[i] >= 0)
            CHECK_EQ(s->targets[i], s->ids[i + 1]);
    }
    CHECK_EQ(counted, s->counted);
}

/* The targets that count as text, with "|" where some between them do not. [new] */
static char *target_text(const struct sequence *s, size_t length)
{
    int32_t *ids = sdp_xcalloc(2 * length + 1, sizeof *ids);
    size_t count = 0, bytes;
    char *text = NULL;

    for (size_t i = 0; i < length; i++) {
        if (s->targets[i] < 0)
            continue;
        if (count > 0 && s->targets[i - 1] < 0)
            ids[count++] = '|';
        ids[count++] = s->targets[i];
    }
    CHECK_EQ(sdp_tokenizer_decode(NULL, ids, count, false, &text, &bytes, NULL), SDP_OK);
    free(ids);
    return text;
}

/* What counts of the only record of a file. */
static void check_targets(struct sdp_job *job, const char *record, const char *wanted)
{
    char *path = write_text("one.jsonl", record), *text;
    struct sdp_dataset *data = open_data(job, &path, 1);
    struct sequence *s = sdp_xcalloc(1, sizeof *s);

    CHECK_EQ(sdp_dataset_sequences(data), 1);
    read_sequence(data, job->data.sequence_length, 0, s);
    text = target_text(s, job->data.sequence_length);
    CHECK_STR(text, wanted);
    free(text);
    free(s);
    sdp_dataset_close(data);
    free(path);
}

/* -- masks
 * ---------------------------------------------------------------------------------- */

#define TURNS                                                                            \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "                        \
    "{\"role\": \"assistant\", \"content\": \"Hello!\"}, {\"role\": \"user\", "          \
    "\"content\": "                                                                      \
    "\"Who?\"}, {\"role\": \"assistant\", \"content\": \"Me.\"}]}\n"
#define THINKING                                                                         \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "                        \
    "{\"role\": \"assistant\", \"content\": "                                            \
    "\"<think>\\nwell\\n</think>\\n\\nHello!\"}, "                                       \
    "{\"role\": \"user\", \"content\": \"Who?\"}, "                                      \
    "{\"role\": \"assistant\", \"content\": \"<think>\\nhm\\n</think>\\n\\nMe.\"}]}\n"

static void test_families(void)
{
    static const struct {
        const char *name, *record, *wanted;
    } cases[] = {
        {"llama2", TURNS, " Hello! </s>| Me. </s>"},
        {"llama3", TURNS, "Hello!<|eot_id|>|Me.<|eot_id|>"},
        {"llama3.1", TURNS, "Hello!<|eot_id|>|Me.<|eot_id|>"},
        {"qwen2.5", TURNS, "Hello!<|im_end|>\n|Me.<|im_end|>\n"},
        {"qwen3", TURNS, "Hello!<|im_end|>\n|<think>\n\n</think>\n\nMe.<|im_end|>\n"},
        {"qwen3", THINKING,
         "Hello!<|im_end|>\n|<think>\nhm\n</think>\n\nMe.<|im_end|>\n"},
        {"mistral-v1", TURNS, "Hello!</s>|Me.</s>"},
        {"mistral-v3", TURNS, " Hello!</s>| Me.</s>"},
        {"smollm2", TURNS, "Hello!<|im_end|>\n|Me.<|im_end|>\n"},
        {"phi3", TURNS, "Hello!<|end|>\n|Me.<|end|>\n</s>"},
        {"chatml", TURNS, "Hello!<|im_end|>\n|Me.<|im_end|>\n"},
        {"gemma", TURNS, "Hello!<end_of_turn>\n|Me.<end_of_turn>\n"},
        {"generation", TURNS, "Hello!<end>|Me.<end>"},
    };

    for (size_t i = 0; i < SDP_COUNT_OF(cases); i++) {
        char *template = sdp_xprintf(CASES "%s/template.jinja", cases[i].name);
        struct sdp_job job = make_job(SDP_DATA_MESSAGES, 2048, template);

        check_targets(&job, cases[i].record, cases[i].wanted);
        free(template);
    }
}

/* The id that crosses from the prompt into the answer, or out of it, counts. */
static void test_crossing(void)
{
    char *template =
        write_text("crossing.jinja",
                   "{% for m in messages %}{{ m.role }}:\n{{ m.content }}a{% endfor %}"
                   "{% if add_generation_prompt %}assistant:\n{% endif %}");
    struct sdp_job job = make_job(SDP_DATA_MESSAGES, 256, template);

    check_targets(&job,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": "
                  "\"assistant\", "
                  "\"content\": \"\\nYes\"}]}",
                  "\n\nYesa");
    check_targets(&job,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": "
                  "\"assistant\", "
                  "\"content\": \"y\"}, {\"role\": \"user\", \"content\": \"z\"}]}",
                  "ya");
    free(template);
    /* The end of the prompt is one id alone, two before the answer. */
    template =
        write_text("crossing.jinja",
                   "{% for m in messages %}{{ m.role }}\n\n{{ m.content }};"
                   "{% endfor %}{% if add_generation_prompt %}assistant\n\n{% endif %}");
    job.data.chat_template = template;
    check_targets(&job,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": "
                  "\"assistant\", "
                  "\"content\": \"yes\"}]}",
                  "yes;");
    free(template);
    template =
        write_text("crossing.jinja",
                   "{% for m in messages %}{{ m.role }}:{{ m.content }}a{% endfor %}"
                   "{% if add_generation_prompt %}assistant:{% endif %}");
    job.data.chat_template = template;
    check_targets(&job,
                  "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}, "
                  "{\"role\": \"user\", "
                  "\"content\": \"b\"}]}",
                  "xa");
    free(template);
    template = write_text("crossing.jinja",
                          "{% for m in messages %}{{ m.content }}{% endfor %}");
    job.data.chat_template = template;
    check_targets(&job,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"-\"}, {\"role\": "
                  "\"assistant\", "
                  "\"content\": \"xa\"}, {\"role\": \"user\", \"content\": \"bc\"}]}",
                  "xab");
    free(template);
}

static void test_forms(void)
{
    char *template = sdp_xstrdup(CASES "chatml/template.jinja");
    struct sdp_job job = make_job(SDP_DATA_MESSAGES, 1024, template);
    const char *answer = "Yes<|im_end|>\n";

    check_targets(&job,
                  "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, "
                  "{\"from\": \"gpt\", \"value\": \"Yes\"}], "
                  "\"id\": 7, \"system\": \"Be kind.\"}",
                  answer);
    check_targets(&job,
                  "\xef\xbb\xbf\r\n  \n{\"messages\": [{\"role\": \"system\", "
                  "\"content\": \"\"}, {\"role\": \"user\", \"content\": "
                  "[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", "
                  "\"text\": \"b\"}]}, "
                  "{\"role\": \"assistant\", \"content\": \"Yes\"}], \"tools\": []}\r\n",
                  answer);
    job.data.fields[SDP_FIELD_MESSAGES] = "chat";
    job.data.fields[SDP_FIELD_ROLE] = "who";
    job.data.fields[SDP_FIELD_CONTENT] = "what";
    check_targets(&job,
                  "{\"chat\": [{\"who\": \"user\", \"what\": \"a\", \"from\": 5}, "
                  "{\"who\": \"assistant\", \"what\": \"Yes\"}]}",
                  answer);
    free(template);
    template = sdp_xstrdup(CASES "qwen2.5/template.jinja");
    job = make_job(SDP_DATA_MESSAGES, 1024, template);
    job.data.pass_tools = true;
    check_targets(&job,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                  "\"assistant\", \"content\": null, "
                  "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
                  "{\"x\": 1}}}]}, {\"role\": \"tool\", "
                  "\"content\": \"5\"}, {\"role\": \"assistant\", \"content\": "
                  "\"Yes\"}], \"tools\": "
                  "\"[{\\\"type\\\": \\\"function\\\"}]\"}",
                  "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "
                  "1}}\n</tool_call><|im_end|>\n|Yes<|im_end|>\n");
    free(template);
}

static void test_alpaca(void)
{
    char *template = sdp_xstrdup(CASES "chatml/template.jinja");
    struct sdp_job job = make_job(SDP_DATA_ALPACA, 1024, template);

    check_targets(&job,
                  "{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\"}",
                  "3<|im_end|>\n");
    job.data.chat_template = NULL;
    check_targets(&job,
                  "{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\"}",
                  "3</s>");
    check_targets(&job,
                  "{\"instruction\": \"Add\", \"input\": null, \"output\": \"3</s>\"}",
                  "3</s>");
    job.data.fields[SDP_FIELD_INSTRUCTION] = "q";
    job.data.fields[SDP_FIELD_OUTPUT] = "a";
    check_targets(&job, "{\"q\": \"Add\", \"a\": \"4\"}", "4</s>");
    free(template);
}

static void check_ids(struct sdp_job *job, const char *record, const int32_t *ids,
                      size_t count)
{
    char *path = write_text("text.jsonl", record);
    struct sdp_dataset *data = open_data(job, &path, 1);
    struct sequence *s = sdp_xcalloc(1, sizeof *s);

    read_sequence(data, job->data.sequence_length, 0, s);
    for (size_t i = 0; i < job->data.sequence_length; i++) {
        CHECK_EQ(s->ids[i], i + 1 < count ? ids[i] : 0);
        CHECK_EQ(s->targets[i], i + 1 < count ? ids[i + 1] : -1);
        CHECK_EQ(s->starts[i], i + 1 < count ? 0 : (int32_t)count - 1);
    }
    sdp_dataset_close(data);
    free(s);
    free(path);
}

static void test_text(void)
{
    static const int32_t ids[] = {FAKE_BOS, 'x', 'y', FAKE_EOS};
    struct sdp_job job = make_job(SDP_DATA_TEXT, 8, NULL);

    check_ids(&job, "{\"text\": \"xy\", \"other\": [1]}\n", ids, 4);
    check_ids(&job, "{\"text\": \"<s>xy\"}", ids, 4);  /* its own bos is not doubled */
    check_ids(&job, "{\"text\": \"xy</s>\"}", ids, 4); /* nor its own eos */
    job.data.append_eos = false;
    check_ids(&job, "{\"text\": \"xy\"}", ids, 3);
    job.data.fields[SDP_FIELD_TEXT] = "body";
    check_ids(&job, "{\"text\": 5, \"body\": \"xy\"}", ids, 3);
    job.data.tokenizer = "bytes";
    check_ids(&job, "{\"body\": \"xy\"}", ids + 1, 2);
}

/* -- lengths and packing
 * ---------------------------------------------------------------------- */

/* Records of `count` texts "a", "bb", "ccc" ... of the given lengths, without bos and
 * eos. [new] path */
static char *write_lengths(const char *name, const size_t *lengths, size_t count)
{
    size_t total = 0, used = 0;
    char *text, *path;

    for (size_t i = 0; i < count; i++)
        total += lengths[i] + 16;
    text = sdp_xcalloc(total + 1, 1);
    for (size_t i = 0; i < count; i++) {
        memcpy(text + used, "{\"text\": \"", 10);
        memset(text + used + 10, 'a' + (int)(i % 26), lengths[i]);
        memcpy(text + used + 10 + lengths[i], "\"}\n", 3);
        used += 13 + lengths[i];
    }
    path = temp_file(name, text, used);
    free(text);
    return path;
}

static struct sdp_job bytes_job(size_t length, enum sdp_too_long too_long,
                                enum sdp_packing packing)
{
    struct sdp_job job = make_job(SDP_DATA_TEXT, length, NULL);

    job.data.tokenizer = "bytes";
    job.data.too_long = too_long;
    job.data.packing = packing;
    return job;
}

/* What sequences hold: letters of the ids, "-" where no target counts, "|" between
 * documents. */
static void check_layout(struct sdp_job *job, char *path, const char *wanted)
{
    struct sdp_dataset *data = open_data(job, &path, 1);
    struct sequence *s = sdp_xcalloc(1, sizeof *s);
    char text[1024];
    size_t used = 0;

    for (size_t q = 0; q < sdp_dataset_sequences(data); q++) {
        read_sequence(data, job->data.sequence_length, q, s);
        if (q > 0)
            text[used++] = ' ';
        for (size_t i = 0; i < job->data.sequence_length; i++) {
            if (i > 0 && s->starts[i] == (int32_t)i)
                text[used++] = '|';
            text[used++] = s->targets[i] < 0 ? '-' : (char)s->ids[i];
        }
    }
    text[used] = '\0';
    CHECK_STR(text, wanted);
    sdp_dataset_close(data);
    free(s);
}

static void test_lengths(void)
{
    static const size_t lengths[] = {3, 12, 5, 1, 6, 2};
    char *path = write_lengths("lengths.jsonl", lengths, SDP_COUNT_OF(lengths));
    struct sdp_job job = bytes_job(4, SDP_TOO_LONG_TRUNCATE, SDP_PACKING_NONE);

    check_layout(&job, path, "aa|-- bbbb cccc eeee f|---");
    job = bytes_job(4, SDP_TOO_LONG_SPLIT, SDP_PACKING_NONE);
    check_layout(&job, path, "aa|-- bbbb bbbb bbb|- cccc eeee e|--- f|---");
    job = bytes_job(4, SDP_TOO_LONG_DROP, SDP_PACKING_NONE);
    check_layout(&job, path, "aa|-- cccc f|---");
    job = bytes_job(4, SDP_TOO_LONG_SPLIT, SDP_PACKING_PACK);
    check_layout(&job, path, "aa|f|- bbbb bbbb bbb|e cccc eeee");
    job = bytes_job(8, SDP_TOO_LONG_SPLIT, SDP_PACKING_PACK);
    check_layout(&job, path, "aa|bbb|f|-- bbbbbbbb cccc|---- eeeee|---");
    job = bytes_job(64, SDP_TOO_LONG_SPLIT, SDP_PACKING_PACK);
    check_layout(&job, path,
                 "aa|bbbbbbbbbbb|cccc|eeeee|f|-----------------------------------------");
    free(path);
}

/* Pieces of an answer that is split: those without a target are left out. */
static void test_split_masks(void)
{
    char *template =
        write_text("split.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    char *path = write_text(
        "split.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"uuuuuuuuuu\"}, {\"role\": "
        "\"assistant\", "
        "\"content\": \"AAA\"}, {\"role\": \"user\", \"content\": \"vvvvvvvvv\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"nobody answers\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"w\"}, {\"role\": "
        "\"assistant\", \"content\": \"B\"}]}\n");
    struct sdp_job job = make_job(SDP_DATA_MESSAGES, 4, template);

    job.data.tokenizer = "bytes";
    check_layout(&job, path, "w|---"); /* truncated, nothing counts: left out */
    job.data.too_long = SDP_TOO_LONG_SPLIT;
    check_layout(&job, path, "-uAA w|---");
    free(template);
    free(path);
}

/* -- the stream
 * ------------------------------------------------------------------------------------ */

static void make_lengths(size_t *lengths, size_t count)
{
    for (size_t i = 0; i < count; i++)
        lengths[i] = 1 + sdp_random_u64(5, i) % 40;
}

/* Every target of the unpacked data comes once when packed too, and few places stay
 * empty. */
static void test_packing(void)
{
    enum { COUNT = 3000, LENGTH = 64 };
    size_t lengths[COUNT], letters[2][26] = {{0}}, sequences[2] = {0, 0},
                           counted[2] = {0, 0};
    struct sequence *s = sdp_xcalloc(1, sizeof *s);
    char *path;

    make_lengths(lengths, COUNT);
    path = write_lengths("packing.jsonl", lengths, COUNT);
    for (int packed = 0; packed < 2; packed++) {
        struct sdp_job job = bytes_job(LENGTH, SDP_TOO_LONG_ERROR,
                                       packed ? SDP_PACKING_PACK : SDP_PACKING_NONE);
        struct sdp_dataset *data;

        job.data.shuffle = true;
        data = open_data(&job, &path, 1);
        sequences[packed] = sdp_dataset_sequences(data);
        for (size_t q = 0; q < sequences[packed]; q++) {
            read_sequence(data, LENGTH, q, s);
            counted[packed] += s->counted;
            for (size_t i = 0; i < LENGTH; i++)
                if (s->targets[i] >= 0) {
                    CHECK_EQ(s->targets[i], s->ids[i]); /* a document has one letter */
                    letters[packed][s->ids[i] - 'a']++;
                }
        }
        sdp_dataset_close(data);
    }
    CHECK_EQ(counted[0], counted[1]);
    CHECK(memcmp(letters[0], letters[1], sizeof letters[0]) == 0);
    CHECK(counted[1] > sequences[1] * LENGTH * 98 / 100);
    free(path);
    free(s);
}

/* Two openings give the same stream at any place, whatever order it is read in. */
static void test_repeatable(void)
{
    enum { COUNT = 500, LENGTH = 32 };
    size_t lengths[COUNT];
    struct sequence *a = sdp_xcalloc(1, sizeof *a), *b = sdp_xcalloc(1, sizeof *b);
    struct sdp_job job = bytes_job(LENGTH, SDP_TOO_LONG_SPLIT, SDP_PACKING_PACK);
    struct sdp_dataset *one, *two;
    char *path;
    size_t count;

    make_lengths(lengths, COUNT);
    path = write_lengths("repeat.jsonl", lengths, COUNT);
    job.data.shuffle = true;
    one = open_data(&job, &path, 1);
    two = open_data(&job, &path, 1);
    count = sdp_dataset_sequences(one);
    CHECK_STR(sdp_dataset_fingerprint(one), sdp_dataset_fingerprint(two));
    for (size_t q = 0; q < 3 * count; q++) {
        read_sequence(one, LENGTH, q, a);
        read_sequence(two, LENGTH, q * 7 % (3 * count), b);
        read_sequence(two, LENGTH, q, b);
        CHECK(memcmp(a, b, sizeof *a) == 0);
    }
    sdp_dataset_close(two);
    job.data.seed = 1;
    two = open_data(&job, &path, 1);
    read_sequence(one, LENGTH, 0, a);
    read_sequence(two, LENGTH, 0, b);
    CHECK(memcmp(a, b, sizeof *a) != 0);
    sdp_dataset_close(two);
    sdp_dataset_close(one);
    free(path);
    free(a);
    free(b);
}

/* The same sequences whether ids are kept in memory or made again. */
static void test_not_kept(void)
{
    enum { LENGTH = 32 };
    static const struct sdp_job none;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job job =
        make_job(SDP_DATA_MESSAGES, LENGTH, CASES "chatml/template.jinja");
    struct sequence *a = sdp_xcalloc(1, sizeof *a), *b = sdp_xcalloc(1, sizeof *b);
    char *path = write_text("kept.jsonl", TURNS TURNS THINKING);

    (void)none;
    job.data.too_long = SDP_TOO_LONG_SPLIT;
    job.data.packing = SDP_PACKING_PACK;
    for (size_t room = 0; room < 2000; room += 500) {
        struct sdpi_source source[2];
        struct sdpi_encoder encoder[2];
        atomic_size_t rooms[2];

        for (int k = 0; k < 2; k++) {
            struct sdpi_facts facts = {.samples = 0};

            REQUIRE_OK(sdpi_encoder_open(&job, VOCABULARY, &encoder[k], &err), &err);
            atomic_init(&rooms[k], k ? (size_t)1 << 20 : room);
            encoder[k].room = &rooms[k];
            REQUIRE_OK(
                sdpi_documents_open(&job, path, &encoder[k], 0, &source[k], &facts, &err),
                &err);
        }
        CHECK_EQ(source[0].sequences, source[1].sequences);
        CHECK(source[0].hash == source[1].hash);
        for (size_t q = 0; q < source[0].sequences; q++) {
            struct sdpi_sequence to[2] = {
                {a->ids, a->targets, a->positions, a->starts, LENGTH},
                {b->ids, b->targets, b->positions, b->starts, LENGTH}};

            CHECK_EQ(source[0].fill(source[0].self, q, &to[0]),
                     source[1].fill(source[1].self, q, &to[1]));
            CHECK(memcmp(a, b, sizeof *a) == 0);
        }
        for (int k = 0; k < 2; k++) {
            source[k].close(source[k].self);
            sdpi_encoder_close(&encoder[k]);
        }
    }
    free(path);
    free(a);
    free(b);
}

/* How often each letter comes in some epochs, for files with weights. */
static void test_weights(void)
{
    static const size_t a[] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
    double weights[] = {0.25, 2.0, 1.0};
    char *paths[] = {write_lengths("w1.jsonl", a, 10), write_lengths("w2.jsonl", a, 4),
                     write_lengths("w3.jsonl", a, 3)};
    struct sequence *s = sdp_xcalloc(1, sizeof *s);

    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct sdp_job job = bytes_job(4, SDP_TOO_LONG_ERROR, SDP_PACKING_NONE);
        size_t seen[26] = {0};
        struct sdp_dataset *data;

        job.data.weights = weights;
        job.data.shuffle = shuffle;
        data = open_data(&job, paths, 3);
        REQUIRE(sdp_dataset_sequences(data) == 3 + 8 + 3); /* round(2.5), 2 x 4, 3 */
        for (size_t q = 0; q < 10 * 14; q++) {
            read_sequence(data, 4, q, s);
            seen[s->ids[0] - 'a']++;
        }
        for (size_t i = 0; i < 10; i++) /* 30 of 10, 80 of 4, 30 of 3 */
            CHECK_EQ(seen[i], 3 + (i < 4 ? 20 : 0) + (i < 3 ? 10 : 0));
        sdp_dataset_close(data);
    }
    for (size_t i = 0; i < 3; i++)
        free(paths[i]);
    free(s);
}

static void note(struct sdp_job *job, char *path, char (*seen)[160], size_t *count)
{
    struct sdp_dataset *data = open_data(job, &path, 1);

    for (size_t i = 0; i < *count; i++)
        CHECK(strcmp(seen[i], sdp_dataset_fingerprint(data)) != 0);
    snprintf(seen[(*count)++], sizeof seen[0], "%s", sdp_dataset_fingerprint(data));
    sdp_dataset_close(data);
}

static void test_fingerprint(void)
{
    char *template = sdp_xstrdup(CASES "chatml/template.jinja"),
         *other = sdp_xstrdup(CASES "smollm2/template.jinja");
    char *path = write_text("print.jsonl", TURNS),
         *longer = write_text("longer.jsonl", TURNS TURNS);
    struct sdp_job job = make_job(SDP_DATA_MESSAGES, 64, template);
    char seen[16][160];
    size_t count = 0;

    note(&job, path, seen, &count);
    note(&job, longer, seen, &count);
    job.data.packing = SDP_PACKING_PACK;
    note(&job, path, seen, &count);
    job.data.too_long = SDP_TOO_LONG_SPLIT;
    note(&job, path, seen, &count);
    job.data.chat_template = other;
    note(&job, path, seen, &count);
    job.data.template_values = "{\"x\": 1}";
    note(&job, path, seen, &count);
    job.data.fields[SDP_FIELD_SYSTEM] = "sys";
    note(&job, path, seen, &count);
    job.data.tokenizer = "bytes";
    note(&job, path, seen, &count);
    CHECK_EQ(count, 8);
    free(template);
    free(other);
    free(path);
    free(longer);
}

/* A plain text with a tokenizer is one stream, wherever its blocks end. */
static void test_plain_text(void)
{
    enum { SIZE = 100000, LENGTH = 100 };
    char *text = sdp_xcalloc(SIZE, 1), *path;
    struct sdp_ids ids = {NULL, 0, 0};
    struct sdp_job job = make_job(SDP_DATA_TEXT, LENGTH, NULL);
    struct sequence *s = sdp_xcalloc(1, sizeof *s);
    struct sdp_dataset *data;

    for (size_t i = 0; i < SIZE; i++)
        text[i] = i % 61 == 60 ? '\n' : (char)('a' + sdp_random_u64(1, i) % 4);
    path = temp_file("plain.txt", text, SIZE);
    CHECK_EQ(sdp_tokenizer_encode(NULL, text, SIZE, false, &ids, NULL), SDP_OK);
    data = open_data(&job, &path, 1);
    CHECK_EQ(sdp_dataset_sequences(data), (ids.count - 1) / LENGTH);
    for (size_t q = 0; q < sdp_dataset_sequences(data); q++) {
        read_sequence(data, LENGTH, q, s);
        CHECK(memcmp(s->ids, ids.ids + q * LENGTH, sizeof(int32_t) * LENGTH) == 0);
        CHECK(memcmp(s->targets, ids.ids + q * LENGTH + 1, sizeof(int32_t) * LENGTH) ==
              0);
    }
    sdp_dataset_close(data);
    sdp_ids_free(&ids);
    free(path);
    free(text);
    free(s);
}

/* -- what is refused
 * ---------------------------------------------------------------------------------- */

static void check_refused(struct sdp_job *job, char *path, const char *wanted)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data = NULL;
    char text[SDP_ERROR_TEXT_SIZE];
    const char *name;

    job->data.train = &path;
    job->data.train_count = 1;
    CHECK_EQ(sdp_dataset_open(job, false, VOCABULARY, &data, &err), SDP_INPUT);
    name = sdp_error_format(&err, text, sizeof text);
    if (strncmp(name, temp_root, strlen(temp_root)) == 0)
        name += strlen(temp_root) + 1;
    CHECK_STR(name, wanted);
}

static void check_record(struct sdp_job *job, const char *record, size_t size,
                         const char *wanted)
{
    char *path = temp_file("bad.jsonl", record, size);

    check_refused(job, path, wanted);
    free(path);
}

#define ANSWER "{\"role\": \"assistant\", \"content\": \"b\"}]}"
#define USER   "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "

static const struct {
    const char *record, *wanted;
} bad_messages[] = {
    {"{\"messages\": [}\n",
     "bad.jsonl:1:15: is not valid JSON: unexpected token near '}'"},
    {TURNS TURNS "{\"messages\": [\n",
     "bad.jsonl:3:14: is not valid JSON: ']' expected near end of file"},
    {TURNS "{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}\n",
     "bad.jsonl:2:43: is not valid JSON: unable to decode byte 0xff near '\"'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]}\n",
     "bad.jsonl:1:50: a text holds the character \\u0000, which no text should"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}\n",
     "bad.jsonl:1:50: is not valid JSON: invalid Unicode '\\uD800' near "
     "'\"\\ud800\"'"},
    {"{\"a\": 1, \"a\": 2}",
     "bad.jsonl:1:12: is not valid JSON: duplicate object key near '\"a\"'"},
    {"{\"a\": 1} x", "bad.jsonl:1:10: is not valid JSON: end of file expected near 'x'"},
    {"\n\n[1]\n", "bad.jsonl:3: is a list; must be an object: { ... }"},
    {"5\n", "bad.jsonl:1: is 5; must be an object: { ... }"},
    {"{\"text\": \"a\"}", "bad.jsonl:1: /messages: is missing; this member is "
                          "required (data.fields.messages names another)"},
    {"{\"messages\": {}}",
     "bad.jsonl:1: /messages: is an object; must be a list: [ ... ]"},
    {"{\"messages\": []}", "bad.jsonl:1: /messages: is an empty list; a conversation "
                           "has at least one turn"},
    {"{\"messages\": [\"a\"]}",
     "bad.jsonl:1: /messages/0: is \"a\"; must be an object: { ... }"},
    {"{\"messages\": [{\"content\": \"a\"}]}",
     "bad.jsonl:1: /messages/0/role: is missing; this member is required"},
    {"{\"messages\": [{\"role\": \"user\"}]}",
     "bad.jsonl:1: /messages/0/content: is missing; this member is required"},
    {"{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}",
     "bad.jsonl:1: /messages/0/role: is 1; must be a string"},
    {"{\"messages\": [{\"role\": \"User\", \"content\": \"a\"}]}",
     "bad.jsonl:1: /messages/0/role: is \"User\"; must be one of \"system\", "
     "\"user\", \"assistant\", \"tool\" (or "
     "ShareGPT's \"human\", \"gpt\")"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": 5}]}",
     "bad.jsonl:1: /messages/0/content: is 5; must be a string"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}",
     "bad.jsonl:1: /messages/0/content: is null; must be a string"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"\"}]}",
     "bad.jsonl:1: /messages/0/content: is empty; must be a text"},
    {USER "{\"role\": \"assistant\", \"content\": \"\"}]}",
     "bad.jsonl:1: /messages/1/content: is empty; must be a text"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
     "bad.jsonl:1: /messages/0/content/0: is no part of type \"text\"; only texts "
     "can be trained on"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
     "bad.jsonl:1: /messages/0/content/0/text: is missing; this key is required"},
    {"{\"conversations\": [{\"from\": \"human\", \"value\": 7}]}",
     "bad.jsonl:1: /conversations/0/value: is 7; must be a string"},
    {"{\"system\": 5, "
     "\"messages\": [" ANSWER,
     "bad.jsonl:1: /system: is 5; must be a string"},
    {"{\"tools\": [{}], \"messages\": [" ANSWER,
     "bad.jsonl:1: /tools: is about tools, which are refused unless the job says "
     "\"tools\": \"pass\" in data (the chat "
     "template must then know them)"},
    {USER "{\"role\": \"tool\", \"content\": \"5\"}]}",
     "bad.jsonl:1: /messages/1/role: is about tools, which are refused unless the "
     "job says \"tools\": \"pass\" in data "
     "(the chat template must then know them)"},
    {USER "{\"role\": \"assistant\", \"tool_calls\": [{}]}]}",
     "bad.jsonl:1: /messages/1/tool_calls: is about tools, which are refused unless "
     "the job says \"tools\": \"pass\" in "
     "data (the chat template must then know them)"},
    {"", "bad.jsonl: has no records; each line should hold one"},
    {"\n \r\n\t\n", "bad.jsonl: has no records; each line should hold one"},
};

static void test_bad_messages(void)
{
    struct sdp_job job = make_job(SDP_DATA_MESSAGES, 64, CASES "chatml/template.jinja");

    for (size_t i = 0; i < SDP_COUNT_OF(bad_messages); i++)
        check_record(&job, bad_messages[i].record, strlen(bad_messages[i].record),
                     bad_messages[i].wanted);
    check_record(&job, TURNS "{\"mess\0ages\": []}\n",
                 sizeof(TURNS "{\"mess\0ages\": []}\n") - 1,
                 "bad.jsonl:2: byte 7 of the line is NUL; is this a text file?");
    job.data.pass_tools = true;
    check_record(&job, "{\"tools\": \"no JSON\", \"messages\": [" ANSWER,
                 strlen("{\"tools\": \"no JSON\", \"messages\": [" ANSWER),
                 "bad.jsonl:1: /tools: is \"no JSON\"; must be a list of tools, or the "
                 "JSON text of one");
}

static void test_bad_others(void)
{
    static const struct {
        enum sdp_data_format format;
        const char *record, *wanted;
    } cases[] = {
        {SDP_DATA_TEXT, "{\"txt\": \"a\"}",
         "bad.jsonl:1: /text: is missing; this member is required"},
        {SDP_DATA_TEXT, "{\"text\": \"\"}",
         "bad.jsonl:1: /text: is empty; must be a text"},
        {SDP_DATA_TEXT, "{\"text\": \"a\"}\n{\"text\": [\"a\"]}",
         "bad.jsonl:2: /text: is a list; must be a string"},
        {SDP_DATA_TEXT, "just text",
         "bad.jsonl:1:4: is not valid JSON: invalid token near 'just'"},
        {SDP_DATA_ALPACA, "{\"instruction\": \"a\"}",
         "bad.jsonl:1: /output: is missing; this member is required"},
        {SDP_DATA_ALPACA,
         "{\"instruction\": \"a\", \"output\": \"b\", \"system\": \"s\"}",
         "bad.jsonl:1: /system: needs a chat template, and there is none "
         "(data.chat_template)"},
        {SDP_DATA_ALPACA, "{\"output\": \"a\"}",
         "bad.jsonl:1: /instruction: is missing; this member is required"},
        {SDP_DATA_ALPACA, "{\"instruction\": \"a\", \"input\": 3, \"output\": \"b\"}",
         "bad.jsonl:1: /input: is 3; must be a string"},
    };
    struct sdp_job job = make_job(SDP_DATA_TEXT, 4, NULL);

    for (size_t i = 0; i < SDP_COUNT_OF(cases); i++) {
        job.data.format = cases[i].format;
        check_record(&job, cases[i].record, strlen(cases[i].record), cases[i].wanted);
    }
    job = bytes_job(4, SDP_TOO_LONG_ERROR, SDP_PACKING_NONE);
    check_record(&job, "{\"text\": \"abc\"}\n\n{\"text\": \"abcdef\"}\n",
                 strlen("{\"text\": \"abc\"}\n\n{\"text\": \"abcdef\"}\n"),
                 "bad.jsonl:3: has 6 tokens; a sequence of 4 holds 5 of a document. "
                 "data.too_long can be \"truncate\", "
                 "\"split\" or \"drop\"");
    job = bytes_job(4, SDP_TOO_LONG_DROP, SDP_PACKING_NONE);
    check_record(&job, "{\"text\": \"abcdef\"}\n{\"text\": \"a\"}\n",
                 strlen("{\"text\": \"abcdef\"}\n{\"text\": \"a\"}\n"),
                 "bad.jsonl: holds nothing to train on: of 2 samples 1 were too long and "
                 "1 had no target");
}

/* Templates that cannot be used for a record, or not at all. */
static void test_bad_templates(void)
{
    struct sdp_job job = make_job(SDP_DATA_MESSAGES, 64, CASES "gemma/template.jinja");
    char *template;
    const char *system = "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, "
                         "{\"role\": \"user\", \"content\": \"a\"}, "
                         "{\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": "
                         "\"user\", \"content\": \"c\"}, "
                         "{\"role\": \"assistant\", \"content\": \"d\"}]}";
    char *wanted = sdp_xprintf("bad.jsonl:1: the chat template cannot render this: "
                               "%sgemma/template.jinja:1:59: the template "
                               "refuses this: System role not supported",
                               CASES);

    check_record(&job, system, strlen(system), wanted);
    job.data.chat_template = CASES "mistral-v3/template.jinja";
    check_record(&job, system, strlen(system),
                 "bad.jsonl:1: /messages/2: the chat template writes this answer "
                 "otherwise when more messages follow, so "
                 "what to train on cannot be told; end the conversation here, or mark "
                 "the answers with {% generation %} in a "
                 "template of your own (data.chat_template)");
    template = write_text("t.jinja", "a\n{% include 'x' %}");
    job.data.chat_template = template;
    check_record(&job, TURNS, strlen(TURNS),
                 "t.jinja:2:4: {% include %} is not supported; give the job a chat "
                 "template without it (data.chat_template)");
    free(template);
    job.data.chat_template = NULL;
    check_record(&job, TURNS, strlen(TURNS),
                 "job.json: /data/chat_template: is missing, and the tokenizer's folder "
                 "has no chat template; name a file with "
                 "one");
    job.data.tokenizer = "bytes";
    check_record(&job, TURNS, strlen(TURNS),
                 "job.json: /data/chat_template: is missing, and the tokenizer \"bytes\" "
                 "has no chat template; name a file with "
                 "one");
    free(wanted);
}

static void test_long_line(void)
{
    struct sdp_job job = make_job(SDP_DATA_TEXT, 64, NULL);
    char *path = write_text("long.jsonl", "{\"text\": \"a\"}\n{");

    REQUIRE(truncate(path, 100000000) == 0); /* a hole */
    check_refused(
        &job, path,
        "long.jsonl:2: the line has 99999986 bytes; a record may have at most 67108864");
    free(path);
}

/* Of several wrong lines the first is told, whatever thread finds which. */
static void test_first_error(void)
{
    enum { LINES = 2000 };
    struct sdp_job job = make_job(SDP_DATA_TEXT, 64, NULL);
    char *text = sdp_xcalloc(LINES * 16 + 1, 1), *path;

    for (size_t i = 0; i < LINES; i++)
        memcpy(text + i * 16,
               i == 777 || i == 778 || i > 1500 ? "{\"text\": 12345}\n"
                                                : "{\"text\": \"abc\"}\n",
               16);
    path = temp_file("first.jsonl", text, LINES * 16);
    for (int i = 0; i < 20; i++)
        check_refused(&job, path, "first.jsonl:778: /text: is 12345; must be a string");
    free(path);
    free(text);
}

static void test_id_range(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job job = make_job(SDP_DATA_TEXT, 4, NULL);
    struct sdp_dataset *data = NULL;
    char *path = write_text("range.jsonl", "{\"text\": \"a\"}");

    job.data.train = &path;
    job.data.train_count = 1;
    CHECK_EQ(sdp_dataset_open(&job, false, 256, &data, &err), SDP_INPUT);
    CHECK_STR(err.text, "the tokenizer gives the id 256, but the model's vocabulary has "
                        "only the ids 0 to 255; the tokenizer "
                        "must be the model's own");
    CHECK_EQ(err.line, 1);
    free(path);
}

int main(void)
{
    char *config, *tokenizer;

    sdp_log_set_level(SDP_LOG_QUIET);
    temp_begin();
    folder = temp_path("tokenizer");
    REQUIRE(mkdir(folder, 0700) == 0);
    tokenizer = write_text("tokenizer/tokenizer.json", "{}");
    config = write_text("tokenizer/tokenizer_config.json",
                        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": "
                        "\"</s>\"}, \"pad_token\": null}");
    test_families();
    test_crossing();
    test_forms();
    test_alpaca();
    test_text();
    test_lengths();
    test_split_masks();
    test_packing();
    test_repeatable();
    test_not_kept();
    test_weights();
    test_fingerprint();
    test_plain_text();
    test_bad_messages();
    test_bad_others();
    test_bad_templates();
    test_long_line();
    test_first_error();
    test_id_range();
    free(config);
    free(tokenizer);
    free(folder);
    temp_end();
    return sdp_test_end();
}
