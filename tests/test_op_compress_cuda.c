/* test_op_compress_cuda.c - compression events on the GPU compared with the CPU, on random shapes:
 * which slots are kept, the new global score, and where rows move, for any tables. Also requests of
 * different policies in one event, long first events, and refusals. Origins identify the slot from
 * which a kept row came.
 *
 * A decision is a slot that is kept because of its score. Slots of the window are always kept, and
 * a request that keeps all its slots has no choice: neither counts. A near tie is a slot that one
 * side keeps and the other drops, if its score is so close to the lowest score that the CPU keeps
 * that rounding may decide (nearly_equal). Two exchanged slots are two near ties. Any other
 * difference fails the test at once. Too many near ties in the whole run fail it at the end
 * (op_cases.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "compress/policy.h"
#include "compress/rule.h"
#include "engine/cpu/cpu_compress.h"
#include "tests/lib/bf16.h"
#include "tests/lib/compress_placement.h"
#include "tests/lib/compress_request.h"
#include "tests/lib/fp8_pool.h"
#include "tests/lib/op_cases.h"

/* Tolerance of a score: products are of bf16 values and sums are f32 on both sides. */
static const double SCORE_TOLERANCE = 1e-3;

enum { MAX_REQS = 4, MAX_BLOCKS = 400, QUERY_SLOTS = 5, MARK = 1 << 30 };

void openblas_set_num_threads(int n_threads);

/* ---- an event ---- */

typedef struct event_shape {
    uint32_t n_layers, n_kv_heads, group, head_dim, block_tokens, ring, n_reqs;
} event_shape;

/* The pools before the event, and the requests. `pools` is the CPU's side of the tensors. If K and
 * V of the GPU are in eight bits, `codes` is its pool, and kv has the same values. */
typedef struct event {
    cn_pools pools;
    op_tensor codes; /* n 0: plain rows */
    cn_kv_layout codes_layout;
    op_tensor kv, q_window, score, origin;
    cn_compress_req reqs[MAX_REQS];
    uint32_t n_reqs;
    uint32_t tables[MAX_REQS][MAX_BLOCKS], targets[MAX_REQS][MAX_BLOCKS];
} event;

/* The GPU's pools after the event. */
typedef struct outcome {
    uint16_t *kv;
    float *score;
    uint32_t *origin;
} outcome;

static size_t query_elems(const cn_pools *p)
{
    return (size_t)p->layout.n_layers * p->n_query_slots * p->window * p->n_heads *
           p->layout.head_dim;
}

static float *draw_bf16(test_rng *r, size_t n, float scale)
{
    float *p = cn_calloc(n, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = from_bf16(to_bf16(scale * test_rng_uniform(r)));
    return p;
}

/* Places keys around a few centres, as real keys are; otherwise no two keys would be similar. */
static void crowd_keys(test_rng *r, const cn_kv_layout *l, float *kv)
{
    enum { CENTRES = 8 };
    float centre[CENTRES][256];
    test_rng_fill(r, centre[0], (size_t)CENTRES * 256);
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t block = 0; block < l->n_blocks; block++)
            for (uint32_t head = 0; head < l->n_kv_heads; head++)
                for (uint32_t slot = 0; slot < l->block_tokens; slot++) {
                    float *k = kv + cn_kv_row(l, layer, block, head, slot, CN_KV_K);
                    const float *near = centre[test_rng_below(r, CENTRES)];
                    for (uint32_t j = 0; j < l->head_dim; j++) k[j] = near[j] + 0.5f * k[j];
                }
}

static void draw_sides(op_env *env, event *e)
{
    const size_t n = cn_kv_side_elems(&e->pools.layout);
    float *score = cn_calloc(n, sizeof *score);
    uint32_t *origin = cn_calloc(n, sizeof *origin);
    for (size_t i = 0; i < n; i++) {
        score[i] = (test_rng_uniform(&env->rng) + 1) / 100;
        origin[i] = MARK + (uint32_t)i; /* all different, and no position */
    }
    e->score = op_floats(env, score, n, CN_F32);
    e->origin = op_words(env, origin, n);
    cn_free(score);
    cn_free(origin);
}

static void store_codes(op_env *env, event *e, float *kv)
{
    fp8_pool pool = fp8_pool_make(&e->pools.layout, kv);
    e->codes = op_words(env, pool.kv, cn_kv_pool_bytes(&pool.layout) / sizeof(uint32_t));
    e->codes_layout = pool.layout;
    e->codes_layout.act_dtype = CN_BF16;
    fp8_pool_free(&pool);
}

