/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Layer plans, against a shadow of each area: every operation marks the bytes it writes with
 * the tensor's number, and what a later one reads must still bear it. So buffers that live
 * at the same time never overlap, saved and recomputed tensors are there when they are
 * needed, and an operation's work area spares all that it and later ones read. */
#include "graph/base/json.h"
#include "graph/layer_plan.h"
#include "model/families/family.h"
#include "tests/sdp_test.h"

#include <limits.h>

#define TOKENS 96u
#define LENGTH 32u
#define UNIT 256u /* bytes to one mark: places are multiples of it */

#define WORK INT_MAX /* mark of a work area */

enum area { IN, OUT, SAVED, SCRATCH, BOUNDARY, AREAS };

struct shadow {
    const struct sdp_layer_plan *plan;
    const char *what; /* for messages */
    int *marks[AREAS];
    size_t units[AREAS];
};

static const enum area area_of[] = {
    [SDP_PLACE_INPUT] = IN,        [SDP_PLACE_OUTPUT] = OUT,       [SDP_PLACE_SAVED] = SAVED,
    [SDP_PLACE_SCRATCH] = SCRATCH, [SDP_PLACE_GRADIENT] = BOUNDARY};

/* Marks: the tensor's number + 1; for its gradient the negative. */
static int value_mark(size_t t)
{
    return (int)t + 1;
}

static int gradient_mark(size_t t)
{
    return -(int)t - 1;
}

static size_t bytes_of(const struct sdp_layer_plan *plan, size_t t)
{
    const struct sdp_graph_tensor *tensor = &plan->layer->tensors[t];

    return plan->tokens * tensor->cols *
           sdp_dtype_size(tensor->fp32 ? SDP_FP32 : plan->dtype);
}

/* The marks of tensor t at its place; NULL, with a failure, if it has none or lies outside. */
static int *find(struct shadow *s, struct sdp_place place, size_t t, size_t *units)
{
    const char *name = s->plan->layer->tensors[t].name;
    size_t bytes = bytes_of(s->plan, t), end;
    enum area area;

    *units = (bytes + UNIT - 1) / UNIT;
    if (place.kind == SDP_PLACE_NONE) {
        SDP_TEST_FAIL("%s: %s: %s has no place", s->what, s->plan->layer->name, name);
        return NULL;
    }
    area = area_of[place.kind];
    end = s->units[area] * UNIT;
    CHECK_EQ(place.offset % UNIT, 0);
    if (place.offset + bytes > end) {
        SDP_TEST_FAIL("%s: %s: %s ends at byte %zu of %zu", s->what, s->plan->layer->name,
                      name, place.offset + bytes, end);
        return NULL;
    }
    return s->marks[area] + place.offset / UNIT;
}

static void write_marks(struct shadow *s, struct sdp_place place, size_t t, int mark)
{
    size_t units;
    int *marks = find(s, place, t, &units);

    for (size_t i = 0; marks && i < units; i++)
        marks[i] = mark;
}

static void read_marks(struct shadow *s, struct sdp_place place, size_t t, int mark)
{
    size_t units;
    int *marks = find(s, place, t, &units);

    sdp_test_checks++;
    for (size_t i = 0; marks && i < units; i++)
        if (marks[i] != mark) {
            SDP_TEST_FAIL("%s: %s: the %s of %s was overwritten by that of %s", s->what,
                          s->plan->layer->name, mark > 0 ? "value" : "gradient",
                          s->plan->layer->tensors[t].name,
                          marks[i] == WORK ? "a work area"
                      : marks[i]       ? s->plan->layer->tensors[abs(marks[i]) - 1].name
                                       : "nothing");
            return;
        }
}

/* The operation scribbles on its work area. */
static void use_work(struct shadow *s, size_t o, size_t offset, bool backward)
{
    const struct sdp_op_node *node = &s->plan->layer->ops[o].node;
    size_t bytes =
        node->op->work_bytes(node, TOKENS, LENGTH, s->plan->dtype, backward, s->plan->cuda);

    CHECK_EQ(offset % UNIT, 0);
    CHECK(offset + bytes <= s->units[SCRATCH] * UNIT);
    for (size_t i = 0; i < (bytes + UNIT - 1) / UNIT; i++)
        s->marks[SCRATCH][offset / UNIT + i] = WORK;
}

