/* op_cases.c - see op_cases.h. */
#include "tests/lib/op_cases.h"

#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/start/device_choice.h"
#include "tests/lib/bf16.h"

static op_env env;
static op_case opened_for; /* the options with which env.cuda is open */
static char why_not[2048]; /* why there is no GPU */
static uint32_t most_seeds = UINT32_MAX;
static uint32_t seed; /* of the running case */
static bool running;

void op_ok(cn_status status, const char *call)
{
    if (status != CN_OK) fail_msg("%s: %s", call, cn_last_error());
}

/* ---- for cases ---- */

uint32_t op_between(op_env *e, uint32_t low, uint32_t high)
{
    return low + test_rng_below(&e->rng, high - low + 1);
}

bool op_coin(op_env *e) { return test_rng_below(&e->rng, 2) == 1; }

uint32_t op_some_rows(op_env *e)
{
    static const uint32_t most[] = {1, 9, 70, 600};
    return op_between(e, 1, most[test_rng_below(&e->rng, 4)]);
}

void op_sync(op_env *e)
{
    OP_OK(e->cpu->stream_sync(e->cpu_stream));
    OP_OK(e->cuda->stream_sync(e->cuda_stream));
}

/* ---- tensors ---- */

cn_kv_layout op_layout_as(const cn_kv_layout *l, cn_dtype dtype)
{
    cn_kv_layout out = cn_kv_layout_make(l->n_layers, l->n_blocks, l->n_kv_heads, l->block_tokens,
                                         l->head_dim, dtype);
    if (cn_kv_layout_is_shared(l))
        cn_kv_layout_share(&out, l->part[CN_KV_V].width, l->query_dim);
    return out;
}

static void *device_copy(op_env *e, const void *host, size_t bytes)
{
    void *p = NULL;
    OP_OK(e->cuda->mem_alloc(e->cuda, bytes, &p));
    OP_OK(e->cuda->mem_write(e->cuda_stream, p, host, bytes));
    return p;
}

static size_t tensor_bytes(const op_tensor *t) { return t->n * cn_dtype_bytes(t->dtype); }

void op_send(op_env *e, const op_tensor *t)
{
    uint16_t *halves = NULL;
    if (t->dtype == CN_BF16) {
        halves = cn_calloc(t->n, sizeof *halves);
        for (size_t i = 0; i < t->n; i++) halves[i] = to_bf16(((const float *)t->cpu)[i]);
    }
    OP_OK(e->cuda->mem_write(e->cuda_stream, t->cuda, halves ? halves : t->cpu, tensor_bytes(t)));
    cn_free(halves);
}

/* Takes ownership of `cpu`. */
static op_tensor new_tensor(op_env *e, void *cpu, size_t n, cn_dtype d)
{
    op_tensor t = {.n = n, .dtype = d, .cpu = cpu};
    OP_OK(e->cuda->mem_alloc(e->cuda, tensor_bytes(&t), &t.cuda));
    op_send(e, &t);
    return t;
}

op_tensor op_floats(op_env *e, const float *values, size_t n, cn_dtype d)
{
    float *cpu = cn_calloc_aligned(n, sizeof *cpu);
    assert_true(cpu && (d == CN_F32 || d == CN_BF16));
    for (size_t i = 0; i < n; i++)
        cpu[i] = d == CN_BF16 ? from_bf16(to_bf16(values[i])) : values[i];
    return new_tensor(e, cpu, n, d);
}

static op_tensor random_floats(op_env *e, size_t n, cn_dtype d)
{
    float *values = cn_calloc(n, sizeof *values);
    test_rng_fill(&e->rng, values, n);
    op_tensor t = op_floats(e, values, n, d);
    cn_free(values);
    return t;
}

op_tensor op_random(op_env *e, size_t n) { return random_floats(e, n, CN_BF16); }
op_tensor op_random_f32(op_env *e, size_t n) { return random_floats(e, n, CN_F32); }

