/* backend_rig.c - see backend_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/backend_rig.h"

enum { MAX_OPEN = 8, N_PRIORITIES = 2 };

static struct {
    cn_backend *be;
    cn_stream *stream[N_PRIORITIES];
} rigs[MAX_OPEN];

cn_backend *backend_rig_open(uint32_t n_threads)
{
    const cn_cpu_backend_opts o = {.n_threads = n_threads};
    uint32_t i = 0;
    while (i < MAX_OPEN && rigs[i].be) i++;
    assert_true(i < MAX_OPEN);
    if (cn_backend_cpu_open(&rigs[i].be, &o) != CN_OK) fail_msg("%s", cn_last_error());
    return rigs[i].be;
}

static uint32_t find(const cn_backend *be)
{
    uint32_t i = 0;
    while (i < MAX_OPEN && rigs[i].be != be) i++;
    assert_true(i < MAX_OPEN);
    return i;
}

static cn_stream *stream_of(cn_backend *be, cn_priority priority)
{
    cn_stream **s = &rigs[find(be)].stream[priority];
    if (!*s && be->stream_create(be, priority, s) != CN_OK) fail_msg("%s", cn_last_error());
    return *s;
}

cn_stream *backend_rig_stream(cn_backend *be) { return stream_of(be, CN_PRIORITY_HIGH); }
cn_stream *backend_rig_side(cn_backend *be) { return stream_of(be, CN_PRIORITY_LOW); }

void backend_rig_close(cn_backend *be)
{
    const uint32_t i = find(be);
    for (int p = 0; p < N_PRIORITIES; p++) {
        be->stream_free(rigs[i].stream[p]);
        rigs[i].stream[p] = NULL;
    }
    rigs[i].be = NULL;
    be->close(be);
}
