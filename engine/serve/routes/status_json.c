/* status_json.c - see status_json.h. page.html reads these keys and openapi.json describes them.
 * Numbers have six significant digits, more than the page shows. */
#include "engine/serve/routes/status_json.h"

#include <math.h>

static json_t *integer(uint64_t v) { return json_integer((json_int_t)v); }

static json_t *engine_json(const cn_status_figures *f)
{
    const cn_stats *s = &f->metrics.sums;
    const cn_config *c = f->metrics.config;
    const uint32_t ten_seconds = 10 / CN_HISTORY_STEP_S;
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:o, s:o, s:o}", "running",
                     (int)s->running, "waiting", (int)s->waiting, "blocked", (int)s->blocked,
                     "compressing", (int)s->compressing, "swapped", (int)s->swapped,
                     "max_num_seqs", (int)c->max_num_seqs,
                     "max_model_len", (int)f->max_model_len, "output_tokens_per_s",
                     cn_history_rate(f->history, ten_seconds), "steps", integer(s->steps),
                     "prompt_tokens", integer(s->prompt_tokens), "output_tokens",
                     integer(s->generation_tokens));
}

/* Each engine; `engine` has their sums. */
static json_t *engines_json(const cn_metrics *m)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < m->n_engines; i++) {
        const cn_engine_figures *f = &m->engines[i];
        const cn_stats *s = &f->stats;
        json_array_append_new(
            all, json_pack("{s:s, s:s, s:b, s:s?, s:i, s:i, s:i, s:i, s:o, s:o, s:o}", "device",
                           f->device, "uuid", f->uuid, "up", (int)f->is_up, "failure", f->failure,
                           "running", (int)s->running, "waiting", (int)s->waiting, "blocks",
                           (int)s->blocks_total, "used", (int)s->blocks_used, "steps",
                           integer(s->steps), "prompt_tokens", integer(s->prompt_tokens),
                           "output_tokens", integer(s->generation_tokens)));
    }
    return all;
}

/* Admissions of samples with home `auto`, by the home that was chosen. */
static json_t *auto_json(const cn_stats *s)
{
    json_t *o = json_object();
    for (int h = CN_HOME_DEVICE; h <= CN_HOME_HOST; h++)
        json_object_set_new(o, cn_kv_home_name((cn_kv_home)h), integer(s->auto_admissions[h]));
    return o;
}

/* Bytes per second of the links that were measured. */
static json_t *links_json(const cn_stats *s)
{
    json_t *o = json_object();
    for (int h = CN_HOME_PEER; h <= CN_HOME_HOST; h++)
        if (s->home_link_bytes_per_s[h] > 0)
            json_object_set_new(o, cn_kv_home_name((cn_kv_home)h),
                                integer((uint64_t)s->home_link_bytes_per_s[h]));
    return o;
}

static json_t *kv_json(const cn_status_figures *f)
{
    const cn_stats *s = &f->metrics.sums;
    const cn_config *c = f->metrics.config;
    return json_pack(
        "{s:s, s:i, s:i, s:o, s:i, s:i, s:i, s:o, s:i, s:i, s:o, s:o, s:o, s:f,"
        " s:o, s:o, s:o, s:o, s:i, s:i, s:o, s:s, s:o, s:o, s:o,"
        " s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "policy", cn_kv_policy_name(c->kv.policy), "budget", (int)c->kv.budget_tokens,
        "block_tokens", (int)s->block_tokens, "block_bytes", integer(s->block_bytes), "blocks",
        (int)s->blocks_total, "used", (int)s->blocks_used, "cached", (int)s->blocks_cached,
        "spared", integer(s->blocks_spared), "slots", (int)s->slots_total, "slots_used",
        (int)s->slots_used, "compressions", integer(s->compressions), "evicted_tokens",
        integer(s->evicted_tokens), "freed_bytes", integer(s->freed_bytes), "compression_s",
        s->compression_s, "preemptions", integer(s->preemptions), "recomputed_tokens",
        integer(s->recomputed_tokens), "prefix_queries", integer(s->prefix_queries), "prefix_hits",
        integer(s->cached_tokens), "swap_blocks", (int)s->swap_blocks_total, "swap_used",
        (int)s->swap_blocks_used, "swapped_bytes", integer(s->swapped_out_bytes), "select",
        cn_kv_select_name(c->kv.select), "selected_steps", integer(s->selected_steps),
        "selected_tokens", integer(s->selected_tokens), "candidate_tokens",
        integer(s->candidate_tokens), "home", cn_kv_home_name(c->kv.home), "home_blocks",
        (int)s->home_blocks_total, "home_used", (int)s->home_blocks_used, "exchanges",
        integer(s->exchanges), "fetched", integer(s->fetched_entries), "missed",
        integer(s->missed_entries), "stall_us", integer((uint64_t)(s->stall_s * 1e6)),
        "fetched_bytes", integer(s->fetched_bytes), "put_bytes", integer(s->put_bytes),
        "home_link_bytes_per_s", links_json(s),
        "auto_admissions", auto_json(s), "auto_moves", integer(s->auto_moves));
}

