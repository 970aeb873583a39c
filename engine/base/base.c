/* base.c - status text, logging, counted allocation, byte strings, clock. See base.h. */
#include "engine/base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/utf8.h"

enum { ERROR_TEXT_BYTES = 2048, PARAM_BYTES = 128 };
static _Thread_local char error_text[ERROR_TEXT_BYTES] = "no error", error_param[PARAM_BYTES];
static _Atomic int log_level = CN_LOG_INFO;
static _Atomic bool bar_drawn;
static _Atomic uint64_t alloc_count;

const char *cn_last_error(void) { return error_text; }
const char *cn_last_param(void) { return error_param; }

const char *cn_status_name(cn_status s)
{
    static const char *const names[] = {
        [CN_OK] = "CN_OK",
        [CN_ERR_ARG] = "CN_ERR_ARG",
        [CN_ERR_IO] = "CN_ERR_IO",
        [CN_ERR_MODEL] = "CN_ERR_MODEL",
        [CN_ERR_MEMORY] = "CN_ERR_MEMORY",
        [CN_ERR_DEVICE] = "CN_ERR_DEVICE",
        [CN_ERR_SHAPE] = "CN_ERR_SHAPE",
        [CN_ERR_BUSY] = "CN_ERR_BUSY",
        [CN_ERR_CANCELLED] = "CN_ERR_CANCELLED",
    };
    return (size_t)s < sizeof names / sizeof *names ? names[s] : "CN_ERR_?";
}

static void set_param(const char *param)
{
    char name[PARAM_BYTES]; /* because param may be the old one */
    snprintf(name, sizeof name, "%s", param);
    name[cn_utf8_valid_prefix(name, strlen(name))] = '\0';
    memcpy(error_param, name, sizeof name);
}

static void set_error(const char *param, const char *fmt, va_list ap)
{
    char text[ERROR_TEXT_BYTES]; /* because an argument may be the old text */
    vsnprintf(text, sizeof text, fmt, ap);
    memcpy(error_text, text, sizeof text);
    set_param(param);
}

cn_status cn_fail(cn_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error("", fmt, ap);
    va_end(ap);
    return status;
}

cn_status cn_fail_param(const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error(param, fmt, ap);
    va_end(ap);
    return CN_ERR_ARG;
}

cn_status cn_for_param(cn_status status, const char *param)
{
    if (status == CN_ERR_ARG && !*error_param) set_param(param);
    return status;
}

cn_status cn_fail_within(cn_status status, const char *fmt, ...)
{
    char context[ERROR_TEXT_BYTES / 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    cn_fail_param(error_param, "%s: %s", context, error_text);
    return status;
}

void cn_assert_failed(const char *file, int line, const char *cond)
{
    fprintf(stderr, "fatal: %s:%d: broken invariant: %s\n", file, line, cond);
    abort();
}

bool cn_log_set_bar(bool drawn) { return atomic_exchange(&bar_drawn, drawn); }
void cn_log_set_level(cn_log_lvl lvl) { atomic_store(&log_level, (int)lvl); }

void cn_log(cn_log_lvl lvl, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if ((int)lvl > atomic_load(&log_level)) return;
    char text[ERROR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *clear = atomic_exchange(&bar_drawn, false) ? "\r\033[K" : "";
    char shown[CN_UTF8_ESCAPED * ERROR_TEXT_BYTES];
    fprintf(stderr, "%s%s: %s\n", clear, names[lvl],
            cn_utf8_escape_controls(text, shown, sizeof shown));
}

void cn_log_forward(cn_status status, const char *file, int line)
{
    cn_log(CN_LOG_DEBUG, "%s:%d: forwards %s: %s", file, line, cn_status_name(status), error_text);
}

void *cn_calloc(size_t n, size_t size)
{
    atomic_fetch_add(&alloc_count, 1);
    return calloc(n ? n : 1, size ? size : 1);
}

void *cn_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!cn_mul_size(n, size, &bytes)) return NULL;
    atomic_fetch_add(&alloc_count, 1);
    return realloc(p, bytes ? bytes : 1);
}

