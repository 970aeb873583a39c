/* metrics.h - the server's figures as Prometheus text (exposition format 0.0.4): under the names
 * that vLLM's dashboards read, and under "cinch:" what vLLM does not have.
 *
 * Owner: the caller. Thread: any; works on copies, so that no thread waits while text is made. */
#ifndef CN_METRICS_H
#define CN_METRICS_H

#include "engine/options/options.h"
#include "engine/serve/serve_stats.h"

#define CN_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef struct cn_metrics {
    const char *model_name;  /* label of every series */
    const cn_config *config; /* for cache_config_info */
    double started_s;        /* of the process, since the epoch */
    cn_stats engine;
    cn_serve_figures serve;
} cn_metrics;

/* Appends the whole page. CN_ERR_MEMORY. */
cn_status cn_metrics_text(const cn_metrics *m, cn_buf *out);

/* vLLM's finished_reason of an end: "stop", "length", "abort", "error", "repetition", ... */
const char *cn_metrics_reason(cn_finish f);

/* The value below which the share q (0..1) of a histogram lies, as Prometheus' histogram_quantile
 * interpolates it; NAN when it is empty. */
double cn_histogram_quantile(const cn_histogram *h, cn_histogram_id id, double q);

/* Bytes of this process in memory; 0 when /proc does not say. */
uint64_t cn_resident_bytes(void);

#endif
