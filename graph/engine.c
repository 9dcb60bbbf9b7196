/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Life of an engine: StarPU, devices, memory, handles. Everything a step touches
 * is allocated here, once. */
#include "graph/engine_internal.h"

#include "codelets/common/device_memory.h"
#include "graph/base/log.h"
#include "graph/slab.h"

#ifdef SDP_HAVE_CUDA
#include "codelets/common/cuda_device.h"
#endif

#include <cblas.h>
#include <dlfcn.h>
#include <limits.h>
#include <starpu_fxt.h>
#include <stdlib.h>
#include <unistd.h>

/* -- arrays ---------------------------------------------------------------------------- */

static struct sdpi_data **class_arrays(const struct sdp_plan *plan, size_t (*size)(const struct sdp_plan *, size_t))
{
    struct sdpi_data **arrays = sdp_xcalloc(plan->class_count, sizeof *arrays);
    for (size_t c = 0; c < plan->class_count; c++)
        arrays[c] = sdp_xcalloc(size(plan, c) + 1, sizeof **arrays);
    return arrays;
}

static size_t slot_chunks(const struct sdp_plan *plan, size_t class)
{
    return plan->classes[class].weight_slots * plan->classes[class].chunk_count;
}

static size_t slot_count(const struct sdp_plan *plan, size_t class)
{
    return plan->classes[class].weight_slots;
}

static size_t gradient_chunks(const struct sdp_plan *plan, size_t class)
{
    return plan->classes[class].gradient_slots * plan->ranks * plan->classes[class].chunk_count;
}

static void allocate_device(struct sdp_engine *e, size_t index)
{
    const struct sdp_plan *plan = e->plan;
    struct sdpi_device *d = &e->devices[index];
    d->index = index;
    d->first_rank = plan->first_rank[index];
    d->ranks = plan->first_rank[index + 1] - d->first_rank;
    d->compute_worker = d->deliver_worker = d->drain_worker = -1;
    size_t per_step = sdpi_per_step(e, d), layers = plan->graph->layer_count, n = plan->graph->storage_count;
    d->slots = class_arrays(plan, slot_chunks);
    d->assembled = class_arrays(plan, slot_count);
    d->admission = class_arrays(plan, slot_count);
    d->stays = sdp_xcalloc(n, sizeof *d->stays);
    d->boundaries = sdp_xcalloc(layers * per_step, sizeof *d->boundaries);
    d->saved = sdp_xcalloc(layers * per_step, sizeof *d->saved);
    d->boundary_gradients = sdp_xcalloc(per_step, sizeof *d->boundary_gradients);
    d->tied_accumulators = sdp_xcalloc(n, sizeof *d->tied_accumulators);
    for (size_t s = 0; s < n; s++)
        if (plan->tied[s])
            d->tied_accumulators[s] = sdp_xcalloc(d->ranks, sizeof **d->tied_accumulators);
    d->batches = sdp_xcalloc(SDP_STEPS_IN_FLIGHT * per_step, sizeof *d->batches);
    d->losses = sdp_xcalloc(SDP_STEPS_IN_FLIGHT * per_step, sizeof *d->losses);
    d->evict = sdp_xcalloc(n, sizeof *d->evict);
    for (size_t s = 0; s < n; s++)
        d->evict[s] = (struct sdpi_engine_evict){e, index, s};
    d->tenures = sdp_xcalloc(plan->class_count, sizeof *d->tenures);
    d->slot_of = sdp_xcalloc(n, sizeof *d->slot_of);
}

