/* test_op_exchange_cuda.c - exchange and fetch on the GPU compared with the CPU, bit by bit, over
 * several rounds on random shapes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/start/device_choice.h"
#include "tests/lib/exchange_case.h"
#include "tests/lib/op_cases.h"

enum { ON_CPU, ON_CUDA, N_SIDES, POISON = 0xa5 };

/* Arrays of 32-bit words. The first ones are those of the case; they change from round to round. */
typedef enum word_array {
    SCORE,
    FIRST,
    N,
    ORIGIN,
    CHOSEN,
    N_CASE_ARRAYS, /* in both directions: the case sees what the ops have written */
    BASE = N_CASE_ARRAYS,
    LOG2,
    K,
    CAP,
    SLOTS,
    HELD_FROM,
    N_HELD,
    LOCAL_TABLES,
    HOME_TABLES,
    MOVES,
    N_MOVES,
    N_MISSED,
    LABELS,
    SCALES,
    HOME_LABELS,
    HOME_SCALES,
    N_ARRAYS,
    FIRST_RANDOM = LABELS
} word_array;

typedef struct world {
    op_env *env;
    exchange_case *c;
    op_tensor words[N_ARRAYS], local, home;
    void *host_home;  /* of the GPU's backend, with the content of `home`; or NULL */
    bool one_list;    /* one layer is ranked, and all get its moves */
} world;

static size_t label_bytes(const cn_kv_layout *l)
{
    return cn_kv_side_elems(l) * cn_label_channels(l->head_dim) / 2;
}

/* The memory of an array in the case; NULL: it starts poisoned, or random. */
static void *case_array(exchange_case *c, word_array array, size_t *bytes)
{
    const size_t row = c->n_seqs * sizeof(uint32_t), units = exchange_case_units(c);
    void *const memory[N_ARRAYS] = {
        c->score, c->first, c->n,         c->origin, c->chosen,       c->base,        c->entry_log2,
        c->k,     c->cap,   c->slots,     c->held_from, c->n_held,    c->local_tables,
        c->home_tables};
    const size_t sizes[N_ARRAYS] = {
        exchange_case_scores(c) * sizeof(uint16_t),
        row,
        row,
        cn_kv_side_elems(&c->local) * sizeof(uint32_t),
        exchange_case_chosen(c) * sizeof(uint32_t),
        row,
        c->n_seqs,
        row,
        row,
        row,
        row,
        row,
        row * c->local_stride,
        row * c->home_stride,
        units * c->move_stride * sizeof(cn_move),
        units * sizeof(uint32_t),
        units * sizeof(uint32_t),
        label_bytes(&c->local),
        cn_kv_side_elems(&c->local) * sizeof(uint16_t),
        label_bytes(&c->home),
        cn_kv_side_elems(&c->home) * sizeof(uint16_t)};
    *bytes = sizes[array];
    return memory[array];
}

/* The layout of a memory on one side. In eight bits both sides have the same bytes. */
static cn_kv_layout side_layout(const op_env *env, const cn_kv_layout *l, int side)
{
    if (!env->fp8) return side == ON_CPU ? *l : op_layout_as(l, CN_BF16);
    return cn_kv_layout_form(l->n_layers, l->n_blocks, l->n_kv_heads, l->block_tokens, l->head_dim,
                             side == ON_CPU ? CN_F32 : CN_BF16, CN_KV_FP8);
}

/* Random K and V. */
static op_tensor random_rows(op_env *env, const cn_kv_layout *l)
{
    const cn_kv_layout codes = side_layout(env, l, ON_CPU);
    const size_t n = cn_kv_pool_bytes(&codes) / sizeof(uint32_t);
    if (!env->fp8) return op_random(env, cn_kv_pool_elems(l));
    uint32_t *words = cn_calloc(n, sizeof *words);
    for (size_t i = 0; i < n; i++) words[i] = test_rng_below(&env->rng, UINT32_MAX);
    op_tensor t = op_words(env, words, n);
    cn_free(words);
    return t;
}

static world open_world(op_env *env, uint32_t longest, bool on_host)
{
    world w = {.env = env, .c = exchange_case_draw(&env->rng, longest)};
    const exchange_case *c = w.c;
    for (int i = 0; i < N_ARRAYS; i++) {
        size_t bytes;
        const void *from = case_array(w.c, (word_array)i, &bytes);
        const size_t n = bytes / sizeof(uint32_t) + 1;
        uint32_t *words = cn_calloc(n, sizeof *words);
        memset(words, POISON, n * sizeof *words);
        for (size_t k = 0; i >= FIRST_RANDOM && k < n; k++)
            words[k] = test_rng_below(&env->rng, UINT32_MAX);
        if (from) memcpy(words, from, bytes);
        w.words[i] = op_words(env, words, n);
        cn_free(words);
    }
    w.local = random_rows(env, &c->local);
    w.home = random_rows(env, &c->home);
    if (on_host) {
        const cn_kv_layout l = side_layout(env, &c->home, ON_CUDA);
        void *content = op_take(env, &w.home);
        OP_OK(env->cuda->host_alloc(env->cuda, cn_kv_pool_bytes(&l), &w.host_home));
        memcpy(w.host_home, content, cn_kv_pool_bytes(&l));
        cn_free(content);
    }
    snprintf(env->shape, sizeof env->shape,
             "%u seqs, %u layers, %u heads of %u, block=%u, k=%u, n=%u%s", c->n_seqs, c->n_layers,
             c->local.n_kv_heads, c->local.head_dim, c->local.block_tokens, c->k[0], c->n[0],
             c->holds ? ", held" : "");
    return w;
}

