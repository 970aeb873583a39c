/* gemm_tune_layer.c - chooses plans by the time of a whole layer.
 *
 * A product that runs after itself does not take the same time as in a step. Its shared memory and
 * its blocks decide how early the next product can start to read weights. Plans that are equally
 * fast alone make steps of small batches up to 8 % longer (docs/KERNELS.md). So the fastest plans
 * of each product are timed in the ops of a layer: norm, qkv, a norm in place of rope, a stand-in
 * for attention, o, norm, gate_up and down. As in a step, a norm between two own kernels is part of
 * them. The plans of the other products stay as they are meanwhile.
 *
 * Only buckets that have own kernels are timed. For more rows the products take far longer than
 * what is between them. */
#include <float.h>

#include "cuda/gemm/gemm_tune.h"

enum { LEAST_LAYERS = 6, MOST_LAYERS = 32, LAUNCHES = 3, ROUNDS = 2, MOST_ROUNDS = 3 };

/* The plans of a layer's products. */
typedef struct layer_plans {
    const cn_gemm_plan *of[CN_GEMM_LAYER_SHAPES];
} layer_plans;

/* Returns how many layers a recorded run has. It reads the same weights each time, so these must
 * not fit in the cache. */
static int layers_of_run(const cn_gemm_tuner *t)
{
    const size_t want = (size_t)256 << 20;
    size_t layer = 0;
    for (int i = 0; i < CN_GEMM_LAYER_SHAPES; i++)
        layer += cn_gemm_weight_bytes(t->shapes[i].shape);
    const uint64_t n = cn_ceil_div(want, layer);
    return n < LEAST_LAYERS ? LEAST_LAYERS : n > MOST_LAYERS ? MOST_LAYERS : (int)n;
}

static cn_status run_norm(cn_gemm_tuner *t, uint32_t n_tokens)
{
    char *x = t->memory + t->weight_bytes;
    const cn_rmsnorm_args a = {.out = x + t->x_bytes,
                               .residual = x,
                               .weight = t->memory,
                               .n_tokens = n_tokens,
                               .hidden = t->c->opts.hidden,
                               .eps = 1e-6f};
    return cn_cuda_rmsnorm(t->s, &a);
}

/* Returns whether the norm behind a product is part of it and of the next one. */
static bool links(const cn_gemm_tuner *t, uint32_t n_tokens, const layer_plans *plans, int product)
{
    const int next = (product + 1) % CN_GEMM_LAYER_SHAPES;
    if (product != CN_GEMM_O && product != CN_GEMM_DOWN) return false;
    return cn_gemm_links(t->shapes[product].shape, plans->of[product], t->shapes[next].shape,
                         plans->of[next], n_tokens);
}

/* A link behind the memory for outputs. Its arrays are not read as x, so that x stays random. */
static cn_norm_link tuner_link_of(const cn_gemm_tuner *t, uint32_t n_tokens)
{
    const size_t elems = (size_t)n_tokens * t->c->opts.hidden;
    char *const residual = t->memory + t->weight_bytes + t->x_bytes + t->out_bytes;
    return (cn_norm_link){.residual = residual,
                          .scaled = residual + 2 * elems,
                          .weight = t->memory,
                          .squares = (float *)(residual + 4 * elems),
                          .eps = 1e-6f};
}

static cn_status run_tuned_layer(cn_gemm_tuner *t, uint32_t n_tokens, const layer_plans *plans)
{
    const cn_norm_link link = tuner_link_of(t, n_tokens);
    for (int i = 0; i < CN_GEMM_LAYER_SHAPES; i++) {
        const int before = (i + CN_GEMM_LAYER_SHAPES - 1) % CN_GEMM_LAYER_SHAPES;
        const bool norms = links(t, n_tokens, plans, before), adds = links(t, n_tokens, plans, i);
        if (i == CN_GEMM_O || (i != CN_GEMM_DOWN && !norms)) CN_TRY(run_norm(t, n_tokens));
        if (i == CN_GEMM_O) CN_TRY(cn_gemm_pause(t->s));
        CN_TRY(cn_gemm_tune_run(t, t->shapes[i].shape, n_tokens, plans->of[i], adds ? &link : NULL,
                                norms ? &link : NULL));
    }
    return CN_OK;
}

