/* test_pair_cuda.c - requests whose KV lies elsewhere, in an engine on a GPU with the bundled
 * checkpoint: compared with a pair of CPU backends, with themselves, with other packs, with one GPU
 * in both roles, and with the memory plan. Without a GPU nothing is tested.
 *     test_pair_cuda [TEST [DEVICE]]
 * DEVICE cpu runs the same on CPU backends, to check the test itself. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine_state.h"
#include "engine/offline/audit.h"
#include "tests/lib/run_engine.h"

static const float NEAR_NATS = 0.25f;
enum { N_REQUESTS = 24, N_TASKS = 4, PER_TASK = N_REQUESTS / N_TASKS, MAX_TOKENS = 300 };

static const char *const tasks[N_TASKS] = {"story", "ledger", "notes", "needle"};
static const char *prompts[N_REQUESTS];
static const char *device = "cuda:0", *cache = "auto", *model_cache = "cuda:0";
static bool no_gpu;

typedef struct talk {
    cn_engine *engine;
    cn_transcript said[N_REQUESTS];
    cn_stats stats;
} talk;

static const char *const common[] = {
    "model",         "examples/tiny-reasoner", "check-invariants", "true",
    "block-size",    "64",                     "max-model-len",    "1536",
    "kv-policies",   "full,window,zip",        "kv-budget",        "128",
    "kv-window",     "16",                     "kv-selectors",     "spade,last,tls,spec",
    "select-tokens", "128",                    "select-tiles",     "2",
    "select-cap",    "64",                     "home-space",       "0.25",
    "max-num-seqs",  "24",                     NULL};

static cn_status create(talk *t, const char *home, const char *on, const char *cache_on,
                        const char *const *more)
{
    char homes[32];
    cn_config *c = cn_config_create();
    assert_non_null(c);
    *t = (talk){0};
    snprintf(homes, sizeof homes, "device,%s", home);
    assert_int_equal(cn_config_set(c, "kv-homes", homes), CN_OK);
    assert_int_equal(cn_config_set(c, "device", on), CN_OK);
    if (strcmp(on, "cpu") != 0) {
        assert_int_equal(cn_config_set(c, "gpu-memory-utilization", "0.5"), CN_OK);
        assert_int_equal(cn_config_set(c, "batch-invariant", "true"), CN_OK);
    }
    if (strcmp(home, "peer") == 0)
        assert_int_equal(cn_config_set(c, "cache-device", cache_on), CN_OK);
    for (const char *const *o = common; *o; o += 2)
        if (cn_config_set(c, o[0], o[1]) != CN_OK) fail_msg("%s", cn_last_error());
    for (const char *const *o = more; o && *o; o += 2)
        if (cn_config_set(c, o[0], o[1]) != CN_OK) fail_msg("%s", cn_last_error());
    const cn_status status = cn_engine_create(&t->engine, c);
    cn_config_free(c);
    return status;
}

static void open_talk(talk *t, const char *home, const char *on, const char *cache_on,
                      const char *const *more)
{
    if (create(t, home, on, cache_on, more) != CN_OK) fail_msg("%s", cn_last_error());
}

static void close_engine(talk *t)
{
    cn_engine_free(t->engine);
    t->engine = NULL;
}

static void close_talk(talk *t)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) cn_transcript_free(&t->said[i]);
    close_engine(t);
}

static int setup(void **state)
{
    (void)state;
    talk t;
    for (uint32_t i = 0; i < N_TASKS; i++) {
        const char *of_task[PER_TASK];
        assert_int_equal(run_load_prompts(tasks[i], of_task, NULL, PER_TASK), PER_TASK);
        for (uint32_t k = 0; k < PER_TASK; k++) prompts[k * N_TASKS + i] = of_task[k];
    }
    no_gpu = create(&t, "peer", device, model_cache, NULL) != CN_OK;
    if (no_gpu) print_message("SKIPPED: no GPU: %s\n", cn_last_error());
    cn_engine_free(t.engine);
    return 0;
}

/* ---- requests ---- */

static void keep(void *user, const cn_event *ev)
{
    assert_int_equal(cn_transcript_add(user, ev), CN_OK);
    if (ev->finish == CN_FINISH_ERROR) fail_msg("%s", ev->error);
}

/* Each form of an away request, with both group rules; every sixth request stays at home. Both
 * rules give the same lists in every batch and pack, because the order in which rule max adds up
 * its weights depends on positions alone (engine/select/select_math.h). */
