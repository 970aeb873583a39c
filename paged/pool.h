/* pool.h - the ids of the KV blocks, with reference counts. Knows no memory: where a block's bytes
 * stand is kv_layout.h's business.
 * Owner: cn_scheduler. Thread: engine only. Stage: admission, growth, compression, release.
 *
 * A block is in exactly one of three states:
 *   free         no reference, content worthless; handed out last freed first, so that the memory
 *                touched is that of the most blocks ever held at once;
 *   used         one reference per table that holds it;
 *   cached-only  no reference, but the prefix cache still knows its content: reclaimed, least
 *                recently released first, when the free ones run out.
 *
 *      take          drop (last reference)      drop (last reference), in the prefix cache
 *   free ---> used ------------------> free        used -----------------> cached-only
 *                                                  used <----------------- share
 *                                                  used <----------------- take, reclaimed
 *
 * Paper: §3 (KV cache management), §4.4 (reference counts). */
#ifndef CN_POOL_H
#define CN_POOL_H

#include "engine/base.h"

enum { CN_NO_BLOCK = UINT32_MAX };

typedef struct cn_pool cn_pool;

cn_status cn_pool_create(cn_pool **out, uint32_t n_blocks);
void cn_pool_free(cn_pool *p); /* NULL is fine */

/* `fn` is told of every cached-only block just before it is handed out anew. */
void cn_pool_on_reclaim(cn_pool *p, void (*fn)(void *ctx, uint32_t block), void *ctx);

/* Writes n block ids with one reference each; false, nothing changed, when the pool is short. */
bool cn_pool_try_take(cn_pool *p, uint32_t n, uint32_t *blocks);

/* One more reference to a used or cached-only block. */
void cn_pool_share(cn_pool *p, uint32_t block);

/* One reference less. True when it was the last: the block is free or cached-only now. */
bool cn_pool_drop(cn_pool *p, uint32_t block);

/* Tells the pool whether the prefix cache knows the block. Forgetting a cached-only one frees it.
 */
void cn_pool_set_cached(cn_pool *p, uint32_t block, bool cached);

/* A pinned block belongs to an unfinished compression: it must find no new sharer. */
void cn_pool_set_pinned(cn_pool *p, uint32_t block, bool pinned);

uint32_t cn_pool_refs(const cn_pool *p, uint32_t block);
bool cn_pool_is_cached(const cn_pool *p, uint32_t block);
bool cn_pool_is_pinned(const cn_pool *p, uint32_t block);

uint32_t cn_pool_total(const cn_pool *p);
uint32_t cn_pool_cached_only(const cn_pool *p);
uint32_t cn_pool_available(const cn_pool *p); /* free and cached-only: what a take may have */

/* Checks the three states against each other: NULL, or what is broken. O(n_blocks). */
const char *cn_pool_check(const cn_pool *p);

#endif
