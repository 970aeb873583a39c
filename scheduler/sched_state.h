/* sched_state.h - the scheduler's own state, shared by its files and by nobody else.
 * Owner: cn_scheduler. Thread: engine only.
 *
 *   scheduler.c     add, append, finish, release, stats
 *   sched_plan.c    begin and schedule: the order of a step
 *   sched_admit.c   from the queues into the running list; forks of samples
 *   sched_blocks.c  blocks of a sequence: growth, preemption, prefix registration, grants
 *   sched_event.c   compression events: targets, pins, commit; caps that grow instead
 *   sched_way.c     batch sequences make way for interactive ones
 *   sched_swap.c    compressed ones to host memory and back
 *   sched_check.c   the invariants
 *
 * Where a sequence stands (cn_seq.state) and which lists it is in:
 *   WAITING               all, its class's heap (and aged, once preempted often)
 *   FORKING               all, its leader's list of samples
 *   RUNNING, COMPRESSING  all, running, one of by_hold (and aged)
 *   SWAPPED               all, the heap of the swap space (and aged)
 *   FINISHED              all, until released */
#ifndef CN_SCHED_STATE_H
#define CN_SCHED_STATE_H

#include "paged/prefix_cache.h"
#include "paged/space.h"
#include "scheduler/queue.h"
#include "scheduler/scheduler.h"

/* A request preempted this often is aged: until it ends, nothing that stands behind it in the
 * waiting order is admitted. From then on finitely many requests can be served before it. */
enum { CN_AGED_PREEMPTIONS = 8 };

enum { CN_NEVER = UINT32_MAX };

/* What an admitted sequence holds. The last of NONE is preempted first, then the last of GRANTED;
 * a compressed sequence could not be recomputed and is never preempted. Each list is in order of
 * admission, because slots are granted in that order. */
typedef enum cn_hold { CN_HOLD_NONE, CN_HOLD_GRANTED, CN_HOLD_COMPRESSED, CN_N_HOLDS } cn_hold;

typedef struct cn_seq_sched {
    cn_seq_link links[CN_N_LINKS];
    uint32_t heap_at; /* place in its queue, while waiting or swapped */

    uint32_t trigger;    /* resident slots at the first event; CN_NEVER: ends before one */
    uint32_t max_blocks; /* most entries its table can have under its own cap */
    uint32_t n_relaxed;  /* blocks by which its cap, reservation and trigger have grown */
    cn_hold hold;

    uint32_t n_registered; /* leading blocks known to the prefix cache */
    cn_prefix_key chain;   /* key of the last of them */
    uint32_t lost_tokens;  /* computed when it was preempted */
    bool was_admitted;
    bool by_floor; /* a batch one, admitted past interactive ones: it makes no way for them */

    /* SWAPPED: its blocks are [0, n_host) of its table, in the swap space, and a window if it needs
     * a slot. */
    uint32_t n_host, host_window;
    uint64_t swapped_in_plan; /* number of the plan that moved it there */

    cn_seq *leader;      /* FORKING: whose prefill it waits for */
    cn_seq *next_sample; /* list of the samples that wait for the leader */
    cn_seq *samples;     /* of a leader: their head */
    bool in_group;       /* one of several samples: its blocks may be shared without a cache */
    uint32_t row;        /* of a leader that forks in this plan */

    cn_sched_event event; /* at most one at a time */
    uint32_t *target;     /* [n_max] the event's targets, then the spare block */
    uint32_t spare;       /* table index of the block left for decoding, or CN_NO_BLOCK */
    bool event_done;      /* reported, not yet committed */
    bool ending;          /* finished during its event: freed at the commit */
    bool released;        /* by the caller, during its event */
} cn_seq_sched;

/* The swap space: which of its blocks and windows are taken, who is there, this plan's moves. All
 * of it is empty when there is none. */
typedef struct cn_swap {
    cn_space space;
    cn_queue queue;
    cn_block_copy *out_blocks, *in_blocks;   /* [n_swap_blocks] each */
    cn_block_copy *out_windows, *in_windows; /* [n_swap_windows] each */
    uint32_t n_out_blocks, n_in_blocks, n_out_windows, n_in_windows;
    uint64_t n_plans;
} cn_swap;

