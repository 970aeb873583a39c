/* files_multipart.h - the body of multipart/form-data (RFC 7578), piece by piece as it comes: what
 * is held is one part's header at most, whatever the parts' sizes.
 *
 * Owner: the caller. Thread: one at a time. Strict: a part without a name, a header that does not
 * end, a boundary that is followed by anything but a line end are refused. */
#ifndef CN_FILES_MULTIPART_H
#define CN_FILES_MULTIPART_H

#include "engine/base.h"

typedef struct cn_multipart cn_multipart;

enum {
    CN_MULTIPART_MAX_HEADER = 8 << 10, /* bytes of one part's header */
    CN_MULTIPART_MAX_PARTS = 32,
    CN_MULTIPART_MAX_NAME = 255 /* bytes of a name, or of a file's */
};

/* Each may refuse, which ends the parsing with its status. Texts are UTF-8 without control
 * characters; filename is NULL where the part is no file. */
typedef struct cn_multipart_sink {
    void *user;
    cn_status (*begin)(void *user, const char *name, const char *filename);
    cn_status (*data)(void *user, const char *data, size_t n);
    cn_status (*end)(void *user);
} cn_multipart_sink;

/* content_type: the request's header, or NULL. CN_ERR_ARG when it is not multipart/form-data with a
 * boundary. */
cn_status cn_multipart_create(cn_multipart **out, const char *content_type,
                              const cn_multipart_sink *sink);
void cn_multipart_free(cn_multipart *m); /* NULL is fine */

/* CN_ERR_ARG: the body is malformed. Not to be fed after a failure. */
cn_status cn_multipart_feed(cn_multipart *m, const char *data, size_t n);
/* At the end of the body: CN_ERR_ARG unless the last boundary has come. */
cn_status cn_multipart_finish(const cn_multipart *m);

#endif
