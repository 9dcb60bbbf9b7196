/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Choices and memory of a run. The order: devices and ranks, batch, dtypes,
 * storages and slots, then the activation policy and micro-batch that fit. */
#include "graph/plan.h"

#include "codelets/common/device_memory.h"
#include "graph/base/log.h"

#include <hwloc.h>
#include <stdlib.h>
#include <unistd.h>

#define CUDA_RESERVE ((size_t)1536 << 20) /* context, cuBLAS and cuDNN kernels, StarPU's small buffers */
#define BLAS_WORKSPACE ((size_t)64 << 20)
#define LANDING_BYTES ((size_t)4 << 30)   /* gradients on their way to the host */
#define DEFAULT_CHUNK ((size_t)32 << 20)
#define TARGET_TOKENS_CUDA ((size_t)16384) /* of a micro-batch: large enough for the products */
#define TARGET_TOKENS_CPU ((size_t)1024)   /* small enough for the caches */

/* -- machine ------------------------------------------------------------------------ */

/* Cores that this process may use: the topology's, within its own CPU binding (taskset, batch systems). */
static size_t allowed_cores(void)
{
    hwloc_topology_t topology;
    int cores = 0;
    if (hwloc_topology_init(&topology))
        return 1;
    if (hwloc_topology_load(topology) == 0) {
        hwloc_bitmap_t bound = hwloc_bitmap_alloc();
        cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
        if (bound && hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0)
            cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, bound, HWLOC_OBJ_CORE);
        hwloc_bitmap_free(bound);
    }
    hwloc_topology_destroy(topology);
    return cores > 0 ? (size_t)cores : 1;
}

static size_t largest_divisor(size_t n, size_t limit)
{
    size_t best = 1;
    for (size_t d = 1; d <= n && d <= limit; d++)
        if (n % d == 0)
            best = d;
    return best;
}

static enum sdp_status choose_devices(struct sdp_plan *plan, struct sdp_error *err)
{
    const struct sdp_job *job = plan->job;
    size_t found = sdp_cuda_device_count();
    plan->cores = allowed_cores();
    if (job->runtime.gpus != SDP_AUTO && job->runtime.gpus > found)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/runtime/gpus", 0, 0,
                           "%zu GPUs are asked for, %zu can be used here; use \"auto\" or 0 for CPU ranks",
                           job->runtime.gpus, found);
    size_t gpus = job->runtime.gpus == SDP_AUTO ? found : job->runtime.gpus;
    gpus = SDP_MIN(gpus, (size_t)SDP_MAX_DEVICES);
    plan->ranks = job->runtime.ranks;
    if (plan->ranks == SDP_AUTO) { /* as many as can share the sequences evenly */
        size_t sequences = SDP_MAX(job->train.tokens_per_step / job->data.sequence_length, (size_t)1);
        plan->ranks = largest_divisor(sequences, SDP_MIN(gpus ? gpus : plan->cores, (size_t)SDP_MAX_RANKS));
    }
    plan->cuda = gpus > 0;
    plan->device_count = plan->cuda ? SDP_MIN(gpus, plan->ranks) : 1;
    for (size_t d = 0; d <= plan->device_count; d++)
        plan->first_rank[d] = d * plan->ranks / plan->device_count;
    return SDP_OK;
}

static enum sdp_status check_devices(const struct sdp_plan *plan, struct sdp_error *err)
{
    for (size_t d = 0; plan->cuda && d < plan->device_count; d++) {
        struct sdp_cuda_info info;
        enum sdp_status rc = sdp_cuda_device_info((int)d, &info, err);
        if (rc)
            return rc;
        if (info.major < 8)
            return sdp_fail_at(err, SDP_INPUT, plan->job->path, "/runtime/gpus", 0, 0,
                               "GPU %zu (%s) has compute capability %d.%d; 8.0 or later is needed: set 0 to run on CPU ranks",
                               d, info.name, info.major, info.minor);
    }
    return SDP_OK;
}

