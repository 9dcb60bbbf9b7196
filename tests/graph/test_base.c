/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* graph/base: status, errors, nearest names, dtypes, the split fp32 master,
 * sizes, random numbers, files and paths. */
#define _GNU_SOURCE
#include "graph/base/log.h"
#include "graph/base/util.h"
#include "tests/sdp_test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_status(void)
{
    CHECK_STR(sdp_status_name(SDP_OK), "SDP_OK");
    CHECK_STR(sdp_status_name(SDP_INPUT), "SDP_INPUT");
    CHECK_STR(sdp_status_message(SDP_INTERRUPTED), "stopped by a signal");
    CHECK_STR(sdp_status_name((enum sdp_status)77), "SDP_UNKNOWN");
    CHECK_EQ(sdp_status_exit_code(SDP_OK), 0);
    CHECK_EQ(sdp_status_exit_code(SDP_INPUT), 2);
    CHECK_EQ(sdp_status_exit_code(SDP_INTERRUPTED), 3);
    CHECK_EQ(sdp_status_exit_code(SDP_IO), 1);
    CHECK_EQ(sdp_status_exit_code(SDP_INTERNAL), 1);
}

static void test_error(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char text[SDP_ERROR_TEXT_SIZE], large[2000];

    CHECK_EQ(sdp_fail(&err, SDP_INPUT, "is %d; must be %s", 3, "even"), SDP_INPUT);
    CHECK_STR(sdp_error_format(&err, text, sizeof text), "is 3; must be even");
    sdp_error_set_file(&err, "job.json");
    CHECK_STR(sdp_error_format(&err, text, sizeof text), "job.json: is 3; must be even");
    /* The first error wins, and so does the first file. */
    CHECK_EQ(sdp_fail(&err, SDP_IO, "another"), SDP_IO);
    sdp_error_set_file(&err, "other.json");
    CHECK_EQ(err.status, SDP_INPUT);
    CHECK_STR(err.file, "job.json");
    CHECK_EQ(sdp_fail(NULL, SDP_NOMEM, "nobody listens"), SDP_NOMEM);
    sdp_error_set_file(NULL, "x");

    err = (struct sdp_error)SDP_ERROR_INIT;
    sdp_fail_at(&err, SDP_INPUT, "a.json", "/x/0", 3, 9, "bad");
    CHECK_STR(sdp_error_format(&err, text, sizeof text), "a.json:3:9: /x/0: bad");

    memset(large, 'x', sizeof large);
    large[sizeof large - 1] = '\0';
    err = (struct sdp_error)SDP_ERROR_INIT;
    sdp_fail_at(&err, SDP_INPUT, large, large, 0, 0, "%s", large);
    CHECK_EQ(strlen(err.text), sizeof err.text - 1);
    CHECK_STR(err.text + sizeof err.text - 5, "x...");
    CHECK_STR(err.file + sizeof err.file - 5, "x...");
    CHECK_STR(err.pointer + sizeof err.pointer - 5, "x...");
}

