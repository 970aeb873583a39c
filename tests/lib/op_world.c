/* op_world.c - builds the worlds of op_world.h. */
#include "tests/lib/op_world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compress/selector.h"

enum { FIRST_STRIDE = 64 /* list_stride of stage one */ };

static world_both keep(world *w, op_tensor t)
{
    assert_true(w->n_all < WORLD_TENSORS);
    w->all[w->n_all++] = t;
    return (world_both){{t.cpu, t.cuda}};
}

world_both world_keep_bytes(world *w, const void *from, size_t bytes)
{
    const size_t n = bytes / sizeof(uint32_t) + 1;
    uint32_t *words = cn_calloc(n, sizeof *words);
    memcpy(words, from, bytes);
    const world_both out = keep(w, op_words(w->env, words, n));
    cn_free(words);
    return out;
}

op_tensor world_poisoned_words(world *w, size_t bytes)
{
    const size_t n = bytes / sizeof(uint32_t) + 1;
    uint32_t *words = cn_calloc(n, sizeof *words);
    memset(words, WORLD_POISON, n * sizeof *words);
    const op_tensor t = op_words(w->env, words, n);
    keep(w, t);
    cn_free(words);
    return t;
}

size_t world_units(const world *w)
{
    return (size_t)w->n_seqs * w->n_layers * w->b->layout.n_kv_heads;
}

cn_sel_forms world_forms(const world *w)
{
    cn_sel_forms forms = {{0}};
    for (uint32_t i = 0; i < WORLD_STAGES; i++)
        for (uint32_t s = 0; s < w->n_seqs; s++)
            forms.stage[i] |= cn_sel_form(&w->stage[i][s]);
    return forms;
}

/* ---- pools ---- */

static float *nan_floats(size_t n)
{
    float *p = cn_calloc(n + 1, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = NAN;
    return p;
}

/* Computes the digests of the complete tiles of all sequences, which may share blocks. */
static void run_digest(const world *w, const cn_pools *pools)
{
    const cn_kv_layout *l = &pools->layout;
    const uint32_t of_block = l->block_tokens / l->tile_tokens;
    cn_digest_tile *tiles = cn_calloc((size_t)l->n_blocks * of_block, sizeof *tiles);
    bool *has = cn_calloc((size_t)l->n_blocks * of_block, sizeof *has);
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t t = 0; t < w->b->kv_len[s] / l->tile_tokens; t++) {
            const uint32_t *table = w->b->tables + (size_t)s * w->b->view.table_stride;
            const cn_digest_tile tile = {table[t / of_block], t % of_block};
            bool *known = &has[(size_t)tile.block * of_block + tile.tile];
            if (!*known) tiles[n++] = tile;
            *known = true;
        }
    const cn_digest_args a = {*pools, tiles, n};
    OP_OK(w->env->cpu->digest(w->env->cpu_stream, &a));
    cn_free(tiles);
    cn_free(has);
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
    memset(labels, WORLD_POISON, slots * (n_channels / 2));
    memset(scales, WORLD_POISON, slots * sizeof *scales);
    cn_pools own = pools[ON_CPU];
    own.digest = (cn_digest){.channels = channels,
                             .n_channels = n_channels,
                             .labels = labels,
                             .scales = scales,
                             .bounds_16 = b16,
                             .bounds_64 = bounds_64 ? b64 : NULL};
    run_digest(w, &own);
    const world_both c = world_keep_bytes(w, channels, all_channels);
    const world_both lb = world_keep_bytes(w, labels, slots * (n_channels / 2));
    const world_both sc = world_keep_bytes(w, scales, slots * sizeof *scales);
    const world_both p16 = keep(w, op_floats(w->env, b16, slots / 16 * 2 * d, CN_BF16));
    const world_both p64 = bounds_64 ? keep(w, op_floats(w->env, b64, slots / 64 * 2 * d, CN_BF16))
                                     : (world_both){{NULL, NULL}};
    for (int i = 0; i < 2; i++)
        pools[i].digest = (cn_digest){.channels = c.at[i],
                                      .n_channels = n_channels,
                                      .labels = lb.at[i],
                                      .scales = sc.at[i],
                                      .bounds_16 = p16.at[i],
                                      .bounds_64 = p64.at[i]};
    cn_free(channels);
    cn_free(labels);
    cn_free(scales);
    cn_free(b16);
    cn_free(b64);
}

