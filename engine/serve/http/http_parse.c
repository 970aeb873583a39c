/* http_parse.c - see http_parse.h. */
#include "engine/serve/http/http_parse.h"

#include <strings.h>

enum {
    MAX_LENGTH_DIGITS = 18,
    MAX_CHUNK_DIGITS = 15,
    MAX_CHUNK_LINE = 256,
    MAX_TRAILER = 4096
};

static const char *const methods[CN_HTTP_N_METHODS] = {
    [CN_HTTP_GET] = "GET",       [CN_HTTP_HEAD] = "HEAD",     [CN_HTTP_POST] = "POST",
    [CN_HTTP_PUT] = "PUT",       [CN_HTTP_PATCH] = "PATCH",   [CN_HTTP_DELETE] = "DELETE",
    [CN_HTTP_OPTIONS] = "OPTIONS", [CN_HTTP_OTHER] = "?",
};

const char *cn_http_method_name(cn_http_method m)
{
    CN_ASSERT(m < CN_HTTP_N_METHODS);
    return methods[m];
}

size_t cn_http_head_length(const char *text, size_t n, size_t *seen)
{
    for (size_t i = *seen; i < n; i++) {
        if (text[i] != '\n') continue;
        /* Bare line feeds also end a head, so that the parser refuses it instead of waiting. */
        bool bare = i >= 1 && text[i - 1] == '\n';
        bool crlf = i >= 2 && text[i - 1] == '\r' && text[i - 2] == '\n';
        if (bare || crlf) return i + 1;
    }
    *seen = n;
    return 0;
}

/* ---- characters ---- */

/* tchar of RFC 9110: the characters of methods and field names. */
static bool is_token_char(char c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static bool is_token(const char *text)
{
    for (const char *p = text; *p; p++)
        if (!is_token_char(*p)) return false;
    return *text != '\0';
}

static bool is_http_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_http_blank(char c) { return c == ' ' || c == '\t'; }

static int http_hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool cn_http_may_begin(char c) { return is_token_char(c); }

bool cn_http_decode(const char *text, size_t n, bool plus, char *out)
{
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '%') {
            int hi = n - i > 2 ? http_hex_value(text[i + 1]) : -1;
            int lo = n - i > 2 ? http_hex_value(text[i + 2]) : -1;
            if (hi < 0 || lo < 0) return false;
            c = (char)(hi * 16 + lo);
            i += 2;
        } else if (plus && c == '+') {
            c = ' ';
        }
        if (c == '\0') return false;
        *out++ = c;
    }
    *out = '\0';
    return true;
}

/* ---- request line ---- */

static cn_http_method find_http_method(const char *name)
{
    for (int m = 0; m < CN_HTTP_OTHER; m++)
        if (strcmp(name, methods[m]) == 0) return (cn_http_method)m;
    return CN_HTTP_OTHER;
}

/* Returns the path and the query of a target, and sets the authority of one in absolute form, as
 * proxies may send it (RFC 9112, 3.2.2). NULL: the target has another form, no host, or a user. */
static char *after_authority(cn_http_head *h, char *target)
{
    const size_t scheme = strncasecmp(target, "http://", 7) == 0    ? 7
                          : strncasecmp(target, "https://", 8) == 0 ? 8
                                                                    : 0;
    if (scheme == 0) return *target == '/' ? target : NULL;
    h->authority = target + scheme;
    h->n_authority = strcspn(h->authority, "/?");
    if (h->n_authority == 0 || *h->authority == ':') return NULL;
    if (memchr(h->authority, '@', h->n_authority)) return NULL;
    return target + scheme + h->n_authority;
}

/* Removes slashes after a slash, and one at the end: clients join a base URL and a path carelessly.
 */
static void drop_slashes(char *path)
{
    char *to = path;
    for (const char *from = path; *from; from++)
        if (*from != '/' || to == path || to[-1] != '/') *to++ = *from;
    if (to - path > 1 && to[-1] == '/') to--;
    *to = '\0';
}

static int parse_target(cn_http_head *h, char *target, const char **why)
{
    *why = "expected a path, or an http URL without a user, as the request target";
    for (const char *p = target; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == '#') return CN_HTTP_BAD_REQUEST;
    /* The server as a whole (RFC 9110, 9.3.7). */
    if (h->method == CN_HTTP_OPTIONS && strcmp(target, "*") == 0) *target = '/';
    char *path = after_authority(h, target);
    if (!path) return CN_HTTP_BAD_REQUEST;
    char *query = strchr(path, '?');
    if (query) *query++ = '\0';
    h->query = query ? query : path + strlen(path);
    if (!*path) path = strcpy(target, "/"); /* in place of the scheme */
    h->path = path;
    *why = "invalid percent-encoding in the path";
    if (!cn_http_decode(path, strlen(path), false, path)) return CN_HTTP_BAD_REQUEST;
    drop_slashes(path);
    return 0;
}

