/* bench_serve_report.c - see bench_serve.h. Times are defined as in vLLM. TTFT: from sending to the
 * first piece. TPOT: the time from the first to the last piece over the tokens after the first, per
 * request. ITL: each gap between two pieces. E2EL: from sending to the last piece. Percentiles are
 * interpolated as in numpy. */
#include "engine/bench/bench_serve.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

typedef struct values {
    double *v;
    size_t n;
} values;

typedef enum metric { TTFT, TPOT, ITL, E2EL, N_METRICS } metric;
static const char *const names[N_METRICS] = {"ttft", "tpot", "itl", "e2el"};

static bool add_measured(values *a, double v)
{
    if (CN_ROOM(&a->v, a->n, "the figures") != CN_OK) return false;
    a->v[a->n++] = v;
    return true;
}

static bool gather(const cn_served *r, values m[N_METRICS])
{
    bool ok = add_measured(&m[TTFT], 1e3 * (r->first_s - r->sent_s)) &&
              add_measured(&m[E2EL], 1e3 * (r->last_s - r->sent_s));
    if (r->output_tokens > 1)
        ok = ok && add_measured(&m[TPOT],
                                1e3 * (r->last_s - r->first_s) / (double)(r->output_tokens - 1));
    for (uint32_t i = 0; i < r->n_gaps && ok; i++) ok = add_measured(&m[ITL], 1e3 * r->gaps_s[i]);
    return ok;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The quantile q, 0 to 1, of sorted values. */
static double percentile(const values *a, double q)
{
    if (a->n == 0) return 0;
    const double at = q * (double)(a->n - 1);
    const size_t i = (size_t)at;
    const double next = a->v[i + 1 < a->n ? i + 1 : i];
    return a->v[i] + (at - (double)i) * (next - a->v[i]);
}

static void set_real(json_t *o, const char *prefix, const char *name, double v)
{
    char key[32];
    snprintf(key, sizeof key, "%s_%s_ms", prefix, name);
    json_object_set_new(o, key, json_real(v));
}

static void set_metric(json_t *o, const char *name, values *a)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < a->n; i++) sum += a->v[i];
    const double mean = a->n ? sum / (double)a->n : 0;
    for (size_t i = 0; i < a->n; i++) squares += (a->v[i] - mean) * (a->v[i] - mean);
    if (a->n) qsort(a->v, a->n, sizeof *a->v, by_value);
    set_real(o, "mean", name, mean);
    set_real(o, "median", name, percentile(a, 0.5));
    set_real(o, "std", name, a->n ? sqrt(squares / (double)a->n) : 0);
    set_real(o, "p90", name, percentile(a, 0.9));
    set_real(o, "p99", name, percentile(a, 0.99));
}

/* ---- peaks ---- */

/* Sets the output tokens of the busiest second of the run. A piece may hold several tokens, so each
 * piece counts as an equal share of its request's tokens. */
static bool set_busiest(json_t *o, const cn_served *r, uint32_t n, double start_s,
                        double duration_s)
{
    const size_t n_seconds = (size_t)duration_s + 1;
    double most = 0, *tokens = cn_calloc(n_seconds, sizeof *tokens);
    if (!tokens) return false;
    for (uint32_t k = 0; k < n; k++) {
        const double share = (double)r[k].output_tokens / (r[k].n_gaps + 1.0);
        double at = r[k].first_s - start_s;
        for (uint32_t i = 0; r[k].completed && i <= r[k].n_gaps; i++) {
            if ((size_t)at < n_seconds) tokens[(size_t)at] += share;
            if (i < r[k].n_gaps) at += r[k].gaps_s[i];
        }
    }
    for (size_t i = 0; i < n_seconds; i++) most = fmax(most, tokens[i]);
    cn_free(tokens);
    return json_object_set_new(o, "max_output_tokens_per_s", json_real(most)) == 0;
}

/* Sets the largest number of requests in flight at any time. */
static bool set_concurrency(json_t *o, const cn_served *r, uint32_t n)
{
    values sent = {0}, ended = {0};
    bool ok = true;
    uint32_t most = 0;
    for (uint32_t i = 0; i < n && ok; i++)
        ok = add_measured(&sent, r[i].sent_s) && add_measured(&ended, r[i].end_s);
    if (ok) {
        qsort(sent.v, n, sizeof *sent.v, by_value);
        qsort(ended.v, n, sizeof *ended.v, by_value);
    }
    for (uint32_t i = 0, over = 0; i < n && ok; i++) {
        while (over < n && ended.v[over] <= sent.v[i]) over++;
        most = cn_max_u32(most, i + 1 - over);
    }
    cn_free(sent.v);
    cn_free(ended.v);
    return ok && json_object_set_new(o, "max_concurrent_requests", json_integer(most)) == 0;
}

