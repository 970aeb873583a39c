/* test_op_select_cuda.c - score and select on the GPU compared with the CPU, on random shapes.
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

#include "engine/select/select_math.h"
#include "engine/select/select.h"
#include "tests/lib/attend_lists.h"
#include "tests/lib/op_world.h"
#include "tests/lib/score_value.h"

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

#define FAIL(u, ...)                                                                    \
    do {                                                                                \
        print_error("stage %u, sequence %u, layer %u, head %u: ", (u)->stage, (u)->seq, \
                    (u)->layer, (u)->head);                                             \
        fail_msg(__VA_ARGS__);                                                          \
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
            FAIL(u,
                 "key %u, group rule %u: score of candidate %u: expected %04x (%g), got "
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

/* Poisons the GPU's side of words. */
static void poison(op_env *env, const op_tensor *words)
{
    op_tensor t = *words;
    t.cpu = cn_calloc(t.n, sizeof(uint32_t));
    memset(t.cpu, WORLD_POISON, t.n * sizeof(uint32_t));
    op_send(env, &t);
    cn_free(t.cpu);
}

static void check_guard(const world *w, uint32_t i, int side)
{
    const op_tensor *t = &w->logits[side][i];
    uint8_t want[WORLD_GUARD], *taken = side == ON_CPU ? NULL : op_take(w->env, t);
    const uint8_t *got = taken ? taken : t->cpu;
    memset(want, WORLD_POISON, WORLD_GUARD);
    if (memcmp(got + w->logit_bytes[side][i], want, WORLD_GUARD) != 0)
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
    for (size_t index = 0; index < world_units(w); index++) {
        unit u = unit_at(w, i, index);
        u.got = scores;
        u.want = w->scores[i].cpu;
        check_scores(w, &u);
        check_own_list(w, &u, own);
    }
    op_send(env, &w->scores[i]);
    poison(env, &w->lists[i]);
    OP_OK(env->cuda->select(env->cuda_stream, &w->select[ON_CUDA][i]));
    if (op_words_error(env, &w->lists[i]) > 0)
        fail_msg("stage %u: lists of equal scores differ", i);
    cn_free(scores);
    cn_free(own);
}

/* ---- attend_selected: the same as its parts ---- */

/* Both stages of the GPU and attention, in one op, to the lists and to the newest TAIL tokens. */
typedef struct attend_case {
    cn_batch_view batch;
    cn_attend_selected_args args;
    op_tensor lists, out; /* of the op */
    op_tensor want_lists, want_out; /* of its parts; the CPU's side holds them */
} attend_case;

static void bind_rows(world *w, cn_select_rows *rows)
{
    enum { TAIL = 16 };
    uint32_t words[3][PAGED_MAX_SEQS]; /* list_len, tail, lengths */
    world_both at[3];
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        const uint32_t k = cn_min_u32(w->k[1][s], w->n[1][s]);
        const bool listed = w->stage[1][s].active;
        words[0][s] = listed ? w->n_forced[s] + (k << w->stage[1][s].entry_log2) : 0;
        words[1][s] = listed ? w->b->kv_len[s] - cn_min_u32(TAIL, w->b->kv_len[s]) : 0;
        words[2][s] = words[0][s] + w->b->kv_len[s] - words[1][s];
    }
    for (uint32_t i = 0; i < 3; i++)
        at[i] = world_keep_bytes(w, words[i], w->n_seqs * sizeof **words);
    rows->list_len = at[0].at[ON_CUDA];
    rows->tail = at[1].at[ON_CUDA];
    rows->lengths = at[2].at[ON_CUDA];
    for (uint32_t i = 0; i < WORLD_STAGES; i++) {
        const cn_select_args *select = &w->select[ON_CUDA][i];
        rows->stage[i].stage = select->stage;
        rows->stage[i].first = select->first;
        rows->stage[i].n = select->n;
        rows->stage[i].base = select->base;
        rows->stage[i].k = select->k;
        rows->n_forced = select->n_forced;
    }
    rows->seed = w->score[ON_CUDA][1].seed;
}

