/* line_reader.c - read(2) into one buffer that grows up to the longest line. See line_reader.h. */
#include "engine/base/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10 };

struct cn_line_reader {
    char *path;
    int fd;
    size_t max_line_bytes;
    uint64_t total_bytes;
    char *data; /* [cap]; data[start .. end) is read but not returned */
    size_t cap, start, end;
    size_t searched; /* no newline in data[start .. start + searched) */
    uint64_t consumed; /* bytes of the file before data[start] */
    uint64_t number;
    bool eof;
    bool dropping; /* inside a line that was too long, or that begins before the part */

    cn_line_part part;
    uint64_t first, limit; /* bytes of the file in which the lines begin */
    uint64_t n_before;     /* lines before `first`, if counted */
    bool counted;
};

cn_status cn_line_reader_open(cn_line_reader **out, const char *path, size_t max_line_bytes)
{
    const bool standard = strcmp(path, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        const int failed = errno;
        if (fd >= 0 && !standard) close(fd);
        return cn_fail(CN_ERR_IO, "%s: %s", path, strerror(failed));
    }
    if (S_ISDIR(st.st_mode)) {
        if (!standard) close(fd);
        return cn_fail(CN_ERR_IO, "%s: expected a file of JSON lines, got a directory", path);
    }
    cn_line_reader *r = cn_calloc(1, sizeof *r);
    char *name = cn_strdup(path);
    if (!r || !name) {
        cn_free(r);
        cn_free(name);
        if (!standard) close(fd);
        return cn_fail(CN_ERR_MEMORY, "%s: out of memory", path);
    }
    *r = (cn_line_reader){
        .path = name, .fd = fd, .max_line_bytes = max_line_bytes, .limit = UINT64_MAX};
    if (S_ISREG(st.st_mode)) r->total_bytes = (uint64_t)st.st_size;
    *out = r;
    return CN_OK;
}

void cn_line_reader_close(cn_line_reader *r)
{
    if (!r) return;
    if (r->fd != STDIN_FILENO) close(r->fd);
    cn_free(r->path);
    cn_free(r->data);
    cn_free(r);
}

uint64_t cn_line_reader_bytes_done(const cn_line_reader *r)
{
    return r->consumed > r->first ? r->consumed - r->first : 0;
}

uint64_t cn_line_reader_bytes_total(const cn_line_reader *r)
{
    return r->part.by_bytes ? r->limit - r->first : r->total_bytes;
}

int cn_line_reader_fd(const cn_line_reader *r) { return r->fd; }

/* ---- parts ---- */

void cn_line_part_bytes(const cn_line_part *part, uint64_t file_bytes, uint64_t *from,
                        uint64_t *to)
{
    *from = (uint64_t)((unsigned __int128)file_bytes * part->index / part->of);
    *to = (uint64_t)((unsigned __int128)file_bytes * (part->index + 1) / part->of);
}

cn_status cn_line_reader_take_part(cn_line_reader *r, const cn_line_part *part)
{
    CN_ASSERT(r->consumed == 0 && r->end == 0 && (part->of == 0 || part->index < part->of));
    struct stat st;
    if (fstat(r->fd, &st) != 0) return cn_fail(CN_ERR_IO, "%s: %s", r->path, strerror(errno));
    r->part = *part;
    if (!part->by_bytes || part->of == 0) return CN_OK;
    if (!S_ISREG(st.st_mode))
        return cn_fail(CN_ERR_ARG, "%s is not a regular file, and only such a file has parts of "
                                   "bytes: split it by lines", r->path);
    cn_line_part_bytes(part, r->total_bytes, &r->first, &r->limit);
    if (r->first == 0) return CN_OK;
    /* The byte before the part tells whether a line begins with it. */
    r->consumed = r->first - 1;
    r->dropping = true;
    if (lseek(r->fd, (off_t)r->consumed, SEEK_SET) < 0)
        return cn_fail(CN_ERR_IO, "%s: seek: %s", r->path, strerror(errno));
    return CN_OK;
}

