/* bpe_part.c - the tokens of a long word, part by part. See bpe.h.
 *
 * S is the sequence of symbols that a word begins as, E(S) its tokens after all merges, and a
 * border of E(S) an index in S where one of its tokens ends.
 *   1. If p is a border of E(S), then E(S) = E(S[0, p)) E(S[p, n)): no merge crosses p, and the
 *      merges on both sides do not see each other.
 *   2. If every merge has a higher rank than the merges that make its two parts, merges run in the
 *      order of their ranks. Whether p is a border of E(S) then depends only on the symbols of the
 *      last token of E(S[0, p)) and of the first token of E(S[p, n)): which symbols meet at p at
 *      each rank follows from these two tokens, by 1.
 *   3. K is the most symbols of a token. If n >= e, E(S) has a border in [e - K, e].
 * A part is found so: compute E(S[0, e)). Take one of its borders q, with the token t after q, such
 * that E(S[q, j)) begins with t for every j in [e - K, e]. By 2, q is a border of each E(S[0, j)).
 * By 3 and 1 it is a border of E(S), whatever follows e. So E(S) begins with E(S[0, q)), which is
 * known, and the rest is E(S[q, n)).
 *
 * Merges that a trainer made fulfil 2. With others a word is one part. */
#include "engine/text/bpe_state.h"

enum {
    MAX_PART_BYTES = 1 << 20, /* unless no cut is found */
    PROBES = 4                /* borders that are tried before the part grows */
};

/* ---- the merges ---- */

/* Of each token, for rule 2. */
typedef struct measures {
    uint32_t *made;    /* [n] 1 + the highest rank that makes the token; 0: none does */
    uint32_t *lengths; /* [n] symbols; 0: the token does not occur */
    const cn_bpe_merge **by_rank; /* [n_merges] NULL: the pair has a later rank */
    size_t n;
} measures;

static void free_measures(measures *m)
{
    cn_free(m->made);
    cn_free(m->lengths);
    cn_free((void *)m->by_rank);
}

static void raise_to(uint32_t *most, uint32_t id)
{
    if (id != CN_BPE_NO_TOKEN && id > *most) *most = id;
}

static size_t count_ids(const cn_bpe *b)
{
    uint32_t most = 0;
    raise_to(&most, b->bytes.unknown);
    for (size_t i = 0; i < 256; i++) {
        raise_to(&most, b->bytes.ids[i]);
        for (int k = 0; k < 2; k++) raise_to(&most, b->bytes.substitutes[i][k]);
    }
    for (size_t i = 0; i <= b->merge_mask; i++) {
        const cn_bpe_merge *m = &b->merges[i];
        if (m->result == CN_BPE_NO_TOKEN) continue;
        raise_to(&most, m->result);
        raise_to(&most, m->left);
        raise_to(&most, m->right);
    }
    return (size_t)most + 1;
}

static void note_symbol(measures *m, uint32_t id)
{
    if (id != CN_BPE_NO_TOKEN) m->lengths[id] = 1;
}

static cn_status open_measures(const cn_bpe *b, measures *m)
{
    m->n = count_ids(b);
    m->made = cn_calloc(m->n, sizeof *m->made);
    m->lengths = cn_calloc(m->n, sizeof *m->lengths);
    m->by_rank = cn_calloc((size_t)b->n_merges + 1, sizeof *m->by_rank);
    if (!m->made || !m->lengths || !m->by_rank)
        return cn_fail(CN_ERR_MEMORY, "out of memory to measure %zu tokens", m->n);
    note_symbol(m, b->bytes.unknown);
    for (size_t i = 0; i < 256; i++) {
        note_symbol(m, b->bytes.ids[i]);
        for (int k = 0; k < 2; k++) note_symbol(m, b->bytes.substitutes[i][k]);
    }
    for (size_t i = 0; i <= b->merge_mask; i++) {
        const cn_bpe_merge *merge = &b->merges[i];
        if (merge->result == CN_BPE_NO_TOKEN) continue;
        m->by_rank[merge->rank] = merge;
        m->made[merge->result] = cn_max_u32(m->made[merge->result], merge->rank + 1);
    }
    return CN_OK;
}

/* Checks rule 2 and finds K. */
static bool measure_lengths(const cn_bpe *b, measures *m, size_t *longest)
{
    *longest = 1;
    for (uint32_t rank = 0; rank < b->n_merges; rank++) {
        const cn_bpe_merge *merge = m->by_rank[rank];
        if (!merge) continue;
        if (m->made[merge->left] > rank || m->made[merge->right] > rank) return false;
        const uint32_t left = m->lengths[merge->left], right = m->lengths[merge->right];
        if (left == 0 || right == 0) continue;
        if (left + right > MAX_PART_BYTES) return false;
        m->lengths[merge->result] = cn_max_u32(m->lengths[merge->result], left + right);
        if (left + right > *longest) *longest = left + right;
    }
    return true;
}