/* sdp_error_print and the log write what they should to stderr. */
static void test_log(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char text[4096] = "";
    int fds[2], saved = dup(STDERR_FILENO);
    ssize_t got;

    REQUIRE(saved >= 0 && pipe(fds) == 0 && dup2(fds[1], STDERR_FILENO) >= 0);
    sdp_fail_at(&err, SDP_INPUT, "a.json", "/x", 0, 0, "bad");
    sdp_error_print(&err);
    sdp_warn("careful %d", 1);
    sdp_info("hello");
    sdp_debug("not shown");
    sdp_progress("step 1");
    sdp_progress("step 2");
    sdp_progress_end();
    sdp_log_set_level(SDP_LOG_QUIET);
    sdp_warn("dropped");
    sdp_progress("dropped");
    sdp_progress_end();
    sdp_log_set_level(SDP_LOG_INFO);
    REQUIRE(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    close(fds[1]);
    got = read(fds[0], text, sizeof text - 1);
    close(fds[0]);
    CHECK(got > 0);
    CHECK_STR(text,
              "slidedp: a.json: /x: bad\nslidedp: warning: careful 1\nslidedp: hello\n"
              "slidedp: step 1\nslidedp: step 2\n");
}

static void check_nearest(const char *name, const char *wanted)
{
    static const char *const keys[] = {
        "lr",    "betas",  "eps",          "weight_decay",
        "steps", "epochs", "warmup_steps", "sequence_length",
        "bf16",  NULL};
    const char *nearest = sdp_nearest(name, keys);

    CHECK_STR(nearest ? nearest : "(none)", wanted ? wanted : "(none)");
}

static void test_nearest(void)
{
    check_nearest("step", "steps");
    check_nearest("beta", "betas");
    check_nearest("weight-decay", "weight_decay");
    check_nearest("wieght_decay", "weight_decay");
    check_nearest("BF16", "bf16");
    check_nearest("rl", "lr");
    check_nearest("sequnce_lenght", "sequence_length");
    check_nearest("warmup", NULL);
    check_nearest("q", NULL);
    check_nearest("zz", NULL);
    check_nearest("", NULL);
    check_nearest("something_else_entirely", NULL);
}

static void check_split(uint32_t bits)
{
    float master = sdp_float_from_bits(bits);
    uint16_t weight;
    int16_t remainder;
    uint32_t back;

    sdp_master_split(master, &weight, &remainder);
    back = sdp_bits_from_float(sdp_master_join(weight, remainder));
    if (master != master) {
        CHECK_EQ(weight, 0x7fc0);
        CHECK_EQ(remainder, 0);
    } else if (back != bits) {
        SDP_TEST_FAIL("0x%08x came back as 0x%08x", bits, back);
    }
}

/* The fp32 master survives its two halves for every kind of value. */
static void test_master(void)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x00008000, 0x00007fff,
        0x007fffff, 0x00800000, 0x3f800000, 0x3f808000, 0x3f807fff, 0x3f808001,
        0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f800000, 0xff800000, 0x7fc00000,
        0xffc00000, 0x7f800001, 0xffffffff,
    };
    uint16_t weight;
    int16_t remainder;

    for (size_t i = 0; i < SDP_COUNT_OF(special); i++)
        check_split(special[i]);
    for (uint64_t i = 0; i < 2000000; i++)
        check_split((uint32_t)sdp_random_u64(7, i));
    for (uint32_t low = 0; low <= 0xffff;
         low++) /* every remainder, normal and denormal */
        for (uint32_t high = 0; high < 4; high++)
            check_split((high & 1 ? 0x3f810000u : 0x00010000u) +
                        (high << 30 & 0x80000000u) + low);
    /* Ties go away from zero, whether the weight below is even or odd. */
    sdp_master_split(sdp_float_from_bits(0x3f808000), &weight, &remainder);
    CHECK_EQ(weight, 0x3f81);
    CHECK_EQ(remainder, -32768);
    sdp_master_split(sdp_float_from_bits(0xbf818000), &weight, &remainder);
    CHECK_EQ(weight, 0xbf82);
    CHECK_EQ(remainder, -32768);
    /* The largest floats round to an infinite weight and still come back. */
    sdp_master_split(sdp_float_from_bits(0x7f7fffff), &weight, &remainder);
    CHECK_EQ(weight, 0x7f80);
    CHECK_EQ(remainder, -1);
}

static void test_dtypes(void)
{
    CHECK_EQ(sdp_dtype_size(SDP_BF16), 2);
    CHECK_EQ(sdp_dtype_size(SDP_INT64), 8);
    CHECK_STR(sdp_dtype_name(SDP_FP32), "fp32");
    CHECK_STR(sdp_dtype_name(SDP_UINT32), "uint32");
    CHECK(sdp_bf16_from_float(1.0f) == 0x3f80);
    CHECK(sdp_bf16_from_float(sdp_float_from_bits(0x3f808000)) ==
          0x3f80); /* tie to even */
    CHECK(sdp_bf16_from_float(sdp_float_from_bits(0x3f818000)) == 0x3f82);
    CHECK(sdp_bf16_from_float(INFINITY) == 0x7f80);
    CHECK(isnan(sdp_bf16_to_float(sdp_bf16_from_float(sdp_float_from_bits(0x7f800001)))));
    CHECK(sdp_fp16_to_float(0x3c00) == 1.0f);
    CHECK(sdp_fp16_to_float(0xc000) == -2.0f);
    CHECK(sdp_fp16_to_float(0x7bff) == 65504.0f);
    CHECK(sdp_fp16_to_float(0x0001) == 0x1p-24f);
    CHECK(sdp_fp16_to_float(0x83ff) == -0x1.ff8p-15f);
    CHECK(sdp_fp16_to_float(0x0400) == 0x1p-14f);
    CHECK(signbit(sdp_fp16_to_float(0x8000)) && sdp_fp16_to_float(0x8000) == 0.0f);
    CHECK(isinf(sdp_fp16_to_float(0x7c00)) && isnan(sdp_fp16_to_float(0x7e00)));
}

