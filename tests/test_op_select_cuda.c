/* test_op_select_cuda.c - score and select on the GPU compared with the CPU, on random shapes.
 *
 * The keys of the stages are declared (cn_score_args.keys) in two worlds of three. Stages without
 * group rule max have no logits.
 *
 * Scores of labels and hashes, and lists of the same scores, must be equal bit by bit. Scores of
 * rows and bounds are sums of floats, so lists of the GPU's own scores may differ from the CPU's
 * where scores are nearly equal. A decision is a selected entry of a unit that leaves some out. A
 * near tie is an entry that only the GPU selects; its score must be so close to the lowest selected
 * score that rounding may decide. Any other difference fails the test at once. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compress/selector.h"
#include "engine/select_math.h"
#include "tests/lib/op_cases.h"
#include "tests/lib/score_value.h"

enum {
    LAYERS = 4,
    FIRST_LAYER = 1,
    MAX_TENSORS = 44,
    POISON = 0xa5,
    STAGES = 2,
    FIRST_STRIDE = 64, /* list_stride of stage one */
    MAX_QUERIES = 40,  /* of bounds: more than two passes */
    MAX_TILES = 4096,
    GUARD = 256 /* poisoned bytes behind the logits */
};

/* A step of random sequences. Sequence s has n[i][s] candidates in stage i. */
typedef struct world {
    op_env *env;
    paged_batch *b;
    uint32_t n_seqs, group, n_layers;
    bool keys_known;
    cn_sel_stage stage[STAGES][PAGED_MAX_SEQS];
    uint32_t first[STAGES][PAGED_MAX_SEQS], n[STAGES][PAGED_MAX_SEQS], base[STAGES][PAGED_MAX_SEQS];
    uint32_t k[STAGES][PAGED_MAX_SEQS], n_forced[PAGED_MAX_SEQS], seed[PAGED_MAX_SEQS];
    uint32_t total[STAGES], stride[STAGES]; /* total: sum of n */
    cn_score_args score[2][STAGES];         /* by side: CPU, GPU */
    cn_select_args select[2][STAGES];
    op_tensor scores[STAGES], lists[STAGES];
    op_tensor logits[2][STAGES]; /* by side; the other half is unused */
    size_t logit_bytes[2][STAGES];
    op_tensor all[MAX_TENSORS]; /* to be freed */
    uint32_t n_all;
} world;

enum { ON_CPU, ON_CUDA };

/* A pointer for each side. */
typedef struct both {
    void *at[2];
} both;

static both keep(world *w, op_tensor t)
{
    assert_true(w->n_all < MAX_TENSORS);
    w->all[w->n_all++] = t;
    return (both){{t.cpu, t.cuda}};
}

/* Copies memory to both sides. */
static both keep_bytes(world *w, const void *from, size_t bytes)
{
    const size_t n = bytes / sizeof(uint32_t) + 1;
    uint32_t *words = cn_calloc(n, sizeof *words);
    memcpy(words, from, bytes);
    const both out = keep(w, op_words(w->env, words, n));
    cn_free(words);
    return out;
}

static op_tensor poisoned_words(world *w, size_t bytes)
{
    const size_t n = bytes / sizeof(uint32_t) + 1;
    uint32_t *words = cn_calloc(n, sizeof *words);
    memset(words, POISON, n * sizeof *words);
    const op_tensor t = op_words(w->env, words, n);
    keep(w, t);
    cn_free(words);
    return t;
}

static size_t n_units(const world *w)
{
    return (size_t)w->n_seqs * w->n_layers * w->b->layout.n_kv_heads;
}

/* ---- pools ---- */

static float *nan_floats(size_t n)
{
    float *p = cn_calloc(n + 1, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = NAN;
    return p;
}

static void run_digest(const world *w, const cn_pools *pools)
{
    const cn_kv_layout *l = &pools->layout;
    cn_digest_tile *tiles = cn_calloc(MAX_TILES, sizeof *tiles);
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t t = 0; t + l->tile_tokens <= w->b->kv_len[s]; t += l->tile_tokens) {
            assert_true(n < MAX_TILES);
            tiles[n++] =
                (cn_digest_tile){w->b->tables[s * w->b->view.table_stride + t / l->block_tokens],
                                 t % l->block_tokens / l->tile_tokens};
        }
    const cn_digest_args a = {*pools, tiles, n};
    OP_OK(w->env->cpu->digest(w->env->cpu_stream, &a));
    cn_free(tiles);
}