void sdpi_engine_allocate(struct sdp_engine *e, const struct sdp_plan *plan, struct sdp_host_state *state)
{
    size_t n = plan->graph->storage_count;
    e->plan = plan;
    e->graph = plan->graph;
    e->state = state;
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->run.lock, NULL);
    pthread_cond_init(&e->done, NULL);
    e->chunk_base = sdp_xcalloc(n, sizeof *e->chunk_base);
    for (size_t s = 0; s < n; s++) {
        e->chunk_base[s] = e->chunk_total;
        e->chunk_total += state->storages[s].chunk_count;
    }
    e->weights = sdp_xcalloc(e->chunk_total, sizeof *e->weights);
    e->remainders = sdp_xcalloc(e->chunk_total, sizeof *e->remainders);
    e->waiting = sdp_xcalloc(e->chunk_total, sizeof *e->waiting);
    e->gradients = class_arrays(plan, gradient_chunks);
    e->gradients_taken = sdp_xcalloc(plan->class_count, sizeof *e->gradients_taken);
    e->gradient_slot = sdp_xcalloc(n, sizeof *e->gradient_slot);
    e->first_delivery = sdp_xcalloc(n, sizeof *e->first_delivery);
    for (size_t s = 0; s < n; s++)
        e->first_delivery[s] = UINT64_MAX;
    const struct sdp_task_counts *t = &plan->tasks;
    e->step_tasks = t->deliver + t->forward + t->backward + t->drain + t->reduce + t->clip + t->update + t->metrics;
    for (size_t r = 0; r < SDP_STEPS_IN_FLIGHT; r++)
        e->ring[r].norms = sdp_xcalloc(state->block_count, sizeof *e->ring[r].norms);
    e->devices = sdp_xcalloc(plan->device_count, sizeof *e->devices);
    for (size_t d = 0; d < plan->device_count; d++)
        allocate_device(e, d);
}

/* Calls f on every handle there may be; `data` is what f needs. */
static void each_data(struct sdp_engine *e, void (*f)(struct sdpi_data *))
{
    const struct sdp_plan *plan = e->plan;
    for (size_t c = 0; c < e->chunk_total; c++) {
        f(&e->weights[c]);
        f(&e->remainders[c]);
        f(&e->waiting[c]);
    }
    for (size_t c = 0; c < plan->class_count; c++)
        for (size_t i = 0; i < gradient_chunks(plan, c); i++)
            f(&e->gradients[c][i]);
    for (size_t r = 0; r < SDP_STEPS_IN_FLIGHT; r++) {
        f(&e->norm_ready[r]);
        f(&e->clip_ready[r]);
    }
    for (size_t i = 0; i < plan->device_count; i++) {
        struct sdpi_device *d = &e->devices[i];
        size_t per_step = sdpi_per_step(e, d), layers = plan->graph->layer_count;
        for (size_t c = 0; c < plan->class_count; c++) {
            for (size_t k = 0; k < slot_chunks(plan, c); k++)
                f(&d->slots[c][k]);
            for (size_t k = 0; k < slot_count(plan, c); k++) {
                f(&d->assembled[c][k]);
                f(&d->admission[c][k]);
            }
        }
        for (size_t s = 0; s < plan->graph->storage_count; s++) {
            f(&d->stays[s]);
            for (size_t r = 0; d->tied_accumulators[s] && r < d->ranks; r++)
                f(&d->tied_accumulators[s][r]);
        }
        f(&d->accumulator);
        for (size_t k = 0; k < layers * per_step; k++) {
            f(&d->boundaries[k]);
            f(&d->saved[k]);
        }
        for (size_t k = 0; k < per_step; k++)
            f(&d->boundary_gradients[k]);
        for (size_t k = 0; k < SDP_STEPS_IN_FLIGHT * per_step; k++) {
            f(&d->batches[k]);
            f(&d->losses[k]);
        }
    }
}

static void free_classes(const struct sdp_plan *plan, struct sdpi_data **arrays)
{
    for (size_t c = 0; c < plan->class_count; c++)
        free(arrays[c]);
    free(arrays);
}

static void forget(struct sdpi_data *data)
{
    free(data->readers);
    data->readers = NULL;
}

static void free_device(struct sdp_engine *e, struct sdpi_device *d)
{
    free_classes(e->plan, d->slots);
    free_classes(e->plan, d->assembled);
    free_classes(e->plan, d->admission);
    for (size_t s = 0; s < e->plan->graph->storage_count; s++)
        free(d->tied_accumulators[s]);
    free(d->tied_accumulators);
    free(d->stays);
    free(d->boundaries);
    free(d->saved);
    free(d->boundary_gradients);
    free(d->batches);
    free(d->losses);
    free(d->evict);
    free(d->tenures);
    free(d->slot_of);
    free(d->compute.scratch);
}

