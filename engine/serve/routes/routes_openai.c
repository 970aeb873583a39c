/* routes_openai.c - /v1/chat/completions, /v1/completions, /v1/responses, whole or as server-sent
 * events, and /v1/models. Stages 1 and 8 of the path of a request. Thread: HTTP.
 *
 * A streamed reply begins with the first output. Until then a failure can still set the HTTP
 * status. */
#include <stdlib.h>
#include <time.h>

#include "engine/api/responses_stream.h"
#include "engine/base/json.h"
#include "engine/serve/server_parts.h"

typedef struct openai_part {
    cn_server *server;
    cn_route routes[5];
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
    cn_response_stream events; /* of a response that is */
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
    return cn_call_is_suspect(call)              ? "engine_failed"
           : status == CN_HTTP_NOT_FOUND         ? CN_API_MODEL_NOT_FOUND
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

/* Appends an event, whose reference it takes over. */
static void add_stream_event(cn_buf *out, json_t *event)
{
    char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;
    if (text) cn_buf_addf(out, "data: %s\n\n", text);
    free(text);
    json_decref(event);
}

static const char *reply_id(const reply *r)
{
    return cn_exchange_request_id(r->x) + strlen("req-");
}

static const char *model_name(const reply *r)
{
    return cn_service_model_name(cn_server_service(r->server));
}

static bool is_response(const reply *r)
{
    return cn_call_request(r->call)->endpoint == CN_API_RESPONSES;
}

/* Sets what a writer needs to know. */
static cn_api_writer new_writer(const reply *r)
{
    return (cn_api_writer){.id = reply_id(r),
                           .model = model_name(r),
                           .created = r->created,
                           .digits = REAL_DIGITS};
}

/* Appends the next chunk of a chat or completion, or events of a response. Appends nothing
 * if there is no new output. */
static cn_status take_stream_output(reply *r, cn_buf *out)
{
    const bool usage = cn_call_request(r->call)->stream_usage;
    cn_status status = CN_OK;
    json_t *chunk = NULL;
    if (is_response(r) && !r->events.writer.id) r->events.writer = new_writer(r);
    cn_api_result *result = cn_call_lock(r->call);
    if (!result) return CN_OK;
    if (is_response(r))
        status = cn_response_stream_write(result, &r->events, out, CN_HTTP_SEND_HIGH);
    else
        chunk = cn_api_result_take_chunk(result, reply_id(r), model_name(r), r->created, usage);
    cn_call_unlock(r->call);
    add_stream_event(out, chunk);
    return status;
}

/* Appends the last event of a response that has failed. */
static void fail_response(reply *r, cn_status why, const char *message, cn_buf *out)
{
    const char *code = why == CN_ERR_ARG    ? "invalid_prompt"
                       : why == CN_ERR_BUSY ? "rate_limit_exceeded"
                                            : "server_error";
    cn_api_result *result = cn_call_lock(r->call);
    if (!result) return;
    cn_response_stream_fail(result, &r->events, code, message, out);
    cn_call_unlock(r->call);
}

static void add_stream_usage(reply *r, cn_buf *out)
{
    cn_api_result *result = cn_call_lock(r->call);
    json_t *chunk = cn_api_result_usage_chunk(result, reply_id(r), model_name(r), r->created);
    cn_call_unlock(r->call);
    add_stream_event(out, chunk);
}

/* Sends `last` and frees it. */
static void end_stream(reply *r, cn_buf *last)
{
    if (!is_response(r)) cn_buf_addf(last, "data: [DONE]\n\n");
    if (last->len > 0) cn_exchange_send(r->x, last->data, last->len);
    cn_buf_free(last);
    cn_exchange_end(r->x);
    r->ended = true;
}

/* The call is over and its output sent. */
static void conclude_stream(reply *r)
{
    const cn_status status = cn_call_status(r->call);
    cn_buf last = {0};
    if (is_response(r) && status != CN_OK)
        fail_response(r, status, cn_call_error(r->call), &last);
    else if (status != CN_OK)
        add_stream_event(&last, cn_api_error_body(http_status_of(r->call), cn_call_error(r->call),
                                                  NULL, code_of(r->call), 0));
    else if (!is_response(r) && cn_call_request(r->call)->stream_usage)
        add_stream_usage(r, &last);
    end_stream(r, &last);
}

/* Ends a reply that cannot be completed, with the last error if that is still possible. */
static void give_up(reply *r)
{
    r->ended = true;
    if (r->begun)
        cn_exchange_abort(r->x);
    else
        cn_exchange_error(r->x, CN_HTTP_UNAVAILABLE, cn_last_error(), NULL, NULL);
}

static void on_ready(void *user, cn_exchange *x);

static void begin_stream(reply *r)
{
    if (r->begun) return;
    cn_exchange_set_header(r->x, "Cache-Control", "no-cache");
    /* nginx passes the stream on at once. */
    cn_exchange_set_header(r->x, "X-Accel-Buffering", "no");
    cn_exchange_begin(r->x, CN_HTTP_OK, "text/event-stream", on_ready);
    r->begun = true;
}

/* Sends the output that is there, until the client's buffer is full. */
static void pump(reply *r)
{
    cn_buf piece = {0};
    const bool over = cn_call_is_over(r->call); /* read before the output, or its end may be lost */
    while (!r->ended && cn_exchange_may_send(r->x)) {
        cn_buf_clear(&piece);
        if (take_stream_output(r, &piece) != CN_OK) {
            give_up(r);
        } else if (piece.len > 0) {
            begin_stream(r);
            cn_exchange_send(r->x, piece.data, piece.len);
        } else {
            if (over) conclude_stream(r);
            break;
        }
    }
    cn_buf_free(&piece);
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
    cn_buf rest = {0};
    for (size_t n = SIZE_MAX; n != rest.len;) {
        n = rest.len;
        if (take_stream_output(r, &rest) != CN_OK) break;
    }
    if (rest.len > 0) cn_exchange_send(r->x, rest.data, rest.len);
    cn_buf_clear(&rest);
    if (over) {
        cn_buf_free(&rest);
        conclude_stream(r);
        return;
    }
    if (is_response(r))
        fail_response(r, CN_ERR_CANCELLED, CN_DRAINING_TEXT, &rest);
    else
        add_stream_event(&rest, cn_api_error_body(CN_HTTP_UNAVAILABLE, CN_DRAINING_TEXT, NULL,
                                                  CN_DRAINING_CODE, 0));
    end_stream(r, &rest);
}

/* ---- generation ---- */

/* Writes the next part of a body, about the size that a slow client may leave unsent. False: that
 * failed, and an error has been sent or the connection will be closed. */
static bool write_stream_part(reply *r, cn_buf *part, bool *done)
{
    cn_api_result *result = cn_call_lock(r->call);
    cn_status status = cn_api_result_write(result, &r->writer, part, CN_HTTP_SEND_HIGH, done);
    cn_call_unlock(r->call);
    if (status != CN_OK) give_up(r);
    return status == CN_OK;
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
        if (!write_stream_part(r, &part, &done)) break;
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
    r->writer = new_writer(r);
    if (write_stream_part(r, &part, &done) && done) {
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

static void on_stream_update(void *user, cn_call *call)
{
    reply *r = user;
    const bool over = cn_call_is_over(call);
    if (r->ended) return;
    if (over && cn_call_status(call) != CN_OK && !r->begun) {
        r->ended = true;
        if (cn_call_status(call) == CN_ERR_BUSY) set_retry(r->server, r->x);
        /* OpenAI's clients ask again after a 500: more engines would fail. */
        if (cn_call_is_suspect(call)) cn_exchange_set_header(r->x, "x-should-retry", "false");
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
static void on_stream_closed(void *user, cn_exchange *x)
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
        .update = on_stream_update,
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
    cn_exchange_set_user(x, r, on_stream_closed);
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

static void handle_chat(void *user, cn_exchange *x) { handle(user, x, CN_API_CHAT); }

static void handle_completion(void *user, cn_exchange *x) { handle(user, x, CN_API_COMPLETION); }

static void handle_response(void *user, cn_exchange *x) { handle(user, x, CN_API_RESPONSES); }

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

static cn_status open_stream_part(cn_server *server, void **out)
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
            {CN_HTTP_POST, "/v1/responses", limited, handle_response, most, NULL, NULL},
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
    CN_LIST_EACH(reply, r, &((openai_part *)part)->replies, node) {
        if (r->begun && !r->ended && cn_call_request(r->call)->stream) cut_stream(r);
    }
}

static void close_stream_part(void *part)
{
    for (cn_list_node *at = ((openai_part *)part)->replies.head; at; at = at->next)
        CN_CONTAINER_OF(at, reply, node)->part = NULL;
    cn_free(part);
}

const cn_server_part cn_openai_part = {
    .open = open_stream_part, .cut = cut_part, .close = close_stream_part};
