/* sim_world.h - the state of a simulation, shared by its files.
 *
 *   sim_run.c       epochs and the order of a step
 *   sim_arrivals.c  draws engines and requests from the seed
 *   sim_exec.c      runs plans on the fake device, reads tokens, ends sequences
 *   sim_event.c     runs events
 *   sim_put.c       prompts that go home before the first event
 *   sim_exchange.c  exchanges of away sequences with their homes
 *   sim_auto.c      requests with home `auto`
 *   sim_waits.c     progress and the bounds on waiting
 *   sim_fault.c     planted bugs */
#pragma once

#include "scheduler/scheduler.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_device.h"

enum {
    SIM_MAX_LIVE = 64,
    SIM_MAX_LEN = 256,
    SIM_MAX_SAMPLES = 4,
    SIM_N_TALKS = 8,
    SIM_MAX_SEQS = 16,  /* running */
    SIM_MAX_ENTRIES = 64, /* of an exchange area */
    SIM_MAX_MOVES = 8,  /* of an exchange */
    SIM_MAX_PUTS = 32,  /* of prompts, launched and not yet run */
    SIM_MAX_RING = 34
};

typedef enum sim_event_state {
    SIM_NO_EVENT,
    SIM_ENQUEUED,
    SIM_EXECUTED,
    SIM_REPORTED
} sim_event_state;

/* One sequence as its user sees it. Fake tokens and tags are functions of these fields, so that
 * recomputing a sequence or forking it gives the same values. */
typedef struct sim_seq {
    bool live;   /* not yet finished by the user */
    bool used;   /* live, or its event is not committed */
    cn_seq *seq; /* NULL after its release */
    uint64_t id;
    cn_class klass;
    int32_t priority;
    uint32_t owner;
    uint64_t content; /* identifies the outputs: request and sample */
    uint32_t n_prompt, n_stop, max_tokens, n_vocab;
    uint32_t tokens[SIM_MAX_LEN];
    uint32_t n_tags;                 /* positions tagged so far */
    uint64_t positions[SIM_MAX_LEN]; /* tag of each position */
    uint64_t resident[SIM_MAX_LEN];  /* tag of each resident slot, after the first event */
    bool compressed;

    /* Away, after the first event: the position of each resident slot after the exchange area,
     * which has n_area slots, and of each entry of the area in each pack. resident[0, n_area) is
     * that of the pack that ran last. */
    uint32_t where[SIM_MAX_LEN];
    uint32_t chosen[SIM_N_PACKS][SIM_MAX_ENTRIES];
    uint32_t n_area;
    uint64_t salt;                 /* from a compression; part of all later tags */
    uint32_t n_admissions;         /* up to the last row, a fork included */
    bool was_waiting, was_running, was_swapped; /* at the last check */
    uint32_t n_preemptions;                     /* at the last check */

    sim_event_state event;
    cn_sched_event *sched_event;
    uint64_t run_at, report_at; /* steps */
    uint32_t n_holders;         /* of the blocks of its table when it was enqueued */
    uint64_t kept[SIM_MAX_LEN]; /* by the compression; after the exchange area */
    uint32_t kept_where[SIM_MAX_LEN];
    uint32_t n_kept;
    sim_tile fill_tiles[SIM_MAX_LEN / SIM_TILE_TOKENS]; /* ranked by the fill of a first event */
    uint32_t n_fill_tiles;
    sim_move fill[SIM_N_PACKS][SIM_MAX_ENTRIES]; /* of a first event */
    uint32_t next_area;      /* n_area after the commit */
    uint64_t after_exchange; /* the event waits for the exchanges up to this number */
    uint64_t after_put;      /* and for the puts of prompts up to this one */
    uint32_t n_put, n_puts_of; /* blocks put before the first event, since this admission */
} sim_seq;

/* A put of blocks of a prompt, with all that it reads of its sequence, which may end before. */
typedef struct sim_put {
    cn_kv_home home;
    uint32_t n_blocks;
    cn_block_copy blocks[SIM_MAX_LEN];
    uint64_t tags[SIM_MAX_LEN];
    uint64_t after_exchange;
} sim_put;

/* One row of an exchange E(t, p), with all that it reads of its sequence, which may end before. */
typedef struct sim_exchange_row {
    uint64_t seq_id;
    uint32_t home_slot, query_slot, ring, position;
    uint64_t queries[SIM_MAX_RING]; /* tags of the n_queries newest positions, oldest first */
    sim_tile tiles[SIM_MAX_LEN / SIM_TILE_TOKENS]; /* ranked */
    uint32_t n_queries, n_tiles, n_moves;
    sim_move moves[SIM_MAX_MOVES];
} sim_exchange_row;

/* E(t, p) of one home, between its launch and its end. Those that rank ahead are apart: they are
 * launched before step t, which waits for them. */
typedef struct sim_exchange {
    bool pending;
    uint64_t number; /* in order of launch; one stream runs those of a home in this order */
    uint32_t n_rows;
    sim_exchange_row rows[SIM_MAX_SEQS];
} sim_exchange;

/* The tokens of a finished sequence, which prompts can continue. */
typedef struct sim_talk {
    uint32_t tokens[SIM_MAX_LEN], n;
} sim_talk;

