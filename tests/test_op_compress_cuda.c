/* test_op_compress_cuda.c - compression events on the GPU against their CPU twins, on shapes drawn
 * by seed: what is kept, what the global score becomes, where rows land, whatever the tables;
 * requests of different policies in one event, long first events, refusals. Origins say which slot
 * a kept row was. Skipped where no GPU backend opens. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base.h"
#include "engine/cpu/cpu_compress.h"
#include "tests/lib/bf16.h"
#include "tests/lib/compress_placement.h"
#include "tests/lib/paged_batch.h"

/* Of a score: products are of bf16 values and sums are f32 on both sides. */
static const double SCORE_TOLERANCE = 1e-3;

/* Shapes drawn by each test: fewer when the program is given a number (sanitizers are slow). */
static uint64_t n_seeds = 40;
static uint64_t n_kept_total, n_near_ties;

/* This GPU's own kernels, and the portable ones. */
enum { N_KERNELS = 2, MAX_REQS = 4, MAX_BLOCKS = 400, QUERY_SLOTS = 5 };

void openblas_set_num_threads(int n_threads);

/* NULL without a GPU. */
static cn_backend *open_cuda(bool portable)
{
    cn_backend *be = NULL;
    cn_cuda_backend_opts o = {
        .memory_bytes = (uint64_t)1 << 30, .portable = portable, .n_heads = 64, .max_seqs = 16};
    return cn_backend_cuda_load(&be, o) == CN_OK ? be : NULL;
}

/* ---- an event ---- */

typedef struct event_shape {
    uint32_t n_layers, n_kv_heads, group, head_dim, block_tokens, ring, n_reqs;
} event_shape;

/* The pools before the event, f32 of bf16 values, and what is asked. */
typedef struct event {
    cn_pools pools;
    cn_compress_req reqs[MAX_REQS];
    uint32_t n_reqs;
    uint32_t tables[MAX_REQS][MAX_BLOCKS], targets[MAX_REQS][MAX_BLOCKS];
} event;

/* The device's pools after it. */
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
    float *p = cn_calloc_aligned(n, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = from_bf16(to_bf16(scale * test_rng_uniform(r)));
    return p;
}

/* Keys crowd around a few centres, as keys do; else no two would be twins. */
static void crowd_keys(test_rng *r, const cn_pools *p)
{
    enum { CENTRES = 8 };
    const cn_kv_layout *l = &p->layout;
    float centre[CENTRES][256];
    test_rng_fill(r, centre[0], (size_t)CENTRES * 256);
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t block = 0; block < l->n_blocks; block++)
            for (uint32_t head = 0; head < l->n_kv_heads; head++)
                for (uint32_t slot = 0; slot < l->block_tokens; slot++) {
                    float *k = (float *)p->kv + cn_kv_row(l, layer, block, head, slot, CN_KV_K);
                    const float *near = centre[test_rng_below(r, CENTRES)];
                    for (uint32_t j = 0; j < l->head_dim; j++)
                        k[j] = from_bf16(to_bf16(near[j] + 0.5f * k[j]));
                }
}

static event *event_create(const event_shape *s, uint32_t n_blocks, test_rng *r)
{
    event *e = cn_calloc(1, sizeof *e);
    cn_pools *p = &e->pools;
    *p = (cn_pools){.layout = cn_kv_layout_make(s->n_layers, n_blocks, s->n_kv_heads,
                                                s->block_tokens, s->head_dim),
                    .n_query_slots = QUERY_SLOTS,
                    .window = s->ring,
                    .n_heads = s->n_kv_heads * s->group};
    p->kv = draw_bf16(r, cn_kv_pool_elems(&p->layout), 1.0f);
    crowd_keys(r, p);
    p->q_window = draw_bf16(r, query_elems(p), 2.0f);
    const size_t n_side = cn_kv_side_elems(&p->layout);
    p->score = cn_calloc(n_side, sizeof *p->score);
    p->origin = cn_calloc(n_side, sizeof *p->origin);
    for (size_t i = 0; i < n_side; i++) {
        p->score[i] = (test_rng_uniform(r) + 1) / 100;
        p->origin[i] = (uint32_t)i; /* no two are equal */
    }
    e->n_reqs = s->n_reqs;
    return e;
}