static event *event_create(op_env *env, const event_shape *s, uint32_t n_blocks)
{
    event *e = cn_calloc(1, sizeof *e);
    cn_pools *p = &e->pools;
    *p = (cn_pools){.layout = cn_kv_layout_make(s->n_layers, n_blocks, s->n_kv_heads,
                                                s->block_tokens, s->head_dim, CN_F32),
                    .n_query_slots = QUERY_SLOTS,
                    .window = s->ring,
                    .n_heads = s->n_kv_heads * s->group,
                    .act_dtype = CN_F32};
    float *kv = draw_bf16(&env->rng, cn_kv_pool_elems(&p->layout), 1.0f);
    crowd_keys(&env->rng, &p->layout, kv);
    float *queries = draw_bf16(&env->rng, query_elems(p), 2.0f);
    if (env->fp8) store_codes(env, e, kv);
    e->kv = op_floats(env, kv, cn_kv_pool_elems(&p->layout), env->fp8 ? CN_F32 : CN_BF16);
    e->q_window = op_floats(env, queries, query_elems(p), CN_BF16);
    cn_free(kv);
    cn_free(queries);
    draw_sides(env, e);
    p->kv = e->kv.cpu;
    p->q_window = e->q_window.cpu;
    p->score = e->score.cpu;
    p->origin = e->origin.cpu;
    e->n_reqs = s->n_reqs;
    snprintf(env->shape, sizeof env->shape, "layers=%u heads=%u*%u d=%u block=%u ring=%u, %u reqs",
             s->n_layers, s->n_kv_heads, s->group, s->head_dim, s->block_tokens, s->ring,
             s->n_reqs);
    return e;
}

static void event_free(op_env *env, event *e)
{
    op_tensor *const all[] = {&e->kv, &e->q_window, &e->score, &e->origin};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(env, all[i]);
    if (e->codes.n > 0) op_tensor_free(env, &e->codes);
    cn_free(e);
}

/* Draws the tables of request i from the pool's blocks at *next: n_blocks source blocks, and as
 * many new ones. */
static void draw_tables(op_env *env, event *e, uint32_t i, compress_placement how, uint32_t *next)
{
    cn_compress_req *q = &e->reqs[i];
    const uint32_t n = q->n_blocks, first = *next;
    uint32_t pick[2 * MAX_BLOCKS], *table = e->tables[i], *target = e->targets[i];
    for (uint32_t j = 0; j < 2 * n; j++) {
        uint32_t k = test_rng_below(&env->rng, j + 1);
        pick[j] = pick[k];
        pick[k] = first + j;
    }
    for (uint32_t j = 0; j < n; j++) table[j] = pick[j];
    uint32_t any[MAX_BLOCKS];
    for (uint32_t j = 0; j < q->n_target; j++) any[j] = pick[(j * 2 + 1) % (2 * n)];
    for (uint32_t j = 0; j < q->n_target; j++)
        target[j] = compress_place(how, table, n, pick + n, any, q->n_target, j);
    q->table = table;
    q->target = target;
    *next += 2 * n;
}

/* ---- on the GPU ---- */

static cn_pools gpu_pools(const event *e)
{
    cn_pools p = e->pools;
    p.kv = e->kv.cuda;
    p.q_window = e->q_window.cuda;
    p.score = e->score.cuda;
    p.origin = e->origin.cuda;
    p.layout = op_layout_as(&e->pools.layout, CN_BF16);
    p.act_dtype = CN_BF16;
    if (e->codes.n == 0) return p;
    p.kv = e->codes.cuda;
    p.layout = e->codes_layout;
    return p;
}

static outcome outcome_take(op_env *env, const event *e)
{
    uint16_t *kv = op_take(env, e->codes.n > 0 ? &e->codes : &e->kv);
    if (e->codes.n > 0) {
        const fp8_pool codes = {e->codes_layout, kv};
        kv = fp8_pool_take_bf16(&codes, &e->pools.layout);
        cn_free(codes.kv);
    }
    return (outcome){kv, op_take(env, &e->score), op_take(env, &e->origin)};
}

static void outcome_free(outcome *o)
{
    cn_free(o->kv);
    cn_free(o->score);
    cn_free(o->origin);
}

/* Runs the event on the LOW stream, on the pools as they were before it, with this much scratch
 * (0: the size that the backend requests). Overwrites the arguments before any wait, because the
 * call must have read them. */
