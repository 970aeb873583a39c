/* files_routes.c - /v1/files: upload, list, get, content, delete. Thread: HTTP, except functions
 * with a cn_batches parameter, which run on the batch thread.
 *
 * An upload is written to disk as it arrives: BEGIN (reserves space in the spool before the first
 * byte of the body is read) -> bytes -> KEEP. */
#include <unistd.h>

#include "engine/serve/routes/files_multipart.h"
#include "engine/serve/routes/spool_thread.h"

enum {
    FORM_BYTES = 64 << 10, /* most bytes of an upload's body beside the file */
    LIST_MOST = 10000
};

/* ---- get, list, delete ---- */

/* Answers with the failure of a spool operation. */
static void refuse_status(cn_spool_task *t, cn_status status)
{
    if (status == CN_ERR_IO)
        cn_spool_refuse(t, CN_HTTP_NO_STORAGE, NULL, "spool_error");
    else
        cn_spool_refuse(t, CN_HTTP_INTERNAL_ERROR, NULL, NULL);
}

static const cn_file *find_file(cn_spool_task *t, cn_batches *b)
{
    const cn_file *file = cn_files_find(cn_batches_files(b), &t->id);
    if (file && cn_viewer_sees(&t->viewer, file->owner)) return file;
    cn_fail(CN_ERR_ARG, "no such file: \"%s\"", t->id.text);
    cn_spool_refuse(t, CN_HTTP_NOT_FOUND, "id", NULL);
    return NULL;
}

static void work_files_get(cn_spool_task *t, cn_batches *b)
{
    const cn_file *file = find_file(t, b);
    if (file) t->reply = cn_file_json(file);
}

static void work_delete(cn_spool_task *t, cn_batches *b)
{
    if (!find_file(t, b)) return;
    const cn_batch_record *reader = cn_batches_reader_of(b, &t->id);
    if (reader) {
        cn_fail(CN_ERR_ARG, "%s is the input of the unfinished batch %s: cancel that batch first",
                t->id.text, reader->id.text);
        cn_spool_refuse(t, CN_HTTP_CONFLICT, "id", "file_in_use");
        return;
    }
    cn_status status = cn_files_remove(cn_batches_files(b), &t->id);
    if (status != CN_OK)
        refuse_status(t, status);
    else
        t->reply = json_pack("{s:s, s:s, s:b}", "id", t->id.text, "object", "file", "deleted", 1);
}

/* Begins a task about the file in the path. A malformed id is answered 404. */
static cn_spool_task *begin_with_id(void *part, cn_exchange *x,
                                    void (*work)(cn_spool_task *t, cn_batches *b))
{
    cn_spool_id id;
    if (!cn_spool_id_read(&id, cn_file_prefix, cn_exchange_param(x, 0))) {
        cn_exchange_error(x, CN_HTTP_NOT_FOUND, "no such file", "id", NULL);
        return NULL;
    }
    cn_spool_task *t = cn_spool_task_begin(part, x, work);
    if (t) t->id = id;
    return t;
}

static void handle_files_get(void *part, cn_exchange *x)
{
    cn_spool_task *t = begin_with_id(part, x, work_files_get);
    if (t) cn_spool_task_post(t);
}

static void handle_delete(void *part, cn_exchange *x)
{
    cn_spool_task *t = begin_with_id(part, x, work_delete);
    if (t) cn_spool_task_post(t);
}

typedef struct list_form {
    uint32_t limit;
    bool ascending;
    char purpose[32]; /* "": any */
} list_form;