static void event_free(event *e)
{
    cn_free(e->pools.kv);
    cn_free(e->pools.q_window);
    cn_free(e->pools.score);
    cn_free(e->pools.origin);
    cn_free(e);
}

/* Tables of request i from the pool's blocks *next on: n_blocks sources, as many new ones. */
static void draw_tables(event *e, uint32_t i, compress_placement how, uint32_t *next, test_rng *r)
{
    cn_compress_req *q = &e->reqs[i];
    const uint32_t n = q->n_blocks, first = *next;
    uint32_t pick[2 * MAX_BLOCKS], *table = e->tables[i], *target = e->targets[i];
    for (uint32_t j = 0; j < 2 * n; j++) {
        uint32_t k = test_rng_below(r, j + 1);
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

static cn_compress_req draw_request(const event *e, uint32_t i, uint32_t n_blocks, test_rng *r)
{
    const cn_pools *p = &e->pools;
    const uint32_t b = p->layout.block_tokens;
    cn_compress_req q = {.n_blocks = n_blocks, .n_target = 1 + test_rng_below(r, n_blocks)};
    const uint32_t n = q.n_blocks * b;
    q.query_slot = (i + 1) % QUERY_SLOTS;
    q.position_end = n + test_rng_below(r, 1000);
    q.first_event = test_rng_below(r, 2);
    q.n_history = q.first_event ? 0 : test_rng_below(r, n + 1);
    const uint32_t window = 1 + test_rng_below(r, cn_min_u32(p->window, q.n_target * b));
    q.params = (cn_kv_params){.policy = test_rng_below(r, 4) ? CN_KV_ZIP : CN_KV_WINDOW,
                              .budget_tokens = q.n_target * b,
                              .window_tokens = window,
                              .sink_tokens = test_rng_below(r, 9),
                              .global_score = test_rng_below(r, 3) > 0,
                              .alpha = 0.8f,
                              .pooling = (cn_kv_pooling)test_rng_below(r, 3),
                              .redundancy = (cn_kv_redundancy)test_rng_below(r, 3),
                              .redundancy_p = 0.5f,
                              .redundancy_tau = 0.4f,
                              .lambda = 0.2f,
                              .combine = (cn_kv_combine)test_rng_below(r, 2),
                              .move = (cn_kv_move)test_rng_below(r, 2)};
    return q;
}

/* ---- on the device ---- */

static uint16_t *halves(const float *p, size_t n)
{
    uint16_t *h = cn_calloc(n, sizeof *h);
    for (size_t i = 0; i < n; i++) h[i] = to_bf16(p[i]);
    return h;
}

static void *send(cn_backend *be, const void *host, size_t bytes)
{
    void *p = NULL;
    assert_int_equal(be->mem_alloc(be, bytes, &p), CN_OK);
    assert_int_equal(be->mem_write(be->stream(be, 0), p, host, bytes), CN_OK);
    return p;
}

static cn_pools device_pools(cn_backend *be, const cn_pools *host)
{
    cn_pools p = *host;
    const size_t n_kv = cn_kv_pool_elems(&p.layout), n_side = cn_kv_side_elems(&p.layout);
    uint16_t *kv = halves(host->kv, n_kv), *queries = halves(host->q_window, query_elems(host));
    p.kv = send(be, kv, n_kv * sizeof *kv);
    p.q_window = send(be, queries, query_elems(host) * sizeof *queries);
    p.score = send(be, host->score, n_side * sizeof *host->score);
    p.origin = send(be, host->origin, n_side * sizeof *host->origin);
    assert_int_equal(be->stream_sync(be->stream(be, 0)), CN_OK);
    cn_free(kv);
    cn_free(queries);
    return p;
}

static void device_pools_free(cn_backend *be, const cn_pools *p)
{
    be->mem_free(be, p->kv);
    be->mem_free(be, p->q_window);
    be->mem_free(be, p->score);
    be->mem_free(be, p->origin);
}

static void read_back(cn_backend *be, void *host, const void *device, size_t bytes)
{
    assert_int_equal(be->mem_read(be->stream(be, 1), host, device, bytes), CN_OK);
    assert_int_equal(be->stream_sync(be->stream(be, 1)), CN_OK);
}

static outcome outcome_read(cn_backend *be, const cn_pools *p)
{
    const size_t n_kv = cn_kv_pool_elems(&p->layout), n_side = cn_kv_side_elems(&p->layout);
    outcome o = {cn_calloc(n_kv, 2), cn_calloc(n_side, 4), cn_calloc(n_side, 4)};
    read_back(be, o.kv, p->kv, n_kv * sizeof *o.kv);
    read_back(be, o.score, p->score, n_side * sizeof *o.score);
    read_back(be, o.origin, p->origin, n_side * sizeof *o.origin);
    return o;
}

static void outcome_free(outcome *o)
{
    cn_free(o->kv);
    cn_free(o->score);
    cn_free(o->origin);
}

/* Runs the event with scratch_bytes of scratch (0: what the backend asks for). What the call was
 * given is spoilt before anything is waited for: it must be done with it. */
static cn_status event_run(cn_backend *be, const event *e, size_t scratch_bytes, outcome *out)
{
    cn_pools p = device_pools(be, &e->pools);
    uint32_t n_max = 0;
    for (uint32_t i = 0; i < e->n_reqs; i++) n_max = cn_max_u32(n_max, e->reqs[i].n_blocks);
    const size_t asked = be->compress_scratch_bytes(be, &p, n_max * p.layout.block_tokens);
    event *given = cn_calloc(1, sizeof *given);
    *given = *e;
    for (uint32_t i = 0; i < e->n_reqs; i++) {
        given->reqs[i].table = given->tables[i];
        given->reqs[i].target = given->targets[i];
    }
    cn_compress_args a = {.pools = p, .reqs = given->reqs, .n_reqs = e->n_reqs};
    a.scratch_bytes = scratch_bytes ? scratch_bytes : asked;
    assert_int_equal(be->mem_alloc(be, a.scratch_bytes, &a.scratch), CN_OK);
    cn_status status = be->compress(be->stream(be, 1), &a);
    memset(given, 0xa5, sizeof *given);
    cn_free(given);
    if (out) *out = outcome_read(be, &p);
    assert_int_equal(be->stream_sync(be->stream(be, 1)), CN_OK);
    be->mem_free(be, a.scratch);
    device_pools_free(be, &p);
    return status;
}

/* ---- the twins' answer for one (layer, kv head) ---- */

typedef struct answer {
    uint32_t n, n_kept;
    float *f;         /* [n] the new global score */
    float *score;     /* [n] final, the window's slots infinite */
    float *magnitude; /* [n] of the terms that make up the final score */
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
        /* F is what stands after the decay and before what comes then. */
        if (i <= 1) memcpy(a->f, a->score, n * sizeof *a->f);
        for (uint32_t v = 0; v < n; v++) {
            const float of_r = q->params.redundancy == CN_REDUNDANCY_NONE ? 0 : redundancy[v];
            a->magnitude[v] = fmaxf(a->magnitude[v], fmaxf(a->score[v], of_r));
        }
    }
    for (uint32_t v = n - q->params.window_tokens; v < n; v++) a->score[v] = INFINITY;
    cn_free(keys);
    cn_free(work);
    cn_free(redundancy);
}

/* The row of the global score writes F into the pool, which the next layer's answer must not see
 * changed: it is put back. */
static answer answer_make(const event *e, const cn_compress_req *q, uint32_t layer, uint32_t head)
{
    const uint32_t n = q->n_blocks * e->pools.layout.block_tokens;
    answer a = {.n = n, .n_kept = q->n_target * e->pools.layout.block_tokens};
    a.memory = cn_calloc_aligned(5 * (size_t)n, sizeof *a.memory);
    a.f = a.memory;
    a.score = a.memory + n;
    a.magnitude = a.memory + 2 * (size_t)n;
    a.kept = (uint32_t *)(a.memory + 3 * (size_t)n);
    if (q->params.policy == CN_KV_WINDOW) {
        cn_cpu_select_window(n, a.n_kept, q->params.sink_tokens, a.kept);
        return a;
    }
    const size_t side_bytes = cn_kv_side_elems(&e->pools.layout) * sizeof(float);
    float *before = cn_calloc(1, side_bytes);
    memcpy(before, e->pools.score, side_bytes);
    answer_scores(e, q, layer, head, &a);
    memcpy(e->pools.score, before, side_bytes);
    cn_free(before);
    cn_cpu_select_top(a.score, n, a.n_kept, (uint32_t *)(a.memory + 4 * (size_t)n), a.kept);
    return a;
}

/* ---- comparing ---- */

typedef struct where {
    const char *kernels;
    uint64_t seed;
    uint32_t req, layer, head;
} where;

#define FAIL(w, ...)                                                                               \
    do {                                                                                           \
        print_error("%s, seed %llu, request %u, layer %u, head %u: ", (w)->kernels,                \
                    (unsigned long long)(w)->seed, (w)->req, (w)->layer, (w)->head);               \
        fail_msg(__VA_ARGS__);                                                                     \
    } while (0)

static size_t side_at(const event *e, const where *w, const uint32_t *blocks, uint32_t slot)
{
    const cn_kv_layout *l = &e->pools.layout;
    return cn_kv_side(l, w->layer, blocks[slot / l->block_tokens], w->head, slot % l->block_tokens);
}

/* The slot whose origin this is. */
static uint32_t slot_of(const event *e, const where *w, uint32_t origin, uint32_t n)
{
    const cn_kv_layout *l = &e->pools.layout;
    const uint32_t *table = e->reqs[w->req].table;
    for (uint32_t i = 0; i < n / l->block_tokens; i++) {
        uint32_t first = (uint32_t)cn_kv_side(l, w->layer, table[i], w->head, 0);
        if (origin - first < l->block_tokens) return i * l->block_tokens + origin - first;
    }
    FAIL(w, "origin %u is no slot of the request", origin);
    return 0;
}

/* kept[i]: ascending; or, where holes are filled, i itself if it is kept, the others ascending. */
static void check_places(const where *w, const cn_compress_req *q, uint32_t n_kept,
                         const uint32_t *kept, const bool *is_kept)
{
    const bool fills = q->params.policy == CN_KV_ZIP && q->params.move == CN_MOVE_FILL;
    uint32_t least = fills ? n_kept : 0;
    for (uint32_t i = 0; i < n_kept; i++) {
        const bool stays = fills && is_kept[i];
        if (stays ? kept[i] != i : kept[i] < least)
            FAIL(w, "target slot %u takes slot %u, which is not its place", i, kept[i]);
        if (!stays) least = kept[i] + 1;
    }
}

/* kept[i] as it should be, and where the set differs from the answer's a near tie. */
static void check_kept(const where *w, const cn_compress_req *q, const answer *a,
                       const uint32_t *kept)
{
    bool *wanted = cn_calloc(a->n, sizeof *wanted), *got = cn_calloc(a->n, sizeof *got);
    float threshold = INFINITY, scale = 0;
    for (uint32_t i = 0; i < a->n_kept; i++) {
        wanted[a->kept[i]] = got[kept[i]] = true;
        if (a->score[a->kept[i]] > threshold) continue;
        threshold = a->score[a->kept[i]];
        scale = a->magnitude[a->kept[i]];
    }
    check_places(w, q, a->n_kept, kept, got);
    n_kept_total += a->n_kept;
    for (uint32_t v = 0; v < a->n; v++) {
        if (wanted[v] == got[v]) continue;
        const double off = fabs((double)a->score[v] - (double)threshold);
        const double most = fmax((double)scale, (double)a->magnitude[v]);
        if (q->params.policy == CN_KV_WINDOW || !(off <= 2 * SCORE_TOLERANCE * most))
            FAIL(w, "slot %u of %u is %s: its score is %.8g, the threshold %.8g", v, a->n,
                 got[v] ? "kept" : "dropped", (double)a->score[v], (double)threshold);
        n_near_ties++;
    }
    cn_free(wanted);
    cn_free(got);
}

static void check_unit(const event *e, const where *w, const outcome *o)
{
    const cn_compress_req *q = &e->reqs[w->req];
    const cn_kv_layout *l = &e->pools.layout;
    answer a = answer_make(e, q, w->layer, w->head);
    const bool global = q->params.policy == CN_KV_ZIP && q->params.global_score;
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
            FAIL(w, "F of slot %u is %.9g, want %.9g", v, got, want);
    }
    cn_free(kept);
    cn_free(a.memory);
}

