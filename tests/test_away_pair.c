/* test_away_pair.c - the way of an away request over two CPU backends: put, digest, compress and
 * fill, then one exchange after each step. The second backend is threaded and acts as the cache
 * device. Only fences order the work. The results are compared with the same selection on one
 * backend, and with attention over explicit sets of positions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cinch.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"

enum {
    SEQS = 2,
    LAYERS = 3,
    FIRST = 1, /* layers below are dense */
    CALL_LAYERS = LAYERS - FIRST,
    HK = 2,
    HQ = 4,
    DIM = 32,
    B = 64,
    BLOCKS = 6, /* of a sequence at its first event */
    TOKENS = BLOCKS * B,
    POOL = SEQS * (BLOCKS + 3),
    HOME = SEQS * BLOCKS,
    K = B, /* entries of the exchange area */
    SINKS = 4,
    N = TOKENS - B, /* candidates: what the policy does not keep */
    RING = 5,
    UNITS = SEQS * CALL_LAYERS * HK,
    ROUNDS = 40
};

typedef struct device {
    cn_backend *be;
    cn_stream *stream;
} device;

/* Arrays of one round. Each has its own, because no one waits for a round. */
typedef struct exchange_round {
    float ring[LAYERS * SEQS * HQ * DIM]; /* new rows */
    uint32_t newest[SEQS];
    uint32_t chosen[LAYERS * SEQS * HK * K]; /* read back */
    uint32_t n_moves[UNITS], n_missed[UNITS];
    float out[LAYERS * SEQS * HQ * DIM]; /* of attention */
} exchange_round;

typedef struct world {
    device here, pair;
    cn_fence *stepped, *exchanged;
    cn_pools pools, home;
    float *original; /* the pool before the events */
    uint32_t tables[SEQS * BLOCKS], home_tables[SEQS * BLOCKS], local_tables[SEQS * 2];
    cn_sel_stage stage[SEQS];
    uint32_t n[SEQS], first[SEQS + 1], base[SEQS], k[SEQS], cap[SEQS], slots[SEQS];
    uint32_t held_from[SEQS], n_held[SEQS], modulus[SEQS], n_window[SEQS], kv_len[SEQS];
    uint32_t q_start[SEQS + 1];
    uint8_t entry_log2[SEQS], weights[SEQS], rotate[SEQS];
    float *predicted, *logits, *q; /* q [SEQS, HQ, DIM]: of attention */
    uint16_t *score;
    uint32_t *chosen;
    cn_move *moves;
    cn_batch_view view;
    exchange_round *rounds; /* [ROUNDS + 1]; round 0 is the fill */
} world;

static void ok(cn_status status)
{
    if (status != CN_OK) fail_msg("%s", cn_last_error());
}

static device open_device(bool threaded)
{
    const cn_cpu_backend_opts o = {.n_threads = 2, .threaded = threaded};
    device d;
    ok(cn_backend_cpu_open(&d.be, &o));
    ok(d.be->stream_create(d.be, CN_PRIORITY_HIGH, &d.stream));
    return d;
}

static void close_device(device *d)
{
    d->be->stream_free(d->stream);
    d->be->close(d->be);
}

static cn_pools open_pools(uint32_t n_blocks)
{
    cn_pools p = {.layout = cn_kv_layout_make(LAYERS, n_blocks, HK, B, DIM, CN_F32),
                  .n_heads = HQ, .act_dtype = CN_F32};
    p.kv = cn_calloc(cn_kv_pool_elems(&p.layout), sizeof(float));
    return p;
}

static void open_digest(cn_pools *home)
{
    const size_t n = (size_t)LAYERS * HOME;
    cn_digest *g = &home->digest;
    g->n_channels = cn_label_channels(DIM);
    uint8_t *channels = cn_calloc((size_t)LAYERS * HK * g->n_channels, 1);
    for (uint32_t i = 0; i < LAYERS * HK * g->n_channels; i++)
        channels[i] = (uint8_t)(i % g->n_channels * 4 + i % 3);
    g->channels = channels;
    g->labels = cn_calloc(n, cn_block_plane_bytes(&home->layout, CN_PLANE_LABELS));
    g->scales = cn_calloc(n, cn_block_plane_bytes(&home->layout, CN_PLANE_SCALES));
}

/* Tables: the pool's blocks in an order without pattern; the last three of each sequence are its
 * exchange block, its target and a spare one. */
