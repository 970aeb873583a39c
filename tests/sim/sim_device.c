/* sim_device.c - see sim_device.h. */
#include "tests/sim/sim_device.h"

#include <stdio.h>
#include <string.h>

#include "engine/base.h"

bool sim_device_create(sim_device *d, uint32_t n_blocks, uint32_t block_tokens, uint32_t n_slots,
                       uint32_t window, char *error, uint32_t error_bytes)
{
    *d = (sim_device){.block_tokens = block_tokens,
                      .n_blocks = n_blocks,
                      .n_slots = n_slots,
                      .window = window,
                      .error = error,
                      .error_bytes = error_bytes};
    d->kv = cn_calloc((size_t)n_blocks * block_tokens, sizeof *d->kv);
    d->queries = cn_calloc((size_t)n_slots * window, sizeof *d->queries);
    if (d->kv && d->queries) return true;
    sim_device_free(d);
    return false;
}

void sim_device_free(sim_device *d)
{
    cn_free(d->kv);
    cn_free(d->queries);
    d->kv = d->queries = NULL;
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
