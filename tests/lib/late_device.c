/* late_device.c - see late_device.h.
 *
 * A point of a stream is the number of entries submitted before it. A fence stores the point at
 * which it was recorded. The fence is reached when that many entries have run. It may be recorded
 * again while another stream waits for the earlier point. */
#include "tests/lib/late_device.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ops.h"
#include "tests/lib/paged_batch.h"

enum {
    QUEUE_ENTRIES = 4096,
    MAX_ARGS_BYTES = 1024,
    MAX_STREAMS = 8,
    ERROR_BYTES = 512,
    GRAPH_ENTRIES = 1024,
    PACE_CALLS = 400 /* most host calls between two draws of the paces */
};

typedef struct entry entry;
typedef cn_status (*run_fn)(cn_backend *cpu, cn_stream *s, entry *e);

struct entry {
    run_fn run;             /* NULL: a wait for the other stream */
    const cn_stream *other; /* of a wait: the other stream and the point in it */
    uint64_t point;
    cn_batch_view view; /* a copy of *args->batch */
    void *owned;        /* copies of arrays of the host, or NULL */
    _Alignas(16) unsigned char args[MAX_ARGS_BYTES];
};

struct cn_graph {
    entry entries[GRAPH_ENTRIES];
    uint32_t n;
};

struct cn_stream {
    struct late_device *device;
    cn_stream *cpu; /* the CPU backend's stream, which runs the ops */
    bool high;
    entry queue[QUEUE_ENTRIES];
    uint64_t n_submitted, n_run;
    cn_graph *recording;
    uint32_t pace;   /* most ops that run in one host call */
    cn_status error; /* the first error; all later entries are skipped */
    char error_text[ERROR_BYTES];
};

struct cn_fence {
    cn_stream *stream; /* NULL: never recorded */
    uint64_t point;
};

typedef struct late_device {
    cn_backend table; /* ctx is the CPU backend's */
    cn_backend *cpu;
    cn_stream *streams[MAX_STREAMS]; /* created and not yet freed */
    uint32_t n_streams;
    test_rng rng;
    bool held; /* ops run only when a wait needs them */
    uint32_t calls_left; /* host calls until new paces are drawn */
} late_device;

static uint64_t chosen_seed;

void late_device_choose(uint64_t seed) { chosen_seed = seed; }

/* ---- running ---- */

static bool is_idle(const late_device *d)
{
    for (uint32_t i = 0; i < d->n_streams; i++)
        if (d->streams[i]->n_run != d->streams[i]->n_submitted) return false;
    return true;
}

static void run_entry(cn_stream *s, entry *e)
{
    cn_status status = s->error == CN_OK ? e->run(s->device->cpu, s->cpu, e) : CN_OK;
    if (status == CN_OK) status = s->device->cpu->stream_sync(s->cpu);
    if (status != CN_OK && s->error == CN_OK) {
        s->error = status;
        snprintf(s->error_text, sizeof s->error_text, "%s", cn_last_error());
    }
    free(e->owned);
}

/* Runs the oldest entry. False when there is none, or when it waits for another stream. */
static bool try_run_next(cn_stream *s)
{
    if (s->n_run == s->n_submitted) return false;
    entry *e = &s->queue[s->n_run % QUEUE_ENTRIES];
    if (!e->run && e->other->n_run < e->point) return false;
    if (e->run) run_entry(s, e);
    s->n_run++;
    return true;
}

/* Runs a stream up to a point, and the entries of other streams that it waits for. */
static void run_until(cn_stream *s, uint64_t point)
{
    while (s->n_run < point) {
        cn_stream *next = s;
        for (uint32_t depth = 0; !try_run_next(next); depth++) {
            CN_ASSERT(depth < MAX_STREAMS); /* fails when streams wait for each other */
            next = (cn_stream *)next->queue[next->n_run % QUEUE_ENTRIES].other;
        }
    }
}

