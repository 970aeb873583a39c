/* calibrate.c - see calibrate.h.
 *
 * The op attn_prefill of the backend is replaced by a function that reads its queries and keys and
 * then calls it. On a HIGH stream of the CPU the ops before it have run, and their memory is host
 * memory. With latent attention the queries have been multiplied by the key matrices. */
#include "engine/select/calibrate.h"

#include <math.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/select_file.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"
#include "engine/start/start_line.h"

struct cn_calibrator {
    cn_batch_view batch; /* first: attn_prefill finds the calibrator by its batch */
    cn_model_config config;
    uint32_t max_tokens;
    cn_backend *backend;
    cn_status (*attend)(cn_stream *s, const cn_attn_args *a); /* the backend's */
    cn_stream *stream;
    void *weights_memory, *workspace;
    cn_weights *weights;
    cn_model *model;
    cn_pools pools;
    uint32_t *ids;       /* the arrays of batch */
    int32_t *unobserved; /* [max_tokens] */
    /* [layer, query head, channel] the maximum of |q * k|, where k is a key less the mean of its
     * window. */
    double *most;
    double *key_sum; /* [layer, kv head, channel] the sum of keys */
    double *mean;    /* [head_dim] of the window */
    double *importance; /* [head_dim] of the channels of a kv head */
    uint64_t n_tokens;
};

/* ---- the sums ---- */

static void add_largest_products(const cn_calibrator *c, double *most, const float *q,
                                 const float *k)
{
    for (uint32_t i = 0; i < c->config.head_dim; i++)
        most[i] = fmax(most[i], fabs((double)q[i] * ((double)k[i] - c->mean[i])));
}

static bool are_finite(const float *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(p[i])) return false;
    return true;
}

static const float *key_of(const cn_calibrator *c, const cn_attn_args *a, uint32_t t,
                           uint32_t kv_head)
{
    const uint32_t slot = c->batch.kv_slots[t], b = a->layout.block_tokens;
    const size_t at = cn_kv_at(&a->layout, a->layer, slot / b, kv_head, slot % b, CN_KV_K);
    return (const float *)(const void *)((const char *)a->kv + at);
}

static const float *query_of(const cn_attn_args *a, uint32_t t, uint32_t head)
{
    return (const float *)a->q + ((size_t)t * a->n_heads + head) * a->layout.head_dim;
}

/* Checks queries and keys of the window, adds the keys to their sum, and computes their mean. */
static cn_status add_keys(cn_calibrator *c, const cn_attn_args *a, uint32_t kv_head)
{
    const uint32_t d = c->config.head_dim, n = a->batch->n_tokens;
    const uint32_t group = c->config.n_heads / c->config.n_kv_heads;
    double *sum = c->key_sum + ((size_t)a->layer * c->config.n_kv_heads + kv_head) * d;
    memset(c->mean, 0, d * sizeof *c->mean);
    for (uint32_t t = 0; t < n; t++) {
        const float *k = key_of(c, a, t, kv_head);
        if (!are_finite(k, d) || !are_finite(query_of(a, t, kv_head * group), group * d))
            return cn_fail(CN_ERR_MODEL,
                           "layer %u, kv head %u: a query or key is infinite or NaN: check the "
                           "weights of the checkpoint",
                           a->layer, kv_head);
        for (uint32_t i = 0; i < d; i++) c->mean[i] += (double)k[i];
    }
    for (uint32_t i = 0; i < d; i++) {
        sum[i] += c->mean[i];
        c->mean[i] /= n;
    }
    return CN_OK;
}

static void add_products(cn_calibrator *c, const cn_attn_args *a, uint32_t t,
                         uint32_t kv_head)
{
    const uint32_t d = c->config.head_dim, group = c->config.n_heads / c->config.n_kv_heads;
    const float *k = key_of(c, a, t, kv_head);
    for (uint32_t g = 0; g < group; g++) {
        const uint32_t head = kv_head * group + g;
        add_largest_products(c, c->most + ((size_t)a->layer * c->config.n_heads + head) * d,
                             query_of(a, t, head), k);
    }
}

static cn_status observe(cn_stream *s, const cn_attn_args *a)
{
    cn_calibrator *c = (cn_calibrator *)a->batch;
    for (uint32_t h = 0; h < c->config.n_kv_heads; h++) {
        CN_TRY(add_keys(c, a, h));
        for (uint32_t t = 0; t < a->batch->n_tokens; t++) add_products(c, a, t, h);
    }
    return c->attend(s, a);
}

