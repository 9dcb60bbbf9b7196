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
    size_t per_step = sdpi_per_step(e, d), units = sdpi_units(e, d);
    size_t layers = plan->graph->layer_count, n = plan->graph->storage_count;
    d->slots = class_arrays(plan, slot_chunks);
    d->assembled = class_arrays(plan, slot_count);
    d->admission = class_arrays(plan, slot_count);
    d->stays = sdp_xcalloc(n, sizeof *d->stays);
    d->boundaries = sdp_xcalloc(layers * units, sizeof *d->boundaries);
    d->saved = sdp_xcalloc(layers * units, sizeof *d->saved);
    d->boundary_gradients = sdp_xcalloc(units, sizeof *d->boundary_gradients);
    d->own_accumulators = sdp_xcalloc(n, sizeof *d->own_accumulators);
    for (size_t s = 0; s < n; s++)
        if (plan->own_accumulator[s])
            d->own_accumulators[s] = sdp_xcalloc(d->ranks, sizeof **d->own_accumulators);
    for (size_t a = 0; a < SDPI_AREAS && plan->offloaded; a++) {
        d->offload[a].slots = SDP_OFFLOAD_SLOTS + (a == SDPI_BOUNDARY ? units : 0);
        d->offload[a].admission = sdp_xcalloc(d->offload[a].slots, sizeof *d->offload[a].admission);
        d->offload[a].token_of = sdp_xcalloc(layers * units, sizeof *d->offload[a].token_of);
    }
    d->batches = sdp_xcalloc(SDP_STEPS_IN_FLIGHT * per_step, sizeof *d->batches);
    d->losses = sdp_xcalloc(SDP_STEPS_IN_FLIGHT * per_step, sizeof *d->losses);
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
    e->first_moments = sdp_xcalloc(e->chunk_total, sizeof *e->first_moments);
    e->second_moments = sdp_xcalloc(e->chunk_total, sizeof *e->second_moments);
    e->waiting = sdp_xcalloc(e->chunk_total, sizeof *e->waiting);
    e->gradients = class_arrays(plan, gradient_chunks);
    e->gradients_taken = sdp_xcalloc(plan->class_count, sizeof *e->gradients_taken);
    e->gradient_slot = sdp_xcalloc(n, sizeof *e->gradient_slot);
    e->first_delivery = sdp_xcalloc(n, sizeof *e->first_delivery);
    for (size_t s = 0; s < n; s++)
        e->first_delivery[s] = UINT64_MAX;
    const struct sdp_task_counts *t = &plan->tasks;
    e->step_tasks = t->deliver + t->forward + t->backward + t->drain + t->reduce + t->clip + t->update + t->metrics +
                    t->store + t->fetch;
    for (size_t r = 0; r < SDP_STEPS_IN_FLIGHT; r++)
        e->ring[r].norms = sdp_xcalloc(state->block_count, sizeof *e->ring[r].norms);
    e->devices = sdp_xcalloc(plan->device_count, sizeof *e->devices);
    for (size_t d = 0; d < plan->device_count; d++)
        allocate_device(e, d);
}

static void each(struct sdpi_data *data, size_t count, void (*f)(struct sdpi_data *))
{
    for (size_t i = 0; data && i < count; i++)
        f(&data[i]);
}

static void each_of_device(struct sdp_engine *e, struct sdpi_device *d, void (*f)(struct sdpi_data *))
{
    const struct sdp_plan *plan = e->plan;
    size_t per_step = sdpi_per_step(e, d), units = sdpi_units(e, d), layers = plan->graph->layer_count;
    for (size_t c = 0; c < plan->class_count; c++) {
        each(d->slots[c], slot_chunks(plan, c), f);
        each(d->assembled[c], slot_count(plan, c), f);
        each(d->admission[c], slot_count(plan, c), f);
    }
    each(d->stays, plan->graph->storage_count, f);
    for (size_t s = 0; s < plan->graph->storage_count; s++)
        each(d->own_accumulators[s], d->ranks, f);
    f(&d->accumulator);
    each(d->boundaries, layers * units, f);
    each(d->saved, layers * units, f);
    for (size_t a = 0; a < SDPI_AREAS; a++)
        each(d->offload[a].admission, d->offload[a].slots, f);
    each(d->boundary_gradients, units, f);
    each(d->batches, SDP_STEPS_IN_FLIGHT * per_step, f);
    each(d->losses, SDP_STEPS_IN_FLIGHT * per_step, f);
}

