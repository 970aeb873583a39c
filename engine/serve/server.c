/* server.c - see server.h. */
#include "engine/serve/server_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/event_log.h"

enum { TICK_MS = 100 };
static const double FLUSH_S = 1; /* for the errors that end unfinished requests */

/* The parts in opening order. They are closed in reverse order. */
static const cn_server_part *const parts[] = {&cn_openai_part, &cn_basics_part,
                                              &cn_status_part, &cn_spool_server_part};
enum { N_PARTS = sizeof parts / sizeof *parts };

struct cn_server {
    const cn_config *config;
    struct event_base *base;
    cn_mailbox *mailbox;
    struct event *mail_event, *stop_event, *reopen_event, *tick;
    /* eventfds that count the calls of cn_server_stop and cn_server_reopen_log: safe in a signal
     * handler */
    int stop_fd, reopen_fd;
    int log_fd;
    cn_api_keys *keys;
    cn_budget *samples_of_key; /* [keys] */
    cn_service *service;
    cn_http_server *http;
    void *part_states[N_PARTS];
    uint32_t n_open_parts;
    uint16_t port;
    double started_s; /* since the epoch */
    bool draining, is_cut, engine_failed, engine_stalled;
    double deadline_s; /* end of the drain; after the cut, of the flush; cn_now_s */
};

/* ---- the loop's events ---- */

static void on_mail(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    cn_server *s = arg;
    cn_mailbox_open_all(s->mailbox);
}

static bool is_idle(const cn_server *s)
{
    if (cn_http_server_n_exchanges(s->http) > 0) return false;
    for (uint32_t i = 0; i < s->n_open_parts; i++)
        if (parts[i]->is_idle && !parts[i]->is_idle(s->part_states[i])) return false;
    return true;
}

static void begin_drain(cn_server *s)
{
    s->draining = true;
    s->deadline_s = cn_now_s() + s->config->shutdown_timeout_s;
    cn_http_server_drain(s->http);
    for (uint32_t i = 0; i < s->n_open_parts; i++)
        if (parts[i]->drain) parts[i]->drain(s->part_states[i]);
    cn_log(CN_LOG_INFO, "stopping: %u requests in flight have %u s to finish (--shutdown-timeout)",
           cn_http_server_n_exchanges(s->http), s->config->shutdown_timeout_s);
}

/* Ends the unfinished requests with an error. */
static void cut(cn_server *s)
{
    s->is_cut = true;
    s->deadline_s = cn_now_s() + FLUSH_S;
    cn_log(CN_LOG_INFO, "stopping: %u requests did not finish in time",
           cn_http_server_n_exchanges(s->http));
    for (uint32_t i = 0; i < s->n_open_parts; i++)
        if (parts[i]->cut) parts[i]->cut(s->part_states[i]);
    cn_http_server_cut(s->http);
}

static bool is_drained(const cn_server *s)
{
    if (!s->is_cut) return is_idle(s);
    return cn_http_server_n_exchanges(s->http) == 0 || cn_now_s() > s->deadline_s;
}

static void on_server_stop(evutil_socket_t fd, short what, void *arg)
{
    cn_server *s = arg;
    uint64_t times = 0;
    (void)what;
    if (read(fd, &times, sizeof times) != sizeof times) return;
    if (s->draining || times > 1)
        event_base_loopbreak(s->base);
    else
        begin_drain(s);
}

/* Logs that the engine has stalled, or goes on, when that changes. */
static void watch_stall(cn_server *s)
{
    const double now_s = cn_now_s();
    const bool stalled = cn_service_is_stalled(s->service, now_s);
    if (stalled == s->engine_stalled) return;
    s->engine_stalled = stalled;
    cn_buf why = {0};
    if (stalled) cn_service_stall(s->service, now_s, &why);
    if (stalled)
        cn_log(CN_LOG_ERROR, "%s: /health answers 503 until it ends", why.len ? why.data : "");
    else
        cn_log(CN_LOG_WARN, "the step has ended: the engine goes on");
    cn_buf_free(&why);
}

