/* select_world.c - random steps of selection. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/select_world.h"

#include "engine/select/select_math.h"
#include "tests/lib/backend_rig.h"

size_t select_units(const select_world *w)
{
    return (size_t)w->n_seqs * w->n_layers * w->pools.layout.n_kv_heads;
}

static void *poisoned(size_t bytes)
{
    void *p = cn_calloc(bytes + 1, 1);
    memset(p, SELECT_POISON, bytes);
    return p;
}

void select_open_digest(select_world *w, test_rng *r)
{
    const cn_kv_layout *l = &w->pools.layout;
    cn_digest *g = &w->pools.digest;
    const size_t n = (size_t)l->n_layers * l->n_blocks;
    g->n_channels = cn_layout_label_channels(l);
    const size_t n_channels = (size_t)l->n_layers * l->n_kv_heads * g->n_channels;
    const uint32_t step = l->head_dim / g->n_channels;
    uint8_t *channels = cn_calloc(n_channels, 1);
    uint16_t *wide = cn_calloc(n_channels, sizeof *wide);
    for (size_t i = 0; i < n_channels; i++) {
        wide[i] = (uint16_t)(i % g->n_channels * step + test_rng_below(r, step));
        channels[i] = (uint8_t)wide[i];
    }
    if (l->head_dim > 256) {
        g->wide_channels = wide;
        cn_free(channels);
    } else {
        g->channels = channels;
        cn_free(wide);
    }
    float *offsets = cn_calloc(n_channels, sizeof *offsets);
    for (size_t i = 0; i < n_channels; i++) offsets[i] = (float)(i * 37 % 101) / 8 - 6;
    if (l->n_blocks % 2) /* else there are none */
        g->offsets = offsets;
    else
        cn_free(offsets);
    g->labels = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_LABELS));
    g->scales = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_SCALES));
    g->bounds_16 = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_BOUNDS_16));
    if (l->block_tokens >= CN_DIGEST_TILE)
        g->bounds_64 = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_BOUNDS_64));
}

void select_run_digest(cn_backend *be, const select_world *w)
{
    const cn_kv_layout *l = &w->pools.layout;
    cn_digest_tile tiles[1024];
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t t = 0; t + l->tile_tokens <= w->b->kv_len[s]; t += l->tile_tokens) {
            assert_true(n < 1024);
            tiles[n++] =
                (cn_digest_tile){w->b->tables[s * w->b->view.table_stride + t / l->block_tokens],
                                 t % l->block_tokens / l->tile_tokens};
        }
    const cn_digest_args a = {w->pools, tiles, n};
    assert_int_equal(be->digest(backend_rig_stream(be), &a), CN_OK);
}

/* What a row may rank in its stage over tokens. The last three have candidates in tiles, or are
 * inactive. */
