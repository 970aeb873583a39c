/* sched_state.h - the private state of the scheduler, included only by scheduler/.
 * Owner: cn_scheduler. Thread: engine only.
 *
 *   scheduler.c     add, append, finish, release, stats
 *   sched_plan.c    begin and schedule: the order of a step
 *   sched_admit.c   admission from the queues into the running list; forks of samples
 *   sched_blocks.c  blocks of a sequence: preemption, prefix registration, grants
 *   sched_event.c   compression events: targets, pins, commit
 *   sched_way.c     preempts or swaps out batch sequences for interactive ones
 *   sched_swap.c    moves compressed batch sequences to host memory and back
 *   sched_home.c    home blocks of away requests; what goes home before the first event
 *   sched_auto.c    chooses the home of requests with home `auto`; moves one to another home
 *   sched_check.c   checks the invariants
 *
 * The lists that a sequence is in, by cn_seq.state:
 *   WAITING               all, the heap of its class (and aged)
 *   FORKING               all, its leader's list of samples
 *   UNREADY               all
 *   RUNNING, COMPRESSING  all, running, one of by_hold (and aged)
 *   SWAPPED               all, the heap of the swap space (and aged)
 *   FINISHED              all, until released */
#pragma once

#include "compress/away.h"
#include "compress/selector.h"
#include "paged/prefix_cache.h"
#include "paged/space.h"
#include "scheduler/queue.h"
#include "scheduler/scheduler.h"

/* A request that was preempted this often is aged: until it ends, no request behind it in the
 * waiting order is admitted. From then on only finitely many requests can be served before it. */
enum { CN_AGED_PREEMPTIONS = 8 };

enum { CN_NEVER = UINT32_MAX };

/* Automaton steps that count as much as a running token in an owner's share: half a millisecond. */
enum { CN_MASK_STEPS_PER_TOKEN = 100000 };

/* What an admitted sequence holds: no reservation, a reservation (and a slot if its policy needs
 * one), or compressed KV. The last of NONE is preempted first, then the last of GRANTED. A
 * compressed sequence cannot be recomputed and is never preempted. Each list is in order of
 * admission, because slots are granted in that order. Ring users are in NONE, although they have a
 * slot. Home blocks are not part of this: see sched_home.c. */
typedef enum cn_hold { CN_HOLD_NONE, CN_HOLD_GRANTED, CN_HOLD_COMPRESSED, CN_N_HOLDS } cn_hold;

/* The prompt of a group, until the last of its sequences is admitted or ends. */
typedef struct cn_group_prompt {
    uint32_t refs; /* sequences that were not admitted yet */
    uint32_t tokens[];
} cn_group_prompt;

/* What a sequence needs with one home. */
typedef struct cn_seq_form {
    cn_kv_params kv;
    uint32_t n_max;
    uint32_t trigger, max_blocks, n_home; /* as in cn_seq_sched, and so is the next */
    const cn_space *home;
} cn_seq_form;

/* Entries of the arrays of a sequence, enough for each of its forms. */
typedef struct cn_seq_room {
    uint32_t table;  /* max_blocks */
    uint32_t target; /* n_max */
    uint32_t home;   /* n_home */
} cn_seq_room;