static int parse_version(cn_http_head *h, const char *version, const char **why)
{
    *why = "expected an HTTP version at the end of the request line";
    if (strncmp(version, "HTTP/", 5) != 0 || strlen(version) != 8 || !is_http_digit(version[5]) ||
        version[6] != '.' || !is_http_digit(version[7]))
        return CN_HTTP_BAD_REQUEST;
    *why = "unsupported HTTP version: expected HTTP/1.0 or HTTP/1.1";
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return CN_HTTP_VERSION_NOT_SUPPORTED;
    h->minor = version[7] == '1';
    return 0;
}

static int parse_request_line(cn_http_head *h, char *line, const char **why)
{
    *why = "malformed request line: expected METHOD TARGET VERSION";
    char *target = strchr(line, ' ');
    if (!target) return CN_HTTP_BAD_REQUEST;
    *target++ = '\0';
    char *version = strchr(target, ' ');
    if (!version || !is_token(line)) return CN_HTTP_BAD_REQUEST;
    *version++ = '\0';
    h->method = find_http_method(line);
    /* The preface of HTTP/2 is a client's mistake, not a version that the server could speak. */
    *why = "HTTP/2 is not supported: expected HTTP/1.1";
    if (strcmp(line, "PRI") == 0 && strcmp(version, "HTTP/2.0") == 0) return CN_HTTP_BAD_REQUEST;
    int status = parse_version(h, version, why);
    return status ? status : parse_target(h, target, why);
}

/* ---- fields ---- */

const char *cn_http_header(const cn_http_head *h, const char *name)
{
    for (uint32_t i = 0; i < h->n_fields; i++)
        if (strcasecmp(h->fields[i].name, name) == 0) return h->fields[i].value;
    return NULL;
}

static uint32_t count_fields(const cn_http_head *h, const char *name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->n_fields; i++) n += strcasecmp(h->fields[i].name, name) == 0;
    return n;
}

static int parse_field(cn_http_head *h, char *line, const char **why)
{
    *why = "too many header fields";
    if (h->n_fields == CN_HTTP_MAX_HEADERS) return CN_HTTP_HEADERS_TOO_LARGE;
    *why = "malformed header field: expected NAME: VALUE";
    char *colon = strchr(line, ':');
    if (!colon) return CN_HTTP_BAD_REQUEST;
    *colon = '\0';
    if (!is_token(line)) return CN_HTTP_BAD_REQUEST;
    char *value = colon + 1;
    while (is_http_blank(*value)) value++;
    char *end = value + strlen(value);
    while (end > value && is_http_blank(end[-1])) *--end = '\0';
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f) return CN_HTTP_BAD_REQUEST;
    h->fields[h->n_fields++] = (cn_http_field){line, value};
    return 0;
}

/* True when a comma-separated list contains the word, in any case. */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; *p;) {
        while (is_http_blank(*p) || *p == ',') p++;
        size_t len = strcspn(p, ",");
        size_t trimmed = len;
        while (trimmed > 0 && is_http_blank(p[trimmed - 1])) trimmed--;
        if (trimmed == n && strncasecmp(p, word, n) == 0) return true;
        p += len;
    }
    return false;
}

static int read_length(cn_http_head *h, const char **why)
{
    const char *text = cn_http_header(h, "Content-Length");
    *why = "duplicate Content-Length";
    if (count_fields(h, "Content-Length") > 1) return CN_HTTP_BAD_REQUEST;
    if (!text) return 0;
    size_t digits = strspn(text, "0123456789");
    *why = "Content-Length: expected a decimal number in range";
    if (digits == 0 || text[digits] || digits > MAX_LENGTH_DIGITS) return CN_HTTP_BAD_REQUEST;
    for (size_t i = 0; i < digits; i++)
        h->content_length = h->content_length * 10 + (uint64_t)(text[i] - '0');
    h->has_length = true;
    return 0;
}

static int read_framing(cn_http_head *h, const char **why)
{
    int status = read_length(h, why);
    if (status) return status;
    const char *coding = cn_http_header(h, "Transfer-Encoding");
    if (!coding) return 0;
    *why = "Transfer-Encoding must not be repeated, sent with Content-Length, or used in HTTP/1.0";
    if (h->has_length || h->minor == 0 || count_fields(h, "Transfer-Encoding") > 1)
        return CN_HTTP_BAD_REQUEST;
    *why = "unsupported Transfer-Encoding: expected chunked";
    if (strcasecmp(coding, "chunked") != 0) return CN_HTTP_NOT_IMPLEMENTED;
    h->chunked = true;
    return 0;
}

