/* routes_status.c - the server's status: /metrics for Prometheus, the page at / with its figures at
 * /stats, and /openapi.json. Thread: HTTP; a timer of its loop samples the engine.
 *
 * The page contains its own script and style. Its Content-Security-Policy allows only these two,
 * which carry a nonce drawn for each reply. Text from models and clients therefore cannot run as a
 * script. */
#include "engine/serve/server_parts.h"

#include <time.h>

#include "engine/lanes/stat_rows.h"
#include "engine/serve/routes/assets.h"
#include "engine/serve/routes/status_json.h"

enum { NONCE_BYTES = 16 };
#define NONCE_MARK "@NONCE@"

typedef struct status_part {
    cn_server *server;
    cn_history *history;
    struct event *timer;
    cn_engine_figures engines[CN_MAX_DEVICES]; /* as of the last reply */
} status_part;

/* ---- figures ---- */

static double epoch_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void take_metrics(status_part *p, cn_metrics *m)
{
    cn_service *service = cn_server_service(p->server);
    *m = (cn_metrics){
        .model_name = cn_service_model_name(service),
        .config = cn_service_config(service),
        .started_s = cn_server_started_s(p->server),
        .engines = p->engines,
        .n_engines = cn_service_n_engines(service),
    };
    for (uint32_t i = 0; i < m->n_engines; i++) {
        cn_service_engine_figures(service, i, &p->engines[i]);
        cn_stats_add(&m->sums, &p->engines[i].stats);
    }
    cn_serve_stats_copy(cn_service_serve_stats(service), &m->serve);
}

static void on_status_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    status_part *p = arg;
    cn_stats s;
    cn_service_engine_stats(cn_server_service(p->server), &s);
    cn_history_add(p->history, &s, cn_now_s());
}

/* ---- routes ---- */

static void reply_text(cn_exchange *x, cn_status status, const char *content_type, cn_buf *text)
{
    if (status == CN_OK)
        cn_exchange_reply(x, CN_HTTP_OK, content_type, text->data, text->len);
    else
        cn_exchange_error(x, CN_HTTP_INTERNAL_ERROR, cn_last_error(), NULL, NULL);
    cn_buf_free(text);
}

static void get_metrics(void *part, cn_exchange *x)
{
    cn_metrics m;
    cn_buf text = {0};
    take_metrics(part, &m);
    reply_text(x, cn_metrics_text(&m, &text), CN_METRICS_CONTENT_TYPE, &text);
}

/* ?span=day returns the last 24 hours; the default, recent, the last minutes. */
static void get_stats(void *part, cn_exchange *x)
{
    status_part *p = part;
    cn_service *service = cn_server_service(p->server);
    const char *span = cn_exchange_query(x, "span");
    if (span && strcmp(span, "day") != 0 && strcmp(span, "recent") != 0) {
        cn_exchange_error(x, CN_HTTP_BAD_REQUEST, "span: expected recent or day", "span", NULL);
        return;
    }
    cn_status_figures f = {
        .max_model_len = cn_service_max_model_len(service),
        .now_s = epoch_s(),
        .draining = cn_server_is_draining(p->server),
        .history = p->history,
        .span = span && strcmp(span, "day") == 0 ? CN_HISTORY_DAY : CN_HISTORY_RECENT,
    };
    cn_buf failure = {0}, text = {0};
    take_metrics(p, &f.metrics);
    const double now_s = cn_now_s();
    if (!cn_service_is_healthy(service))
        cn_service_failure(service, &failure);
    else if (cn_service_is_stalled(service, now_s))
        cn_service_stall(service, now_s, &failure);
    f.failure = failure.data;
    cn_exchange_set_header(x, "Cache-Control", "no-store");
    reply_text(x, cn_status_json(&f, &text), "application/json", &text);
    cn_buf_free(&failure);
}

static cn_status make_nonce(char out[2 * NONCE_BYTES + 1])
{
    unsigned char bytes[NONCE_BYTES];
    CN_TRY(cn_random_bytes(bytes, sizeof bytes));
    for (int i = 0; i < NONCE_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return CN_OK;
}

/* Writes the page with each mark replaced by the nonce. */
static cn_status write_page(const char *nonce, cn_buf *out)
{
    const char *at = cn_asset_page;
    for (const char *mark; (mark = strstr(at, NONCE_MARK)); at = mark + strlen(NONCE_MARK)) {
        CN_TRY(cn_buf_add(out, at, (size_t)(mark - at)));
        CN_TRY(cn_buf_add(out, nonce, strlen(nonce)));
    }
    return cn_buf_add(out, at, strlen(at));
}

static void set_page_headers(cn_exchange *x, const char *nonce)
{
    char policy[256];
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             nonce, nonce);
    cn_exchange_set_header(x, "Content-Security-Policy", policy);
    cn_exchange_set_header(x, "Referrer-Policy", "no-referrer");
    cn_exchange_set_header(x, "Cache-Control", "no-store");
}

static void get_page(void *part, cn_exchange *x)
{
    (void)part;
    char nonce[2 * NONCE_BYTES + 1] = "";
    cn_buf text = {0};
    cn_status status = make_nonce(nonce);
    if (status == CN_OK) status = write_page(nonce, &text);
    if (status == CN_OK) set_page_headers(x, nonce);
    reply_text(x, status, "text/html; charset=utf-8", &text);
}

static void get_openapi(void *part, cn_exchange *x)
{
    static const char url[] = "\"url\": \"/\"";
    const status_part *p = part;
    const char *root = cn_service_config(cn_server_service(p->server))->root_path;
    const char *at = strstr(cn_asset_openapi, url);
    cn_buf text = {0};
    CN_ASSERT(at);
    cn_status status = cn_buf_addf(&text, "%.*s\"url\": \"%s\"%s", (int)(at - cn_asset_openapi),
                                   cn_asset_openapi, root ? root : "/", at + strlen(url));
    reply_text(x, status, "application/json", &text);
}

/* ---- the part ---- */

static const cn_route routes[] = {
    {.method = CN_HTTP_GET, .path = "/", .flags = CN_ROUTE_WATCH, .handle = get_page},
    {.method = CN_HTTP_GET, .path = "/stats", .flags = CN_ROUTE_WATCH, .handle = get_stats},
    {.method = CN_HTTP_GET, .path = "/metrics", .flags = CN_ROUTE_WATCH, .handle = get_metrics},
    {.method = CN_HTTP_GET, .path = "/openapi.json", .handle = get_openapi},
};

static void close_status_part(void *part)
{
    status_part *p = part;
    if (p->timer) event_free(p->timer);
    cn_history_free(p->history);
    cn_free(p);
}

static cn_status start_status(status_part *p)
{
    const struct timeval every = {.tv_sec = CN_HISTORY_STEP_S};
    CN_TRY(cn_history_create(&p->history));
    p->timer = event_new(cn_server_base(p->server), -1, EV_PERSIST, on_status_timer, p);
    if (!p->timer || event_add(p->timer, &every) != 0)
        return cn_fail(CN_ERR_MEMORY, "out of memory for a timer");
    on_status_timer(-1, 0, p);
    return cn_http_server_add_routes(cn_server_http(p->server), routes,
                                     sizeof routes / sizeof *routes, p);
}

static cn_status open_status_part(cn_server *server, void **out)
{
    status_part *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(CN_ERR_MEMORY, "out of memory for the status page");
    p->server = server;
    cn_status status = start_status(p);
    if (status == CN_OK)
        *out = p;
    else
        close_status_part(p);
    return status;
}

const cn_server_part cn_status_part = {.open = open_status_part, .close = close_status_part};
