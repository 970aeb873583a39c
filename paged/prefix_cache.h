/* prefix_cache.h - finds the pool blocks that already hold the KV of a prefix.
 * Owner: cn_scheduler. Thread: engine only. Stage: admission (find), after a step (insert).
 *
 * An entry maps (parent prefix, block_tokens token ids) to the block that holds their KV. Its key
 * names the prefix that ends with this block. Keys are serial numbers, not hashes, and a
 * lookup compares parent and tokens. By induction from the root, a hit is therefore exact: a hash
 * collision never confuses two prefixes. The model's hash seeds the hash function, so that hashes
 * of different models differ.
 *
 * Only full blocks of uncompressed KV may be inserted. An entry lives as long as its block is used
 * or cached-only. The pool reclaims cached-only blocks, least recently released first. A table
 * releases its blocks tail first, so an entry is normally reclaimed before its parent. An entry
 * whose parent was reclaimed can no longer be found, and is reclaimed later.
 *
 * Paper: §4.4. */
#pragma once

#include "paged/pool.h"
#include "paged/prefix_marks.h"

typedef struct cn_prefix_cache cn_prefix_cache;
typedef uint64_t cn_prefix_key;

enum { CN_PREFIX_ROOT = 0 }; /* key of the empty prefix */

/* Calls cn_pool_on_reclaim on the pool, which must outlive the cache. CN_ERR_MEMORY. */
cn_status cn_prefix_cache_create(cn_prefix_cache **out, cn_pool *pool, uint32_t block_tokens,
                                 uint64_t model_hash);
void cn_prefix_cache_free(cn_prefix_cache *c); /* NULL is fine */

/* Returns the block that holds tokens[block_tokens] after `parent` and sets *key to the parent of
 * the next block; or returns CN_NO_BLOCK. Takes no reference. */
uint32_t cn_prefix_cache_find(const cn_prefix_cache *c, cn_prefix_key parent,
                              const uint32_t *tokens, cn_prefix_key *key);

/* Enters a used block and returns its key. If an equal entry exists, with this block or another,
 * returns the key of that entry and changes nothing. */
cn_prefix_key cn_prefix_cache_insert(cn_prefix_cache *c, cn_prefix_key parent,
                                     const uint32_t *tokens, uint32_t block);

/* Shows other threads the entry of a block, if it has one, as the prefix with this hash, while the
 * entry lives. */
void cn_prefix_cache_mark(cn_prefix_cache *c, uint32_t block, uint64_t hash);
const cn_prefix_marks *cn_prefix_cache_marks(const cn_prefix_cache *c);

/* Removes the entry of a block, if any. Call before the content of the block changes. */
void cn_prefix_cache_forget(cn_prefix_cache *c, uint32_t block);

/* Checks that the entries agree with the pool's cached marks. Returns NULL, or a static text that
 * names what is broken. O(n_blocks). */
const char *cn_prefix_cache_check(const cn_prefix_cache *c);
