/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Records: the first byte chooses the format and options, the rest is the file. What is
 * accepted gives sequences whose positions, starts and targets fit together. */
#include "graph/base/log.h"
#include "model/data/dataset.h"
#include "tests/fuzz/fuzz.h"

#define LENGTH 16

static const char *const templates[] = {"chatml", "qwen3", "llama2", "generation"};

static void check_sequence(const struct sdp_dataset *data, uint64_t index)
{
    int32_t ids[LENGTH], targets[LENGTH], positions[LENGTH], starts[LENGTH];
    size_t counted = sdp_dataset_sequence(data, index, ids, targets, positions, starts);

    for (int32_t i = 0; i < LENGTH; i++) {
        counted -= targets[i] >= 0;
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < 256 && targets[i] >= -1 && targets[i] < 256);
        FUZZ_CHECK(starts[i] >= 0 && starts[i] <= i && positions[i] == i - starts[i]);
        if (targets[i] >= 0 && i + 1 < LENGTH && starts[i + 1] == starts[i])
            FUZZ_CHECK(targets[i] == ids[i + 1]);
    }
    FUZZ_CHECK(counted == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum sdp_data_format formats[] = {SDP_DATA_MESSAGES, SDP_DATA_ALPACA,
                                                   SDP_DATA_TEXT, SDP_DATA_MESSAGES};
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *set = NULL;
    struct sdp_job job = {.path = "job.json"};
    char link[64], path[80], template[256], *paths[] = {path};
    unsigned choice = size ? data[0] : 0;
    int fd = fuzz_file(data + (size > 0), size - (size > 0), link, sizeof link);

    sdp_log_set_level(SDP_LOG_QUIET);
    snprintf(path, sizeof path, "/tmp/fuzz-%ld.jsonl", (long)getpid());
    FUZZ_CHECK(symlink(link, path) == 0); /* a name that tells the format */
    snprintf(template, sizeof template, "%s/tests/model/template/cases/%s/template.jinja",
             SDP_SOURCE_DIR, templates[choice >> 2 & 3]);
    job.data.format = formats[choice & 3];
    job.data.tokenizer = "bytes";
    job.data.chat_template = (choice & 128) && (choice & 3) == 1 ? NULL : template;
    job.data.template_values = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    job.data.sequence_length = LENGTH;
    job.data.too_long = choice & 16 ? SDP_TOO_LONG_SPLIT : SDP_TOO_LONG_TRUNCATE;
    job.data.packing = choice & 32 ? SDP_PACKING_PACK : SDP_PACKING_NONE;
    job.data.pass_tools = choice & 64;
    job.data.shuffle = choice & 64;
    job.data.train = paths;
    job.data.train_count = 1;
    if (sdp_dataset_open(&job, false, 256, &set, &err) == SDP_OK) {
        for (uint64_t i = 0; i < sdp_dataset_sequences(set) && i < 100; i++)
            check_sequence(set, i);
    } else {
        FUZZ_CHECK(err.status == SDP_INPUT && err.text[0]);
    }
    sdp_dataset_close(set);
    FUZZ_CHECK(unlink(path) == 0);
    close(fd);
    return 0;
}
