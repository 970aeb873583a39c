/* fuzz_http.c - feeds hostile bytes to the HTTP layer. Each input goes through a server with test
 * routes over a unix socket, once whole and once in pieces, and its head and chunks through the
 * parser. Must hold: no crash, no leak; each reply is valid HTTP; the server answers a plain
 * request afterwards; every exchange is closed. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/serve/http/http_server.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/http_client.h"

enum { MAX_BODY = 512, MAX_HEAD = 1024, TURNS = 64 };

static struct event_base *base;
static cn_http_server *server;
static cn_api_keys *keys;
static cn_serve_stats *stats;
static char path[64]; /* of the socket; a unix socket, because ports would run out */
static uint32_t n_open; /* exchanges before their closed() call */

/* ---- routes of every kind ---- */

static cn_exchange *late[8], *paused; /* answered or resumed on a later turn */
enum { MAX_LATE = sizeof late / sizeof *late };

static void on_closed(void *user, cn_exchange *x)
{
    (void)user;
    for (int i = 0; i < MAX_LATE; i++)
        if (late[i] == x) late[i] = NULL;
    if (paused == x) paused = NULL;
    n_open--;
}

static void open_exchange(cn_exchange *x)
{
    n_open++;
    cn_exchange_set_user(x, NULL, on_closed);
}

static void handle_echo(void *user, cn_exchange *x)
{
    (void)user;
    size_t n;
    const char *body = cn_exchange_body(x, &n);
    FUZZ_CHECK(n <= MAX_BODY);
    open_exchange(x);
    const char *limit = cn_exchange_query(x, "limit");
    if (limit) FUZZ_CHECK(strlen(limit) < MAX_HEAD);
    cn_exchange_reply(x, 200, "text/plain", body, n);
}

static void handle_late(void *user, cn_exchange *x)
{
    (void)user;
    int i = 0;
    while (late[i]) i++; /* there are fewer connections than entries */
    open_exchange(x);
    late[i] = x;
}

static void do_late_work(void)
{
    cn_exchange *upload = paused;
    paused = NULL;
    if (upload) cn_exchange_resume(upload);
    for (int i = 0; i < MAX_LATE; i++) {
        if (!late[i]) continue;
        cn_exchange_reply(late[i], 200, "text/plain", "late", 4);
        late[i] = NULL;
    }
}