void sdpi_engine_free(struct sdp_engine *e)
{
    each_data(e, forget);
    for (size_t d = 0; d < e->plan->device_count; d++)
        free_device(e, &e->devices[d]);
    free_classes(e->plan, e->gradients);
    for (size_t r = 0; r < SDP_STEPS_IN_FLIGHT; r++)
        free(e->ring[r].norms);
    free(e->devices);
    free(e->chunk_base);
    free(e->weights);
    free(e->remainders);
    free(e->waiting);
    free(e->gradients_taken);
    free(e->gradient_slot);
    free(e->first_delivery);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->run.lock);
    pthread_cond_destroy(&e->done);
}

/* -- StarPU ------------------------------------------------------------------------------- */

/* The plug-in lies next to the program in a build folder, or in the library folder of its prefix. */
static bool find_plugin(char *path, size_t size)
{
    char program[PATH_MAX - 64];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = 0;
        char *slash = strrchr(program, '/');
        for (int up = 0; up < 2 && slash; up++) { /* its folder, then the one above (tests) */
            *slash = 0;
            snprintf(path, size, "%s/libslidedp-policies.so", program);
            if (sdp_path_exists(path))
                return true;
            snprintf(path, size, "%s/" SDP_LIBDIR "/libslidedp-policies.so", program);
            if (sdp_path_exists(path))
                return true;
            slash = strrchr(program, '/');
        }
    }
    snprintf(path, size, "%s", SDP_PLUGIN_INSTALLED);
    return sdp_path_exists(path);
}

static void set_home(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (getenv("STARPU_HOME"))
        return;
    char *path = cache && *cache ? sdp_path_join(cache, "slidedp")
                                 : sdp_xprintf("%s/.cache/slidedp", home && *home ? home : "/tmp");
    struct sdp_error ignored = SDP_ERROR_INIT;
    if (sdp_make_dirs(path, &ignored) == SDP_OK)
        setenv("STARPU_HOME", path, 0);
    free(path);
}

static void set_environment(const struct sdp_engine_options *options)
{
    char plugin[PATH_MAX];
    if (!getenv("STARPU_SCHED_LIB") && find_plugin(plugin, sizeof plugin))
        setenv("STARPU_SCHED_LIB", plugin, 0);
    set_home();
    setenv("STARPU_SILENT", "1", 0);
    /* Nothing is to be written back or thrown out behind the graph's back. */
    setenv("STARPU_MINIMUM_CLEAN_BUFFERS", "0", 0);
    setenv("STARPU_TARGET_CLEAN_BUFFERS", "0", 0);
    setenv("STARPU_CUDA_ONLY_FAST_ALLOC_OTHER_MEMNODES", "1", 0);
    if (!options->trace_dir)
        return;
    setenv("STARPU_FXT_TRACE", "1", 1);
    setenv("STARPU_FXT_PREFIX", options->trace_dir, 1);
    setenv("STARPU_FXT_SUFFIX", "trace.fxt", 1);
    setenv("STARPU_GENERATE_TRACE", "0", 1);
}

static enum sdp_status check_policy(const char *wanted, struct sdp_error *err)
{
    struct starpu_sched_policy *policy = starpu_sched_get_sched_policy();
    const char *asked = getenv("STARPU_SCHED") ? getenv("STARPU_SCHED") : wanted;
    if (policy && strcmp(policy->policy_name, asked) == 0)
        return SDP_OK;
    return sdp_fail(err, SDP_INPUT,
                    "there is no scheduling policy \"%s\" (StarPU fell back to \"%s\"); `slidedp policies` lists them",
                    asked, policy ? policy->policy_name : "none");
}

