/* sim_device.h - a backend without a model. Every KV slot and every row of a query window stores a
 * tag that identifies its content: the hash of the whole prefix that the content depends on. Two
 * sequences may share a block exactly where their tags are equal.
 *
 * The layers are two packs. Each has its own tags, because a step runs its packs one after another
 * and the exchange after a pack runs beside the next one. The swap space and the homes store tags
 * too. Of a home there is also the digest of each tile, the plane of the dense layers, by home
 * block, and `chosen`: the position that each entry of an exchange area has.
 *
 * Stream 0 runs at once. Stream 1 runs each event at some moment between enqueueing and report; a
 * host cannot observe more of two streams. sim_exchange.c runs the streams of the exchanges. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/scheduler.h"

enum { SIM_N_PACKS = 2, SIM_TILE_TOKENS = 2 };

typedef struct sim_home {
    uint32_t n_blocks, n_slots, n_entries;
    uint64_t *kv[SIM_N_PACKS];     /* [n_blocks, block_tokens] */
    uint64_t *digest[SIM_N_PACKS]; /* [n_blocks, block_tokens / SIM_TILE_TOKENS] */
    uint64_t *plane;               /* [n_blocks, block_tokens] on the device: the dense layers */
    uint32_t *chosen[SIM_N_PACKS]; /* [n_slots, n_entries] */
} sim_home;

typedef struct sim_device {
    uint32_t block_tokens, n_blocks, n_slots, window;
    uint64_t *kv[SIM_N_PACKS];      /* [n_blocks, block_tokens] */
    uint64_t *queries[SIM_N_PACKS]; /* [n_slots, window] */
    uint32_t n_host_blocks, n_host_windows;
    uint64_t *host_kv[SIM_N_PACKS];      /* [n_host_blocks, block_tokens] */
    uint64_t *host_queries[SIM_N_PACKS]; /* [n_host_windows, window] */
    sim_home homes[CN_N_HOMES];          /* by cn_kv_home; empty where it is not declared */
    char *error;                         /* description of the first wrong read */
    uint32_t error_bytes;
} sim_device;

/* Sizes come from the scheduler's options. False when memory is short. */
bool sim_device_create(sim_device *d, const cn_sched_opts *o, char *error, uint32_t error_bytes);
void sim_device_free(sim_device *d);

/* Reads the first n slots of a table. False when slot i does not hold want[i]. */
bool sim_device_read(sim_device *d, uint32_t pack, const char *who, const uint32_t *table,
                     const uint64_t *want, uint32_t n);

/* Writes slots first .. first + n - 1 of a table. */
void sim_device_write(sim_device *d, uint32_t pack, const uint32_t *table, uint32_t first,
                      const uint64_t *tags, uint32_t n);

/* Writes the query of a position into the ring of a slot, which has w rows. */
void sim_device_write_query(sim_device *d, uint32_t pack, uint32_t slot, uint32_t w,
                            uint32_t position, uint64_t tag);

/* Reads the n newest queries of the ring of a slot, which has w rows, before the row of `position`.
 * tags[n] are the KV tags of their positions, oldest first. False when one is missing. */
bool sim_device_read_ring(sim_device *d, uint32_t pack, uint32_t slot, uint32_t w,
                          uint32_t position, const uint64_t *tags, uint32_t n);
void sim_device_clear_slot(sim_device *d, uint32_t pack, uint32_t slot);

void sim_device_copy_block(sim_device *d, cn_block_copy c);
void sim_device_copy_slot(sim_device *d, cn_block_copy c);

/* Moves to the swap space (`out`) or back, and clears the old places. */
void sim_device_swap(sim_device *d, const cn_copy_list *m, bool out);

/* Runs a compression: reads the sources and the window, whose tags by position are `positions`,
 * and writes the chosen tags, kept[n_target * block_tokens] in slot order, to the targets. */
bool sim_device_compress(sim_device *d, const cn_compress_req *req, const uint64_t *resident,
                         const uint64_t *positions, const uint64_t *kept);

/* Copies blocks of all packs to a home, as the event of an away request does. With `plane`, their
 * dense layers too. */
void sim_device_put(sim_device *d, sim_home *h, const cn_block_copy *puts, uint32_t n, bool plane);

/* Computes the digests of put blocks from the tags that the home has now. */
void sim_device_digest(sim_device *d, sim_home *h, const cn_block_copy *puts, uint32_t n);

/* A tile whose tokens an exchange ranks: its first position, slot in kv of the home, and tags. */
typedef struct sim_tile {
    uint32_t position, home;
    uint64_t tags[SIM_TILE_TOKENS];
} sim_tile;

/* Reads tokens and digests of tiles. False when the home does not hold a tag, or when a digest was
 * computed from other tags. */
bool sim_device_rank(sim_device *d, const sim_home *h, uint32_t pack, const sim_tile *tiles,
                     uint32_t n);

/* Resolves the tiles that have the positions first .. first + n - 1. tags are by position. Returns
 * their number. */
uint32_t sim_device_tiles(const sim_device *d, const uint32_t *home_table, const uint64_t *tags,
                          uint32_t first, uint32_t n, sim_tile *out);

/* One entry of an exchange: the tag of `position` goes from the home to the device. */
typedef struct sim_move {
    uint32_t entry, position;
    uint32_t local, home; /* slots in kv of the device and of the home */
    uint64_t tag;
} sim_move;

/* Resolves a move into the area of a table. */
sim_move sim_device_move(const sim_device *d, const uint32_t *area, const uint32_t *home_table,
                         uint32_t entry, uint32_t position, uint64_t tag);

/* Runs moves and records them in `chosen`. False when the home does not hold a tag. */
bool sim_device_exchange(sim_device *d, sim_home *h, uint32_t pack, uint32_t home_slot,
                         const sim_move *moves, uint32_t n);

/* Reads the plane of the dense layers up to position n. False when one tag is wrong. */
bool sim_device_read_plane(sim_device *d, const sim_home *h, const uint32_t *home_table,
                           const uint64_t *want, uint32_t n);
void sim_device_write_plane(sim_device *d, sim_home *h, const uint32_t *home_table,
                            uint32_t position, uint64_t tag);

/* The tag in the query window for the position with this KV tag. */
static inline uint64_t sim_query_tag(uint64_t kv_tag) { return ~kv_tag; }
