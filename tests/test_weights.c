/* test_weights.c - tensors are at the right places of the fused matrices, converted correctly from
 * every dtype; dummy weights follow their formula; incomplete and ambiguous checkpoints are
 * refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/checkpoint/dummy_weight.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/model/weights.h"
#include "tests/lib/golden.h"
#include "tests/lib/tensor_file.h"

/* ---- a backend with only memory, which runs a write when its stream is synchronised ---- */

static struct {
    bool pending;
    void *dst;
    const void *host;
    size_t bytes, allocated, largest_write, n_allocs, n_fills;
} fake;

static cn_status fake_alloc(cn_backend *be, size_t bytes, void **out)
{
    (void)be;
    fake.allocated += bytes;
    fake.n_allocs++;
    *out = cn_calloc_aligned(bytes, 1);
    return CN_OK;
}

static void fake_free(cn_backend *be, void *p)
{
    (void)be;
    fake.n_allocs--;
    cn_free(p);
}

static cn_status fake_sync(cn_stream *s)
{
    (void)s;
    if (fake.pending) memcpy(fake.dst, fake.host, fake.bytes);
    fake.pending = false;
    return CN_OK;
}

static cn_status fake_write(cn_stream *s, void *dst, const void *host, size_t bytes)
{
    assert_int_equal(fake_sync(s), CN_OK);
    fake.pending = true;
    fake.dst = dst;
    fake.host = host;
    fake.bytes = bytes;
    if (bytes > fake.largest_write) fake.largest_write = bytes;
    return CN_OK;
}

/* A device that makes dummy weights itself, in bf16. */
static cn_status fake_fill(cn_stream *s, const cn_dummy_fill_args *a)
{
    (void)s;
    uint16_t *out = a->out;
    for (uint64_t i = 0; i < a->n; i++) out[i] = cn_dummy_weight(a->key, a->scale, i);
    fake.n_fills++;
    return CN_OK;
}

static cn_backend backend_of(cn_dtype dtype)
{
    memset(&fake, 0, sizeof fake);
    return (cn_backend){.name = "fake",
                        .matrix_dtype = dtype,
                        .vector_dtype = dtype,
                        .mem_alloc = fake_alloc,
                        .mem_free = fake_free,
                        .mem_write = fake_write,
                        .stream_sync = fake_sync};
}

/* ---- helpers ---- */

/* Loads into backend memory of cn_weights_bytes. */
static cn_status load(cn_weights **w, cn_backend *be, const cn_checkpoint *ck)
{
    void *memory = NULL;
    CN_TRY(be->mem_alloc(be, cn_weights_bytes(cn_checkpoint_config(ck), be), &memory));
    return cn_weights_load(w, be, NULL, ck, memory);
}

/* The memory starts with the embedding, the first matrix. */
static void unload(cn_backend *be, cn_weights *w)
{
    void *memory = (void *)(uintptr_t)cn_weights_at(w, CN_W_EMBED, 0);
    cn_weights_free(w);
    be->mem_free(be, memory);
}


static cn_model_config config_of(const char *name)
{
    char dir[256];
    cn_model_config c;
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    if (cn_model_config_load(&c, dir) != CN_OK) fail_msg("%s", cn_last_error());
    return c;
}

static cn_checkpoint *open_checkpoint(const cn_model_config *c, const char *dir)
{
    cn_checkpoint *ck;
    cn_opt_load_format format = dir ? CN_OPT_LOAD_AUTO : CN_OPT_LOAD_DUMMY;
    if (cn_checkpoint_open(&ck, dir, c, format, 7) != CN_OK) fail_msg("%s", cn_last_error());
    return ck;
}

static uint16_t bf16_nearest(float x)
{
    /* The nearer of the two neighbours, or the even one when both are equally near. */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t low = bits & 0xffff0000u, high = low + 0x10000;
    uint32_t rest = bits & 0xffff;
    bool up = rest > 0x8000 || (rest == 0x8000 && (low >> 16 & 1));
    return (uint16_t)((up ? high : low) >> 16);
}

static float f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31;
    double mantissa = h & 1023, x;
    if (exponent == 31)
        x = mantissa > 0 ? (double)NAN : (double)INFINITY;
    else
        x = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return (float)(h & 0x8000 ? -x : x);
}

