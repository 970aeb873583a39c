/* test_start_plan.c - memory at start: the planner uses a device's memory to the last block and a
 * host's memory as the options say. Parts that do not fit are refused with their sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine_memory.h"
#include "engine/engine_state.h"
#include "engine/home/home_memory.h"
#include "engine/model/weights.h"

static size_t device_bytes;

static size_t device_avail(cn_backend *be)
{
    (void)be;
    return device_bytes;
}

typedef struct rig {
    cn_backend *cpu;
    cn_backend device; /* the CPU with a limited memory */
    cn_config *config;
    cn_model_config model;
} rig;

static int setup(void **state)
{
    static rig r;
    assert_int_equal(cn_backend_cpu_open(&r.cpu, &(cn_cpu_backend_opts){.n_threads = 1}), CN_OK);
    r.device = *r.cpu;
    r.device.mem_avail = device_avail;
    r.config = cn_config_create();
    assert_non_null(r.config);
    assert_int_equal(cn_model_config_load(&r.model, "examples/tiny-reasoner"), CN_OK);
    *state = &r;
    return 0;
}

static int teardown(void **state)
{
    rig *r = *state;
    r->cpu->close(r->cpu);
    cn_config_free(r->config);
    return 0;
}

static void set(rig *r, const char *name, const char *value)
{
    assert_int_equal(cn_config_set(r->config, name, value), CN_OK);
}

/* e NULL: a plan that is only read. */
static cn_start_plan plan_for(rig *r, cn_backend *be, cn_engine *e)
{
    cn_start_plan p;
    if (cn_engine_plan_make(&p, r->config, &r->model, be, e) != CN_OK)
        fail_msg("%s", cn_last_error());
    return p;
}

static cn_start_plan plan_of(rig *r, cn_backend *be) { return plan_for(r, be, NULL); }

static void all_memory_of_a_device_is_used(void **state)
{
    rig *r = *state;
    for (device_bytes = (size_t)1 << 30; device_bytes < (size_t)9 << 30; device_bytes *= 2) {
        cn_start_plan p = plan_of(r, &r->device);
        assert_in_range(cn_start_plan_bytes(&p), device_bytes - p.kv.block_bytes, device_bytes);
        assert_int_equal(cn_start_part_bytes(&p, CN_PART_WEIGHTS),
                         cn_weights_bytes(&r->model, &r->device));
        assert_true(cn_start_part_bytes(&p, CN_PART_STEPS) > 0 &&
                    cn_start_part_bytes(&p, CN_PART_WORKSPACE) > 0);
        assert_int_equal(p.kv.block_tokens, 64); /* as docs/CONFIG.md says of the CPU */
    }
    set(r, "kv-policy", "zip");
    device_bytes = (size_t)1 << 30;
    cn_start_plan zip = plan_of(r, &r->device);
    assert_true(zip.kv.n_query_slots > 0);
    assert_true(cn_start_plan_bytes(&zip) <= device_bytes);
    set(r, "kv-policy", "full");
    cn_start_plan full = plan_of(r, &r->device);
    assert_true(cn_start_part_bytes(&zip, CN_PART_STEPS) >
                cn_start_part_bytes(&full, CN_PART_STEPS)); /* scratch of events */
}

/* For any number of requests in a step, and any length. */
static void steps_have_room_for_their_batch_arrays(void **state)
{
    rig *r = *state;
    static const char *const seqs[] = {"8", "256", "65536"};
    device_bytes = (size_t)1 << 40;
    set(r, "max-num-batched-tokens", "65536");
    set(r, "block-size", "16");
    for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++) {
        set(r, "max-num-seqs", seqs[i]);
        const cn_batch_opts o = cn_batch_opts_of(r->config, &r->model, 16, 0);
        const uint64_t counts = o.max_seqs * (uint64_t)r->model.vocab * sizeof(uint16_t);
        const cn_start_plan p = plan_of(r, &r->device);
        assert_true(cn_start_part_bytes(&p, CN_PART_STEPS) > cn_batch_device_bytes(&o) + counts);
    }
    set(r, "max-num-seqs", "256");
    set(r, "max-num-batched-tokens", "2048");
    set(r, "block-size", "0");
}