/* Blocks that are nobody's target are as they were. */
static void check_others(const event *e, const outcome *o, const where *w)
{
    const cn_kv_layout *l = &e->pools.layout;
    const size_t elems = cn_kv_block_elems(l), side = (size_t)l->n_kv_heads * l->block_tokens;
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

/* The event against the twins, twice with the same bits. */
static void check_event(cn_backend *be, const event *e, const char *kernels, uint64_t seed)
{
    where w = {.kernels = kernels, .seed = seed};
    outcome o, again;
    if (event_run(be, e, 0, &o) != CN_OK) FAIL(&w, "%s", cn_last_error());
    for (w.req = 0; w.req < e->n_reqs; w.req++)
        for (w.layer = 0; w.layer < e->pools.layout.n_layers; w.layer++)
            for (w.head = 0; w.head < e->pools.layout.n_kv_heads; w.head++) check_unit(e, &w, &o);
    check_others(e, &o, &w);
    assert_int_equal(event_run(be, e, 0, &again), CN_OK);
    assert_same_outcome(&e->pools.layout, &o, &again);
    outcome_free(&o);
    outcome_free(&again);
}

/* ---- drawn events ---- */

static const uint32_t DIMS[] = {16, 64, 80, 96, 128, 256};
static const uint32_t BLOCKS[] = {16, 32, 64, 128, 256};

static event *draw_event(test_rng *r)
{
    event_shape s = {.n_layers = 1 + test_rng_below(r, 3), .n_kv_heads = 1 + test_rng_below(r, 3)};
    s.head_dim = DIMS[test_rng_below(r, 6)];
    s.block_tokens = BLOCKS[test_rng_below(r, 5)];
    s.group = 1 + test_rng_below(r, 8);
    s.ring = 1 + test_rng_below(r, 40);
    s.n_reqs = 1 + test_rng_below(r, MAX_REQS);
    const uint32_t most = s.block_tokens >= 128 ? 4 : 12;
    event *e = event_create(&s, 2 * MAX_REQS * most, r);
    uint32_t next = 0;
    for (uint32_t i = 0; i < e->n_reqs; i++) {
        e->reqs[i] = draw_request(e, i, 1 + test_rng_below(r, most), r);
        draw_tables(e, i, (compress_placement)test_rng_below(r, N_PLACEMENTS), &next, r);
    }
    return e;
}

static void each_kind_of_kernels(void (*check)(cn_backend *be, const char *kernels))
{
    for (uint32_t k = 0; k < N_KERNELS; k++) {
        cn_backend *be = open_cuda(k == 1);
        if (!be) skip();
        check(be, k ? "portable" : "own");
        be->close(be);
    }
}

static void print_near_ties(void)
{
    print_message("near ties: %llu of %llu kept slots\n", (unsigned long long)n_near_ties,
                  (unsigned long long)n_kept_total);
    n_kept_total = n_near_ties = 0;
}

static void check_drawn(cn_backend *be, const char *kernels)
{
    for (uint64_t seed = 0; seed < n_seeds; seed++) {
        test_rng r = {seed};
        event *e = draw_event(&r);
        check_event(be, e, kernels, seed);
        event_free(e);
    }
}

static void drawn_events_agree_with_the_cpu(void **state)
{
    (void)state;
    each_kind_of_kernels(check_drawn);
    print_near_ties();
}

/* ---- the shape of Qwen3-8B ---- */

static event *model_event(uint32_t n_blocks, uint32_t n_target, uint32_t n_reqs, test_rng *r)
{
    const event_shape s = {.n_layers = 1,
                           .n_kv_heads = 2,
                           .group = 4,
                           .head_dim = 128,
                           .block_tokens = 256,
                           .ring = 16,
                           .n_reqs = n_reqs};
    event *e = event_create(&s, 2 * n_reqs * n_blocks, r);
    uint32_t next = 0;
    for (uint32_t i = 0; i < n_reqs; i++) {
        cn_compress_req q = draw_request(e, i, n_blocks, r);
        q.n_target = n_target;
        q.first_event = i % 2;
        q.n_history = q.first_event ? 0 : n_target * 256;
        q.params.policy = CN_KV_ZIP;
        q.params.budget_tokens = n_target * 256;
        q.params.window_tokens = 16;
        q.params.global_score = true;
        q.params.pooling = CN_POOLING_FIRST;
        q.params.redundancy = CN_REDUNDANCY_LIGHTNING;
        q.params.combine = CN_COMBINE_CONVEX;
        q.params.move = i < 2 ? CN_MOVE_ORDER : CN_MOVE_FILL;
        e->reqs[i] = q;
        draw_tables(e, i, IN_PLACE, &next, r);
    }
    return e;
}

static void check_model_shape(cn_backend *be, const char *kernels)
{
    event *e = model_event(9, 8, 4, &(test_rng){7});
    check_event(be, e, kernels, 7);
    event_free(e);
}

static void the_usual_event_agrees_with_the_cpu(void **state)
{
    (void)state;
    each_kind_of_kernels(check_model_shape);
    print_near_ties();
}

/* Every slot kept: F is the attention score of all of them. */
static void check_all_scores(cn_backend *be, const char *kernels)
{
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 48};
    for (uint32_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const uint32_t group = groups[i];
        test_rng r = {100 + group};
        const event_shape s = {.n_layers = 1,
                               .n_kv_heads = 2,
                               .group = group,
                               .head_dim = DIMS[group % 6],
                               .block_tokens = BLOCKS[group % 5],
                               .ring = 16,
                               .n_reqs = 1};
        event *e = event_create(&s, 12, &r);
        uint32_t next = 0;
        e->reqs[0] = draw_request(e, 0, 6, &r);
        e->reqs[0].n_target = 6;
        e->reqs[0].params.policy = CN_KV_ZIP;
        e->reqs[0].params.window_tokens = 16;
        e->reqs[0].params.global_score = true;
        draw_tables(e, 0, group % 2 ? ALL_NEW : IN_PLACE, &next, &r);
        check_event(be, e, kernels, group);
        event_free(e);
    }
}

