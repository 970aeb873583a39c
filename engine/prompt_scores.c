/* prompt_scores.c - see prompt_scores.h. */
#include "engine/prompt_scores.h"

#include <math.h>

#include "engine/engine_state.h"

cn_status cn_prompt_scores_create(cn_prompt_scores **out, const uint32_t *prompt, uint32_t n_prompt,
                                  uint32_t n_top)
{
    CN_ASSERT(n_prompt > 0 && n_top <= CN_MAX_LOGPROBS);
    cn_prompt_scores *s = cn_calloc(1, sizeof *s);
    if (s) *s = (cn_prompt_scores){.n_prompt = n_prompt, .n_top = n_top, .n = 1};
    if (s) s->tokens = cn_calloc(n_prompt, sizeof *s->tokens);
    if (s) s->top = cn_calloc((size_t)n_prompt * n_top + 1, sizeof *s->top);
    if (!s || !s->tokens || !s->top) {
        cn_prompt_scores_free(s);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the scores of %u tokens", n_prompt);
    }
    s->tokens[0].chosen = (cn_logprob){.token = prompt[0], .logprob = NAN};
    *out = s;
    return CN_OK;
}

void cn_prompt_scores_free(cn_prompt_scores *s)
{
    if (!s) return;
    cn_free(s->tokens);
    cn_free(s->top);
    cn_free(s);
}

void cn_prompt_piece_declare(cn_start_plan *p, cn_prompt_piece *piece)
{
    const uint64_t rows = cn_start_max_rows(p->config);
    const struct {
        uint64_t row_bytes;
        void *device, *host;
    } arrays[] = {
        {sizeof *piece->rows, &piece->rows, &piece->host_rows},
        {sizeof *piece->samples, &piece->samples, &piece->host_samples},
        {sizeof *piece->logprobs, &piece->logprobs, &piece->host_logprobs},
        {sizeof *piece->ranks, &piece->ranks, &piece->host_ranks},
        {CN_MAX_LOGPROBS * sizeof *piece->top, &piece->top, &piece->host_top},
    };
    cn_start_add(p, "prompt scores", CN_PART_STEPS, rows * sizeof *piece->tokens, &piece->tokens);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const uint64_t bytes = rows * arrays[i].row_bytes;
        cn_start_add(p, "prompt scores", CN_PART_STEPS, bytes, arrays[i].device);
        cn_start_add(p, "prompt scores", CN_PART_HOST, bytes, arrays[i].host);
    }
}

/* Copies the results of n rows. */
static void take_piece_scores(cn_prompt_scores *s, const cn_prompt_piece *p, uint32_t n,
                              uint32_t vocab)
{
    const uint32_t n_top = cn_min_u32(s->n_top, vocab);
    for (uint32_t i = 0; i < n; i++, s->n++) {
        cn_logprob *top = s->top + (size_t)s->n * s->n_top;
        for (uint32_t k = 0; k < n_top; k++) top[k] = p->host_top[i * CN_MAX_LOGPROBS + k];
        s->tokens[s->n] = (cn_token_logprobs){
            .chosen = {(uint32_t)p->host_samples[i].force_token, p->host_logprobs[i]},
            .rank = p->host_ranks[i],
            .top = top,
            .n_top = n_top,
        };
    }
}

/* Scores the next n tokens of s, whose predecessors are the step's tokens from `row` on. */
static cn_status score_prompt_rows(cn_engine *e, cn_prompt_scores *s, const uint32_t *prompt,
                                   uint32_t row, uint32_t n)
{
    cn_backend *be = e->backend;
    cn_prompt_piece *p = &e->piece;
    for (uint32_t i = 0; i < n; i++) {
        p->host_rows[i] = row + i;
        p->host_samples[i] = (cn_sample_row){.top_p = 1,
                                             .repetition_penalty = 1,
                                             .count_slot = -1,
                                             .force_token = (int32_t)prompt[s->n + i],
                                             .prev_row = -1,
                                             .n_logprobs = (int32_t)s->n_top};
    }
    cn_sample_args a = {.n_rows = n,
                        .vocab = e->model_config.vocab,
                        .rows = p->samples,
                        .bans = cn_batch_bans(e->batch),
                        .biases = cn_batch_biases(e->batch),
                        .counts = e->counts,
                        .tokens = p->tokens,
                        .token_logprobs = p->logprobs,
                        .top = p->top,
                        .ranks = p->ranks,
                        .scratch = e->sample_scratch,
                        .scratch_bytes = e->sample_scratch_bytes};
    CN_TRY(be->mem_write(e->stream, p->rows, p->host_rows, n * sizeof *p->rows));
    CN_TRY(be->mem_write(e->stream, p->samples, p->host_samples, n * sizeof *p->samples));
    cn_rank_rows rows = {p->host_rows, n};
    CN_TRY(cn_ranks_start(&e->ranks, cn_rank_more_logits, &rows));
    CN_TRY(cn_ranks_join(&e->ranks,
                         cn_model_more_logits(e->model, e->stream, cn_batch_device_view(e->batch),
                                              p->rows, n)));
    a.logits = cn_model_logits(e->model);
    CN_TRY(be->sample(e->stream, &a));
    CN_TRY(be->mem_read(e->stream, p->host_logprobs, p->logprobs, n * sizeof *p->logprobs));
    CN_TRY(be->mem_read(e->stream, p->host_ranks, p->ranks, n * sizeof *p->ranks));
    CN_TRY(be->mem_read(e->stream, p->host_top, p->top, n * CN_MAX_LOGPROBS * sizeof *p->top));
    CN_TRY(be->fence_record(p->fence, e->stream));
    CN_TRY(e->ranks.n > 0 ? cn_ranks_sync(&e->ranks, p->fence) : be->fence_sync(p->fence));
    take_piece_scores(s, p, n, a.vocab);
    return CN_OK;
}

cn_status cn_prompt_scores_step(cn_engine *e, const cn_plan *plan)
{
    uint32_t at = 0; /* the row's first token in the batch */
    for (uint32_t r = 0; r < plan->n_rows; at += plan->rows[r++].n_new) {
        const cn_plan_row *row = &plan->rows[r];
        cn_prompt_scores *s = ((cn_sample *)row->seq->user)->request->scores;
        if (!s) continue;
        /* The token at position p is scored by the row of position p - 1. After a preemption the
         * first rows repeat. */
        const uint32_t end = cn_min_u32(row->first_pos + row->n_new + 1, s->n_prompt);
        CN_ASSERT(row->first_pos < s->n || s->n == s->n_prompt);
        while (s->n < end)
            CN_TRY(score_prompt_rows(e, s, row->seq->tokens, at + s->n - 1 - row->first_pos,
                                     cn_min_u32(end - s->n, e->max_rows)));
    }
    return CN_OK;
}
