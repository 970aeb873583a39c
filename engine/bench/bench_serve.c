/* bench_serve.c - `cinch bench serve`: sends the dataset's prompts as streamed completions to a
 * running server. Arrivals are a Poisson process of --request-rate; at most
 * --max-concurrency requests are in flight. Prompts are token ids and output lengths are fixed, so
 * that the work is that of `cinch bench throughput` with the same options. See bench_serve.h. */
#include "engine/bench/bench_serve.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/event_log.h"
#include "engine/base/json.h"
#include "engine/bench/bench.h"
#include "engine/bench/bench_dataset.h"
#include "engine/bench/bench_http.h"
#include "engine/checkpoint/model_config.h"
#include "engine/serve/http/http_parse.h"

enum { MAX_REPLY_BYTES = 16 << 20, MAX_DEPTH = 32 };

typedef struct run run;

typedef struct flight {
    run *run;
    cn_served *served;
    cn_buf line; /* the current line of the event stream */
    bool done;   /* data: [DONE] has arrived */
} flight;

struct run {
    const cn_config *config;
    cn_bench_target target;
    struct event_base *base;
    struct event *timer;
    cn_buf reply; /* of /v1/models */
    int reply_status;
    char *model;
    json_t *options; /* members of the body of every request */
    cn_bench_dataset dataset;
    cn_served *served;  /* [dataset.n] */
    flight *flights;    /* [dataset.n] */
    uint32_t n_sent, n_due, n_under_way, n_over;
    double began_s, due_s; /* due_s: time of request n_due */
    cn_status status;
};

/* ---- the model that is served ---- */

static void take_reply(void *user, const char *data, size_t n)
{
    run *r = user;
    if (r->reply.len + n > MAX_REPLY_BYTES || cn_buf_add(&r->reply, data, n) != CN_OK)
        r->status = cn_fail(CN_ERR_MEMORY, "the reply is too large");
}

static void end_reply(void *user, int status, const char *error)
{
    run *r = user;
    r->reply_status = status;
    if (error) r->status = cn_fail(CN_ERR_IO, "%s: %s", r->config->base_url, error);
}

static cn_status read_model(run *r, cn_bench_model *m)
{
    json_t *body;
    uint32_t max_len = 0;
    const char *id = NULL;
    CN_TRY(cn_json_parse(&body, r->reply.data, r->reply.len, "/v1/models", MAX_REPLY_BYTES,
                         MAX_DEPTH, CN_ERR_IO));
    const json_t *first = json_array_get(json_object_get(body, "data"), 0);
    const cn_json_at at = {first, "/v1/models", CN_ERR_IO};
    cn_status status =
        first ? cn_json_str(&at, "id", CN_JSON_REQUIRED, &id)
              : cn_fail(CN_ERR_IO, "%s/v1/models lists no model", r->config->base_url);
    if (status == CN_OK)
        status = cn_json_u32(&at, "max_model_len", CN_JSON_OPTIONAL, 1, INT32_MAX, &max_len);
    if (status == CN_OK && max_len) m->max_model_len = max_len;
    r->model = status == CN_OK ? cn_strdup(id) : NULL;
    json_decref(body);
    return status;
}

static cn_status ask_model(run *r, cn_bench_model *m)
{
    const cn_bench_reply reply = {r, take_reply, end_reply};
    CN_TRY(cn_bench_http_start(r->base, &r->target, "/v1/models", NULL, &reply));
    event_base_dispatch(r->base);
    CN_TRY(r->status);
    if (r->reply_status != CN_HTTP_OK)
        return cn_fail(CN_ERR_IO, "%s/v1/models: status %d", r->config->base_url, r->reply_status);
    CN_TRY(read_model(r, m));
    return r->model ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the model's name");
}

/* ---- a request's body ---- */

/* Sets the member of an option; "kv.budget" is a member of "kv". Takes ownership of value. */
static bool set_member(json_t *body, const char *key, json_t *value)
{
    const char *dot = strchr(key, '.');
    if (!dot) return json_object_set_new(body, key, value) == 0;
    json_t *inner = json_object_getn(body, key, (size_t)(dot - key));
    if (!inner) {
        inner = json_object();
        if (json_object_setn_new(body, key, (size_t)(dot - key), inner) != 0) inner = NULL;
    }
    return json_object_set_new(inner, dot + 1, value) == 0;
}

/* Builds the members of the sampling and kv options that were given. The server's defaults apply to
 * the others. */