/* Draws the label channels, computes the digests on the CPU and copies them to both sides. */
static void open_digests(world *w, cn_pools pools[2])
{
    const cn_kv_layout *l = &w->b->layout;
    const size_t n = (size_t)l->n_layers * l->n_blocks, bounds_64 = l->block_tokens / 64;
    const size_t slots = n * l->n_kv_heads * l->block_tokens, d = l->head_dim;
    const uint32_t n_channels = cn_label_channels(l->head_dim);
    const size_t all_channels = (size_t)l->n_layers * l->n_kv_heads * n_channels;
    uint8_t *channels = cn_calloc(all_channels, 1);
    for (size_t i = 0; i < all_channels; i++)
        channels[i] = (uint8_t)(i % n_channels * 4 + test_rng_below(&w->env->rng, 4));
    uint8_t *labels = cn_calloc(slots, n_channels / 2);
    uint16_t *scales = cn_calloc(slots, sizeof *scales);
    float *b16 = nan_floats(slots / 16 * 2 * d), *b64 = nan_floats(slots / 64 * 2 * d);
    memset(labels, POISON, slots * (n_channels / 2));
    memset(scales, POISON, slots * sizeof *scales);
    cn_pools own = pools[ON_CPU];
    own.digest = (cn_digest){channels, n_channels, labels, scales, b16, bounds_64 ? b64 : NULL};
    run_digest(w, &own);
    const both c = keep_bytes(w, channels, all_channels);
    const both lb = keep_bytes(w, labels, slots * (n_channels / 2));
    const both sc = keep_bytes(w, scales, slots * sizeof *scales);
    const both p16 = keep(w, op_floats(w->env, b16, slots / 16 * 2 * d, CN_BF16));
    const both p64 = bounds_64 ? keep(w, op_floats(w->env, b64, slots / 64 * 2 * d, CN_BF16))
                               : (both){{NULL, NULL}};
    for (int i = 0; i < 2; i++)
        pools[i].digest = (cn_digest){c.at[i],  n_channels, lb.at[i],
                                      sc.at[i], p16.at[i],  p64.at[i]};
    cn_free(channels);
    cn_free(labels);
    cn_free(scales);
    cn_free(b16);
    cn_free(b64);
}

static void open_pools(world *w, cn_pools pools[2])
{
    const cn_kv_layout *l = &w->b->layout;
    const both kv = keep(w, op_floats(w->env, w->b->kv, cn_kv_pool_elems(l), CN_BF16));
    for (int i = 0; i < 2; i++)
        pools[i] = (cn_pools){.layout = i == ON_CPU ? *l : op_layout_as(l, CN_BF16),
                              .kv = kv.at[i],
                              .n_heads = l->n_kv_heads * w->group,
                              .act_dtype = i == ON_CPU ? CN_F32 : CN_BF16};
    open_digests(w, pools);
}

/* ---- stages ---- */

static const cn_sel_stage STAGE_KINDS[] = {
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
    {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 4},
    {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_MAX, .entry_log2 = 4},
    {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .query = CN_SEL_PREDICTED,
     .entry_log2 = 4, .n_queries = 17},
    {.active = 1, .key = CN_KEY_HASH, .group = CN_GROUP_MAX},
    {.key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MEAN, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX, .in_tiles = 1},
};
enum { N_KINDS = sizeof STAGE_KINDS / sizeof *STAGE_KINDS, N_WITHOUT_TILES = N_KINDS - 4 };

/* Sets the token stage of a sequence, and the stage before it if it is in tiles. All candidates are
 * complete. */
static void draw_row(world *w, uint32_t s, uint32_t kind)
{
    test_rng *r = &w->env->rng;
    const uint32_t tile = w->b->layout.tile_tokens, complete = w->b->kv_len[s] / tile * tile;
    const cn_sel_stage *st = &STAGE_KINDS[kind];
    w->stage[1][s] = *st;
    uint32_t base = test_rng_below(r, 40);
    if (st->entry_log2) base = (uint32_t)cn_round_up(base, 16);
    base = cn_min_u32(base, complete);
    w->base[1][s] = w->n_forced[s] = base;
    w->n[1][s] = (complete - base) >> st->entry_log2;
    if (test_rng_below(r, 3) == 0) w->n[1][s] -= w->n[1][s] / 3;
    if (st->in_tiles) {
        w->stage[0][s] = (cn_sel_stage){.active = 1,
                                        .key = CN_KEY_BOUNDS,
                                        .group = test_rng_below(r, 2) ? CN_GROUP_SUM : CN_GROUP_MAX,
                                        .entry_log2 = 6};
        if (w->stage[0][s].group == CN_GROUP_SUM)
            w->stage[0][s].n_queries = (uint8_t)test_rng_below(r, MAX_QUERIES + 1);
        w->n[0][s] = complete / 64;
        w->k[0][s] = 1 + test_rng_below(r, cn_min_u32(w->n[0][s], FIRST_STRIDE));
        w->n[1][s] = w->k[0][s] * 64;
    }
    const uint32_t n = w->n[1][s], most = st->in_tiles ? n - cn_min_u32(n, base) : n;
    w->k[1][s] = test_rng_below(r, 4) == 0 ? 1 : test_rng_below(r, most + 1);
    if (!st->in_tiles && test_rng_below(r, 4) == 0) w->k[1][s] = n + 5;
    w->seed[s] = test_rng_below(r, 1000);
}

