/* test_engine_cuda.c - the whole engine on a GPU with the bundled checkpoint: its tokens compared
 * with the CPU's and with a second run; the same tokens in any batch under --batch-invariant, also
 * for a request that was in the swap space; the same tokens with every selector, whether steps run
 * from graphs or op by op; its memory compared with the plan. Without a GPU only the refusals are
 * tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "compress/selector.h"
#include "engine/engine_state.h"
#include "engine/offline/audit.h"
#include "tests/lib/draft_head.h"
#include "tests/lib/run_engine.h"

static const char *const tasks[] = {"ledger", "notes",    "sums",  "multiply", "hops",
                                    "needle", "sortlist", "story", "vartrack"};
enum { N_TASKS = sizeof tasks / sizeof *tasks, PER_TASK = 8, N_PROMPTS = 64, MAX_TOKENS = 320 };

static const char *prompts[N_TASKS * PER_TASK]; /* the first of each task, then the second, ... */
static bool no_gpu;

#define CUDA "device", "cuda", "gpu-memory-utilization", "0.5"

static cn_status create(cn_engine **out, const char *const *options)
{
    cn_config *c = cn_config_create();
    assert_non_null(c);
    assert_int_equal(cn_config_set(c, "model", "examples/tiny-reasoner"), CN_OK);
    assert_int_equal(cn_config_set(c, "check-invariants", "true"), CN_OK);
    for (; options[0]; options += 2) run_set_option(c, options[0], options[1]);
    const cn_status status = cn_engine_create(out, c);
    cn_config_free(c);
    return status;
}

static int setup(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < N_TASKS; t++) {
        const char *of_task[PER_TASK];
        assert_int_equal(run_load_prompts(tasks[t], of_task, NULL, PER_TASK), PER_TASK);
        for (uint32_t i = 0; i < PER_TASK; i++) prompts[i * N_TASKS + t] = of_task[i];
    }
    cn_engine *e = NULL;
    no_gpu = create(&e, (const char *[]){CUDA, "enforce-eager", "true", NULL}) != CN_OK;
    if (no_gpu) print_message("SKIPPED: no GPU: %s\n", cn_last_error());
    cn_engine_free(e);
    return 0;
}

/* ---- runs that keep logprobs ---- */

typedef struct talk {
    cn_engine *engine;
    cn_transcript said[N_PROMPTS];
} talk;

static void open_talk(talk *t, const char *const *options)
{
    *t = (talk){0};
    if (create(&t->engine, options) != CN_OK) fail_msg("%s", cn_last_error());
}

/* Frees the engine but keeps the transcripts. */
static void close_engine(talk *t)
{
    cn_engine_free(t->engine);
    t->engine = NULL;
}

static void close_talk(talk *t)
{
    for (uint32_t i = 0; i < N_PROMPTS; i++) cn_transcript_free(&t->said[i]);
    close_engine(t);
}

static void keep(void *user, const cn_event *ev)
{
    assert_int_equal(cn_transcript_add(user, ev), CN_OK);
    if (ev->finish == CN_FINISH_ERROR) fail_msg("%s", ev->error);
}

static cn_request_params params_of(const talk *t, uint32_t i, cn_message *m)
{
    *m = (cn_message){.role = "user", .content = prompts[i]};
    cn_request_params p = {.messages = m, .n_messages = 1, .enable_thinking = -1};
    cn_engine_default_sampling(t->engine, &p.sampling);
    cn_engine_default_kv(t->engine, &p.kv);
    p.sampling.logprobs = CN_AUDIT_LOGPROBS;
    p.sampling.max_tokens = MAX_TOKENS;
    p.klass = CN_CLASS_BATCH;
    return p;
}

/* Every third request samples at temperature 1 with its own seed. */
static void ask(talk *t, uint32_t i)
{
    cn_message m;
    cn_request_params p = params_of(t, i, &m);
    p.sampling.temperature = i % 3 == 2 ? 1 : 0;
    p.sampling.has_seed = true;
    p.sampling.seed = i;
    cn_transcript_free(&t->said[i]);
    assert_int_equal(cn_engine_submit(t->engine, &p, keep, &t->said[i], NULL), CN_OK);
}

