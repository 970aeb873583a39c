/* files_multipart.c - see files_multipart.h. Keeps a window of the body, searches it for the
 * delimiter or a whole header, and passes on the bytes that cannot be part of either. */
#include "engine/serve/routes/files_multipart.h"

#include <strings.h>

#include "engine/base/utf8.h"

enum {
    MAX_BOUNDARY = 70, /* RFC 2046 */
    WINDOW_BYTES = 2 * CN_MULTIPART_MAX_HEADER
};

typedef enum parse_state {
    IN_PREAMBLE,
    AFTER_BOUNDARY, /* expects a line end, or the two dashes of the last boundary */
    IN_HEADER,
    IN_DATA,
    IN_EPILOGUE
} parse_state;

struct cn_multipart {
    cn_multipart_sink sink;
    parse_state state;
    uint32_t n_parts;
    char delimiter[MAX_BOUNDARY + 5]; /* CR LF - - boundary */
    size_t delimiter_len;
    char window[WINDOW_BYTES + 1]; /* [len], plus a NUL while a header is read */
    size_t len;
};

/* ---- parameters of a header ---- */

typedef enum scan { SCAN_PARAM, SCAN_END, SCAN_BAD } scan;

/* Reads `; key=value` or `; key="value"` at *at. In quotes, a backslash escapes '"' and '\'. */
static scan next_param(const char **at, char *key, char *value, size_t size)
{
    const char *p = *at + strspn(*at, " \t");
    size_t n = 0;
    if (!*p) return SCAN_END;
    if (*p != ';') return SCAN_BAD;
    p += 1 + strspn(p + 1, " \t");
    if (!*p) return SCAN_END;
    n = strcspn(p, "=; \t\"");
    if (p[n] != '=' || n == 0 || n >= size) return SCAN_BAD;
    memcpy(key, p, n);
    key[n] = '\0';
    p += n + 1;
    n = 0;
    const bool quoted = *p == '"';
    p += quoted;
    while (*p && (quoted ? *p != '"' : !strchr("; \t", *p))) {
        if (quoted && *p == '\\' && (p[1] == '"' || p[1] == '\\')) p++;
        if (n + 1 >= size) return SCAN_BAD;
        value[n++] = *p++;
    }
    value[n] = '\0';
    if (quoted && *p++ != '"') return SCAN_BAD;
    *at = p;
    return SCAN_PARAM;
}

static bool is_plain_text(const char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) return false;
    return cn_utf8_valid_prefix(text, n) == n;
}

/* ---- opening ---- */