static void draw_rows(world *w)
{
    test_rng *r = &w->env->rng;
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        const bool tiles = w->b->layout.block_tokens >= 64 && w->b->kv_len[s] >= 64;
        draw_row(w, s, test_rng_below(r, tiles ? N_KINDS : N_WITHOUT_TILES));
    }
}

/* ---- arguments ---- */

static void bind_queries(world *w, float largest)
{
    test_rng *r = &w->env->rng;
    const cn_kv_layout *l = &w->b->layout;
    const size_t row = (size_t)w->n_layers * l->n_kv_heads * w->group * l->head_dim;
    const size_t stride = MAX_QUERIES * row + 16, n = w->n_seqs * stride;
    float *values = cn_calloc(n, sizeof *values);
    for (int i = 0; i < CN_N_SEL_QUERIES; i++) {
        for (size_t j = 0; j < n; j++)
            values[j] = largest > 0 ? largest * test_rng_uniform(r) : 4;
        const both q = keep(w, op_floats(w->env, values, n, CN_BF16));
        for (int side = 0; side < 2; side++)
            for (uint32_t stage = 0; stage < STAGES; stage++) {
                w->score[side][stage].q[i] = q.at[side];
                w->score[side][stage].q_stride[i] = stride;
            }
    }
    cn_free(values);
}

/* Sets the arguments of one stage on one side, other than the queries. words: stage, first, n,
 * base, k, n_forced, seed and tables. */
static void bind_side(world *w, uint32_t i, int side, const cn_pools *pools, const both words[8],
                      void *logits)
{
    cn_score_args *a = &w->score[side][i];
    a->stage = words[0].at[side];
    a->pools = *pools;
    a->tables = words[7].at[side];
    a->table_stride = w->b->view.table_stride;
    a->first = words[1].at[side];
    a->n = words[2].at[side];
    a->base = words[3].at[side];
    a->seed = words[6].at[side];
    a->tiles = i == 0 ? NULL : side == ON_CPU ? w->lists[0].cpu : w->lists[0].cuda;
    a->tile_stride = w->stride[0];
    for (uint32_t s = 0; s < w->n_seqs; s++)
        a->max_queries = cn_max_u32(a->max_queries, w->stage[i][s].n_queries);
    for (uint32_t s = 0; w->keys_known && s < w->n_seqs; s++)
        if (w->stage[i][s].active) a->keys |= 1U << w->stage[i][s].key;
    a->n_seqs = w->n_seqs;
    a->first_layer = FIRST_LAYER;
    a->n_layers = w->n_layers;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        if (cn_sel_stage_is_max(&w->stage[i][s])) a->logits = logits;
    a->out = side == ON_CPU ? w->scores[i].cpu : w->scores[i].cuda;
    w->select[side][i] = (cn_select_args){
        .score = a->out,
        .stage = a->stage,
        .first = a->first,
        .n = a->n,
        .base = a->base,
        .k = words[4].at[side],
        .n_forced = words[5].at[side],
        .tiles = a->tiles,
        .tile_stride = a->tile_stride,
        .n_seqs = a->n_seqs,
        .n_layers = a->n_layers,
        .n_kv_heads = pools->layout.n_kv_heads,
        .tokens = i == 1,
        .list = side == ON_CPU ? w->lists[i].cpu : w->lists[i].cuda,
        .list_stride = w->stride[i],
    };
}