/* ---- places of tensors ---- */

/* The element of the file that must be element i of the part. Of a head that RoPE rotates in part,
 * dimensions i and i + r of the file are i and i + half here (r, half: half of what is rotated, of
 * the head). */
static uint64_t source_of_heads(const cn_model_config *c, const cn_st_tensor *t, uint64_t i)
{
    const bool is_rotated = strstr(t->name, ".q_") || strstr(t->name, ".k_");
    const uint64_t cols = t->n_dims == 2 ? t->shape[1] : 1, d = c->head_dim;
    if (!is_rotated || c->rotary == d) return i;
    const uint64_t row = i / cols % d, half = d / 2, r = c->rotary / 2;
    const uint64_t from = row % half < r ? row % half + row / half * r
                                         : 2 * r + row % half - r + row / half * (half - r);
    return i + from * cols - row * cols;
}

/* The same with latent attention. Its files pair neighbours among the last rows of a head. */
static uint64_t source_of(const cn_model_config *c, const cn_st_tensor *t, uint64_t i)
{
    const cn_latent *l = &c->latent;
    const bool is_query = strstr(t->name, ".q_proj.") || strstr(t->name, ".q_b_proj.");
    if (l->rank == 0) return source_of_heads(c, t, i);
    if (!l->interleaved || (!is_query && !strstr(t->name, ".kv_a_proj_with_mqa."))) return i;
    const uint64_t first = is_query ? l->nope : l->rank, d = first + l->rope, cols = t->shape[1];
    const uint64_t row = i / cols % d, turned = row - first;
    if (row < first) return i;
    const uint64_t from = turned < l->rope / 2 ? 2 * turned : 2 * turned + 1 - l->rope;
    return i + (first + from) * cols - row * cols;
}

/* Every tensor of the file, row by row, must be where the comment in weights.h says. */
static void check_row_block(const cn_weights *w, const cn_safetensors *s,
                            const cn_model_config *c, const char *name, cn_weight_id id,
                            uint32_t layer, uint64_t first_elem)
{
    const cn_st_tensor *t = cn_safetensors_find(s, name);
    assert_non_null(t);
    const float *got = (const float *)cn_weights_at(w, id, layer) + first_elem;
    uint64_t n = t->n_bytes / (t->dtype == CN_ST_F32 ? 4 : 2);
    for (uint64_t i = 0; i < n; i++) {
        float want;
        uint16_t half;
        const uint64_t at = source_of(c, t, i);
        if (t->dtype == CN_ST_F32) {
            memcpy(&want, (const char *)t->data + 4 * at, 4);
        } else {
            memcpy(&half, (const char *)t->data + 2 * at, 2);
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&want, &bits, 4);
            if (t->dtype == CN_ST_F16) want = f16_value(half);
        }
        if (got[i] != want) fail_msg("%s[%llu]", name, (unsigned long long)i);
    }
}

/* The experts of a layer, each with tensors of its own or all in one. */
static void check_experts(const cn_weights *w, const cn_safetensors *s, const cn_model_config *c,
                          uint32_t layer)
{
    const uint64_t one = (uint64_t)c->experts.intermediate * c->hidden;
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", layer);
    if (cn_safetensors_find(s, name)) {
        check_row_block(w, s, c, name, CN_W_EXPERT_GATE_UP, layer, 0);
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj", layer);
        check_row_block(w, s, c, name, CN_W_EXPERT_DOWN, layer, 0);
        return;
    }
    static const struct {
        const char *name;
        cn_weight_id id;
        uint64_t each, first; /* expert e begins at (e * each + first) * one */
    } parts[] = {{"gate_proj", CN_W_EXPERT_GATE_UP, 2, 0},
                 {"up_proj", CN_W_EXPERT_GATE_UP, 2, 1},
                 {"down_proj", CN_W_EXPERT_DOWN, 1, 0}};
    for (uint64_t e = 0; e < c->experts.router.n_experts; e++)
        for (size_t i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight", layer,
                     (unsigned)e, parts[i].name);
            check_row_block(w, s, c, name, parts[i].id, layer,
                            (e * parts[i].each + parts[i].first) * one);
        }
}

