/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* model/data: shuffling, synthetic data, token files of all kinds, texts, and what is
 * refused. */
#include "graph/base/log.h"
#include "model/data/dataset.h"
#include "model/data/npy.h"
#include "model/data/shuffle.h"
#include "tests/model/temp_folder.h"

#include <pthread.h>

/* -- shuffling ---------------------------------------------------------------- */

static void check_permutation(uint64_t seed, uint64_t epoch, uint64_t count)
{
    uint8_t *seen = sdp_xcalloc(count, 1);
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t to = sdp_shuffle(seed, epoch, count, i);

        if (to >= count || seen[to]++)
            wrong++;
    }
    CHECK_EQ(wrong, 0);
    free(seen);
}

static void test_permutation(void)
{
    static const uint64_t counts[] = {255,  256,  257,   1000,  1023,
                                      1024, 1025, 65536, 100003};

    for (uint64_t count = 1; count <= 70; count++)
        for (uint64_t seed = 0; seed < 3; seed++)
            check_permutation(seed, seed + count, count);
    for (size_t i = 0; i < SDP_COUNT_OF(counts); i++)
        check_permutation(42, i, counts[i]);
    /* Sets too large to list: elements of a run stay apart and in range. */
    for (uint64_t i = 1; i < 1000; i++) {
        uint64_t count = ((uint64_t)1 << 62) - 3;
        uint64_t a = sdp_shuffle(1, 2, count, i), b = sdp_shuffle(1, 2, count, i - 1);

        CHECK(a < count && b < count && a != b);
    }
}

/* Chi-square of how often each place gets each element, over seeds and over epochs, per
 * degree of freedom: about 1. */
static double spread(uint64_t n)
{
    uint64_t table[40][40] = {{0}};
    double chi = 0.0;

    for (uint64_t t = 0; t < 500 * n; t++)
        for (uint64_t i = 0; i < n; i++)
            table[i][sdp_shuffle(t % 2 ? t : 7, t % 2 ? 0 : t, n, i)]++;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++) {
            double off = (double)table[i][j] - 500.0;
            chi += off * off / 500.0;
        }
    return chi / (double)((n - 1) * (n - 1));
}

/* How often a neighbour stays a neighbour, per set: (n - 1) / n if chance alone does it.
 */
static double together(uint64_t n)
{
    uint64_t count = 0;

    for (uint64_t t = 0; t < 500 * n; t++)
        for (uint64_t i = 1; i < n; i++)
            count += sdp_shuffle(t, 3, n, i) == sdp_shuffle(t, 3, n, i - 1) + 1;
    return (double)count / (double)(500 * n);
}

static void test_uniform(void)
{
    static const uint64_t counts[] = {2, 3, 5, 12, 40};

    for (size_t c = 0; c < SDP_COUNT_OF(counts); c++) {
        uint64_t n = counts[c];

        CHECK_NEAR(spread(n), 1.0, n < 5 ? 4.0 : 0.6); /* few degrees vary more */
        CHECK_NEAR(together(n), (double)(n - 1) / (double)n, 0.1);
    }
}

/* -- jobs ----------------------------------------------------------------------- */

static struct sdp_job make_job(enum sdp_data_format format, size_t length)
{
    struct sdp_job job;

    memset(&job, 0, sizeof job);
    job.path = "job.json";
    job.data.format = format;
    job.data.sequence_length = length;
    job.data.token_dtype = SDP_UINT16;
    job.train.tokens_per_step = 4 * length;
    return job;
}

static struct sdp_dataset *open_files(struct sdp_job *job, char **paths, size_t count,
                                      size_t vocabulary)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data = NULL;

    job->data.train = paths;
    job->data.train_count = count;
    REQUIRE_OK(sdp_dataset_open(job, false, vocabulary, &data, &err), &err);
    return data;
}

/* Sequence `index` must be ids[first], ids[first + 1], ... */
static void check_sequence(const struct sdp_dataset *data, uint64_t index, size_t length,
                           const int32_t *ids, size_t first)
{
    int32_t got[64], targets[64], positions[64];

    REQUIRE(length <= 64);
    CHECK_EQ(sdp_dataset_sequence(data, index, got, targets, positions, NULL), length);
    for (size_t i = 0; i < length; i++) {
        CHECK_EQ(got[i], ids[first + i]);
        CHECK_EQ(targets[i], ids[first + i + 1]);
        CHECK_EQ(positions[i], i);
    }
}