static void bind_stage(world *w, uint32_t i, const cn_pools pools[2])
{
    const size_t n = w->n_seqs * sizeof(uint32_t);
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        w->first[i][s] = w->total[i];
        w->total[i] += w->n[i][s];
    }
    const size_t all = (size_t)w->total[i] * w->n_layers * pools->layout.n_kv_heads;
    w->scores[i] = poisoned_words(w, all * sizeof(uint16_t));
    w->lists[i] = poisoned_words(w, n_units(w) * w->stride[i] * sizeof(uint32_t));
    for (int side = 0; side < 2; side++) {
        const cn_backend *be = side == ON_CPU ? w->env->cpu : w->env->cuda;
        w->logit_bytes[side][i] = all * cn_logit_row(w->group) * be->logit_bytes;
        w->logits[side][i] = poisoned_words(w, w->logit_bytes[side][i] + GUARD);
    }
    const both words[8] = {
        keep_bytes(w, w->stage[i], w->n_seqs * sizeof **w->stage),
        keep_bytes(w, w->first[i], n),
        keep_bytes(w, w->n[i], n),
        keep_bytes(w, w->base[i], n),
        keep_bytes(w, w->k[i], n),
        keep_bytes(w, w->n_forced, n),
        keep_bytes(w, w->seed, n),
        keep_bytes(w, w->b->tables, n * w->b->view.table_stride),
    };
    for (int side = 0; side < 2; side++)
        bind_side(w, i, side, &pools[side], words,
                  side == ON_CPU ? w->logits[side][i].cpu : w->logits[side][i].cuda);
}

/* ---- worlds ---- */

static world *world_create(op_env *env, const paged_shape *s, uint32_t n_layers)
{
    world *w = cn_calloc(1, sizeof *w);
    *w = (world){.env = env,
                 .n_seqs = s->n_seqs,
                 .group = s->n_heads / s->n_kv_heads,
                 .n_layers = n_layers,
                 .keys_known = test_rng_below(&env->rng, 3) > 0,
                 .stride = {FIRST_STRIDE}};
    for (uint32_t i = 0; i < s->n_seqs; i++)
        w->stride[1] = cn_max_u32(w->stride[1], s->kv_len[i] + 100);
    w->b = paged_batch_create(s, &env->rng);
    snprintf(env->shape, sizeof env->shape, "layers=%u heads=%u*%u d=%u block=%u, %u seqs",
             n_layers, s->n_kv_heads, w->group, s->head_dim, s->block_tokens, s->n_seqs);
    return w;
}

/* Completes a world whose rows are set. largest: of the queries; 0 makes them all equal. */
static void world_bind(world *w, float largest)
{
    cn_pools pools[2];
    open_pools(w, pools);
    for (uint32_t i = 0; i < STAGES; i++) bind_stage(w, i, pools);
    bind_queries(w, largest);
}

static void world_free(world *w)
{
    for (uint32_t i = 0; i < w->n_all; i++) op_tensor_free(w->env, &w->all[i]);
    paged_batch_free(w->b);
    cn_free(w);
}

/* ---- checks ---- */

typedef struct unit {
    uint32_t stage, seq, layer, head;
    size_t index, first; /* first: of its scores */
    const uint16_t *got, *want;
} unit;

static unit unit_at(const world *w, uint32_t stage, size_t index)
{
    const uint32_t hk = w->b->layout.n_kv_heads;
    unit u = {.stage = stage, .index = index};
    u.head = (uint32_t)(index % hk);
    u.layer = (uint32_t)(index / hk % w->n_layers);
    u.seq = (uint32_t)(index / hk / w->n_layers);
    const size_t n = w->n[stage][u.seq];
    u.first = ((size_t)w->first[stage][u.seq] * w->n_layers + u.layer * n) * hk + u.head * n;
    return u;
}

#define FAIL(u, ...)                                                                               \
    do {                                                                                           \
        print_error("stage %u, sequence %u, layer %u, head %u: ", (u)->stage, (u)->seq,            \
                    (u)->layer, (u)->head);                                                        \
        fail_msg(__VA_ARGS__);                                                                     \
    } while (0)

/* A unit in the last place of an f16, and the error of the sum before rounding. A share is the
 * difference of two f16, which are not far from the score. */
static double tolerance_of(const cn_sel_stage *st, double score)
{
    return st->group == CN_GROUP_MAX ? 1e-3 * (fabs(score) + 16) : 1e-3 * fabs(score) + 1e-4;
}

static bool is_exact(const cn_sel_stage *st)
{
    return !st->active || st->key == CN_KEY_LABELS || st->key == CN_KEY_HASH;
}

