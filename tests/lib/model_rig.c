/* model_rig.c - see model_rig.h. */
#include "tests/lib/model_rig.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/linked_products.h"

/* Aborts when the rig cannot open. */
static void must(cn_status status)
{
    if (status == CN_OK) return;
    fprintf(stderr, "model rig: %s\n", cn_last_error());
    abort();
}

static uint32_t *new_u32(size_t n) { return cn_calloc(n, sizeof(uint32_t)); }

static void open_pools(model_rig *r, const model_rig_opts *o)
{
    const cn_model_config *c = &r->cfg;
    uint32_t n_blocks = r->max_seqs * r->blocks_per_seq;
    r->pools.layout =
        cn_kv_layout_make(c->n_layers, n_blocks, c->n_kv_heads, o->block_tokens, c->head_dim,
                          CN_F32);
    r->pools.n_heads = c->n_heads;
    must(r->be->mem_alloc(r->be, cn_kv_pool_elems(&r->pools.layout) * sizeof(float), &r->pools.kv));
    r->tables = new_u32(n_blocks);
    r->kv_len = new_u32(r->max_seqs);
    /* Block i of sequence s: the sequences are interleaved and the blocks descend. */
    for (uint32_t s = 0; s < r->max_seqs; s++)
        for (uint32_t i = 0; i < r->blocks_per_seq; i++)
            r->tables[s * r->blocks_per_seq + i] = n_blocks - 1 - (i * r->max_seqs + s);
}

model_rig *model_rig_open(const model_rig_opts *o)
{
    model_rig *r = cn_calloc(1, sizeof *r);
    cn_checkpoint *ck = NULL;
    must(cn_model_config_load(&r->cfg, o->dir));
    must(cn_backend_cpu_open(&r->be, &(cn_cpu_backend_opts){.n_threads = o->n_threads}));
    must(r->be->stream_create(r->be, CN_PRIORITY_HIGH, &r->stream));
    must(cn_checkpoint_open(&ck, o->dir, &r->cfg, CN_OPT_LOAD_AUTO, 0));
    must(r->be->mem_alloc(r->be, cn_weights_bytes(&r->cfg, r->be), &r->memory[0]));
    must(cn_weights_load(&r->weights, r->be, r->stream, ck, r->memory[0]));
    cn_checkpoint_close(ck);
    r->max_tokens = o->max_tokens;
    r->max_seqs = o->max_seqs;
    r->blocks_per_seq = (uint32_t)cn_ceil_div(o->max_kv_tokens, o->block_tokens);
    must(r->be->mem_alloc(r->be,
                          cn_model_workspace_bytes(&r->cfg, r->be, o->max_tokens, o->max_tokens,
                                                   o->max_kv_tokens),
                          &r->memory[1]));
    if (o->links_norm) linked_products_open(&r->linked, r->be);
    const cn_model_opts model_opts = {.backend = o->links_norm ? &r->linked : r->be,
                                      .stream = r->stream,
                                      .config = &r->cfg,
                                      .weights = r->weights,
                                      .memory = r->memory[1],
                                      .max_tokens = o->max_tokens,
                                      .max_rows = o->max_tokens,
                                      .max_position = o->max_kv_tokens,
                                      .eager_positions = o->eager_positions};
    must(cn_model_create(&r->model, &model_opts));
    open_pools(r, o);
    r->tokens = new_u32(o->max_tokens);
    r->positions = new_u32(o->max_tokens);
    r->kv_slots = new_u32(o->max_tokens);
    r->rows = new_u32(o->max_tokens);
    r->q_rows = cn_calloc(o->max_tokens, sizeof *r->q_rows);
    r->q_start = new_u32(o->max_seqs + 1);
    r->batch_kv_len = new_u32(o->max_seqs);
    r->batch_tables = new_u32((size_t)o->max_seqs * r->blocks_per_seq);
    r->batch = (cn_batch_view){.tokens = r->tokens,
                               .positions = r->positions,
                               .kv_slots = r->kv_slots,
                               .q_rows = r->q_rows,
                               .q_start = r->q_start,
                               .kv_len = r->batch_kv_len,
                               .tables = r->batch_tables,
                               .table_stride = r->blocks_per_seq};
    return r;
}