struct cn_scheduler {
    cn_sched_opts o;
    cn_space device; /* blocks, query slots, reservations */
    cn_swap swap;
    cn_prefix_cache *prefix; /* NULL when off */
    cn_queue waiting[2]; /* by class */
    cn_seq_list all, running, aged, by_hold[CN_N_HOLDS];
    uint32_t n_passed; /* interactive ones admitted while the same batch ones waited */
    uint32_t n_lacking; /* running, in need of a slot or reservation, without it */
    uint32_t n_forking, n_compressing, n_blocked;
    uint32_t n_in_group; /* live sequences of groups of several samples */
    uint64_t last_seq_id, last_event_id;

    cn_sched_event **begun, **done; /* [max_seqs] of this step; reported, to commit */
    uint32_t n_begun, n_done;

    /* The plan's arrays, [max_seqs] each. */
    cn_plan_row *rows;
    cn_block_copy *block_copies, *slot_copies;
    struct cn_plan_fork *forks;
    cn_seq **fork_leaders;
    uint32_t n_rows, n_decode, n_tokens, n_block_copies, n_slot_copies, n_forks;

    cn_stats stats; /* counters and sizes; the rest is filled in when it is asked for */
    uint32_t *check_refs; /* [n_blocks] scratch of cn_scheduler_check */
};

/* ---- what the lengths say ---- */

static inline uint32_t cn_seq_known(const cn_seq *q) { return q->n_tokens + q->n_pending; }

/* One past the last position that will ever be computed: the last token's KV is never needed. */
static inline uint32_t cn_seq_end(const cn_seq *q)
{
    return cn_min_u32(cn_seq_known(q), q->max_tokens - 1);
}

/* Computed positions that a stop can no longer undo. With a token lag the step behind the last
 * known token may run already; if that token was the stop, its slot is counted and cached nowhere,
 * just as when nothing lags. */
static inline uint32_t cn_seq_settled(const cn_seq *q)
{
    return cn_min_u32(q->n_computed, q->n_tokens - 1);
}

static inline bool cn_seq_needs_hold(const cn_seq *q) { return q->sched->trigger != CN_NEVER; }

static inline bool cn_seq_is_lacking(const cn_seq *q)
{
    return cn_seq_needs_hold(q) && q->sched->hold == CN_HOLD_NONE;
}

/* Position before which the first observation window lies: what a sequence may reach without a
 * query slot, and a prefix hit at all (DESIGN.md §3.3). */
static inline uint32_t cn_seq_window_start(const cn_seq *q)
{
    if (!cn_seq_needs_hold(q)) return UINT32_MAX;
    return q->sched->trigger - (cn_policy_needs_slot(&q->kv) ? q->kv.window_tokens : 0);
}

/* True when the next event is due and there is more to compute behind it. */
static inline bool cn_seq_is_due(const cn_seq *q, uint32_t block_tokens)
{
    return cn_seq_needs_hold(q) && q->n_computed < q->max_tokens - 1 &&
           cn_policy_due(q->n_max, q->n_resident, q->n_blocks, block_tokens);
}

/* One past the last position it may compute before a slot, an event or a token is waited for. */
uint32_t cn_seq_limit(const cn_scheduler *s, const cn_seq *q);

/* ---- sched_blocks.c ---- */

/* Enters the blocks that became full since into the prefix cache. Only settled tokens. */
void cn_sched_register(cn_scheduler *s, cn_seq *q);

/* Preempts one request in favour of q, a batch one if there is any; false when nobody but q itself
 * is left: q waits in place. */
bool cn_sched_try_preempt(cn_scheduler *s, const cn_seq *q);

/* The same, but before an interactive one is preempted or waits, a batch one goes to the swap
 * space. True also when that one is q, which is then no longer RUNNING. Before any row of the plan
 * is written. */
bool cn_sched_try_free(cn_scheduler *s, const cn_seq *q);

/* Takes a running, uncompressed sequence out of the batch, back into its queue. */
void cn_sched_preempt(cn_scheduler *s, cn_seq *q);

