/* files_multipart.h - parses a multipart/form-data body (RFC 7578) piece by piece as it arrives.
 *
 * Memory is fixed: a window of two header limits, whatever the sizes of the parts.
 *
 * Owner: the caller. Thread: one at a time. Strict: refuses a part without a name, a header that
 * does not end, and a boundary followed by anything but blanks and a line end. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_multipart cn_multipart;

enum {
    CN_MULTIPART_MAX_HEADER = 8 << 10, /* bytes of one part's header */
    CN_MULTIPART_MAX_PARTS = 32,
    CN_MULTIPART_MAX_NAME = 255 /* bytes of a field name or a file name */
};

/* A part is one call of begin and any number of calls of data. A failure of either function ends
 * the parsing with its status. name and filename are UTF-8 without control characters. filename is
 * NULL when the part is not a file. */
typedef struct cn_multipart_sink {
    void *user;
    cn_status (*begin)(void *user, const char *name, const char *filename);
    cn_status (*data)(void *user, const char *data, size_t n);
} cn_multipart_sink;

/* content_type: the request's Content-Type, or NULL. CN_ERR_ARG: it is not multipart/form-data with
 * a boundary. */
cn_status cn_multipart_create(cn_multipart **out, const char *content_type,
                              const cn_multipart_sink *sink);
void cn_multipart_free(cn_multipart *m); /* NULL is fine */

/* Takes the next data[n] of the body. CN_ERR_ARG: the body is malformed. Must not be called after a
 * failure. */
cn_status cn_multipart_feed(cn_multipart *m, const char *data, size_t n);
/* Call it at the end of the body. CN_ERR_ARG: the last boundary is missing. */
cn_status cn_multipart_finish(const cn_multipart *m);