op_tensor op_poison(op_env *e, size_t n, cn_dtype d)
{
    float *values = cn_calloc(n, sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = NAN;
    op_tensor t = op_floats(e, values, n, d);
    cn_free(values);
    return t;
}

op_tensor op_words(op_env *e, const void *words, size_t n)
{
    uint32_t *cpu = cn_calloc_aligned(n, sizeof *cpu);
    assert_non_null(cpu);
    memcpy(cpu, words, n * sizeof *cpu);
    return new_tensor(e, cpu, n, CN_U32);
}

op_tensor op_fp8_codes(op_env *e, size_t n, size_t k, size_t stride)
{
    uint8_t *codes = cn_calloc(n, stride);
    assert_non_null(codes);
    for (size_t i = 0; i < n * k; i++) {
        uint8_t *code = &codes[i / k * stride + i % k];
        *code = (uint8_t)test_rng_below(&e->rng, 256);
        if ((*code & 0x7f) == 0x7f) *code ^= 0x40;
    }
    const op_tensor t = op_words(e, codes, n * stride / 4);
    cn_free(codes);
    return t;
}

op_tensor op_fp8_scales(op_env *e, size_t n, float unit)
{
    float *scales = cn_calloc(n, sizeof *scales);
    assert_non_null(scales);
    for (size_t i = 0; i < n; i++) scales[i] = (1 + test_rng_uniform(&e->rng) / 2) * unit;
    const op_tensor t = op_words(e, scales, n);
    cn_free(scales);
    return t;
}

void op_tensor_free(op_env *e, op_tensor *t)
{
    cn_free(t->cpu);
    e->cuda->mem_free(e->cuda, t->cuda);
    *t = (op_tensor){0};
}

static void read_raw(op_env *e, const op_tensor *t, void *out)
{
    OP_OK(e->cuda->mem_read(e->cuda_stream, out, t->cuda, tensor_bytes(t)));
    OP_OK(e->cuda->stream_sync(e->cuda_stream));
}

void *op_take(op_env *e, const op_tensor *t)
{
    void *out = cn_calloc(1, tensor_bytes(t));
    assert_non_null(out);
    read_raw(e, t, out);
    return out;
}

void op_read(op_env *e, const op_tensor *t, float *out)
{
    if (t->dtype == CN_F32) {
        read_raw(e, t, out);
        return;
    }
    uint16_t *halves = op_take(e, t);
    for (size_t i = 0; i < t->n; i++) out[i] = from_bf16(halves[i]);
    cn_free(halves);
}

double op_error_of(const float *got, const float *want, size_t n)
{
    double squares = 0, wrong = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        const double difference = fabs((double)got[i] - want[i]);
        if (isnan(difference)) return INFINITY;
        squares += (double)want[i] * want[i];
        wrong += difference * difference;
        largest = fmax(largest, difference);
    }
    if (wrong == 0) return 0;
    return fmax(sqrt(wrong / squares), largest / sqrt(squares / (double)n) / 10);
}

double op_error(op_env *e, const op_tensor *t)
{
    float *got = cn_calloc(t->n, sizeof *got);
    op_read(e, t, got);
    const double error = op_error_of(got, t->cpu, t->n);
    cn_free(got);
    return error;
}

double op_row_error_of(const float *got, const float *want, uint32_t d)
{
    double wrong = 0, squares = 0;
    for (uint32_t i = 0; i < d; i++) {
        const double difference = (double)got[i] - want[i];
        wrong += difference * difference;
        squares += (double)want[i] * want[i];
    }
    if (wrong == 0) return 0;
    const double error = sqrt(wrong / squares);
    return isnan(error) ? INFINITY : error;
}

