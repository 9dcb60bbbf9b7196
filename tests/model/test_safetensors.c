/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* model/checkpoint/safetensors: what is read and written, and every way in which a file
 * or an index can be wrong, each with its message. */
#include "model/checkpoint/safetensors.h"
#include "tests/model/temp_folder.h"

/* -- files made by hand ----------------------------------------------------- */

/* A file of a header and `data_size` bytes 0, 1, 2, ... [new] path. */
static char *make_file(const char *name, const char *header, size_t header_size,
                       size_t data_size)
{
    size_t size = 8 + header_size + data_size;
    uint8_t *bytes = sdp_xcalloc(size, 1);
    uint64_t length = header_size;
    char *path;

    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, header_size);
    for (size_t i = 0; i < data_size; i++)
        bytes[8 + header_size + i] = (uint8_t)i;
    path = temp_file(name, bytes, size);
    free(bytes);
    return path;
}

static void check_refused(const char *path, const char *message)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors *file = NULL;

    CHECK_EQ(sdp_safetensors_open(path, &file, &err), SDP_INPUT);
    CHECK(file == NULL);
    CHECK_STR(err.file, path);
    CHECK_CONTAINS(err.text, message);
}

#define T(dtype, shape, offsets)                                                         \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data_size;
    const char *message;
} hostile[] = {
    {"", 0, "a header that is no JSON object"},
    {"[1]", 0, "a header that is no JSON object"},
    {" {}", 0, "a header that is no JSON object"},
    {"{\"a\":", 0, "a header that is not valid JSON"},
    {"{} x", 0, "a header that is not valid JSON: end of file expected"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2,
     "duplicate object key"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1, "duplicate object key"},
    {"{\"a\\u0000b\":" T("U8", "[1]", "[0,1]") "}", 1, "a header that is not valid JSON"},
    {"{\"\xff\":" T("U8", "[1]", "[0,1]") "}", 1, "a header that is not valid JSON"},
    {"{\"a\":3}", 0, "tensor \"a\" is no object"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "tensor \"a\" has no \"dtype\""},
    {"{\"a\":" T("Q4_K", "[1]", "[0,1]") "}", 1,
     "tensor \"a\" has the unknown dtype \"Q4_K\""},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "has no \"shape\" list"},
    {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "must be whole numbers of at least 0"},
    {"{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, "must be whole numbers of at least 0"},
    {"{\"a\":" T("U8", "[\"1\"]", "[0,1]") "}", 1, "must be whole numbers of at least 0"},
    {"{\"a\":" T("U8", "[9223372036854775808]", "[0,1]") "}", 1, "not valid JSON"},
    {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "has 9 dimensions"},
    {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0,
     "the shape of tensor \"a\" overflows"},
    {"{\"a\":" T("F32", "[9223372036854775807]", "[0,0]") "}", 0,
     "the shape of tensor \"a\" overflows"},
    {"{\"a\":" T("F4", "[3]", "[0,2]") "}", 2, "does not fill whole bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1,
     "the \"data_offsets\" of tensor \"a\""},
    {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, "must be two whole numbers"},
    {"{\"a\":" T("U8", "[1]", "[0,1,2]") "}", 1, "must be two whole numbers"},
    {"{\"a\":" T("U8", "[1]", "[-1,0]") "}", 1, "must be two whole numbers"},
    {"{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "ends (0) before it begins (1)"},
    {"{\"a\":" T("U8", "[8]", "[0,8]") "}", 7,
     "ends at byte 8 of the data, and there are only 7; the file is incomplete"},
    {"{\"a\":" T("F32", "[2,3]", "[0,12]") "}", 12,
     "is F32 of shape [2, 3], which takes 24 bytes, not 12"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3,
     "tensors \"a\" and \"b\" overlap"},
    {"{\"b\":" T("U8", "[2]", "[0,2]") ",\"a\":" T("U8", "[2]", "[0,2]") "}", 2,
     "overlap"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[3,4]") "}", 4,
     "2 bytes before tensor \"b\" belong to no tensor"},
    {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2,
     "1 bytes before tensor \"a\" belong to no tensor"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") "}", 6, "5 bytes at the end of the file"},
    {"{}", 3, "3 bytes at the end of the file"},
    {"{\"__metadata__\":[]}", 0, "\"__metadata__\" in the header is no object"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "\"format\" in the header's metadata"},
};

