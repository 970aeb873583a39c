/* test_op_cuda.c - the GPU's row-wise ops, copies, memory and streams compared with the CPU's on
 * random shapes. Attention, matrix products, sampling and others have separate files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/checkpoint/dummy_weight.h"
#include "engine/cpu/cpu_rows.h"
#include "engine/start/device_choice.h"
#include "tests/lib/fp8_pool.h"
#include "tests/lib/op_cases.h"
#include "tests/lib/tensor_file.h"

/* ---- embed, gather ---- */

static op_tensor random_ids(op_env *e, uint32_t n, uint32_t below)
{
    uint32_t *ids = cn_calloc(n, sizeof *ids);
    for (uint32_t i = 0; i < n; i++) ids[i] = test_rng_below(&e->rng, below);
    op_tensor t = op_words(e, ids, n);
    cn_free(ids);
    return t;
}

/* Ids from the host, from the last step's sample, or both. */
static double run_embed(op_env *e, uint32_t seed)
{
    const uint32_t t = op_some_rows(e), h = 8 * op_between(e, 1, 300), v = op_between(e, 1, 500);
    OP_SHAPE(e, "T=%u h=%u V=%u%s", t, h, v, seed % 2 ? " sampled" : "");
    int32_t *rows = cn_calloc(t, sizeof *rows);
    for (uint32_t i = 0; i < t; i++)
        rows[i] = op_coin(e) ? (int32_t)test_rng_below(&e->rng, 7) : -1;
    op_tensor table = op_random(e, (size_t)v * h), ids = random_ids(e, t, v);
    op_tensor sampled = random_ids(e, 7, v), sampled_row = op_words(e, rows, t);
    op_tensor out = op_poison(e, (size_t)t * h, CN_BF16);
    cn_embed_args cpu = {.out = out.cpu, .table = table.cpu, .tokens = ids.cpu, .n_tokens = t,
                         .hidden = h, .vocab = v};
    cn_embed_args cuda = {.out = out.cuda, .table = table.cuda, .tokens = ids.cuda, .n_tokens = t,
                          .hidden = h, .vocab = v};
    if (seed % 2) {
        cpu.sampled_row = sampled_row.cpu;
        cpu.sampled = sampled.cpu;
        cuda.sampled_row = sampled_row.cuda;
        cuda.sampled = sampled.cuda;
    }
    OP_RUN_BOTH(e, embed, &cpu, &cuda);
    const double error = op_error(e, &out);
    cn_free(rows);
    op_tensor *const all[] = {&out, &sampled_row, &sampled, &ids, &table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    return error;
}

static double run_gather(op_env *e, uint32_t seed)
{
    (void)seed;
    const uint32_t t = op_some_rows(e), n = op_some_rows(e), h = 8 * op_between(e, 1, 300);
    OP_SHAPE(e, "n=%u of T=%u h=%u", n, t, h);
    op_tensor x = op_random(e, (size_t)t * h), rows = random_ids(e, n, t);
    op_tensor out = op_poison(e, (size_t)n * h, CN_BF16);
    cn_gather_args cpu = {out.cpu, x.cpu, rows.cpu, n, h};
    cn_gather_args cuda = {out.cuda, x.cuda, rows.cuda, n, h};
    OP_RUN_BOTH(e, gather, &cpu, &cuda);
    const double error = op_error(e, &out);
    op_tensor_free(e, &out);
    op_tensor_free(e, &rows);
    op_tensor_free(e, &x);
    return error;
}

/* ---- rmsnorm, silu_mul ---- */

static double run_rmsnorm(op_env *e, uint32_t seed)
{
    static const uint32_t widths[] = {8, 64, 1024, 4096, 5120, 8192, 8200, 16384, 32768};
    const bool add = op_coin(e);
    const uint32_t h = seed < 9 ? widths[seed] : 8 * op_between(e, 1, 700);
    const uint32_t t = h > 8192 ? op_between(e, 1, 9) : op_some_rows(e);
    OP_SHAPE(e, "T=%u h=%u %s", t, h, add ? "with x" : "without x");
    op_tensor residual = op_random(e, (size_t)t * h), x = op_random(e, (size_t)t * h);
    op_tensor weight = op_random(e, h), out = op_poison(e, (size_t)t * h, CN_BF16);
    cn_rmsnorm_args cpu = {out.cpu, residual.cpu, add ? x.cpu : NULL, weight.cpu, t, h, 1e-6f};
    cn_rmsnorm_args cuda = {out.cuda, residual.cuda, add ? x.cuda : NULL, weight.cuda, t, h, 1e-6f};
    OP_RUN_BOTH(e, rmsnorm, &cpu, &cuda);
    const double error = fmax(op_error(e, &out), op_error(e, &residual));
    op_tensor_free(e, &out);
    op_tensor_free(e, &weight);
    op_tensor_free(e, &x);
    op_tensor_free(e, &residual);
    return error;
}

static double run_silu_mul(op_env *e, uint32_t seed)
{
    const uint32_t t = op_some_rows(e), n = 8 * op_between(e, 1, 400);
    const float scale = seed % 2 ? 8.0f : 120.0f;
    OP_SHAPE(e, "T=%u I=%u up to %g", t, n, (double)scale);
    float *values = cn_calloc((size_t)t * 2 * n, sizeof *values);
    for (size_t i = 0; i < (size_t)t * 2 * n; i++)
        values[i] = scale * test_rng_uniform(&e->rng);
    op_tensor x = op_floats(e, values, (size_t)t * 2 * n, CN_BF16);
    op_tensor out = op_poison(e, (size_t)t * n, CN_BF16);
    cn_silu_mul_args cpu = {out.cpu, x.cpu, t, n}, cuda = {out.cuda, x.cuda, t, n};
    OP_RUN_BOTH(e, silu_mul, &cpu, &cuda);
    const double error = op_error(e, &out);
    cn_free(values);
    op_tensor_free(e, &out);
    op_tensor_free(e, &x);
    return error;
}

/* ---- rope_store ---- */

enum { ROPE_POSITIONS = 300, ROPE_SLOTS = 3, ROPE_WINDOW = 5 };

/* Padding rows must keep the contents of the CPU's pool from before the op. */
static void keep_padding(const paged_batch *b, op_tensor *kv, const float *before,
                         const uint32_t *slots)
{
    const cn_kv_layout *l = &b->layout;
    for (uint32_t t = 0; t < b->view.n_tokens; t++) {
        if (slots[t] != CN_NO_SLOT) continue;
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            for (int part = CN_KV_K; part <= CN_KV_V; part++) {
                const size_t at = cn_kv_row(l, 1, b->kv_slots[t] / l->block_tokens, h,
                                            b->kv_slots[t] % l->block_tokens, (cn_kv_part)part);
                memcpy((float *)kv->cpu + at, before + at, l->head_dim * sizeof *before);
            }
    }
}

static double rope_error(op_env *e, const paged_shape *s, bool norms)
{
    paged_batch *b = paged_batch_create(s, &e->rng);
    const uint32_t d = s->head_dim, t = b->view.n_tokens, hq = s->n_heads;
    const size_t n_kv = cn_kv_pool_elems(&b->layout);
    for (uint32_t i = 0; i < t; i++)
        b->q_rows[i] = i < ROPE_SLOTS * ROPE_WINDOW && i % 3 ? (int32_t)((i * 4) % 15) : -1;
    op_tensor qkv = op_random(e, (size_t)t * (hq + 2 * s->n_kv_heads) * d);
    op_tensor cosine = op_random_f32(e, (size_t)ROPE_POSITIONS * d / 2);
    op_tensor sine = op_random_f32(e, (size_t)ROPE_POSITIONS * d / 2);
    op_tensor q_norm = op_random(e, d), k_norm = op_random(e, d);
    op_tensor q = op_poison(e, (size_t)t * hq * d, CN_BF16);
    op_tensor window =
        op_poison(e, (size_t)s->n_layers * ROPE_SLOTS * ROPE_WINDOW * hq * d, CN_BF16);
    op_tensor kv = op_floats(e, b->kv, n_kv, CN_BF16);
    float *before = cn_calloc(n_kv, sizeof *before);
    memcpy(before, kv.cpu, n_kv * sizeof *before);
    cn_rope_store_args cpu = {q.cpu, qkv.cpu, norms ? q_norm.cpu : NULL, norms ? k_norm.cpu : NULL,
                              1e-6f, cosine.cpu, sine.cpu, &b->view, hq, 1, b->layout, kv.cpu,
                              window.cpu, ROPE_SLOTS, ROPE_WINDOW};
    OP_OK(e->cpu->rope_store(e->cpu_stream, &cpu));
    uint32_t *slots = cn_calloc(t, sizeof *slots);
    paged_batch padded = *b;
    for (uint32_t i = 0; i < t; i++) slots[i] = i % 5 == 4 ? CN_NO_SLOT : b->kv_slots[i];
    padded.view.kv_slots = slots;
    keep_padding(b, &kv, before, slots);
    op_batch batch = op_batch_upload(e, &padded);
    cn_rope_store_args cuda = {q.cuda, qkv.cuda, norms ? q_norm.cuda : NULL,
                               norms ? k_norm.cuda : NULL, 1e-6f, cosine.cuda, sine.cuda,
                               &batch.view, hq, 1, op_layout_as(&b->layout, CN_BF16), kv.cuda,
                               window.cuda, ROPE_SLOTS, ROPE_WINDOW};
    OP_OK(e->cuda->rope_store(e->cuda_stream, &cuda));
    const double error =
        fmax(fmax(op_error(e, &q), op_error(e, &kv)), op_error(e, &window));
    op_batch_free(e, &batch);
    cn_free(slots);
    cn_free(before);
    op_tensor *const all[] = {&kv, &window, &q, &k_norm, &q_norm, &sine, &cosine, &qkv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    paged_batch_free(b);
    return error;
}

/* Stores on both sides in eight bits. V must have the same bytes; the values of K are compared. */
static double rope_fp8_error(op_env *e, const paged_shape *s, bool norms)
{
    paged_batch *b = paged_batch_create(s, &e->rng);
    const uint32_t d = s->head_dim, n = b->view.n_tokens, hq = s->n_heads, hk = s->n_kv_heads;
    fp8_pool pool = fp8_pool_make(&b->layout, b->kv);
    cn_kv_layout gpu_layout = pool.layout;
    gpu_layout.act_dtype = CN_BF16;
    op_tensor qkv = op_random(e, (size_t)n * (hq + 2 * hk) * d);
    op_tensor cosine = op_random_f32(e, (size_t)ROPE_POSITIONS * d / 2);
    op_tensor sine = op_random_f32(e, (size_t)ROPE_POSITIONS * d / 2);
    op_tensor norm = op_random(e, d), q = op_poison(e, (size_t)n * hq * d, CN_BF16);
    op_tensor kv = op_words(e, pool.kv, cn_kv_pool_bytes(&pool.layout) / sizeof(uint32_t));
    op_batch batch = op_batch_upload(e, b);
    const cn_rope_store_args cpu = {q.cpu, qkv.cpu, norms ? norm.cpu : NULL,
                                    norms ? norm.cpu : NULL, 1e-6f, cosine.cpu, sine.cpu, &b->view,
                                    hq, 1, pool.layout, kv.cpu, NULL, 0, 0};
    const cn_rope_store_args cuda = {q.cuda, qkv.cuda, norms ? norm.cuda : NULL,
                                     norms ? norm.cuda : NULL, 1e-6f, cosine.cuda, sine.cuda,
                                     &batch.view, hq, 1, gpu_layout, kv.cuda, NULL, 0, 0};
    OP_RUN_BOTH(e, rope_store, &cpu, &cuda);
    char *got = op_take(e, &kv);
    float *keys[2];
    for (int i = 0; i < 2; i++) keys[i] = cn_calloc((size_t)n * hk * d, sizeof(float));
    for (uint32_t i = 0; i < n * hk; i++) {
        const uint32_t at = b->kv_slots[i / hk];
        const cn_cpu_place place = {1, at / s->block_tokens, i % hk, at % s->block_tokens};
        for (int part = CN_KV_V; part <= CN_KV_V_SCALE; part += CN_KV_V_SCALE - CN_KV_V) {
            const size_t row = cn_kv_at(&pool.layout, 1, place.block, place.head, place.slot,
                                        (cn_kv_part)part);
            assert_memory_equal(got + row, (char *)kv.cpu + row, pool.layout.part[part].row_bytes);
        }
        cn_cpu_read_rows(&pool.layout, kv.cpu, place, CN_KV_K, 1, keys[0] + (size_t)i * d);
        cn_cpu_read_rows(&pool.layout, got, place, CN_KV_K, 1, keys[1] + (size_t)i * d);
    }
    const double error = fmax(op_error(e, &q), op_error_of(keys[1], keys[0], (size_t)n * hk * d));
    for (int i = 0; i < 2; i++) cn_free(keys[i]);
    cn_free(got);
    op_batch_free(e, &batch);
    op_tensor *const all[] = {&kv, &q, &norm, &sine, &cosine, &qkv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    fp8_pool_free(&pool);
    paged_batch_free(b);
    return error;
}

static double run_rope_store(op_env *e, uint32_t seed)
{
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256};
    paged_shape s = {.n_layers = 2, .n_kv_heads = 1 + seed % 3, .head_dim = dims[seed % 6],
                     .block_tokens = 16u << seed % 5, .n_seqs = 2, .n_decode = 1,
                     .n_q = {1, op_between(e, 1, 120)}, .kv_len = {200, op_between(e, 120, 290)}};
    s.n_heads = s.n_kv_heads * (1 + seed % 8);
    OP_SHAPE(e, "T=%u hq=%u hk=%u d=%u block=%u%s", 1 + s.n_q[1], s.n_heads, s.n_kv_heads,
             s.head_dim, s.block_tokens, seed / 6 % 2 ? " norms" : "");
    return e->fp8 ? rope_fp8_error(e, &s, seed / 6 % 2) : rope_error(e, &s, seed / 6 % 2);
}

static double run_draft_store(op_env *e, uint32_t seed)
{
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256};
    enum { POSITIONS = 300, BLOCKS = 20 };
    const uint32_t d = dims[seed % 6], hk = 1 + seed % 3, hq = hk * (1 + seed % 9);
    const uint32_t t = op_between(e, 1, 150), n_queries = seed == 3 ? t : op_between(e, 0, t);
    cn_kv_layout pool = cn_kv_layout_make(3, BLOCKS, hk, 16u << seed % 5, 64, CN_F32);
    cn_kv_layout pool_cuda = op_layout_as(&pool, CN_BF16);
    pool.draft_dim = pool_cuda.draft_dim = d;
    const cn_kv_layout l = cn_kv_layout_draft(&pool), l_cuda = cn_kv_layout_draft(&pool_cuda);
    OP_SHAPE(e, "T=%u queries=%u hq=%u hk=%u d=%u block=%u", t, n_queries, hq, hk, d,
             l.block_tokens);
    uint32_t positions[150], slots[150];
    for (uint32_t i = 0; i < t; i++) {
        positions[i] = op_between(e, 0, POSITIONS - 1);
        slots[i] = i % 5 == 4 ? CN_NO_SLOT : i * 2 % (BLOCKS * l.block_tokens);
    }
    op_tensor q = op_random(e, (size_t)t * hq * d), k = op_random(e, (size_t)t * hk * d);
    op_tensor cosine = op_random_f32(e, (size_t)POSITIONS * d / 2);
    op_tensor sine = op_random_f32(e, (size_t)POSITIONS * d / 2);
    op_tensor at = op_words(e, positions, t), to = op_words(e, slots, t);
    op_tensor draft = op_random(e, cn_kv_pool_bytes(&l) / sizeof(float));
    cn_draft_store_args cpu = {q.cpu,    k.cpu,     cosine.cpu, sine.cpu, at.cpu,   to.cpu,
                               t,        n_queries, hq,         l,        draft.cpu};
    cn_draft_store_args cuda = {q.cuda,  k.cuda, cosine.cuda, sine.cuda, at.cuda,
                                to.cuda, t,      n_queries,   hq,        l_cuda,
                                draft.cuda};
    OP_RUN_BOTH(e, draft_store, &cpu, &cuda);
    const double error = fmax(op_error(e, &q), op_error(e, &draft));
    op_tensor *const all[] = {&draft, &to, &at, &sine, &cosine, &k, &q};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    return error;
}

/* The three ops that move states of a retrieval head: prompts and decode rows, some behind slots
 * that earlier passes stored, and padding. draft_before leaves out the first sequences. */
static double run_draft_rows(op_env *e, uint32_t seed)
{
    enum { BLOCKS = 24, MAX_SEQS = 6, STRIDE = 4, MAX_Q = 30 };
    const uint32_t b = 16u << seed % 5, h = 8 * op_between(e, 1, seed % 3 ? 90 : 700);
    const uint32_t n = op_between(e, 1, MAX_SEQS), from = op_between(e, 0, n - 1);
    uint32_t q_start[MAX_SEQS + 1] = {0}, len[MAX_SEQS], tables[MAX_SEQS * STRIDE];
    uint32_t slots[MAX_SEQS * MAX_Q];
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t cached = seed % 7 ? op_between(e, 0, 2 * b) : b * (s % 3);
        const bool padding = s + 1 == n && seed % 4 == 0;
        const uint32_t n_q = padding || s % 2 ? 1 : op_between(e, 1, MAX_Q);
        q_start[s + 1] = q_start[s] + n_q;
        len[s] = padding ? 0 : cached + n_q;
        for (uint32_t i = 0; i < STRIDE; i++)
            tables[s * STRIDE + i] = (s * STRIDE + i) * 7 % BLOCKS;
        for (uint32_t i = 0; i < n_q; i++) {
            const uint32_t at = cached + i;
            const uint32_t slot = tables[s * STRIDE + at / b] * b + at % b;
            slots[q_start[s] + i] = padding ? CN_NO_SLOT : slot;
        }
    }
    const uint32_t t = q_start[n], first = q_start[from];
    OP_SHAPE(e, "T=%u h=%u block=%u sequences=%u from %u", t, h, b, n, from);
    op_tensor fused = op_random(e, (size_t)t * h), out = op_random(e, (size_t)t * h);
    op_tensor wide = op_random(e, (size_t)t * 3 * h), state = op_random(e, (size_t)BLOCKS * h);
    op_tensor starts = op_words(e, q_start, n + 1), lens = op_words(e, len, n);
    op_tensor table = op_words(e, tables, n * STRIDE), slot = op_words(e, slots, t);
    cn_draft_before_args before = {out.cpu,   fused.cpu, state.cpu, starts.cpu, lens.cpu,
                                   table.cpu, STRIDE,    b,         from,       n,
                                   first,     t - first, h};
    cn_draft_before_args before_cuda = {out.cuda,   fused.cuda, state.cuda, starts.cuda, lens.cuda,
                                        table.cuda, STRIDE,     b,          from,        n,
                                        first,      t - first,  h};
    cn_draft_keep_args keep = {state.cpu, fused.cpu, slot.cpu, t, b, h};
    cn_draft_keep_args keep_cuda = {state.cuda, fused.cuda, slot.cuda, t, b, h};
    cn_draft_part_args part = {wide.cpu, fused.cpu, t, h, 3 * h, seed % 3 * h};
    cn_draft_part_args part_cuda = {wide.cuda, fused.cuda, t, h, 3 * h, seed % 3 * h};
    OP_RUN_BOTH(e, draft_before, &before, &before_cuda);
    OP_RUN_BOTH(e, draft_keep, &keep, &keep_cuda);
    OP_RUN_BOTH(e, draft_part, &part, &part_cuda);
    const double error = fmax(op_error(e, &out), fmax(op_error(e, &state), op_error(e, &wide)));
    op_tensor *const all[] = {&slot, &table, &lens, &starts, &state, &wide, &out, &fused};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    return error;
}

