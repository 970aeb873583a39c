/* http_server.h - HTTP/1.1 over libevent: connections, limits, deadlines, keys, the route table,
 * whole and streamed replies, and the access log.
 *
 * Owner: cn_server. Thread: every function runs on the thread of the event base.
 *
 *   accept -> IDLE -> HEAD -> BODY -> BUSY -> SENDING -> IDLE (keep-alive) or closed
 *
 * The server parses messages itself (http_parse.h) because evhttp 2.1 cannot: check the route and
 * the key before it reads the body; stream an upload; notice that a client disconnects while its
 * answer is computed; keep one deadline for a whole request; answer every refusal in OpenAI's
 * format.
 *
 * Limits: each connection holds at most a head, one body within its route's limit, and about
 * CN_HTTP_SEND_HIGH bytes of a stream that its client has not read. When all connections are in
 * use, a new one replaces one that is slow to send a whole request or to read its reply. Requests
 * whose replies take long leave an eighth of the connections to others (http_accept.c). */
#pragma once

#include <event2/event.h>
#include <jansson.h>
#include <sys/types.h>

#include "engine/base/budget.h"
#include "engine/serve/calls/serve_stats.h"
#include "engine/serve/http/api_keys.h"
#include "engine/serve/http/http_parse.h"

typedef struct cn_http_server cn_http_server;

/* One request and its reply. Lives from the end of the head until `closed` has been called. */
typedef struct cn_exchange cn_exchange;

enum {
    CN_HTTP_SEND_HIGH = 256 << 10, /* unsent bytes from which on a stream must wait */
    CN_HTTP_MAX_PARAMS = 4
};

typedef enum cn_route_flags {
    CN_ROUTE_OPEN = 1 << 0,    /* needs no key */
    CN_ROUTE_LIMITED = 1 << 1, /* counts against --max-requests-per-key while in flight */
    CN_ROUTE_UPLOAD = 1 << 2,  /* body() gets the body piece by piece */
    CN_ROUTE_JSON = 1 << 3,    /* a body must be application/json */
    CN_ROUTE_FORM = 1 << 4,    /* a body must be multipart/form-data */
    CN_ROUTE_LONG = 1 << 5,    /* its reply may take long: such requests may hold seven eighths of
                                * the connections; not with CN_ROUTE_UPLOAD */
    CN_ROUTE_WATCH = 1 << 6,   /* is answered while the server drains; others get 503 then */
    CN_ROUTE_REST = 1 << 7     /* its path ends with a {segment}, which matches the rest of a path:
                                * any text, with slashes */
} cn_route_flags;

typedef struct cn_route {
    cn_http_method method;
    /* Segments between slashes, for example "/v1/files/{id}/content". A segment in braces matches
     * one segment of letters, digits, '-', '_' and '.' that does not begin with a dot. */
    const char *path;
    uint32_t flags; /* cn_route_flags */
    /* Called when the request is complete. Replies now, or later on this thread. */
    void (*handle)(void *user, cn_exchange *x);
    size_t max_body_bytes; /* 0: refuses a body */
    /* CN_ROUTE_UPLOAD: head() runs first, and may reply with an error to end the upload. Then
     * body() runs for each piece. */
    void (*head)(void *user, cn_exchange *x);
    void (*body)(void *user, cn_exchange *x, const void *data, size_t n);
} cn_route;

typedef struct cn_http_opts {
    struct event_base *base;
    const cn_api_keys *keys;    /* borrowed; NULL or no keys: every route is open */
    const char *host;           /* borrowed; the address or name that clients use, or NULL */
    const char *allowed_hosts;  /* borrowed; further names, comma-separated; NULL: none; "*": any */
    cn_serve_stats *stats;      /* borrowed */
    size_t max_head_bytes;
    uint32_t max_connections;
    cn_budget *memory;          /* borrowed; bytes of bodies in memory */
    uint32_t request_timeout_s; /* for a whole request; plus 1 s per 64 KiB that arrived */
    uint32_t idle_timeout_s;    /* between requests; and for a client that reads no output */
    cn_budget *samples_of_key;  /* borrowed; [keys] samples of each, with their limit */
    int access_log_fd;          /* -1: no log */
    const char *allowed_origins; /* --allowed-origins, borrowed; NULL: none */
    const char *root_path;       /* --root-path, borrowed; NULL: none */
} cn_http_opts;

cn_status cn_http_server_create(cn_http_server **out, const cn_http_opts *o);
/* Closes every exchange and its connection. NULL is fine. */
void cn_http_server_free(cn_http_server *s);

/* Borrows the rows, which must outlive the server. Their functions get `user`. */
cn_status cn_http_server_add_routes(cn_http_server *s, const cn_route *routes, size_t n,
                                    void *user);

/* The i-th row of all tables, or NULL after the last. For tests, which compare the routes with
 * openapi.json. */
const cn_route *cn_http_server_route(const cn_http_server *s, size_t i);

/* Starts routing requests. Before that every request is answered 503, so that a server can listen
 * while it loads what its routes need. */
void cn_http_server_begin(cn_http_server *s);

/* CN_ERR_IO: the text names the address and the cause. With *port 0 the system chooses a free port
 * and *port gets its number. _unix replaces a socket file on which no server listens; only the
 * owner and the group can use the new one. */
