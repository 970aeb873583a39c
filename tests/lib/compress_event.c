/* compress_event.c - see compress_event.h. */
#include "tests/lib/compress_event.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "compress/policy.h"
#include "compress/rule.h"
#include "engine/cpu/cpu_compress.h"
#include "tests/lib/bf16.h"
#include "tests/lib/fp8_pool.h"

/* Tolerance of a score: products are of bf16 values and sums are f32 on both sides. */
static const double SCORE_TOLERANCE = 1e-3;

enum { MARK = 1 << 30, MOST_DIM = 576 };

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
    float centre[CENTRES][MOST_DIM];
    test_rng_fill(r, centre[0], (size_t)CENTRES * MOST_DIM);
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

/* The window of the GPU, with queries before the product, and that of the CPU after it. */
static void draw_latent(op_env *env, event *e, const event_shape *s)
{
    const uint32_t hq = s->group, rope = s->head_dim - s->rank;
    const size_t rows = (size_t)QUERY_SLOTS * s->ring, matrices = (size_t)hq * s->nope * s->rank;
    e->raw_dim = s->nope + rope;
    float *raw = draw_bf16(&env->rng, s->n_layers * rows * hq * e->raw_dim, 2.0f);
    float *keys = draw_bf16(&env->rng, s->n_layers * matrices, 1.0f / sqrtf((float)s->nope));
    float *absorbed = cn_calloc(query_elems(&e->pools), sizeof *absorbed);
    e->raw = op_floats(env, raw, s->n_layers * rows * hq * e->raw_dim, CN_BF16);
    e->keys = op_floats(env, keys, s->n_layers * matrices, CN_BF16);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const cn_heads_gemm_args a = {.out = absorbed + l * rows * hq * s->head_dim,
                                      .x = raw + l * rows * hq * e->raw_dim,
                                      .weight = keys + l * matrices,
                                      .weight_stride = s->nope * s->rank,
                                      .n_tokens = (uint32_t)rows,
                                      .n_heads = hq,
                                      .n = s->rank,
                                      .k = s->nope,
                                      .n_copied = rope,
                                      .by_rows = true};
        OP_OK(env->cpu->heads_gemm(env->cpu_stream, &a));
        e->keys_of[l] = (const uint16_t *)e->keys.cuda + l * matrices;
    }
    e->latent = (cn_latent_keys){e->keys_of, s->nope * s->rank};
    e->q_window = op_floats(env, absorbed, query_elems(&e->pools), CN_BF16);
    cn_free(raw);
    cn_free(keys);
    cn_free(absorbed);
}

event *event_create(op_env *env, const event_shape *s, uint32_t n_blocks)
{
    event *e = cn_calloc(1, sizeof *e);
    cn_pools *p = &e->pools;
    *p = (cn_pools){.layout = cn_kv_layout_make(s->n_layers, n_blocks, s->n_kv_heads,
                                                s->block_tokens, s->head_dim, CN_F32),
                    .n_query_slots = QUERY_SLOTS,
                    .window = s->ring,
                    .n_heads = s->n_kv_heads * s->group,
                    .act_dtype = CN_F32};
    CN_ASSERT(s->n_layers <= EVENT_LAYERS && s->head_dim <= MOST_DIM);
    cn_kv_layout_share(&p->layout, s->rank, s->head_dim);
    if (s->rank > 0) p->scale = 1.0f / sqrtf((float)s->head_dim);
    float *kv = draw_bf16(&env->rng, cn_kv_pool_elems(&p->layout), 1.0f);
    crowd_keys(&env->rng, &p->layout, kv);
    float *queries = draw_bf16(&env->rng, query_elems(p), 2.0f);
    if (env->fp8 && s->rank == 0) store_codes(env, e, kv);
    e->kv = op_floats(env, kv, cn_kv_pool_elems(&p->layout), e->codes.n ? CN_F32 : CN_BF16);
    if (s->rank > 0) draw_latent(env, e, s);
    else e->q_window = op_floats(env, queries, query_elems(p), CN_BF16);
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

void event_free(op_env *env, event *e)
{
    op_tensor *const all[] = {&e->kv, &e->q_window, &e->score, &e->origin};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(env, all[i]);
    if (e->codes.n > 0) op_tensor_free(env, &e->codes);
    if (e->raw.n > 0) op_tensor_free(env, &e->raw);
    if (e->keys.n > 0) op_tensor_free(env, &e->keys);
    cn_free(e);
}

void draw_tables(op_env *env, event *e, uint32_t i, compress_placement how, uint32_t *next)
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

cn_pools gpu_pools(const event *e)
{
    cn_pools p = e->pools;
    p.kv = e->kv.cuda;
    p.q_window = e->q_window.cuda;
    p.score = e->score.cuda;
    p.origin = e->origin.cuda;
    p.layout = op_layout_as(&e->pools.layout, CN_BF16);
    p.act_dtype = CN_BF16;
    if (e->raw.n > 0) {
        p.q_window = e->raw.cuda;
        p.layout.query_dim = e->raw_dim;
        p.latent = e->latent;
    }
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

void outcome_free(outcome *o)
{
    cn_free(o->kv);
    cn_free(o->score);
    cn_free(o->origin);
}

cn_status event_run(op_env *env, const event *e, size_t scratch_bytes, outcome *out)
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

void assert_same_outcome(const cn_kv_layout *l, const outcome *a, const outcome *b)
{
    assert_memory_equal(a->kv, b->kv, cn_kv_pool_elems(l) * sizeof *a->kv);
    assert_memory_equal(a->score, b->score, cn_kv_side_elems(l) * sizeof *a->score);
    assert_memory_equal(a->origin, b->origin, cn_kv_side_elems(l) * sizeof *a->origin);
}

void check_event(op_env *env, const event *e)
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