static void open_pools(world *w, cn_pools pools[2])
{
    const cn_kv_layout *l = &w->b->layout;
    const world_both kv = keep(w, op_floats(w->env, w->b->kv, cn_kv_pool_elems(l), CN_BF16));
    for (int i = 0; i < 2; i++)
        pools[i] = (cn_pools){.layout = i == ON_CPU ? *l : op_layout_as(l, CN_BF16),
                              .kv = kv.at[i],
                              .n_heads = l->n_kv_heads * w->group,
                              .act_dtype = i == ON_CPU ? CN_F32 : CN_BF16};
    open_digests(w, pools);
}

/* ---- stages ---- */

const cn_sel_stage WORLD_KINDS[WORLD_N_KINDS] = {
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
    {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 4},
    {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_MAX, .entry_log2 = 4},
    {.active = 1,
     .key = CN_KEY_BOUNDS,
     .group = CN_GROUP_SUM,
     .query = CN_SEL_PREDICTED,
     .entry_log2 = 4},
    {.active = 1, .key = CN_KEY_HASH, .group = CN_GROUP_MAX},
    {.key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MEAN, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX, .in_tiles = 1},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .is_area = 1},
    {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX, .is_area = 1},
};

void world_draw_row(world *w, uint32_t s, uint32_t kind)
{
    test_rng *r = &w->env->rng;
    const uint32_t tile = w->b->layout.tile_tokens, complete = w->b->kv_len[s] / tile * tile;
    const cn_sel_stage *st = &WORLD_KINDS[kind];
    const bool several = w->n_layers > 1; /* else the stages are those of attend_selected */
    w->stage[1][s] = *st;
    uint32_t base = test_rng_below(r, 40);
    if (st->entry_log2) base = (uint32_t)cn_round_up(base, 16);
    base = st->is_area ? 0 : cn_min_u32(base, complete);
    w->base[1][s] = w->n_forced[s] = base;
    w->n[1][s] = (complete - base) >> st->entry_log2;
    if (test_rng_below(r, 3) == 0) w->n[1][s] -= w->n[1][s] / 3;
    if (st->in_tiles) {
        w->stage[0][s] = (cn_sel_stage){.active = 1,
                                        .key = CN_KEY_BOUNDS,
                                        .group = several && test_rng_below(r, 2) ? CN_GROUP_MAX
                                                                                 : CN_GROUP_SUM,
                                        .entry_log2 = 6};
        w->n[0][s] = complete / 64;
        w->k[0][s] = 1 + test_rng_below(r, cn_min_u32(w->n[0][s], FIRST_STRIDE));
        w->n[1][s] = w->k[0][s] * 64;
    }
    if (st->is_area)
        w->n[1][s] = (1 + test_rng_below(r, cn_min_u32(complete / 64, FIRST_STRIDE))) * 64;
    const uint32_t n = w->n[1][s], most = st->in_tiles ? n - cn_min_u32(n, base) : n;
    w->k[1][s] = test_rng_below(r, 4) == 0 ? 1 : test_rng_below(r, most + 1);
    if (!st->in_tiles && test_rng_below(r, 4) == 0) w->k[1][s] = n + 5;
    w->seed[s] = test_rng_below(r, 1000);
}

void world_draw_rows(world *w)
{
    test_rng *r = &w->env->rng;
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        const bool tiles = w->b->layout.block_tokens >= 64 && w->b->kv_len[s] >= 64;
        world_draw_row(w, s, test_rng_below(r, tiles ? WORLD_N_KINDS : WORLD_WITHOUT_TILES));
    }
}

/* ---- arguments ---- */