typedef struct cn_seq_sched {
    cn_seq_link links[CN_N_LINKS];
    uint32_t heap_at; /* index in its queue while waiting or swapped */
    uint32_t owner_slot; /* index in the scheduler's owners */

    uint32_t trigger;    /* resident slots at the first event; CN_NEVER: it ends before an event */
    uint32_t max_blocks; /* most entries its table can have under its own cap */
    uint32_t n_home;     /* home blocks that it takes at admission; 0: it needs no home */
    const cn_space *home;    /* one of the scheduler's, by its home */
    cn_group_prompt *prompt; /* NULL once it has buffers of its own */
    cn_seq_room room;
    /* The homes that the sequence may have (bit i is cn_kv_home i), and what it needs with each.
     * The fields above, and kv and n_max of cn_seq, are those of one of them. */
    uint32_t homes;
    cn_seq_form forms[CN_N_HOMES];
    bool chooses;        /* home `auto` */
    bool moving;         /* COMPRESSING, in the event that moves it to another home */
    cn_hold hold;

    uint32_t n_registered; /* leading blocks known to the prefix cache */
    cn_prefix_key chain;   /* key of the last of them */
    uint32_t n_hashed;     /* leading blocks whose tokens `mark` is the hash of */
    uint64_t mark;
    uint32_t lost_tokens;  /* n_computed when it was preempted */
    uint64_t admitted_at;  /* cn_pool_n_released of the device at its last admission */
    bool was_admitted;
    bool is_counted; /* the stats have the prompt, as that of this sample or of another */
    bool by_floor; /* batch, admitted past interactive ones: never preempted or swapped for them */
    bool leaves;   /* chosen to leave the batch for an interactive one; only within sched_way.c */

    /* SWAPPED: table[0, n_host) names its blocks in the swap space; host_window is its window there
     * if it needs a slot. */
    uint32_t n_host, host_window;
    uint64_t swap_out_plan; /* the number of the plan that swapped it out */

    cn_seq *leader;      /* FORKING: the sequence whose prefill it waits for */
    cn_seq *next_sample; /* the next sample that waits for the same leader */
    cn_seq *samples;     /* of a leader: the first sample that waits for it */
    bool in_group;       /* one of several samples: may share blocks even without a prefix cache */
    uint32_t row;        /* its row in the current plan; read for leaders that fork */

    cn_sched_event event; /* at most one at a time */
    uint32_t *target;     /* [n_max] target blocks of the event, then the spare block */
    cn_block_copy *puts;  /* [table of room] of the event, and before the first one by block; only
                           * if a form has a home elsewhere */
    uint32_t n_put;       /* leading blocks that were put before the first event; 0 after it */
    uint32_t spare;       /* table index of the block left for decoding, or CN_NO_BLOCK */
    uint32_t n_lent;      /* targets of blocks that a first event leaves in the prefix cache */
    bool event_done;      /* reported, not yet committed */
    bool ending;          /* finished during its event: freed at the commit */
    bool released;        /* by the caller, during its event */
} cn_seq_sched;

/* The swap space: its blocks and query slots (windows) in host memory, the swapped sequences, and
 * the copies of this plan. All zero when there is no swap space. */
typedef struct cn_swap {
    cn_space space;
    cn_queue queue;
    cn_block_copy *out_blocks, *in_blocks;   /* [n_swap_blocks] each */
    cn_block_copy *out_windows, *in_windows; /* [n_swap_windows] each */
    uint32_t n_out_blocks, n_in_blocks, n_out_windows, n_in_windows;
    uint64_t n_plans;
} cn_swap;

typedef struct cn_owner {
    uint32_t id, n_seqs; /* unfinished */
    /* As of the last cn_sched_count_loads. */
    uint64_t load;      /* tokens of its running sequences, and those that stand for mask_steps */
    uint64_t mask_steps; /* of its running sequences */
    uint32_t n_running; /* of its sequences */
} cn_owner;

struct cn_scheduler {
    cn_sched_opts o;
    cn_space device; /* blocks, query slots, reservations */
    cn_space home[CN_N_HOMES]; /* home blocks and slots; `device` and undeclared ones are zero */
    cn_swap swap;
    cn_prefix_cache *prefix; /* NULL when off */
    cn_queue waiting[2]; /* by class */
    cn_seq_list all, running, aged, by_hold[CN_N_HOLDS];
    uint32_t n_passed; /* interactive admissions in a row while a batch sequence waited */
    uint32_t n_lacking; /* running sequences that need a slot or reservation and lack it */
    uint32_t n_forking[2]; /* by class: samples that wait for their leader */
    uint32_t n_unready[2];    /* by class: UNREADY sequences */
    uint32_t n_compressing, n_blocked;
    uint32_t n_moving; /* sequences whose event moves them to another home */
    uint32_t n_lent;   /* sum over the events in flight: blocks that come back with their commits */
    cn_owner *owners; /* [n_owner_slots]; those without sequences are used again */
    uint32_t n_owner_slots, n_owners; /* n_owners: with unfinished sequences */
    uint32_t n_in_group; /* unfinished sequences of groups of several samples */
    uint64_t last_seq_id, last_event_id;
    uint64_t n_buffered; /* sequences that got buffers: the only allocations of a step */
    cn_seq *starved;     /* the last sequence of this step for whose buffers memory was missing */

