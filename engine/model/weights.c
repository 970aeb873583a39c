/* weights.c - the fused matrices in a backend's memory. See weights.h. */
#include "engine/model/weights.h"

#include <string.h>

enum { ALIGN_BYTES = 256, STAGING_BYTES = 1 << 20 };
#define NO_MATRIX UINT64_MAX

struct cn_weights {
    cn_backend *backend;
    cn_stream *stream; /* runs the writes while weights are loaded */
    unsigned char *memory;
    uint32_t n_layers;
    bool tied;
    /* Byte offset of each matrix in each layer; those outside the layers are in layer 0. NO_MATRIX:
     * there is none. */
    uint64_t (*offsets)[CN_W_COUNT];
};

void cn_weight_shape(const cn_model_config *c, cn_weight_id id, uint32_t layer, uint64_t *rows,
                     uint64_t *cols)
{
    const cn_layer_kind kind = cn_model_config_layer(c, layer);
    uint64_t h = c->hidden, d = c->head_dim;
    uint64_t q = c->n_heads * d, qkv = q + 2 * c->n_kv_heads * d;
    const cn_experts *x = &c->experts;
    const uint64_t n_experts = x->router.n_experts, inter = x->intermediate;
    const bool routed = kind.mlp == CN_MLP_EXPERTS, dense = kind.dense > 0;
    const struct {
        bool present;
        uint64_t rows, cols;
    } shapes[CN_W_COUNT] = {
        [CN_W_EMBED] = {true, c->vocab, h},
        [CN_W_FINAL_NORM] = {true, 1, h},
        [CN_W_LM_HEAD] = {!c->tied, c->vocab, h},
        [CN_W_ATTN_NORM] = {true, 1, h},
        [CN_W_QKV] = {true, qkv, h},
        [CN_W_QKV_BIAS] = {c->qkv_bias, 1, qkv},
        [CN_W_Q_NORM] = {c->qk_norm, 1, d},
        [CN_W_K_NORM] = {c->qk_norm, 1, d},
        [CN_W_O] = {true, h, q},
        [CN_W_O_BIAS] = {c->o_bias, 1, h},
        [CN_W_MLP_NORM] = {true, 1, h},
        [CN_W_GATE_UP] = {dense, 2 * (uint64_t)kind.dense, h},
        [CN_W_DOWN] = {dense, h, kind.dense},
        [CN_W_ROUTER] = {routed, n_experts, h},
        [CN_W_ROUTER_BIAS] = {routed && x->bias, 1, n_experts},
        [CN_W_EXPERT_GATE_UP] = {routed, n_experts * 2 * inter, h},
        [CN_W_EXPERT_DOWN] = {routed, n_experts * h, inter},
    };
    *rows = shapes[id].present ? shapes[id].rows : 0;
    *cols = shapes[id].present ? shapes[id].cols : 0;
}

/* The dtype in which a backend holds a fused matrix, norm or bias. */
static cn_dtype dtype_of(const cn_backend *be, cn_weight_id id)
{
    switch (id) {
    case CN_W_EMBED:
    case CN_W_LM_HEAD:
    case CN_W_QKV:
    case CN_W_O:
    case CN_W_GATE_UP:
    case CN_W_DOWN:
    case CN_W_ROUTER:
    case CN_W_EXPERT_GATE_UP:
    case CN_W_EXPERT_DOWN: return be->matrix_dtype;
    case CN_W_ROUTER_BIAS: return CN_F32;
    default: return be->vector_dtype;
    }
}

static uint64_t weight_bytes(const cn_model_config *c, const cn_backend *be, cn_weight_id id,
                             uint32_t layer)
{
    uint64_t rows, cols;
    cn_weight_shape(c, id, layer, &rows, &cols);
    return rows * cols * cn_dtype_bytes(dtype_of(be, id));
}

/* Lays out the matrices outside the layers, then layer by layer. Returns the bytes. offsets may be
 * NULL. */
static uint64_t weights_lay_out(const cn_model_config *c, const cn_backend *be,
                                uint64_t (*offsets)[CN_W_COUNT])
{
    uint64_t at = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        for (cn_weight_id id = layer == 0 ? 0 : CN_W_ATTN_NORM; id < CN_W_COUNT; id++) {
            const uint64_t bytes = weight_bytes(c, be, id, layer);
            if (offsets) offsets[layer][id] = bytes ? at : NO_MATRIX;
            at += cn_round_up(bytes, ALIGN_BYTES);
        }
    return at;
}

uint64_t cn_weights_bytes(const cn_model_config *c, const cn_backend *be)
{
    return weights_lay_out(c, be, NULL);
}

