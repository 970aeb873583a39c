/* spool_files.c - see spool_files.h. */
#include "engine/serve/spool/spool_files.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/json.h"

struct cn_files {
    cn_spool *spool;
    cn_file_limits limits;
    cn_file *all; /* [n], by order */
    size_t n;
    uint64_t bytes, reserved_bytes, unlisted_bytes, next_order;
    cn_list uploads;
};

/* ---- the list ---- */

size_t cn_files_count(const cn_files *f) { return f->n; }
const cn_file *cn_files_at(const cn_files *f, size_t i) { return &f->all[i]; }

static cn_file *find_spool_file(const cn_files *f, const cn_spool_id *id)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->all[i].id.text, id->text) == 0) return &f->all[i];
    return NULL;
}

const cn_file *cn_files_find(const cn_files *f, const cn_spool_id *id)
{
    return find_spool_file(f, id);
}

static uint64_t taken_bytes(const cn_files *f)
{
    return f->bytes + f->reserved_bytes + f->unlisted_bytes;
}

void cn_files_set_unlisted_bytes(cn_files *f, uint64_t bytes) { f->unlisted_bytes = bytes; }

bool cn_files_have_room(const cn_files *f, uint64_t bytes)
{
    const uint64_t taken = taken_bytes(f);
    return taken <= f->limits.max_bytes && bytes <= f->limits.max_bytes - taken;
}

bool cn_viewer_sees(const cn_viewer *v, const char *owner)
{
    return v->sees_all || strcmp(v->name, owner) == 0;
}

static void free_texts(cn_file *file)
{
    cn_free(file->filename);
    cn_free(file->owner);
}

/* Takes over the file's texts. */
static cn_status add_spool_file(cn_files *f, const cn_file *file)
{
    CN_TRY(CN_ROOM(&f->all, f->n, "the list of files"));
    f->all[f->n++] = *file;
    f->bytes += file->bytes;
    if (file->order >= f->next_order) f->next_order = cn_spool_order_after(file->order);
    return CN_OK;
}

static void forget(cn_files *f, cn_file *file)
{
    f->bytes -= file->bytes;
    free_texts(file);
    memmove(file, file + 1, (size_t)(f->all + f->n - file - 1) * sizeof *file);
    f->n--;
}

/* ---- records ---- */

json_t *cn_file_json(const cn_file *file)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s}", "id", file->id.text, "object", "file",
                     "bytes", (json_int_t)file->bytes, "created_at", (json_int_t)file->created_at,
                     "filename", file->filename, "purpose", file->purpose, "status", "processed");
}

static cn_status put_record(cn_files *f, const cn_file *file)
{
    json_t *record = cn_file_json(file);
    if (!record || json_object_set_new(record, "order", json_integer((json_int_t)file->order)) ||
        json_object_set_new(record, "owner", json_string(file->owner))) {
        json_decref(record);
        return cn_fail(CN_ERR_MEMORY, "%s: cannot make its record: out of memory, or the file "
                       "name is not UTF-8", file->id.text);
    }
    cn_status status = cn_spool_put_record(f->spool, CN_SPOOL_FILES, &file->id, record);
    json_decref(record);
    return status;
}

static cn_status read_record(cn_file *file, const json_t *record)
{
    const cn_json_at at = {record, file->id.text, CN_ERR_MODEL};
    const char *filename = NULL, *purpose = NULL, *owner = "";
    int64_t order = 0;
    CN_TRY(cn_json_i64(&at, "created_at", CN_JSON_REQUIRED, 0, INT64_MAX, &file->created_at));
    CN_TRY(cn_json_i64(&at, "order", CN_JSON_REQUIRED, 0, CN_SPOOL_MAX_ORDER, &order));
    CN_TRY(cn_json_str(&at, "filename", CN_JSON_REQUIRED, &filename));
    CN_TRY(cn_json_str(&at, "purpose", CN_JSON_REQUIRED, &purpose));
    CN_TRY(cn_json_str(&at, "owner", CN_JSON_OPTIONAL, &owner));
    if (strcmp(purpose, "batch") != 0 && strcmp(purpose, "batch_output") != 0)
        return cn_fail(CN_ERR_MODEL, "%s: purpose: expected batch or batch_output", at.where);
    file->order = (uint64_t)order;
    snprintf(file->purpose, sizeof file->purpose, "%s", purpose);
    file->filename = cn_strdup(filename);
    file->owner = cn_strdup(owner);
    if (file->filename && file->owner) return CN_OK;
    return cn_fail(CN_ERR_MEMORY, "out of memory for a file's name");
}

/* ---- opening ---- */

typedef struct opening {
    cn_files *files;
    cn_file_in_use_fn in_use;
    void *user;
} opening;

