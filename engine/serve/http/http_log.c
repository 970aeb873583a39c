/* http_log.c - the access log: one line of JSON per request. When the log cannot be written (a full
 * disk, a full pipe), its lines are dropped and counted, and the server continues. Behind a line of
 * which only a part was written, the next one begins with a line break. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/serve/http/http_state.h"

static json_t *line_of(const cn_exchange *x, const char *why)
{
    struct timespec now;
    struct tm tm;
    char seconds[32], stamp[64];
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &tm));
    snprintf(stamp, sizeof stamp, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
    const char *method = x->head.path ? cn_http_method_name(x->head.method) : "";
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:o, s:i, s:I, s:I, s:f, s:I, s:I, s:s}", "time",
                     stamp, "id", x->id, "remote", x->conn->remote, "key", cn_exchange_key_name(x),
                     "method", method, "path", cn_json_text(x->head.path ? x->head.path : ""),
                     "status", x->status, "bytes_in", (json_int_t)x->body_bytes, "bytes_out",
                     (json_int_t)x->sent_bytes, "seconds", cn_now_s() - x->began_s,
                     "prompt_tokens", (json_int_t)x->prompt_tokens, "output_tokens",
                     (json_int_t)x->output_tokens, "end", why);
    if (line && x->client_id) json_object_set_new(line, "client_id", cn_json_text(x->client_id));
    if (line && x->refusal.len) json_object_set_new(line, "error", cn_json_text(x->refusal.data));
    return line;
}

/* Writes line[n], which begins with a line break. Drops the line when writing would block the event
 * loop (a full pipe or terminal). *is_torn: the log ends within a line. */
static bool write_line(int fd, const char *line, size_t n, bool *is_torn)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) return false;
    if (!*is_torn) line++, n--;
    ssize_t wrote;
    do
        wrote = write(fd, line, n);
    while (wrote < 0 && errno == EINTR);
    if (wrote > 0) *is_torn = line[wrote - 1] != '\n';
    return wrote == (ssize_t)n;
}

void cn_http_server_log_opened(cn_http_server *s, bool is_torn) { s->log_is_torn = is_torn; }

void http_log(const cn_exchange *x, const char *why)
{
    const cn_http_opts *o = &x->conn->server->o;
    if (o->access_log_fd < 0) return;
    json_t *object = line_of(x, why);
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    cn_buf line = {0};
    bool ok = text && cn_buf_addf(&line, "\n%s\n", text) == CN_OK &&
              write_line(o->access_log_fd, line.data, line.len, &x->conn->server->log_is_torn);
    if (!ok) {
        const bool is_first = cn_serve_stats_lock(o->stats)->log_lines_lost++ == 0;
        cn_serve_stats_unlock(o->stats);
        if (is_first)
            cn_log(CN_LOG_WARN, "a line of the access log cannot be written; "
                                "cinch_access_log_lines_lost_total counts such lines");
    }
    cn_buf_free(&line);
    free(text);
    json_decref(object);
}
