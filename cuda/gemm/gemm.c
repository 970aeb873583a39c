/* gemm.c - the ops gemm and gemm_silu_mul: the table of plans, and products by cuBLASLt.
 *
 * out [T,N] = x [T,K] * weight [N,K]^T, row-major. cuBLASLt is column-major, so it computes
 * out^T [N,T] = weight^T(K,N)^T * x^T(K,T). This is its form "TN", the fastest one, and needs no
 * copy. With cuBLASLt, gemm_silu_mul is a product followed by silu_mul. */
#include "cuda/gemm/gemm.h"

#include "cuda/gemm/gemm_fp8.h"

const uint32_t cn_gemm_buckets[CN_GEMM_BUCKETS] = {
    1,   2,   4,   8,   16,  24,  32,  48,  64,   80,   96,   112,  128,  144,  160,  168,
    176, 192, 208, 224, 240, 256, 288, 320, 384,  448,  512,  640,  768,  1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384,
};

uint32_t cn_gemm_bucket(uint32_t n_tokens)
{
    uint32_t i = 0;
    while (i + 1 < CN_GEMM_BUCKETS && cn_gemm_buckets[i] < n_tokens) i++;
    return i;
}

static bool same_shape(cn_gemm_shape a, cn_gemm_shape b)
{
    return a.n == b.n && a.k == b.k && a.out_f32 == b.out_f32 && a.has_bias == b.has_bias &&
           a.gated == b.gated && a.fp8 == b.fp8;
}

cn_gemm_entry *cn_gemm_find(cn_cuda_gemm_state *g, cn_gemm_shape shape)
{
    for (uint32_t i = 0; i < g->n_entries; i++)
        if (same_shape(g->entries[i].shape, shape)) return &g->entries[i];
    if (g->n_entries == CN_GEMM_MAX_SHAPES) return NULL;
    cn_gemm_entry *e = &g->entries[g->n_entries++];
    e->shape = shape;
    return e;
}

/* ---- cuBLASLt ---- */

static cn_status library_failed(cublasStatus_t status, const char *what)
{
    return cn_fail(CN_ERR_DEVICE,
                   "cuBLASLt error %d in %s: install the CUDA 13 libraries that fit the driver, or "
                   "use --device cpu",
                   (int)status, what);
}

#define LIBRARY(call)                                                                              \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) return library_failed(status_, #call);               \
    } while (0)

/* A product as cuBLASLt describes it. Plain values; nothing must be freed. */
typedef struct library_problem {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t weight, x, out;
} library_problem;

static cn_status set_scales(library_problem *p, cn_gemm_fp8 form, const float *of_weight,
                            const float *of_x)
{
    const bool blocks = form == CN_GEMM_FP8_BLOCKS;
    const struct {
        cublasLtMatmulDescAttributes_t mode_name, scales_name;
        int32_t mode;
        const float *scales;
    } sides[] = {{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                  blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                         : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                  of_weight},
                 {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                  CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, of_x}};
    for (int i = 0; i < 2; i++) {
        LIBRARY(cublasLtMatmulDescSetAttribute(&p->product, sides[i].mode_name, &sides[i].mode,
                                               sizeof sides[i].mode));
        LIBRARY(cublasLtMatmulDescSetAttribute(&p->product, sides[i].scales_name, &sides[i].scales,
                                               sizeof sides[i].scales));
    }
    return CN_OK;
}

