/* select.cu - select: the best candidates of each unit, in ascending order.
 * In: score u16, ragged as in cn_score_args. Out: list [units, list_stride]. A unit is a cluster of
 * 8, 4 or 2 blocks, each with a part of the candidates, or one block: without clusters, for tiles,
 * which are few, and in a launch of so many units that one block each fills the GPU. A graph does
 * not know the number of candidates, so the number of blocks depends on the number of units alone,
 * and the list on neither. Block 256. Small blocks leave room for those of the next kernel, so that
 * its launch is hidden.
 *
 * Two histograms of 8 bits find the lowest selected score. Each block stores its histogram into the
 * shared memory of all blocks of the unit. An mbarrier there counts the bytes that arrive. The
 * barrier of the cluster takes longer, because it orders all memory accesses with a fence of the
 * whole device. Each block then finds the same score, and how many selected candidates the parts
 * before its own have. Then it lists its own: each thread has some candidates in a row, and a scan
 * of their numbers says where they go. Few candidates are spread over all threads, so that each
 * thread has few steps.
 *
 * Where `score` counts the scores that it has stored (cn_score_launch), a block waits for those
 * of its unit only, and not for the end of `score`. The counts of high bytes are the first
 * histogram.
 *
 * The last blocks end some microseconds after the others, because clusters that find no room beside
 * `score` share the multiprocessors that become free first. With `done` the blocks of
 * attn_lists fetch their first tiles as soon as the lists of these tiles are finished. The first
 * block of a unit clears its count before it lets attn_lists start. It need not wait for the
 * kernels before: `score` has waited for the attention that read the count last. Each block adds
 * its part when it has stored its entries.
 *
 * Bytes read: 2 n per unit, three times from the L2 cache where they exceed the registers. Bytes
 * written: 4 per list entry. CPU version: cpu_sel_list.c. */
#include "cuda/select/select_list.cuh"
#include "cuda/select/select_route.h"

/* The arrays of the step are read before the wait. `score` lets the next kernel start only after it
 * has waited for all kernels that write them. A kernel between it and this one is one of `score`.
 *
 * A block must not end while others of its cluster may still store into its shared memory. It waits
 * for the last histograms of all of them, and nothing is stored there afterwards. The blocks of a
 * unit that selects nothing exchange nothing.
 *
 * unit_counts: those of all units, if `score` counts what it stores, else NULL. With them a block
 * waits for the end of `score` when its work is done. */
template <uint32_t PARTS>
__global__ static void __launch_bounds__(THREADS, 4)
    select_kernel(const __grid_constant__ cn_select_args a, uint32_t *unit_counts, uint32_t *done)
{
    __shared__ select_shared<PARTS> shared;
    const cn_sel_unit u = cn_sel_unit_of(blockIdx.x / PARTS, a.n_layers, a.n_kv_heads);
    begin_list(done, u, blockIdx.x % PARTS);
    cn_touch_params(a);
    open_shared(&shared);
    const select_row r = load_select_row(a, u.seq);
    const uint32_t n_forced = min(r.n_forced, a.list_stride), k = min(r.k, r.n);
    const select_list l = open_list<PARTS>(a, u, r, n_forced);
    uint32_t *counts = unit_counts ? unit_counts + (size_t)u.index * CN_COUNTS : NULL;
    if (!counts) cn_wait_previous();
    else if (k > 0 || l.part == 0) cn_count_wait(counts + CN_COUNT_STORED, r.n);
    const select_scores held = load_chunk(l, l.first);
    uint32_t n_high = counts ? counts[own_digit()] : 0;
    list_forced(a, u, l.part, n_forced);
    if (k > 0) {
        if (!counts) {
            count_bins(l, held, 0, 0, &shared);
            n_high = unit_high(l.part, &shared);
        }
        select_unit(l, held, find_high(n_high, k, &shared), counts, &shared);
    } else if (counts && l.part == 0) {
        clear_counts(counts); /* no other block waits for them */
    }
    end_list<PARTS>(done, u);
    if (counts) cn_wait_previous(); /* every kernel must: see launch.cuh */
}

template <uint32_t PARTS>
static cn_status launch_select(cn_stream *s, const cn_select_args *a, uint32_t n_units,
                               uint32_t *counts, uint32_t *done)
{
    cn_launch how = {dim3(n_units * PARTS), THREADS};
    if (PARTS > 1) how.cluster = PARTS;
    return cn_cuda_launch(s, "select", select_kernel<PARTS>, how, *a, counts, done);
}

cn_status cn_select_launch(cn_stream *s, const cn_select_args *a, uint32_t *counts, uint32_t *done)
{
    const uint32_t n_units = a->n_seqs * a->n_layers * a->n_kv_heads;
    if (n_units == 0) return CN_OK;
    /* More blocks than these would take longer to launch than they save. */
    const cn_cuda_device *dev = &s->cuda->device;
    const bool clusters = dev->hopper && a->tokens;
    if (clusters && 8 * n_units <= 3 * dev->n_sms)
        return launch_select<8>(s, a, n_units, counts, done);
    if (clusters && n_units <= dev->n_sms) return launch_select<4>(s, a, n_units, counts, done);
    if (clusters && n_units <= 2 * dev->n_sms) return launch_select<2>(s, a, n_units, counts, done);
    return launch_select<1>(s, a, n_units, counts, done);
}

extern "C" cn_status cn_cuda_select(cn_stream *s, const cn_select_args *a)
{
    return cn_select_launch(s, a, NULL, NULL);
}
