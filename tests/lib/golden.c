/* golden.c - see golden.h. Golden figures are stored as safetensors files. */
#include "tests/lib/golden.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/safetensors.h"

const char *const golden_models[] = {
    "qwen3-bf16", "qwen3-d80-f32",     "qwen3-d256-yarn-bf16", "qwen2-f16", "qwen2-tied-bf16",
    "llama-f32",  "llama-llama3-bf16", "llama-yarn-bias-f16",  "mistral-bf16",
    "qwen3-moe-bf16", "qwen3-moe-fused-f32", "glm4-moe-bf16", "glm4-moe-plain-f32",
    "deepseek-v2-moe-bf16", "deepseek-v2-moe-groups-f32", "deepseek-v3-moe-bf16",
    "deepseek-v3-moe-halves-f32", "glm4-lite-moe-bf16", "llama-ranks-bf16",
    NULL,
};

struct golden {
    void *image; /* the whole file; aligned, so its tensors are aligned too */
    cn_safetensors *tensors;
};

static void broken(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

static void broken(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

golden *golden_open(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "tests/golden/models/%s/golden.safetensors", name);
    FILE *f = fopen(path, "rb");
    if (!f) broken("%s: cannot open: run the test in the root of the tree", path);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    rewind(f);
    golden *g = cn_calloc(1, sizeof *g);
    if (g) g->image = cn_calloc_aligned(size, 1);
    if (!g || !g->image || fread(g->image, 1, size, f) != size) broken("%s: cannot read", path);
    fclose(f);
    if (cn_safetensors_open_image(&g->tensors, g->image, size, path) != CN_OK)
        broken("%s", cn_last_error());
    return g;
}

void golden_close(golden *g)
{
    cn_safetensors_close(g->tensors);
    cn_free(g->image);
    cn_free(g);
}

static const cn_st_tensor *find(const golden *g, const char *name, cn_st_dtype dtype)
{
    const cn_st_tensor *t = cn_safetensors_find(g->tensors, name);
    if (!t || t->dtype != dtype || t->n_dims < 1 || t->n_dims > 2 || (uintptr_t)t->data % 4 != 0)
        broken("no golden tensor %s of type %s", name, cn_st_dtype_name(dtype));
    return t;
}

const uint32_t *golden_u32(const golden *g, const char *tensor, size_t *n)
{
    const cn_st_tensor *t = find(g, tensor, CN_ST_I32);
    *n = (size_t)t->shape[0];
    return t->data;
}

const float *golden_f32(const golden *g, const char *tensor, size_t *rows, size_t *cols)
{
    const cn_st_tensor *t = find(g, tensor, CN_ST_F32);
    *rows = t->n_dims == 2 ? (size_t)t->shape[0] : 1;
    *cols = (size_t)t->shape[t->n_dims - 1];
    return t->data;
}

double golden_max_diff(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double diff = fabs((double)a[i] - (double)b[i]);
        if (!(diff <= worst)) worst = isnan(diff) ? (double)INFINITY : diff;
    }
    return worst;
}