static void check_scores(const world *w, const unit *u)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    for (uint32_t c = 0; c < w->n[u->stage][u->seq]; c++) {
        const uint16_t got = u->got[u->first + c], want = u->want[u->first + c];
        const double a = (double)test_score_value(got), b = (double)test_score_value(want);
        const bool close = (got > 0) == (want > 0) && (!want || fabs(a - b) <= tolerance_of(st, b));
        if (is_exact(st) ? got != want : !close)
            FAIL(u, "key %u, group rule %u: score of candidate %u: expected %04x (%g), got "
                    "%04x (%g)",
                 st->key, st->group, c, want, b, got, a);
    }
}

/* Returns the candidate of an entry of a list; n: none. */
static uint32_t candidate_of(const world *w, const unit *u, uint32_t entry)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t base = w->base[u->stage][u->seq], n = w->n[u->stage][u->seq];
    if (u->stage == 0) return entry - (base >> st->entry_log2);
    if (!st->in_tiles) return (entry - base) >> st->entry_log2;
    const uint32_t *tiles = (const uint32_t *)w->lists[0].cpu + u->index * w->stride[0];
    uint32_t i = 0;
    while (i < n / CN_DIGEST_TILE && tiles[i] != entry / CN_DIGEST_TILE) i++;
    return i * CN_DIGEST_TILE + entry % CN_DIGEST_TILE;
}

/* Compares the list of the GPU's own scores with the CPU's list. */
static void check_own_list(const world *w, const unit *u, const uint32_t *list)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t n = w->n[u->stage][u->seq], k = cn_min_u32(w->k[u->stage][u->seq], n);
    const uint32_t stride = w->stride[u->stage];
    const uint32_t *got = list + u->index * stride;
    const uint32_t *want = (const uint32_t *)w->lists[u->stage].cpu + u->index * stride;
    if (is_exact(st)) {
        if (memcmp(got, want, stride * sizeof *got) != 0) FAIL(u, "another list");
        return;
    }
    if (k == 0 || k == n) return;
    const uint32_t start = u->stage == 1 ? w->n_forced[u->seq] : 0;
    const uint32_t log2 = u->stage == 1 ? st->entry_log2 : 0; /* of an entry in the list */
    bool *wanted = cn_calloc(n, sizeof *wanted);
    uint16_t lowest = UINT16_MAX;
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t c = candidate_of(w, u, want[start + (i << log2)]);
        wanted[c] = true;
        if (u->want[u->first + c] < lowest) lowest = u->want[u->first + c];
    }
    w->env->n_decisions += k;
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t c = candidate_of(w, u, got[start + (i << log2)]);
        if (c >= n) FAIL(u, "entry %u of the list: candidate %u of %u", i, c, n);
        if (wanted[c]) continue;
        const double a = (double)test_score_value(u->want[u->first + c]);
        const double b = (double)test_score_value(lowest);
        if (!(fabs(a - b) <= 2 * tolerance_of(st, b)))
            FAIL(u, "candidate %u is selected: its score is %g, the lowest selected %g", c, a, b);
        w->env->n_near_ties++;
    }
    cn_free(wanted);
}

/* Fills a list of the GPU with a byte. */
static void fill_list(world *w, uint32_t i, int byte)
{
    op_tensor list = w->lists[i];
    list.cpu = cn_calloc(list.n, sizeof(uint32_t));
    memset(list.cpu, byte, list.n * sizeof(uint32_t));
    op_send(w->env, &list);
    cn_free(list.cpu);
}

static void check_guard(const world *w, uint32_t i, int side)
{
    const op_tensor *t = &w->logits[side][i];
    uint8_t want[GUARD], *taken = side == ON_CPU ? NULL : op_take(w->env, t);
    const uint8_t *got = taken ? taken : t->cpu;
    memset(want, POISON, GUARD);
    if (memcmp(got + w->logit_bytes[side][i], want, GUARD) != 0)
        fail_msg("stage %u: bytes behind the logits of the %s are written", i,
                 side == ON_CPU ? "CPU" : "GPU");
    cn_free(taken);
}

/* Runs one stage on both sides. First the GPU ranks its own scores; then it ranks the CPU's scores,
 * and its lists must be the CPU's. */