static void a_given_kv_size_is_used(void **state)
{
    rig *r = *state;
    device_bytes = (size_t)1 << 30;
    set(r, "kv-cache-memory-bytes", "64M");
    cn_start_plan device = plan_of(r, &r->device), host = plan_of(r, r->cpu);
    assert_in_range(device.kv.kv_bytes, (64 << 20) - device.kv.block_bytes, 64 << 20);
    assert_int_equal(cn_start_part_bytes(&host, CN_PART_STEPS),
                     cn_start_part_bytes(&device, CN_PART_STEPS));
    assert_in_range(host.kv.kv_bytes, (64 << 20) - host.kv.block_bytes, 64 << 20);
    set(r, "kv-cache-memory-bytes", "1G");
    cn_start_plan p;
    assert_int_equal(cn_engine_plan_make(&p, r->config, &r->model, &r->device, NULL),
                     CN_ERR_MEMORY);
    assert_non_null(strstr(cn_last_error(), "1.00 of KV cache"));
    assert_non_null(strstr(cn_last_error(), "--gpu-memory-utilization"));
    assert_int_equal(r->config->kv_cache_memory_bytes, 1 << 30);
    set(r, "kv-cache-memory-bytes", "0");
}

/* With a KV size, the device gets exactly the sum of the parts, and they fit. Without one, the plan
 * uses all memory. */
static void a_given_kv_size_decides_the_device_memory(void **state)
{
    rig *r = *state;
    static const char *const policies[] = {"full", "zip"};
    const uint64_t most_items = CN_N_BLOCK_PLANES + CN_N_SLOT_PLANES;
    for (int i = 0; i < 2; i++) {
        uint64_t wanted = 1;
        set(r, "kv-policy", policies[i]);
        assert_int_equal(cn_engine_wanted_bytes(&wanted, r->config, &r->model, &r->device), CN_OK);
        assert_int_equal(wanted, 0);
        set(r, "kv-cache-memory-bytes", "64M");
        device_bytes = 0; /* not yet known */
        assert_int_equal(cn_engine_wanted_bytes(&wanted, r->config, &r->model, &r->device), CN_OK);
        device_bytes = wanted;
        cn_start_plan p = plan_of(r, &r->device);
        assert_in_range(cn_start_plan_bytes(&p), wanted - p.kv.block_bytes, wanted);
        const uint64_t rest = cn_start_plan_bytes(&p) - cn_start_part_bytes(&p, CN_PART_KV);
        assert_in_range(wanted, rest + (64 << 20),
                        rest + (64 << 20) + most_items * r->device.mem_align);
        device_bytes = wanted - 1;
        assert_int_equal(cn_engine_plan_make(&p, r->config, &r->model, &r->device, NULL),
                     CN_ERR_MEMORY);
        device_bytes = (size_t)8 << 30; /* more than needed, as for `cinch plan` */
        cn_start_plan more = plan_of(r, &r->device);
        assert_int_equal(more.kv.n_blocks, p.kv.n_blocks);
        set(r, "num-gpu-blocks-override", "300");
        assert_int_equal(cn_engine_wanted_bytes(&wanted, r->config, &r->model, &r->device), CN_OK);
        assert_true(wanted >= cn_start_plan_bytes(&more) - more.kv.kv_bytes +
                                  300 * more.kv.block_bytes);
        set(r, "num-gpu-blocks-override", "0");
        set(r, "kv-cache-memory-bytes", "64K");
        assert_int_equal(cn_engine_wanted_bytes(&wanted, r->config, &r->model, &r->device),
                         CN_ERR_MEMORY);
        set(r, "kv-cache-memory-bytes", "0");
    }
    set(r, "kv-policy", "full");
}

static void weights_that_do_not_fit_are_refused(void **state)
{
    rig *r = *state;
    cn_start_plan p;
    device_bytes = cn_weights_bytes(&r->model, &r->device);
    assert_int_equal(cn_engine_plan_make(&p, r->config, &r->model, &r->device, NULL),
                     CN_ERR_MEMORY);
    assert_non_null(strstr(cn_last_error(), "GiB of weights"));
    p = plan_of(r, r->cpu);
    device_bytes += cn_start_part_bytes(&p, CN_PART_WORKSPACE) + (1u << 20);
    assert_int_equal(cn_engine_plan_make(&p, r->config, &r->model, &r->device, NULL),
                     CN_ERR_MEMORY);
}

/* ---- selection ---- */

static uint64_t item_bytes(const cn_start_plan *p, const char *name)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_items; i++)
        if (strcmp(p->items[i].name, name) == 0) bytes += p->items[i].bytes;
    return bytes;
}

