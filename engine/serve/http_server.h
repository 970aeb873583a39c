/* http_server.h - HTTP/1.1 over libevent: connections, limits, deadlines, keys, the route table,
 * replies whole or streamed, and the access log.
 *
 * Owner: cn_server. Thread: the one that runs the event base; every function here is for it.
 *
 *   accept -> IDLE -> HEAD -> BODY -> BUSY -> SENDING -> IDLE (keep-alive) or closed
 *
 * The messages are parsed here (http_parse.h), not by evhttp, for what evhttp 2.1 cannot do: know
 * the route and the key before a byte of the body is taken, stream an upload, tell that a client
 * has gone while its answer is computed, hold a deadline over a whole request, and answer every
 * refusal in OpenAI's format.
 *
 * Limits: each connection holds at most a head, one body within its route's limit, and
 * CN_HTTP_SEND_HIGH bytes of output that its client has not taken. When the connections are all in
 * use, one that is slow to send a whole request makes room (http_accept.c). */
#ifndef CN_HTTP_SERVER_H
#define CN_HTTP_SERVER_H

#include <event2/event.h>
#include <jansson.h>
#include <sys/types.h>

#include "engine/serve/api_keys.h"
#include "engine/serve/http_parse.h"
#include "engine/serve/serve_stats.h"

typedef struct cn_http_server cn_http_server;

/* One request and its reply. Lives from the end of its head until `closed` was called. */
typedef struct cn_exchange cn_exchange;

enum {
    CN_HTTP_SEND_HIGH = 256 << 10, /* unsent bytes above which a stream is to wait */
    CN_HTTP_MAX_PARAMS = 4
};

typedef enum cn_route_flags {
    CN_ROUTE_OPEN = 1 << 0,    /* needs no key */
    CN_ROUTE_LIMITED = 1 << 1, /* counts against --max-requests-per-key while it lasts */
    CN_ROUTE_UPLOAD = 1 << 2   /* the body goes to body(), piece by piece */
} cn_route_flags;

typedef struct cn_route {
    cn_http_method method;
    /* Segments between slashes; one in braces takes any single segment of letters, digits, '-',
     * '_' and '.', not beginning with a dot: "/v1/files/{id}/content". */
    const char *path;
    uint32_t flags; /* cn_route_flags */
    /* The request is whole. Replies now or, on this thread, later. */
    void (*handle)(void *user, cn_exchange *x);
    size_t max_body_bytes; /* 0: a body is refused */
    /* CN_ROUTE_UPLOAD: head() at the start, where it may reply with an error and so end the
     * upload; then body() for each piece. */
    void (*head)(void *user, cn_exchange *x);
    void (*body)(void *user, cn_exchange *x, const void *data, size_t n);
} cn_route;

typedef struct cn_http_opts {
    struct event_base *base;
    const cn_api_keys *keys;    /* borrowed; none: every route is open */
    cn_serve_stats *stats;      /* borrowed */
    size_t max_head_bytes;
    uint32_t max_connections;
    uint64_t max_body_total;    /* bytes of bodies in memory, all connections */
    uint32_t request_timeout_s; /* for a whole request; and 1 s more per 64 KiB that came */
    uint32_t idle_timeout_s;    /* between requests; and for a client that takes no output */
    uint32_t max_requests_per_key;
    int access_log_fd;          /* -1: no log */
} cn_http_opts;

cn_status cn_http_server_create(cn_http_server **out, const cn_http_opts *o);
/* Closes every connection: their exchanges are closed first. NULL is fine. */
void cn_http_server_free(cn_http_server *s);

/* Rows are borrowed and must outlive the server; `user` is what their functions get. */
cn_status cn_http_server_add_routes(cn_http_server *s, const cn_route *routes, size_t n,
                                    void *user);

/* The i-th row of all tables, or NULL behind the last. For tests: only the tables tell which routes
 * openapi.json must describe. */
const cn_route *cn_http_server_route(const cn_http_server *s, size_t i);

