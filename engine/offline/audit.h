/* audit.h - how far an answer given under a compressed KV cache agrees with full KV: the answer's
 * own tokens are run again under full KV, teacher-forced, and compared token by token.
 *
 * Owner: the caller, one transcript per sample. Thread: the engine's. Stage: after an output is
 * complete; the replay is a request like any other.
 *
 *   request with logprobs -> cn_transcript_add per event -> finished
 *   cn_audit_params(its params, transcript) -> cn_engine_submit -> cn_audit_add per event */
#ifndef CN_AUDIT_H
#define CN_AUDIT_H

#include "engine/base.h"

/* What one sample said, and how sure it was. */
typedef struct cn_transcript {
    uint32_t *tokens;
    uint32_t *best;  /* the likeliest token where each was chosen */
    float *logprobs; /* of the tokens, raw logits, nats */
    uint32_t n, cap;
} cn_transcript; /* zero-initialise */

/* How many alternatives a request must ask logprobs for to be recorded. */
enum { CN_AUDIT_LOGPROBS = 1 };

/* Takes the tokens of one event, which has their logprobs. */
cn_status cn_transcript_add(cn_transcript *t, const cn_event *ev);
void cn_transcript_free(cn_transcript *t); /* leaves an empty one */

/* Sums over replayed outputs; those of two sets add up. */
typedef struct cn_agreement {
    uint64_t outputs;
    uint64_t tokens;
    uint64_t same_best; /* tokens at which both find the same one the likeliest */
    double gap_nats;    /* sum of own logprob - full KV's logprob of the same token */
} cn_agreement;

/* Turns the params of a recorded request into those of its replay, which borrow the transcript:
 * full KV, one sample, exactly the recorded tokens whatever stop rule ended them. */
void cn_audit_params(cn_request_params *io, const cn_transcript *t);

/* Compares one event of the replay; *at counts the tokens compared and starts at 0. */
void cn_audit_add(cn_agreement *a, const cn_transcript *t, uint32_t *at, const cn_event *ev);

/* Adds what a replay of `own` would: full KV said the same tokens, and `full` is what it said. */
void cn_agreement_between(cn_agreement *a, const cn_transcript *own, const cn_transcript *full);

/* Whether the line or request that key[n] names is in the audit: the same ones for the same seed,
 * whatever order they come in. */
bool cn_audit_picks(float percent, uint64_t seed, const void *key, size_t n);

/* The share of best tokens that agree and the mean gap per token; 0 tokens: 1 and 0. */
double cn_agreement_share(const cn_agreement *a);
double cn_agreement_gap(const cn_agreement *a);

#endif