/* ---- copy_blocks, count_reset ---- */

/* Pools with the same content on both backends; in eight bits also with the same bytes. */
typedef struct twin_pools {
    op_tensor kv, score, origin, window;
    cn_pools cpu, cuda;
} twin_pools;

static cn_kv_layout fp8_layout_as(const cn_kv_layout *l, cn_dtype act)
{
    return cn_kv_layout_form(l->n_layers, l->n_blocks, l->n_kv_heads, l->block_tokens, l->head_dim,
                             act, CN_KV_FP8);
}

/* Random codes and scales. */
static op_tensor random_codes(op_env *e, const cn_kv_layout *l)
{
    const cn_kv_layout codes = fp8_layout_as(l, CN_BF16);
    return random_ids(e, (uint32_t)(cn_kv_pool_bytes(&codes) / sizeof(uint32_t)), UINT32_MAX);
}

static twin_pools twin_pools_create(op_env *e, const cn_kv_layout *l, uint32_t n_slots, uint32_t w,
                                    uint32_t n_heads)
{
    twin_pools p = {
        .kv = e->fp8 ? random_codes(e, l) : op_random(e, cn_kv_pool_elems(l)),
        .score = op_random_f32(e, cn_kv_side_elems(l)),
        .origin = random_ids(e, (uint32_t)cn_kv_side_elems(l), 1000),
        .window = op_random(e, (size_t)l->n_layers * n_slots * w * n_heads * l->head_dim)};
    p.cpu = (cn_pools){.layout = *l,
                       .kv = p.kv.cpu,
                       .score = p.score.cpu,
                       .origin = p.origin.cpu,
                       .q_window = p.window.cpu,
                       .n_query_slots = n_slots,
                       .window = w,
                       .n_heads = n_heads,
                       .act_dtype = CN_F32};
    p.cuda = p.cpu;
    p.cuda.layout = op_layout_as(l, CN_BF16);
    p.cuda.kv = p.kv.cuda;
    p.cuda.score = p.score.cuda;
    p.cuda.origin = p.origin.cuda;
    p.cuda.q_window = p.window.cuda;
    p.cuda.act_dtype = CN_BF16;
    if (e->fp8) {
        p.cpu.layout = fp8_layout_as(l, CN_F32);
        p.cuda.layout = fp8_layout_as(l, CN_BF16);
    }
    return p;
}

