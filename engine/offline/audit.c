/* audit.c - see audit.h. */
#include "engine/offline/audit.h"

#include <math.h>

#include "compress/away.h"

enum { TRANSCRIPT_RESERVE = 256 };

static cn_status grow(cn_transcript *t, uint32_t cap)
{
    uint32_t *tokens = cn_realloc(t->tokens, cap, sizeof *tokens);
    if (tokens) t->tokens = tokens;
    uint32_t *best = cn_realloc(t->best, cap, sizeof *best);
    if (best) t->best = best;
    float *logprobs = cn_realloc(t->logprobs, cap, sizeof *logprobs);
    if (logprobs) t->logprobs = logprobs;
    if (!tokens || !best || !logprobs)
        return cn_fail(CN_ERR_MEMORY, "out of memory for a transcript of %u tokens", cap);
    t->cap = cap;
    return CN_OK;
}

cn_status cn_transcript_add(cn_transcript *t, const cn_event *ev)
{
    CN_ASSERT(ev->logprobs || ev->n_tokens == 0);
    for (uint32_t i = 0; i < ev->n_tokens; i++) {
        const cn_token_logprobs *lp = &ev->logprobs[i];
        CN_ASSERT(lp->n_top >= CN_AUDIT_LOGPROBS);
        if (t->n == t->cap) CN_TRY(grow(t, t->cap ? 2 * t->cap : TRANSCRIPT_RESERVE));
        t->tokens[t->n] = ev->tokens[i];
        t->best[t->n] = lp->top[0].token;
        t->logprobs[t->n] = lp->chosen.logprob;
        t->n++;
    }
    return CN_OK;
}

void cn_transcript_free(cn_transcript *t)
{
    cn_free(t->tokens);
    cn_free(t->best);
    cn_free(t->logprobs);
    *t = (cn_transcript){0};
}

void cn_audit_params(cn_request_params *io, const cn_transcript *t)
{
    io->forced = t->tokens;
    io->n_forced = t->n;
    io->structure = (cn_structure){.kind = CN_STRUCTURE_NONE}; /* the tokens are given */
    cn_kv_keep_all(&io->kv);
    io->sampling = (cn_sampling){
        .n = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = t->n,
        .ignore_eos = true,
        .logprobs = CN_AUDIT_LOGPROBS,
        .thinking_token_budget = -1,
    };
}

void cn_audit_add(cn_agreement *a, const cn_transcript *t, uint32_t *at, const cn_event *ev)
{
    for (uint32_t i = 0; i < ev->n_tokens; i++, *at += 1) {
        CN_ASSERT(*at < t->n && ev->tokens[i] == t->tokens[*at]);
        const cn_token_logprobs *lp = &ev->logprobs[i];
        a->tokens++;
        a->same_best += lp->top[0].token == t->best[*at];
        a->gap_nats += (double)t->logprobs[*at] - (double)lp->chosen.logprob;
    }
    if (ev->last && ev->finish == CN_FINISH_LENGTH) a->outputs++; /* complete, not cancelled */
}

void cn_agreement_between(cn_agreement *a, const cn_transcript *own, const cn_transcript *full)
{
    CN_ASSERT(own->n == full->n);
    for (uint32_t i = 0; i < own->n; i++) {
        a->same_best += own->best[i] == full->best[i];
        a->gap_nats += (double)own->logprobs[i] - (double)full->logprobs[i];
    }
    a->tokens += own->n;
    a->outputs++;
}

bool cn_audit_picks(float percent, uint64_t seed, const void *key, size_t n)
{
    const uint64_t hash = cn_hash64(cn_hash64(0, &seed, sizeof seed), key, n);
    return (double)(hash >> 11) / 9007199254740992.0 * 100 < (double)percent; /* 2^53 */
}

double cn_agreement_share(const cn_agreement *a)
{
    return a->tokens ? (double)a->same_best / (double)a->tokens : (double)NAN;
}

double cn_agreement_gap(const cn_agreement *a)
{
    return a->tokens ? a->gap_nats / (double)a->tokens : (double)NAN;
}
