/* test_exchange_cost.c - the batch up to which exchanges hide behind a step, and the homes that
 * are slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "compress/policy.h"
#include "engine/home/exchange_cost.h"
#include "engine/home/home.h"
#include "engine/start/planner.h"

enum { BLOCK = 64 };
static const uint32_t HOST = 1U << CN_HOME_HOST;

typedef struct rig {
    cn_backend *cpu;
    cn_config *config;
    cn_model_config model;
} rig;

static void set(rig *r, const char *name, const char *value)
{
    assert_int_equal(cn_config_set(r->config, name, value), CN_OK);
}

static int setup(void **state)
{
    static rig r;
    assert_int_equal(cn_backend_cpu_open(&r.cpu, &(cn_cpu_backend_opts){.n_threads = 1}), CN_OK);
    r.config = cn_config_create();
    assert_non_null(r.config);
    assert_int_equal(cn_model_config_load(&r.model, "examples/tiny-reasoner"), CN_OK);
    set(&r, "kv-selectors", "spade,tls");
    set(&r, "kv-homes", "device,host");
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

/* Whether the transfers of n requests end within the share of a step that follows them. */
static bool hides(const rig *r, const cn_exchange_cost *x, uint32_t n, double read)
{
    const double packs = r->config->n_packs;
    const cn_kv_layout l = cn_planner_layout(r->config, &r->model, r->cpu, 1, BLOCK);
    const double resident = (double)(cn_planner_away_n_max(r->config, BLOCK) - 1) *
                            (double)l.block_bytes * r->model.n_layers;
    const double weights = (double)cn_planner_weight_bytes(&r->model, r->cpu, n);
    const double step_s = (weights + n * resident) / read;
    return n * (double)x->step_bytes / x->link_bytes_per_s <= (packs - 1) / packs * step_s;
}

static void the_largest_batch_hides_and_no_larger_one(void **state)
{
    rig *r = *state;
    const double read = 4e12;
    uint32_t n_limited = 0;
    for (double link = 1e9; link < 1e14; link *= 1.02) {
        cn_exchange_cost x[CN_N_SELECTORS];
        const cn_exchange_rates rates = cn_exchange_rates_of(CN_HOME_HOST, read, link);
        assert_true(rates.tokens < rates.tiles && rates.tiles < link);
        const uint32_t n =
            cn_exchange_costs(x, r->config, &r->model, r->cpu, CN_HOME_HOST, BLOCK, &rates);
        assert_int_equal(n, 2);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t batch = x[i].hidden_batch;
            assert_true(x[i].select == CN_SELECT_SPADE || x[i].select == CN_SELECT_TLS);
            assert_true(x[i].link_bytes_per_s ==
                        (x[i].select == CN_SELECT_TLS ? rates.tiles : rates.tokens));
            if (batch > 0) assert_true(hides(r, &x[i], cn_min_u32(batch, 100000), read));
            if (batch < UINT32_MAX) assert_false(hides(r, &x[i], batch + 1, read));
            n_limited += batch > 0 && batch < UINT32_MAX;
        }
    }
    assert_true(n_limited > 4);
}

/* The slow homes with these rates; 0: not measured. */
static uint32_t slow_homes(rig *r, double read, double link)
{
    cn_memory_plan plan = {.block_tokens = BLOCK};
    cn_homes hs = {.o = {.model_be = r->cpu, .config = r->config, .model = &r->model,
                         .plan = &plan},
                   .read_bytes_per_s = read};
    hs.at[CN_HOME_HOST] = (cn_home){.be = r->cpu, .link_bytes_per_s = link};
    return cn_homes_slow(&hs);
}

static void a_home_that_slows_every_step_is_slow(void **state)
{
    rig *r = *state;
    assert_int_equal(slow_homes(r, 4e12, 4e12), 0);
    assert_int_equal(slow_homes(r, 4e12, 1e9), HOST);
    assert_int_equal(slow_homes(r, 0, 1e9), 0);
    assert_int_equal(slow_homes(r, 4e12, 0), 0);
    set(r, "packs", "1"); /* one pack hides nothing */
    assert_int_equal(slow_homes(r, 4e12, 4e12), HOST);
    set(r, "kv-homes", "host"); /* there is no other home */
    set(r, "kv-home", "host");
    assert_int_equal(slow_homes(r, 4e12, 1e9), 0);
    set(r, "kv-home", "device");
    set(r, "kv-homes", "device,host");
    set(r, "packs", "4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_batch_hides_and_no_larger_one),
        cmocka_unit_test(a_home_that_slows_every_step_is_slow),
    };
    return cmocka_run_group_tests_name("exchange_cost", tests, setup, teardown);
}
