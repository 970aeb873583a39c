/* routes_basics.c - /tokenize, /detokenize, /health, /version. Thread: HTTP; the intake thread does
 * the tokenising. */

#include "engine/serve/server_parts.h"

typedef struct basics_part {
    cn_server *server;
    cn_route routes[5];
} basics_part;

/* ---- tokens ---- */

/* Lives until the intake thread has finished the job and the exchange has ended. */
typedef struct token_reply {
    cn_token_job job;
    cn_exchange *x; /* NULL: the exchange has ended */
    bool done;
} token_reply;

static void free_basic_if_over(token_reply *r)
{
    if (r->x || !r->done) return;
    json_decref(r->job.reply);
    cn_buf_free(&r->job.body);
    cn_buf_free(&r->job.error);
    cn_buf_free(&r->job.at_fault);
    cn_free(r);
}

static void on_tokens(cn_token_job *job)
{
    token_reply *r = CN_CONTAINER_OF(job, token_reply, job);
    r->done = true;
    if (r->x && job->status == CN_OK) {
        cn_exchange_reply_json(r->x, CN_HTTP_OK, json_incref(job->reply));
    } else if (r->x) {
        const char *field = job->at_fault.len ? job->at_fault.data : NULL;
        const bool no_model = job->status == CN_ERR_ARG && field && strcmp(field, "model") == 0;
        const int status = no_model                    ? CN_HTTP_NOT_FOUND
                           : job->status == CN_ERR_ARG ? CN_HTTP_BAD_REQUEST
                                                       : CN_HTTP_UNAVAILABLE;
        if (job->status == CN_ERR_BUSY) cn_exchange_count_busy(r->x);
        cn_exchange_error(r->x, status, job->error.len ? job->error.data : "", field,
                          no_model ? CN_API_MODEL_NOT_FOUND : NULL);
    }
    free_basic_if_over(r);
}

static void on_basic_closed(void *user, cn_exchange *x)
{
    token_reply *r = user;
    (void)x;
    r->x = NULL;
    free_basic_if_over(r);
}

static void handle_tokens(cn_server *server, cn_exchange *x, bool decode)
{
    token_reply *r = cn_calloc(1, sizeof *r);
    if (!r) {
        cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "out of memory", NULL, NULL);
        return;
    }
    cn_call_opts of_key = {0};
    cn_server_set_owner(server, cn_exchange_key_name(x), &of_key);
    r->job = (cn_token_job){
        .owner = of_key.owner,
        .decode = decode,
        .body = cn_exchange_take_body(x),
        .reply_to = cn_server_mailbox(server),
        .done = on_tokens,
    };
    if (cn_service_try_tokens(cn_server_service(server), &r->job)) {
        r->x = x;
        cn_exchange_set_user(x, r, on_basic_closed);
    } else {
        r->done = true;
        free_basic_if_over(r);
        cn_exchange_error(x, CN_HTTP_TOO_MANY_REQUESTS, "too many requests are waiting to be read: "
                          "try again later", NULL, "queue_full");
    }
}

static void handle_tokenize(void *user, cn_exchange *x)
{
    handle_tokens(((basics_part *)user)->server, x, false);
}

static void handle_detokenize(void *user, cn_exchange *x)
{
    handle_tokens(((basics_part *)user)->server, x, true);
}

/* ---- health, version ---- */

static void refuse_stalled(cn_exchange *x, const cn_service *service, double now_s)
{
    cn_buf why = {0};
    cn_service_stall(service, now_s, &why);
    cn_exchange_error(x, CN_HTTP_UNAVAILABLE, why.len ? why.data : "", NULL, "engine_stalled");
    cn_buf_free(&why);
}

/* False: the server cannot answer requests, and the reply has been made. */
static bool is_well(cn_server *server, cn_exchange *x)
{
    cn_service *service = cn_server_service(server);
    const double now_s = cn_now_s();
    if (!cn_service_is_healthy(service))
        cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "the engine has failed", NULL, "engine_failed");
    else if (cn_service_is_stalled(service, now_s))
        refuse_stalled(x, service, now_s);
    else if (cn_server_is_draining(server))
        cn_exchange_refuse_draining(x);
    else
        return true;
    return false;
}

static json_t *engines_health(cn_service *service)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < cn_service_n_engines(service); i++) {
        cn_engine_figures f;
        cn_service_engine_figures(service, i, &f);
        json_array_append_new(all, json_pack("{s:i, s:s, s:b}", "engine", (int)i, "device",
                                             f.device, "up", (int)f.is_up));
    }
    return all;
}

static void handle_health(void *user, cn_exchange *x)
{
    cn_server *server = ((basics_part *)user)->server;
    if (is_well(server, x))
        cn_exchange_reply_json(x, CN_HTTP_OK,
                               json_pack("{s:s, s:o}", "status", "ok", "engines",
                                         engines_health(cn_server_service(server))));
}

/* The check of load balancers that are given no path, such as haproxy. */
static void handle_options(void *user, cn_exchange *x)
{
    if (!is_well(((basics_part *)user)->server, x)) return;
    cn_exchange_set_header(x, "Allow", "GET, HEAD, OPTIONS");
    cn_exchange_reply(x, CN_HTTP_OK, "text/plain", "", 0);
}

static void handle_version(void *user, cn_exchange *x)
{
    (void)user;
    cn_exchange_reply_json(x, CN_HTTP_OK, json_pack("{s:s}", "version", CINCH_VERSION));
}

/* ---- the part ---- */

static cn_status open_basic_part(cn_server *server, void **out)
{
    basics_part *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(CN_ERR_MEMORY, "out of memory for the routes");
    const cn_config *c = cn_service_config(cn_server_service(server));
    const size_t most =
        c->max_tokenize_bytes < c->max_body_bytes ? c->max_tokenize_bytes : c->max_body_bytes;
    const uint32_t limited = CN_ROUTE_LIMITED | CN_ROUTE_LONG | CN_ROUTE_JSON;
    *p = (basics_part){
        .server = server,
        .routes = {
            {CN_HTTP_POST, "/tokenize", limited, handle_tokenize, most, NULL, NULL},
            {CN_HTTP_POST, "/detokenize", limited, handle_detokenize, most, NULL, NULL},
            {CN_HTTP_GET, "/health", CN_ROUTE_OPEN | CN_ROUTE_WATCH, handle_health, 0, NULL, NULL},
            {CN_HTTP_OPTIONS, "/", CN_ROUTE_OPEN | CN_ROUTE_WATCH, handle_options, 0, NULL, NULL},
            {CN_HTTP_GET, "/version", 0, handle_version, 0, NULL, NULL},
        },
    };
    *out = p;
    return cn_http_server_add_routes(cn_server_http(server), p->routes,
                                     sizeof p->routes / sizeof *p->routes, p);
}

static void close_basic_part(void *part) { cn_free(part); }

const cn_server_part cn_basics_part = {.open = open_basic_part, .close = close_basic_part};
