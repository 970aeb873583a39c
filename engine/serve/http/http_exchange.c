/* http_exchange.c - the data of one request and its reply. See http_server.h and http_state.h. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/api/api_response.h"
#include "engine/serve/http/http_state.h"

cn_exchange *http_exchange_open(connection *c)
{
    cn_http_server *s = c->server;
    cn_exchange *x = cn_calloc(1, sizeof *x);
    if (!x) return NULL;
    x->conn = c;
    x->key = CN_API_KEY_NONE;
    x->began_s = cn_now_s();
    s->last_id++;
    const uint64_t words[2] = {s->id_seed, s->last_id};
    snprintf(x->id, sizeof x->id, "req-%016llx%04x",
             (unsigned long long)cn_hash64(0, words, sizeof words), (unsigned)s->last_id & 0xffff);
    x->late = s->draining;
    s->n_exchanges += !x->late;
    return x;
}

void http_exchange_close(cn_exchange *x, const char *why)
{
    cn_http_server *s = x->conn->server;
    void (*closed)(void *, cn_exchange *) = x->closed;
    x->closed = NULL;
    const bool gone = !x->ended;
    cn_serve_figures *f = cn_serve_stats_lock(s->o.stats);
    f->disconnects += gone && x->route;
    f->streams_open -= x->is_stream;
    if (x->status >= 100 && x->status < 600) f->http_replies[x->status / 100]++;
    cn_serve_stats_unlock(s->o.stats);
    if (closed) closed(x->user, x);
    http_log(x, why);
    cn_budget_give(s->o.memory, x->charged);
    s->n_exchanges -= !x->late;
    s->n_long -= x->counted_long;
    if (x->counted) cn_budget_give(&s->o.samples_of_key[x->key], 1);
    for (uint32_t i = 0; i < CN_HTTP_MAX_PARAMS; i++) cn_buf_free(&x->params[i]);
    cn_buf_free(&x->query_text);
    cn_buf_free(&x->body);
    cn_buf_free(&x->headers);
    cn_buf_free(&x->refusal);
    cn_free(x->head_text);
    cn_free(x);
}

/* ---- the request ---- */

void http_note_client_id(cn_exchange *x)
{
    enum { MAX_CLIENT_ID = 128 };
    const char *id = cn_http_header(&x->head, "X-Request-Id");
    size_t n = 0;
    while (id && id[n] > ' ' && id[n] <= '~') n++;
    if (id && !id[n] && n > 0 && n <= MAX_CLIENT_ID) x->client_id = id;
}

void cn_exchange_refuse_draining(cn_exchange *x)
{
    cn_exchange_error(x, CN_HTTP_UNAVAILABLE, CN_DRAINING_TEXT, NULL, CN_DRAINING_CODE);
}

uint64_t http_body_limit(const cn_exchange *x)
{
    const uint64_t most = x->route->max_body_bytes, memory = x->conn->server->o.memory->most;
    return x->route->flags & CN_ROUTE_UPLOAD || most < memory ? most : memory;
}

void http_refuse_large_body(cn_exchange *x)
{
    char message[256];
    const cn_route *r = x->route;
    if (r->max_body_bytes == 0)
        snprintf(message, sizeof message, "%s takes no request body", r->path);
    else
        snprintf(message, sizeof message,
                 "the request body is too large: %s takes at most %llu bytes (--max-body-bytes, "
                 "--max-tokenize-bytes, --max-file-bytes and --max-buffered-bytes of the server)",
                 r->path, (unsigned long long)http_body_limit(x));
    cn_exchange_error(x, CN_HTTP_CONTENT_TOO_LARGE, message, NULL, NULL);
}

const char *cn_exchange_param(const cn_exchange *x, uint32_t i)
{
    CN_ASSERT(i < CN_HTTP_MAX_PARAMS && x->params[i].data);
    return x->params[i].data;
}

const char *cn_exchange_query(cn_exchange *x, const char *name)
{
    const size_t n_name = strlen(name);
    for (const char *p = x->head.query; *p;) {
        const size_t n = strcspn(p, "&");
        const char *value = memchr(p, '=', n);
        if (value && (size_t)(value - p) == n_name && memcmp(p, name, n_name) == 0) {
            const size_t n_value = n - n_name - 1;
            cn_buf_clear(&x->query_text);
            /* Decoded text is never longer, so the encoded copy is large enough. */
            if (cn_buf_add(&x->query_text, value + 1, n_value) != CN_OK) return NULL;
            bool ok = cn_http_decode(value + 1, n_value, true, x->query_text.data);
            return ok ? x->query_text.data : "";
        }
        p += n + (p[n] == '&');
    }
    return NULL;
}

const char *cn_exchange_header(const cn_exchange *x, const char *name)
{
    return cn_http_header(&x->head, name);
}

