/* http_parse.h - a strict parser for the head of an HTTP/1.x request and the framing of its body.
 *
 * It refuses input that two parsers could read differently (RFC 9112), because a proxy in front of
 * the server is another parser.
 *
 * Owner: the caller. Thread: any. Pure functions over bytes; tests/fuzz_http.c fuzzes them.
 *
 * Refused: a bare CR or LF, a NUL, white space before a colon, folded lines, a repeated
 * Content-Length, Content-Length with Transfer-Encoding, any transfer coding except chunked, more
 * than CN_HTTP_MAX_HEADERS fields, HTTP/1.1 without exactly one Host, a target that is not a
 * path. */
#pragma once

#include "engine/api/http_status.h"
#include "engine/base/base.h"

typedef enum cn_http_method {
    CN_HTTP_GET,
    CN_HTTP_HEAD,
    CN_HTTP_POST,
    CN_HTTP_PUT,
    CN_HTTP_PATCH,
    CN_HTTP_DELETE,
    CN_HTTP_OPTIONS,
    CN_HTTP_OTHER, /* any other method */
    CN_HTTP_N_METHODS
} cn_http_method;
const char *cn_http_method_name(cn_http_method m); /* "GET"; "?" for OTHER */

enum { CN_HTTP_MAX_HEADERS = 64 };

typedef struct cn_http_field {
    const char *name, *value; /* NUL-terminated */
} cn_http_field;

typedef struct cn_http_head {
    cn_http_method method;
    char *path;  /* decoded; begins with '/', has no two in a row and none at its end
                  * unless it is "/"; holds no NUL */
    char *query; /* the raw text after '?', or "" */
    const char *authority; /* of a target in absolute form, not terminated; else NULL. It counts
                            * instead of the Host field. */
    size_t n_authority;
    uint8_t minor; /* of HTTP/1.minor */
    bool keep_alive;
    bool chunked;
    bool expects_continue;
    bool has_length;
    uint64_t content_length; /* 0 without one */
    cn_http_field fields[CN_HTTP_MAX_HEADERS];
    uint32_t n_fields;
} cn_http_head;

/* Returns the length of the head with its empty line; 0 while that has not arrived. Start with
 * *seen = 0 and pass the same variable again when more bytes arrive: no byte is scanned twice. */
size_t cn_http_head_length(const char *text, size_t n, size_t *seen);

/* Whether a request may begin with this byte. TLS does not. */
bool cn_http_may_begin(char c);

/* Parses text[n], a whole head. Changes text, and out points into it. Returns 0, or the HTTP status
 * of the refusal (400, 417, 431, 501, 505) with a static text in *why. */
int cn_http_parse_head(cn_http_head *out, char *text, size_t n, const char **why);

const char *cn_http_header(const cn_http_head *h, const char *name); /* NULL when absent */

/* Decodes %XX, and + as a space when plus, from text[n] into out[n + 1], which may be text. False
 * on an invalid escape or a NUL. */
bool cn_http_decode(const char *text, size_t n, bool plus, char *out);

/* ---- a chunked body ---- */

typedef struct cn_http_chunks {
    enum { CN_CHUNK_SIZE, CN_CHUNK_DATA, CN_CHUNK_DATA_END, CN_CHUNK_TRAILER, CN_CHUNK_DONE } state;
    uint64_t left;       /* bytes of the current chunk */
    uint32_t line_bytes; /* of the current size or trailer line */
    bool has_digits, after_cr, extension;
    uint32_t trailer_bytes;
} cn_http_chunks; /* zero-initialise */

/* Consumes framing from text[n] until there is data or no input is left. Returns the bytes
 * consumed, data included. *data points to *n_data bytes of body inside text. *bad: malformed. */
size_t cn_http_chunks_next(cn_http_chunks *c, const char *text, size_t n, const char **data,
                           size_t *n_data, bool *bad);