static void work_files_list(cn_spool_task *t, cn_batches *b)
{
    const list_form *form = t->form;
    const cn_files *files = cn_batches_files(b);
    const size_t n = cn_files_count(files);
    bool begun = !*t->id.text, ok = true, more = false;
    json_t *data = json_array();
    for (size_t i = 0; data && i < n && ok && !more; i++) {
        const cn_file *file = cn_files_at(files, form->ascending ? i : n - 1 - i);
        if (!cn_viewer_sees(&t->viewer, file->owner)) continue;
        if (!begun) {
            begun = strcmp(file->id.text, t->id.text) == 0;
        } else if (!*form->purpose || strcmp(form->purpose, file->purpose) == 0) {
            more = json_array_size(data) == form->limit;
            if (!more) ok = json_array_append_new(data, cn_file_json(file)) == 0;
        }
    }
    if (!begun) {
        cn_fail(CN_ERR_ARG, "after: no such file: \"%s\"", t->id.text);
        cn_spool_refuse(t, CN_HTTP_BAD_REQUEST, "after", NULL);
    } else {
        t->reply = data && ok ? cn_spool_list_json(data, more) : NULL;
    }
    json_decref(data);
}

/* Returns false after an error reply. Each cn_exchange_query() overwrites the text of the last. */
static bool read_list_form(cn_exchange *x, list_form *form, cn_spool_id *after)
{
    const char *text = cn_exchange_query(x, "after");
    if (text && !cn_spool_id_read(after, cn_file_prefix, text)) {
        cn_exchange_error(x, CN_HTTP_BAD_REQUEST, "after: expected a file id", "after", NULL);
        return false;
    }
    text = cn_exchange_query(x, "order");
    form->ascending = text && strcmp(text, "asc") == 0;
    if (text && !form->ascending && strcmp(text, "desc") != 0) {
        cn_exchange_error(x, CN_HTTP_BAD_REQUEST, "order: expected asc or desc", "order", NULL);
        return false;
    }
    text = cn_exchange_query(x, "purpose");
    snprintf(form->purpose, sizeof form->purpose, "%s", text ? text : "");
    return cn_spool_read_limit(x, LIST_MOST, LIST_MOST, &form->limit);
}

static void handle_files_list(void *part, cn_exchange *x)
{
    cn_spool_id after = {""};
    list_form *form = cn_calloc(1, sizeof *form);
    if (!form) cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "out of memory", NULL, NULL);
    cn_spool_task *t = form && read_list_form(x, form, &after)
                           ? cn_spool_task_begin(part, x, work_files_list)
                           : NULL;
    if (!t) {
        cn_free(form);
        return;
    }
    t->form = form;
    t->free_form = cn_free;
    t->id = after;
    cn_spool_task_post(t);
}

/* ---- content ---- */

typedef struct content_form {
    int fd; /* -1: not open, or passed to the reply */
    uint64_t bytes;
} content_form;

static void free_content(void *form)
{
    content_form *f = form;
    if (f->fd >= 0) close(f->fd);
    cn_free(f);
}

static void work_content(cn_spool_task *t, cn_batches *b)
{
    content_form *form = t->form;
    if (!find_file(t, b)) return;
    cn_status status = cn_files_open_content(cn_batches_files(b), &t->id, &form->fd, &form->bytes);
    if (status != CN_OK) refuse_status(t, status);
}

static void then_content(cn_spool_task *t)
{
    content_form *form = t->form;
    if (t->http_status != CN_HTTP_OK) {
        cn_spool_task_reply(t);
        return;
    }
    const int fd = form->fd;
    form->fd = -1;
    cn_exchange_reply_file(t->x, CN_HTTP_OK, "application/octet-stream", fd, 0, (off_t)form->bytes);
}

static void handle_content(void *part, cn_exchange *x)
{
    content_form *form = cn_calloc(1, sizeof *form);
    if (!form) {
        cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "out of memory", NULL, NULL);
        return;
    }
    form->fd = -1;
    cn_spool_task *t = begin_with_id(part, x, work_content);
    if (!t) {
        free_content(form);
        return;
    }
    t->form = form;
    t->free_form = free_content;
    t->then = then_content;
    cn_spool_task_post(t);
}

/* ---- upload: the form ---- */