static size_t device_memory(const struct sdp_plan *plan)
{
    size_t least = SIZE_MAX;
    for (size_t d = 0; plan->cuda && d < plan->device_count; d++) {
        struct sdp_cuda_info info;
        if (sdp_cuda_device_info((int)d, &info, NULL) == SDP_OK)
            least = SDP_MIN(least, info.free_bytes);
    }
    return SDP_MIN(least, plan->job->runtime.gpu_memory); /* SDP_AUTO is the largest size */
}

static size_t host_memory(const struct sdp_plan *plan)
{
    size_t pages = (size_t)sysconf(_SC_PHYS_PAGES), page = (size_t)sysconf(_SC_PAGESIZE);
    return SDP_MIN(pages * page, plan->job->runtime.host_memory);
}

/* -- batch, dtypes -------------------------------------------------------------------- */

static enum sdp_status choose_batch(struct sdp_plan *plan, size_t sequences, struct sdp_error *err)
{
    const struct sdp_job *job = plan->job;
    plan->sequence_length = job->data.sequence_length;
    plan->sequences_per_step = job->train.tokens_per_step / plan->sequence_length;
    enum sdp_status rc = sdp_job_check_model(job, plan->graph->max_sequence_length, plan->ranks, err);
    if (rc)
        return rc;
    plan->steps = job->train.steps;
    if (plan->steps != SDP_AUTO)
        return SDP_OK;
    if (sequences == SIZE_MAX)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/train/epochs", 0, 0,
                           "synthetic data has no epochs; give train.steps instead");
    double steps = ceil(job->train.epochs * (double)sequences / (double)plan->sequences_per_step);
    plan->steps = steps < 1 ? 1 : (size_t)steps;
    return SDP_OK;
}

static enum sdp_status choose_dtypes(struct sdp_plan *plan, struct sdp_error *err)
{
    const struct sdp_job *job = plan->job;
    plan->compute = plan->cuda ? SDP_BF16 : SDP_FP32;
    if (job->runtime.compute == SDP_COMPUTE_FP32)
        plan->compute = SDP_FP32;
    if (job->runtime.compute == SDP_COMPUTE_BF16 && !plan->cuda)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/runtime/compute", 0, 0,
                           "\"bf16\" needs a GPU; CPU ranks compute in fp32: use \"auto\" or \"fp32\"");
    plan->gradient = plan->compute;
    if (job->runtime.gradients == SDP_GRADIENTS_FP32)
        plan->gradient = SDP_FP32;
    if (job->runtime.gradients == SDP_GRADIENTS_BF16 && plan->compute == SDP_FP32)
        return sdp_fail_at(err, SDP_INPUT, job->path, "/runtime/gradients", 0, 0,
                           "\"bf16\" goes with compute bf16; this run computes in fp32: use \"auto\" or \"fp32\"");
    plan->accumulator = plan->gradient == SDP_BF16;
    plan->two_phase = job->train.clip_norm > 0;
    plan->reduced = plan->gradient == SDP_BF16 && plan->ranks == 1 ? SDP_BF16 : SDP_FP32;
    return SDP_OK;
}

/* -- storages --------------------------------------------------------------------------- */

static bool same_layout(const struct sdp_state_storage *a, const struct sdp_state_storage *b)
{
    if (a->count != b->count || a->chunk_count != b->chunk_count)
        return false;
    for (size_t c = 0; c < a->chunk_count; c++)
        if (a->chunks[c].offset != b->chunks[c].offset || a->chunks[c].count != b->chunks[c].count)
            return false;
    return true;
}