static void test_hostile(void)
{
    for (size_t i = 0; i < SDP_COUNT_OF(hostile); i++) {
        char *path = make_file("hostile.safetensors", hostile[i].header,
                               strlen(hostile[i].header), hostile[i].data_size);

        check_refused(path, hostile[i].message);
        free(path);
    }
}

static void check_bytes(const void *bytes, size_t size, const char *message)
{
    char *path = temp_file("raw.safetensors", bytes, size);

    check_refused(path, message);
    free(path);
}

/* What is wrong before there is a header. */
static void test_lengths(void)
{
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0";
    uint8_t bytes[16] = {0};
    uint64_t length;

    check_bytes("", 0, "has 0 bytes");
    check_bytes("\x02\0\0\0\0\0\0", 7, "has 7 bytes");
    check_bytes(bytes, 8, "no JSON object"); /* a length of 0 */
    length = 9;
    memcpy(bytes, &length, 8);
    check_bytes(bytes, 16,
                "should have a header of 9 bytes, but has only 16 bytes in all");
    length = 100000001;
    memcpy(bytes, &length, 8);
    check_bytes(bytes, 16, "a header of 100000001 bytes, and the format allows 100 MB");
    length = UINT64_MAX;
    memcpy(bytes, &length, 8);
    check_bytes(bytes, 16, "a header of 18446744073709551615 bytes");
    length = UINT64_MAX - 7; /* 8 + length would wrap to 0 */
    memcpy(bytes, &length, 8);
    check_bytes(bytes, 16, "a header of 18446744073709551608 bytes");
    check_bytes(lfs, sizeof lfs - 1, "is a Git LFS pointer");
}

/* Any file cut short is refused, and no flipped byte of a header makes one crash. */
static void test_damage(void)
{
    static const char header[] =
        "{\"a\":" T("F32", "[2,2]", "[0,16]") ",\"b\":" T("BF16", "[3]", "[16,22]") "}";
    size_t header_size = sizeof header - 1, size = 8 + header_size + 22;
    char *path = make_file("whole.safetensors", header, header_size, 22), *text = NULL;
    struct sdp_error err = SDP_ERROR_INIT;
    size_t read = 0;

    REQUIRE_OK(sdp_read_text(path, &text, &read, &err), &err);
    REQUIRE(read == size);
    for (size_t i = 0; i < size; i++)
        check_bytes(text, i, "");
    for (size_t i = 0; i < 8 + header_size; i++)
        for (int bit = 0; bit < 8; bit++) {
            struct sdp_safetensors *file = NULL;
            char *damaged;
            volatile uint8_t sum = 0;

            text[i] = (char)(text[i] ^ 1 << bit);
            damaged = temp_file("damaged.safetensors", text, size);
            if (sdp_safetensors_open(damaged, &file, NULL) == SDP_OK)
                for (size_t t = 0; t < file->count; t++)
                    for (size_t b = 0; b < file->tensors[t].bytes; b++)
                        sum = (uint8_t)(sum + file->tensors[t].data[b]);
            sdp_safetensors_close(file);
            text[i] = (char)(text[i] ^ 1 << bit);
            free(damaged);
        }
    free(text);
    free(path);
}