static void scores_of_every_group_agree_with_the_cpu(void **state)
{
    (void)state;
    each_kind_of_kernels(check_all_scores);
}

/* ---- long first events ---- */

static void check_long(cn_backend *be, const char *kernels)
{
    test_rng r = {11};
    const event_shape s = {.n_layers = 1, .n_kv_heads = 1, .group = 2, .head_dim = 64,
                           .block_tokens = 256, .ring = 16, .n_reqs = 1};
    const uint32_t n_blocks = n_seeds < 40 ? 40 : 392; /* 100,352 slots */
    event *e = event_create(&s, 2 * n_blocks, &r);
    uint32_t next = 0;
    e->reqs[0] = draw_request(e, 0, n_blocks, &r);
    e->reqs[0].n_target = 8;
    e->reqs[0].first_event = true;
    e->reqs[0].params.policy = CN_KV_ZIP;
    e->reqs[0].params.window_tokens = 16;
    e->reqs[0].params.global_score = true;
    e->reqs[0].params.redundancy = CN_REDUNDANCY_LIGHTNING;
    draw_tables(e, 0, IN_PLACE, &next, &r);
    e->reqs[0].params.move = CN_MOVE_ORDER;
    check_event(be, e, kernels, 11);
    e->reqs[0].params.move = CN_MOVE_FILL;
    check_event(be, e, kernels, 11);
    event_free(e);
}