static enum sdp_status classify(struct sdp_plan *plan, struct sdp_error *err)
{
    size_t n = plan->graph->storage_count;
    const struct sdp_state_storage *storages = plan->layout->storages;
    plan->class_of = sdp_xcalloc(n, sizeof *plan->class_of);
    plan->classes = sdp_xcalloc(n, sizeof *plan->classes);
    plan->tied = sdp_xcalloc(n, sizeof *plan->tied);
    for (size_t s = 0; s < n; s++) {
        size_t c = 0;
        while (c < plan->class_count && !same_layout(&storages[plan->classes[c].first], &storages[s]))
            c++;
        if (c == plan->class_count) {
            plan->classes[c] = (struct sdp_storage_class){.first = s, .count = storages[s].count,
                                                          .chunk_count = storages[s].chunk_count};
            plan->class_count++;
        }
        plan->classes[c].members++;
        plan->class_of[s] = c;
    }
    if (plan->class_count > 64)
        return sdp_fail(err, SDP_INPUT, "the model has %zu different layer layouts; at most 64 can be streamed",
                        plan->class_count);
    size_t *visitors = sdp_xcalloc(n, sizeof *visitors);
    for (size_t l = 0; l < plan->graph->layer_count; l++)
        plan->tied[plan->graph->layers[l].storage] |= visitors[plan->graph->layers[l].storage]++ > 0;
    free(visitors);
    return SDP_OK;
}

static void choose_slots(struct sdp_plan *plan)
{
    plan->window = plan->job->runtime.window == SDP_AUTO ? 3 : plan->job->runtime.window;
    for (size_t c = 0; c < plan->class_count; c++) {
        struct sdp_storage_class *class = &plan->classes[c];
        size_t bytes = class->count * sdp_dtype_size(plan->gradient) * plan->ranks;
        class->weight_slots = SDP_MIN(plan->window, class->members);
        size_t landing = SDP_MAX(LANDING_BYTES / SDP_MAX(bytes, (size_t)1), (size_t)2);
        class->gradient_slots = SDP_MIN(SDP_MIN(landing, (size_t)6), class->members);
    }
}

/* -- visits ------------------------------------------------------------------------------ */

static bool backward_needs_weights(const struct sdp_layer_plan *plan)
{
    const struct sdp_layer *layer = plan->layer;
    for (size_t o = 0; o < layer->op_count; o++) {
        const struct sdp_op_node *node = &layer->ops[o].node;
        if (node->weight_count && (node->op->backward_needs_weights || plan->recompute[o] || node->op->is_loss))
            return true;
    }
    return false;
}

static bool has_weights(const struct sdp_layer *layer)
{
    for (size_t o = 0; o < layer->op_count; o++)
        if (layer->ops[o].node.weight_count)
            return true;
    return false;
}

static void add_visit(struct sdp_plan *plan, size_t layer, bool backward)
{
    const struct sdp_layer *l = &plan->graph->layers[layer];
    struct sdp_visit visit = {.layer = layer, .backward = backward, .tenure = SIZE_MAX};
    visit.needs_weights = backward ? backward_needs_weights(plan->layers[layer]) : has_weights(l);
    plan->visits[plan->visit_count++] = visit;
}

/* A storage stays in its slot from one visit to the next when no other storage of
 * its class is wanted in between: one delivery serves both. */
static void find_tenures(struct sdp_plan *plan)
{
    size_t *last = sdp_xcalloc(plan->class_count, sizeof *last); /* visit + 1 */
    size_t tenures = 0;
    for (size_t v = 0; v < plan->visit_count; v++) {
        struct sdp_visit *visit = &plan->visits[v];
        size_t storage = plan->graph->layers[visit->layer].storage;
        size_t class = plan->class_of[storage];
        if (!visit->needs_weights)
            continue;
        struct sdp_visit *before = last[class] ? &plan->visits[last[class] - 1] : NULL;
        if (before && plan->graph->layers[before->layer].storage == storage) {
            before->last_of_tenure = false;
            visit->tenure = before->tenure;
        } else {
            visit->tenure = tenures++;
            visit->first_of_tenure = true;
        }
        visit->last_of_tenure = true;
        last[class] = v + 1;
    }
    free(last);
}