void model_rig_close(model_rig *r)
{
    cn_model_free(r->model);
    cn_weights_free(r->weights);
    r->be->mem_free(r->be, r->pools.kv);
    r->be->mem_free(r->be, r->memory[0]);
    r->be->mem_free(r->be, r->memory[1]);
    r->be->stream_free(r->stream);
    r->be->close(r->be);
    cn_free(r->tables);
    cn_free(r->kv_len);
    cn_free(r->tokens);
    cn_free(r->positions);
    cn_free(r->kv_slots);
    cn_free(r->rows);
    cn_free(r->q_rows);
    cn_free(r->q_start);
    cn_free(r->batch_kv_len);
    cn_free(r->batch_tables);
    cn_free(r);
}

static void add_chunk(model_rig *r, uint32_t index, const model_rig_chunk *c)
{
    cn_batch_view *b = &r->batch;
    uint32_t block_tokens = r->pools.layout.block_tokens;
    const uint32_t *table = r->tables + (size_t)c->seq * r->blocks_per_seq;
    CN_ASSERT(b->n_tokens + c->n <= r->max_tokens);
    CN_ASSERT(r->kv_len[c->seq] + c->n <= r->blocks_per_seq * block_tokens);
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t t = b->n_tokens + i, position = r->kv_len[c->seq] + i;
        r->tokens[t] = c->tokens[i];
        r->positions[t] = position;
        r->kv_slots[t] = table[position / block_tokens] * block_tokens + position % block_tokens;
        r->q_rows[t] = -1;
    }
    b->n_tokens += c->n;
    r->kv_len[c->seq] += c->n;
    r->q_start[index + 1] = b->n_tokens;
    r->batch_kv_len[index] = r->kv_len[c->seq];
    memcpy(r->batch_tables + (size_t)index * r->blocks_per_seq, table,
           r->blocks_per_seq * sizeof *table);
    b->max_q = cn_max_u32(b->max_q, c->n);
    b->max_kv = cn_max_u32(b->max_kv, r->kv_len[c->seq]);
}

const float *model_rig_pass(model_rig *r, const model_rig_chunk *chunks, uint32_t n_chunks,
                            uint32_t n_decode, bool all)
{
    cn_batch_view *b = &r->batch;
    CN_ASSERT(n_chunks <= r->max_seqs);
    b->n_tokens = b->max_q = b->max_kv = 0;
    b->n_seqs = n_chunks;
    b->n_decode = n_decode;
    for (uint32_t i = 0; i < n_chunks; i++) add_chunk(r, i, &chunks[i]);
    uint32_t n_rows = all ? b->n_tokens : n_chunks;
    for (uint32_t i = 0; i < n_rows; i++) r->rows[i] = all ? i : r->q_start[i + 1] - 1;
    must(cn_model_cover(r->model, r->stream, b->max_kv));
    must(cn_model_forward(r->model, r->stream, b, &r->pools, NULL, r->rows, n_rows));
    return cn_model_logits(r->model);
}

void model_rig_share(model_rig *r, uint32_t seq, uint32_t from, uint32_t n_shared)
{
    CN_ASSERT(n_shared % r->pools.layout.block_tokens == 0 && n_shared <= r->kv_len[from]);
    uint32_t *table = r->tables + (size_t)seq * r->blocks_per_seq;
    memcpy(table, r->tables + (size_t)from * r->blocks_per_seq,
           n_shared / r->pools.layout.block_tokens * sizeof *table);
    r->kv_len[seq] = n_shared;
}

void model_rig_reset(model_rig *r, uint32_t seq) { r->kv_len[seq] = 0; }
