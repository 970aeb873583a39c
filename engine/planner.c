/* planner.c - eq. 1 and 2 of the paper in 64-bit integers. See planner.h. */
#include "engine/planner.h"

#include <unistd.h>

#include "compress/policy.h"
#include "compress/selector.h"

enum { RING_PERCENT = 5 }; /* of the KV memory, for query slots where no policy has a cap */

static uint64_t block_bytes(const cn_planner_input *in)
{
    const cn_kv_layout l = cn_kv_layout_make(in->n_layers, 1, in->n_kv_heads, in->block_tokens,
                                             in->head_dim, in->kv_dtype);
    const uint32_t planes = in->planes | 1U << CN_PLANE_KV;
    uint64_t bytes = 0;
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++)
        if (planes >> i & 1) bytes += cn_block_plane_bytes(&l, (cn_block_plane)i);
    return bytes * in->n_layers;
}

static uint64_t query_slot_bytes(const cn_planner_input *in)
{
    return (uint64_t)in->n_layers * in->window_tokens * in->n_heads * in->head_dim *
           cn_dtype_bytes(in->act_dtype);
}

static uint32_t clamp_u32(uint64_t n) { return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n; }

/* Computes N_total and M from avail_bytes. */
static void divide(cn_memory_plan *p, const cn_planner_input *in)
{
    const uint64_t n_max = in->n_max_blocks;
    if (in->n_blocks_override) {
        p->n_blocks = in->n_blocks_override;
        p->n_query_slots = n_max ? (uint32_t)(p->n_blocks / n_max) : in->max_seqs;
    } else if (n_max == 0) {
        const uint64_t slots_bytes = in->avail_bytes / 100 * RING_PERCENT;
        if (in->window_tokens > 0) {
            const uint32_t most = clamp_u32(slots_bytes / p->query_slot_bytes);
            p->n_query_slots = cn_min_u32(cn_max_u32(most, 1), in->max_seqs);
        }
        const uint64_t taken = p->n_query_slots * p->query_slot_bytes;
        p->n_blocks = taken < in->avail_bytes
                          ? clamp_u32((in->avail_bytes - taken) / p->block_bytes)
                          : 0;
    } else {
        const uint64_t request_bytes = p->block_bytes * n_max + p->query_slot_bytes;
        p->n_query_slots = clamp_u32(in->avail_bytes / request_bytes);
        /* avail / (m_kv' + m_q / N_max), with both sides times N_max to stay in integers. */
        const unsigned __int128 blocks = (unsigned __int128)in->avail_bytes * n_max / request_bytes;
        p->n_blocks = blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)blocks;
    }
    if (in->window_tokens == 0) p->n_query_slots = 0;
    if (p->n_query_slots <= in->max_seqs) return;
    p->n_query_slots = in->max_seqs;
    if (in->n_blocks_override) return;
    const uint64_t left = in->avail_bytes - p->n_query_slots * p->query_slot_bytes;
    p->n_blocks = clamp_u32(left / p->block_bytes);
}

/* The swap space: as many requests at the default budget as fit, and more blocks with the rest. */
static cn_status divide_swap(cn_memory_plan *p, const cn_planner_input *in)
{
    if (in->swap_bytes == 0) return CN_OK;
    if (in->n_max_blocks == 0)
        return cn_fail(CN_ERR_ARG,
                       "--swap-space %.4g: only compressed requests use it, and no declared policy "
                       "compresses: add one to --kv-policies, or set --swap-space 0",
                       cn_gib(in->swap_bytes));
    const uint64_t request_bytes = p->block_bytes * in->n_max_blocks + p->query_slot_bytes;
    p->n_swap_requests = clamp_u32(in->swap_bytes / request_bytes);
    if (p->n_swap_requests == 0)
        return cn_fail(CN_ERR_ARG,
                       "--swap-space %.4g: %llu bytes are too few for one compressed request, "
                       "which needs %llu (%u blocks of %u tokens): raise it to %.4g, lower "
                       "--kv-budget, or set it to 0",
                       cn_gib(in->swap_bytes), (unsigned long long)in->swap_bytes,
                       (unsigned long long)request_bytes, in->n_max_blocks, in->block_tokens,
                       cn_gib(request_bytes) * 1.0001);
    p->n_swap_windows = in->window_tokens ? p->n_swap_requests : 0;
    const uint64_t window_bytes = p->n_swap_windows * p->query_slot_bytes;
    p->n_swap_blocks = clamp_u32((in->swap_bytes - window_bytes) / p->block_bytes);
    p->swap_bytes = p->n_swap_blocks * p->block_bytes + window_bytes;
    return CN_OK;
}

