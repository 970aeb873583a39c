/* serve_stats.h - counters of the server in addition to cn_stats: finished requests, latency
 * histograms, connections, replies by status.
 *
 * Owner: cn_service. Thread: any; each function holds the lock only briefly. */
#pragma once

#include "engine/base/base.h"

typedef enum cn_histogram_id {
    CN_HIST_TTFT_S,          /* arrival to first token */
    CN_HIST_ITL_S,           /* time between two deliveries of one sample, per token */
    CN_HIST_TPOT_S,          /* mean time per output token after the first, per request */
    CN_HIST_E2E_S,           /* arrival to end */
    CN_HIST_QUEUE_S,         /* arrival to first admission */
    CN_HIST_PREFILL_S,       /* first admission to first token */
    CN_HIST_DECODE_S,        /* first token to end */
    CN_HIST_PROMPT_TOKENS,   /* per request */
    CN_HIST_OUTPUT_TOKENS,   /* per request */
    CN_HIST_ITERATION_TOKENS, /* per step; a prompt counts in the first step after acceptance */
    CN_HIST_STEP_S,          /* one step of the engine */
    CN_N_HISTOGRAMS
} cn_histogram_id;

enum { CN_HIST_MAX_BUCKETS = 24 };

typedef struct cn_histogram {
    uint64_t counts[CN_HIST_MAX_BUCKETS + 1]; /* not cumulative; the last is +Inf */
    uint64_t n;
    double sum;
} cn_histogram;

/* Upper bounds of a histogram's buckets, ascending; equal to vLLM's where vLLM has the series. */
const double *cn_histogram_bounds(cn_histogram_id id, uint32_t *n);

enum { CN_N_FINISHES = CN_FINISH_ERROR + 1, CN_N_HTTP_CLASSES = 6 };

typedef struct cn_serve_figures {
    cn_histogram histograms[CN_N_HISTOGRAMS];
    cn_histogram of_class[2][CN_N_HISTOGRAMS]; /* by cn_class; only what has one */
    uint64_t finished[CN_N_FINISHES];        /* samples by cn_finish */
    uint64_t finished_class[2];              /* requests by cn_class */
    uint32_t active_class[2]; /* requests in the engine: waiting or running */
    double mean_s_class[2];   /* mean seconds from acceptance to end; the latest weighs 1/8 */
    /* Refused requests. busy: clients that were told to try again; lines of batches, which the
     * server itself tries again, do not count. invalid: also lines of batches. */
    uint64_t rejected_busy, rejected_invalid;
    uint64_t http_replies[CN_N_HTTP_CLASSES]; /* [2] = 2xx */
    uint64_t disconnects; /* clients that disconnected before the end of their reply */
    uint64_t connections_accepted, connections_refused, requests_timed_out;
    uint32_t connections_open, streams_open;
    uint64_t log_lines_lost; /* access log lines that could not be written */
} cn_serve_figures;

typedef struct cn_serve_stats cn_serve_stats;
cn_status cn_serve_stats_create(cn_serve_stats **out);
void cn_serve_stats_free(cn_serve_stats *s);

void cn_serve_stats_observe(cn_serve_stats *s, cn_histogram_id id, double value, uint64_t times);
/* The same for a figure of a request of a class. */
void cn_serve_stats_observe_class(cn_serve_stats *s, cn_class klass, cn_histogram_id id,
                                  double value, uint64_t times);
/* Locks and returns the figures. Call cn_serve_stats_unlock after use. */
cn_serve_figures *cn_serve_stats_lock(cn_serve_stats *s);
void cn_serve_stats_unlock(cn_serve_stats *s);
/* Records that a request of a class ended `seconds` after the engine had accepted it. */
void cn_serve_stats_observe_end(cn_serve_stats *s, cn_class klass, double seconds);
/* Estimates the whole seconds, 1 to 60, until one of n requests of a class ends. It assumes that n
 * requests that take T seconds each end at a rate of n / T, with T the mean of the latest ones.
 * n = 0: the number of such requests in the engine. */
uint32_t cn_serve_stats_retry_s(cn_serve_stats *s, cn_class klass, uint32_t n);
void cn_serve_stats_copy(cn_serve_stats *s, cn_serve_figures *out);