/* Without known forms the op serves rows of any. */
static uint32_t route_of(const world *w)
{
    const cn_sel_forms need = world_forms(w), any = {{need.stage[0], 0xffff}};
    return w->env->cuda->select_route(&need, w->forms_known ? &need : &any);
}

static void bind_attend(world *w, attend_case *t)
{
    const cn_score_args *score = &w->score[ON_CUDA][1];
    const uint32_t n_heads = w->b->layout.n_kv_heads * w->group;
    const size_t out_bytes =
        (size_t)w->n_seqs * n_heads * w->b->layout.head_dim * sizeof(uint16_t);
    const uint32_t larger = w->total[0] > w->total[1] ? 0 : 1;
    op_tensor *const lists[] = {&t->lists, &t->want_lists}, *const out[] = {&t->out, &t->want_out};
    for (uint32_t i = 0; i < 2; i++) {
        *lists[i] = world_poisoned_words(w, w->lists[1].n * sizeof(uint32_t));
        *out[i] = world_poisoned_words(w, out_bytes);
    }
    t->batch = (cn_batch_view){
        .tables = score->tables, .table_stride = score->table_stride, .n_decode = w->n_seqs};
    t->args = (cn_attend_selected_args){
        .attn = {.out = t->out.cuda,
                 .q = score->q[CN_SEL_TRUE],
                 .kv = score->pools.kv,
                 .batch = &t->batch,
                 .layout = score->pools.layout,
                 .n_heads = n_heads,
                 .layer = WORLD_FIRST_LAYER,
                 .scale = 0.1f},
        .pools = score->pools,
        .scratch = {.score = w->scores[larger].cuda,
                    .logits = w->logits[ON_CUDA][larger].cuda,
                    .list = t->lists.cuda,
                    .tiles = w->lists[0].cuda,
                    .list_stride = w->stride[1],
                    .tile_stride = w->stride[0]},
        .predicted = score->q[CN_SEL_PREDICTED],
        .predicted_stride = score->q_stride[CN_SEL_PREDICTED],
        .n_rows = w->n_seqs,
        .route = route_of(w),
    };
    bind_rows(w, &t->args.rows);
}

/* Moves the queries of a case to those of another step. */
static void set_queries(attend_case *t, const world *w, uint32_t step)
{
    const cn_score_args *score = &w->score[ON_CUDA][1];
    const size_t row = (size_t)t->args.attn.n_heads * t->args.attn.layout.head_dim;
    t->args.attn.q = (const uint16_t *)score->q[CN_SEL_TRUE] + step * row;
    t->args.predicted = (const uint16_t *)score->q[CN_SEL_PREDICTED] + step * row;
}

/* Runs the parts of the op one after the other, with a wait between them. Keeps the results. */
static void run_apart(world *w, attend_case *t)
{
    op_env *env = w->env;
    const cn_sel_forms tiles = {{0, world_forms(w).stage[0]}};
    for (uint32_t i = 0; i < WORLD_STAGES; i++) {
        cn_score_args score = w->score[ON_CUDA][i];
        cn_select_args select = w->select[ON_CUDA][i];
        score.q[CN_SEL_TRUE] = t->args.attn.q;
        score.q[CN_SEL_PREDICTED] = t->args.predicted;
        if (i == 0) score.route = env->cuda->select_route(&tiles, &tiles);
        if (i == 1) select.list = t->want_lists.cuda;
        OP_OK(env->cuda->score(env->cuda_stream, &score));
        OP_OK(env->cuda->stream_sync(env->cuda_stream));
        OP_OK(env->cuda->select(env->cuda_stream, &select));
        OP_OK(env->cuda->stream_sync(env->cuda_stream));
    }
    cn_attn_args attn = t->args.attn;
    attn.out = t->want_out.cuda;
    const cn_select_rows *rows = &t->args.rows;
    const attend_lists lists = {t->want_lists.cuda, w->stride[1], rows->list_len, rows->tail,
                                rows->lengths};
    OP_OK(attend_to_lists(env->cuda, env->cuda_stream, &attn, &lists));
    op_tensor *const kept[] = {&t->want_lists, &t->want_out};
    op_tensor *const checked[] = {&t->lists, &t->out};
    for (uint32_t i = 0; i < 2; i++) {
        void *got = op_take(env, kept[i]);
        memcpy(checked[i]->cpu, got, kept[i]->n * sizeof(uint32_t));
        cn_free(got);
    }
}

