/* http_connection.c - reads a connection's input: heads, bodies, pipelined requests, and what comes
 * after the last reply. See http_state.h. */

#include "engine/serve/http/http_state.h"

enum { READ_HIGH = 256 << 10, BYTES_PER_SECOND = 64 << 10, MAX_EMPTY_LINES = 8 };

void http_connection_set_state(connection *c, conn_state state)
{
    cn_http_server *s = c->server;
    c->state = state;
    c->since_s = cn_now_s();
    if (c->list) cn_list_remove(c->list, &c->node);
    c->list = state == CONN_BUSY || state == CONN_LINGER ? &s->replying : &s->receiving;
    cn_list_append(c->list, &c->node);
    s->n_kept -= c->kept;
    c->kept = c->reused && (state == CONN_IDLE || state == CONN_HEAD);
    s->n_kept += c->kept;
    if (c->kept) http_accept_schedule_pending(s);
}

double http_connection_slow_s(const connection *c, double now)
{
    return now - c->since_s - (double)c->came / BYTES_PER_SECOND;
}

/* ---- head ---- */

/* Skips some empty lines before a request, as RFC 9112 §2.2 recommends. They are not progress of
 * the request. */
static void skip_empty_lines(connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    char two[2];
    while (c->n_empty_lines <= MAX_EMPTY_LINES && evbuffer_copyout(in, two, 2) == 2 &&
           two[0] == '\r' && two[1] == '\n') {
        evbuffer_drain(in, 2);
        c->came -= c->came < 2 ? c->came : 2;
        c->n_empty_lines++;
    }
}

static bool has_body(const cn_exchange *x) { return x->head.chunked || x->head.content_length > 0; }

/* The request is complete: from here on a reply alone decides whether the connection stays open. */
static void handle_request(connection *c)
{
    cn_exchange *x = c->exchange;
    x->close_after = !x->head.keep_alive || c->server->draining;
    http_connection_set_state(c, CONN_BUSY);
    if (http_accept_long(x)) x->route->handle(x->route_user, x);
}

/* Starts reading the body, or handles a request without one. The route may have replied already. */
static void begin_body(connection *c)
{
    cn_exchange *x = c->exchange;
    if (x->status) {
        http_connection_set_state(c, CONN_BUSY);
    } else if (!has_body(x)) {
        handle_request(c);
    } else {
        c->state = CONN_BODY; /* since_s stays: one deadline covers head and body */
        c->server->n_kept -= c->kept;
        c->kept = false;
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        if (x->head.expects_continue)
            evbuffer_add(bufferevent_get_output(c->bev), go_on, sizeof go_on - 1);
    }
}

/* The result of a reading step. */
typedef enum reading {
    READ_WAITS,   /* needs more bytes */
    READ_WENT_ON, /* the state may have changed: read on */
    READ_CLOSED   /* the connection has been freed */
} reading;

static reading close_out_of_memory(connection *c)
{
    http_connection_close(c, "out of memory");
    return READ_CLOSED;
}

/* Answers input that is not a valid request. Uses an exchange, so that the reply is formatted and
 * logged like every other. */
static reading refuse_head(connection *c, int status, const char *why)
{
    if (!c->exchange) c->exchange = http_exchange_open(c);
    if (!c->exchange) return close_out_of_memory(c);
    http_connection_set_state(c, CONN_BUSY);
    c->exchange->close_after = true;
    cn_exchange_error(c->exchange, status, why, NULL, NULL);
    return READ_WENT_ON;
}

/* Creates an exchange from the head, the first n bytes of the input. */
static reading begin_exchange(connection *c, size_t n)
{
    cn_exchange *x = c->exchange = http_exchange_open(c);
    if (x) x->head_text = cn_calloc(n + 1, 1);
    if (!x || !x->head_text) return close_out_of_memory(c);
    evbuffer_remove(bufferevent_get_input(c->bev), x->head_text, n);
    const char *why = NULL;
    int status = cn_http_parse_head(&x->head, x->head_text, n, &why);
    if (status) return refuse_head(c, status, why);
    http_note_client_id(x);
    /* After a reply before the end of the body, the rest of the body must not be read as a request:
     * close. */
    x->close_after = !x->head.keep_alive || c->server->draining || has_body(x);
    if (http_route(x) && x->route->flags & CN_ROUTE_UPLOAD) x->route->head(x->route_user, x);
    begin_body(c);
    return READ_WENT_ON;
}