static cn_status read_boundary(cn_multipart *m, const char *content_type)
{
    static const char want[] = "multipart/form-data";
    char key[CN_MULTIPART_MAX_NAME + 1], value[CN_MULTIPART_MAX_NAME + 1];
    if (!content_type || strncasecmp(content_type, want, sizeof want - 1) != 0)
        return cn_fail(CN_ERR_ARG, "Content-Type: expected %s", want);
    const char *at = content_type + sizeof want - 1;
    scan s;
    while ((s = next_param(&at, key, value, sizeof value)) == SCAN_PARAM) {
        if (strcasecmp(key, "boundary") != 0) continue;
        const size_t n = strlen(value);
        if (n == 0 || n > MAX_BOUNDARY || !is_plain_text(value)) break;
        m->delimiter_len = (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%s", value);
        return CN_OK;
    }
    return cn_fail(CN_ERR_ARG, "Content-Type: expected %s with a boundary of 1 to %d characters",
                   want, (int)MAX_BOUNDARY);
}

cn_status cn_multipart_create(cn_multipart **out, const char *content_type,
                              const cn_multipart_sink *sink)
{
    cn_multipart *m = cn_calloc(1, sizeof *m);
    if (!m) return cn_fail(CN_ERR_MEMORY, "out of memory for an upload");
    m->sink = *sink;
    /* The first boundary may begin the body. The delimiter includes a line end, so add one. */
    memcpy(m->window, "\r\n", 2);
    m->len = 2;
    cn_status status = read_boundary(m, content_type);
    if (status == CN_OK)
        *out = m;
    else
        cn_multipart_free(m);
    return status;
}

void cn_multipart_free(cn_multipart *m) { cn_free(m); }

/* ---- a part's header ---- */

static cn_status read_disposition(cn_multipart *m, const char *at)
{
    char key[CN_MULTIPART_MAX_NAME + 1], value[CN_MULTIPART_MAX_NAME + 1];
    char name[CN_MULTIPART_MAX_NAME + 1], filename[CN_MULTIPART_MAX_NAME + 1];
    bool has_name = false, has_filename = false;
    static const char want[] = "form-data";
    scan s;
    at += strspn(at, " \t");
    if (strncasecmp(at, want, sizeof want - 1) != 0)
        return cn_fail(CN_ERR_ARG, "Content-Disposition of a part: expected %s", want);
    at += sizeof want - 1;
    while ((s = next_param(&at, key, value, sizeof value)) == SCAN_PARAM) {
        if (!is_plain_text(value)) s = SCAN_BAD;
        if (s == SCAN_BAD) break;
        if (strcasecmp(key, "name") == 0) {
            memcpy(name, value, sizeof name);
            has_name = true;
        } else if (strcasecmp(key, "filename") == 0) {
            memcpy(filename, value, sizeof filename);
            has_filename = true;
        }
    }
    if (s == SCAN_BAD || !has_name || !*name)
        return cn_fail(CN_ERR_ARG, "Content-Disposition of a part: expected a name, and UTF-8 "
                       "values of at most %d bytes", (int)CN_MULTIPART_MAX_NAME);
    return m->sink.begin(m->sink.user, name, has_filename ? filename : NULL);
}

/* Finds Content-Disposition in header[n], a NUL-terminated text of lines that end in CR LF. */
static cn_status read_header(cn_multipart *m, char *header, size_t n)
{
    static const char field[] = "Content-Disposition:";
    if (strlen(header) != n) return cn_fail(CN_ERR_ARG, "a part's header contains a NUL");
    for (char *line = header; *line;) {
        char *end = strstr(line, "\r\n");
        char *next = end ? end + 2 : line + strlen(line);
        if (end) *end = '\0';
        if (strncasecmp(line, field, sizeof field - 1) == 0)
            return read_disposition(m, line + sizeof field - 1);
        line = next;
    }
    return cn_fail(CN_ERR_ARG, "a part of the form has no Content-Disposition");
}

/* ---- the window ---- */

static void consume_multipart(cn_multipart *m, size_t n)
{
    memmove(m->window, m->window + n, m->len - n);
    m->len -= n;
}

/* Each of these consumes what it can of the window. *more: call the next state's function. */

static cn_status take_multipart_data(cn_multipart *m, bool *more)
{
    const char *found = memmem(m->window, m->len, m->delimiter, m->delimiter_len);
    const size_t keep = m->delimiter_len - 1; /* the last bytes may begin a delimiter */
    const size_t n = found ? (size_t)(found - m->window) : m->len > keep ? m->len - keep : 0;
    if (m->state == IN_DATA && n > 0) CN_TRY(m->sink.data(m->sink.user, m->window, n));
    consume_multipart(m, found ? n + m->delimiter_len : n);
    if (found) m->state = AFTER_BOUNDARY;
    *more = found != NULL;
    return CN_OK;
}

static cn_status take_boundary_end(cn_multipart *m, bool *more)
{
    size_t blanks = 0;
    while (blanks < m->len && (m->window[blanks] == ' ' || m->window[blanks] == '\t')) blanks++;
    if (blanks > MAX_BOUNDARY)
        return cn_fail(CN_ERR_ARG, "a boundary is followed by more than %d blanks",
                       (int)MAX_BOUNDARY);
    *more = m->len - blanks >= 2;
    if (!*more) return CN_OK;
    const char *at = m->window + blanks;
    if (memcmp(at, "\r\n", 2) == 0) {
        if (m->n_parts++ == CN_MULTIPART_MAX_PARTS)
            return cn_fail(CN_ERR_ARG, "the form exceeds %d parts",
                           (int)CN_MULTIPART_MAX_PARTS);
        m->state = IN_HEADER;
        /* Keep the line end: together with another one it is the end of an empty header. */
        consume_multipart(m, blanks);
        return CN_OK;
    }
    if (blanks > 0 || memcmp(at, "--", 2) != 0)
        return cn_fail(CN_ERR_ARG, "expected a line end or \"--\" after a boundary");
    m->state = IN_EPILOGUE;
    return CN_OK;
}

static cn_status take_header(cn_multipart *m, bool *more)
{
    const char *found = memmem(m->window, m->len, "\r\n\r\n", 4);
    *more = found != NULL;
    if (!found && m->len < CN_MULTIPART_MAX_HEADER) return CN_OK;
    const size_t n = found ? (size_t)(found - m->window) : m->len;
    if (n >= CN_MULTIPART_MAX_HEADER)
        return cn_fail(CN_ERR_ARG, "a part's header exceeds %d bytes",
                       (int)CN_MULTIPART_MAX_HEADER);
    m->window[n] = '\0';
    CN_TRY(n < 2 ? read_header(m, m->window + n, 0) : read_header(m, m->window + 2, n - 2));
    consume_multipart(m, n + 4);
    m->state = IN_DATA;
    return CN_OK;
}

static cn_status process(cn_multipart *m)
{
    for (bool more = true; more;) {
        switch (m->state) {
        case IN_PREAMBLE:
        case IN_DATA: CN_TRY(take_multipart_data(m, &more)); break;
        case AFTER_BOUNDARY: CN_TRY(take_boundary_end(m, &more)); break;
        case IN_HEADER: CN_TRY(take_header(m, &more)); break;
        case IN_EPILOGUE:
            m->len = 0;
            more = false;
            break;
        }
    }
    return CN_OK;
}

cn_status cn_multipart_feed(cn_multipart *m, const char *data, size_t n)
{
    while (n > 0) {
        const size_t room = WINDOW_BYTES - m->len, piece = n < room ? n : room;
        memcpy(m->window + m->len, data, piece);
        m->len += piece;
        data += piece;
        n -= piece;
        CN_TRY(process(m));
    }
    return CN_OK;
}

cn_status cn_multipart_finish(const cn_multipart *m)
{
    if (m->state == IN_EPILOGUE) return CN_OK;
    return cn_fail(CN_ERR_ARG, "the form ends before its last boundary");
}