static void long_first_events_agree_with_the_cpu(void **state)
{
    (void)state;
    each_kind_of_kernels(check_long);
    print_near_ties();
}

/* ---- scratch ---- */

/* The least scratch that an event takes gives the bits of plenty, in more launches. */
static void check_least_scratch(cn_backend *be, const char *kernels)
{
    (void)kernels;
    for (uint64_t seed = 0; seed < cn_min_u32((uint32_t)n_seeds, 6); seed++) {
        test_rng r = {1000 + seed};
        event *e = draw_event(&r);
        outcome plenty, least;
        assert_int_equal(event_run(be, e, 0, &plenty), CN_OK);
        size_t low = 1, high = 32 << 20; /* refused, taken */
        while (high - low > 256) {
            size_t middle = low + (high - low) / 2;
            cn_status status = event_run(be, e, middle, NULL);
            assert_true(status == CN_OK || strstr(cn_last_error(), "bytes of scratch"));
            if (status == CN_OK) high = middle;
            else low = middle;
        }
        assert_int_equal(event_run(be, e, high, &least), CN_OK);
        assert_same_outcome(&e->pools.layout, &plenty, &least);
        outcome_free(&plenty);
        outcome_free(&least);
        event_free(e);
    }
}

static void the_least_scratch_changes_no_bit(void **state)
{
    (void)state;
    each_kind_of_kernels(check_least_scratch);
}

