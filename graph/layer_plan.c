/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Places of a layer's tensors and gradients, by liveness.
 *
 * The backward pass is a list of moments: first the repeated forwards in order,
 * then the backwards in reverse order. A buffer lives from its first to its last
 * moment; buffers that do not overlap share bytes (first fit, largest first).
 * A residual's gradient is the output's gradient itself (passthrough_input), so
 * the boundary gradient is updated in place through the whole layer. */
#include "graph/layer_plan.h"

#include <stdlib.h>

#define ALIGN 256

struct buffer {
    size_t bytes, offset;
    size_t first, last; /* moments */
    bool boundary;      /* the boundary gradient: no scratch needed */
};

struct planner {
    struct sdp_layer_plan *plan;
    const struct sdp_layer *layer;
    bool *needed;          /* per tensor: the backward pass reads it */
    int *gradient_buffer;  /* per tensor: index into buffers, -1 none */
    struct buffer *buffers;
    size_t buffer_count;
    size_t boundary_end;   /* last moment at which the boundary gradient's entry value is used */
};

static size_t tensor_bytes(const struct sdp_layer_plan *plan, size_t t)
{
    const struct sdp_graph_tensor *tensor = &plan->layer->tensors[t];
    enum sdp_dtype dtype = tensor->fp32 ? SDP_FP32 : plan->dtype;
    return sdp_round_up(plan->tokens * tensor->cols * sdp_dtype_size(dtype), ALIGN);
}

static size_t add_buffer(struct planner *p, size_t bytes, size_t first, size_t last)
{
    p->buffers = sdp_xrealloc(p->buffers, (p->buffer_count + 1) * sizeof *p->buffers);
    p->buffers[p->buffer_count] = (struct buffer){bytes, 0, first, last, false};
    return p->buffer_count++;
}