/* `exact` bytes, rounded up to the backend's alignment. */
static void has_item(const rig *r, const cn_start_plan *p, const char *name, uint64_t exact)
{
    if (item_bytes(p, name) != cn_round_up(exact, r->cpu->mem_align))
        fail_msg("%s: %llu bytes: expected %llu", name, (unsigned long long)item_bytes(p, name),
                 (unsigned long long)exact);
}

/* The items that each selector needs: 6 layers, 8 query heads and 2 kv heads of 64. A step has 16
 * rows; lists have 256 tokens and up to 16 sinks. */
static void selectors_add_their_items(void **state)
{
    rig *r = *state;
    const uint64_t scores = 16 * 8192, rows = 16;
    set(r, "max-num-seqs", "16");
    set(r, "kv-cache-memory-bytes", "64M");
    set(r, "select-tokens", "200"); /* rounded up to blocks of 64 */
    set(r, "select-tiles", "9");
    cn_start_plan p = plan_of(r, r->cpu);
    assert_int_equal(p.select_bytes, 0);
    assert_int_equal(item_bytes(&p, "selection scores") + item_bytes(&p, "labels"), 0);

    set(r, "kv-select", "random");
    p = plan_of(r, r->cpu);
    has_item(r, &p, "selection scores", scores * 2 * 2);
    has_item(r, &p, "selection logits", scores * 8 * 4);
    has_item(r, &p, "selected tokens", rows * 2 * (256 + 16) * 4);
    assert_int_equal(item_bytes(&p, "selected tiles") + item_bytes(&p, "predicted queries"), 0);
    assert_int_equal(item_bytes(&p, "label channels") + item_bytes(&p, "labels"), 0);
    assert_int_equal(p.kv.planes, 0);

    set(r, "kv-selectors", "tls");
    p = plan_of(r, r->cpu);
    has_item(r, &p, "selected tiles", rows * 2 * 9 * 4);
    has_item(r, &p, "label channels", 6 * 2 * 16);
    has_item(r, &p, "label offsets", 6 * 2 * 16 * 4);
    const uint64_t slots = 6ull * 2 * p.kv.n_blocks * 64;
    has_item(r, &p, "labels", slots * 8);
    has_item(r, &p, "label scales", slots * 2);
    has_item(r, &p, "bounds of tiles", slots / 64 * 2 * 64 * 4);
    assert_int_equal(item_bytes(&p, "bounds of pages") + item_bytes(&p, "query slots"), 0);

    set(r, "kv-selectors", "quest,spade");
    p = plan_of(r, r->cpu);
    has_item(r, &p, "bounds of pages", 6ull * 2 * p.kv.n_blocks * 64 / 16 * 2 * 64 * 4);
    has_item(r, &p, "predicted queries", rows * (6 - 2) * 8 * 64 * 4);
    has_item(r, &p, "query slots", p.kv.n_query_slots * 6ull * 17 * 8 * 64 * 4);
    assert_int_equal(item_bytes(&p, "selected tiles") + item_bytes(&p, "bounds of tiles"), 0);
    assert_int_equal(p.select_bytes,
                     item_bytes(&p, "selection scores") + item_bytes(&p, "selection logits") +
                         item_bytes(&p, "selected tokens") + item_bytes(&p, "predicted queries") +
                         item_bytes(&p, "label channels") + item_bytes(&p, "label offsets"));

    /* No list is longer than the context. */
    set(r, "select-tokens", "1073741824");
    set(r, "select-tiles", "16777216");
    set(r, "kv-selectors", "tls");
    p = plan_of(r, r->cpu);
    has_item(r, &p, "selected tokens", rows * 2 * 8192 * 4);
    has_item(r, &p, "selected tiles", rows * 2 * (8192 / 64) * 4);

    /* The scores of a step of many long requests stop at a million candidates. */
    set(r, "max-num-seqs", "1024");
    p = plan_of(r, r->cpu);
    has_item(r, &p, "selection scores", (1u << 20) * 2 * 2);
    set(r, "max-num-seqs", "256");
    set(r, "kv-selectors", "none");
    set(r, "kv-select", "none");
    set(r, "kv-cache-memory-bytes", "0");
    set(r, "select-tokens", "2048");
    set(r, "select-tiles", "128");
}

/* Logits have rows of a multiple of 4, by kv head. A step has room for 16 * 8,192
 * candidates. */