static void lay_out(world *w)
{
    for (uint32_t i = 0; i < SEQS * BLOCKS; i++) {
        w->tables[i] = i * 5 % POOL;
        w->home_tables[i] = i * 7 % HOME;
    }
    for (uint32_t i = 0; i < SEQS * 2; i++) w->local_tables[i] = (SEQS * BLOCKS + i) * 5 % POOL;
    for (uint32_t s = 0; s < SEQS; s++) {
        w->n[s] = N;
        w->first[s + 1] = w->first[s] + N;
        w->base[s] = SINKS;
        w->k[s] = K;
        w->slots[s] = 1 - s;
        w->held_from[s] = K;
        w->n_held[s] = B;
        w->modulus[s] = RING;
        w->n_window[s] = RING - 1;
        w->weights[s] = CN_WEIGHTS_SOFTMAX;
        w->kv_len[s] = K + B;
        w->q_start[s + 1] = s + 1;
    }
    w->view = (cn_batch_view){.n_tokens = SEQS,
                              .n_seqs = SEQS,
                              .n_decode = SEQS,
                              .q_start = w->q_start,
                              .kv_len = w->kv_len,
                              .tables = w->local_tables,
                              .table_stride = 2,
                              .max_q = 1,
                              .max_kv = K + B};
}

static world *open_world(cn_sel_stage stage, uint32_t cap)
{
    world *w = cn_calloc(1, sizeof *w);
    test_rng r = {cap + stage.key};
    w->here = open_device(true);
    w->pair = open_device(true);
    ok(w->here.be->fence_create(w->here.be, &w->stepped));
    ok(w->pair.be->fence_create(w->pair.be, &w->exchanged));
    lay_out(w);
    for (uint32_t s = 0; s < SEQS; s++) {
        w->stage[s] = stage;
        w->cap[s] = cap;
    }
    w->pools = open_pools(POOL);
    w->home = open_pools(HOME);
    open_digest(&w->home);
    const size_t n = cn_kv_pool_elems(&w->pools.layout);
    test_rng_fill(&r, w->pools.kv, n);
    w->original = cn_calloc(n, sizeof(float));
    memcpy(w->original, w->pools.kv, n * sizeof(float));
    w->pools.origin = cn_calloc(cn_kv_side_elems(&w->pools.layout), sizeof(uint32_t));
    w->pools.n_query_slots = SEQS;
    w->pools.window = RING;
    w->pools.q_window = cn_calloc((size_t)LAYERS * SEQS * RING * HQ * DIM, sizeof(float));
    test_rng_fill(&r, w->pools.q_window, (size_t)LAYERS * SEQS * RING * HQ * DIM);
    w->predicted = cn_calloc((size_t)SEQS * CALL_LAYERS * HQ * DIM, sizeof(float));
    w->q = cn_calloc((size_t)SEQS * HQ * DIM, sizeof(float));
    test_rng_fill(&r, w->q, (size_t)SEQS * HQ * DIM);
    w->logits = cn_calloc((size_t)SEQS * N * CALL_LAYERS * HQ, sizeof(float));
    w->score = cn_calloc((size_t)SEQS * N * CALL_LAYERS * HK, sizeof(uint16_t));
    w->chosen = cn_calloc((size_t)LAYERS * SEQS * HK * K, sizeof(uint32_t));
    w->moves = cn_calloc((size_t)UNITS * K, sizeof(cn_move));
    w->rounds = cn_calloc(ROUNDS + 1, sizeof(exchange_round));
    for (uint32_t i = 0; i <= ROUNDS; i++) {
        test_rng_fill(&r, w->rounds[i].ring, sizeof w->rounds[i].ring / sizeof(float));
        for (uint32_t s = 0; s < SEQS; s++) w->rounds[i].newest[s] = TOKENS - 1 + i;
    }
    return w;
}

static void close_world(world *w)
{
    w->pair.be->fence_free(w->exchanged);
    w->here.be->fence_free(w->stepped);
    close_device(&w->pair);
    close_device(&w->here);
    void *const memory[] = {w->pools.kv, w->pools.origin, w->pools.q_window, w->home.kv,
                            (void *)(uintptr_t)w->home.digest.channels, w->home.digest.labels,
                            w->home.digest.scales, w->original, w->predicted, w->q, w->logits,
                            w->score, w->chosen, w->moves, w->rounds, w};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) cn_free(memory[i]);
}

/* ---- arguments ---- */