    cn_sched_event **begun, **done; /* [max_seqs] started in this step; done, to be committed */
    cn_sched_put *puts;             /* [max_seqs] of this step */
    uint32_t n_begun, n_done, n_puts;
    bool after_puts; /* a sequence with puts has left since the last plan */

    /* The plan's arrays, [max_seqs] each. */
    cn_plan_row *rows;
    cn_block_copy *block_copies, *slot_copies;
    struct cn_plan_fork *forks;
    cn_seq **fork_leaders;
    uint32_t n_rows, n_decode, n_tokens, n_block_copies, n_slot_copies, n_forks;

    cn_stats stats; /* counters and sizes; cn_scheduler_stats fills in the other fields */
    uint32_t *check_refs; /* scratch of cn_scheduler_check: one item for each block of a space */
    uint32_t *hit_blocks; /* [blocks of the longest context] found by the last look for a prefix */
};

/* The home of a sequence, as the index of its space. */
static inline cn_kv_home cn_seq_home(const cn_scheduler *s, const cn_seq *q)
{
    return (cn_kv_home)(q->sched->home - s->home);
}

/* The key of the empty prefix of an owner. Keys of blocks are serial numbers below 2^63. */
static inline cn_prefix_key cn_sched_root(const cn_sched_opts *o, uint32_t owner)
{
    return o->share_prefixes || owner == 0 ? CN_PREFIX_ROOT : UINT64_C(1) << 63 | owner;
}

static inline uint32_t cn_sched_count_forking(const cn_scheduler *s)
{
    return s->n_forking[0] + s->n_forking[1];
}

/* Reads and clears after_puts, for a plan. */
static inline bool cn_sched_take_after_puts(cn_scheduler *s)
{
    const bool after = s->after_puts;
    s->after_puts = false;
    return after;
}

/* ---- limits that follow from a sequence's lengths ---- */

static inline uint32_t cn_seq_known(const cn_seq *q) { return q->n_tokens + q->n_pending; }

/* One past the last position to compute. The KV of the last possible token is never needed. */
static inline uint32_t cn_seq_end(const cn_seq *q)
{
    return cn_min_u32(cn_seq_known(q), q->max_tokens - 1);
}

/* Computed positions that a stop can no longer undo. With a token lag, the step after the last
 * known token may already run. If that token was the stop, the slot of that step is counted nowhere
 * and enters no cache, as without a lag (DESIGN.md §4.5). */
static inline uint32_t cn_seq_settled(const cn_seq *q)
{
    return cn_min_u32(q->n_computed, cn_max_u32(q->n_prompt, q->n_tokens - 1));
}

static inline bool cn_seq_needs_hold(const cn_seq *q) { return q->sched->trigger != CN_NEVER; }

static inline bool cn_seq_is_lacking(const cn_seq *q)
{
    return cn_seq_needs_hold(q) && q->sched->hold == CN_HOLD_NONE;
}

/* First position whose query the first event reads: of its observation window, or of the ring of an
 * away request. A sequence without its slot or reservation may not advance past this position, and
 * a prefix hit never reaches past it (DESIGN.md §3.3). */
static inline uint32_t cn_seq_window_start(const cn_seq *q)
{
    if (!cn_seq_needs_hold(q)) return UINT32_MAX;
    const uint32_t n = cn_kv_needs_slot(&q->kv) ? cn_ring_rows(&q->kv) : 0;
    return q->sched->trigger - cn_min_u32(q->sched->trigger, n);
}

