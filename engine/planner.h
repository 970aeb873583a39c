/* planner.h - how the memory of the KV cache is divided into blocks and query slots. Pure
 * arithmetic; the engine obeys it and `cinch plan` prints it.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, before anything is allocated.
 * Paper: Zipage, eq. 1 and 2 (DESIGN.md §1.5). All sizes in bytes:
 *
 *   m_kv' = L * h_kv * b * (2 * d * sizeof(kv) + sizeof(F) + sizeof(P))   one block, all layers
 *   m_q   = L * w * h_q * d * sizeof(act)                                 one query slot
 *   M       = floor(avail / (m_kv' * N_max + m_q))
 *   N_total = floor(avail / (m_kv' + m_q / N_max))
 *
 * M is never more than the requests that may run at once; what those slots leave goes to blocks.
 * Without a capped policy (N_max = 0) there are no slots: N_total = floor(avail / m_kv'). */
#ifndef CN_PLANNER_H
#define CN_PLANNER_H

#include "engine/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"

typedef struct cn_planner_input {
    uint64_t avail_bytes; /* for blocks, side arrays and query slots */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t block_tokens; /* b */
    cn_dtype kv_dtype, act_dtype;
    uint32_t planes;            /* of a block, beside K and V: bit i is cn_block_plane i */
    uint32_t window_tokens;     /* w, rows of a query slot; 0: no policy observes queries */
    /* N_max of the default budget, or the blocks of max_model_len where those are fewer; 0: no
     * declared policy has a cap. */
    uint32_t n_max_blocks;
    uint32_t max_model_len;     /* tokens */
    uint32_t max_seqs;          /* requests running at once */
    uint32_t n_blocks_override; /* N_total whatever the memory; 0: from avail_bytes */
    uint64_t swap_bytes;        /* host memory for compressed requests; 0: none */
} cn_planner_input;

typedef struct cn_memory_plan {
    uint32_t block_tokens;     /* b */
    uint32_t window_tokens;    /* w, rows of a query slot; 0 without an observing policy */
    uint32_t n_max_blocks;     /* as given: what a capped request may hold; 0 without a cap */
    uint32_t planes;           /* of a block, beside K and V: bit i is cn_block_plane i */
    uint64_t block_bytes;      /* m_kv' */
    uint64_t query_slot_bytes; /* m_q */
    uint64_t kv_bytes;         /* all blocks and all query slots */
    uint32_t n_blocks;         /* N_total */
    uint32_t n_query_slots;    /* M; 0 without an observing policy */
    /* Requests that can run at once whatever they grow to, before any is preempted: of full KV,
     * each of max_model_len tokens, and of the capped policy at the default budget (0: none
     * declared). */
    uint32_t concurrency_full, concurrency_capped;
    uint32_t max_request_tokens; /* longest request of full KV that the pool can hold alone */
    /* The swap space: eq. 1 once more, for requests at the default budget. */
    uint64_t swap_bytes;
    uint32_t n_swap_blocks, n_swap_windows, n_swap_requests;
} cn_memory_plan;

/* The plan that these options, this checkpoint and this backend (its dtypes) lead to. CN_ERR_MEMORY
 * when not even one request fits, CN_ERR_ARG when a swap space could never be used or is most of
 * the host's memory; the text has the numbers and the option to change. */
cn_status cn_memory_plan_make(cn_memory_plan *out, const cn_config *c, const cn_model_config *m,
                              const cn_backend *be);

/* Tokens of a block: --block-size, or the backend's own choice. */
uint32_t cn_planner_block_tokens(const cn_config *c, const cn_backend *be);

/* Memory of the machine; 0 when it does not say. */
uint64_t cn_host_bytes(void);

/* The arithmetic alone. */
cn_status cn_memory_plan_divide(cn_memory_plan *out, const cn_planner_input *in);

#endif
