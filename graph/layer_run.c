/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runs a layer's operations on one micro-batch, as its plan places them. The
 * same code serves CPU and CUDA: only the twin that is called differs. */
#include "graph/layer_plan.h"

#include "codelets/common/device_memory.h"

static void *at(const struct sdp_layer_io *io, struct sdp_place place)
{
    switch (place.kind) {
    case SDP_PLACE_INPUT:
        return io->input;
    case SDP_PLACE_OUTPUT:
        return io->output;
    case SDP_PLACE_SAVED:
        return io->saved + place.offset;
    case SDP_PLACE_SCRATCH:
        return io->scratch + place.offset;
    case SDP_PLACE_GRADIENT:
        return io->gradient;
    default:
        return NULL;
    }
}

/* What forward and backward calls have in common. */
static struct sdp_op_call prepare(const struct sdp_layer_io *io, size_t o, const struct sdp_place *places)
{
    const struct sdp_layer_op *op = &io->plan->layer->ops[o];
    struct sdp_op_call call = {.node = &op->node, .batch = io->batch, .device = io->device,
                               .dtype = io->plan->dtype};
    /* Layers of one template share ops and shapes, but not parameters: their order in the storage is the same. */
    for (size_t i = 0; i < op->node.weight_count; i++) {
        size_t offset = io->storage->params[op->weights[i]].offset;
        call.weight[i] = io->weights ? (const char *)io->weights + offset * sdp_dtype_size(call.dtype) : NULL;
        call.dweight[i] = io->gradients ? io->gradients + offset : NULL;
    }
    for (size_t i = 0; i < op->node.input_count; i++)
        call.in[i] = op->inputs[i] >= 0 ? at(io, places[op->inputs[i]]) : NULL;
    for (size_t i = 0; i < op->node.output_count; i++)
        call.out[i] = at(io, places[op->outputs[i]]);
    for (size_t i = 0; i < op->node.aux_count; i++)
        call.aux[i] = at(io, places[op->aux[i]]);
    call.add_dweight = io->add_gradients;
    return call;
}

static enum sdp_status call_twin(const struct sdp_layer_io *io, const struct sdp_op_call *call, bool backward)
{
    const struct sdp_op *op = call->node->op;
    if (io->plan->cuda)
        return backward ? op->backward_cuda(call) : op->forward_cuda(call);
    return backward ? op->backward_cpu(call) : op->forward_cpu(call);
}

static enum sdp_status done(const struct sdp_layer_io *io, size_t o, enum sdp_op_pass pass, enum sdp_status rc)
{
    if (io->after_op)
        io->after_op(io->context, o, pass);
    return rc;
}

static enum sdp_status run_loss(const struct sdp_layer_io *io, size_t o, const struct sdp_place *places, size_t work)
{
    const struct sdp_layer_op *op = &io->plan->layer->ops[o];
    struct sdp_op_call call = prepare(io, o, places);
    call.work = io->scratch + work;
    call.loss_scale = io->loss_scale;
    call.loss = io->loss;
    call.logits = io->logits;
    call.want_gradient = io->want_gradient;
    for (size_t i = 0; io->want_gradient && i < op->node.input_count; i++) {
        call.din[i] = op->inputs[i] >= 0 ? at(io, io->plan->gradient[op->inputs[i]]) : NULL;
        call.add_din[i] = io->plan->add_din[o][i];
    }
    return call_twin(io, &call, false);
}

enum sdp_status sdp_layer_forward(const struct sdp_layer_io *io)
{
    const struct sdp_layer *layer = io->plan->layer;
    for (size_t o = 0; o < layer->op_count; o++) {
        enum sdp_status rc;
        if (layer->ops[o].node.op->is_loss) {
            rc = run_loss(io, o, io->plan->forward, io->plan->forward_work[o]);
        } else {
            struct sdp_op_call call = prepare(io, o, io->plan->forward);
            call.work = io->scratch + io->plan->forward_work[o];
            rc = call_twin(io, &call, false);
        }
        rc = done(io, o, SDP_PASS_FORWARD, rc);
        if (rc)
            return rc;
    }
    return SDP_OK;
}

static enum sdp_status recompute(const struct sdp_layer_io *io)
{
    const struct sdp_layer *layer = io->plan->layer;
    for (size_t o = 0; o < layer->op_count; o++) {
        if (!io->plan->recompute[o])
            continue;
        struct sdp_op_call call = prepare(io, o, io->plan->backward);
        call.work = io->scratch + io->plan->recompute_work[o];
        enum sdp_status rc = done(io, o, SDP_PASS_RECOMPUTE, call_twin(io, &call, false));
        if (rc)
            return rc;
    }
    return SDP_OK;
}

static enum sdp_status backward_op(const struct sdp_layer_io *io, size_t o)
{
    const struct sdp_layer_op *op = &io->plan->layer->ops[o];
    struct sdp_op_call call = prepare(io, o, io->plan->backward);
    call.work = io->scratch + io->plan->backward_work[o];
    for (size_t i = 0; i < op->node.output_count; i++)
        call.dout[i] = at(io, io->plan->gradient[op->outputs[i]]);
    for (size_t i = 0; i < op->node.input_count; i++) {
        call.din[i] = op->inputs[i] >= 0 ? at(io, io->plan->gradient[op->inputs[i]]) : NULL;
        call.add_din[i] = io->plan->add_din[o][i];
    }
    return call_twin(io, &call, true);
}

enum sdp_status sdp_layer_backward(const struct sdp_layer_io *io)
{
    const struct sdp_layer_plan *plan = io->plan;
    const struct sdp_layer *layer = plan->layer;
    enum sdp_status rc = recompute(io);
    for (size_t o = layer->op_count; !rc && o-- > 0;) {
        if (layer->ops[o].node.op->is_loss)
            rc = run_loss(io, o, plan->backward, plan->backward_work[o]);
        else
            rc = backward_op(io, o);
        rc = done(io, o, SDP_PASS_BACKWARD, rc);
    }
    if (!rc && layer->input >= 0 && plan->copy_input_gradient) {
        size_t bytes = plan->tokens * layer->tensors[layer->input].cols * sdp_dtype_size(plan->dtype);
        rc = sdp_device_copy(io->gradient, at(io, plan->gradient[layer->input]), bytes, io->device, plan->cuda);
    }
    return rc;
}
