/* attn_common.cuh - code that the attention kernels share: the address of a slot's key in the pool,
 * tiles of keys and values in shared memory, the copies that fill them, tensor-core fragments, and
 * the checks and parameters of launchers.
 *
 * A tile in shared memory is [D / 64 boxes][rows][64] bf16. In a box a row is 128 bytes and its
 * eight 16-byte chunks are permuted: chunk c of row r is at c ^ (r % 8). This is the 128-byte
 * swizzle of tensor maps and of wgmma, so bulk copies, cp.async and both kinds of matrix
 * instructions can use it. The eight rows that an ldmatrix reads are in different banks. Columns
 * from head_dim to D hold zeros. A box starts at a multiple of 1,024 bytes. */
#pragma once

#include <math_constants.h>

#include "cuda/barrier.cuh"
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.h"
#include "cuda/util.cuh"

enum { CN_ATTN_MAX_HEAD_DIM = 256, CN_CHUNK_BYTES = 16 };

#define CN_LOG2E 1.44269504088896340736f

/* ---- the pool ---- */

/* The pool as kernels address it: in rows of head_dim elements (cn_kv_rows). */
typedef struct cn_attn_pool {
    const cn_bf16 *kv;
    const uint32_t *tables;
    uint32_t table_stride;
    uint32_t n_kv_heads, head_dim;
    cn_kv_rows rows;
    uint32_t layer_row; /* the first row of the layer */
    uint32_t block_shift, tile_shift; /* log2 of block_tokens, tile_tokens */
    uint32_t layer;
    cn_fp8_pool fp8; /* rows in eight bits; then kv, rows and layer_row are not set */
} cn_attn_pool;

/* Returns the row of the key of slot `slot`. The value of the slot is rows.value rows later. */
__device__ static inline uint32_t cn_key_row(const cn_attn_pool &p, uint32_t seq, uint32_t head,
                                             uint32_t slot)
{
    const uint32_t block = __ldg(p.tables + (size_t)seq * p.table_stride + (slot >> p.block_shift));
    const uint32_t in_block = slot & ((1u << p.block_shift) - 1);
    return p.layer_row + block * p.rows.block + head * p.rows.head +
           (in_block >> p.tile_shift) * p.rows.tile + (in_block & ((1u << p.tile_shift) - 1));
}

/* Returns block * block_tokens + slot in the block, for slot `slot` of a sequence. */
__device__ static inline uint32_t cn_pool_slot(const cn_attn_pool &p, uint32_t seq, uint32_t slot)
{
    const uint32_t block = __ldg(p.tables + (size_t)seq * p.table_stride + (slot >> p.block_shift));
    return (block << p.block_shift) + (slot & ((1u << p.block_shift) - 1));
}

/* Returns the rows in eight bits of slot `slot`. */
__device__ static inline cn_fp8_rows cn_fp8_rows_of(const cn_attn_pool &p, uint32_t seq,
                                                    uint32_t head, uint32_t slot)
{
    const uint32_t at = cn_pool_slot(p, seq, slot), shift = p.block_shift;
    return cn_fp8_rows_at(p.fp8, p.layer, at >> shift, head, at & ((1u << shift) - 1));
}

/* ---- shared memory ---- */

/* Returns the byte offset of 16-byte chunk `chunk` of row `row` in a tile of `rows` rows. */
__device__ static inline uint32_t cn_chunk_at(uint32_t rows, uint32_t row, uint32_t chunk)
{
    return (chunk / 8 * rows + row) * CN_ROW_BYTES + ((chunk % 8) ^ (row % 8)) * CN_CHUNK_BYTES;
}

/* ---- fragments ---- */

