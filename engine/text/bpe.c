/* bpe.c - byte-pair merges of one word. See bpe.h. */
#include "engine/text/bpe_state.h"

/* An entry of the `ignore_merges` table (open addressing); empty if n is 0. */
typedef struct whole_word {
    size_t at; /* offset in word_text */
    uint32_t n, id;
} whole_word;

/* The cache is direct-mapped: a word replaces the previous word of its line. An entry has the size
 * of one processor cache line. Words and results that do not fit are not cached. */
enum { CACHE_LINES = 1 << 16, CACHE_WORD_BYTES = 32, CACHE_IDS = 7 };
typedef struct word_key {
    uint64_t part[CACHE_WORD_BYTES / 8];
} word_key;
typedef struct cache_line {
    word_key key;
    uint32_t ids[CACHE_IDS];
    uint16_t n_bytes, n_ids; /* n_bytes 0: empty */
} cache_line;
_Static_assert(sizeof(cache_line) == 64, "one cache line");

/* Smallest power of two with room for n entries at half load. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

cn_status cn_bpe_create(cn_bpe **out, const cn_bpe_bytes *bytes, size_t n_merges)
{
    CN_ASSERT(n_merges < UINT32_MAX / 4);
    *out = NULL;
    cn_bpe *b = cn_calloc(1, sizeof *b);
    if (!b) return cn_fail(CN_ERR_MEMORY, "out of memory for the merges");
    b->bytes = *bytes;
    b->most_symbols = 1;
    for (size_t i = 0; i < 256; i++)
        if (bytes->substitutes[i][1] != CN_BPE_NO_TOKEN) b->most_symbols = 2;
    size_t size = table_size(n_merges);
    b->merge_mask = size - 1;
    b->max_merges = (uint32_t)n_merges;
    b->merges = cn_calloc_aligned(size, sizeof *b->merges);
    b->results = cn_calloc(n_merges, sizeof *b->results);
    b->cache = cn_calloc_aligned(CACHE_LINES, sizeof *b->cache);
    if (!b->merges || !b->results || !b->cache) {
        cn_bpe_free(b);
        return cn_fail(CN_ERR_MEMORY, "out of memory for %zu merges", n_merges);
    }
    for (size_t i = 0; i < size; i++) b->merges[i].result = CN_BPE_NO_TOKEN;
    *out = b;
    return CN_OK;
}

void cn_bpe_free(cn_bpe *b)
{
    if (!b) return;
    cn_free(b->merges);
    cn_free(b->results);
    cn_free(b->words);
    cn_buf_free(&b->word_text);
    cn_free(b->cache);
    cn_bpe_work_free(&b->work);
    cn_bpe_work_free(&b->probe);
    cn_free(b);
}

/* Returns the entry of the pair, or the empty entry where it belongs. */
static cn_bpe_merge *find_merge(const cn_bpe *b, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = h >> 32;; i++) {
        cn_bpe_merge *m = &b->merges[i & b->merge_mask];
        if (m->result == CN_BPE_NO_TOKEN || (m->left == left && m->right == right)) return m;
    }
}

void cn_bpe_add_merge(cn_bpe *b, uint32_t left, uint32_t right, uint32_t result)
{
    CN_ASSERT(b->n_merges < b->max_merges && result != CN_BPE_NO_TOKEN);
    uint32_t rank = b->n_merges++;
    b->cuts = CN_BPE_CUTS_UNKNOWN;
    *find_merge(b, left, right) = (cn_bpe_merge){left, right, rank, result};
    b->results[rank] = result;
}

static uint64_t load64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Packs a word of 1 to CACHE_WORD_BYTES bytes into 8-byte parts; the last part may overlap the one
 * before. Two words of the same length are equal if and only if their keys are. From 8 bytes on,
 * every load has 8 bytes, so that no load size depends on the length. */
static inline word_key make_merge_key(const char *word, size_t n)
{
    word_key k = {{0}};
    if (n >= 8) {
        k.part[0] = load64(word);
        if (n > 16) k.part[2] = load64(word + 8);
        if (n > 24) k.part[3] = load64(word + 16);
        k.part[1] = load64(word + n - 8);
    } else if (n >= 4) {
        uint32_t head, tail;
        memcpy(&head, word, 4);
        memcpy(&tail, word + n - 4, 4);
        k.part[0] = (uint64_t)tail << 32 | head;
    } else {
        const unsigned char *w = (const unsigned char *)word;
        k.part[0] = (uint64_t)w[0] << 16 | (uint64_t)w[n / 2] << 8 | w[n - 1];
    }
    return k;
}