/* Calls f on every handle there may be. */
static void each_data(struct sdp_engine *e, void (*f)(struct sdpi_data *))
{
    const struct sdp_plan *plan = e->plan;
    struct sdpi_data *const arrays[] = {e->weights, e->remainders, e->first_moments, e->second_moments, e->waiting};
    for (size_t i = 0; i < SDP_COUNT_OF(arrays); i++)
        each(arrays[i], e->chunk_total, f);
    for (size_t c = 0; c < plan->class_count; c++)
        each(e->gradients[c], gradient_chunks(plan, c), f);
    each(e->norm_ready, SDP_STEPS_IN_FLIGHT, f);
    each(e->clip_ready, SDP_STEPS_IN_FLIGHT, f);
    each(e->device_norms, SDP_STEPS_IN_FLIGHT, f);
    for (size_t i = 0; i < plan->device_count; i++)
        each_of_device(e, &e->devices[i], f);
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
        free(d->own_accumulators[s]);
    free(d->own_accumulators);
    for (size_t a = 0; a < SDPI_AREAS; a++) {
        free(d->offload[a].admission);
        free(d->offload[a].token_of);
    }
    free(d->stays);
    free(d->boundaries);
    free(d->saved);
    free(d->boundary_gradients);
    free(d->batches);
    free(d->losses);
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
    free(e->first_moments);
    free(e->second_moments);
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
    if (options->resources) {
        e->resources = sdp_resources_create(e->plan);
        starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
    }
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
    size_t bytes = l.weights + gradients + l.accumulators + l.boundaries + l.boundary_gradients + l.saved +
                   l.offload + l.resident + l.scratch;
    return bytes + ((size_t)1 << 20); /* roundings */
}