static cn_status event_run(op_env *env, const event *e, size_t scratch_bytes, outcome *out)
{
    cn_backend *be = env->cuda;
    cn_stream *side = env->cuda_side;
    const op_tensor *const all[] = {&e->kv, &e->q_window, &e->score, &e->origin};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_send(env, all[i]);
    if (e->codes.n > 0) op_send(env, &e->codes);
    event *given = cn_calloc(1, sizeof *given);
    *given = *e;
    uint32_t n_max = 0;
    for (uint32_t i = 0; i < e->n_reqs; i++) {
        n_max = cn_max_u32(n_max, e->reqs[i].n_blocks);
        given->reqs[i].table = given->tables[i];
        given->reqs[i].target = given->targets[i];
    }
    cn_compress_args a = {.pools = gpu_pools(e), .reqs = given->reqs, .n_reqs = e->n_reqs};
    a.scratch_bytes = scratch_bytes;
    if (scratch_bytes == 0)
        a.scratch_bytes =
            be->compress_scratch_bytes(be, &a.pools, n_max * a.pools.layout.block_tokens);
    OP_OK(be->mem_alloc(be, a.scratch_bytes, &a.scratch));
    OP_OK(be->stream_sync(env->cuda_stream));
    const cn_status status = be->compress(side, &a);
    memset(given, 0xa5, sizeof *given);
    cn_free(given);
    OP_OK(be->stream_sync(side));
    if (out) *out = outcome_take(env, e);
    be->mem_free(be, a.scratch);
    return status;
}

/* ---- the CPU's answer for one (layer, kv head) ---- */

typedef struct answer {
    uint32_t n, n_kept;
    float *f;         /* [n] the new global score */
    float *score;     /* [n] final score; infinite for slots that are always kept */
    float *magnitude; /* [n] largest term of the final score */
    uint32_t *kept;   /* [n_kept] */
    float *memory;
} answer;

static void answer_scores(const event *e, const cn_compress_req *q, uint32_t layer, uint32_t head,
                          answer *a)
{
    const uint32_t n = a->n, d = e->pools.layout.head_dim;
    float *keys = cn_calloc_aligned((size_t)n * d, sizeof *keys);
    float *work = cn_calloc_aligned(cn_score_work_floats(&e->pools, n), sizeof *work);
    float *redundancy = cn_calloc_aligned(n, sizeof *redundancy);
    cn_cpu_gather_keys(&e->pools, q, layer, head, keys);
    const cn_score_job job = {.pools = &e->pools, .req = q, .layer = layer, .kv_head = head,
                              .n = n, .keys_t = keys, .score = a->score,
                              .redundancy = redundancy, .work = work};
    size_t n_rows;
    const cn_score *rows = cn_score_table(&n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        if (!rows[i].applies(q)) continue;
        rows[i].cpu(&job);
        /* F is the score after the decay and before the steps that follow. */
        if (i <= 1) memcpy(a->f, a->score, n * sizeof *a->f);
        for (uint32_t v = 0; v < n; v++) {
            const bool none = cn_rule_redundancy(&q->params) == CN_REDUNDANCY_NONE;
            const float of_r = none ? 0 : redundancy[v];
            a->magnitude[v] = fmaxf(a->magnitude[v], fmaxf(a->score[v], of_r));
        }
    }
    for (uint32_t v = 0; v < cn_rule_sinks(&q->params); v++) a->score[v] = INFINITY;
    for (uint32_t v = n - cn_rule_newest(&q->params); v < n; v++) a->score[v] = INFINITY;
    cn_free(keys);
    cn_free(work);
    cn_free(redundancy);
}

/* Computing the global score writes F into the pool. F is restored, because the answer for the next
 * layer must not see the change. */
static void answer_best(const event *e, const cn_compress_req *q, uint32_t layer, uint32_t head,
                        answer *a)
{
    const size_t side_bytes = cn_kv_side_elems(&e->pools.layout) * sizeof(float);
    float *before = cn_calloc(1, side_bytes);
    memcpy(before, e->pools.score, side_bytes);
    answer_scores(e, q, layer, head, a);
    memcpy(e->pools.score, before, side_bytes);
    cn_free(before);
    cn_cpu_select_top(a->score, a->n, a->n_kept, (uint32_t *)(a->memory + 4 * (size_t)a->n),
                      a->kept);
}

