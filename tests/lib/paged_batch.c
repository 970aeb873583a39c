/* paged_batch.c - see paged_batch.h. */
#include "tests/lib/paged_batch.h"

#include <math.h>

#include "engine/base/base.h"

static uint64_t rng_next(test_rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t test_rng_below(test_rng *r, uint32_t n) { return (uint32_t)(rng_next(r) % n); }

float test_rng_uniform(test_rng *r)
{
    return (float)(int32_t)(uint32_t)(rng_next(r) >> 32) * 0x1p-31f;
}

void test_rng_fill(test_rng *r, float *p, size_t n)
{
    for (size_t i = 0; i < n; i++) p[i] = test_rng_uniform(r);
}

static uint32_t *new_u32(size_t n) { return cn_calloc(n, sizeof(uint32_t)); }

float *paged_batch_row(const paged_batch *b, uint32_t layer, uint32_t seq, uint32_t kv_head,
                       uint32_t slot, cn_kv_part part)
{
    const cn_kv_layout *l = &b->layout;
    uint32_t block = b->tables[seq * b->view.table_stride + slot / l->block_tokens];
    return b->kv + cn_kv_row(l, layer, block, kv_head, slot % l->block_tokens, part);
}

static void fill_pool(paged_batch *b, test_rng *r)
{
    const cn_kv_layout *l = &b->layout;
    for (size_t i = 0; i < cn_kv_pool_elems(l); i++) b->kv[i] = NAN;
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t s = 0; s < b->view.n_seqs; s++)
            for (uint32_t h = 0; h < l->n_kv_heads; h++)
                for (uint32_t t = 0; t < b->kv_len[s]; t++) {
                    test_rng_fill(r, paged_batch_row(b, layer, s, h, t, CN_KV_K), l->head_dim);
                    if (!cn_kv_layout_is_shared(l))
                        test_rng_fill(r, paged_batch_row(b, layer, s, h, t, CN_KV_V), l->head_dim);
                }
}

/* Gives the pool's blocks to the sequences in a shuffled order. */
static void deal_blocks(paged_batch *b, test_rng *r)
{
    uint32_t n = b->layout.n_blocks, next = 0, *order = new_u32(n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = test_rng_below(r, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t s = 0; s < b->view.n_seqs; s++)
        for (uint32_t i = 0; i < cn_ceil_div(b->kv_len[s], b->layout.block_tokens); i++)
            b->tables[s * b->view.table_stride + i] = order[next++];
    cn_free(order);
}

static void lay_tokens(paged_batch *b, const paged_shape *s)
{
    uint32_t t = 0, block_tokens = s->block_tokens;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        b->q_start[i] = t;
        for (uint32_t j = 0; j < s->n_q[i]; j++, t++) {
            uint32_t slot = s->kv_len[i] - s->n_q[i] + j;
            b->positions[t] = slot;
            b->q_rows[t] = -1;
            b->kv_slots[t] =
                b->tables[i * b->view.table_stride + slot / block_tokens] * block_tokens +
                slot % block_tokens;
        }
    }
    b->q_start[s->n_seqs] = t;
}

paged_shape paged_shape_draw(test_rng *r, const paged_limits *most)
{
    static const uint32_t blocks[] = {16, 32, 64, 128, 256};
    paged_shape s = {.n_layers = 2};
    s.head_dim = most->dims[test_rng_below(r, most->n_dims)];
    s.block_tokens = blocks[test_rng_below(r, sizeof blocks / sizeof *blocks)];
    s.n_kv_heads = 1 + test_rng_below(r, 3);
    s.n_heads = s.n_kv_heads * (1 + test_rng_below(r, 8));
    s.n_seqs = 1 + test_rng_below(r, most->most_seqs);
    s.n_decode = test_rng_below(r, s.n_seqs + 1);
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        uint32_t len =
            1 + test_rng_below(r, most->most_blocks) * s.block_tokens + test_rng_below(r, 40);
        if (test_rng_below(r, 2))
            len = s.block_tokens * (1 + test_rng_below(r, most->most_edges)) - 1 +
                  test_rng_below(r, 3);
        s.kv_len[i] = len;
        s.n_q[i] = i < s.n_decode ? 1 : 1 + test_rng_below(r, cn_min_u32(len, most->most_q));
    }
    return s;
}

paged_batch *paged_batch_create(const paged_shape *s, test_rng *r)
{
    paged_batch *b = cn_calloc(1, sizeof *b);
    CN_ASSERT(b && s->n_seqs <= PAGED_MAX_SEQS);
    uint32_t n_tokens = 0, n_blocks = 0, max_q = 0, max_kv = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        CN_ASSERT(s->n_q[i] >= 1 && s->n_q[i] <= s->kv_len[i]);
        n_tokens += s->n_q[i];
        n_blocks += (uint32_t)cn_ceil_div(s->kv_len[i], s->block_tokens);
        max_q = cn_max_u32(max_q, s->n_q[i]);
        max_kv = cn_max_u32(max_kv, s->kv_len[i]);
    }
    b->n_heads = s->n_heads;
    b->layout =
        cn_kv_layout_make(s->n_layers, n_blocks, s->n_kv_heads, s->block_tokens, s->head_dim,
                          CN_F32);
    cn_kv_layout_share(&b->layout, s->value_dim, s->query_dim ? s->query_dim : s->head_dim);
    uint32_t stride = (uint32_t)cn_ceil_div(max_kv, s->block_tokens);
    b->kv = cn_calloc_aligned(cn_kv_pool_elems(&b->layout), sizeof *b->kv);
    b->tokens = new_u32(n_tokens);
    b->positions = new_u32(n_tokens);
    b->kv_slots = new_u32(n_tokens);
    b->q_rows = cn_calloc(n_tokens, sizeof *b->q_rows);
    b->q_start = new_u32(s->n_seqs + 1);
    b->kv_len = new_u32(s->n_seqs);
    b->tables = new_u32((size_t)s->n_seqs * stride);
    for (uint32_t i = 0; i < s->n_seqs; i++) b->kv_len[i] = s->kv_len[i];
    b->view = (cn_batch_view){.n_tokens = n_tokens,
                              .n_seqs = s->n_seqs,
                              .n_decode = s->n_decode,
                              .tokens = b->tokens,
                              .positions = b->positions,
                              .kv_slots = b->kv_slots,
                              .q_rows = b->q_rows,
                              .q_start = b->q_start,
                              .kv_len = b->kv_len,
                              .tables = b->tables,
                              .table_stride = stride,
                              .max_q = max_q,
                              .max_kv = max_kv};
    deal_blocks(b, r);
    lay_tokens(b, s);
    fill_pool(b, r);
    return b;
}

void paged_batch_free(paged_batch *b)
{
    if (!b) return;
    cn_free(b->kv);
    cn_free(b->tokens);
    cn_free(b->positions);
    cn_free(b->kv_slots);
    cn_free(b->q_rows);
    cn_free(b->q_start);
    cn_free(b->kv_len);
    cn_free(b->tables);
    cn_free(b);
}