/* Adds the number of newlines among the first n_bytes of the file. */
static cn_status count_newlines(const cn_line_reader *r, uint64_t n_bytes, uint64_t *count)
{
    char *buffer = cn_calloc(READ_BYTES, 1);
    if (!buffer) return cn_fail(CN_ERR_MEMORY, "%s: out of memory", r->path);
    cn_status status = CN_OK;
    for (uint64_t at = 0; at < n_bytes && status == CN_OK;) {
        const uint64_t want = n_bytes - at < READ_BYTES ? n_bytes - at : READ_BYTES;
        const ssize_t got = pread(r->fd, buffer, (size_t)want, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            status = cn_fail(CN_ERR_IO, "%s: read: %s", r->path,
                             got < 0 ? strerror(errno) : "the file became shorter");
        for (ssize_t i = 0; i < got; i++) *count += buffer[i] == '\n';
        at += got > 0 ? (uint64_t)got : 0;
    }
    cn_free(buffer);
    return status;
}

cn_status cn_line_reader_lines_before(cn_line_reader *r, uint64_t *n)
{
    if (!r->counted && r->first > 0) {
        r->n_before = 1; /* the line whose end is dropped */
        CN_TRY(count_newlines(r, r->first - 1, &r->n_before));
    }
    r->counted = true;
    *n = r->n_before;
    return CN_OK;
}

/* ---- lines ---- */

/* Makes room for READ_BYTES after data[end). */
static cn_status make_line_room(cn_line_reader *r)
{
    if (r->cap - r->end >= READ_BYTES) return CN_OK;
    if (r->start > 0) {
        memmove(r->data, r->data + r->start, r->end - r->start);
        r->end -= r->start;
        r->start = 0;
        if (r->cap - r->end >= READ_BYTES) return CN_OK;
    }
    size_t cap = r->cap ? r->cap * 2 : 2 * (size_t)READ_BYTES;
    char *data = cn_realloc(r->data, cap, 1);
    if (!data)
        return cn_fail(CN_ERR_MEMORY, "%s: line %llu: out of memory for %zu bytes", r->path,
                       (unsigned long long)r->number + 1, cap);
    r->data = data;
    r->cap = cap;
    return CN_OK;
}

/* Reads more bytes. *waiting: no bytes are available yet. */
static cn_status fill_line_buffer(cn_line_reader *r, int wait_ms, bool *waiting)
{
    *waiting = false;
    CN_TRY(make_line_room(r));
    if (!r->total_bytes) {
        struct pollfd p = {.fd = r->fd, .events = POLLIN};
        int ready = poll(&p, 1, wait_ms);
        if (ready == 0 || (ready < 0 && errno == EINTR)) {
            *waiting = true;
            return CN_OK;
        }
    }
    ssize_t got = read(r->fd, r->data + r->end, READ_BYTES);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        *waiting = true;
        return CN_OK;
    }
    if (got < 0) return cn_fail(CN_ERR_IO, "%s: read: %s", r->path, strerror(errno));
    r->eof = got == 0;
    r->end += (size_t)got;
    return CN_OK;
}

static void consume(cn_line_reader *r, size_t n)
{
    r->start += n;
    r->consumed += n;
    r->searched = 0;
}

/* Removes the next line and its newline from the buffer. False if the buffer has no complete
 * line. */
static bool cut_next_line(cn_line_reader *r, cn_line *line)
{
    const char *from = r->data + r->start;
    const size_t have = r->end - r->start;
    const char *newline = have > r->searched
                              ? memchr(from + r->searched, '\n', have - r->searched)
                              : NULL;
    r->searched = have;
    size_t n = newline ? (size_t)(newline - from) : have;
    const bool too_long = n > r->max_line_bytes;
    if (!newline && !too_long && !(r->eof && n > 0)) return false;
    *line = (cn_line){.text = from,
                      .n = n,
                      .number = r->number + 1,
                      .offset = r->consumed,
                      .too_long = too_long};
    r->number++;
    r->dropping = too_long && !newline;
    consume(r, n + (newline != NULL));
    return true;
}

/* Drops the rest of a line. */
static void drop_rest(cn_line_reader *r)
{
    const char *from = r->data + r->start;
    const char *newline = memchr(from, '\n', r->end - r->start);
    r->dropping = !newline;
    consume(r, newline ? (size_t)(newline - from) + 1 : r->end - r->start);
}

static bool is_line_blank(const cn_line *line)
{
    for (size_t i = 0; i < line->n; i++)
        if (!strchr(" \t\r\v\f", line->text[i]) || !line->text[i]) return false;
    return true;
}

/* Whether the part has the line. */
static bool is_mine(const cn_line_reader *r, const cn_line *line)
{
    const cn_line_part *p = &r->part;
    return p->of == 0 || p->by_bytes || (line->number - 1) % p->of == p->index;
}

/* Removes a byte order mark and a carriage return. */
static void tidy_ends(cn_line *line)
{
    if (line->offset == 0 && line->n >= 3 && memcmp(line->text, "\xEF\xBB\xBF", 3) == 0) {
        line->text += 3;
        line->offset += 3;
        line->n -= 3;
    }
    if (line->n && !line->too_long && line->text[line->n - 1] == '\r') line->n--;
}

cn_status cn_line_reader_next(cn_line_reader *r, int wait_ms, cn_line *line, cn_line_state *state)
{
    for (;;) {
        if (r->dropping && r->end > r->start) drop_rest(r);
        const bool past = r->consumed >= r->limit;
        if (!past && !r->dropping && r->end > r->start && cut_next_line(r, line)) {
            if (line->too_long) line->n = r->max_line_bytes;
            tidy_ends(line);
            if (!is_mine(r, line) || is_line_blank(line)) continue;
            *state = CN_LINE_READY;
            return CN_OK;
        }
        if (past || r->eof) {
            *state = CN_LINE_END;
            return CN_OK;
        }
        bool waiting;
        CN_TRY(fill_line_buffer(r, wait_ms, &waiting));
        if (waiting) {
            *state = CN_LINE_WAIT;
            return CN_OK;
        }
    }
}