static void check_parse(const char *text, bool valid, size_t wanted)
{
    size_t bytes = 12345;
    bool rc = sdp_parse_bytes(text, &bytes);

    if (rc != valid || bytes != (valid ? wanted : 12345))
        SDP_TEST_FAIL("\"%s\": %s, %zu", text, rc ? "accepted" : "refused", bytes);
    sdp_test_checks++;
}

static void test_sizes(void)
{
    char text[32];
    size_t product = 1;

    check_parse("1000", true, 1000);
    check_parse("0", true, 0);
    check_parse("22GiB", true, (size_t)22 << 30);
    check_parse("32 MiB", true, (size_t)32 << 20);
    check_parse("1.5GB", true, 1500000000);
    check_parse("0.5KiB", true, 512);
    check_parse("64kib", true, 65536);
    check_parse("18446744073709551615", true, SIZE_MAX);
    check_parse("18446744073709551616", false, 0);
    check_parse("16777216TiB", false, 0);
    check_parse("", false, 0);
    check_parse("GiB", false, 0);
    check_parse("-1", false, 0);
    check_parse("1.", false, 0);
    check_parse("0x10", false, 0);
    check_parse("inf", false, 0);
    check_parse("22G", false, 0);
    check_parse("22GiB ", false, 0);
    check_parse("1e9", false, 0);
    CHECK_STR(sdp_format_bytes(0, text), "0 B");
    CHECK_STR(sdp_format_bytes(1023, text), "1023 B");
    CHECK_STR(sdp_format_bytes(1024, text), "1.00 KiB");
    CHECK_STR(sdp_format_bytes(((size_t)1 << 20) - 1, text), "1.00 MiB");
    CHECK_STR(sdp_format_bytes((size_t)5 << 28, text), "1.25 GiB");
    CHECK_STR(sdp_format_bytes(SIZE_MAX, text), "16.00 EiB");
    CHECK(!sdp_size_mul(SIZE_MAX, 2, &product) && product == 1);
    CHECK(sdp_size_mul(SIZE_MAX, 1, &product) && product == SIZE_MAX);
    CHECK(sdp_size_mul(0, SIZE_MAX, &product) && product == 0);
    CHECK_EQ(sdp_round_up(0, 128), 0);
    CHECK_EQ(sdp_round_up(129, 128), 256);
}

static void test_random(void)
{
    const size_t n = 200000;
    double sum = 0.0, squares = 0.0, uniform = 0.0, lag = 0.0;
    float last = 0.0f;

    CHECK(sdp_random_u64(1, 2) == sdp_random_u64(1, 2));
    CHECK(sdp_random_u64(1, 2) != sdp_random_u64(2, 1));
    CHECK(sdp_random_u64(1, 0) != sdp_random_u64(1, 1));
    CHECK(sdp_random_key(0, "a") != sdp_random_key(0, "b"));
    CHECK(sdp_random_key(0, "a") != sdp_random_key(1, "a"));
    CHECK(sdp_random_key(3, "ab") == sdp_random_key(3, "ab"));
    for (size_t i = 0; i < n; i++) {
        float x = sdp_random_normal(42, i);
        double u = sdp_random_uniform(43, i);

        if (!(u >= 0.0 && u < 1.0) || !isfinite(x))
            SDP_TEST_FAIL("number %zu is out of range: %g %g", i, u, (double)x);
        sum += x;
        squares += (double)x * x;
        lag += (double)x * last;
        uniform += u;
        last = x;
    }
    /* Five standard deviations of each mean. */
    CHECK_NEAR(sum / n, 0.0, 5.0 / sqrt((double)n));
    CHECK_NEAR(squares / n, 1.0, 5.0 * sqrt(2.0 / n));
    CHECK_NEAR(lag / n, 0.0, 5.0 / sqrt((double)n));
    CHECK_NEAR(uniform / n, 0.5, 5.0 / sqrt(12.0 * n));
}

static void check_path(char *path, const char *wanted)
{
    CHECK_STR(path, wanted);
    free(path);
}

static void test_paths(void)
{
    check_path(sdp_path_join("a", "b"), "a/b");
    check_path(sdp_path_join("a/", "b"), "a/b");
    check_path(sdp_path_join("/", "b"), "/b");
    check_path(sdp_path_join(".", "b"), "b");
    check_path(sdp_path_join("", "b"), "b");
    check_path(sdp_path_join("a", "/b"), "/b");
    check_path(sdp_path_folder("a/b"), "a");
    check_path(sdp_path_folder("b"), ".");
    check_path(sdp_path_folder("/b"), "/");
    check_path(sdp_path_folder("/"), "/");
    check_path(sdp_path_folder("a/b/"), "a");
    check_path(sdp_path_folder("a//b"), "a");
    check_path(sdp_path_folder(""), ".");
    check_path(sdp_xprintf("%d-%s", 3, "x"), "3-x");
    check_path(sdp_xstrdup(""), "");
}