static const cn_sel_stage stages[] = {
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
    {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 4},
    {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_MAX, .entry_log2 = 4},
    {.active = 1, .key = CN_KEY_HASH, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX, .in_tiles = 1},
    {.key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
};
enum { N_STAGES = sizeof stages / sizeof *stages };

const cn_sel_stage *select_world_stages(uint32_t *n)
{
    *n = N_STAGES;
    return stages;
}

/* Draws the token stage of a sequence; all its candidates are complete. */
static void draw_row(select_world *w, uint32_t s, test_rng *r)
{
    enum { N_WITHOUT_TILES = N_STAGES - 3 };
    const uint32_t tile = w->pools.layout.tile_tokens;
    const uint32_t complete = w->b->kv_len[s] / tile * tile;
    const bool tiles = w->pools.digest.bounds_64 && complete >= 64;
    cn_sel_stage *st = &w->stage[1][s];
    const uint32_t n_stages = tiles ? N_STAGES : N_WITHOUT_TILES;
    *st = stages[tiles || test_rng_below(r, 6) ? test_rng_below(r, n_stages) : N_STAGES - 1];
    uint32_t base = cn_min_u32(test_rng_below(r, 40), complete);
    if (st->entry_log2) base = (uint32_t)cn_round_up(base, 16);
    base = cn_min_u32(base, complete);
    w->base[1][s] = w->n_forced[s] = base;
    w->n[1][s] = (complete - base) >> st->entry_log2;
    if (test_rng_below(r, 3) == 0) w->n[1][s] -= w->n[1][s] / 3;
    if (st->in_tiles) {
        w->stage[0][s] =
            (cn_sel_stage){.active = 1,
                           .key = CN_KEY_BOUNDS,
                           .group = CN_GROUP_SUM,
                           .entry_log2 = 6};
        w->n[0][s] = complete / 64;
        w->k[0][s] = 1 + test_rng_below(r, w->n[0][s]);
        w->n[1][s] = w->k[0][s] * 64;
    }
    const uint32_t n = w->n[1][s], most = st->in_tiles ? n - cn_min_u32(n, base) : n;
    w->k[1][s] = test_rng_below(r, 4) == 0 ? 1 : test_rng_below(r, most + 1);
    if (!st->in_tiles && test_rng_below(r, 4) == 0) w->k[1][s] = n + 5;
    w->seed[s] = test_rng_below(r, 1000);
}

void select_draw_queries(select_world *w, test_rng *r)
{
    w->q_row = (size_t)w->n_layers * w->pools.n_heads * w->pools.layout.head_dim;
    w->q_stride = w->q_row + 16;
    for (int i = 0; i < CN_N_SEL_QUERIES; i++) {
        w->q[i] = cn_calloc(w->n_seqs * w->q_stride, sizeof **w->q);
        for (size_t j = 0; j < w->n_seqs * w->q_stride; j++)
            w->q[i][j] = 4 * test_rng_uniform(r);
    }
}

/* Makes all keys and queries equal, so that products of labels are the largest possible. */
static void make_extreme(select_world *w)
{
    for (size_t i = 0; i < cn_kv_pool_elems(&w->pools.layout); i++) w->b->kv[i] = 1;
    for (int i = 0; i < CN_N_SEL_QUERIES; i++)
        for (size_t j = 0; j < w->n_seqs * w->q_stride; j++) w->q[i][j] = 4;
}

/* The shapes of latent attention: query heads, elements of K, and those of them that are V. */
typedef struct latent_shape {
    uint32_t n_heads, head_dim, value_dim;
} latent_shape;

static select_world draw_world(uint64_t seed, const latent_shape *latent)
{
    test_rng r = {seed * 77 + 5};
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 16},
                          groups[] = {1, 4, 3, SELECT_MAX_GROUP};
    static const uint32_t blocks[] = {64, 16, 256, 128};
    paged_shape s = {.n_layers = SELECT_LAYERS,
                     .n_kv_heads = 1 + test_rng_below(&r, 3),
                     .head_dim = dims[seed % 6],
                     .block_tokens = blocks[test_rng_below(&r, 4)],
                     .n_seqs = 1 + test_rng_below(&r, 5)};
    select_world w = {.n_seqs = s.n_seqs, .group = groups[seed % 4]};
    if (latent) {
        s.n_kv_heads = 1;
        s.head_dim = latent->head_dim;
        s.value_dim = latent->value_dim;
        w.group = latent->n_heads;
    }
    w.n_layers = 1 + test_rng_below(&r, SELECT_LAYERS - SELECT_FIRST_LAYER);
    s.n_heads = s.n_kv_heads * w.group;
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = 1 + test_rng_below(&r, test_rng_below(&r, 3) ? 700 : 80);
        if (i == 0 && seed % 5 == 0) s.kv_len[i] += 1100; /* more than a chunk */
    }
    w.b = paged_batch_create(&s, &r);
    w.pools = (cn_pools){.layout = w.b->layout, .kv = w.b->kv, .n_heads = s.n_heads};
    if (latent) w.pools.scale = 0.043F + 0.01F * (float)(seed % 3);
    select_open_digest(&w, &r);
    select_draw_queries(&w, &r);
    if (seed % 12 == 4) make_extreme(&w);
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        draw_row(&w, i, &r);
        for (int j = 0; j < 2; j++) w.first[j][i + 1] = w.first[j][i] + w.n[j][i];
    }
    return w;
}

select_world select_world_draw(uint64_t seed) { return draw_world(seed, NULL); }

select_world select_world_draw_latent(uint64_t seed)
{
    static const latent_shape shapes[] = {{20, 576, 512}, {1, 160, 128}, {16, 576, 512},
                                          {20, 80, 64},   {1, 576, 512}, {16, 320, 256}};
    return draw_world(seed, &shapes[seed % (sizeof shapes / sizeof *shapes)]);
}

void select_world_free(select_world *w)
{
    cn_digest *g = &w->pools.digest;
    cn_free((void *)(uintptr_t)g->channels);
    cn_free((void *)(uintptr_t)g->wide_channels);
    cn_free((void *)(uintptr_t)g->offsets);
    cn_free(g->labels);
    cn_free(g->scales);
    cn_free(g->bounds_16);
    cn_free(g->bounds_64);
    for (int i = 0; i < CN_N_SEL_QUERIES; i++) cn_free(w->q[i]);
    paged_batch_free(w->b);
}

/* ---- running the ops ---- */