double op_rows_error(op_env *e, const op_tensor *t, uint32_t d)
{
    float *got = cn_calloc(t->n, sizeof *got);
    const float *want = t->cpu;
    double worst = 0;
    size_t row = 0;
    op_read(e, t, got);
    for (size_t i = 0; i < t->n / d; i++) {
        const double error = op_row_error_of(got + i * d, want + i * d, d);
        if (error <= worst) continue;
        worst = error;
        row = i;
    }
    const size_t at = strlen(e->shape);
    snprintf(e->shape + at, sizeof e->shape - at, ", row %zu", row);
    cn_free(got);
    return worst;
}

double op_words_error(op_env *e, const op_tensor *t)
{
    uint32_t *got = op_take(e, t);
    const bool equal = memcmp(got, t->cpu, t->n * sizeof *got) == 0;
    cn_free(got);
    return equal ? 0 : INFINITY;
}

/* ---- batches ---- */

op_batch op_batch_upload(op_env *e, const paged_batch *b)
{
    const cn_batch_view *v = &b->view;
    const size_t tables = (size_t)v->n_seqs * v->table_stride;
    const struct {
        const void *from;
        size_t n;
    } parts[] = {
        {v->tokens, v->n_tokens},     {v->positions, v->n_tokens}, {v->kv_slots, v->n_tokens},
        {v->q_rows, v->n_tokens},     {v->q_start, v->n_seqs + 1}, {v->kv_len, v->n_seqs},
        {v->tables, tables},
    };
    enum { N_PARTS = sizeof parts / sizeof *parts };
    size_t at[N_PARTS], n = 0;
    for (size_t i = 0; i < N_PARTS; i++) {
        at[i] = n;
        n += cn_round_up(parts[i].n, 4); /* 16 bytes */
    }
    uint32_t *host = cn_calloc(n, sizeof *host);
    for (size_t i = 0; i < N_PARTS; i++)
        memcpy(host + at[i], parts[i].from, parts[i].n * sizeof *host);
    op_batch out = {.view = *v, .memory = device_copy(e, host, n * sizeof *host)};
    cn_free(host);
    const uint32_t *device = out.memory;
    out.view.tokens = device + at[0];
    out.view.positions = device + at[1];
    out.view.kv_slots = device + at[2];
    out.view.q_rows = (const int32_t *)(device + at[3]);
    out.view.q_start = device + at[4];
    out.view.kv_len = device + at[5];
    out.view.tables = device + at[6];
    return out;
}

void op_batch_free(op_env *e, op_batch *b)
{
    e->cuda->mem_free(e->cuda, b->memory);
    b->memory = NULL;
}

/* ---- running ---- */

static void close_cuda(void)
{
    if (!env.cuda) return;
    env.cuda->stream_free(env.cuda_stream);
    env.cuda->stream_free(env.cuda_side);
    env.cuda->close(env.cuda);
    env.cuda = NULL;
}

static void open_cuda(const op_case *c)
{
    if (env.cuda && opened_for.gemm == c->gemm &&
        opened_for.batch_invariant == c->batch_invariant &&
        opened_for.portable == c->portable && opened_for.impatient == c->impatient &&
        opened_for.latent == c->latent &&
        memcmp(&opened_for.experts, &c->experts, sizeof c->experts) == 0)
        return;
    close_cuda();
    const cn_cuda_switches switches = {.gemm = c->gemm,
                                       .experts = c->experts,
                                       .portable = c->portable,
                                       .latent = c->latent,
                                       .impatient = c->impatient};
    const cn_cuda_backend_opts o = {.memory_bytes = UINT64_C(3) << 30,
                                    .n_heads = 64,
                                    .n_kv_heads = 8,
                                    .head_dim = c->latent ? OP_LATENT_DIM : 0,
                                    .max_seqs = 90, /* with eight kv heads 720 units */
                                    .max_tokens = 1024,
                                    .plain_bytes = 1 << 20, /* long prefills take turns */
                                    .batch_invariant = c->batch_invariant,
                                    .switches = &switches};
    opened_for = *c;
    if (cn_backend_cuda_load(&env.cuda, o) != CN_OK) {
        snprintf(why_not, sizeof why_not, "%s", cn_last_error());
        return;
    }
    op_ok(env.cuda->stream_create(env.cuda, CN_PRIORITY_HIGH, &env.cuda_stream), "a stream");
    op_ok(env.cuda->stream_create(env.cuda, CN_PRIORITY_LOW, &env.cuda_side), "a stream");
}

