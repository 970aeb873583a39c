/* retrieval_file.c - see retrieval_file.h. */
#include "engine/checkpoint/retrieval_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/checkpoint/eagle_head.h"
#include "engine/checkpoint/file_sum.h"
#include "engine/checkpoint/safetensors.h"

enum { MAX_HEAD_DIM = 256, HEAD_DIM_STEP = 16, MAX_DEPTH = 2, LIST_BYTES = 256 };

struct cn_retrieval_file {
    cn_safetensors *tensors; /* NULL: dummy weights */
    const char *const *names; /* of the parts in the file */
    bool is_eagle;
    cn_draft_head head;
    cn_weight_part parts[CN_N_HEAD_PARTS];
};

static const char *const own_names[CN_N_HEAD_PARTS] = {
    "norm.weight", "q_proj.weight", "k_proj.weight", "fc.weight", "hidden_norm.weight"};
static const cn_weight_id kinds[CN_N_HEAD_PARTS] = {CN_W_ATTN_NORM, CN_W_QKV, CN_W_QKV, CN_W_QKV,
                                                    CN_W_ATTN_NORM};

static uint32_t count_parts(const cn_draft_head *head)
{
    return head->n_hidden_layers > 0 ? CN_N_HEAD_PARTS : CN_HEAD_FC;
}

/* ---- metadata ---- */

static cn_status find_text(const cn_retrieval_file *f, const char *path, const char *key,
                           const char **text)
{
    *text = cn_safetensors_metadata(f->tensors, key);
    if (*text) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: metadata %s: expected a value, got none", path, key);
}

static cn_status read_retrieval_number(const cn_retrieval_file *f, const char *path,
                                       const char *key, double min, double max, double *out)
{
    const char *text;
    char *end;
    CN_TRY(find_text(f, path, key, &text));
    *out = strtod(text, &end);
    if (*text && !*end && *out >= min && *out <= max) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: metadata %s %.40s: expected a number from %g to %g", path,
                   key, text, min, max);
}

/* Returns whether the list is ascending and has layers of the model, and copies it. */
static bool read_layers(cn_draft_head *head, const json_t *list, uint32_t n_layers)
{
    json_int_t least = 0;
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || (n != 0 && n != CN_DRAFT_LAYERS)) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *layer = json_array_get(list, i);
        const json_int_t at = json_integer_value(layer);
        if (!json_is_integer(layer) || at < least || at >= n_layers) return false;
        head->hidden_layers[i] = (uint32_t)at;
        least = at + 1;
    }
    head->n_hidden_layers = (uint32_t)n;
    return true;
}

static cn_status read_hidden_layers(cn_retrieval_file *f, const char *path, uint32_t n_layers)
{
    const char *text;
    json_t *list;
    CN_TRY(find_text(f, path, "hidden_layers", &text));
    CN_TRY(cn_json_parse(&list, text, strlen(text), "hidden_layers", LIST_BYTES, MAX_DEPTH,
                         CN_ERR_MODEL));
    const bool good = read_layers(&f->head, list, n_layers);
    json_decref(list);
    if (good) return CN_OK;
    return cn_fail(CN_ERR_MODEL,
                   "%s: hidden_layers %.40s: expected [] or three ascending layers from 0 to %u",
                   path, text, n_layers - 1);
}

static cn_status check_base(const cn_retrieval_file *f, const char *path, const char *dir)
{
    const char *text;
    char base[17];
    uint64_t sum;
    CN_TRY(find_text(f, path, "base", &text));
    CN_TRY(cn_file_sum_weights(&sum, dir));
    snprintf(base, sizeof base, "%016" PRIx64, sum);
    if (strcmp(text, base) == 0) return CN_OK;
    return cn_fail(CN_ERR_MODEL,
                   "%s: the head is of another model (base %.40s, the weights here have %s): train "
                   "one for this model with examples/retrieval/train.py",
                   path, text, base);
}

static cn_status check_head_dim(const char *path, double head_dim)
{
    if (head_dim >= HEAD_DIM_STEP && head_dim <= MAX_HEAD_DIM &&
        fmod(head_dim, HEAD_DIM_STEP) == 0)
        return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: head_dim %g: expected a multiple of %d from %d to %d", path,
                   head_dim, HEAD_DIM_STEP, HEAD_DIM_STEP, MAX_HEAD_DIM);
}

