/* gemm_tune.c - times all candidates for each matrix product of the model, for each batch bucket.
 * It uses memory of the backend's one allocation, which is free at start. If that is too small, it
 * allocates and frees its own.
 *
 * Each run reads other weights, so they come from memory and not from the cache. This is so in a
 * step too, where other layers are read in between. Runs follow each other without a gap, like the
 * ops of a step. A candidate is timed twice and its better time counts. A candidate that is far
 * slower than the best after the first time is not timed again. The fastest candidates of the
 * products of a layer are then timed in a layer (gemm_tune_layer.c). */
#include "cuda/gemm/gemm_tune.h"

enum { LIBRARY_CANDIDATES = 8, MAX_CANDIDATES = 96 };

static void set_shapes(cn_gemm_tuner *t)
{
    const cn_cuda_backend_opts *o = &t->c->opts;
    const uint32_t q = o->n_heads * o->head_dim, kv = o->n_kv_heads * o->head_dim;
    const uint32_t h = o->hidden, i = o->intermediate;
    const cn_gemm_shape shapes[CN_GEMM_LAYER_SHAPES] = {
        [CN_GEMM_QKV] = {.n = q + 2 * kv, .k = h},
        [CN_GEMM_O] = {.n = h, .k = q},
        [CN_GEMM_GATE_UP] = {.n = 2 * i, .k = h, .gated = true},
        [CN_GEMM_DOWN] = {.n = h, .k = i},
    };
    for (uint32_t j = 0; j < CN_GEMM_LAYER_SHAPES; j++)
        if (!(o->fp8_products >> j & 1))
            t->shapes[j] = (cn_gemm_model_shape){shapes[j], o->max_tokens};
    t->shapes[CN_GEMM_LAYER_SHAPES] =
        (cn_gemm_model_shape){{.n = o->vocab, .k = h, .out_f32 = true}, o->max_seqs};
    t->shapes[CN_GEMM_LAYER_SHAPES + 1] =
        (cn_gemm_model_shape){{.n = o->n_experts, .k = h, .out_f32 = true}, o->max_tokens};
}

/* Whether the model has the product, with plain weights. */
static bool has_product(cn_gemm_shape shape) { return shape.n > 0 && shape.k > 0; }

/* Whether all products of a layer are timed. */
static bool has_layer(const cn_gemm_tuner *t)
{
    for (uint32_t i = 0; i < CN_GEMM_LAYER_SHAPES; i++)
        if (!has_product(t->shapes[i].shape)) return false;
    return true;
}

/* ---- one candidate ---- */

/* Returns the weights of the next run. They come from memory and not from the cache, because many
 * others have been read since their last use. */
static const char *next_weight(cn_gemm_tuner *t, size_t bytes)
{
    if (t->next_weight + bytes > t->weight_bytes) t->next_weight = 0;
    const char *weight = t->memory + t->next_weight;
    t->next_weight += cn_round_up(bytes, 256);
    return weight;
}

cn_status cn_gemm_tune_run(cn_gemm_tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                           const cn_gemm_plan *plan, const cn_norm_link *adds,
                           const cn_norm_link *norms)
{
    char *out = t->memory + t->weight_bytes + t->x_bytes;
    const cn_gemm_call call = {
        .shape = shape,
        .out = out,
        .x = t->memory + t->weight_bytes,
        .weight = next_weight(t, cn_gemm_weight_bytes(shape)),
        .gate_up = out + (shape.gated ? (size_t)n_tokens * shape.n : 0), /* behind n / 2 columns */
        .n_tokens = n_tokens,
        .adds = adds,
        .norms = norms,
    };
    return cn_gemm_run(t->s, &call, plan);
}

/* Returns the number of runs for which the resolution of the timer does not matter. */
static uint32_t repeats(cn_gemm_shape shape, uint32_t n_tokens)
{
    const double bytes = (double)cn_gemm_weight_bytes(shape), flop = bytes * n_tokens;
    const double us = bytes / 3e6 + flop / 6e8; /* at about 3 TB/s and 600 TFLOP/s */
    return us > 100 ? 3 : us > 15 ? (uint32_t)(300 / us) : 20;
}

/* Lowers *us to the microseconds of one run, if these are fewer. Leaves *us unchanged when the
 * candidate cannot run. */
static cn_status time_plan(cn_gemm_tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                           const cn_gemm_plan *plan, float *us)
{
    const uint32_t n = repeats(shape, n_tokens);
    if (cn_gemm_tune_run(t, shape, n_tokens, plan, NULL, NULL) != CN_OK) return CN_OK;
    CN_CUDA(cudaEventRecord(t->start, t->s->handle));
    for (uint32_t i = 0; i < n; i++) CN_TRY(cn_gemm_tune_run(t, shape, n_tokens, plan, NULL, NULL));
    CN_CUDA(cudaEventRecord(t->end, t->s->handle));
    CN_CUDA(cudaEventSynchronize(t->end));
    float ms = 0;
    CN_CUDA(cudaEventElapsedTime(&ms, t->start, t->end));
    const float once_us = ms * 1000 / (float)n;
    if (once_us < *us) *us = once_us;
    return CN_OK;
}

