/* serve_ask.c - see serve_ask.h. */
#include "tests/lib/serve_ask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "tests/lib/http_client.h"

char *serve_long_body(int n, bool stream)
{
    static char body[512];
    snprintf(body, sizeof body,
             "{\"prompt\": \"Compute 12 * 34\", \"max_tokens\": %d, \"ignore_eos\": true, "
             "\"temperature\": 0, \"stream\": %s}", n, stream ? "true" : "false");
    return body;
}

void serve_send(int fd, const char *key, const char *body)
{
    char request[1024];
    assert_true(fd >= 0);
    snprintf(
        request, sizeof request,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "%s%s%sContent-Length: %zu\r\n\r\n%s",
        key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "", strlen(body), body);
    assert_true(http_send_text(fd, request));
}

int serve_begin(uint16_t port, const char *key, int n, bool stream)
{
    int fd = http_connect(port);
    serve_send(fd, key, serve_long_body(n, stream));
    return fd;
}

int serve_get_status(uint16_t port, const char *path, const char *key)
{
    http_reply r;
    http_ask(port, "GET", path, key, NULL, &r);
    int status = r.status;
    http_reply_free(&r);
    return status;
}

void serve_pause_ms(long ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}
