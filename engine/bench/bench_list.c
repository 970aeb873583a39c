/* bench_list.c - see bench_list.h. */
#include "engine/bench/bench_list.h"

#include <errno.h>
#include <stdlib.h>

/* Reads a number from 1 to max at *p and moves *p after it. */
static bool try_number(const char **p, uint32_t max, uint32_t *out)
{
    char *end;
    errno = 0;
    const unsigned long x = strtoul(*p, &end, 10);
    if (end == *p || **p < '0' || **p > '9' || errno || x == 0 || x > max) return false;
    *out = (uint32_t)x;
    *p = end;
    return true;
}

cn_status cn_bench_parse_numbers(cn_bench_numbers *out, const char *option, const char *text,
                                 uint32_t max, uint32_t resident)
{
    out->n = 0;
    for (const char *p = text;; p++) {
        if (out->n == CN_BENCH_MOST || !try_number(&p, max, &out->at[out->n]))
            return cn_fail(CN_ERR_ARG, "--%s %s: expected numbers from 1 to %u, as in 1,8", option,
                           text, max);
        out->resident[out->n] = resident;
        if (resident > 0 && *p == 'x' && (p++, !try_number(&p, UINT32_MAX, &out->resident[out->n])))
            return cn_fail(CN_ERR_ARG, "--%s %s: expected resident tokens after the x, as in "
                                       "8x4096",
                           option, text);
        out->n++;
        if (*p == '\0') return CN_OK;
        if (*p != ',')
            return cn_fail(CN_ERR_ARG, "--%s %s: expected a comma at '%s'", option, text, p);
    }
}

cn_status cn_bench_parse_shares(cn_bench_shares *out, const char *option, const char *text)
{
    out->n = 0;
    for (const char *p = text;; p++) {
        char *end;
        const float x = strtof(p, &end);
        const bool is_number = end > p && *p >= '0' && *p <= '9';
        if (out->n == CN_BENCH_MOST || !is_number || !(x > 0 && x <= 1) || (*end && *end != ','))
            return cn_fail(CN_ERR_ARG, "--%s %s: expected shares above 0 up to 1, as in 0.01,0.1",
                           option, text);
        out->at[out->n++] = x;
        p = end;
        if (*p == '\0') return CN_OK;
    }
}