/* Ends the drain when all work is done or has been cut at the deadline. Starts a drain when the
 * engine has failed, so that a supervisor can restart the server. */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    cn_server *s = arg;
    (void)fd, (void)what;
    watch_stall(s);
    cn_service_watch(s->service);
    if (!s->engine_failed && !cn_service_is_healthy(s->service)) {
        s->engine_failed = true;
        if (!s->draining) begin_drain(s);
    }
    if (!s->draining) return;
    if (!s->is_cut && !is_idle(s) && cn_now_s() > s->deadline_s) cut(s);
    if (is_drained(s)) event_base_loopbreak(s->base);
}

static int open_log_file(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
}

static bool has_log_file(const cn_server *s)
{
    const char *path = s->config->access_log;
    return strcmp(path, "off") != 0 && strcmp(path, "-") != 0;
}

/* True if a file ends within a line, as after a full disk. */
static bool is_torn(const char *path)
{
    struct stat info;
    char last;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    const bool torn = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0 &&
                      pread(fd, &last, 1, info.st_size - 1) == 1 && last != '\n';
    close(fd);
    return torn;
}

static void on_reopen(evutil_socket_t fd, short what, void *arg)
{
    cn_server *s = arg;
    const char *path = s->config->access_log;
    uint64_t times;
    (void)what;
    if (read(fd, &times, sizeof times) != sizeof times) return;
    if (!has_log_file(s)) return;
    const int file = open_log_file(path);
    if (file < 0 || dup3(file, s->log_fd, O_CLOEXEC) < 0)
        cn_log(CN_LOG_WARN, "%s: cannot open the access log again: %s", path, strerror(errno));
    else
        cn_http_server_log_opened(s->http, is_torn(path));
    if (file >= 0) close(file);
}

static cn_status open_counter(int *fd)
{
    *fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return *fd >= 0 ? CN_OK : cn_fail(CN_ERR_IO, "eventfd: %s", strerror(errno));
}

static cn_status add_event(cn_server *s, struct event **event, int fd, short what,
                           event_callback_fn fn, const struct timeval *every)
{
    *event = event_new(s->base, fd, what | EV_PERSIST, fn, s);
    if (*event && event_add(*event, every) == 0) return CN_OK;
    return cn_fail(CN_ERR_MEMORY, "out of memory for the event loop");
}

static cn_status open_loop(cn_server *s)
{
    const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    cn_event_log_begin();
    s->base = event_base_new();
    if (!s->base) return cn_fail(CN_ERR_MEMORY, "out of memory for the event loop");
    CN_TRY(open_counter(&s->stop_fd));
    CN_TRY(open_counter(&s->reopen_fd));
    CN_TRY(cn_mailbox_create(&s->mailbox, UINT32_MAX));
    CN_TRY(add_event(s, &s->mail_event, cn_mailbox_fd(s->mailbox), EV_READ, on_mail, NULL));
    CN_TRY(add_event(s, &s->stop_event, s->stop_fd, EV_READ, on_server_stop, NULL));
    CN_TRY(add_event(s, &s->reopen_event, s->reopen_fd, EV_READ, on_reopen, NULL));
    return add_event(s, &s->tick, -1, 0, on_tick, &tick);
}

/* ---- opening ---- */

static cn_status open_log(cn_server *s)
{
    const char *path = s->config->access_log;
    if (strcmp(path, "off") == 0) return CN_OK;
    s->log_fd = strcmp(path, "-") == 0
                    ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                    : open_log_file(path);
    return s->log_fd >= 0 ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
}