typedef struct sim_world {
    sim_opts o;
    sim_result *r;
    uint64_t rng, step, last_content;

    /* drawn per epoch */
    cn_sched_opts engine;
    bool lag, synchronous, in_order;
    uint32_t event_delay; /* most steps of delay */
    uint32_t arrival_percent, cancel_percent, max_live;
    uint32_t share_percent; /* share of prompts that start like another */
    uint32_t policy_percent[3];
    uint32_t most_window;    /* of a request; a ring may have more rows */
    uint32_t select_percent; /* of the requests that keep all KV */
    uint32_t away_percent;   /* of all requests */
    uint32_t n_families, n_vocab, n_owners;

    cn_scheduler *s;
    sim_device device;
    sim_seq seqs[SIM_MAX_LIVE];
    sim_talk talks[SIM_N_TALKS];
    uint32_t n_live, n_events;
    sim_exchange exchanges[CN_N_HOMES][2 * SIM_N_PACKS]; /* behind, then ahead */
    uint64_t n_exchanges;
    sim_put puts[SIM_MAX_PUTS]; /* a ring */
    uint64_t n_puts, n_run_puts; /* launched, and run */
    uint64_t put_rng; /* of its own: what a seed draws elsewhere does not depend on puts */

    /* Tokens that the last plan sampled and that are not read yet. */
    struct sim_pending {
        uint32_t who;
        uint64_t id;
    } pending[SIM_MAX_LIVE], unread[SIM_MAX_LIVE];
    uint32_t n_pending, n_unread;

    cn_kv_usage ended; /* sums over ended sequences, to compare with the engine's totals */
    uint64_t ended_recomputed, ended_preemptions;

    /* sim_waits.c */
    uint64_t head_id, head_waited, head_bound;
    uint64_t foremost_id, foremost_waited;
    uint32_t passed_least, passed_most; /* interactive ones admitted while batch ones waited */
    uint64_t last_preemptions;
    bool was_aged;
    uint64_t n_left, last_left; /* sequences that ended */
    uint64_t shares_preemptions, shares_swaps;
    uint32_t n_idle;
    bool moved; /* something changed in this step */

} sim_world;

uint64_t sim_random(sim_world *w);
uint32_t sim_below(sim_world *w, uint32_t n);               /* 0 .. n-1 */
uint32_t sim_between(sim_world *w, uint32_t a, uint32_t b); /* a .. b */
bool sim_chance(sim_world *w, uint32_t percent);
uint64_t sim_mix(uint64_t a, uint64_t b);

/* Records the first error. Returns false. */
bool sim_fail(sim_world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void sim_draw_engine(sim_world *w);
void sim_declare_auto(sim_world *w);
void sim_draw_auto(sim_world *w, cn_kv_params *kv);
void sim_count_auto(sim_world *w);
void sim_arrive(sim_world *w); /* adds a request with the probability arrival_percent */

uint32_t sim_token(const sim_seq *q, uint32_t position);
sim_seq *sim_find(const cn_seq *seq); /* NULL: not in use */
bool sim_is_apart(const sim_world *w, const cn_seq *seq);
void sim_tag_positions(const sim_world *w, sim_seq *q, uint32_t n);

bool sim_enqueue_events(sim_world *w, const cn_begin_plan *begin);
bool sim_advance_events(sim_world *w);
void sim_apply_commits(sim_world *w);
bool sim_execute(sim_world *w, const cn_plan *plan);
bool sim_read_tokens(sim_world *w); /* the tokens passed on by the last sim_sampled */
void sim_sampled(sim_world *w);
void sim_end(sim_world *w, sim_seq *q);

bool sim_check_admissions(sim_world *w); /* of the last plan */
bool sim_check_waits(sim_world *w);

/* sim_exchange.c. An away sequence exchanges after its first commit. */
static inline bool sim_exchanges(const cn_seq *seq) { return seq->home_len > 0; }
bool sim_choose_fill(sim_world *w, sim_seq *q, const cn_sched_event *e);
bool sim_check_area(sim_world *w, sim_seq *q, uint32_t pack); /* and sets its resident tags */
bool sim_launch_exchanges(sim_world *w, const cn_plan *plan, uint32_t pack, bool ahead);
bool sim_drift(sim_world *w); /* runs some of the pending exchanges, or none */
bool sim_wait_pack(sim_world *w, const cn_plan *plan, uint32_t pack);
bool sim_wait_exchanges(sim_world *w, uint64_t number); /* all up to this one */

/* sim_put.c */
bool sim_enqueue_puts(sim_world *w, const cn_begin_plan *begin);
bool sim_check_put_before(sim_world *w, sim_seq *q, const cn_sched_event *e);
bool sim_run_puts(sim_world *w, uint64_t number); /* all up to this one */
bool sim_drift_puts(sim_world *w);                /* some of them, or none */
bool sim_after_puts(sim_world *w, bool after);    /* all, if a plan says so */

enum { SIM_FAULT_AFTER_STEPS = 100 };
bool sim_strikes_wait(sim_world *w, const cn_plan *plan, uint32_t pack);
bool sim_strikes_put(sim_world *w, const sim_seq *q);
bool sim_strikes_put_wait(sim_world *w, const sim_seq *q);
bool sim_strikes_after_puts(sim_world *w, const cn_plan *plan);
void sim_strike_prompt(sim_world *w);
bool sim_strikes_digest(sim_world *w, const sim_seq *q);
void sim_strike(sim_world *w);
void sim_strike_event(sim_world *w);
void sim_strike_source(sim_world *w);