const char *cn_exchange_body(const cn_exchange *x, size_t *n)
{
    *n = x->body.len;
    return x->body.data ? x->body.data : "";
}

cn_buf cn_exchange_take_body(cn_exchange *x)
{
    cn_buf body = x->body;
    x->body = (cn_buf){0};
    return body;
}

uint64_t cn_exchange_announced_bytes(const cn_exchange *x) { return x->head.content_length; }

uint32_t cn_exchange_key(const cn_exchange *x) { return x->key; }

const char *cn_exchange_key_name(const cn_exchange *x)
{
    return x->key == CN_API_KEY_NONE ? "" : cn_api_keys_name(x->conn->server->o.keys, x->key);
}

cn_budget *cn_exchange_samples(const cn_exchange *x)
{
    return x->counted ? &x->conn->server->o.samples_of_key[x->key] : NULL;
}

const char *cn_exchange_request_id(const cn_exchange *x) { return x->id; }

void cn_exchange_set_user(cn_exchange *x, void *user, void (*closed)(void *, cn_exchange *))
{
    x->user = user;
    x->closed = closed;
}

void *cn_exchange_user(const cn_exchange *x) { return x->user; }

void cn_exchange_pause(cn_exchange *x)
{
    x->conn->paused = true;
    bufferevent_disable(x->conn->bev, EV_READ);
}

void cn_exchange_resume(cn_exchange *x)
{
    connection *c = x->conn;
    if (!c->paused) return;
    c->paused = false;
    http_connection_set_state(c, c->state); /* restarts the deadline: the server caused the wait */
    bufferevent_enable(c->bev, EV_READ);
    http_connection_process(c);
}

/* ---- the reply ---- */

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {CN_HTTP_OK, "OK"},
        {CN_HTTP_BAD_REQUEST, "Bad Request"},
        {CN_HTTP_UNAUTHORIZED, "Unauthorized"},
        {CN_HTTP_FORBIDDEN, "Forbidden"},
        {CN_HTTP_NOT_FOUND, "Not Found"},
        {CN_HTTP_METHOD_NOT_ALLOWED, "Method Not Allowed"},
        {CN_HTTP_REQUEST_TIMEOUT, "Request Timeout"},
        {CN_HTTP_CONFLICT, "Conflict"},
        {CN_HTTP_CONTENT_TOO_LARGE, "Content Too Large"},
        {CN_HTTP_UNSUPPORTED_MEDIA_TYPE, "Unsupported Media Type"},
        {CN_HTTP_EXPECTATION_FAILED, "Expectation Failed"},
        {CN_HTTP_TOO_MANY_REQUESTS, "Too Many Requests"},
        {CN_HTTP_HEADERS_TOO_LARGE, "Request Header Fields Too Large"},
        {CN_HTTP_INTERNAL_ERROR, "Internal Server Error"},
        {CN_HTTP_NOT_IMPLEMENTED, "Not Implemented"},
        {CN_HTTP_UNAVAILABLE, "Service Unavailable"},
        {CN_HTTP_VERSION_NOT_SUPPORTED, "HTTP Version Not Supported"},
        {CN_HTTP_NO_STORAGE, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].text;
    return "Status";
}

void cn_exchange_set_header(cn_exchange *x, const char *name, const char *value)
{
    CN_ASSERT(!strpbrk(name, "\r\n:") && !strpbrk(value, "\r\n"));
    if (cn_buf_addf(&x->headers, "%s: %s\r\n", name, value) != CN_OK) x->close_after = true;
}

/* n_body: bytes of the body; < 0: not known. */
static void send_head(cn_exchange *x, int status, const char *content_type, int64_t n_body)
{
    struct evbuffer *out = bufferevent_get_output(x->conn->bev);
    char date[64];
    struct tm tm;
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    x->status = status;
    x->chunked = n_body < 0 && x->head.minor == 1;
    x->close_after |= n_body < 0 && !x->chunked;
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\nX-Request-Id: %s\r\n"
                        "X-Content-Type-Options: nosniff\r\n",
                        status, reason(status), date, content_type,
                        x->client_id ? x->client_id : x->id);
    if (n_body >= 0) evbuffer_add_printf(out, "Content-Length: %lld\r\n", (long long)n_body);
    if (x->chunked) evbuffer_add(out, "Transfer-Encoding: chunked\r\n", 28);
    evbuffer_add_printf(out, "Connection: %s\r\n", x->close_after ? "close" : "keep-alive");
    if (x->headers.len) evbuffer_add(out, x->headers.data, x->headers.len);
    evbuffer_add(out, "\r\n", 2);
}

/* A reply to HEAD has no body. */
static bool wants_body(const cn_exchange *x) { return x->head.method != CN_HTTP_HEAD; }