/* -- synthetic -------------------------------------------------------------------- */

static void test_synthetic(void)
{
    struct sdp_job job = make_job(SDP_DATA_SYNTHETIC, 16);
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data = NULL, *other = NULL;
    int32_t a[16], b[16], targets[16], positions[16];
    size_t counts[10] = {0}, same = 0;

    REQUIRE_OK(sdp_dataset_open(&job, false, 10, &data, &err), &err);
    CHECK(sdp_dataset_sequences(data) == SIZE_MAX);
    for (uint64_t i = 0; i < 2000; i++) {
        CHECK_EQ(sdp_dataset_sequence(data, i * 1000003, a, targets, positions, NULL), 16);
        for (size_t t = 0; t < 16; t++) {
            REQUIRE(a[t] >= 0 && a[t] < 10 && targets[t] >= 0 && targets[t] < 10);
            counts[a[t]]++;
            CHECK_EQ(positions[t], t);
            if (t > 0)
                CHECK_EQ(targets[t - 1], a[t]);
        }
    }
    for (size_t i = 0; i < 10; i++)
        CHECK_NEAR((double)counts[i], 3200.0, 250.0);
    /* By seed and index only. */
    sdp_dataset_sequence(data, 5, a, targets, positions, NULL);
    REQUIRE_OK(sdp_dataset_open(&job, false, 10, &other, &err), &err);
    sdp_dataset_sequence(other, 99, b, targets, positions, NULL);
    CHECK(memcmp(a, b, sizeof a) != 0);
    sdp_dataset_sequence(other, 5, b, targets, positions, NULL);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK_STR(sdp_dataset_fingerprint(data), sdp_dataset_fingerprint(other));
    sdp_dataset_close(other);
    job.data.seed = 1;
    REQUIRE_OK(sdp_dataset_open(&job, false, 10, &other, &err), &err);
    sdp_dataset_sequence(other, 5, b, targets, positions, NULL);
    CHECK(memcmp(a, b, sizeof a) != 0);
    sdp_dataset_close(other);
    /* The same batch every step: four sequences. */
    job.data.repeat_batch = true;
    REQUIRE_OK(sdp_dataset_open(&job, false, 10, &other, &err), &err);
    CHECK(strcmp(sdp_dataset_fingerprint(data), sdp_dataset_fingerprint(other)) != 0);
    for (uint64_t i = 0; i < 4; i++) {
        sdp_dataset_sequence(other, i, a, targets, positions, NULL);
        sdp_dataset_sequence(other, i + UINT64_C(49380), b, targets, positions, NULL);
        CHECK(memcmp(a, b, sizeof a) == 0);
        sdp_dataset_sequence(other, (i + 1) % 4, b, targets, positions, NULL);
        same += memcmp(a, b, sizeof a) == 0;
    }
    CHECK_EQ(same, 0);
    sdp_dataset_close(other);
    sdp_dataset_close(data);
    /* The largest vocabulary. */
    REQUIRE_OK(sdp_dataset_open(&job, false, INT32_MAX, &data, &err), &err);
    for (uint64_t i = 0; i < 4; i++) {
        sdp_dataset_sequence(data, i, a, targets, positions, NULL);
        for (size_t t = 0; t < 16; t++)
            CHECK(a[t] >= 0 && a[t] < INT32_MAX);
    }
    sdp_dataset_close(data);
    sdp_dataset_close(NULL);
}

/* -- token files -------------------------------------------------------------------- */