/* Returns the largest difference between the two, and frees both. */
static double twin_pools_end(op_env *e, twin_pools *p)
{
    double error = e->fp8 ? op_words_error(e, &p->kv) : op_error(e, &p->kv);
    error = fmax(error, op_error(e, &p->score));
    error = fmax(error, fmax(op_words_error(e, &p->origin), op_error(e, &p->window)));
    op_tensor_free(e, &p->window);
    op_tensor_free(e, &p->origin);
    op_tensor_free(e, &p->score);
    op_tensor_free(e, &p->kv);
    return error;
}

static double run_copy_blocks(op_env *e, uint32_t seed)
{
    enum { L = 3, BLOCKS = 700, HK = 2, BT = 16, D = 16, SLOTS = 9, W = 3, HQ = 4, MANY = 600 };
    const uint32_t n = seed == 0 ? 0 : seed == 1 ? MANY : op_between(e, 1, 12);
    OP_SHAPE(e, "%u pairs of blocks, 4 of query slots", n);
    const cn_kv_layout l = cn_kv_layout_make(L, BLOCKS, HK, BT, D, CN_F32);
    twin_pools p = twin_pools_create(e, &l, SLOTS, W, HQ);
    cn_block_copy pairs[MANY], slots[4];
    for (uint32_t i = 0; i < n; i++) /* chains, swaps, a block onto itself */
        pairs[i] = (cn_block_copy){test_rng_below(&e->rng, seed == 1 ? BLOCKS : 6),
                                   test_rng_below(&e->rng, seed == 1 ? BLOCKS : 6)};
    for (uint32_t i = 0; i < 4; i++)
        slots[i] = (cn_block_copy){test_rng_below(&e->rng, SLOTS), test_rng_below(&e->rng, SLOTS)};
    cn_copy_args cpu = {.list = {pairs, n, slots, 4}}, cuda = cpu;
    cpu.from = cpu.to = cn_pools_planes(&p.cpu);
    cuda.from = cuda.to = cn_pools_planes(&p.cuda);
    OP_RUN_BOTH(e, copy_blocks, &cpu, &cuda);
    cuda.from.slot[CN_PLANE_QUERIES].base = NULL;
    assert_int_equal(e->cuda->copy_blocks(e->cuda_stream, &cuda), CN_ERR_SHAPE);
    return twin_pools_end(e, &p);
}