static void run_case(void **state)
{
    const op_case *c = *state;
    if (!why_not[0]) open_cuda(c);
    if (!env.cuda) skip();
    env.fp8 = c->fp8;
    env.portable = c->portable;
    double worst = 0;
    for (seed = 0; seed < cn_min_u32(c->n_seeds, most_seeds); seed++) {
        env.rng = (test_rng){seed};
        snprintf(env.shape, sizeof env.shape, "seed %u", seed);
        const size_t free_before = env.cuda->mem_avail(env.cuda);
        running = true;
        const double error = c->run(&env, seed);
        running = false;
        worst = fmax(worst, error);
        print_message("    %-20s %-60s error %.1e\n", c->name, env.shape, error);
        if (!(error <= c->tolerance))
            fail_msg("%s, seed %u, %s: error %g exceeds %g", c->name, seed, env.shape, error,
                     c->tolerance);
        assert_int_equal(env.cuda->mem_avail(env.cuda), free_before);
    }
    print_message("    %-20s worst error %.1e of %.1e\n", c->name, worst, c->tolerance);
}

/* Returns 1 when there were too many. */
static int check_near_ties(void)
{
    const double most = OP_MOST_NEAR_TIES * (double)env.n_decisions;
    const bool too_many = (double)env.n_near_ties > most;
    if (env.n_decisions > 0 || too_many)
        print_message("%snear ties: %llu of %llu decisions, at most %g %%, which is %.1f\n",
                      too_many ? "FAILED: too many " : "", (unsigned long long)env.n_near_ties,
                      (unsigned long long)env.n_decisions, OP_MOST_NEAR_TIES * 100, most);
    return too_many;
}

/* Runs after each case, because a failed assertion leaves the case early. */
static int say_where(void **state)
{
    const op_case *c = *state;
    if (running) print_error("%s failed at seed %u, %s\n", c->name, seed, env.shape);
    running = false;
    return 0;
}

/* A pattern that matches no case is an error: it would test nothing and pass. */
static bool any_matches(const op_case *cases, size_t n, const char *pattern)
{
    for (size_t i = 0; i < n; i++)
        if (fnmatch(pattern, cases[i].name, 0) == 0) return true;
    print_error("no case matches \"%s\"; the cases are:\n", pattern);
    for (size_t i = 0; i < n; i++) print_error("    %s\n", cases[i].name);
    return false;
}

int op_cases_main(const op_case *cases, size_t n, int argc, char **argv)
{
    if (argc > 1 && !any_matches(cases, n, argv[1])) return 2;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2 && (most_seeds = (uint32_t)strtoul(argv[2], NULL, 10)) == 0) return 2;
    struct CMUnitTest *tests = cn_calloc(n, sizeof *tests);
    if (!tests) return 2;
    for (size_t i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name,
                                       .test_func = run_case,
                                       .teardown_func = say_where,
                                       .initial_state = (void *)(uintptr_t)&cases[i]};
    op_ok(cn_backend_cpu_open(&env.cpu, &(cn_cpu_backend_opts){0}), "the CPU");
    op_ok(env.cpu->stream_create(env.cpu, CN_PRIORITY_HIGH, &env.cpu_stream), "a stream");
    int failed = _cmocka_run_group_tests("ops", tests, n, NULL, NULL);
    failed += check_near_ties();
    close_cuda();
    env.cpu->stream_free(env.cpu_stream);
    env.cpu->close(env.cpu);
    cn_free(tests);
    if (why_not[0]) print_message("skipped: %s\n", why_not);
    return failed;
}
