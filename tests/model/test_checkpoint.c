/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* model/checkpoint: Hugging Face folders and training checkpoints, there and back to the
 * bit; rounding; shards; tied heads; what is refused; saves that break off. */
#include "graph/base/json.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "tests/model/fake_state.h"
#include "tests/model/temp_folder.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define VOCABULARY 37u

/* -- comparing ---------------------------------------------------------------- */

/* Whether the arrays are equal, padding included (nothing may write there). */
static bool same_masters(const struct sdp_host_state *a, const struct sdp_host_state *b)
{
    for (size_t s = 0; s < a->graph->storage_count; s++)
        if (memcmp(a->storages[s].weight, b->storages[s].weight,
                   a->storages[s].count * 2) != 0 ||
            memcmp(a->storages[s].remainder, b->storages[s].remainder,
                   a->storages[s].count * 2) != 0)
            return false;
    return true;
}

static bool same_moments(const struct sdp_host_state *a, const struct sdp_host_state *b)
{
    for (size_t s = 0; s < a->graph->storage_count; s++)
        if (memcmp(a->storages[s].m, b->storages[s].m, a->storages[s].count * 4) != 0 ||
            memcmp(a->storages[s].v, b->storages[s].v, a->storages[s].count * 4) != 0)
            return false;
    return true;
}

/* Files of a folder that are not hidden. */
static size_t count_files(const char *folder)
{
    DIR *list = opendir(folder);
    struct dirent *entry;
    size_t count = 0;

    REQUIRE(list != NULL);
    while ((entry = readdir(list)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}

/* What goes to stderr while it is caught. */
static int saved_stderr;
static FILE *caught;

static void catch_begin(void)
{
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    caught = tmpfile();
    REQUIRE(caught && saved_stderr >= 0 && dup2(fileno(caught), STDERR_FILENO) >= 0);
}

static void catch_end(char *text, size_t size)
{
    size_t length;

    fflush(stderr);
    REQUIRE(dup2(saved_stderr, STDERR_FILENO) >= 0);
    close(saved_stderr);
    rewind(caught);
    length = fread(text, 1, size - 1, caught);
    text[length] = '\0';
    fclose(caught);
}

/* -- Hugging Face -------------------------------------------------------------- */

static void save(const char *name, const struct sdp_host_state *state,
                 enum sdp_dtype dtype, size_t shard_bytes)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path(name);

    REQUIRE_OK(
        sdp_checkpoint_save_hf(folder, state, dtype, NULL, NULL, shard_bytes, &err),
        &err);
    free(folder);
}

static void load(const char *name, struct sdp_host_state *state, unsigned threads)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path(name);

    REQUIRE_OK(sdp_checkpoint_load_hf(folder, state, threads, &err), &err);
    free(folder);
}

static void check_load_refused(const char *name, struct sdp_host_state *state,
                               const char *message)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path(name);

    CHECK_EQ(sdp_checkpoint_load_hf(folder, state, 2, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, message);
    free(folder);
}

static void test_fp32(bool tied, size_t shard_bytes, size_t files)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, tied);
    struct sdp_host_state *from = fake_state(graph), *to = fake_state(graph);
    char *folder = temp_path("fp32");

    fake_state_fill(from, 1);
    save("fp32/", from, SDP_FP32, shard_bytes);
    CHECK_EQ(count_files(folder), files);
    load("fp32", to, 3);
    CHECK(same_masters(from, to));
    for (size_t i = 0; i < to->storages[0].count; i++) /* moments are not touched */
        CHECK(sdp_bits_from_float(to->storages[0].m[i]) == 0xa5a5a5a5u);
    fake_state_free(from);
    fake_state_free(to);
    fake_graph_free(graph);
    free(folder);
}

/* The export is the fp32 master rounded once, to nearest even; loaded again, nothing
 * remains. */
static void test_bf16(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, false);
    struct sdp_host_state *from = fake_state(graph), *to = fake_state(graph);
    size_t ties = 0;

    fake_state_fill(from, 2);
    save("bf16", from, SDP_BF16, 0);
    load("bf16", to, 0);
    for (size_t s = 0; s < graph->storage_count; s++)
        for (size_t p = 0; p < graph->storages[s].param_count; p++)
            for (size_t i = 0; i < graph->storages[s].params[p].count; i++) {
                size_t at = graph->storages[s].params[p].offset + i;
                float master = sdp_master_join(from->storages[s].weight[at],
                                               from->storages[s].remainder[at]);

                if (to->storages[s].weight[at] != sdp_bf16_from_float(master) ||
                    to->storages[s].remainder[at] != 0)
                    SDP_TEST_FAIL("element %zu of storage %zu", at, s);
                ties += to->storages[s].weight[at] != from->storages[s].weight[at];
            }
    CHECK(ties > 10); /* the stored weights would have been wrong */
    fake_state_free(from);
    fake_state_free(to);
    fake_graph_free(graph);
}

