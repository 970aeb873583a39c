/* cpu_sel_list.c - select: the best candidates of each unit, in ascending order. Tasks are units.
 *
 * The lowest selected score is found bit by bit: each of 16 passes counts the scores that are at
 * least a value. One more pass takes all candidates above the lowest selected score and the newest
 * of those equal to it. Time is linear in the number of candidates. */
#include "engine/cpu/cpu_ops.h"

enum { COUNT_BLOCK = 32768 /* scores that are counted in 16 bits */ };

/* Returns how many scores are at least `least`. */
static uint32_t count_from(const uint16_t *score, uint32_t n, uint16_t least)
{
    uint32_t total = 0;
    for (uint32_t start = 0; start < n; start += COUNT_BLOCK) {
        const uint32_t end = cn_min_u32(n, start + COUNT_BLOCK);
        uint16_t count = 0;
#pragma omp simd reduction(+ : count)
        for (uint32_t c = start; c < end; c++) count = (uint16_t)(count + (score[c] >= least));
        total += count;
    }
    return total;
}

/* Returns the k-th largest score, 1 <= k <= n, bit by bit. */
static uint16_t lowest_selected(const uint16_t *score, uint32_t n, uint32_t k)
{
    uint32_t lowest = 0;
    for (uint32_t bit = 1U << 15; bit > 0; bit >>= 1)
        if (count_from(score, n, (uint16_t)(lowest | bit)) >= k) lowest |= bit;
    return (uint16_t)lowest;
}

/* Writes the numbers of the best k candidates, ascending, 1 <= k <= n: all above the lowest
 * selected score, and the newest of those equal to it. */
static void take_from_threshold(uint32_t *list, const uint16_t *score, uint32_t n, uint32_t k)
{
    const uint16_t lowest = lowest_selected(score, n, k);
    const uint32_t n_above =
        lowest == UINT16_MAX ? 0 : count_from(score, n, (uint16_t)(lowest + 1));
    uint32_t n_equal = k - n_above, first_equal = n;
    while (n_equal > 0) n_equal -= score[--first_equal] == lowest;
    for (uint32_t c = 0, at = 0; at < k; c++) {
        list[at] = c;
        at += score[c] > lowest || (score[c] == lowest && c >= first_equal);
    }
}

static void select_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const cn_select_args *a = ctx;
    const uint32_t head = task % a->n_kv_heads, layer = task / a->n_kv_heads % a->n_layers;
    const uint32_t seq = task / a->n_kv_heads / a->n_layers, n = a->n[seq];
    const cn_sel_stage *stage = &a->stage[seq];
    if (!stage->active) return;
    const uint32_t log2 = stage->entry_log2, base = a->base[seq], k = cn_min_u32(a->k[seq], n);
    const uint16_t *score =
        a->score + ((size_t)a->first[seq] * a->n_layers + (size_t)layer * n) * a->n_kv_heads +
        (size_t)head * n;
    uint32_t *list = a->list + (size_t)task * a->list_stride;
    const uint32_t *tiles = a->tiles ? a->tiles + (size_t)task * a->tile_stride : NULL;
    const uint32_t n_forced = a->tokens ? a->n_forced[seq] : 0;
    for (uint32_t i = 0; i < n_forced; i++) list[i] = i;
    list += n_forced;
    if (k > 0) take_from_threshold(list, score, n, k);
    if (!a->tokens) {
        for (uint32_t i = 0; i < k; i++) list[i] += base >> log2;
        return;
    }
    /* The tokens of an entry are at or after its number, so the last entry comes first. */
    for (uint32_t i = k; i-- > 0;) {
        const uint32_t c = list[i];
        const uint32_t position =
            stage->in_tiles ? tiles[c / CN_DIGEST_TILE] * CN_DIGEST_TILE + c % CN_DIGEST_TILE
                            : base + (c << log2);
        for (uint32_t j = 1U << log2; j-- > 0;) list[(i << log2) + j] = position + j;
    }
}

static cn_status check_list_room(const cn_select_args *a)
{
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        if (!a->stage[s].active) continue;
        uint32_t n = cn_min_u32(a->k[s], a->n[s]);
        if (a->tokens) n = (n << a->stage[s].entry_log2) + a->n_forced[s];
        if (n > a->list_stride)
            return cn_fail(CN_ERR_SHAPE,
                           "select: list of %u slots of sequence %u: expected at most %u", n, s,
                           a->list_stride);
    }
    return CN_OK;
}

cn_status cn_cpu_select(cn_stream *s, const cn_select_args *a)
{
    CN_TRY(check_list_room(a));
    cn_cpu_parallel(s, a->n_seqs * a->n_layers * a->n_kv_heads, select_task, (void *)(uintptr_t)a);
    return CN_OK;
}