static void find_gradients(struct sdp_plan *plan)
{
    bool *seen = sdp_xcalloc(plan->graph->storage_count, sizeof *seen);
    for (size_t v = 0; v < plan->visit_count; v++) {
        size_t storage = plan->graph->layers[plan->visits[v].layer].storage;
        if (!plan->visits[v].backward)
            continue;
        plan->visits[v].first_gradient = !seen[storage];
        seen[storage] = true;
    }
    memset(seen, 0, plan->graph->storage_count * sizeof *seen);
    for (size_t v = plan->visit_count; v-- > 0;) {
        size_t storage = plan->graph->layers[plan->visits[v].layer].storage;
        if (!plan->visits[v].backward)
            continue;
        plan->visits[v].last_gradient = !seen[storage];
        seen[storage] = true;
    }
    free(seen);
}

static void list_visits(struct sdp_plan *plan)
{
    size_t layers = plan->graph->layer_count;
    free(plan->visits);
    plan->visits = sdp_xcalloc(2 * layers, sizeof *plan->visits);
    plan->visit_count = 0;
    for (size_t l = 0; l < layers; l++)
        if (!plan->graph->layers[l].is_loss)
            add_visit(plan, l, false);
    for (size_t l = layers; l-- > 0;)
        add_visit(plan, l, true);
    find_tenures(plan);
    find_gradients(plan);
}

/* -- layer plans ---------------------------------------------------------------------------- */

static void destroy_layer_plans(struct sdp_plan *plan)
{
    for (size_t l = 0; plan->layers && l < plan->graph->layer_count; l++) {
        bool shared = false;
        for (size_t k = 0; k < l; k++)
            shared |= plan->layers[k] == plan->layers[l];
        if (!shared)
            sdp_layer_plan_destroy(plan->layers[l]);
    }
    free(plan->layers);
    plan->layers = NULL;
}

static enum sdp_status plan_layers(struct sdp_plan *plan, struct sdp_error *err)
{
    const struct sdp_model_graph *graph = plan->graph;
    destroy_layer_plans(plan);
    plan->layers = sdp_xcalloc(graph->layer_count, sizeof *plan->layers);
    for (size_t l = 0; l < graph->layer_count; l++) {
        const struct sdp_layer *before = l ? &graph->layers[l - 1] : NULL;
        if (before && !strcmp(before->template_name, graph->layers[l].template_name)) {
            plan->layers[l] = plan->layers[l - 1];
            continue;
        }
        enum sdp_status rc = sdp_layer_plan_create(&graph->layers[l], plan->tokens, plan->sequence_length,
                                                   plan->compute, plan->cuda, plan->keep ? SDP_LEVEL_ALL : 0, &plan->layers[l], err);
        if (rc) {
            plan->layers[l] = NULL;
            return rc;
        }
    }
    return SDP_OK;
}

/* -- memory ------------------------------------------------------------------------------------ */

static size_t ranks_of(const struct sdp_plan *plan, size_t device)
{
    return plan->first_rank[device + 1] - plan->first_rank[device];
}

static size_t boundary_bytes(const struct sdp_plan *plan)
{
    return sdp_round_up(plan->tokens * plan->graph->hidden * sdp_dtype_size(plan->compute), 256);
}

static size_t accumulator_bytes(const struct sdp_plan *plan, size_t ranks)
{
    size_t shared = 0, tied = 0;
    for (size_t s = 0; s < plan->graph->storage_count; s++) {
        size_t bytes = sdp_round_up(plan->layout->storages[s].count * sizeof(float), 256);
        if (plan->tied[s])
            tied += bytes * ranks;
        else
            shared = SDP_MAX(shared, bytes);
    }
    return shared + tied;
}