/* Two files: every id but the first of a file is a target once, tails are dropped. */
static void test_raw(void)
{
    static const uint16_t first[] = {0, 1, 32767, 32768, 65535, 5, 6, 7, 8, 9, 10, 11};
    static const uint16_t second[] = {100, 101, 102, 103, 104, 105, 106};
    char *paths[] = {temp_file("first.bin", first, sizeof first),
                     temp_file("second.bin", second, sizeof second)};
    struct sdp_job job = make_job(SDP_DATA_TOKENS, 3);
    struct sdp_dataset *data = open_files(&job, paths, 2, 65536);
    int32_t one[12], two[7];

    for (size_t i = 0; i < 12; i++)
        one[i] = first[i]; /* 32768 and 65535 must not become negative */
    for (size_t i = 0; i < 7; i++)
        two[i] = second[i];
    CHECK_EQ(sdp_dataset_sequences(data), 5); /* (12-1)/3 = 3, (7-1)/3 = 2 */
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        for (size_t s = 0; s < 3; s++)
            check_sequence(data, epoch * 5 + s, 3, one, 3 * s);
        for (size_t s = 0; s < 2; s++)
            check_sequence(data, epoch * 5 + 3 + s, 3, two, 3 * s);
    }
    sdp_dataset_close(data);
    /* The files' names and sizes are known again wherever they lie; their order counts.
     */
    {
        char *swapped[] = {paths[1], paths[0]}, *moved[2];
        struct sdp_error err = SDP_ERROR_INIT;
        char *folder = temp_path("elsewhere"), text[128];

        REQUIRE_OK(sdp_make_dirs(folder, &err), &err);
        moved[0] = temp_file("elsewhere/first.bin", first, sizeof first);
        moved[1] = temp_file("elsewhere/second.bin", second, sizeof second);
        data = open_files(&job, paths, 2, 65536);
        snprintf(text, sizeof text, "%s", sdp_dataset_fingerprint(data));
        CHECK_CONTAINS(text, "tokens, 2 files, sequence length 3, in order, ");
        sdp_dataset_close(data);
        data = open_files(&job, moved, 2, 65536);
        CHECK_STR(sdp_dataset_fingerprint(data), text);
        sdp_dataset_close(data);
        data = open_files(&job, swapped, 2, 65536);
        CHECK(strcmp(sdp_dataset_fingerprint(data), text) != 0);
        sdp_dataset_close(data);
        free(moved[0]);
        free(moved[1]);
        free(folder);
    }
    free(paths[0]);
    free(paths[1]);
}

static void test_uint32(void)
{
    static const uint32_t ids[] = {0, 65535, 65536, 128255, 1, 2147483646};
    static const int32_t wanted[] = {0, 65535, 65536, 128255, 1, 2147483646};
    char *path = temp_file("wide.bin", ids, sizeof ids);
    struct sdp_job job = make_job(SDP_DATA_TOKENS, 5);
    struct sdp_dataset *data;

    job.data.token_dtype = SDP_UINT32;
    data = open_files(&job, &path, 1, INT32_MAX);
    CHECK_EQ(sdp_dataset_sequences(data), 1);
    check_sequence(data, 0, 5, wanted, 0);
    check_sequence(data, 1000000, 5, wanted, 0);
    sdp_dataset_close(data);
    free(path);
}

/* Each epoch has every sequence once, in an order of its own. */
static void test_shuffled(void)
{
    enum { LENGTH = 4, SEQUENCES = 101 };
    uint16_t tokens[LENGTH * SEQUENCES + 1];
    struct sdp_job job = make_job(SDP_DATA_TOKENS, LENGTH);
    int32_t ids[LENGTH], targets[LENGTH], positions[LENGTH];
    size_t moved = 0, changed = 0;
    uint64_t orders[3][SEQUENCES];
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data;
    char *path;

    for (size_t i = 0; i < SDP_COUNT_OF(tokens); i++)
        tokens[i] = (uint16_t)i;
    path = temp_file("shuffled.bin", tokens, sizeof tokens);
    job.data.shuffle = true;
    data = open_files(&job, &path, 1, 1000);
    for (uint64_t epoch = 3; epoch-- > 0;) { /* backwards: the order of asking is free */
        uint8_t seen[SEQUENCES] = {0};

        for (uint64_t i = SEQUENCES; i-- > 0;) {
            sdp_dataset_sequence(data, epoch * SEQUENCES + i, ids, targets, positions, NULL);
            CHECK(ids[0] % LENGTH == 0 && ids[0] / LENGTH < SEQUENCES);
            seen[ids[0] / LENGTH]++;
            orders[epoch][i] = (uint64_t)ids[0] / LENGTH;
            moved += orders[epoch][i] != i;
        }
        for (size_t s = 0; s < SEQUENCES; s++)
            CHECK_EQ(seen[s], 1);
    }
    CHECK(moved > 280);
    for (size_t i = 0; i < SEQUENCES; i++)
        changed += (orders[0][i] != orders[1][i]) + (orders[1][i] != orders[2][i]);
    CHECK(changed > 180);
    sdp_dataset_close(data);
    /* Validation is never shuffled. */
    job.data.validation = &path;
    job.data.validation_count = 1;
    REQUIRE_OK(sdp_dataset_open(&job, true, 1000, &data, &err), &err);
    for (uint64_t i = 0; i < SEQUENCES; i++) {
        sdp_dataset_sequence(data, i, ids, targets, positions, NULL);
        CHECK_EQ(ids[0], i * LENGTH);
    }
    sdp_dataset_close(data);
    free(path);
}