static json_t *ends_json(const cn_serve_figures *f)
{
    json_t *o = json_object();
    for (int i = CN_FINISH_NONE + 1; i < CN_N_FINISHES; i++)
        json_object_set_new(o, cn_metrics_reason((cn_finish)i), integer(f->finished[i]));
    return o;
}

static json_t *requests_json(const cn_serve_figures *f)
{
    return json_pack("{s:o, s:o, s:{s:o, s:o}, s:o}", "interactive", integer(f->finished_class[0]),
                     "batch", integer(f->finished_class[1]), "refused", "busy",
                     integer(f->rejected_busy), "invalid", integer(f->rejected_invalid), "ends",
                     ends_json(f));
}

static json_t *http_json(const cn_serve_figures *f)
{
    return json_pack("{s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "connections",
                     (int)f->connections_open, "streams", (int)f->streams_open,
                     "connections_refused", integer(f->connections_refused), "timeouts",
                     integer(f->requests_timed_out), "disconnects", integer(f->disconnects), "2xx",
                     integer(f->http_replies[2]), "4xx", integer(f->http_replies[4]), "5xx",
                     integer(f->http_replies[5]));
}

static json_t *quantile(const cn_histogram *h, cn_histogram_id id, double q)
{
    const double v = cn_histogram_quantile(h, id, q);
    return isnan(v) ? json_null() : json_real(v);
}

static json_t *latencies(const cn_histogram *histograms)
{
    static const struct {
        const char *key;
        cn_histogram_id id;
    } rows[] = {{"ttft_s", CN_HIST_TTFT_S},
                {"itl_s", CN_HIST_ITL_S},
                {"queue_s", CN_HIST_QUEUE_S},
                {"e2e_s", CN_HIST_E2E_S}};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cn_histogram *h = &histograms[rows[i].id];
        json_object_set_new(o, rows[i].key,
                            json_pack("{s:o, s:o, s:o}", "p50", quantile(h, rows[i].id, 0.5),
                                      "p90", quantile(h, rows[i].id, 0.9), "p99",
                                      quantile(h, rows[i].id, 0.99)));
    }
    return o;
}

/* Of all requests, and of each class. */
static json_t *latency_json(const cn_serve_figures *f)
{
    json_t *o = latencies(f->histograms);
    json_object_set_new(o, "interactive", latencies(f->of_class[CN_CLASS_INTERACTIVE]));
    json_object_set_new(o, "batch", latencies(f->of_class[CN_CLASS_BATCH]));
    return o;
}

static json_t *whole_json(const cn_status_figures *f)
{
    const cn_serve_figures *serve = &f->metrics.serve;
    const uint64_t now = (uint64_t)f->now_s, started = (uint64_t)f->metrics.started_s;
    return json_pack("{s:s, s:s, s:o, s:o, s:b, s:b, s:s?, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "version", CINCH_VERSION, "model", f->metrics.model_name, "now", integer(now),
                     "started", integer(started), "batches", f->metrics.config->spool != NULL,
                     "draining", (int)f->draining, "failure", f->failure, "memory_bytes",
                     integer(cn_resident_bytes()), "engine", engine_json(f), "engines",
                     engines_json(&f->metrics), "kv", kv_json(f), "requests",
                     requests_json(serve), "http", http_json(serve), "latency",
                     latency_json(serve), "history", cn_history_json(f->history, f->span));
}

static int append(const char *text, size_t n, void *out)
{
    return cn_buf_add(out, text, n) == CN_OK ? 0 : -1;
}

cn_status cn_status_json(const cn_status_figures *f, cn_buf *out)
{
    json_t *o = whole_json(f);
    const int failed =
        o ? json_dump_callback(o, append, out, JSON_COMPACT | JSON_REAL_PRECISION(6)) : -1;
    json_decref(o);
    return failed ? cn_fail(CN_ERR_MEMORY, "out of memory for the status") : CN_OK;
}