cn_status cn_make_room(void *items, size_t n, size_t size, const char *what)
{
    enum { FIRST = 16 };
    void *old, *grown;
    const bool full = n < FIRST ? n == 0 : (n & (n - 1)) == 0;
    if (!full) return CN_OK;
    memcpy(&old, items, sizeof old);
    grown = cn_realloc(old, n < FIRST ? FIRST : 2 * n, size);
    if (!grown) return cn_fail(CN_ERR_MEMORY, "out of memory for %s", what);
    memcpy(items, &grown, sizeof grown);
    return CN_OK;
}

char *cn_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = cn_calloc(len + 1, 1);
    if (copy) memcpy(copy, s, len);
    return copy;
}

char *cn_strdup(const char *s) { return cn_strndup(s, strlen(s)); }

void cn_free(void *p) { free(p); }

uint64_t cn_alloc_count(void) { return atomic_load(&alloc_count); }

void *cn_calloc_aligned(size_t n, size_t size)
{
    size_t bytes;
    if (!cn_mul_size(n, size, &bytes) || bytes > SIZE_MAX - 64) return NULL;
    bytes = cn_round_up(bytes ? bytes : 1, 64);
    atomic_fetch_add(&alloc_count, 1);
    void *p = aligned_alloc(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

cn_status cn_buf_reserve(cn_buf *b, size_t extra)
{
    if (extra >= SIZE_MAX / 2 - b->len)
        return cn_fail(CN_ERR_MEMORY, "out of memory for a text of %zu bytes", extra);
    size_t need = b->len + extra + 1;
    if (need <= b->cap) return CN_OK;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) cap *= 2;
    char *data = cn_realloc(b->data, cap, 1);
    if (!data) return cn_fail(CN_ERR_MEMORY, "out of memory for a text of %zu bytes", cap);
    b->data = data;
    b->cap = cap;
    return CN_OK;
}

cn_status cn_buf_add(cn_buf *b, const void *data, size_t n)
{
    CN_TRY(cn_buf_reserve(b, n));
    if (n) memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
    return CN_OK;
}

cn_status cn_buf_addf(cn_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    cn_status status =
        n < 0 ? cn_fail(CN_ERR_ARG, "bad format %s", fmt) : cn_buf_reserve(b, (size_t)n);
    if (status == CN_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return status;
}

void cn_buf_clear(cn_buf *b)
{
    b->len = 0;
    if (b->data) b->data[0] = '\0';
}

void cn_buf_free(cn_buf *b)
{
    cn_free(b->data);
    *b = (cn_buf){0};
}

const cn_base_calls *cn_base_calls_get(void)
{
    static const cn_base_calls calls = {
        .fail = cn_fail,
        .fail_within = cn_fail_within,
        .assert_failed = cn_assert_failed,
        .log = cn_log,
        .calloc = cn_calloc,
        .realloc = cn_realloc,
        .free = cn_free,
        .log_forward = cn_log_forward,
    };
    return &calls;
}

size_t cn_write_all(int fd, const void *data, size_t n)
{
    size_t done = 0;
    while (done < n) {
        const ssize_t wrote = write(fd, (const char *)data + done, n - done);
        if (wrote > 0) {
            done += (size_t)wrote;
        } else if (wrote == 0) {
            errno = EIO; /* no progress and no error: retrying might never end */
            break;
        } else if (errno != EINTR) {
            break;
        }
    }
    return done;
}

/* getrandom() returns up to 256 bytes in one call, without a partial result. */
cn_status cn_random_bytes(void *out, size_t n)
{
    CN_ASSERT(n <= 256);
    if (getrandom(out, n, 0) == (ssize_t)n) return CN_OK;
    return cn_fail(CN_ERR_IO, "getrandom: %s", strerror(errno));
}

double cn_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t cn_hash64(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    h ^= UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    h ^= h >> 33;
    h *= UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 33;
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ (h >> 33);
}