static enum sdp_status allocate_memory(struct sdp_engine *e, struct sdpi_device *d, struct sdp_error *err)
{
    size_t bytes = d->bytes = device_bytes(e->plan, d->index);
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

/* A pool of the device's slab, carved. */
static void carve_pool(struct sdpi_device *d, struct carver *carver, uint32_t pool, size_t slot_bytes, size_t slots)
{
    if (slots)
        sdp_slab_add_pool(d->node, pool, carve(carver, slots * slot_bytes), slot_bytes, (uint32_t)slots);
}

static void carve_cuda_slots(struct sdp_engine *e, struct sdpi_device *d, size_t c, struct carver *carver)
{
    const struct sdp_plan *plan = e->plan;
    const struct sdp_storage_class *class = &plan->classes[c];
    bool halves = plan->compute == SDP_FP32;
    size_t full = sdp_round_up(class->count * 4, 256), half = sdp_round_up(class->count * 2, 256);
    size_t gradient = sdp_round_up(class->count * sdp_dtype_size(plan->gradient), 256);
    carve_pool(d, carver, sdpi_pool(c, SDPI_POOL_WEIGHTS), half, class->weight_slots);
    carve_pool(d, carver, sdpi_pool(c, SDPI_POOL_REMAINDERS), half, halves ? class->weight_slots : 0);
    /* gradient slots of all ranks; only this device's are ever used here */
    carve_pool(d, carver, sdpi_pool(c, SDPI_POOL_GRADIENTS), gradient, class->gradient_slots * d->ranks);
    carve_pool(d, carver, sdpi_pool(c, SDPI_POOL_RESIDENT_WEIGHTS), half, class->resident);
    carve_pool(d, carver, sdpi_pool(c, SDPI_POOL_RESIDENT_REMAINDERS), half, class->resident);
    carve_pool(d, carver, sdpi_pool(c, SDPI_POOL_RESIDENT_FIRST), full, class->resident);
    carve_pool(d, carver, sdpi_pool(c, SDPI_POOL_RESIDENT_SECOND), full, class->resident);
    for (size_t s = 0; s < class->weight_slots; s++) {
        starpu_void_data_register(&d->admission[c][s].handle);
        if (halves)
            register_variable(d, &d->assembled[c][s], carve(carver, full), full, "assembled");
    }
}

static void carve_cpu_slots(struct sdp_engine *e, struct sdpi_device *d, size_t c, struct carver *carver)
{
    const struct sdp_storage_class *class = &e->plan->classes[c];
    const struct sdp_state_storage *layout = &e->state->storages[class->first];
    for (size_t s = 0; s < class->weight_slots; s++) {
        uint8_t *slot = carve(carver, sdp_round_up(class->count * 4, 256));
        for (size_t k = 0; k < class->chunk_count; k++)
            sdp_chunk_register(&d->slots[c][s * class->chunk_count + k].handle, slot + layout->chunks[k].offset * 4,
                               layout->chunks[k].count * 4, sdpi_pool(c, SDPI_POOL_WEIGHTS), (uint32_t)s,
                               layout->chunks[k].offset * 4, false);
    }
}

static void carve_slots(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    for (size_t c = 0; c < e->plan->class_count; c++) {
        if (e->plan->cuda)
            carve_cuda_slots(e, d, c, carver);
        else
            carve_cpu_slots(e, d, c, carver);
    }
}

static void carve_accumulators(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    size_t shared = 0;
    for (size_t s = 0; s < e->graph->storage_count; s++) {
        size_t bytes = sdp_round_up(e->state->storages[s].count * sizeof(float), 256);
        if (!e->plan->own_accumulator[s])
            shared = SDP_MAX(shared, bytes);
        for (size_t r = 0; e->plan->own_accumulator[s] && r < d->ranks; r++)
            register_variable(d, &d->own_accumulators[s][r], carve(carver, bytes), bytes, "accumulator");
    }
    if (shared)
        register_variable(d, &d->accumulator, carve(carver, shared), shared, "accumulator");
}

/* Unit k of an area: in device memory, or offloaded with its home in host memory. */
static void place_area(struct sdp_engine *e, struct sdpi_device *d, enum sdpi_area area, size_t l, size_t k, size_t bytes,
                       struct carver *carver)
{
    size_t units = sdpi_units(e, d);
    struct sdpi_data *data = sdpi_area(d, area, l, units, k);
    if (!sdpi_area_offloaded(e->plan, area, l)) {
        register_variable(d, data, carve(carver, bytes), bytes, area == SDPI_BOUNDARY ? "boundary" : "saved");
        return;
    }
    sdp_chunk_register(&data->handle, sdp_arena_take(e->offload_arena, bytes), bytes, sdpi_offload_pool(area),
                       (uint32_t)(l * units + k), 0, false);
    starpu_data_set_name(data->handle, area == SDPI_BOUNDARY ? "offloaded boundary" : "offloaded saved");
}

static void carve_offload(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    const size_t bytes[SDPI_AREAS] = {sdp_plan_boundary_bytes(e->plan), sdp_plan_offloaded_saved_bytes(e->plan)};
    for (size_t a = 0; a < SDPI_AREAS; a++) {
        bool used = false;
        for (size_t l = 0; l < e->plan->offloaded; l++)
            used |= sdpi_area_offloaded(e->plan, (enum sdpi_area)a, l);
        if (used)
            carve_pool(d, carver, sdpi_offload_pool((enum sdpi_area)a), bytes[a], d->offload[a].slots);
        for (size_t s = 0; s < d->offload[a].slots; s++)
            starpu_void_data_register(&d->offload[a].admission[s].handle);
    }
}

static void carve_activations(struct sdp_engine *e, struct sdpi_device *d, struct carver *carver)
{
    const struct sdp_plan *plan = e->plan;
    size_t units = sdpi_units(e, d), boundary = sdp_plan_boundary_bytes(plan);
    carve_offload(e, d, carver);
    for (size_t l = 0; l < e->graph->layer_count; l++) {
        size_t saved = sdp_plan_saved_bytes(plan, l);
        for (size_t k = 0; k < units; k++) {
            if (e->graph->layers[l].output >= 0)
                place_area(e, d, SDPI_BOUNDARY, l, k, boundary, carver);
            if (saved)
                place_area(e, d, SDPI_SAVED, l, k, saved, carver);
        }
    }
    for (size_t k = 0; k < units; k++)
        register_variable(d, &d->boundary_gradients[k], carve(carver, boundary), boundary, "boundary gradient");
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
    rc = sdpi_engine_warm_up(e, d, err);
    if (rc)
        return rc;
    struct carver carver = {d->memory, 0};
    d->deliver = sdp_codelet_deliver_cuda;
    for (size_t i = 0; i < STARPU_NMAXBUFS; i++)
        d->deliver.nodes[i] = STARPU_SPECIFIC_NODE_NONE;
    d->fetch = sdp_codelet_fetch;
    memcpy(d->fetch.nodes, d->deliver.nodes, sizeof d->fetch.nodes);
    d->deliver.nodes[0] = d->fetch.nodes[0] = (int)d->node;
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

/* A chunk of one of a storage's arrays. Resident state has a slot of its own for each array. */
static void register_state_chunk(struct sdp_engine *e, struct sdpi_data *data, size_t s, const struct sdp_chunk *chunk,
                                 void *array, size_t element, enum sdpi_pool pool, const char *name)
{
    bool resident = e->plan->resident[s];
    sdp_chunk_register(&data->handle, (uint8_t *)array + chunk->offset * element, chunk->count * element,
                       sdpi_pool(e->plan->class_of[s], pool), (uint32_t)(resident ? e->plan->resident_slot[s] : s),
                       chunk->offset * element, resident);
    starpu_data_set_name(data->handle, name);
}

static void register_state(struct sdp_engine *e)
{
    for (size_t s = 0; s < e->graph->storage_count; s++) {
        struct sdp_state_storage *storage = &e->state->storages[s];
        bool resident = e->plan->resident[s];
        for (size_t c = 0; c < storage->chunk_count; c++) {
            const struct sdp_chunk *chunk = &storage->chunks[c];
            size_t i = e->chunk_base[s] + c;
            register_state_chunk(e, &e->weights[i], s, chunk, storage->weight, 2,
                                 resident ? SDPI_POOL_RESIDENT_WEIGHTS : SDPI_POOL_WEIGHTS, "weights");
            register_state_chunk(e, &e->remainders[i], s, chunk, storage->remainder, 2,
                                 resident ? SDPI_POOL_RESIDENT_REMAINDERS : SDPI_POOL_REMAINDERS, "remainders");
            if (!resident)
                continue; /* host updates reach the moments without a handle: the weights' order serves both */
            register_state_chunk(e, &e->first_moments[i], s, chunk, storage->m, 4, SDPI_POOL_RESIDENT_FIRST, "m");
            register_state_chunk(e, &e->second_moments[i], s, chunk, storage->v, 4, SDPI_POOL_RESIDENT_SECOND, "v");
        }
    }
}

/* Copies of the resident state on a node: all are asked for first, then waited for. */
static enum sdp_status sync_resident(struct sdp_engine *e, int node, struct sdp_error *err)
{
    struct sdpi_data *const arrays[] = {e->weights, e->remainders, e->first_moments, e->second_moments};
    int rc = 0;
    for (int wait = 0; wait < 2; wait++)
        for (size_t s = 0; s < e->graph->storage_count; s++)
            for (size_t c = 0; e->plan->resident[s] && c < e->state->storages[s].chunk_count; c++)
                for (size_t a = 0; a < SDP_COUNT_OF(arrays) && rc == 0; a++) {
                    starpu_data_handle_t handle = arrays[a][e->chunk_base[s] + c].handle;
                    if (!wait) {
                        rc = starpu_data_prefetch_on_node(handle, (unsigned)node, 1);
                        continue;
                    }
                    rc = starpu_data_acquire_on_node(handle, node, STARPU_R);
                    if (rc == 0)
                        starpu_data_release_on_node(handle, node);
                }
    return rc == 0 ? SDP_OK : sdp_fail(err, SDP_RUNTIME, "StarPU: copying resident state failed: %s", strerror(-rc));
}

enum sdp_status sdpi_engine_refresh_host(struct sdp_engine *e, struct sdp_error *err)
{
    return sync_resident(e, STARPU_MAIN_RAM, err);
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
                                       layout->chunks[k].count * element, sdpi_pool(c, SDPI_POOL_GRADIENTS),
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
        if (e->plan->resident[s])
            continue;
        uint8_t *memory = sdp_arena_take(e->landing, storage->count * element);
        for (size_t c = 0; c < storage->chunk_count; c++) {
            struct sdpi_data *data = &e->waiting[e->chunk_base[s] + c];
            sdp_chunk_register(&data->handle, memory + storage->chunks[c].offset * element,
                               storage->chunks[c].count * element, SDP_SLAB_POOLS - SDPI_AREAS - 1, 0, 0, false);
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
        bytes += plan->resident[s] ? 0 : sdp_round_up(e->state->storages[s].count * sdp_dtype_size(plan->reduced), 4096);
    enum sdp_status rc = sdp_arena_create(bytes, 0, plan->cuda, "gradients", &e->landing, err);
    if (rc)
        return rc;
    register_gradients(e);
    if (plan->two_phase)
        register_waiting(e);
    return SDP_OK;
}

/* Host memory for offloaded activations, before the devices' handles name it. */
static enum sdp_status create_offload(struct sdp_engine *e, struct sdp_error *err)
{
    size_t bytes = sdp_plan_offload_host_bytes(e->plan);
    return bytes ? sdp_arena_create(bytes, 0, true, "offloaded activations", &e->offload_arena, err) : SDP_OK;
}

static enum sdp_status create_batches(struct sdp_engine *e, struct sdp_error *err)
{
    size_t bytes = sdp_round_up(sdp_batch_elements(e->plan->tokens) * sizeof(int32_t), 4096);
    size_t loss_bytes = sdp_round_up(e->plan->ranks * e->plan->micro_batches * sizeof(double), 4096);
    size_t count = SDP_STEPS_IN_FLIGHT * e->plan->ranks * e->plan->micro_batches;
    size_t norm_bytes = sdp_round_up(e->state->block_count * sizeof(double), 4096);
    enum sdp_status rc = sdp_arena_create(count * bytes + SDP_STEPS_IN_FLIGHT * (loss_bytes + norm_bytes), 1, e->plan->cuda, "batches",
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
        starpu_variable_data_register(&e->device_norms[r].handle, STARPU_MAIN_RAM,
                                      (uintptr_t)sdp_arena_take(e->batch_arena, norm_bytes),
                                      e->state->block_count * sizeof(double));
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
    if (!rc)
        rc = create_offload(e, err);
    for (size_t d = 0; !rc && d < plan->device_count; d++)
        rc = create_device(e, &e->devices[d], err);
    if (!rc)
        rc = create_gradients(e, err);
    if (!rc)
        rc = create_batches(e, err);
    if (!rc)
        rc = sync_resident(e, (int)e->devices[0].node, err);
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
    sdp_resources_destroy(e->resources);
    sdp_arena_destroy(e->landing);
    sdp_arena_destroy(e->batch_arena);
    sdp_arena_destroy(e->offload_arena);
    sdpi_engine_free(e);
    free(e);
}
