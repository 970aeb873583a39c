/* compare_run.h - runs the arms of a comparison on one task, one after the other on one engine, and
 * collects the figures of each. The first arm is full KV; the others are compared with it.
 *
 * Owner: cinch compare. Thread: the engine's. Stage: around all stages.
 *
 * An arm has two passes. The first generates and is timed. The second replays the outputs under
 * full KV, teacher-forced (engine/offline/audit.h), and is not timed. An output equal to full KV's
 * own needs no replay: the full arm has its figures. A line that full KV cannot hold is not
 * compared. */
#pragma once

#include "engine/compare/compare_arms.h"
#include "engine/compare/compare_task.h"
#include "engine/offline/audit.h"

typedef struct cn_compare_figures {
    cn_kv_params kv; /* the parameters in use, budget rounded up */
    uint32_t prompts, refused; /* refused: the engine cannot run them; graded as wrong */
    uint32_t graded, matched;
    double low, high; /* 95 % interval of matched / graded */

    uint32_t compared;          /* lines with an output of this arm and of full KV */
    uint32_t identical;         /* outputs equal to full KV's */
    uint32_t median_divergence; /* first differing token of the others; 0: none differ */
    cn_agreement agreement;     /* teacher-forced, of the lines in --audit */
    uint32_t refused_replays;   /* outputs that the engine cannot replay with full KV */

    uint64_t prompt_tokens, output_tokens;
    double elapsed_s;
    double speedup; /* output tokens/s over full KV's */

    double peak_tokens;       /* peak resident tokens of a request, mean over requests */
    uint32_t max_peak_tokens; /* the same, maximum over requests */
    double held_tokens;       /* tokens in the blocks of a running request, mean over steps */
    uint64_t compressions, evicted_tokens, freed_bytes;
    double running; /* running requests, mean over steps */
    uint64_t preemptions, recomputed_tokens;
} cn_compare_figures;

typedef struct cn_compare_run cn_compare_run;

/* Borrows e and task until cn_compare_run_free. */
cn_status cn_compare_run_create(cn_compare_run **out, cn_engine *e, const cn_compare_task *task);
void cn_compare_run_free(cn_compare_run *r);

/* Runs nothing. CN_ERR_ARG, with the numbers, if an arm of the list can run no line of the task. */
cn_status cn_compare_check_arms(cn_engine *e, const cn_compare_task *task,
                                const cn_compare_arms *arms);

/* Runs one arm. The first one must be full KV. Errors are those of the engine, except that a line
 * which the engine refuses is logged and counted. */
cn_status cn_compare_run_arm(cn_compare_run *r, const cn_compare_arm *arm,
                             cn_compare_figures *out);