static cn_status read_options(run *r)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    r->options = json_pack("{s:s, s:b, s:{s:b}, s:b}", "model", r->model, "stream", 1,
                           "stream_options", "include_usage", 1, "ignore_eos", 1);
    for (size_t i = 0; i < n; i++, o++) {
        const bool sent = o->section == CN_SECTION_SAMPLING || o->section == CN_SECTION_KV;
        if (!sent || !o->json || !r->config->given[i]) continue;
        cn_buf text = {0};
        CN_TRY(cn_option_format(o, r->config, &text));
        json_t *value = o->type == CN_OPTION_ENUM ? json_string(text.data)
                                                  : json_loads(text.data, JSON_DECODE_ANY, NULL);
        cn_buf_free(&text);
        if (!set_member(r->options, o->json, value))
            return cn_fail(CN_ERR_MEMORY, "out of memory for the requests");
    }
    return r->options ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the requests");
}

static cn_status write_body(const run *r, const cn_bench_prompt *p, cn_buf *out)
{
    json_t *ids = json_array(), *body = json_copy(r->options);
    for (size_t i = 0; i < p->tokens.len; i++)
        json_array_append_new(ids, json_integer(p->tokens.ids[i]));
    bool ok = json_object_set_new(body, "prompt", ids) == 0 &&
              json_object_set_new(body, "max_tokens", json_integer(p->output_len)) == 0;
    char *text = ok ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    const cn_status status = cn_buf_add(out, text, strlen(text));
    free(text);
    return status;
}

/* ---- the event stream ---- */

static bool note_piece(cn_served *s)
{
    const double now = cn_now_s();
    if (s->first_s == 0) {
        s->first_s = s->last_s = now;
        return true;
    }
    if (CN_ROOM(&s->gaps_s, s->n_gaps, "the times of pieces") != CN_OK) return false;
    s->gaps_s[s->n_gaps++] = now - s->last_s;
    s->last_s = now;
    return true;
}

static void take_piece(cn_served *s)
{
    if (!note_piece(s)) snprintf(s->error, sizeof s->error, "out of memory");
}

/* True if the text shows that an event is a piece and nothing else, as most are. Parsing each of
 * them would take processor time from a server on the same machine. */
static bool is_plain_piece(const char *text)
{
    return strstr(text, "\"choices\":[{") && !strstr(text, "\"usage\":{") &&
           !strstr(text, "\"error\":{");
}

static void take_stream_event(flight *f, const char *text)
{
    cn_served *s = f->served;
    if (strcmp(text, "[DONE]") == 0) {
        f->done = true;
        return;
    }
    if (is_plain_piece(text)) {
        take_piece(s);
        return;
    }
    json_t *event = json_loads(text, JSON_ALLOW_NUL, NULL);
    const json_t *usage = json_object_get(event, "usage"), *error = json_object_get(event, "error");
    if (json_array_size(json_object_get(event, "choices")) > 0) take_piece(s);
    if (json_is_object(usage)) {
        const json_t *in = json_object_get(usage, "prompt_tokens");
        const json_t *out = json_object_get(usage, "completion_tokens");
        s->prompt_tokens = (uint64_t)json_integer_value(in);
        s->output_tokens = (uint64_t)json_integer_value(out);
    }
    const char *message = json_string_value(json_object_get(error, "message"));
    if (message) snprintf(s->error, sizeof s->error, "%s", message);
    json_decref(event);
}

static void take_data(void *user, const char *data, size_t n)
{
    flight *f = user;
    static const char prefix[] = "data: ";
    const size_t skip = sizeof prefix - 1;
    while (n > 0) {
        const char *end = memchr(data, '\n', n);
        const size_t n_line = end ? (size_t)(end - data) : n;
        if (cn_buf_add(&f->line, data, n_line) != CN_OK) f->run->status = CN_ERR_MEMORY;
        data += n_line + (end != NULL);
        n -= n_line + (end != NULL);
        if (!end) return;
        if (f->line.len > skip && memcmp(f->line.data, prefix, skip) == 0)
            take_stream_event(f, f->line.data + skip);
        cn_buf_clear(&f->line);
    }
}

static void send_due(run *r);

static void end_flight(void *user, int status, const char *error)
{
    flight *f = user;
    cn_served *s = f->served;
    run *r = f->run;
    s->end_s = cn_now_s();
    if (error) snprintf(s->error, sizeof s->error, "%s", error);
    /* An error reply is one line of JSON, not an event. */
    if (status != CN_HTTP_OK && !*s->error && f->line.len)
        snprintf(s->error, sizeof s->error, "status %d: %.100s", status, f->line.data);
    else if (status != CN_HTTP_OK && !*s->error)
        snprintf(s->error, sizeof s->error, "status %d", status);
    else if (!f->done && !*s->error)
        snprintf(s->error, sizeof s->error, "the stream ended without [DONE]");
    s->completed = !*s->error && s->first_s > 0;
    cn_buf_free(&f->line);
    r->n_under_way--;
    r->n_over++;
    send_due(r);
}

/* ---- arrivals ---- */

/* The n-th number above 0 and below 1 of the seed's sequence. */
static double uniform_client(const run *r, uint64_t n)
{
    const uint64_t key[] = {r->config->seed, UINT64_C(1) << 50, n};
    return ((double)(cn_hash64(0, key, sizeof key) >> 11) + 0.5) / 9007199254740992.0;
}