/* Reads the record of a file. The size is that of the content. */
static cn_status load_files(cn_files *f, const cn_spool_id *id)
{
    cn_file file = {.id = *id};
    json_t *record = NULL;
    int fd = -1;
    cn_status status = cn_spool_open_name(f->spool, CN_SPOOL_FILES, id->text, &fd, &file.bytes);
    if (status == CN_OK) status = cn_spool_get_record(f->spool, CN_SPOOL_FILES, id, &record);
    if (status == CN_OK) status = read_record(&file, record);
    if (fd >= 0) close(fd);
    json_decref(record);
    if (status == CN_OK) status = add_spool_file(f, &file);
    if (status != CN_OK) free_texts(&file);
    return status;
}

static cn_status take_files_name(void *user, const char *name)
{
    const opening *o = user;
    cn_spool_id id;
    if (!cn_spool_is_record(name, cn_file_prefix, &id)) return CN_OK;
    cn_status status = load_files(o->files, &id);
    if (status == CN_OK || status == CN_ERR_MEMORY) return status;
    cn_log(CN_LOG_WARN, "spool: ignored file %s, whose record must be repaired or removed: %s",
           id.text, cn_last_error());
    return CN_OK;
}

static cn_status drop_orphan(void *user, const char *name)
{
    const opening *o = user;
    cn_spool_id id;
    if (!cn_spool_id_read(&id, cn_file_prefix, name)) return CN_OK;
    /* Keep the content of a file whose record exists but could not be read. */
    if (cn_spool_has_record(o->files->spool, CN_SPOOL_FILES, &id)) return CN_OK;
    if (o->in_use(o->user, &id)) return CN_OK;
    if (cn_spool_remove(o->files->spool, CN_SPOOL_FILES, name) == CN_OK)
        cn_log(CN_LOG_INFO, "spool: removed content without a record, %s", name);
    else
        cn_log(CN_LOG_WARN, "spool: ignored: %s", cn_last_error());
    return CN_OK;
}

static int by_files_order(const void *a, const void *b)
{
    const cn_file *x = a, *y = b;
    const int order = (x->order > y->order) - (x->order < y->order);
    return order ? order : strcmp(x->id.text, y->id.text);
}

cn_status cn_files_open(cn_files **out, cn_spool *s, const cn_file_limits *limits,
                        cn_file_in_use_fn in_use, void *user)
{
    cn_files *f = cn_calloc(1, sizeof *f);
    if (!f) return cn_fail(CN_ERR_MEMORY, "out of memory for the list of files");
    f->spool = s;
    f->limits = *limits;
    opening o = {f, in_use, user};
    cn_status status = cn_spool_each(s, CN_SPOOL_FILES, take_files_name, &o);
    if (status == CN_OK) status = cn_spool_each(s, CN_SPOOL_FILES, drop_orphan, &o);
    if (status != CN_OK) {
        cn_files_close(f);
        return status;
    }
    if (f->n) qsort(f->all, f->n, sizeof *f->all, by_files_order);
    *out = f;
    return CN_OK;
}

void cn_files_close(cn_files *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n; i++) free_texts(&f->all[i]);
    cn_free(f->all);
    cn_free(f);
}

cn_status cn_files_open_content(cn_files *f, const cn_spool_id *id, int *fd, uint64_t *bytes)
{
    return cn_spool_open_name(f->spool, CN_SPOOL_FILES, id->text, fd, bytes);
}

/* ---- uploads ---- */

double cn_files_now_s(const cn_file_limits *l) { return l->now_s ? l->now_s() : cn_now_s(); }

/* Takes back what old uploads have reserved and not written. */
static void expire_reservations(cn_files *f)
{
    const double now = cn_files_now_s(&f->limits);
    if (f->limits.upload_expires_s == 0) return;
    CN_LIST_EACH(cn_upload, u, &f->uploads, node) {
        const uint64_t written = atomic_load(&u->bytes);
        if (now - u->began_s < f->limits.upload_expires_s || written >= u->reserved_bytes) continue;
        atomic_store(&u->expired, true);
        atomic_store(&u->limit_bytes, written);
        f->reserved_bytes -= u->reserved_bytes - written;
        u->reserved_bytes = written;
        cn_log(CN_LOG_WARN, "spool: the reservation of an unfinished upload has expired, %s",
               u->temp.text);
    }
}

static cn_status check_upload_room(const cn_files *f, uint64_t bytes)
{
    if (cn_files_have_room(f, bytes)) return CN_OK;
    const unsigned long long most = f->limits.max_bytes, needed = bytes,
                             stored = taken_bytes(f) - f->reserved_bytes;
    if (needed > most || stored > most - needed)
        return cn_fail_param("file",
                             "the spool uses %llu of %llu bytes (--max-spool-bytes), and this "
                             "upload may need %llu: delete files first",
                             stored, most, needed);
    return cn_fail(CN_ERR_BUSY,
                   "the spool uses %llu of %llu bytes (--max-spool-bytes), this upload may need "
                   "%llu, and other uploads have reserved the rest: try again later",
                   stored, most, needed);
}

