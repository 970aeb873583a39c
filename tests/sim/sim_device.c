/* sim_device.c - see sim_device.h. */
#include "tests/sim/sim_device.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/base.h"

static uint64_t digest_of(const uint64_t *tags)
{
    uint64_t digest = 0;
    for (int i = 0; i < SIM_TILE_TOKENS; i++)
        digest = (digest ^ tags[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return digest;
}

/* Returns false when memory is short. */
static bool alloc_tags(uint64_t *tags[SIM_N_PACKS], size_t n)
{
    for (int p = 0; p < SIM_N_PACKS; p++) {
        tags[p] = cn_calloc(n, sizeof **tags);
        if (!tags[p]) return false;
    }
    return true;
}

static void free_tags(uint64_t *tags[SIM_N_PACKS])
{
    for (int p = 0; p < SIM_N_PACKS; p++) cn_free(tags[p]);
}

static bool create_home(sim_home *h, const cn_sched_opts *o, uint32_t n_blocks, uint32_t n_slots)
{
    const size_t b = o->block_tokens, n_entries = cn_round_up(o->select_most.select_tokens, b);
    *h = (sim_home){.n_blocks = n_blocks, .n_slots = n_slots, .n_entries = (uint32_t)n_entries};
    if (n_blocks == 0) return true;
    h->plane = cn_calloc(n_blocks * b, sizeof *h->plane);
    for (int p = 0; p < SIM_N_PACKS; p++)
        h->chosen[p] = cn_calloc(n_slots * n_entries, sizeof **h->chosen);
    return alloc_tags(h->kv, n_blocks * b) &&
           alloc_tags(h->digest, n_blocks * b / SIM_TILE_TOKENS) && h->plane && h->chosen[0] &&
           h->chosen[1];
}

static void free_home(sim_home *h)
{
    free_tags(h->kv);
    free_tags(h->digest);
    cn_free(h->plane);
    for (int p = 0; p < SIM_N_PACKS; p++) cn_free(h->chosen[p]);
}

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
    bool good = alloc_tags(d->kv, o->n_blocks * b) && alloc_tags(d->queries, o->n_query_slots * w);
    good = good && alloc_tags(d->host_kv, o->n_swap_blocks * b) &&
           alloc_tags(d->host_queries, o->n_swap_windows * w);
    for (int i = 0; i < CN_N_HOMES && good; i++)
        good = create_home(&d->homes[i], o, o->n_home_blocks[i], o->n_home_slots[i]);
    if (!good) sim_device_free(d);
    return good;
}

void sim_device_free(sim_device *d)
{
    free_tags(d->kv);
    free_tags(d->queries);
    free_tags(d->host_kv);
    free_tags(d->host_queries);
    for (int i = 0; i < CN_N_HOMES; i++) free_home(&d->homes[i]);
    *d = (sim_device){0};
}

static uint32_t slot_of(const sim_device *d, const uint32_t *table, uint32_t slot)
{
    uint32_t b = d->block_tokens;
    return table[slot / b] * b + slot % b;
}

static uint64_t *slot_at(const sim_device *d, uint32_t pack, const uint32_t *table, uint32_t slot)
{
    CN_ASSERT(table[slot / d->block_tokens] < d->n_blocks);
    return d->kv[pack] + slot_of(d, table, slot);
}

bool sim_device_read(sim_device *d, uint32_t pack, const char *who, const uint32_t *table,
                     const uint64_t *want, uint32_t n)
{
    uint32_t b = d->block_tokens;
    for (uint32_t i = 0; i < n; i += b) {
        uint32_t len = cn_min_u32(b, n - i);
        const uint64_t *have = slot_at(d, pack, table, i);
        if (memcmp(have, want + i, len * sizeof *have) == 0) continue;
        uint32_t at = 0;
        while (have[at] == want[i + at]) at++;
        snprintf(d->error, d->error_bytes,
                 "%s read a wrong tag at slot %u, block %u, of %u slots, pack %u", who, i + at,
                 table[i / b], n, pack);
        return false;
    }
    return true;
}

void sim_device_write(sim_device *d, uint32_t pack, const uint32_t *table, uint32_t first,
                      const uint64_t *tags, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) *slot_at(d, pack, table, first + i) = tags[i];
}