static cn_score_args score_args(const select_world *w, uint32_t i, const select_results *x,
                                float *logits)
{
    return (cn_score_args){.q = {w->q[0], w->q[1]},
                           .q_stride = {w->q_stride, w->q_stride},
                           .stage = w->stage[i],
                           .pools = w->pools,
                           .tables = w->b->tables,
                           .table_stride = w->b->view.table_stride,
                           .first = w->first[i],
                           .n = w->n[i],
                           .base = w->base[i],
                           .seed = w->seed,
                           .tiles = i ? x->list[0] : NULL,
                           .tile_stride = x->stride[0],
                           .n_seqs = w->n_seqs,
                           .first_layer = SELECT_FIRST_LAYER,
                           .n_layers = w->n_layers,
                           .logits = logits,
                           .out = x->score[i]};
}

static cn_select_args select_args(const select_world *w, uint32_t i, const select_results *x)
{
    return (cn_select_args){.score = x->score[i],
                            .stage = w->stage[i],
                            .first = w->first[i],
                            .n = w->n[i],
                            .base = w->base[i],
                            .k = w->k[i],
                            .n_forced = w->n_forced,
                            .tiles = i ? x->list[0] : NULL,
                            .tile_stride = x->stride[0],
                            .n_seqs = w->n_seqs,
                            .n_layers = w->n_layers,
                            .n_kv_heads = w->pools.layout.n_kv_heads,
                            .tokens = i == 1,
                            .list = x->list[i],
                            .list_stride = x->stride[i]};
}

select_results select_run_stages(cn_backend *be, const select_world *w)
{
    select_results x = {.stride = {64, 2000}};
    const size_t hk = w->pools.layout.n_kv_heads;
    for (uint32_t i = 0; i < 2; i++) {
        const size_t n = w->first[i][w->n_seqs] * hk * w->n_layers;
        float *logits = poisoned(n * w->group * sizeof *logits);
        x.score[i] = poisoned(n * sizeof *x.score[i]);
        x.list[i] = poisoned(select_units(w) * x.stride[i] * sizeof *x.list[i]);
        const cn_score_args score = score_args(w, i, &x, logits);
        const cn_select_args select = select_args(w, i, &x);
        assert_int_equal(be->score(backend_rig_stream(be), &score), CN_OK);
        assert_int_equal(be->select(backend_rig_stream(be), &select), CN_OK);
        cn_free(logits);
    }
    return x;
}

void select_results_free(select_results *x)
{
    for (int i = 0; i < 2; i++) {
        cn_free(x->score[i]);
        cn_free(x->list[i]);
    }
}

const float *select_key_of(const select_world *w, uint32_t layer, uint32_t s, uint32_t head,
                           uint32_t p)
{
    return paged_batch_row(w->b, layer, s, head, p, CN_KV_K);
}

size_t select_side_of(const select_world *w, uint32_t layer, uint32_t s, uint32_t head, uint32_t p)
{
    const cn_kv_layout *l = &w->pools.layout;
    const uint32_t block = w->b->tables[s * w->b->view.table_stride + p / l->block_tokens];
    return cn_kv_side(l, layer, block, head, p % l->block_tokens);
}

void select_channels_of(const select_world *w, uint32_t layer, uint32_t head, uint16_t *channels)
{
    const cn_digest *g = &w->pools.digest;
    const size_t at = ((size_t)layer * w->pools.layout.n_kv_heads + head) * g->n_channels;
    for (uint32_t i = 0; i < g->n_channels; i++)
        channels[i] = g->wide_channels ? g->wide_channels[at + i] : g->channels[at + i];
}

double select_scale_of(const select_world *w)
{
    const float scale = w->pools.scale;
    return scale > 0 ? (double)scale : 1 / sqrt((double)w->pools.layout.head_dim);
}

int select_label_at(const cn_digest *g, size_t side, uint32_t c)
{
    const int nibble = g->labels[(side * g->n_channels + c) / 2] >> (c % 2 * 4) & 15;
    return nibble < 8 ? nibble : nibble - 16;
}

select_unit select_unit_at(const select_world *w, uint32_t stage, size_t index)
{
    const uint32_t hk = w->pools.layout.n_kv_heads;
    select_unit u = {.stage = stage, .index = index};
    u.head = (uint32_t)(index % hk);
    u.layer = (uint32_t)(index / hk % w->n_layers);
    u.seq = (uint32_t)(index / hk / w->n_layers);
    const uint32_t n = w->n[stage][u.seq];
    u.first = ((size_t)w->first[stage][u.seq] * w->n_layers + u.layer * n) * hk + u.head * n;
    return u;
}

uint32_t select_position_of(const select_world *w, const select_results *x, const select_unit *u,
                            uint32_t c)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    if (st->in_tiles) return x->list[0][u->index * x->stride[0] + c / 64] * 64 + c % 64;
    return w->base[u->stage][u->seq] + (c << st->entry_log2);
}