/* Called in each host call: runs the ops that the device has completed since the last call. */
static void pass_time(late_device *d)
{
    static const uint32_t paces[] = {0, 2, 11};
    for (uint32_t i = 0; d->calls_left == 0 && i < d->n_streams; i++)
        d->streams[i]->pace = d->held ? 0 : paces[test_rng_below(&d->rng, 3)];
    if (d->calls_left-- == 0) d->calls_left = test_rng_below(&d->rng, PACE_CALLS);
    const uint32_t first = test_rng_below(&d->rng, d->n_streams);
    for (uint32_t i = 0; i < d->n_streams; i++) {
        cn_stream *s = d->streams[(first + i) % d->n_streams];
        for (uint32_t n = test_rng_below(&d->rng, s->pace + 1); n > 0 && try_run_next(s);) n--;
    }
}

static cn_status error_of(const cn_stream *s)
{
    return s->error == CN_OK ? CN_OK : cn_fail(s->error, "%s", s->error_text);
}

/* ---- queueing ---- */

static entry *next_entry(cn_stream *s)
{
    cn_graph *g = s->recording;
    CN_ASSERT(!g || g->n < GRAPH_ENTRIES);
    if (g) return &g->entries[g->n++];
    if (s->n_submitted - s->n_run == QUEUE_ENTRIES) run_until(s, s->n_run + 1);
    return &s->queue[s->n_submitted++ % QUEUE_ENTRIES];
}

/* `owned` is freed after the entry has run. */
static cn_status submit(cn_stream *s, run_fn run, const void *args, size_t bytes,
                        const cn_batch_view *view, void *owned)
{
    CN_ASSERT(bytes <= MAX_ARGS_BYTES && !(s->recording && owned));
    pass_time(s->device);
    entry *e = next_entry(s);
    e->run = run;
    memcpy(e->args, args, bytes);
    if (view) e->view = *view;
    e->owned = owned;
    return CN_OK;
}

/* Returns a copy of host memory, a then b; never NULL. */
static char *copy_of(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    char *copy = malloc(a_bytes + b_bytes + 1);
    CN_ASSERT(copy);
    if (a_bytes) memcpy(copy, a, a_bytes);
    if (b_bytes) memcpy(copy + a_bytes, b, b_bytes);
    return copy;
}

/* ---- streams and fences ---- */

static late_device *device_of(cn_backend *be) { return (late_device *)(void *)be; }

static cn_status stream_create(cn_backend *be, cn_priority priority, cn_stream **out)
{
    late_device *d = device_of(be);
    cn_stream *s = calloc(1, sizeof *s);
    CN_ASSERT(s && d->n_streams < MAX_STREAMS);
    s->device = d;
    s->high = priority == CN_PRIORITY_HIGH;
    CN_TRY(d->cpu->stream_create(d->cpu, priority, &s->cpu));
    d->streams[d->n_streams++] = s;
    *out = s;
    return CN_OK;
}

static cn_status stream_sync(cn_stream *s)
{
    run_until(s, s->n_submitted);
    return error_of(s);
}

static void stream_free(cn_stream *s)
{
    if (!s) return;
    late_device *d = s->device;
    uint32_t i = 0;
    run_until(s, s->n_submitted);
    while (d->streams[i] != s) i++;
    d->streams[i] = d->streams[--d->n_streams];
    d->cpu->stream_free(s->cpu);
    free(s);
}

static cn_status fence_create(cn_backend *be, cn_fence **out)
{
    (void)be;
    *out = calloc(1, sizeof **out);
    CN_ASSERT(*out);
    return CN_OK;
}

static void fence_free(cn_fence *f) { free(f); }

static cn_status fence_record(cn_fence *f, cn_stream *s)
{
    pass_time(s->device);
    *f = (cn_fence){s, s->n_submitted};
    return CN_OK;
}

static cn_status fence_wait(cn_stream *s, cn_fence *f)
{
    pass_time(s->device);
    if (!f->stream || f->stream == s) return CN_OK;
    entry *e = next_entry(s);
    *e = (entry){.other = f->stream, .point = f->point};
    return CN_OK;
}