/* ---- refusals ---- */

/* Both backends refuse a request in the same words; the requests before it are done. */
static void assert_refused(cn_backend *be, const event *e, const cn_pools *device,
                           const cn_compress_req *faulty)
{
    static char scratch[1 << 22];
    cn_compress_args a = {e->pools, faulty, 1, scratch, sizeof scratch};
    assert_int_equal(cn_cpu_compress(NULL, &a), CN_ERR_ARG);
    char *want = cn_strdup(cn_last_error());
    a.pools = *device;
    assert_int_equal(be->mem_alloc(be, 4 << 20, &a.scratch), CN_OK);
    a.scratch_bytes = 4 << 20;
    assert_int_equal(be->compress(be->stream(be, 1), &a), CN_ERR_ARG);
    assert_string_equal(cn_last_error(), want);
    be->mem_free(be, a.scratch);
    cn_free(want);
}

static void check_refusals(cn_backend *be, const char *kernels)
{
    (void)kernels;
    test_rng r = {3};
    const event_shape s = {.n_layers = 1, .n_kv_heads = 1, .group = 2, .head_dim = 64,
                           .block_tokens = 64, .ring = 16, .n_reqs = 1};
    event *e = event_create(&s, 16, &r);
    uint32_t next = 0;
    cn_compress_req q = draw_request(e, 0, 7, &r);
    q.n_target = 6;
    q.first_event = false;
    q.params.policy = CN_KV_ZIP;
    q.params.window_tokens = 16;
    q.params.global_score = true;
    q.params.redundancy = CN_REDUNDANCY_LIGHTNING;
    e->reqs[0] = q;
    draw_tables(e, 0, IN_PLACE, &next, &r);
    q = e->reqs[0];
    cn_pools device = device_pools(be, &e->pools), lacking = device;
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
    for (int i = 0; i < N_FAULTS; i++) assert_refused(be, e, &device, &faulty[i]);
    float *score = e->pools.score, *windows = e->pools.q_window;
    e->pools.score = lacking.score = NULL;
    assert_refused(be, e, &lacking, &q);
    e->pools.score = score;
    lacking = device;
    e->pools.q_window = lacking.q_window = NULL;
    assert_refused(be, e, &lacking, &q);
    e->pools.q_window = windows;
    device_pools_free(be, &device);
    event_free(e);
}