static bool set_peaks(json_t *o, const cn_served *r, uint32_t n, double duration_s)
{
    double start_s = r[0].sent_s;
    for (uint32_t i = 0; i < n; i++) start_s = fmin(start_s, r[i].sent_s);
    return set_busiest(o, r, n, start_s, duration_s) && set_concurrency(o, r, n);
}

/* ---- the object ---- */

static void set_details(json_t *o, const cn_served *r, uint32_t n)
{
    json_t *in = json_array(), *out = json_array(), *ttfts = json_array(), *itls = json_array(),
           *errors = json_array();
    for (uint32_t i = 0; i < n; i++) {
        json_t *gaps = json_array();
        for (uint32_t k = 0; k < r[i].n_gaps; k++)
            json_array_append_new(gaps, json_real(r[i].gaps_s[k]));
        json_array_append_new(in, json_integer((json_int_t)r[i].prompt_tokens));
        json_array_append_new(out, json_integer((json_int_t)r[i].output_tokens));
        json_array_append_new(ttfts,
                              json_real(r[i].completed ? r[i].first_s - r[i].sent_s : 0));
        json_array_append_new(itls, gaps);
        json_array_append_new(errors, json_string(r[i].error));
    }
    json_object_set_new(o, "input_lens", in);
    json_object_set_new(o, "output_lens", out);
    json_object_set_new(o, "ttfts", ttfts);
    json_object_set_new(o, "itls", itls);
    json_object_set_new(o, "errors", errors);
}

static json_t *rate_json(float rate)
{
    return rate > 0 ? json_real((double)rate) : json_string("inf");
}

static json_t *totals(const cn_served *r, uint32_t n, const cn_config *c, const char *model,
                      double s)
{
    uint64_t in = 0, out = 0, done = 0;
    char date[32];
    struct tm tm;
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    for (uint32_t i = 0; i < n; i++) {
        if (!r[i].completed) continue;
        in += r[i].prompt_tokens;
        out += r[i].output_tokens;
        done++;
    }
    const double requests = (double)done, output = (double)out, all = (double)(in + out);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:o, s:f, s:o, s:f, s:I, s:I, s:I, s:I, s:f, s:n, s:f, s:f}",
        "date", date, "backend", "cinch " CINCH_VERSION, "model_id", model, "tokenizer_id",
        c->tokenizer ? c->tokenizer : c->model, "num_prompts", (json_int_t)n, "request_rate",
        rate_json(c->request_rate), "burstiness", 1.0, "max_concurrency",
        c->max_concurrency ? json_integer(c->max_concurrency) : json_null(), "duration", s,
        "completed", (json_int_t)done, "failed", (json_int_t)(n - done), "total_input_tokens",
        (json_int_t)in, "total_output_tokens", (json_int_t)out, "request_throughput", requests / s,
        "request_goodput", "output_throughput", output / s, "total_token_throughput", all / s);
}

json_t *cn_served_figures(const cn_served *requests, uint32_t n, const cn_config *c,
                          const char *model, double duration_s)
{
    values m[N_METRICS] = {0};
    json_t *o = totals(requests, n, c, model, duration_s);
    bool ok = o && set_peaks(o, requests, n, duration_s);
    for (uint32_t i = 0; i < n && ok; i++)
        if (requests[i].completed) ok = gather(&requests[i], m);
    for (int i = 0; i < N_METRICS; i++) {
        if (ok) set_metric(o, names[i], &m[i]);
        cn_free(m[i].v);
    }
    if (ok && c->save_detailed) set_details(o, requests, n);
    if (ok) return o;
    json_decref(o);
    return NULL;
}

void cn_served_print(const json_t *figures)
{
    static const char *const rows[] = {"completed",          "failed",
                                       "max_concurrent_requests", "duration",
                                       "total_input_tokens", "total_output_tokens",
                                       "request_throughput", "output_throughput",
                                       "max_output_tokens_per_s", "total_token_throughput"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("%-26s %12.2f\n", rows[i], json_number_value(json_object_get(figures, rows[i])));
    printf("%-26s %12s %12s %12s %12s\n", "milliseconds", "mean", "median", "p90", "p99");
    for (int i = 0; i < N_METRICS; i++) {
        printf("%-26s", names[i]);
        for (int k = 0; k < 4; k++) {
            static const char *const prefixes[] = {"mean", "median", "p90", "p99"};
            char key[32];
            snprintf(key, sizeof key, "%s_%s_ms", prefixes[k], names[i]);
            printf(" %12.2f", json_number_value(json_object_get(figures, key)));
        }
        printf("\n");
    }
}
