/* http_client.c - see http_client.h. */
#include "tests/lib/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Aborts when a buffer could not hold the text. */
static void must(cn_status status) { CN_ASSERT(status == CN_OK); }

static int finish_connect(int fd, const struct sockaddr *at, socklen_t n)
{
    const struct timeval limit = {.tv_sec = 600};
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, at, n) == 0) return fd;
    close(fd);
    return -1;
}

static int connect_port(uint16_t port, int fd)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return finish_connect(fd, (struct sockaddr *)&at, sizeof at);
}

int http_connect(uint16_t port) { return connect_port(port, socket(AF_INET, SOCK_STREAM, 0)); }

int http_connect_narrow(uint16_t port)
{
    const int bytes = 4096;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    return connect_port(port, fd);
}

int http_connect_unix(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    return finish_connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at);
}

bool http_send(int fd, const void *data, size_t n)
{
    for (size_t sent = 0; sent < n;) {
        ssize_t wrote = send(fd, (const char *)data + sent, n - sent, MSG_NOSIGNAL);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        sent += (size_t)wrote;
    }
    return true;
}

bool http_send_text(int fd, const char *text) { return http_send(fd, text, strlen(text)); }

/* ---- reading ---- */

/* Reads one byte; false at the end. Slow, but never reads a byte of the next reply. */
static bool read_byte(int fd, char *byte)
{
    ssize_t got;
    do
        got = recv(fd, byte, 1, 0);
    while (got < 0 && errno == EINTR);
    return got == 1;
}

static bool read_line(int fd, cn_buf *line)
{
    char byte;
    cn_buf_clear(line);
    must(cn_buf_add(line, "", 0));
    while (read_byte(fd, &byte)) {
        must(cn_buf_add(line, &byte, 1));
        if (byte != '\n') continue;
        line->len = strcspn(line->data, "\r\n");
        line->data[line->len] = '\0';
        return true;
    }
    return false;
}

static bool read_exactly(int fd, size_t n, cn_buf *out)
{
    char piece[16384];
    while (n > 0) {
        ssize_t got = recv(fd, piece, n < sizeof piece ? n : sizeof piece, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        must(cn_buf_add(out, piece, (size_t)got));
        n -= (size_t)got;
    }
    return true;
}

static bool read_chunks(int fd, cn_buf *out)
{
    cn_buf line = {0};
    bool whole = false, good = true;
    while (good && !whole && read_line(fd, &line)) {
        size_t n = strtoul(line.data, NULL, 16);
        whole = n == 0;
        good = (n == 0 || read_exactly(fd, n, out)) && read_line(fd, &line);
    }
    cn_buf_free(&line);
    return good && whole;
}

const char *http_field(const http_reply *r, const char *name)
{
    static _Thread_local char value[512];
    const size_t n = strlen(name);
    for (const char *p = r->head.data; p && (p = strchr(p, '\n'));) {
        p++;
        if (strncasecmp(p, name, n) != 0 || p[n] != ':') continue;
        p += n + 1 + strspn(p + n + 1, " ");
        snprintf(value, sizeof value, "%.*s", (int)strcspn(p, "\n"), p);
        return value;
    }
    return NULL;
}

void http_read(int fd, bool head_request, http_reply *out)
{
    cn_buf line = {0};
    *out = (http_reply){0};
    while (read_line(fd, &line)) {
        if (out->head.len == 0) out->status = line.len > 12 ? atoi(line.data + 9) : 0;
        if (line.len == 0) break;
        must(cn_buf_addf(&out->head, "%s\n", line.data));
    }
    cn_buf_free(&line);
    must(cn_buf_add(&out->body, "", 0));
    if (out->status == 0 || head_request) return;
    const char *length = http_field(out, "Content-Length");
    if (http_field(out, "Transfer-Encoding"))
        out->truncated = !read_chunks(fd, &out->body);
    else if (length || http_field(out, "Content-Length"))
        out->truncated = !read_exactly(fd, strtoul(http_field(out, "Content-Length"), NULL, 10),
                                       &out->body);
    else
        read_exactly(fd, SIZE_MAX, &out->body);
}

void http_reply_free(http_reply *r)
{
    cn_buf_free(&r->head);
    cn_buf_free(&r->body);
}

void http_ask(uint16_t port, const char *method, const char *path, const char *key,
              const char *body, http_reply *out)
{
    cn_buf request = {0};
    int fd = http_connect(port);
    *out = (http_reply){0};
    if (fd < 0) return;
    must(cn_buf_addf(&request, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path));
    if (key) must(cn_buf_addf(&request, "Authorization: Bearer %s\r\n", key));
    if (body)
        must(cn_buf_addf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                         strlen(body)));
    must(cn_buf_addf(&request, "\r\n%s", body ? body : ""));
    http_send(fd, request.data, request.len);
    http_read(fd, strcmp(method, "HEAD") == 0, out);
    cn_buf_free(&request);
    close(fd);
}

json_t *http_ask_json(uint16_t port, const char *method, const char *path, const char *body,
                      int want_status)
{
    http_reply r;
    http_ask(port, method, path, NULL, body, &r);
    json_t *json = json_loadb(r.body.data ? r.body.data : "", r.body.len, JSON_ALLOW_NUL, NULL);
    if (r.status != want_status || !json) {
        fprintf(stderr, "%s %s: expected status %d, got %d: %s\n", method, path, want_status,
                r.status, r.body.data ? r.body.data : "");
        abort();
    }
    http_reply_free(&r);
    return json;
}

/* ---- event streams ---- */

static void add_text(cn_buf *out, const json_t *text)
{
    if (json_is_string(text))
        must(cn_buf_add(out, json_string_value(text), json_string_length(text)));
}

static void take_event(http_stream *s, json_t *event, int index)
{
    json_t *usage = json_object_get(event, "usage"), *choice;
    size_t i;
    if (json_is_object(usage)) s->usage = usage;
    json_array_foreach(json_object_get(event, "choices"), i, choice)
    {
        if (json_integer_value(json_object_get(choice, "index")) != index) continue;
        const json_t *delta = json_object_get(choice, "delta");
        add_text(&s->text, json_object_get(delta ? delta : choice, delta ? "content" : "text"));
        add_text(&s->reasoning, json_object_get(delta, "reasoning_content"));
        const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
        if (finish) s->finish = finish;
    }
}

void http_stream_read(const char *body, int index, http_stream *out)
{
    *out = (http_stream){.events = json_array()};
    must(cn_buf_add(&out->text, "", 0));
    must(cn_buf_add(&out->reasoning, "", 0));
    for (const char *p = body; (p = strstr(p, "data: "));) {
        p += strlen("data: ");
        const char *end = strstr(p, "\n\n");
        if (!end) return;
        if (strncmp(p, "[DONE]", 6) == 0) {
            out->done = true;
            continue;
        }
        json_t *event = json_loadb(p, (size_t)(end - p), JSON_ALLOW_NUL, NULL);
        CN_ASSERT(event);
        json_array_append_new(out->events, event);
        take_event(out, event, index);
        p = end;
    }
}

void http_stream_free(http_stream *s)
{
    cn_buf_free(&s->text);
    cn_buf_free(&s->reasoning);
    json_decref(s->events);
}