static int by_size(const void *a, const void *b)
{
    const struct buffer *x = *(struct buffer *const *)a, *y = *(struct buffer *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : 1;
}

static bool overlap(const struct buffer *a, const struct buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Lowest offset at which `buffer` meets no placed buffer that lives at the same time. */
static size_t lowest_offset(struct buffer *const *placed, size_t count, const struct buffer *buffer)
{
    size_t offset = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (size_t i = 0; i < count; i++) {
            const struct buffer *other = placed[i];
            if (overlap(other, buffer) && offset < other->offset + other->bytes &&
                other->offset < offset + buffer->bytes) {
                offset = other->offset + other->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

/* Gives every scratch buffer its offset; returns the bytes used. */
static size_t place_buffers(struct buffer *buffers, size_t count)
{
    struct buffer **order = sdp_xcalloc(count + 1, sizeof *order);
    size_t used = 0, n = 0;
    for (size_t i = 0; i < count; i++)
        if (!buffers[i].boundary)
            order[n++] = &buffers[i];
    qsort(order, n, sizeof *order, by_size);
    for (size_t i = 0; i < n; i++) {
        order[i]->offset = lowest_offset(order, i, order[i]);
        used = SDP_MAX(used, order[i]->offset + order[i]->bytes);
    }
    free(order);
    return used;
}

/* -- work areas ------------------------------------------------------------------ */

static size_t work_bytes(const struct planner *p, size_t o, bool backward)
{
    const struct sdp_layer_plan *plan = p->plan;
    const struct sdp_op_node *node = &p->layer->ops[o].node;
    return sdp_round_up(node->op->work_bytes(node, plan->tokens, plan->sequence_length, plan->dtype, backward, plan->cuda),
                        ALIGN);
}

/* A work area lives while its operation runs, at one moment. Its buffer's index goes to *buffer. */
static void add_work(struct planner *p, size_t bytes, size_t moment, size_t *buffer)
{
    *buffer = add_buffer(p, bytes, moment, moment);
}

/* Buffers' indices become offsets. */
static void resolve_work(const struct planner *p, size_t *work)
{
    for (size_t o = 0; o < p->layer->op_count; o++)
        work[o] = p->buffers[work[o]].offset;
}

/* -- forward ------------------------------------------------------------------ */

static size_t last_reader(const struct sdp_layer *layer, size_t t, size_t fallback)
{
    size_t last = fallback;
    for (size_t o = 0; o < layer->op_count; o++)
        for (size_t i = 0; i < layer->ops[o].node.input_count; i++)
            if (layer->ops[o].inputs[i] == (int)t)
                last = o;
    return last;
}

static void place_forward(struct planner *p)
{
    struct sdp_layer_plan *plan = p->plan;
    const struct sdp_layer *layer = p->layer;
    int *buffer = sdp_xcalloc(layer->tensor_count, sizeof *buffer);
    p->buffer_count = 0;
    plan->saved_bytes = 0;
    for (size_t t = 0; t < layer->tensor_count; t++) {
        buffer[t] = -1;
        if ((int)t == layer->input)
            plan->forward[t].kind = SDP_PLACE_INPUT;
        else if ((int)t == layer->output)
            plan->forward[t].kind = SDP_PLACE_OUTPUT;
        else if (plan->saved[t]) {
            plan->forward[t] = (struct sdp_place){SDP_PLACE_SAVED, plan->saved_bytes};
            plan->saved_bytes += tensor_bytes(plan, t);
        } else {
            size_t born = (size_t)layer->tensors[t].producer;
            plan->forward[t].kind = SDP_PLACE_SCRATCH;
            buffer[t] = (int)add_buffer(p, tensor_bytes(plan, t), born, last_reader(layer, t, born));
        }
    }
    for (size_t o = 0; o < layer->op_count; o++)
        add_work(p, work_bytes(p, o, false), o, &plan->forward_work[o]);
    plan->forward_scratch = place_buffers(p->buffers, p->buffer_count);
    resolve_work(p, plan->forward_work);
    for (size_t t = 0; t < layer->tensor_count; t++)
        if (buffer[t] >= 0)
            plan->forward[t].offset = p->buffers[buffer[t]].offset;
    free(buffer);
}

/* -- backward: what is needed ----------------------------------------------------- */

static void mark_needs(struct planner *p, size_t o)
{
    const struct sdp_layer_op *op = &p->layer->ops[o];
    const struct sdp_op_node *node = &op->node;
    unsigned needs = node->op->is_loss ? ~0u : node->op->backward_needs(node);
    for (size_t i = 0; i < node->input_count; i++)
        if (op->inputs[i] >= 0 && (needs & SDP_NEED_IN(i)))
            p->needed[op->inputs[i]] = true;
    for (size_t i = 0; i < node->output_count; i++)
        if (needs & SDP_NEED_OUT(i))
            p->needed[op->outputs[i]] = true;
    for (size_t i = 0; i < node->aux_count; i++)
        if (needs & SDP_NEED_AUX(i))
            p->needed[op->aux[i]] = true;
}

/* A needed tensor that is neither at hand nor saved makes its producer run again,
 * which needs the producer's inputs in turn: walk the ops backwards. */
static void mark_recompute(struct planner *p)
{
    struct sdp_layer_plan *plan = p->plan;
    const struct sdp_layer *layer = p->layer;
    for (size_t o = layer->op_count; o-- > 0;) {
        const struct sdp_layer_op *op = &layer->ops[o];
        bool again = false;
        if (op->node.op->is_loss)
            continue;
        for (size_t i = 0; i < op->node.output_count; i++) {
            int t = op->outputs[i];
            again |= p->needed[t] && !plan->saved[t] && t != layer->output;
        }
        for (size_t i = 0; i < op->node.aux_count; i++)
            again |= p->needed[op->aux[i]] && !plan->saved[op->aux[i]];
        plan->recompute[o] = again;
        for (size_t i = 0; again && i < op->node.input_count; i++)
            if (op->inputs[i] >= 0)
                p->needed[op->inputs[i]] = true;
    }
}

/* -- the ladder of what is saved ------------------------------------------------------ */

/* An operation whose outputs may be saved. */
struct rung {
    size_t op;
    double seconds_per_byte; /* in units of a product's time for one FLOP */
};

/* How many times longer a FLOP of attention takes than one of a plain product (measured on an H200: about 450 and
 * 740 TFLOP/s); only the order of rungs depends on it. */
#define ATTENTION_SLOWNESS 1.6

static double op_cost(const struct planner *p, size_t o)
{
    const struct sdp_op_node *node = &p->layer->ops[o].node;
    double flops = node->op->flops(node, p->plan->tokens, p->plan->sequence_length, false);
    return node->weight_count ? flops : flops * ATTENTION_SLOWNESS;
}

static bool at_hand(const struct planner *p, int t)
{
    return t < 0 || t == p->layer->input || p->needed[t];
}

/* Cost of an operation and of those it makes run again because their outputs are not needed otherwise. */
static double chain_cost(const struct planner *p, size_t o)
{
    const struct sdp_layer_op *op = &p->layer->ops[o];
    double cost = op_cost(p, o);
    for (size_t i = 0; i < op->node.input_count; i++)
        if (!at_hand(p, op->inputs[i]))
            cost += chain_cost(p, (size_t)p->layer->tensors[op->inputs[i]].producer);
    return cost;
}

/* Bytes of an operation's outputs that the backward pass needs (the boundary output is kept anyhow). */
static size_t needed_bytes(const struct planner *p, size_t o)
{
    const struct sdp_layer_op *op = &p->layer->ops[o];
    size_t bytes = 0;
    for (size_t i = 0; i < op->node.output_count; i++)
        if (p->needed[op->outputs[i]] && op->outputs[i] != p->layer->output)
            bytes += tensor_bytes(p->plan, (size_t)op->outputs[i]);
    for (size_t i = 0; i < op->node.aux_count; i++)
        if (p->needed[op->aux[i]])
            bytes += tensor_bytes(p->plan, (size_t)op->aux[i]);
    return bytes;
}

static size_t missing_input_bytes(const struct planner *p, size_t o)
{
    const struct sdp_layer_op *op = &p->layer->ops[o];
    size_t bytes = 0;
    for (size_t i = 0; i < op->node.input_count; i++)
        if (!at_hand(p, op->inputs[i]))
            bytes += tensor_bytes(p->plan, (size_t)op->inputs[i]);
    return bytes;
}

static int by_worth(const void *a, const void *b)
{
    const struct rung *x = a, *y = b;
    if (x->seconds_per_byte != y->seconds_per_byte)
        return x->seconds_per_byte < y->seconds_per_byte ? 1 : -1;
    return (x->op > y->op) - (x->op < y->op);
}

/* Walks the operations backwards: a cheap one whose inputs are at hand, or smaller than its outputs, runs again
 * (its inputs are then needed too); any other is a rung. `needed` is left as all rungs make it. */
static size_t find_rungs(struct planner *p, struct rung *rungs)
{
    size_t count = 0;
    for (size_t o = p->layer->op_count; o-- > 0;) {
        const struct sdp_layer_op *op = &p->layer->ops[o];
        size_t bytes = needed_bytes(p, o);
        if (!bytes)
            continue;
        if (op_cost(p, o) > 0 || missing_input_bytes(p, o) >= bytes) {
            rungs[count++] = (struct rung){o, chain_cost(p, o) / (double)bytes};
            continue;
        }
        for (size_t i = 0; i < op->node.input_count; i++)
            if (op->inputs[i] >= 0)
                p->needed[op->inputs[i]] = true;
    }
    qsort(rungs, count, sizeof *rungs, by_worth);
    return count;
}

static void save_outputs(struct planner *p, size_t o)
{
    const struct sdp_layer_op *op = &p->layer->ops[o];
    for (size_t i = 0; i < op->node.output_count; i++)
        p->plan->saved[op->outputs[i]] = p->needed[op->outputs[i]] && op->outputs[i] != p->layer->output;
    for (size_t i = 0; i < op->node.aux_count; i++)
        p->plan->saved[op->aux[i]] = p->needed[op->aux[i]];
}

/* Fills `saved`; afterwards `needed` is again what the backward operations themselves read. */
static void choose_saved(struct planner *p, size_t level)
{
    const struct sdp_layer *layer = p->layer;
    if (layer->is_loss) {
        p->plan->levels = 1;
        return;
    }
    struct rung *rungs = sdp_xcalloc(layer->op_count + 1, sizeof *rungs);
    bool *read = sdp_xcalloc(layer->tensor_count + 1, sizeof *read);
    memcpy(read, p->needed, layer->tensor_count * sizeof *read);
    size_t count = find_rungs(p, rungs);
    p->plan->levels = count + 2;
    p->plan->level = SDP_MIN(level, p->plan->levels - 1);
    for (size_t k = 0; k < count && k < p->plan->level; k++)
        save_outputs(p, rungs[k].op);
    memcpy(p->needed, read, layer->tensor_count * sizeof *read);
    if (p->plan->level == p->plan->levels - 1)
        for (size_t t = 0; t < layer->tensor_count; t++)
            p->plan->saved[t] = p->needed[t] && (int)t != layer->input && (int)t != layer->output;
    free(rungs);
    free(read);
}

/* -- backward: gradients ------------------------------------------------------------ */

static size_t backward_moment(const struct sdp_layer *layer, size_t o)
{
    return layer->op_count + (layer->op_count - 1 - o);
}

/* Buffer for the first contribution to tensor t's gradient, at the moment of op o. */
static int first_gradient(struct planner *p, size_t t, size_t o)
{
    size_t moment = backward_moment(p->layer, o);
    size_t end = 2 * p->layer->op_count;
    if (p->layer->tensors[t].producer >= 0)
        end = backward_moment(p->layer, (size_t)p->layer->tensors[t].producer);
    size_t b = add_buffer(p, tensor_bytes(p->plan, t), moment, end);
    if ((int)t == p->layer->input && (p->layer->is_loss || p->boundary_end < moment))
        p->buffers[b].boundary = true; /* the entry value is used up: write in place */
    return (int)b;
}

static void plan_input_gradients(struct planner *p, size_t o)
{
    const struct sdp_layer_op *op = &p->layer->ops[o];
    int through = op->node.op->passthrough_input ? op->node.op->passthrough_input(&op->node) : -1;
    for (size_t i = 0; i < op->node.input_count; i++) {
        int t = op->inputs[i];
        if (t < 0)
            continue;
        p->plan->add_din[o][i] = p->gradient_buffer[t] >= 0;
        if (p->gradient_buffer[t] >= 0)
            continue;
        if ((int)i == through && op->node.output_count == 1) {
            int b = p->gradient_buffer[op->outputs[0]];
            p->gradient_buffer[t] = b;
            int producer = p->layer->tensors[t].producer;
            size_t end = producer >= 0 ? backward_moment(p->layer, (size_t)producer)
                                       : 2 * p->layer->op_count;
            p->buffers[b].last = SDP_MAX(p->buffers[b].last, end);
            if (p->buffers[b].boundary)
                p->boundary_end = SDP_MAX(p->boundary_end, end);
        } else {
            p->gradient_buffer[t] = first_gradient(p, (size_t)t, o);
        }
    }
}

static void plan_gradients(struct planner *p)
{
    const struct sdp_layer *layer = p->layer;
    for (size_t t = 0; t < layer->tensor_count; t++)
        p->gradient_buffer[t] = -1;
    p->boundary_end = 0;
    if (layer->output >= 0) {
        int producer = layer->tensors[layer->output].producer;
        size_t end = backward_moment(layer, (size_t)producer);
        size_t b = add_buffer(p, tensor_bytes(p->plan, (size_t)layer->output), 0, end);
        p->buffers[b].boundary = true;
        p->gradient_buffer[layer->output] = (int)b;
        p->boundary_end = end;
    }
    for (size_t o = layer->op_count; o-- > 0;)
        plan_input_gradients(p, o);
    if (layer->input >= 0)
        p->plan->copy_input_gradient = !p->buffers[p->gradient_buffer[layer->input]].boundary;
}

/* -- backward: tensors at hand -------------------------------------------------------- */

static size_t last_backward_use(const struct planner *p, size_t t)
{
    const struct sdp_layer *layer = p->layer;
    size_t last = 0;
    for (size_t o = 0; o < layer->op_count; o++) {
        const struct sdp_layer_op *op = &layer->ops[o];
        bool touches = layer->tensors[t].producer == (int)o;
        for (size_t i = 0; i < op->node.input_count; i++)
            touches |= op->inputs[i] == (int)t;
        if (touches) /* whether it reads it or not: at most a little too long */
            last = SDP_MAX(last, backward_moment(layer, o));
    }
    return last;
}

static int *place_backward_tensors(struct planner *p)
{
    struct sdp_layer_plan *plan = p->plan;
    const struct sdp_layer *layer = p->layer;
    int *buffer = sdp_xcalloc(layer->tensor_count, sizeof *buffer);
    for (size_t t = 0; t < layer->tensor_count; t++) {
        int producer = layer->tensors[t].producer;
        bool again = producer >= 0 && plan->recompute[producer];
        buffer[t] = -1;
        if ((int)t == layer->input)
            plan->backward[t].kind = SDP_PLACE_INPUT;
        else if (plan->saved[t] && !again)
            plan->backward[t] = plan->forward[t];
        else if (again) {
            /* needed by nobody: lives for the moment of its producer only */
            size_t last = p->needed[t] ? last_backward_use(p, t) : (size_t)producer;
            plan->backward[t].kind = SDP_PLACE_SCRATCH;
            buffer[t] = (int)add_buffer(p, tensor_bytes(plan, t), (size_t)producer, last);
        } else if ((int)t == layer->output && p->needed[t])
            plan->backward[t].kind = SDP_PLACE_OUTPUT;
    }
    return buffer;
}

/* A loss does all its work, forward and backward, in the moment of its backward pass. */
static void place_backward_work(struct planner *p)
{
    struct sdp_layer_plan *plan = p->plan;
    for (size_t o = 0; o < p->layer->op_count; o++) {
        size_t forward = work_bytes(p, o, false), backward = work_bytes(p, o, true);
        if (p->layer->ops[o].node.op->is_loss)
            backward = SDP_MAX(forward, backward);
        add_work(p, plan->recompute[o] ? forward : 0, o, &plan->recompute_work[o]);
        add_work(p, backward, backward_moment(p->layer, o), &plan->backward_work[o]);
    }
}

static void place_backward(struct planner *p)
{
    struct sdp_layer_plan *plan = p->plan;
    const struct sdp_layer *layer = p->layer;
    p->buffer_count = 0;
    plan_gradients(p);
    int *buffer = place_backward_tensors(p);
    place_backward_work(p);
    plan->backward_scratch = place_buffers(p->buffers, p->buffer_count);
    resolve_work(p, plan->recompute_work);
    resolve_work(p, plan->backward_work);
    for (size_t t = 0; t < layer->tensor_count; t++) {
        if (buffer[t] >= 0)
            plan->backward[t].offset = p->buffers[buffer[t]].offset;
        if (p->gradient_buffer[t] < 0)
            continue;
        const struct buffer *b = &p->buffers[p->gradient_buffer[t]];
        plan->gradient[t].kind = b->boundary ? SDP_PLACE_GRADIENT : SDP_PLACE_SCRATCH;
        plan->gradient[t].offset = b->offset;
    }
    free(buffer);
}

/* -- totals ----------------------------------------------------------------------------- */

static void add_totals(struct sdp_layer_plan *plan)
{
    const struct sdp_layer *layer = plan->layer;
    for (size_t o = 0; o < layer->op_count; o++) {
        const struct sdp_op_node *node = &layer->ops[o].node;
        double flops = node->op->flops(node, plan->tokens, plan->sequence_length, false);
        plan->forward_flops += flops;
        plan->backward_flops += node->op->flops(node, plan->tokens, plan->sequence_length, true);
        if (plan->recompute[o] && !layer->is_loss)
            plan->recompute_flops += flops;
    }
    for (size_t t = 0; t < layer->tensor_count; t++)
        plan->tensor_bytes_total += tensor_bytes(plan, t);
}

static struct sdp_layer_plan *allocate(const struct sdp_layer *layer)
{
    struct sdp_layer_plan *plan = sdp_xcalloc(1, sizeof *plan);
    plan->layer = layer;
    plan->forward = sdp_xcalloc(layer->tensor_count + 1, sizeof *plan->forward);
    plan->backward = sdp_xcalloc(layer->tensor_count + 1, sizeof *plan->backward);
    plan->gradient = sdp_xcalloc(layer->tensor_count + 1, sizeof *plan->gradient);
    plan->saved = sdp_xcalloc(layer->tensor_count + 1, sizeof *plan->saved);
    plan->recompute = sdp_xcalloc(layer->op_count, sizeof *plan->recompute);
    plan->add_din = sdp_xcalloc(layer->op_count, sizeof *plan->add_din);
    plan->forward_work = sdp_xcalloc(layer->op_count, sizeof *plan->forward_work);
    plan->recompute_work = sdp_xcalloc(layer->op_count, sizeof *plan->recompute_work);
    plan->backward_work = sdp_xcalloc(layer->op_count, sizeof *plan->backward_work);
    return plan;
}

static enum sdp_status check_twins(const struct sdp_layer *layer, bool cuda, struct sdp_error *err)
{
    for (size_t o = 0; o < layer->op_count; o++) {
        const struct sdp_op *op = layer->ops[o].node.op;
        if (cuda ? !op->forward_cuda : !op->forward_cpu)
            return sdp_fail(err, SDP_INPUT, "operation \"%s\" of layer \"%s\" has no %s twin", op->name,
                            layer->name, cuda ? "CUDA" : "CPU");
    }
    return SDP_OK;
}

enum sdp_status sdp_layer_plan_create(const struct sdp_layer *layer, size_t tokens, size_t sequence_length,
                                      enum sdp_dtype dtype, bool cuda, size_t level,
                                      struct sdp_layer_plan **out, struct sdp_error *err)
{
    enum sdp_status rc = check_twins(layer, cuda, err);
    if (rc)
        return rc;
    struct sdp_layer_plan *plan = allocate(layer);
    plan->tokens = tokens;
    plan->sequence_length = sequence_length;
    plan->dtype = dtype;
    plan->cuda = cuda;
    struct planner p = {.plan = plan, .layer = layer};
    p.needed = sdp_xcalloc(layer->tensor_count + 1, sizeof *p.needed);
    p.gradient_buffer = sdp_xcalloc(layer->tensor_count + 1, sizeof *p.gradient_buffer);
    for (size_t o = 0; o < layer->op_count; o++)
        mark_needs(&p, o);
    choose_saved(&p, level);
    mark_recompute(&p);
    place_forward(&p);
    place_backward(&p);
    add_totals(plan);
    free(p.needed);
    free(p.gradient_buffer);
    free(p.buffers);
    *out = plan;
    return SDP_OK;
}

void sdp_layer_plan_destroy(struct sdp_layer_plan *plan)
{
    if (!plan)
        return;
    free(plan->forward);
    free(plan->backward);
    free(plan->gradient);
    free(plan->saved);
    free(plan->recompute);
    free(plan->add_din);
    free(plan->forward_work);
    free(plan->recompute_work);
    free(plan->backward_work);
    free(plan);
}