/* Seconds between request i and the next one. */
static double gap_s(const run *r, uint32_t i)
{
    const double rate = (double)r->config->request_rate;
    return rate > 0 ? -log(uniform_client(r, i)) / rate : 0;
}

static cn_status send_one(run *r)
{
    const uint32_t i = r->n_sent++;
    flight *f = &r->flights[i];
    cn_buf body = {0};
    *f = (flight){.run = r, .served = &r->served[i]};
    cn_status status = write_body(r, &r->dataset.prompts[i], &body);
    const cn_bench_reply reply = {f, take_data, end_flight};
    f->served->sent_s = cn_now_s();
    if (status == CN_OK)
        status = cn_bench_http_start(r->base, &r->target, "/v1/completions", &body, &reply);
    cn_buf_free(&body);
    r->n_under_way += status == CN_OK;
    return status;
}

/* Sends the due requests, up to --max-concurrency, and sets the timer for the next one. */
static void send_due(run *r)
{
    const uint32_t most = r->config->max_concurrency ? r->config->max_concurrency : UINT32_MAX;
    const double now = cn_now_s();
    while (r->n_due < r->dataset.n && r->due_s <= now) r->due_s += gap_s(r, r->n_due++);
    while (r->status == CN_OK && r->n_sent < r->n_due && r->n_under_way < most)
        r->status = send_one(r);
    if (r->status != CN_OK) {
        event_base_loopbreak(r->base);
    } else if (r->n_due < r->dataset.n) {
        const double wait = fmax(0, r->due_s - now);
        const struct timeval t = {(time_t)wait, (suseconds_t)(1e6 * (wait - floor(wait)))};
        event_add(r->timer, &t);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    send_due(arg);
}

/* ---- the run ---- */

static cn_status send_requests(run *r)
{
    const cn_config *c = r->config;
    cn_model_config model;
    cn_tokenizer *tokenizer = NULL;
    CN_TRY(cn_model_config_load(&model, c->model));
    cn_bench_model m = {.vocab = model.vocab, .max_model_len = model.max_position};
    CN_TRY(ask_model(r, &m));
    CN_TRY(read_options(r));
    const bool texts = c->dataset_name != CN_OPT_DATASET_RANDOM;
    if (texts) CN_TRY(cn_tokenizer_load(&tokenizer, c->tokenizer ? c->tokenizer : c->model));
    m.tokenizer = tokenizer;
    cn_status status = cn_bench_dataset_load(&r->dataset, c, &m);
    cn_tokenizer_free(tokenizer);
    CN_TRY(status);
    r->served = cn_calloc(r->dataset.n, sizeof *r->served);
    r->flights = cn_calloc(r->dataset.n, sizeof *r->flights);
    if (r->served && r->flights) return CN_OK;
    return cn_fail(CN_ERR_MEMORY, "out of memory for %u requests", r->dataset.n);
}

static cn_status report(run *r, double duration_s)
{
    const cn_config *c = r->config;
    json_t *figures = cn_served_figures(r->served, r->dataset.n, c, r->model, duration_s);
    if (!figures) return cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
    cn_served_print(figures);
    cn_status status = CN_OK;
    if (c->output_json) status = cn_json_write_file(json_incref(figures), c->output_json);
    json_decref(figures);
    CN_TRY(status);
    for (uint32_t i = 0; i < r->dataset.n; i++)
        if (!r->served[i].completed)
            return cn_fail(CN_ERR_IO, "request %u failed: %s", i + 1, r->served[i].error);
    return CN_OK;
}

static cn_status measure_client(run *r)
{
    cn_event_log_begin();
    r->base = event_base_new();
    r->timer = r->base ? event_new(r->base, -1, 0, on_timer, r) : NULL;
    if (!r->timer) return cn_fail(CN_ERR_MEMORY, "out of memory for the event loop");
    CN_TRY(send_requests(r));
    r->began_s = r->due_s = cn_now_s();
    send_due(r);
    event_base_dispatch(r->base);
    CN_TRY(r->status);
    CN_ASSERT(r->n_over == r->dataset.n);
    return report(r, cn_now_s() - r->began_s);
}

cn_status cn_bench_serve(const cn_config *c)
{
    run r = {.config = c};
    CN_TRY(cn_bench_target_parse(&r.target, c->base_url));
    r.target.key = c->bench_api_key;
    const cn_status status = measure_client(&r);
    for (uint32_t i = 0; r.served && i < r.dataset.n; i++) cn_free(r.served[i].gaps_s);
    cn_free(r.served);
    cn_free(r.flights);
    cn_bench_dataset_free(&r.dataset);
    json_decref(r.options);
    cn_buf_free(&r.reply);
    cn_free(r.model);
    if (r.timer) event_free(r.timer);
    if (r.base) event_base_free(r.base);
    return status;
}
