/* request.h - one sequence of the scheduler: tokens, block table, state, counters.
 * Owner: cn_scheduler. Thread: engine only. A request with n samples is a group of n sequences.
 *
 *              add                admit                    chunk by chunk
 *   (caller) -------> WAITING -----------> RUNNING ------------------------> RUNNING
 *                        ^                    |  \  trigger (DESIGN.md §2)
 *                        |  preempt           |   `-------> COMPRESSING --commit--> RUNNING
 *                        `--------------------'  ^               |
 *                                                `--> SWAPPED and back (only if compressed)
 *   cn_scheduler_finish moves a sequence from any state to FINISHED at once. From COMPRESSING it
 *   moves only at the commit, because the event uses the blocks of both of its tables.
 *   FORKING: a sample that waits until its leader's prefill ends.
 *   UNREADY: before WAITING, until the owner of the scheduler calls cn_scheduler_ready. */
#pragma once

#include "compress/away.h"
#include "compress/policy.h"

typedef enum cn_seq_state {
    CN_SEQ_WAITING,     /* in a queue; holds nothing */
    CN_SEQ_FORKING,     /* waits for the leader's prefill */
    CN_SEQ_UNREADY,        /* in no queue yet; holds nothing */
    CN_SEQ_RUNNING,     /* in the running list; may be blocked because it lacks a slot or block */
    CN_SEQ_COMPRESSING, /* out of the batch until its event is committed */
    CN_SEQ_SWAPPED,     /* out of the batch, its KV in host memory */
    CN_SEQ_FINISHED
} cn_seq_state;

typedef struct cn_seq {
    uint64_t id;        /* arrival order, unique */
    void *user;         /* for the engine; the scheduler does not read it */
    cn_seq_state state;
    cn_class klass;
    int32_t priority;
    uint32_t owner;     /* owners get equal shares inside a class */
    uint32_t sample;    /* index in its group */
    bool skips_prefix;  /* the prefix cache is not read for it */
    bool paused;        /* set and cleared by the engine between steps: no row is planned */
    uint64_t mask_steps; /* automaton steps that its token masks have taken; the engine counts */

    /* [max_tokens] prompt, then output; tokens[0..n_tokens) are known. Before the first admission
     * [n_prompt], shared by the samples of a group, and the other arrays are NULL. */
    uint32_t *tokens;
    uint32_t n_prompt, n_tokens;
    uint32_t n_pending; /* tokens sampled on the device and not yet read; positions n_tokens.. */
    uint32_t sampled_row; /* the row of the last step's sample op that has the latest of them */
    uint32_t max_tokens; /* upper bound of prompt and output together */
    uint32_t n_computed; /* positions whose KV the device has or will have after the plan */
    uint32_t n_resident; /* slots in use; == n_computed until the first compression */

    uint32_t *table;    /* [max_blocks] physical blocks; host blocks while SWAPPED */
    uint32_t n_blocks;

    cn_kv_params kv;    /* checked, with the budget rounded up. Of a request with home `auto`: as
                         * cn_away_form gives it for the home chosen last */
    uint32_t n_max;     /* block cap N_max; 0 for full */
    int32_t query_slot; /* of its observation window or its ring; -1: none */

    /* Away requests (compress/away.h); all 0 otherwise. The home blocks and the home slot are taken
     * at admission together with the device blocks, and kept until the end or a preemption. */
    uint32_t *home_table; /* [n_home_blocks] block i holds positions [i b, (i + 1) b) */
    uint32_t n_home_blocks;
    uint32_t home_slot;   /* row of `chosen` in the home space */
    uint32_t home_len;    /* tokens home at the last commit; 0 before the first */
    uint32_t n_exchange;  /* X, leading blocks of the table after the first commit; else 0 */
    bool caught_up; /* a list ranked ahead has come since the first commit (engine/home/ahead.h) */

    cn_kv_usage usage_kv;
    uint32_t n_cached_tokens;  /* prompt tokens found in the prefix cache at first admission */
    uint32_t preemptions;
    uint64_t recomputed_tokens;

    struct cn_seq_sched *sched; /* private to the scheduler: links, reservations, pending event */
} cn_seq;