static cn_predict_args predict_args(const world *w, const float *ring, const exchange_round *x)
{
    return (cn_predict_args){.ring = ring,
                             .n_query_slots = SEQS,
                             .rows = RING,
                             .n_heads = HQ,
                             .head_dim = DIM,
                             .slots = w->slots,
                             .newest = x->newest,
                             .modulus = w->modulus,
                             .n_window = w->n_window,
                             .weights = w->weights,
                             .rotate = w->rotate,
                             .n_seqs = SEQS,
                             .first_layer = FIRST,
                             .n_layers = CALL_LAYERS,
                             .eps = 0.01f,
                             .out = w->predicted,
                             .out_stride = (size_t)CALL_LAYERS * HQ * DIM};
}

static cn_score_args score_args(const world *w)
{
    return (cn_score_args){.q = {NULL, w->predicted},
                           .q_stride = {0, (size_t)CALL_LAYERS * HQ * DIM},
                           .stage = w->stage,
                           .pools = w->home,
                           .tables = w->home_tables,
                           .table_stride = BLOCKS,
                           .first = w->first,
                           .n = w->n,
                           .base = w->base,
                           .n_seqs = SEQS,
                           .first_layer = FIRST,
                           .n_layers = CALL_LAYERS,
                           .logits = w->logits,
                           .out = w->score};
}

static cn_exchange_args exchange_args(const world *w, exchange_round *x, bool fill)
{
    return (cn_exchange_args){.score = w->score,
                              .first = w->first,
                              .n = w->n,
                              .base = w->base,
                              .entry_log2 = w->entry_log2,
                              .k = w->k,
                              .cap = w->cap,
                              .slots = w->slots,
                              .local = w->pools,
                              .local_tables = w->local_tables,
                              .held_from = w->held_from,
                              .n_held = w->n_held,
                              .local_stride = 2,
                              .n_seqs = SEQS,
                              .first_layer = FIRST,
                              .n_layers = CALL_LAYERS,
                              .fill = fill,
                              .chosen = w->chosen,
                              .n_slots = SEQS,
                              .chosen_stride = K,
                              .moves = w->moves,
                              .n_moves = x->n_moves,
                              .n_missed = x->n_missed,
                              .move_stride = K};
}

static cn_fetch_args fetch_args(const world *w, const exchange_round *x)
{
    return (cn_fetch_args){.local = w->pools,
                           .home = w->home,
                           .local_tables = w->local_tables,
                           .home_tables = w->home_tables,
                           .local_stride = 2,
                           .home_stride = BLOCKS,
                           .entry_log2 = w->entry_log2,
                           .moves = w->moves,
                           .n_moves = x->n_moves,
                           .move_stride = K,
                           .n_seqs = SEQS,
                           .first_layer = FIRST,
                           .n_layers = CALL_LAYERS};
}

/* ---- the way of the requests ---- */

/* One backend's stream waits for what the other's has queued so far. */
static void pass(const device *from, cn_fence *fence, const device *to)
{
    ok(from->be->fence_record(fence, from->stream));
    ok(to->be->fence_wait(to->stream, fence));
}

/* The exchange of a round on the cache backend, after the step that wrote the newest query. */
static void run_exchange(world *w, exchange_round *x, bool fill)
{
    const cn_backend *be = w->pair.be;
    cn_stream *s = w->pair.stream;
    const cn_predict_args p = predict_args(w, w->pools.q_window, x);
    const cn_score_args c = score_args(w);
    const cn_exchange_args e = exchange_args(w, x, fill);
    const cn_fetch_args f = fetch_args(w, x);
    pass(&w->here, w->stepped, &w->pair);
    ok(be->predict(s, &p));
    ok(be->score(s, &c));
    ok(be->exchange(s, &e));
    ok(be->fetch(s, &f));
    ok(be->mem_read(s, x->chosen, w->chosen, sizeof x->chosen));
    pass(&w->pair, w->exchanged, &w->here);
}

/* Puts, digests, compresses and fills all sequences. The blocks of the events must stay valid until
 * they have run. */