static cn_status fence_done(cn_fence *f, bool *done)
{
    *done = true;
    if (!f->stream) return CN_OK;
    pass_time(f->stream->device);
    *done = f->stream->n_run >= f->point;
    return *done ? error_of(f->stream) : CN_OK;
}

static cn_status fence_sync(cn_fence *f)
{
    if (!f->stream) return CN_OK;
    run_until(f->stream, f->point);
    return error_of(f->stream);
}

/* ---- graphs ---- */

static cn_status graph_begin(cn_stream *s)
{
    s->recording = calloc(1, sizeof *s->recording);
    CN_ASSERT(s->recording);
    return CN_OK;
}

static cn_status graph_end(cn_stream *s, cn_graph **out)
{
    *out = s->recording;
    s->recording = NULL;
    return CN_OK;
}

static cn_status graph_launch(cn_stream *s, cn_graph *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        pass_time(s->device);
        *next_entry(s) = g->entries[i];
    }
    return CN_OK;
}

static void graph_free(cn_graph *g) { free(g); }

/* ---- memory ---- */

static void mem_free(cn_backend *be, void *p)
{
    CN_ASSERT(is_idle(device_of(be))); /* queued entries may use the memory */
    device_of(be)->cpu->mem_free(device_of(be)->cpu, p);
}

typedef struct mem_copy {
    void *dst;
    const void *src;
    size_t bytes;
} mem_copy;

static cn_status run_mem_copy(cn_backend *cpu, cn_stream *s, entry *e)
{
    const mem_copy *c = (const void *)e->args;
    return cpu->mem_write(s, c->dst, c->src, c->bytes);
}

static cn_status mem_write(cn_stream *s, void *dst, const void *host, size_t bytes)
{
    char *owned = s->high ? copy_of(host, bytes, NULL, 0) : NULL;
    const mem_copy c = {dst, owned ? owned : host, bytes};
    return submit(s, run_mem_copy, &c, sizeof c, NULL, owned);
}

/* Fills `host` with 0xa5: reading it before the stream has run the copy is an error of the host. */
static cn_status mem_read(cn_stream *s, void *host, const void *src, size_t bytes)
{
    const mem_copy c = {host, src, bytes};
    if (bytes) memset(host, 0xa5, bytes);
    return submit(s, run_mem_copy, &c, sizeof c, NULL, NULL);
}

/* ---- ops ---- */

typedef cn_attn_args cn_attn_decode_args, cn_attn_prefill_args;

#define RUN_OP(op)                                                                              \
    static cn_status run_##op(cn_backend *cpu, cn_stream *s, entry *e)                          \
    { return cpu->op(s, (const void *)e->args); }