static void test_text(void)
{
    static const char text[] = "caf\xc3\xa9\n\xff\x01 and more";
    struct sdp_job job = make_job(SDP_DATA_TEXT, 4);
    char *path = temp_file("a.txt", text, sizeof text - 1);
    struct sdp_dataset *data = open_files(&job, &path, 1, 256);
    int32_t ids[sizeof text];

    for (size_t i = 0; i < sizeof text; i++)
        ids[i] = (unsigned char)text[i];
    CHECK_EQ(sdp_dataset_sequences(data), 4);
    for (size_t s = 0; s < 4; s++)
        check_sequence(data, s, 4, ids, 4 * s);
    sdp_dataset_close(data);
    free(path);
}

/* -- .npy ------------------------------------------------------------------------- */

/* A .npy file. [new] path. */
static char *make_npy(const char *name, unsigned major, unsigned minor,
                      const char *header, size_t header_size, const void *data,
                      size_t size)
{
    size_t prefix = major == 1 ? 10 : 12;
    uint8_t *bytes = sdp_xcalloc(prefix + header_size + size, 1);
    char *path;

    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (uint8_t)major;
    bytes[7] = (uint8_t)minor;
    for (size_t i = 8; i < prefix; i++)
        bytes[i] = (uint8_t)(header_size >> 8 * (i - 8));
    memcpy(bytes + prefix, header, header_size);
    memcpy(bytes + prefix + header_size, data, size);
    path = temp_file(name, bytes, prefix + header_size + size);
    free(bytes);
    return path;
}

static void check_npy(unsigned major, const char *header, const void *elements,
                      size_t size, const int32_t *ids, size_t count)
{
    struct sdp_job job = make_job(SDP_DATA_TOKENS, count - 1);
    char *path = make_npy("tokens.NPY", major, 0, header, strlen(header), elements, size);
    struct sdp_dataset *data = open_files(&job, &path, 1, 200000);

    check_sequence(data, 0, count - 1, ids, 0);
    sdp_dataset_close(data);
    free(path);
}

static void test_npy(void)
{
    static const int32_t ids[] = {1, 40000, 65535, 3}, wide[] = {1, 70000, 199999, 0};
    static const uint16_t u2[] = {1, 40000, 65535, 3};
    static const uint32_t u4[] = {1, 70000, 199999, 0};
    static const int64_t i8[] = {1, 70000, 199999, 0};

    check_npy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }   \n", u2,
              sizeof u2, ids, 4);
    check_npy(1, "{'descr': '<u4', 'fortran_order': False, 'shape': (4,), }", u4,
              sizeof u4, wide, 4);
    check_npy(2, "{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }\n", u4,
              sizeof u4, wide, 4);
    check_npy(2, "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }\n", i8,
              sizeof i8, wide, 4);
    /* Another order, other quotes, no blanks: the dictionary is the same. A header of odd
     * length leaves the elements unaligned. */
    check_npy(1, "{\"shape\":(4,),\"fortran_order\":False,\"descr\":\"<i8\"}", i8,
              sizeof i8, wide, 4);
    check_npy(1, "{'descr':'<u4','fortran_order':False,'shape':(4,)} ", u4, sizeof u4,
              wide, 4);
}

