/* sim_device.h - a backend without a model. Every KV slot and every row of a query window stores a
 * tag that identifies its content: the hash of the whole prefix that the content depends on. Two
 * sequences may share a block exactly where their tags are equal.
 *
 * The swap space stores tags too. Stream 0 runs at once. Stream 1 runs each event at some moment
 * between enqueueing and report; a host cannot observe more of two streams. */
#ifndef CN_SIM_DEVICE_H
#define CN_SIM_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/scheduler.h"

typedef struct sim_device {
    uint32_t block_tokens, n_blocks, n_slots, window;
    uint64_t *kv;      /* [n_blocks, block_tokens] */
    uint64_t *queries; /* [n_slots, window] */
    uint32_t n_host_blocks, n_host_windows;
    uint64_t *host_kv;      /* [n_host_blocks, block_tokens] */
    uint64_t *host_queries; /* [n_host_windows, window] */
    char *error;       /* description of the first wrong read */
    uint32_t error_bytes;
} sim_device;

/* Sizes come from the scheduler's options. False when memory is short. */
bool sim_device_create(sim_device *d, const cn_sched_opts *o, char *error, uint32_t error_bytes);
void sim_device_free(sim_device *d);

/* Reads the first n slots of a table. False when slot i does not hold want[i]. */
bool sim_device_read(sim_device *d, const char *who, const uint32_t *table, const uint64_t *want,
                     uint32_t n);

/* Writes slots first .. first + n - 1 of a table. */
void sim_device_write(sim_device *d, const uint32_t *table, uint32_t first, const uint64_t *tags,
                      uint32_t n);

/* Writes the query of a position into the ring of a slot. */
void sim_device_write_query(sim_device *d, uint32_t slot, uint32_t w, uint32_t position,
                            uint64_t tag);

/* Reads the ring of a slot before the row of `position`: the queries of the `rows` positions before
 * it, whose KV tags are tags[position]. False when one is missing. */
bool sim_device_read_ring(sim_device *d, uint32_t slot, uint32_t rows, uint32_t position,
                          const uint64_t *tags);
void sim_device_clear_slot(sim_device *d, uint32_t slot);

void sim_device_copy_block(sim_device *d, cn_block_copy c);
void sim_device_copy_slot(sim_device *d, cn_block_copy c);

/* Moves to the swap space (`out`) or back, and clears the old places. */
void sim_device_swap(sim_device *d, const cn_copy_list *m, bool out);

/* Runs a compression: reads the sources and the window, whose tags by position are `positions`,
 * and writes the chosen tags, kept[n_target * block_tokens] in slot order, to the targets. */
bool sim_device_compress(sim_device *d, const cn_compress_req *req, const uint64_t *resident,
                         const uint64_t *positions, const uint64_t *kept);

/* The tag in the query window for the position with this KV tag. */
static inline uint64_t sim_query_tag(uint64_t kv_tag) { return ~kv_tag; }

#endif