static answer answer_make(const event *e, const cn_compress_req *q, uint32_t layer, uint32_t head)
{
    const uint32_t n = q->n_blocks * e->pools.layout.block_tokens;
    answer a = {.n = n, .n_kept = q->n_target * e->pools.layout.block_tokens};
    a.memory = cn_calloc_aligned(5 * (size_t)n, sizeof *a.memory);
    a.f = a.memory;
    a.score = a.memory + n;
    a.magnitude = a.memory + 2 * (size_t)n;
    a.kept = (uint32_t *)(a.memory + 3 * (size_t)n);
    switch (cn_policy_of(q->params.policy)->keep) { /* the compiler asks for each value */
    case CN_KEEP_RECENT: cn_cpu_select_window(n, a.n_kept, q->params.sink_tokens, a.kept); break;
    case CN_KEEP_BEST: answer_best(e, q, layer, head, &a); break;
    case CN_KEEP_ALL:
    case CN_N_KEEPS: fail_msg("a policy without events");
    }
    return a;
}

/* ---- comparing ---- */

typedef struct where {
    op_env *env;
    uint32_t req, layer, head;
} where;

#define FAIL(w, ...)                                                                               \
    do {                                                                                           \
        print_error("request %u, layer %u, head %u: ", (w)->req, (w)->layer, (w)->head);           \
        fail_msg(__VA_ARGS__);                                                                     \
    } while (0)

static size_t side_at(const event *e, const where *w, const uint32_t *blocks, uint32_t slot)
{
    const cn_kv_layout *l = &e->pools.layout;
    return cn_kv_side(l, w->layer, blocks[slot / l->block_tokens], w->head, slot % l->block_tokens);
}

/* Returns the slot with this origin: its own mark below n_history of a later event, otherwise its
 * position. */
static uint32_t slot_of(const event *e, const where *w, uint32_t origin, uint32_t n)
{
    const cn_kv_layout *l = &e->pools.layout;
    const cn_compress_req *q = &e->reqs[w->req];
    const uint32_t n_marked = q->first_event ? 0 : q->n_history;
    for (uint32_t i = 0; i < n / l->block_tokens && origin >= MARK; i++) {
        uint32_t first = MARK + (uint32_t)cn_kv_side(l, w->layer, q->table[i], w->head, 0);
        uint32_t slot = i * l->block_tokens + origin - first;
        if (origin - first < l->block_tokens && slot < n_marked) return slot;
    }
    const uint32_t slot = q->first_event ? origin : origin - (q->position_end - n);
    if (slot < n_marked || slot >= n) FAIL(w, "origin %u is not that of a slot", origin);
    return slot;
}

/* kept[i] must ascend. With kv move fill, kept[i] is i if slot i is kept, and the others ascend. */
static void check_places(const where *w, const cn_compress_req *q, uint32_t n_kept,
                         const uint32_t *kept, const bool *is_kept)
{
    const bool fills = cn_policy_ranks(q->params.policy) && q->params.move == CN_MOVE_FILL;
    uint32_t least = fills ? n_kept : 0;
    for (uint32_t i = 0; i < n_kept; i++) {
        const bool stays = fills && is_kept[i];
        if (stays ? kept[i] != i : kept[i] < least)
            FAIL(w, "target slot %u received slot %u, which is not its place", i, kept[i]);
        if (!stays) least = kept[i] + 1;
    }
}

/* True when slot v is so close to the threshold, the lowest kept score, that rounding decides:
 * within twice the error of a score, because two scores may differ in opposite directions. A score
 * is a sum of terms, and its error is at most SCORE_TOLERANCE of the largest term, its
 * magnitude. */
static bool nearly_equal(const answer *a, uint32_t v, uint32_t threshold)
{
    const double off = fabs((double)a->score[v] - (double)a->score[threshold]);
    const double most = fmax((double)a->magnitude[v], (double)a->magnitude[threshold]);
    return off <= 2 * SCORE_TOLERANCE * most;
}

static uint32_t n_forced(const cn_compress_req *q)
{
    return cn_rule_sinks(&q->params) + cn_rule_newest(&q->params);
}

/* Checks kept[i]. A slot that differs from the answer must be a near tie. */
static void check_kept(const where *w, const cn_compress_req *q, const answer *a,
                       const uint32_t *kept)
{
    const bool by_score = cn_policy_ranks(q->params.policy);
    bool *wanted = cn_calloc(a->n, sizeof *wanted), *got = cn_calloc(a->n, sizeof *got);
    uint32_t threshold = a->kept[0]; /* the slot of the threshold */
    for (uint32_t i = 0; i < a->n_kept; i++) {
        wanted[a->kept[i]] = got[kept[i]] = true;
        if (a->score[a->kept[i]] <= a->score[threshold]) threshold = a->kept[i];
    }
    check_places(w, q, a->n_kept, kept, got);
    if (by_score && a->n_kept < a->n) w->env->n_decisions += a->n_kept - n_forced(q);
    for (uint32_t v = 0; v < a->n; v++) {
        if (wanted[v] == got[v]) continue;
        if (!by_score || !nearly_equal(a, v, threshold))
            FAIL(w, "slot %u of %u is %s: its score is %.8g, the threshold %.8g", v, a->n,
                 got[v] ? "kept" : "dropped", (double)a->score[v], (double)a->score[threshold]);
        w->env->n_near_ties++;
    }
    cn_free(wanted);
    cn_free(got);
}