void sdp_plan_device_layout(const struct sdp_plan *plan, size_t device, struct sdp_device_layout *out)
{
    size_t ranks = ranks_of(plan, device), per_rank = ranks * plan->micro_batches;
    size_t layers = plan->graph->layer_count;
    memset(out, 0, sizeof *out);
    for (size_t c = 0; c < plan->class_count; c++) {
        const struct sdp_storage_class *class = &plan->classes[c];
        size_t element = sdp_dtype_size(plan->compute);
        if (plan->cuda && plan->compute == SDP_FP32)
            element += 4; /* the weights and remainders as delivered */
        out->weights += class->weight_slots * sdp_round_up(class->count * element, 4096);
        out->gradients += class->gradient_slots * ranks *
                          sdp_round_up(class->count * sdp_dtype_size(plan->gradient), 4096);
    }
    if (plan->accumulator)
        out->accumulators = accumulator_bytes(plan, ranks);
    out->boundaries = (layers - 1) * per_rank * boundary_bytes(plan);
    out->boundary_gradients = per_rank * boundary_bytes(plan);
    size_t scratch = 0;
    for (size_t l = 0; l < layers; l++) {
        const struct sdp_layer_plan *layer = plan->layers[l];
        out->saved += per_rank * sdp_round_up(layer->saved_bytes, 256);
        scratch = SDP_MAX(scratch, SDP_MAX(layer->forward_scratch, layer->backward_scratch));
    }
    /* A GPU runs one layer at a time; on the host each core may. */
    out->scratch = sdp_round_up(scratch, 4096) * (plan->cuda ? 1 : plan->cores);
    out->workspace = plan->cuda ? BLAS_WORKSPACE : 0;
}

static void add_item(struct sdp_plan *plan, const char *name, size_t bytes, bool device)
{
    if (!bytes)
        return;
    plan->items = sdp_xrealloc(plan->items, (plan->item_count + 1) * sizeof *plan->items);
    plan->items[plan->item_count++] = (struct sdp_memory_item){name, bytes, device};
    *(device ? &plan->device_bytes : &plan->host_bytes) += bytes;
}

static size_t packed_elements(const struct sdp_plan *plan)
{
    size_t sum = 0;
    for (size_t s = 0; s < plan->graph->storage_count; s++)
        sum += plan->layout->storages[s].count;
    return sum;
}

static size_t landing_bytes(const struct sdp_plan *plan)
{
    size_t sum = 0;
    for (size_t c = 0; c < plan->class_count; c++)
        sum += plan->classes[c].gradient_slots * plan->ranks *
               sdp_round_up(plan->classes[c].count * sdp_dtype_size(plan->gradient), 4096);
    return sum;
}

static void count_memory(struct sdp_plan *plan)
{
    struct sdp_device_layout most = {0}, layout;
    for (size_t d = 0; d < plan->device_count; d++) {
        sdp_plan_device_layout(plan, d, &layout);
        if (layout.boundaries + layout.saved >= most.boundaries + most.saved)
            most = layout;
    }
    bool device = plan->cuda;
    plan->item_count = 0;
    plan->host_bytes = plan->device_bytes = 0;
    add_item(plan, "weights, remainders, moments", sdp_host_state_bytes(plan->graph), false);
    add_item(plan, "gradients landing", landing_bytes(plan), false);
    add_item(plan, "gradients waiting for the norm",
             plan->two_phase ? packed_elements(plan) * sdp_dtype_size(plan->reduced) : 0, false);
    add_item(plan, "batches", SDP_STEPS_IN_FLIGHT * plan->ranks * plan->micro_batches *
             sdp_round_up(sdp_batch_elements(plan->tokens) * 4, 4096), false);
    add_item(plan, "layer slots", most.weights, device);
    if (device)
        add_item(plan, "gradient slots", most.gradients, device);
    add_item(plan, "gradient accumulators", most.accumulators, device);
    add_item(plan, "boundary activations", most.boundaries, device);
    add_item(plan, "boundary gradients", most.boundary_gradients, device);
    add_item(plan, "kept activations", most.saved, device);
    add_item(plan, "scratch of a layer", most.scratch, device);
    add_item(plan, "BLAS workspace", most.workspace, device);
}

static bool fits(const struct sdp_plan *plan)
{
    if (plan->cuda)
        return plan->device_bytes + CUDA_RESERVE <= plan->device_available;
    return plan->host_bytes <= host_memory(plan) / 10 * 9;
}