static cn_status open_http(cn_server *s)
{
    const cn_config *c = s->config;
    const uint32_t n_keys = cn_api_keys_count(s->keys);
    s->samples_of_key = cn_calloc(n_keys, sizeof *s->samples_of_key);
    if (!s->samples_of_key) return cn_fail(CN_ERR_MEMORY, "out of memory for the API keys");
    for (uint32_t i = 0; i < n_keys; i++) s->samples_of_key[i].most = c->max_requests_per_key;
    const cn_http_opts o = {
        .base = s->base,
        .keys = s->keys,
        .host = c->host,
        .allowed_hosts = c->uds ? "*" : c->allowed_hosts,
        .stats = cn_service_serve_stats(s->service),
        .max_head_bytes = c->max_header_bytes,
        .max_connections = c->max_connections,
        .memory = cn_service_memory(s->service),
        .request_timeout_s = c->request_timeout_s,
        .idle_timeout_s = c->idle_timeout_s,
        .samples_of_key = s->samples_of_key,
        .access_log_fd = s->log_fd,
        .allowed_origins = c->allowed_origins,
        .root_path = c->root_path,
    };
    CN_TRY(cn_http_server_create(&s->http, &o));
    cn_http_server_log_opened(s->http, has_log_file(s) && is_torn(c->access_log));
    return CN_OK;
}

static cn_status open_server_parts(cn_server *s)
{
    for (uint32_t i = 0; i < N_PARTS; i++) {
        CN_TRY(parts[i]->open(s, &s->part_states[i]));
        s->n_open_parts = i + 1;
    }
    return CN_OK;
}

/* Warns when other machines may reach the address and no API key is set. */
static void warn_if_open(const cn_server *s)
{
    const char *host = s->config->host;
    if (cn_api_keys_count(s->keys) > 0 || s->config->uds) return;
    if (strncmp(host, "127.", 4) == 0 || !strcmp(host, "::1") || !strcmp(host, "localhost")) return;
    cn_log(CN_LOG_WARN, "################################################################");
    cn_log(CN_LOG_WARN, "no API key is set: ANYONE who can reach %s port %u can use this server",
           host, s->port);
    cn_log(CN_LOG_WARN, "set --api-key-file, or use --host 127.0.0.1 with a proxy in front");
    cn_log(CN_LOG_WARN, "################################################################");
}

static cn_status start_listening(cn_server *s)
{
    const cn_config *c = s->config;
    if (c->uds) return cn_http_server_listen_unix(s->http, c->uds);
    s->port = (uint16_t)c->port;
    return cn_http_server_listen(s->http, c->host, &s->port);
}

static void log_address(const cn_server *s, const char *doing)
{
    const cn_config *c = s->config;
    const char *model = cn_service_model_name(s->service);
    const bool ipv6 = strchr(c->host, ':') != NULL; /* a URL has such an address in brackets */
    if (c->uds)
        cn_log(CN_LOG_INFO, "%s %s on the unix socket %s", doing, model, c->uds);
    else
        cn_log(CN_LOG_INFO, ipv6 ? "%s %s on http://[%s]:%u" : "%s %s on http://%s:%u", doing,
               model, c->host, s->port);
}

/* ---- loading ---- */

/* Loads the model on another thread, whose mail ends the loop that answers 503 meanwhile. */
typedef struct loading {
    cn_mail mail;
    cn_server *server;
    cn_status status;
    cn_buf error; /* last error of the other thread */
} loading;

static void on_server_loaded(cn_mail *mail)
{
    event_base_loopbreak(((loading *)(void *)mail)->server->base);
}

static void *load_main(void *arg)
{
    loading *l = arg;
    l->status = cn_service_load(l->server->service);
    if (l->status != CN_OK && cn_buf_addf(&l->error, "%s", cn_last_error()) != CN_OK)
        cn_buf_clear(&l->error);
    cn_mailbox_post(l->server->mailbox, CN_MAIL_NORMAL, &l->mail);
    return NULL;
}

static cn_status load(cn_server *s)
{
    loading l = {.mail.open = on_server_loaded, .server = s};
    pthread_t thread;
    if (pthread_create(&thread, NULL, load_main, &l) != 0)
        return cn_fail(CN_ERR_MEMORY, "cannot start the thread that loads the model");
    const bool looped = event_base_dispatch(s->base) >= 0;
    const int cause = errno;
    pthread_join(thread, NULL);
    if (!looped) {
        cn_mailbox_open_all(s->mailbox);
        l.status = cn_fail(CN_ERR_IO, "the event loop failed: %s", strerror(cause));
    } else if (l.status != CN_OK) {
        cn_fail(l.status, "%s", l.error.len ? l.error.data : "cannot load the model");
    }
    cn_buf_free(&l.error);
    return l.status;
}