static uint64_t *query_at(const sim_device *d, uint32_t pack, uint32_t slot, uint32_t w,
                          uint32_t position)
{
    CN_ASSERT(slot < d->n_slots && w <= d->window);
    return d->queries[pack] + (size_t)slot * d->window + position % w;
}

void sim_device_write_query(sim_device *d, uint32_t pack, uint32_t slot, uint32_t w,
                            uint32_t position, uint64_t tag)
{
    *query_at(d, pack, slot, w, position) = tag;
}

bool sim_device_read_ring(sim_device *d, uint32_t pack, uint32_t slot, uint32_t w,
                          uint32_t position, const uint64_t *tags, uint32_t n)
{
    CN_ASSERT(n <= w && n <= position);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t p = position - n + i;
        if (*query_at(d, pack, slot, w, p) == sim_query_tag(tags[i])) continue;
        snprintf(d->error, d->error_bytes,
                 "a wrong query was read: slot %u, position %u of a ring of %u, before %u, pack %u",
                 slot, p, w, position, pack);
        return false;
    }
    return true;
}

void sim_device_clear_slot(sim_device *d, uint32_t pack, uint32_t slot)
{
    CN_ASSERT(slot < d->n_slots);
    memset(query_at(d, pack, slot, 1, 0), 0, d->window * sizeof **d->queries);
}

void sim_device_copy_block(sim_device *d, cn_block_copy c)
{
    size_t b = d->block_tokens;
    CN_ASSERT(c.src < d->n_blocks && c.dst < d->n_blocks && c.src != c.dst);
    for (int p = 0; p < SIM_N_PACKS; p++)
        memcpy(d->kv[p] + c.dst * b, d->kv[p] + c.src * b, b * sizeof **d->kv);
}

void sim_device_copy_slot(sim_device *d, cn_block_copy c)
{
    size_t w = d->window;
    CN_ASSERT(c.src < d->n_slots && c.dst < d->n_slots && c.src != c.dst);
    for (int p = 0; p < SIM_N_PACKS; p++)
        memcpy(d->queries[p] + c.dst * w, d->queries[p] + c.src * w, w * sizeof **d->queries);
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
    for (int p = 0; p < SIM_N_PACKS; p++) {
        uint64_t *kv = d->kv[p], *host = d->host_kv[p];
        uint64_t *queries = d->queries[p], *host_queries = d->host_queries[p];
        if (out) {
            move_items(host, d->n_host_blocks, kv, d->n_blocks, b, m->blocks, m->n_blocks);
            move_items(host_queries, d->n_host_windows, queries, d->n_slots, w, m->slots,
                       m->n_slots);
        } else {
            move_items(kv, d->n_blocks, host, d->n_host_blocks, b, m->blocks, m->n_blocks);
            move_items(queries, d->n_slots, host_queries, d->n_host_windows, w, m->slots,
                       m->n_slots);
        }
    }
}

bool sim_device_compress(sim_device *d, const cn_compress_req *req, const uint64_t *resident,
                         const uint64_t *positions, const uint64_t *kept)
{
    const uint32_t n = req->n_blocks * d->block_tokens, rows = cn_rule_queries(&req->params);
    const uint32_t n_old = req->first_event ? 0 : req->n_history;
    const uint32_t w = cn_rule_counted(&req->params, req->first_event, n - n_old);
    for (uint32_t p = 0; p < SIM_N_PACKS; p++) {
        if (!sim_device_read(d, p, "a compression", req->table, resident, n)) return false;
        if (req->params.policy == CN_KV_ZIP &&
            !sim_device_read_ring(d, p, req->query_slot, rows, req->position_end,
                                  positions + req->position_end - w, w))
            return false;
        sim_device_write(d, p, req->target, 0, kept, req->n_target * d->block_tokens);
    }
    return true;
}

/* ---- homes ---- */

