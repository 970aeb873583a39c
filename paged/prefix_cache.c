/* prefix_cache.c - a chained hash table whose entries are the pool's blocks. See prefix_cache.h.
 * A block has at most one entry. Therefore the entries and the tokens that a lookup compares are
 * arrays indexed by block id, and nothing is allocated after create. */
#include "paged/prefix_cache.h"

typedef struct entry {
    cn_prefix_key parent, key; /* key CN_PREFIX_ROOT: the block has no entry */
    uint64_t hash;
    uint64_t mark; /* 0: none */
    uint32_t next; /* in its bucket */
} entry;

struct cn_prefix_cache {
    cn_pool *pool;
    uint32_t block_tokens;
    uint64_t seed;
    cn_prefix_key last_key;
    uint32_t n_buckets; /* power of two */
    uint32_t *buckets;  /* [n_buckets] first block */
    entry *entries;     /* [n_blocks] */
    uint32_t *tokens;   /* [n_blocks, block_tokens] */
    cn_prefix_marks *marks;
};

static void forget_reclaimed(void *ctx, uint32_t block) { cn_prefix_cache_forget(ctx, block); }

cn_status cn_prefix_cache_create(cn_prefix_cache **out, cn_pool *pool, uint32_t block_tokens,
                                 uint64_t model_hash)
{
    CN_ASSERT(block_tokens > 0);
    *out = NULL;
    uint32_t n_blocks = cn_pool_total(pool), n_buckets = 1;
    while (n_buckets < n_blocks && n_buckets < UINT32_C(1) << 31) n_buckets *= 2;
    cn_prefix_cache *c = cn_calloc(1, sizeof *c);
    if (!c) return cn_fail(CN_ERR_MEMORY, "out of memory for the prefix cache");
    c->pool = pool;
    c->block_tokens = block_tokens;
    c->seed = cn_hash64(0, &model_hash, sizeof model_hash);
    c->n_buckets = n_buckets;
    c->buckets = cn_calloc(n_buckets, sizeof *c->buckets);
    c->entries = cn_calloc(n_blocks, sizeof *c->entries);
    c->tokens = cn_calloc((size_t)n_blocks * block_tokens, sizeof *c->tokens);
    if (!c->buckets || !c->entries || !c->tokens) {
        cn_prefix_cache_free(c);
        return cn_fail(CN_ERR_MEMORY, "out of memory for a prefix cache of %u blocks of %u tokens",
                       n_blocks, block_tokens);
    }
    const cn_status status = cn_prefix_marks_create(&c->marks, n_blocks);
    if (status != CN_OK) {
        cn_prefix_cache_free(c);
        return status;
    }
    for (uint32_t i = 0; i < n_buckets; i++) c->buckets[i] = CN_NO_BLOCK;
    cn_pool_on_reclaim(pool, forget_reclaimed, c);
    *out = c;
    return CN_OK;
}

void cn_prefix_cache_free(cn_prefix_cache *c)
{
    if (!c) return;
    cn_prefix_marks_free(c->marks);
    cn_free(c->buckets);
    cn_free(c->entries);
    cn_free(c->tokens);
    cn_free(c);
}

/* A cheap hash, one multiplication and shift a token, because a waiting request's prompt may be
 * hashed in every step. */
static uint64_t hash_block(const cn_prefix_cache *c, cn_prefix_key parent, const uint32_t *tokens)
{
    uint64_t h = c->seed ^ (parent * UINT64_C(0x9e3779b97f4a7c15));
    for (uint32_t i = 0; i < c->block_tokens; i++) {
        h = (h ^ tokens[i]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    return h;
}

static uint32_t find_hashed(const cn_prefix_cache *c, cn_prefix_key parent, const uint32_t *tokens,
                            uint64_t hash)
{
    uint32_t block = c->buckets[hash & (c->n_buckets - 1)];
    for (; block != CN_NO_BLOCK; block = c->entries[block].next) {
        const entry *e = &c->entries[block];
        if (e->hash == hash && e->parent == parent &&
            memcmp(c->tokens + (size_t)block * c->block_tokens, tokens,
                   c->block_tokens * sizeof *tokens) == 0)
            return block;
    }
    return CN_NO_BLOCK;
}

uint32_t cn_prefix_cache_find(const cn_prefix_cache *c, cn_prefix_key parent,
                              const uint32_t *tokens, cn_prefix_key *key)
{
    uint32_t block = find_hashed(c, parent, tokens, hash_block(c, parent, tokens));
    if (block != CN_NO_BLOCK) *key = c->entries[block].key;
    return block;
}

cn_prefix_key cn_prefix_cache_insert(cn_prefix_cache *c, cn_prefix_key parent,
                                     const uint32_t *tokens, uint32_t block)
{
    uint64_t hash = hash_block(c, parent, tokens);
    uint32_t known = find_hashed(c, parent, tokens, hash);
    if (known != CN_NO_BLOCK) return c->entries[known].key;
    CN_ASSERT(cn_pool_refs(c->pool, block) > 0 && !cn_pool_is_cached(c->pool, block));
    uint32_t *bucket = &c->buckets[hash & (c->n_buckets - 1)];
    c->entries[block] = (entry){parent, ++c->last_key, hash, 0, *bucket};
    *bucket = block;
    memcpy(c->tokens + (size_t)block * c->block_tokens, tokens, c->block_tokens * sizeof *tokens);
    cn_pool_set_cached(c->pool, block, true);
    return c->last_key;
}

void cn_prefix_cache_mark(cn_prefix_cache *c, uint32_t block, uint64_t hash)
{
    entry *e = &c->entries[block];
    if (e->key == CN_PREFIX_ROOT || e->mark) return;
    e->mark = hash;
    cn_prefix_marks_set(c->marks, hash);
}

const cn_prefix_marks *cn_prefix_cache_marks(const cn_prefix_cache *c) { return c->marks; }

void cn_prefix_cache_forget(cn_prefix_cache *c, uint32_t block)
{
    entry *e = &c->entries[block];
    if (e->key == CN_PREFIX_ROOT) return;
    uint32_t *link = &c->buckets[e->hash & (c->n_buckets - 1)];
    while (*link != block) link = &c->entries[*link].next;
    *link = e->next;
    if (e->mark) cn_prefix_marks_clear(c->marks, e->mark);
    *e = (entry){0};
    cn_pool_set_cached(c->pool, block, false);
}

const char *cn_prefix_cache_check(const cn_prefix_cache *c)
{
    uint32_t n_blocks = cn_pool_total(c->pool), n_marked = 0, n_found = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        bool known = c->entries[b].key != CN_PREFIX_ROOT;
        if (known != cn_pool_is_cached(c->pool, b))
            return "the prefix cache and the pool disagree on whether a block is cached";
        n_marked += known;
    }
    for (uint32_t i = 0; i < c->n_buckets; i++) {
        for (uint32_t b = c->buckets[i]; b != CN_NO_BLOCK; b = c->entries[b].next) {
            if (c->entries[b].key == CN_PREFIX_ROOT || n_found++ >= n_marked)
                return "a prefix cache bucket has a block without an entry, or a cycle";
        }
    }
    return n_found == n_marked ? NULL : "a prefix cache entry is in no bucket";
}