static void logits_have_the_rows_of_their_group(void **state)
{
    rig *r = *state;
    static const struct {
        uint32_t group, row;
    } cases[] = {{1, 4}, {2, 4}, {3, 4}, {4, 4}, {5, 8}, {8, 8}};
    const uint64_t scores = 16 * 8192;
    const cn_model_config model = r->model;
    cn_backend be = *r->cpu;
    set(r, "max-num-seqs", "16");
    set(r, "kv-cache-memory-bytes", "64M");
    set(r, "kv-select", "random");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (be.logit_bytes = 2; be.logit_bytes <= 4; be.logit_bytes += 2) {
            r->model.n_kv_heads = 2;
            r->model.n_heads = 2 * cases[i].group;
            const cn_start_plan p = plan_of(r, &be);
            has_item(r, &p, "selection scores", scores * 2 * 2);
            has_item(r, &p, "selection logits", scores * 2 * cases[i].row * be.logit_bytes);
        }
    r->model = model;
    set(r, "max-num-seqs", "256");
    set(r, "kv-cache-memory-bytes", "0");
    set(r, "kv-select", "none");
}

static void sizes_that_exclude_selectors_are_refused(void **state)
{
    rig *r = *state;
    cn_config *c = r->config;
    assert_int_equal(cn_start_check_selectors(c, &r->model, 16), CN_OK);
    set(r, "kv-selectors", "ds");
    assert_int_equal(cn_start_check_selectors(c, &r->model, 64), CN_OK);
    assert_int_equal(cn_start_check_selectors(c, &r->model, 32), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--block-size 32"));
    set(r, "select-dense-layers", "5");
    assert_int_equal(cn_start_check_selectors(c, &r->model, 64), CN_OK);
    set(r, "select-dense-layers", "6");
    assert_int_equal(cn_start_check_selectors(c, &r->model, 64), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--select-dense-layers 6"));
    set(r, "select-dense-layers", "2");
    set(r, "kv-selectors", "none");
}

/* ---- allocating ---- */

static uint64_t device_taken, host_taken;
static uint32_t n_taken, n_until_refused;

static cn_status counting_alloc(size_t bytes, uint64_t *taken, void **out)
{
    if (n_until_refused-- == 0) return cn_fail(CN_ERR_MEMORY, "refused");
    *taken += bytes;
    n_taken++;
    *out = cn_calloc(1, 1); /* nothing is written */
    return CN_OK;
}

static cn_status counting_mem_alloc(cn_backend *be, size_t bytes, void **out)
{
    (void)be;
    return counting_alloc(bytes, &device_taken, out);
}

static cn_status counting_host_alloc(cn_backend *be, size_t bytes, void **out)
{
    (void)be;
    return counting_alloc(bytes, &host_taken, out);
}

static void counting_free(cn_backend *be, void *p)
{
    (void)be;
    n_taken--;
    cn_free(p);
}

/* Allocated memory equals planned memory. If any allocation fails, all others are freed. */
static void the_plan_is_what_is_allocated(void **state)
{
    rig *r = *state;
    cn_backend be = r->device;
    be.mem_alloc = counting_mem_alloc;
    be.host_alloc = counting_host_alloc;
    be.mem_free = be.host_free = counting_free;
    set(r, "kv-policy", "zip");
    set(r, "swap-space", "0.25");
    set(r, "kv-selectors", "quest,tls,spade");
    device_bytes = (size_t)1 << 30;
    cn_engine *e = cn_calloc(1, sizeof *e);
    const cn_start_plan p = plan_for(r, &be, e);
    n_until_refused = UINT32_MAX;
    assert_int_equal(cn_start_plan_allocate(&p, NULL), CN_OK);
    assert_int_equal(n_taken, p.n_items);
    assert_int_equal(device_taken, cn_start_plan_bytes(&p));
    assert_int_equal(host_taken, cn_start_part_bytes(&p, CN_PART_HOST));
    assert_true(e->pools.kv && e->pools.score && e->pools.q_window && e->swap_memory);
    assert_true(e->pools.digest.labels && e->pools.digest.scales && e->pools.digest.channels);
    assert_non_null(e->pools.digest.offsets);
    assert_true(e->pools.digest.bounds_16 && e->pools.digest.bounds_64 && e->select.predicted);
    assert_true(e->select.score && e->select.logits && e->select.list && e->select.tiles);
    assert_true(e->weights_memory && e->flights[1].host_top && e->compress_scratch);
    cn_start_plan_free(&p, NULL);
    assert_int_equal(n_taken, 0);
    for (uint32_t i = 0; i < p.n_items; i++) {
        n_until_refused = i;
        assert_int_equal(cn_start_plan_allocate(&p, NULL), CN_ERR_MEMORY);
        assert_non_null(strstr(cn_last_error(), p.items[i].name));
        cn_start_plan_free(&p, NULL);
        assert_int_equal(n_taken, 0);
    }
    cn_free(e);
    set(r, "kv-policy", "full");
    set(r, "kv-selectors", "none");
    set(r, "swap-space", "0");
}

/* The home space lies on the cache device, or in host memory. What a peer's exchanges need lies
 * there too. */
static void a_home_has_its_own_memory(void **state)
{
    rig *r = *state;
    static const struct {
        const char *homes;
        cn_kv_home home;
        cn_memory_part kv, scratch;
    } cases[] = {{"peer", CN_HOME_PEER, CN_PART_CACHE, CN_PART_CACHE},
                 {"host", CN_HOME_HOST, CN_PART_HOST, CN_PART_STEPS}};
    cn_backend be = r->device, cache = r->device;
    be.mem_alloc = cache.mem_alloc = counting_mem_alloc;
    be.host_alloc = counting_host_alloc;
    be.mem_free = be.host_free = cache.mem_free = counting_free;
    set(r, "kv-selectors", "spade");
    set(r, "home-space", "0.125");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set(r, "kv-homes", cases[i].homes);
        set(r, "kv-home", cases[i].homes);
        device_bytes = (size_t)1 << 30;
        device_taken = host_taken = 0;
        n_until_refused = UINT32_MAX;
        cn_engine *e = cn_calloc(1, sizeof *e);
        const cn_start_plan p = plan_for(r, &be, e);
        const cn_home_plan *h = &p.kv.homes[cases[i].home];
        const uint64_t given = UINT64_C(1) << 27;
        assert_in_range(h->n_blocks * h->block_bytes, given - h->block_bytes, given);
        const cn_exchange_sizes sizes =
            cn_exchange_sizes_of(r->config, &r->model, cases[i].home, 64, false, false);
        const uint64_t scores = (uint64_t)sizes.room * sizes.pack_layers * 2; /* kv heads */
        has_item(r, &p, "exchange scores", scores * 2);
        has_item(r, &p, "exchange logits", scores * 4 * 4);
        const cn_home *home = &e->homes.at[cases[i].home];
        assert_int_equal(cn_start_plan_allocate(&p, &cache), CN_OK);
        assert_int_equal(device_taken, cn_start_plan_bytes(&p) +
                                           cn_start_part_bytes(&p, CN_PART_CACHE));
        assert_int_equal(host_taken, cn_start_part_bytes(&p, CN_PART_HOST));
        uint64_t cache_bytes; /* known before the device has memory */
        device_bytes = 0;
        assert_int_equal(cn_home_cache_bytes(&cache_bytes, r->config, &r->model, &cache), CN_OK);
        assert_int_equal(cache_bytes, cn_start_part_bytes(&p, CN_PART_CACHE));
        for (uint32_t k = 0; k < p.n_items; k++) {
            if (p.items[k].slot == &home->env.home.kv)
                assert_int_equal(p.items[k].part, cases[i].kv);
            if (p.items[k].slot == &home->step.score)
                assert_int_equal(p.items[k].part, cases[i].scratch);
        }
        assert_true(home->env.home.kv && e->homes.plane.kv && home->env.chosen);
        assert_true(home->env.home.digest.labels && home->env.home.digest.channels);
        assert_non_null(home->env.home.digest.offsets);
        assert_null(e->pools.digest.labels); /* no request selects on the device */
        cn_start_plan_free(&p, &cache);
        assert_int_equal(n_taken, 0);
        cn_free(e);
    }
    set(r, "kv-homes", "device");
    set(r, "kv-home", "device");
    set(r, "home-space", "0");
    set(r, "kv-selectors", "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_memory_of_a_device_is_used),
        cmocka_unit_test(steps_have_room_for_their_batch_arrays),
        cmocka_unit_test(a_given_kv_size_is_used),
        cmocka_unit_test(a_given_kv_size_decides_the_device_memory),
        cmocka_unit_test(weights_that_do_not_fit_are_refused),
        cmocka_unit_test(selectors_add_their_items),
        cmocka_unit_test(logits_have_the_rows_of_their_group),
        cmocka_unit_test(sizes_that_exclude_selectors_are_refused),
        cmocka_unit_test(the_plan_is_what_is_allocated),
        cmocka_unit_test(a_home_has_its_own_memory),
    };
    return cmocka_run_group_tests_name("start_plan", tests, setup, teardown);
}
