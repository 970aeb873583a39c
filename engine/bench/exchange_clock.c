/* exchange_clock.c - see exchange_clock.h. */
#include "engine/bench/exchange_clock.h"

#include <math.h>

#include "engine/engine_state.h"

/* The fences of the steps in flight, used alternately. */
struct cn_exchange_clock {
    cn_homes *homes;
    cn_home_timer timer;
    cn_home_clock steps[CN_FLIGHTS];
    uint32_t n_begun;
    bool on;
    cn_exchange_times times;
};

/* ---- fences ---- */

static cn_status create_step(cn_homes *hs, cn_home_clock *c)
{
    cn_backend *model_be = hs->o.model_be;
    for (uint32_t p = 0; p < hs->packs.n; p++) {
        CN_TRY(model_be->timed_fence_create(model_be, &c->waits[p]));
        CN_TRY(model_be->timed_fence_create(model_be, &c->goes[p]));
        for (int h = 0; h < CN_N_HOMES; h++) {
            cn_backend *be = hs->at[h].be;
            for (int i = 0; be && i < CN_HOME_WORKS; i++) {
                CN_TRY(be->timed_fence_create(be, &c->spans[h].begins[i][p]));
                CN_TRY(be->timed_fence_create(be, &c->spans[h].ends[i][p]));
            }
        }
    }
    return CN_OK;
}

static void free_fence(cn_backend *be, cn_fence *f)
{
    if (f) be->fence_free(f);
}

static void free_step(cn_homes *hs, cn_home_clock *c)
{
    for (uint32_t p = 0; p < CN_MAX_PACKS; p++) {
        free_fence(hs->o.model_be, c->waits[p]);
        free_fence(hs->o.model_be, c->goes[p]);
        for (int h = 0; h < CN_N_HOMES; h++)
            for (int i = 0; i < CN_HOME_WORKS; i++) {
                free_fence(hs->at[h].be, c->spans[h].begins[i][p]);
                free_fence(hs->at[h].be, c->spans[h].ends[i][p]);
            }
    }
}

/* ---- reading ---- */

double cn_home_busy_s(const cn_home_times *t, uint32_t n_packs)
{
    uint32_t next[CN_HOME_WORKS] = {0};
    double busy_s = 0, until = -INFINITY; /* all work that begins before `until` is counted to it */
    for (uint32_t i = 0; i < CN_HOME_WORKS * n_packs; i++) {
        int first = -1;
        for (int w = 0; w < CN_HOME_WORKS; w++)
            if (next[w] < n_packs &&
                (first < 0 || t->begins[w][next[w]] < t->begins[first][next[first]]))
                first = w;
        const double begin = t->begins[first][next[first]], end = t->ends[first][next[first]];
        if (end > until) {
            busy_s += end - (begin > until ? begin : until);
            until = end;
        }
        next[first]++;
    }
    return busy_s;
}

/* Adds the time of the exchanges of one home. */
static cn_status read_span(cn_exchange_clock *c, cn_backend *be, cn_home_span *span)
{
    cn_home_times t;
    const uint32_t n_packs = c->homes->packs.n;
    if (!span->recorded) return CN_OK;
    for (uint32_t p = 0; p < n_packs; p++)
        for (int i = 0; i < CN_HOME_WORKS; i++) {
            cn_fence *start = span->begins[CN_HOME_RANKS][0];
            CN_TRY(be->fence_sync(span->ends[i][p])); /* a push may outlast the step */
            CN_TRY(be->fence_seconds(start, span->begins[i][p], &t.begins[i][p]));
            CN_TRY(be->fence_seconds(start, span->ends[i][p], &t.ends[i][p]));
        }
    c->times.exchange_s += cn_home_busy_s(&t, n_packs);
    return CN_OK;
}

/* Adds the times of a step. */
static cn_status read_clock_step(void *ctx, cn_home_clock *step)
{
    cn_exchange_clock *c = ctx;
    cn_homes *hs = c->homes;
    bool exchanged = false;
    for (uint32_t p = 0; step->waited && p < hs->packs.n; p++) {
        double waited_s;
        CN_TRY(hs->o.model_be->fence_seconds(step->waits[p], step->goes[p], &waited_s));
        c->times.stall_s += waited_s;
    }
    for (int h = 0; h < CN_N_HOMES; h++) {
        cn_home_span *span = &step->spans[h];
        CN_TRY(read_span(c, hs->at[h].be, span));
        exchanged |= span->recorded;
        span->recorded = false;
    }
    c->times.n_steps += exchanged;
    step->waited = false;
    return CN_OK;
}

/* ---- the clock ---- */

static cn_home_clock *begin_step(void *ctx)
{
    cn_exchange_clock *c = ctx;
    return c->on ? &c->steps[c->n_begun++ % CN_FLIGHTS] : NULL;
}

cn_status cn_exchange_clock_create(cn_exchange_clock **out, cn_engine *e)
{
    *out = NULL;
    if (!cn_homes_any(&e->homes))
        return cn_fail(CN_ERR_DEVICE, "no home is declared: no exchange can be timed");
    if (!e->backend->timed_fence_create)
        return cn_fail(CN_ERR_DEVICE, "the %s backend does not time exchanges", e->backend->name);
    cn_exchange_clock *c = cn_calloc(1, sizeof *c);
    if (!c) return cn_fail(CN_ERR_MEMORY, "out of memory for the times of exchanges");
    c->homes = &e->homes;
    c->timer = (cn_home_timer){begin_step, read_clock_step, c};
    cn_status status = CN_OK;
    for (uint32_t i = 0; status == CN_OK && i < CN_FLIGHTS; i++)
        status = create_step(c->homes, &c->steps[i]);
    if (status != CN_OK) {
        cn_exchange_clock_free(c);
        return status;
    }
    c->homes->timer = &c->timer;
    *out = c;
    return CN_OK;
}

void cn_exchange_clock_free(cn_exchange_clock *c)
{
    if (!c) return;
    c->homes->timer = NULL;
    for (uint32_t i = 0; i < CN_FLIGHTS; i++) free_step(c->homes, &c->steps[i]);
    cn_free(c);
}

void cn_exchange_clock_run(cn_exchange_clock *c, bool on) { c->on = on; }
cn_exchange_times cn_exchange_clock_times(const cn_exchange_clock *c) { return c->times; }
