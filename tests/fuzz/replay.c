/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a fuzz target on every file of the folders (or files) that the command line names.
 */
#include "graph/base/util.h"
#include "tests/fuzz/fuzz.h"

#include <dirent.h>

static size_t replay(const char *path)
{
    struct dirent *entry;
    struct sdp_map map = {NULL, 0};
    size_t count = 0;
    DIR *folder;

    if (!sdp_path_is_folder(path)) {
        FUZZ_CHECK(sdp_map_open(path, &map, NULL) == SDP_OK);
        LLVMFuzzerTestOneInput(map.data, map.size);
        sdp_map_close(&map);
        return 1;
    }
    folder = opendir(path);
    FUZZ_CHECK(folder != NULL);
    while ((entry = readdir(folder))) {
        char *inside = sdp_path_join(path, entry->d_name);

        if (entry->d_name[0] != '.')
            count += replay(inside);
        free(inside);
    }
    FUZZ_CHECK(closedir(folder) == 0);
    return count;
}

int main(int argc, char **argv)
{
    size_t count = 0;

    for (int i = 1; i < argc; i++)
        count += replay(argv[i]);
    fprintf(stderr, "%zu inputs\n", count);
    return count > 0 ? 0 : 1;
}