static void bind_queries(world *w, float largest)
{
    test_rng *r = &w->env->rng;
    const cn_kv_layout *l = &w->b->layout;
    const size_t row = (size_t)w->n_layers * l->n_kv_heads * w->group * l->head_dim;
    const size_t all = w->n_seqs + WORLD_STEPS;
    float *values = cn_calloc(all * (row + 16), sizeof *values);
    for (int i = 0; i < CN_N_SEL_QUERIES; i++) {
        /* Queries of one layer are those that attention reads: without gaps. */
        const size_t stride = row + (i == CN_SEL_TRUE && w->n_layers == 1 ? 0 : 16);
        const size_t n = all * stride;
        for (size_t j = 0; j < n; j++) values[j] = largest > 0 ? largest * test_rng_uniform(r) : 4;
        const world_both q = keep(w, op_floats(w->env, values, n, CN_BF16));
        for (int side = 0; side < 2; side++)
            for (uint32_t stage = 0; stage < WORLD_STAGES; stage++) {
                w->score[side][stage].q[i] = q.at[side];
                w->score[side][stage].q_stride[i] = stride;
            }
    }
    cn_free(values);
}

/* Sets the arguments of one stage on one side, other than the queries. words: stage, first, n,
 * base, k, n_forced, seed and tables. */
static void bind_side(world *w, uint32_t i, int side, const cn_pools *pools,
                      const world_both words[8], void *logits)
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
    const cn_sel_forms forms = {{0, world_forms(w).stage[i]}};
    if (w->forms_known && side == ON_CUDA) a->route = w->env->cuda->select_route(&forms, &forms);
    a->n_seqs = w->n_seqs;
    a->first_layer = WORLD_FIRST_LAYER;
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
    w->scores[i] = world_poisoned_words(w, all * sizeof(uint16_t));
    w->lists[i] = world_poisoned_words(w, world_units(w) * w->stride[i] * sizeof(uint32_t));
    for (int side = 0; side < 2; side++) {
        const cn_backend *be = side == ON_CPU ? w->env->cpu : w->env->cuda;
        w->logit_bytes[side][i] = all * cn_logit_row(w->group) * be->logit_bytes;
        w->logits[side][i] = world_poisoned_words(w, w->logit_bytes[side][i] + WORLD_GUARD);
    }
    const world_both words[8] = {
        world_keep_bytes(w, w->stage[i], w->n_seqs * sizeof **w->stage),
        world_keep_bytes(w, w->first[i], n),
        world_keep_bytes(w, w->n[i], n),
        world_keep_bytes(w, w->base[i], n),
        world_keep_bytes(w, w->k[i], n),
        world_keep_bytes(w, w->n_forced, n),
        world_keep_bytes(w, w->seed, n),
        world_keep_bytes(w, w->b->tables, n * w->b->view.table_stride),
    };
    for (int side = 0; side < 2; side++)
        bind_side(w, i, side, &pools[side], words,
                  side == ON_CPU ? w->logits[side][i].cpu : w->logits[side][i].cuda);
}

/* ---- worlds ---- */

world *world_create(op_env *env, const paged_shape *s, uint32_t n_layers)
{
    world *w = cn_calloc(1, sizeof *w);
    *w = (world){.env = env,
                 .n_seqs = s->n_seqs,
                 .group = s->n_heads / s->n_kv_heads,
                 .n_layers = n_layers,
                 .forms_known = test_rng_below(&env->rng, 3) > 0,
                 .stride = {FIRST_STRIDE}};
    for (uint32_t i = 0; i < s->n_seqs; i++)
        w->stride[1] = cn_max_u32(w->stride[1], s->kv_len[i] + 100);
    w->b = paged_batch_create(s, &env->rng);
    snprintf(env->shape, sizeof env->shape, "layers=%u heads=%u*%u d=%u block=%u, %u seqs",
             n_layers, s->n_kv_heads, w->group, s->head_dim, s->block_tokens, s->n_seqs);
    return w;
}

void world_bind(world *w, float largest)
{
    cn_pools pools[2];
    open_pools(w, pools);
    for (uint32_t i = 0; i < WORLD_STAGES; i++) bind_stage(w, i, pools);
    bind_queries(w, largest);
}

void world_free(world *w)
{
    for (uint32_t i = 0; i < w->n_all; i++) op_tensor_free(w->env, &w->all[i]);
    paged_batch_free(w->b);
    cn_free(w);
}