static enum sdp_status start_starpu(struct sdp_engine *e, const struct sdp_engine_options *options, struct sdp_error *err)
{
    struct starpu_conf conf;
    size_t gpus = e->plan->cuda ? e->plan->device_count : 0;
    size_t spare = gpus ? gpus + 1 : 0; /* the cores that drive GPUs, and the main thread's */
    set_environment(options);
    openblas_set_num_threads(1); /* each CPU worker is one core: more threads would break binding and bit-identity */
    if (starpu_conf_init(&conf) != 0)
        return sdp_fail(err, SDP_RUNTIME, "starpu_conf_init failed");
    conf.sched_policy_name = options->policy;
    conf.ncuda = (int)gpus;
    conf.ncpus = (int)(e->plan->cores > spare ? e->plan->cores - spare : 1);
    conf.catch_signals = 0;
    if (gpus) {
        conf.use_explicit_workers_cuda_gpuid = 1;
        for (size_t g = 0; g < gpus; g++)
            conf.workers_cuda_gpuid[g] = (unsigned)g;
    }
    if (options->trace_dir)
        starpu_fxt_autostart_profiling(0);
    int rc = starpu_init(&conf);
    if (rc != 0)
        return sdp_fail(err, SDP_RUNTIME, "StarPU does not start: %s", strerror(-rc));
    e->started = true;
    sdp_slab_init();
    return check_policy(options->policy, err);
}

/* -- devices --------------------------------------------------------------------------------- */

static enum sdp_status choose_workers(struct sdp_engine *e, struct sdp_error *err)
{
    int cpu[STARPU_NMAXWORKERS], cuda[STARPU_NMAXWORKERS];
    size_t cpus = (size_t)starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, cpu, STARPU_NMAXWORKERS);
    size_t gpus = (size_t)starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, cuda, STARPU_NMAXWORKERS);
    for (size_t i = 0; i < e->plan->device_count; i++) {
        struct sdpi_device *d = &e->devices[i];
        d->node = STARPU_MAIN_RAM;
        if (!e->plan->cuda)
            continue;
        d->compute_worker = i < gpus ? cuda[i] : -1;
        if (d->compute_worker < 0)
            return sdp_fail(err, SDP_RUNTIME, "StarPU uses %zu of %zu GPUs; is STARPU_NCUDA set?", gpus,
                            e->plan->device_count);
        d->compute_mask[d->compute_worker / 32] = 1u << (d->compute_worker % 32);
        d->node = starpu_worker_get_memory_node((unsigned)d->compute_worker);
        if (cpus < 2 * gpus + 1)
            continue; /* too few cores to reserve any: copies wait on whichever worker is free */
        d->deliver_worker = cpu[2 * i];
        d->drain_worker = cpu[2 * i + 1];
    }
    return SDP_OK;
}

#ifdef SDP_HAVE_CUDA
struct cuda_setup {
    struct sdpi_device *device;
    enum sdp_status rc;
};

static void setup_cuda_worker(void *arg)
{
    struct cuda_setup *setup = arg;
    setup->rc = sdp_op_device_create_cuda(starpu_worker_get_devid(starpu_worker_get_id()),
                                          starpu_cuda_get_local_stream(), &setup->device->compute.ops);
}

static void teardown_cuda_worker(void *arg)
{
    sdp_op_device_destroy_cuda(&((struct cuda_setup *)arg)->device->compute.ops);
}

static void on_worker(struct sdpi_device *d, void (*f)(void *), struct cuda_setup *setup)
{
    unsigned worker = (unsigned)d->compute_worker;
    starpu_execute_on_specific_workers(f, setup, 1, &worker, "device");
}
#endif

static enum sdp_status prepare_ops(struct sdp_engine *e, struct sdpi_device *d, struct sdp_error *err)
{
#ifdef SDP_HAVE_CUDA
    if (e->plan->cuda) {
        struct cuda_setup setup = {d, SDP_OK};
        on_worker(d, setup_cuda_worker, &setup);
        if (setup.rc)
            return sdp_fail(err, setup.rc, "GPU %zu: the CUDA libraries cannot be set up", d->index);
    }
#endif
    (void)err;
    d->compute.ops.deterministic = e->plan->job->runtime.deterministic;
    return SDP_OK;
}