static cn_status read_retrieval_metadata(cn_retrieval_file *f, const char *path)
{
    double head_dim, theta, context;
    CN_TRY(read_retrieval_number(f, path, "head_dim", 1, INT32_MAX, &head_dim));
    CN_TRY(read_retrieval_number(f, path, "rope_theta", 1, 1e12, &theta));
    CN_TRY(read_retrieval_number(f, path, "context", 1, INT32_MAX, &context));
    CN_TRY(check_head_dim(path, head_dim));
    f->head.head_dim = (uint32_t)head_dim;
    f->head.rope_theta = theta;
    f->head.context = (uint32_t)context;
    return CN_OK;
}

/* ---- tensors ---- */

static cn_status check_names(const cn_retrieval_file *f, const char *path)
{
    for (size_t i = 0; i < cn_safetensors_count(f->tensors); i++) {
        const char *name = cn_safetensors_at(f->tensors, i)->name;
        bool known = false;
        for (uint32_t k = 0; k < count_parts(&f->head); k++)
            known |= strcmp(name, f->names[k]) == 0;
        if (!known)
            return cn_fail(CN_ERR_MODEL,
                           "%s: %s: expected only norm.weight, q_proj.weight and k_proj.weight, "
                           "and with hidden_layers fc.weight and hidden_norm.weight",
                           path, name);
    }
    return CN_OK;
}

static cn_status set_retrieval_part(cn_retrieval_file *f, const char *path, uint32_t i,
                                    uint64_t cols)
{
    const char *name = f->names[i];
    const cn_st_tensor *t = cn_safetensors_find(f->tensors, name);
    char shape[64];
    if (!t) return cn_fail(CN_ERR_MODEL, "%s: expected a tensor %s, got none", path, name);
    const bool is_vector = i == CN_HEAD_NORM || i == CN_HEAD_STATE_NORM;
    const uint32_t n_dims = is_vector ? 1 : 2;
    if (t->n_dims != n_dims || t->shape[n_dims - 1] != cols)
        return cn_fail(CN_ERR_MODEL, "%s: %s: expected [%s%llu], got %s", path, name,
                       is_vector ? "" : "rows, ", (unsigned long long)cols,
                       cn_st_shape_text(t, shape, sizeof shape));
    if (t->dtype != CN_ST_F32 && t->dtype != CN_ST_BF16 && t->dtype != CN_ST_F16)
        return cn_fail(CN_ERR_MODEL, "%s: %s: expected F32, BF16 or F16, got %s", path, name,
                       cn_st_dtype_name(t->dtype));
    f->parts[i].tensor = (cn_host_tensor){
        .data = t->data,
        .dtype = t->dtype == CN_ST_F32 ? CN_F32 : t->dtype == CN_ST_BF16 ? CN_BF16 : CN_F16,
        .rows = is_vector ? 1 : t->shape[0],
        .cols = cols};
    return CN_OK;
}

static cn_status read_tensors(cn_retrieval_file *f, const char *path, const cn_model_config *m)
{
    const uint64_t keys = (uint64_t)m->n_kv_heads * f->head.head_dim;
    const bool has_states = f->head.n_hidden_layers > 0;
    const uint64_t h = m->hidden, width = has_states ? 2 * h : h;
    const uint64_t cols[CN_N_HEAD_PARTS] = {h, width, width, CN_DRAFT_LAYERS * h, h};
    for (uint32_t i = 0; i < count_parts(&f->head); i++)
        CN_TRY(set_retrieval_part(f, path, i, cols[i]));
    if (has_states && f->parts[CN_HEAD_FC].tensor.rows != h)
        return cn_fail(CN_ERR_MODEL, "%s: fc.weight: expected %llu rows, got %llu", path,
                       (unsigned long long)h,
                       (unsigned long long)f->parts[CN_HEAD_FC].tensor.rows);
    const uint64_t k_rows = f->parts[CN_HEAD_K].tensor.rows;
    const uint64_t q_rows = f->parts[CN_HEAD_Q].tensor.rows;
    if (k_rows != keys)
        return cn_fail(CN_ERR_MODEL,
                       "%s: %s: expected %llu rows, %u kv heads of %u, got %llu", path,
                       f->names[CN_HEAD_K], (unsigned long long)keys, m->n_kv_heads,
                       f->head.head_dim, (unsigned long long)k_rows);
    if (q_rows == 0 || q_rows % keys != 0 || q_rows / f->head.head_dim > UINT16_MAX)
        return cn_fail(CN_ERR_MODEL,
                       "%s: %s: expected a multiple of %llu rows, %u kv heads of %u, got %llu",
                       path, f->names[CN_HEAD_Q], (unsigned long long)keys, m->n_kv_heads,
                       f->head.head_dim, (unsigned long long)q_rows);
    f->head.n_heads = (uint32_t)(q_rows / f->head.head_dim);
    return CN_OK;
}

