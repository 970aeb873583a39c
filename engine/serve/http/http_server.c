/* http_server.c - routes, keys, limits and deadlines. See http_server.h. */
#include "engine/serve/http/http_state.h"

#include <strings.h>

enum { LINGER_S = 2, SWEEP_MS = 500 };

/* ---- routes ---- */

cn_status cn_http_server_add_routes(cn_http_server *s, const cn_route *routes, size_t n, void *user)
{
    if (s->n_tables == HTTP_TABLES)
        return cn_fail(CN_ERR_ARG, "expected at most %d route tables", HTTP_TABLES);
    s->tables[s->n_tables].rows = routes;
    s->tables[s->n_tables].n = n;
    s->tables[s->n_tables++].user = user;
    return CN_OK;
}

const cn_route *cn_http_server_route(const cn_http_server *s, size_t i)
{
    for (uint32_t t = 0; t < s->n_tables; t++) {
        if (i < s->tables[t].n) return &s->tables[t].rows[i];
        i -= s->tables[t].n;
    }
    return NULL;
}

static bool is_param_text(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || (c == '.' && i > 0);
        if (!ok) return false;
    }
    return n > 0;
}

/* Compares segment by segment and collects the texts that match {segments}. */
static bool match_path(const cn_route *r, const char *path, cn_buf *params)
{
    const char *pattern = r->path;
    uint32_t n_params = 0;
    for (uint32_t i = 0; i < CN_HTTP_MAX_PARAMS; i++) cn_buf_clear(&params[i]);
    while (*pattern && *path) {
        if (*pattern != '{') {
            if (*pattern++ != *path++) return false;
            continue;
        }
        pattern += strcspn(pattern, "}") + 1;
        const bool rest = r->flags & CN_ROUTE_REST && !*pattern;
        const size_t n = rest ? strlen(path) : strcspn(path, "/");
        if (!(rest || is_param_text(path, n)) || n_params == CN_HTTP_MAX_PARAMS ||
            cn_buf_add(&params[n_params++], path, n) != CN_OK)
            return false;
        path += n;
    }
    return !*pattern && !*path;
}

/* The path without --root-path, which a proxy may leave in it. */
static const char *own_path(const cn_exchange *x)
{
    const char *root = x->conn->server->o.root_path, *path = x->head.path;
    const size_t n = root ? strlen(root) : 0;
    if (n == 0 || strncmp(path, root, n) != 0 || (path[n] && path[n] != '/')) return path;
    return path[n] ? path + n : "/";
}

/* Sets the exchange's route. Returns false when no route has its path and method; *methods then has
 * a bit for each method of the path. */
static bool find_route(cn_exchange *x, uint32_t *methods)
{
    const cn_http_server *s = x->conn->server;
    const char *path = own_path(x);
    const cn_http_method wanted = x->head.method == CN_HTTP_HEAD ? CN_HTTP_GET : x->head.method;
    *methods = 0;
    for (uint32_t t = 0; t < s->n_tables; t++) {
        for (size_t i = 0; i < s->tables[t].n; i++) {
            const cn_route *r = &s->tables[t].rows[i];
            if (!match_path(r, path, x->params)) continue;
            *methods |= 1U << r->method;
            if (r->method != wanted) continue;
            x->route = r;
            x->route_user = s->tables[t].user;
            return true;
        }
    }
    return false;
}

/* Whether a row before the i-th has its path. */
static bool is_named_before(const cn_http_server *s, size_t i)
{
    const char *path = cn_http_server_route(s, i)->path;
    size_t k = 0;
    while (k < i && strcmp(cn_http_server_route(s, k)->path, path) != 0) k++;
    return k < i;
}

/* Says what to use instead, or names the paths that exist. */
static void refuse_path(cn_exchange *x)
{
    const cn_http_server *s = x->conn->server;
    const char *hint = http_hint(own_path(x));
    cn_buf message = {0};
    const cn_route *r;
    bool ok = cn_buf_addf(&message, "no such path: %s", hint ? hint : "expected one of") == CN_OK;
    for (size_t i = 0; !hint && ok && (r = cn_http_server_route(s, i)); i++)
        if (!is_named_before(s, i))
            ok = cn_buf_addf(&message, "%s %s", i > 0 ? "," : "", r->path) == CN_OK;
    cn_exchange_error(x, CN_HTTP_NOT_FOUND, ok ? message.data : "no such path", NULL, "not_found");
    cn_buf_free(&message);
}

