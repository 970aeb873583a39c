/* fp8_weights.c - see fp8_weights.h. */
#include "engine/checkpoint/fp8_weights.h"

#include <float.h>
#include <math.h>

#include "paged/kv_fp8.h"

bool cn_weight_is_fp8(const cn_model_config *c, cn_weight_id id, uint32_t layer)
{
    switch (id) {
    case CN_W_QKV:
        return cn_model_config_is_fp8(c, CN_QUANT_QKV, layer);
    case CN_W_O:
        return cn_model_config_is_fp8(c, CN_QUANT_O, layer);
    case CN_W_GATE_UP:
        return cn_model_config_is_fp8(c, CN_QUANT_GATE_UP, layer);
    case CN_W_DOWN:
        return cn_model_config_is_fp8(c, CN_QUANT_DOWN, layer);
    case CN_W_EXPERT_GATE_UP:
        return cn_model_config_is_fp8(c, CN_QUANT_EXPERT_GATE_UP, layer);
    case CN_W_EXPERT_DOWN:
        return cn_model_config_is_fp8(c, CN_QUANT_EXPERT_DOWN, layer);
    case CN_W_Q_A:
        return cn_model_config_is_fp8(c, CN_QUANT_LATENT_Q_A, layer);
    case CN_W_Q:
        return cn_model_config_is_fp8(c, CN_QUANT_LATENT_Q, layer);
    case CN_W_KV_A:
        return cn_model_config_is_fp8(c, CN_QUANT_LATENT_KV_A, layer);
    default:
        return false;
    }
}

bool cn_part_is_fp8(const cn_model_config *c, const cn_weight_part *p)
{
    return cn_weight_is_fp8(c, p->id, p->layer);
}

bool cn_part_is_fp8_in_file(const cn_model_config *c, const cn_weight_part *p)
{
    if (c->quant.at_load) return false;
    return p->id == CN_W_KV_B ? cn_model_config_is_fp8(c, CN_QUANT_LATENT_KV_B, p->layer)
                              : cn_part_is_fp8(c, p);
}

/* ---- scales in the files ---- */

/* Returns the tensor of a part's scales, `name` + `suffix`; of a static input, `stem` + `suffix`,
 * where the part is named `stem` + "weight". NULL: there is none. */
static const cn_st_tensor *find_beside(const cn_weight_part *p, const cn_safetensors *all,
                                       const char *suffix)
{
    char name[96];
    const size_t n_stem = strlen(p->name) - (suffix[0] == '_' ? 0 : strlen("weight"));
    snprintf(name, sizeof name, "%.*s%s", (int)n_stem, p->name, suffix);
    return cn_safetensors_find(all, name);
}

/* Rows of the part that have scales of their own: those of one matrix of a stack, or all. */
static uint64_t rows_of_matrix(const cn_weight_part *p)
{
    return p->stack ? p->tensor.rows / p->stack : p->tensor.rows;
}

/* The shape of the scales of a part: [rows, columns], of a stack with a dimension before. */
static uint32_t scale_shape(const cn_weight_part *p, cn_quant_scale scale, uint64_t shape[3])
{
    const uint64_t rows = rows_of_matrix(p), cols = p->tensor.cols;
    const uint32_t first = p->stack ? 1 : 0;
    shape[0] = p->stack;
    shape[first] = scale == CN_QUANT_TENSOR ? 1
                   : scale == CN_QUANT_ROW  ? rows
                                            : cn_ceil_div(rows, CN_FP8_BLOCK);
    shape[first + 1] = scale == CN_QUANT_BLOCK ? cn_ceil_div(cols, CN_FP8_BLOCK) : 1;
    return first + 2;
}

/* Dimensions of 1 at the end may be left out, except those of blocks. */
static bool has_shape(const cn_st_tensor *t, const cn_weight_part *p, cn_quant_scale scale)
{
    uint64_t want[3];
    uint32_t n = scale_shape(p, scale, want);
    if (t->n_dims > n || (scale == CN_QUANT_BLOCK && t->n_dims < n)) return false;
    for (uint32_t i = 0; i < n; i++)
        if ((i < t->n_dims ? t->shape[i] : 1) != want[i]) return false;
    return true;
}

static cn_status check_scale_dtype(const cn_st_tensor *t)
{
    if (t->dtype == CN_ST_F32 || t->dtype == CN_ST_BF16 || t->dtype == CN_ST_F16 ||
        t->dtype == CN_ST_F8_E8M0)
        return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: tensor %s: expected dtype F32, BF16, F16 or F8_E8M0, got %s",
                   t->file, t->name, cn_st_dtype_name(t->dtype));
}

