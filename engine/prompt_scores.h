/* prompt_scores.h - log-probabilities of a prompt's tokens.
 *
 * Owner: cn_engine_request, if its prompt is scored. Thread: engine only. Stage: after the rows of
 * a prefill step (docs/ARCHITECTURE.md).
 *
 * A step has logits for as many rows as it may sample, and a prompt has many more tokens. Their
 * hidden states are still there after the pass, so the head runs over them in pieces of that size.
 * The host waits for each piece: a step that scores a prompt does not overlap with the next one.
 * The prompt is computed whole, because the prefix cache has no hidden states. */
#pragma once

#include "engine/ops.h"
#include "engine/start/start_plan.h"
#include "scheduler/scheduler.h"

typedef struct cn_prompt_scores {
    uint32_t n_prompt, n_top;
    uint32_t n; /* tokens scored so far; the first has no context and counts */
    cn_token_logprobs *tokens; /* [n_prompt]; the first logprob is NAN */
    cn_logprob *top;           /* [n_prompt, n_top] */
} cn_prompt_scores;

/* Arrays of one piece, of max_rows rows each, on the device and on the host. */
typedef struct cn_prompt_piece {
    cn_fence *fence;
    uint32_t *rows, *tokens, *host_rows;
    cn_sample_row *samples, *host_samples;
    float *logprobs, *host_logprobs;
    uint32_t *ranks, *host_ranks;
    cn_logprob *top, *host_top; /* [max_rows, CN_MAX_LOGPROBS] */
} cn_prompt_piece;

/* CN_ERR_MEMORY. n_top is at most CN_MAX_LOGPROBS. */
cn_status cn_prompt_scores_create(cn_prompt_scores **out, const uint32_t *prompt, uint32_t n_prompt,
                                  uint32_t n_top);
void cn_prompt_scores_free(cn_prompt_scores *s); /* NULL is fine */

/* Adds the arrays to the start plan. */
void cn_prompt_piece_declare(cn_start_plan *p, cn_prompt_piece *piece);

/* Scores the prompt tokens whose predecessors are in the rows of this step, and waits. Call it
 * after the step's own sampling. */
struct cn_engine;
cn_status cn_prompt_scores_step(struct cn_engine *e, const cn_plan *plan);
