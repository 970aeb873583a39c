/* scheduler.h - plans each step: admission, chunked prefill, decode, query slots, compression
 * events, preemption. Owner: cn_engine (or the simulation). Thread: engine only.
 * Makes no device call. DESIGN.md §3, §4; paper §4.3, §4.4.
 *
 * A step:
 *   cn_scheduler_begin(s, &ev)      commits events reported done, starts the events that are due
 *   enqueue ev.events               on the event stream after a fence of the model's stream
 *   enqueue ev.puts                 on a stream of their own after the same fence
 *   cn_scheduler_event_done(s, e)   for each event whose fence is done: at any time before begin or
 *                                   schedule; in synchronous mode, here
 *   cn_scheduler_schedule(s, &plan) commits, admits, grows tables, builds the plan
 *   run the plan
 *   cn_seq_append(seq, t)           for each row with wants_sample, when the token is known (with a
 *                                   token lag: after the next schedule)
 *   cn_scheduler_finish(s, seq)     on a stop, at the maximum length, or on a cancellation
 * Pointers in a plan are valid until the next begin. */
#pragma once

#include "compress/selector.h"
#include "engine/ops.h"
#include "paged/prefix_marks.h"
#include "scheduler/request.h"

typedef struct cn_scheduler cn_scheduler;

typedef struct cn_sched_opts {
    uint32_t block_tokens;       /* b */
    uint32_t n_blocks;           /* N_total */
    uint32_t n_query_slots;      /* M */
    uint32_t window_tokens;      /* rows of a query slot: the largest ring of a request */
    cn_kv_params select_most;    /* the largest selection sizes that a request may have */
    uint32_t max_seqs;           /* most running sequences */
    uint32_t max_batched_tokens; /* most tokens of a step */
    uint32_t max_model_len;
    uint64_t block_bytes;        /* all layers, K, V and side arrays: for freed_bytes */
    uint64_t model_hash;         /* seeds the prefix cache */
    bool prefix_caching;
    bool share_prefixes;         /* between owners too */
    bool chunked_prefill;        /* off: a prompt waits for a step in which all of it fits */
    bool decoded_apart;          /* set if decoding gives other bits than prefill: after a
                                  * preemption, decoded tokens are decoded again one a step, and no
                                  * prompt shares their blocks (DESIGN.md §4.7). Always so for a
                                  * sequence with a selector */
    bool hybrid;                 /* off: constrained scheduling (paper §4.3), concurrency <= M */
    bool priority_order;         /* inside a class: priority first (lower first), then arrival */
    uint32_t batch_floor;        /* interactive requests that may be admitted past a waiting batch
                                  * request before it is next; 0: no limit */
    uint32_t n_swap_blocks;      /* blocks of the swap space in host memory; 0: no swap space */
    uint32_t n_swap_windows;     /* query windows of the swap space */
    /* By cn_kv_home, `device` unused: blocks of the home space and rows of `chosen`. 0: the home is
     * not declared, and a request for it is refused. */
    uint32_t n_home_blocks[CN_N_HOMES], n_home_slots[CN_N_HOMES];
    uint32_t auto_homes; /* homes that `auto` may choose: bit i is cn_kv_home i */
    uint32_t slow_homes; /* of these, those for requests that the device can never hold alone */
} cn_sched_opts;

/* Copies *o. CN_ERR_ARG names the values that are not possible. CN_ERR_MEMORY. */
cn_status cn_scheduler_create(cn_scheduler **out, const cn_sched_opts *o);
void cn_scheduler_free(cn_scheduler *s);

typedef struct cn_group_params {
    const uint32_t *prompt; /* [n_prompt], n_prompt >= 1; copied */
    uint32_t n_prompt;
    uint32_t max_output;    /* >= 1; n_prompt + max_output <= max_model_len, or max_output 1 */
    uint32_t n;             /* samples */
    cn_class klass;
    int32_t priority;
    uint32_t owner;
    bool skips_prefix;      /* computes the whole prompt, whatever the prefix cache has */
    bool unready;           /* enters no queue before cn_scheduler_ready */
    cn_kv_params kv;
} cn_group_params;

/* Blocks that one sequence of a request needs. With home `auto`: those of the first home it fits.
 */
typedef struct cn_group_need {
    uint32_t blocks;      /* of the device, the most before its first event */
    uint32_t held_blocks; /* of the device, the most after it; without an event as before it */
    cn_kv_home home;
    uint32_t home_blocks; /* of its home; 0 with home `device` */
} cn_group_need;
/* Adds nothing. p->prompt may be NULL. CN_ERR_ARG as cn_scheduler_add. */
cn_status cn_scheduler_need(const cn_scheduler *s, const cn_group_params *p, cn_group_need *need);

/* Adds a request of p->n sequences to its queue; seqs[n] out, owned by the scheduler until
 * cn_scheduler_release. users[i] becomes seqs[i]->user. CN_ERR_ARG with the numbers when the
 * request can never run: too long for the pool, cap above the pool, budget below the window. */
cn_status cn_scheduler_add(cn_scheduler *s, const cn_group_params *p, void *const *users,
                           cn_seq **seqs);

/* Puts the request whose first sequence is q, which is UNREADY, into its queue, at the place of its
 * arrival. */
void cn_scheduler_ready(cn_scheduler *s, cn_seq *q);

