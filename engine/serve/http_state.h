/* http_state.h - connections and exchanges, shared by http_accept.c (listening), http_server.c
 * (routes, deadlines), http_connection.c (bytes in) and http_exchange.c (replies out). Internal to
 * these.
 *
 * Where a connection stands:
 *   IDLE     between requests; nothing of the next has come
 *   HEAD     some of a head has come
 *   BODY     its exchange exists; the body is being read
 *   BUSY     the request is whole; the reply is awaited or being sent
 *   LINGER   refused or closing: what still comes is dropped, so that the reply is not lost in a
 *            reset; gone at the end of the input or after LINGER_S
 * A connection that has not yet sent a whole request (IDLE, HEAD, BODY) is in the list `unasked`,
 * in the order of since_s: deadlines are looked up there, and room is made there. */
#ifndef CN_HTTP_STATE_H
#define CN_HTTP_STATE_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>

#include "engine/list.h"
#include "engine/serve/http_server.h"

enum {
    HTTP_REMOTE_BYTES = 64,
    HTTP_ID_BYTES = 40,
    HTTP_MAX_LISTENERS = 2,
    HTTP_TABLES = 8 /* of routes */
};

typedef enum conn_state { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_LINGER } conn_state;

typedef struct connection {
    cn_list_node node;
    cn_list *list; /* unasked, or asked: BUSY and LINGER */
    cn_http_server *server;
    struct bufferevent *bev;
    conn_state state;
    bool reused;      /* has had a request */
    bool paused;      /* an upload waits for its taker */
    double since_s;   /* this state's begin; deadlines count from here */
    double output_s;  /* last progress of the output, or its begin */
    uint64_t came;    /* bytes of this request */
    size_t head_seen; /* bytes of the head looked at */
    cn_exchange *exchange; /* BODY, BUSY */
    char remote[HTTP_REMOTE_BYTES];
} connection;

struct cn_exchange {
    connection *conn;
    const cn_route *route; /* NULL: refused before there was one */
    void *route_user;
    char *head_text;
    cn_http_head head;
    cn_http_chunks chunks;
    cn_buf params[CN_HTTP_MAX_PARAMS]; /* what {segments} matched */
    cn_buf query_text;                 /* the value asked for last */
    cn_buf body;
    uint64_t body_bytes; /* that came */
    uint64_t charged;    /* against the server's total */
    uint32_t key;        /* or CN_API_KEY_NONE */
    bool counted;        /* against its key's limit */
    char id[HTTP_ID_BYTES];
    double began_s;

    void *user;
    void (*closed)(void *user, cn_exchange *x);
    void (*ready)(void *user, cn_exchange *x);

    cn_buf headers; /* of the reply, beyond the usual */
    uint32_t retry_s; /* of an error that passes; 0: nobody said */
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
    bool begun; /* requests go to their routes */
    bool accepting, out_of_files;
    char *unix_path;
    struct { /* accepted, and waits for a place */
        int fd;  /* -1: nobody */
        char remote[HTTP_REMOTE_BYTES];
        struct event *event;
    } door;
    struct event *sweep;
    cn_list unasked, asked; /* of connections */
    uint32_t n_connections, n_exchanges;
    uint32_t *running_of_key; /* [keys] */
    uint64_t body_total;
    uint64_t last_id;
    uint64_t id_seed;
};

/* ---- http_connection.c ---- */
connection *http_connection_open(cn_http_server *s, int fd, const char *remote);
/* Ends it now: its exchange, if any, is closed and logged as `why`. */
void http_connection_close(connection *c, const char *why);
/* Goes on with what came: after an exchange has ended, or an upload was resumed. */
void http_connection_process(connection *c);
void http_connection_set_state(connection *c, conn_state state);
/* Seconds it has been at its request, less one for each 64 KiB that came: what is slow is neither
 * long nor large alone. */
double http_connection_slow_s(const connection *c, double now);

/* ---- http_exchange.c ---- */
cn_exchange *http_exchange_open(connection *c);
void http_exchange_close(cn_exchange *x, const char *why);

/* ---- http_accept.c ---- */
cn_status http_accept_open(cn_http_server *s);
void http_accept_close(cn_http_server *s);
/* Accepts again after a want of files, unless something else forbids it. */
void http_accept_resume(cn_http_server *s);
/* A connection has ended: who waits may come in. */
void http_accept_note_place(cn_http_server *s);

/* ---- http_server.c ---- */

/* Finds the route of the exchange and checks key and limits. False when it was refused: the reply
 * is on its way then. */
bool http_route(cn_exchange *x);

/* ---- http_log.c ---- */
void http_log(const cn_exchange *x, const char *why);

#endif