static void clear(struct shadow *s, enum area area)
{
    memset(s->marks[area], 0, s->units[area] * sizeof *s->marks[area]);
}

static void run_forward(struct shadow *s, size_t o, const struct sdp_place *places, const size_t *work)
{
    const struct sdp_layer_op *op = &s->plan->layer->ops[o];

    use_work(s, o, work[o], false);
    for (size_t i = 0; i < op->node.output_count; i++)
        write_marks(s, places[op->outputs[i]], (size_t)op->outputs[i],
                    value_mark((size_t)op->outputs[i]));
    for (size_t i = 0; i < op->node.aux_count; i++)
        write_marks(s, places[op->aux[i]], (size_t)op->aux[i],
                    value_mark((size_t)op->aux[i]));
    /* After the writes: outputs must not lie on inputs. */
    for (size_t i = 0; i < op->node.input_count; i++)
        if (op->inputs[i] >= 0)
            read_marks(s, places[op->inputs[i]], (size_t)op->inputs[i],
                       value_mark((size_t)op->inputs[i]));
}

/* What the backward of op o reads besides gradients. */
static void read_needs(struct shadow *s, size_t o)
{
    const struct sdp_layer_op *op = &s->plan->layer->ops[o];
    unsigned needs = op->node.op->is_loss ? ~0u : op->node.op->backward_needs(&op->node);
    const struct sdp_place *places = s->plan->backward;

    for (size_t i = 0; i < op->node.input_count; i++)
        if (op->inputs[i] >= 0 && (needs & SDP_NEED_IN(i)))
            read_marks(s, places[op->inputs[i]], (size_t)op->inputs[i],
                       value_mark((size_t)op->inputs[i]));
    for (size_t i = 0; i < op->node.output_count; i++)
        if (needs & SDP_NEED_OUT(i))
            read_marks(s, places[op->outputs[i]], (size_t)op->outputs[i],
                       value_mark((size_t)op->outputs[i]));
    for (size_t i = 0; i < op->node.aux_count; i++)
        if (needs & SDP_NEED_AUX(i))
            read_marks(s, places[op->aux[i]], (size_t)op->aux[i],
                       value_mark((size_t)op->aux[i]));
}

static bool same_place(struct sdp_place a, struct sdp_place b)
{
    return a.kind == b.kind && a.offset == b.offset;
}

static void run_backward(struct shadow *s, size_t o)
{
    const struct sdp_layer_op *op = &s->plan->layer->ops[o];
    const struct sdp_place *places = s->plan->gradient;
    int through = op->node.op->passthrough_input ? op->node.op->passthrough_input(&op->node) : -1;
    int passed = -1; /* tensor whose gradient is that of the output, untouched */

    use_work(s, o, s->plan->backward_work[o], true);
    if (op->node.op->is_loss)
        use_work(s, o, s->plan->backward_work[o], false);
    for (size_t i = 0; i < op->node.input_count; i++) {
        int t = op->inputs[i];

        if (t < 0)
            continue;
        if (s->plan->add_din[o][i])
            read_marks(s, places[t], (size_t)t, gradient_mark((size_t)t));
        if ((int)i == through && same_place(places[t], places[op->outputs[0]])) {
            CHECK(!s->plan->add_din[o][i]);
            passed = t;
            continue;
        }
        write_marks(s, places[t], (size_t)t, gradient_mark((size_t)t));
    }
    /* After the writes: they must spare what the operation reads. */
    read_needs(s, o);
    for (size_t i = 0; i < op->node.output_count; i++)
        read_marks(s, places[op->outputs[i]], (size_t)op->outputs[i],
                   gradient_mark((size_t)op->outputs[i]));
    if (passed >= 0)
        write_marks(s, places[passed], (size_t)passed, gradient_mark((size_t)passed));
}