static void test_valid(void)
{
    /* Entries in another order than the data, an empty tensor between, a scalar, unknown
     * keys, spaces behind, a header of odd length: all allowed. */
    static const char header[] = "{\"c\":" T(
        "BF16", "[3]",
        "[16,22]") ",\"__metadata__\":{\"format\":\"pt\"},"
                   "\"empty\":" T(
                       "F32", "[0,5]",
                       "[16,16]") ",\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],"
                                  "\"data_offsets\":[0,16],\"extra\":1},\"s\":" T(
                                      "U8", "[]", "[22,23]") "}   ";
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors *file = NULL;
    char *path = make_file("valid.safetensors", header, sizeof header - 1, 23);
    uint16_t last;

    REQUIRE_OK(sdp_safetensors_open(path, &file, &err), &err);
    REQUIRE(file->count == 4);
    CHECK_STR(file->tensors[0].name, "a");
    CHECK_STR(file->tensors[1].name, "empty");
    CHECK_STR(file->tensors[2].name, "c");
    CHECK_STR(file->tensors[3].name, "s");
    CHECK_EQ(file->tensors[0].dims, 2);
    CHECK_EQ(file->tensors[0].count, 4);
    CHECK_EQ(file->tensors[1].bytes, 0);
    CHECK_EQ(file->tensors[2].dtype, SDP_ST_BF16);
    memcpy(&last, file->tensors[2].data + 4, 2);
    CHECK_EQ(last, 0x1514);
    CHECK_EQ(file->tensors[3].dims, 0);
    CHECK_EQ(file->tensors[3].count, 1);
    CHECK_EQ(file->tensors[3].data[0], 22);
    sdp_safetensors_close(file);
    free(path);
    path = make_file("none.safetensors", "{}", 2, 0);
    REQUIRE_OK(sdp_safetensors_open(path, &file, &err), &err);
    CHECK_EQ(file->count, 0);
    sdp_safetensors_close(file);
    free(path);
    sdp_safetensors_close(NULL);
    path = temp_path("absent.safetensors");
    check_refused(path, "no such file");
    free(path);
}

/* -- writing ------------------------------------------------------------------ */

static void test_write(void)
{
    static const struct sdp_safetensors_entry entries[] = {
        {"wide \"quoted\" \xc3\xa9", SDP_ST_F32, 2, {2, 3}},
        {"narrow", SDP_ST_BF16, 1, {5}},
        {"scalar", SDP_ST_U8, 0, {0}},
    };
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors_writer *writer = NULL;
    struct sdp_safetensors *file = NULL;
    char *path = temp_path("written.safetensors");
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    uint8_t bytes[35];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + 1);
    REQUIRE_OK(sdp_safetensors_create(path, entries, 3, metadata, &writer, &err), &err);
    for (size_t i = 0; i < sizeof bytes; i += 5) /* across the tensors' borders */
        REQUIRE_OK(sdp_safetensors_put(writer, bytes + i, 5, &err), &err);
    CHECK_EQ(sdp_safetensors_put(writer, bytes, 1, &err), SDP_INTERNAL);
    CHECK_CONTAINS(err.text, "1 bytes more than the header has room for");
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_safetensors_finish_take(writer, &err), &err);
    REQUIRE_OK(sdp_safetensors_open(path, &file, &err), &err);
    REQUIRE(file->count == 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK_STR(file->tensors[i].name, entries[i].name);
        CHECK_EQ(file->tensors[i].dtype, entries[i].dtype);
        CHECK_EQ(file->tensors[i].dims, entries[i].dims);
    }
    CHECK(memcmp(file->tensors[0].data, bytes, sizeof bytes) == 0);
    CHECK_EQ((file->tensors[0].data - file->map.data) % 8, 0);
    CHECK_STR(json_string_value(json_object_get(
                  json_object_get(file->header, "__metadata__"), "format")),
              "pt");
    sdp_safetensors_close(file);
    /* An existing file is not written over: someone may have it mapped. */
    CHECK_EQ(sdp_safetensors_create(path, entries, 3, NULL, &writer, &err), SDP_IO);
    CHECK_CONTAINS(err.text, "cannot create");
    json_decref(metadata);
    free(path);
}