/* Hands out the device's memory piece by piece. */
struct carver {
    uint8_t *base;
    size_t used;
};

static void *carve(struct carver *c, size_t bytes)
{
    void *pointer = c->base + c->used;
    c->used += sdp_round_up(bytes, 256);
    return pointer;
}

static size_t device_bytes(const struct sdp_plan *plan, size_t device)
{
    struct sdp_device_layout l;
    sdp_plan_device_layout(plan, device, &l);
    size_t gradients = plan->cuda ? l.gradients : 0; /* CPU ranks write them where they are read */
    size_t bytes = l.weights + gradients + l.accumulators + l.boundaries + l.boundary_gradients + l.saved + l.scratch;
    return bytes + ((size_t)1 << 20); /* roundings */
}

static enum sdp_status allocate_memory(struct sdp_engine *e, struct sdpi_device *d, struct sdp_error *err)
{
    size_t bytes = device_bytes(e->plan, d->index);
    char text[32];
    if (!e->plan->cuda) {
        enum sdp_status rc = sdp_arena_create(bytes, 0, false, "CPU ranks", &d->arena, err);
        if (!rc)
            d->memory = sdp_arena_take(d->arena, bytes);
        return rc;
    }
    d->memory = sdp_cuda_malloc((int)d->index, bytes);
    if (d->memory)
        return SDP_OK;
    return sdp_fail(err, SDP_DEVICE_MEMORY, "GPU %zu has no %s free in one piece; set runtime.gpu_memory lower", d->index,
                    sdp_format_bytes(bytes, text));
}

static void register_variable(const struct sdpi_device *d, struct sdpi_data *data, void *pointer, size_t bytes,
                              const char *name)
{
    starpu_variable_data_register(&data->handle, (int)d->node, (uintptr_t)pointer, bytes);
    starpu_data_set_name(data->handle, name);
}

/* Pools of a node: for class c, 3c weights, 3c + 1 remainders, 3c + 2 gradients. */
static void carve_slots(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    const struct sdp_plan *plan = e->plan;
    bool halves = plan->compute == SDP_FP32;
    for (size_t c = 0; c < plan->class_count; c++) {
        const struct sdp_storage_class *class = &plan->classes[c];
        size_t full = sdp_round_up(class->count * 4, 256), half = sdp_round_up(class->count * 2, 256);
        size_t gradient = sdp_round_up(class->count * sdp_dtype_size(plan->gradient), 256);
        uint32_t slots = (uint32_t)class->weight_slots;
        if (plan->cuda) {
            sdp_slab_add_pool(d->node, (uint32_t)(3 * c), carve(carver, slots * half), half, slots);
            if (halves)
                sdp_slab_add_pool(d->node, (uint32_t)(3 * c + 1), carve(carver, slots * half), half, slots);
            /* gradient slots of all ranks; only this device's are ever used here */
            uint32_t count = (uint32_t)(class->gradient_slots * d->ranks);
            sdp_slab_add_pool(d->node, (uint32_t)(3 * c + 2), carve(carver, count * gradient), gradient, count);
        }
        for (size_t s = 0; s < class->weight_slots; s++) {
            if (plan->cuda) {
                starpu_void_data_register(&d->admission[c][s].handle);
                if (halves)
                    register_variable(d, &d->assembled[c][s], carve(carver, full), full, "assembled");
                continue;
            }
            uint8_t *slot = carve(carver, full);
            const struct sdp_state_storage *layout = &e->state->storages[class->first];
            for (size_t k = 0; k < class->chunk_count; k++)
                sdp_chunk_register(&d->slots[c][s * class->chunk_count + k].handle, slot + layout->chunks[k].offset * 4,
                                   layout->chunks[k].count * 4, (uint32_t)(3 * c), (uint32_t)s,
                                   layout->chunks[k].offset * 4, false);
        }
    }
}