static void close_world(world *w)
{
    for (int i = 0; i < N_ARRAYS; i++) op_tensor_free(w->env, &w->words[i]);
    op_tensor_free(w->env, &w->local);
    op_tensor_free(w->env, &w->home);
    if (w->host_home) w->env->cuda->host_free(w->env->cuda, w->host_home);
    exchange_case_free(w->c);
}

static void *at(const world *w, word_array array, int side)
{
    return side == ON_CPU ? w->words[array].cpu : w->words[array].cuda;
}

static cn_pools pools_of(const world *w, bool is_home, int side)
{
    const cn_kv_layout *l = is_home ? &w->c->home : &w->c->local;
    const op_tensor *kv = is_home ? &w->home : &w->local;
    return (cn_pools){.layout = side_layout(w->env, l, side),
                      .kv = side == ON_CPU ? kv->cpu : kv->cuda,
                      .digest = {.n_channels = cn_label_channels(l->head_dim),
                                 .labels = at(w, is_home ? HOME_LABELS : LABELS, side),
                                 .scales = at(w, is_home ? HOME_SCALES : SCALES, side)}};
}

static void run_side(const world *w, int side, bool fill, const cn_backend *be, cn_stream *s)
{
    const exchange_case *c = w->c;
    cn_pools local = pools_of(w, false, side), home = pools_of(w, true, side);
    local.origin = at(w, ORIGIN, side);
    if (side == ON_CUDA && w->host_home) home.kv = w->host_home;
    const cn_exchange_args x = {.score = at(w, SCORE, side),
                                .first = at(w, FIRST, side),
                                .n = at(w, N, side),
                                .base = at(w, BASE, side),
                                .entry_log2 = at(w, LOG2, side),
                                .k = at(w, K, side),
                                .cap = at(w, CAP, side),
                                .slots = at(w, SLOTS, side),
                                .local = local,
                                .local_tables = c->holds ? at(w, LOCAL_TABLES, side) : NULL,
                                .held_from = at(w, HELD_FROM, side),
                                .n_held = at(w, N_HELD, side),
                                .local_stride = c->local_stride,
                                .n_seqs = c->n_seqs,
                                .first_layer = c->first_layer,
                                .n_layers = w->one_list ? 1 : c->n_layers,
                                .fill = fill,
                                .chosen = at(w, CHOSEN, side),
                                .n_slots = c->n_slots,
                                .chosen_stride = c->chosen_stride,
                                .moves = at(w, MOVES, side),
                                .n_moves = at(w, N_MOVES, side),
                                .n_missed = at(w, N_MISSED, side),
                                .move_stride = c->move_stride};
    const cn_fetch_args f = {.local = local,
                             .home = home,
                             .local_tables = at(w, LOCAL_TABLES, side),
                             .home_tables = at(w, HOME_TABLES, side),
                             .local_stride = c->local_stride,
                             .home_stride = c->home_stride,
                             .entry_log2 = at(w, LOG2, side),
                             .moves = at(w, MOVES, side),
                             .n_moves = at(w, N_MOVES, side),
                             .move_stride = c->move_stride,
                             .n_seqs = c->n_seqs,
                             .first_layer = c->first_layer,
                             .n_layers = c->n_layers,
                             .one_list = w->one_list};
    OP_OK(be->exchange(s, &x));
    OP_OK(be->fetch(s, &f));
}

static double compare(const world *w)
{
    static const struct {
        word_array array;
        const char *name;
    } checked[] = {{N_MOVES, "n_moves"}, {N_MISSED, "n_missed"}, {MOVES, "moves"},
                   {CHOSEN, "chosen"},   {ORIGIN, "positions"}, {LABELS, "labels"},
                   {SCALES, "scales"}};
    for (size_t i = 0; i < sizeof checked / sizeof *checked; i++)
        if (op_words_error(w->env, &w->words[checked[i].array]) > 0) {
            print_error("%s differ\n", checked[i].name);
            return INFINITY;
        }
    return w->env->fp8 ? op_words_error(w->env, &w->local) : op_error(w->env, &w->local);
}