/* A probe costs 2 K^2 symbols or more. */
static size_t usual_part(size_t longest)
{
    const size_t want = 16 * longest * longest;
    if (want < CN_BPE_LONG_BYTES) return CN_BPE_LONG_BYTES;
    return want < MAX_PART_BYTES ? want : MAX_PART_BYTES;
}

static cn_status find_bpe_cuts(cn_bpe *b)
{
    measures m = {0};
    const cn_status status = open_measures(b, &m);
    if (status == CN_OK)
        b->cuts = measure_lengths(b, &m, &b->longest) ? CN_BPE_CUTS_FOUND : CN_BPE_CUTS_NONE;
    free_measures(&m);
    b->part_bytes = usual_part(b->longest);
    return status;
}

/* ---- parts ---- */

/* Reads the symbols of word[0 .. end) into b->work.ids. False when they may not be the first ones
 * of the word, because what an unknown byte becomes depends on the bytes after it. */
static bool read_bpe_window(cn_bpe *b, const char *word, size_t end, size_t n, size_t *n_symbols)
{
    cn_bpe_reader r = {.ids = b->work.ids};
    for (size_t i = 0; i < end; i++) cn_bpe_read_byte(&b->bytes, &r, word[i]);
    const bool is_open = r.is_unknown;
    cn_bpe_read_end(&b->bytes, &r);
    *n_symbols = r.len;
    return !is_open || end == n;
}

/* The bytes that became the first q symbols of a word; 0: q is inside a byte. */
static size_t bytes_before(const cn_bpe *b, const char *word, size_t end, size_t q)
{
    cn_bpe_reader r = {0};
    size_t i = 0;
    while (i < end && r.len < q) cn_bpe_read_byte(&b->bytes, &r, word[i++]);
    return r.len == q && !r.is_unknown ? i : 0;
}

/* Whether E(S[q, j)) begins with the token at q of E(S[0, e)), which is in b->work, for every j in
 * [e - K, e]. */
static bool is_cut(cn_bpe *b, size_t e, uint32_t q)
{
    const cn_bpe_symbol *token = &b->work.symbols[q], *first = &b->probe.symbols[0];
    const uint32_t n = token->next - q;
    for (size_t j = e - b->longest; j < e; j++) {
        cn_bpe_merge_symbols(b, &b->probe, b->work.ids + q, j - q);
        if (first->id != token->id || first->next != n) return false;
    }
    return true;
}

/* Finds a border of E(S[0, e)), which is in b->work, where the word can be cut. *cut is its index
 * and *used the bytes before it; 0: none of those that were tried. */
static cn_status find_cut(cn_bpe *b, const char *word, size_t end, size_t e, uint32_t *cut,
                          size_t *used)
{
    const cn_bpe_symbol *symbols = b->work.symbols;
    size_t back = 2 * b->longest;
    uint32_t q = 0;
    *used = 0;
    if (e <= back) return CN_OK;
    while (symbols[q].next < e - back) q = symbols[q].next;
    for (int i = 0; i < PROBES; i++, back *= 2) {
        while (q > 0 && q + back > e) q = symbols[q].prev;
        if (q == 0) return CN_OK;
        CN_TRY(cn_bpe_reserve(&b->probe, e - q));
        const size_t bytes = bytes_before(b, word, end, q);
        if (bytes == 0 || !is_cut(b, e, q)) continue;
        *cut = q;
        *used = bytes;
        return CN_OK;
    }
    return CN_OK;
}

cn_status cn_bpe_encode_part(cn_bpe *b, const char *word, size_t n, cn_tokens *out, size_t *used)
{
    CN_ASSERT(n > 0 && n < (size_t)1 << 30);
    if (b->cuts == CN_BPE_CUTS_UNKNOWN) CN_TRY(find_bpe_cuts(b));
    const size_t usual = b->cuts == CN_BPE_CUTS_FOUND ? b->part_bytes : n;
    uint32_t cut = CN_BPE_NOWHERE;
    size_t e = 0;
    *used = 0;
    for (size_t end = usual; *used == 0; end *= 2) {
        if (end > n) end = n;
        CN_TRY(cn_bpe_reserve(&b->work, b->most_symbols * end));
        const bool is_whole = read_bpe_window(b, word, end, n, &e);
        if (!is_whole) continue;
        if (e > 0) cn_bpe_merge_symbols(b, &b->work, b->work.ids, e);
        if (end == n) *used = n;
        if (end < n && e > 0) CN_TRY(find_cut(b, word, end, e, &cut, used));
    }
    const cn_status status = e > 0 ? cn_bpe_add_symbols(&b->work, cut, out) : CN_OK;
    if (b->work.cap > b->most_symbols * MAX_PART_BYTES) cn_bpe_work_free(&b->work);
    return status;
}