static void carve_accumulators(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    size_t shared = 0;
    for (size_t s = 0; s < e->graph->storage_count; s++) {
        size_t bytes = sdp_round_up(e->state->storages[s].count * sizeof(float), 256);
        if (!e->plan->tied[s])
            shared = SDP_MAX(shared, bytes);
        for (size_t r = 0; e->plan->tied[s] && r < d->ranks; r++)
            register_variable(d, &d->tied_accumulators[s][r], carve(carver, bytes), bytes, "tied accumulator");
    }
    if (shared)
        register_variable(d, &d->accumulator, carve(carver, shared), shared, "accumulator");
}

static void carve_activations(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    const struct sdp_plan *plan = e->plan;
    size_t per_step = sdpi_per_step(e, d);
    for (size_t l = 0; l < e->graph->layer_count; l++) {
        const struct sdp_layer *layer = &e->graph->layers[l];
        for (size_t k = 0; k < per_step; k++) {
            size_t saved = plan->layers[l]->saved_bytes;
            size_t boundary = plan->tokens * e->graph->hidden * sdp_dtype_size(plan->compute);
            if (layer->output >= 0)
                register_variable(d, &d->boundaries[l * per_step + k], carve(carver, boundary), boundary, "boundary");
            if (saved)
                register_variable(d, &d->saved[l * per_step + k], carve(carver, saved), saved, "saved");
        }
    }
    size_t gradient = plan->tokens * e->graph->hidden * sdp_dtype_size(plan->compute);
    for (size_t k = 0; k < per_step; k++)
        register_variable(d, &d->boundary_gradients[k], carve(carver, gradient), gradient, "boundary gradient");
}

static void carve_scratch(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    struct sdp_device_layout layout;
    sdp_plan_device_layout(e->plan, d->index, &layout);
    d->compute.scratch = sdp_xcalloc(STARPU_NMAXWORKERS, sizeof *d->compute.scratch);
    if (e->plan->cuda) {
        d->compute.scratch[d->compute_worker] = carve(carver, layout.scratch);
        return;
    }
    size_t each = layout.scratch / e->plan->cores;
    int cpu[STARPU_NMAXWORKERS];
    int cpus = starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, cpu, STARPU_NMAXWORKERS);
    for (int i = 0; i < cpus && (size_t)i < e->plan->cores; i++)
        d->compute.scratch[cpu[i]] = carve(carver, each);
}

static enum sdp_status create_device(struct sdp_engine *e, struct sdpi_device *d, struct sdp_error *err)
{
    enum sdp_status rc = prepare_ops(e, d, err);
    if (!rc)
        rc = allocate_memory(e, d, err);
    if (rc)
        return rc;
    struct carver carver = {d->memory, 0};
    d->deliver = sdp_codelet_deliver_cuda;
    for (size_t i = 0; i < STARPU_NMAXBUFS; i++)
        d->deliver.nodes[i] = STARPU_SPECIFIC_NODE_NONE;
    d->deliver.nodes[0] = (int)d->node;
    if (e->plan->compute == SDP_FP32)
        d->deliver.nodes[1] = (int)d->node;
    carve_slots(e, d, &carver);
    if (e->plan->accumulator)
        carve_accumulators(e, d, &carver);
    carve_activations(e, d, &carver);
    carve_scratch(e, d, &carver);
    for (size_t s = 0; s < e->graph->storage_count && e->plan->cuda; s++)
        starpu_void_data_register(&d->stays[s].handle);
    return SDP_OK;
}

/* -- state, gradients, batches ----------------------------------------------------------------- */