/* ---- life ---- */

static cn_status read_file(cn_retrieval_file *f, const char *path, const char *dir,
                           const cn_model_config *m)
{
    if (access(path, F_OK) != 0)
        return cn_fail(CN_ERR_MODEL,
                       "%s: the file is missing: selector spec needs a retrieval head of this "
                       "model, which examples/retrieval/train.py writes",
                       path);
    CN_TRY(cn_safetensors_open_file(&f->tensors, dir, CN_RETRIEVAL_FILE));
    f->is_eagle = cn_eagle_names(f->tensors) != NULL;
    if (f->is_eagle) {
        f->names = cn_eagle_names(f->tensors);
        CN_TRY(cn_eagle_read(&f->head, f->tensors, dir, path, m));
        CN_TRY(check_head_dim(path, f->head.head_dim));
        return read_tensors(f, path, m);
    }
    CN_TRY(read_hidden_layers(f, path, m->n_layers));
    CN_TRY(read_retrieval_metadata(f, path));
    CN_TRY(check_names(f, path));
    CN_TRY(read_tensors(f, path, m));
    return check_base(f, path, dir);
}

static void make_dummy(cn_retrieval_file *f, const cn_model_config *m)
{
    /* A head has rows of its own, so they need not be as wide as latent rows. */
    const uint32_t d = m->latent.rank > 0 ? m->latent.rope : m->head_dim;
    const uint64_t rows[] = {1, (uint64_t)m->n_heads * d, (uint64_t)m->n_kv_heads * d};
    f->head = (cn_draft_head){.n_heads = m->n_heads,
                              .head_dim = d,
                              .context = m->max_position,
                              .rope_theta = m->rope_theta};
    for (uint32_t i = 0; i < count_parts(&f->head); i++)
        f->parts[i].tensor = (cn_host_tensor){.rows = rows[i], .cols = m->hidden};
}

cn_status cn_retrieval_open(cn_retrieval_file **out, const char *dir, const cn_model_config *m,
                            cn_opt_load_format format)
{
    cn_buf path = {0};
    cn_retrieval_file *f = cn_calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return cn_fail(CN_ERR_MEMORY, "%s: out of memory", CN_RETRIEVAL_FILE);
    f->names = own_names;
    for (uint32_t i = 0; i < CN_N_HEAD_PARTS; i++) {
        f->parts[i].id = kinds[i];
        snprintf(f->parts[i].name, sizeof f->parts[i].name, "retrieval.%s", own_names[i]);
    }
    cn_status status = CN_OK;
    if (format == CN_OPT_LOAD_DUMMY)
        make_dummy(f, m);
    else
        status = cn_buf_addf(&path, "%s/" CN_RETRIEVAL_FILE, dir);
    if (status == CN_OK && format != CN_OPT_LOAD_DUMMY) status = read_file(f, path.data, dir, m);
    cn_buf_free(&path);
    if (status == CN_OK)
        *out = f;
    else
        cn_retrieval_close(f);
    return status;
}

void cn_retrieval_close(cn_retrieval_file *f)
{
    if (!f) return;
    cn_safetensors_close(f->tensors);
    cn_free(f);
}

const cn_draft_head *cn_retrieval_head(const cn_retrieval_file *f) { return &f->head; }

const cn_weight_part *cn_retrieval_parts(const cn_retrieval_file *f) { return f->parts; }

cn_status cn_retrieval_describe(cn_model_config *m, const cn_config *c)
{
    cn_retrieval_file *f;
    m->draft = (cn_draft_head){0};
    if (!(cn_config_selectors(c) >> CN_SELECT_SPEC & 1)) return CN_OK;
    CN_TRY(cn_retrieval_open(&f, c->model, m, c->load_format));
    m->draft = f->head;
    if (f->is_eagle)
        cn_log(CN_LOG_WARN,
               "%s/" CN_RETRIEVAL_FILE " is an EAGLE-3 head, which does not name the model it was "
               "trained for: shapes and vocabulary fit; taken are rope_theta %g, %u positions and "
               "layers %u, %u and %u (" CN_RETRIEVAL_CONFIG " beside it sets them)",
               c->model, f->head.rope_theta, f->head.context, f->head.hidden_layers[0],
               f->head.hidden_layers[1], f->head.hidden_layers[2]);
    cn_retrieval_close(f);
    return CN_OK;
}