cn_status cn_http_server_listen(cn_http_server *s, const char *host, uint16_t *port);
cn_status cn_http_server_listen_unix(cn_http_server *s, const char *path);
/* Drains: a request that arrives from now on is answered 503, unless its route has CN_ROUTE_WATCH.
 * Connections are still accepted, so that new clients and health checks learn that the server is
 * stopping. Each connection is closed when it becomes idle. */
void cn_http_server_drain(cn_http_server *s);
/* Requests that are not answered in full, without those that arrived during a drain. */
uint32_t cn_http_server_n_exchanges(const cn_http_server *s);
/* Ends a drain: answers 503 to each request without a reply, after its closed(). Replies that have
 * begun and paused uploads stay as they are. */
void cn_http_server_cut(cn_http_server *s);
/* Call when the file of access_log_fd was opened, at start or again. is_torn: it ends within a
 * line. */
void cn_http_server_log_opened(cn_http_server *s, bool is_torn);

/* ---- the request ---- */

/* The text that the i-th {segment} matched. */
const char *cn_exchange_param(const cn_exchange *x, uint32_t i);
/* A decoded value of the query string; NULL when it is absent, "" when it cannot be decoded. Valid
 * until the next call. */
const char *cn_exchange_query(cn_exchange *x, const char *name);
/* A header field; NULL when it is absent. The case of name does not matter. */
const char *cn_exchange_header(const cn_exchange *x, const char *name);
/* [*n] bytes, not NUL-terminated. */
const char *cn_exchange_body(const cn_exchange *x, size_t *n);
/* Moves the body to the caller. */
cn_buf cn_exchange_take_body(cn_exchange *x);
/* Content-Length, or 0 for a chunked body. */
uint64_t cn_exchange_announced_bytes(const cn_exchange *x);
uint32_t cn_exchange_key(const cn_exchange *x); /* of the request, or CN_API_KEY_NONE */
/* The name of the request's API key, or "". */
const char *cn_exchange_key_name(const cn_exchange *x);
/* The samples of the request's key, of which the exchange has taken one; NULL without a key. */
cn_budget *cn_exchange_samples(const cn_exchange *x);
const char *cn_exchange_request_id(const cn_exchange *x); /* "req-..."; X-Request-Id has it
                                                           * unless the client sent its own */

/* The handler's own data. closed() is called once, when the exchange ends: its reply has been sent,
 * or the client has disconnected. The exchange is freed after that. */
void cn_exchange_set_user(cn_exchange *x, void *user, void (*closed)(void *user, cn_exchange *x));
void *cn_exchange_user(const cn_exchange *x);

/* Stops and resumes reading an upload, so that memory holds only one piece while a disk is slow. */
void cn_exchange_pause(cn_exchange *x);
void cn_exchange_resume(cn_exchange *x);

/* ---- the reply: exactly one per exchange ---- */

/* The server itself may answer an upload while it is read: too large, too slow, malformed. Then
 * body() and handle() are not called any more, only closed(). It never does that to a paused
 * upload. */

/* Adds a header to the reply. Call it before the reply. */
void cn_exchange_set_header(cn_exchange *x, const char *name, const char *value);

void cn_exchange_reply(cn_exchange *x, int status, const char *content_type, const void *data,
                       size_t n);
/* Takes over the reference. NULL means out of memory and is answered 500. */
void cn_exchange_reply_json(cn_exchange *x, int status, json_t *body);
/* Sets the Retry-After, in seconds, of an error with status 429 or 503; the default is 1. */
void cn_exchange_set_retry(cn_exchange *x, uint32_t seconds);

/* Counts a refusal because the server is busy. cn_exchange_error does it for 429; call it before a
 * 503 with this cause. */
void cn_exchange_count_busy(cn_exchange *x);
/* Replies {"error": {...}}, see cn_api_error_body. 429 and 503 carry Retry-After. */
void cn_exchange_error(cn_exchange *x, int status, const char *message, const char *param,
                       const char *code);
/* Replies 503: the server drains. The text and the code, also for the error that ends a stream. */
#define CN_DRAINING_TEXT "the server is stopping"
#define CN_DRAINING_CODE "draining"
void cn_exchange_refuse_draining(cn_exchange *x);
/* Replies bytes [offset, offset + n) of a file. Takes over fd. */
void cn_exchange_reply_file(cn_exchange *x, int status, const char *content_type, int fd,
                            off_t offset, off_t n);

/* A stream: begin, send while cn_exchange_may_send() is true, end. */
void cn_exchange_begin(cn_exchange *x, int status, const char *content_type,
                       void (*ready)(void *user, cn_exchange *x));
/* Returns true when fewer than CN_HTTP_SEND_HIGH bytes are unsent. After false, ready() is called
 * when all have been sent. */
bool cn_exchange_may_send(cn_exchange *x);
void cn_exchange_send(cn_exchange *x, const void *data, size_t n);
void cn_exchange_end(cn_exchange *x);
/* Ends a stream that cannot be completed: the client sees the connection close. */
void cn_exchange_abort(cn_exchange *x);

/* Token counts for the access log. closed() may still set them. */
void cn_exchange_note_tokens(cn_exchange *x, uint64_t prompt, uint64_t output);