/* ---- the candidates of a bucket ---- */

/* Returns true when a configuration can be fast. Sharing x helps only if x is large. Splitting
 * helps only if the rows alone give too few blocks. */
static bool worth_timing(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                         cn_gemm_skinny config)
{
    const uint64_t blocks = cn_ceil_div(shape.n, config.rows) * config.splits;
    if (config.sharers > 1 && n_tokens <= 32) return false;
    if (config.splits > 1 && blocks > 2 * c->device.n_sms) return false;
    return cn_gemm_skinny_fits(c, shape, n_tokens, config);
}

/* Adds the configuration with the stages for one block per SM and with those for two. */
static void add_own(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                    cn_gemm_skinny config, cn_gemm_plan *plans, uint32_t *n)
{
    uint32_t last = 0;
    for (uint32_t per_sm = 1; per_sm <= 2; per_sm++) {
        config.stages = cn_gemm_skinny_stages(c, n_tokens, config.rows, per_sm);
        if (config.stages == last || !worth_timing(c, shape, n_tokens, config)) continue;
        plans[(*n)++] = (cn_gemm_plan){.kind = CN_GEMM_SKINNY, .skinny = config};
        last = config.stages;
    }
}

static uint32_t own_candidates(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                               cn_gemm_plan *plans)
{
    uint32_t n = 0;
    for (uint32_t rows = 64; rows <= 192; rows += 64)
        for (uint32_t splits = 1; splits <= 8; splits *= 2)
            for (uint32_t sharers = 1; sharers <= 4; sharers *= 2)
                add_own(c, shape, n_tokens, (cn_gemm_skinny){rows, splits, sharers, 0}, plans, &n);
    return n;
}

static cn_status candidates(const cn_gemm_tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                            cn_gemm_plan plans[MAX_CANDIDATES], uint32_t *n)
{
    *n = 0;
    if (t->c->switches.gemm != CN_CUDA_GEMM_LIBRARY)
        *n = own_candidates(t->c, shape, n_tokens, plans);
    if (t->c->switches.gemm == CN_CUDA_GEMM_OWN && *n > 0) return CN_OK;
    uint32_t more = 0;
    CN_TRY(cn_gemm_propose(t->c, shape, n_tokens, plans + *n, LIBRARY_CANDIDATES, &more));
    *n += more;
    return CN_OK;
}

void cn_gemm_plan_text(const cn_gemm_plan *plan, char text[CN_GEMM_PLAN_TEXT])
{
    snprintf(text, CN_GEMM_PLAN_TEXT, "library");
    if (plan->kind == CN_GEMM_SKINNY)
        snprintf(text, CN_GEMM_PLAN_TEXT, "own %u/%u/%u/%u", plan->skinny.rows, plan->skinny.splits,
                 plan->skinny.sharers, plan->skinny.stages);
}

static void log_plan(cn_gemm_shape shape, uint32_t n_tokens, const cn_gemm_plan *plan, float us,
                     bool best)
{
    char text[CN_GEMM_PLAN_TEXT];
    cn_gemm_plan_text(plan, text);
    cn_log(CN_LOG_DEBUG, "gemm %u x %u%s, %u rows: %s %.1f us, %.0f GB/s%s", shape.n, shape.k,
           shape.gated ? " gated" : "", n_tokens, text, (double)us,
           (double)cn_gemm_weight_bytes(shape) / us / 1e3, best ? " <- fastest" : "");
}

/* Lists the fastest of n plans, none far slower than the best. */
static void make_list(cn_gemm_short_list *list, const cn_gemm_plan *plans, float *us, uint32_t n)
{
    const float near = 1.12f, never = 1e9f;
    float most_us = never;
    for (list->n = 0; list->n < cn_min_u32(n, CN_GEMM_SHORT_LIST); list->n++) {
        uint32_t best = 0;
        for (uint32_t i = 0; i < n; i++)
            if (us[i] < us[best]) best = i;
        if (us[best] >= most_us) return;
        if (list->n == 0) most_us = us[best] * near;
        list->plans[list->n] = plans[best];
        us[best] = never; /* listed */
    }
}

/* Times the candidates of a bucket and lists the fastest. The list stays empty if none can run;
 * then the product is planned, or refused, at its first use. */
static cn_status list_plans(cn_gemm_tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                            cn_gemm_short_list *list)
{
    const float never = 1e9f, hopeless = 1.3f;
    cn_gemm_plan plans[MAX_CANDIDATES];
    float us[MAX_CANDIDATES], best_us = never;
    uint32_t n = 0;
    CN_TRY(candidates(t, shape, n_tokens, plans, &n));
    for (uint32_t i = 0; i < n; i++) {
        us[i] = never;
        CN_TRY(time_plan(t, shape, n_tokens, &plans[i], &us[i]));
        if (us[i] < best_us) best_us = us[i];
    }
    for (uint32_t i = 0; i < n; i++)
        if (us[i] < best_us * hopeless)
            CN_TRY(time_plan(t, shape, n_tokens, &plans[i], &us[i]));
    best_us = never;
    for (uint32_t i = 0; i < n; i++)
        if (us[i] < best_us) best_us = us[i];
    for (uint32_t i = 0; i < n && best_us < never; i++)
        log_plan(shape, n_tokens, &plans[i], us[i], us[i] == best_us);
    make_list(list, plans, us, n);
    return CN_OK;
}

