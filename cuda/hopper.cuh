/* hopper.cuh - compute capability 9.0's own instructions behind small functions: tensor copies into
 * shared memory (TMA), matrix products of a warpgroup (wgmma), and clusters. Kernels that use them
 * run nowhere else.
 *
 * Tiles are rows of 64 bf16 (128 bytes) in the 128-byte swizzle: what a tensor map with
 * CU_TENSOR_MAP_SWIZZLE_128B writes and wgmma reads. A tile begins at a multiple of 1024 bytes. */
#ifndef CN_CUDA_HOPPER_CUH
#define CN_CUDA_HOPPER_CUH

#include <cuda.h>
#include <stdint.h>

#include "cuda/barrier.cuh"

#define CN_HOPPER __device__ __forceinline__ static

enum { CN_TILE_K = 64, CN_TILE_ROW_BYTES = 128, CN_WARPGROUP = 128 };

/* ---- TMA ---- */

/* Second-level cache policies: read once, and read by every block. */
#define CN_CACHE_EVICT_FIRST UINT64_C(0x12f0000000000000)
#define CN_CACHE_EVICT_LAST UINT64_C(0x14f0000000000000)

/* The map's box at (column, row) into shared memory; the barrier counts its bytes. */
CN_HOPPER void cn_tma_load(void *dst, const CUtensorMap *map, uint64_t *barrier, uint32_t column,
                           uint32_t row, uint64_t cache)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(cn_shared_address(dst)),
        "l"(map), "r"(cn_shared_address(barrier)), "r"(column), "r"(row), "l"(cache)
        : "memory");
}

/* ---- wgmma: d [64, N] f32 += a [64, 16] * b [N, 16]^T, both bf16 tiles in shared memory ---- */

/* The descriptor of a tile; 16 columns further is + CN_WGMMA_NEXT_K. */
enum { CN_WGMMA_NEXT_K = 2 };
CN_HOPPER uint64_t cn_wgmma_tile(const void *tile)
{
    const uint64_t address = (cn_shared_address(tile) & 0x3ffff) >> 4;
    const uint64_t eight_rows = 8 * CN_TILE_ROW_BYTES >> 4, swizzle_128 = 1;
    return address | UINT64_C(1) << 16 | eight_rows << 32 | swizzle_128 << 62;
}

CN_HOPPER void cn_wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CN_HOPPER void cn_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most `pending` committed groups are unfinished. */
template <int pending> CN_HOPPER void cn_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#define CN_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define CN_D16(i) CN_D4(i), CN_D4((i) + 4), CN_D4((i) + 8), CN_D4((i) + 12)
#define CN_R4 "%0,%1,%2,%3"
#define CN_R8 CN_R4 ",%4,%5,%6,%7"
#define CN_R16 CN_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define CN_R32 CN_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CN_R64                                                                                     \
    CN_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                      \
           ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CN_WGMMA(n, registers, a_index, b_index, ...)                                              \
    asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 1, 1;\n"                                    \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" registers             \
                 "}, %" a_index ", %" b_index ", add, 1, 1, 0, 0;\n}\n"                            \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b))

/* Thread t of the warpgroup holds, for every eight columns c of d: row 16*(t/32) + t%32/4, columns
 * c + 2*(t%4) and the next, then the same eight rows below. N is any sum of the sizes here. */
template <int N> CN_HOPPER void cn_wgmma(float *d, uint64_t a, uint64_t b)
{
    constexpr int STEP = N >= 128 ? 128 : N >= 64 ? 64 : N >= 32 ? 32 : N >= 16 ? 16 : 8;
    static_assert(N % 8 == 0, "columns come in eights");
    if constexpr (STEP == 128)
        CN_WGMMA("128", CN_R64, "64", "65", CN_D16(0), CN_D16(16), CN_D16(32), CN_D16(48));
    else if constexpr (STEP == 64)
        CN_WGMMA("64", CN_R32, "32", "33", CN_D16(0), CN_D16(16));
    else if constexpr (STEP == 32)
        CN_WGMMA("32", CN_R16, "16", "17", CN_D16(0));
    else if constexpr (STEP == 16)
        CN_WGMMA("16", CN_R8, "8", "9", CN_D4(0), CN_D4(4));
    else
        CN_WGMMA("8", CN_R4, "4", "5", CN_D4(0));
    if constexpr (N > STEP)
        cn_wgmma<N - STEP>(d + STEP / 2, a, b + (STEP * CN_TILE_ROW_BYTES >> 4));
}

/* ---- clusters ---- */

CN_HOPPER void cn_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Four floats of another block's shared memory, at the address that is p here. */
CN_HOPPER float4 cn_cluster_read(const float4 *p, uint32_t rank)
{
    float4 v;
    asm volatile("{\n"
                 ".reg .u32 there;\n"
                 "mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
                 "}\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(cn_shared_address(p)), "r"(rank)
                 : "memory");
    return v;
}

#endif
