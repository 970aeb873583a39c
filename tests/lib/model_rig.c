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
                          r->be->act_dtype);
    cn_kv_layout_share(&r->pools.layout, c->latent.rank, c->latent.nope + c->latent.rope);
    r->pools.n_heads = c->n_heads;
    must(r->be->mem_alloc(r->be,
                          cn_kv_pool_elems(&r->pools.layout) * cn_dtype_bytes(r->be->act_dtype),
                          &r->pools.kv));
    r->tables = new_u32(n_blocks);
    r->kv_len = new_u32(r->max_seqs);
    /* Block i of sequence s: the sequences are interleaved and the blocks descend. */
    for (uint32_t s = 0; s < r->max_seqs; s++)
        for (uint32_t i = 0; i < r->blocks_per_seq; i++)
            r->tables[s * r->blocks_per_seq + i] = n_blocks - 1 - (i * r->max_seqs + s);
}

/* Lays out the arrays of a pass, on the host and in the backend's memory. */
static void open_arrays(model_rig *r)
{
    const size_t t = r->max_tokens, s = r->max_seqs;
    const struct {
        uint32_t **host;
        size_t n;
    } parts[] = {
        {&r->tokens, t},
        {&r->positions, t},
        {&r->kv_slots, t},
        {&r->q_rows, t},
        {&r->q_start, s + 1},
        {&r->batch_kv_len, s},
        {&r->batch_tables, s * r->blocks_per_seq},
        {&r->rows, t},
    };
    enum { N_PARTS = sizeof parts / sizeof *parts };
    size_t at[N_PARTS], n = 0;
    for (size_t i = 0; i < N_PARTS; i++) {
        at[i] = n;
        n += cn_round_up(parts[i].n, 4); /* 16 bytes */
    }
    r->arrays = new_u32(n);
    r->arrays_bytes = n * sizeof *r->arrays;
    must(r->be->mem_alloc(r->be, r->arrays_bytes, &r->memory[2]));
    for (size_t i = 0; i < N_PARTS; i++) *parts[i].host = r->arrays + at[i];
    const uint32_t *device = r->memory[2];
    r->batch = (cn_batch_view){.tokens = device + at[0],
                               .positions = device + at[1],
                               .kv_slots = device + at[2],
                               .q_rows = (const int32_t *)(device + at[3]),
                               .q_start = device + at[4],
                               .kv_len = device + at[5],
                               .tables = device + at[6],
                               .table_stride = r->blocks_per_seq};
    r->batch_rows = device + at[7];
    r->logits = cn_calloc(t * r->cfg.vocab, sizeof *r->logits);
}

static void open_backend(model_rig *r, const model_rig_opts *o)
{
    r->be = o->backend;
    r->owns_be = !o->backend;
    if (r->owns_be)
        must(cn_backend_cpu_open(&r->be, &(cn_cpu_backend_opts){.n_threads = o->n_threads}));
    must(r->be->stream_create(r->be, CN_PRIORITY_HIGH, &r->stream));
}

static void load_weights(model_rig *r, const model_rig_opts *o)
{
    cn_checkpoint *ck = NULL;
    must(cn_model_config_load(&r->cfg, o->dir));
    if (o->makes_blocks)
        r->cfg.quant = (cn_quant){
            .fp8 = true, .at_load = true, .scale = CN_QUANT_BLOCK, .x = CN_X_BLOCKS};
    if (o->plain_inputs) r->cfg.quant.x = CN_X_PLAIN;
    must(cn_checkpoint_open(&ck, o->dir, &r->cfg, CN_OPT_LOAD_AUTO, 0));
    must(r->be->mem_alloc(r->be, cn_weights_bytes(&r->cfg, r->be), &r->memory[0]));
    must(cn_weights_load(&r->weights, r->be, r->stream, ck, r->memory[0]));
    cn_checkpoint_close(ck);
}

model_rig *model_rig_open(const model_rig_opts *o)
{
    model_rig *r = cn_calloc(1, sizeof *r);
    open_backend(r, o);
    load_weights(r, o);
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
    open_arrays(r);
    return r;
}

void model_rig_close(model_rig *r)
{
    model_rig_forget(r);
    cn_model_free(r->model);
    cn_weights_free(r->weights);
    r->be->mem_free(r->be, r->pools.kv);
    for (size_t i = 0; i < sizeof r->memory / sizeof *r->memory; i++)
        r->be->mem_free(r->be, r->memory[i]);
    r->be->stream_free(r->stream);
    if (r->owns_be) r->be->close(r->be);
    cn_free(r->tables);
    cn_free(r->kv_len);
    cn_free(r->arrays);
    cn_free(r->logits);
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
        r->q_rows[t] = UINT32_MAX; /* -1: not observed */
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

static cn_status forward(model_rig *r)
{
    const cn_model_pass pass = {.batch = &r->batch,
                                .pools = &r->pools,
                                .logit_rows = r->batch_rows,
                                .n_rows = r->n_rows};
    return cn_model_forward(r->model, r->stream, &pass);
}

const float *model_rig_pass(model_rig *r, const model_rig_chunk *chunks, uint32_t n_chunks,
                            uint32_t n_decode, bool all)
{
    cn_batch_view *b = &r->batch;
    const uint32_t n_before = b->n_tokens;
    CN_ASSERT(n_chunks <= r->max_seqs);
    b->n_tokens = b->max_q = b->max_kv = 0;
    b->n_seqs = n_chunks;
    b->n_decode = n_decode;
    for (uint32_t i = 0; i < n_chunks; i++) add_chunk(r, i, &chunks[i]);
    r->n_rows = all ? b->n_tokens : n_chunks;
    for (uint32_t i = 0; i < r->n_rows; i++) r->rows[i] = all ? i : r->q_start[i + 1] - 1;
    must(cn_model_cover(r->model, r->stream, b->max_kv));
    must(r->be->mem_write(r->stream, r->memory[2], r->arrays, r->arrays_bytes));
    CN_ASSERT(!r->recorded || b->n_tokens == n_before);
    must(r->recorded ? r->be->graph_launch(r->stream, r->recorded) : forward(r));
    must(r->be->mem_read(r->stream, r->logits, cn_model_logits(r->model),
                         (size_t)r->n_rows * r->cfg.vocab * sizeof *r->logits));
    must(r->be->stream_sync(r->stream));
    return r->logits;
}

void model_rig_record(model_rig *r)
{
    CN_ASSERT(!r->recorded && r->batch.n_tokens > 0);
    r->batch.max_kv = r->blocks_per_seq * r->pools.layout.block_tokens; /* of later passes too */
    must(r->be->graph_begin(r->stream));
    must(forward(r));
    must(r->be->graph_end(r->stream, &r->recorded));
}

void model_rig_forget(model_rig *r)
{
    if (r->recorded) r->be->graph_free(r->recorded);
    r->recorded = NULL;
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
