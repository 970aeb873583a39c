/* linked_products.c - see linked_products.h. Arrays as in engine/ops.h, f32. */
#include "tests/lib/linked_products.h"

#include <math.h>

static cn_status (*cpu_gemm)(cn_stream *s, const cn_gemm_args *a);
static uint32_t n_linked;

/* The outputs of the first product are in link->scaled. */
static void add_row(const cn_norm_link *link, uint32_t t, uint32_t n)
{
    const uint32_t n_sums = n / CN_NORM_COLUMNS;
    float *residual = (float *)link->residual + (size_t)t * n;
    float *scaled = (float *)link->scaled + (size_t)t * n;
    float *squares = link->squares + (size_t)t * n_sums;
    for (uint32_t i = 0; i < n_sums; i++) squares[i] = 0;
    for (uint32_t i = 0; i < n; i++) {
        residual[i] += scaled[i];
        squares[i / CN_NORM_COLUMNS] += residual[i] * residual[i];
        scaled[i] = residual[i] * ((const float *)link->weight)[i];
    }
}

static void norm_row(const cn_gemm_args *a, uint32_t t)
{
    const uint32_t n_sums = a->k / CN_NORM_COLUMNS;
    const float *squares = a->norms->squares + (size_t)t * n_sums, *bias = a->bias;
    float *out = (float *)a->out + (size_t)t * a->n, sum = 0;
    for (uint32_t i = 0; i < n_sums; i++) sum += squares[i];
    const float rms = sqrtf(sum / (float)a->k + a->norms->eps);
    for (uint32_t i = 0; i < a->n; i++) out[i] = out[i] / rms + (bias ? bias[i] : 0);
}

static cn_status gemm(cn_stream *s, const cn_gemm_args *a)
{
    cn_gemm_args plain = *a;
    plain.adds = plain.norms = NULL;
    if (a->adds) plain.out = a->adds->scaled;
    if (a->norms) plain.bias = NULL; /* it is added after the norm */
    CN_ASSERT(!a->adds || !a->norms);
    CN_TRY(cpu_gemm(s, &plain));
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        if (a->adds) add_row(a->adds, t, a->n);
        if (a->norms) norm_row(a, t);
    }
    n_linked += a->norms != NULL;
    return CN_OK;
}

static bool links_norm(cn_backend *be, uint32_t n_tokens, const cn_product_shape *first,
                       const cn_product_shape *second)
{
    (void)be;
    CN_ASSERT(n_tokens > 0 && first->n == second->k);
    return first->n % CN_NORM_COLUMNS == 0;
}

void linked_products_open(cn_backend *linked, const cn_backend *cpu)
{
    *linked = *cpu;
    linked->gemm = gemm;
    linked->links_norm = links_norm;
    cpu_gemm = cpu->gemm;
    n_linked = 0;
}

uint32_t linked_products_count(void) { return n_linked; }
