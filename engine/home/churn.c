/* churn.c - see churn.h. */
#include "engine/home/churn.h"

enum { WANTED = 0x8000 };

/* Candidates in which the run of k goes around. */
static uint32_t period_of(uint32_t k, uint32_t n)
{
    uint32_t period = 1;
    while (period <= n / 2) period *= 2;
    return period >= 2 * k ? period : n;
}

uint32_t cn_churn_start(float share, uint32_t newest, uint32_t k, uint32_t n)
{
    if (n <= k) return 0;
    return (uint32_t)((uint64_t)((double)share * k * newest) % period_of(k, n));
}

void cn_churn_scores(uint16_t *score, uint32_t newest, uint32_t k, uint32_t n, float share)
{
    const uint32_t start = cn_churn_start(share, newest, k, n);
    const uint32_t period = n > k ? period_of(k, n) : n;
    memset(score, 0, n * sizeof *score);
    for (uint32_t i = 0; i < cn_min_u32(k, n); i++) score[(start + i) % period] = WANTED;
}

cn_status cn_churn_take(cn_churn *c, uint32_t buffer, size_t n, uint16_t **score)
{
    CN_ASSERT(buffer < CN_CHURN_BUFFERS);
    if (c->buffers[buffer].n < n) {
        uint16_t *more = cn_realloc(c->buffers[buffer].at, n, sizeof *more);
        if (!more) return cn_fail(CN_ERR_MEMORY, "--select-churn: no memory for %zu scores", n);
        c->buffers[buffer].at = more;
        c->buffers[buffer].n = n;
    }
    *score = c->buffers[buffer].at;
    return CN_OK;
}

void cn_churn_free(cn_churn *c)
{
    for (uint32_t i = 0; i < CN_CHURN_BUFFERS; i++) cn_free(c->buffers[i].at);
    *c = (cn_churn){0};
}
