/* draft_head.c - see draft_head.h. */
#include "tests/lib/draft_head.h"

#include <dirent.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/checkpoint/file_sum.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/tensor_file.h"

/* The bundled checkpoint: hidden size; and the head: its query heads. */
enum { HIDDEN = 384, HEADS = 4, KV_HEADS = DRAFT_HEAD_KV_HEADS, DIM = DRAFT_HEAD_DIM };

static const char *const bundled = "examples/tiny-reasoner";

/* Links the files of the bundled checkpoint, but its head. */
static void link_model(const scratch_dir *folder)
{
    char root[256], from[640], to[640];
    assert_non_null(getcwd(root, sizeof root));
    DIR *d = opendir(bundled);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, "retrieval.safetensors") == 0) continue;
        snprintf(from, sizeof from, "%s/%s/%s", root, bundled, e->d_name);
        snprintf(to, sizeof to, "%s/%s", folder->path, e->d_name);
        assert_int_equal(symlink(from, to), 0);
    }
    closedir(d);
}

static void add_matrix(tensor_file *f, test_rng *r, const char *name, uint64_t rows, uint64_t cols,
                       float scale)
{
    const size_t n = (rows ? rows : 1) * cols;
    float *values = cn_calloc(n, sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++) values[i] = rows ? test_rng_uniform(r) * scale : scale;
    tensor_file_add(f, name, "F32", rows, cols, values, n * sizeof *values);
    cn_free(values);
}

/* The tensors of a head, with the names of its file. */
static void add_head(tensor_file *f, const char *const *names, float states)
{
    test_rng r = {5};
    add_matrix(f, &r, names[0], 0, HIDDEN, 1);
    add_matrix(f, &r, names[1], HEADS * DIM, 2 * HIDDEN, 0.2f);
    add_matrix(f, &r, names[2], KV_HEADS * DIM, 2 * HIDDEN, 0.2f);
    add_matrix(f, &r, names[3], HIDDEN, 3 * HIDDEN, 0.1f);
    add_matrix(f, &r, names[4], 0, HIDDEN, states);
}

static void write_in(const scratch_dir *folder, tensor_file *f)
{
    char path[128];
    snprintf(path, sizeof path, "%s/retrieval.safetensors", folder->path);
    tensor_file_write(f, path);
    tensor_file_free(f);
}

void draft_head_write(const scratch_dir *folder, float states)
{
    static const char *const names[] = {"norm.weight", "q_proj.weight", "k_proj.weight",
                                        "fc.weight", "hidden_norm.weight"};
    tensor_file f = {0};
    uint64_t sum;
    assert_int_equal(cn_file_sum_weights(&sum, folder->path), CN_OK);
    assert_int_equal(cn_buf_addf(&f.header,
                                 "\"__metadata__\":{\"hidden_layers\":\"[1, 3, 5]\",\"head_dim\":"
                                 "\"%d\",\"rope_theta\":\"10000.0\",\"context\":\"8192\",\"base\":"
                                 "\"%016" PRIx64 "\"}",
                                 DIM, sum),
                     CN_OK);
    add_head(&f, names, states);
    write_in(folder, &f);
}

void draft_head_write_eagle(const scratch_dir *folder, float states)
{
    enum { VOCAB = 2048, DRAFT_VOCAB = 64, INTERMEDIATE = 16 };
    static const char *const names[] = {
        "midlayer.input_layernorm.weight", "midlayer.self_attn.q_proj.weight",
        "midlayer.self_attn.k_proj.weight", "fc.weight", "midlayer.hidden_norm.weight"};
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLMEagle3\"], \"hidden_size\": 384, \"vocab_size\": "
        "2048, \"draft_vocab_size\": 64, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 32, \"max_position_embeddings\": 8192, "
        "\"rope_theta\": 10000, \"rope_scaling\": null, \"eagle_config\": "
        "{\"eagle_aux_hidden_state_layer_ids\": [0, 2, 4]}}";
    static int64_t d2t[DRAFT_VOCAB];
    static char t2d[VOCAB];
    test_rng r = {9};
    tensor_file f = {0};
    for (int i = 0; i < DRAFT_VOCAB; i++) d2t[i] = i * (VOCAB / DRAFT_VOCAB - 1);
    tensor_file_add(&f, "d2t", "I64", 0, DRAFT_VOCAB, d2t, sizeof d2t);
    tensor_file_add(&f, "t2d", "BOOL", 0, VOCAB, t2d, sizeof t2d);
    add_head(&f, names, states);
    add_matrix(&f, &r, "midlayer.self_attn.v_proj.weight", KV_HEADS * DIM, 2 * HIDDEN, 1);
    add_matrix(&f, &r, "midlayer.self_attn.o_proj.weight", HIDDEN, HEADS * DIM, 1);
    add_matrix(&f, &r, "midlayer.mlp.gate_proj.weight", INTERMEDIATE, HIDDEN, 1);
    add_matrix(&f, &r, "midlayer.mlp.up_proj.weight", INTERMEDIATE, HIDDEN, 1);
    add_matrix(&f, &r, "midlayer.mlp.down_proj.weight", HIDDEN, INTERMEDIATE, 1);
    add_matrix(&f, &r, "midlayer.post_attention_layernorm.weight", 0, HIDDEN, 1);
    add_matrix(&f, &r, "norm.weight", 0, HIDDEN, 2);
    add_matrix(&f, &r, "lm_head.weight", DRAFT_VOCAB, HIDDEN, 1);
    write_in(folder, &f);
    scratch_dir_put(folder, "retrieval.json", config, sizeof config - 1);
}

void draft_head_open(scratch_dir *folder)
{
    scratch_dir_open(folder);
    link_model(folder);
    draft_head_write(folder, 1);
}