/* From here on requests go to their routes. Until then each is answered 503: a server may listen
 * before what its routes need is there. */
void cn_http_server_begin(cn_http_server *s);

/* CN_ERR_IO names address and cause. Port 0 takes a free one: *port has it. A socket file that
 * nobody listens on is replaced; it is made for its owner and group alone. */
cn_status cn_http_server_listen(cn_http_server *s, const char *host, uint16_t *port);
cn_status cn_http_server_listen_unix(cn_http_server *s, const char *path);
/* Accepts no more, and closes connections as they fall idle. */
void cn_http_server_stop_accepting(cn_http_server *s);
uint32_t cn_http_server_n_exchanges(const cn_http_server *s);

/* ---- the request ---- */

/* What the i-th {segment} matched. */
const char *cn_exchange_param(const cn_exchange *x, uint32_t i);
/* A value of the query string, decoded; NULL when absent. Valid until the next is asked for. */
const char *cn_exchange_query(cn_exchange *x, const char *name);
/* NULL when absent; names in any case. */
const char *cn_exchange_header(const cn_exchange *x, const char *name);
/* [*n] bytes, not NUL-terminated. */
const char *cn_exchange_body(const cn_exchange *x, size_t *n);
/* Moves the body out. */
cn_buf cn_exchange_take_body(cn_exchange *x);
/* Content-Length, or 0 for a chunked body. */
uint64_t cn_exchange_announced_bytes(const cn_exchange *x);
/* Name of the API key, or "" without keys. */
const char *cn_exchange_key_name(const cn_exchange *x);
const char *cn_exchange_request_id(const cn_exchange *x); /* "req-..." as X-Request-Id has it */

/* The handler's own data. closed() is called once, at the end of the exchange, whether its reply
 * was sent whole or the client went first; the exchange is gone after it. */
void cn_exchange_set_user(cn_exchange *x, void *user, void (*closed)(void *user, cn_exchange *x));
void *cn_exchange_user(const cn_exchange *x);

/* Stops and resumes reading of an upload: so that a slow disk holds no more than a piece. */
void cn_exchange_pause(cn_exchange *x);
void cn_exchange_resume(cn_exchange *x);

/* ---- the reply: one of the four, once ---- */

/* An upload that is being read may be answered from here: too large, too slow, malformed. Then
 * body() and handle() are not called any more, only closed(). A paused one is left alone. */

/* Before the reply. */
void cn_exchange_set_header(cn_exchange *x, const char *name, const char *value);

void cn_exchange_reply(cn_exchange *x, int status, const char *content_type, const void *data,
                       size_t n);
/* Takes over the reference; NULL is out of memory and becomes a 500. */
void cn_exchange_reply_json(cn_exchange *x, int status, json_t *body);
/* The Retry-After of an error with 429 or 503; 1 where nobody says. */
void cn_exchange_set_retry(cn_exchange *x, uint32_t seconds);

/* {"error": {...}}, as cn_api_error_body; 429 and 503 get a Retry-After. */
void cn_exchange_error(cn_exchange *x, int status, const char *message, const char *param,
                       const char *code);
/* Bytes [offset, offset + n) of a file; takes over fd. */
void cn_exchange_reply_file(cn_exchange *x, int status, const char *content_type, int fd,
                            off_t offset, off_t n);

/* A stream: begin, send while it may, end. */
void cn_exchange_begin(cn_exchange *x, int status, const char *content_type,
                       void (*ready)(void *user, cn_exchange *x));
/* Fewer than CN_HTTP_SEND_HIGH bytes are unsent. When not, ready() is called once none are. */
bool cn_exchange_may_send(cn_exchange *x);
void cn_exchange_send(cn_exchange *x, const void *data, size_t n);
void cn_exchange_end(cn_exchange *x);

/* For the access log. */
void cn_exchange_note_tokens(cn_exchange *x, uint64_t prompt, uint64_t output);

#endif