cn_status cn_memory_plan_divide(cn_memory_plan *out, const cn_planner_input *in)
{
    CN_ASSERT(in->block_tokens > 0 && in->n_layers > 0 && in->max_seqs > 0);
    cn_memory_plan p = {
        .block_tokens = in->block_tokens,
        .window_tokens = in->window_tokens,
        .n_max_blocks = in->n_max_blocks,
        .planes = in->planes,
        .block_bytes = block_bytes(in),
        .query_slot_bytes = query_slot_bytes(in),
    };
    divide(&p, in);

    /* One full block and the next one, or one capped request. */
    const uint32_t least = cn_max_u32(2, in->n_max_blocks);
    const bool short_of_slots = in->window_tokens > 0 && p.n_query_slots == 0;
    if (p.n_blocks < least || short_of_slots) {
        const uint64_t need = least * p.block_bytes + p.query_slot_bytes;
        if (in->n_blocks_override)
            return cn_fail(CN_ERR_MEMORY,
                           "%u KV blocks are too few for one request, which needs %u blocks of %u "
                           "tokens: raise --num-gpu-blocks-override%s",
                           p.n_blocks, least, in->block_tokens,
                           in->n_max_blocks ? " or lower --kv-budget" : "");
        return cn_fail(CN_ERR_MEMORY,
                       "%llu bytes of KV cache are too few for one request, which needs %u blocks "
                       "of %u tokens, %llu bytes: raise --kv-cache-memory-bytes%s",
                       (unsigned long long)in->avail_bytes, least, in->block_tokens,
                       (unsigned long long)need,
                       in->n_max_blocks ? " or lower --kv-budget" : "");
    }

    p.kv_bytes = p.n_blocks * p.block_bytes + p.n_query_slots * p.query_slot_bytes;
    const uint64_t pool_tokens = (uint64_t)p.n_blocks * in->block_tokens;
    p.max_request_tokens = cn_min_u32(in->max_model_len, clamp_u32(pool_tokens));
    const uint64_t longest_blocks = cn_ceil_div(in->max_model_len, in->block_tokens);
    p.concurrency_full = cn_min_u32(in->max_seqs, (uint32_t)(p.n_blocks / longest_blocks));
    if (in->n_max_blocks)
        p.concurrency_capped = cn_min_u32(in->max_seqs, p.n_blocks / in->n_max_blocks);
    if (in->window_tokens && in->n_max_blocks)
        p.concurrency_capped = cn_min_u32(p.concurrency_capped, p.n_query_slots);
    CN_TRY(divide_swap(&p, in));
    *out = p;
    return CN_OK;
}

uint64_t cn_host_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages <= 0 || page_bytes <= 0 ? 0 : (uint64_t)pages * (uint64_t)page_bytes;
}

/* The default of --kv-cache-memory-bytes on a CPU: 4 GiB, at most a quarter of host memory. */
static uint64_t host_kv_bytes(void)
{
    const uint64_t default_bytes = UINT64_C(4) << 30, quarter = cn_host_bytes() / 4;
    return quarter > 0 && quarter < default_bytes ? quarter : default_bytes;
}

/* Leaves the machine enough memory for everything else. */
static cn_status check_swap_bytes(uint64_t bytes)
{
    const uint64_t all = cn_host_bytes(), most = all / 10 * 7;
    if (all == 0 || bytes <= most) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "--swap-space %.4g exceeds 70 %% of the machine's %.4g GiB of memory: lower it "
                   "to %.4g",
                   cn_gib(bytes), cn_gib(all), cn_gib(most));
}

uint32_t cn_planner_block_tokens(const cn_config *c, const cn_backend *be)
{
    return c->block_tokens > 0 ? c->block_tokens : be->default_block_tokens;
}

/* Rows of a query slot: for zip's observation window, and for the queries that a selector predicts
 * from and the one that it predicts for. */
static uint32_t ring_rows(const cn_config *c)
{
    const bool zip = cn_policies_need(cn_config_policies(c)).slots;
    const bool ring = cn_selectors_need(cn_config_selectors(c)).slots;
    return cn_max_u32(zip ? c->kv.window_tokens : 0, ring ? c->kv.select_window + 1 : 0);
}

cn_status cn_memory_plan_make(cn_memory_plan *out, const cn_config *c, const cn_model_config *m,
                              const cn_backend *be)
{
    const cn_policy_needs needs = cn_policies_need(cn_config_policies(c));
    const cn_selector_needs selects = cn_selectors_need(cn_config_selectors(c));
    const uint32_t max_model_len = c->max_model_len ? c->max_model_len : m->max_position;
    const uint32_t block_tokens = cn_planner_block_tokens(c, be);
    uint64_t avail_bytes = c->kv_cache_memory_bytes;
    if (avail_bytes == 0) avail_bytes = host_kv_bytes();
    const uint64_t swap_bytes = (uint64_t)((double)c->swap_space_gib * (double)CN_GIB);
    CN_TRY(check_swap_bytes(swap_bytes));
    const uint32_t longest_blocks = (uint32_t)cn_ceil_div(max_model_len, block_tokens);
    const cn_planner_input in = {
        .avail_bytes = avail_bytes,
        .n_layers = m->n_layers,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .block_tokens = block_tokens,
        .kv_dtype = be->kv_dtype,
        .act_dtype = be->act_dtype,
        .planes = needs.planes | selects.planes,
        .window_tokens = ring_rows(c),
        /* Requests may use a policy that has a cap even if the default policy has none. */
        .n_max_blocks = needs.capped ? cn_min_u32(cn_policy_cap(c->kv.budget_tokens, block_tokens),
                                                  longest_blocks)
                                     : 0,
        .max_model_len = max_model_len,
        .max_seqs = c->max_num_seqs,
        .n_blocks_override = c->n_blocks_override,
        .swap_bytes = swap_bytes,
    };
    return cn_memory_plan_divide(out, &in);
}
