/* pool.c - reference counts, the free list and the list of cached-only blocks. See pool.h.
 * Both lists are doubly linked through the records of the blocks, so every operation on a block is
 * O(1). */
#include "paged/pool.h"

typedef enum block_state { STATE_FREE, STATE_USED, STATE_CACHED_ONLY } block_state;

typedef struct block {
    uint64_t released_at; /* n_released when it last became cached-only */
    uint32_t refs;
    uint32_t prev, next; /* in the list of its state; a used block is in none */
    uint8_t state;
    bool cached, pinned;
} block;

typedef struct block_list {
    uint32_t head, tail, n;
} block_list;

struct cn_pool {
    block *blocks; /* [n_blocks] */
    uint32_t n_blocks;
    block_list free; /* last freed first: its memory is warm, and unused memory stays untouched */
    block_list cached_only; /* least recently released first */
    uint64_t n_released;
    void (*on_reclaim)(void *ctx, uint32_t block);
    void *reclaim_ctx;
};

static void list_append(cn_pool *p, block_list *l, uint32_t id)
{
    block *b = &p->blocks[id];
    b->prev = l->tail;
    b->next = CN_NO_BLOCK;
    if (l->tail == CN_NO_BLOCK)
        l->head = id;
    else
        p->blocks[l->tail].next = id;
    l->tail = id;
    l->n++;
}

static void list_prepend(cn_pool *p, block_list *l, uint32_t id)
{
    block *b = &p->blocks[id];
    b->prev = CN_NO_BLOCK;
    b->next = l->head;
    if (l->head == CN_NO_BLOCK)
        l->tail = id;
    else
        p->blocks[l->head].prev = id;
    l->head = id;
    l->n++;
}

static void list_remove(cn_pool *p, block_list *l, uint32_t id)
{
    const block *b = &p->blocks[id];
    if (b->prev == CN_NO_BLOCK)
        l->head = b->next;
    else
        p->blocks[b->prev].next = b->next;
    if (b->next == CN_NO_BLOCK)
        l->tail = b->prev;
    else
        p->blocks[b->next].prev = b->prev;
    l->n--;
}

static void set_state(cn_pool *p, uint32_t id, block_state state)
{
    block *b = &p->blocks[id];
    if (b->state == STATE_FREE) list_remove(p, &p->free, id);
    if (b->state == STATE_CACHED_ONLY) list_remove(p, &p->cached_only, id);
    b->state = (uint8_t)state;
    if (state == STATE_FREE) list_prepend(p, &p->free, id);
    if (state == STATE_CACHED_ONLY) list_append(p, &p->cached_only, id);
}

cn_status cn_pool_create(cn_pool **out, uint32_t n_blocks)
{
    *out = NULL;
    if (n_blocks == 0 || n_blocks == CN_NO_BLOCK)
        return cn_fail(CN_ERR_ARG, "KV pool of %u blocks: expected 1 to %u", n_blocks,
                       CN_NO_BLOCK - 1);
    cn_pool *p = cn_calloc(1, sizeof *p);
    block *blocks = cn_calloc(n_blocks, sizeof *blocks);
    if (!p || !blocks) {
        cn_free(p);
        cn_free(blocks);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the records of %u KV blocks", n_blocks);
    }
    p->blocks = blocks;
    p->n_blocks = n_blocks;
    p->free = p->cached_only = (block_list){CN_NO_BLOCK, CN_NO_BLOCK, 0};
    for (uint32_t id = 0; id < n_blocks; id++) list_append(p, &p->free, id);
    *out = p;
    return CN_OK;
}

void cn_pool_free(cn_pool *p)
{
    if (!p) return;
    cn_free(p->blocks);
    cn_free(p);
}

void cn_pool_on_reclaim(cn_pool *p, void (*fn)(void *ctx, uint32_t block), void *ctx)
{
    p->on_reclaim = fn;
    p->reclaim_ctx = ctx;
}

static uint32_t take_block(cn_pool *p)
{
    bool reclaim = p->free.n == 0;
    uint32_t id = reclaim ? p->cached_only.head : p->free.head;
    /* Clearing the cached mark of a cached-only block frees it. Then both continue alike. */
    if (reclaim && p->on_reclaim) p->on_reclaim(p->reclaim_ctx, id);
    if (reclaim) cn_pool_set_cached(p, id, false);
    set_state(p, id, STATE_USED);
    p->blocks[id].refs = 1;
    return id;
}

