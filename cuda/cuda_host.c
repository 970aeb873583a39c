/* cuda_host.c - the functions of base.h inside the shared object. Each calls its counterpart in the
 * program that opened it, so both share the last error, the log and the count of allocations. */
#include <stdarg.h>

#include "cuda/cuda_ops.h"

enum { TEXT_BYTES = 2048 };
static const cn_base_calls *host;

void cn_cuda_host_set(const cn_base_calls *calls) { host = calls; }

#define FORMAT(text, fmt)                                                                          \
    char text[TEXT_BYTES];                                                                         \
    va_list ap;                                                                                    \
    va_start(ap, fmt);                                                                             \
    vsnprintf(text, sizeof text, fmt, ap);                                                         \
    va_end(ap)

cn_status cn_fail(cn_status status, const char *fmt, ...)
{
    FORMAT(text, fmt);
    return host->fail(status, "%s", text);
}

cn_status cn_fail_within(cn_status status, const char *fmt, ...)
{
    FORMAT(text, fmt);
    return host->fail_within(status, "%s", text);
}

void cn_log(cn_log_lvl lvl, const char *fmt, ...)
{
    FORMAT(text, fmt);
    host->log(lvl, "%s", text);
}

void cn_assert_failed(const char *file, int line, const char *cond)
{
    host->assert_failed(file, line, cond);
    __builtin_unreachable();
}

void cn_log_forward(cn_status status, const char *file, int line)
{
    host->log_forward(status, file, line);
}

void *cn_calloc(size_t n, size_t size) { return host->calloc(n, size); }
void *cn_realloc(void *p, size_t n, size_t size) { return host->realloc(p, n, size); }
void cn_free(void *p) { host->free(p); }
