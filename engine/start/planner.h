/* planner.h - divides the memory of the KV cache into blocks and query slots. Pure arithmetic: the
 * engine uses it and `cinch plan` prints it.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, before any allocation.
 * Paper: Zipage, eq. 1 and 2 (DESIGN.md §1.5). All sizes in bytes:
 *
 *   m_kv' = L * h_kv * b * (2 * d * sizeof(kv) + sizeof(F) + sizeof(P) + D)   one block, all layers
 *   m_q   = L * W * h_q * d * sizeof(act)                                 one query slot
 *   M       = floor(avail / (m_kv' * N_max + m_q))
 *   N_total = floor(avail / (m_kv' + m_q / N_max))
 *
 * D: the digests of a token in a layer and kv head (SELECTION.md §3).
 *
 * M is at most the number of requests that may run at once; memory that those slots do not need
 * goes to blocks. Without a capped policy (N_max = 0) query slots, if a selector needs them, take
 * 5 % of the memory, and blocks the rest. */
#pragma once

#include "compress/away.h"
#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"

typedef struct cn_planner_input {
    uint64_t avail_bytes; /* for blocks, side arrays and query slots */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t value_dim, query_dim; /* of cn_kv_layout_share; 0: K and V are two parts */
    uint32_t draft_dim;    /* of the retrieval head, if selector `spec` is declared */
    uint32_t draft_state;  /* of the state that a block keeps for it; 0: none */
    uint32_t block_tokens; /* b */
    cn_kv_form kv_form;
    cn_dtype act_dtype;
    uint32_t planes;            /* of a block, besides K and V: bit i is cn_block_plane i */
    uint32_t window_tokens;     /* W, rows of a query slot; 0: nothing reads past queries */
    /* N_max of the default budget, or the blocks of max_model_len if those are fewer. 0: no
     * declared policy has a cap. */
    uint32_t n_max_blocks;
    uint32_t max_model_len;     /* tokens */
    uint32_t max_seqs;          /* requests running at once */
    uint32_t n_blocks_override; /* N_total; 0: compute it from avail_bytes */
    uint64_t swap_bytes;        /* host memory for compressed requests; 0: none */
    /* By cn_kv_home, `device` unused: the space of requests whose KV lies there; 0: none. */
    uint64_t home_bytes[CN_N_HOMES];
    const char *home_option[CN_N_HOMES]; /* the option that sets them, without dashes */
    uint32_t home_planes;  /* digests by home block, like `planes` */
    uint32_t dense_layers; /* their KV by home block lies in avail_bytes */
    bool home_drafts; /* and so do the keys and states of a retrieval head */
} cn_planner_input;

/* A home space: docs/HOMES.md.
 *
 *   N_home = floor(home_bytes / (b * (m + D_there)))
 *
 * m is the K and V of a token, D_there its digests in the home space. The dense layers of all home
 * blocks are taken from avail_bytes before M and N_total are computed, and M leaves room for the
 * longest prompt, which is computed with full attention. */
typedef struct cn_home_plan {
    uint32_t n_blocks;    /* N_home; 0: the home is not declared */
    uint32_t n_slots;     /* requests with a home at once: rows of `chosen` */
    uint64_t block_bytes; /* in the home space, with digests */
    uint64_t bytes;       /* of all blocks */
    uint32_t planes;      /* as in the input */
    uint64_t plane_bytes; /* dense layers of all home blocks, on the device */
    uint64_t draft_bytes; /* keys and states of a retrieval head, on the device */
    uint64_t device_bytes; /* both, and with home `host` the digests of all home blocks */
} cn_home_plan;

typedef struct cn_memory_plan {
    uint32_t block_tokens;     /* b */
    uint32_t window_tokens;    /* W, rows of a query slot; 0 without query slots */
    uint32_t n_max_blocks;     /* as in the input: blocks of a capped request; 0 without a cap */
    uint32_t planes;           /* of a block, besides K and V: bit i is cn_block_plane i */
    uint64_t block_bytes;      /* m_kv' */
    uint64_t query_slot_bytes; /* m_q */
    uint64_t kv_bytes;         /* all blocks and all query slots */
    uint32_t n_blocks;         /* N_total */
    uint32_t n_query_slots;    /* M; 0: no policy or selector reads past queries */
    /* Requests that can run at once without any preemption, even at their longest: with full KV,
     * each of max_model_len tokens; and with the capped policy at the default budget (0: no such
     * policy is declared). */
    uint32_t concurrency_full, concurrency_capped;
    uint32_t max_request_tokens; /* longest request with full KV that fits the whole pool */
    /* The swap space, by eq. 1 for requests at the default budget. */
    uint64_t swap_bytes;
    uint32_t n_swap_blocks, n_swap_windows, n_swap_requests;
    cn_home_plan homes[CN_N_HOMES]; /* by cn_kv_home, `device` unused */
    uint64_t home_device_bytes;     /* sum of their device_bytes */
    uint32_t n_draft_blocks; /* home blocks whose draft K lies behind that of the pool's blocks */
} cn_memory_plan;

/* The plan for these options, this checkpoint and this backend (its dtypes). CN_ERR_MEMORY when not
 * even one request fits. CN_ERR_ARG when a swap space could never be used, is too small for one
 * request, or does not fit the host (cn_host_check_size). The text has the numbers and the option
 * to change. */
cn_status cn_memory_plan_make(cn_memory_plan *out, const cn_config *c, const cn_model_config *m,
                              const cn_backend *be);

/* The home space `peer` of that plan alone. It does not depend on the memory of the KV cache.
 * CN_ERR_ARG as above. */
cn_status cn_home_plan_make(cn_home_plan *out, const cn_config *c, const cn_model_config *m,
                            const cn_backend *be);

/* Tokens of a block: --block-size, or the backend's default. */
uint32_t cn_planner_block_tokens(const cn_config *c, const cn_backend *be);

/* The form of K and V (--kv-cache-dtype). */
cn_kv_form cn_planner_kv_form(const cn_config *c);

/* Returns the layout of a memory for KV of the model. */
cn_kv_layout cn_planner_layout(const cn_config *c, const cn_model_config *m, const cn_backend *be,
                               uint32_t n_blocks, uint32_t block_tokens);

/* *out: what a request with this home and selector exchanges. Returns false if no request can have
 * the selector: it is not declared, or its lists stay at home. */
bool cn_planner_away(const cn_config *c, cn_kv_home home, unsigned select, uint32_t block_tokens,
                     cn_away *out);

/* Bytes of the parameters that a step of n_rows requests reads. Of an embedding that is not the
 * lm_head, a step reads only some rows. */
uint64_t cn_planner_weight_bytes(const cn_model_config *m, const cn_backend *be, uint32_t n_rows);

/* Block cap of the largest request whose KV lies elsewhere. */
uint32_t cn_planner_away_n_max(const cn_config *c, uint32_t block_tokens);

/* The arithmetic of cn_memory_plan_make. CN_ERR_MEMORY and CN_ERR_ARG as there. */
cn_status cn_memory_plan_divide(cn_memory_plan *out, const cn_planner_input *in);
