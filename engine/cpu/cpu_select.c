/* cpu_select.c - selects the slots that an event keeps: top-k by score, or sinks and the newest.
 * Also chooses their target slots when they fill holes.
 *
 * Top-k is a radix selection with digits of one bit. The k-th largest value is built from its
 * highest bit down, with one vectorised count over all scores for each bit. One more pass collects
 * the slots above that value and the highest slots that equal it. No sort, no data-dependent
 * branch. */

#include "engine/base/base.h"
#include "engine/cpu/cpu_compress.h"

/* Maps a float to an unsigned integer of the same order. Both zeros are equal; NaN is lowest. */
static inline uint32_t cpu_ordered_bits(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x + 0.0f};
    if (x != x) return 0;
    return v.u & 0x80000000u ? ~v.u : v.u | 0x80000000u;
}

static uint32_t count_cpu_from(const uint32_t *bits, uint32_t n, uint32_t least)
{
    uint32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (uint32_t i = 0; i < n; i++) count += bits[i] >= least;
    return count;
}

void cn_cpu_select_top(const float *score, uint32_t n, uint32_t k, uint32_t *bits, uint32_t *kept)
{
    CN_ASSERT(k <= n);
    if (k == 0) return;
    for (uint32_t i = 0; i < n; i++) bits[i] = cpu_ordered_bits(score[i]);
    /* The k-th largest score is the largest value that at least k scores reach. */
    uint32_t threshold = 0, n_reach = n;
    for (uint32_t bit = 1u << 31; bit != 0 && n_reach != k; bit >>= 1) {
        uint32_t count = count_cpu_from(bits, n, threshold | bit);
        if (count < k) continue;
        threshold |= bit;
        n_reach = count;
    }
    /* n_reach > k only when several scores equal the threshold. The lowest slots of these are left
     * out. */
    uint32_t n_skip = n_reach - k, at = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t skip = bits[i] == threshold && n_skip > 0;
        n_skip -= skip;
        kept[at] = i;
        at += bits[i] >= threshold && !skip;
        if (at == k) break;
    }
    CN_ASSERT(at == k);
}

void cn_cpu_fill_holes(uint32_t *kept, uint32_t k, uint32_t *scratch)
{
    uint32_t n_stay = 0;
    while (n_stay < k && kept[n_stay] < k) n_stay++;
    const uint32_t n_tail = k - n_stay;
    memcpy(scratch, kept + n_stay, n_tail * sizeof *kept);
    /* Backwards: a kept slot i is at index <= i of kept, so no unread entry is overwritten. */
    for (uint32_t i = k, tail = n_tail; i-- > 0;) {
        const bool stays = n_stay > 0 && kept[n_stay - 1] == i;
        n_stay -= stays;
        kept[i] = stays ? i : scratch[--tail];
    }
}

void cn_cpu_select_window(uint32_t n, uint32_t k, uint32_t sinks, uint32_t *kept)
{
    CN_ASSERT(k <= n);
    for (uint32_t i = 0; i < k; i++) kept[i] = i < sinks ? i : n - k + i;
}