static void check_layer(const cn_weights *w, const cn_safetensors *s, const cn_model_config *c,
                        uint32_t layer)
{
    uint64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, h = c->hidden;
    const bool routed = cn_model_config_layer(c, layer).mlp == CN_MLP_EXPERTS;
    const bool shares = routed && c->experts.shared > 0;
    const bool latent = c->latent.rank > 0, heads = !latent, factors = c->latent.q_rank > 0;
    const struct {
        bool present;
        const char *name;
        cn_weight_id id;
        uint64_t first;
    } places[] = {
        {true, "input_layernorm.weight", CN_W_ATTN_NORM, 0},
        {heads || !factors, "self_attn.q_proj.weight", heads ? CN_W_QKV : CN_W_Q, 0},
        {heads, "self_attn.k_proj.weight", CN_W_QKV, q * h},
        {heads, "self_attn.v_proj.weight", CN_W_QKV, (q + kv) * h},
        {factors, "self_attn.q_a_proj.weight", CN_W_Q_A, 0},
        {factors, "self_attn.q_a_layernorm.weight", CN_W_Q_A_NORM, 0},
        {factors, "self_attn.q_b_proj.weight", CN_W_Q, 0},
        {latent, "self_attn.kv_a_proj_with_mqa.weight", CN_W_KV_A, 0},
        {latent, "self_attn.kv_a_layernorm.weight", CN_W_KV_A_NORM, 0},
        {latent, "self_attn.kv_b_proj.weight", CN_W_KV_B, 0},
        {c->qkv_bias, "self_attn.q_proj.bias", CN_W_QKV_BIAS, 0},
        {c->qkv_bias, "self_attn.k_proj.bias", CN_W_QKV_BIAS, q},
        {c->qkv_bias, "self_attn.v_proj.bias", CN_W_QKV_BIAS, q + kv},
        {c->qk_norm, "self_attn.q_norm.weight", CN_W_Q_NORM, 0},
        {c->qk_norm, "self_attn.k_norm.weight", CN_W_K_NORM, 0},
        {true, "self_attn.o_proj.weight", CN_W_O, 0},
        {c->o_bias, "self_attn.o_proj.bias", CN_W_O_BIAS, 0},
        {true, "post_attention_layernorm.weight", CN_W_MLP_NORM, 0},
        {!routed, "mlp.gate_proj.weight", CN_W_GATE_UP, 0},
        {!routed, "mlp.up_proj.weight", CN_W_GATE_UP, (uint64_t)c->intermediate * h},
        {!routed, "mlp.down_proj.weight", CN_W_DOWN, 0},
        {shares, "mlp.shared_experts.gate_proj.weight", CN_W_GATE_UP, 0},
        {shares, "mlp.shared_experts.up_proj.weight", CN_W_GATE_UP,
         (uint64_t)c->experts.shared * h},
        {shares, "mlp.shared_experts.down_proj.weight", CN_W_DOWN, 0},
        {routed, "mlp.gate.weight", CN_W_ROUTER, 0},
        {routed && c->experts.bias, "mlp.gate.e_score_correction_bias", CN_W_ROUTER_BIAS, 0},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, places[i].name);
        if (places[i].present)
            check_row_block(w, s, c, name, places[i].id, layer, places[i].first);
        else
            assert_null(cn_safetensors_find(s, name));
    }
    if (routed) check_experts(w, s, c, layer);
    assert_true((cn_weights_at(w, CN_W_ROUTER, layer) != NULL) == routed);
    assert_true((cn_weights_at(w, CN_W_QKV, layer) != NULL) == heads);
    assert_true((cn_weights_at(w, CN_W_Q_A, layer) != NULL) == factors);
    assert_true((cn_weights_at(w, CN_W_QKV_BIAS, layer) != NULL) == c->qkv_bias);
    assert_true((cn_weights_at(w, CN_W_Q_NORM, layer) != NULL) == c->qk_norm);
    assert_true((cn_weights_at(w, CN_W_O_BIAS, layer) != NULL) == c->o_bias);
}