void cn_exchange_reply(cn_exchange *x, int status, const char *content_type, const void *data,
                       size_t n)
{
    CN_ASSERT(x->status == 0);
    send_head(x, status, content_type, (int64_t)n);
    if (wants_body(x)) evbuffer_add(bufferevent_get_output(x->conn->bev), data, n);
    x->sent_bytes = n;
    x->ended = true;
}

void cn_exchange_reply_json(cn_exchange *x, int status, json_t *body)
{
    static const char failed[] = "{\"error\": {\"message\": \"out of memory\", \"type\": "
                                 "\"internal_error\", \"param\": null, \"code\": null}}";
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (text)
        cn_exchange_reply(x, status, "application/json", text, strlen(text));
    else
        cn_exchange_reply(x, CN_HTTP_INTERNAL_ERROR, "application/json", failed, sizeof failed - 1);
    free(text);
}

void cn_exchange_set_retry(cn_exchange *x, uint32_t seconds) { x->retry_s = seconds; }

void cn_exchange_count_busy(cn_exchange *x)
{
    cn_serve_stats_lock(x->conn->server->o.stats)->rejected_busy++;
    cn_serve_stats_unlock(x->conn->server->o.stats);
}

void cn_exchange_error(cn_exchange *x, int status, const char *message, const char *param,
                       const char *code)
{
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%u", cn_max_u32(x->retry_s, 1));
    if (status == CN_HTTP_TOO_MANY_REQUESTS || status == CN_HTTP_UNAVAILABLE)
        cn_exchange_set_header(x, "Retry-After", seconds);
    if (status == CN_HTTP_TOO_MANY_REQUESTS) cn_exchange_count_busy(x);
    cn_buf_clear(&x->refusal);
    if (cn_buf_addf(&x->refusal, "%s", message) != CN_OK) cn_buf_clear(&x->refusal);
    cn_exchange_reply_json(x, status, cn_api_error_body(status, message, param, code, 0));
}

void cn_exchange_reply_file(cn_exchange *x, int status, const char *content_type, int fd,
                            off_t offset, off_t n)
{
    CN_ASSERT(x->status == 0);
    send_head(x, status, content_type, n);
    const bool empty = !wants_body(x) || n == 0;
    struct evbuffer_file_segment *body =
        empty ? NULL : evbuffer_file_segment_new(fd, offset, n, EVBUF_FS_CLOSE_ON_FREE);
    if (!body) close(fd);
    const bool added =
        body && evbuffer_add_file_segment(bufferevent_get_output(x->conn->bev), body, 0, n) == 0;
    if (body) evbuffer_file_segment_free(body); /* the buffer keeps a reference */
    if (!empty && !added) x->close_after = true; /* the client sees a short body */
    x->sent_bytes = (uint64_t)n;
    x->ended = true;
}

void cn_exchange_begin(cn_exchange *x, int status, const char *content_type,
                       void (*ready)(void *user, cn_exchange *x))
{
    CN_ASSERT(x->status == 0);
    x->ready = ready;
    x->is_stream = true;
    cn_serve_stats_lock(x->conn->server->o.stats)->streams_open++;
    cn_serve_stats_unlock(x->conn->server->o.stats);
    send_head(x, status, content_type, -1);
}

bool cn_exchange_may_send(cn_exchange *x)
{
    size_t unsent = evbuffer_get_length(bufferevent_get_output(x->conn->bev));
    x->waits = unsent >= CN_HTTP_SEND_HIGH;
    return !x->waits;
}

void cn_exchange_send(cn_exchange *x, const void *data, size_t n)
{
    CN_ASSERT(x->is_stream && !x->ended);
    struct evbuffer *out = bufferevent_get_output(x->conn->bev);
    if (n == 0 || !wants_body(x)) return;
    if (x->chunked) evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, data, n);
    if (x->chunked) evbuffer_add(out, "\r\n", 2);
    x->sent_bytes += n;
}

void cn_exchange_abort(cn_exchange *x)
{
    x->chunked = false; /* no last chunk */
    x->close_after = true;
    cn_exchange_end(x);
}

void cn_exchange_end(cn_exchange *x)
{
    CN_ASSERT(x->is_stream && !x->ended);
    connection *c = x->conn;
    struct evbuffer *out = bufferevent_get_output(c->bev);
    if (x->chunked && wants_body(x)) evbuffer_add(out, "0\r\n\r\n", 5);
    x->ended = true;
    /* With an empty output buffer no write event follows, and only that event ends the exchange. */
    if (evbuffer_get_length(out) == 0)
        bufferevent_trigger(c->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

void cn_exchange_note_tokens(cn_exchange *x, uint64_t prompt, uint64_t output)
{
    x->prompt_tokens = prompt;
    x->output_tokens = output;
}