cn_status cn_upload_begin(cn_files *f, uint64_t announced, cn_upload *u)
{
    const cn_file_limits *l = &f->limits;
    *u = (cn_upload){.fd = -1, .began_s = cn_files_now_s(l)};
    u->reserved_bytes = announced && announced < l->max_file_bytes ? announced : l->max_file_bytes;
    atomic_store(&u->limit_bytes, u->reserved_bytes);
    if (f->n + f->uploads.n >= l->max_files)
        return cn_fail_param("file",
                             "the spool already has %u files (--max-files): delete files first",
                             l->max_files);
    if (!cn_files_have_room(f, u->reserved_bytes)) expire_reservations(f);
    CN_TRY(check_upload_room(f, u->reserved_bytes));
    CN_TRY(cn_spool_temp_open(f->spool, &u->temp, &u->fd));
    f->reserved_bytes += u->reserved_bytes;
    cn_list_append(&f->uploads, &u->node);
    return CN_OK;
}

cn_status cn_upload_write(cn_upload *u, const void *data, size_t n)
{
    const uint64_t limit = atomic_load(&u->limit_bytes), bytes = atomic_load(&u->bytes);
    if (bytes > limit || n > limit - bytes) {
        if (atomic_load(&u->expired))
            return cn_fail(CN_ERR_BUSY, "the upload was slow and the spool is full "
                           "(--max-spool-bytes): delete files and upload it again");
        return cn_fail(CN_ERR_ARG, "the file exceeds %llu bytes (--max-file-bytes)",
                       (unsigned long long)limit);
    }
    const size_t done = cn_write_all(u->fd, data, n);
    atomic_fetch_add(&u->bytes, done);
    return done == n ? CN_OK : cn_fail(CN_ERR_IO, "spool: write: %s", strerror(errno));
}

static void end_files_upload(cn_files *f, cn_upload *u)
{
    close(u->fd);
    u->fd = -1;
    f->reserved_bytes -= u->reserved_bytes;
    cn_list_remove(&f->uploads, &u->node);
}

void cn_upload_drop(cn_files *f, cn_upload *u)
{
    if (u->fd < 0) return;
    end_files_upload(f, u);
    if (cn_spool_remove(f->spool, CN_SPOOL_TMP, u->temp.text) != CN_OK)
        cn_log(CN_LOG_WARN, "%s", cn_last_error());
}

static cn_status make_file(cn_files *f, cn_file *file)
{
    cn_status status = put_record(f, file);
    if (status == CN_OK) status = add_spool_file(f, file);
    return status;
}

cn_status cn_upload_keep(cn_files *f, cn_upload *u, const char *owner, const char *filename,
                         const char *purpose, const cn_file **out)
{
    cn_file file = {.id = u->temp,
                    .filename = cn_strndup(filename, CN_FILE_NAME_BYTES),
                    .owner = cn_strdup(owner),
                    .created_at = (int64_t)time(NULL),
                    .bytes = u->bytes,
                    .order = f->next_order};
    snprintf(file.purpose, sizeof file.purpose, "%s", purpose);
    cn_status status = CN_OK;
    if (!file.filename || !file.owner)
        status = cn_fail(CN_ERR_MEMORY, "out of memory for a file's name");
    if (status == CN_OK) status = cn_spool_temp_keep(f->spool, &u->temp, u->fd, CN_SPOOL_FILES);
    if (status == CN_OK) status = make_file(f, &file);
    if (status == CN_OK) {
        end_files_upload(f, u);
        *out = &f->all[f->n - 1];
        return CN_OK;
    }
    /* Remove the record first: without it the file does not exist. The next start removes content
     * that stays behind. */
    cn_buf why = {0};
    if (cn_buf_addf(&why, "%s", cn_last_error()) != CN_OK) cn_buf_clear(&why);
    (void)cn_spool_remove_record(f->spool, CN_SPOOL_FILES, &file.id);
    (void)cn_spool_remove(f->spool, CN_SPOOL_FILES, file.id.text);
    cn_upload_drop(f, u);
    free_texts(&file);
    cn_fail(status, "%s", why.data ? why.data : cn_status_name(status));
    cn_buf_free(&why);
    return status;
}

/* ---- of batches ---- */

cn_status cn_files_publish(cn_files *f, const cn_spool_id *id, const char *owner,
                           const char *filename, uint64_t bytes)
{
    if (find_spool_file(f, id)) return CN_OK;
    cn_file file = {.id = *id,
                    .filename = cn_strdup(filename),
                    .owner = cn_strdup(owner),
                    .purpose = "batch_output",
                    .created_at = (int64_t)time(NULL),
                    .bytes = bytes,
                    .order = f->next_order};
    cn_status status = file.filename && file.owner
                           ? make_file(f, &file)
                           : cn_fail(CN_ERR_MEMORY, "out of memory for a file's name");
    if (status != CN_OK) free_texts(&file);
    return status;
}

cn_status cn_files_remove(cn_files *f, const cn_spool_id *id)
{
    cn_file *file = find_spool_file(f, id);
    CN_TRY(cn_spool_remove_record(f->spool, CN_SPOOL_FILES, id));
    if (file) forget(f, file);
    return cn_spool_remove(f->spool, CN_SPOOL_FILES, id->text);
}