static void run_first_events(world *w)
{
    static cn_digest_tile tiles[HOME];
    static cn_block_copy puts[SEQS * BLOCKS];
    static uint32_t targets[SEQS];
    static cn_compress_req reqs[SEQS];
    const cn_planes from = cn_pools_planes(&w->pools), to = cn_pools_planes(&w->home);
    for (uint32_t i = 0; i < SEQS * BLOCKS; i++) {
        puts[i] = (cn_block_copy){w->tables[i], w->home_tables[i]};
        tiles[i] = (cn_digest_tile){.block = w->home_tables[i]};
    }
    for (uint32_t s = 0; s < SEQS; s++) {
        targets[s] = w->local_tables[s * 2 + 1];
        reqs[s] = (cn_compress_req){.params = {.policy = CN_KV_WINDOW, .budget_tokens = B,
                                               .sink_tokens = SINKS},
                                    .n_blocks = BLOCKS,
                                    .n_target = 1,
                                    .table = w->tables + s * BLOCKS,
                                    .target = &targets[s],
                                    .position_end = TOKENS,
                                    .first_event = true};
    }
    const cn_copy_args put = {cn_planes_kv(&from, LAYERS), to,
                              {.blocks = puts, .n_blocks = SEQS * BLOCKS}};
    ok(w->here.be->copy_blocks(w->here.stream, &put));
    pass(&w->here, w->stepped, &w->pair);
    const cn_digest_args d = {.pools = w->home, .tiles = tiles, .n = HOME};
    ok(w->pair.be->digest(w->pair.stream, &d));
    static float scratch[1 << 20];
    const cn_compress_args c = {w->pools, reqs, SEQS, scratch, sizeof scratch};
    ok(w->here.be->compress(w->here.stream, &c));
    run_exchange(w, &w->rounds[0], true);
}

/* Writes the queries of a position to the ring, as the layers of a step do. */
static void write_queries(world *w, float *ring, const exchange_round *x, cn_stream *s)
{
    const size_t row = (size_t)HQ * DIM;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t q = 0; q < SEQS; q++) {
            const size_t at = cn_query_row(SEQS, RING, HQ, DIM, layer, q, x->newest[0] % RING, 0);
            const float *from = x->ring + (layer * SEQS + q) * row;
            if (s)
                ok(w->here.be->mem_read(s, ring + at, from, row * sizeof *ring));
            else
                memcpy(ring + at, from, row * sizeof *ring);
        }
}

static void run_attention(world *w, exchange_round *x)
{
    for (uint32_t layer = FIRST; layer < LAYERS; layer++) {
        const cn_attn_args a = {.out = x->out + (size_t)layer * SEQS * HQ * DIM,
                                .q = w->q,
                                .kv = w->pools.kv,
                                .batch = &w->view,
                                .layout = w->pools.layout,
                                .n_heads = HQ,
                                .layer = layer,
                                .scale = 0.2f};
        ok(w->here.be->attn_decode(w->here.stream, &a));
    }
}

/* ---- references ---- */

static const float *original_row(const world *w, uint32_t layer, uint32_t seq, uint32_t head,
                                 uint32_t position, cn_kv_part part)
{
    return w->original + cn_kv_row(&w->pools.layout, layer, w->tables[seq * BLOCKS + position / B],
                                   head, position % B, part);
}