static reading read_http_head(connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    const size_t most = c->server->o.max_head_bytes;
    if (c->head_seen == 0) skip_empty_lines(c);
    if (c->n_empty_lines > MAX_EMPTY_LINES)
        return refuse_head(c, CN_HTTP_BAD_REQUEST, "too many empty lines before the request");
    size_t n = evbuffer_get_length(in);
    if (n == 0) return READ_WAITS;
    if (c->state == CONN_IDLE) http_connection_set_state(c, CONN_HEAD);
    if (n > most) n = most;
    const char *text = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    if (!text) return close_out_of_memory(c);
    if (!cn_http_may_begin(*text))
        return refuse_head(c, CN_HTTP_BAD_REQUEST,
                           "expected an HTTP request: the server has no TLS, so its URLs begin "
                           "with http://");
    size_t length = cn_http_head_length(text, n, &c->head_seen);
    if (length > 0) return begin_exchange(c, length);
    if (n < most) return READ_WAITS;
    return refuse_head(c, CN_HTTP_HEADERS_TOO_LARGE,
                       "the request head exceeds the limit (--max-header-bytes)");
}

/* ---- body ---- */

/* Takes n bytes of body. Returns false when the exchange must not read more. */
static bool take_http_body(cn_exchange *x, const char *data, size_t n)
{
    cn_http_server *s = x->conn->server;
    x->body_bytes += n;
    if (x->body_bytes > http_body_limit(x)) {
        http_refuse_large_body(x);
        return false;
    }
    if (x->route->flags & CN_ROUTE_UPLOAD) {
        x->route->body(x->route_user, x, data, n);
        return x->status == 0;
    }
    if (!cn_budget_try_take(s->o.memory, n)) {
        cn_exchange_count_busy(x);
        cn_exchange_error(x, CN_HTTP_UNAVAILABLE,
                          "the memory for requests is full (--max-buffered-bytes): try again later",
                          NULL, NULL);
        return false;
    }
    x->charged += n;
    if (cn_buf_add(&x->body, data, n) == CN_OK) return true;
    cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "out of memory for the request body", NULL, NULL);
    return false;
}

static bool body_is_whole(const cn_exchange *x)
{
    return x->head.chunked ? x->chunks.state == CN_CHUNK_DONE
                           : x->body_bytes == x->head.content_length;
}

/* Passes on the first segment of the input. Returns false when there is none, or when the exchange
 * must not read more. */
static bool read_body_segment(connection *c)
{
    cn_exchange *x = c->exchange;
    struct evbuffer *in = bufferevent_get_input(c->bev);
    struct evbuffer_iovec v;
    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1 || v.iov_len == 0) return false;
    const char *data = v.iov_base;
    size_t n_data = v.iov_len, used = v.iov_len;
    bool bad = false;
    if (x->head.chunked) {
        used = cn_http_chunks_next(&x->chunks, v.iov_base, v.iov_len, &data, &n_data, &bad);
    } else {
        uint64_t left = x->head.content_length - x->body_bytes;
        if (n_data > left) n_data = used = (size_t)left;
    }
    if (bad)
        cn_exchange_error(x, CN_HTTP_BAD_REQUEST, "malformed chunked request body", NULL, NULL);
    else if (n_data > 0)
        bad = !take_http_body(x, data, n_data);
    evbuffer_drain(in, used);
    return !bad;
}

static reading read_http_body(connection *c)
{
    cn_exchange *x = c->exchange;
    while (!c->paused && !body_is_whole(x) && x->status == 0)
        if (!read_body_segment(c)) break;
    if (x->status == 0 && (c->paused || !body_is_whole(x))) return READ_WAITS;
    if (x->status)
        http_connection_set_state(c, CONN_BUSY);
    else
        handle_request(c);
    return READ_WENT_ON;
}

/* ---- events ---- */

