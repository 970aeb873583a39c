/* prefix_marks.c - see prefix_marks.h. */
#include "paged/prefix_marks.h"

#include <stdatomic.h>

enum { PLACES_PER_MARK = 4 }; /* an eighth of the marks, or less, is hidden by another one */

struct cn_prefix_marks {
    uint32_t mask; /* places - 1; their number is a power of two */
    _Atomic uint64_t at[]; /* 0: empty */
};

cn_status cn_prefix_marks_create(cn_prefix_marks **out, uint32_t n)
{
    uint64_t places = 1;
    while (places < (uint64_t)PLACES_PER_MARK * n && places < UINT64_C(1) << 31) places *= 2;
    *out = cn_calloc(1, sizeof **out + places * sizeof *(*out)->at);
    if (!*out) return cn_fail(CN_ERR_MEMORY, "out of memory for the marks of %u prefixes", n);
    (*out)->mask = (uint32_t)(places - 1);
    return CN_OK;
}

void cn_prefix_marks_free(cn_prefix_marks *m) { cn_free(m); }

uint64_t cn_prefix_hash(uint64_t before, const uint32_t *tokens, uint32_t n)
{
    uint64_t h = before * UINT64_C(0x9e3779b97f4a7c15) + n;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ tokens[i]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    return h ? h : 1;
}

void cn_prefix_marks_set(cn_prefix_marks *m, uint64_t hash)
{
    atomic_store_explicit(&m->at[hash & m->mask], hash, memory_order_relaxed);
}

void cn_prefix_marks_clear(cn_prefix_marks *m, uint64_t hash)
{
    if (cn_prefix_marks_has(m, hash))
        atomic_store_explicit(&m->at[hash & m->mask], 0, memory_order_relaxed);
}

bool cn_prefix_marks_has(const cn_prefix_marks *m, uint64_t hash)
{
    return atomic_load_explicit(&m->at[hash & m->mask], memory_order_relaxed) == hash;
}