static void choose_kv(cn_kv_params *kv, uint32_t i, cn_kv_home home)
{
    const uint32_t form = i / N_TASKS % 6;
    kv->policy = CN_KV_FULL;
    if (form == 5) return;
    kv->home = home;
    kv->select = form == 0 && i % 2 ? CN_SELECT_SPEC
                 : form == 1        ? CN_SELECT_LAST
                 : form == 2        ? CN_SELECT_TLS
                                    : CN_SELECT_SPADE;
    kv->select_tokens = 64;
    kv->select_tiles = 2;
    kv->select_query = i % 2 ? CN_QUERY_PREDICTED : CN_QUERY_LAST;
    kv->select_keys = form == 3 && home == CN_HOME_PEER ? CN_SELECT_ROWS : CN_SELECT_LABELS;
    kv->select_group = i % N_TASKS < 2 ? CN_SELECT_MAX : CN_SELECT_MEAN;
    kv->select_cap = form == 2 ? 1 : i % 3 ? 16 : 64;
    if (form == 4) kv->policy = CN_KV_ZIP;
}

/* forced: a transcript whose tokens the request must say, or NULL. */
static void ask(talk *t, uint32_t i, cn_kv_home home, const cn_transcript *forced)
{
    cn_message m = {.role = "user", .content = prompts[i]};
    cn_request_params p = {.messages = &m, .n_messages = 1, .enable_thinking = -1};
    cn_engine_default_sampling(t->engine, &p.sampling);
    cn_engine_default_kv(t->engine, &p.kv);
    p.sampling.logprobs = CN_AUDIT_LOGPROBS;
    p.sampling.max_tokens = MAX_TOKENS;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = 0;
    p.klass = CN_CLASS_BATCH;
    if (forced) cn_audit_params(&p, forced);
    choose_kv(&p.kv, i, home);
    if (cn_engine_submit(t->engine, &p, keep, &t->said[i], NULL) != CN_OK)
        fail_msg("request %u: %s", i, cn_last_error());
}

static void ask_all(talk *t, cn_kv_home home, const talk *forced)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) ask(t, i, home, forced ? &forced->said[i] : NULL);
    for (bool idle = false; !idle;)
        if (cn_engine_step(t->engine, &idle) != CN_OK) fail_msg("%s", cn_last_error());
    cn_engine_stats(t->engine, &t->stats);
    assert_true(t->stats.exchanges > 1000 && t->stats.fetched_entries > 1000);
    assert_true(t->stats.put_bytes > 0);
}

/* Tokens must be equal, and their log-probabilities must have the same bits. */
static void assert_same(const talk *x, const talk *y)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const cn_transcript *a = &x->said[i], *b = &y->said[i];
        assert_true(a->n > 0);
        assert_int_equal(a->n, b->n);
        for (uint32_t k = 0; k < a->n; k++)
            if (a->tokens[k] != b->tokens[k] || a->logprobs[k] != b->logprobs[k])
                fail_msg("request %u, token %u: %u (%.7g) and %u (%.7g)", i, k, a->tokens[k],
                         (double)a->logprobs[k], b->tokens[k], (double)b->logprobs[k]);
    }
    assert_int_equal(x->stats.fetched_entries, y->stats.fetched_entries);
    assert_int_equal(x->stats.missed_entries, y->stats.missed_entries);
}

/* ---- the tests ---- */

/* Tokens that the GPU would have chosen too, or to which it gives almost the same probability. */
static uint64_t count_near(const talk *cpu, const talk *gpu)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        for (uint32_t k = 0; k < cpu->said[i].n; k++)
            n += cpu->said[i].best[k] == gpu->said[i].best[k] ||
                 fabsf(cpu->said[i].logprobs[k] - gpu->said[i].logprobs[k]) < NEAR_NATS;
    return n;
}

/* The CPU pair generates greedily. The GPU is forced to the same tokens and reports which it would
 * have chosen. */