static void check_stage(world *w, uint32_t i)
{
    op_env *env = w->env;
    OP_OK(env->cpu->score(env->cpu_stream, &w->score[ON_CPU][i]));
    OP_OK(env->cuda->score(env->cuda_stream, &w->score[ON_CUDA][i]));
    uint16_t *scores = op_take(env, &w->scores[i]);
    for (int side = 0; side < 2; side++) check_guard(w, i, side);
    OP_OK(env->cpu->select(env->cpu_stream, &w->select[ON_CPU][i]));
    OP_OK(env->cuda->select(env->cuda_stream, &w->select[ON_CUDA][i]));
    uint32_t *own = op_take(env, &w->lists[i]);
    for (size_t index = 0; index < n_units(w); index++) {
        unit u = unit_at(w, i, index);
        u.got = scores;
        u.want = w->scores[i].cpu;
        check_scores(w, &u);
        check_own_list(w, &u, own);
    }
    op_send(env, &w->scores[i]);
    fill_list(w, i, POISON);
    OP_OK(env->cuda->select(env->cuda_stream, &w->select[ON_CUDA][i]));
    if (op_words_error(env, &w->lists[i]) > 0)
        fail_msg("stage %u: lists of equal scores differ", i);
    cn_free(scores);
    cn_free(own);
}

/* Completes a world, checks its stages and frees it. largest: as in world_bind. */
static double check_world(world *w, float largest)
{
    world_bind(w, largest);
    for (uint32_t i = 0; i < STAGES; i++) check_stage(w, i);
    world_free(w);
    return 0;
}

/* ---- cases ---- */

static double run_drawn(op_env *env, uint32_t seed)
{
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 16}, groups[] = {1, 4, 3, 11, 8, 2, 6};
    static const uint32_t blocks[] = {64, 16, 256, 128};
    test_rng *r = &env->rng;
    paged_shape s = {.n_layers = LAYERS,
                     .n_kv_heads = 1 + test_rng_below(r, 3),
                     .head_dim = dims[seed % 6],
                     .block_tokens = blocks[test_rng_below(r, 4)],
                     .n_seqs = 1 + test_rng_below(r, 6)};
    s.n_heads = s.n_kv_heads * groups[seed % 7];
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = 1 + test_rng_below(r, test_rng_below(r, 3) ? 1500 : 80);
    }
    world *w = world_create(env, &s, 1 + test_rng_below(r, LAYERS - FIRST_LAYER));
    const bool equal = seed % 12 == 4; /* all keys and queries equal: products are the largest */
    for (size_t i = 0; equal && i < cn_kv_pool_elems(&w->b->layout); i++) w->b->kv[i] = 1;
    draw_rows(w);
    return check_world(w, equal ? 0 : 4);
}

/* So many sequences that a warp cannot divide them. */
static double run_many(op_env *env, uint32_t seed)
{
    test_rng *r = &env->rng;
    paged_shape s = {.n_layers = FIRST_LAYER + 1,
                     .n_heads = 8,
                     .n_kv_heads = 2,
                     .head_dim = seed % 2 ? 64 : 128,
                     .block_tokens = 64,
                     .n_seqs = 30 + seed};
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = 1 + test_rng_below(r, 500);
    }
    world *w = world_create(env, &s, 1);
    draw_rows(w);
    return check_world(w, 4);
}

/* A long sequence of K rows beside others of any keys; in half of the seeds all rank K rows under
 * rule max, in several layers. Groups of more than 8 heads take several passes. */
static double run_rows(op_env *env, uint32_t seed)
{
    static const uint32_t dims[] = {128, 256, 80, 64}, groups[] = {4, 20, 9, 16, 64, 3};
    static const uint32_t blocks[] = {16, 64, 128, 256};
    test_rng *r = &env->rng;
    const bool all_rows = (seed + seed / 4) % 2;
    const uint32_t n_layers = all_rows ? 2 + test_rng_below(r, LAYERS - FIRST_LAYER - 1) : 1;
    paged_shape s = {.n_layers = FIRST_LAYER + n_layers,
                     .n_kv_heads = 1 + test_rng_below(r, 2),
                     .head_dim = dims[seed % 4],
                     .block_tokens = blocks[seed / 4 % 4],
                     .n_seqs = 1 + test_rng_below(r, 4)};
    s.n_heads = s.n_kv_heads * groups[seed % 6];
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = 64 + test_rng_below(r, i == 0 ? 8000 : 600);
    }
    world *w = world_create(env, &s, n_layers);
    const uint32_t rule = test_rng_below(r, 2);
    if (!all_rows) draw_rows(w);
    for (uint32_t i = 0; all_rows && i < s.n_seqs; i++) draw_row(w, i, 0);
    if (!all_rows) draw_row(w, 0, rule); /* the first two kinds */
    w->n[1][0] = s.kv_len[0] / w->b->layout.tile_tokens * w->b->layout.tile_tokens - w->base[1][0];
    w->keys_known = seed % 8 != 7;
    return check_world(w, 4);
}