/* Whether the sequence is admitted only together with its slot or reservation: always without
 * hybrid scheduling, and when its first event reads the query of its first token, because it could
 * not advance without a slot (DESIGN.md §3.3). */
static inline bool cn_seq_is_constrained(const cn_scheduler *s, const cn_seq *q)
{
    return cn_seq_needs_hold(q) && (!s->o.hybrid || cn_seq_window_start(q) == 0);
}

/* A ring user has a selector that predicts, and its KV on the device. From its admission until it
 * leaves the batch it has a query slot without a reservation. It can be preempted like a sequence
 * without a slot. The ring of an away request comes with its reservation. */
static inline bool cn_seq_is_ring_user(const cn_seq *q)
{
    return !cn_kv_is_away(&q->kv) && cn_selector_ring_rows(&q->kv) > 0;
}

/* X: blocks of the exchange area from the first event on. */
static inline uint32_t cn_seq_area_blocks(const cn_seq *q, uint32_t block_tokens)
{
    return cn_away_of(&q->kv, block_tokens).n_exchange;
}

/* Returns how many leading blocks of q may be home before its first event: the full ones of its
 * prompt, if the prompt alone is more than the event leaves on the device. Then the event is due at
 * the next block boundary. A shorter prompt may end before its first event, and needs no home. */
static inline uint32_t cn_seq_puttable(const cn_seq *q, uint32_t block_tokens)
{
    const bool away = q->n_home_blocks > 0 && q->usage_kv.compressions == 0;
    if (!away || cn_ceil_div(q->n_prompt, block_tokens) < q->n_max) return 0;
    return cn_min_u32(q->n_computed, q->n_prompt) / block_tokens;
}

/* Returns true when the tokens that q decodes get other KV bits than in a prefill. Such tokens stay
 * out of the prefix cache and are recomputed one a step (DESIGN.md §4.7). */
static inline bool cn_seq_is_apart(const cn_scheduler *s, const cn_seq *q)
{
    return s->o.decoded_apart || q->kv.select != CN_SELECT_NONE;
}

/* Returns true when an event is due and the sequence has more to compute after it. */
static inline bool cn_seq_is_due(const cn_seq *q, uint32_t block_tokens)
{
    return cn_seq_needs_hold(q) && q->n_computed < q->max_tokens - 1 &&
           cn_policy_due(q->n_max, q->n_resident, q->n_blocks, block_tokens);
}

/* One past the last position that q may compute before it must wait for a slot, an event or a
 * token. */
uint32_t cn_seq_limit(const cn_scheduler *s, const cn_seq *q);

/* ---- sched_blocks.c ---- */

/* Enters the blocks of q that have become full into the prefix cache. Only settled tokens. */
void cn_sched_register(cn_scheduler *s, cn_seq *q);

/* Preempts one request so that q gets blocks, a batch request if there is one. Returns false when
 * there is none besides q itself; q then waits in place. */
bool cn_sched_try_preempt(cn_scheduler *s, const cn_seq *q);

/* Like cn_sched_try_preempt, but when an interactive request would be preempted or would have to
 * wait, a batch request moves to the swap space instead if possible. Returns true also when the
 * moved request is q, which is then no longer RUNNING. Call only before any row of the plan is
 * written. */
bool cn_sched_try_preempt_or_swap(cn_scheduler *s, const cn_seq *q);

/* Removes a running, uncompressed sequence from the batch and returns it to its queue. */
void cn_sched_preempt(cn_scheduler *s, cn_seq *q);

/* Grants free slots and reservations to the foremost sequences that lack them. */
void cn_sched_grant(cn_scheduler *s);

/* Grants a slot or reservation to q, which is about to run. Returns false when a running sequence
 * lacks one or when none is free. */
bool cn_sched_try_grant(cn_scheduler *s, cn_seq *q);

