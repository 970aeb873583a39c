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

void draft_head_open(scratch_dir *folder)
{
    scratch_dir_open(folder);
    link_model(folder);
    draft_head_write(folder, 1);
}