static int read_meaning(cn_http_head *h, const char **why)
{
    *why = "expected exactly one Host field in HTTP/1.1, at most one in HTTP/1.0";
    uint32_t hosts = count_fields(h, "Host");
    if (hosts > 1 || (h->minor == 1 && hosts == 0)) return CN_HTTP_BAD_REQUEST;
    h->keep_alive = h->minor == 1;
    for (uint32_t i = 0; i < h->n_fields; i++) {
        if (strcasecmp(h->fields[i].name, "Connection") != 0) continue;
        if (list_has(h->fields[i].value, "keep-alive")) h->keep_alive = true;
    }
    for (uint32_t i = 0; i < h->n_fields; i++) {
        if (strcasecmp(h->fields[i].name, "Connection") != 0) continue;
        if (list_has(h->fields[i].value, "close")) h->keep_alive = false;
    }
    const char *expect = cn_http_header(h, "Expect");
    *why = "unsupported Expect: expected 100-continue";
    if (expect && strcasecmp(expect, "100-continue") != 0) return CN_HTTP_EXPECTATION_FAILED;
    h->expects_continue = expect && h->minor == 1;
    return read_framing(h, why);
}

/* Replaces the line's CR LF by a NUL. Returns NULL when the line has a bare CR or LF, or a NUL. */
static char *cut_line(char *line, const char *end, char **next)
{
    char *lf = memchr(line, '\n', (size_t)(end - line));
    if (!lf || lf == line || lf[-1] != '\r') return NULL;
    size_t n = (size_t)(lf - 1 - line);
    if (memchr(line, '\r', n) || memchr(line, '\0', n)) return NULL;
    lf[-1] = '\0';
    *next = lf + 1;
    return line;
}

int cn_http_parse_head(cn_http_head *out, char *text, size_t n, const char **why)
{
    memset(out, 0, sizeof *out);
    const char *end = text + n;
    for (char *p = text, *next; p < end; p = next) {
        const bool first = p == text;
        *why = "a line of the head contains a NUL, or a CR or LF outside its CR LF end";
        char *line = cut_line(p, end, &next);
        if (!line) return CN_HTTP_BAD_REQUEST;
        if (!first && !*line) break;
        int status = first ? parse_request_line(out, line, why) : parse_field(out, line, why);
        if (status) return status;
    }
    *why = "missing request line";
    return out->path ? read_meaning(out, why) : CN_HTTP_BAD_REQUEST;
}

/* ---- chunks ---- */

static void begin_size(cn_http_chunks *c)
{
    c->state = CN_CHUNK_SIZE;
    c->left = 0;
    c->line_bytes = 0;
    c->has_digits = c->after_cr = c->extension = false;
}

/* Takes one byte of a size line such as "1a;ext\r\n". False: malformed. */
static bool take_size(cn_http_chunks *c, char byte)
{
    int digit = http_hex_value(byte);
    if (++c->line_bytes > MAX_CHUNK_LINE) return false;
    if (c->after_cr) {
        if (byte != '\n') return false;
        c->after_cr = false;
        c->line_bytes = 0;
        c->state = c->left ? CN_CHUNK_DATA : CN_CHUNK_TRAILER;
        return true;
    }
    if (byte == '\r') return c->after_cr = c->has_digits;
    if (c->extension) return byte == '\t' || (unsigned char)byte >= ' ';
    if (digit >= 0) {
        if (c->line_bytes > MAX_CHUNK_DIGITS) return false;
        c->left = c->left * 16 + (uint64_t)digit;
        return c->has_digits = true;
    }
    return c->extension = c->has_digits && (byte == ';' || is_http_blank(byte));
}

/* Takes one byte of the CR LF after a chunk's data. False: malformed. */
static bool take_data_end(cn_http_chunks *c, char byte)
{
    if (!c->after_cr) return c->after_cr = byte == '\r';
    begin_size(c);
    return byte == '\n';
}

/* Takes one byte of the trailer, whose lines are ignored up to the empty one. False: malformed. */
static bool take_trailer(cn_http_chunks *c, char byte)
{
    if (++c->trailer_bytes > MAX_TRAILER) return false;
    if (c->after_cr) {
        c->after_cr = false;
        if (byte != '\n') return false;
        if (c->line_bytes == 0) c->state = CN_CHUNK_DONE;
        c->line_bytes = 0;
        return true;
    }
    if (byte == '\r') return c->after_cr = true;
    c->line_bytes++;
    return byte != '\n' && byte != '\0';
}

size_t cn_http_chunks_next(cn_http_chunks *c, const char *text, size_t n, const char **data,
                           size_t *n_data, bool *bad)
{
    *n_data = 0;
    *bad = false;
    for (size_t i = 0; i < n && c->state != CN_CHUNK_DONE; i++) {
        if (c->state == CN_CHUNK_DATA) {
            *data = text + i;
            *n_data = c->left < n - i ? (size_t)c->left : n - i;
            c->left -= *n_data;
            if (c->left == 0) c->state = CN_CHUNK_DATA_END;
            return i + *n_data;
        }
        bool ok = c->state == CN_CHUNK_SIZE       ? take_size(c, text[i])
                  : c->state == CN_CHUNK_DATA_END ? take_data_end(c, text[i])
                                                  : take_trailer(c, text[i]);
        *bad = !ok;
        if (!ok || c->state == CN_CHUNK_DONE) return i + 1;
    }
    return c->state == CN_CHUNK_DONE ? 0 : n;
}