static void register_state(struct sdp_engine *e)
{
    const struct sdp_plan *plan = e->plan;
    for (size_t s = 0; s < e->graph->storage_count; s++) {
        struct sdp_state_storage *storage = &e->state->storages[s];
        uint32_t pool = (uint32_t)(3 * plan->class_of[s]);
        for (size_t c = 0; c < storage->chunk_count; c++) {
            const struct sdp_chunk *chunk = &storage->chunks[c];
            size_t i = e->chunk_base[s] + c;
            sdp_chunk_register(&e->weights[i].handle, storage->weight + chunk->offset, chunk->count * 2, pool,
                               (uint32_t)s, chunk->offset * 2, false);
            sdp_chunk_register(&e->remainders[i].handle, storage->remainder + chunk->offset, chunk->count * 2,
                               pool + 1, (uint32_t)s, chunk->offset * 2, false);
            starpu_data_set_name(e->weights[i].handle, "weights");
            starpu_data_set_name(e->remainders[i].handle, "remainders");
        }
    }
}

/* Owner number of a rank's gradient slot on its device: the slot itself. */
static uint32_t gradient_owner(const struct sdp_engine *e, size_t slot, size_t rank)
{
    size_t d = 0;
    while (rank >= e->plan->first_rank[d + 1])
        d++;
    return (uint32_t)(slot * e->devices[d].ranks + rank - e->devices[d].first_rank);
}

static void register_gradients(struct sdp_engine *e)
{
    const struct sdp_plan *plan = e->plan;
    size_t element = sdp_dtype_size(plan->gradient);
    for (size_t c = 0; c < plan->class_count; c++) {
        const struct sdp_storage_class *class = &plan->classes[c];
        const struct sdp_state_storage *layout = &e->state->storages[class->first];
        for (size_t s = 0; s < class->gradient_slots; s++)
            for (size_t r = 0; r < plan->ranks; r++) {
                uint8_t *memory = sdp_arena_take(e->landing, class->count * element);
                for (size_t k = 0; k < class->chunk_count; k++) {
                    struct sdpi_data *data = &e->gradients[c][(s * plan->ranks + r) * class->chunk_count + k];
                    sdp_chunk_register(&data->handle, memory + layout->chunks[k].offset * element,
                                       layout->chunks[k].count * element, (uint32_t)(3 * c + 2),
                                       gradient_owner(e, s, r), layout->chunks[k].offset * element, true);
                    starpu_data_set_name(data->handle, "gradients");
                }
            }
    }
}

static void register_waiting(struct sdp_engine *e)
{
    size_t element = sdp_dtype_size(e->plan->reduced);
    for (size_t s = 0; s < e->graph->storage_count; s++) {
        const struct sdp_state_storage *storage = &e->state->storages[s];
        uint8_t *memory = sdp_arena_take(e->landing, storage->count * element);
        for (size_t c = 0; c < storage->chunk_count; c++) {
            struct sdpi_data *data = &e->waiting[e->chunk_base[s] + c];
            sdp_chunk_register(&data->handle, memory + storage->chunks[c].offset * element,
                               storage->chunks[c].count * element, SDP_SLAB_POOLS - 1, 0, 0, false);
            starpu_data_set_name(data->handle, "waiting gradients");
        }
    }
}

static enum sdp_status create_gradients(struct sdp_engine *e, struct sdp_error *err)
{
    const struct sdp_plan *plan = e->plan;
    size_t bytes = 0;
    for (size_t c = 0; c < plan->class_count; c++)
        bytes += plan->classes[c].gradient_slots * plan->ranks *
                 sdp_round_up(plan->classes[c].count * sdp_dtype_size(plan->gradient), 4096);
    for (size_t s = 0; plan->two_phase && s < e->graph->storage_count; s++)
        bytes += sdp_round_up(e->state->storages[s].count * sdp_dtype_size(plan->reduced), 4096);
    enum sdp_status rc = sdp_arena_create(bytes, 0, plan->cuda, "gradients", &e->landing, err);
    if (rc)
        return rc;
    register_gradients(e);
    if (plan->two_phase)
        register_waiting(e);
    return SDP_OK;
}

