/* base.h - helpers for every module: status codes with messages, assertions, logging, checked
 * allocation and arithmetic. A leaf: the only project file it includes is the public header, for
 * cn_status.
 *
 * Three kinds of failure have three forms (DESIGN.md §5):
 *   expected shortage   bool cn_x_try_y(): on false nothing has changed;
 *   operating error     cn_status. CN_OK is 0. The text is in a thread-local buffer that
 *                       cn_last_error() reads. Callers forward it with CN_TRY;
 *   programmer error    CN_ASSERT: kept in release builds, prints and aborts.
 * Nothing below main() calls exit(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/cinch.h"

/* Marks functions that C and CUDA C++ share: they run on the host and on the device. */
#ifdef __CUDACC__
#define CN_HOST_DEVICE __host__ __device__
#else
#define CN_HOST_DEVICE
#endif

CN_BEGIN_C

/* Records `fmt` as this thread's last error and returns `status`, so that a caller can write
 * `return cn_fail(CN_ERR_MODEL, "%s: expected 2 dimensions, got %d", name, n);`. */
cn_status cn_fail(cn_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The same, with CN_ERR_ARG, for an invalid member of a request. Error objects name the member
 * beside the text (OpenAI's `param`). */
cn_status cn_fail_param(const char *param, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Returns status. After CN_ERR_ARG sets the member that the last error is about, if it has none. */
cn_status cn_for_param(cn_status status, const char *param);
/* The member that this thread's last error is about; "": none. Long names are cut. */
const char *cn_last_param(void);

/* Prepends "<fmt>: " to the last error: context that only the caller knows (a path, a line). */
cn_status cn_fail_within(cn_status status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#define CN_TRY(expr)                                                                               \
    do {                                                                                           \
        cn_status cn_try_status_ = (expr);                                                         \
        if (cn_try_status_ != CN_OK) {                                                             \
            cn_log_forward(cn_try_status_, __FILE__, __LINE__);                                    \
            return cn_try_status_;                                                                 \
        }                                                                                          \
    } while (0)
/* Logs at CN_LOG_DEBUG the place where a failure is forwarded, its status and its text. */
void cn_log_forward(cn_status status, const char *file, int line) __attribute__((cold));

/* Programmer errors, checked in every build. `cond` must have no side effect: call a function that
 * changes state before the assertion and assert its result. */
#define CN_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (!(cond)) cn_assert_failed(__FILE__, __LINE__, #cond);                                  \
    } while (0)
void cn_assert_failed(const char *file, int line, const char *cond) __attribute__((noreturn));

/* Logs one line "level: text" to stderr, unless lvl is more detailed than the level of
 * cn_log_set_level (CN_LOG_INFO at start). */
typedef enum cn_log_lvl { CN_LOG_ERROR, CN_LOG_WARN, CN_LOG_INFO, CN_LOG_DEBUG } cn_log_lvl;
void cn_log_set_level(cn_log_lvl lvl);
/* Whether the terminal's current line is a progress bar: cn_log then clears the line first. Returns
 * whether it was one. */
bool cn_log_set_bar(bool drawn);
void cn_log(cn_log_lvl lvl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed, overflow-checked allocation. NULL when out of memory or when n*size overflows. Every heap
 * allocation of the project uses these functions, so that a test can count them (cn_alloc_count:
 * allocations since start, all threads). */
void *cn_calloc(size_t n, size_t size) __attribute__((malloc));
void *cn_realloc(void *p, size_t n, size_t size); /* not zeroed */
/* Makes room for one more item in an array with n items that grows item by item. `items` points to
 * the array, NULL while it is empty. The capacity is the next power of two, so it is not stored.
 * CN_ERR_MEMORY names `what`; the array stays as it was. */
#define CN_ROOM(items, n, what) cn_make_room((items), (n), sizeof **(items), (what))
cn_status cn_make_room(void *items, size_t n, size_t size, const char *what);
char *cn_strdup(const char *s);
char *cn_strndup(const char *s, size_t n);
void cn_free(void *p); /* NULL is fine */
uint64_t cn_alloc_count(void);

/* 64-byte-aligned zeroed memory; free with cn_free. */
void *cn_calloc_aligned(size_t n, size_t size);

/* Growable byte string. Zero-initialise it; free it with cn_buf_free. NUL-terminated after the
 * first add. */
typedef struct cn_buf {
    char *data;
    size_t len, cap;
} cn_buf;
/* Makes room for this many more bytes and a NUL. */
cn_status cn_buf_reserve(cn_buf *b, size_t extra);
cn_status cn_buf_add(cn_buf *b, const void *data, size_t n);
cn_status cn_buf_addf(cn_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cn_buf_clear(cn_buf *b); /* keeps the capacity */
void cn_buf_free(cn_buf *b);

/* The functions that a cinch shared object calls in the program that opened it, so that both share
 * errors, logging and memory. cn_base_calls_get() returns this program's functions. */
typedef struct cn_base_calls {
    cn_status (*fail)(cn_status status, const char *fmt, ...);
    cn_status (*fail_within)(cn_status status, const char *fmt, ...);
    void (*assert_failed)(const char *file, int line, const char *cond);
    void (*log)(cn_log_lvl lvl, const char *fmt, ...);
    void *(*calloc)(size_t n, size_t size);
    void *(*realloc)(void *p, size_t n, size_t size);
    void (*free)(void *p);
    void (*log_forward)(cn_status status, const char *file, int line);
} cn_base_calls;
const cn_base_calls *cn_base_calls_get(void);

/* Monotonic seconds since an arbitrary start. */
double cn_now_s(void);

static inline uint64_t cn_ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
static inline uint64_t cn_round_up(uint64_t a, uint64_t b) { return cn_ceil_div(a, b) * b; }
static inline uint32_t cn_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t cn_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

#define CN_GIB (UINT64_C(1) << 30)
/* GiB, for messages. */
static inline double cn_gib(uint64_t bytes) { return (double)bytes / (double)CN_GIB; }

/* Stores a*b in *out; false on overflow. */
static inline bool cn_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Writes data[n] to fd, with several calls where needed. Returns the number of bytes written; fewer
 * than n is a failure, with the cause in errno. */
size_t cn_write_all(int fd, const void *data, size_t n);

/* Fills out[n], n <= 256, with cryptographically secure random bytes. CN_ERR_IO on failure. */
cn_status cn_random_bytes(void *out, size_t n);

/* FNV-1a with a 64-bit finaliser, for tables and seeds; not for security. Start with h = 0 and pass
 * the result back to hash more data. */
uint64_t cn_hash64(uint64_t h, const void *data, size_t n);

CN_END_C
