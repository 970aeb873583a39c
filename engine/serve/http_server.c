/* http_server.c - listening, the route table, keys and limits, deadlines. See http_server.h. */
#include "engine/serve/http_state.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024, LINGER_S = 2, SWEEP_MS = 500, BYTES_PER_SECOND = 64 << 10 };

/* ---- routes ---- */

cn_status cn_http_server_add_routes(cn_http_server *s, const cn_route *routes, size_t n, void *user)
{
    if (s->n_tables == HTTP_TABLES)
        return cn_fail(CN_ERR_ARG, "more than %d tables of routes", HTTP_TABLES);
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

/* Compares segment by segment, collecting what {segments} match. */
static bool match_path(const char *pattern, const char *path, cn_buf *params)
{
    uint32_t n_params = 0;
    for (uint32_t i = 0; i < CN_HTTP_MAX_PARAMS; i++) cn_buf_clear(&params[i]);
    while (*pattern && *path) {
        if (*pattern != '{') {
            if (*pattern++ != *path++) return false;
            continue;
        }
        size_t n = strcspn(path, "/");
        if (!is_param_text(path, n) || n_params == CN_HTTP_MAX_PARAMS ||
            cn_buf_add(&params[n_params++], path, n) != CN_OK)
            return false;
        pattern += strcspn(pattern, "}") + 1;
        path += n;
    }
    return !*pattern && !*path;
}

/* Sets the exchange's route; false when none has its path and method. *methods gets those that the
 * path has. */
static bool find_route(cn_exchange *x, uint32_t *methods)
{
    const cn_http_server *s = x->conn->server;
    const cn_http_method wanted = x->head.method == CN_HTTP_HEAD ? CN_HTTP_GET : x->head.method;
    *methods = 0;
    for (uint32_t t = 0; t < s->n_tables; t++) {
        for (size_t i = 0; i < s->tables[t].n; i++) {
            const cn_route *r = &s->tables[t].rows[i];
            if (!match_path(r->path, x->head.path, x->params)) continue;
            *methods |= 1U << r->method;
            if (r->method != wanted) continue;
            x->route = r;
            x->route_user = s->tables[t].user;
            return true;
        }
    }
    return false;
}

static void refuse_method(cn_exchange *x, uint32_t methods)
{
    char allow[64] = "";
    for (int m = 0; m < CN_HTTP_OTHER; m++) {
        if (!(methods >> m & 1)) continue;
        size_t n = strlen(allow);
        snprintf(allow + n, sizeof allow - n, "%s%s", n ? ", " : "",
                 cn_http_method_name((cn_http_method)m));
    }
    cn_exchange_set_header(x, "Allow", allow);
    cn_exchange_error(x, 405, "this path does not have this method", NULL, "method_not_allowed");
}

/* Basic credentials are kept by browsers and sent along with requests that other sites cause, so
 * they may only read. */
static bool has_key(cn_exchange *x)
{
    const cn_api_keys *keys = x->conn->server->o.keys;
    const bool reads = x->head.method == CN_HTTP_GET || x->head.method == CN_HTTP_HEAD;
    if (!keys || cn_api_keys_count(keys) == 0) return true;
    x->key = cn_api_keys_find(keys, cn_http_header(&x->head, "Authorization"), reads);
    return x->key != CN_API_KEY_NONE;
}

static bool refuse_key(cn_exchange *x)
{
    const char *accept = cn_http_header(&x->head, "Accept");
    const bool browser = accept && strstr(accept, "text/html");
    x->route = NULL; /* what paths there are is nobody's business without a key */
    cn_exchange_set_header(x, "WWW-Authenticate", browser ? "Basic realm=\"cinch\"" : "Bearer");
    cn_exchange_error(x, 401, "a valid API key is wanted: Authorization: Bearer KEY", NULL,
                      "invalid_api_key");
    return false;
}

static bool within_key_limit(cn_exchange *x)
{
    cn_http_server *s = x->conn->server;
    if (!(x->route->flags & CN_ROUTE_LIMITED) || x->key == CN_API_KEY_NONE) return true;
    if (s->running_of_key[x->key] >= s->o.max_requests_per_key) return false;
    s->running_of_key[x->key]++;
    return x->counted = true;
}

bool http_route(cn_exchange *x)
{
    uint32_t methods;
    const bool found = find_route(x, &methods);
    if (!(found && x->route->flags & CN_ROUTE_OPEN) && !has_key(x)) return refuse_key(x);
    if (!found && methods) {
        refuse_method(x, methods);
    } else if (!found) {
        cn_exchange_error(x, 404, "there is no such path", NULL, "not_found");
    } else if (x->head.content_length > x->route->max_body_bytes) {
        cn_exchange_error(x, 413, "the body is too large", NULL, NULL);
    } else if (!within_key_limit(x)) {
        cn_exchange_error(x, 429, "this key has as many requests running as it may "
                          "(--max-requests-per-key)", NULL, "rate_limit_exceeded");
    } else {
        return true;
    }
    return false;
}

/* ---- deadlines ---- */

/* A request has its seconds, and one more for each 64 KiB that came. */
static bool is_late(const connection *c, double now)
{
    const cn_http_opts *o = &c->server->o;
    if (c->paused) return false;
    if (c->state == CONN_IDLE && c->reused) return now - c->since_s > o->idle_timeout_s;
    return now - c->since_s > o->request_timeout_s + (double)(c->came / BYTES_PER_SECOND);
}

static void time_out(connection *c)
{
    cn_serve_figures *f = cn_serve_stats_lock(c->server->o.stats);
    f->requests_timed_out += c->state != CONN_IDLE;
    cn_serve_stats_unlock(c->server->o.stats);
    if (c->state != CONN_BODY) {
        http_connection_close(c, "too slow");
        return;
    }
    http_connection_set_state(c, CONN_BUSY);
    cn_exchange_error(c->exchange, 408, "the request took too long to arrive", NULL, NULL);
}

static bool is_stuck(const connection *c, double now)
{
    if (c->state == CONN_LINGER) return now - c->since_s > LINGER_S;
    return evbuffer_get_length(bufferevent_get_output(c->bev)) > 0 &&
           now - c->output_s > c->server->o.idle_timeout_s;
}

static void enable_listeners(cn_http_server *s)
{
    s->out_of_files = false;
    for (uint32_t i = 0; i < s->n_listeners && s->accepting; i++)
        evconnlistener_enable(s->listeners[i]);
}

static void on_sweep(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    cn_http_server *s = arg;
    const double now = cn_now_s();
    for (connection *c = s->unasked.head, *next; c; c = next) {
        next = c->next;
        if (is_late(c, now) || (c->state == CONN_IDLE && c->reused && !s->accepting)) time_out(c);
    }
    for (connection *c = s->asked.head, *next; c; c = next) {
        next = c->next;
        if (is_stuck(c, now)) http_connection_close(c, "client reads nothing");
    }
    if (s->out_of_files) enable_listeners(s);
}

/* ---- accepting ---- */

static void name_remote(const struct sockaddr *sa, char *out, size_t size)
{
    char host[INET6_ADDRSTRLEN + 8], port[8];
    socklen_t len = sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                              : sizeof(struct sockaddr_in);
    const int numeric = NI_NUMERICHOST | NI_NUMERICSERV;
    snprintf(out, size, "unix");
    if ((sa->sa_family == AF_INET || sa->sa_family == AF_INET6) &&
        getnameinfo(sa, len, host, sizeof host, port, sizeof port, numeric) == 0)
        snprintf(out, size, "%s:%s", host, port);
}

/* Makes room for one more: the oldest that has not sent a whole request goes. */
static bool make_room(cn_http_server *s)
{
    if (s->n_connections < s->o.max_connections) return true;
    if (!s->unasked.head) return false;
    http_connection_close(s->unasked.head, "made room");
    return true;
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int len,
                      void *arg)
{
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                               "Content-Length: 0\r\nConnection: close\r\n\r\n";
    cn_http_server *s = arg;
    char remote[HTTP_REMOTE_BYTES];
    const int on = 1;
    (void)l, (void)len;
    if (!make_room(s)) {
        cn_serve_stats_lock(s->o.stats)->connections_refused++;
        cn_serve_stats_unlock(s->o.stats);
        (void)!send(fd, busy, sizeof busy - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        evutil_closesocket(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* a client may lose its power */
    name_remote(sa, remote, sizeof remote);
    http_connection_open(s, fd, remote);
}

/* Out of file descriptors, most likely: the next sweep tries again. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    cn_http_server *s = arg;
    cn_log(CN_LOG_WARN, "accept: %s", strerror(errno));
    s->out_of_files = true;
    evconnlistener_disable(l);
}

static cn_status add_listener(cn_http_server *s, int fd, const char *what)
{
    const unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    CN_ASSERT(s->n_listeners < HTTP_MAX_LISTENERS);
    evutil_make_socket_nonblocking(fd);
    struct evconnlistener *l = NULL;
    if (listen(fd, BACKLOG) == 0)
        l = evconnlistener_new(s->o.base, on_accept, s, flags, -1, fd);
    if (!l) {
        cn_status status = cn_fail(CN_ERR_IO, "%s: listen: %s", what, strerror(errno));
        evutil_closesocket(fd);
        return status;
    }
    evconnlistener_set_error_cb(l, on_accept_error);
    s->listeners[s->n_listeners++] = l;
    s->accepting = true;
    return CN_OK;
}

static cn_status bound_port(int fd, uint16_t *port)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return cn_fail(CN_ERR_IO, "getsockname: %s", strerror(errno));
    *port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                           : ((struct sockaddr_in *)&at)->sin_port);
    return CN_OK;
}

cn_status cn_http_server_listen(cn_http_server *s, const char *host, uint16_t *port)
{
    char service[8], what[300];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found;
    snprintf(service, sizeof service, "%u", *port);
    snprintf(what, sizeof what, "%s port %s", host, service);
    int bad = getaddrinfo(host, service, &hints, &found);
    if (bad) return cn_fail(CN_ERR_IO, "%s: %s", what, gai_strerror(bad));
    const int on = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
              bind(fd, found->ai_addr, found->ai_addrlen) == 0;
    cn_status status = ok ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", what, strerror(errno));
    freeaddrinfo(found);
    if (status == CN_OK) status = bound_port(fd, port);
    if (status == CN_OK) return add_listener(s, fd, what);
    if (fd >= 0) evutil_closesocket(fd);
    return status;
}

/* A socket file is left behind by a server that was killed: nobody answers on it. */
static cn_status remove_stale(const char *path, const struct sockaddr_un *at)
{
    struct stat st;
    if (lstat(path, &st) != 0) return CN_OK;
    if (!S_ISSOCK(st.st_mode)) return cn_fail(CN_ERR_ARG, "%s: is there, and is no socket", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool answers = fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof *at) == 0;
    if (fd >= 0) close(fd);
    if (answers) return cn_fail(CN_ERR_BUSY, "%s: another server listens there", path);
    return unlink(path) == 0 ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
}

cn_status cn_http_server_listen_unix(cn_http_server *s, const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        return cn_fail(CN_ERR_ARG, "%s: longer than the %zu bytes of a socket's name", path,
                       sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path));
    CN_TRY(remove_stale(path, &at));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t mask = umask(0117);
    bool ok = fd >= 0 && bind(fd, (const struct sockaddr *)&at, sizeof at) == 0;
    umask(mask);
    if (!ok) {
        cn_status status = cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    s->unix_path = cn_strdup(path);
    return add_listener(s, fd, path);
}

void cn_http_server_stop_accepting(cn_http_server *s)
{
    s->accepting = false;
    for (uint32_t i = 0; i < s->n_listeners; i++) evconnlistener_disable(s->listeners[i]);
}

uint32_t cn_http_server_n_exchanges(const cn_http_server *s) { return s->n_exchanges; }

/* ---- create, free ---- */

static cn_status open_server(cn_http_server *s)
{
    const struct timeval every = {.tv_usec = SWEEP_MS * 1000};
    if (getrandom(&s->id_seed, sizeof s->id_seed, 0) != sizeof s->id_seed)
        return cn_fail(CN_ERR_IO, "getrandom: %s", strerror(errno));
    s->running_of_key = cn_calloc(1 + (s->o.keys ? cn_api_keys_count(s->o.keys) : 0),
                                  sizeof *s->running_of_key);
    s->sweep = event_new(s->o.base, -1, EV_PERSIST, on_sweep, s);
    if (!s->running_of_key || !s->sweep || event_add(s->sweep, &every) != 0)
        return cn_fail(CN_ERR_MEMORY, "out of memory for the HTTP server");
    return CN_OK;
}

cn_status cn_http_server_create(cn_http_server **out, const cn_http_opts *o)
{
    cn_http_server *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for the HTTP server");
    s->o = *o;
    cn_status status = open_server(s);
    if (status == CN_OK)
        *out = s;
    else
        cn_http_server_free(s);
    return status;
}

void cn_http_server_free(cn_http_server *s)
{
    if (!s) return;
    while (s->unasked.head) http_connection_close(s->unasked.head, "server stopped");
    while (s->asked.head) http_connection_close(s->asked.head, "server stopped");
    for (uint32_t i = 0; i < s->n_listeners; i++) evconnlistener_free(s->listeners[i]);
    if (s->sweep) event_free(s->sweep);
    if (s->unix_path) unlink(s->unix_path);
    cn_free(s->unix_path);
    cn_free(s->running_of_key);
    cn_free(s);
}