static void check_places(const char *dir)
{
    cn_model_config c;
    assert_int_equal(cn_model_config_load(&c, dir), CN_OK);
    cn_backend be = backend_of(CN_F32);
    cn_checkpoint *ck = open_checkpoint(&c, dir);
    cn_weights *w;
    if (load(&w, &be, ck) != CN_OK) fail_msg("%s", cn_last_error());
    cn_checkpoint_close(ck);
    assert_int_equal(fake.n_allocs, 1);
    assert_int_equal(fake.allocated, cn_weights_bytes(&c, &be));
    assert_in_range(fake.allocated, 4 * cn_model_config_n_params(&c),
                    4 * cn_model_config_n_params(&c) + 256 * CN_W_COUNT * (c.n_layers + 1));

    cn_safetensors *s;
    assert_int_equal(cn_safetensors_open(&s, dir), CN_OK);
    check_row_block(w, s, &c, "model.embed_tokens.weight", CN_W_EMBED, 0, 0);
    check_row_block(w, s, &c, "model.norm.weight", CN_W_FINAL_NORM, 0, 0);
    if (c.tied)
        assert_ptr_equal(cn_weights_at(w, CN_W_LM_HEAD, 0), cn_weights_at(w, CN_W_EMBED, 0));
    else
        check_row_block(w, s, &c, "lm_head.weight", CN_W_LM_HEAD, 0, 0);
    for (uint32_t layer = 0; layer < c.n_layers; layer++) check_layer(w, s, &c, layer);
    cn_safetensors_close(s);
    unload(&be, w);
    assert_int_equal(fake.n_allocs, 0);
}

static void test_places(void **state)
{
    (void)state;
    for (size_t i = 0; golden_models[i]; i++) {
        char dir[256];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", golden_models[i]);
        check_places(dir);
    }
    check_places("examples/tiny-reasoner");
}

/* bf16 weights need half the memory, are rounded to nearest even, and are copied through a buffer
 * of limited size. */
static void test_bf16_backend(void **state)
{
    (void)state;
    const char *names[] = {"llama-f32", "qwen2-f16", "qwen3-bf16"};
    for (size_t k = 0; k < 3; k++) {
        cn_model_config c = config_of(names[k]);
        char dir[256];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", names[k]);
        cn_checkpoint *ck = open_checkpoint(&c, dir);
        cn_backend f32 = backend_of(CN_F32), bf16 = backend_of(CN_BF16);
        cn_weights *full, *half;
        assert_int_equal(load(&full, &f32, ck), CN_OK);
        assert_int_equal(load(&half, &bf16, ck), CN_OK);
        assert_in_range(fake.largest_write, 1, 1 << 20);
        uint64_t rows, cols;
        cn_weight_shape(&c, CN_W_GATE_UP, 0, &rows, &cols);
        const float *a = cn_weights_at(full, CN_W_GATE_UP, 1);
        const uint16_t *b = cn_weights_at(half, CN_W_GATE_UP, 1);
        for (uint64_t i = 0; i < rows * cols; i++) assert_int_equal(b[i], bf16_nearest(a[i]));
        unload(&f32, full);
        unload(&bf16, half);
        cn_checkpoint_close(ck);
    }
}

/* ---- a written checkpoint, to be damaged ---- */

static char folder[64], weight_file[128];

static int enter_folder(void **state)
{
    (void)state;
    make_folder(folder);
    snprintf(weight_file, sizeof weight_file, "%s/model.safetensors", folder);
    return 0;
}