/* -- micro-batch and activations ------------------------------------------------------------------ */

static enum sdp_status try_choice(struct sdp_plan *plan, size_t micro_batch, bool keep, struct sdp_error *err)
{
    plan->micro_batch = micro_batch;
    plan->micro_batches = plan->sequences_per_step / plan->ranks / micro_batch;
    plan->tokens = micro_batch * plan->sequence_length;
    plan->keep = keep;
    enum sdp_status rc = plan_layers(plan, err);
    if (!rc)
        count_memory(plan);
    return rc;
}

enum sdp_status sdp_plan_check_fits(const struct sdp_plan *plan, struct sdp_error *err)
{
    if (fits(plan))
        return SDP_OK;
    char need[32], have[32];
    sdp_format_bytes(plan->cuda ? plan->device_bytes + CUDA_RESERVE : plan->host_bytes, need);
    sdp_format_bytes(plan->cuda ? plan->device_available : host_memory(plan), have);
    return sdp_fail_at(err, SDP_INPUT, plan->job->path, plan->cuda ? "/runtime/gpu_memory" : "/runtime/host_memory", 0, 0,
                       "the run needs %s of %s memory and %s are there; lower train.tokens_per_step, data.sequence_length, "
                       "runtime.micro_batch or runtime.window (`slidedp plan` lists every item)",
                       need, plan->cuda ? "GPU" : "host", have);
}

/* Kept activations first, at the micro-batch that suits the device; then recompute; then smaller micro-batches. */
static enum sdp_status choose_activations(struct sdp_plan *plan, struct sdp_error *err)
{
    const struct sdp_job *job = plan->job;
    size_t per_rank = plan->sequences_per_step / plan->ranks;
    size_t target = plan->cuda ? TARGET_TOKENS_CUDA : TARGET_TOKENS_CPU;
    size_t micro = job->runtime.micro_batch;
    bool fixed = micro != SDP_AUTO;
    if (!fixed)
        micro = largest_divisor(per_rank, SDP_MAX(target / plan->sequence_length, (size_t)1));
    for (;;) {
        for (int keep = 1; keep >= 0; keep--) {
            if (job->runtime.activations == (keep ? SDP_ACTIVATIONS_RECOMPUTE : SDP_ACTIVATIONS_KEEP))
                continue;
            enum sdp_status rc = try_choice(plan, micro, keep, err);
            if (rc || fits(plan))
                return rc;
        }
        if (fixed || micro == 1)
            return SDP_OK; /* too large: sdp_plan_check_fits() says so */
        micro = largest_divisor(per_rank, micro - 1);
    }
}

/* The metrics task reads one loss a rank and micro-batch, and a task has a limited number of buffers. */
static enum sdp_status check_micro_batches(const struct sdp_plan *plan, struct sdp_error *err)
{
    size_t losses = plan->ranks * plan->micro_batches;
    if (losses <= SDP_MAX_MICRO_BATCHES)
        return SDP_OK;
    return sdp_fail_at(err, SDP_INPUT, plan->job->path, "/train/tokens_per_step", 0, 0,
                       "makes %zu micro-batches a step over all ranks; at most %d are possible: raise "
                       "runtime.micro_batch or lower train.tokens_per_step", losses, SDP_MAX_MICRO_BATCHES);
}

static void count_tasks(struct sdp_plan *plan)
{
    struct sdp_task_counts *t = &plan->tasks;
    size_t per_visit = plan->ranks * plan->micro_batches;
    memset(t, 0, sizeof *t);
    for (size_t v = 0; v < plan->visit_count; v++) {
        const struct sdp_visit *visit = &plan->visits[v];
        size_t storage = plan->graph->layers[visit->layer].storage;
        size_t chunks = plan->layout->storages[storage].chunk_count;
        if (visit->first_of_tenure)
            t->deliver += chunks * plan->device_count;
        *(visit->backward ? &t->backward : &t->forward) += per_visit;
        if (!visit->backward || !visit->last_gradient)
            continue;
        t->drain += plan->cuda ? chunks * plan->ranks : 0;
        t->reduce += plan->two_phase ? chunks : 0;
        t->update += chunks;
    }
    t->clip = plan->two_phase;
    t->metrics = 1;
}

