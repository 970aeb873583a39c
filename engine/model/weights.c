/* weights.c - the fused matrices in a backend's memory. See weights.h. */
#include "engine/model/weights.h"

#include <math.h>

#include "engine/checkpoint/fp8_weights.h"
#include "engine/model/weight_slice.h"

enum { ALIGN_BYTES = 256, STAGING_BYTES = 1 << 20 };
#define NO_MATRIX UINT64_MAX
#define DUMMY_X_SCALE (1.0F / 16) /* covers inputs up to 28 */

struct cn_weights {
    cn_backend *backend;
    cn_stream *stream; /* runs the writes while weights are loaded */
    unsigned char *memory;
    /* Byte offset of each matrix in each layer; those outside the layers are in layer 0. NO_MATRIX:
     * there is none. */
    uint64_t (*offsets)[CN_W_COUNT];
    float (*x_scales)[CN_W_COUNT]; /* static scales of inputs, 0 where there is none */
    cn_model_config config;
};

void cn_weight_shape(const cn_model_config *c, cn_weight_id id, uint32_t layer, uint64_t *rows,
                     uint64_t *cols)
{
    const cn_layer_kind kind = cn_model_config_layer(c, layer);
    uint64_t h = c->hidden, d = c->head_dim;
    uint64_t q = c->n_heads * d, qkv = q + 2 * c->n_kv_heads * d;
    const cn_latent *l = &c->latent;
    const bool latent = kind.attn == CN_ATTN_LATENT, factors = latent && l->q_rank > 0;
    const uint64_t latent_q = (uint64_t)c->n_heads * (l->nope + l->rope);
    const uint64_t latent_kv = (uint64_t)c->n_heads * (l->nope + l->value);
    const cn_experts *x = &c->experts;
    const uint64_t n_experts = x->router.n_experts, inter = x->intermediate;
    const bool routed = kind.mlp == CN_MLP_EXPERTS, dense = kind.dense > 0;
    const struct {
        bool present;
        uint64_t rows, cols;
    } shapes[CN_W_COUNT] = {
        [CN_W_EMBED] = {true, c->vocab, h},
        [CN_W_FINAL_NORM] = {true, 1, h},
        [CN_W_LM_HEAD] = {!c->tied, cn_head_rows(c), h},
        [CN_W_ATTN_NORM] = {true, 1, h},
        [CN_W_QKV] = {!latent, qkv, h},
        [CN_W_QKV_BIAS] = {c->qkv_bias, 1, qkv},
        [CN_W_Q_NORM] = {c->qk_norm, 1, d},
        [CN_W_K_NORM] = {c->qk_norm, 1, d},
        [CN_W_Q_A] = {factors, l->q_rank, h},
        [CN_W_Q_A_NORM] = {factors, 1, l->q_rank},
        [CN_W_Q] = {latent, latent_q, factors ? l->q_rank : h},
        [CN_W_KV_A] = {latent, (uint64_t)l->rank + l->rope, h},
        [CN_W_KV_A_NORM] = {latent, 1, l->rank},
        [CN_W_KV_B] = {latent, latent_kv, l->rank},
        [CN_W_O] = {true, h, cn_attn_width(c)},
        [CN_W_O_BIAS] = {c->o_bias && c->rank == 0, 1, h},
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
    case CN_W_Q_A:
    case CN_W_Q:
    case CN_W_KV_A:
    case CN_W_KV_B:
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

static uint32_t power_of_two_in(uint64_t a, uint64_t b)
{
    const uint64_t both = a | b;
    return (uint32_t)(both & -both);
}

/* Rows of an FP8 matrix that have one scale. Blocks of 128 rows are cut where the parts of a fused
 * matrix meet inside of one. */
static uint32_t rows_of_scale(const cn_model_config *c, cn_weight_id id, uint32_t layer)
{
    const uint64_t d = c->head_dim, q = c->n_heads * d, kv = c->n_kv_heads * d;
    if (c->quant.scale != CN_QUANT_BLOCK) return 1;
    uint32_t most = CN_FP8_BLOCK;
    if (id == CN_W_QKV) most = power_of_two_in(q, q + kv);
    if (id == CN_W_GATE_UP) {
        const uint64_t width = cn_model_config_layer(c, layer).dense;
        most = power_of_two_in(width, width);
    }
    if (id == CN_W_EXPERT_GATE_UP)
        most = power_of_two_in(c->experts.intermediate, c->experts.intermediate);
    if (id == CN_W_EXPERT_DOWN) most = power_of_two_in(c->hidden, c->hidden);
    return cn_min_u32(most, CN_FP8_BLOCK);
}

/* The form of a matrix, without its addresses. */
static cn_matrix form_of(const cn_model_config *c, cn_weight_id id, uint32_t layer)
{
    uint64_t rows, cols;
    if (!cn_weight_is_fp8(c, id, layer)) return (cn_matrix){.form = CN_MATRIX_PLAIN};
    cn_weight_shape(c, id, layer, &rows, &cols);
    const bool blocks = c->quant.scale == CN_QUANT_BLOCK;
    return (cn_matrix){.form = CN_MATRIX_FP8,
                       .x = c->quant.x,
                       .stride = (uint32_t)cn_round_up(cols, CN_FP8_COLUMNS),
                       .scale_n = rows_of_scale(c, id, layer),
                       .scale_k = blocks ? CN_FP8_COLUMNS : (uint32_t)cols};
}

/* Scales of n_rows rows. */
static uint64_t n_scales(const cn_matrix *f, uint64_t n_rows, uint64_t cols)
{
    return cn_ceil_div(n_rows, f->scale_n) * cn_ceil_div(cols, f->scale_k);
}

/* Bytes from the start of an FP8 matrix to its scales. */
static uint64_t bytes_to_scales(const cn_matrix *f, uint64_t rows)
{
    return cn_round_up(rows * f->stride, ALIGN_BYTES);
}

static uint64_t weight_bytes(const cn_model_config *c, const cn_backend *be, cn_weight_id id,
                             uint32_t layer)
{
    uint64_t rows, cols;
    cn_weight_shape(c, id, layer, &rows, &cols);
    const cn_matrix f = form_of(c, id, layer);
    if (rows > 0 && f.form == CN_MATRIX_FP8)
        return bytes_to_scales(&f, rows) + n_scales(&f, rows, cols) * sizeof(float);
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
    const cn_model_config *c = &w->config;
    const bool is_tied_head = id == CN_W_LM_HEAD && c->tied;
    CN_ASSERT(layer < c->n_layers);
    const uint64_t offset = w->offsets[layer][is_tied_head ? CN_W_EMBED : id];
    if (offset == NO_MATRIX) return NULL;
    const uint64_t skipped =
        is_tied_head ? (uint64_t)cn_head_first_row(c, c->rank) * c->hidden : 0;
    return w->memory + offset + skipped * cn_dtype_bytes(w->backend->matrix_dtype);
}

const void *cn_weights_at(const cn_weights *w, cn_weight_id id, uint32_t layer)
{
    return place_weights(w, id, id >= CN_W_ATTN_NORM ? layer : 0);
}

cn_matrix cn_weights_matrix(const cn_weights *w, cn_weight_id id, uint32_t layer)
{
    cn_matrix out = form_of(&w->config, id, layer);
    out.data = cn_weights_at(w, id, layer);
    if (out.form == CN_MATRIX_PLAIN) return out;
    uint64_t rows, cols;
    cn_weight_shape(&w->config, id, layer, &rows, &cols);
    out.scales = (const float *)(const void *)((const unsigned char *)out.data +
                                               bytes_to_scales(&out, rows));
    out.x_scale = w->x_scales[layer][id];
    return out;
}

/* ---- FP8 ---- */

/* Rows [first, first + n) of a part in host memory: e4m3 values, and scales as the matrix has them.
 */
typedef struct fp8_rows {
    uint64_t first, n;
    const void *codes;
    float *scales;
} fp8_rows;

/* Writes codes[n, cols] to a matrix from `to` on, with zeros up to its stride. */
static cn_status write_codes(cn_weights *w, unsigned char *to, const unsigned char *codes,
                             uint64_t n, uint64_t cols, uint64_t stride)
{
    if (stride == cols) {
        CN_TRY(w->backend->mem_write(w->stream, to, codes, (size_t)(n * cols)));
        return w->backend->stream_sync(w->stream);
    }
    unsigned char *padded = cn_calloc(CN_FP8_BLOCK, stride);
    cn_status status = padded ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for FP8 weights");
    for (uint64_t row = 0; row < n && status == CN_OK; row += CN_FP8_BLOCK) {
        const uint64_t count = n - row < CN_FP8_BLOCK ? n - row : CN_FP8_BLOCK;
        for (uint64_t r = 0; r < count; r++)
            memcpy(padded + r * stride, codes + (row + r) * cols, (size_t)cols);
        status = w->backend->mem_write(w->stream, to + row * stride, padded,
                                       (size_t)(count * stride));
        if (status == CN_OK) status = w->backend->stream_sync(w->stream);
    }
    cn_free(padded);
    return status;
}

static cn_status write_fp8(cn_weights *w, const cn_weight_part *p, const fp8_rows *r)
{
    const uint64_t cols = p->tensor.cols, row = p->first_elem / cols + r->first;
    const cn_matrix m = cn_weights_matrix(w, p->id, p->layer);
    unsigned char *codes = (unsigned char *)(uintptr_t)m.data + row * m.stride;
    float *scales = (float *)(uintptr_t)m.scales + n_scales(&m, row, cols);
    CN_ASSERT(row % m.scale_n == 0);
    CN_TRY(write_codes(w, codes, r->codes, r->n, cols, m.stride));
    CN_TRY(w->backend->mem_write(w->stream, scales, r->scales,
                                 (size_t)n_scales(&m, r->n, cols) * sizeof *scales));
    return w->backend->stream_sync(w->stream);
}

/* Returns the values of a part in the order of rows here: those of the file, or `room`. */
static const uint8_t *codes_in_order(const cn_weight_part *p, uint8_t *room)
{
    const uint8_t *codes = p->tensor.data;
    const uint64_t cols = p->tensor.cols;
    if (!p->rotary) return codes;
    for (uint64_t row = 0; row < p->tensor.rows; row++)
        memcpy(room + row * cols, codes + cn_part_row_in_file(p, row) * cols, (size_t)cols);
    return room;
}

/* Loads a part that is in e4m3 in the files. */
static cn_status load_fp8(cn_weights *w, const cn_weight_part *p)
{
    const cn_quant *q = &w->config.quant;
    const uint64_t rows = p->tensor.rows, cols = p->tensor.cols;
    const cn_matrix f = form_of(&w->config, p->id, p->layer);
    CN_TRY(cn_part_check_fp8(p, q));
    float *scales = cn_calloc(n_scales(&f, rows, cols), sizeof *scales);
    uint8_t *room = p->rotary ? cn_calloc(rows, cols) : NULL;
    if (!scales || (p->rotary && !room)) {
        cn_free(scales);
        cn_free(room);
        return cn_fail(CN_ERR_MEMORY, "out of memory for FP8 weights");
    }
    uint64_t n = 0;
    for (uint64_t row = 0; row < rows; row += f.scale_n)
        for (uint64_t col = 0; col < cols; col += f.scale_k)
            scales[n++] = cn_part_scale(p, q, cn_part_row_in_file(p, row), col);
    const fp8_rows all = {.n = rows, .codes = codes_in_order(p, room), .scales = scales};
    const cn_status status = write_fp8(w, p, &all);
    cn_free(scales);
    cn_free(room);
    /* Parts of one matrix have the same input, and so in practice the same scale. */
    float *x_scale = &w->x_scales[p->layer][p->id];
    *x_scale = fmaxf(*x_scale, cn_part_x_scale(p));
    return status;
}

/* Memory for a band of rows that are made FP8. */
typedef struct fp8_band {
    float *x;            /* [CN_FP8_BLOCK, cols] */
    float *made, *scales; /* as made, and as the matrix has them; at most one for each value of a
                           * row, and one for each row */
    uint8_t *codes;
} fp8_band;

static void make_rows(const cn_matrix *f, bool by_row, const fp8_band *b, uint64_t n_rows,
                      uint64_t cols)
{
    const uint64_t n_cols = cn_ceil_div(cols, f->scale_k);
    uint64_t n = 0;
    cn_fp8_make(b->x, n_rows, cols, by_row, b->codes, b->made);
    for (uint64_t row = 0; row < n_rows; row += f->scale_n)
        for (uint64_t i = 0; i < n_cols; i++)
            b->scales[n++] = b->made[by_row ? row : i];
}

/* Rows of a part whose blocks are its own: those of one matrix, of a tensor of all experts too. */
static uint64_t rows_apart(const cn_model_config *c, const cn_weight_part *p)
{
    if (p->stack == 0) return p->tensor.rows;
    return p->id == CN_W_EXPERT_GATE_UP ? c->experts.intermediate : c->hidden;
}

static cn_status make_bands(cn_weights *w, const cn_checkpoint *ck, const cn_weight_part *p,
                            const fp8_band *b)
{
    const uint64_t rows = p->tensor.rows, cols = p->tensor.cols, apart = rows_apart(&w->config, p);
    const bool by_row = w->config.quant.scale != CN_QUANT_BLOCK;
    const cn_matrix f = form_of(&w->config, p->id, p->layer);
    for (uint64_t row = 0, n; row < rows; row += n) {
        const uint64_t left = apart - row % apart;
        n = left < CN_FP8_BLOCK ? left : CN_FP8_BLOCK;
        cn_checkpoint_read(ck, p, row * cols, n * cols, CN_F32, b->x);
        make_rows(&f, by_row, b, n, cols);
        const fp8_rows band = {.first = row, .n = n, .codes = b->codes, .scales = b->scales};
        CN_TRY(write_fp8(w, p, &band));
    }
    return CN_OK;
}

/* Loads a part that is plain in the files, or has dummy weights, as FP8. */
static cn_status make_fp8(cn_weights *w, const cn_checkpoint *ck, const cn_weight_part *p)
{
    const uint64_t n = CN_FP8_BLOCK * p->tensor.cols;
    CN_TRY(cn_checkpoint_check_finite(p));
    float *x = cn_calloc(3 * n, sizeof *x);
    uint8_t *codes = cn_calloc(n, 1);
    const fp8_band band = {.x = x, .made = x + n, .scales = x + 2 * n, .codes = codes};
    cn_status status = x && codes ? make_bands(w, ck, p, &band)
                                  : cn_fail(CN_ERR_MEMORY, "out of memory for FP8 weights");
    cn_free(x);
    cn_free(codes);
    if (w->config.quant.is_static) w->x_scales[p->layer][p->id] = DUMMY_X_SCALE;
    return status;
}

/* Reads n elements of a slice, from element `first` of it. */
static void read_slice(const cn_checkpoint *ck, const cn_weight_part *p, const cn_weight_slice *s,
                       uint64_t first, uint64_t n, cn_dtype dtype, unsigned char *out)
{
    for (uint64_t done = 0; done < n;) {
        const uint64_t row = (first + done) / s->n_cols, col = (first + done) % s->n_cols;
        const uint64_t count = s->n_cols - col < n - done ? s->n_cols - col : n - done;
        cn_checkpoint_read(ck, p, (s->first_row + row) * p->tensor.cols + s->first_col + col,
                           count, dtype, out + done * cn_dtype_bytes(dtype));
        done += count;
    }
}

/* Loads what a rank of several has of a part. */
static cn_status load_slice(cn_weights *w, const cn_checkpoint *ck, const cn_weight_part *p,
                            void *staging)
{
    const cn_weight_slice s = cn_weight_slice_of(&w->config, p);
    const cn_dtype dtype = dtype_of(w->backend, p->id);
    const size_t elem = cn_dtype_bytes(dtype);
    const uint64_t n = s.n_rows * s.n_cols, step = STAGING_BYTES / elem;
    if (n == 0) return CN_OK;
    unsigned char *to = place_weights(w, p->id, p->layer) + s.first_elem * elem;
    if (w->config.rank == 0) CN_TRY(cn_checkpoint_check_finite(p)); /* once for all ranks */
    for (uint64_t first = 0; first < n; first += step) {
        const uint64_t count = n - first < step ? n - first : step;
        read_slice(ck, p, &s, first, count, dtype, staging);
        CN_TRY(w->backend->mem_write(w->stream, to + first * elem, staging,
                                     (size_t)count * elem));
        CN_TRY(w->backend->stream_sync(w->stream));
    }
    return CN_OK;
}

static cn_status load_part(cn_weights *w, const cn_checkpoint *ck, const cn_weight_part *p,
                           void *staging)
{
    if (w->config.n_ranks > 0) return load_slice(w, ck, p, staging);
    if (cn_part_is_fp8(&w->config, p))
        return p->tensor.dtype == CN_E4M3 && p->tensor.data ? load_fp8(w, p) : make_fp8(w, ck, p);
    cn_stream *stream = w->stream;
    const cn_dtype dtype = dtype_of(w->backend, p->id);
    size_t elem = cn_dtype_bytes(dtype);
    unsigned char *to = place_weights(w, p->id, p->layer) + p->first_elem * elem;
    uint64_t n = p->tensor.rows * p->tensor.cols, step = STAGING_BYTES / elem;
    cn_dummy_fill_args fill = {.out = to, .dtype = dtype, .n = n};
    if (w->backend->dummy_fill && dtype == CN_BF16 &&
        cn_checkpoint_is_random(ck, p, &fill.key, &fill.scale))
        return w->backend->dummy_fill(stream, &fill);
    CN_TRY(p->tensor.dtype == CN_E4M3 ? cn_part_check_fp8(p, &w->config.quant)
                                      : cn_checkpoint_check_finite(p));
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
    return cn_weights_load_rank(out, be, s, ck, cn_checkpoint_config(ck), memory);
}

cn_status cn_weights_load_rank(cn_weights **out, cn_backend *be, cn_stream *s,
                               const cn_checkpoint *ck, const cn_model_config *c, void *memory)
{
    CN_ASSERT(be->matrix_dtype == CN_F32 || be->matrix_dtype == CN_BF16);
    CN_ASSERT(be->vector_dtype == CN_F32 || be->vector_dtype == CN_BF16);
    *out = NULL;
    cn_weights *w = cn_calloc(1, sizeof *w);
    if (w) w->offsets = cn_calloc(c->n_layers, sizeof *w->offsets);
    if (w) w->x_scales = cn_calloc(c->n_layers, sizeof *w->x_scales);
    if (!w || !w->offsets || !w->x_scales) {
        cn_weights_free(w);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the weights' table");
    }
    w->backend = be;
    w->stream = s;
    w->memory = memory;
    w->config = *c;
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
    if (w) cn_free(w->x_scales);
    cn_free(w);
}
