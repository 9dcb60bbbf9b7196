/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/support/case_folders.h"

#include "graph/base/util.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

size_t sdp_test_walk_cases(const char *folder, void (*check)(const char *name))
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    size_t cases = 0;

    for (int i = 0; i < count; i++) {
        char *path = sdp_path_join(folder, entries[i]->d_name);

        if (entries[i]->d_name[0] != '.' && sdp_path_is_folder(path) &&
            chdir(path) == 0) {
            check(entries[i]->d_name);
            cases++;
        }
        free(path);
        free(entries[i]);
    }
    free(entries);
    return cases;
}

bool sdp_test_message_is_expected(const char *name, const struct sdp_error *err,
                                  bool accept)
{
    bool starts = sdp_path_exists("error-starts"), good = false;
    char text[SDP_ERROR_TEXT_SIZE];
    char *message =
        sdp_xprintf("slidedp: %s\n", sdp_error_format(err, text, sizeof text));
    char *wanted = NULL;

    if (accept && !starts) {
        good = sdp_write_file("error", message, strlen(message), NULL) == SDP_OK;
    } else if (sdp_read_text(starts ? "error-starts" : "error", &wanted, NULL, NULL) ==
               SDP_OK) {
        if (starts)
            wanted[strcspn(wanted, "\n")] = '\0';
        good = starts ? *wanted && strstr(message, wanted) == message
                      : strcmp(message, wanted) == 0;
    }
    if (!good)
        fprintf(stderr, "%s\nsays    %swanted  %s\n", name, message,
                wanted ? wanted : "(its file \"error\" is missing)");
    free(wanted);
    free(message);
    return good;
}