/* Candidates beyond 16 bits, in more chunks than parts. The last seeds have equal keys and queries,
 * so the newest candidates are selected, in whatever part they are. */
static double run_long(op_env *env, uint32_t seed)
{
    paged_shape s = {.n_layers = FIRST_LAYER + 1,
                     .n_heads = 4,
                     .n_kv_heads = 1,
                     .head_dim = 64,
                     .block_tokens = 256,
                     .n_seqs = 2,
                     .n_decode = 2,
                     .n_q = {1, 1},
                     .kv_len = {70300, 5000}};
    world *w = world_create(env, &s, 1);
    const bool equal = seed >= (uint32_t)N_WITHOUT_TILES;
    for (size_t i = 0; equal && i < cn_kv_pool_elems(&w->b->layout); i++) w->b->kv[i] = 1;
    draw_row(w, 0, seed % N_WITHOUT_TILES);
    draw_row(w, 1, N_KINDS - 1);
    w->n[1][0] = (s.kv_len[0] / 64 * 64 - w->base[1][0]) >> w->stage[1][0].entry_log2;
    w->k[1][0] = (equal ? 30000U : 2048U) >> w->stage[1][0].entry_log2;
    return check_world(w, equal ? 0 : 4);
}

/* All sequences rank the same keys by the same rule, so kernels for these run. K rows are so many
 * that each ring is filled more than once. */
static double run_alike(op_env *env, uint32_t seed)
{
    static const uint32_t kinds[] = {0, 1, 2, 3, 5}; /* of STAGE_KINDS: rows, labels, bounds */
    const uint32_t kind = kinds[seed % 5];
    const bool rows = STAGE_KINDS[kind].key == CN_KEY_ROWS;
    paged_shape s = {.n_layers = FIRST_LAYER + 1,
                     .n_heads = 16,
                     .n_kv_heads = 4,
                     .head_dim = seed % 2 ? 64 : 128,
                     .block_tokens = 64,
                     .n_seqs = 2,
                     .n_decode = 2,
                     .n_q = {1, 1},
                     .kv_len = {rows ? 30000 : 9000, 700}};
    world *w = world_create(env, &s, 1);
    for (uint32_t i = 0; i < s.n_seqs; i++) draw_row(w, i, kind);
    w->keys_known = true;
    return check_world(w, 4);
}

static void run_stage(world *w, uint32_t i)
{
    OP_OK(w->env->cuda->score(w->env->cuda_stream, &w->score[ON_CUDA][i]));
    OP_OK(w->env->cuda->select(w->env->cuda_stream, &w->select[ON_CUDA][i]));
}

/* Attention on the GPU to the lists of stage two and to the newest TAIL tokens. */
typedef struct attention {
    cn_batch_view batch;
    cn_attn_sparse_args args;
    op_tensor out;
} attention;

static void attention_bind(world *w, attention *t)
{
    enum { TAIL = 16 };
    uint32_t words[3][PAGED_MAX_SEQS]; /* list_len, tail, lengths */
    both at[3];
    const cn_score_args *score = &w->score[ON_CUDA][1];
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        const uint32_t k = cn_min_u32(w->k[1][s], w->n[1][s]);
        words[0][s] = w->n_forced[s] + (k << w->stage[1][s].entry_log2);
        words[1][s] = w->b->kv_len[s] - TAIL;
        words[2][s] = words[0][s] + TAIL;
    }
    for (uint32_t i = 0; i < 3; i++) at[i] = keep_bytes(w, words[i], w->n_seqs * sizeof **words);
    const uint32_t n_heads = w->b->layout.n_kv_heads * w->group;
    t->out = poisoned_words(
        w, (size_t)w->n_seqs * n_heads * w->b->layout.head_dim * sizeof(uint16_t));
    t->batch = (cn_batch_view){
        .tables = score->tables, .table_stride = score->table_stride, .n_decode = w->n_seqs};
    t->args = (cn_attn_sparse_args){.attn = {.out = t->out.cuda,
                                             .q = score->q[CN_SEL_TRUE],
                                             .kv = score->pools.kv,
                                             .batch = &t->batch,
                                             .layout = score->pools.layout,
                                             .n_heads = n_heads,
                                             .layer = FIRST_LAYER,
                                             .scale = 0.1f},
                                    .index = w->lists[1].cuda,
                                    .index_stride = w->stride[1],
                                    .list_len = at[0].at[ON_CUDA],
                                    .tail = at[1].at[ON_CUDA],
                                    .lengths = at[2].at[ON_CUDA]};
}