/* Every fp16 value arrives exactly. */
static void test_fp16(void)
{
    struct sdp_model_graph *graph = fake_graph(8192, true); /* 65536 elements */
    struct sdp_host_state *from = fake_state(graph), *to = fake_state(graph);
    struct sdp_safetensors_entry *entries = sdp_xcalloc(16, sizeof *entries);
    struct sdp_safetensors_writer *writer = NULL;
    struct sdp_error err = SDP_ERROR_INIT;
    size_t count = 0, total = 0;
    char *folder = temp_path("fp16"), *path = temp_path("fp16/model.safetensors");
    uint16_t *halves;

    for (size_t s = 0; s < graph->storage_count; s++)
        for (size_t p = 0; p < graph->storages[s].param_count; p++) {
            const struct sdp_param *param = &graph->storages[s].params[p];

            entries[count++] = (struct sdp_safetensors_entry){
                param->name,
                SDP_ST_F16,
                (size_t)param->dims,
                {param->dims == 1 ? param->cols : param->rows, param->cols}};
            total += param->count;
        }
    halves = sdp_xcalloc(total, sizeof *halves);
    for (size_t i = 0; i < total; i++)
        halves[i] = (uint16_t)i;
    REQUIRE_OK(sdp_make_dirs(folder, &err), &err);
    REQUIRE_OK(sdp_safetensors_create(path, entries, count, NULL, &writer, &err), &err);
    REQUIRE_OK(sdp_safetensors_put(writer, halves, total * sizeof *halves, &err), &err);
    REQUIRE_OK(sdp_safetensors_finish_take(writer, &err), &err);
    load("fp16", to, 2);
    for (size_t i = 0; i < 65536; i++) {
        float master =
            sdp_master_join(to->storages[0].weight[i], to->storages[0].remainder[i]);
        float wanted = sdp_fp16_to_float((uint16_t)i);

        if (sdp_bits_from_float(master) != sdp_bits_from_float(wanted) &&
            !(isnan(master) && isnan(wanted)))
            SDP_TEST_FAIL("half %zu is %g, not %g", i, (double)master, (double)wanted);
    }
    free(halves);
    free(entries);
    free(path);
    free(folder);
    fake_state_free(from);
    fake_state_free(to);
    fake_graph_free(graph);
}

static void test_index(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, true);
    struct sdp_host_state *state = fake_state(graph);
    struct sdp_error err = SDP_ERROR_INIT;
    char *path = temp_path("index/model.safetensors.index.json");
    json_t *index = NULL, *map, *metadata;
    struct sdp_json root;

    fake_state_fill(state, 3);
    save("index", state, SDP_BF16, 700);
    REQUIRE_OK(sdp_json_load(path, &index, &root, &err), &err);
    metadata = json_object_get(index, "metadata");
    CHECK_EQ(json_integer_value(json_object_get(metadata, "total_size")),
             2 * graph->parameters);
    map = json_object_get(index, "weight_map");
    CHECK_EQ(json_object_size(map), 2 + 4 * FAKE_BLOCKS);
    CHECK(!json_object_get(map, "lm_head.weight"));
    CHECK_STR(json_string_value(json_object_get(map, "model.embed_tokens.weight")),
              "model-00001-of-00005.safetensors");
    CHECK_STR(json_string_value(json_object_get(map, "model.norm.weight")),
              "model-00005-of-00005.safetensors");
    json_decref(index);
    fake_state_free(state);
    fake_graph_free(graph);
    free(path);
}

static void put_file(const char *name, const char *text)
{
    free(temp_file(name, text, strlen(text)));
}

static void check_file(const char *name, const char *text)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *path = temp_path(name), *read = NULL;

    REQUIRE_OK(sdp_read_text(path, &read, NULL, &err), &err);
    CHECK_STR(read, text);
    free(read);
    free(path);
}