static cn_status describe(library_problem *p, cn_gemm_shape shape, uint32_t n_tokens,
                          const void *bias)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t in_type = shape.fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    const cudaDataType_t out_type = shape.out_f32 ? CUDA_R_32F : CUDA_R_16BF;
    LIBRARY(cublasLtMatmulDescInit(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LIBRARY(cublasLtMatmulDescSetAttribute(&p->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed));
    LIBRARY(cublasLtMatrixLayoutInit(&p->weight, in_type, shape.k, shape.n, shape.k));
    LIBRARY(cublasLtMatrixLayoutInit(&p->x, in_type, shape.k, n_tokens, shape.k));
    LIBRARY(cublasLtMatrixLayoutInit(&p->out, out_type, shape.n, n_tokens, shape.n));
    if (!shape.has_bias) return CN_OK;
    const cublasLtEpilogue_t add_bias = CUBLASLT_EPILOGUE_BIAS;
    LIBRARY(cublasLtMatmulDescSetAttribute(&p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &add_bias,
                                           sizeof add_bias));
    LIBRARY(cublasLtMatmulDescSetAttribute(&p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                           sizeof bias));
    return CN_OK;
}

/* With batch_invariant no algorithm may split the sum of a row, because the split depends on the
 * batch. */
static cn_status set_preference(cublasLtMatmulPreferenceOpaque_t *p, bool batch_invariant,
                                size_t scratch_bytes)
{
    const uint32_t align_bytes = 16, no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    LIBRARY(cublasLtMatmulPreferenceInit(p));
    LIBRARY(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &scratch_bytes, sizeof scratch_bytes));
    for (size_t i = 0; i < sizeof aligned / sizeof *aligned; i++)
        LIBRARY(cublasLtMatmulPreferenceSetAttribute(p, aligned[i], &align_bytes,
                                                     sizeof align_bytes));
    if (batch_invariant)
        LIBRARY(cublasLtMatmulPreferenceSetAttribute(
            p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof no_reduction));
    return CN_OK;
}

size_t cn_gemm_scratch_bytes(cn_gemm_shape shape)
{
    const size_t scales = (size_t)shape.n * (shape.k / CN_FP8_COLUMNS) * sizeof(float);
    const size_t spread = shape.fp8 == CN_GEMM_FP8_ROWS ? cn_round_up(scales, 256) : 0;
    CN_ASSERT(spread < CN_CUDA_GEMM_SCRATCH_BYTES);
    return CN_CUDA_GEMM_SCRATCH_BYTES - spread;
}

/* Describes a product whose arrays are not known yet. */
static cn_status describe_any(const cn_cuda *c, library_problem *p, cn_gemm_shape shape,
                              uint32_t n_tokens)
{
    const float *scales = (const float *)c->arena.base;
    CN_TRY(describe(p, shape, n_tokens, shape.has_bias ? c->arena.base : NULL));
    return shape.fp8 ? set_scales(p, shape.fp8, scales, scales) : CN_OK;
}

enum { MAX_PROPOSALS = 32 };

cn_status cn_gemm_propose(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens, cn_gemm_plan *plans,
                          uint32_t most, uint32_t *n)
{
    library_problem p;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t results[MAX_PROPOSALS];
    int n_results = 0;
    *n = 0;
    CN_ASSERT(most <= MAX_PROPOSALS);
    CN_TRY(describe_any(c, &p, shape, n_tokens));
    CN_TRY(set_preference(&preference, c->opts.batch_invariant, cn_gemm_scratch_bytes(shape)));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        c->gemm->library, &p.product, &p.weight, &p.x, &p.out, &p.out, &preference, (int)most,
        results, &n_results);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return CN_OK;
    if (status != CUBLAS_STATUS_SUCCESS) return library_failed(status, "choosing an algorithm");
    for (int i = 0; i < n_results; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
        plans[(*n)++] =
            (cn_gemm_plan){.kind = CN_GEMM_LIBRARY, .algorithm = results[i].algo};
    }
    return CN_OK;
}