/* Puts into a home space, and copies of the first layers into a plane, on the same device. */
static double run_put(op_env *e, uint32_t seed)
{
    enum { L = 3, BLOCKS = 12, HOME = 9, HK = 2, BT = 64, D = 64, MOST = 6 };
    const uint32_t n = 1 + seed % MOST, n_layers = 1 + seed % L;
    OP_SHAPE(e, "%u blocks, %u layers", n, n_layers);
    const cn_kv_layout l = cn_kv_layout_make(L, BLOCKS, HK, BT, D, CN_F32);
    const cn_kv_layout h = cn_kv_layout_make(n_layers, HOME, HK, BT, D, CN_F32);
    twin_pools from = twin_pools_create(e, &l, 1, 1, HK), to = twin_pools_create(e, &h, 1, 1, HK);
    cn_block_copy pairs[MOST]; /* some have the same number on both sides */
    for (uint32_t i = 0; i < n; i++)
        pairs[i] = (cn_block_copy){i % 2 ? i : BLOCKS - 1 - i, i};
    cn_copy_args cpu = {.list = {.blocks = pairs, .n_blocks = n}}, cuda = cpu;
    const cn_planes cpu_all = cn_pools_planes(&from.cpu), cuda_all = cn_pools_planes(&from.cuda);
    cpu.from = cn_planes_kv(&cpu_all, n_layers);
    cuda.from = cn_planes_kv(&cuda_all, n_layers);
    cpu.to = cn_pools_planes(&to.cpu);
    cuda.to = cn_pools_planes(&to.cuda);
    OP_RUN_BOTH(e, copy_blocks, &cpu, &cuda);
    return fmax(twin_pools_end(e, &from), twin_pools_end(e, &to));
}