#define LATE_OP(op)                                                                             \
    RUN_OP(op)                                                                                  \
    static cn_status late_##op(cn_stream *s, const cn_##op##_args *a)                           \
    { return submit(s, run_##op, a, sizeof *a, NULL, NULL); }
/* Ops that read the batch. The CPU's ops do not support padding rows, so these rows are dropped. */
#define LATE_BATCH_OP(op)                                                                       \
    static cn_status run_##op(cn_backend *cpu, cn_stream *s, entry *e)                          \
    {                                                                                           \
        cn_##op##_args *a = (void *)e->args;                                                    \
        drop_padding(&e->view);                                                                 \
        a->batch = &e->view;                                                                    \
        return cpu->op(s, a);                                                                   \
    }                                                                                           \
    static cn_status late_##op(cn_stream *s, const cn_##op##_args *a)                           \
    { return submit(s, run_##op, a, sizeof *a, a->batch, NULL); }

static void drop_padding(cn_batch_view *v)
{
    while (v->n_tokens > 0 && v->kv_slots[v->n_tokens - 1] == CN_NO_SLOT) {
        v->n_tokens--;
        v->n_seqs--;
        v->n_decode--;
    }
}

#define PLAIN_OPS(X) \
    X(embed) X(rmsnorm) X(gemm) X(silu_mul) X(route) X(expert_gate_up) \
    X(expert_down) X(expert_sum) X(heads_gemm) X(gather) X(sample) X(count_reset) X(compress) \
    X(draft_store) X(draft_part) X(draft_before) X(draft_keep) X(digest) X(predict) X(score) \
    X(select) X(exchange) X(fetch)
#define BATCH_OPS(X) X(rope_store) X(latent_store) X(attn_decode) X(attn_prefill)

PLAIN_OPS(LATE_OP)
BATCH_OPS(LATE_BATCH_OP)
RUN_OP(copy_blocks)

static cn_status run_attend_selected(cn_backend *cpu, cn_stream *s, entry *e)
{
    cn_attend_selected_args *a = (void *)e->args;
    drop_padding(&e->view);
    if (a->first_row >= e->view.n_decode) return CN_OK;
    a->n_rows = cn_min_u32(a->n_rows, e->view.n_decode - a->first_row);
    a->attn.batch = &e->view;
    return cpu->attend_selected(s, a);
}

static cn_status late_attend_selected(cn_stream *s, const cn_attend_selected_args *a)
{
    return submit(s, run_attend_selected, a, sizeof *a, a->attn.batch, NULL);
}

/* Routes as a device could have them: whether tiles are ranked, and some tokens under rule max. */
static uint32_t select_route(const cn_sel_forms *need, const cn_sel_forms *declared)
{
    (void)declared;
    return 1u + (need->stage[0] ? 1u : 0) + (need->stage[1] & CN_SEL_FORMS_MAX ? 2u : 0);
}

static cn_status late_copy_blocks(cn_stream *s, const cn_copy_args *args)
{
    cn_copy_args a = *args;
    cn_copy_list *l = &a.list;
    char *owned = copy_of(l->blocks, l->n_blocks * sizeof *l->blocks, l->slots,
                          l->n_slots * sizeof *l->slots);
    l->blocks = (const cn_block_copy *)(void *)owned;
    l->slots = l->blocks + l->n_blocks;
    return submit(s, run_copy_blocks, &a, sizeof a, NULL, owned);
}

/* ---- life ---- */

static void close_device(cn_backend *be)
{
    late_device *d = device_of(be);
    CN_ASSERT(is_idle(d));
    d->cpu->close(d->cpu);
    free(d);
}

static void fill_table(cn_backend *t)
{
    t->async = true;
    t->close = close_device;
    t->mem_free = t->host_free = mem_free;
    t->mem_write = mem_write;
    t->mem_read = mem_read;
    t->stream_create = stream_create;
    t->stream_free = stream_free;
    t->stream_sync = stream_sync;
    t->fence_create = fence_create;
    t->fence_free = fence_free;
    t->fence_record = fence_record;
    t->fence_wait = fence_wait;
    t->fence_done = fence_done;
    t->fence_sync = fence_sync;
    t->timed_fence_create = NULL; /* it runs ops at no particular time */
    t->fence_seconds = NULL;
    t->graph_begin = graph_begin;
    t->graph_end = graph_end;
    t->graph_launch = graph_launch;
    t->graph_free = graph_free;
#define SET_OP(op) t->op = late_##op;
    PLAIN_OPS(SET_OP)
    BATCH_OPS(SET_OP)
    SET_OP(copy_blocks)
    SET_OP(attend_selected)
    t->select_route = select_route;
}

cn_status __real_cn_backend_cpu_open(cn_backend **out, const cn_cpu_backend_opts *o);
cn_status __wrap_cn_backend_cpu_open(cn_backend **out, const cn_cpu_backend_opts *o);

/* The linker calls this function instead of cn_backend_cpu_open. */
cn_status __wrap_cn_backend_cpu_open(cn_backend **out, const cn_cpu_backend_opts *o)
{
    CN_TRY(__real_cn_backend_cpu_open(out, o));
    if (chosen_seed == 0) return CN_OK;
    late_device *d = calloc(1, sizeof *d);
    CN_ASSERT(d);
    d->cpu = *out;
    d->table = *d->cpu;
    d->rng.state = chosen_seed;
    d->held = test_rng_below(&d->rng, 4) == 0;
    fill_table(&d->table);
    *out = &d->table;
    return CN_OK;
}