static void run_layer(const struct sdp_layer_plan *plan, const char *what)
{
    const struct sdp_layer *layer = plan->layer;
    size_t boundary = 0;
    struct shadow s = {.plan = plan, .what = what};

    if (layer->input >= 0)
        boundary = SDP_MAX(boundary, bytes_of(plan, (size_t)layer->input));
    if (layer->output >= 0)
        boundary = SDP_MAX(boundary, bytes_of(plan, (size_t)layer->output));
    for (size_t a = 0; a < AREAS; a++)
        s.units[a] = (boundary + UNIT - 1) / UNIT;
    s.units[SAVED] = plan->saved_bytes / UNIT;
    s.units[SCRATCH] = SDP_MAX(plan->forward_scratch, plan->backward_scratch) / UNIT;
    for (size_t a = 0; a < AREAS; a++)
        s.marks[a] = sdp_xcalloc(s.units[a] + 1, sizeof *s.marks[a]);

    if (layer->input >= 0)
        write_marks(&s, (struct sdp_place){SDP_PLACE_INPUT, 0}, (size_t)layer->input,
                    value_mark((size_t)layer->input));
    for (size_t o = 0; o < layer->op_count; o++)
        run_forward(&s, o, plan->forward, plan->forward_work);
    if (layer->output >= 0)
        read_marks(&s, (struct sdp_place){SDP_PLACE_OUTPUT, 0}, (size_t)layer->output,
                   value_mark((size_t)layer->output));

    clear(&s, SCRATCH); /* other layers ran in between */
    if (layer->output >= 0)
        write_marks(&s, (struct sdp_place){SDP_PLACE_GRADIENT, 0}, (size_t)layer->output,
                    gradient_mark((size_t)layer->output));
    for (size_t o = 0; o < layer->op_count; o++)
        if (plan->recompute[o])
            run_forward(&s, o, plan->backward, plan->recompute_work);
    for (size_t o = layer->op_count; o-- > 0;)
        run_backward(&s, o);
    if (layer->input >= 0) {
        struct sdp_place last = plan->gradient[layer->input];

        CHECK_EQ(plan->copy_input_gradient, last.kind != SDP_PLACE_GRADIENT);
        read_marks(&s, last, (size_t)layer->input, gradient_mark((size_t)layer->input));
    }
    for (size_t a = 0; a < AREAS; a++)
        free(s.marks[a]);
}

/* Saved tensors are needed by someone and never the boundary ones; a layer that keeps what
 * it needs repeats nothing. */
static void check_keep(const struct sdp_layer *layer, const struct sdp_layer_plan *keep,
                       const struct sdp_layer_plan *repeat)
{
    size_t saved = 0, repeated = 0;
    double flops = 0;

    for (size_t t = 0; t < layer->tensor_count; t++) {
        CHECK(!repeat->saved[t]);
        CHECK(repeat->forward[t].kind != SDP_PLACE_SAVED);
        CHECK_EQ(keep->saved[t], keep->forward[t].kind == SDP_PLACE_SAVED);
        if (keep->saved[t]) {
            CHECK((int)t != layer->input && (int)t != layer->output);
            saved += sdp_round_up(bytes_of(keep, t), UNIT);
        }
    }
    for (size_t o = 0; o < layer->op_count; o++) {
        CHECK(layer->is_loss || !keep->recompute[o]);
        repeated += repeat->recompute[o];
        if (repeat->recompute[o] && !layer->is_loss)
            flops += layer->ops[o].node.op->flops(&layer->ops[o].node, TOKENS, LENGTH, false);
    }
    CHECK_EQ(repeat->saved_bytes, 0);
    CHECK_EQ(keep->saved_bytes, saved);
    CHECK(keep->recompute_flops == 0);
    CHECK_EQ(saved > 0 && !layer->is_loss, repeated > 0 && !layer->is_loss);
    CHECK_NEAR(repeat->recompute_flops, flops, 0);
    CHECK(repeat->recompute_flops <= repeat->forward_flops);
    CHECK(keep->forward_flops == repeat->forward_flops);
    CHECK(keep->backward_flops == repeat->backward_flops);
    CHECK_EQ(keep->tensor_bytes_total, repeat->tensor_bytes_total);
}