/* One compression of one request, from trigger to commit. */
typedef struct cn_sched_event {
    uint64_t id;
    cn_seq *seq;
    cn_compress_req req; /* argument of the compress op; its tables stay valid until the commit */
    /* Away requests. `puts` are copies from device blocks to home blocks, before the compression:
     * at a first event those that have not been put, later the block that filled. A first event
     * also has exchange[n_exchange], the blocks of the exchange area that `fill` writes after the
     * compression; later events have n_exchange 0. home_len is the value after the commit. */
    const cn_block_copy *puts;
    uint32_t n_puts;
    uint32_t n_put_before; /* blocks that cn_begin_plan.puts had: a first event waits for these */
    const uint32_t *exchange;
    uint32_t n_exchange, home_len;
} cn_sched_event;

/* Full blocks of a prompt that go home before the first event: the steps before have computed them,
 * and no later step writes them (HOMES.md §4). */
typedef struct cn_sched_put {
    const cn_seq *seq;
    const cn_block_copy *blocks; /* [n_blocks] from device blocks to home blocks */
    uint32_t n_blocks;
} cn_sched_put;

/* after_puts, here and in cn_plan: a request with such puts has left the batch, so its blocks may
 * be written again. What is enqueued from now on must follow all puts enqueued before. */
typedef struct cn_begin_plan {
    cn_sched_event *const *events; /* [n_events] to enqueue now */
    uint32_t n_events;
    const cn_sched_put *puts; /* [n_puts] to enqueue now, behind the events */
    uint32_t n_puts;
    bool after_puts;
} cn_begin_plan;
void cn_scheduler_begin(cn_scheduler *s, cn_begin_plan *out);
void cn_scheduler_event_done(cn_scheduler *s, cn_sched_event *e);

typedef struct cn_plan_row {
    cn_seq *seq;
    uint32_t n_new;      /* query tokens, positions first_pos .. first_pos + n_new - 1 */
    uint32_t first_pos;
    uint32_t first_slot; /* resident slot of first_pos; first_pos before the first event */
    bool wants_sample;   /* the next token is sampled from the logits of the last query token */
    cn_select_span span; /* of a decode row: what it attends to; else 0, as is the next */
    uint32_t n_selected; /* tokens that it attends to, if its selector or its home leaves some out;
                          * 0: it attends to all */
} cn_plan_row;

typedef struct cn_plan {
    const cn_plan_row *rows; /* decode rows first: one new token, past the prompt */
    uint32_t n_rows, n_decode, n_tokens;
    /* Copies for forks: the leader's partial last block and its query window. Both are complete
     * only AFTER the rows of this plan have run. Enqueue them after the rows, in the same stream,
     * before anything else. */
    cn_copy_list fork_copies;
    /* Copies to the swap space (src on the device, dst in host memory) and back (src in host
     * memory). Enqueue both BEFORE the rows, out before in, because rows and copies in use the
     * blocks that copies out read. A plan may have copies out and no rows: when the sequence that
     * needed the room starts its event in the next step. */
    cn_copy_list swap_out, swap_in;
    bool after_puts; /* see cn_begin_plan */
    /* Forked samples: their first token is sampled from the leader row's logits of this step. */
    struct cn_plan_fork {
        uint32_t leader_row;
        cn_seq *seq; /* needs a sample, like a row with wants_sample */
    } const *forks;
    uint32_t n_forks;
    /* A waiting sequence that was not admitted because host memory for its arrays is missing; NULL:
     * none. If nothing else can run, finish it. */
    cn_seq *starved;
} cn_plan;
void cn_scheduler_schedule(cn_scheduler *s, cn_plan *out);

/* Appends the sampled token of a row or fork of an earlier plan. Call in order of position. Ignores
 * a token of a finished sequence. */
void cn_seq_append(cn_seq *seq, uint32_t token);

/* Takes back the newest row of a sequence, whose token could not be sampled: it is planned again.
 * The row must be the only one whose token is pending, its sequence RUNNING, and the token not the
 * first of its output. */
void cn_seq_take_back(cn_seq *seq);

/* Ends a sequence and releases its blocks, slot and reservation, or its swap space; if it is
 * COMPRESSING, at the commit. seq stays readable until cn_scheduler_release frees it. */
void cn_scheduler_finish(cn_scheduler *s, cn_seq *seq);
void cn_scheduler_release(cn_scheduler *s, cn_seq *seq);

/* The scheduler's counters. The owner of the scheduler adds its own counts here, such as steps. */
cn_stats *cn_scheduler_counters(cn_scheduler *s);
/* Replaces slow_homes for requests that are added from now on. */
void cn_scheduler_set_slow_homes(cn_scheduler *s, uint32_t homes);

/* Writes all counters and the current state to *out. O(running). */
void cn_scheduler_stats(const cn_scheduler *s, cn_stats *out);

/* Sums cn_seq.mask_steps over the running sequences of each owner, and reads the sum of the owner
 * of a sequence. */
void cn_scheduler_sum_mask_steps(cn_scheduler *s);
uint64_t cn_scheduler_mask_steps(const cn_scheduler *s, const cn_seq *q);

/* The marks of the prefix cache, which any thread may ask; NULL: there is no cache. _prefix_root:
 * the hash of the empty prefix of an owner. Any thread. */
const cn_prefix_marks *cn_scheduler_prefix_marks(const cn_scheduler *s);
uint64_t cn_scheduler_prefix_root(const cn_scheduler *s, uint32_t owner);

/* Sequences of a class that wait: unready, in its queue, or for their leader. O(1). */
uint32_t cn_scheduler_waiting_of(const cn_scheduler *s, cn_class klass);

/* Checks the invariants of DESIGN.md §3 over the whole state. Returns NULL, or a static text that
 * names the first broken invariant. O(blocks + table entries). */
const char *cn_scheduler_check(const cn_scheduler *s);
