/* cpu_backend.c - the op table of the CPU backend; its memory; opening and closing. */
#include <errno.h>
#include <sys/mman.h>

#include "engine/cpu/cpu_compress.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_ranks.h"
#include "engine/cpu/cpu_sample.h"

enum { ATTN_PART_BYTES_PER_THREAD = 1 << 20 };

void cn_cpu_parallel(cn_stream *s, uint32_t n_tasks, cn_cpu_task_fn fn, void *ctx)
{
    cn_cpu *cpu = cn_cpu_stream_owner(s);
    if (!cn_cpu_stream_is_threaded(s)) {
        cn_cpu_pool_run(cpu->pool, n_tasks, fn, ctx);
        return;
    }
    for (uint32_t i = 0; i < n_tasks; i++) fn(ctx, i, cn_cpu_stream_worker(s));
}

/* ---- memory ---- */

/* Memory comes directly from the system. Pages are zeroed, and are allocated when first touched, so
 * a pool costs only the part that requests use. A header page holds the size for cpu_mem_free. */
enum { MEM_HEADER_BYTES = 4096 };

static cn_status cpu_mem_alloc(cn_backend *be, size_t bytes, void **out)
{
    (void)be;
    char *base = MAP_FAILED;
    if (bytes <= SIZE_MAX - MEM_HEADER_BYTES)
        base = mmap(NULL, bytes + MEM_HEADER_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return cn_fail(CN_ERR_MEMORY, "cpu: cannot allocate %zu bytes: %s", bytes, strerror(errno));
    memcpy(base, &bytes, sizeof bytes);
    *out = base + MEM_HEADER_BYTES;
    return CN_OK;
}

static void cpu_mem_free(cn_backend *be, void *p)
{
    (void)be;
    char *base = (char *)p - MEM_HEADER_BYTES;
    size_t bytes;
    memcpy(&bytes, base, sizeof bytes);
    munmap(base, bytes + MEM_HEADER_BYTES);
}

typedef struct mem_copy {
    void *dst;
    const void *src;
    size_t bytes;
} mem_copy;

static cn_status run_mem_copy(cn_stream *s, const void *args)
{
    (void)s;
    const mem_copy *c = args;
    if (c->bytes) memcpy(c->dst, c->src, c->bytes);
    return CN_OK;
}

/* Host and device memory are the same, so reading is a copy too. */
static cn_status mem_read(cn_stream *s, void *host, const void *src, size_t bytes)
{
    mem_copy c = {host, src, bytes};
    return cn_cpu_stream_submit(s, run_mem_copy, &c, sizeof c);
}

/* With `threaded`, a HIGH stream has a thread too. The caller may change `host` when this returns,
 * so this waits for the copy. */
static cn_status mem_write(cn_stream *s, void *dst, const void *host, size_t bytes)
{
    CN_TRY(mem_read(s, dst, host, bytes));
    return cn_cpu_stream_owner(s)->threaded ? cn_cpu_stream_wait(s) : CN_OK;
}

/* ---- ops ---- */

/* Defines the table entry of an op. On an immediate stream the op runs at once; on a threaded
 * stream it is queued with a copy of its arguments. */
#define CPU_OP_AS(op, function, type)                                                       \
    static cn_status run_##op(cn_stream *s, const void *args) { return function(s, args); } \
    static cn_status enqueue_##op(cn_stream *s, const type *a)                              \
    {                                                                                       \
        return cn_cpu_stream_submit(s, run_##op, a, sizeof *a);                             \
    }

#define CPU_OP(op, type) CPU_OP_AS(op, cn_cpu_##op, type)

/* The same for an op with a batch view, the member `at`. A copy of the view is queued, because the
 * next step changes it. */
#define CPU_BATCH_OP(op, type, at)                                       \
    typedef struct op##_call {                                           \
        type args;                                                       \
        cn_batch_view view;                                              \
    } op##_call;                                                         \
    static cn_status run_##op(cn_stream *s, const void *args)            \
    {                                                                    \
        op##_call c = *(const op##_call *)args;                          \
        c.args.at = &c.view;                                             \
        return cn_cpu_##op(s, &c.args);                                  \
    }                                                                    \
    static cn_status enqueue_##op(cn_stream *s, const type *a)           \
    {                                                                    \
        if (!cn_cpu_stream_is_threaded(s)) return cn_cpu_##op(s, a);     \
        const op##_call c = {*a, *a->at};                                \
        return cn_cpu_stream_submit(s, run_##op, &c, sizeof c);          \
    }

CN_CPU_OPS(CPU_OP)
CN_CPU_BATCH_OPS(CPU_BATCH_OP)
CPU_OP_AS(gemm, cn_cpu_gemm_run, cn_gemm_args)

/* Rows of a step are sampled in parallel. Each worker uses its own part of the scratch. */
static void sample_task(void *ctx, uint32_t row, uint32_t worker)
{
    const cn_sample_args *a = ctx;
    cn_cpu_sample_row(a, row, (char *)a->scratch + worker * cn_cpu_sample_scratch_bytes(a->vocab));
}

static size_t sample_scratch_bytes(cn_backend *be, uint32_t max_rows, uint32_t vocab)
{
    (void)max_rows;
    const cn_cpu *cpu = be->ctx;
    return cpu->n_workers * cn_cpu_sample_scratch_bytes(vocab);
}

static cn_status sample_rows(cn_stream *s, const cn_sample_args *a)
{
    size_t need = sample_scratch_bytes(&cn_cpu_stream_owner(s)->table, a->n_rows, a->vocab);
    if (a->scratch_bytes < need)
        return cn_fail(CN_ERR_SHAPE,
                       "sample: scratch of %zu bytes: a vocabulary of %u needs %zu bytes",
                       a->scratch_bytes, a->vocab, need);
    cn_cpu_parallel(s, a->n_rows, sample_task, (void *)a);
    return CN_OK;
}

CPU_OP_AS(sample, sample_rows, cn_sample_args)
CPU_OP(count_reset, cn_count_reset_args)
CPU_OP(compress, cn_compress_args)

/* ---- streams ---- */

/* A threaded stream gets a worker index, and with it scratch that no other stream uses. */
static cn_status stream_create(cn_backend *be, cn_priority priority, cn_stream **out)
{
    cn_cpu *cpu = be->ctx;
    const bool threaded = cpu->threaded || priority != CN_PRIORITY_HIGH;
    uint32_t i = 0;
    *out = NULL;
    while (threaded && i < CN_CPU_MAX_STREAMS && cpu->used_workers >> i & 1) i++;
    if (i == CN_CPU_MAX_STREAMS)
        return cn_fail(CN_ERR_DEVICE, "cpu: %d threaded streams are in use: expected fewer than %d",
                       CN_CPU_MAX_STREAMS, CN_CPU_MAX_STREAMS);
    const uint32_t n_pool = cpu->n_workers - CN_CPU_MAX_STREAMS;
    CN_TRY(cn_cpu_stream_create(out, cpu, threaded, n_pool + i));
    if (threaded) cpu->used_workers |= UINT64_C(1) << i;
    cpu->n_streams++;
    return CN_OK;
}

static void stream_free(cn_stream *s)
{
    if (!s) return;
    cn_cpu *cpu = cn_cpu_stream_owner(s);
    const uint32_t i = cn_cpu_stream_worker(s) - (cpu->n_workers - CN_CPU_MAX_STREAMS);
    if (cn_cpu_stream_is_threaded(s)) cpu->used_workers &= ~(UINT64_C(1) << i);
    cpu->n_streams--;
    cn_cpu_stream_free(s);
}

/* ---- life ---- */

static void close_cpu_backend(cn_backend *be)
{
    if (!be) return;
    cn_cpu *cpu = be->ctx;
    CN_ASSERT(cpu->n_streams == 0);
    cn_cpu_pool_free(cpu->pool);
    cn_cpu_gemm_free(cpu->gemm);
    cn_free(cpu->attn_parts);
    cn_free(cpu->select);
    cn_free(cpu->attn);
    cn_free(cpu);
}

static const cn_backend CPU_TABLE = {
    .name = "cpu",
    .matrix_dtype = CN_F32,
    .vector_dtype = CN_F32,
    .act_dtype = CN_F32,
    .kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
    .select_kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
    .row_kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
    .home_kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
    .fp8_x_forms = (1U << CN_N_X_FORMS) - 1,
    .fp8_columns = 1,
    .fp8_experts = true,
    .gates_apart = true,
    .default_block_tokens = 64,
    .mem_align = 64,
    .logit_bytes = sizeof(float),
    .keeps = CN_CPU_KEEPS,
    .scores = (1U << CN_N_SCORES) - 1, /* the table has a row for each */
    .head_rules = 1U << CN_HEADS_MAX | 1U << CN_HEADS_MEAN,
    .close = close_cpu_backend,
    .mem_alloc = cpu_mem_alloc,
    .mem_free = cpu_mem_free,
    .host_alloc = cpu_mem_alloc,
    .host_free = cpu_mem_free,
    .mem_write = mem_write,
    .mem_read = mem_read,
    .stream_create = stream_create,
    .stream_free = stream_free,
    .stream_sync = cn_cpu_stream_sync,
    .fence_create = cn_cpu_fence_create,
    .fence_free = cn_cpu_fence_free,
    .fence_record = cn_cpu_fence_record,
    .fence_wait = cn_cpu_fence_wait,
    .fence_done = cn_cpu_fence_done,
    .fence_sync = cn_cpu_fence_sync,
    .timed_fence_create = cn_cpu_fence_create,
    .fence_seconds = cn_cpu_fence_seconds,
    .barrier_create = cn_cpu_barrier_create,
    .barrier_add = cn_cpu_barrier_add,
    .barrier_break = cn_cpu_barrier_break,
    .barrier_free = cn_cpu_barrier_free,
    .gemm = enqueue_gemm,
#define CPU_ENTRY(op, ...) .op = enqueue_##op,
    CN_CPU_OPS(CPU_ENTRY)
    CN_CPU_BATCH_OPS(CPU_ENTRY)
#undef CPU_ENTRY
    .ranks_latent = true,
    .sample_scratch_bytes = sample_scratch_bytes,
    .sample = enqueue_sample,
    .count_reset = enqueue_count_reset,
    .copy_blocks = cn_cpu_copy_blocks,
    .compress_scratch_bytes = cn_cpu_compress_scratch_bytes,
    .compress = enqueue_compress,
};

static cn_status open_cpu_parts(cn_cpu *cpu, uint32_t n_threads)
{
    cpu->n_workers = n_threads + CN_CPU_MAX_STREAMS;
    cpu->n_attn_parts = n_threads * ATTN_PART_BYTES_PER_THREAD / sizeof *cpu->attn_parts;
    cpu->attn = cn_calloc_aligned(cpu->n_workers, sizeof *cpu->attn);
    cpu->select = cn_calloc_aligned(cpu->n_workers, sizeof *cpu->select);
    cpu->attn_parts = cn_calloc_aligned(cpu->n_attn_parts, sizeof *cpu->attn_parts);
    if (!cpu->attn || !cpu->select || !cpu->attn_parts)
        return cn_fail(CN_ERR_MEMORY,
                       "cpu backend: out of memory for the workspace of %u threads; use fewer",
                       n_threads);
    CN_TRY(cn_cpu_gemm_create(&cpu->gemm, cpu->n_workers));
    return cn_cpu_pool_create(&cpu->pool, n_threads);
}

cn_status cn_backend_cpu_open(cn_backend **out, const cn_cpu_backend_opts *o)
{
    *out = NULL;
    cn_cpu *cpu = cn_calloc(1, sizeof *cpu);
    if (!cpu) return cn_fail(CN_ERR_MEMORY, "cpu backend: out of memory");
    cpu->table = CPU_TABLE;
    cpu->table.ctx = cpu;
    cpu->table.async = cpu->threaded = o->threaded;
    cn_status status = open_cpu_parts(cpu, o->n_threads ? o->n_threads : cn_cpu_count());
    if (status != CN_OK) {
        close_cpu_backend(&cpu->table);
        return status;
    }
    *out = &cpu->table;
    return CN_OK;
}