/* Blocks and query slots move to host memory of either backend and return to other places. */
static double run_swap(op_env *e, uint32_t seed)
{
    enum { L = 3, BLOCKS = 12, HK = 2, BT = 64, D = 64, SLOTS = 9, W = 5, HQ = 4, MOST = 6 };
    const uint32_t n = 1 + seed % MOST, n_slots = seed % 3;
    const bool sides = seed % 2 == 0;
    OP_SHAPE(e, "%u blocks%s, %u query slots", n, sides ? " with scores and origins" : "", n_slots);
    const cn_kv_layout l = cn_kv_layout_make(L, BLOCKS, HK, BT, D, CN_F32);
    twin_pools p = twin_pools_create(e, &l, SLOTS, W, HQ);
    if (!sides) {
        p.cpu.score = p.cuda.score = NULL;
        p.cpu.origin = p.cuda.origin = NULL;
    }
    const cn_planes cpu = cn_pools_planes(&p.cpu), cuda = cn_pools_planes(&p.cuda);
    void *host[2];
    OP_OK(e->cpu->host_alloc(
        e->cpu, MOST * cn_planes_block_bytes(&cpu) + 2 * cn_planes_slot_bytes(&cpu), &host[0]));
    OP_OK(e->cuda->host_alloc(
        e->cuda, MOST * cn_planes_block_bytes(&cuda) + 2 * cn_planes_slot_bytes(&cuda), &host[1]));
    const cn_planes cpu_host = cn_planes_packed(&cpu, host[0], MOST);
    const cn_planes cuda_host = cn_planes_packed(&cuda, host[1], MOST);
    cn_block_copy out[MOST], in[MOST], slots_out[2], slots_in[2];
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (cn_block_copy){2 * i, MOST - 1 - i};
        in[i] = (cn_block_copy){MOST - 1 - i, BLOCKS - 1 - i};
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        slots_out[i] = (cn_block_copy){3 * i, 1 - i};
        slots_in[i] = (cn_block_copy){1 - i, 8 - i};
    }
    const cn_copy_list out_list = {out, n, slots_out, n_slots};
    const cn_copy_list in_list = {in, n, slots_in, n_slots};
    OP_RUN_BOTH(e, copy_blocks, (&(cn_copy_args){cpu, cpu_host, out_list}),
             (&(cn_copy_args){cuda, cuda_host, out_list}));
    OP_RUN_BOTH(e, copy_blocks, (&(cn_copy_args){cpu_host, cpu, in_list}),
             (&(cn_copy_args){cuda_host, cuda, in_list}));
    e->cpu->host_free(e->cpu, host[0]);
    e->cuda->host_free(e->cuda, host[1]);
    return twin_pools_end(e, &p);
}