static int leave_folder(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

typedef struct damage {
    const char *drop;               /* omit this tensor */
    const char *reshape, *as_dtype; /* exchange the sides of one; store one as another dtype */
    const char *extra;              /* add this vector of one element */
    bool add_head;                  /* add a copy of the embedding as lm_head, ... */
    bool other_head;                /* ... with one different value */
} damage;

/* Writes dummy weights as F32. Returns the status of opening them. */
static cn_status write_and_open(const cn_model_config *c, const damage *d)
{
    tensor_file f = {0};
    cn_checkpoint *ck = open_checkpoint(c, NULL);
    size_t n_parts;
    const cn_weight_part *parts = cn_checkpoint_parts(ck, &n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        const cn_weight_part *p = &parts[i];
        uint64_t rows = p->tensor.rows, cols = p->tensor.cols, n = rows * cols;
        float *x = malloc(n * sizeof *x);
        assert_non_null(x);
        cn_checkpoint_read(ck, p, 0, n, CN_F32, x);
        bool swap = d->reshape && strcmp(d->reshape, p->name) == 0;
        bool recast = d->as_dtype && strcmp(d->as_dtype, p->name) == 0;
        if (!d->drop || strcmp(d->drop, p->name) != 0)
            tensor_file_add(&f, p->name, recast ? "I32" : "F32",
                            swap        ? cols
                            : rows == 1 ? 0
                                        : rows,
                            swap ? rows : cols, x, n * 4);
        if (i == 0 && d->add_head) {
            if (d->other_head) x[n - 1] += 1;
            tensor_file_add(&f, "lm_head.weight", "F32", rows, cols, x, n * 4);
        }
        free(x);
    }
    const float one = 1;
    if (d->extra) tensor_file_add(&f, d->extra, "F32", 0, 1, &one, sizeof one);
    tensor_file_write(&f, weight_file);
    tensor_file_free(&f);
    cn_checkpoint_close(ck);
    cn_status status = cn_checkpoint_open(&ck, folder, c, CN_OPT_LOAD_SAFETENSORS, 0);
    cn_checkpoint_close(ck);
    return status;
}

typedef struct damage_case {
    const cn_model_config *config;
    damage damage;
    const char *words; /* NULL: it must open */
} damage_case;

static void check_damages(const damage_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cn_status status = write_and_open(cases[i].config, &cases[i].damage);
        assert_int_equal(status, cases[i].words ? CN_ERR_MODEL : CN_OK);
        if (cases[i].words && !strstr(cn_last_error(), cases[i].words))
            fail_msg("\"%s\" lacks \"%s\"", cn_last_error(), cases[i].words);
    }
}

static void test_damaged_checkpoints(void **state)
{
    (void)state;
    cn_model_config tied = config_of("qwen3-bf16"), untied = config_of("llama-f32");
    const damage_case cases[] = {
        {&tied, {0}, NULL},
        {&untied, {0}, NULL},
        {&untied, {.drop = "lm_head.weight"}, "tensor lm_head.weight [300, 32] is missing"},
        {&tied,
         {.drop = "model.layers.2.self_attn.k_norm.weight"},
         "tensor model.layers.2.self_attn.k_norm.weight [16] is missing"},
        {&tied,
         {.reshape = "model.layers.0.mlp.up_proj.weight"},
         "model.layers.0.mlp.up_proj.weight: expected shape [96, 64] from config.json, got "
         "[64, 96]"},
        {&tied,
         {.as_dtype = "model.norm.weight"},
         "model.norm.weight: expected dtype F32, BF16 or F16, got I32"},
        {&tied,
         {.extra = "model.layers.1.self_attn.q_proj.bias"},
         "tensor model.layers.1.self_attn.q_proj.bias is not supported"},
        {&untied,
         {.extra = "model.layers.0.self_attn.q_norm.weight"},
         "q_norm.weight is not supported: LlamaForCausalLM"},
        {&untied, {.extra = "lm_head.bias"}, "lm_head.bias is not supported"},
        {&untied, {.extra = "model.layers.0.self_attn.rotary_emb.inv_freq"}, NULL},
        {&untied, {.extra = "model.layers.0.self_attn.k_scale"}, NULL},
        {&untied, {.extra = "model.layers.1.self_attn.v_proj.v_scale"}, NULL},
        {&untied, {.extra = "model.layers.2.mlp.up_proj.bias"}, NULL}, /* no layer 2 */
        {&untied, {.extra = "visual.patch_embed.weight"}, NULL},
        {&tied, {.add_head = true}, NULL},
        {&tied,
         {.add_head = true, .other_head = true},
         "lm_head.weight differs from model.embed_tokens.weight"},
    };
    check_damages(cases, sizeof cases / sizeof *cases);
}