/* Whatever the names' lengths, the tensors begin at a multiple of 8. */
static void test_padding(void)
{
    for (size_t length = 1; length <= 8; length++) {
        char name[] = "xxxxxxxx";
        struct sdp_safetensors_entry entry = {name, SDP_ST_F64, 1, {1}};
        struct sdp_safetensors_writer *writer = NULL;
        struct sdp_error err = SDP_ERROR_INIT;
        struct sdp_safetensors *file = NULL;
        char *path = temp_path("padding.safetensors");

        name[length] = '\0';
        REQUIRE_OK(sdp_safetensors_create(path, &entry, 1, NULL, &writer, &err), &err);
        REQUIRE_OK(sdp_safetensors_put(writer, "12345678", 8, &err), &err);
        REQUIRE_OK(sdp_safetensors_finish_take(writer, &err), &err);
        REQUIRE_OK(sdp_safetensors_open(path, &file, &err), &err);
        CHECK_EQ((file->tensors[0].data - file->map.data) % 8, 0);
        sdp_safetensors_close(file);
        REQUIRE(unlink(path) == 0);
        free(path);
    }
}

static void test_write_wrong(void)
{
    static const struct sdp_safetensors_entry narrow_first[] = {
        {"a", SDP_ST_BF16, 1, {1}}, {"b", SDP_ST_F32, 1, {1}}};
    static const struct sdp_safetensors_entry twice[] = {{"a", SDP_ST_U8, 1, {1}},
                                                         {"a", SDP_ST_U8, 1, {1}}};
    static const struct sdp_safetensors_entry large[] = {
        {"a", SDP_ST_F32, 2, {SIZE_MAX / 2, 4}}};
    static const struct sdp_safetensors_entry one[] = {{"a", SDP_ST_U8, 1, {4}}};
    struct sdp_safetensors_writer *writer = NULL;
    struct sdp_error err = SDP_ERROR_INIT;
    char *path = temp_path("wrong.safetensors");

    CHECK_EQ(sdp_safetensors_create(path, narrow_first, 2, NULL, &writer, NULL),
             SDP_INTERNAL);
    CHECK_EQ(sdp_safetensors_create(path, twice, 2, NULL, &writer, NULL), SDP_INTERNAL);
    CHECK_EQ(sdp_safetensors_create(path, large, 1, NULL, &writer, NULL), SDP_INTERNAL);
    CHECK(!sdp_path_exists(path));
    REQUIRE_OK(sdp_safetensors_create(path, one, 1, NULL, &writer, &err), &err);
    REQUIRE_OK(sdp_safetensors_put(writer, "abc", 3, &err), &err);
    CHECK_EQ(sdp_safetensors_finish_take(writer, &err), SDP_INTERNAL);
    CHECK_CONTAINS(err.text, "lacks 1 bytes of its tensors");
    CHECK(!sdp_path_exists(path));
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_safetensors_create(path, one, 1, NULL, &writer, &err), &err);
    sdp_safetensors_abort_take(writer);
    CHECK(!sdp_path_exists(path));
    sdp_safetensors_abort_take(NULL);
    free(path);
}

/* -- shards ------------------------------------------------------------------- */

static void check_index(const char *index, const char *pointer, const char *message)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors_set *set = NULL;
    char *path = temp_file("shards/m.safetensors.index.json", index, strlen(index));
    char *folder = temp_path("shards");
    enum sdp_status status = sdp_safetensors_set_open_index(folder, "m", &set, &err);

    if (!message) {
        REQUIRE_OK(status, &err);
        CHECK_EQ(set->count, 2);
        CHECK_EQ(set->file_count, 2);
        CHECK_STR(sdp_safetensors_set_find(set, "b")->tensor->name, "b");
        CHECK(sdp_safetensors_set_find(set, "c") == NULL);
    } else {
        CHECK_EQ(status, SDP_INPUT);
        CHECK_STR(err.pointer, pointer);
        CHECK_CONTAINS(err.text, message);
    }
    sdp_safetensors_set_close(set);
    free(folder);
    free(path);
}

#define MAP(a, b) "{\"weight_map\":{\"a\":\"" a "\",\"b\":\"" b "\"}}"

