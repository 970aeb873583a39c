/* fuzz_safetensors.c - feeds hostile shards, and hostile indexes of two valid shards (an input that
 * starts with '{'). Must hold: no crash; the tensors of an accepted file are inside the file, do
 * not overlap, have the bytes of their shape, and can be read to the end. */
#include <string.h>

#include "engine/checkpoint/safetensors.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/tensor_file.h"

static char folder[64], index_path[128];

static uint64_t shape_elems(const cn_st_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

static void check_tensors(const cn_safetensors *s, const uint8_t *data, size_t size)
{
    uint64_t total = 0;
    volatile uint8_t touched = 0; /* a sanitizer reports reads outside the file */
    for (size_t i = 0; i < cn_safetensors_count(s); i++) {
        const cn_st_tensor *t = cn_safetensors_at(s, i);
        const uint8_t *p = t->data;
        FUZZ_CHECK(t->n_bytes % (shape_elems(t) ? shape_elems(t) : 1) == 0);
        FUZZ_CHECK((shape_elems(t) == 0) == (t->n_bytes == 0));
        FUZZ_CHECK(cn_safetensors_find(s, t->name) == t);
        if (data) FUZZ_CHECK(p >= data && p + t->n_bytes <= data + size);
        for (uint64_t k = 0; k < t->n_bytes; k++) touched = (uint8_t)(touched ^ p[k]);
        total += t->n_bytes;
    }
    /* The tensors do not overlap, so their sizes cannot exceed the size of the data. */
    if (data) FUZZ_CHECK(total <= size);
}

static void run(const uint8_t *data, size_t size)
{
    cn_safetensors *s;
    bool is_index = size && data[0] == '{';
    cn_status status;
    if (is_index) {
        write_file(index_path, data, size);
        status = cn_safetensors_open(&s, folder);
    } else {
        status = cn_safetensors_open_image(&s, data, size, "in");
    }
    if (status == CN_OK) {
        check_tensors(s, is_index ? NULL : data, size);
        cn_safetensors_close(s);
    } else {
        FUZZ_CHECK(!s && (status == CN_ERR_MODEL || (is_index && status == CN_ERR_IO)));
    }
}

static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"F32\"",
    "\"BF16\"",
    "\"I64\"",
    "\"__metadata__\":{},",
    "\"data_offsets\":[0,0]",
    "\"shape\":[]",
    "\"shape\":[4294967296,4294967296]",
    "\xff",
    "\"1.safetensors\"",
    "\"../1.safetensors\"",
    "\"weight_map\":",
    "\"b\":\"1.safetensors\"",
    "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},",
    "\\u0000",
    "1e3",
};

/* Makes a file of three tensors with different dtypes. `tensor` names the first. */
static void make_image(cn_buf *image, const char *tensor)
{
    const uint16_t halves[6] = {1, 2, 3, 4, 5, 6};
    const float ones[2] = {1, 1};
    tensor_file f = {0};
    tensor_file_add(&f, tensor, "BF16", 2, 3, halves, sizeof halves);
    tensor_file_add(&f, "model.norm.weight", "F32", 0, 2, ones, sizeof ones);
    tensor_file_add(&f, "none", "I64", 0, 0, NULL, 0);
    tensor_file_image(&f, image);
    tensor_file_free(&f);
}

int main(int argc, char **argv)
{
    static const char index[] = "{\"metadata\":{\"total_size\":8},\"weight_map\":"
                                "{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
    const float one = 1;
    cn_buf image = {0};
    char path[128];
    make_folder(folder);
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", folder);
    for (int i = 0; i < 2; i++) {
        tensor_file f = {0};
        tensor_file_add(&f, i ? "b" : "a", "F32", 0, 1, &one, sizeof one);
        snprintf(path, sizeof path, "%s/%d.safetensors", folder, i + 1);
        tensor_file_write(&f, path);
        tensor_file_free(&f);
    }
    make_image(&image, "model.embed_tokens.weight");
    const fuzz_input corpus[] = {{image.data, image.len}, {index, sizeof index - 1}};
    const fuzz_target target = {
        .name = "safetensors",
        .run = run,
        .corpus = corpus,
        .n_corpus = 2,
        .words = words,
        .n_words = sizeof words / sizeof *words,
    };
    int status = fuzz_main(argc, argv, &target);
    cn_buf_free(&image);
    remove_folder(folder);
    return status;
}
