/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Conversations with real tokenizers: the ids and masks that transformers gives them
 * (chat/make_chat_cases.py), for the templates of the common families. */
#include "graph/base/json.h"
#include "graph/base/log.h"
#include "model/data/dataset.h"
#include "tests/model/temp_folder.h"

#define CASES  SDP_SOURCE_DIR "/tests/model/chat"
#define LENGTH 1024

static char *write_record(const json_t *one)
{
    json_t *record = json_pack("{s:O}", "messages", json_object_get(one, "messages"));
    char *text = json_dumps(record, JSON_COMPACT), *path;

    REQUIRE(text != NULL);
    path = temp_file("one.jsonl", text, strlen(text));
    json_decref(record);
    free(text);
    return path;
}

static void compare(const char *name, const struct sdp_dataset *data, const json_t *one)
{
    static int32_t ids[LENGTH], targets[LENGTH], positions[LENGTH], starts[LENGTH];
    const json_t *wanted = json_object_get(one, "ids"),
                 *mask = json_object_get(one, "mask");
    size_t count = json_array_size(wanted) - 1, wrong = 0;

    REQUIRE(count < LENGTH);
    sdp_dataset_sequence(data, 0, ids, targets, positions, starts);
    for (size_t i = 0; i < count; i++) {
        json_int_t next = json_integer_value(json_array_get(wanted, i + 1));
        bool counts = json_integer_value(json_array_get(mask, i + 1)) != 0;

        wrong += ids[i] != json_integer_value(json_array_get(wanted, i));
        wrong += targets[i] != (counts ? next : -1);
        wrong += starts[i] != 0 || positions[i] != (int32_t)i;
    }
    wrong += starts[count] != (int32_t)count || targets[count] != -1;
    sdp_test_checks++;
    if (wrong)
        SDP_TEST_FAIL("%s: %zu of %zu differ", name, wrong, count);
}

static void check_case(const char *folder, size_t number, const json_t *one)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data = NULL;
    struct sdp_job job;
    const char *family = json_string_value(json_object_get(one, "template"));
    char *path = write_record(one),
         *name = sdp_xprintf("%s, case %zu, %s", folder, number, family);
    char *template = sdp_xprintf("%s/tests/model/template/cases/%s/template.jinja",
                                 SDP_SOURCE_DIR, family);

    memset(&job, 0, sizeof job);
    job.path = "job.json";
    job.data.format = SDP_DATA_MESSAGES;
    job.data.sequence_length = LENGTH;
    job.data.tokenizer = (char *)(uintptr_t)folder;
    job.data.chat_template = template;
    job.data.train = &path;
    job.data.train_count = 1;
    REQUIRE_OK(sdp_dataset_open(&job, false, 1000, &data, &err), &err);
    compare(name, data, one);
    sdp_dataset_close(data);
    free(template);
    free(name);
    free(path);
}

static void check_folder(const char *folder)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_json root;
    json_t *document = NULL, *cases;
    char *path = sdp_path_join(folder, "cases.json");

    REQUIRE_OK(sdp_json_load(path, &document, &root, &err), &err);
    cases = json_object_get(document, "cases");
    CHECK(json_array_size(cases) >= 40);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(folder, i, json_array_get(cases, i));
    json_decref(document);
    free(path);
}

int main(void)
{
    sdp_log_set_level(SDP_LOG_QUIET);
    temp_begin();
    check_folder(CASES "/byte-level");
    check_folder(CASES "/metaspace");
    temp_end();
    return sdp_test_end();
}
