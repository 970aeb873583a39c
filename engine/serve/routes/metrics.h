/* metrics.h - the server's figures as Prometheus text (exposition format 0.0.4). Names are those
 * that vLLM's dashboards read; figures that vLLM does not have begin with "cinch_".
 *
 * Owner: the caller. Thread: any; works on copies, so that no thread waits for the formatting. */
#pragma once

#include "engine/options/options.h"
#include "engine/serve/calls/service.h"

#define CN_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef struct cn_metrics {
    const char *model_name;  /* label of every series except process_* */
    const cn_config *config; /* for cache_config_info */
    double started_s;        /* start of the server, seconds since the epoch */
    cn_stats sums; /* of all engines */
    const cn_engine_figures *engines; /* [n_engines] */
    uint32_t n_engines;
    cn_serve_figures serve;
} cn_metrics;

/* Appends the whole page. CN_ERR_MEMORY. */
cn_status cn_metrics_text(const cn_metrics *m, cn_buf *out);

/* vLLM's finished_reason for a finish: "stop", "length", "abort", "error", "repetition", ... */
const char *cn_metrics_reason(cn_finish f);

/* The q-quantile (q from 0 to 1) of a histogram, interpolated as by Prometheus' histogram_quantile.
 * NAN when the histogram is empty. */
double cn_histogram_quantile(const cn_histogram *h, cn_histogram_id id, double q);

/* Resident bytes of this process; 0 when /proc cannot be read. */
uint64_t cn_resident_bytes(void);