static void test_damaged_experts(void **state)
{
    (void)state;
    cn_model_config experts = config_of("qwen3-moe-bf16"), shared = config_of("glm4-moe-bf16");
    const damage_case cases[] = {
        {&experts, {0}, NULL},
        {&shared, {0}, NULL},
        {&experts,
         {.drop = "model.layers.1.mlp.experts.5.up_proj.weight"},
         "tensor model.layers.1.mlp.experts.5.up_proj.weight [20, 32] is missing"},
        {&experts,
         {.drop = "model.layers.1.mlp.gate.weight"},
         "tensor model.layers.1.mlp.gate.weight [6, 32] is missing"},
        {&experts,
         {.reshape = "model.layers.1.mlp.experts.0.down_proj.weight"},
         "experts.0.down_proj.weight: expected shape [32, 20] from config.json, got [20, 32]"},
        {&experts,
         {.extra = "model.layers.1.mlp.experts.6.up_proj.weight"},
         "tensor model.layers.1.mlp.experts.6.up_proj.weight is not supported"},
        {&experts,
         {.extra = "model.layers.0.mlp.gate.weight"},
         "tensor model.layers.0.mlp.gate.weight is not supported"}, /* layer 0 has no experts */
        {&experts,
         {.extra = "model.layers.1.mlp.gate.e_score_correction_bias"},
         "e_score_correction_bias is not supported: Qwen3MoeForCausalLM"},
        {&experts,
         {.extra = "model.layers.1.mlp.shared_expert_gate.weight"},
         "shared_expert_gate.weight is not supported"},
        {&experts,
         {.extra = "model.layers.1.mlp.experts.gate_up_proj"},
         "experts.gate_up_proj: expected shape [6, 40, 32] from config.json, got [1]"},
        {&shared,
         {.drop = "model.layers.1.mlp.shared_experts.down_proj.weight"},
         "tensor model.layers.1.mlp.shared_experts.down_proj.weight [32, 24] is missing"},
        {&shared,
         {.drop = "model.layers.2.mlp.gate.e_score_correction_bias"},
         "tensor model.layers.2.mlp.gate.e_score_correction_bias [6] is missing"},
        {&shared, {.extra = "model.layers.3.mlp.experts.0.up_proj.weight"}, NULL}, /* no layer 3 */
    };
    check_damages(cases, sizeof cases / sizeof *cases);
}

/* Checks all 65,536 values of F16 and BF16 with an embedding of that many elements. */
static void test_every_half(void **state)
{
    (void)state;
    cn_model_config c = config_of("qwen3-bf16");
    c.vocab = 1024;
    const char *dtypes[] = {"F16", "BF16"};
    for (int k = 0; k < 2; k++) {
        tensor_file f = {0};
        cn_checkpoint *ck = open_checkpoint(&c, NULL);
        size_t n_parts;
        const cn_weight_part *parts = cn_checkpoint_parts(ck, &n_parts);
        uint16_t *x = calloc(65536, sizeof *x);
        assert_non_null(x);
        for (size_t i = 0; i < n_parts; i++) {
            uint64_t rows = parts[i].tensor.rows, cols = parts[i].tensor.cols;
            assert_in_range(rows * cols, 1, 65536);
            if (i == 0)
                for (size_t v = 0; v < 65536; v++) x[v] = (uint16_t)v;
            tensor_file_add(&f, parts[i].name, dtypes[k], rows == 1 ? 0 : rows, cols, x,
                            rows * cols * 2);
        }
        free(x);
        cn_checkpoint_close(ck);
        tensor_file_write(&f, weight_file);
        tensor_file_free(&f);

        ck = open_checkpoint(&c, folder);
        parts = cn_checkpoint_parts(ck, &n_parts);
        float got[64];
        for (size_t v = 0; v < 65536; v++) {
            if (v % 64 == 0) cn_checkpoint_read(ck, &parts[0], v, 64, CN_F32, got);
            uint32_t bits = (uint32_t)v << 16;
            float want = f16_value((uint16_t)v);
            if (k == 1) memcpy(&want, &bits, 4);
            if (isnan(want))
                assert_true(isnan(got[v % 64]));
            else
                assert_memory_equal(&got[v % 64], &want, 4);
        }
        cn_backend be = backend_of(CN_F32);
        cn_weights *w;
        void *memory;
        assert_int_equal(be.mem_alloc(&be, cn_weights_bytes(&c, &be), &memory), CN_OK);
        /* NaN and infinity are among them. */
        assert_int_equal(cn_weights_load(&w, &be, NULL, ck, memory), CN_ERR_MODEL);
        assert_non_null(strstr(cn_last_error(), "embed_tokens.weight: the tensor has an infinite"));
        be.mem_free(&be, memory);
        cn_checkpoint_close(ck);
    }
}