/* Two stages and attention follow each other without a wait of the host. So the kernels of the
 * second stage start while the first still selects the tiles. Attention begins while the second
 * still makes lists. The results are those of kernels with a wait between them. */
static double run_in_order(op_env *env, uint32_t seed)
{
    enum { AHEAD = 12 /* kernels that keep the stream busy while the others are launched */ };
    test_rng *r = &env->rng;
    paged_shape s = {.n_layers = FIRST_LAYER + 1,
                     .n_heads = 8,
                     .n_kv_heads = 2,
                     .head_dim = seed % 2 ? 64 : 128,
                     .block_tokens = 256,
                     .n_seqs = 4,
                     .n_decode = 4,
                     .n_q = {1, 1, 1, 1}};
    for (uint32_t i = 0; i < s.n_seqs; i++) s.kv_len[i] = 1500 + test_rng_below(r, 3000);
    world *w = world_create(env, &s, 1);
    for (uint32_t i = 0; i < s.n_seqs; i++)
        draw_row(w, i, N_WITHOUT_TILES + (seed + i) % (N_KINDS - N_WITHOUT_TILES));
    world_bind(w, 4);
    attention t;
    attention_bind(w, &t);
    run_stage(w, 0);
    cn_free(op_take(env, &w->lists[0])); /* waits */
    fill_list(w, 1, 0);
    run_stage(w, 1);
    uint32_t *want = op_take(env, &w->lists[1]);
    OP_OK(env->cuda->attn_sparse(env->cuda_stream, &t.args));
    uint32_t *want_out = op_take(env, &t.out);
    fill_list(w, 0, 0);
    fill_list(w, 1, 0);
    op_send(env, &t.out);
    const op_tensor done = poisoned_words(w, n_units(w) * sizeof(uint32_t));
    t.args.done = w->select[ON_CUDA][1].done = done.cuda;
    for (uint32_t i = 0; i < AHEAD; i++)
        OP_OK(env->cuda->score(env->cuda_stream, &w->score[ON_CUDA][0]));
    for (uint32_t i = 0; i < STAGES; i++) run_stage(w, i);
    OP_OK(env->cuda->attn_sparse(env->cuda_stream, &t.args));
    uint32_t *got_out = op_take(env, &t.out);
    if (memcmp(want_out, got_out, t.out.n * sizeof *got_out) != 0)
        fail_msg("attention differs when no wait is before it");
    uint32_t *counts = op_take(env, &done);
    for (size_t i = 0; i < n_units(w); i++)
        if (counts[i] != counts[0] || counts[i] > 64) fail_msg("unit %zu: count %u", i, counts[i]);
    cn_free(counts);
    uint32_t *got = op_take(env, &w->lists[1]);
    if (memcmp(want, got, w->lists[1].n * sizeof *got) != 0)
        fail_msg("lists differ when no wait is between the stages");
    cn_free(want);
    cn_free(got);
    cn_free(want_out);
    cn_free(got_out);
    world_free(w);
    return 0;
}

static double run_refusals(op_env *env, uint32_t seed)
{
    (void)seed;
    const cn_kv_layout l = cn_kv_layout_make(1, 1, 1, 64, 64, CN_BF16);
    cn_score_args a = {.pools = {.layout = l, .n_heads = 65}, .n_seqs = 1, .n_layers = 1};
    assert_int_equal(env->cuda->score(env->cuda_stream, &a), CN_ERR_SHAPE);
    a.pools.n_heads = 0;
    assert_int_equal(env->cuda->score(env->cuda_stream, &a), CN_ERR_SHAPE);
    a.pools.n_heads = 1;
    a.pools.layout = op_layout_as(&l, CN_F32);
    assert_int_equal(env->cuda->score(env->cuda_stream, &a), CN_ERR_SHAPE);
    a.pools.layout = l;
    a.n_seqs = 1 << 24;
    assert_int_equal(env->cuda->score(env->cuda_stream, &a), CN_ERR_SHAPE);
    return 0;
}

int main(int argc, char **argv)
{
    static const op_case cases[] = {
        {"select", 60, 0, run_drawn, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, long", N_WITHOUT_TILES + 4, 0, run_long, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, rows", 16, 0, run_rows, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, alike", 10, 0, run_alike, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, many", PAGED_MAX_SEQS - 30 + 1, 0, run_many, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, in order", 16, 0, run_in_order, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, portable", 20, 0, run_drawn, .portable = true},
        {"select, portable, long", 4, 0, run_long, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
