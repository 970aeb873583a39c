/* bench_http.c - see bench_http.h. A reply is chunked or ends with the connection. The request asks
 * for "Connection: close", so that a reply of known length ends with the connection. */
#include "engine/bench/bench_http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <strings.h>

#include "engine/serve/http/http_parse.h"

enum { MAX_HEAD_BYTES = 64 << 10 };

typedef struct call {
    struct bufferevent *bev;
    cn_bench_reply reply;
    int status; /* 0: the head is not complete */
    bool chunked;
    cn_http_chunks chunks;
} call;

cn_status cn_bench_target_parse(cn_bench_target *out, const char *url)
{
    char host[201], port[8];
    int n = 0;
    *out = (cn_bench_target){0};
    const bool ipv6 = strncmp(url, "http://[", 8) == 0;
    const int n_read =
        ipv6 ? sscanf(url, "http://[%200[^]/]]:%5[0-9]%n", host, port, &n)
             : sscanf(url, "http://%200[^:/]:%5[0-9]%n", host, port, &n);
    const unsigned long number = n_read == 2 ? strtoul(port, NULL, 10) : 0;
    if (number < 1 || number > UINT16_MAX || (url[n] && strcmp(url + n, "/") != 0))
        return cn_fail(CN_ERR_ARG, "%s: expected http://host:port, with a port from 1 to 65535",
                       url);
    snprintf(out->host, sizeof out->host, ipv6 ? "[%s]" : "%s", host);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    const int bad = getaddrinfo(host, port, &hints, &found);
    if (bad) return cn_fail(CN_ERR_ARG, "%s: %s", url, gai_strerror(bad));
    memcpy(&out->address, found->ai_addr, found->ai_addrlen);
    out->n_address = found->ai_addrlen;
    freeaddrinfo(found);
    return CN_OK;
}

static void end(call *c, const char *error)
{
    c->reply.end(c->reply.user, c->status, error);
    bufferevent_free(c->bev);
    cn_free(c);
}

/* Reads the head of the reply. False while it is not complete. */
static bool take_head(call *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    const struct evbuffer_ptr blank = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    char *line;
    if (blank.pos < 0) return false;
    while ((line = evbuffer_readln(in, NULL, EVBUFFER_EOL_CRLF_STRICT)) && *line) {
        if (c->status == 0 && sscanf(line, "HTTP/1.%*d %d", &c->status) != 1) c->status = -1;
        c->chunked |= strcasecmp(line, "transfer-encoding: chunked") == 0;
        free(line);
    }
    free(line);
    return true;
}

/* Passes on the bytes that have arrived. True after the last chunk or a bad one. */
static bool take_body(call *c, bool *bad)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    struct evbuffer_iovec v;
    while (evbuffer_peek(in, -1, NULL, &v, 1) > 0 && v.iov_len > 0) {
        const char *data = v.iov_base;
        size_t n_data = v.iov_len, used = v.iov_len;
        if (c->chunked)
            used = cn_http_chunks_next(&c->chunks, v.iov_base, v.iov_len, &data, &n_data, bad);
        if (*bad) return true;
        if (n_data > 0) c->reply.data(c->reply.user, data, n_data);
        evbuffer_drain(in, used);
        if (c->chunked && c->chunks.state == CN_CHUNK_DONE) return true;
    }
    return false;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    call *c = arg;
    bool bad = false;
    if (c->status == 0 && !take_head(c)) {
        if (evbuffer_get_length(bufferevent_get_input(bev)) > MAX_HEAD_BYTES)
            end(c, "the head of the reply is too long");
        return;
    }
    if (c->status < 100)
        end(c, "the reply is not HTTP");
    else if (take_body(c, &bad))
        end(c, bad ? "the chunks of the reply are malformed" : NULL);
}

static void on_bench_event(struct bufferevent *bev, short what, void *arg)
{
    call *c = arg;
    (void)bev;
    if (what & BEV_EVENT_ERROR)
        end(c, strerror(errno));
    else if (what & BEV_EVENT_EOF)
        end(c, c->status && !c->chunked ? NULL : "the server closed the connection too early");
}

static void write_request(call *c, const cn_bench_target *t, const char *path, const cn_buf *body)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    evbuffer_add_printf(out, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n",
                        body ? "POST" : "GET", path, t->host);
    if (t->key) evbuffer_add_printf(out, "Authorization: Bearer %s\r\n", t->key);
    if (body)
        evbuffer_add_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                            body->len);
    evbuffer_add(out, "\r\n", 2);
    if (body) evbuffer_add(out, body->data, body->len);
}

cn_status cn_bench_http_start(struct event_base *base, const cn_bench_target *target,
                              const char *path, const cn_buf *body, const cn_bench_reply *reply)
{
    call *c = cn_calloc(1, sizeof *c);
    if (!c) return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    c->reply = *reply;
    /* A failure to connect is reported from the event loop, never within this call. */
    c->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!c->bev) {
        cn_free(c);
        return cn_fail(CN_ERR_MEMORY, "out of memory for a connection");
    }
    bufferevent_setcb(c->bev, on_read, NULL, on_bench_event, c);
    write_request(c, target, path, body);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    struct sockaddr *at = (struct sockaddr *)(uintptr_t)&target->address;
    if (bufferevent_socket_connect(c->bev, at, (int)target->n_address) == 0) return CN_OK;
    const int error = errno;
    bufferevent_free(c->bev);
    cn_free(c);
    return cn_fail(CN_ERR_IO, "%s: %s", target->host, strerror(error));
}
