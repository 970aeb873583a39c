/* stat_rows.c - see stat_rows.h. */
#include "engine/lanes/stat_rows.h"

#include <stddef.h>

#define ROW(field, type, name, help)                                                         \
    {                                                                                        \
        offsetof(cn_stats, field),                                                           \
            _Generic(((cn_stats *)0)->field, uint32_t: CN_STAT_U32, uint64_t: CN_STAT_U64,   \
                     double: CN_STAT_DOUBLE), type, name, help                               \
    }
#define GAUGE(field, name, help) ROW(field, "gauge", name, help)
#define COUNTER(field, name, help) ROW(field, "counter", name, help)

static const cn_stat_row rows[] = {
    GAUGE(running, "vllm:num_requests_running", "Requests in the running list."),
    GAUGE(waiting, "vllm:num_requests_waiting", "Requests waiting for admission."),
    GAUGE(swapped, "vllm:num_requests_swapped", "Requests whose KV is in the swap space."),
    GAUGE(blocked, "cinch_requests_blocked",
          "Running requests that wait for a query slot or a block."),
    GAUGE(compressing, "cinch_requests_compressing",
          "Running requests whose KV is being compressed."),
    GAUGE(slots_total, "cinch_query_slots", "Query slots for requests with KV compression."),
    GAUGE(slots_used, "cinch_query_slots_used", "Query slots in use."),
    GAUGE(blocks_total, "cinch_kv_blocks", "KV blocks."),
    GAUGE(blocks_used, "cinch_kv_blocks_used", "KV blocks held by requests."),
    GAUGE(blocks_cached, "cinch_kv_blocks_cached", "KV blocks held only by the prefix cache."),
    GAUGE(blocks_spared, "cinch_kv_blocks_spared",
          "Additional KV blocks that running requests would hold without eviction."),
    GAUGE(block_bytes, "cinch_kv_block_bytes", "Bytes of a KV block, all layers."),
    GAUGE(swap_blocks_total, "cinch_swap_blocks", "Capacity of the swap space in KV blocks."),
    GAUGE(swap_blocks_used, "cinch_swap_blocks_used", "KV blocks in the swap space."),
    GAUGE(swap_windows_total, "cinch_swap_windows", "Capacity of the swap space in query windows."),
    GAUGE(swap_windows_used, "cinch_swap_windows_used", "Query windows in the swap space."),
    GAUGE(home_blocks_total, "cinch_home_blocks", "Blocks of kv home peer or host."),
    GAUGE(home_blocks_used, "cinch_home_blocks_used", "Blocks of kv home peer or host in use."),
    COUNTER(preemptions, "vllm:num_preemptions_total", "Preemptions."),
    COUNTER(prompt_tokens, "vllm:prompt_tokens_total", "Prompt tokens of admitted requests."),
    COUNTER(generation_tokens, "vllm:generation_tokens_total", "Tokens generated."),
    COUNTER(prefix_queries, "vllm:prefix_cache_queries_total",
            "Prompt tokens looked up in the prefix cache."),
    COUNTER(cached_tokens, "vllm:prefix_cache_hits_total",
            "Prompt tokens found in the prefix cache."),
    COUNTER(compressions, "cinch_compressions_total", "Compressions of a request's KV."),
    COUNTER(evicted_tokens, "cinch_evicted_tokens_total", "Tokens evicted, per layer and kv head."),
    COUNTER(freed_bytes, "cinch_freed_bytes_total", "Bytes of KV freed by compressions."),
    COUNTER(compression_s, "cinch_compression_seconds_total",
            "Sum of the seconds from enqueue to end of each compression."),
    COUNTER(selected_steps, "cinch_selected_steps_total",
            "Decode steps of a request that attended to a list."),
    COUNTER(selected_tokens, "cinch_selected_tokens_total", "Tokens that these steps attended to."),
    COUNTER(candidate_tokens, "cinch_candidate_tokens_total",
            "Tokens that these steps could have attended to."),
    COUNTER(exchanges, "cinch_exchanges_total",
            "Steps of a request that exchanged tokens with its kv home."),
    COUNTER(fetched_entries, "cinch_fetched_total",
            "Tokens, or tiles of tls, that these steps brought back, summed over layers and kv "
            "heads."),
    COUNTER(missed_entries, "cinch_missed_total",
            "Tokens or tiles that --select-cap left at the home, summed over layers and kv heads."),
    COUNTER(fetched_bytes, "cinch_fetched_bytes_total", "Bytes of KV brought back from a kv home."),
    COUNTER(put_bytes, "cinch_put_bytes_total", "Bytes of KV copied to a kv home."),
    COUNTER(auto_moves, "cinch_auto_moves_total",
            "Running samples with kv home auto that moved from the device to another home."),
    COUNTER(stall_s, "cinch_exchange_stall_seconds_total",
            "Seconds that the host waited for exchanges; 0 where the device waits."),
    COUNTER(recomputed_tokens, "cinch_recomputed_tokens_total",
            "Tokens recomputed after a preemption."),
    COUNTER(steps, "cinch_steps_total", "Model steps."),
    COUNTER(swap_outs, "cinch_swapped_out_requests_total", "Requests moved to the swap space."),
    COUNTER(swap_ins, "cinch_swapped_in_requests_total",
            "Requests brought back from the swap space."),
    COUNTER(swapped_out_blocks, "cinch_swapped_out_blocks_total",
            "KV blocks moved to the swap space."),
    COUNTER(swapped_in_blocks, "cinch_swapped_in_blocks_total",
            "KV blocks brought back from the swap space."),
    COUNTER(swapped_out_bytes, "cinch_swapped_out_bytes_total",
            "Bytes moved to the swap space, windows included."),
    COUNTER(swapped_in_bytes, "cinch_swapped_in_bytes_total",
            "Bytes brought back from the swap space."),
    COUNTER(requests_done, NULL, NULL),
    COUNTER(holder_preemptions, NULL, NULL),
    COUNTER(waiting_interactive, NULL, NULL),
    COUNTER(home_link_bytes_per_s[0], NULL, NULL),
    COUNTER(home_link_bytes_per_s[1], NULL, NULL),
    COUNTER(home_link_bytes_per_s[2], NULL, NULL),
    COUNTER(auto_admissions[0], NULL, NULL),
    COUNTER(auto_admissions[1], NULL, NULL),
    COUNTER(auto_admissions[2], NULL, NULL),
};

const cn_stat_row *cn_stat_rows(size_t *n)
{
    *n = sizeof rows / sizeof *rows;
    return rows;
}

double cn_stat_value(const cn_stats *s, const cn_stat_row *row)
{
    const void *at = (const char *)s + row->at;
    switch (row->number) {
    case CN_STAT_U32: return *(const uint32_t *)at;
    case CN_STAT_U64: return (double)*(const uint64_t *)at;
    default: return *(const double *)at;
    }
}

void cn_stats_add(cn_stats *to, const cn_stats *s)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *sum = (char *)to + rows[i].at;
        const void *one = (const char *)s + rows[i].at;
        switch (rows[i].number) {
        case CN_STAT_U32: *(uint32_t *)sum += *(const uint32_t *)one; break;
        case CN_STAT_U64: *(uint64_t *)sum += *(const uint64_t *)one; break;
        default: *(double *)sum += *(const double *)one;
        }
    }
    to->block_tokens = s->block_tokens; /* all engines have the same blocks */
    to->block_bytes = s->block_bytes;
}