__device__ static inline void cn_ldmatrix(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void cn_ldmatrix_transposed(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Transposes an 8x8 matrix of bf16 spread over a warp. */
__device__ static inline uint32_t cn_movmatrix(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* c[16,8] += a[16,16] * b[16,8] */
__device__ static inline void cn_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ static inline float cn_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline uint4 cn_shared_load16(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

__device__ static inline void cn_shared_store16(uint32_t at, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

__device__ static inline uint2 cn_shared_load8(uint32_t at)
{
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
    return x;
}

/* ---- cp.async ---- */

/* Copies 16 bytes to shared memory; writes zeros when not valid. */
__device__ static inline void cn_copy16(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* The same copy of data that is read once. It leaves the L2 cache first. */
__device__ static inline void cn_copy16_once(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(valid ? 16 : 0), "l"(CN_CACHE_EVICT_FIRST)
                 : "memory");
}

__device__ static inline void cn_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ static inline void cn_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Orders this thread's earlier accesses to shared memory before bulk copies that start after a
 * later barrier. */
__device__ static inline void cn_async_fence(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- bulk copies: compute capability 9.0; cn_bulk_copy is in barrier.cuh ---- */

/* A copy under a policy of the L2 cache (CN_CACHE_EVICT_FIRST, hopper.cuh). */
__device__ static inline void cn_bulk_copy_hint(uint32_t to, const void *from, uint32_t bytes,
                                                uint64_t *barrier, uint64_t cache)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(cn_shared_address(barrier)), "l"(cache)
                 : "memory");
#endif
}

/* Copies the box of a tensor map at (column, row). */
__device__ static inline void cn_box_copy(uint32_t to, const CUtensorMap *map, uint32_t column,
                                          uint32_t row, uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(cn_shared_address(barrier))
                 : "memory");
#endif
}

__device__ static inline void cn_box_copy3(uint32_t to, const CUtensorMap *map, uint32_t column,
                                           uint32_t row, uint32_t plane, uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(plane), "r"(cn_shared_address(barrier))
                 : "memory");
#endif
}

/* ---- host ---- */

static inline uint32_t cn_log2_u32(uint32_t power_of_two)
{
    return (uint32_t)__builtin_ctz(power_of_two);
}

/* Returns true when this device runs the bulk-copy kernels. */
static inline bool cn_attn_has_bulk(const cn_stream *s) { return s->cuda->device.hopper; }

static inline cn_status cn_attn_check(const char *op, const cn_attn_args *a)
{
    const cn_kv_layout *l = &a->layout;
    if (l->head_dim == 0 || l->head_dim % 16 != 0 || l->head_dim > CN_ATTN_MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE, "%s: head_dim %u: expected a multiple of 16, at most %d", op,
                       l->head_dim, CN_ATTN_MAX_HEAD_DIM);
    if (a->n_heads == 0 || a->n_heads % l->n_kv_heads != 0)
        return cn_fail(CN_ERR_SHAPE, "%s: %u query heads: expected a multiple of the %u kv heads",
                       op, a->n_heads, l->n_kv_heads);
    CN_TRY(cn_kv_check_form(op, l));
    if (cn_kv_form_of(l) == CN_KV_PLAIN && cn_kv_rows_of(l).total > INT32_MAX)
        return cn_fail(CN_ERR_SHAPE, "%s: pool of %zu rows: expected at most %d", op,
                       cn_kv_rows_of(l).total, INT32_MAX);
    return CN_OK;
}

static inline cn_attn_pool cn_attn_pool_of(const cn_attn_args *a)
{
    cn_attn_pool p = {};
    p.kv = (const cn_bf16 *)a->kv;
    p.tables = a->batch->tables;
    p.table_stride = a->batch->table_stride;
    p.layer = a->layer;
    if (cn_kv_form_of(&a->layout) == CN_KV_FP8) {
        p.fp8 = cn_fp8_pool_of(&a->layout, a->kv);
    } else {
        p.rows = cn_kv_rows_of(&a->layout);
        p.layer_row = a->layer * p.rows.layer;
    }
    p.n_kv_heads = a->layout.n_kv_heads;
    p.head_dim = a->layout.head_dim;
    p.block_shift = cn_log2_u32(a->layout.block_tokens);
    p.tile_shift = cn_log2_u32(a->layout.tile_tokens);
    return p;
}

/* Encodes a map of the pool whose boxes have box_rows rows. */
static inline cn_status cn_map_pool(CUtensorMap *map, const void *kv, const cn_kv_layout *l,
                                    uint32_t box_rows)
{
    const cn_map_shape shape = {2,
                                {l->head_dim, cn_kv_rows_of(l).total},
                                {1, l->head_dim},
                                {CN_BOX_COLS, box_rows}};
    return cn_map_encode(map, kv, &shape);
}
