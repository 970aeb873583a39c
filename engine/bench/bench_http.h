/* bench_http.h - the client of `cinch bench serve`: one HTTP request per connection, over libevent.
 * The reply is passed on as it arrives.
 *
 * Owner: a call frees itself after end(). Thread: the one that runs the event base. */
#pragma once

#include <event2/event.h>
#include <sys/socket.h>

#include "engine/base/base.h"

typedef struct cn_bench_target {
    struct sockaddr_storage address;
    socklen_t n_address;
    char host[256];  /* for the Host header: an IPv6 address is in brackets */
    const char *key; /* NULL: none; borrowed */
} cn_bench_target;

/* Parses "http://host:port" and resolves the host; an IPv6 address is in brackets. CN_ERR_ARG if
 * the URL has another form or the host is unknown. */
cn_status cn_bench_target_parse(cn_bench_target *out, const char *url);

typedef struct cn_bench_reply {
    void *user;
    /* A piece of the reply's body, for any status. */
    void (*data)(void *user, const char *data, size_t n);
    /* The end of the reply, called once: the status, and the error; NULL if the reply is
     * complete. */
    void (*end)(void *user, int status, const char *error);
} cn_bench_reply;

/* Sends a POST with a JSON body, or a GET if body is NULL. end() reports failures to connect. */
cn_status cn_bench_http_start(struct event_base *base, const cn_bench_target *target,
                              const char *path, const cn_buf *body, const cn_bench_reply *reply);