static void finish(talk *t)
{
    for (bool idle = false; !idle;)
        if (cn_engine_step(t->engine, &idle) != CN_OK) fail_msg("%s", cn_last_error());
}

static void ask_all(talk *t)
{
    for (uint32_t i = 0; i < N_PROMPTS; i++) ask(t, i);
    finish(t);
}

/* Tokens must be equal, and their log-probabilities must have the same bits. */
static void assert_same(const talk *x, const talk *y, uint32_t i)
{
    const cn_transcript *a = &x->said[i], *b = &y->said[i];
    for (uint32_t k = 0; k < a->n && k < b->n; k++)
        if (a->tokens[k] != b->tokens[k] || a->logprobs[k] != b->logprobs[k])
            fail_msg("request %u, token %u: %u (%.7g) and %u (%.7g)", i, k, a->tokens[k],
                     (double)a->logprobs[k], b->tokens[k], (double)b->logprobs[k]);
    assert_int_equal(a->n, b->n);
    assert_true(a->n > 0);
}

/* ---- the tests ---- */

/* The CPU generates the first n requests greedily. The GPU is forced to the same tokens and reports
 * at each token which one it would have chosen. */
static cn_agreement agreement_of(talk *cpu, talk *gpu, uint32_t n)
{
    cn_message m;
    for (uint32_t i = 0; i < n; i++) {
        cn_transcript_free(&cpu->said[i]);
        cn_transcript_free(&gpu->said[i]);
        cn_request_params p = params_of(cpu, i, &m);
        p.sampling.temperature = 0;
        assert_int_equal(cn_engine_submit(cpu->engine, &p, keep, &cpu->said[i], NULL), CN_OK);
    }
    finish(cpu);
    cn_agreement sum = {0};
    for (uint32_t i = 0; i < n; i++) {
        cn_request_params p = params_of(gpu, i, &m);
        const cn_kv_params kv = p.kv;
        cn_audit_params(&p, &cpu->said[i]); /* of full KV */
        p.kv = kv;
        assert_int_equal(cn_engine_submit(gpu->engine, &p, keep, &gpu->said[i], NULL), CN_OK);
    }
    finish(gpu);
    for (uint32_t i = 0; i < n; i++)
        cn_agreement_between(&sum, &cpu->said[i], &gpu->said[i]);
    print_message("    argmax agreement %.4f %% of %llu tokens, mean logprob gap %.2e nats\n",
                  cn_agreement_share(&sum) * 100, (unsigned long long)sum.tokens,
                  cn_agreement_gap(&sum));
    assert_true(sum.tokens > n * 64);
    return sum;
}

static void argmax_agrees_with_the_cpu(void **state)
{
    (void)state;
    if (no_gpu) skip();
    talk cpu, gpu;
    open_talk(&cpu, (const char *[]){"device", "cpu", NULL});
    open_talk(&gpu, (const char *[]){CUDA, NULL});
    const cn_agreement sum = agreement_of(&cpu, &gpu, N_PROMPTS);
    assert_true(cn_agreement_share(&sum) >= 0.995);
    close_talk(&cpu);
    close_talk(&gpu);
}

#define HEAD_OPTIONS(folder)                                                                 \
    "model", (folder), "block-size", "64", "kv-select", "spec", "select-tokens", "32",       \
        "recent-tokens", "16", "select-dense-layers", "1"

/* Norms are parts of products here, and the head reads the residual that these products write. A
 * random head ranks by small differences, so some lists differ from the CPU's. */