/* Compares the results of the op with those of its parts, and poisons them. */
static void check_attended(world *w, const attend_case *t)
{
    if (op_words_error(w->env, &t->lists) > 0) fail_msg("lists differ from those of the parts");
    if (op_words_error(w->env, &t->out) > 0) fail_msg("attention differs from that of the parts");
    poison(w->env, &t->lists);
    poison(w->env, &t->out);
}

/* Compares the op with its parts. */
static void check_attend(world *w)
{
    op_env *env = w->env;
    attend_case t;
    bind_attend(w, &t);
    run_apart(w, &t);
    OP_OK(env->cuda->attend_selected(env->cuda_stream, &t.args));
    check_attended(w, &t);
}

/* Completes a world, checks its stages and frees it. largest: as in world_bind. */
static double check_world(world *w, float largest)
{
    world_bind(w, largest);
    for (uint32_t i = 0; i < WORLD_STAGES; i++) check_stage(w, i);
    if (w->n_layers == 1) check_attend(w);
    world_free(w);
    return 0;
}

/* ---- cases ---- */

static double run_drawn(op_env *env, uint32_t seed)
{
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 16}, groups[] = {1, 4, 3, 11, 8, 2, 6};
    static const uint32_t blocks[] = {64, 16, 256, 128};
    test_rng *r = &env->rng;
    paged_shape s = {.n_layers = WORLD_LAYERS,
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
    world *w = world_create(env, &s, 1 + test_rng_below(r, WORLD_LAYERS - WORLD_FIRST_LAYER));
    const bool equal = seed % 12 == 4; /* all keys and queries equal: products are the largest */
    for (size_t i = 0; equal && i < cn_kv_pool_elems(&w->b->layout); i++) w->b->kv[i] = 1;
    world_draw_rows(w);
    return check_world(w, equal ? 0 : 4);
}

enum { MANY_SEQS = 40 };

/* So many sequences that a warp cannot divide them. */
static double run_many(op_env *env, uint32_t seed)
{
    test_rng *r = &env->rng;
    paged_shape s = {.n_layers = WORLD_FIRST_LAYER + 1,
                     .n_heads = 8,
                     .n_kv_heads = 2,
                     .head_dim = seed % 2 ? 64 : 128,
                     .block_tokens = 64,
                     .n_seqs = MANY_SEQS - seed};
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = 1 + test_rng_below(r, 500);
    }
    world *w = world_create(env, &s, 1);
    world_draw_rows(w);
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
    const uint32_t n_layers =
        all_rows ? 2 + test_rng_below(r, WORLD_LAYERS - WORLD_FIRST_LAYER - 1) : 1;
    paged_shape s = {.n_layers = WORLD_FIRST_LAYER + n_layers,
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
    if (!all_rows) world_draw_rows(w);
    for (uint32_t i = 0; all_rows && i < s.n_seqs; i++) world_draw_row(w, i, 0);
    if (!all_rows) world_draw_row(w, 0, rule); /* the first two kinds */
    w->n[1][0] = s.kv_len[0] / w->b->layout.tile_tokens * w->b->layout.tile_tokens - w->base[1][0];
    w->forms_known = seed % 8 != 7;
    return check_world(w, 4);
}