static void check_unit(const event *e, const where *w, const outcome *o)
{
    const cn_compress_req *q = &e->reqs[w->req];
    const cn_kv_layout *l = &e->pools.layout;
    answer a = answer_make(e, q, w->layer, w->head);
    const bool global = cn_policy_ranks(q->params.policy) && cn_rule_keeps_scores(&q->params);
    uint32_t *kept = cn_calloc(a.n_kept, sizeof *kept);
    for (uint32_t i = 0; i < a.n_kept; i++)
        kept[i] = slot_of(e, w, o->origin[side_at(e, w, q->target, i)], a.n);
    check_kept(w, q, &a, kept);
    for (uint32_t i = 0; i < a.n_kept; i++) {
        const uint32_t b = l->block_tokens, v = kept[i];
        for (int part = CN_KV_K; part <= CN_KV_V; part++) {
            const float *from = (float *)e->pools.kv + cn_kv_row(l, w->layer, q->table[v / b],
                                                                 w->head, v % b, (cn_kv_part)part);
            const uint16_t *to = o->kv + cn_kv_row(l, w->layer, q->target[i / b], w->head, i % b,
                                                   (cn_kv_part)part);
            for (uint32_t j = 0; j < l->head_dim; j++)
                if (to[j] != to_bf16(from[j]))
                    FAIL(w, "target slot %u does not hold slot %u, column %u of part %d", i, v, j,
                         part);
        }
        const double got = (double)o->score[side_at(e, w, q->target, i)];
        const double want = (double)(global ? a.f[v] : e->pools.score[side_at(e, w, q->table, v)]);
        if (!(fabs(got - want) <= (global ? SCORE_TOLERANCE * want : 0.0)))
            FAIL(w, "F of slot %u: expected %.9g, got %.9g", v, want, got);
    }
    cn_free(kept);
    cn_free(a.memory);
}

/* Blocks that are not target blocks must be unchanged. */
static void check_others(const event *e, const outcome *o, const where *w)
{
    const cn_kv_layout *l = &e->pools.layout;
    const size_t elems = l->block_bytes / sizeof(float);
    const size_t side = (size_t)l->n_kv_heads * l->block_tokens;
    bool *is_target = cn_calloc(l->n_blocks, sizeof *is_target);
    for (uint32_t i = 0; i < e->n_reqs; i++)
        for (uint32_t j = 0; j < e->reqs[i].n_target; j++) is_target[e->reqs[i].target[j]] = true;
    for (size_t at = 0; at < (size_t)l->n_layers * l->n_blocks; at++) {
        if (is_target[at % l->n_blocks]) continue;
        bool same = memcmp(o->score + at * side, e->pools.score + at * side, side * 4) == 0 &&
                    memcmp(o->origin + at * side, e->pools.origin + at * side, side * 4) == 0;
        for (size_t i = 0; i < elems && same; i++)
            same = o->kv[at * elems + i] == to_bf16(((float *)e->pools.kv)[at * elems + i]);
        if (!same) FAIL(w, "block %zu of layer %zu changed", at % l->n_blocks, at / l->n_blocks);
    }
    cn_free(is_target);
}

static void assert_same_outcome(const cn_kv_layout *l, const outcome *a, const outcome *b)
{
    assert_memory_equal(a->kv, b->kv, cn_kv_pool_elems(l) * sizeof *a->kv);
    assert_memory_equal(a->score, b->score, cn_kv_side_elems(l) * sizeof *a->score);
    assert_memory_equal(a->origin, b->origin, cn_kv_side_elems(l) * sizeof *a->origin);
}

/* Compares the event with the CPU, and with a second run, which must have the same bits. */
static void check_event(op_env *env, const event *e)
{
    const cn_kv_layout *l = &e->pools.layout;
    where w = {.env = env};
    outcome o, again;
    OP_OK(event_run(env, e, 0, &o));
    for (w.req = 0; w.req < e->n_reqs; w.req++)
        for (w.layer = 0; w.layer < l->n_layers; w.layer++)
            for (w.head = 0; w.head < l->n_kv_heads; w.head++) check_unit(e, &w, &o);
    check_others(e, &o, &w);
    OP_OK(event_run(env, e, 0, &again));
    assert_same_outcome(l, &o, &again);
    outcome_free(&o);
    outcome_free(&again);
}