/* The path has no such method, of which OPTIONS asks for those that it has. */
static void answer_method(cn_exchange *x, uint32_t methods)
{
    char allow[64] = "", message[128];
    if (methods >> CN_HTTP_GET & 1) methods |= 1U << CN_HTTP_HEAD;
    methods |= 1U << CN_HTTP_OPTIONS;
    for (int m = 0; m < CN_HTTP_OTHER; m++) {
        if (!(methods >> m & 1)) continue;
        size_t n = strlen(allow);
        snprintf(allow + n, sizeof allow - n, "%s%s", n ? ", " : "",
                 cn_http_method_name((cn_http_method)m));
    }
    cn_exchange_set_header(x, "Allow", allow);
    if (x->head.method == CN_HTTP_OPTIONS) {
        cn_exchange_reply(x, CN_HTTP_OK, "text/plain", "", 0);
        return;
    }
    snprintf(message, sizeof message, "method not allowed for this path: expected %s", allow);
    cn_exchange_error(x, CN_HTTP_METHOD_NOT_ALLOWED, message, NULL, "method_not_allowed");
}

/* Browsers store Basic credentials and add them to requests that other sites cause, so Basic allows
 * only reading (GET and HEAD). */
static bool has_http_key(cn_exchange *x)
{
    const cn_api_keys *keys = x->conn->server->o.keys;
    const bool reads = x->head.method == CN_HTTP_GET || x->head.method == CN_HTTP_HEAD;
    if (!keys || cn_api_keys_count(keys) == 0) return true;
    x->key = cn_api_keys_find(keys, cn_http_header(&x->head, "Authorization"), reads);
    return x->key != CN_API_KEY_NONE;
}

static bool refuse_http_key(cn_exchange *x)
{
    const char *accept = cn_http_header(&x->head, "Accept");
    const bool browser = accept && strstr(accept, "text/html");
    x->route = NULL; /* a client without a key must not learn which paths exist */
    cn_exchange_set_header(x, "WWW-Authenticate", browser ? "Basic realm=\"cinch\"" : "Bearer");
    cn_exchange_error(x, CN_HTTP_UNAUTHORIZED,
                      "invalid or missing API key: send the header \"Authorization: Bearer KEY\"",
                      NULL, "invalid_api_key");
    return false;
}

static bool within_key_limit(cn_exchange *x)
{
    cn_http_server *s = x->conn->server;
    if (!(x->route->flags & CN_ROUTE_LIMITED) || x->key == CN_API_KEY_NONE) return true;
    cn_budget *samples = &s->o.samples_of_key[x->key];
    if (!cn_budget_try_take(samples, 1)) {
        cn_exchange_set_retry(x, cn_serve_stats_retry_s(s->o.stats, CN_CLASS_INTERACTIVE,
                                                        (uint32_t)samples->most));
        return false;
    }
    return x->counted = true;
}

static bool has_type(const cn_exchange *x, const char *want)
{
    const char *type = cn_http_header(&x->head, "Content-Type");
    const size_t n = strlen(want);
    return type && strncasecmp(type, want, n) == 0 && strchr("; \t", type[n]);
}

/* Other types are those that a page of another site can send without asking the server first. */
static bool accepts_type(cn_exchange *x)
{
    const uint32_t kinds = x->route->flags & (CN_ROUTE_JSON | CN_ROUTE_FORM);
    if (kinds == 0 || !(x->head.chunked || x->head.content_length > 0)) return true;
    const bool json = kinds & CN_ROUTE_JSON;
    const char *encoding = cn_http_header(&x->head, "Content-Encoding");
    if (encoding && strcasecmp(encoding, "identity") != 0) {
        cn_exchange_error(x, CN_HTTP_UNSUPPORTED_MEDIA_TYPE,
                          "Content-Encoding: expected identity, because compressed bodies are not "
                          "supported", NULL, NULL);
        return false;
    }
    if (has_type(x, json ? "application/json" : "multipart/form-data")) return true;
    cn_exchange_error(x, CN_HTTP_UNSUPPORTED_MEDIA_TYPE,
                      json ? "Content-Type: expected application/json"
                           : "Content-Type: expected multipart/form-data", NULL, NULL);
    return false;
}

bool http_route(cn_exchange *x)
{
    uint32_t methods;
    http_cors_allow(x);
    if (http_cors_preflight(x)) return false;
    if (!x->conn->server->begun) {
        cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "the model is loading: try again later", NULL,
                          "loading");
        return false;
    }
    const bool found = find_route(x, &methods);
    const bool open = found && x->route->flags & CN_ROUTE_OPEN;
    if (x->late && !(found && x->route->flags & CN_ROUTE_WATCH)) {
        cn_exchange_refuse_draining(x);
        return false;
    }
    if (!open && !has_http_key(x)) return refuse_http_key(x);
    if (!open && !http_origin_is_allowed(x)) return false;
    if (!found && methods) {
        answer_method(x, methods);
    } else if (!found) {
        refuse_path(x);
    } else if (x->head.content_length > http_body_limit(x)) {
        http_refuse_large_body(x);
    } else if (!within_key_limit(x)) {
        cn_exchange_error(x, CN_HTTP_TOO_MANY_REQUESTS,
                          "this API key has too many samples in flight (--max-requests-per-key): "
                          "try again later",
                          NULL, "rate_limit_exceeded");
    } else {
        return accepts_type(x);
    }
    return false;
}