static void handle_item(void *user, cn_exchange *x)
{
    (void)user;
    const char *id = cn_exchange_param(x, 0);
    FUZZ_CHECK(*id && *id != '.' && !strchr(id, '/') && strspn(id, "abcdefghijklmnopqrstuvwxyz"
               "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == strlen(id));
    open_exchange(x);
    cn_exchange_reply_json(x, 200, json_pack("{s:s}", "id", id));
}

static void on_ready(void *user, cn_exchange *x) { (void)user, (void)x; }

static void handle_stream(void *user, cn_exchange *x)
{
    (void)user;
    open_exchange(x);
    cn_exchange_begin(x, 200, "text/event-stream", on_ready);
    cn_exchange_send(x, "data: 1\n\n", 9);
    cn_exchange_end(x);
}

static uint64_t uploaded;

static void begin_upload(void *user, cn_exchange *x)
{
    (void)user;
    uploaded = 0;
    open_exchange(x);
    if (cn_exchange_announced_bytes(x) == 7) cn_exchange_error(x, 409, "seven", NULL, NULL);
}

static void take_upload(void *user, cn_exchange *x, const void *data, size_t n)
{
    (void)user;
    FUZZ_CHECK(n > 0 && data);
    uploaded += n;
    FUZZ_CHECK(uploaded <= MAX_BODY && !paused);
    if (memchr(data, 'l', n)) cn_exchange_pause(paused = x);
    if (memchr(data, '!', n)) cn_exchange_error(x, 400, "no shouting", NULL, NULL);
}

static void end_upload(void *user, cn_exchange *x)
{
    (void)user;
    cn_exchange_reply_json(x, 200, json_pack("{s:I}", "bytes", (json_int_t)uploaded));
}

static const cn_route routes[] = {
    {CN_HTTP_POST, "/echo", 0, handle_echo, MAX_BODY, NULL, NULL},
    {CN_HTTP_GET, "/echo", CN_ROUTE_OPEN, handle_echo, 0, NULL, NULL},
    {CN_HTTP_GET, "/late", CN_ROUTE_OPEN | CN_ROUTE_LONG, handle_late, 0, NULL, NULL},
    {CN_HTTP_GET, "/v1/files/{id}", CN_ROUTE_OPEN, handle_item, 0, NULL, NULL},
    {CN_HTTP_DELETE, "/v1/files/{id}/{part}", 0, handle_item, 0, NULL, NULL},
    {CN_HTTP_GET, "/stream", CN_ROUTE_OPEN | CN_ROUTE_LIMITED, handle_stream, 0, NULL, NULL},
    {CN_HTTP_POST, "/upload", CN_ROUTE_UPLOAD | CN_ROUTE_LIMITED, end_upload, MAX_BODY,
     begin_upload, take_upload},
};

static cn_budget memory = {.most = 4 * MAX_BODY}, samples_of_key[2] = {{.most = 2}, {.most = 2}};

static void open_server(void)
{
    cn_http_opts o = {
        .max_head_bytes = MAX_HEAD,
        .max_connections = 4,
        .memory = &memory,
        .request_timeout_s = 60,
        .idle_timeout_s = 60,
        .samples_of_key = samples_of_key,
        .access_log_fd = -1,
    };
    FUZZ_CHECK(cn_serve_stats_create(&stats) == CN_OK);
    FUZZ_CHECK(cn_api_keys_load(&keys, "a:the-secret-a,b:the-secret-b", NULL) == CN_OK);
    o.base = base = event_base_new();
    o.keys = keys;
    o.stats = stats;
    FUZZ_CHECK(cn_http_server_create(&server, &o) == CN_OK);
    cn_http_server_begin(server);
    FUZZ_CHECK(cn_http_server_add_routes(server, routes, sizeof routes / sizeof *routes, NULL) ==
               CN_OK);
    snprintf(path, sizeof path, "/tmp/cinch-fuzz-%d.sock", (int)getpid());
    FUZZ_CHECK(cn_http_server_listen_unix(server, path) == CN_OK);
}

static void close_server(void)
{
    cn_http_server_free(server);
    cn_serve_stats_free(stats);
    cn_api_keys_free(keys);
    event_base_free(base);
}

/* ---- over sockets ---- */

static void turn(int n)
{
    for (int i = 0; i < n; i++) {
        event_base_loop(base, EVLOOP_NONBLOCK);
        do_late_work();
    }
}

/* The received bytes must be replies, each with a status that the server knows. */
static void check_replies(const char *text, size_t n)
{
    if (n == 0) return;
    FUZZ_CHECK(n >= 13 && memcmp(text, "HTTP/1.1 ", 9) == 0);
    FUZZ_CHECK(text[9] >= '1' && text[9] <= '5' && text[12] == ' ');
    FUZZ_CHECK(memmem(text, n, "\r\n\r\n", 4) != NULL);
}

static void exchange_bytes(const uint8_t *data, size_t size, size_t piece)
{
    static char replies[1 << 16];
    size_t n = 0;
    int fd = http_connect_unix(path);
    FUZZ_CHECK(fd >= 0);
    turn(2);
    for (size_t at = 0; at < size; at += piece) {
        const size_t len = size - at < piece ? size - at : piece;
        if (send(fd, data + at, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len) break;
        turn(1);
    }
    shutdown(fd, SHUT_WR);
    turn(4);
    for (ssize_t got; n < sizeof replies; n += (size_t)got)
        if ((got = recv(fd, replies + n, sizeof replies - n, MSG_DONTWAIT)) <= 0) break;
    check_replies(replies, n);
    close(fd);
    for (int i = 0; i < TURNS && (n_open || cn_http_server_n_exchanges(server)); i++) turn(1);
    FUZZ_CHECK(n_open == 0 && cn_http_server_n_exchanges(server) == 0);
}

static void ask_plainly(void)
{
    static const char ask[] = "GET /echo HTTP/1.0\r\n\r\n";
    char reply[1024];
    ssize_t got = -1;
    int fd = http_connect_unix(path);
    FUZZ_CHECK(fd >= 0 && send(fd, ask, sizeof ask - 1, 0) == sizeof ask - 1);
    for (int i = 0; i < TURNS && got < 0; i++) {
        turn(1);
        got = recv(fd, reply, sizeof reply, MSG_DONTWAIT);
    }
    FUZZ_CHECK(got > 12 && memcmp(reply, "HTTP/1.1 200", 12) == 0);
    close(fd);
    turn(3);
}

/* ---- the parser alone ---- */

static void parse_alone(const uint8_t *data, size_t size)
{
    size_t seen = 0, length = 0, at_once = 0;
    const char *text = (const char *)data, *why = NULL;
    for (size_t n = 1; n <= size && !length; n++) length = cn_http_head_length(text, n, &seen);
    seen = 0;
    at_once = cn_http_head_length(text, size, &seen);
    FUZZ_CHECK(length == at_once && length <= size);
    if (length == 0) return;
    char *copy = malloc(length); /* exact size, so a read past the end is caught */
    FUZZ_CHECK(copy);
    memcpy(copy, data, length);
    cn_http_head h;
    int status = cn_http_parse_head(&h, copy, length, &why);
    FUZZ_CHECK(status == 0 || (status >= 400 && status < 600 && why));
    if (status == 0) {
        FUZZ_CHECK(h.path[0] == '/' && h.query && h.n_fields <= CN_HTTP_MAX_HEADERS);
        FUZZ_CHECK(!(h.chunked && h.has_length));
        FUZZ_CHECK(cn_http_header(&h, "Host") || h.minor == 0);
    }
    free(copy);
}

static void chunks_alone(const uint8_t *data, size_t size)
{
    cn_http_chunks whole = {0}, bytes = {0};
    uint64_t n_whole = 0, n_bytes = 0;
    bool bad_whole = false, bad_bytes = false;
    const char *piece;
    size_t n;
    for (size_t at = 0; at < size && !bad_whole && whole.state != CN_CHUNK_DONE; n_whole += n)
        at += cn_http_chunks_next(&whole, (const char *)data + at, size - at, &piece, &n,
                                  &bad_whole);
    for (size_t at = 0; at < size && !bad_bytes && bytes.state != CN_CHUNK_DONE; n_bytes += n)
        at += cn_http_chunks_next(&bytes, (const char *)data + at, 1, &piece, &n, &bad_bytes);
    FUZZ_CHECK(n_whole == n_bytes && bad_whole == bad_bytes && whole.state == bytes.state);
}

static void run(const uint8_t *data, size_t size)
{
    static uint32_t n_runs;
    parse_alone(data, size);
    chunks_alone(data, size);
    exchange_bytes(data, size, size ? size : 1);
    exchange_bytes(data, size, 1 + size / 7);
    if (++n_runs % 16 == 0) ask_plainly();
}

static const fuzz_input corpus[] = {
    FUZZ_TEXT("GET /echo?limit=2&a=%20 HTTP/1.1\r\nHost: h\r\n\r\n"),
    FUZZ_TEXT("POST /echo HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer the-secret-a\r\n"
              "Content-Length: 5\r\n\r\nhello"),
    FUZZ_TEXT("POST /upload HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer the-secret-b\r\n"
              "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nyou\r\n0\r\nA: b\r\n\r\n"),
    FUZZ_TEXT("GET /v1/files/file-123 HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n"
              "GET /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
    FUZZ_TEXT("DELETE /v1/files/a/b HTTP/1.1\r\nHost: h\r\n"
              "Authorization: Basic eDp0aGUtc2VjcmV0LWE=\r\n\r\n"),
    FUZZ_TEXT("HEAD /stream HTTP/1.0\r\n\r\n"),
    FUZZ_TEXT("GET /late HTTP/1.1\r\nHost: h\r\n\r\nGET /late HTTP/1.0\r\n\r\n"),
    FUZZ_TEXT("POST /upload HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer the-secret-b\r\n"
              "Expect: 100-continue\r\nContent-Length: 8\r\n\r\nhello yo"),
};

static const char *const words[] = {
    "\r\n\r\n", "\r\n", "\n\n", "GET ", "POST /upload ", "HTTP/1.1", "Host: h\r\n", ": ", "%00",
    "%2e%2e/", "../", "Transfer-Encoding: chunked\r\n", "Content-Length: 7\r\n", "0\r\n\r\n",
    "Content-Length: 18446744073709551615\r\n", "ffffffffffffff\r\n", "Bearer the-secret-a",
    "Authorization: ", "Basic ", "Connection: close\r\n", "Expect: 100-continue\r\n", "!", "\t",
};

int main(int argc, char **argv)
{
    const fuzz_target target = {
        .name = "http",
        .run = run,
        .corpus = corpus,
        .n_corpus = sizeof corpus / sizeof *corpus,
        .words = words,
        .n_words = sizeof words / sizeof *words,
        .max_size = 2048,
    };
    open_server();
    int status = fuzz_main(argc, argv, &target);
    close_server();
    return status;
}