static cn_status check_scale_shape(const cn_st_tensor *t, const cn_weight_part *p,
                                   cn_quant_scale scale)
{
    static const char *const of[] = {[CN_QUANT_TENSOR] = "the tensor",
                                     [CN_QUANT_ROW] = "rows",
                                     [CN_QUANT_BLOCK] = "blocks of 128 x 128"};
    char found[128], want[128], stack[24] = "";
    uint64_t shape[3];
    if (has_shape(t, p, scale)) return CN_OK;
    const uint32_t n = scale_shape(p, scale, shape);
    if (p->stack) snprintf(stack, sizeof stack, "%u, ", p->stack);
    if (scale == CN_QUANT_TENSOR && !p->stack)
        snprintf(want, sizeof want, "[] or [1], of the tensor");
    else
        snprintf(want, sizeof want, "[%s%llu, %llu], of %s", stack,
                 (unsigned long long)shape[n - 2], (unsigned long long)shape[n - 1], of[scale]);
    return cn_fail(CN_ERR_MODEL, "%s: tensor %s: expected shape %s, got %s", t->file, t->name, want,
                   cn_st_shape_text(t, found, sizeof found));
}

/* Whether rows that are in another order here than in the file keep their scales. */
static bool rows_stay_in_blocks(const cn_weight_part *p, const cn_quant *q)
{
    if (q->scale != CN_QUANT_BLOCK || !p->rotary) return true;
    for (uint64_t row = 0; row < p->tensor.rows; row++)
        if (row / CN_FP8_BLOCK != cn_part_row_in_file(p, row) / CN_FP8_BLOCK) return false;
    return true;
}

cn_status cn_part_bind_fp8(cn_weight_part *p, const cn_st_tensor *t, const cn_safetensors *all,
                           const cn_quant *q)
{
    if (t->dtype != CN_ST_F8_E4M3)
        return cn_fail(CN_ERR_MODEL,
                       "%s: tensor %s: config.json says that it is FP8 (F8_E4M3), got %s: if it "
                       "was left so, name it in modules_to_not_convert or ignore",
                       t->file, t->name, cn_st_dtype_name(t->dtype));
    if (!rows_stay_in_blocks(p, q))
        return cn_fail(CN_ERR_MODEL,
                       "%s: tensor %s: FP8 blocks with RoPE of a part of heads of %u are not "
                       "supported: use the bf16 checkpoint",
                       t->file, t->name, p->head_dim);
    p->tensor.dtype = CN_E4M3;
    p->scale = find_beside(p, all, "_scale_inv");
    if (!p->scale) p->scale = find_beside(p, all, "_scale");
    if (!p->scale)
        return cn_fail(CN_ERR_MODEL,
                       "%s: tensor %s: its scale is missing: expected %s_scale_inv or %s_scale",
                       t->file, t->name, t->name, t->name);
    CN_TRY(check_scale_dtype(p->scale));
    CN_TRY(check_scale_shape(p->scale, p, q->scale));
    if (!q->is_static) return CN_OK;
    if (p->stack)
        return cn_fail(CN_ERR_MODEL,
                       "%s: tensor %s: static scales of inputs of experts in one tensor are not "
                       "supported: use a checkpoint with a tensor for each expert",
                       t->file, t->name);
    p->x_scale = find_beside(p, all, "input_scale");
    if (!p->x_scale)
        return cn_fail(CN_ERR_MODEL,
                       "%s: tensor %s: the static scale of its input is missing: expected "
                       "%.*sinput_scale",
                       t->file, t->name, (int)(strlen(t->name) - strlen("weight")), t->name);
    CN_TRY(check_scale_dtype(p->x_scale));
    return check_scale_shape(p->x_scale, p, CN_QUANT_TENSOR);
}