/* The K of one layer of a pool, as a pool of draft K. */
static op_tensor draft_of(world *w, const cn_kv_layout *draft)
{
    const cn_kv_layout *l = &w->b->layout;
    const size_t n = cn_kv_pool_bytes(draft) / sizeof(float);
    float *values = cn_calloc(n, sizeof *values);
    for (uint32_t block = 0; block < l->n_blocks; block++)
        for (uint32_t head = 0; head < l->n_kv_heads; head++)
            for (uint32_t slot = 0; slot < l->block_tokens; slot++)
                memcpy(values + cn_kv_row(draft, 0, block, head, slot, CN_KV_K),
                       w->b->kv + cn_kv_row(l, WORLD_FIRST_LAYER, block, head, slot, CN_KV_K),
                       l->head_dim * sizeof *values);
    const op_tensor t = op_floats(w->env, values, n, CN_BF16);
    cn_free(values);
    return t;
}

/* Draft K, which has no V beside it, is ranked as K rows of the same values: scores and lists are
 * equal bit by bit. */
static double run_draft(op_env *env, uint32_t seed)
{
    static const uint32_t dims[] = {64, 128, 16, 256}, groups[] = {4, 1, 16, 3};
    test_rng *r = &env->rng;
    paged_shape s = {.n_layers = WORLD_FIRST_LAYER + 1,
                     .n_kv_heads = 1 + test_rng_below(r, 3),
                     .head_dim = dims[seed % 4],
                     .block_tokens = seed / 4 % 2 ? 16 : 256,
                     .n_seqs = 1 + test_rng_below(r, 5)};
    s.n_heads = s.n_kv_heads * groups[seed / 2 % 4];
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = 64 + test_rng_below(r, i == 0 ? 6000 : 600);
    }
    world *w = world_create(env, &s, 1);
    for (uint32_t i = 0; i < s.n_seqs; i++) world_draw_row(w, i, 0);
    world_bind(w, 4);
    check_stage(w, 1);
    cn_kv_layout pools[2] = {w->b->layout, op_layout_as(&w->b->layout, CN_BF16)}, draft[2];
    for (uint32_t i = 0; i < 2; i++) {
        pools[i].draft_dim = s.head_dim;
        draft[i] = cn_kv_layout_draft(&pools[i]);
    }
    op_tensor k = draft_of(w, &draft[ON_CPU]);
    cn_score_args *score = &w->score[ON_CUDA][1];
    OP_OK(env->cuda->score(env->cuda_stream, score));
    uint16_t *want = op_take(env, &w->scores[1]);
    score->pools.layout = draft[ON_CUDA];
    score->pools.kv = k.cuda;
    score->first_layer = 0;
    poison(env, &w->scores[1]);
    OP_OK(env->cuda->score(env->cuda_stream, score));
    uint16_t *got = op_take(env, &w->scores[1]);
    const size_t n = (size_t)w->total[1] * s.n_kv_heads;
    if (memcmp(got, want, n * sizeof *got) != 0) fail_msg("scores of draft K differ");
    cn_free(got);
    cn_free(want);
    op_tensor_free(env, &k);
    world_free(w);
    return 0;
}

/* Candidates beyond 16 bits, in more chunks than parts. The last seeds have equal keys and queries,
 * so the newest candidates are selected, in whatever part they are. */
static double run_long(op_env *env, uint32_t seed)
{
    paged_shape s = {.n_layers = WORLD_FIRST_LAYER + 1,
                     .n_heads = 4,
                     .n_kv_heads = 1,
                     .head_dim = 64,
                     .block_tokens = 256,
                     .n_seqs = 2,
                     .n_decode = 2,
                     .n_q = {1, 1},
                     .kv_len = {70300, 5000}};
    world *w = world_create(env, &s, 1);
    const bool equal = seed >= (uint32_t)WORLD_WITHOUT_TILES;
    for (size_t i = 0; equal && i < cn_kv_pool_elems(&w->b->layout); i++) w->b->kv[i] = 1;
    world_draw_row(w, 0, seed % WORLD_WITHOUT_TILES);
    world_draw_row(w, 1, WORLD_N_KINDS - 3);
    w->n[1][0] = (s.kv_len[0] / 64 * 64 - w->base[1][0]) >> w->stage[1][0].entry_log2;
    w->k[1][0] = (equal ? 30000U : 2048U) >> w->stage[1][0].entry_log2;
    return check_world(w, equal ? 0 : 4);
}