static void check_refused(struct sdp_job *job, char *path, size_t vocabulary,
                          const char *message)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data = NULL;

    job->data.train = &path;
    job->data.train_count = 1;
    CHECK_EQ(sdp_dataset_open(job, false, vocabulary, &data, &err), SDP_INPUT);
    CHECK(data == NULL);
    CHECK_STR(err.file, path);
    CHECK_CONTAINS(err.text, message);
    free(path);
}

#define D(descr, order, shape)                                                           \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

static const struct {
    const char *header;
    const char *message;
} hostile[] = {
    {"", "expected a dictionary"},
    {"[]", "expected a dictionary"},
    {"{}", "expected the keys 'descr', 'fortran_order' and 'shape'"},
    {"{'descr': '<u2', 'shape': (4,), }", "expected the keys"},
    {"{descr: '<u2'}", "expected a text in quotes"},
    {"{'descr' '<u2'}", "expected a colon behind the key"},
    {"{'descr': '<u2' 'shape': (4,)}", "expected a comma or a closing brace"},
    {"{'descr': '<u2', 'descr': '<u2'}", "expected each key once"},
    {"{'descr': '<u2", "expected a closing quote"},
    {"{'descr': '<u\\x32'}", "expected a short plain text in quotes"},
    {"{'descr': 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'}",
     "expected a short plain text"},
    {"{'other': 3}", "expected no keys but"},
    {D("[('a', '<u2')]", "False", "(4,)"), "expected a text in quotes"},
    {D("'<u2'", "0", "(4,)"), "expected True or False for 'fortran_order'"},
    {D("'<u2'", "False", "4"), "expected a shape in parentheses"},
    {D("'<u2'", "False", "(4)"), "expected a comma in the shape"},
    {D("'<u2'", "False", "(-4,)"), "expected a number in the shape"},
    {D("'<u2'", "False", "(4L,)"), "expected a comma in the shape"},
    {D("'<u2'", "False", "(18446744073709551616,)"), "expected a smaller number"},
    {D("'<u2'", "False", "(1,1,1,1,1,1,1,1,4)"), "expected fewer dimensions"},
    {D("'<u2'", "False", "(4,)") "x", "expected nothing behind the dictionary"},
    {D("'>u2'", "False", "(4,)"),
     "elements of type '>u2'; must be '<u2', '<u4', '<i4' or '<i8'"},
    {D("'<f4'", "False", "(4,)"), "elements of type '<f4'"},
    {D("'|O'", "False", "(4,)"), "elements of type '|O'"},
    {D("'<u2'", "True", "(4,)"), "is in Fortran order"},
    {D("'<u2'", "False", "(2, 2)"), "has 2 dimensions; must have 1"},
    {D("'<u2'", "False", "()"), "has 0 dimensions; must have 1"},
    {D("'<u2'", "False", "(5,)"), "should hold 5 elements of 2 bytes, but has 8 bytes"},
    {D("'<u2'", "False", "(3,)"), "should hold 3 elements of 2 bytes, but has 8 bytes"},
    {D("'<u4'", "False", "(4611686018427387906,)"), "should hold 4611686018427387906"},
};

static void test_npy_refused(void)
{
    static const uint16_t elements[] = {1, 2, 3, 4};
    static const char good[] = D("'<u2'", "False", "(4,)");
    struct sdp_job job = make_job(SDP_DATA_TOKENS, 3);

    for (size_t i = 0; i < SDP_COUNT_OF(hostile); i++)
        check_refused(&job,
                      make_npy("bad.npy", 1, 0, hostile[i].header,
                               strlen(hostile[i].header), elements, sizeof elements),
                      10, hostile[i].message);
    check_refused(&job, make_npy("bad.npy", 3, 0, good, strlen(good), elements, 8), 10,
                  "is a .npy file of version 3.0; must be 1.0 or 2.0");
    check_refused(&job, make_npy("bad.npy", 1, 1, good, strlen(good), elements, 8), 10,
                  "is a .npy file of version 1.1");
    check_refused(&job, temp_file("bad.npy", "abcdefgh", 8), 10,
                  "does not begin as a .npy");
    check_refused(&job, temp_file("bad.npy", "\x93NUM", 4), 10,
                  "does not begin as a .npy");
    check_refused(&job, temp_file("bad.npy", "\x93NUMPY\x01", 7), 10,
                  "ends within its header");
    check_refused(&job, temp_file("bad.npy", "\x93NUMPY\x01\0\x01", 9), 10,
                  "ends within its header");
    check_refused(&job, temp_file("bad.npy", "\x93NUMPY\x02\0\x01\0\0", 11), 10,
                  "ends within its header");
    check_refused(&job, temp_file("bad.npy", "\x93NUMPY\x01\0\x05\0{}", 12), 10,
                  "should have a header of 5 bytes, but has only 12 bytes in all");
    check_refused(&job, temp_file("bad.npy", "\x93NUMPY\x02\0\xff\xff\xff\xff", 12), 10,
                  "has a header of 4294967295 bytes; at most 1048576 are read");
    check_refused(&job, make_npy("bad.bin", 1, 0, good, strlen(good), elements, 8), 10,
                  "is a .npy file by its content; its name must end in .npy");
}