static void faulty_requests_are_refused_in_the_cpus_words(void **state)
{
    (void)state;
    each_kind_of_kernels(check_refusals);
}

/* A fault does not undo what comes before it, nor start what comes after. */
static void check_partial(cn_backend *be, const char *kernels)
{
    (void)kernels;
    test_rng r = {21};
    event *e = model_event(2, 1, 3, &r);
    e->reqs[1].query_slot = QUERY_SLOTS;
    outcome partial, alone;
    assert_int_equal(event_run(be, e, 0, &partial), CN_ERR_ARG);
    e->n_reqs = 1;
    assert_int_equal(event_run(be, e, 0, &alone), CN_OK);
    assert_same_outcome(&e->pools.layout, &partial, &alone);
    outcome_free(&partial);
    outcome_free(&alone);
    event_free(e);
}

static void requests_before_a_faulty_one_are_done(void **state)
{
    (void)state;
    each_kind_of_kernels(check_partial);
}

int main(int argc, char **argv)
{
    if (argc > 1 && (n_seeds = strtoull(argv[1], NULL, 10)) == 0) return 2;
    openblas_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_events_agree_with_the_cpu),
        cmocka_unit_test(the_usual_event_agrees_with_the_cpu),
        cmocka_unit_test(scores_of_every_group_agree_with_the_cpu),
        cmocka_unit_test(long_first_events_agree_with_the_cpu),
        cmocka_unit_test(the_least_scratch_changes_no_bit),
        cmocka_unit_test(faulty_requests_are_refused_in_the_cpus_words),
        cmocka_unit_test(requests_before_a_faulty_one_are_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