static cn_status open_server(cn_server *s)
{
    const cn_config *c = s->config;
    CN_TRY(cn_api_keys_load(&s->keys, c->api_keys, c->api_key_file));
    CN_TRY(open_log(s));
    CN_TRY(open_loop(s));
    CN_TRY(cn_service_create(&s->service, c));
    CN_TRY(open_http(s));
    CN_TRY(start_listening(s));
    log_address(s, "loading");
    CN_TRY(load(s));
    CN_TRY(open_server_parts(s));
    cn_http_server_begin(s->http);
    log_address(s, "serving");
    warn_if_open(s);
    return CN_OK;
}

cn_status cn_server_create(cn_server **out, const cn_config *config)
{
    cn_server *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for the server");
    s->config = config;
    s->stop_fd = s->reopen_fd = s->log_fd = -1;
    s->started_s = (double)time(NULL);
    cn_status status = open_server(s);
    if (status == CN_OK)
        *out = s;
    else
        cn_server_free(s);
    return status;
}

bool cn_server_free(cn_server *s)
{
    if (!s) return true;
    while (s->n_open_parts > 0) {
        s->n_open_parts--;
        if (parts[s->n_open_parts]->close)
            parts[s->n_open_parts]->close(s->part_states[s->n_open_parts]);
    }
    cn_http_server_free(s->http);
    if (s->service && !cn_service_stop(s->service)) return false;
    while (s->mailbox && cn_mailbox_open_all(s->mailbox) > 0) continue;
    cn_service_free(s->service);
    if (s->mail_event) event_free(s->mail_event);
    if (s->stop_event) event_free(s->stop_event);
    if (s->reopen_event) event_free(s->reopen_event);
    if (s->tick) event_free(s->tick);
    cn_mailbox_free(s->mailbox);
    if (s->base) event_base_free(s->base);
    if (s->stop_fd >= 0) close(s->stop_fd);
    if (s->reopen_fd >= 0) close(s->reopen_fd);
    if (s->log_fd >= 0) close(s->log_fd);
    cn_free(s->samples_of_key);
    cn_api_keys_free(s->keys);
    cn_free(s);
    return true;
}

/* ---- running ---- */

cn_status cn_server_run(cn_server *s)
{
    if (event_base_dispatch(s->base) < 0)
        return cn_fail(CN_ERR_IO, "the event loop failed: %s", strerror(errno));
    if (!s->engine_failed) return CN_OK;
    cn_buf why = {0};
    cn_service_failure(s->service, &why);
    cn_status status = cn_fail(CN_ERR_DEVICE, "the engine failed: %s", why.len ? why.data : "");
    cn_buf_free(&why);
    return status;
}

static void wake_by_fd(int fd)
{
    const uint64_t one = 1;
    (void)!write(fd, &one, sizeof one);
}

void cn_server_stop(cn_server *s) { wake_by_fd(s->stop_fd); }
void cn_server_reopen_log(cn_server *s) { wake_by_fd(s->reopen_fd); }

uint16_t cn_server_port(const cn_server *s) { return s->port; }
bool cn_server_is_draining(const cn_server *s) { return s->draining; }
double cn_server_started_s(const cn_server *s) { return s->started_s; }
cn_service *cn_server_service(cn_server *s) { return s->service; }
cn_http_server *cn_server_http(cn_server *s) { return s->http; }
const cn_api_keys *cn_server_keys(const cn_server *s) { return s->keys; }

void cn_server_set_owner(const cn_server *s, const char *name, cn_call_opts *o)
{
    const uint32_t n = cn_api_keys_count(s->keys), key = cn_api_keys_find_name(s->keys, name);
    o->owner = n == 0 || !*name ? 0 : key == CN_API_KEY_NONE ? n + 1 : key + 1;
    o->min_priority = n == 0                   ? INT32_MIN
                      : key == CN_API_KEY_NONE ? 0
                                               : cn_api_keys_min_priority(s->keys, key);
}

struct event_base *cn_server_base(cn_server *s) { return s->base; }
cn_mailbox *cn_server_mailbox(cn_server *s) { return s->mailbox; }