static void a_head_that_reads_states_agrees_with_the_cpu(void **state)
{
    (void)state;
    if (no_gpu) skip();
    scratch_dir folder;
    talk cpu, gpu;
    draft_head_open(&folder);
    open_talk(&cpu, (const char *[]){"device", "cpu", HEAD_OPTIONS(folder.path), NULL});
    open_talk(&gpu, (const char *[]){CUDA, HEAD_OPTIONS(folder.path), NULL});
    const cn_agreement sum = agreement_of(&cpu, &gpu, 16);
    close_engine(&gpu);
    draft_head_write(&folder, 0);
    open_talk(&gpu, (const char *[]){CUDA, HEAD_OPTIONS(folder.path), NULL});
    const cn_agreement without = agreement_of(&cpu, &gpu, 16);
    assert_true(cn_agreement_share(&sum) >= 0.98);
    assert_true(cn_agreement_share(&without) < cn_agreement_share(&sum));
    assert_true(cn_agreement_gap(&without) > 2 * cn_agreement_gap(&sum));
    close_talk(&cpu);
    close_talk(&gpu);
    scratch_dir_close(&folder);
}

static void a_run_repeats_itself(void **state)
{
    (void)state;
    if (no_gpu) skip();
    talk first, again;
    open_talk(&first, (const char *[]){CUDA, NULL});
    ask_all(&first);
    close_engine(&first);
    open_talk(&again, (const char *[]){CUDA, NULL});
    ask_all(&again);
    for (uint32_t i = 0; i < N_PROMPTS; i++) assert_same(&first, &again, i);
    close_talk(&first);
    close_talk(&again);
}

/* A request alone, in a batch, in small chunks and op by op gives the same bits. */
static void batch_composition_changes_nothing(void **state)
{
    (void)state;
    if (no_gpu) skip();
    talk all, alone, other;
    open_talk(&all, (const char *[]){CUDA, "batch-invariant", "true", NULL});
    ask_all(&all);
    close_engine(&all);
    open_talk(&alone, (const char *[]){CUDA, "batch-invariant", "true", "enable-prefix-caching",
                                       "false", NULL});
    for (uint32_t i = 0; i < 12; i++) {
        ask(&alone, i);
        finish(&alone);
        assert_same(&all, &alone, i);
    }
    close_engine(&alone);
    open_talk(&other, (const char *[]){CUDA, "batch-invariant", "true", "enforce-eager", "true",
                                       "max-num-seqs", "23", "max-num-batched-tokens", "48",
                                       "async-scheduling", "off", NULL});
    ask_all(&other);
    for (uint32_t i = 0; i < N_PROMPTS; i++) assert_same(&all, &other, i);
    close_talk(&all);
    close_talk(&alone);
    close_talk(&other);
}

enum { N_MOVED = 8, N_CHATS = 6, CHAT_TOKENS = 40 };

/* Submits a compressed batch request, or a chat with full KV. */
static void ask_of_class(talk *t, uint32_t i)
{
    enum { LEDGER = 0, SUMS = 2 }; /* indices of tasks */
    cn_message m;
    const uint32_t task = i < N_MOVED ? LEDGER : SUMS;
    cn_request_params p = params_of(t, i % PER_TASK * N_TASKS + task, &m);
    p.kv.policy = i < N_MOVED ? CN_KV_ZIP : CN_KV_FULL;
    p.klass = i < N_MOVED ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
    p.sampling.max_tokens = i < N_MOVED ? MAX_TOKENS : CHAT_TOKENS;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = (float)(i % 2);
    p.sampling.frequency_penalty = i % 4 == 3 ? 0.3f : 0;
    p.sampling.has_seed = true;
    p.sampling.seed = i;
    assert_int_equal(cn_engine_submit(t->engine, &p, keep, &t->said[i], NULL), CN_OK);
}

static void step(talk *t, uint32_t n)
{
    bool idle;
    for (uint32_t i = 0; i < n; i++)
        if (cn_engine_step(t->engine, &idle) != CN_OK) fail_msg("%s", cn_last_error());
}

/* True when no running request could be recomputed, so preemption is not possible. */
static bool all_are_compressed(const talk *t)
{
    for (const cn_list_node *at = t->engine->requests.head; at; at = at->next) {
        const cn_engine_request *r = CN_CONTAINER_OF(at, cn_engine_request, node);
        if (r->samples[0].seq->usage_kv.compressions == 0) return false;
    }
    return true;
}

#define KV_OPTIONS                                                                               \
    CUDA, "batch-invariant", "true", "block-size", "64", "kv-policies", "full,zip", "kv-budget", \
        "128", "enable-prefix-caching", "false"

