/* audit.h - measures how far an answer under compressed KV agrees with full KV. The answer's own
 * tokens are run again under full KV, teacher-forced, and compared token by token.
 *
 * Owner: the caller, one transcript per sample. Thread: the engine's. Stage: after an output is
 * complete; the replay is an ordinary request.
 *
 *   request with logprobs -> cn_transcript_add per event -> finished
 *   cn_audit_params(its params, transcript) -> cn_engine_submit -> cn_audit_add per event */
#pragma once

#include "engine/base/base.h"

/* The tokens of one sample, with their log-probabilities. */
typedef struct cn_transcript {
    uint32_t *tokens;
    uint32_t *best;  /* the most likely token at each position */
    float *logprobs; /* of the tokens, from raw logits, in nats */
    uint32_t n, cap;
} cn_transcript; /* zero-initialise */

/* Number of logprob alternatives that a request must ask for to be recorded. */
enum { CN_AUDIT_LOGPROBS = 1 };

/* Appends the tokens of one event, which must have their logprobs. */
cn_status cn_transcript_add(cn_transcript *t, const cn_event *ev);
void cn_transcript_free(cn_transcript *t); /* leaves an empty one */

/* Sums over replayed outputs. The sums of two sets of outputs can be added. */
typedef struct cn_agreement {
    uint64_t outputs;
    uint64_t tokens;
    uint64_t same_best; /* positions where both have the same most likely token */
    double gap_nats;    /* sum of (own logprob - full KV's logprob of the same token) */
} cn_agreement;

/* Turns the params of a recorded request into those of its replay: full KV, one sample, exactly the
 * recorded tokens, no stop rule. They borrow the transcript. */
void cn_audit_params(cn_request_params *io, const cn_transcript *t);

/* Adds one event of the replay to the sums. *at is the number of tokens compared; it starts at
 * 0. */
void cn_audit_add(cn_agreement *a, const cn_transcript *t, uint32_t *at, const cn_event *ev);

/* Adds what a replay of `own` would add, without a replay. Both transcripts must have the same
 * tokens; `full` is that of full KV. */
void cn_agreement_between(cn_agreement *a, const cn_transcript *own, const cn_transcript *full);

/* Whether the audit includes the line or request that key[n] names. The choice depends on percent,
 * seed and key, not on the order of the lines. */
bool cn_audit_picks(float percent, uint64_t seed, const void *key, size_t n);

/* The share of positions with the same most likely token, and the mean gap per token in nats.
 * NAN without tokens: nothing was compared. */
double cn_agreement_share(const cn_agreement *a);
double cn_agreement_gap(const cn_agreement *a);
