/* spool.c - see spool.h. */
#include "engine/serve/spool/spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/base/lock_file.h"

enum { ID_RANDOM_BYTES = 12, MAX_RECORD_BYTES = 4 << 20, MAX_RECORD_DEPTH = 8 };

const char cn_file_prefix[] = "file-", cn_batch_prefix[] = "batch_";
static const char record_suffix[] = ".json";
static const char *const place_names[CN_SPOOL_N_PLACES] = {"tmp", "files", "batches"};

struct cn_spool {
    char *dir;
    int lock_fd, fds[CN_SPOOL_N_PLACES]; /* -1: not open */
};

static cn_status fail_spool_io(const cn_spool *s, cn_spool_place place, const char *name,
                               const char *what)
{
    return cn_fail(CN_ERR_IO, "%s/%s/%s: %s: %s", s->dir, place_names[place], name, what,
                   strerror(errno));
}

/* ---- opening ---- */

static cn_status make_dir(const char *path)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return CN_OK;
    return cn_fail(CN_ERR_IO, "--spool %s: mkdir: %s", path, strerror(errno));
}

static cn_status lock_spool(cn_spool *s)
{
    cn_buf path = {0};
    struct stat st;
    CN_TRY(cn_buf_addf(&path, "%s/lock", s->dir));
    s->lock_fd = open(path.data, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    cn_status status = CN_OK;
    if (s->lock_fd >= 0 ? fstat(s->lock_fd, &st) != 0 || !S_ISREG(st.st_mode)
                        : errno == ELOOP || errno == EISDIR)
        status = cn_fail(CN_ERR_IO, "%s: expected a regular file: remove it", path.data);
    else if (s->lock_fd < 0)
        status = cn_fail(CN_ERR_IO, "%s: %s", path.data, strerror(errno));
    else if (!cn_lock_file(s->lock_fd))
        status = errno == EWOULDBLOCK
                     ? cn_fail(CN_ERR_BUSY, "--spool %s: another server uses this spool", s->dir)
                     : cn_fail(CN_ERR_IO, "%s: lock: %s", path.data, strerror(errno));
    cn_buf_free(&path);
    return status;
}

static cn_status open_place(cn_spool *s, cn_spool_place place)
{
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/%s", s->dir, place_names[place]));
    cn_status status = make_dir(path.data);
    if (status == CN_OK) {
        s->fds[place] = open(path.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->fds[place] < 0)
            status = cn_fail(CN_ERR_IO, "--spool %s: %s", path.data, strerror(errno));
    }
    cn_buf_free(&path);
    return status;
}

/* Ignores what the server did not make, such as a directory. */
static cn_status remove_temp(void *spool, const char *name)
{
    if (cn_spool_remove(spool, CN_SPOOL_TMP, name) == CN_OK)
        cn_log(CN_LOG_INFO, "spool: removed an incomplete file, %s", name);
    else
        cn_log(CN_LOG_WARN, "spool: ignored: %s", cn_last_error());
    return CN_OK;
}

static cn_status open_all(cn_spool *s, const char *dir)
{
    s->dir = cn_strdup(dir);
    if (!s->dir) return cn_fail(CN_ERR_MEMORY, "out of memory for the spool");
    CN_TRY(make_dir(dir));
    CN_TRY(lock_spool(s));
    for (cn_spool_place place = 0; place < CN_SPOOL_N_PLACES; place++)
        CN_TRY(open_place(s, place));
    return cn_spool_each(s, CN_SPOOL_TMP, remove_temp, s);
}

cn_status cn_spool_open(cn_spool **out, const char *dir)
{
    cn_spool *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for the spool");
    s->lock_fd = -1;
    for (cn_spool_place place = 0; place < CN_SPOOL_N_PLACES; place++) s->fds[place] = -1;
    cn_status status = open_all(s, dir);
    if (status == CN_OK)
        *out = s;
    else
        cn_spool_close(s);
    return status;
}

void cn_spool_close(cn_spool *s)
{
    if (!s) return;
    for (cn_spool_place place = 0; place < CN_SPOOL_N_PLACES; place++)
        if (s->fds[place] >= 0) close(s->fds[place]);
    if (s->lock_fd >= 0) close(s->lock_fd);
    cn_free(s->dir);
    cn_free(s);
}

/* ---- ids ---- */

cn_status cn_spool_id_make(cn_spool_id *out, const char *prefix)
{
    uint8_t random[ID_RANDOM_BYTES];
    CN_TRY(cn_random_bytes(random, sizeof random));
    int at = snprintf(out->text, sizeof out->text, "%s", prefix);
    for (size_t i = 0; i < sizeof random; i++)
        at += snprintf(out->text + at, sizeof out->text - (size_t)at, "%02x", random[i]);
    CN_ASSERT((size_t)at < sizeof out->text);
    return CN_OK;
}

bool cn_spool_id_read(cn_spool_id *out, const char *prefix, const char *text)
{
    const size_t n = strlen(prefix);
    if (strncmp(text, prefix, n) != 0) return false;
    if (strspn(text + n, "0123456789abcdef") != 2 * ID_RANDOM_BYTES) return false;
    if (text[n + 2 * ID_RANDOM_BYTES]) return false;
    snprintf(out->text, sizeof out->text, "%s", text);
    return true;
}

/* ---- names ---- */

static cn_status refuse_kind(const cn_spool *s, cn_spool_place place, const char *name)
{
    return cn_fail(CN_ERR_IO, "%s/%s/%s: expected a regular file", s->dir, place_names[place],
                   name);
}

cn_status cn_spool_path(const cn_spool *s, cn_spool_place place, const char *name, cn_buf *out)
{
    struct stat st;
    if (fstatat(s->fds[place], name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
        return refuse_kind(s, place, name);
    return cn_buf_addf(out, "%s/%s/%s", s->dir, place_names[place], name);
}

cn_status cn_spool_each(cn_spool *s, cn_spool_place place, cn_spool_name_fn fn, void *user)
{
    int fd = openat(s->fds[place], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0) close(fd);
        return fail_spool_io(s, place, "", "open");
    }
    cn_status status = CN_OK;
    while (status == CN_OK) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (!e && errno) status = fail_spool_io(s, place, "", "readdir");
        if (!e) break;
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            status = fn(user, e->d_name);
    }
    closedir(d);
    return status;
}

/* Syncs the directory, so that a change of names survives a power failure. */
static cn_status sync_place(cn_spool *s, cn_spool_place place)
{
    return fsync(s->fds[place]) == 0 ? CN_OK : fail_spool_io(s, place, "", "fsync");
}

cn_status cn_spool_remove(cn_spool *s, cn_spool_place place, const char *name)
{
    if (unlinkat(s->fds[place], name, 0) != 0)
        return errno == ENOENT ? CN_OK : fail_spool_io(s, place, name, "unlink");
    return place == CN_SPOOL_TMP ? CN_OK : sync_place(s, place);
}

cn_status cn_spool_open_name(cn_spool *s, cn_spool_place place, const char *name, int *fd,
                             uint64_t *bytes)
{
    struct stat st;
    /* Non-blocking, so that a named pipe gives an error instead of a hang. */
    int opened = openat(s->fds[place], name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (opened < 0)
        return errno == ELOOP ? refuse_kind(s, place, name) : fail_spool_io(s, place, name, "open");
    if (fstat(opened, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(opened);
        return refuse_kind(s, place, name);
    }
    *fd = opened;
    *bytes = (uint64_t)st.st_size;
    return CN_OK;
}

/* ---- temporary files ---- */

cn_status cn_spool_temp_open(cn_spool *s, cn_spool_id *name, int *fd)
{
    CN_TRY(cn_spool_id_make(name, cn_file_prefix));
    *fd = openat(s->fds[CN_SPOOL_TMP], name->text, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return *fd < 0 ? fail_spool_io(s, CN_SPOOL_TMP, name->text, "create") : CN_OK;
}

static cn_status keep_as(cn_spool *s, const char *temp, int fd, cn_spool_place place,
                         const char *name)
{
    if (fsync(fd) != 0) return fail_spool_io(s, CN_SPOOL_TMP, temp, "fsync");
    if (renameat(s->fds[CN_SPOOL_TMP], temp, s->fds[place], name) != 0)
        return fail_spool_io(s, place, name, "rename");
    return sync_place(s, place);
}

cn_status cn_spool_temp_keep(cn_spool *s, const cn_spool_id *name, int fd, cn_spool_place place)
{
    return keep_as(s, name->text, fd, place, name->text);
}

/* ---- records ---- */

uint64_t cn_spool_order_after(uint64_t order)
{
    return order < CN_SPOOL_MAX_ORDER ? order + 1 : CN_SPOOL_MAX_ORDER;
}

typedef struct record_name {
    char text[CN_SPOOL_ID_BYTES + sizeof record_suffix];
} record_name;

static record_name spool_name_of(const cn_spool_id *id)
{
    record_name name;
    snprintf(name.text, sizeof name.text, "%s%s", id->text, record_suffix);
    return name;
}

bool cn_spool_is_record(const char *name, const char *prefix, cn_spool_id *id)
{
    char text[CN_SPOOL_ID_BYTES];
    const size_t n = strlen(name), suffix = sizeof record_suffix - 1;
    if (n <= suffix || n - suffix >= sizeof text || strcmp(name + n - suffix, record_suffix) != 0)
        return false;
    memcpy(text, name, n - suffix);
    text[n - suffix] = '\0';
    return cn_spool_id_read(id, prefix, text);
}

bool cn_spool_has_record(const cn_spool *s, cn_spool_place place, const cn_spool_id *id)
{
    struct stat st;
    return fstatat(s->fds[place], spool_name_of(id).text, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* A failed write leaves no temporary file behind, because the disk may be full. */
static cn_status write_record(cn_spool *s, cn_spool_place place, const char *name,
                              const char *text, size_t n)
{
    cn_spool_id temp;
    int fd;
    CN_TRY(cn_spool_temp_open(s, &temp, &fd));
    cn_status status = CN_OK;
    if (cn_write_all(fd, text, n) != n) status = fail_spool_io(s, place, name, "write");
    if (status == CN_OK) status = keep_as(s, temp.text, fd, place, name);
    close(fd);
    if (status != CN_OK) unlinkat(s->fds[CN_SPOOL_TMP], temp.text, 0);
    return status;
}

cn_status cn_spool_put_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id,
                              const json_t *record)
{
    char *text = json_dumps(record, JSON_INDENT(1));
    if (!text) return cn_fail(CN_ERR_MEMORY, "%s: out of memory for its record", id->text);
    cn_status status = write_record(s, place, spool_name_of(id).text, text, strlen(text));
    free(text);
    return status;
}

/* A record with another id is a copy: two batches would write the same files. */
static cn_status check_record(const json_t *record, const char *name, const cn_spool_id *id)
{
    const char *own = NULL;
    if (!json_is_object(record)) return cn_fail(CN_ERR_MODEL, "%s: expected a JSON object", name);
    CN_TRY(cn_json_str(&(cn_json_at){record, name, CN_ERR_MODEL}, "id", CN_JSON_REQUIRED, &own));
    if (strcmp(own, id->text) == 0) return CN_OK;
    char shown[96];
    return cn_fail(CN_ERR_MODEL, "%s: id: expected the id of its name, got \"%s\"", name,
                   cn_json_printable(own, shown, sizeof shown));
}

cn_status cn_spool_get_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id,
                              json_t **record)
{
    int fd;
    uint64_t bytes;
    const record_name name = spool_name_of(id);
    CN_TRY(cn_spool_open_name(s, place, name.text, &fd, &bytes));
    cn_status status =
        cn_json_load_fd(record, fd, name.text, MAX_RECORD_BYTES, MAX_RECORD_DEPTH);
    close(fd);
    if (status == CN_OK) status = check_record(*record, name.text, id);
    if (status != CN_OK) {
        json_decref(*record);
        *record = NULL;
    }
    return status;
}

cn_status cn_spool_remove_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id)
{
    return cn_spool_remove(s, place, spool_name_of(id).text);
}

/* ---- lists ---- */

static json_t *id_at(const json_t *data, size_t i)
{
    const json_t *id = json_object_get(json_array_get(data, i), "id");
    return id ? json_string(json_string_value(id)) : json_null();
}

json_t *cn_spool_list_json(json_t *data, bool has_more)
{
    return json_pack("{s:s, s:O, s:o, s:o, s:b}", "object", "list", "data", data, "first_id",
                     id_at(data, 0), "last_id", id_at(data, json_array_size(data) - 1),
                     "has_more", (int)has_more);
}