/* ---- dummy weights ---- */

static void test_dummy_formula(void **state)
{
    (void)state;
    /* Computed with Python integers and numpy.float32 from the comment in dummy_weight.h. */
    static const uint16_t first[8] = {0xbcc2, 0xbd11, 0xbc2e, 0x3b48,
                                      0xbc7b, 0x3c9d, 0xbd3c, 0x3bd1};
    cn_model_config c = config_of("qwen3-bf16");
    cn_checkpoint *ck = open_checkpoint(&c, NULL);
    size_t n_parts;
    const cn_weight_part *parts = cn_checkpoint_parts(ck, &n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        if (strcmp(parts[i].name, "model.layers.1.self_attn.k_proj.weight") != 0) continue;
        uint16_t got[8];
        cn_checkpoint_read(ck, &parts[i], 1000, 8, CN_BF16, got);
        assert_memory_equal(got, first, sizeof got);
        cn_checkpoint_close(ck);
        return;
    }
    fail_msg("no such part");
}

/* Checks mean, deviation and tails of a normal sample. Norms are 1. Pieces equal the whole. */
static void test_dummy_statistics(void **state)
{
    (void)state;
    cn_model_config c = config_of("qwen3-bf16");
    c.vocab = 20000;
    cn_checkpoint *ck = open_checkpoint(&c, NULL);
    size_t n_parts, n = 20000 * 64;
    const cn_weight_part *parts = cn_checkpoint_parts(ck, &n_parts);
    float *x = malloc(n * sizeof *x), piece[100];
    assert_non_null(x);
    cn_checkpoint_read(ck, &parts[0], 0, n, CN_F32, x);
    double sum = 0, squares = 0;
    size_t beyond2 = 0;
    for (size_t i = 0; i < n; i++) {
        double z = (double)x[i] / 0.02;
        sum += z;
        squares += z * z;
        beyond2 += fabs(z) > 2;
    }
    assert_true(fabs(sum / (double)n) < 0.004);
    assert_true(fabs(squares / (double)n - 1) < 0.006);
    assert_true(fabs((double)beyond2 / (double)n - 0.0455) < 0.005);

    cn_checkpoint_read(ck, &parts[0], 12345, 100, CN_F32, piece);
    assert_memory_equal(piece, x + 12345, sizeof piece);
    assert_int_equal(parts[1].id, CN_W_FINAL_NORM);
    cn_checkpoint_read(ck, &parts[1], 0, 64, CN_F32, piece);
    for (size_t i = 0; i < 64; i++) assert_true(piece[i] == 1);
    free(x);
    cn_checkpoint_close(ck);
}

/* The logits of a router differ by about 1 between experts, whatever the model's deviation is. */
static void test_dummy_router(void **state)
{
    (void)state;
    cn_model_config c = config_of("qwen3-moe-bf16");
    c.experts.router.n_experts = 128;
    c.initializer_range = 1e-3F;
    cn_checkpoint *ck = open_checkpoint(&c, NULL);
    size_t n_parts;
    const cn_weight_part *parts = cn_checkpoint_parts(ck, &n_parts);
    while (parts->id != CN_W_ROUTER) parts++;
    float x[128 * 32];
    double squares = 0;
    cn_checkpoint_read(ck, parts, 0, 128 * 32, CN_F32, x);
    for (size_t i = 0; i < 128 * 32; i++) squares += (double)x[i] * x[i];
    assert_true(fabs(squares / 128 - 1) < 0.1);
    cn_checkpoint_close(ck);
}