void http_connection_process(connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    reading r = READ_WENT_ON;
    while (r == READ_WENT_ON) {
        switch (c->state) {
        case CONN_IDLE:
        case CONN_HEAD: r = read_http_head(c); break;
        case CONN_BODY: r = read_http_body(c); break;
        case CONN_BUSY: return; /* a pipelined request waits for the reply */
        case CONN_LINGER: evbuffer_drain(in, evbuffer_get_length(in)); return;
        }
    }
}

/* The reply has been sent: expects the next request, or closes. */
static void next_exchange(connection *c)
{
    const bool close = c->exchange->close_after;
    const bool pipelined = evbuffer_get_length(bufferevent_get_input(c->bev)) > 0;
    if (!pipelined)
        c->pipelined_s = 0;
    else if (c->pipelined_s == 0)
        c->pipelined_s = cn_now_s();
    http_exchange_close(c->exchange, "sent");
    c->exchange = NULL;
    c->reused = true;
    c->paused = false;
    c->head_seen = 0;
    c->n_empty_lines = 0;
    c->came = 0;
    if (close) {
        http_connection_set_state(c, CONN_LINGER);
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    } else {
        http_connection_set_state(c, CONN_IDLE);
    }
    bufferevent_enable(c->bev, EV_READ);
    http_connection_process(c);
}

static void on_http_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    http_connection_process(arg);
}

/* The output is empty. */
static void on_write(struct bufferevent *bev, void *arg)
{
    connection *c = arg;
    cn_exchange *x = c->exchange;
    (void)bev;
    if (!x || c->state != CONN_BUSY || x->status == 0) return;
    if (x->ended) {
        next_exchange(c);
    } else if (x->waits) {
        x->waits = false;
        x->ready(x->user, x);
    }
}

static void on_connection_event(struct bufferevent *bev, short what, void *arg)
{
    connection *c = arg;
    (void)bev;
    if (!(what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))) return;
    if (what & BEV_EVENT_EOF && c->exchange && c->exchange->ended)
        c->exchange->close_after = true; /* the client sends no more, but may still read */
    else
        http_connection_close(c, "client disconnected");
}

static void count_input(struct evbuffer *b, const struct evbuffer_cb_info *info, void *arg)
{
    (void)b;
    ((connection *)arg)->came += info->n_added;
}

static void note_output(struct evbuffer *b, const struct evbuffer_cb_info *info, void *arg)
{
    (void)b;
    if (info->n_deleted > 0 || info->orig_size == 0) ((connection *)arg)->output_s = cn_now_s();
}

/* ---- open and close ---- */

connection *http_connection_open(cn_http_server *s, int fd, const char *remote)
{
    connection *c = cn_calloc(1, sizeof *c);
    struct bufferevent *bev =
        c ? bufferevent_socket_new(s->o.base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!bev) {
        cn_free(c);
        evutil_closesocket(fd);
        return NULL;
    }
    c->server = s;
    c->bev = bev;
    snprintf(c->remote, sizeof c->remote, "%s", remote);
    evbuffer_add_cb(bufferevent_get_input(bev), count_input, c);
    evbuffer_add_cb(bufferevent_get_output(bev), note_output, c);
    bufferevent_setcb(bev, on_http_read, on_write, on_connection_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, READ_HIGH + s->o.max_head_bytes);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    http_connection_set_state(c, CONN_IDLE);
    s->n_connections++;
    cn_serve_figures *f = cn_serve_stats_lock(s->o.stats);
    f->connections_accepted++;
    f->connections_open = s->n_connections;
    cn_serve_stats_unlock(s->o.stats);
    return c;
}

void http_connection_close(connection *c, const char *why)
{
    cn_http_server *s = c->server;
    if (c->exchange) http_exchange_close(c->exchange, why);
    cn_list_remove(c->list, &c->node);
    s->n_kept -= c->kept;
    /* libevent may write what is left after this call. */
    evbuffer_remove_cb(bufferevent_get_input(c->bev), count_input, c);
    evbuffer_remove_cb(bufferevent_get_output(c->bev), note_output, c);
    bufferevent_free(c->bev);
    cn_free(c);
    s->n_connections--;
    cn_serve_figures *f = cn_serve_stats_lock(s->o.stats);
    f->connections_open = s->n_connections;
    cn_serve_stats_unlock(s->o.stats);
    http_accept_schedule_pending(s);
}