/* ---- all buckets of all shapes ---- */

/* Takes memory for at least 1 GiB of weights and at least one copy of the largest weight. Leaves
 * t->memory NULL when the GPU has too little memory. */
static cn_status take_memory(cn_gemm_tuner *t)
{
    const size_t want_weights = (size_t)1 << 30;
    /* residual, scaled and at most as much for squares of a link (gemm_tune_layer.c) */
    const size_t link = 3 * (size_t)CN_GEMM_MAX_LINK * t->c->opts.hidden * 2;
    size_t largest = 0;
    for (uint32_t i = 0; i < CN_GEMM_MODEL_SHAPES; i++) {
        const cn_gemm_shape shape = t->shapes[i].shape;
        const size_t rows = t->shapes[i].most_tokens, out_size = shape.out_f32 ? 4 : 2;
        const size_t bytes = cn_round_up(cn_gemm_weight_bytes(shape), 256);
        const size_t x = rows * shape.k * 2;
        const size_t out = rows * shape.n * (out_size + shape.gated);
        if (bytes > largest) largest = bytes;
        if (x > t->x_bytes) t->x_bytes = cn_round_up(x, 256);
        if (out > t->out_bytes) t->out_bytes = cn_round_up(out, 256);
    }
    t->weight_bytes = largest > want_weights ? largest : want_weights;
    void *memory = NULL;
    const size_t bytes = t->weight_bytes + t->x_bytes + t->out_bytes + link;
    t->apart = bytes > cn_cuda_arena_largest(&t->c->arena);
    if (!t->apart) CN_TRY(cn_cuda_arena_take(&t->c->arena, bytes, &memory));
    if (t->apart && cudaMalloc(&memory, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        cn_log(CN_LOG_WARN,
               "cannot allocate %zu bytes of GPU memory to time matrix products: using the choice "
               "of cuBLAS",
               bytes);
        return CN_OK;
    }
    t->memory = memory;
    return cn_gemm_fill_random(t->s, memory, (t->weight_bytes + t->x_bytes) / 2, 1);
}

static cn_status plan_shapes(cn_gemm_tuner *t)
{
    CN_TRY(take_memory(t));
    if (!t->memory) return CN_OK;
    CN_CUDA(cudaEventCreate(&t->start));
    CN_CUDA(cudaEventCreate(&t->end));
    for (uint32_t i = 0; i < CN_GEMM_MODEL_SHAPES; i++) {
        const cn_gemm_model_shape *m = &t->shapes[i];
        if (!has_product(m->shape)) continue;
        cn_gemm_entry *e = cn_gemm_find(t->c->gemm, m->shape);
        CN_ASSERT(e);
        const uint32_t last = cn_gemm_bucket(m->most_tokens);
        cn_log(CN_LOG_INFO, "timing matrix products for this GPU, once: %u of %u", i + 1,
               CN_GEMM_MODEL_SHAPES);
        for (uint32_t b = 0; b <= last; b++) {
            const uint32_t rows = cn_min_u32(cn_gemm_buckets[b], m->most_tokens);
            cn_gemm_short_list *list = &t->lists[i][b];
            CN_TRY(list_plans(t, m->shape, rows, list));
            if (list->n > 0) e->plans[b] = list->plans[0];
        }
    }
    if (has_layer(t)) cn_gemm_tune_layers(t);
    return CN_OK;
}

static void close_tuner(cn_gemm_tuner *t)
{
    if (t->start) cudaEventDestroy(t->start);
    if (t->end) cudaEventDestroy(t->end);
    if (t->memory) {
        cudaStreamSynchronize(t->s->handle);
        if (t->apart) cudaFree(t->memory);
        else cn_cuda_arena_give(&t->c->arena, t->memory);
    }
    cn_cuda_stream_free(t->s);
    cn_free(t);
}

cn_status cn_gemm_tune(cn_cuda *c)
{
    if (c->opts.hidden == 0 || c->opts.batch_invariant) return CN_OK;
    if (cn_gemm_cache_load(c)) return CN_OK;
    cn_gemm_tuner *t = cn_calloc(1, sizeof *t);
    if (!t) return cn_fail(CN_ERR_MEMORY, "out of memory for the timing of matrix products");
    t->c = c;
    set_shapes(t);
    cn_status status = cn_cuda_stream_create(&c->table, CN_PRIORITY_HIGH, &t->s);
    if (status == CN_OK) status = plan_shapes(t);
    if (status == CN_OK && t->memory) cn_gemm_cache_save(c);
    close_tuner(t);
    return status;
}