static cn_status record_layers(cn_gemm_tuner *t, uint32_t n_tokens, const layer_plans *plans,
                               int n_layers, cn_graph **out)
{
    cn_status status = CN_OK;
    CN_TRY(cn_cuda_graph_begin(t->s));
    for (int i = 0; i < n_layers && status == CN_OK; i++)
        status = run_tuned_layer(t, n_tokens, plans);
    const cn_status ended = cn_cuda_graph_end(t->s, out);
    return status == CN_OK ? ended : status;
}

static cn_status time_launches(cn_gemm_tuner *t, cn_graph *g, int n_layers, float *us)
{
    float ms = 0;
    CN_CUDA(cudaEventRecord(t->start, t->s->handle));
    for (int i = 0; i < LAUNCHES; i++) CN_TRY(cn_cuda_graph_launch(t->s, g));
    CN_CUDA(cudaEventRecord(t->end, t->s->handle));
    CN_CUDA(cudaEventSynchronize(t->end));
    CN_CUDA(cudaEventElapsedTime(&ms, t->start, t->end));
    const float layer_us = ms * 1000 / (float)(LAUNCHES * n_layers);
    if (layer_us < *us) *us = layer_us;
    return CN_OK;
}

/* *us = microseconds of a layer, the best of some rounds. */
static cn_status time_layer(cn_gemm_tuner *t, uint32_t n_tokens, const layer_plans *plans,
                            float *us)
{
    const int n_layers = layers_of_run(t);
    cn_graph *g = NULL;
    *us = FLT_MAX;
    cn_status status = record_layers(t, n_tokens, plans, n_layers, &g);
    if (status == CN_OK) status = cn_cuda_graph_launch(t->s, g);
    for (int i = 0; i < ROUNDS && status == CN_OK; i++) status = time_launches(t, g, n_layers, us);
    cn_cuda_graph_free(g);
    return status;
}

static cn_gemm_entry *entry_of(const cn_gemm_tuner *t, int product)
{
    return cn_gemm_find(t->c->gemm, t->shapes[product].shape);
}

/* Sets the plan of a product, and of those with the same shape. */
static void set_plan(const cn_gemm_tuner *t, layer_plans *plans, cn_gemm_product which,
                     const cn_gemm_plan *plan)
{
    for (int i = 0; i < CN_GEMM_LAYER_SHAPES; i++)
        if (entry_of(t, i) == entry_of(t, (int)which)) plans->of[i] = plan;
}

static void log_layer(cn_gemm_shape shape, uint32_t n_tokens, const cn_gemm_plan *plan, float us,
                      bool taken)
{
    char text[CN_GEMM_PLAN_TEXT];
    cn_gemm_plan_text(plan, text);
    cn_log(CN_LOG_DEBUG, "gemm %u x %u%s, %u rows: %s: a layer takes %.1f us%s", shape.n,
           shape.k, shape.gated ? " gated" : "", n_tokens, text, (double)us,
           taken ? " <- taken" : "");
}

/* Plans of a layer, its time, and the time by which plans are compared. */
typedef struct layer_choice {
    layer_plans plans;
    float us, cost_us;
} layer_choice;

/* Returns whether a multiprocessor has one block of an own kernel at most. */
static bool has_one_block(const cn_gemm_tuner *t, int product, const cn_gemm_plan *plan)
{
    return plan->kind == CN_GEMM_SKINNY &&
           cn_gemm_skinny_blocks(t->shapes[product].shape, plan->skinny) <= t->c->device.n_sms;
}

/* Returns what a plan costs in a step beyond its time here, as a share of the layer: in small
 * batches, where another plan of the product has one block on each multiprocessor at most. Several
 * blocks take longer in a step than here (docs/KERNELS.md). The kernels around one of the library
 * cannot start early, and the stand-in for attention does not show what this costs. */
static float hidden_cost(const cn_gemm_tuner *t, uint32_t bucket, int product,
                         const cn_gemm_plan *plan)
{
    const float cost = 0.02f;
    const cn_gemm_short_list *list = &t->lists[product][bucket];
    if (cn_gemm_buckets[bucket] > CN_GEMM_MAX_LINK || has_one_block(t, product, plan)) return 0;
    for (uint32_t i = 0; i < list->n; i++)
        if (has_one_block(t, product, &list->plans[i])) return cost;
    return 0;
}

