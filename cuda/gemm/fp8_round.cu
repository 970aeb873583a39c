/* fp8_round.cu - rounds the input of an FP8 product to e4m3 (cn_x_form).
 * codes [T,Kp] e4m3 and scales [Kp / 128, stride] f32 of x [T,K] bf16; K a multiple of 8, Kp that
 * of 128 above it. Sixteen lanes have 128 columns of a row. Grid (T, Kp / 2048), or T for scales of
 * rows, whose blocks have a row. A scale of a row, or of all of x, is stored for each 128 columns.
 * Bytes moved: 3*T*K, and x once more from the cache for scales of rows. CPU version: round_row in
 * cpu_gemm.c. */
#include "cuda/fp8_round.h"
#include "cuda/gemm/fp8_codes.cuh"
#include "cuda/launch.cuh"

enum { WARPS = 8, UNIT = CN_FP8_COLUMNS / CN_VEC8, UNITS = WARPS * CN_WARP / UNIT };

typedef struct round_params {
    uint2 *codes; /* eight values each */
    float *scales;
    const uint4 *x; /* eight values each */
    uint32_t n_groups, stride;
    uint32_t n_eights; /* of a row of x */
    float x_scale;
    const uint32_t *rows;
} round_params;

__device__ static inline uint32_t unit_max(uint32_t v)
{
#pragma unroll
    for (int offset = UNIT / 2; offset > 0; offset /= 2)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}

/* The largest size of the block's row x. */
__device__ static inline uint32_t row_max(const uint4 *x, uint32_t n_eights)
{
    __shared__ uint32_t shared[WARPS];
    uint32_t largest = 0;
    for (uint32_t i = threadIdx.x; i < n_eights; i += blockDim.x)
        largest = max(largest, cn_fp8_largest8(x[i]));
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % CN_WARP == 0) shared[threadIdx.x / CN_WARP] = largest;
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, shared[threadIdx.x % WARPS]);
}

template <cn_x_form FORM, bool GATHERS>
__global__ static void __launch_bounds__(WARPS *CN_WARP) round_kernel(const round_params p)
{
    const uint32_t half = threadIdx.x % CN_WARP / UNIT, lane = threadIdx.x % UNIT;
    const uint4 *x = p.x + (GATHERS ? 0 : (size_t)blockIdx.x * p.n_eights);
    uint2 *codes = p.codes + (size_t)blockIdx.x * p.n_groups * UNIT;
    float scale = p.x_scale;
    cn_overlap_next();
    cn_wait_previous();
    if (GATHERS) x += (size_t)__ldcg(p.rows + blockIdx.x) * p.n_eights;
    if (FORM == CN_X_ROWS) scale = cn_fp8_x_scale(row_max(x, p.n_eights));
    for (uint32_t pair = blockIdx.y * UNITS + threadIdx.x / CN_WARP * 2; pair < p.n_groups;
         pair += gridDim.y * UNITS) {
        const uint32_t group = pair + half, eight = group * UNIT + lane;
        const uint4 bits = eight < p.n_eights ? x[eight] : make_uint4(0, 0, 0, 0);
        if (FORM == CN_X_BLOCKS) scale = cn_fp8_x_scale(unit_max(cn_fp8_largest8(bits)));
        if (group >= p.n_groups) continue;
        codes[eight] = cn_fp8_codes8(bits, scale);
        if (lane == 0) p.scales[(size_t)group * p.stride + blockIdx.x] = scale;
    }
}

/* Grid (n / 256, groups). cols: of scales; 1: a row has one. */
__global__ static void spread_kernel(float *out, const float *scales, uint32_t n, uint32_t scale_n,
                                     uint32_t cols)
{
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x, group = blockIdx.y;
    cn_overlap_next();
    cn_wait_previous();
    if (row < n)
        out[(size_t)group * n + row] =
            scales[(size_t)(row / scale_n) * cols + (cols > 1 ? group : 0)];
}

extern "C" cn_status cn_fp8_spread_scales(cn_stream *s, float *out, const cn_matrix *w, uint32_t n)
{
    const uint32_t n_groups = w->stride / CN_FP8_COLUMNS, threads = WARPS * CN_WARP;
    const uint32_t cols = w->scale_k == CN_FP8_COLUMNS ? n_groups : 1;
    const cn_launch how = {dim3((uint32_t)cn_ceil_div(n, threads), n_groups), threads};
    return cn_cuda_launch(s, "gemm", spread_kernel, how, out, w->scales, n, w->scale_n, cols);
}

template <cn_x_form FORM>
static cn_status launch_round(cn_stream *s, const cn_launch &how, const round_params &p)
{
    return p.rows ? cn_cuda_launch(s, "gemm", round_kernel<FORM, true>, how, p)
                  : cn_cuda_launch(s, "gemm", round_kernel<FORM, false>, how, p);
}

extern "C" cn_status cn_fp8_round(cn_stream *s, const cn_fp8_rounding *r)
{
    const uint32_t n_groups = (uint32_t)cn_ceil_div(r->k, CN_FP8_COLUMNS);
    const round_params p = {(uint2 *)r->codes, r->scales,      (const uint4 *)r->x, n_groups,
                            r->stride,         r->k / CN_VEC8, r->x_scale,          r->rows};
    const uint32_t parts = r->form == CN_X_ROWS ? 1 : (uint32_t)cn_ceil_div(n_groups, UNITS);
    const cn_launch how = {dim3(r->n_tokens, parts), WARPS * CN_WARP};
    CN_ASSERT(r->k % CN_VEC8 == 0);
    switch (r->form) {
    case CN_X_BLOCKS: return launch_round<CN_X_BLOCKS>(s, how, p);
    case CN_X_ROWS: return launch_round<CN_X_ROWS>(s, how, p);
    case CN_X_STATIC: return launch_round<CN_X_STATIC>(s, how, p);
    default: return cn_fail(CN_ERR_SHAPE, "gemm: FP8 weights need inputs in e4m3 on a GPU");
    }
}