/* No cut and no flipped bit of a header crashes the reader or is read past the end. */
static void test_npy_damage(void)
{
    static const uint16_t elements[] = {1, 2, 3, 4};
    static const char good[] = D("'<u2'", "False", "(4,)");
    uint8_t bytes[128] = {0};
    size_t size = 10 + strlen(good) + sizeof elements, accepted = 0;

    memcpy(bytes, "\x93NUMPY\x01", 8);
    bytes[8] = (uint8_t)strlen(good);
    memcpy(bytes + 10, good, strlen(good));
    memcpy(bytes + 10 + strlen(good), elements, sizeof elements);
    for (size_t i = 0; i < size; i++)
        for (int bit = -1; bit < 8; bit++) {
            size_t length = bit < 0 ? i : size;
            uint8_t *copy = malloc(length ? length : 1); /* of the exact size: for ASan */
            struct sdp_map map = {copy, length};
            struct sdp_npy npy;

            REQUIRE(copy != NULL);
            memcpy(copy, bytes, length);
            if (bit >= 0)
                copy[i] = (uint8_t)(copy[i] ^ 1u << bit);
            if (sdp_npy_parse(&map, "x", &npy, NULL) == SDP_OK) {
                accepted++;
                CHECK(npy.data + npy.count * sdp_dtype_size(npy.dtype) == copy + length);
            }
            free(copy);
        }
    CHECK(accepted >= sizeof elements * 8); /* flips within the elements */
}

/* -- what is refused ----------------------------------------------------------------- */

static void test_range(void)
{
    static const uint16_t u2[] = {1, 2, 3, 50000, 4};
    static const uint32_t u4[] = {1, 2, 3, 4294967295u, 4};
    static const int32_t i4[] = {1, 2, -7, 3, 4};
    static const int64_t i8[] = {1, 4294967296, 3, 4, 5}, negative[] = {0, 0, 0, 0, -1};
    uint32_t *many = sdp_xcalloc(200000, sizeof *many);
    struct sdp_job job = make_job(SDP_DATA_TOKENS, 3);
    const char *npy = D("'<i4'", "False", "(5,)"), *npy8 = D("'<i8'", "False", "(5,)");

    check_refused(&job, temp_file("r.bin", u2, sizeof u2), 50000,
                  "element 3 is 50000; the model's vocabulary has the ids 0 to 49999");
    check_refused(&job, make_npy("r.npy", 1, 0, npy, strlen(npy), i4, sizeof i4), 100,
                  "element 2 is -7; the model's vocabulary has the ids 0 to 99");
    check_refused(&job, make_npy("r.npy", 1, 0, npy8, strlen(npy8), i8, sizeof i8), 100,
                  "element 1 is 4294967296; ");
    check_refused(&job,
                  make_npy("r.npy", 1, 0, npy8, strlen(npy8), negative, sizeof negative),
                  100, "element 4 is -1; ");
    job.data.token_dtype = SDP_UINT32;
    check_refused(&job, temp_file("r.bin", u4, sizeof u4), INT32_MAX,
                  "element 3 is 4294967295; ");
    many[199999] = 5;
    check_refused(&job, temp_file("r.bin", many, 200000 * sizeof *many), 5,
                  "element 199999 is 5; the model's vocabulary has the ids 0 to 4");
    free(many);
}