static void test_write_and_read(const char *folder)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_map map = {NULL, 99};
    char *path = sdp_path_join(folder, "deep/er/file"), *text = NULL;
    char *deep = sdp_path_folder(path), *empty = sdp_path_join(folder, "empty");
    size_t size = 0;
    struct stat info;
    mode_t mask = umask(022);

    umask(mask);
    CHECK_EQ(sdp_write_file(path, "x", 1, &err), SDP_INPUT);
    CHECK_STR(err.text, "cannot create: no such file or folder");
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_make_dirs(deep, &err), &err);
    REQUIRE_OK(sdp_make_dirs(deep, &err), &err);
    CHECK(sdp_path_is_folder(deep) && sdp_path_exists(deep) && !sdp_path_exists(path));
    REQUIRE_OK(sdp_write_file(path, "old", 3, &err), &err);
    REQUIRE_OK(sdp_write_file(path, "newer", 5, &err), &err);
    REQUIRE(stat(path, &info) == 0);
    CHECK_EQ(info.st_mode & 0777, 0666 & ~mask);
    REQUIRE_OK(sdp_read_text(path, &text, &size, &err), &err);
    CHECK_STR(text, "newer");
    CHECK_EQ(size, 5);
    REQUIRE_OK(sdp_map_open(path, &map, &err), &err);
    CHECK(map.size == 5 && memcmp(map.data, "newer", 5) == 0);
    sdp_map_close(&map);
    CHECK(map.data == NULL && map.size == 0);
    sdp_map_close(&map);
    REQUIRE_OK(sdp_write_file(empty, NULL, 0, &err), &err);
    map.size = 99;
    REQUIRE_OK(sdp_map_open(empty, &map, &err), &err);
    CHECK(map.data == NULL && map.size == 0);
    free(text);
    REQUIRE_OK(sdp_read_text(empty, &text, &size, &err), &err);
    CHECK_STR(text, "");
    CHECK_EQ(size, 0);
    /* No temporary file is left. */
    CHECK(unlink(path) == 0 && rmdir(deep) == 0 && unlink(empty) == 0);
    free(text);
    free(empty);
    free(deep);
    free(path);
}

static void test_file_errors(const char *folder)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_map map = {NULL, 7};
    char *missing = sdp_path_join(folder, "missing"),
         *pipe_path = sdp_path_join(folder, "pipe");
    char *below = sdp_path_join(folder, "deep/file/below"), *text = NULL;
    char *file = sdp_path_join(folder, "deep/file");

    CHECK_EQ(sdp_map_open(folder, &map, &err), SDP_INPUT);
    CHECK_STR(err.text, "is a folder; a file is needed");
    CHECK_STR(err.file, folder);
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_map_open(missing, &map, &err), SDP_INPUT);
    CHECK_STR(err.text, "cannot open: no such file or folder");
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_read_text(folder, &text, NULL, &err), SDP_INPUT);
    CHECK_STR(err.text, "is a folder; a file is needed");
    CHECK(map.size == 7 && text == NULL);
    REQUIRE(mkfifo(pipe_path, 0600) == 0);
    int fd = open(pipe_path, O_RDWR);
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_map_open(pipe_path, &map, &err), SDP_INPUT);
    CHECK_STR(err.text, "is a device or a pipe; a regular file is needed");
    close(fd);
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_write_file(folder, "x", 1, &err), SDP_INPUT);
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_write_file(file, "x", 1, &err), &err);
    CHECK_EQ(sdp_make_dirs(below, &err), SDP_INPUT);
    CHECK_STR(err.file, file);
    CHECK_CONTAINS(err.text, "is in the way of a folder");
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_make_dirs("", &err), SDP_INPUT);
    unlink(pipe_path);
    unlink(file);
    free(missing);
    free(pipe_path);
    free(below);
    free(file);
}

int main(void)
{
    const char *root = getenv("TMPDIR");
    char *folder = sdp_path_join(root && *root ? root : "/tmp", "sdp-test-base-XXXXXX");
    char *deep;

    REQUIRE(mkdtemp(folder) != NULL);
    deep = sdp_path_join(folder, "deep");
    test_status();
    test_error();
    test_log();
    test_nearest();
    test_master();
    test_dtypes();
    test_sizes();
    test_random();
    test_paths();
    test_write_and_read(folder);
    test_file_errors(folder);
    CHECK(rmdir(deep) == 0);
    CHECK(rmdir(folder) == 0);
    free(deep);
    free(folder);
    return sdp_test_end();
}
