/* metrics.c - see metrics.h. Most series are a row of a table: of the server, or of each engine.
 * Series with more labels than the two common ones are written by functions of their own. */
#include "engine/serve/routes/metrics.h"

#include <math.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/lanes/stat_rows.h"

typedef struct writer {
    cn_buf *out;
    cn_buf model;  /* model_name="..." */
    cn_buf labels; /* model_name="...",engine="0": of what belongs to the whole server */
    const cn_metrics *metrics;
    cn_status status;
} writer;

#define WRITE(w, ...)                                                                  \
    do {                                                                               \
        if ((w)->status == CN_OK) (w)->status = cn_buf_addf((w)->out, __VA_ARGS__); \
    } while (0)

/* ---- the tables ---- */

typedef struct row {
    const char *name, *help;
    double value;
} row;

static void write_head(writer *w, const char *name, const char *type, const char *help)
{
    WRITE(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_rows(writer *w, const char *type, const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        write_head(w, rows[i].name, type, rows[i].help);
        WRITE(w, "%s{%s} %.17g\n", rows[i].name, w->labels.data, rows[i].value);
    }
}

#define WRITE_ROWS(w, type, rows) write_rows(w, type, rows, sizeof(rows) / sizeof *(rows))

static void write_devices(writer *w)
{
    const cn_metrics *m = w->metrics;
    if (m->n_engines > 0)
        write_head(w, "cinch_engine_info", "gauge", "The device of an engine; 1.");
    for (uint32_t e = 0; e < m->n_engines; e++)
        WRITE(w, "cinch_engine_info{%s,engine=\"%u\",device=\"%s\",uuid=\"%s\"} 1\n", w->model.data,
              e, m->engines[e].device, m->engines[e].uuid);
}

static double engine_kv_usage(const cn_engine_figures *f)
{
    return f->stats.blocks_total ? (double)f->stats.blocks_used / f->stats.blocks_total : 0;
}
static double engine_up(const cn_engine_figures *f) { return f->is_up; }
static double engine_step_age(const cn_engine_figures *f) { return f->turn_s; }

static const struct {
    const char *name, *help;
    double (*value)(const cn_engine_figures *f);
} engine_gauges[] = {
    {"vllm:kv_cache_usage_perc", "Fraction of KV blocks in use; 1 means all.", engine_kv_usage},
    {"cinch_engine_up", "1 while the engine works; 0 when it failed or its step does not end.",
     engine_up},
    {"cinch_engine_step_age_seconds",
     "Seconds since the engine began the step that runs; 0 while it waits for requests.",
     engine_step_age},
};

static void write_engine(writer *w, const char *name, uint32_t e, double value)
{
    WRITE(w, "%s{%s,engine=\"%u\"} %.17g\n", name, w->model.data, e, value);
}

/* Writes the figures of the engines, with a line for each engine. */
static void write_engines(writer *w)
{
    const cn_metrics *m = w->metrics;
    size_t n;
    const cn_stat_row *rows = cn_stat_rows(&n);
    for (size_t i = 0; m->n_engines > 0 && i < n; i++) {
        if (!rows[i].name) continue;
        write_head(w, rows[i].name, rows[i].type, rows[i].help);
        for (uint32_t e = 0; e < m->n_engines; e++)
            write_engine(w, rows[i].name, e, cn_stat_value(&m->engines[e].stats, &rows[i]));
    }
    for (size_t i = 0; m->n_engines > 0 && i < sizeof engine_gauges / sizeof *engine_gauges; i++) {
        write_head(w, engine_gauges[i].name, "gauge", engine_gauges[i].help);
        for (uint32_t e = 0; e < m->n_engines; e++)
            write_engine(w, engine_gauges[i].name, e, engine_gauges[i].value(&m->engines[e]));
    }
}

static void write_serve(writer *w, const cn_serve_figures *f)
{
    const row gauges[] = {
        {"cinch_connections_open", "Open connections.", f->connections_open},
        {"cinch_streams_open", "Open streamed replies.", f->streams_open},
    };
    const row counters[] = {
        {"cinch_connections_accepted_total", "Connections accepted.",
         (double)f->connections_accepted},
        {"cinch_connections_refused_total",
         "Connections refused because all were in use.",
         (double)f->connections_refused},
        {"cinch_request_timeouts_total", "Requests that timed out before they had arrived whole.",
         (double)f->requests_timed_out},
        {"cinch_client_disconnects_total", "Clients that disconnected before the end of the reply.",
         (double)f->disconnects},
        {"cinch_access_log_lines_lost_total", "Access log lines that could not be written.",
         (double)f->log_lines_lost},
    };
    WRITE_ROWS(w, "gauge", gauges);
    WRITE_ROWS(w, "counter", counters);
}

/* ---- series with additional labels ---- */

const char *cn_metrics_reason(cn_finish f)
{
    return f == CN_FINISH_CANCELLED ? "abort" : cn_finish_name(f);
}

static void write_labelled(writer *w, const char *name, const char *label, const char *value,
                           uint64_t n)
{
    WRITE(w, "%s{%s,%s=\"%s\"} %llu\n", name, w->labels.data, label, value, (unsigned long long)n);
}

static void write_home(writer *w, const char *name, uint32_t e, int h, uint64_t n)
{
    WRITE(w, "%s{%s,engine=\"%u\",home=\"%s\"} %llu\n", name, w->model.data, e,
          cn_kv_home_name((cn_kv_home)h), (unsigned long long)n);
}

static void write_homes(writer *w)
{
    const cn_metrics *m = w->metrics;
    const char *name = "cinch_auto_admissions_total";
    write_head(w, name, "counter", "Admissions of samples with kv home auto, by chosen home.");
    for (uint32_t e = 0; e < m->n_engines; e++)
        for (int h = CN_HOME_DEVICE; h <= CN_HOME_HOST; h++)
            write_home(w, name, e, h, m->engines[e].stats.auto_admissions[h]);
    name = "cinch_home_link_bytes_per_second";
    write_head(w, name, "gauge", "Rate of copies to a kv home, measured at the start.");
    for (uint32_t e = 0; e < m->n_engines; e++) {
        const double *rate = m->engines[e].stats.home_link_bytes_per_s;
        for (int h = CN_HOME_PEER; h <= CN_HOME_HOST; h++)
            if (rate[h] > 0) write_home(w, name, e, h, (uint64_t)rate[h]);
    }
}

static void write_ends(writer *w, const cn_serve_figures *f)
{
    static const char *const classes[] = {"interactive", "batch"};
    static const char *const codes[CN_N_HTTP_CLASSES] = {"", "1xx", "2xx", "3xx", "4xx", "5xx"};
    const char *name = "vllm:request_success_total";
    write_head(w, name, "counter", "Finished samples, by reason.");
    for (int i = CN_FINISH_NONE + 1; i < CN_N_FINISHES; i++)
        write_labelled(w, name, "finished_reason", cn_metrics_reason((cn_finish)i),
                       f->finished[i]);
    name = "cinch_requests_total";
    write_head(w, name, "counter", "Finished requests, by class.");
    for (int i = 0; i < 2; i++) write_labelled(w, name, "class", classes[i], f->finished_class[i]);
    name = "cinch_requests_rejected_total";
    write_head(w, name, "counter", "Requests refused: server busy, or invalid.");
    write_labelled(w, name, "reason", "busy", f->rejected_busy);
    write_labelled(w, name, "reason", "invalid", f->rejected_invalid);
    name = "cinch_http_replies_total";
    write_head(w, name, "counter", "HTTP replies, by status class.");
    for (int i = 1; i < CN_N_HTTP_CLASSES; i++)
        write_labelled(w, name, "status", codes[i], f->http_replies[i]);
}

static void write_info(writer *w)
{
    const cn_metrics *m = w->metrics;
    const cn_config *c = m->config;
    write_head(w, "vllm:cache_config_info", "gauge", "Configuration of the KV cache.");
    for (uint32_t e = 0; e < m->n_engines; e++)
        WRITE(w,
          "vllm:cache_config_info{%s,engine=\"%u\",block_size=\"%u\",num_gpu_blocks=\"%u\","
          "enable_prefix_caching=\"%s\",gpu_memory_utilization=\"%g\",kv_policy=\"%s\","
          "kv_budget=\"%u\"} 1\n",
          w->model.data, e, m->engines[e].stats.block_tokens, m->engines[e].stats.blocks_total,
          c->enable_prefix_caching ? "True" : "False", (double)c->gpu_memory_utilization,
          cn_kv_policy_name(c->kv.policy), c->kv.budget_tokens);
    write_head(w, "cinch_build_info", "gauge", "The version of cinch.");
    WRITE(w, "cinch_build_info{version=\"" CINCH_VERSION "\"} 1\n");
}

uint64_t cn_resident_bytes(void)
{
    unsigned long long total, resident;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    const int n = fscanf(f, "%llu %llu", &total, &resident);
    fclose(f);
    return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static double seconds(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

/* The process series of Prometheus' client libraries: their names, and no labels. */
static void write_process(writer *w, const cn_metrics *m)
{
    struct rusage u = {0};
    getrusage(RUSAGE_SELF, &u);
    write_head(w, "process_resident_memory_bytes", "gauge", "Resident memory of the process.");
    WRITE(w, "process_resident_memory_bytes %llu\n", (unsigned long long)cn_resident_bytes());
    write_head(w, "process_cpu_seconds_total", "counter", "Processor time, user and system.");
    WRITE(w, "process_cpu_seconds_total %.17g\n", seconds(u.ru_utime) + seconds(u.ru_stime));
    write_head(w, "process_start_time_seconds", "gauge", "Start time, seconds since the epoch.");
    WRITE(w, "process_start_time_seconds %.17g\n", m->started_s);
}

/* ---- histograms ---- */

static const struct {
    const char *name, *help;
} histograms[CN_N_HISTOGRAMS] = {
    [CN_HIST_TTFT_S] = {"vllm:time_to_first_token_seconds", "Time from arrival to first token."},
    [CN_HIST_ITL_S] = {"vllm:inter_token_latency_seconds", "Time between two tokens of a sample."},
    [CN_HIST_TPOT_S] = {"vllm:request_time_per_output_token_seconds",
                        "Mean time per output token after the first, per request."},
    [CN_HIST_E2E_S] = {"vllm:e2e_request_latency_seconds", "Time from arrival to end."},
    [CN_HIST_QUEUE_S] = {"vllm:request_queue_time_seconds",
                         "Time from arrival to first admission to the running list."},
    [CN_HIST_PREFILL_S] = {"vllm:request_prefill_time_seconds",
                           "Time from first admission to first token."},
    [CN_HIST_DECODE_S] = {"vllm:request_decode_time_seconds", "Time from first token to end."},
    [CN_HIST_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Prompt tokens per request."},
    [CN_HIST_OUTPUT_TOKENS] = {"vllm:request_generation_tokens", "Output tokens per request."},
    [CN_HIST_ITERATION_TOKENS] = {"vllm:iteration_tokens_total", "Tokens per step."},
    [CN_HIST_STEP_S] = {"cinch_step_seconds", "Time of a step."},
};

static void write_histogram(writer *w, cn_histogram_id id, const cn_histogram *h)
{
    uint32_t n;
    const double *bounds = cn_histogram_bounds(id, &n);
    const char *name = histograms[id].name;
    uint64_t below = 0;
    write_head(w, name, "histogram", histograms[id].help);
    for (uint32_t i = 0; i < n; i++) {
        below += h->counts[i];
        WRITE(w, "%s_bucket{%s,le=\"%g\"} %llu\n", name, w->labels.data, bounds[i],
              (unsigned long long)below);
    }
    WRITE(w, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, w->labels.data, (unsigned long long)h->n);
    WRITE(w, "%s_sum{%s} %.17g\n", name, w->labels.data, h->sum);
    WRITE(w, "%s_count{%s} %llu\n", name, w->labels.data, (unsigned long long)h->n);
}

double cn_histogram_quantile(const cn_histogram *h, cn_histogram_id id, double q)
{
    uint32_t n;
    const double *bounds = cn_histogram_bounds(id, &n);
    const double rank = q * (double)h->n;
    if (h->n == 0) return NAN;
    double below = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double in = (double)h->counts[i];
        if (in > 0 && below + in >= rank) {
            const double low = i ? bounds[i - 1] : 0;
            return low + (bounds[i] - low) * (rank - below) / in;
        }
        below += in;
    }
    return bounds[n - 1]; /* in the last bucket, which has no upper bound */
}

/* ---- all of it ---- */

static cn_status make_labels(writer *w)
{
    cn_buf *out = &w->model;
    CN_TRY(cn_buf_addf(out, "model_name=\""));
    for (const char *c = w->metrics->model_name; *c; c++) {
        if (*c == '\\' || *c == '"')
            CN_TRY(cn_buf_addf(out, "\\%c", *c));
        else if (*c == '\n')
            CN_TRY(cn_buf_addf(out, "\\n"));
        else
            CN_TRY(cn_buf_add(out, c, 1));
    }
    CN_TRY(cn_buf_addf(out, "\""));
    return cn_buf_addf(&w->labels, "%s,engine=\"0\"", out->data);
}

cn_status cn_metrics_text(const cn_metrics *m, cn_buf *out)
{
    writer w = {.out = out, .metrics = m};
    w.status = make_labels(&w);
    if (w.status == CN_OK) {
        write_devices(&w);
        write_engines(&w);
        write_homes(&w);
        write_ends(&w, &m->serve);
        for (int i = 0; i < CN_N_HISTOGRAMS; i++)
            write_histogram(&w, (cn_histogram_id)i, &m->serve.histograms[i]);
        write_serve(&w, &m->serve);
        write_info(&w);
        write_process(&w, m);
    }
    cn_buf_free(&w.labels);
    cn_buf_free(&w.model);
    return w.status;
}
