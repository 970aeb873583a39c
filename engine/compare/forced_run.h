/* forced_run.h - forces the documents of a task under every arm and collects the likelihood of
 * their tokens.
 *
 * Owner: cinch compare. Thread: the engine's. Stage: around all stages.
 *
 * Documents run in groups. All arms of a group run one after the other, so that the later arms find
 * its prompts in the prefix cache, and so that the time of an arm is its own. Arms that keep all
 * tokens run first. Each compression takes its prompt's blocks out of the cache, so every further
 * compressed arm computes the prompts again. A group is as large as the batch and the KV blocks
 * allow. */
#pragma once

#include "engine/compare/compare_arms.h"
#include "engine/compare/forced_task.h"
#include "engine/engine_probe.h"
#include "engine/offline/audit.h"

/* One document under one arm. Neither counts the first token, which the prompt predicts. */
typedef struct cn_forced_score {
    double nll;         /* mean over its tokens, nats */
    uint32_t tokens;
    uint32_t same_best; /* steps with full KV's most likely token */
} cn_forced_score;

typedef struct cn_forced_figures {
    cn_forced_score *scores; /* [task->n] */
    cn_kv_params kv;         /* the parameters in use, budget rounded up */
    uint64_t tokens, same_best; /* sums of the scores */
    /* Decoding after every request of a group has its first token. */
    uint64_t timed_tokens;
    double timed_s;
    uint64_t cached_tokens; /* prompt tokens that the prefix cache had */
    uint64_t compressions, evicted_tokens;
    uint64_t peak_sum; /* peak resident tokens, sum over documents */
    cn_select_figures selection; /* zeros without --select-probe */
} cn_forced_figures;

typedef struct cn_forced_run cn_forced_run;

/* Borrows all until cn_forced_run_free. */
cn_status cn_forced_run_create(cn_forced_run **out, cn_engine *e, const cn_compare_arms *arms,
                               const cn_forced_task *task);
void cn_forced_run_free(cn_forced_run *r);

/* Runs the next group under every arm. Errors are those of the engine; a request that the engine
 * refuses is CN_ERR_ARG with its arm and line. The figures then are those of the groups before. */
cn_status cn_forced_run_group(cn_forced_run *r);

uint32_t cn_forced_run_done(const cn_forced_run *r); /* documents */
const cn_forced_figures *cn_forced_run_figures(const cn_forced_run *r, uint32_t arm);

/* The mean of an arm's NLL over the documents done, of its difference to the arm `base` by
 * document, and the standard error of the latter (0 for one document). Arm 0 is full KV. */
typedef struct cn_forced_summary {
    double nll, delta, delta_error;
} cn_forced_summary;
cn_forced_summary cn_forced_run_summary(const cn_forced_run *r, uint32_t arm, uint32_t base);