/* Gives q, which is about to run, the slot of its ring. Returns true also when q uses no ring.
 * Returns false when no slot is free, or when a running sequence of the same or a prior class lacks
 * one. */
bool cn_sched_try_ring(cn_scheduler *s, cn_seq *q);

/* Returns true when a running sequence of this or a prior class lacks a query slot. */
bool cn_sched_lacks_slot(const cn_scheduler *s, cn_class klass);

/* Preempts q if it is a ring user whose slot is all that the foremost sequence without one lacks.
 * Call only before any row of the plan is written, when q would wait in place for a block. */
void cn_sched_yield_slot(cn_scheduler *s, cn_seq *q);

/* Releases the slot and the reservation of q, which is in no list of holders. */
void cn_sched_release_hold(cn_scheduler *s, cn_seq *q);

/* Removes a sequence from the running list and releases all that it holds. */
void cn_sched_leave(cn_scheduler *s, cn_seq *q);

/* Appends a sequence that has its table to the running list. */
void cn_sched_enter(cn_scheduler *s, cn_seq *q);

/* ---- sched_event.c ---- */

/* Shared blocks among the first n of the table of q. An event replaces those of its targets. */
uint32_t cn_seq_count_shared(const cn_scheduler *s, const cn_seq *q, uint32_t n);

/* Starts the due event of q. Returns false and changes nothing when too few blocks are free. Call
 * cn_sched_protect_sources next, before the event is enqueued. */
bool cn_sched_try_event(cn_scheduler *s, cn_seq *q);

/* Decides which own blocks the event of q leaves in the prefix cache: the prompt's, at a first
 * event. Takes at most *n_left new blocks for them, and subtracts what it has taken. The other own
 * blocks leave the cache and are pinned; one of them becomes the spare. */
void cn_sched_protect_sources(cn_scheduler *s, cn_seq *q, uint32_t *n_left);

void cn_sched_commit_done(cn_scheduler *s);

/* ---- sched_admit.c ---- */

/* Admits the foremost waiting or swapped sequence and appends it to the running list. Returns NULL
 * when it cannot be admitted now. */
cn_seq *cn_sched_admit_next(cn_scheduler *s, uint32_t budget_tokens);

/* Counts load, mask_steps and n_running of each owner. */
void cn_sched_count_loads(const cn_scheduler *s);

/* The next sequence to admit if it is interactive. NULL when none waits, when a batch sequence is
 * next, or when it could not be admitted even with enough room. */
cn_seq *cn_sched_next_interactive(const cn_scheduler *s);

/* Blocks that must be available before q can be admitted. */
uint64_t cn_sched_count_wanted(const cn_scheduler *s, const cn_seq *q);

/* Blocks that running sequences below their caps may need next, one each. */
uint32_t cn_sched_margin(const cn_scheduler *s);

/* Starts the samples that wait for a leader whose row ends its prefill. Returns false when one did
 * not fit and went to the queue. From the next step on it finds the leader's blocks in the prefix
 * cache. */
bool cn_sched_fork(cn_scheduler *s, cn_seq *leader);

/* ---- sched_home.c ---- */
cn_status cn_sched_home_init(cn_scheduler *s);
void cn_sched_home_free(cn_scheduler *s);

/* Free in a home space, or what q takes there at admission. */
typedef struct cn_home_room {
    uint32_t blocks, slots;
} cn_home_room;
cn_home_room cn_sched_home_room(const cn_space *home);
cn_home_room cn_seq_home_wanted(const cn_seq *q);

/* Returns true when the home of q, which has none yet, has too little room for it. */
bool cn_sched_lacks_home(const cn_seq *q);

/* Takes the home blocks and the home slot of q, which is about to run. Returns true also when q
 * needs none. Returns false and changes nothing when there are too few. */
bool cn_sched_try_home(cn_scheduler *s, cn_seq *q);
void cn_sched_release_home(cn_seq *q);