static void test_config(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, true);
    struct sdp_host_state *state = fake_state(graph);
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path("config"), *source = temp_path("source");
    char *link = temp_path("source/vocab.json"), *plain = temp_path("plain.json");
    json_t *config = json_pack("{s:s, s:b, s:s}", "torch_dtype", "float16",
                               "tie_word_embeddings", 1, "model_type", "llama");

    fake_state_fill(state, 4);
    REQUIRE_OK(sdp_make_dirs(source, &err), &err);
    put_file("source/tokenizer.json", "{}");
    put_file("source/tokenizer_config.json", "{\"a\": 1}");
    put_file("source/chat_template.jinja", "hi");
    put_file("source/generation_config.json", "{}");
    put_file("source/README.md", "not this");
    put_file("source/config.json", "nor this");
    put_file("plain.json", "{\"x\": 0}");
    REQUIRE(symlink(plain, link) == 0); /* as in the hub's cache */
    REQUIRE_OK(sdp_checkpoint_save_hf(folder, state, SDP_BF16, config, source, 0, &err),
               &err);
    CHECK_EQ(count_files(folder), 7);
    check_file("config/config.json", "{\n  \"torch_dtype\": \"bfloat16\",\n"
                                     "  \"tie_word_embeddings\": true,\n"
                                     "  \"model_type\": \"llama\",\n"
                                     "  \"dtype\": \"bfloat16\"\n}\n");
    check_file("config/tokenizer_config.json", "{\"a\": 1}");
    check_file("config/vocab.json", "{\"x\": 0}");
    check_file("config/chat_template.jinja", "hi");
    CHECK_STR(json_string_value(json_object_get(config, "torch_dtype")), "float16");
    REQUIRE_OK(sdp_checkpoint_save_hf(folder, state, SDP_FP32, config, NULL, 0, &err),
               &err);
    CHECK_EQ(count_files(folder), 2); /* replaced as a whole */
    CHECK_EQ(sdp_checkpoint_save_hf(folder, state, SDP_FP16, config, NULL, 0, &err),
             SDP_INPUT);
    CHECK_CONTAINS(err.text, "must be bf16 or fp32");
    json_decref(config);
    fake_state_free(state);
    fake_graph_free(graph);
    free(plain);
    free(link);
    free(source);
    free(folder);
}

/* -- what does not fit ---------------------------------------------------------- */

static void rename_param(struct sdp_model_graph *graph, const char *from, const char *to)
{
    for (size_t s = 0; s < graph->storage_count; s++)
        for (size_t p = 0; p < graph->storages[s].param_count; p++)
            if (strcmp(graph->storages[s].params[p].name, from) == 0) {
                free(graph->storages[s].params[p].name);
                graph->storages[s].params[p].name = sdp_xstrdup(to);
                return;
            }
    SDP_TEST_FAIL("no parameter %s", from);
}

/* A tied head that is in the files too: fine when equal, told when not. */
static void test_tied_duplicate(void)
{
    struct sdp_model_graph *untied = fake_graph(VOCABULARY, false),
                           *tied = fake_graph(VOCABULARY, true);
    struct sdp_host_state *from = fake_state(untied), *to = fake_state(tied);
    char text[2048];

    fake_state_fill(from, 5);
    memcpy(from->storages[4].weight, from->storages[0].weight,
           from->storages[0].count * 2);
    memcpy(from->storages[4].remainder, from->storages[0].remainder,
           from->storages[0].count * 2);
    save("tied", from, SDP_FP32, 0);
    catch_begin();
    load("tied", to, 1);
    catch_end(text, sizeof text);
    CHECK_STR(text, "");
    CHECK(memcmp(from->storages[0].weight, to->storages[0].weight,
                 from->storages[0].count * 2) == 0);
    from->storages[4].remainder[3] ^= 1;
    save("tied", from, SDP_FP32, 0);
    catch_begin();
    load("tied", to, 1);
    catch_end(text, sizeof text);
    CHECK_CONTAINS(text, "lm_head.weight differs from model.embed_tokens.weight");
    CHECK_CONTAINS(text, "\"tie_word_embeddings\": false");
    fake_state_free(from);
    /* The other way round: the model wants a head that the folder has not. */
    from = fake_state(untied);
    fake_state_fill(to, 5);
    save("tied", to, SDP_BF16, 0);
    check_load_refused("tied", from, "perhaps config.json must say");
    fake_state_free(from);
    fake_state_free(to);
    fake_graph_free(untied);
    fake_graph_free(tied);
}