enum sdp_status sdp_plan_create(const struct sdp_job *job, const struct sdp_model_graph *graph, size_t sequences,
                                struct sdp_plan **out, struct sdp_error *err)
{
    struct sdp_plan *plan = sdp_xcalloc(1, sizeof *plan);
    plan->job = job;
    plan->graph = graph;
    plan->chunk_bytes = job->runtime.chunk == SDP_AUTO ? DEFAULT_CHUNK : job->runtime.chunk;
    enum sdp_status rc = choose_devices(plan, err);
    if (!rc)
        rc = check_devices(plan, err);
    if (!rc)
        rc = choose_batch(plan, sequences, err);
    if (!rc)
        rc = choose_dtypes(plan, err);
    if (!rc)
        rc = sdp_host_state_layout(graph, plan->chunk_bytes, &plan->layout, err);
    if (!rc)
        rc = classify(plan, err);
    if (!rc) {
        plan->device_available = device_memory(plan);
        choose_slots(plan);
        rc = choose_activations(plan, err);
    }
    if (!rc)
        rc = check_micro_batches(plan, err);
    if (rc) {
        sdp_plan_destroy(plan);
        return rc;
    }
    list_visits(plan);
    count_tasks(plan);
    plan->flops = sdp_model_graph_flops(graph, plan->sequences_per_step * plan->sequence_length,
                                        plan->sequence_length);
    *out = plan;
    return SDP_OK;
}

void sdp_plan_destroy(struct sdp_plan *plan)
{
    if (!plan)
        return;
    destroy_layer_plans(plan);
    sdp_host_state_destroy(plan->layout);
    free(plan->class_of);
    free(plan->classes);
    free(plan->tied);
    free(plan->visits);
    free(plan->items);
    free(plan);
}

/* -- plan.json --------------------------------------------------------------------------------------- */

static json_t *dump_items(const struct sdp_plan *plan, bool device)
{
    json_t *object = json_object();
    for (size_t i = 0; i < plan->item_count; i++)
        if (plan->items[i].device == device)
            json_object_set_new(object, plan->items[i].name, json_integer((json_int_t)plan->items[i].bytes));
    return object;
}

json_t *sdp_plan_dump(const struct sdp_plan *plan)
{
    const struct sdp_task_counts *t = &plan->tasks;
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:f, s:{s:o, s:o},"
        " s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}}",
        "devices", plan->cuda ? "cuda" : "cpu", "device_count", (json_int_t)plan->device_count, "ranks",
        (json_int_t)plan->ranks, "steps", (json_int_t)plan->steps, "sequence_length",
        (json_int_t)plan->sequence_length, "sequences_per_step", (json_int_t)plan->sequences_per_step,
        "micro_batch", (json_int_t)plan->micro_batch, "micro_batches", (json_int_t)plan->micro_batches, "compute",
        sdp_dtype_name(plan->compute), "gradients", sdp_dtype_name(plan->gradient), "activations",
        plan->keep ? "keep" : "recompute", "two_phase", plan->two_phase, "window", (json_int_t)plan->window,
        "chunk_bytes", (json_int_t)plan->chunk_bytes, "cores", (json_int_t)plan->cores, "model_flops_per_step",
        plan->flops, "memory", "host", dump_items(plan, false), "device", dump_items(plan, true), "tasks_per_step",
        "deliver", (json_int_t)t->deliver, "forward", (json_int_t)t->forward, "backward", (json_int_t)t->backward,
        "drain", (json_int_t)t->drain, "reduce", (json_int_t)t->reduce, "clip", (json_int_t)t->clip, "update",
        (json_int_t)t->update, "metrics", (json_int_t)t->metrics);
}
