/* compare_run.h - the arms of a comparison on one task, one after the other on one engine, and the
 * figures of each. The first arm is full KV; the others are measured against it.
 *
 * Owner: cinch compare. Thread: the engine's. Stage: around the whole of a request's way.
 *
 * An arm runs twice: it generates, which is timed; then its outputs are replayed, teacher-forced,
 * under full KV (engine/offline/audit.h), which is not. An output equal to full KV's own needs no
 * replay: the full arm has the figures. */
#ifndef CN_COMPARE_RUN_H
#define CN_COMPARE_RUN_H

#include "engine/compare/compare_arms.h"
#include "engine/compare/compare_task.h"
#include "engine/offline/audit.h"

typedef struct cn_compare_figures {
    cn_kv_params kv; /* what was in force, budget rounded up */
    uint32_t prompts, refused; /* refused: the engine could never run them; graded as wrong */
    uint32_t graded, matched;
    double low, high; /* 95 % interval of matched / graded */

    uint32_t identical;           /* outputs equal to full KV's */
    uint32_t median_divergence;   /* first token that differs, of the others; 0: none */
    cn_agreement agreement;       /* teacher-forced, of the lines in --audit */

    uint64_t prompt_tokens, output_tokens;
    double elapsed_s;
    double speedup; /* output tokens/s over full KV's */

    double peak_tokens;       /* most resident at once, mean over requests */
    uint32_t max_peak_tokens; /* and the largest */
    double held_tokens;       /* of the blocks of a running request, mean over steps */
    uint64_t compressions, evicted_tokens, freed_bytes;
    double running; /* requests at once, mean over steps */
    uint64_t preemptions, recomputed_tokens;
} cn_compare_figures;

typedef struct cn_compare_run cn_compare_run;

/* Both borrowed for the run's life. */
cn_status cn_compare_run_create(cn_compare_run **out, cn_engine *e, const cn_compare_task *task);
void cn_compare_run_free(cn_compare_run *r);

/* Runs one arm; the first one must be full KV. An error is the engine's. */
cn_status cn_compare_run_arm(cn_compare_run *r, const cn_compare_arm *arm,
                             cn_compare_figures *out);

#endif