static void compare_with_cpu(const char *name, cn_kv_home home)
{
    talk cpu, gpu;
    cn_agreement sum = {0};
    if (no_gpu) skip();
    open_talk(&cpu, name, "cpu", "cpu", NULL);
    ask_all(&cpu, home, NULL);
    close_engine(&cpu);
    open_talk(&gpu, name, device, model_cache, NULL);
    ask_all(&gpu, home, &cpu);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        cn_agreement_between(&sum, &cpu.said[i], &gpu.said[i]);
    const double fetched = (double)gpu.stats.fetched_entries / (double)cpu.stats.fetched_entries;
    const double near = (double)count_near(&cpu, &gpu) / (double)sum.tokens;
    print_message("    home %s: argmax agreement %.4f %% of %llu tokens, with near ties %.4f %%, "
                  "mean logprob gap %.2e nats, entries fetched %.4f of the CPU's\n",
                  name, cn_agreement_share(&sum) * 100, (unsigned long long)sum.tokens, near * 100,
                  cn_agreement_gap(&sum), fetched);
    assert_true(sum.tokens == (uint64_t)N_REQUESTS * MAX_TOKENS);
    assert_true(cn_agreement_share(&sum) >= 0.96 && near >= 0.995);
    assert_true(fetched > 0.95 && fetched < 1.05);
    close_talk(&cpu);
    close_talk(&gpu);
}

static void a_peer_agrees_with_the_cpu_pair(void **state)
{
    (void)state;
    compare_with_cpu("peer", CN_HOME_PEER);
}

static void host_memory_agrees_with_the_cpu(void **state)
{
    (void)state;
    compare_with_cpu("host", CN_HOME_HOST);
}

/* Packs, timing and the devices change no bit. */
static void the_same_bits_each_time(void **state)
{
    (void)state;
    static const char *const others[][8] = {{NULL},
                                            {"packs", "1", NULL},
                                            {"packs", "6", "async-scheduling", "off", NULL},
                                            {"sync-compression", "true", NULL}};
    talk first;
    if (no_gpu) skip();
    open_talk(&first, "peer", device, model_cache, NULL);
    ask_all(&first, CN_HOME_PEER, NULL);
    close_engine(&first);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        talk again;
        open_talk(&again, "peer", device, model_cache, others[i]);
        ask_all(&again, CN_HOME_PEER, NULL);
        assert_same(&first, &again);
        close_talk(&again);
    }
    close_talk(&first);
}

static void home_host_gives_the_same_bits_each_time(void **state)
{
    (void)state;
    talk first, again;
    if (no_gpu) skip();
    open_talk(&first, "host", device, NULL, NULL);
    ask_all(&first, CN_HOME_HOST, NULL);
    close_engine(&first);
    open_talk(&again, "host", device, NULL, (const char *[]){"packs", "1", NULL});
    ask_all(&again, CN_HOME_HOST, NULL);
    assert_same(&first, &again);
    close_talk(&first);
    close_talk(&again);
}

static void two_gpus_give_the_bits_of_one(void **state)
{
    (void)state;
    talk one, two;
    if (no_gpu) skip();
    if (create(&two, "peer", device, cache, NULL) != CN_OK) {
        print_message("SKIPPED: no second GPU: %s\n", cn_last_error());
        return;
    }
    ask_all(&two, CN_HOME_PEER, NULL);
    close_engine(&two);
    open_talk(&one, "peer", device, model_cache, NULL);
    ask_all(&one, CN_HOME_PEER, NULL);
    assert_same(&one, &two);
    close_talk(&one);
    close_talk(&two);
}

/* The backends take no device memory beyond what they took at start. */
static void memory_is_as_planned(void **state)
{
    (void)state;
    static const char *const homes[] = {"peer", "host"};
    if (no_gpu) skip();
    for (size_t i = 0; i < 2; i++) {
        talk t;
        uint64_t planned, before, after;
        open_talk(&t, homes[i], device, model_cache, NULL);
        cn_backend *be = t.engine->backend;
        if (be->mem_usage) be->mem_usage(be, &planned, &before);
        ask_all(&t, i == 0 ? CN_HOME_PEER : CN_HOME_HOST, NULL);
        if (be->mem_usage) {
            be->mem_usage(be, &planned, &after);
            print_message("    home %s: planned %llu bytes, in use %llu, then %llu\n", homes[i],
                          (unsigned long long)planned, (unsigned long long)before,
                          (unsigned long long)after);
            assert_true((double)after < (double)planned * 1.02);
        }
        close_talk(&t);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_agrees_with_the_cpu_pair),
        cmocka_unit_test(host_memory_agrees_with_the_cpu),
        cmocka_unit_test(the_same_bits_each_time),
        cmocka_unit_test(home_host_gives_the_same_bits_each_time),
        cmocka_unit_test(two_gpus_give_the_bits_of_one),
        cmocka_unit_test(memory_is_as_planned),
    };
    if (argc > 2) device = argv[2];
    if (strcmp(device, "cpu") == 0) cache = model_cache = "cpu";
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("pair_cuda", tests, setup, NULL);
}
