/* cuda_backend.c - the op table of the CUDA backend; opens and closes it. cn_backend_cuda_open is
 * the one function that cinch-cuda.so exports. */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

#include "cuda/cuda_ops.h"
#include "cuda/experts/experts.h"
#include "cuda/gemm/gemm.h"
#include "cuda/tensor_map.h"

/* ---- memory ---- */

static cn_status mem_alloc(cn_backend *be, size_t bytes, void **out)
{
    cn_cuda *c = be->ctx;
    cn_cuda_use(c);
    CN_TRY(cn_cuda_arena_take(&c->arena, bytes, out));
    CN_CUDA(cudaMemset(*out, 0, bytes));
    CN_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    return CN_OK;
}

static void mem_free(cn_backend *be, void *p)
{
    cn_cuda *c = be->ctx;
    if (p) cn_cuda_arena_give(&c->arena, p);
}

static size_t mem_avail(cn_backend *be)
{
    cn_cuda *c = be->ctx;
    return cn_cuda_arena_largest(&c->arena);
}

/* ---- ops: each is a range in the timeline of a profiler ---- */

#define CUDA_OP(op, type)                                                                          \
    static cn_status launch_##op(cn_stream *s, const type *a)                                      \
    {                                                                                              \
        nvtxRangePushA(#op);                                                                       \
        cn_cuda_use(s->cuda);                                                                      \
        cn_status status = cn_cuda_##op(s, a);                                                     \
        nvtxRangePop();                                                                            \
        return status;                                                                             \
    }
CN_CUDA_OPS(CUDA_OP)
CUDA_OP(latent_store, cn_latent_store_args)
CUDA_OP(heads_gemm, cn_heads_gemm_args)

static bool links_norm(cn_backend *be, uint32_t n_tokens, const cn_product_shape *first,
                       const cn_product_shape *second)
{
    return cn_cuda_links_norm(be->ctx, n_tokens, first, second);
}

static cn_status mem_sum(cn_stream *s, const void *src, size_t bytes, uint64_t *out)
{
    cn_cuda_use(s->cuda);
    return cn_cuda_mem_sum(s, src, bytes, out);
}

/* ---- opening and closing ---- */

/* The open backends of the process. A backend can address the memory of all of them, except that
 * engines on several GPUs, each with a model, share nothing. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static cn_cuda *first_open;

static bool has_model(const cn_cuda *c) { return c->opts.beside == 0 && c->opts.hidden > 0; }

static cn_status join_others(cn_cuda *c)
{
    cn_status status = CN_OK;
    pthread_mutex_lock(&open_lock);
    for (const cn_cuda *o = first_open; o && status == CN_OK; o = o->next_open)
        if (!has_model(o) || !has_model(c)) status = cn_cuda_join(o, c);
    if (status == CN_OK) {
        c->next_open = first_open;
        first_open = c;
    }
    pthread_mutex_unlock(&open_lock);
    cn_cuda_use(c);
    return status;
}

static void leave_others(const cn_cuda *c)
{
    pthread_mutex_lock(&open_lock);
    for (cn_cuda **at = &first_open; *at; at = &(*at)->next_open)
        if (*at == c) {
            *at = c->next_open;
            break;
        }
    pthread_mutex_unlock(&open_lock);
}

/* The CUDA runtime keeps a current device for each thread. The next call reports an error. */
static void enter(cn_backend *be) { cn_cuda_use(be->ctx); }

static void close_backend(cn_backend *be)
{
    if (!be) return;
    cn_cuda *c = be->ctx;
    leave_others(c);
    cn_cuda_use(c);
    cudaDeviceSynchronize();
    cn_cuda_gemm_close(c);
    CN_ASSERT(c->n_streams == 0);
    cn_cuda_arena_close(&c->arena);
    cn_free(c);
}

static const cn_backend CUDA_TABLE = {
    .name = "cuda",
    .matrix_dtype = CN_BF16,
    .vector_dtype = CN_BF16,
    .act_dtype = CN_BF16,
    .kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
    .select_kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
    .row_kv_forms = 1U << CN_KV_PLAIN,
    .home_kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
    .fp8_x_forms = 1U << CN_X_BLOCKS | 1U << CN_X_ROWS | 1U << CN_X_STATIC, /* Hopper */
    .fp8_columns = 8,
    .default_block_tokens = 256,
    .async = true,
    .mem_align = CN_CUDA_ALIGN_BYTES,
    .logit_bytes = sizeof(uint16_t),
    .keeps = 1U << CN_KEEP_RECENT | 1U << CN_KEEP_BEST,
    .scores = 1U << CN_SCORE_ATTENTION | 1U << CN_SCORE_GLOBAL | 1U << CN_SCORE_POOLING |
              1U << CN_SCORE_FOLLOW | 1U << CN_SCORE_SCALE | 1U << CN_SCORE_LIGHTNING |
              1U << CN_SCORE_FLASH | 1U << CN_SCORE_COMBINE,
    .head_rules = 1U << CN_HEADS_MAX,
    .close = close_backend,
    .enter = enter,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_avail = mem_avail,
    .mem_usage = cn_cuda_mem_usage,
    .host_alloc = cn_cuda_host_alloc,
    .host_free = cn_cuda_host_free,
    .mem_write = cn_cuda_mem_write,
    .mem_read = cn_cuda_mem_read,
    .mem_sum = mem_sum,
    .stream_create = cn_cuda_stream_create,
    .stream_free = cn_cuda_stream_free,
    .stream_sync = cn_cuda_stream_sync,
    .fence_create = cn_cuda_fence_create,
    .fence_free = cn_cuda_fence_free,
    .fence_record = cn_cuda_fence_record,
    .fence_wait = cn_cuda_fence_wait,
    .fence_done = cn_cuda_fence_done,
    .fence_sync = cn_cuda_fence_sync,
    .timed_fence_create = cn_cuda_timed_fence_create,
    .fence_seconds = cn_cuda_fence_seconds,
    .graph_begin = cn_cuda_graph_begin,
    .graph_end = cn_cuda_graph_end,
    .graph_launch = cn_cuda_graph_launch,
    .graph_free = cn_cuda_graph_free,
    .links_norm = links_norm,
#define CUDA_ENTRY(op, type) .op = launch_##op,
    CN_CUDA_OPS(CUDA_ENTRY)
#undef CUDA_ENTRY
    .select_route = cn_cuda_select_route,
    .sample_scratch_bytes = cn_cuda_sample_scratch_bytes,
    .compress_scratch_bytes = cn_cuda_compress_scratch_bytes,
};

/* Sizes the one allocation by the callback wanted_bytes, if the caller has set it. */
static cn_status ask_caller(cn_cuda *c)
{
    const uint64_t align = CN_CUDA_ALIGN_BYTES;
    uint64_t bytes = 0;
    if (!c->opts.wanted_bytes) return CN_OK;
    CN_TRY(c->opts.wanted_bytes(c->opts.wanted_ctx, &c->table, &bytes));
    if (bytes == 0) return CN_OK;
    c->opts.memory_bytes = cn_round_up(bytes, align) + cn_cuda_stream_bytes(c);
    return CN_OK;
}

static cn_status open_parts(cn_cuda *c)
{
    CN_TRY(cn_cuda_device_open(&c->device, &c->opts));
    CN_TRY(join_others(c));
    if (c->switches.portable) c->device.hopper = false;
    if (!c->device.hopper) c->table.fp8_x_forms = 0;
    if (c->switches.latent) {
        c->table.latent_store = launch_latent_store;
        c->table.heads_gemm = launch_heads_gemm;
    }
    if (c->device.hopper) CN_TRY(cn_map_open());
    CN_TRY(cn_experts_sm90_open(c));
    CN_TRY(cn_experts_fp8_open(c));
    CN_TRY(cn_cuda_exchange_limit(&c->device, &c->table.most_chosen));
    CN_CUDA(cudaDeviceGetStreamPriorityRange(&c->priority[CN_PRIORITY_LOW],
                                             &c->priority[CN_PRIORITY_HIGH]));
    c->attn_scratch_bytes = cn_cuda_attn_scratch_bytes(&c->opts);
    c->plain_bytes = cn_cuda_plain_bytes(c);
    c->select_scratch_bytes = cn_cuda_select_scratch_bytes(&c->opts);
    CN_TRY(ask_caller(c));
    CN_TRY(cn_cuda_arena_open(&c->arena, &c->opts));
    return cn_cuda_gemm_open(c);
}

__attribute__((visibility("default"))) cn_status
cn_backend_cuda_open(cn_backend **out, const cn_cuda_backend_opts *o)
{
    *out = NULL;
    cn_cuda_host_set(o->base);
    if (strcmp(o->version, CINCH_VERSION) != 0 || o->header_sum != CN_HEADER_SUM)
        return cn_fail(CN_ERR_DEVICE,
                       "cinch-cuda.so (%s) and the program (%s) were built from different "
                       "headers: build both (make all cuda), or use --device cpu",
                       CINCH_VERSION, o->version);
    cn_cuda *c = cn_calloc(1, sizeof *c);
    if (!c) return cn_fail(CN_ERR_MEMORY, "cuda backend: out of memory");
    c->table = CUDA_TABLE;
    c->table.ctx = c;
    c->opts = *o;
    if (o->switches) c->switches = *o->switches;
    cn_status status = open_parts(c);
    c->opts.cache_dir = NULL; /* the caller's memory, valid only during this call */
    c->opts.switches = NULL;
    c->opts.wanted_ctx = NULL;
    if (status != CN_OK) {
        close_backend(&c->table);
        return status;
    }
    *out = &c->table;
    return CN_OK;
}