static void test_names(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, false),
                           *other = fake_graph(VOCABULARY, false);
    struct sdp_host_state *from = fake_state(graph), *to = fake_state(other);

    fake_state_fill(from, 6);
    save("names", from, SDP_BF16, 0);
    rename_param(other, "model.norm.weight", "model.final.weight");
    check_load_refused("names", to,
                       "lacks 1 of the model's tensors (model.final.weight) and has 1 "
                       "that the model lacks (model.norm.weight)");
    for (size_t s = 0; s < graph->storage_count; s++) /* nothing was read */
        CHECK(to->storages[s].weight[0] == 0xa5a5);
    /* More than five are counted. */
    for (size_t s = 1; s <= FAKE_BLOCKS; s++)
        for (size_t p = 0; p < 4; p++) {
            char *name = sdp_xprintf("x.%zu.%zu", s, p);
            rename_param(other, other->storages[s].params[p].name, name);
            free(name);
        }
    check_load_refused(
        "names", to,
        "lacks 9 of the model's tensors (x.1.0, x.1.1, x.1.2, x.1.3, x.2.0, "
        "...) and has 9 that the model lacks "
        "(model.layers.0.input_layernorm.weight, ");
    fake_state_free(to);
    fake_graph_free(other);
    /* Tables of older checkpoints are harmless; other tensors are not. */
    other = fake_graph(VOCABULARY, false);
    fake_param(&other->storages[0], "model.layers.0.self_attn.rotary_emb.inv_freq", 0, 4);
    to = fake_state(other);
    fake_state_fill(to, 6);
    save("names", to, SDP_FP32, 0);
    fake_state_free(to);
    load("names", from, 2);
    rename_param(other, "model.layers.0.self_attn.rotary_emb.inv_freq", "model.extra");
    to = fake_state(other);
    fake_state_fill(to, 6);
    save("names", to, SDP_FP32, 0);
    check_load_refused("names", from, "has 1 tensors that the model lacks: model.extra");
    rename_param(other, "model.extra", "lm_head.bias");
    save("names", to, SDP_FP32, 0);
    check_load_refused("names", from, "has 1 tensors that the model lacks: lm_head.bias");
    save("names", from, SDP_FP32, 0);
    check_load_refused("names", to, "lacks 1 of the model's tensors: lm_head.bias");
    fake_state_free(to);
    fake_state_free(from);
    fake_graph_free(other);
    fake_graph_free(graph);
}

static void test_shapes(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, false),
                           *other = fake_graph(VOCABULARY + 1, false);
    struct sdp_host_state *from = fake_state(graph), *to = fake_state(other);
    struct sdp_safetensors_writer *writer = NULL;
    struct sdp_error err = SDP_ERROR_INIT;
    char *path = temp_path("shapes/model.safetensors");

    fake_state_fill(from, 7);
    save("shapes", from, SDP_BF16, 0);
    check_load_refused("shapes", to,
                       "tensor \"model.embed_tokens.weight\" has shape [37, 8], in the "
                       "model it has [38, 8]; the shapes of these differ too: "
                       "lm_head.weight; the checkpoint is another model's");
    fake_state_free(to);
    fake_graph_free(other);
    /* As many elements, but a matrix of one row is no vector. */
    other = fake_graph(VOCABULARY, false);
    to = fake_state(other);
    other->storages[1].params[0].dims = 2;
    check_load_refused("shapes", to,
                       "\"model.layers.0.input_layernorm.weight\" has shape [8], in the "
                       "model it has [1, 8]");
    fake_state_free(to);
    fake_graph_free(other);
    /* Quantised weights. */
    other = sdp_xcalloc(1, sizeof *other);
    other->storage_count = other->layer_count = 1;
    other->storages = sdp_xcalloc(1, sizeof *other->storages);
    other->layers = sdp_xcalloc(1, sizeof *other->layers);
    other->layers[0].ops = sdp_xcalloc(1, sizeof *other->layers[0].ops);
    other->layers[0].op_count = 1;
    fake_param(&other->storages[0], "w", 0, 4);
    to = fake_state(other);
    REQUIRE(unlink(path) == 0);
    REQUIRE_OK(sdp_safetensors_create(
                   path, &(struct sdp_safetensors_entry){"w", SDP_ST_F8_E4M3, 1, {4}}, 1,
                   NULL, &writer, &err),
               &err);
    REQUIRE_OK(sdp_safetensors_put(writer, "abcd", 4, &err), &err);
    REQUIRE_OK(sdp_safetensors_finish_take(writer, &err), &err);
    check_load_refused("shapes", to,
                       "tensor \"w\" is of dtype F8_E4M3; must be BF16, F16 or F32");
    fake_state_free(to);
    fake_graph_free(other);
    fake_state_free(from);
    fake_graph_free(graph);
    free(path);
}