static void check_job_refused(struct sdp_job *job, bool validation, size_t vocabulary,
                              const char *pointer, const char *message)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_dataset *data = NULL;

    CHECK_EQ(sdp_dataset_open(job, validation, vocabulary, &data, &err), SDP_INPUT);
    CHECK(data == NULL);
    CHECK_STR(err.pointer, pointer);
    CHECK_CONTAINS(err.text, message);
}

static void test_refused(void)
{
    struct sdp_job job = make_job(SDP_DATA_TOKENS, 3);
    char *folder = temp_path("."), *path = temp_file("t.txt", "abcd", 4);

    check_refused(&job, temp_file("e.bin", "", 0), 10,
                  "is empty; a sequence of 3 needs 4 ids");
    check_refused(&job, temp_file("e.bin", "\0\0\0\0\0\0", 6), 10,
                  "has 3 ids; a sequence of 3 needs 4, one more for the last target");
    check_refused(&job, temp_file("e.bin", "\0\0\0\0\0\0\0\0\0", 9), 10,
                  "has 9 bytes, which is no multiple of the 2 bytes of a uint16");
    check_refused(&job, temp_path("absent.bin"), 10, "no such file");
    check_refused(&job, folder, 10, "is a folder");
    job.data.train_count = 0;
    check_job_refused(&job, false, 10, "", "the job names no training files");
    check_job_refused(&job, true, 10, "", "the job names no validation files");
    check_job_refused(&job, false, 0, "", "a vocabulary of 0 ids cannot be used");
    check_job_refused(&job, false, (size_t)INT32_MAX + 1, "", "cannot be used");
    job.data.format = SDP_DATA_TEXT;
    check_refused(&job, temp_file("e.txt", "", 0), 256,
                  "is empty; a sequence of 3 needs 4 bytes");
    check_refused(&job, temp_file("e.txt", "abc", 3), 256,
                  "has 3 bytes; a sequence of 3 needs 4");
    job.data.train = &path;
    job.data.train_count = 1;
    check_job_refused(&job, false, 255, "/data/format",
                      "is \"text\", which makes 256 ids, one for each byte; the model's "
                      "vocabulary has only 255");
    free(path);
}

/* -- threads ------------------------------------------------------------------------ */

struct reader {
    const struct sdp_dataset *data;
    uint64_t sum, from;
};

static void *read_all(void *arg)
{
    struct reader *reader = arg;
    int32_t ids[4], targets[4], positions[4];

    for (uint64_t i = 0; i < 20000; i++) {
        sdp_dataset_sequence(reader->data, (reader->from + i) % 20000, ids, targets,
                             positions, NULL);
        reader->sum += (uint64_t)ids[0] * (uint64_t)(targets[3] + 1);
    }
    return NULL;
}

static void test_threads(void)
{
    uint16_t tokens[4001];
    struct sdp_job job = make_job(SDP_DATA_TOKENS, 4);
    struct reader readers[4];
    pthread_t ids[4];
    char *path;

    for (size_t i = 0; i < 4001; i++)
        tokens[i] = (uint16_t)sdp_random_u64(1, i);
    path = temp_file("threads.bin", tokens, sizeof tokens);
    job.data.shuffle = true;
    readers[0].data = open_files(&job, &path, 1, 65536);
    for (size_t t = 0; t < 4; t++) {
        readers[t] = (struct reader){readers[0].data, 0, 5000 * t};
        REQUIRE(pthread_create(&ids[t], NULL, read_all, &readers[t]) == 0);
    }
    for (size_t t = 0; t < 4; t++)
        pthread_join(ids[t], NULL);
    for (size_t t = 1; t < 4; t++)
        CHECK(readers[t].sum == readers[0].sum);
    sdp_dataset_close((struct sdp_dataset *)(uintptr_t)readers[0].data);
    free(path);
}

int main(void)
{
    temp_begin();
    sdp_log_set_level(SDP_LOG_WARN); /* tails that are dropped are told as information */
    test_permutation();
    test_uniform();
    test_synthetic();
    test_raw();
    test_uint32();
    test_shuffled();
    test_text();
    test_npy();
    test_npy_refused();
    test_npy_damage();
    test_range();
    test_refused();
    test_threads();
    temp_end();
    return sdp_test_end();
}
