/* gemm_tune.c - times all candidates for each matrix product of the model, for each batch bucket.
 * It uses memory of the backend's one allocation, which is free at start. If that is too small, it
 * allocates and frees its own.
 *
 * Each run reads another copy of the weights, so they come from memory and not from the cache. This
 * is so in a step too, where other layers are read in between. Runs follow each other without a
 * gap, like the ops of a step. A candidate is timed twice and its better time counts. A candidate
 * that is far slower than the best after the first time is not timed again. */
#include "cuda/gemm/gemm.h"

enum { LIBRARY_CANDIDATES = 8, MAX_CANDIDATES = 96, MAX_MODEL_SHAPES = 5 };

typedef struct tuner {
    cn_cuda *c;
    cn_stream *s;
    cudaEvent_t start, end;
    char *memory; /* weights, x and out, one after the other */
    bool apart;   /* memory is not part of the backend's one allocation */
    size_t weight_bytes, x_bytes, out_bytes;
    uint32_t turn; /* number of the next run; selects the copy of the weights */
} tuner;

/* A product of the model, and the most rows that it can have. */
typedef struct model_shape {
    cn_gemm_shape shape;
    uint32_t most_tokens;
} model_shape;

static uint32_t model_shapes(const cn_cuda_backend_opts *o, model_shape out[MAX_MODEL_SHAPES])
{
    const uint32_t q = o->n_heads * o->head_dim, kv = o->n_kv_heads * o->head_dim;
    const uint32_t h = o->hidden, i = o->intermediate;
    uint32_t n = 0;
    const cn_gemm_shape shapes[] = {
        {.n = q + 2 * kv, .k = h},          {.n = h, .k = q}, {.n = 2 * i, .k = h, .gated = true},
        {.n = h, .k = i},
    };
    for (; n < sizeof shapes / sizeof *shapes; n++)
        out[n] = (model_shape){shapes[n], o->max_tokens};
    out[n++] = (model_shape){{.n = o->vocab, .k = h, .out_f32 = true}, o->max_seqs};
    return n;
}

/* ---- one candidate ---- */

static size_t weight_bytes(cn_gemm_shape shape) { return (size_t)shape.n * shape.k * 2; }

static cn_status run_once(tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                          const cn_gemm_plan *plan)
{
    const size_t bytes = cn_round_up(weight_bytes(shape), 256);
    const size_t copies = t->weight_bytes / bytes;
    char *out = t->memory + t->weight_bytes + t->x_bytes;
    const cn_gemm_call call = {
        .shape = shape,
        .out = out,
        .x = t->memory + t->weight_bytes,
        .weight = t->memory + t->turn++ % copies * bytes,
        .gate_up = out + (shape.gated ? (size_t)n_tokens * shape.n : 0), /* behind n / 2 columns */
        .n_tokens = n_tokens,
    };
    return cn_gemm_run(t->s, &call, plan);
}

/* Returns the number of runs for which the resolution of the timer does not matter. */
static uint32_t repeats(cn_gemm_shape shape, uint32_t n_tokens)
{
    const double bytes = (double)weight_bytes(shape), flop = bytes * n_tokens;
    const double us = bytes / 3e6 + flop / 6e8; /* at about 3 TB/s and 600 TFLOP/s */
    return us > 100 ? 3 : us > 15 ? (uint32_t)(300 / us) : 20;
}

/* Lowers *us to the microseconds of one run, if these are fewer. Leaves *us unchanged when the
 * candidate cannot run. */