double cn_weights_step_bytes(const cn_model_config *c, const cn_backend *be, uint32_t n_tokens)
{
    uint64_t all = 0, experts = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        for (cn_weight_id id = layer == 0 ? 0 : CN_W_ATTN_NORM; id < CN_W_COUNT; id++) {
            const bool is_expert = id == CN_W_EXPERT_GATE_UP || id == CN_W_EXPERT_DOWN;
            *(is_expert ? &experts : &all) += weight_bytes(c, be, id, layer);
        }
    if (!c->tied) all -= weight_bytes(c, be, CN_W_EMBED, 0);
    if (experts == 0) return (double)all;
    const double share =
        cn_model_config_experts_read(c, n_tokens) / c->experts.router.n_experts;
    return (double)all + share * (double)experts;
}

static unsigned char *place_weights(const cn_weights *w, cn_weight_id id, uint32_t layer)
{
    CN_ASSERT(layer < w->n_layers);
    if (id == CN_W_LM_HEAD && w->tied) id = CN_W_EMBED;
    const uint64_t offset = w->offsets[layer][id];
    return offset == NO_MATRIX ? NULL : w->memory + offset;
}

const void *cn_weights_at(const cn_weights *w, cn_weight_id id, uint32_t layer)
{
    return place_weights(w, id, id >= CN_W_ATTN_NORM ? layer : 0);
}

static cn_status load_part(cn_weights *w, const cn_checkpoint *ck, const cn_weight_part *p,
                           void *staging)
{
    cn_stream *stream = w->stream;
    const cn_dtype dtype = dtype_of(w->backend, p->id);
    size_t elem = cn_dtype_bytes(dtype);
    unsigned char *to = place_weights(w, p->id, p->layer) + p->first_elem * elem;
    uint64_t n = p->tensor.rows * p->tensor.cols, step = STAGING_BYTES / elem;
    cn_dummy_fill_args fill = {.out = to, .dtype = dtype, .n = n};
    if (w->backend->dummy_fill && dtype == CN_BF16 &&
        cn_checkpoint_is_random(ck, p, &fill.key, &fill.scale))
        return w->backend->dummy_fill(stream, &fill);
    CN_TRY(cn_checkpoint_check_finite(p));
    if (p->tensor.data && p->tensor.dtype == dtype && !p->rotary) {
        CN_TRY(w->backend->mem_write(stream, to, p->tensor.data, (size_t)n * elem));
        return w->backend->stream_sync(stream);
    }
    for (uint64_t first = 0; first < n; first += step) {
        uint64_t count = n - first < step ? n - first : step;
        cn_checkpoint_read(ck, p, first, count, dtype, staging);
        CN_TRY(w->backend->mem_write(stream, to + first * elem, staging, (size_t)count * elem));
        /* The next iteration overwrites the buffer that this write may still be reading. */
        CN_TRY(w->backend->stream_sync(stream));
    }
    return CN_OK;
}

static cn_status load_all(cn_weights *w, const cn_checkpoint *ck)
{
    size_t n;
    const cn_weight_part *parts = cn_checkpoint_parts(ck, &n);
    void *staging = cn_calloc_aligned(STAGING_BYTES, 1);
    if (!staging) return cn_fail(CN_ERR_MEMORY, "out of memory for %d bytes", STAGING_BYTES);
    cn_status status = CN_OK;
    for (size_t i = 0; i < n && status == CN_OK; i++) {
        status = load_part(w, ck, &parts[i], staging);
        if (status != CN_OK) status = cn_fail_within(status, "%s", parts[i].name);
    }
    cn_free(staging);
    return status == CN_OK ? w->backend->stream_sync(w->stream) : status;
}

cn_status cn_weights_load(cn_weights **out, cn_backend *be, cn_stream *s, const cn_checkpoint *ck,
                          void *memory)
{
    CN_ASSERT(be->matrix_dtype == CN_F32 || be->matrix_dtype == CN_BF16);
    CN_ASSERT(be->vector_dtype == CN_F32 || be->vector_dtype == CN_BF16);
    *out = NULL;
    const cn_model_config *c = cn_checkpoint_config(ck);
    cn_weights *w = cn_calloc(1, sizeof *w);
    if (w) w->offsets = cn_calloc(c->n_layers, sizeof *w->offsets);
    if (!w || !w->offsets) {
        cn_weights_free(w);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the weights' table");
    }
    w->backend = be;
    w->stream = s;
    w->memory = memory;
    w->n_layers = c->n_layers;
    w->tied = c->tied;
    weights_lay_out(c, be, w->offsets);
    const cn_status status = load_all(w, ck);
    if (status != CN_OK) {
        cn_weights_free(w);
        return status;
    }
    *out = w;
    return CN_OK;
}

void cn_weights_free(cn_weights *w)
{
    if (w) cn_free(w->offsets);
    cn_free(w);
}
