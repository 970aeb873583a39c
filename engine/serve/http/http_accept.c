/* http_accept.c - listens, accepts connections and makes room for new ones. See http_server.h.
 *
 * There are at most --max-connections connections. When all are in use, a new connection replaces
 * one that lingers or whose client does not read its reply; else one that has not sent a whole
 * request. Connections that never sent one go before connections that are idle between two
 * requests. Among equals the one that has been slow the longest goes.
 *
 * A connection that has been slow for less than GRACE_S is not closed to make room, so a flood
 * closes no connection that keeps sending its request. The exception: when most of the connections
 * without a whole request are kept from an earlier one, the one that has been idle the longest is
 * closed at once. Clients that send a short request now and then could otherwise hold every
 * connection. While none can be closed yet, the new connection waits unread: it is the pending
 * connection. Later ones wait in the kernel's queue. When every connection waits for its reply,
 * reads it or sends a fast upload, none can be closed and the new one gets a 503.
 *
 * Requests whose replies take long hold at most seven eighths of the connections. A further one
 * replaces one whose client does not read, or is answered 429. Short requests are therefore
 * answered beside any number of running ones. */
#include "engine/serve/http/http_state.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static const double GRACE_S = 0.5;

static void name_remote(const struct sockaddr *sa, char *out, size_t size)
{
    char host[INET6_ADDRSTRLEN + 8], port[8];
    socklen_t len = sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                              : sizeof(struct sockaddr_in);
    const int numeric = NI_NUMERICHOST | NI_NUMERICSERV;
    snprintf(out, size, "unix");
    if ((sa->sa_family == AF_INET || sa->sa_family == AF_INET6) &&
        getnameinfo(sa, len, host, sizeof host, port, sizeof port, numeric) == 0)
        snprintf(out, size, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static void pause_listeners(cn_http_server *s)
{
    for (uint32_t i = 0; i < s->n_listeners; i++) evconnlistener_disable(s->listeners[i]);
}

void http_accept_resume(cn_http_server *s)
{
    s->out_of_files = false;
    if (s->pending.fd >= 0) return;
    for (uint32_t i = 0; i < s->n_listeners; i++) evconnlistener_enable(s->listeners[i]);
}

/* ---- room ---- */

/* Returns the connection to close first, or NULL. Skips paused uploads, which wait for the server,
 * and fast uploads. */
static connection *find_slowest(const cn_http_server *s, double now)
{
    connection *slowest = NULL;
    double most_s = 0;
    CN_LIST_EACH(connection, c, &s->receiving, node) {
        /* The list is in the order of since_s: later ones cannot be slower. */
        if (slowest && !slowest->reused && most_s >= now - c->since_s) break;
        const double slow_s = http_connection_slow_s(c, now);
        const bool is_next = !slowest || slowest->reused > c->reused ||
                             (slowest->reused == c->reused && slow_s > most_s);
        if (c->paused || slow_s < -GRACE_S || !is_next) continue;
        slowest = c;
        most_s = slow_s;
    }
    return slowest;
}

/* Seconds for which the client of an answered request has neither read its reply nor closed, or has
 * sent requests without waiting for replies, which its kernel may take unread. Negative when
 * neither is so. */
static double peer_stalled_s(const connection *c, double now)
{
    const bool unsent = evbuffer_get_length(bufferevent_get_output(c->bev)) > 0;
    if (c->state == CONN_LINGER) return now - c->since_s;
    if (c->pipelined_s > 0) return now - c->pipelined_s;
    return unsent ? now - c->output_s : -1;
}

/* Returns the connection that has been stalled the longest, or NULL. long_only: of those whose
 * request counts in n_long. */
static connection *find_stalled(const cn_http_server *s, bool long_only, double now)
{
    connection *stalled = NULL;
    CN_LIST_EACH(connection, c, &s->replying, node) {
        const double this_s = peer_stalled_s(c, now);
        if (long_only && !(c->exchange && c->exchange->counted_long)) continue;
        if (this_s >= 0 && (!stalled || this_s > peer_stalled_s(stalled, now))) stalled = c;
    }
    return stalled;
}

/* Returns the kept connection that has been idle the longest if most connections without a whole
 * request are kept; else NULL. */
static connection *find_surplus(const cn_http_server *s)
{
    if (s->n_kept <= s->receiving.n / 2) return NULL;
    CN_LIST_EACH(connection, c, &s->receiving, node) {
        if (c->kept) return c;
    }
    return NULL;
}

/* Returns the seconds until there is room for one more connection. 0: there is room, maybe because
 * one was closed. INFINITY: no connection can be closed. */
static double make_accept_room(cn_http_server *s)
{
    const double now = cn_now_s();
    if (s->n_connections < s->o.max_connections) return 0;
    connection *slowest = find_slowest(s, now), *stalled = find_stalled(s, false, now);
    const double slowest_s = slowest ? GRACE_S - http_connection_slow_s(slowest, now) : INFINITY;
    const double stalled_left_s = stalled ? GRACE_S - peer_stalled_s(stalled, now) : INFINITY;
    connection *last = stalled_left_s <= 0 ? stalled : slowest_s <= 0 ? slowest : find_surplus(s);
    if (!last) return fmin(slowest_s, stalled_left_s);
    http_connection_close(last, "closed to make room");
    return 0;
}

static bool make_room_for_long(cn_http_server *s)
{
    const double now = cn_now_s();
    if (s->n_long < s->o.max_connections - s->o.max_connections / 8) return true;
    connection *stalled = find_stalled(s, true, now);
    if (!stalled || peer_stalled_s(stalled, now) < GRACE_S) return false;
    http_connection_close(stalled, "closed to make room");
    return true;
}

bool http_accept_long(cn_exchange *x)
{
    cn_http_server *s = x->conn->server;
    if (!(x->route->flags & CN_ROUTE_LONG)) return true;
    if (make_room_for_long(s)) {
        s->n_long++;
        return x->counted_long = true;
    }
    char message[160];
    snprintf(message, sizeof message,
             "%u requests are in flight, the most that %u connections allow (--max-connections): "
             "try again later", s->n_long, s->o.max_connections);
    cn_exchange_set_retry(x, cn_serve_stats_retry_s(s->o.stats, CN_CLASS_INTERACTIVE, s->n_long));
    cn_exchange_error(x, CN_HTTP_TOO_MANY_REQUESTS, message, NULL, "queue_full");
    return false;
}

static void open_connection(cn_http_server *s, int fd, const char *remote)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* finds clients that lost power */
    http_connection_open(s, fd, remote);
}

static void refuse_connection(cn_http_server *s, int fd)
{
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                               "Content-Length: 0\r\nConnection: close\r\n\r\n";
    cn_serve_stats_lock(s->o.stats)->connections_refused++;
    cn_serve_stats_unlock(s->o.stats);
    (void)!send(fd, busy, sizeof busy - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    evutil_closesocket(fd);
}

/* ---- the pending connection ---- */

/* Opens the pending connection, refuses it, or lets it wait. */
static void decide_pending(cn_http_server *s)
{
    const int fd = s->pending.fd;
    const double wait_s = make_accept_room(s);
    if (wait_s > 0 && wait_s < INFINITY) {
        const struct timeval wait = {.tv_sec = (time_t)wait_s,
                                     .tv_usec = (suseconds_t)(fmod(wait_s, 1) * 1e6) + 1};
        pause_listeners(s);
        event_add(s->pending.event, &wait);
        return;
    }
    s->pending.fd = -1;
    if (wait_s > 0)
        refuse_connection(s, fd);
    else
        open_connection(s, fd, s->pending.remote);
}

static void on_pending(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    cn_http_server *s = arg;
    if (s->pending.fd < 0) return;
    decide_pending(s);
    http_accept_resume(s);
}

void http_accept_schedule_pending(cn_http_server *s)
{
    if (s->pending.fd >= 0) event_active(s->pending.event, EV_TIMEOUT, 0);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int len,
                      void *arg)
{
    cn_http_server *s = arg;
    (void)l, (void)len;
    if (s->pending.fd >= 0) { /* accepted in the same callback round as the pending one */
        refuse_connection(s, fd);
        return;
    }
    s->pending.fd = fd;
    name_remote(sa, s->pending.remote, sizeof s->pending.remote);
    decide_pending(s);
}

/* ---- listening ---- */

/* Most likely out of file descriptors: the next sweep retries. */
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
        l = evconnlistener_new(s->o.base, on_accept, s, flags, 0, fd); /* 0: listens already */
    if (!l) {
        cn_status status = cn_fail(CN_ERR_IO, "%s: listen: %s", what, strerror(errno));
        evutil_closesocket(fd);
        return status;
    }
    evconnlistener_set_error_cb(l, on_accept_error);
    s->listeners[s->n_listeners++] = l;
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
    const char *way_out =
        errno == EADDRINUSE ? ": choose another --port, or stop the other program" : "";
    cn_status status = ok ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s%s", what, strerror(errno), way_out);
    freeaddrinfo(found);
    if (status == CN_OK) status = bound_port(fd, port);
    if (status == CN_OK) return add_listener(s, fd, what);
    if (fd >= 0) evutil_closesocket(fd);
    return status;
}

/* Removes a socket file on which no server answers: a killed server leaves one. */
static cn_status remove_stale(const char *path, const struct sockaddr_un *at)
{
    struct stat st;
    if (lstat(path, &st) != 0) return CN_OK;
    if (!S_ISSOCK(st.st_mode))
        return cn_fail(CN_ERR_ARG, "--uds %s: the file exists and is not a socket: choose another "
                       "path", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int failed =
        fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof *at) == 0 ? 0 : errno;
    if (fd >= 0) close(fd);
    if (failed == 0)
        return cn_fail(CN_ERR_BUSY, "--uds %s: another server listens on this socket", path);
    if (failed != ECONNREFUSED)
        return cn_fail(CN_ERR_IO, "--uds %s: the socket exists, and connecting to it fails: %s: "
                       "choose another path, or remove it", path, strerror(failed));
    return unlink(path) == 0 ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
}

cn_status cn_http_server_listen_unix(cn_http_server *s, const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        return cn_fail(CN_ERR_ARG, "--uds %s: expected a path of at most %zu bytes, got %zu", path,
                       sizeof at.sun_path - 1, strlen(path));
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

/* ---- open, close ---- */

cn_status http_accept_open(cn_http_server *s)
{
    s->pending.event = event_new(s->o.base, -1, 0, on_pending, s);
    return s->pending.event ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the HTTP server");
}

void http_accept_close(cn_http_server *s)
{
    for (uint32_t i = 0; i < s->n_listeners; i++) evconnlistener_free(s->listeners[i]);
    if (s->pending.fd >= 0) evutil_closesocket(s->pending.fd);
    if (s->pending.event) event_free(s->pending.event);
    if (s->unix_path) unlink(s->unix_path);
    cn_free(s->unix_path);
}
