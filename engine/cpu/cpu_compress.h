/* cpu_compress.h - compression events on the CPU: score, select, move (DESIGN.md §2, paper C).
 *
 * Thread: that of the event stream, one event at a time. Nothing here allocates, locks or starts a
 * thread. The work of one (layer, kv head) is a cn_score_job and ends before the next begins.
 * Therefore its keys are read from the pool once and stay in the cache, and a request's result
 * depends only on that request. Matrix products use OpenBLAS, which the backend limits to one
 * thread. */
#pragma once

#include "engine/cpu/score.h"

/* Op table entry `compress`. Returns when every request is done. CN_ERR_ARG names the request's
 * field and value; requests before the faulty one are then done, and it and later ones are
 * unchanged. Keys, values and queries are f32. */
cn_status cn_cpu_compress(cn_stream *s, const cn_compress_args *a);

/* Op table entry `compress_scratch_bytes`. Requests have up to n_max slots and run one at a time,
 * so the scratch is that of one request: O(n_max * head_dim). */
size_t cn_cpu_compress_scratch_bytes(cn_backend *be, const cn_pools *pools, uint32_t n_max);

/* The values of cn_keep that the CPU supports, each with the function that chooses the kept slots
 * of a unit. The bits of `keeps` and the table of choosers are made of this list. */
#define CN_CPU_CHOOSERS(ROW) ROW(CN_KEEP_RECENT, choose_recent) ROW(CN_KEEP_BEST, choose_best)
#define CN_CPU_KEEP_BIT(KEEP, choose) | 1U << KEEP
enum { CN_CPU_KEEPS = 0 CN_CPU_CHOOSERS(CN_CPU_KEEP_BIT) };

/* ---- the parts of an event ---- */

/* out[d, n] = the keys of (layer, kv head), one column for each slot, in order of slots. */
void cn_cpu_gather_keys(const cn_pools *pools, const cn_compress_req *req, uint32_t layer,
                        uint32_t kv_head, float *out);

/* kept[0..k) = the slots of the k largest scores, ascending. Of equal scores the higher slot is
 * kept. NaN counts as the lowest score. k <= n; bits[n] is scratch; kept has room for n. O(n). */
void cn_cpu_select_top(const float *score, uint32_t n, uint32_t k, uint32_t *bits, uint32_t *kept);

/* Reorders kept[k], given ascending, for move `fill`: kept[i] = i if slot i < k is kept, and the
 * kept slots from k on go to the other places, ascending. Only these rows move. scratch[k]. */
void cn_cpu_fill_holes(uint32_t *kept, uint32_t k, uint32_t *scratch);

/* kept[k] for policy `window`: the first min(sinks, k) slots, then the last ones, ascending. */
void cn_cpu_select_window(uint32_t n, uint32_t k, uint32_t sinks, uint32_t *kept);

/* The blocks that the moves of an event would overwrite before their slots are read. They are
 * copied to the stage first. Source block i is staged if it is also a target block j < i. Kept
 * slots only move to lower or equal indices, so every other overlap is safe in the order of
 * targets. */
typedef struct cn_cpu_stage {
    uint32_t *index; /* [n_blocks] index in the stage, or CN_CPU_NOT_STAGED */
    uint32_t n_staged;
} cn_cpu_stage;
#define CN_CPU_NOT_STAGED UINT32_MAX

/* Fills stage from the request's tables. The caller provides index[n_blocks]. */
void cn_cpu_stage_plan(const cn_compress_req *req, uint32_t *index, cn_cpu_stage *stage);
/* Floats of staging memory for a request of n slots with any tables. */
size_t cn_cpu_stage_floats(const cn_pools *pools, uint32_t n);

/* Paper C.6, algorithm 4. Moves K, V and, if the pools have them, F and P of the kept slots of
 * (layer, kv head) into the target blocks: target slot i receives slot kept[i]. */
void cn_cpu_compact(const cn_pools *pools, const cn_compress_req *req, uint32_t layer,
                    uint32_t kv_head, const uint32_t *kept, const cn_cpu_stage *stage,
                    float *stage_mem);