/* The sum of the maxima over the query heads of the group. */
static double importance_of(const cn_calibrator *c, uint32_t layer, uint32_t kv_head,
                            uint32_t channel)
{
    const uint32_t n_heads = c->config.n_heads, n_kv = c->config.n_kv_heads;
    const uint32_t d = c->config.head_dim, group = n_heads / n_kv;
    const size_t head = (size_t)layer * n_heads + (size_t)kv_head * group;
    double sum = 0;
    for (uint32_t g = 0; g < group; g++) sum += c->most[(head + g) * d + channel];
    return sum;
}

static void choose_calibrate(const cn_calibrator *c, uint32_t layer, uint32_t kv_head,
                             uint16_t *out)
{
    double *const value = c->importance;
    const uint32_t d = c->config.head_dim, n = cn_select_channels_each(&c->config);
    for (uint32_t i = 0; i < d; i++) value[i] = importance_of(c, layer, kv_head, i);
    for (uint32_t i = 0, n_out = 0; i < d; i++) {
        uint32_t rank = 0;
        for (uint32_t j = 0; j < d; j++)
            rank += value[j] > value[i] || (value[j] == value[i] && j < i);
        if (rank < n) out[n_out++] = (uint16_t)i;
    }
}

void cn_calibrator_result(const cn_calibrator *c, uint16_t *channels, float *offsets)
{
    const uint32_t d = c->config.head_dim, n = cn_select_channels_each(&c->config);
    const double n_tokens = (double)c->n_tokens;
    for (uint32_t l = 0; l < c->config.n_layers; l++)
        for (uint32_t h = 0; h < c->config.n_kv_heads; h++, channels += n, offsets += n) {
            const double *sum = c->key_sum + ((size_t)l * c->config.n_kv_heads + h) * d;
            choose_calibrate(c, l, h, channels);
            for (uint32_t i = 0; i < n; i++) offsets[i] = (float)(sum[channels[i]] / n_tokens);
        }
}

/* ---- the model ---- */

cn_status cn_calibrator_add(cn_calibrator *c, const uint32_t *tokens, uint32_t n)
{
    CN_ASSERT(n > 0 && n <= c->max_tokens);
    const uint32_t ends[2] = {0, n};
    c->batch.n_tokens = c->batch.max_q = c->batch.max_kv = n;
    c->batch.tokens = tokens;
    c->batch.q_start = ends;
    c->batch.kv_len = &ends[1];
    const cn_model_pass pass = {.batch = &c->batch, .pools = &c->pools};
    CN_TRY(cn_model_forward(c->model, c->stream, &pass));
    c->n_tokens += n;
    return CN_OK;
}

static cn_status load_calibrate_weights(cn_calibrator *c, const char *dir)
{
    cn_backend *be = c->backend;
    cn_checkpoint *checkpoint;
    CN_TRY(cn_checkpoint_open(&checkpoint, dir, &c->config, CN_OPT_LOAD_AUTO, 0));
    cn_status status =
        be->mem_alloc(be, cn_weights_bytes(&c->config, be), &c->weights_memory);
    if (status == CN_OK)
        status = cn_weights_load(&c->weights, be, c->stream, checkpoint, c->weights_memory);
    cn_checkpoint_close(checkpoint);
    return status;
}

static cn_status make_model(cn_calibrator *c)
{
    cn_backend *be = c->backend;
    const uint32_t most = c->max_tokens;
    const size_t bytes = cn_model_workspace_bytes(&c->config, be, most, 1, most);
    CN_TRY(be->mem_alloc(be, bytes, &c->workspace));
    const cn_model_opts o = {
        .backend = be,
        .stream = c->stream,
        .config = &c->config,
        .weights = c->weights,
        .memory = c->workspace,
        .max_tokens = most,
        .max_rows = 1,
        .max_position = most,
    };
    return cn_model_create(&c->model, &o);
}