static double run_count_reset(op_env *e, uint32_t seed)
{
    const uint32_t vocab = 2 * op_between(e, 1, 3000), n_slots = 3, slot = seed % 3;
    const uint32_t n_prompt = op_between(e, 0, 500);
    const uint32_t n_output = seed == 1 ? 40000 : op_between(e, 0, 900);
    OP_SHAPE(e, "V=%u prompt %u output %u", vocab, n_prompt, n_output);
    /* Seed 1 counts one token more often than the largest count. */
    op_tensor prompt = random_ids(e, n_prompt + 1, vocab);
    op_tensor output = random_ids(e, n_output + 1, seed == 1 ? 1 : vocab);
    op_tensor counts = random_ids(e, vocab / 2 * n_slots, UINT32_MAX); /* two counts per word */
    cn_count_reset_args cpu = {counts.cpu, vocab, slot, prompt.cpu, output.cpu, n_prompt, n_output};
    cn_count_reset_args cuda = {counts.cuda, vocab,    slot,    prompt.cuda,
                                output.cuda, n_prompt, n_output};
    OP_RUN_BOTH(e, count_reset, &cpu, &cuda);
    const double error = op_words_error(e, &counts);
    op_tensor_free(e, &counts);
    op_tensor_free(e, &output);
    op_tensor_free(e, &prompt);
    return error;
}