/* Eight requests at their cap of three blocks leave two blocks. Chats take the blocks of some of
 * these requests, which later continue with the same bits. */
static void a_swapped_request_continues_unchanged(void **state)
{
    (void)state;
    if (no_gpu) skip();
    talk all, moved;
    cn_stats s;
    open_talk(&all, (const char *[]){KV_OPTIONS, NULL});
    for (uint32_t i = 0; i < N_MOVED + N_CHATS; i++) ask_of_class(&all, i);
    finish(&all);
    close_engine(&all);
    open_talk(&moved, (const char *[]){KV_OPTIONS, "num-gpu-blocks-override", "26", "swap-space",
                                       "0.5", "max-model-len", "1024", NULL});
    for (uint32_t i = 0; i < N_MOVED; i++) ask_of_class(&moved, i);
    for (uint32_t i = 0; i < 200 && !all_are_compressed(&moved); i++) step(&moved, 1);
    assert_true(all_are_compressed(&moved));
    for (uint32_t i = N_MOVED; i < N_MOVED + N_CHATS; i++) {
        ask_of_class(&moved, i);
        step(&moved, 20);
    }
    finish(&moved);
    cn_engine_stats(moved.engine, &s);
    print_message("    %llu moves out, %llu back, %llu blocks and %llu bytes each way\n",
                  (unsigned long long)s.swap_outs, (unsigned long long)s.swap_ins,
                  (unsigned long long)s.swapped_out_blocks,
                  (unsigned long long)s.swapped_out_bytes);
    assert_true(s.swap_outs > 0 && s.swap_ins == s.swap_outs);
    assert_true(s.swapped_in_bytes == s.swapped_out_bytes && s.swap_blocks_used == 0);
    for (uint32_t i = 0; i < N_MOVED + N_CHATS; i++) assert_same(&all, &moved, i);
    close_talk(&all);
    close_talk(&moved);
}

enum { N_SELECTING = CN_N_SELECTORS + 1, SELECT_OUTPUT = 120, TLS_OUTPUT = 60 };

#define SELECT_OPTIONS                                                                             \
    CUDA, "batch-invariant", "true", "block-size", "64", "kv-policies", "full,zip",                \
        "kv-selectors", "*", "select-tokens", "128",                                 \
        "select-tiles", "4", "kv-budget", "128", "select-dense-layers", "1"

/* Request i has selector i; the last one compresses instead. Requests with two stages end first. */
static void ask_selecting(talk *t, uint32_t i)
{
    enum { STORY = 7 };
    cn_message m;
    cn_request_params p = params_of(t, i % PER_TASK * N_TASKS + STORY, &m);
    p.kv.policy = i == CN_N_SELECTORS ? CN_KV_ZIP : CN_KV_FULL;
    p.kv.select = i == CN_N_SELECTORS ? CN_SELECT_NONE : (cn_kv_select)i;
    p.kv.select_tokens = 64;
    p.kv.select_tiles = 3;
    p.sampling.max_tokens = p.kv.select == CN_SELECT_TLS ? TLS_OUTPUT : SELECT_OUTPUT;
    p.sampling.ignore_eos = true;
    assert_int_equal(cn_engine_submit(t->engine, &p, keep, &t->said[i], NULL), CN_OK);
}

/* Steps that ran from a graph. */
typedef struct recorded_steps {
    uint32_t plain, selecting, n_routes, routes[CN_MAX_ROUTES];
} recorded_steps;

static void count_route(recorded_steps *x, uint32_t route)
{
    for (uint32_t i = 0; i < x->n_routes; i++)
        if (x->routes[i] == route) return;
    assert_true(x->n_routes < CN_MAX_ROUTES);
    x->routes[x->n_routes++] = route;
}

/* Runs all requests and counts steps that ran from a graph. */
static void ask_all_selecting(talk *t, recorded_steps *x)
{
    for (uint32_t i = 0; i < N_SELECTING; i++) ask_selecting(t, i);
    for (bool idle = false; !idle;) {
        if (cn_engine_step(t->engine, &idle) != CN_OK) fail_msg("%s", cn_last_error());
        const cn_step_shape shape = t->engine->last_shape;
        if (shape.rows == 0) continue;
        x->plain += shape.route == 0;
        x->selecting += shape.route != 0;
        if (shape.route) count_route(x, shape.route);
    }
}