/* -- saves that break off ------------------------------------------------------ */

/* In a child, a file may not grow past `limit`: as a full disk would, the save fails. */
static void test_full_disk(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, false);
    struct sdp_host_state *from = fake_state(graph), *to = fake_state(graph);
    struct sdp_train_position position = {.step = 3, .fingerprint = "f"};
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path("full"), *saving = temp_path("full.saving");
    char *steps = temp_path("full-steps/step-00000003");
    int status;
    pid_t child;

    fake_state_fill(from, 8);
    save("full", from, SDP_FP32, 0);
    REQUIRE_OK(sdp_checkpoint_save_state(steps, from, &position, &err), &err);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct rlimit limit = {3000, 3000};

        signal(SIGXFSZ, SIG_IGN);
        fake_state_fill(to, 9);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(2);
        if (sdp_checkpoint_save_hf(folder, to, SDP_FP32, NULL, NULL, 0, &err) != SDP_IO ||
            !strstr(err.text, "cannot write: File too large"))
            _exit(3);
        err = (struct sdp_error)SDP_ERROR_INIT;
        if (sdp_checkpoint_save_state(steps, to, &position, &err) != SDP_IO ||
            !strstr(err.text, "cannot write: File too large"))
            _exit(4);
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!sdp_path_exists(saving));
    load("full", to, 2);
    CHECK(same_masters(from, to));
    REQUIRE_OK(sdp_checkpoint_load_state(steps, to, &position, &err), &err);
    CHECK(same_masters(from, to) && same_moments(from, to));
    fake_state_free(from);
    fake_state_free(to);
    fake_graph_free(graph);
    free(steps);
    free(saving);
    free(folder);
}

/* A child saves two states in turn until it is killed: the folder is always one of them,
 * and what is left over does not stop the next save. */
static void test_killed(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, false);
    struct sdp_host_state *states[] = {fake_state(graph), fake_state(graph)},
                          *read = fake_state(graph);
    char *folder = temp_path("killed");
    size_t seen[2] = {0, 0};

    fake_state_fill(states[0], 10);
    fake_state_fill(states[1], 11);
    save("killed", states[0], SDP_FP32, 500);
    for (unsigned round = 0; round < 40; round++) {
        pid_t child = fork();

        REQUIRE(child >= 0);
        if (child == 0)
            for (size_t i = 0;; i++)
                if (sdp_checkpoint_save_hf(folder, states[i % 2], SDP_FP32, NULL, NULL,
                                           500, NULL) != SDP_OK)
                    _exit(1);
        usleep(2000 + 1500 * round);
        REQUIRE(kill(child, SIGKILL) == 0);
        REQUIRE(waitpid(child, NULL, 0) == child);
        load("killed", read, 1);
        if (same_masters(read, states[0]))
            seen[0]++;
        else if (same_masters(read, states[1]))
            seen[1]++;
        else
            SDP_TEST_FAIL("round %u: a mixture", round);
    }
    CHECK_EQ(seen[0] + seen[1], 40);
    save("killed", states[1], SDP_FP32, 500);
    load("killed", read, 1);
    CHECK(same_masters(read, states[1]));
    for (size_t i = 0; i < 2; i++)
        fake_state_free(states[i]);
    fake_state_free(read);
    fake_graph_free(graph);
    free(folder);
}