/* Draws the next round and sends it. What the ops wrote is in the words of the CPU. */
static void next_round(world *w)
{
    size_t bytes;
    memcpy(w->c->origin, w->words[ORIGIN].cpu, cn_kv_side_elems(&w->c->local) * sizeof(uint32_t));
    memcpy(w->c->chosen, w->words[CHOSEN].cpu, exchange_case_chosen(w->c) * sizeof(uint32_t));
    exchange_case_next(w->c, &w->env->rng,
                       (exchange_change)test_rng_below(&w->env->rng, N_SCORE_CHANGES),
                       w->c->chosen);
    for (int i = 0; i < N_CASE_ARRAYS; i++) {
        const void *from = case_array(w->c, (word_array)i, &bytes);
        memcpy(w->words[i].cpu, from, bytes);
        op_send(w->env, &w->words[i]);
    }
}

static double run_rounds(op_env *e, uint32_t longest, bool on_host, bool on_side, bool one_list)
{
    enum { ROUNDS = 6 };
    double error = 0;
    world w = open_world(e, longest, on_host);
    w.one_list = one_list;
    if (e->fp8 && w.c->local.head_dim % 16 != 0) { /* not whole vectors: no model has it */
        close_world(&w);
        return 0;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (round > 0) next_round(&w);
        OP_OK(e->cuda->stream_sync(e->cuda_stream));
        run_side(&w, ON_CPU, round == 0, e->cpu, e->cpu_stream);
        run_side(&w, ON_CUDA, round == 0, e->cuda, on_side ? e->cuda_side : e->cuda_stream);
        OP_OK(e->cuda->stream_sync(e->cuda_side));
        error = fmax(error, compare(&w));
    }
    close_world(&w);
    return error;
}

static double run_exchange(op_env *e, uint32_t seed)
{
    return run_rounds(e, 700, seed % 3 == 2, seed % 2, seed % 4 == 3);
}

/* More candidates than a thread block marks at once. */
static double run_long_exchange(op_env *e, uint32_t seed)
{
    return run_rounds(e, seed % 2 ? 300000 : 40000, false, false, false);
}

/* Opens a backend on a second GPU, or on the same one. */
static cn_backend *open_pair(void)
{
    cn_cuda_backend_opts o = {.device = 1,
                              .memory_bytes = 64 << 20,
                              .n_heads = 8,
                              .max_seqs = 8,
                              .max_tokens = 64,
                              .switches = &(cn_cuda_switches){.gemm = CN_CUDA_GEMM_LIBRARY}};
    cn_backend *pair = NULL;
    if (cn_backend_cuda_load(&pair, o) == CN_OK) return pair;
    o.device = 0;
    OP_OK(cn_backend_cuda_load(&pair, o));
    return pair;
}

/* A second backend runs the ops on the memory of the first. Only fences order the two. */
static double run_pair(op_env *e, uint32_t seed)
{
    enum { ROUNDS = 4 };
    (void)seed;
    double error = 0;
    cn_backend *pair = open_pair();
    cn_stream *s = NULL;
    cn_fence *sent = NULL, *done = NULL;
    OP_OK(pair->stream_create(pair, CN_PRIORITY_LOW, &s));
    OP_OK(e->cuda->fence_create(e->cuda, &sent));
    OP_OK(pair->fence_create(pair, &done));
    world w = open_world(e, 400, false);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (round > 0) next_round(&w);
        OP_OK(e->cuda->fence_record(sent, e->cuda_stream));
        OP_OK(pair->fence_wait(s, sent));
        run_side(&w, ON_CPU, round == 0, e->cpu, e->cpu_stream);
        run_side(&w, ON_CUDA, round == 0, pair, s);
        OP_OK(pair->fence_record(done, s));
        OP_OK(e->cuda->fence_wait(e->cuda_stream, done));
        error = fmax(error, compare(&w));
    }
    close_world(&w);
    pair->fence_free(done);
    e->cuda->fence_free(sent);
    pair->stream_free(s);
    pair->close(pair);
    return error;
}

static double run_refusals(op_env *e, uint32_t seed)
{
    (void)seed;
    const cn_kv_layout local = cn_kv_layout_make(1, 1, 1, 64, 64, CN_BF16);
    const cn_kv_layout home = cn_kv_layout_make(1, 1, 2, 64, 64, CN_BF16);
    cn_fetch_args f = {.local = {.layout = local}, .home = {.layout = home}};
    assert_int_equal(e->cuda->fetch(e->cuda_stream, &f), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "home blocks of 2 heads"));
    f.local.layout = op_layout_as(&local, CN_F32);
    assert_int_equal(e->cuda->fetch(e->cuda_stream, &f), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "bf16"));
    const cn_exchange_args x = {.local = {.layout = local}, .n_seqs = 1, .n_layers = 1,
                                .chosen_stride = 1 << 20};
    assert_int_equal(e->cuda->exchange(e->cuda_stream, &x), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "shared memory"));
    return 0;
}

int main(int argc, char **argv)
{
    static const op_case cases[] = {
        {"exchange", 60, 0, run_exchange, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"exchange, long", 12, 0, run_long_exchange, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"exchange, pair", 4, 0, run_pair, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"exchange, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"exchange, fp8", 60, 0, run_exchange, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"exchange, fp8, long", 12, 0, run_long_exchange, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"exchange, portable", 60, 0, run_exchange, .portable = true},
        {"exchange, portable, long", 12, 0, run_long_exchange, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
