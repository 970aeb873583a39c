/* test_start_plan.c - memory at start: the planner uses a device's memory to the last block and a
 * host's memory as the options say. Parts that do not fit are refused with their sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/start_plan.h"
#include "engine/weights.h"

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

static cn_start_plan plan_of(rig *r, cn_backend *be)
{
    cn_start_plan p;
    if (cn_start_plan_make(&p, r->config, &r->model, be) != CN_OK) fail_msg("%s", cn_last_error());
    return p;
}

static void all_memory_of_a_device_is_used(void **state)
{
    rig *r = *state;
    for (device_bytes = (size_t)1 << 30; device_bytes < (size_t)9 << 30; device_bytes *= 2) {
        cn_start_plan p = plan_of(r, &r->device);
        assert_in_range(cn_start_plan_bytes(&p), device_bytes - p.kv.block_bytes, device_bytes);
        assert_int_equal(p.weight_bytes, cn_weights_bytes(&r->model, CN_F32));
        assert_true(p.step_bytes > 0 && p.workspace_bytes > 0);
        assert_int_equal(p.kv.block_tokens, 64); /* as docs/CONFIG.md says of the CPU */
    }
    set(r, "kv-policy", "zip");
    device_bytes = (size_t)1 << 30;
    cn_start_plan zip = plan_of(r, &r->device);
    assert_true(zip.kv.n_query_slots > 0);
    assert_true(cn_start_plan_bytes(&zip) <= device_bytes);
    set(r, "kv-policy", "full");
    assert_true(zip.step_bytes > plan_of(r, &r->device).step_bytes); /* scratch of events */
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
        const cn_batch_opts o = cn_start_batch_opts(r->config, &r->model, 16, 0);
        const uint64_t counts = o.max_seqs * (uint64_t)r->model.vocab * sizeof(uint16_t);
        assert_true(plan_of(r, &r->device).step_bytes > cn_batch_device_bytes(&o) + counts);
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
    assert_int_equal(host.step_bytes, 0);
    assert_in_range(host.kv.kv_bytes, (64 << 20) - host.kv.block_bytes, 64 << 20);
    set(r, "kv-cache-memory-bytes", "1G");
    cn_start_plan p;
    assert_int_equal(cn_start_plan_make(&p, r->config, &r->model, &r->device), CN_ERR_MEMORY);
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
    for (int i = 0; i < 2; i++) {
        uint64_t wanted = 1;
        set(r, "kv-policy", policies[i]);
        assert_int_equal(cn_start_wanted_bytes(&wanted, r->config, &r->model, &r->device), CN_OK);
        assert_int_equal(wanted, 0);
        set(r, "kv-cache-memory-bytes", "64M");
        device_bytes = 0; /* not yet known */
        assert_int_equal(cn_start_wanted_bytes(&wanted, r->config, &r->model, &r->device), CN_OK);
        device_bytes = wanted;
        cn_start_plan p = plan_of(r, &r->device);
        assert_in_range(cn_start_plan_bytes(&p), wanted - p.kv.block_bytes, wanted);
        assert_int_equal(wanted, p.weight_bytes + p.workspace_bytes + p.step_bytes + (64 << 20));
        device_bytes = wanted - 1;
        assert_int_equal(cn_start_plan_make(&p, r->config, &r->model, &r->device), CN_ERR_MEMORY);
        device_bytes = (size_t)8 << 30; /* more than needed, as for `cinch plan` */
        cn_start_plan more = plan_of(r, &r->device);
        assert_int_equal(more.kv.n_blocks, p.kv.n_blocks);
        set(r, "num-gpu-blocks-override", "300");
        assert_int_equal(cn_start_wanted_bytes(&wanted, r->config, &r->model, &r->device), CN_OK);
        assert_true(wanted >= cn_start_plan_bytes(&more) - more.kv.kv_bytes +
                                  300 * more.kv.block_bytes);
        set(r, "num-gpu-blocks-override", "0");
        set(r, "kv-cache-memory-bytes", "64K");
        assert_int_equal(cn_start_wanted_bytes(&wanted, r->config, &r->model, &r->device),
                         CN_ERR_MEMORY);
        set(r, "kv-cache-memory-bytes", "0");
    }
    set(r, "kv-policy", "full");
}

static void weights_that_do_not_fit_are_refused(void **state)
{
    rig *r = *state;
    cn_start_plan p;
    device_bytes = cn_weights_bytes(&r->model, CN_F32);
    assert_int_equal(cn_start_plan_make(&p, r->config, &r->model, &r->device), CN_ERR_MEMORY);
    assert_non_null(strstr(cn_last_error(), "GiB of weights"));
    device_bytes += plan_of(r, r->cpu).workspace_bytes + (1u << 20);
    assert_int_equal(cn_start_plan_make(&p, r->config, &r->model, &r->device), CN_ERR_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_memory_of_a_device_is_used),
        cmocka_unit_test(steps_have_room_for_their_batch_arrays),
        cmocka_unit_test(a_given_kv_size_is_used),
        cmocka_unit_test(a_given_kv_size_decides_the_device_memory),
        cmocka_unit_test(weights_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests_name("start_plan", tests, setup, teardown);
}