static void test_index(void)
{
    static const char a[] = "{\"a\":" T("U8", "[1]", "[0,1]") "}";
    static const char b[] = "{\"b\":" T("U8", "[2]", "[0,2]") "}";
    static const char bd[] =
        "{\"b\":" T("U8", "[2]", "[0,2]") ",\"d\":" T("U8", "[1]", "[2,3]") "}";
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors_set *set = NULL;
    const char *const twice[] = {"1.safetensors", "1.safetensors"};
    const char *const outside[] = {"../valid.safetensors"};
    char *folder = temp_path("shards"), *path;

    CHECK_EQ(sdp_safetensors_set_open_index(folder, "m", &set, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "no such folder");
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_make_dirs(folder, &err), &err);
    CHECK_EQ(sdp_safetensors_set_open_index(folder, "m", &set, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "has neither m.safetensors nor m.safetensors.index.json");
    free(temp_file("shards/pytorch_model.bin", "x", 1));
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_safetensors_set_open_index(folder, "m", &set, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "the pickle format (pytorch_model.bin)");
    free(make_file("shards/1.safetensors", a, sizeof a - 1, 1));
    free(make_file("shards/2.safetensors", b, sizeof b - 1, 2));

    check_index(MAP("1.safetensors", "2.safetensors"), "", NULL);
    check_index("{}", "/weight_map", "is missing");
    check_index("[]", "/weight_map", "is missing");
    check_index("{\"weight_map\":[]}", "/weight_map", "must be an object");
    check_index("{\"weight_map\":{}}", "/weight_map", "is empty");
    check_index("{\"weight_map\":{\"a\":1}}", "/weight_map/a", "must be");
    check_index(MAP("1.safetensors", "../2.safetensors"), "/weight_map/b",
                "must be the plain name of a file");
    check_index(MAP("/etc/passwd", "2.safetensors"), "/weight_map/a",
                "must be the plain name of a file");
    check_index(MAP("..", "2.safetensors"), "/weight_map/a", "must be the plain name");
    check_index(MAP("", "2.safetensors"), "/weight_map/a", "must be the plain name");
    check_index(MAP("1.safetensors", "3.safetensors"), "/weight_map/b",
                "the file \"3.safetensors\" is not in the folder");
    check_index(MAP("2.safetensors", "1.safetensors"), "/weight_map/a",
                "the file \"2.safetensors\" does not hold this tensor");
    check_index("{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\","
                "\"c\":\"2.safetensors\"}}",
                "/weight_map/c", "the file \"2.safetensors\" does not hold this tensor");
    free(make_file("shards/2.safetensors", bd, sizeof bd - 1, 3));
    check_index(MAP("1.safetensors", "2.safetensors"), "/weight_map",
                "does not list the tensor \"d\"");

    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_safetensors_set_open(folder, twice, 2, &set, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "holds the tensor \"a\", and so does");
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_safetensors_set_open(folder, outside, 1, &set, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "must be a plain file name");
    /* The single file comes first, as transformers has it. */
    path = make_file("shards/m.safetensors", a, sizeof a - 1, 1);
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_safetensors_set_open_index(folder, "m", &set, &err), &err);
    CHECK_EQ(set->count, 1);
    sdp_safetensors_set_close(set);
    sdp_safetensors_set_close(NULL);
    free(path);
    free(folder);
}

static void test_shape_text(void)
{
    static const size_t shape[] = {1234567, 89};
    char buffer[32], small[8];

    CHECK_STR(sdp_safetensors_format_shape(shape, 2, buffer, sizeof buffer),
              "[1234567, 89]");
    CHECK_STR(sdp_safetensors_format_shape(shape, 0, buffer, sizeof buffer), "[]");
    CHECK_STR(sdp_safetensors_format_shape(shape, 2, small, sizeof small), "[123456");
}

int main(void)
{
    temp_begin();
    test_lengths();
    test_hostile();
    test_damage();
    test_valid();
    test_write();
    test_padding();
    test_write_wrong();
    test_index();
    test_shape_text();
    temp_end();
    return sdp_test_end();
}
