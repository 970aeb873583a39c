/* bench_http.h - the client of `cinch bench serve`: one HTTP request a connection, over libevent,
 * its reply handed on as it comes.
 *
 * Owner: a call frees itself after end(). Thread: the one that runs the event base. */
#ifndef CN_BENCH_HTTP_H
#define CN_BENCH_HTTP_H

#include <event2/event.h>
#include <sys/socket.h>

#include "engine/base.h"

typedef struct cn_bench_target {
    struct sockaddr_storage address;
    socklen_t n_address;
    char host[256];  /* as the Host field has it */
    const char *key; /* NULL: none; borrowed */
} cn_bench_target;

/* From "http://host:port". CN_ERR_ARG when it is no such address or the host is not known. */
cn_status cn_bench_target_parse(cn_bench_target *out, const char *url);

typedef struct cn_bench_reply {
    void *user;
    /* A piece of the body of a reply with any status. */
    void (*data)(void *user, const char *data, size_t n);
    /* The end, once: the status, and NULL when the reply was whole, else what was wrong. */
    void (*end)(void *user, int status, const char *error);
} cn_bench_reply;

/* Sends a POST with a JSON body, or a GET when it is NULL. Failures to connect come as end(). */
cn_status cn_bench_http_start(struct event_base *base, const cn_bench_target *target,
                              const char *path, const cn_buf *body, const cn_bench_reply *reply);

#endif