static cn_status time_choice(cn_gemm_tuner *t, uint32_t bucket, uint32_t n_tokens,
                             layer_choice *c)
{
    CN_TRY(time_layer(t, n_tokens, &c->plans, &c->us));
    c->cost_us = c->us;
    for (int i = 0; i < CN_GEMM_LAYER_SHAPES; i++)
        c->cost_us += c->us * hidden_cost(t, bucket, i, c->plans.of[i]);
    return CN_OK;
}

/* Replaces a product's plan by each of its list, and keeps the best. */
static cn_status choose_plan(cn_gemm_tuner *t, cn_gemm_product which, uint32_t bucket,
                             uint32_t n_tokens, layer_choice *best)
{
    const float noise = 0.997f;
    const cn_gemm_short_list *list = &t->lists[which][bucket];
    const cn_gemm_plan *in_use = best->plans.of[which];
    for (uint32_t i = 0; i < list->n; i++) {
        layer_choice other = *best;
        if (&list->plans[i] == in_use) continue;
        set_plan(t, &other.plans, which, &list->plans[i]);
        CN_TRY(time_choice(t, bucket, n_tokens, &other));
        log_layer(t->shapes[which].shape, n_tokens, &list->plans[i], other.us, false);
        if (other.cost_us < best->cost_us * noise) *best = other;
    }
    return CN_OK;
}

/* Begins with the plans that are the fastest alone. Improves one product after another, those with
 * the most weights first, until a round changes nothing. */
static cn_status tune_bucket(cn_gemm_tuner *t, uint32_t bucket, uint32_t n_tokens)
{
    static const cn_gemm_product order[] = {CN_GEMM_GATE_UP, CN_GEMM_DOWN, CN_GEMM_QKV, CN_GEMM_O};
    layer_choice best;
    for (int i = 0; i < CN_GEMM_LAYER_SHAPES; i++) {
        if (t->lists[i][bucket].n == 0) return CN_OK;
        set_plan(t, &best.plans, (cn_gemm_product)i, &t->lists[i][bucket].plans[0]);
    }
    CN_TRY(run_tuned_layer(t, n_tokens, &best.plans)); /* sets up what cannot be while recording */
    CN_TRY(time_choice(t, bucket, n_tokens, &best));
    cn_log(CN_LOG_DEBUG, "gemm, %u rows: a layer of the fastest products takes %.1f us", n_tokens,
           (double)best.us);
    float before_us = 0;
    for (int round = 0; round < MOST_ROUNDS && best.cost_us != before_us; round++) {
        before_us = best.cost_us;
        for (int i = 0; i < CN_GEMM_LAYER_SHAPES; i++)
            CN_TRY(choose_plan(t, order[i], bucket, n_tokens, &best));
    }
    for (int i = 0; i < CN_GEMM_LAYER_SHAPES; i++) {
        entry_of(t, i)->plans[bucket] = *best.plans.of[i];
        log_layer(t->shapes[i].shape, n_tokens, best.plans.of[i], best.us, true);
    }
    return CN_OK;
}

void cn_gemm_tune_layers(cn_gemm_tuner *t)
{
    if (!t->c->device.hopper || t->c->switches.gemm == CN_CUDA_GEMM_LIBRARY) return;
    const uint32_t most = cn_min_u32(t->shapes[CN_GEMM_QKV].most_tokens, CN_GEMM_MAX_SKINNY);
    const uint32_t last = cn_gemm_bucket(most);
    cn_status status = CN_OK;
    cn_log(CN_LOG_INFO, "timing the matrix products of a layer together");
    for (uint32_t b = 0; b <= last && status == CN_OK; b++)
        status = tune_bucket(t, b, cn_min_u32(cn_gemm_buckets[b], most));
    if (status != CN_OK)
        cn_log(CN_LOG_WARN, "cannot time the matrix products of a layer: using those that are the "
                            "fastest alone; steps of small batches may take longer");
}
