/* routes_openai.c - /v1/chat/completions and /v1/completions, whole or as server-sent events, and
 * /v1/models. Stages 1 and 8 of the path of a request. Thread: HTTP.
 *
 * A streamed reply begins with the first output. Until then a failure can still set the HTTP
 * status. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/json.h"
#include "engine/serve/server_parts.h"

typedef struct openai_part {
    cn_server *server;
    cn_route routes[4];
    cn_list replies; /* that have not been closed */
} openai_part;

typedef struct reply {
    cn_list_node node; /* of part->replies */
    openai_part *part; /* NULL: it has been closed */
    cn_server *server;
    cn_exchange *x;
    cn_call *call;
    int64_t created;
    bool begun, ended;
    cn_api_writer writer; /* of a body that is not streamed */
} reply;

enum { REAL_DIGITS = 17 };

/* ---- failures ---- */

static int http_status_of(const cn_call *call)
{
    switch (cn_call_status(call)) {
    case CN_ERR_ARG:
        return strcmp(cn_call_at_fault(call), "model") == 0 ? CN_HTTP_NOT_FOUND
                                                            : CN_HTTP_BAD_REQUEST;
    case CN_ERR_BUSY: return CN_HTTP_TOO_MANY_REQUESTS;
    case CN_ERR_CANCELLED:
    case CN_ERR_MEMORY: return CN_HTTP_UNAVAILABLE;
    default: return CN_HTTP_INTERNAL_ERROR;
    }
}

static const char *code_of(const cn_call *call)
{
    const int status = http_status_of(call);
    return status == CN_HTTP_NOT_FOUND           ? CN_API_MODEL_NOT_FOUND
           : status == CN_HTTP_TOO_MANY_REQUESTS ? "queue_full"
                                                 : NULL;
}

/* Sets Retry-After to the expected time until the queue has room. */
static void set_retry(cn_server *server, cn_exchange *x)
{
    cn_serve_stats *stats = cn_service_serve_stats(cn_server_service(server));
    cn_exchange_set_retry(x, cn_serve_stats_retry_s(stats, CN_CLASS_INTERACTIVE, 0));
}

static void fail_busy(cn_server *server, cn_exchange *x, cn_status status)
{
    if (status == CN_ERR_BUSY) set_retry(server, x);
    cn_exchange_error(x, status == CN_ERR_BUSY ? CN_HTTP_TOO_MANY_REQUESTS : CN_HTTP_UNAVAILABLE,
                      cn_last_error(), NULL, status == CN_ERR_BUSY ? "queue_full" : NULL);
}

/* ---- server-sent events ---- */

/* Takes over the reference. */
static void send_event(reply *r, json_t *event)
{
    char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;
    cn_buf line = {0};
    if (text && cn_buf_addf(&line, "data: %s\n\n", text) == CN_OK)
        cn_exchange_send(r->x, line.data, line.len);
    cn_buf_free(&line);
    free(text);
    json_decref(event);
}

static const char *reply_id(const reply *r)
{
    return cn_exchange_request_id(r->x) + strlen("req-");
}

static json_t *take_chunk(reply *r)
{
    const char *model = cn_service_model_name(cn_server_service(r->server));
    const bool usage = cn_call_request(r->call)->stream_usage;
    cn_api_result *result = cn_call_lock(r->call);
    if (!result) return NULL;
    json_t *chunk = cn_api_result_take_chunk(result, reply_id(r), model, r->created, usage);
    cn_call_unlock(r->call);
    return chunk;
}

static json_t *usage_chunk(reply *r)
{
    const char *model = cn_service_model_name(cn_server_service(r->server));
    cn_api_result *result = cn_call_lock(r->call);
    json_t *chunk = cn_api_result_usage_chunk(result, reply_id(r), model, r->created);
    cn_call_unlock(r->call);
    return chunk;
}

/* last: an event before the end, whose reference it takes over, or NULL. */
static void end_stream(reply *r, json_t *last)
{
    static const char done[] = "data: [DONE]\n\n";
    if (last) send_event(r, last);
    cn_exchange_send(r->x, done, sizeof done - 1);
    cn_exchange_end(r->x);
    r->ended = true;
}

/* The call is over and its output sent. */
static void conclude_stream(reply *r)
{
    json_t *last = NULL;
    if (cn_call_status(r->call) != CN_OK)
        last = cn_api_error_body(http_status_of(r->call), cn_call_error(r->call), NULL,
                                 code_of(r->call), 0);
    else if (cn_call_request(r->call)->stream_usage)
        last = usage_chunk(r);
    end_stream(r, last);
}

static void on_ready(void *user, cn_exchange *x);