/* Most blocks of prompts that a step puts: about those that a step can compute. */
static inline uint32_t cn_sched_step_puts(const cn_sched_opts *o)
{
    return o->max_batched_tokens / o->block_tokens + 1;
}
/* Plans the puts of this step. */
void cn_sched_plan_puts(cn_scheduler *s);

/* ---- sched_auto.c ---- */

/* Gives q, which does not run, the parameters of one of its homes. */
void cn_seq_set_home(cn_seq *q, cn_kv_home home);

/* Blocks of the device that running sequences can come to hold, all at once. */
uint64_t cn_sched_count_committed(const cn_scheduler *s);
uint64_t cn_seq_committed(const cn_seq *q);

/* Gives q, which is about to be admitted, the first of its homes where it fits now. Returns true
 * also when q does not choose. Returns false when it fits nowhere; q then has the first home that
 * it may have. */
bool cn_sched_choose_home(cn_scheduler *s, cn_seq *q);

/* Gives a sample the home of its leader. Returns false when it does not fit there. */
bool cn_sched_follow_home(cn_scheduler *s, cn_seq *q, const cn_seq *leader);

/* Counts the admission of q by its home if it has chosen one. */
void cn_sched_count_choice(cn_scheduler *s, cn_seq *q);

/* Starts the event that moves the last sequence that can be moved from the device to another home.
 * Returns NULL when there is none. */
cn_seq *cn_sched_try_move(cn_scheduler *s);

/* Blocks that the moves in flight will free. */
uint32_t cn_sched_count_moving(const cn_scheduler *s);

/* ---- sched_way.c: call only before any row of the plan is written ---- */

/* Preempts or swaps out batch sequences if the next interactive sequence can then be admitted. */
void cn_sched_make_way(cn_scheduler *s);

/* The same for the foremost running interactive sequence that cannot advance because it lacks a
 * slot or reservation. */
void cn_sched_make_way_to_hold(cn_scheduler *s);

/* ---- sched_swap.c ---- */
cn_status cn_sched_swap_init(cn_swap *w, uint32_t n_blocks, uint32_t n_windows);
void cn_sched_swap_free(cn_swap *w);
void cn_sched_swap_begin_plan(cn_swap *w);

/* Returns true when q may be moved to the swap space. */
bool cn_sched_is_movable(const cn_scheduler *s, const cn_seq *q);

/* cn_sched_swap_room returns the free room of the swap space. cn_sched_try_room subtracts what q
 * needs from *left; it returns false and changes nothing when q does not fit. */
typedef struct cn_swap_room {
    uint32_t blocks, windows;
} cn_swap_room;
cn_swap_room cn_sched_swap_room(const cn_scheduler *s);
bool cn_sched_try_room(const cn_scheduler *s, const cn_seq *q, cn_swap_room *left);

/* Moves q to the swap space. Call only before any row of the plan is written. Returns false and
 * changes nothing when the swap space is too full. */
bool cn_sched_try_swap_out(cn_scheduler *s, cn_seq *q);

/* Takes blocks, slot and reservation for a swapped sequence and plans the copies back. The caller
 * must then call cn_sched_enter. Returns false and changes nothing when q cannot come back now. */
bool cn_sched_try_swap_in(cn_scheduler *s, cn_seq *q);

/* Swaps out the last admitted sequence that is movable and fits; false when there is none. */
bool cn_sched_try_swap_last(cn_scheduler *s);

/* Releases the swap space of a swapped sequence that ends. */
void cn_sched_swap_drop(cn_scheduler *s, cn_seq *q);

/* ---- scheduler.c ---- */
void cn_sched_enqueue(cn_scheduler *s, cn_seq *q);
void cn_sched_end(cn_scheduler *s, cn_seq *q); /* to FINISHED; q must hold nothing */
void cn_sched_destroy_seq(cn_scheduler *s, cn_seq *q);
/* Makes the arrays of a sequence at its first admission. False: no host memory now. */
bool cn_sched_try_buffers(cn_scheduler *s, cn_seq *q);