/* ---- drawn events ---- */

static const uint32_t DIMS[] = {16, 64, 80, 96, 128, 256};
static const uint32_t BLOCKS[] = {16, 32, 64, 128, 256};

static event *draw_event(op_env *env)
{
    test_rng *r = &env->rng;
    event_shape s = {.n_layers = 1 + test_rng_below(r, 3), .n_kv_heads = 1 + test_rng_below(r, 3)};
    s.head_dim = DIMS[test_rng_below(r, 6)];
    s.block_tokens = BLOCKS[test_rng_below(r, 5)];
    s.group = 1 + test_rng_below(r, 8);
    s.ring = 1 + test_rng_below(r, 40);
    s.n_reqs = 1 + test_rng_below(r, MAX_REQS);
    const uint32_t most = s.block_tokens >= 128 ? 4 : 12;
    event *e = event_create(env, &s, 2 * MAX_REQS * most);
    uint32_t next = 0;
    for (uint32_t i = 0; i < e->n_reqs; i++) {
        e->reqs[i] = compress_request_draw(&env->rng, &e->pools, i, 1 + test_rng_below(r, most));
        draw_tables(env, e, i, (compress_placement)test_rng_below(r, N_PLACEMENTS), &next);
    }
    return e;
}

static double run_drawn(op_env *env, uint32_t seed)
{
    (void)seed;
    event *e = draw_event(env);
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- the shape of Qwen3-8B ---- */

static event *model_event(op_env *env, uint32_t n_blocks, uint32_t n_target, uint32_t n_reqs)
{
    const event_shape s = {.n_layers = 1,
                           .n_kv_heads = 2,
                           .group = 4,
                           .head_dim = 128,
                           .block_tokens = 256,
                           .ring = 16,
                           .n_reqs = n_reqs};
    event *e = event_create(env, &s, 2 * n_reqs * n_blocks);
    uint32_t next = 0;
    for (uint32_t i = 0; i < n_reqs; i++) {
        cn_compress_req q = compress_request_draw(&env->rng, &e->pools, i, n_blocks);
        q.n_target = n_target;
        q.first_event = i % 2;
        q.n_history = q.first_event ? 0 : n_target * 256;
        q.params.policy = CN_KV_ZIP;
        q.params.budget_tokens = n_target * 256;
        q.params.window_tokens = 16;
        q.params.sink_tokens = 4;
        q.params.recent = 0.125f;
        q.params.rule = (cn_kv_rule)(i % CN_N_RULES);
        q.params.global_score = true;
        q.params.pooling = CN_POOLING_FIRST;
        q.params.redundancy = CN_REDUNDANCY_LIGHTNING;
        q.params.combine = CN_COMBINE_CONVEX;
        q.params.move = i < 2 ? CN_MOVE_ORDER : CN_MOVE_FILL;
        e->reqs[i] = q;
        draw_tables(env, e, i, IN_PLACE, &next);
    }
    return e;
}

static double run_usual(op_env *env, uint32_t seed)
{
    (void)seed;
    event *e = model_event(env, 9, 8, 4);
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* Every slot is kept, so F is the attention score of all slots. One group per seed. */
static const uint32_t GROUPS[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 48};
enum { N_GROUPS = sizeof GROUPS / sizeof *GROUPS };

static double run_groups(op_env *env, uint32_t seed)
{
    const uint32_t group = GROUPS[seed];
    const event_shape s = {.n_layers = 1,
                           .n_kv_heads = 2,
                           .group = group,
                           .head_dim = DIMS[group % 6],
                           .block_tokens = BLOCKS[group % 5],
                           .ring = 16,
                           .n_reqs = 1};
    event *e = event_create(env, &s, 12);
    uint32_t next = 0;
    e->reqs[0] = compress_request_draw(&env->rng, &e->pools, 0, 6);
    e->reqs[0].n_target = 6;
    e->reqs[0].params.policy = CN_KV_ZIP;
    e->reqs[0].params.window_tokens = 16;
    e->reqs[0].params.global_score = true;
    draw_tables(env, e, 0, group % 2 ? ALL_NEW : IN_PLACE, &next);
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- rule follow ---- */

/* Fewer slots than a score reaches, and slots that it reaches in another block. No sinks, and more
 * than it reaches. One slot that is kept for its score. Scores that do not fit in shared memory. */
static const struct {
    uint32_t block, n_blocks, n_target, window, sinks;
    float recent;
} FOLLOW[] = {
    {16, 2, 1, 1, 0, 0},       {16, 7, 5, 16, 4, 0},       {16, 9, 6, 7, 3, 0.5f},
    {32, 9, 7, 5, 140, 20},    {64, 7, 6, 16, 4, 379},     {128, 4, 3, 1, 0, 0},
    {256, 9, 8, 16, 4, 0.75f}, {256, 40, 8, 16, 4, 0.75f},
};
enum { N_FOLLOW = sizeof FOLLOW / sizeof *FOLLOW };

/* Beside a request of another rule, which shares the launches. */
static double run_follow(op_env *env, uint32_t seed)
{
    const event_shape s = {.n_layers = 2, .n_kv_heads = 2, .group = 3, .head_dim = 64,
                           .block_tokens = FOLLOW[seed].block, .ring = 16, .n_reqs = 2};
    event *e = event_create(env, &s, 4 * FOLLOW[seed].n_blocks);
    uint32_t next = 0;
    for (uint32_t i = 0; i < 2; i++) {
        cn_compress_req *q = &e->reqs[i];
        *q = compress_request_draw(&env->rng, &e->pools, i, FOLLOW[seed].n_blocks);
        q->n_target = FOLLOW[seed].n_target;
        q->params.policy = CN_KV_ZIP;
        q->params.budget_tokens = q->n_target * s.block_tokens;
        q->params.window_tokens = FOLLOW[seed].window;
        q->params.sink_tokens = FOLLOW[seed].sinks;
        q->params.recent = FOLLOW[seed].recent;
        q->params.rule = i == 0 ? CN_RULE_FOLLOW : CN_RULE_SCALED;
        q->params.observe_tokens = 0;
        if (i > 0) q->params.redundancy = CN_REDUNDANCY_NONE;
        q->params.pooling = CN_POOLING_ALWAYS;
        q->params.move = (cn_kv_move)(seed % 2);
        draw_tables(env, e, i, IN_PLACE, &next);
    }
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- long first events ---- */

/* 10,240 slots and 100,352 slots. */
static double run_long(op_env *env, uint32_t seed)
{
    const event_shape s = {.n_layers = 1,
                           .n_kv_heads = 1,
                           .group = 2,
                           .head_dim = 64,
                           .block_tokens = 256,
                           .ring = 16,
                           .n_reqs = 1};
    const uint32_t n_blocks = seed == 0 ? 40 : 392;
    event *e = event_create(env, &s, 2 * n_blocks);
    uint32_t next = 0;
    e->reqs[0] = compress_request_draw(&env->rng, &e->pools, 0, n_blocks);
    e->reqs[0].n_target = 8;
    e->reqs[0].first_event = true;
    e->reqs[0].params.policy = CN_KV_ZIP;
    e->reqs[0].params.budget_tokens = 8 * 256;
    e->reqs[0].params.sink_tokens = 4;
    e->reqs[0].params.recent = 0.125f;
    e->reqs[0].params.window_tokens = 16;
    e->reqs[0].params.global_score = true;
    e->reqs[0].params.redundancy = CN_REDUNDANCY_LIGHTNING;
    draw_tables(env, e, 0, IN_PLACE, &next);
    e->reqs[0].params.move = CN_MOVE_ORDER;
    check_event(env, e);
    e->reqs[0].params.move = CN_MOVE_FILL;
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- scratch ---- */

/* The smallest accepted scratch gives the same bits as a large one, in more launches. */
static double run_least_scratch(op_env *env, uint32_t seed)
{
    env->rng.state = 1000 + seed; /* other events than in run_drawn */
    event *e = draw_event(env);
    outcome plenty, least;
    OP_OK(event_run(env, e, 0, &plenty));
    size_t low = 1, high = 32 << 20; /* refused, accepted */
    while (high - low > 256) {
        const size_t middle = low + (high - low) / 2;
        const cn_status status = event_run(env, e, middle, NULL);
        assert_true(status == CN_OK || strstr(cn_last_error(), "bytes of scratch"));
        if (status == CN_OK) high = middle;
        else low = middle;
    }
    OP_OK(event_run(env, e, high, &least));
    assert_same_outcome(&e->pools.layout, &plenty, &least);
    outcome_free(&plenty);
    outcome_free(&least);
    event_free(env, e);
    return 0;
}

/* ---- refusals ---- */

/* Both backends must refuse a request with the same text. */
static void assert_refused(op_env *env, const event *e, const cn_pools *gpu,
                           const cn_compress_req *faulty)
{
    static char scratch[1 << 22];
    cn_backend *be = env->cuda;
    cn_compress_args a = {e->pools, faulty, 1, scratch, sizeof scratch};
    assert_int_equal(cn_cpu_compress(NULL, &a), CN_ERR_ARG);
    char *want = cn_strdup(cn_last_error());
    a.pools = *gpu;
    OP_OK(be->mem_alloc(be, sizeof scratch, &a.scratch));
    assert_int_equal(be->compress(env->cuda_side, &a), CN_ERR_ARG);
    assert_string_equal(cn_last_error(), want);
    be->mem_free(be, a.scratch);
    cn_free(want);
}

static double run_refusals(op_env *env, uint32_t seed)
{
    (void)seed;
    const event_shape s = {.n_layers = 1, .n_kv_heads = 1, .group = 2, .head_dim = 64,
                           .block_tokens = 64, .ring = 16, .n_reqs = 1};
    event *e = event_create(env, &s, 16);
    uint32_t next = 0;
    cn_compress_req q = compress_request_draw(&env->rng, &e->pools, 0, 7);
    q.n_target = 6;
    q.first_event = false;
    q.params.policy = CN_KV_ZIP;
    q.params.window_tokens = 16;
    q.params.global_score = true;
    q.params.redundancy = CN_REDUNDANCY_LIGHTNING;
    e->reqs[0] = q;
    draw_tables(env, e, 0, IN_PLACE, &next);
    q = e->reqs[0];
    const cn_pools gpu = gpu_pools(e);
    enum { N_FAULTS = 9 };
    cn_compress_req faulty[N_FAULTS];
    for (int i = 0; i < N_FAULTS; i++) faulty[i] = q;
    faulty[0].params.window_tokens = 17;
    faulty[1].params.window_tokens = 0;
    faulty[2].position_end = 15;
    faulty[3].query_slot = QUERY_SLOTS;
    faulty[4].n_target = 8;
    faulty[5].n_target = 0;
    faulty[6].n_history = 449;
    faulty[7].params.redundancy_tau = 0;
    faulty[8].params.policy = CN_KV_FULL;
    for (int i = 0; i < N_FAULTS; i++) assert_refused(env, e, &gpu, &faulty[i]);
    cn_pools lacking = gpu;
    e->pools.score = lacking.score = NULL;
    assert_refused(env, e, &lacking, &q);
    e->pools.score = e->score.cpu;
    lacking = gpu;
    e->pools.q_window = lacking.q_window = NULL;
    assert_refused(env, e, &lacking, &q);
    event_free(env, e);
    return 0;
}

/* A faulty request neither undoes the requests before it nor starts those after it. */
static double run_partial(op_env *env, uint32_t seed)
{
    (void)seed;
    event *e = model_event(env, 2, 1, 3);
    e->reqs[1].query_slot = QUERY_SLOTS;
    outcome partial, alone;
    assert_int_equal(event_run(env, e, 0, &partial), CN_ERR_ARG);
    e->n_reqs = 1;
    OP_OK(event_run(env, e, 0, &alone));
    assert_same_outcome(&e->pools.layout, &partial, &alone);
    outcome_free(&partial);
    outcome_free(&alone);
    event_free(env, e);
    return 0;
}

int main(int argc, char **argv)
{
    openblas_set_num_threads(1);
    static const op_case cases[] = {
        {"compress", 40, 0, run_drawn, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, usual", 1, 0, run_usual, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, groups", N_GROUPS, 0, run_groups, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, follow", N_FOLLOW, 0, run_follow, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, long", 2, 0, run_long, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, least scratch", 6, 0, run_least_scratch, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, partly refused", 1, 0, run_partial, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, fp8", 40, 0, run_drawn, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"compress, fp8, usual", 1, 0, run_usual, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"compress, fp8, groups", N_GROUPS, 0, run_groups, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"compress, fp8, follow", N_FOLLOW, 0, run_follow, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"compress, fp8, long", 2, 0, run_long, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"compress, fp8, least scratch", 3, 0, run_least_scratch, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"compress, portable", 40, 0, run_drawn, .portable = true},
        {"compress, portable, usual", 1, 0, run_usual, .portable = true},
        {"compress, portable, groups", N_GROUPS, 0, run_groups, .portable = true},
        {"compress, portable, follow", N_FOLLOW, 0, run_follow, .portable = true},
        {"compress, portable, long", 2, 0, run_long, .portable = true},
        {"compress, portable, least scratch", 6, 0, run_least_scratch, .portable = true},
        {"compress, portable, refused", 1, 0, run_refusals, .portable = true},
        {"compress, portable, partly refused", 1, 0, run_partial, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
