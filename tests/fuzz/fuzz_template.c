/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Chat templates: any text is refused with a message or renders, within its limits. */
#include "model/template/template.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", "
    "\"content\": \"h\\u00e9 \\n x\"},"
    "{\"role\": \"assistant\", \"content\": \"<think>a</think>b\", \"tool_calls\": "
    "[{\"function\": {\"name\": \"f\","
    "\"arguments\": {\"a\": [1, 2.5, null, true]}}}]}], \"tools\": [{\"type\": "
    "\"function\"}], \"documents\": null,"
    "\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *variables;
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_template *t = NULL;
    struct sdp_template_text text = {.text = NULL};
    enum sdp_status status;

    if (!variables)
        variables = json_loads(conversation, 0, NULL);
    FUZZ_CHECK(variables != NULL);
    status = sdp_template_parse((const char *)data, size, "input", &t, &err);
    if (status == SDP_OK) {
        (void)sdp_template_uses(t, "strftime_now");
        status = sdp_template_render(t, variables, 1735689600, &text, &err);
    }
    if (status == SDP_OK) {
        FUZZ_CHECK(strlen(text.text) <= text.length);
        for (size_t i = 0; i < text.span_count; i++)
            FUZZ_CHECK(text.spans[i].first <= text.spans[i].last &&
                       text.spans[i].last <= text.length);
        sdp_template_text_free(&text);
    } else {
        FUZZ_CHECK(status == SDP_INPUT && err.text[0]);
    }
    sdp_template_destroy(t);
    return 0;
}
