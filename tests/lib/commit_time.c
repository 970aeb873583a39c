/* commit_time.c - see commit_time.h. */
#include "tests/lib/commit_time.h"

enum { LATE_POLLS = 7, CLOSED_POLLS = 60, OPEN_POLLS = 20 };
static commit_time when;
static uint32_t n_polls;
static cn_status (*fence_done)(cn_fence *f, bool *done);
static cn_status (*fence_sync)(cn_fence *f);

/* Replaces the backend's fence_done, which only events call. */
static cn_status fence_done_when(cn_fence *f, bool *done)
{
    *done = false;
    n_polls++;
    if (when == LATE && n_polls % LATE_POLLS != 0) return CN_OK;
    if (when == AT_ONCE && n_polls % (CLOSED_POLLS + OPEN_POLLS) < CLOSED_POLLS) return CN_OK;
    if (when == EARLY || when == AT_ONCE) {
        cn_status status = fence_sync(f);
        if (status != CN_OK) return status;
    }
    return fence_done(f, done);
}

void commit_time_choose(cn_engine *e, commit_time chosen)
{
    fence_done = e->backend->fence_done;
    fence_sync = e->backend->fence_sync;
    when = chosen;
    n_polls = 0;
    if (when != BY_LUCK) e->backend->fence_done = fence_done_when;
}
