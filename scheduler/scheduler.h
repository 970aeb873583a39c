/* scheduler.h - who runs in the next step: admission, chunked prefill, decode, query slots,
 * compression triggers, preemption. Owner: cn_engine (or the simulation). Thread: engine only.
 * Makes no device call. DESIGN.md §3, §4; paper §4.3, §4.4.
 *
 * A step:
 *   cn_scheduler_begin(s, &ev)      commits events reported done, picks the sequences that trigger
 *   enqueue ev.events               on stream 1 behind a fence of stream 0; in line if synchronous
 *   cn_scheduler_event_done(s, e)   for each event whose fence is done (any time before begin or
 *                                   schedule; synchronous mode: right here)
 *   cn_scheduler_schedule(s, &plan) commits, admits, grows tables, builds the plan
 *   run the plan
 *   cn_scheduler_append(s, seq, t)  for each row with wants_sample, when the token is known (for a
 *                                   device backend: possibly after the next schedule)
 *   cn_scheduler_finish(s, seq)     stop, length, cancel
 * Pointers in a plan are valid until the next begin. */
#ifndef CN_SCHEDULER_H
#define CN_SCHEDULER_H

#include "engine/ops.h"
#include "scheduler/request.h"

typedef struct cn_scheduler cn_scheduler;

typedef struct cn_sched_opts {
    uint32_t block_tokens;       /* b */
    uint32_t n_blocks;           /* N_total */
    uint32_t n_query_slots;      /* M */
    uint32_t window_tokens;      /* largest w */
    uint32_t max_seqs;           /* running at once */
    uint32_t max_batched_tokens; /* per step */
    uint32_t max_model_len;
    uint64_t block_bytes;        /* all layers, K, V and sides: for freed_bytes */
    uint64_t model_hash;         /* enters the prefix hash chain */
    bool prefix_caching;
    bool chunked_prefill;        /* off: a prompt goes whole, or waits for a step it fits in */
    bool decoded_apart;          /* where decoding gives other bits than a prompt's chunk: tokens
                                  * that a sequence has said are computed again one a step, as they
                                  * were the first time, and no prompt shares their blocks */
    bool hybrid;                 /* off: constrained scheduling (paper §4.3), concurrency <= M */
    bool priority_order;         /* inside a class: priority first (lower first), then arrival */
    bool tail_relaxation;        /* caps grow while nobody waits and memory is left */
    uint32_t batch_floor;        /* interactive requests that may pass a waiting batch one before
                                  * it is its turn; 0: any number */
    uint32_t n_swap_blocks;      /* blocks and query windows that the swap space in host memory */
    uint32_t n_swap_windows;     /* has room for; 0: nothing is ever moved there */
} cn_sched_opts;

cn_status cn_scheduler_create(cn_scheduler **out, const cn_sched_opts *o);
void cn_scheduler_free(cn_scheduler *s);

typedef struct cn_group_params {
    const uint32_t *prompt; /* [n_prompt], n_prompt >= 1; copied */
    uint32_t n_prompt;
    uint32_t max_output;    /* >= 1; n_prompt + max_output <= max_model_len */
    uint32_t n;             /* samples */
    cn_class klass;
    int32_t priority;
    cn_kv_params kv;
} cn_group_params;

/* Adds a request of p->n sequences to its queue; seqs[n] out, owned by the scheduler until
 * cn_scheduler_release. users[i] becomes seqs[i]->user. CN_ERR_ARG when it can never run (too long
 * for the pool, cap above the pool, budget below the window), with the numbers. */
cn_status cn_scheduler_add(cn_scheduler *s, const cn_group_params *p, void *const *users,
                           cn_seq **seqs);

/* One compression of one request, from trigger to commit. */
typedef struct cn_sched_event {
    uint64_t id;
    cn_seq *seq;
    cn_compress_req req; /* what the backend is told; its tables stay valid until the commit */
} cn_sched_event;

typedef struct cn_begin_plan {
    cn_sched_event *const *events; /* [n_events] to enqueue now */
    uint32_t n_events;
} cn_begin_plan;
void cn_scheduler_begin(cn_scheduler *s, cn_begin_plan *out);
void cn_scheduler_event_done(cn_scheduler *s, cn_sched_event *e);

typedef struct cn_plan_row {
    cn_seq *seq;
    uint32_t n_new;      /* query tokens, positions first_pos .. first_pos + n_new - 1 */
    uint32_t first_pos;
    uint32_t first_slot; /* resident slot of the first of them */
    bool wants_sample;   /* the last query's logits give the next token */
} cn_plan_row;

typedef struct cn_plan {
    const cn_plan_row *rows; /* decode rows first: one new token, beyond the prompt */
    uint32_t n_rows, n_decode, n_tokens;
    /* Forks: the partial last block and the query window of the leader, whole only AFTER the rows
     * of this plan have run. Enqueue both behind them, in the same stream, before anything else. */
    cn_copy_list fork_copies;
    /* To the swap space (src on the device, dst in it) and back from it (src in it). Enqueue both
     * BEFORE the rows, out before in: rows and copies back use blocks that copies out have left.
     * There may be copies out without rows: for one whose event begins the next step. */
    cn_copy_list swap_out, swap_in;
    /* Forked samples: their first token comes from the leader row's logits of this step. */
    struct cn_plan_fork {
        uint32_t leader_row;
        cn_seq *seq; /* wants a sample too */
    } const *forks;
    uint32_t n_forks;
} cn_plan;
void cn_scheduler_schedule(cn_scheduler *s, cn_plan *out);

/* The sampled token of a row (or fork) of an earlier plan, in order of position. A token for a
 * finished sequence is ignored. */
void cn_scheduler_append(cn_scheduler *s, cn_seq *seq, uint32_t token);

/* Ends a sequence: its blocks, slot and reservation, or what it has of the swap space, return (at
 * its commit when compressing). The seq stays readable until cn_scheduler_release frees it. */
void cn_scheduler_finish(cn_scheduler *s, cn_seq *seq);
void cn_scheduler_release(cn_scheduler *s, cn_seq *seq);

/* Where it counts what happens; its owner counts its own part, such as steps, there too. */
cn_stats *cn_scheduler_counters(cn_scheduler *s);

/* All counters, and how things stand now. O(running). */
void cn_scheduler_stats(const cn_scheduler *s, cn_stats *out);

/* Sequences of a class that wait, without samples that wait for their leader; O(1). */
uint32_t cn_scheduler_waiting_of(const cn_scheduler *s, cn_class klass);

/* Checks every invariant of DESIGN.md §3 over the whole state. NULL, or a static text that names
 * the first one broken. Costs O(blocks + table entries). */
const char *cn_scheduler_check(const cn_scheduler *s);

#endif