/* All sequences rank the same keys by the same rule, so kernels for these run. K rows are so many
 * that each ring is filled more than once. */
static double run_alike(op_env *env, uint32_t seed)
{
    static const uint32_t kinds[] = {0, 1, 2, 3, 5}; /* of WORLD_KINDS: rows, labels, bounds */
    const uint32_t kind = kinds[seed % 5];
    const bool rows = WORLD_KINDS[kind].key == CN_KEY_ROWS;
    paged_shape s = {.n_layers = WORLD_FIRST_LAYER + 1,
                     .n_heads = 16,
                     .n_kv_heads = 4,
                     .head_dim = seed % 2 ? 64 : 128,
                     .block_tokens = 64,
                     .n_seqs = 2,
                     .n_decode = 2,
                     .n_q = {1, 1},
                     .kv_len = {rows ? 30000 : 9000, 700}};
    world *w = world_create(env, &s, 1);
    for (uint32_t i = 0; i < s.n_seqs; i++) world_draw_row(w, i, kind);
    w->forms_known = true;
    return check_world(w, 4);
}

/* `score` then counts in a sequence's stage of tiles. */
static void sum_tiles(world *w, uint32_t s)
{
    cn_sel_stage *tiles = &w->stage[0][s];
    if (tiles->active) tiles->group = CN_GROUP_SUM;
}

/* Sequences that share their blocks rank labels, of all tokens or of tiles. kinds: of WORLD_KINDS,
 * those of even and odd sequences. If there are more than two sequences, one selects nothing.
 * inactive: one is not active. */
typedef struct shared_shape {
    uint32_t n_seqs, tokens, n_kv_heads, group, head_dim, n_layers, kinds[2];
    bool inactive;
} shared_shape;

static double check_shared(op_env *env, const shared_shape *of)
{
    const uint32_t n_seqs = of->n_seqs, tokens = of->tokens;
    paged_shape s = {.n_layers = WORLD_FIRST_LAYER + of->n_layers,
                     .n_heads = of->n_kv_heads * of->group,
                     .n_kv_heads = of->n_kv_heads,
                     .head_dim = of->head_dim,
                     .block_tokens = 256,
                     .n_seqs = n_seqs,
                     .n_decode = n_seqs};
    for (uint32_t i = 0; i < n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = i == 0 ? tokens : 64;
    }
    world *w = world_create(env, &s, of->n_layers);
    const uint32_t stride = w->b->view.table_stride;
    for (uint32_t i = 1; i < n_seqs; i++) {
        memcpy(w->b->tables + (size_t)i * stride, w->b->tables, stride * sizeof *w->b->tables);
        w->b->kv_len[i] = tokens - i % MANY_SEQS * 64;
    }
    for (uint32_t i = 0; i < n_seqs; i++) {
        world_draw_row(w, i, of->kinds[i % 2]);
        sum_tiles(w, i);
    }
    w->stage[1][1].active = !of->inactive;
    if (n_seqs > 2) w->k[1][2] = 0;
    w->forms_known = true;
    return check_world(w, 4);
}

/* Without tiles a thread block has more lots than the stages of its rings, and in some seeds
 * several parts, or parts of units that others have the rest of. From MANY on, there are more units
 * than can be counted. */
static double run_shared(op_env *env, uint32_t seed)
{
    enum { MANY = 20 };
    static const struct {
        uint32_t n_seqs, tokens;
    } sizes[] = {{30, 9000}, {40, 9000}, {11, 26000}, {2, 30000}};
    /* Labels under rule max, mean, and both; the last two in tiles. */
    static const uint32_t kinds[][2] = {{2, 2}, {3, 3}, {2, 3}, {13, 13}, {12, 12}};
    static const uint32_t groups[] = {4, 3, 8, 1, 2};
    const uint32_t n_seqs = sizes[seed % 4].n_seqs, *kind = kinds[seed / 4 % 5];
    const shared_shape of = {.n_seqs = n_seqs,
                             .tokens = sizes[seed % 4].tokens,
                             .n_kv_heads = 8,
                             .group = groups[seed % 5],
                             .head_dim = seed % 2 ? 64 : 128,
                             .n_layers = seed < MANY ? 1 : WORLD_LAYERS - WORLD_FIRST_LAYER,
                             .kinds = {kind[0], kind[1]},
                             .inactive = seed % 2 == 1 && n_seqs > 2};
    return check_shared(env, &of);
}

