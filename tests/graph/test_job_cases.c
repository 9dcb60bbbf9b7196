/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A folder is a test case: each folder of jobs/valid must load, and each of
 * jobs/invalid must be refused with exactly the line in its file "error". A file
 * "overrides" holds what --set would give, one a line. The reader runs with the
 * case's folder as working folder, so messages have the paths that users see.
 *
 * `test_graph_job_cases --accept` writes the "error" files anew: read the diff. */
#define _GNU_SOURCE
#include "graph/job.h"
#include "tests/sdp_test.h"

#include <dirent.h>
#include <unistd.h>

#define MAX_OVERRIDES 16

static bool accept_messages;

struct overrides {
    char *text;
    const char *lines[MAX_OVERRIDES];
    size_t count;
};

static void read_overrides(struct overrides *out)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *save = NULL;

    *out = (struct overrides){.text = NULL};
    if (!sdp_path_exists("overrides"))
        return;
    REQUIRE_OK(sdp_read_text("overrides", &out->text, NULL, &err), &err);
    for (char *line = strtok_r(out->text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        REQUIRE(out->count < MAX_OVERRIDES);
        out->lines[out->count++] = line;
    }
}

static void check_valid(const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *job = NULL;
    struct overrides overrides;
    char text[SDP_ERROR_TEXT_SIZE];

    read_overrides(&overrides);
    if (sdp_job_load("job.json", overrides.lines, overrides.count, &job, &err) != SDP_OK)
        SDP_TEST_FAIL("valid/%s was refused: %s", name,
                      sdp_error_format(&err, text, sizeof text));
    CHECK_EQ(job != NULL, err.status == SDP_OK);
    sdp_job_destroy(job);
    free(overrides.text);
}

static void compare_message(const char *name, const char *message)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *wanted = NULL;

    if (accept_messages) {
        REQUIRE_OK(sdp_write_file("error", message, strlen(message), &err), &err);
        return;
    }
    REQUIRE_OK(sdp_read_text("error", &wanted, NULL, &err), &err);
    if (strcmp(message, wanted) != 0)
        SDP_TEST_FAIL("invalid/%s\nsays    %swanted  %s", name, message, wanted);
    free(wanted);
}

static void check_invalid(const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_job *untouched = (struct sdp_job *)&err, *job = untouched;
    struct overrides overrides;
    char text[SDP_ERROR_TEXT_SIZE], *message;
    enum sdp_status status;

    read_overrides(&overrides);
    status = sdp_job_load("job.json", overrides.lines, overrides.count, &job, &err);
    if (status != SDP_INPUT || err.status != SDP_INPUT || job != untouched) {
        SDP_TEST_FAIL("invalid/%s: status is %s", name, sdp_status_name(status));
    } else {
        message = sdp_xprintf("slidedp: %s\n", sdp_error_format(&err, text, sizeof text));
        compare_message(name, message);
        free(message);
    }
    sdp_test_checks++;
    free(overrides.text);
}

static size_t walk(const char *kind, void (*check)(const char *name))
{
    char *folder = sdp_xprintf("%s/tests/graph/jobs/%s", SDP_SOURCE_DIR, kind);
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    size_t cases = 0;

    REQUIRE(count >= 0);
    for (int i = 0; i < count; i++) {
        char *path = sdp_path_join(folder, entries[i]->d_name);

        if (entries[i]->d_name[0] != '.' && sdp_path_is_folder(path)) {
            REQUIRE(chdir(path) == 0);
            check(entries[i]->d_name);
            cases++;
        }
        free(path);
        free(entries[i]);
    }
    free(entries);
    free(folder);
    return cases;
}

int main(int argc, char **argv)
{
    size_t valid, invalid;

    accept_messages = argc > 1 && strcmp(argv[1], "--accept") == 0;
    valid = walk("valid", check_valid);
    invalid = walk("invalid", check_invalid);
    CHECK(valid >= 8);
    CHECK(invalid >= 45);
    return sdp_test_end();
}