void sim_device_put(sim_device *d, sim_home *h, const cn_block_copy *puts, uint32_t n, bool plane)
{
    const size_t b = d->block_tokens;
    for (uint32_t i = 0; i < n; i++) {
        const cn_block_copy c = puts[i];
        CN_ASSERT(c.src < d->n_blocks && c.dst < h->n_blocks);
        for (int p = 0; p < SIM_N_PACKS; p++)
            memcpy(h->kv[p] + c.dst * b, d->kv[p] + c.src * b, b * sizeof **d->kv);
        if (plane) memcpy(h->plane + c.dst * b, d->kv[0] + c.src * b, b * sizeof **d->kv);
    }
}

void sim_device_digest(sim_device *d, sim_home *h, const cn_block_copy *puts, uint32_t n)
{
    const uint32_t of_block = d->block_tokens / SIM_TILE_TOKENS;
    for (uint32_t i = 0; i < n * of_block; i++) {
        const size_t tile = (size_t)puts[i / of_block].dst * of_block + i % of_block;
        for (int p = 0; p < SIM_N_PACKS; p++)
            h->digest[p][tile] = digest_of(h->kv[p] + tile * SIM_TILE_TOKENS);
    }
}

uint32_t sim_device_tiles(const sim_device *d, const uint32_t *home_table, const uint64_t *tags,
                          uint32_t first, uint32_t n, sim_tile *out)
{
    uint32_t n_tiles = 0, at = first - first % SIM_TILE_TOKENS;
    for (; at < first + n; at += SIM_TILE_TOKENS) {
        sim_tile *t = &out[n_tiles++];
        *t = (sim_tile){.position = at, .home = slot_of(d, home_table, at)};
        memcpy(t->tags, tags + at, sizeof t->tags);
    }
    return n_tiles;
}

bool sim_device_rank(sim_device *d, const sim_home *h, uint32_t pack, const sim_tile *tiles,
                     uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const sim_tile *t = &tiles[i];
        CN_ASSERT(t->home / d->block_tokens < h->n_blocks);
        const bool right = memcmp(h->kv[pack] + t->home, t->tags, sizeof t->tags) == 0;
        if (right && h->digest[pack][t->home / SIM_TILE_TOKENS] == digest_of(t->tags)) continue;
        snprintf(d->error, d->error_bytes,
                 "an exchange read a wrong %s at position %u, home block %u, pack %u",
                 right ? "digest" : "tag", t->position, t->home / d->block_tokens, pack);
        return false;
    }
    return true;
}

sim_move sim_device_move(const sim_device *d, const uint32_t *area, const uint32_t *home_table,
                         uint32_t entry, uint32_t position, uint64_t tag)
{
    return (sim_move){.entry = entry,
                      .position = position,
                      .local = slot_of(d, area, entry),
                      .home = slot_of(d, home_table, position),
                      .tag = tag};
}

bool sim_device_exchange(sim_device *d, sim_home *h, uint32_t pack, uint32_t home_slot,
                         const sim_move *moves, uint32_t n)
{
    const uint32_t b = d->block_tokens;
    CN_ASSERT(home_slot < h->n_slots);
    for (uint32_t i = 0; i < n; i++) {
        const sim_move *m = &moves[i];
        CN_ASSERT(m->entry < h->n_entries && m->local / b < d->n_blocks &&
                  m->home / b < h->n_blocks);
        if (h->kv[pack][m->home] != m->tag) {
            snprintf(d->error, d->error_bytes,
                     "an exchange read a wrong tag at position %u, home block %u, pack %u",
                     m->position, m->home / b, pack);
            return false;
        }
        d->kv[pack][m->local] = h->kv[pack][m->home];
        h->chosen[pack][(size_t)home_slot * h->n_entries + m->entry] = m->position;
    }
    return true;
}

bool sim_device_read_plane(sim_device *d, const sim_home *h, const uint32_t *home_table,
                           const uint64_t *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (h->plane[slot_of(d, home_table, i)] == want[i]) continue;
        snprintf(d->error, d->error_bytes,
                 "a row read a wrong tag at position %u of %u in the plane, home block %u", i, n,
                 home_table[i / d->block_tokens]);
        return false;
    }
    return true;
}

void sim_device_write_plane(sim_device *d, sim_home *h, const uint32_t *home_table,
                            uint32_t position, uint64_t tag)
{
    h->plane[slot_of(d, home_table, position)] = tag;
}