static inline bool same_key(const word_key *a, const word_key *b)
{
    uint64_t differ = 0;
    for (size_t i = 0; i < sizeof a->part / sizeof *a->part; i++) differ |= a->part[i] ^ b->part[i];
    return differ == 0;
}

static inline size_t key_line(const word_key *k, size_t n)
{
    const uint64_t m = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t h = (k->part[0] ^ n) * m;
    h = (h ^ h >> 32 ^ k->part[1]) * m;
    h = (h ^ h >> 32 ^ k->part[2] ^ (k->part[3] << 1 | k->part[3] >> 63)) * m;
    return h >> 32 & (CACHE_LINES - 1);
}

/* Returns the entry of the word, or the empty entry where it belongs. */
static whole_word *find_word(const cn_bpe *b, const char *word, size_t n)
{
    for (size_t i = cn_hash64(0, word, n);; i++) {
        whole_word *w = &b->words[i & (b->word_cap - 1)];
        if (w->n == 0 || (w->n == n && memcmp(b->word_text.data + w->at, word, n) == 0)) return w;
    }
}

cn_status cn_bpe_add_word(cn_bpe *b, const char *word, size_t n, uint32_t id)
{
    CN_ASSERT(n > 0 && n <= UINT32_MAX);
    if (2 * (b->n_words + 1) > b->word_cap) {
        whole_word *old = b->words;
        size_t old_cap = b->word_cap, cap = table_size(b->n_words + 1) * 2;
        whole_word *grown = cn_calloc(cap, sizeof *grown);
        if (!grown) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu words", cap);
        b->words = grown;
        b->word_cap = cap;
        for (size_t i = 0; i < old_cap; i++)
            if (old[i].n) *find_word(b, b->word_text.data + old[i].at, old[i].n) = old[i];
        cn_free(old);
    }
    whole_word *w = find_word(b, word, n);
    CN_ASSERT(w->n == 0);
    *w = (whole_word){b->word_text.len, (uint32_t)n, id};
    b->n_words++;
    return cn_buf_add(&b->word_text, word, n);
}

/* ---- merging ---- */

