/* http_client.h - a client for the server's tests: raw bytes out, replies parsed; slow, rude or
 * silent as a test wants it. Thread: one per connection. */
#ifndef CN_TEST_HTTP_CLIENT_H
#define CN_TEST_HTTP_CLIENT_H

#include <jansson.h>

#include "engine/base.h"

typedef struct http_reply {
    int status;     /* 0: the connection ended before a whole reply */
    cn_buf head;    /* status line and fields */
    cn_buf body;    /* chunks joined */
    bool truncated; /* it ended inside the body */
} http_reply;

/* A socket, or -1. Reads and writes give up after 120 s. */
int http_connect(uint16_t port);
int http_connect_narrow(uint16_t port); /* the kernel takes only a few KiB for it */
int http_connect_unix(const char *path);

bool http_send(int fd, const void *data, size_t n);
bool http_send_text(int fd, const char *text);

/* Reads one reply. `head_request`: its body does not follow. */
void http_read(int fd, bool head_request, http_reply *out);
void http_reply_free(http_reply *r);
/* The value of a field, in a static buffer; NULL when absent. */
const char *http_field(const http_reply *r, const char *name);

/* One request on a connection of its own. key and body may be NULL. */
void http_ask(uint16_t port, const char *method, const char *path, const char *key,
              const char *body, http_reply *out);
/* The same with the body parsed; the status must be as wanted. */
json_t *http_ask_json(uint16_t port, const char *method, const char *path, const char *body,
                      int want_status);

/* What an event stream says, joined: text of choice `index`, its finish_reason, the last usage
 * object (borrowed from *keep, an array of all events), and whether [DONE] came. */
typedef struct http_stream {
    json_t *events; /* all, in order */
    bool done;
    cn_buf text;
    cn_buf reasoning;
    const char *finish; /* lives as long as events */
    json_t *usage;      /* likewise; NULL */
} http_stream;
void http_stream_read(const char *body, int index, http_stream *out);
void http_stream_free(http_stream *s);

#endif