/* Exchange areas, in some seeds beside rows in tiles: with two or four blocks of `select` each, or
 * of more units. */
static double run_area(op_env *env, uint32_t seed)
{
    static const uint32_t n_seqs[] = {6, 2, 11, 16, 30};
    static const uint32_t kinds[][2] = {{15, 15}, {14, 14}, {15, 14}, {13, 15}};
    static const uint32_t groups[] = {4, 4, 3, 1};
    const uint32_t *kind = kinds[seed % 4], n = n_seqs[seed % 5];
    const shared_shape of = {.n_seqs = n,
                             .tokens = 9000,
                             .n_kv_heads = 8,
                             .group = groups[seed / 2 % 4],
                             .head_dim = seed % 7 == 6 ? 64 : 128,
                             .n_layers = 1,
                             .kinds = {kind[0], kind[1]},
                             .inactive = seed % 3 == 1 && n > 2};
    return check_shared(env, &of);
}

/* Thread blocks with several parts, whose last one is under rule max or has the mean query. */
static double run_parts(op_env *env, uint32_t seed)
{
    static const uint32_t kinds[][2] = {{2, 3}, {3, 2}, {2, 2}};
    const uint32_t *kind = kinds[seed / 2 % 3];
    const shared_shape of = {.n_seqs = MANY_SEQS,
                             .tokens = 9000,
                             .n_kv_heads = 8,
                             .group = seed % 2 ? 3 : 4,
                             .head_dim = seed < 6 ? 128 : 64,
                             .n_layers = 1,
                             .kinds = {kind[0], kind[1]}};
    return check_shared(env, &of);
}

/* So many sequences that a thread block has less room for logits, in odd seeds none. The last part
 * of a block has more lots than those whose logits are kept. */
static double run_crowd(op_env *env, uint32_t seed)
{
    const bool more = seed % 2 == 1;
    const shared_shape of = {.n_seqs = more ? PAGED_MAX_SEQS : 200,
                             .tokens = 9000,
                             .n_kv_heads = more ? 1 : 2,
                             .group = seed / 2 % 2 ? 3 : 4,
                             .head_dim = 128,
                             .n_layers = 1,
                             .kinds = {2, seed / 2 % 2 ? 3 : 2}};
    return check_shared(env, &of);
}

/* Draws a world for steps. In even seeds all sequences rank labels in tiles, or of exchange areas;
 * in some all of these. */
static world *draw_steps(op_env *env, uint32_t seed)
{
    enum { N_TILE_KINDS = WORLD_N_KINDS - WORLD_WITHOUT_TILES };
    static const uint32_t labels[] = {12, 13}; /* of WORLD_KINDS */
    test_rng *r = &env->rng;
    paged_shape s = {.n_layers = WORLD_FIRST_LAYER + 1,
                     .n_heads = 8,
                     .n_kv_heads = 2,
                     .head_dim = seed / 2 % 2 ? 64 : 128,
                     .block_tokens = 256,
                     .n_seqs = 4,
                     .n_decode = 4,
                     .n_q = {1, 1, 1, 1}};
    for (uint32_t i = 0; i < s.n_seqs; i++) s.kv_len[i] = 1500 + test_rng_below(r, 3000);
    world *w = world_create(env, &s, 1);
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        const uint32_t any = WORLD_WITHOUT_TILES + (seed / 2 + i) % N_TILE_KINDS;
        const uint32_t area = seed % 8 == 6 || (seed % 8 == 4 && i % 2) ? 2 : 0;
        world_draw_row(w, i, seed % 2 ? any : labels[(seed / 2 + i * (seed / 4)) % 2] + area);
    }
    w->forms_known |= seed % 2 == 0;
    world_bind(w, 4);
    return w;
}