static cn_status time_plan(tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                           const cn_gemm_plan *plan, float *us)
{
    const uint32_t n = repeats(shape, n_tokens);
    if (run_once(t, shape, n_tokens, plan) != CN_OK) return CN_OK;
    CN_CUDA(cudaEventRecord(t->start, t->s->handle));
    for (uint32_t i = 0; i < n; i++) CN_TRY(run_once(t, shape, n_tokens, plan));
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

static cn_status candidates(const tuner *t, cn_gemm_shape shape, uint32_t n_tokens,
                            cn_gemm_plan plans[MAX_CANDIDATES], uint32_t *n)
{
    *n = 0;
    if (t->c->opts.gemm != CN_CUDA_GEMM_LIBRARY)
        *n = own_candidates(t->c, shape, n_tokens, plans);
    if (t->c->opts.gemm == CN_CUDA_GEMM_OWN && *n > 0) return CN_OK;
    uint32_t more = 0;
    CN_TRY(cn_gemm_propose(t->c, shape, n_tokens, plans + *n, LIBRARY_CANDIDATES, &more));
    *n += more;
    return CN_OK;
}

static void log_plan(cn_gemm_shape shape, uint32_t n_tokens, const cn_gemm_plan *plan, float us,
                     bool best)
{
    char what[48] = "library";
    if (plan->kind == CN_GEMM_SKINNY)
        snprintf(what, sizeof what, "own %u/%u/%u/%u", plan->skinny.rows, plan->skinny.splits,
                 plan->skinny.sharers, plan->skinny.stages);
    cn_log(CN_LOG_DEBUG, "gemm %u x %u%s, %u rows: %s %.1f us, %.0f GB/s%s", shape.n, shape.k,
           shape.gated ? " gated" : "", n_tokens, what, (double)us,
           (double)weight_bytes(shape) / us / 1e3, best ? " <- taken" : "");
}

static cn_status plan_bucket(tuner *t, cn_gemm_shape shape, uint32_t n_tokens, cn_gemm_plan *out)
{
    const float never = 1e9f, hopeless = 1.3f;
    cn_gemm_plan plans[MAX_CANDIDATES];
    float us[MAX_CANDIDATES], best_us = never;
    uint32_t n = 0, best = 0;
    CN_TRY(candidates(t, shape, n_tokens, plans, &n));
    for (uint32_t i = 0; i < n; i++) {
        us[i] = never;
        CN_TRY(time_plan(t, shape, n_tokens, &plans[i], &us[i]));
        if (us[i] < best_us) best_us = us[i];
    }
    for (uint32_t i = 0; i < n; i++)
        if (us[i] < best_us * hopeless)
            CN_TRY(time_plan(t, shape, n_tokens, &plans[i], &us[i]));
    for (uint32_t i = 0; i < n; i++)
        if (us[i] < us[best]) best = i;
    if (n == 0 || us[best] == never) return CN_OK; /* planned, or refused, at its first use */
    for (uint32_t i = 0; i < n; i++) log_plan(shape, n_tokens, &plans[i], us[i], i == best);
    *out = plans[best];
    return CN_OK;
}

/* ---- all buckets of all shapes ---- */

/* Takes memory for at least 1 GiB of weights and at least one copy of the largest weight. Leaves
 * t->memory NULL when the GPU has too little memory. */
static cn_status take_memory(tuner *t, const model_shape *shapes, uint32_t n)
{
    const size_t want_weights = (size_t)1 << 30;
    size_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        const size_t rows = shapes[i].most_tokens, out_size = shapes[i].shape.out_f32 ? 4 : 2;
        const size_t bytes = cn_round_up(weight_bytes(shapes[i].shape), 256);
        const size_t x = rows * shapes[i].shape.k * 2;
        const size_t out = rows * shapes[i].shape.n * (out_size + shapes[i].shape.gated);
        if (bytes > largest) largest = bytes;
        if (x > t->x_bytes) t->x_bytes = cn_round_up(x, 256);
        if (out > t->out_bytes) t->out_bytes = cn_round_up(out, 256);
    }
    t->weight_bytes = largest > want_weights ? largest : want_weights;
    void *memory = NULL;
    const size_t bytes = t->weight_bytes + t->x_bytes + t->out_bytes;
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

static cn_status plan_shapes(tuner *t, const model_shape *shapes, uint32_t n)
{
    CN_TRY(take_memory(t, shapes, n));
    if (!t->memory) return CN_OK;
    CN_CUDA(cudaEventCreate(&t->start));
    CN_CUDA(cudaEventCreate(&t->end));
    for (uint32_t i = 0; i < n; i++) {
        cn_gemm_entry *e = cn_gemm_find(t->c->gemm, shapes[i].shape);
        const uint32_t last = cn_gemm_bucket(shapes[i].most_tokens);
        cn_log(CN_LOG_INFO, "timing matrix products for this GPU, once: %u of %u", i + 1, n);
        for (uint32_t b = 0; e && b <= last; b++) {
            const uint32_t rows = cn_min_u32(cn_gemm_buckets[b], shapes[i].most_tokens);
            CN_TRY(plan_bucket(t, shapes[i].shape, rows, &e->plans[b]));
        }
    }
    return CN_OK;
}

cn_status cn_gemm_tune(cn_cuda *c)
{
    if (c->opts.hidden == 0 || c->opts.batch_invariant) return CN_OK;
    if (cn_gemm_cache_load(c)) return CN_OK;
    model_shape shapes[MAX_MODEL_SHAPES];
    const uint32_t n = model_shapes(&c->opts, shapes);
    tuner t = {.c = c};
    CN_TRY(cn_cuda_stream_create(&c->table, CN_PRIORITY_HIGH, &t.s));
    cn_status status = plan_shapes(&t, shapes, n);
    const bool timed = t.memory != NULL;
    if (t.start) cudaEventDestroy(t.start);
    if (t.end) cudaEventDestroy(t.end);
    if (t.memory) {
        cudaStreamSynchronize(t.s->handle);
        if (t.apart) cudaFree(t.memory);
        else cn_cuda_arena_give(&c->arena, t.memory);
    }
    cn_cuda_stream_free(t.s);
    if (status == CN_OK && timed) cn_gemm_cache_save(c);
    return status;
}
