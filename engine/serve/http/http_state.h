/* http_state.h - connections and exchanges, shared by http_accept.c (listening), http_server.c
 * (routes, deadlines), http_connection.c (input), http_exchange.c (replies) and http_log.c.
 * Internal to these.
 *
 * States of a connection:
 *   IDLE     between requests; no byte of the next one has arrived
 *   HEAD     part of a head has arrived
 *   BODY     its exchange exists; the body is being read
 *   BUSY     the request is complete or refused; the reply is awaited or being sent
 *   LINGER   closing: discards input, so that a connection reset does not destroy the reply;
 *            closed at the end of the input or after LINGER_S
 * The list `receiving` has the connections that have not sent a whole request (IDLE, HEAD, BODY),
 * in the order of since_s. Only these have request deadlines. They can be closed to make room, and
 * so can those that linger or whose client does not read its reply. IDLE and HEAD connections of
 * which a request was answered are `kept`. */
#pragma once

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>

#include "engine/base/list.h"
#include "engine/serve/http/http_server.h"

enum {
    HTTP_REMOTE_BYTES = 64,
    HTTP_ID_BYTES = 40,
    HTTP_MAX_LISTENERS = 2,
    HTTP_TABLES = 8 /* route tables */
};

typedef enum conn_state { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_LINGER } conn_state;

typedef struct connection {
    cn_list_node node;
    cn_list *list; /* receiving, or replying: BUSY and LINGER */
    cn_http_server *server;
    struct bufferevent *bev;
    conn_state state;
    bool reused;      /* has completed a request */
    bool kept;        /* reused, and IDLE or HEAD */
    bool paused;      /* the route has paused its upload */
    double since_s;   /* start of the state; deadlines count from here */
    double output_s;  /* start or last progress of the output */
    uint64_t came;    /* bytes that arrived for this request, without empty lines before it */
    uint32_t n_empty_lines; /* before this request */
    double pipelined_s; /* since when each reply had another request waiting; 0: it had not */
    size_t head_seen; /* bytes of the head that were scanned */
    cn_exchange *exchange; /* BODY, BUSY */
    char remote[HTTP_REMOTE_BYTES];
} connection;

struct cn_exchange {
    connection *conn;
    const cn_route *route; /* NULL: refused before a route was found */
    void *route_user;
    char *head_text;
    cn_http_head head;
    cn_http_chunks chunks;
    cn_buf params[CN_HTTP_MAX_PARAMS]; /* the texts that {segments} matched */
    cn_buf query_text;                 /* result of the last cn_exchange_query */
    cn_buf body;
    uint64_t body_bytes; /* bytes of body that arrived */
    uint64_t charged;    /* bytes taken from the budget of memory */
    uint32_t key;        /* or CN_API_KEY_NONE */
    bool counted;        /* has taken one of its key's samples */
    bool counted_long;   /* is one of n_long */
    bool late;           /* began while the server drained, which does not wait for it */
    char id[HTTP_ID_BYTES];
    const char *client_id; /* the client's X-Request-Id, if it can be echoed; else NULL */
    double began_s;

    void *user;
    void (*closed)(void *user, cn_exchange *x);
    void (*ready)(void *user, cn_exchange *x);

    cn_buf headers;   /* additional headers of the reply */
    cn_buf refusal;   /* message of an error reply, for the access log */
    uint32_t retry_s; /* Retry-After of a retryable error; 0: the default */
    int status;       /* 0: no reply yet */
    bool chunked, ended, close_after, waits, is_stream;
    uint64_t sent_bytes;
    uint64_t prompt_tokens, output_tokens;
};

struct cn_http_server {
    cn_http_opts o;
    struct {
        const cn_route *rows;
        size_t n;
        void *user;
    } tables[HTTP_TABLES];
    uint32_t n_tables;
    struct evconnlistener *listeners[HTTP_MAX_LISTENERS];
    uint32_t n_listeners;
    bool begun; /* routes requests; before that every request is answered 503 */
    bool draining, out_of_files;
    char *unix_path;
    struct { /* the pending connection: accepted, waiting for room */
        int fd; /* -1: none */
        char remote[HTTP_REMOTE_BYTES];
        struct event *event;
    } pending;
    struct event *sweep;
    cn_list receiving, replying; /* of connections */
    uint32_t n_connections;
    uint32_t n_exchanges; /* without late ones */
    uint32_t n_kept;  /* connections that are kept open between requests */
    uint32_t n_long;  /* complete requests of CN_ROUTE_LONG that are not answered in full */
    bool log_is_torn; /* the access log ends within a line */
    uint64_t last_id;
    uint64_t id_seed;
};

/* ---- http_connection.c ---- */
connection *http_connection_open(cn_http_server *s, int fd, const char *remote);
/* Closes and frees the connection. Closes its exchange, if any, and logs that as `why`. */
void http_connection_close(connection *c, const char *why);
/* Processes the input in the buffer: new input, or what remained when an exchange ended or an
 * upload was resumed. */
void http_connection_process(connection *c);
void http_connection_set_state(connection *c, conn_state state);
/* Seconds since since_s, minus one for each 64 KiB that arrived. A large request that arrives fast
 * is therefore not slow. */
double http_connection_slow_s(const connection *c, double now);

/* ---- http_exchange.c ---- */
cn_exchange *http_exchange_open(connection *c);
void http_exchange_close(cn_exchange *x, const char *why);
/* Sets client_id if the request has an X-Request-Id that can be echoed. */
void http_note_client_id(cn_exchange *x);
/* Bytes of the largest body that the route of the exchange takes. */
uint64_t http_body_limit(const cn_exchange *x);
/* Answers 413, with this limit. */
void http_refuse_large_body(cn_exchange *x);

/* ---- http_accept.c ---- */
cn_status http_accept_open(cn_http_server *s);
void http_accept_close(cn_http_server *s);
/* Accepts again after file descriptors ran out or the pending connection was decided, unless a
 * connection is pending. */
void http_accept_resume(cn_http_server *s);
/* A connection has closed or is kept: schedules the decision on the pending connection. */
void http_accept_schedule_pending(cn_http_server *s);
/* Counts a complete request of CN_ROUTE_LONG. False: there are too many, and the reply has been
 * made. */
bool http_accept_long(cn_exchange *x);

/* ---- http_server.c ---- */

/* Finds the route of the exchange and checks the key and the limits. False: refused, and the reply
 * has been made. */
bool http_route(cn_exchange *x);

/* ---- http_hints.c ---- */

/* What a client of another server is to use in place of the path; NULL if that is not known. */
const char *http_hint(const char *path);

/* ---- http_origin.c ---- */

/* Without API keys, checks the Host and the Origin of the request. False: refused, and the reply
 * has been made. */
bool http_origin_is_allowed(cn_exchange *x);
/* A comma-separated list has the name, in any case, or is "*". NULL: an empty list. */
bool http_list_has(const char *list, const char *name);

/* ---- http_cors.c ---- */

/* Adds the headers that let a page of an allowed origin read the reply. */
void http_cors_allow(cn_exchange *x);
/* Answers a browser's question whether a page may send a request. False: x is none. */
bool http_cors_preflight(cn_exchange *x);

/* ---- http_log.c ---- */
void http_log(const cn_exchange *x, const char *why);
