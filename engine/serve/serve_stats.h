/* serve_stats.h - what the server counts beside cn_stats: requests by their end, latencies as
 * histograms, connections, replies by status.
 *
 * Owner: cn_service. Thread: any; each function takes the lock for a few additions. */
#ifndef CN_SERVE_STATS_H
#define CN_SERVE_STATS_H

#include "engine/base.h"

typedef enum cn_histogram_id {
    CN_HIST_TTFT_S,          /* arrival to first token */
    CN_HIST_ITL_S,           /* between two deliveries of one sample, per token */
    CN_HIST_TPOT_S,          /* mean time per output token of a request after its first */
    CN_HIST_E2E_S,           /* arrival to end */
    CN_HIST_QUEUE_S,         /* arrival to acceptance by the engine */
    CN_HIST_PREFILL_S,       /* acceptance to first token: waiting and prefill */
    CN_HIST_DECODE_S,        /* first token to end */
    CN_HIST_PROMPT_TOKENS,   /* per request */
    CN_HIST_OUTPUT_TOKENS,   /* per request */
    CN_HIST_ITERATION_TOKENS, /* per step; a prompt counts in the step before which it came */
    CN_HIST_STEP_S,          /* one step of the engine */
    CN_N_HISTOGRAMS
} cn_histogram_id;

enum { CN_HIST_MAX_BUCKETS = 24 };

typedef struct cn_histogram {
    uint64_t counts[CN_HIST_MAX_BUCKETS + 1]; /* not cumulative; the last is +Inf */
    uint64_t n;
    double sum;
} cn_histogram;

/* Upper bounds of a histogram's buckets, ascending; vLLM's where vLLM has it. */
const double *cn_histogram_bounds(cn_histogram_id id, uint32_t *n);

enum { CN_N_FINISHES = CN_FINISH_ERROR + 1, CN_N_HTTP_CLASSES = 6 };

typedef struct cn_serve_figures {
    cn_histogram histograms[CN_N_HISTOGRAMS];
    uint64_t finished[CN_N_FINISHES];        /* samples by cn_finish */
    uint64_t finished_class[2];              /* requests by cn_class */
    uint32_t active_class[2]; /* requests that the engine has: waiting or running */
    double mean_s_class[2];   /* from acceptance to end; the latest weighs an eighth */
    uint64_t rejected_busy, rejected_invalid; /* requests refused before the engine ran them */
    uint64_t http_replies[CN_N_HTTP_CLASSES]; /* [2] = 2xx */
    uint64_t disconnects;                     /* clients gone before their reply was whole */
    uint64_t connections_accepted, connections_refused, requests_timed_out;
    uint32_t connections_open, streams_open;
    uint64_t log_lines_lost; /* access log lines that could not be written */
} cn_serve_figures;

typedef struct cn_serve_stats cn_serve_stats;
cn_status cn_serve_stats_create(cn_serve_stats **out);
void cn_serve_stats_free(cn_serve_stats *s);

void cn_serve_stats_observe(cn_serve_stats *s, cn_histogram_id id, double value, uint64_t times);
/* The figures, locked: add to them, then unlock. */
cn_serve_figures *cn_serve_stats_lock(cn_serve_stats *s);
void cn_serve_stats_unlock(cn_serve_stats *s);
/* A request of a class has ended this long after the engine had accepted it. */
void cn_serve_stats_observe_end(cn_serve_stats *s, cn_class klass, double seconds);
/* Whole seconds, 1 to 60, until one of n such requests is expected to end, if they take as long as
 * the last ones did (n in flight that take T each end at n / T); n = 0: of those the engine has. */
uint32_t cn_serve_stats_retry_s(cn_serve_stats *s, cn_class klass, uint32_t n);
void cn_serve_stats_copy(cn_serve_stats *s, cn_serve_figures *out);

#endif
