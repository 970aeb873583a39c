/* http_client.h - a client for tests of the server. It sends raw bytes and parses replies, and can
 * be slow, misbehave or send nothing. Thread: one per connection. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"

typedef struct http_reply {
    int status;     /* 0: the connection ended before the status line */
    cn_buf head;    /* status line and header fields */
    cn_buf body;    /* all chunks, joined */
    bool truncated; /* the connection ended inside the body */
} http_reply;

/* Returns a socket, or -1. Reads and writes time out after 120 s. */
int http_connect(uint16_t port);
int http_connect_narrow(uint16_t port); /* with a receive buffer of a few KiB */
int http_connect_unix(const char *path);

bool http_send(int fd, const void *data, size_t n);
bool http_send_text(int fd, const char *text);

/* Reads one reply. `head_request`: the reply has no body. */
void http_read(int fd, bool head_request, http_reply *out);
void http_reply_free(http_reply *r);
/* Returns the value of a header field in a static buffer, or NULL when it is absent. */
const char *http_field(const http_reply *r, const char *name);

/* Sends one request over a new connection and reads the reply. key and body may be NULL. */
void http_ask(uint16_t port, const char *method, const char *path, const char *key,
              const char *body, http_reply *out);
/* The same with a parsed body. Fails the test unless the status is want_status. */
json_t *http_ask_json(uint16_t port, const char *method, const char *path, const char *body,
                      int want_status);

/* The content of an event stream: the joined text of choice `index`, its finish_reason, the last
 * usage object, and whether [DONE] arrived. */
typedef struct http_stream {
    json_t *events; /* all events, in order */
    bool done;
    cn_buf text;
    cn_buf reasoning;
    const char *finish; /* borrowed from events */
    json_t *usage;      /* borrowed from events; may be NULL */
} http_stream;
void http_stream_read(const char *body, int index, http_stream *out);
void http_stream_free(http_stream *s);