/* A step reads the experts that its tokens take: k of E for one token, all for many. */
static void test_bytes_of_a_step(void **state)
{
    (void)state;
    cn_model_config c = config_of("qwen3-moe-fused-f32"), dense = config_of("qwen3-bf16");
    cn_backend be = backend_of(CN_BF16);
    const double expert = 2.0 * 3 * 32 * 16, layers = 2; /* bytes of one */
    const double all = cn_weights_step_bytes(&c, &be, 1000);
    assert_true(fabs(all - cn_weights_step_bytes(&c, &be, 1) - layers * 2 * expert) < 1e-6);
    const double two = 5 * (1 - 0.4 * 0.4); /* of 5 experts, each token takes 3 */
    assert_true(fabs(all - cn_weights_step_bytes(&c, &be, 2) - layers * (5 - two) * expert) < 1e-6);
    assert_true(cn_weights_step_bytes(&dense, &be, 1) == cn_weights_step_bytes(&dense, &be, 64));
    assert_int_equal(cn_model_config_n_read(&c, 1),
                     cn_model_config_n_params(&c) - 2 * 2 * 3 * 32 * 16);
}

/* A device that makes the weights itself must have the bits that the host would write. */
static void test_dummies_on_device(void **state)
{
    (void)state;
    const char *names[] = {"llama-f32", "qwen2-f16", "qwen3-bf16", "glm4-moe-bf16"};
    for (size_t k = 0; k < 4; k++) {
        cn_model_config c = config_of(names[k]);
        cn_checkpoint *ck = open_checkpoint(&c, NULL);
        cn_backend host = backend_of(CN_BF16), device = host;
        device.dummy_fill = fake_fill;
        cn_weights *written, *made;
        assert_int_equal(load(&written, &host, ck), CN_OK);
        assert_int_equal(fake.n_fills, 0);
        assert_int_equal(load(&made, &device, ck), CN_OK);
        assert_true(fake.n_fills > 7 * c.n_layers);
        assert_memory_equal(cn_weights_at(made, CN_W_EMBED, 0),
                            cn_weights_at(written, CN_W_EMBED, 0), cn_weights_bytes(&c, &host));
        unload(&host, written);
        unload(&device, made);
        cn_checkpoint_close(ck);
        char dir[256];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", names[k]);
        ck = open_checkpoint(&c, dir);
        fake.n_fills = 0;
        assert_int_equal(load(&made, &device, ck), CN_OK);
        assert_int_equal(fake.n_fills, 0);
        unload(&device, made);
        cn_checkpoint_close(ck);
    }
}

/* Another seed or another tensor gives another sequence. */
static void test_dummy_streams_differ(void **state)
{
    (void)state;
    cn_model_config c = config_of("qwen3-bf16");
    cn_checkpoint *a, *b;
    float x[32], y[32], z[32];
    size_t n;
    assert_int_equal(cn_checkpoint_open(&a, NULL, &c, CN_OPT_LOAD_DUMMY, 1), CN_OK);
    assert_int_equal(cn_checkpoint_open(&b, NULL, &c, CN_OPT_LOAD_DUMMY, 2), CN_OK);
    const cn_weight_part *p = cn_checkpoint_parts(a, &n), *gate = NULL, *up = NULL;
    for (size_t i = 1; i < n; i++) {
        if (p[i].id != CN_W_GATE_UP || p[i - 1].id != CN_W_GATE_UP) continue;
        gate = &p[i - 1];
        up = &p[i];
    }
    assert_non_null(gate);
    cn_checkpoint_read(a, gate, 0, 32, CN_F32, x);
    cn_checkpoint_read(a, up, 0, 32, CN_F32, y);
    cn_checkpoint_read(b, gate, 0, 32, CN_F32, z);
    assert_memory_not_equal(x, y, sizeof x);
    assert_memory_not_equal(x, z, sizeof x);
    cn_checkpoint_close(a);
    cn_checkpoint_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_bf16_backend),
        cmocka_unit_test_setup_teardown(test_damaged_checkpoints, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(test_damaged_experts, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(test_every_half, enter_folder, leave_folder),
        cmocka_unit_test(test_dummy_formula),
        cmocka_unit_test(test_dummy_statistics),
        cmocka_unit_test(test_dummies_on_device),
        cmocka_unit_test(test_dummy_router),
        cmocka_unit_test(test_bytes_of_a_step),
        cmocka_unit_test(test_dummy_streams_differ),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