typedef struct upload_form {
    cn_multipart *parser;
    cn_upload upload; /* fd -1: not begun, or ended */
    uint64_t announced_bytes;
    bool begun, whole;
    bool in_file, has_file, in_purpose;
    char purpose[16];
    char filename[CN_MULTIPART_MAX_NAME + 1];
    int http_status; /* of a failure */
} upload_form;

static void free_upload(void *form)
{
    upload_form *f = form;
    /* Open only when the server stops: the next start removes the temporary file. */
    if (f->upload.fd >= 0) close(f->upload.fd);
    cn_multipart_free(f->parser);
    cn_free(f);
}

static cn_status begin_field(void *form, const char *name, const char *filename)
{
    upload_form *f = form;
    f->in_file = strcmp(name, "file") == 0;
    f->in_purpose = strcmp(name, "purpose") == 0;
    /* OpenAI's expiry of a file, as its package sends it. Files are kept until they are deleted. */
    if (strcmp(name, "expires_after") == 0 || strncmp(name, "expires_after[", 14) == 0)
        return CN_OK;
    if (!f->in_file && !f->in_purpose)
        return cn_fail(CN_ERR_ARG, "unknown form field \"%s\": expected file and purpose", name);
    if ((f->in_file && f->has_file) || (f->in_purpose && *f->purpose))
        return cn_fail(CN_ERR_ARG, "duplicate form field \"%s\"", name);
    if (!f->in_file) return CN_OK;
    f->has_file = true;
    snprintf(f->filename, sizeof f->filename, "%s", filename && *filename ? filename : "upload");
    return CN_OK;
}

static cn_status add_to_field(void *form, const char *data, size_t n)
{
    upload_form *f = form;
    if (f->in_file) {
        cn_status status = cn_upload_write(&f->upload, data, n);
        if (status != CN_OK)
            f->http_status = status == CN_ERR_ARG ? CN_HTTP_CONTENT_TOO_LARGE : CN_HTTP_NO_STORAGE;
        return status;
    }
    if (!f->in_purpose) return CN_OK;
    const size_t has = strlen(f->purpose);
    if (n >= sizeof f->purpose - has || memchr(data, '\0', n))
        return cn_fail(CN_ERR_ARG, "purpose: expected batch");
    memcpy(f->purpose + has, data, n);
    f->purpose[has + n] = '\0';
    return CN_OK;
}

static cn_status check_upload_form(const upload_form *f)
{
    CN_TRY(cn_multipart_finish(f->parser));
    if (!f->has_file) return cn_fail(CN_ERR_ARG, "missing form field \"file\"");
    if (strcmp(f->purpose, "batch") != 0)
        return cn_fail(CN_ERR_ARG, "purpose: expected batch, got \"%s\"", f->purpose);
    return CN_OK;
}

/* ---- upload: the stages ---- */

static void work_begin(cn_spool_task *t, cn_batches *b)
{
    upload_form *f = t->form;
    cn_status status = cn_upload_begin(cn_batches_files(b), f->announced_bytes, &f->upload);
    if (status == CN_ERR_ARG)
        cn_spool_refuse(t, CN_HTTP_FORBIDDEN, NULL, "quota_exceeded");
    else if (status == CN_ERR_BUSY)
        cn_spool_refuse(t, CN_HTTP_UNAVAILABLE, NULL, "spool_busy");
    else if (status != CN_OK)
        refuse_status(t, status);
}

static void work_keep(cn_spool_task *t, cn_batches *b)
{
    upload_form *f = t->form;
    const cn_file *file;
    cn_status status = cn_upload_keep(cn_batches_files(b), &f->upload, t->viewer.name,
                                      f->filename, f->purpose, &file);
    if (status == CN_OK)
        t->reply = cn_file_json(file);
    else
        refuse_status(t, status);
}

static void work_drop(cn_spool_task *t, cn_batches *b)
{
    upload_form *f = t->form;
    cn_upload_drop(cn_batches_files(b), &f->upload);
}