/* Gives slots and reservations to the foremost that lack them. */
void cn_sched_grant(cn_scheduler *s);

/* Grants to one sequence, when nobody else is lacking before it. */
bool cn_sched_try_grant(cn_scheduler *s, cn_seq *q);

/* Takes a sequence out of the running list with all that it holds. */
void cn_sched_leave(cn_scheduler *s, cn_seq *q);

/* Puts a sequence that has its table at the end of the running list. */
void cn_sched_enter(cn_scheduler *s, cn_seq *q);

/* ---- sched_event.c ---- */

/* Begins the event that q is due for; false, nothing changed, when there are too few blocks. */
bool cn_sched_try_event(cn_scheduler *s, cn_seq *q);

/* Tail relaxation: lets a sequence whose event is due go on by a block instead. False, nothing
 * changed, when somebody waits, or when what runs might yet need the block. */
bool cn_sched_try_relax(cn_scheduler *s, cn_seq *q);

/* Takes back what q's cap has grown by; its table must be within its own cap, or going. */
void cn_sched_unrelax(cn_scheduler *s, cn_seq *q);
void cn_sched_commit_done(cn_scheduler *s);

/* ---- sched_admit.c ---- */

/* The foremost waiting or swapped sequence if it can be admitted now, already entered; or NULL. */
cn_seq *cn_sched_admit_next(cn_scheduler *s, uint32_t budget_tokens);

/* The interactive sequence whose turn it is; NULL when none waits, or not even room would let it
 * in. */
cn_seq *cn_sched_next_interactive(const cn_scheduler *s);

/* Blocks without which a waiting sequence cannot be admitted now. */
uint64_t cn_sched_count_wanted(const cn_scheduler *s, cn_seq *q);

/* Blocks that running sequences below their caps may ask for next, one each. */
uint32_t cn_sched_margin(const cn_scheduler *s);

/* Starts the samples that waited for a leader whose row ends its prefill. False when one had to go
 * to the queue: it finds the leader's blocks in the prefix cache from the next step on. */
bool cn_sched_fork(cn_scheduler *s, cn_seq *leader);

/* ---- sched_way.c: before any row of the plan is written ---- */

/* Sends batch sequences away for the interactive one whose turn it is, if that lets it in. */
void cn_sched_make_way(cn_scheduler *s);

/* The same for the foremost running interactive one that cannot go on without a slot. */
void cn_sched_make_way_to_hold(cn_scheduler *s);

/* ---- sched_swap.c ---- */
cn_status cn_sched_swap_init(cn_swap *w, uint32_t n_blocks, uint32_t n_windows);
void cn_sched_swap_free(cn_swap *w);
void cn_sched_swap_begin_plan(cn_swap *w);

/* Whether q is of those that may be moved to the swap space. */
bool cn_sched_is_movable(const cn_scheduler *s, const cn_seq *q);

/* What is free in the swap space; takes from it what q would need. */
typedef struct cn_swap_room {
    uint32_t blocks, windows;
} cn_swap_room;
cn_swap_room cn_sched_swap_room(const cn_scheduler *s);
bool cn_sched_try_room(const cn_scheduler *s, const cn_seq *q, cn_swap_room *left);

/* Out: before any row of the plan is written; false, nothing changed, when the space is short. In:
 * false when something it needs is not there; true: it has it, but is yet to enter. */
bool cn_sched_try_swap_out(cn_scheduler *s, cn_seq *q);
bool cn_sched_try_swap_in(cn_scheduler *s, cn_seq *q);

/* Moves the last admitted of those that may be and fit out; false when there is none. */
bool cn_sched_try_swap_last(cn_scheduler *s);

/* A swapped sequence ends: what it has of the space is free. */
void cn_sched_swap_drop(cn_scheduler *s, cn_seq *q);

/* ---- scheduler.c ---- */
void cn_sched_enqueue(cn_scheduler *s, cn_seq *q);
void cn_sched_end(cn_scheduler *s, cn_seq *q); /* FINISHED, holding nothing */
void cn_sched_destroy_seq(cn_scheduler *s, cn_seq *q);

#endif
