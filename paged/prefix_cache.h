/* prefix_cache.h - finds the pool blocks that already hold the keys and values of a prefix.
 * Owner: cn_scheduler. Thread: engine only. Stage: admission (find), after a step (insert).
 *
 * An entry says: behind the prefix `parent`, these block_tokens tokens stand in this block. Its own
 * key names the prefix that it ends. Keys are serial numbers, not hashes, and a hit compares parent
 * and tokens, so by induction from the root a hit is exact: no collision can alias two prefixes.
 * The model's hash seeds the table, for a cache that may one day outlive its engine.
 *
 * Only full blocks of uncompressed KV may be inserted. An entry lives as long as its block is used
 * or cached-only; the pool reclaims cached-only blocks, least recently released first. A table
 * gives its blocks back tail first, so an entry is reclaimed before its parent; one whose parent
 * is gone all the same can no longer be found and ages out.
 *
 * Paper: §4.4. */
#ifndef CN_PREFIX_CACHE_H
#define CN_PREFIX_CACHE_H

#include "paged/pool.h"

typedef struct cn_prefix_cache cn_prefix_cache;
typedef uint64_t cn_prefix_key;

enum { CN_PREFIX_ROOT = 0 }; /* key of the empty prefix */

/* Registers itself with the pool, which must outlive it. */
cn_status cn_prefix_cache_create(cn_prefix_cache **out, cn_pool *pool, uint32_t block_tokens,
                                 uint64_t model_hash);
void cn_prefix_cache_free(cn_prefix_cache *c); /* NULL is fine */

/* The block that holds tokens[block_tokens] behind `parent`, and the key for the next one; or
 * CN_NO_BLOCK. Takes no reference. */
uint32_t cn_prefix_cache_find(const cn_prefix_cache *c, cn_prefix_key parent,
                              const uint32_t *tokens, cn_prefix_key *key);

/* Enters a used block and returns its key. Where an equal entry exists, with this block or with
 * another, that entry's key is returned and nothing changes. */
cn_prefix_key cn_prefix_cache_insert(cn_prefix_cache *c, cn_prefix_key parent,
                                     const uint32_t *tokens, uint32_t block);

/* Removes the block's entry, if it has one: its content is about to change. */
void cn_prefix_cache_forget(cn_prefix_cache *c, uint32_t block);

/* Checks that entries and the pool's marks agree: NULL, or what is broken. O(n_blocks). */
const char *cn_prefix_cache_check(const cn_prefix_cache *c);

#endif
