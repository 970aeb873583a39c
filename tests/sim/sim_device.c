/* sim_device.c - see sim_device.h. */
#include "tests/sim/sim_device.h"

#include <stdio.h>
#include <string.h>

#include "engine/base.h"

bool sim_device_create(sim_device *d, const cn_sched_opts *o, char *error, uint32_t error_bytes)
{
    const size_t b = o->block_tokens, w = o->window_tokens;
    *d = (sim_device){.block_tokens = o->block_tokens,
                      .n_blocks = o->n_blocks,
                      .n_slots = o->n_query_slots,
                      .window = o->window_tokens,
                      .n_host_blocks = o->n_swap_blocks,
                      .n_host_windows = o->n_swap_windows,
                      .error = error,
                      .error_bytes = error_bytes};
    d->kv = cn_calloc(o->n_blocks * b, sizeof *d->kv);
    d->queries = cn_calloc(o->n_query_slots * w, sizeof *d->queries);
    d->host_kv = cn_calloc(o->n_swap_blocks * b, sizeof *d->host_kv);
    d->host_queries = cn_calloc(o->n_swap_windows * w, sizeof *d->host_queries);
    if (d->kv && d->queries && d->host_kv && d->host_queries) return true;
    sim_device_free(d);
    return false;
}

void sim_device_free(sim_device *d)
{
    cn_free(d->kv);
    cn_free(d->queries);
    cn_free(d->host_kv);
    cn_free(d->host_queries);
    d->kv = d->queries = d->host_kv = d->host_queries = NULL;
}

static uint64_t *slot_at(const sim_device *d, const uint32_t *table, uint32_t slot)
{
    uint32_t b = d->block_tokens;
    CN_ASSERT(table[slot / b] < d->n_blocks);
    return d->kv + (size_t)table[slot / b] * b + slot % b;
}

bool sim_device_read(sim_device *d, const char *who, const uint32_t *table, const uint64_t *want,
                     uint32_t n)
{
    uint32_t b = d->block_tokens;
    for (uint32_t i = 0; i < n; i += b) {
        uint32_t len = cn_min_u32(b, n - i);
        const uint64_t *have = slot_at(d, table, i);
        if (memcmp(have, want + i, len * sizeof *have) == 0) continue;
        uint32_t at = 0;
        while (have[at] == want[i + at]) at++;
        snprintf(d->error, d->error_bytes, "%s read a wrong tag at slot %u, block %u, of %u slots",
                 who, i + at, table[i / b], n);
        return false;
    }
    return true;
}

void sim_device_write(sim_device *d, const uint32_t *table, uint32_t first, const uint64_t *tags,
                      uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) *slot_at(d, table, first + i) = tags[i];
}

void sim_device_write_query(sim_device *d, uint32_t slot, uint32_t w, uint32_t position,
                            uint64_t tag)
{
    CN_ASSERT(slot < d->n_slots && w <= d->window);
    d->queries[(size_t)slot * d->window + position % w] = tag;
}

bool sim_device_read_ring(sim_device *d, uint32_t slot, uint32_t rows, uint32_t position,
                          const uint64_t *tags)
{
    CN_ASSERT(slot < d->n_slots && rows <= d->window);
    for (uint32_t p = position > rows ? position - rows : 0; p < position; p++) {
        if (d->queries[(size_t)slot * d->window + p % rows] == sim_query_tag(tags[p])) continue;
        snprintf(d->error, d->error_bytes,
                 "a row read a wrong query: slot %u, position %u of a ring of %u, before %u", slot,
                 p, rows, position);
        return false;
    }
    return true;
}

void sim_device_clear_slot(sim_device *d, uint32_t slot)
{
    CN_ASSERT(slot < d->n_slots);
    memset(d->queries + (size_t)slot * d->window, 0, d->window * sizeof *d->queries);
}

void sim_device_copy_block(sim_device *d, cn_block_copy c)
{
    size_t b = d->block_tokens;
    CN_ASSERT(c.src < d->n_blocks && c.dst < d->n_blocks && c.src != c.dst);
    memcpy(d->kv + c.dst * b, d->kv + c.src * b, b * sizeof *d->kv);
}

void sim_device_copy_slot(sim_device *d, cn_block_copy c)
{
    size_t w = d->window;
    CN_ASSERT(c.src < d->n_slots && c.dst < d->n_slots && c.src != c.dst);
    memcpy(d->queries + c.dst * w, d->queries + c.src * w, w * sizeof *d->queries);
}

/* Moves items of n tags and clears their old places. */
static void move_items(uint64_t *dst, uint32_t n_dst, uint64_t *src, uint32_t n_src, size_t n,
                       const cn_block_copy *moves, uint32_t n_moves)
{
    for (uint32_t i = 0; i < n_moves; i++) {
        const cn_block_copy c = moves[i];
        CN_ASSERT(c.src < n_src && c.dst < n_dst);
        memcpy(dst + c.dst * n, src + c.src * n, n * sizeof *dst);
        memset(src + c.src * n, 0, n * sizeof *src);
    }
}

void sim_device_swap(sim_device *d, const cn_copy_list *m, bool out)
{
    const size_t b = d->block_tokens, w = d->window;
    if (out) {
        move_items(d->host_kv, d->n_host_blocks, d->kv, d->n_blocks, b, m->blocks, m->n_blocks);
        move_items(d->host_queries, d->n_host_windows, d->queries, d->n_slots, w, m->slots,
                   m->n_slots);
    } else {
        move_items(d->kv, d->n_blocks, d->host_kv, d->n_host_blocks, b, m->blocks, m->n_blocks);
        move_items(d->queries, d->n_slots, d->host_queries, d->n_host_windows, w, m->slots,
                   m->n_slots);
    }
}

static bool read_window(sim_device *d, const cn_compress_req *req, const uint64_t *positions)
{
    uint32_t w = req->params.window_tokens;
    for (uint32_t u = 0; u < w; u++) {
        uint32_t p = req->position_end - w + u;
        uint64_t have = d->queries[(size_t)req->query_slot * d->window + p % w];
        if (have == sim_query_tag(positions[p])) continue;
        snprintf(d->error, d->error_bytes,
                 "a compression read a wrong query: slot %u, position %u, window of %u",
                 req->query_slot, p, w);
        return false;
    }
    return true;
}

bool sim_device_compress(sim_device *d, const cn_compress_req *req, const uint64_t *resident,
                         const uint64_t *positions, const uint64_t *kept)
{
    uint32_t n = req->n_blocks * d->block_tokens;
    if (!sim_device_read(d, "a compression", req->table, resident, n)) return false;
    if (req->params.policy == CN_KV_ZIP && !read_window(d, req, positions)) return false;
    sim_device_write(d, req->target, 0, kept, req->n_target * d->block_tokens);
    return true;
}
