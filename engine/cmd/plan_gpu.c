/* plan_gpu.c - see plan_gpu.h. The figures are those of the CUDA backend on a Hopper GPU. */
#include "engine/cmd/plan_gpu.h"

#include "engine/home/home_memory.h"
#include "engine/start/device_choice.h"

enum {
    ALIGN_BYTES = 256,
    BLOCK_TOKENS = 256,
    /* Scratch of the streams (cn_cuda_stream_bytes): 32 MiB for products, 17 for attention, and for
     * selection 19 with 32 heads and 256 requests. */
    STREAMS_MIB = 68,
    /* The same of a cache device, which has room for six streams of selection: with 32 heads and
     * 256 requests. */
    CACHE_STREAMS_MIB = 54,
    SAMPLE_BYTES = 64, /* clusters sample without scratch */
    SCORE_MIB = 88,    /* of compression, at least */
    SCORE_SPAN = 256   /* slots of a partial sum of compression (CN_COMPRESS_SPAN) */
};

static const cn_plan_gpu *gpu_of(cn_backend *be) { return be->ctx; }

static size_t planned_mem_avail(cn_backend *be) { return gpu_of(be)->avail_bytes; }

static size_t planned_sample_bytes(cn_backend *be, uint32_t max_rows, uint32_t vocab)
{
    (void)be;
    (void)max_rows;
    (void)vocab;
    return SAMPLE_BYTES;
}

static size_t compress_scratch_bytes(cn_backend *be, const cn_pools *pools, uint32_t n_tokens)
{
    (void)be;
    const uint64_t rows = (uint64_t)pools->window * (pools->n_heads / pools->layout.n_kv_heads);
    const uint64_t partials = 2 * cn_ceil_div(n_tokens, SCORE_SPAN) * rows;
    const uint64_t side = 2 * (uint64_t)n_tokens;
    const uint64_t words = (side + (partials > side ? partials : side)) * pools->layout.n_kv_heads;
    const uint64_t least = (uint64_t)SCORE_MIB << 20, bytes = words * sizeof(uint32_t);
    return bytes > least ? bytes : least;
}

void cn_plan_gpu_init(cn_plan_gpu *g, const cn_config *c, const cn_model_config *m)
{
    const uint64_t taken =
        ((uint64_t)(CN_PLAN_CONTEXT_MIB + STREAMS_MIB) << 20) + cn_start_plain_bytes(c, m);
    const uint64_t share =
        (uint64_t)((double)c->gpu_memory * (double)c->gpu_memory_utilization);
    *g = (cn_plan_gpu){
        .backend = {.name = "cuda",
                    .matrix_dtype = CN_BF16,
                    .vector_dtype = CN_BF16,
                    .act_dtype = CN_BF16,
                    .default_block_tokens = BLOCK_TOKENS,
                    .mem_align = ALIGN_BYTES,
                    .kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
                    .select_kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
                    .row_kv_forms = 1U << CN_KV_PLAIN,
                    .home_kv_forms = 1U << CN_KV_PLAIN | 1U << CN_KV_FP8,
                    .head_rules = 1U << CN_HEADS_MAX,
                    .fp8_x_forms = 1U << CN_X_BLOCKS | 1U << CN_X_ROWS | 1U << CN_X_STATIC,
                    .fp8_columns = 8,
                    .logit_bytes = sizeof(uint16_t),
                    .mem_avail = planned_mem_avail,
                    .sample_scratch_bytes = planned_sample_bytes,
                    .compress_scratch_bytes = compress_scratch_bytes},
        .avail_bytes = share > taken ? share - taken : 0,
    };
    g->backend.ctx = g;
}

cn_status cn_plan_gpu_take_cache(cn_plan_gpu *g, const cn_config *c, const cn_model_config *m,
                                 uint64_t *bytes)
{
    bool shares = false;
    *bytes = 0;
    if (!c->cache_device) return CN_OK;
    CN_TRY(cn_backend_cache_shares_gpu(c, &shares));
    if (!shares) return CN_OK;
    CN_TRY(cn_home_cache_bytes(bytes, c, m, &g->backend));
    *bytes += (uint64_t)CACHE_STREAMS_MIB << 20;
    if (*bytes > g->avail_bytes)
        return cn_fail(CN_ERR_MEMORY,
                       "--cache-device %s: the home needs %.2f GiB, but %.2f GiB are available on "
                       "this GPU: lower --home-space or --max-num-seqs",
                       c->cache_device, cn_gib(*bytes), cn_gib(g->avail_bytes));
    g->avail_bytes -= *bytes;
    return CN_OK;
}