bool cn_gemm_library_accepts(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                             const cn_gemm_plan *plan)
{
    library_problem p;
    cublasLtMatmulHeuristicResult_t result;
    if (describe_any(c, &p, shape, n_tokens) != CN_OK) return false;
    return cublasLtMatmulAlgoCheck(c->gemm->library, &p.product, &p.weight, &p.x, &p.out, &p.out,
                                   &plan->algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= cn_gemm_scratch_bytes(shape);
}

/* ---- the op ---- */

static cn_status run_library(cn_stream *s, const cn_gemm_call *call,
                             const cublasLtMatmulAlgo_t *algorithm)
{
    library_problem p;
    const float one = 1.0f, zero = 0.0f;
    void *out = call->shape.gated ? call->gate_up : call->out;
    CN_ASSERT(s->gemm_scratch);
    CN_TRY(describe(&p, call->shape, call->n_tokens, call->bias));
    if (call->shape.fp8)
        CN_TRY(set_scales(&p, call->shape.fp8, call->weight_scales, call->x_scales));
    cublasStatus_t status =
        cublasLtMatmul(s->cuda->gemm->library, &p.product, &one, call->weight, &p.weight, call->x,
                       &p.x, &zero, out, &p.out, out, &p.out, algorithm, s->gemm_scratch,
                       cn_gemm_scratch_bytes(call->shape), s->handle);
    return status == CUBLAS_STATUS_SUCCESS ? CN_OK : library_failed(status, "a matrix product");
}

cn_status cn_gemm_run(cn_stream *s, const cn_gemm_call *call, const cn_gemm_plan *plan)
{
    if (plan->kind == CN_GEMM_SKINNY) return cn_gemm_skinny_run(s, call, plan->skinny);
    CN_ASSERT(!call->adds && !call->norms);
    CN_TRY(run_library(s, call, &plan->algorithm));
    if (!call->shape.gated) return CN_OK;
    const cn_silu_mul_args gate = {call->out, call->gate_up, call->n_tokens, call->shape.n / 2};
    return cn_cuda_silu_mul(s, &gate);
}

static cn_status no_plan(cn_gemm_shape shape, uint32_t n_tokens)
{
    return cn_fail(CN_ERR_SHAPE, "gemm: cuBLASLt has no algorithm for %u x %u x %u", n_tokens,
                   shape.n, shape.k);
}

/* Plans the library's first algorithm; with batch_invariant, the first one that supports all batch
 * sizes. */
static cn_status plan_library(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                              cn_gemm_plan *plan)
{
    enum { INVARIANT_TOKENS = 128, MOST = 16 };
    cn_gemm_plan plans[MOST];
    uint32_t n = 0, rows = c->opts.batch_invariant ? INVARIANT_TOKENS : n_tokens;
    CN_TRY(cn_gemm_propose(c, shape, rows, plans, MOST, &n));
    for (uint32_t i = 0; i < n; i++) {
        bool fits = true;
        for (uint32_t b = 0; c->opts.batch_invariant && b < CN_GEMM_BUCKETS; b++)
            fits = fits && cn_gemm_library_accepts(c, shape, cn_gemm_buckets[b], &plans[i]);
        if (!fits) continue;
        *plan = plans[i];
        return CN_OK;
    }
    return no_plan(shape, n_tokens);
}

/* Plans an own kernel. Returns false when none fits. */
static bool plan_own(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens, cn_gemm_plan *plan)
{
    if (c->opts.batch_invariant || shape.fp8) return false;
    plan->skinny = cn_gemm_skinny_default(c, shape, n_tokens);
    if (plan->skinny.rows) plan->kind = CN_GEMM_SKINNY;
    return plan->kind == CN_GEMM_SKINNY;
}

/* Without an algorithm of the library an own kernel multiplies, if one fits. */
static cn_status plan_untimed(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                              cn_gemm_plan *plan)
{
    if (c->switches.gemm == CN_CUDA_GEMM_OWN && plan_own(c, shape, n_tokens, plan)) return CN_OK;
    const cn_status status = plan_library(c, shape, n_tokens, plan);
    if (status != CN_ERR_SHAPE || plan_own(c, shape, n_tokens, plan))
        return status == CN_ERR_SHAPE ? CN_OK : status;
    plan->kind = CN_GEMM_NONE;
    return status;
}

/* Copies the plan of the product without the bias, which was timed at start (gemm_tune.c). Returns
 * false when there is none, or when the library cannot add a bias with it. */
static bool plan_as_unbiased(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                             cn_gemm_plan *plan)
{
    cn_gemm_shape without = shape;
    without.has_bias = false;
    const cn_gemm_entry *e = shape.has_bias ? cn_gemm_find(c->gemm, without) : NULL;
    const cn_gemm_plan *timed = e ? &e->plans[cn_gemm_bucket(n_tokens)] : NULL;
    if (!timed || timed->kind == CN_GEMM_UNPLANNED || timed->kind == CN_GEMM_NONE) return false;
    if (timed->kind == CN_GEMM_LIBRARY && !cn_gemm_library_accepts(c, shape, n_tokens, timed))
        return false;
    *plan = *timed;
    return true;
}

static cn_status check_call(const cn_gemm_call *c)
{
    const cn_gemm_shape *s = &c->shape;
    if (s->n == 0 || s->k == 0)
        return cn_fail(CN_ERR_SHAPE, "gemm: weight of shape [%u, %u]: expected both above 0", s->n,
                       s->k);
    if (s->k % 8 != 0)
        return cn_fail(CN_ERR_SHAPE, "gemm: k of %u: expected a multiple of 8", s->k);
    if (s->has_bias && s->out_f32)
        return cn_fail(CN_ERR_SHAPE, "gemm: a bias with an f32 output is not supported");
    /* Of links cn_cuda_links_norm has said so. */
    CN_ASSERT(!c->adds || (!c->norms && !s->out_f32 && !s->gated));
    CN_ASSERT((!c->adds && !c->norms) || c->n_tokens <= CN_GEMM_MAX_LINK);
    CN_ASSERT((c->adds ? s->n : c->norms ? s->k : 0) % CN_GEMM_LINK_COLUMNS == 0);
    return CN_OK;
}

/* A plan is known to support the most rows of its bucket. If it does not support fewer rows, it
 * fails before anything is launched, and the library's choice for that number of rows is used. The
 * library has no links; cn_cuda_links_norm has checked the rows of those. */
static cn_status run_or_replan(cn_stream *s, const cn_gemm_call *call, const cn_gemm_plan *plan)
{
    cn_cuda *c = s->cuda;
    const cn_status status = cn_gemm_run(s, call, plan);
    if (status == CN_OK || c->opts.batch_invariant || call->adds || call->norms) return status;
    cn_log(CN_LOG_DEBUG, "gemm %u x %u, %u rows: planned again", call->shape.n, call->shape.k,
           call->n_tokens);
    cn_gemm_plan other = {.kind = CN_GEMM_UNPLANNED};
    CN_TRY(plan_untimed(c, call->shape, call->n_tokens, &other));
    return cn_gemm_run(s, call, &other);
}

/* *out = the plan of a product: that of the table, or *once if the table is full. A plan is made
 * for the most rows of its bucket, so that it does not depend on the order of calls. */
static cn_status plan_of(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens, cn_gemm_plan *once,
                         const cn_gemm_plan **out)
{
    const uint32_t bucket = cn_gemm_bucket(n_tokens);
    const uint32_t most = cn_max_u32(n_tokens, cn_gemm_buckets[bucket]);
    cn_gemm_entry *e = cn_gemm_find(c->gemm, shape);
    cn_gemm_plan *plan = e ? &e->plans[bucket] : once;
    *once = (cn_gemm_plan){.kind = CN_GEMM_UNPLANNED};
    *out = plan;
    if (plan->kind == CN_GEMM_NONE) return no_plan(shape, most);
    if (plan->kind != CN_GEMM_UNPLANNED || plan_as_unbiased(c, shape, most, plan)) return CN_OK;
    return plan_untimed(c, shape, most, plan);
}

cn_status cn_gemm_run_planned(cn_stream *s, const cn_gemm_call *call)
{
    cn_gemm_plan once;
    const cn_gemm_plan *plan;
    CN_TRY(check_call(call));
    if (call->n_tokens == 0) return CN_OK;
    CN_TRY(plan_of(s->cuda, call->shape, call->n_tokens, &once, &plan));
    return run_or_replan(s, call, plan);
}

bool cn_gemm_has_plan(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens)
{
    cn_gemm_plan once;
    const cn_gemm_plan *plan;
    return plan_of(c, shape, n_tokens, &once, &plan) == CN_OK;
}

bool cn_gemm_links(cn_gemm_shape first, const cn_gemm_plan *first_plan, cn_gemm_shape second,
                   const cn_gemm_plan *second_plan, uint32_t n_tokens)
{
    return first_plan->kind == CN_GEMM_SKINNY && second_plan->kind == CN_GEMM_SKINNY &&
           n_tokens <= CN_GEMM_MAX_LINK && first.n == second.k && !first.gated &&
           first.n % CN_GEMM_LINK_COLUMNS == 0;
}

bool cn_cuda_links_norm(cn_cuda *c, uint32_t n_tokens, const cn_product_shape *first,
                        const cn_product_shape *second)
{
    const cn_product_shape *const products[] = {first, second};
    cn_gemm_shape shapes[2];
    cn_gemm_plan once[2];
    const cn_gemm_plan *plans[2];
    if (n_tokens == 0 || n_tokens > CN_GEMM_MAX_LINK) return false;
    for (int i = 0; i < 2; i++) {
        const cn_product_shape *p = products[i];
        shapes[i] = (cn_gemm_shape){
            .n = p->n, .k = p->k, .has_bias = p->has_bias, .gated = p->gated};
        if (plan_of(c, shapes[i], n_tokens, &once[i], &plans[i]) != CN_OK) return false;
        /* The plan of a bucket need not fit fewer rows. */
        if (plans[i]->kind == CN_GEMM_SKINNY &&
            !cn_gemm_skinny_fits(c, shapes[i], n_tokens, plans[i]->skinny))
            return false;
    }
    return cn_gemm_links(shapes[0], plans[0], shapes[1], plans[1], n_tokens);
}

static cn_status run_form(cn_stream *s, const cn_gemm_call *call, const cn_matrix *weight,
                          void *rounded)
{
    return weight->form == CN_MATRIX_FP8 ? cn_gemm_fp8_run(s, call, weight, rounded)
                                         : cn_gemm_run_planned(s, call);
}

cn_status cn_cuda_gemm(cn_stream *s, const cn_gemm_args *a)
{
    const cn_gemm_call call = {
        .shape = {.n = a->n, .k = a->k, .out_f32 = a->out_f32, .has_bias = a->bias != NULL},
        .out = a->out,
        .x = a->x,
        .weight = a->weight.data,
        .bias = a->bias,
        .n_tokens = a->n_tokens,
        .adds = a->adds,
        .norms = a->norms,
    };
    if (a->out_stride > 0)
        return cn_fail(CN_ERR_SHAPE, "gemm: a stride of %u between rows of out", a->out_stride);
    return run_form(s, &call, &a->weight, a->rounded);
}

cn_status cn_cuda_gemm_silu_mul(cn_stream *s, const cn_gemm_silu_mul_args *a)
{
    const cn_gemm_call call = {
        .shape = {.n = 2 * a->intermediate, .k = a->k, .gated = true},
        .out = a->out,
        .x = a->x,
        .weight = a->weight.data,
        .gate_up = a->gate_up,
        .n_tokens = a->n_tokens,
        .norms = a->norms,
    };
    return run_form(s, &call, &a->weight, a->rounded);
}

/* ---- opening and closing ---- */

cn_status cn_cuda_gemm_open(cn_cuda *c)
{
    c->gemm = cn_calloc(1, sizeof *c->gemm);
    if (!c->gemm) return cn_fail(CN_ERR_MEMORY, "out of memory for the plans of matrix products");
    LIBRARY(cublasLtCreate(&c->gemm->library));
    CN_TRY(cn_gemm_skinny_open(c));
    CN_TRY(cn_gemm_fp8_open(c));
    return cn_gemm_tune(c);
}

void cn_cuda_gemm_close(cn_cuda *c)
{
    if (c->gemm && c->gemm->library) cublasLtDestroy(c->gemm->library);
    cn_free(c->gemm);
}
