/* pool.h - the ids of the KV blocks, with reference counts. kv_layout.h defines where the bytes of
 * a block are.
 * Owner: cn_scheduler. Thread: engine only. Stage: admission, growth, compression, release.
 *
 * A block is in exactly one of three states:
 *   free         no reference, content not needed. The last freed block is taken first, so only as
 *                much memory is touched as was ever held at once.
 *   used         one reference for each table that holds it.
 *   cached-only  no reference, but the prefix cache still knows its content. When no block is free,
 *                the least recently released one is reclaimed.
 *
 *      take          drop (last reference)      drop (last reference), in the prefix cache
 *   free ---> used ------------------> free        used -----------------> cached-only
 *                                                  used <----------------- share
 *                                                  used <----------------- take, reclaimed
 *
 * A count of releases is the clock of the pool. It orders the release of a block and the admission
 * of a request.
 *
 * Paper: §3 (KV cache management), §4.4 (reference counts). */
#pragma once

#include "engine/base/base.h"

enum { CN_NO_BLOCK = UINT32_MAX };

typedef struct cn_pool cn_pool;

/* Creates n_blocks free blocks. CN_ERR_ARG for 0 or CN_NO_BLOCK, CN_ERR_MEMORY. */
cn_status cn_pool_create(cn_pool **out, uint32_t n_blocks);
void cn_pool_free(cn_pool *p); /* NULL is fine */

/* Sets the function that the pool calls for every cached-only block before it reclaims it. */
void cn_pool_on_reclaim(cn_pool *p, void (*fn)(void *ctx, uint32_t block), void *ctx);

/* Takes n blocks with one reference each and writes their ids to blocks[n]. Returns false and
 * changes nothing when fewer than n are available. */
bool cn_pool_try_take(cn_pool *p, uint32_t n, uint32_t *blocks);

/* Blocks that have become cached-only so far. */
uint64_t cn_pool_n_released(const cn_pool *p);

/* Takes one block that is free, else the least recently released cached-only block if it was
 * released when cn_pool_n_released() was at most `stamp`. Returns false and changes nothing when
 * there is none. */
bool cn_pool_try_take_older(cn_pool *p, uint64_t stamp, uint32_t *id);

/* Adds a reference to a used or cached-only block. */
void cn_pool_share(cn_pool *p, uint32_t block);

/* Drops a reference. Returns true when it was the last: the block is now free or cached-only. */
bool cn_pool_drop(cn_pool *p, uint32_t block);

/* Sets whether the prefix cache knows the block. Clearing this frees a cached-only block. */
void cn_pool_set_cached(cn_pool *p, uint32_t block, bool cached);

/* A pinned block belongs to an event between start and commit: it must not be newly shared. */
void cn_pool_set_pinned(cn_pool *p, uint32_t block, bool pinned);

uint32_t cn_pool_refs(const cn_pool *p, uint32_t block);
bool cn_pool_is_cached(const cn_pool *p, uint32_t block);
bool cn_pool_is_pinned(const cn_pool *p, uint32_t block);

uint32_t cn_pool_total(const cn_pool *p);
uint32_t cn_pool_cached_only(const cn_pool *p);
uint32_t cn_pool_available(const cn_pool *p); /* free and cached-only: the most a take can get */

/* Checks that states, references and lists agree. Returns NULL, or a static text that names what is
 * broken. O(n_blocks). */
const char *cn_pool_check(const cn_pool *p);