/* Removes the partial file of an upload that was refused, or whose client has disconnected. */
static bool drop_upload(cn_spool_task *t)
{
    const upload_form *f = t->form;
    if (f->upload.fd < 0) return false;
    t->work = work_drop;
    cn_spool_task_post(t);
    return true;
}

static void fail_upload(cn_spool_task *t, int http_status)
{
    const bool too_large = http_status == CN_HTTP_CONTENT_TOO_LARGE;
    cn_exchange_error(t->x, http_status, cn_last_error(), too_large ? "file" : NULL,
                      too_large ? "file_too_large" : NULL);
}

static void end_upload(cn_spool_task *t)
{
    if (check_upload_form(t->form) != CN_OK) {
        fail_upload(t, CN_HTTP_BAD_REQUEST);
        return;
    }
    t->work = work_keep;
    t->then = NULL;
    cn_spool_task_post(t);
}

static void then_begun(cn_spool_task *t)
{
    upload_form *f = t->form;
    cn_exchange *x = t->x;
    f->begun = t->http_status == CN_HTTP_OK;
    if (!f->begun) {
        cn_spool_task_reply(t);
        cn_exchange_resume(x);
    } else if (f->whole) {
        end_upload(t);
    } else {
        cn_exchange_resume(x);
    }
}

static void head_upload(void *part, cn_exchange *x)
{
    upload_form *f = cn_calloc(1, sizeof *f);
    if (!f) {
        cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "out of memory", NULL, NULL);
        return;
    }
    f->upload.fd = -1;
    f->announced_bytes = cn_exchange_announced_bytes(x);
    const cn_multipart_sink sink = {f, begin_field, add_to_field};
    cn_spool_task *t = NULL;
    if (cn_multipart_create(&f->parser, cn_exchange_header(x, "content-type"), &sink) != CN_OK)
        cn_exchange_error(x, CN_HTTP_BAD_REQUEST, cn_last_error(), NULL, NULL);
    else
        t = cn_spool_task_begin(part, x, work_begin);
    if (!t) {
        free_upload(f);
        return;
    }
    t->form = f;
    t->free_form = free_upload;
    t->then = then_begun;
    t->on_closed = drop_upload;
    cn_exchange_pause(x);
    cn_spool_task_post(t);
}

static void body_upload(void *part, cn_exchange *x, const void *data, size_t n)
{
    (void)part;
    cn_spool_task *t = cn_exchange_user(x);
    upload_form *f = t->form;
    f->http_status = CN_HTTP_BAD_REQUEST;
    if (cn_multipart_feed(f->parser, data, n) != CN_OK) fail_upload(t, f->http_status);
}

static void handle_upload(void *part, cn_exchange *x)
{
    (void)part;
    cn_spool_task *t = cn_exchange_user(x);
    upload_form *f = t->form;
    if (f->begun)
        end_upload(t);
    else
        f->whole = true; /* an empty body */
}

/* ---- the table ---- */

void cn_file_routes(cn_route routes[CN_FILE_ROUTES], size_t max_file_bytes)
{
    const cn_route rows[CN_FILE_ROUTES] = {
        {CN_HTTP_POST, "/v1/files", CN_ROUTE_UPLOAD | CN_ROUTE_FORM, handle_upload,
         max_file_bytes + FORM_BYTES, head_upload, body_upload},
        {CN_HTTP_GET, "/v1/files", 0, handle_files_list, 0, NULL, NULL},
        {CN_HTTP_GET, "/v1/files/{id}", 0, handle_files_get, 0, NULL, NULL},
        {CN_HTTP_DELETE, "/v1/files/{id}", 0, handle_delete, 0, NULL, NULL},
        {CN_HTTP_GET, "/v1/files/{id}/content", CN_ROUTE_LONG, handle_content, 0, NULL, NULL},
    };
    memcpy(routes, rows, sizeof rows);
}