/* Each level saves more than the one before and repeats less; the last but one repeats only what costs nothing,
 * in no more memory than the last. */
static void check_ladder(const struct sdp_layer *layer, enum sdp_dtype dtype, const struct sdp_layer_plan *keep,
                         const struct sdp_layer_plan *repeat, const char *name)
{
    struct sdp_error err = SDP_ERROR_INIT;
    size_t saved = 0;
    double flops = repeat->recompute_flops;

    CHECK_EQ(keep->level, keep->levels - 1);
    for (size_t level = 0; level < keep->levels; level++) {
        struct sdp_layer_plan *plan = NULL;

        REQUIRE_OK(sdp_layer_plan_create(layer, TOKENS, LENGTH, dtype, false, level, &plan, &err), &err);
        CHECK_EQ(plan->level, level);
        CHECK_EQ(plan->levels, keep->levels);
        CHECK(plan->saved_bytes >= saved);
        CHECK(plan->recompute_flops <= flops);
        if (level + 2 == plan->levels) {
            CHECK(plan->recompute_flops == 0);
            CHECK(plan->saved_bytes <= keep->saved_bytes);
        }
        saved = plan->saved_bytes;
        flops = plan->recompute_flops;
        run_layer(plan, name);
        sdp_layer_plan_destroy(plan);
    }
}

static void check_graph(const struct sdp_model_graph *graph, const char *name)
{
    static const enum sdp_dtype dtypes[] = {SDP_FP32, SDP_BF16};
    struct sdp_error err = SDP_ERROR_INIT;
    size_t keeping = 0;

    for (size_t l = 0; l < graph->layer_count; l++)
        for (size_t d = 0; d < SDP_COUNT_OF(dtypes); d++) {
            const struct sdp_layer *layer = &graph->layers[l];
            struct sdp_layer_plan *keep = NULL, *repeat = NULL;

            REQUIRE_OK(sdp_layer_plan_create(layer, TOKENS, LENGTH, dtypes[d], false,
                                             SDP_LEVEL_ALL, &keep, &err), &err);
            REQUIRE_OK(sdp_layer_plan_create(layer, TOKENS, LENGTH, dtypes[d], false, 0,
                                             &repeat, &err), &err);
            check_keep(layer, keep, repeat);
            check_ladder(layer, dtypes[d], keep, repeat, name);
            keeping += keep->saved_bytes > 0;
            sdp_layer_plan_destroy(keep);
            sdp_layer_plan_destroy(repeat);
        }
    CHECK(keeping > 0);
}

static void test_graph_files(void)
{
    static const char *const names[] = {"attention", "biases", "ranges",
                                        "tied",      "untied", "written-out"};
    struct sdp_error err = SDP_ERROR_INIT;

    for (size_t i = 0; i < SDP_COUNT_OF(names); i++) {
        struct sdp_model_graph *graph = NULL;
        char *path = sdp_xprintf("%s/tests/graph/graphs/valid/%s/graph.json", SDP_SOURCE_DIR,
                                 names[i]);

        REQUIRE_OK(sdp_model_graph_load(path, &graph, &err), &err);
        check_graph(graph, names[i]);
        sdp_model_graph_destroy(graph);
        free(path);
    }
}

static void test_families(void)
{
    static const char *const names[] = {"llama", "llama-tied-biases", "mistral",
                                        "qwen2", "qwen3",             "rope-yarn"};
    struct sdp_error err = SDP_ERROR_INIT;

    for (size_t i = 0; i < SDP_COUNT_OF(names); i++) {
        struct sdp_model_graph *graph = NULL;
        json_t *config;
        char *path =
            sdp_xprintf("%s/tests/model/families/%s/config.json", SDP_SOURCE_DIR, names[i]);

        config = json_load_file(path, 0, NULL);
        REQUIRE(config != NULL);
        REQUIRE_OK(sdp_family_build(config, path, NULL, &graph, &err), &err);
        check_graph(graph, names[i]);
        sdp_model_graph_destroy(graph);
        json_decref(config);
        free(path);
    }
}

int main(void)
{
    test_graph_files();
    test_families();
    return sdp_test_end();
}