/* What a save finds in its way. */
static void test_in_the_way(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, false);
    struct sdp_host_state *state = fake_state(graph), *read = fake_state(graph);
    struct sdp_error err = SDP_ERROR_INIT;
    char *file = temp_file("file", "x", 1), *mine = temp_path("way.saving/mine");
    char *below = temp_path("file/below"), *way = temp_path("way");
    char *target = temp_path("target"), *link = temp_path("link");
    char text[2048];

    fake_state_fill(state, 12);
    CHECK_EQ(sdp_checkpoint_save_hf(file, state, SDP_BF16, NULL, NULL, 0, &err),
             SDP_INPUT);
    CHECK_CONTAINS(err.text, "is in the way of a folder");
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_checkpoint_save_hf(below, state, SDP_BF16, NULL, NULL, 0, &err),
             SDP_INPUT);
    CHECK_CONTAINS(err.text, "is in the way of a folder");
    /* A folder of that name that holds folders is someone else's. */
    err = (struct sdp_error)SDP_ERROR_INIT;
    REQUIRE_OK(sdp_make_dirs(mine, &err), &err);
    CHECK_EQ(sdp_checkpoint_save_hf(way, state, SDP_BF16, NULL, NULL, 0, &err), SDP_IO);
    CHECK_CONTAINS(err.text, "cannot remove");
    CHECK(sdp_path_is_folder(mine));
    /* So is one in the old folder: it stays, and is told. */
    err = (struct sdp_error)SDP_ERROR_INIT;
    free(mine);
    mine = temp_path("old/mine");
    REQUIRE_OK(sdp_make_dirs(mine, &err), &err);
    put_file("old/mine/precious", "x");
    catch_begin();
    save("old", state, SDP_FP32, 0);
    catch_end(text, sizeof text);
    CHECK_CONTAINS(text, "not all of it could be removed");
    check_file("old.saving/mine/precious", "x");
    load("old", read, 1);
    CHECK(same_masters(state, read));
    /* A link is replaced, what it leads to is not touched. */
    REQUIRE_OK(sdp_make_dirs(target, &err), &err);
    put_file("target/precious", "y");
    REQUIRE(symlink(target, link) == 0);
    save("link", state, SDP_FP32, 0);
    check_file("target/precious", "y");
    load("link", read, 1);
    /* A crash between two renames, where names cannot be exchanged. */
    save("swap.replaced", state, SDP_FP32, 0);
    save("swap", state, SDP_FP32, 0);
    load("swap", read, 1);
    free(link);
    link = temp_path("swap.replaced");
    CHECK(!sdp_path_exists(link));
    fake_state_free(state);
    fake_state_free(read);
    fake_graph_free(graph);
    free(link);
    free(target);
    free(way);
    free(below);
    free(mine);
    free(file);
}

static void test_probe(void)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path("probe/deep"), *file = temp_path("file/x");

    REQUIRE_OK(sdp_checkpoint_probe(folder, 1000, &err), &err);
    CHECK(sdp_path_is_folder(folder));
    CHECK_EQ(count_files(folder), 0);
    REQUIRE_OK(sdp_checkpoint_probe(folder, 0, &err), &err); /* once more */
    CHECK_EQ(sdp_checkpoint_probe(folder, SIZE_MAX / 2, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "of free space, and 8.00 EiB are needed");
    CHECK_STR(err.file, folder);
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_checkpoint_probe(file, 0, &err), SDP_INPUT);
    err = (struct sdp_error)SDP_ERROR_INIT;
    CHECK_EQ(sdp_checkpoint_probe("/proc/sdp-probe", 0, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, "cannot");
    free(file);
    free(folder);
}

/* -- training checkpoints -------------------------------------------------------- */

static void test_state(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, true);
    struct sdp_host_state *from = fake_state(graph), *to = fake_state(graph);
    struct sdp_train_position position = {.step = 50,
                                          .seed = UINT64_MAX - 3,
                                          .sequences = 123456789012345,
                                          .fingerprint = "\"quoted\" \xc3\xa9"},
                              read = {.step = 7};
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors_set *set = NULL;
    char *folder = temp_path("state/step-00000050");

    fake_state_fill(from, 20);
    REQUIRE_OK(sdp_checkpoint_save_state(folder, from, &position, &err), &err);
    REQUIRE_OK(sdp_checkpoint_load_state(folder, to, &read, &err), &err);
    CHECK(same_masters(from, to) && same_moments(from, to));
    CHECK(read.step == 50 && read.seed == UINT64_MAX - 3 &&
          read.sequences == 123456789012345);
    CHECK_STR(read.fingerprint, position.fingerprint);
    REQUIRE_OK(sdp_safetensors_set_open_index(folder, "state", &set, &err), &err);
    CHECK_EQ(set->count, 4 * (2 + 4 * FAKE_BLOCKS));
    for (size_t i = 0; i < set->count; i++) /* aligned for readers that map */
        CHECK_EQ((set->members[i].tensor->data - set->files[0]->map.data) %
                     (set->members[i].tensor->dtype == SDP_ST_F32 ? 4 : 2),
                 0);
    CHECK_EQ(sdp_safetensors_set_find(set, "remainder.model.norm.weight")->tensor->dtype,
             SDP_ST_I16);
    sdp_safetensors_set_close(set);
    fake_state_free(from);
    fake_state_free(to);
    fake_graph_free(graph);
    free(folder);
}