static enum sdp_status create_batches(struct sdp_engine *e, struct sdp_error *err)
{
    size_t bytes = sdp_round_up(sdp_batch_elements(e->plan->tokens) * sizeof(int32_t), 4096);
    size_t loss_bytes = sdp_round_up(e->plan->ranks * e->plan->micro_batches * sizeof(double), 4096);
    size_t count = SDP_STEPS_IN_FLIGHT * e->plan->ranks * e->plan->micro_batches;
    enum sdp_status rc = sdp_arena_create(count * bytes + SDP_STEPS_IN_FLIGHT * loss_bytes, 1, e->plan->cuda, "batches",
                                          &e->batch_arena, err);
    if (rc)
        return rc;
    for (size_t r = 0; r < SDP_STEPS_IN_FLIGHT; r++) {
        double *losses = sdp_arena_take(e->batch_arena, loss_bytes);
        for (size_t i = 0; i < e->plan->device_count; i++) {
            struct sdpi_device *d = &e->devices[i];
            size_t per_step = sdpi_per_step(e, d);
            for (size_t k = 0; k < per_step; k++) {
                struct sdpi_data *batch = &d->batches[r * per_step + k], *loss = &d->losses[r * per_step + k];
                starpu_variable_data_register(&batch->handle, STARPU_MAIN_RAM,
                                              (uintptr_t)sdp_arena_take(e->batch_arena, bytes), bytes);
                starpu_variable_data_register(&loss->handle, STARPU_MAIN_RAM, (uintptr_t)losses++, sizeof(double));
                starpu_data_set_name(batch->handle, "batch");
                starpu_data_set_name(loss->handle, "loss");
            }
        }
        starpu_void_data_register(&e->norm_ready[r].handle);
        starpu_void_data_register(&e->clip_ready[r].handle);
    }
    return SDP_OK;
}

/* -- create, destroy ------------------------------------------------------------------------------ */

enum sdp_status sdp_engine_create(const struct sdp_plan *plan, struct sdp_host_state *state,
                                  const struct sdp_engine_options *options, struct sdp_engine **out,
                                  struct sdp_error *err)
{
    struct sdp_engine *e = sdp_xcalloc(1, sizeof *e);
    e->trace_dir = options->trace_dir;
    sdpi_engine_allocate(e, plan, state);
    enum sdp_status rc = start_starpu(e, options, err);
    if (!rc)
        rc = choose_workers(e, err);
    if (!rc)
        register_state(e);
    for (size_t d = 0; !rc && d < plan->device_count; d++)
        rc = create_device(e, &e->devices[d], err);
    if (!rc)
        rc = create_gradients(e, err);
    if (!rc)
        rc = create_batches(e, err);
    if (rc) {
        sdp_engine_destroy(e);
        return rc;
    }
    *out = e;
    return SDP_OK;
}

static void unregister(struct sdpi_data *data)
{
    if (data->handle)
        starpu_data_unregister(data->handle);
    data->handle = NULL;
}

size_t sdp_engine_slot_failures(const struct sdp_engine *engine)
{
    size_t sum = 0;
    for (size_t d = 0; engine->plan->cuda && d < engine->plan->device_count; d++)
        sum += sdp_slab_failures(engine->devices[d].node);
    return sum;
}

static void destroy_device(struct sdp_engine *e, struct sdpi_device *d)
{
#ifdef SDP_HAVE_CUDA
    if (e->plan->cuda && d->compute_worker >= 0) {
        struct cuda_setup setup = {d, SDP_OK};
        on_worker(d, teardown_cuda_worker, &setup);
    }
#endif
    if (e->plan->cuda) {
        sdp_slab_remove_pools(d->node);
        sdp_cuda_free((int)d->index, d->memory);
    }
    sdp_arena_destroy(d->arena);
}

void sdp_engine_destroy(struct sdp_engine *e)
{
    if (!e)
        return;
    if (e->started) {
        starpu_task_wait_for_all();
        each_data(e, unregister);
        for (size_t d = 0; d < e->plan->device_count; d++)
            destroy_device(e, &e->devices[d]);
        starpu_shutdown();
    }
    sdp_arena_destroy(e->landing);
    sdp_arena_destroy(e->batch_arena);
    sdpi_engine_free(e);
    free(e);
}
