/* sim.h - the seeded simulation of the scheduler: one seed, many steps, every invariant checked at
 * every step. Owner: a test or the program sim. Thread: one.
 *
 * A run is a chain of epochs. An epoch draws an engine (block size, pool, slots, limits, switches,
 * token lag, event delays). Its requests arrive, are sampled, stop or are cancelled until the
 * engine is empty; then no block or slot may be in use. The backend is fake (sim_device.h): it
 * stores tags where a real one stores keys, and reports a read of a wrong tag.
 *
 * Checked at every step: cn_scheduler_check; tags; the ring of each decode row whose selector
 * predicts; of away sequences, that each entry of the exchange area has the position that `chosen`
 * says, that no position is resident twice, the plane of the dense layers, that an exchange ranks
 * tiles whose tokens are home and whose digests are of these tokens, and that each full block of a
 * long prompt goes home once, as soon as it is computed; tokens decoded apart are recomputed one a
 * step; no allocation inside a step; some sequence advances (no deadlock); no cap
 * grows while a sequence waits; no sequence is admitted past a waiting one of its owner, nor past
 * one of an owner with fewer running tokens; owners share no block, unless prefixes are shared; and
 * two bounds on waiting, in steps, not counting steps with an unfinished event:
 *
 *   1 The foremost waiting sequence is admitted after at most the work that the running sequences
 *     had left when it became foremost. Every such step computes a token or ends a request. The
 *     bound grows by the work of each sequence that enters before it: samples of a running leader
 *     and requests that rank before it.
 *   2 The foremost living sequence ends within (A + 2) * (max_seqs + 1) * max_model_len such steps,
 *     A = CN_AGED_PREEMPTIONS. After A preemptions no sequence behind it is admitted.
 *
 * Under first come, first served, each request becomes foremost after those before it have ended.
 * The two bounds together therefore bound every wait of the interactive class. The batch class also
 * waits for as long as interactive requests keep arriving, by the definition of the classes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Bugs that a test plants, to check that they are caught. Each strikes once, some steps into the
 * run. */
typedef enum sim_fault {
    SIM_FAULT_NONE,
    SIM_FAULT_DROPPED_REF,    /* a reference dropped too early */
    SIM_FAULT_LEAKED_SLOT,    /* a query slot without a holder that is not free */
    SIM_FAULT_EARLY_COMMIT,   /* a commit before its event has run */
    SIM_FAULT_STALE_PREFIX,   /* a compressed block left in the prefix cache */
    SIM_FAULT_WRITTEN_SOURCE, /* an event that writes a source of another sequence */
    SIM_FAULT_LEAKED_SWAP,    /* a block of the swap space without a holder that is not free */
    SIM_FAULT_EARLY_SWAP,     /* swap space freed while its content is still needed */
    SIM_FAULT_WRONG_SWAP,     /* a sequence that names the wrong block of the swap space */
    SIM_FAULT_LATE_PUT,       /* a put after the fill that reads it */
    SIM_FAULT_EARLY_HOME,     /* a home block freed while it is still needed */
    SIM_FAULT_EARLY_DIGEST,   /* the digests of a put, computed before the put */
    SIM_FAULT_NO_WAIT,        /* a pack that does not wait for its exchange */
    SIM_FAULT_WRONG_HOME,     /* a sequence that names the wrong home block */
    SIM_FAULT_HALF_TAKEN,     /* a sequence with device blocks and without home blocks */
    SIM_FAULT_PARTIAL_PUT,    /* a put of a block of a prompt that is not yet full */
    SIM_FAULT_UNCOUNTED_PUT,  /* a block of a prompt that was put and counts as not put */
    SIM_FAULT_NO_PUT_WAIT,    /* a first event that does not wait for the puts of its prompt */
    SIM_FAULT_UNORDERED_PUT,  /* a block written again before a put that reads it */
    SIM_FAULT_MANY_PUTS,      /* more blocks put in a step than it may */
    SIM_FAULT_EARLY_PROMPT    /* a home block freed while the prompt goes home */
} sim_fault;

typedef struct sim_opts {
    uint64_t seed, steps;
    uint64_t epoch_steps;    /* steps with arrivals per epoch; 0: 10,000 */
    bool full_only;          /* no request compresses */
    bool without_invariants; /* skips cn_scheduler_check: only tags and progress can catch a bug */
    sim_fault fault;
} sim_opts;

typedef struct sim_result {
    uint64_t steps, epochs, requests, cancels, tokens, forks;
    uint64_t events, preemptions, prefix_hits, aged;
    uint64_t sources, new_sharers; /* left in the prefix cache; shared while their event ran */
    uint64_t selecting; /* sequences with a selector */
    uint64_t ring_reads, ring_forks, ring_readmissions; /* of sequences with a ring */
    uint64_t away; /* sequences with a home elsewhere */
    uint64_t auto_admissions[3], auto_moves; /* of sequences with home `auto`, as in cn_stats */
    uint64_t puts, fills, exchanges, moves; /* blocks, first events, rows and packs, entries */
    uint64_t exchanges_ahead;               /* of these exchanges */
    uint64_t early_puts; /* blocks of prompts before the first event */
    uint64_t full_puts;  /* steps that put as many of them as they may */
    uint64_t puts_left;  /* puts of prompts that waited when one of their sequences left */
    uint64_t observed[2];  /* events that count more queries than the window; of away requests */
    uint64_t count_all;    /* sequences whose first event counts every query */
    uint64_t home_returns; /* returns from the swap space past an interactive one without a home */
    uint64_t swap_outs, swap_ins;
    uint64_t longest_head_wait, longest_foremost; /* in steps, counted as for the bounds */
    uint64_t shares_checked; /* admissions past a sequence of another owner */
    uint64_t batch_turns; /* batch sequences admitted by the floor, past interactive ones */
    bool fault_struck;
    char error[512]; /* empty when every check passed */
} sim_result;

/* Runs the simulation. True when every check passed. */
bool sim_run(const sim_opts *o, sim_result *r);
