/* overflow_model.c - see overflow_model.h. */
#include "tests/lib/overflow_model.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/checkpoint/safetensors.h"

#define SOURCE "examples/tiny-reasoner/"
#define SHARD "model-0000%d-of-00002.safetensors"
#define TENSOR "model.layers.1.self_attn.k_norm.weight"

/* Sets the tensor, BF16, to the largest finite value, if a safetensors image has it. */
static bool set_largest(cn_buf *image)
{
    static const unsigned char largest[2] = {0x7f, 0x7f};
    cn_safetensors *st;
    const cn_status status = cn_safetensors_open_image(&st, image->data, image->len, SOURCE);
    CN_ASSERT(status == CN_OK);
    const cn_st_tensor *t = cn_safetensors_find(st, TENSOR);
    char *data = t ? image->data + ((const char *)t->data - image->data) : NULL;
    for (uint64_t at = 0; t && at < t->n_bytes; at += sizeof largest)
        memcpy(data + at, largest, sizeof largest);
    cn_safetensors_close(st);
    return data != NULL;
}

static void copy(const scratch_dir *d, const char *name, uint32_t *n_set)
{
    char path[128];
    cn_buf file = {0};
    snprintf(path, sizeof path, SOURCE "%s", name);
    const cn_status status = cn_json_read_file(&file, path, (size_t)1 << 25);
    CN_ASSERT(status == CN_OK);
    if (n_set) *n_set += set_largest(&file);
    scratch_dir_put(d, name, file.data, file.len);
    cn_buf_free(&file);
}

void overflow_model_open(scratch_dir *d)
{
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json", "model.safetensors.index.json"};
    uint32_t n_set = 0;
    scratch_dir_open(d);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) copy(d, names[i], NULL);
    for (int i = 1; i <= 2; i++) {
        char name[64];
        snprintf(name, sizeof name, SHARD, i);
        copy(d, name, &n_set);
    }
    CN_ASSERT(n_set == 1);
}