/* A batch with every selector, full KV and zip. */
static void steps_that_select_are_the_same_op_by_op(void **state)
{
    (void)state;
    if (no_gpu) skip();
    talk graphs, eager;
    cn_stats s;
    recorded_steps recorded = {0}, none = {0};
    open_talk(&graphs, (const char *[]){SELECT_OPTIONS, NULL});
    ask_all_selecting(&graphs, &recorded);
    cn_engine_stats(graphs.engine, &s);
    print_message("    %llu selecting steps of requests; steps from graphs: %u plain, %u selecting "
                  "on %u routes\n",
                  (unsigned long long)s.selected_steps, recorded.plain, recorded.selecting,
                  recorded.n_routes);
    assert_true(recorded.selecting > 20 && recorded.n_routes > 1);
    close_engine(&graphs);
    open_talk(&eager, (const char *[]){SELECT_OPTIONS, "enforce-eager", "true", NULL});
    ask_all_selecting(&eager, &none);
    assert_int_equal(none.plain + none.selecting, 0);
    for (uint32_t i = 0; i < N_SELECTING; i++) assert_same(&graphs, &eager, i);
    close_talk(&graphs);
    close_talk(&eager);
}

static void memory_is_as_planned(void **state)
{
    (void)state;
    if (no_gpu) skip();
    talk t;
    uint64_t planned, used;
    open_talk(&t, (const char *[]){"device", "cuda", "gpu-memory-utilization", "0.9", NULL});
    ask_all(&t);
    const cn_backend *be = t.engine->backend;
    be->mem_usage(t.engine->backend, &planned, &used);
    const double off = (double)used / (double)planned - 1;
    print_message("    planned %llu bytes, in use %llu: %+.2f %%\n", (unsigned long long)planned,
                  (unsigned long long)used, off * 100);
    assert_true(off < 0.02 && off > -0.02);
    close_talk(&t);
}

/* A configuration that is not possible gives one line with the option to change. */
static void assert_refused(const char *const *options, cn_status want, const char *says)
{
    cn_engine *e = (cn_engine *)1;
    const cn_status status = create(&e, options);
    if (status == CN_OK) fail_msg("expected a refusal: %s %s", options[0], options[1]);
    print_message("    %s\n", cn_last_error());
    assert_int_equal(status, want);
    assert_null(strchr(cn_last_error(), '\n'));
    assert_non_null(strstr(cn_last_error(), says));
}

static void faults_end_in_one_line(void **state)
{
    (void)state;
    assert_refused((const char *[]){"device", "cuda", "dtype", "float32", NULL}, CN_ERR_ARG,
                   "--device cpu");
    if (no_gpu) {
        assert_refused((const char *[]){CUDA, NULL}, CN_ERR_DEVICE, "--device cpu");
        return;
    }
    assert_refused((const char *[]){"device", "cuda:99", NULL}, CN_ERR_DEVICE, "cuda:0");
    assert_refused((const char *[]){"device", "cuda", "gpu-memory-utilization", "0.001", NULL},
                   CN_ERR_MEMORY, "--gpu-memory-utilization");
    assert_refused((const char *[]){CUDA, "kv-cache-memory-bytes", "900G", NULL}, CN_ERR_MEMORY,
                   "--kv-cache-memory-bytes");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(argmax_agrees_with_the_cpu),
        cmocka_unit_test(a_head_that_reads_states_agrees_with_the_cpu),
        cmocka_unit_test(a_run_repeats_itself),
        cmocka_unit_test(batch_composition_changes_nothing),
        cmocka_unit_test(a_swapped_request_continues_unchanged),
        cmocka_unit_test(steps_that_select_are_the_same_op_by_op),
        cmocka_unit_test(memory_is_as_planned),
        cmocka_unit_test(faults_end_in_one_line),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("engine_cuda", tests, setup, NULL);
}
