/* sim.h - the seeded simulation of the scheduler: one seed, many steps, every invariant at each.
 * Owner: a test or the program sim. Thread: one.
 *
 * A run is a chain of epochs. An epoch draws an engine (block size, pool, slots, limits, switches,
 * token lag, event delays), lets requests arrive, be sampled, stop, be cancelled, and drains to an
 * empty engine, in which nothing may be left over. The backend is fake (sim_device.h): it holds
 * tags where the real one holds keys, and fails a read of a wrong tag.
 *
 * Checked at every step: cn_scheduler_check; tags; no allocation inside a step; somebody advances
 * (no deadlock); no cap grows while anybody waits; nobody is admitted past the foremost that waits;
 * the two bounds on waiting:
 *
 *   1 The foremost that waits is admitted after at most the work that the running ones had left
 *     when it became foremost, in steps, not counting those with an unfinished event. Every such
 *     step computes a token or ends a request. Who enters before it all the same, samples of a
 *     running leader and requests that rank before it, adds the work it brings.
 *   2 The foremost of all that live ends within (A + 2) * (max_seqs + 1) * max_model_len such
 *     steps, A = CN_AGED_PREEMPTIONS: after A preemptions nothing behind it is admitted any more.
 *
 * Under first come, first served, each request becomes foremost once those before it have ended,
 * so both together bound every wait of the interactive class; the batch class waits besides for as
 * long as interactive requests keep arriving, which is what the classes mean. */
#ifndef CN_SIM_H
#define CN_SIM_H

#include <stdbool.h>
#include <stdint.h>

/* Bugs that a test plants to see them caught. Each strikes once, a while into the run. */
typedef enum sim_fault {
    SIM_FAULT_NONE,
    SIM_FAULT_DROPPED_REF,  /* a reference dropped too early */
    SIM_FAULT_LEAKED_SLOT,  /* a query slot that nobody holds and nobody returns */
    SIM_FAULT_EARLY_COMMIT, /* a commit without its event */
    SIM_FAULT_STALE_PREFIX, /* a compressed block left in the prefix cache */
    SIM_FAULT_LEAKED_SWAP,  /* a block of the swap space that nobody holds and nobody returns */
    SIM_FAULT_EARLY_SWAP,   /* swap space given back while its content is still wanted */
    SIM_FAULT_WRONG_SWAP    /* a sequence whose content is in other swap space than it says */
} sim_fault;

typedef struct sim_opts {
    uint64_t seed, steps;
    uint64_t epoch_steps;    /* arrivals last so long; 0: 10,000 */
    bool full_only;          /* no request compresses */
    bool without_invariants; /* leaves catching to the tags and to progress */
    sim_fault fault;
} sim_opts;

typedef struct sim_result {
    uint64_t steps, epochs, requests, cancels, tokens, forks;
    uint64_t events, preemptions, prefix_hits, aged;
    uint64_t relaxed_blocks; /* by which caps grew */
    uint64_t swap_outs, swap_ins;
    uint64_t longest_head_wait, longest_foremost; /* steps, as the bounds count them */
    uint64_t batch_turns; /* batch sequences admitted by the floor, past interactive ones */
    bool fault_struck;
    char error[512]; /* empty when all was well */
} sim_result;

/* True when every check held. */
bool sim_run(const sim_opts *o, sim_result *r);

#endif