/* Attention of one query head over positions[K + B]. */
static void check_attention(const world *w, const exchange_round *x, uint32_t layer, uint32_t seq,
                            uint32_t h, const uint32_t *positions)
{
    const float *q = w->q + (seq * HQ + h) * DIM;
    const float *out = x->out + ((layer * SEQS + seq) * HQ + h) * DIM;
    double want[DIM] = {0}, sum = 0;
    for (uint32_t i = 0; i < K + B; i++) {
        const float *k = original_row(w, layer, seq, h / (HQ / HK), positions[i], CN_KV_K);
        const float *v = original_row(w, layer, seq, h / (HQ / HK), positions[i], CN_KV_V);
        double logit = 0;
        for (uint32_t j = 0; j < DIM; j++) logit += (double)q[j] * (double)k[j];
        const double weight = exp(0.2 * logit);
        sum += weight;
        for (uint32_t j = 0; j < DIM; j++) want[j] += weight * (double)v[j];
    }
    for (uint32_t j = 0; j < DIM; j++) assert_true(fabs((double)out[j] - want[j] / sum) < 1e-5);
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* chosen, sorted, and then what the policy keeps: the sinks and the newest. */
static void positions_of(const world *w, const exchange_round *x, uint32_t layer, uint32_t seq,
                         uint32_t head, uint32_t *positions)
{
    const size_t unit = ((size_t)layer * SEQS + w->slots[seq]) * HK + head;
    memcpy(positions, x->chosen + unit * K, K * sizeof *positions);
    qsort(positions, K, sizeof *positions, ascending);
    for (uint32_t i = 0; i < B; i++)
        positions[K + i] = i < SINKS ? i : TOKENS - B + i;
}

/* The lists of the same selection on one backend, [SEQS, CALL_LAYERS, HK, K]. */
static void select_lists(const world *w, cn_backend *be, const float *ring,
                         const exchange_round *x, uint32_t *list)
{
    cn_stream *s = backend_rig_stream(be);
    const cn_predict_args p = predict_args(w, ring, x);
    const cn_score_args c = score_args(w);
    const uint32_t none[SEQS] = {0};
    const cn_select_args l = {.score = w->score,
                              .stage = w->stage,
                              .first = w->first,
                              .n = w->n,
                              .base = w->base,
                              .k = w->k,
                              .n_forced = none,
                              .n_seqs = SEQS,
                              .n_layers = CALL_LAYERS,
                              .n_kv_heads = HK,
                              .tokens = true,
                              .list = list,
                              .list_stride = K};
    ok(be->predict(s, &p));
    ok(be->score(s, &c));
    ok(be->select(s, &l));
}

static void check_round(const world *w, const exchange_round *x, const uint32_t *list,
                        bool is_whole)
{
    for (uint32_t seq = 0; seq < SEQS; seq++)
        for (uint32_t layer = FIRST; layer < LAYERS; layer++)
            for (uint32_t head = 0; head < HK; head++) {
                uint32_t positions[K + B];
                positions_of(w, x, layer, seq, head, positions);
                const uint32_t unit = (seq * CALL_LAYERS + layer - FIRST) * HK + head;
                const uint32_t *want = list + unit * K;
                uint32_t n_missing = 0;
                for (uint32_t i = 0; i < K; i++)
                    n_missing += !bsearch(&want[i], positions, K, sizeof *want, ascending);
                assert_int_equal(n_missing, x->n_missed[unit]);
                if (is_whole) assert_int_equal(n_missing, 0);
                for (uint32_t h = head * (HQ / HK); h < (head + 1) * (HQ / HK); h++)
                    check_attention(w, x, layer, seq, h, positions);
            }
}

static void check_all(world *w, float *ring, bool is_whole)
{
    cn_backend *be = backend_rig_open(1);
    uint32_t *list = cn_calloc((size_t)UNITS * K, sizeof *list);
    uint64_t n_moves = 0;
    for (uint32_t i = 0; i <= ROUNDS; i++) {
        if (i > 0) write_queries(w, ring, &w->rounds[i], NULL);
        select_lists(w, be, ring, &w->rounds[i], list);
        check_round(w, &w->rounds[i], list, is_whole || i == 0);
        for (uint32_t u = 0; u < UNITS && i > 0; u++) n_moves += w->rounds[i].n_moves[u];
    }
    assert_true(n_moves > ROUNDS * UNITS); /* the sets did change */
    cn_free(list);
    backend_rig_close(be);
}

static void run_request(cn_sel_stage stage, uint32_t cap)
{
    world *w = open_world(stage, cap);
    const size_t n = (size_t)LAYERS * SEQS * RING * HQ * DIM;
    float *ring = cn_calloc(n, sizeof *ring); /* what the reference sees */
    memcpy(ring, w->pools.q_window, n * sizeof *ring);
    run_first_events(w);
    run_attention(w, &w->rounds[0]);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        write_queries(w, w->pools.q_window, &w->rounds[i], w->here.stream);
        run_exchange(w, &w->rounds[i], false);
        run_attention(w, &w->rounds[i]);
    }
    ok(w->here.be->stream_sync(w->here.stream));
    ok(w->pair.be->stream_sync(w->pair.stream));
    check_all(w, ring, cap == K);
    cn_free(ring);
    close_world(w);
}

/* ---- tests ---- */

static const cn_sel_stage by_labels = {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN,
                                       .query = CN_SEL_PREDICTED};
static const cn_sel_stage by_rows = {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX,
                                     .query = CN_SEL_PREDICTED};

static void labels_at_home_choose_what_one_device_lists(void **state)
{
    (void)state;
    run_request(by_labels, K);
}

static void keys_at_home_choose_what_one_device_lists(void **state)
{
    (void)state;
    run_request(by_rows, K);
}

static void a_cap_leaves_out_what_is_counted(void **state)
{
    (void)state;
    run_request(by_labels, K / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_at_home_choose_what_one_device_lists),
        cmocka_unit_test(keys_at_home_choose_what_one_device_lists),
        cmocka_unit_test(a_cap_leaves_out_what_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