/* Sends the output that is there, until the client's buffer is full. */
static void pump(reply *r)
{
    if (r->ended) return;
    const bool over = cn_call_is_over(r->call); /* read before the output, or its end may be lost */
    for (json_t *chunk; cn_exchange_may_send(r->x); send_event(r, chunk)) {
        chunk = take_chunk(r);
        if (!chunk && over) conclude_stream(r);
        if (!chunk) return;
        if (!r->begun) {
            cn_exchange_set_header(r->x, "Cache-Control", "no-cache");
            cn_exchange_begin(r->x, CN_HTTP_OK, "text/event-stream", on_ready);
        }
        r->begun = true;
    }
}

static void on_ready(void *user, cn_exchange *x)
{
    (void)x;
    pump(user);
}

/* Sends the output that is there, and an error unless the call is over. */
static void cut_stream(reply *r)
{
    const bool over = cn_call_is_over(r->call);
    for (json_t *chunk; (chunk = take_chunk(r));) send_event(r, chunk);
    if (over)
        conclude_stream(r);
    else
        end_stream(r, cn_api_error_body(CN_HTTP_UNAVAILABLE, CN_DRAINING_TEXT, NULL,
                                        CN_DRAINING_CODE, 0));
}

/* ---- generation ---- */

/* Writes the next part of a body, about the size that a slow client may leave unsent. False: that
 * failed, and an error has been sent or the connection will be closed. */
static bool write_part(reply *r, cn_buf *part, bool *done)
{
    cn_api_result *result = cn_call_lock(r->call);
    cn_status status = cn_api_result_write(result, &r->writer, part, CN_HTTP_SEND_HIGH, done);
    cn_call_unlock(r->call);
    if (status == CN_OK) return true;
    r->ended = true;
    if (r->begun)
        cn_exchange_abort(r->x);
    else
        cn_exchange_error(r->x, CN_HTTP_UNAVAILABLE, cn_last_error(), NULL, NULL);
    return false;
}

/* Continues a body that is sent in parts: one part for each time that the client has read the one
 * before. */
static void send_parts(void *user, cn_exchange *x)
{
    reply *r = user;
    cn_buf part = {0};
    bool done = false;
    while (!r->ended && cn_exchange_may_send(x)) {
        cn_buf_clear(&part);
        if (!write_part(r, &part, &done)) break;
        cn_exchange_send(x, part.data, part.len);
        if (!done) continue;
        r->ended = true;
        cn_exchange_end(x);
    }
    cn_buf_free(&part);
}

/* Sends a short body with its length, a long one in parts. */
static void reply_whole(reply *r)
{
    cn_buf part = {0};
    bool done = false;
    r->writer = (cn_api_writer){.id = reply_id(r),
                                .model = cn_service_model_name(cn_server_service(r->server)),
                                .created = r->created,
                                .digits = REAL_DIGITS};
    if (write_part(r, &part, &done) && done) {
        r->ended = true;
        cn_exchange_reply(r->x, CN_HTTP_OK, "application/json", part.data, part.len);
    } else if (!r->ended) {
        r->begun = true;
        cn_exchange_begin(r->x, CN_HTTP_OK, "application/json", send_parts);
        cn_exchange_send(r->x, part.data, part.len);
        send_parts(r, r->x);
    }
    cn_buf_free(&part);
}

static void on_update(void *user, cn_call *call)
{
    reply *r = user;
    const bool over = cn_call_is_over(call);
    if (r->ended) return;
    if (over && cn_call_status(call) != CN_OK && !r->begun) {
        r->ended = true;
        if (cn_call_status(call) == CN_ERR_BUSY) set_retry(r->server, r->x);
        cn_exchange_error(r->x, http_status_of(call), cn_call_error(call), cn_call_at_fault(call),
                          code_of(call));
    } else if (cn_call_request(call)->stream) {
        pump(r);
    } else if (over && !r->begun) {
        reply_whole(r);
    }
}

static void note_tokens(reply *r)
{
    uint64_t prompt, output;
    const cn_api_result *result = cn_call_lock(r->call);
    if (!result) return;
    cn_api_result_count(result, &prompt, &output);
    cn_call_unlock(r->call);
    cn_exchange_note_tokens(r->x, prompt, output);
}

/* The exchange has ended or the client has disconnected: cancels the call if it still runs. */
static void on_closed(void *user, cn_exchange *x)
{
    reply *r = user;
    (void)x;
    note_tokens(r);
    if (r->part) cn_list_remove(&r->part->replies, &r->node);
    cn_call_release(r->call);
    cn_free(r);
}