static void check_state_refused(const char *name, struct sdp_host_state *state,
                                const char *pointer, const char *message)
{
    struct sdp_train_position position = {.step = 7};
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path(name);

    CHECK_EQ(sdp_checkpoint_load_state(folder, state, &position, &err), SDP_INPUT);
    CHECK_CONTAINS(err.text, message);
    CHECK_STR(err.pointer, pointer);
    CHECK_EQ(position.step, 7);
    free(folder);
}

static void test_state_refused(void)
{
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, true),
                           *other = fake_graph(VOCABULARY + 1, true);
    struct sdp_host_state *state = fake_state(graph), *to = fake_state(other);
    struct sdp_train_position position = {.step = 1, .fingerprint = "x"};
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path("refused"), *path = temp_path("refused/state.safetensors");
    char *long_text = sdp_xprintf(
        "{\"slidedp_checkpoint\": 1, \"step\": 1, \"seed\": 0, \"sequences\": 0, "
        "\"fingerprint\": \"%0200d\", \"files\": {}}",
        0);

    fake_state_fill(state, 21);
    REQUIRE_OK(sdp_checkpoint_save_state(folder, state, &position, &err), &err);
    check_state_refused(
        "refused", to, "",
        "tensor \"m.model.embed_tokens.weight\" has shape [37, 8], in the "
        "model it has [38, 8]; the shapes of these differ too: "
        "v.model.embed_tokens.weight, weight.model.embed_tokens.weight, "
        "remainder.model.embed_tokens.weight");
    CHECK(to->storages[0].weight[0] == 0xa5a5);
    rename_param(other, "model.norm.weight", "model.final.weight");
    check_state_refused("refused", to, "",
                        "lacks 4 of the model's tensors (m.model.final.weight, ");
    REQUIRE(truncate(path, 5000) == 0);
    check_state_refused("refused", state, "/files/state.safetensors",
                        "and has 5000; the checkpoint is damaged");
    REQUIRE(unlink(path) == 0);
    check_state_refused("refused", state, "/files/state.safetensors",
                        "the file is not in the folder");
    put_file("refused/position.json", "[]");
    check_state_refused("refused", state, "", "must be an object");
    put_file("refused/position.json", "{\"slidedp_checkpoint\": 1}");
    check_state_refused("refused", state, "/step", "is missing");
    put_file("refused/position.json",
             "{\"slidedp_checkpoint\": 2, \"step\": 1, \"seed\": 0, \"sequences\": 0, "
             "\"fingerprint\": \"\", \"files\": {}}");
    check_state_refused("refused", state, "/slidedp_checkpoint", "is 2; must be");
    put_file("refused/position.json", long_text);
    check_state_refused("refused", state, "/fingerprint", "is too long");
    put_file("refused/position.json",
             "{\"slidedp_checkpoint\": 1, \"step\": 1, \"seed\": 0, \"sequences\": 0, "
             "\"fingerprint\": \"\", \"files\": {\"../file\": 1}}");
    check_state_refused("refused", state, "", "must be a plain file name");
    check_state_refused("nothing", state, "", "no such file");
    free(long_text);
    free(path);
    free(folder);
    fake_state_free(state);
    fake_state_free(to);
    fake_graph_free(graph);
    fake_graph_free(other);
}

static void check_latest(const char *name, const char *wanted)
{
    struct sdp_error err = SDP_ERROR_INIT;
    char *folder = temp_path(name), *path = wanted ? temp_path(wanted) : NULL,
         *found = "untouched";

    REQUIRE_OK(sdp_checkpoint_find_latest(folder, &found, &err), &err);
    CHECK_STR(found ? found : "none", path ? path : "none");
    free(found);
    free(path);
    free(folder);
}