bool cn_pool_try_take(cn_pool *p, uint32_t n, uint32_t *blocks)
{
    if (n > cn_pool_available(p)) return false;
    for (uint32_t i = 0; i < n; i++) blocks[i] = take_block(p);
    return true;
}

uint64_t cn_pool_n_released(const cn_pool *p) { return p->n_released; }

bool cn_pool_try_take_older(cn_pool *p, uint64_t stamp, uint32_t *id)
{
    const uint32_t oldest = p->cached_only.head;
    if (p->free.n == 0 && (oldest == CN_NO_BLOCK || p->blocks[oldest].released_at > stamp))
        return false;
    *id = take_block(p);
    return true;
}

void cn_pool_share(cn_pool *p, uint32_t id)
{
    CN_ASSERT(id < p->n_blocks && p->blocks[id].state != STATE_FREE);
    if (p->blocks[id].state == STATE_CACHED_ONLY) set_state(p, id, STATE_USED);
    p->blocks[id].refs++;
}

bool cn_pool_drop(cn_pool *p, uint32_t id)
{
    CN_ASSERT(id < p->n_blocks && p->blocks[id].refs > 0);
    block *b = &p->blocks[id];
    if (--b->refs > 0) return false;
    CN_ASSERT(!b->pinned);
    if (b->cached) b->released_at = ++p->n_released;
    set_state(p, id, b->cached ? STATE_CACHED_ONLY : STATE_FREE);
    return true;
}

void cn_pool_set_cached(cn_pool *p, uint32_t id, bool cached)
{
    CN_ASSERT(id < p->n_blocks && !(cached && p->blocks[id].state == STATE_FREE));
    p->blocks[id].cached = cached;
    if (!cached && p->blocks[id].state == STATE_CACHED_ONLY) set_state(p, id, STATE_FREE);
}

void cn_pool_set_pinned(cn_pool *p, uint32_t id, bool pinned)
{
    CN_ASSERT(id < p->n_blocks && p->blocks[id].state == STATE_USED);
    p->blocks[id].pinned = pinned;
}

uint32_t cn_pool_refs(const cn_pool *p, uint32_t id) { return p->blocks[id].refs; }
bool cn_pool_is_cached(const cn_pool *p, uint32_t id) { return p->blocks[id].cached; }
bool cn_pool_is_pinned(const cn_pool *p, uint32_t id) { return p->blocks[id].pinned; }

uint32_t cn_pool_total(const cn_pool *p) { return p->n_blocks; }
uint32_t cn_pool_cached_only(const cn_pool *p) { return p->cached_only.n; }
uint32_t cn_pool_available(const cn_pool *p) { return p->free.n + p->cached_only.n; }

/* Checks the length and links of one list and the state of its members. */
static bool list_sound(const cn_pool *p, const block_list *l, block_state state)
{
    uint32_t n = 0, prev = CN_NO_BLOCK;
    for (uint32_t id = l->head; id != CN_NO_BLOCK; id = p->blocks[id].next) {
        if (n++ >= l->n || p->blocks[id].prev != prev || p->blocks[id].state != state) return false;
        prev = id;
    }
    return n == l->n && l->tail == prev;
}

const char *cn_pool_check(const cn_pool *p)
{
    uint32_t used = 0;
    for (uint32_t id = 0; id < p->n_blocks; id++) {
        const block *b = &p->blocks[id];
        used += b->state == STATE_USED;
        if ((b->state == STATE_USED) != (b->refs > 0))
            return "a block is both free and referenced, or neither";
        if (b->state == STATE_FREE && b->cached) return "a free block is in the prefix cache";
        if (b->state == STATE_CACHED_ONLY && !b->cached) return "a cached-only block is not cached";
        if (b->pinned && b->refs != 1) return "a pinned block is unused or shared";
    }
    if (!list_sound(p, &p->free, STATE_FREE)) return "the free list is inconsistent";
    if (!list_sound(p, &p->cached_only, STATE_CACHED_ONLY))
        return "the cached-only list is inconsistent";
    if (used + p->free.n + p->cached_only.n != p->n_blocks)
        return "free, used and cached-only blocks do not add up to the number of blocks";
    return NULL;
}