static void heap_push(cn_bpe_work *w, uint64_t key)
{
    CN_ASSERT(w->heap_len < 3 * w->cap);
    size_t i = w->heap_len++;
    for (; i > 0 && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
}

static uint64_t heap_pop(cn_bpe_work *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->heap_len];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->heap_len; i = child) {
        if (child + 1 < w->heap_len && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

/* A heap of 3n entries is enough for n symbols: each adds at most one pair, and each of the at most
 * n - 1 merges adds at most two. */
cn_status cn_bpe_reserve(cn_bpe_work *w, size_t n_symbols)
{
    if (n_symbols <= w->cap) return CN_OK;
    size_t cap = w->cap ? w->cap : 256;
    while (cap < n_symbols) cap *= 2;
    cn_bpe_work_free(w);
    w->ids = cn_realloc(NULL, cap, sizeof *w->ids);
    w->symbols = cn_realloc(NULL, cap, sizeof *w->symbols);
    w->heap = cn_realloc(NULL, 3 * cap, sizeof *w->heap);
    w->cap = cap;
    if (w->ids && w->symbols && w->heap) return CN_OK;
    cn_bpe_work_free(w);
    return cn_fail(CN_ERR_MEMORY, "out of memory to merge a word of %zu symbols", n_symbols);
}

void cn_bpe_work_free(cn_bpe_work *w)
{
    cn_free(w->ids);
    cn_free(w->symbols);
    cn_free(w->heap);
    *w = (cn_bpe_work){0};
}

/* Updates the rank of the pair that starts at symbol i and adds the pair to the heap if it
 * merges. */
static void rank_pair(const cn_bpe *b, cn_bpe_work *w, uint32_t i)
{
    cn_bpe_symbol *s = &w->symbols[i];
    s->rank = CN_BPE_NO_RANK;
    if (s->next == CN_BPE_NOWHERE) return;
    const cn_bpe_merge *m = find_merge(b, s->id, w->symbols[s->next].id);
    if (m->result == CN_BPE_NO_TOKEN) return;
    s->rank = m->rank;
    heap_push(w, (uint64_t)m->rank << 32 | i);
}

void cn_bpe_merge_symbols(const cn_bpe *b, cn_bpe_work *w, const uint32_t *ids, size_t n)
{
    CN_ASSERT(n <= w->cap);
    w->heap_len = 0;
    for (uint32_t i = 0; i < n; i++)
        w->symbols[i] = (cn_bpe_symbol){ids[i], i ? i - 1 : CN_BPE_NOWHERE,
                                        i + 1 < n ? i + 1 : CN_BPE_NOWHERE, CN_BPE_NO_RANK};
    for (uint32_t i = 0; i < n; i++) rank_pair(b, w, i);
    while (w->heap_len) {
        uint64_t key = heap_pop(w);
        uint32_t i = (uint32_t)key, rank = (uint32_t)(key >> 32);
        cn_bpe_symbol *left = &w->symbols[i];
        if (left->rank != rank) continue; /* the pair has changed since it was queued */
        cn_bpe_symbol *right = &w->symbols[left->next];
        left->id = b->results[rank];
        left->next = right->next;
        right->rank = CN_BPE_NO_RANK;
        if (left->next != CN_BPE_NOWHERE) w->symbols[left->next].prev = i;
        rank_pair(b, w, i);
        if (left->prev != CN_BPE_NOWHERE) rank_pair(b, w, left->prev);
    }
}

cn_status cn_bpe_add_symbols(const cn_bpe_work *w, uint32_t end, cn_tokens *out)
{
    for (uint32_t i = 0; i != end; i = w->symbols[i].next)
        CN_TRY(cn_tokens_add(out, &w->symbols[i].id, 1));
    return CN_OK;
}

static cn_status merge_word(cn_bpe *b, const char *word, size_t n, cn_tokens *out)
{
    CN_TRY(cn_bpe_reserve(&b->work, b->most_symbols * n));
    cn_bpe_reader r = {.ids = b->work.ids};
    for (size_t i = 0; i < n; i++) cn_bpe_read_byte(&b->bytes, &r, word[i]);
    cn_bpe_read_end(&b->bytes, &r);
    if (r.len == 0) return CN_OK;
    cn_bpe_merge_symbols(b, &b->work, r.ids, r.len);
    return cn_bpe_add_symbols(&b->work, CN_BPE_NOWHERE, out);
}

/* Encodes a word that is not in the cache. */
static cn_status encode_anew(cn_bpe *b, const char *word, size_t n, cn_tokens *out)
{
    const whole_word *whole = b->words ? find_word(b, word, n) : NULL;
    if (whole && whole->n) return cn_tokens_add(out, &whole->id, 1);
    return merge_word(b, word, n, out);
}

static cn_status encode_long(cn_bpe *b, const char *word, size_t n, cn_tokens *out)
{
    for (size_t at = 0, used; at < n; at += used)
        CN_TRY(cn_bpe_encode_part(b, word + at, n - at, out, &used));
    return CN_OK;
}

cn_status cn_bpe_encode(cn_bpe *b, const char *word, size_t n, cn_tokens *out)
{
    CN_ASSERT(n > 0 && n < (size_t)1 << 30);
    if (n > CN_BPE_LONG_BYTES) return encode_long(b, word, n, out);
    if (n > CACHE_WORD_BYTES) return encode_anew(b, word, n, out);
    word_key key = make_merge_key(word, n);
    cache_line *line = &b->cache[key_line(&key, n)];
    if (line->n_bytes == n && same_key(&line->key, &key)) {
        if (out->cap - out->len < CACHE_IDS) return cn_tokens_add(out, line->ids, line->n_ids);
        memcpy(out->ids + out->len, line->ids, sizeof line->ids); /* fixed size: inlined */
        out->len += line->n_ids;
        return CN_OK;
    }
    size_t before = out->len;
    CN_TRY(encode_anew(b, word, n, out));
    size_t n_ids = out->len - before;
    if (n_ids <= CACHE_IDS) {
        *line = (cache_line){.key = key, .n_bytes = (uint16_t)n, .n_ids = (uint16_t)n_ids};
        memcpy(line->ids, out->ids + before, n_ids * sizeof *line->ids);
    }
    return CN_OK;
}