static void test_latest(void)
{
    static const size_t steps[] = {9, 100000000, 50, 200000000};
    struct sdp_model_graph *graph = fake_graph(VOCABULARY, true);
    struct sdp_host_state *state = fake_state(graph);
    struct sdp_train_position position = {.fingerprint = "x"};
    struct sdp_error err = SDP_ERROR_INIT;
    char text[2048], *path;

    fake_state_fill(state, 22);
    check_latest("latest", NULL);
    for (size_t i = 0; i < SDP_COUNT_OF(steps); i++) {
        char *name = sdp_xprintf("latest/step-%08zu", steps[i]);

        path = temp_path(name);
        position.step = steps[i];
        REQUIRE_OK(sdp_checkpoint_save_state(path, state, &position, &err), &err);
        free(path);
        free(name);
    }
    check_latest("latest", "latest/step-200000000");
    path = temp_path("latest/step-999999999.saving"); /* a save that broke off */
    REQUIRE_OK(sdp_make_dirs(path, &err), &err);
    free(path);
    put_file("latest/step-00000abc", "");
    put_file("latest/step-1", "");
    put_file("latest/notes.txt", "");
    check_latest("latest", "latest/step-200000000");
    path = temp_path("latest/step-200000000/state.safetensors");
    REQUIRE(unlink(path) == 0);
    catch_begin();
    check_latest("latest", "latest/step-100000000"); /* damaged ones are passed over */
    catch_end(text, sizeof text);
    CHECK_CONTAINS(text, "step-200000000: is passed over: ");
    free(path);
    path = temp_path("latest/notes.txt");
    {
        char *found = NULL;
        CHECK_EQ(sdp_checkpoint_find_latest(path, &found, &err), SDP_INPUT);
    }
    free(path);
    fake_state_free(state);
    fake_graph_free(graph);
}

/* -- real folders ----------------------------------------------------------------- */

/* A graph of a folder's own tensors: each is a parameter of one storage. */
static struct sdp_model_graph *graph_of(const struct sdp_safetensors_set *set)
{
    struct sdp_model_graph *graph = sdp_xcalloc(1, sizeof *graph);

    graph->name = sdp_xstrdup("golden");
    graph->storage_count = graph->layer_count = 1;
    graph->storages = sdp_xcalloc(1, sizeof *graph->storages);
    graph->layers = sdp_xcalloc(1, sizeof *graph->layers);
    graph->layers[0].ops = sdp_xcalloc(1, sizeof *graph->layers[0].ops);
    graph->layers[0].op_count = 1;
    for (size_t i = 0; i < set->count; i++) {
        const struct sdp_safetensor *tensor = set->members[i].tensor;

        fake_param(&graph->storages[0], tensor->name,
                   tensor->dims == 2 ? tensor->shape[0] : 0,
                   tensor->shape[tensor->dims - 1]);
    }
    return graph;
}

/* Folders that transformers wrote are read, and come back byte for byte. */
static void test_golden(const char *model, enum sdp_dtype dtype, size_t files)
{
    struct sdp_error err = SDP_ERROR_INIT;
    struct sdp_safetensors_set *set = NULL, *again = NULL;
    char *folder = sdp_xprintf("%s/tests/golden/%s/model", SDP_SOURCE_DIR, model);
    char *copy = temp_path(model);
    struct sdp_model_graph *graph;
    struct sdp_host_state *state;

    REQUIRE_OK(sdp_safetensors_set_open_index(folder, "model", &set, &err), &err);
    CHECK_EQ(set->file_count, files);
    graph = graph_of(set);
    state = fake_state(graph);
    REQUIRE_OK(sdp_checkpoint_load_hf(folder, state, 2, &err), &err);
    REQUIRE_OK(sdp_checkpoint_save_hf(copy, state, dtype, NULL, NULL, 0, &err), &err);
    REQUIRE_OK(sdp_safetensors_set_open_index(copy, "model", &again, &err), &err);
    REQUIRE(again->count == set->count && set->count > 10);
    for (size_t i = 0; i < set->count; i++) {
        const struct sdp_safetensor *a = set->members[i].tensor,
                                    *b = again->members[i].tensor;

        CHECK_STR(a->name, b->name);
        CHECK(a->dtype == b->dtype && a->bytes == b->bytes &&
              memcmp(a->data, b->data, a->bytes) == 0);
    }
    sdp_safetensors_set_close(set);
    sdp_safetensors_set_close(again);
    fake_state_free(state);
    fake_graph_free(graph);
    free(copy);
    free(folder);
}

int main(void)
{
    temp_begin();
    test_fp32(false, 0, 1);
    test_fp32(true, 0, 1);
    test_fp32(false, 1000, 8); /* seven shards and the index */
    test_bf16();
    test_fp16();
    test_index();
    test_config();
    test_tied_duplicate();
    test_names();
    test_shapes();
    test_full_disk();
    test_killed();
    test_in_the_way();
    test_probe();
    test_state();
    test_state_refused();
    test_latest();
    test_golden("llama", SDP_FP32, 1);
    test_golden("llama-tied", SDP_FP32, 1);
    test_golden("mistral", SDP_FP32, 4);
    test_golden("qwen2", SDP_BF16, 1);
    test_golden("qwen3", SDP_FP32, 1);
    temp_end();
    return sdp_test_end();
}