static void generate(openai_part *part, cn_exchange *x, cn_api_endpoint endpoint)
{
    cn_server *server = part->server;
    reply *r = cn_calloc(1, sizeof *r);
    cn_call_opts o = {
        .body = cn_exchange_take_body(x),
        .endpoint = endpoint,
        .klass = CN_CLASS_INTERACTIVE,
        .samples = cn_exchange_samples(x),
        .reply_to = cn_server_mailbox(server),
        .update = on_update,
        .user = r,
    };
    cn_status status = CN_OK;
    cn_server_set_owner(server, cn_exchange_key_name(x), &o);
    if (!r) {
        cn_buf_free(&o.body);
        status = cn_fail(CN_ERR_MEMORY, "out of memory for a reply");
    }
    if (status == CN_OK) status = cn_call_start(&r->call, cn_server_service(server), &o);
    if (status != CN_OK) {
        cn_free(r);
        fail_busy(server, x, status);
        return;
    }
    r->part = part;
    r->server = server;
    r->x = x;
    r->created = (int64_t)time(NULL);
    cn_list_append(&part->replies, &r->node);
    cn_exchange_set_user(x, r, on_closed);
}

static void handle(openai_part *part, cn_exchange *x, cn_api_endpoint endpoint)
{
    size_t n;
    cn_exchange_body(x, &n);
    if (cn_server_is_draining(part->server))
        cn_exchange_refuse_draining(x);
    else if (n == 0)
        cn_exchange_error(x, CN_HTTP_BAD_REQUEST, "the request body is empty", NULL, NULL);
    else
        generate(part, x, endpoint);
}

static void handle_chat(void *user, cn_exchange *x)
{
    handle(user, x, CN_API_CHAT);
}

static void handle_completion(void *user, cn_exchange *x)
{
    handle(user, x, CN_API_COMPLETION);
}

/* ---- models ---- */

static json_t *model_json(cn_server *server, const char *name)
{
    cn_service *s = cn_server_service(server);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:I}", "id", name, "object",
                     "model", "created", (json_int_t)cn_server_started_s(server), "owned_by",
                     "cinch", "root", cn_service_model_name(s), "max_model_len",
                     (json_int_t)cn_service_max_model_len(s));
}

static void handle_models(void *user, cn_exchange *x)
{
    cn_server *server = ((openai_part *)user)->server;
    const cn_served_names *names = cn_service_names(cn_server_service(server));
    json_t *data = json_array();
    for (uint32_t i = 0; i < names->n; i++)
        json_array_append_new(data, model_json(server, names->names[i]));
    cn_exchange_reply_json(x, CN_HTTP_OK,
                           json_pack("{s:s, s:o}", "object", "list", "data", data));
}

static void handle_model(void *user, cn_exchange *x)
{
    cn_server *server = ((openai_part *)user)->server;
    const char *name = cn_exchange_param(x, 0);
    json_t *asked = cn_json_text(name);
    if (cn_api_model_check(cn_service_names(cn_server_service(server)), asked) == CN_OK)
        cn_exchange_reply_json(x, CN_HTTP_OK, model_json(server, name));
    else
        cn_exchange_error(x, CN_HTTP_NOT_FOUND, cn_last_error(), "model", CN_API_MODEL_NOT_FOUND);
    json_decref(asked);
}

/* ---- the part ---- */

static cn_status open_part(cn_server *server, void **out)
{
    openai_part *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(CN_ERR_MEMORY, "out of memory for the routes");
    const size_t most = cn_service_config(cn_server_service(server))->max_body_bytes;
    const uint32_t limited = CN_ROUTE_LIMITED | CN_ROUTE_LONG | CN_ROUTE_JSON;
    *p = (openai_part){
        .server = server,
        .routes = {
            {CN_HTTP_POST, "/v1/chat/completions", limited, handle_chat, most, NULL, NULL},
            {CN_HTTP_POST, "/v1/completions", limited, handle_completion, most, NULL, NULL},
            {CN_HTTP_GET, "/v1/models", 0, handle_models, 0, NULL, NULL},
            {CN_HTTP_GET, "/v1/models/{id}", CN_ROUTE_REST, handle_model, 0, NULL, NULL},
        },
    };
    *out = p;
    return cn_http_server_add_routes(cn_server_http(server), p->routes,
                                     sizeof p->routes / sizeof *p->routes, p);
}

/* The HTTP server answers the requests whose replies have not begun. */
static void cut_part(void *part)
{
    for (cn_list_node *at = ((openai_part *)part)->replies.head; at; at = at->next) {
        reply *r = CN_CONTAINER_OF(at, reply, node);
        if (r->begun && !r->ended && cn_call_request(r->call)->stream) cut_stream(r);
    }
}

static void close_part(void *part)
{
    for (cn_list_node *at = ((openai_part *)part)->replies.head; at; at = at->next)
        CN_CONTAINER_OF(at, reply, node)->part = NULL;
    cn_free(part);
}

const cn_server_part cn_openai_part = {.open = open_part, .cut = cut_part, .close = close_part};