/* ---- memory, streams, graphs ---- */

/* Dummy values can start at any element of an array. The neighbours must be unchanged. */
static double run_dummy_fill(op_env *e, uint32_t seed)
{
    static const uint32_t sizes[] = {1, 2, 255, 256, 257, 1000003};
    const uint32_t n = sizes[seed], first = seed % 3, n_words = (first + n) / 2 + 1;
    const uint64_t key = (uint64_t)test_rng_below(&e->rng, UINT32_MAX) << 32 | seed;
    const float scale = 0.02f / (float)(1 << (seed + 10));
    OP_SHAPE(e, "%u elements at element %u", n, first);
    op_tensor words = random_ids(e, n_words, UINT32_MAX);
    const cn_dummy_fill_args args = {(uint16_t *)words.cuda + first, CN_BF16, n, key, scale};
    OP_OK(e->cuda->dummy_fill(e->cuda_stream, &args));
    uint16_t *want = words.cpu;
    for (uint32_t i = 0; i < n; i++) want[first + i] = cn_dummy_weight(key, scale, i);
    const double error = op_words_error(e, &words);
    op_tensor_free(e, &words);
    return error;
}

static double run_memory(op_env *e, uint32_t seed)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 1000, 4 << 20, (40 << 20) / 4 + 1};
    const uint32_t n = sizes[seed];
    OP_SHAPE(e, "%u words", n);
    op_tensor words = random_ids(e, n, UINT32_MAX);
    uint64_t zero = 1, sum = 0, want = 0;
    for (uint32_t i = 0; i < n; i++) want += ((uint32_t *)words.cpu)[i];
    op_tensor out = op_words(e, &zero, 2);
    OP_OK(e->cuda->mem_sum(e->cuda_stream, words.cuda, (size_t)n * 4, out.cuda));
    OP_OK(e->cuda->mem_read(e->cuda_stream, &sum, out.cuda, sizeof sum));
    OP_OK(e->cuda->stream_sync(e->cuda_stream));
    assert_int_equal(sum, want);
    void *all = NULL, *more = NULL;
    OP_OK(e->cuda->mem_alloc(e->cuda, e->cuda->mem_avail(e->cuda), &all));
    assert_int_equal(e->cuda->mem_alloc(e->cuda, 1, &more), CN_ERR_MEMORY);
    e->cuda->mem_free(e->cuda, all);
    const double error = op_words_error(e, &words);
    op_tensor_free(e, &out);
    op_tensor_free(e, &words);
    return error;
}