/* Steps follow each other without a wait of the host, then as a graph that is launched twice. So
 * kernels of a stage start while the stage before still runs: the second stage while the first
 * selects the tiles, attention while the second makes lists. */
static double run_in_order(op_env *env, uint32_t seed)
{
    enum { AHEAD = 12 /* kernels that keep the stream busy at first */ };
    world *w = draw_steps(env, seed);
    attend_case steps[WORLD_STEPS];
    for (uint32_t i = 0; i < WORLD_STEPS; i++) {
        bind_attend(w, &steps[i]);
        set_queries(&steps[i], w, i + 1);
        run_apart(w, &steps[i]);
    }
    const cn_score_args ahead = w->score[ON_CUDA][0];
    for (uint32_t i = 0; i < AHEAD; i++) OP_OK(env->cuda->score(env->cuda_stream, &ahead));
    for (uint32_t i = 0; i < WORLD_STEPS; i++)
        OP_OK(env->cuda->attend_selected(env->cuda_stream, &steps[i].args));
    for (uint32_t i = 0; i < WORLD_STEPS; i++) check_attended(w, &steps[i]);
    cn_graph *graph;
    OP_OK(env->cuda->graph_begin(env->cuda_stream));
    for (uint32_t i = 0; i < WORLD_STEPS; i++)
        OP_OK(env->cuda->attend_selected(env->cuda_stream, &steps[i].args));
    OP_OK(env->cuda->graph_end(env->cuda_stream, &graph));
    for (uint32_t i = 0; i < 2; i++) OP_OK(env->cuda->graph_launch(env->cuda_stream, graph));
    for (uint32_t i = 0; i < WORLD_STEPS; i++) check_attended(w, &steps[i]);
    env->cuda->graph_free(graph);
    world_free(w);
    return 0;
}

/* Steps with rows of one key have a graph, and one graph serves rows of several keys. Steps without
 * rule max or tiles have others. */
static double run_routes(op_env *env, uint32_t seed)
{
    static const struct {
        uint32_t selectors, n_routes; /* and that of steps without selection */
    } cases[] = {
        {1U << CN_SELECT_NONE, 0},
        {1U << CN_SELECT_ORACLE, 1},
        {1U << CN_SELECT_QUEST | 1U << CN_SELECT_RANDOM, 3},
        {1U << CN_SELECT_DS, 2},
        {1U << CN_SELECT_TLS, 2},
        {1U << CN_SELECT_DS | 1U << CN_SELECT_QUEST, 5},
        {1U << CN_SELECT_DS | 1U << CN_SELECT_TLS, 6},
        {1U << CN_SELECT_SPEC, 1},
        {1U << CN_SELECT_SPEC | 1U << CN_SELECT_DS, 3},
        {(1U << CN_N_SELECTORS) - 1, 14},
    };
    (void)seed;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t routes[CN_MAX_ROUTES];
        assert_int_equal(cn_select_routes(env->cuda, cases[i].selectors, routes),
                         1 + cases[i].n_routes);
    }
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
        {"select, long", WORLD_WITHOUT_TILES + 4, 0, run_long, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, rows", 16, 0, run_rows, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, draft", 16, 0, run_draft, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, portable, draft", 8, 0, run_draft, .portable = true},
        {"select, alike", 10, 0, run_alike, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, shared", 22, 0, run_shared, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, area", 20, 0, run_area, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, parts", 12, 0, run_parts, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, crowd", 4, 0, run_crowd, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, many", 11, 0, run_many, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, in order", 16, 0, run_in_order, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, routes", 1, 0, run_routes, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"select, impatient", 22, 0, run_shared, .impatient = true},
        {"select, impatient, parts", 12, 0, run_parts, .impatient = true},
        {"select, impatient, crowd", 4, 0, run_crowd, .impatient = true},
        {"select, impatient, long", 4, 0, run_long, .impatient = true},
        {"select, impatient, in order", 16, 0, run_in_order, .impatient = true},
        {"select, portable", 20, 0, run_drawn, .portable = true},
        {"select, portable, long", 4, 0, run_long, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