/* Element i of a tensor of scales. memcpy, because data may have any alignment. */
static float scale_at(const cn_st_tensor *t, uint64_t i)
{
    const unsigned char *data = t->data;
    uint32_t bits = 0;
    uint16_t half;
    float x;
    switch (t->dtype) {
    case CN_ST_F32:
        memcpy(&bits, data + 4 * i, 4);
        break;
    case CN_ST_BF16:
        memcpy(&half, data + 2 * i, 2);
        bits = (uint32_t)half << 16;
        break;
    case CN_ST_F16:
        memcpy(&half, data + 2 * i, 2);
        return cn_f32_of_f16(half);
    default: /* F8_E8M0 */
        return data[i] == 255 ? NAN : ldexpf(1, data[i] - 127);
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t scale_index(const cn_weight_part *p, const cn_quant *q, uint64_t row, uint64_t col)
{
    const uint64_t rows = rows_of_matrix(p), matrix = row / rows;
    const uint64_t row_blocks = cn_ceil_div(rows, CN_FP8_BLOCK);
    switch (q->scale) {
    case CN_QUANT_TENSOR:
        return matrix;
    case CN_QUANT_ROW:
        return row;
    case CN_QUANT_BLOCK:
        return (matrix * row_blocks + row % rows / CN_FP8_BLOCK) *
                   cn_ceil_div(p->tensor.cols, CN_FP8_BLOCK) +
               col / CN_FP8_BLOCK;
    }
    return 0;
}

float cn_part_scale(const cn_weight_part *p, const cn_quant *q, uint64_t row, uint64_t col)
{
    return scale_at(p->scale, scale_index(p, q, row, col));
}

void cn_part_dequantise(const cn_weight_part *p, const cn_quant *q, uint64_t first, uint64_t n,
                        float *out)
{
    const uint64_t cols = p->tensor.cols;
    const uint8_t *codes = p->tensor.data;
    for (uint64_t i = first; i < first + n; i++)
        *out++ = cn_fp8_value(codes[i]) * cn_part_scale(p, q, i / cols, i % cols);
}

float cn_part_x_scale(const cn_weight_part *p)
{
    return p->x_scale ? scale_at(p->x_scale, 0) : 0;
}

/* ---- damaged files ---- */

static cn_status fail_scale(const cn_st_tensor *t, uint64_t i, const char *what)
{
    return cn_fail(CN_ERR_MODEL,
                   "%s: tensor %s: element %llu is %g%s: the file is damaged; copy or download it "
                   "again",
                   t->file, t->name, (unsigned long long)i, (double)scale_at(t, i), what);
}

/* Checks columns [col, end) of a row, which have one scale. */
static cn_status check_span(const cn_weight_part *p, const cn_quant *q, uint64_t row, uint64_t col,
                            uint64_t end)
{
    const uint8_t *codes = (const uint8_t *)p->tensor.data + row * p->tensor.cols;
    const uint64_t i = scale_index(p, q, row, col);
    const float scale = scale_at(p->scale, i);
    uint8_t any = 0;
    bool nan = false;
    for (uint64_t c = col; c < end; c++) {
        nan |= (codes[c] & 0x7f) == 0x7f;
        any |= codes[c] & 0x7f;
    }
    if (nan)
        return cn_fail(CN_ERR_MODEL,
                       "row %llu of the tensor has the e4m3 value NaN (0x7f or 0xff): the file is "
                       "damaged; copy or download it again",
                       (unsigned long long)row);
    if (!isfinite(scale * CN_FP8_MAX) || scale < 0) return fail_scale(p->scale, i, "");
    if (scale == 0 && any) return fail_scale(p->scale, i, " for weights that are not zero");
    return CN_OK;
}

cn_status cn_part_check_fp8(const cn_weight_part *p, const cn_quant *q)
{
    const uint64_t cols = p->tensor.cols;
    const uint64_t span = q->scale == CN_QUANT_BLOCK ? CN_FP8_BLOCK : cols;
    for (uint64_t row = 0; row < p->tensor.rows; row++)
        for (uint64_t col = 0; col < cols; col += span)
            CN_TRY(check_span(p, q, row, col, col + span < cols ? col + span : cols));
    if (!p->x_scale) return CN_OK;
    const float x = cn_part_x_scale(p);
    return isfinite(x) && x > 0 ? CN_OK : fail_scale(p->x_scale, 0, "");
}

/* ---- FP8 from plain values ---- */

/* The scale of rows x cols values, and their codes. */
static float make_block(const float *x, uint64_t stride, uint64_t rows, uint64_t cols,
                        uint8_t *codes)
{
    float most = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) {
            const float size = fabsf(x[r * stride + c]);
            most = size > most ? size : most;
        }
    /* Without the bound it would be 0 for tiny values, and 0 / 0 is NaN. */
    const float scale = fmaxf(most / CN_FP8_MAX, FLT_MIN);
    for (uint64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (uint64_t c = 0; c < cols; c++)
            codes[r * stride + c] = cn_fp8_of(x[r * stride + c] / scale);
    }
    return scale;
}

void cn_fp8_make(const float *x, uint64_t rows, uint64_t cols, bool by_row, uint8_t *codes,
                 float *scales)
{
    const uint64_t step_rows = by_row ? 1 : CN_FP8_BLOCK, step_cols = by_row ? cols : CN_FP8_BLOCK;
    for (uint64_t r = 0; r < rows; r += step_rows)
        for (uint64_t c = 0; c < cols; c += step_cols) {
            const uint64_t n_rows = rows - r < step_rows ? rows - r : step_rows;
            const uint64_t n_cols = cols - c < step_cols ? cols - c : step_cols;
            *scales++ = make_block(x + r * cols + c, cols, n_rows, n_cols, codes + r * cols + c);
        }
}