/* One stream waits for a fence of the other. Polling ends when the fence is done. Pinned memory is
 * read back. */
static double run_fences(op_env *e, uint32_t seed)
{
    enum { N = 1 << 20 };
    OP_SHAPE(e, "%u words from stream %u to the other", N, seed % 2);
    cn_stream *const streams[] = {e->cuda_stream, e->cuda_side};
    cn_stream *from = streams[seed % 2], *to = streams[1 - seed % 2];
    op_tensor words = random_ids(e, N, 1000), out = op_words(e, words.cpu, 2);
    OP_OK(e->cuda->stream_sync(e->cuda_stream));
    uint64_t want = 0, *sum = NULL;
    for (uint32_t i = 0; i < N; i++) want += ((uint32_t *)words.cpu)[i];
    cn_fence *ready = NULL, *read = NULL;
    OP_OK(e->cuda->fence_create(e->cuda, &ready));
    OP_OK(e->cuda->fence_create(e->cuda, &read));
    void *pinned = NULL;
    OP_OK(e->cuda->host_alloc(e->cuda, sizeof *sum, &pinned));
    sum = pinned;
    OP_OK(e->cuda->mem_sum(from, words.cuda, N * 4, out.cuda));
    OP_OK(e->cuda->fence_record(ready, from));
    OP_OK(e->cuda->fence_wait(to, ready));
    OP_OK(e->cuda->mem_read(to, sum, out.cuda, sizeof *sum));
    OP_OK(e->cuda->fence_record(read, to));
    for (bool done = false; !done;) OP_OK(e->cuda->fence_done(read, &done));
    const double error = *sum == want ? 0 : INFINITY;
    e->cuda->host_free(e->cuda, pinned);
    e->cuda->fence_free(read);
    e->cuda->fence_free(ready);
    op_tensor_free(e, &out);
    op_tensor_free(e, &words);
    return error;
}

static const op_case cases[] = {
    {"dummy_fill", 6, 0, run_dummy_fill, .gemm = CN_CUDA_GEMM_FASTEST},
    {"memory", 7, 0, run_memory, .gemm = CN_CUDA_GEMM_FASTEST},
    {"fences", 4, 0, run_fences, .gemm = CN_CUDA_GEMM_FASTEST},
    {"embed", 12, 0, run_embed, .gemm = CN_CUDA_GEMM_FASTEST},
    {"gather", 12, 0, run_gather, .gemm = CN_CUDA_GEMM_FASTEST},
    {"rmsnorm", 24, 4e-3, run_rmsnorm, .gemm = CN_CUDA_GEMM_FASTEST},
    {"silu_mul", 12, 4e-3, run_silu_mul, .gemm = CN_CUDA_GEMM_FASTEST},
    {"rope_store", 24, 4e-3, run_rope_store, .gemm = CN_CUDA_GEMM_FASTEST},
    {"draft_store", 24, 4e-3, run_draft_store, .gemm = CN_CUDA_GEMM_FASTEST},
    {"draft_part, _before, _keep", 24, 0, run_draft_rows, .gemm = CN_CUDA_GEMM_FASTEST},
    /* A key beside a tie may be rounded the other way. */
    {"rope_store, fp8", 24, 2e-2, run_rope_store, .gemm = CN_CUDA_GEMM_FASTEST, .fp8 = true},
    {"copy_blocks", 12, 0, run_copy_blocks, .gemm = CN_CUDA_GEMM_FASTEST},
    {"copy_blocks, put", 12, 0, run_put, .gemm = CN_CUDA_GEMM_FASTEST},
    {"copy_blocks, fp8", 4, 0, run_copy_blocks, .gemm = CN_CUDA_GEMM_FASTEST, .fp8 = true},
    {"copy_blocks, put, fp8", 12, 0, run_put, .gemm = CN_CUDA_GEMM_FASTEST, .fp8 = true},
    {"swap", 12, 0, run_swap, .gemm = CN_CUDA_GEMM_FASTEST},
    {"swap, fp8", 12, 0, run_swap, .gemm = CN_CUDA_GEMM_FASTEST, .fp8 = true},
    {"count_reset", 8, 0, run_count_reset, .gemm = CN_CUDA_GEMM_FASTEST},
};

int main(int argc, char **argv)
{
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