/* One sequence in blocks 0, 1, ... of a pool of its own. */
static cn_status make_calibrate_batch(cn_calibrator *c)
{
    const cn_model_config *m = &c->config;
    cn_backend *be = c->backend;
    const uint32_t b = be->default_block_tokens;
    const uint32_t n_blocks = (uint32_t)cn_ceil_div(c->max_tokens, b);
    c->pools = (cn_pools){.n_heads = m->n_heads, .act_dtype = be->act_dtype};
    c->pools.layout = cn_kv_layout_make(m->n_layers, n_blocks, m->n_kv_heads, b, m->head_dim,
                                        be->act_dtype);
    cn_kv_layout_share(&c->pools.layout, m->latent.rank, m->latent.nope + m->latent.rope);
    CN_ASSERT(be->act_dtype == CN_F32);
    CN_TRY(be->mem_alloc(be, cn_kv_pool_bytes(&c->pools.layout), &c->pools.kv));
    c->ids = cn_calloc((size_t)c->max_tokens + n_blocks, sizeof *c->ids);
    c->unobserved = cn_calloc(c->max_tokens, sizeof *c->unobserved);
    c->most = cn_calloc((size_t)m->n_layers * m->n_heads * m->head_dim, sizeof(double));
    c->key_sum = cn_calloc((size_t)m->n_layers * m->n_kv_heads * m->head_dim, sizeof(double));
    c->mean = cn_calloc(m->head_dim, sizeof(double));
    c->importance = cn_calloc(m->head_dim, sizeof(double));
    if (!c->ids || !c->unobserved || !c->most || !c->key_sum || !c->mean || !c->importance)
        return cn_fail(CN_ERR_MEMORY, "out of memory for windows of %u tokens", c->max_tokens);
    for (uint32_t t = 0; t < c->max_tokens; t++) {
        c->ids[t] = t;
        c->unobserved[t] = -1;
    }
    uint32_t *table = c->ids + c->max_tokens;
    for (uint32_t i = 0; i < n_blocks; i++) table[i] = i;
    c->batch = (cn_batch_view){.n_seqs = 1, .positions = c->ids, .kv_slots = c->ids,
                               .q_rows = c->unobserved, .tables = table,
                               .table_stride = n_blocks};
    return CN_OK;
}

static cn_status build(cn_calibrator *c, const char *dir)
{
    CN_TRY(cn_model_config_load(&c->config, dir));
    if (c->max_tokens > c->config.max_position)
        return cn_fail(CN_ERR_ARG, "--calibrate-len %u exceeds the context length of %u",
                       c->max_tokens, c->config.max_position);
    CN_TRY(cn_backend_cpu_open(&c->backend, &(cn_cpu_backend_opts){0}));
    c->attend = c->backend->attn_prefill;
    c->backend->attn_prefill = observe;
    const cn_device_choice choice = {.why = "cpu: calibration runs on the CPU"};
    cn_start_line_log(&(cn_start_facts){dir, &c->config, c->backend, &choice, NULL, NULL});
    CN_TRY(c->backend->stream_create(c->backend, CN_PRIORITY_HIGH, &c->stream));
    CN_TRY(load_calibrate_weights(c, dir));
    CN_TRY(make_model(c));
    return make_calibrate_batch(c);
}

cn_status cn_calibrator_create(cn_calibrator **out, const char *dir, uint32_t max_tokens)
{
    cn_calibrator *c = cn_calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return cn_fail(CN_ERR_MEMORY, "out of memory for a calibration");
    c->max_tokens = max_tokens;
    cn_status status = build(c, dir);
    if (status == CN_OK)
        *out = c;
    else
        cn_calibrator_free(c);
    return status;
}

void cn_calibrator_free(cn_calibrator *c)
{
    if (!c) return;
    cn_model_free(c->model);
    cn_weights_free(c->weights);
    if (c->backend) {
        void *const memory[] = {c->pools.kv, c->workspace, c->weights_memory};
        for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
            if (memory[i]) c->backend->mem_free(c->backend, memory[i]);
        c->backend->stream_free(c->stream);
        c->backend->close(c->backend);
    }
    cn_free(c->ids);
    cn_free(c->unobserved);
    cn_free(c->most);
    cn_free(c->key_sum);
    cn_free(c->mean);
    cn_free(c->importance);
    cn_free(c);
}

const cn_model_config *cn_calibrator_config(const cn_calibrator *c) { return &c->config; }

uint64_t cn_calibrator_tokens(const cn_calibrator *c) { return c->n_tokens; }