/* ---- deadlines ---- */

static bool is_late(const connection *c, double now)
{
    const cn_http_opts *o = &c->server->o;
    if (c->paused) return false;
    return http_connection_slow_s(c, now) >
           (c->state == CONN_IDLE && c->reused ? o->idle_timeout_s : o->request_timeout_s);
}

static void time_out(connection *c)
{
    cn_serve_figures *f = cn_serve_stats_lock(c->server->o.stats);
    f->requests_timed_out += c->state != CONN_IDLE;
    cn_serve_stats_unlock(c->server->o.stats);
    if (c->state != CONN_BODY) {
        http_connection_close(c, "timed out");
        return;
    }
    http_connection_set_state(c, CONN_BUSY);
    cn_exchange_error(c->exchange, CN_HTTP_REQUEST_TIMEOUT,
                      "timed out while waiting for the whole request (--request-timeout)", NULL,
                      NULL);
}

static bool is_stuck(const connection *c, double now)
{
    if (c->state == CONN_LINGER) return now - c->since_s > LINGER_S;
    return evbuffer_get_length(bufferevent_get_output(c->bev)) > 0 &&
           now - c->output_s > c->server->o.idle_timeout_s;
}

static void on_sweep(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    cn_http_server *s = arg;
    const double now = cn_now_s();
    CN_LIST_EACH_SAFE(connection, c, &s->receiving, node) {
        if (is_late(c, now) || (c->state == CONN_IDLE && c->reused && s->draining)) time_out(c);
    }
    CN_LIST_EACH_SAFE(connection, c, &s->replying, node) {
        if (is_stuck(c, now)) http_connection_close(c, "client does not read");
    }
    if (s->out_of_files) http_accept_resume(s);
}

/* ---- loading, draining ---- */

void cn_http_server_begin(cn_http_server *s) { s->begun = true; }

void cn_http_server_drain(cn_http_server *s) { s->draining = true; }

static void cut_http(connection *c)
{
    cn_exchange *x = c->exchange;
    if (!x || x->status || c->paused) return;
    void (*closed)(void *, cn_exchange *) = x->closed;
    x->closed = NULL;
    if (closed) closed(x->user, x);
    x->close_after = true;
    http_connection_set_state(c, CONN_BUSY);
    cn_exchange_refuse_draining(x);
}

void cn_http_server_cut(cn_http_server *s)
{
    cn_list *const lists[] = {&s->receiving, &s->replying};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        for (cn_list_node *at = lists[i]->head, *next; at; at = next) {
            next = at->next; /* a connection that is cut moves to the end of `replying` */
            cut_http(CN_CONTAINER_OF(at, connection, node));
        }
    }
}

uint32_t cn_http_server_n_exchanges(const cn_http_server *s) { return s->n_exchanges; }

/* ---- create, free ---- */

static cn_status open_http_server(cn_http_server *s)
{
    const struct timeval every = {.tv_usec = SWEEP_MS * 1000};
    CN_TRY(cn_random_bytes(&s->id_seed, sizeof s->id_seed));
    s->sweep = event_new(s->o.base, -1, EV_PERSIST, on_sweep, s);
    if (!s->sweep || event_add(s->sweep, &every) != 0)
        return cn_fail(CN_ERR_MEMORY, "out of memory for the HTTP server");
    return http_accept_open(s);
}

cn_status cn_http_server_create(cn_http_server **out, const cn_http_opts *o)
{
    cn_http_server *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for the HTTP server");
    s->o = *o;
    s->pending.fd = -1;
    cn_status status = open_http_server(s);
    if (status == CN_OK)
        *out = s;
    else
        cn_http_server_free(s);
    return status;
}

void cn_http_server_free(cn_http_server *s)
{
    if (!s) return;
    for (connection *c; (c = CN_CONTAINER_OF(s->receiving.head, connection, node));)
        http_connection_close(c, "server stopped");
    for (connection *c; (c = CN_CONTAINER_OF(s->replying.head, connection, node));)
        http_connection_close(c, "server stopped");
    http_accept_close(s);
    if (s->sweep) event_free(s->sweep);
    cn_free(s);
}
