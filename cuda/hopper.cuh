/* hopper.cuh - functions for instructions that only compute capability 9.0 has: tensor copies into
 * shared memory (TMA), matrix products of a warpgroup (wgmma), and clusters. Kernels that use them
 * run on no other device.
 *
 * Tiles are rows of 64 bf16 (128 bytes) in the 128-byte swizzle, which a tensor map with
 * CU_TENSOR_MAP_SWIZZLE_128B writes and wgmma reads. A tile begins at a multiple of 1024 bytes. */
#pragma once

#include "cuda/barrier.cuh"
#include "cuda/tensor_map.h"
#include "cuda/util.cuh"

#define CN_HOPPER __device__ __forceinline__ static

enum { CN_WARPGROUP = 128 };

/* ---- TMA ---- */

/* Copies the map's box that begins at a row and a tile of 64 columns into shared memory. The
 * barrier counts its bytes. Maps have four dimensions: 64 columns, rows, halves of the rows,
 * tiles. */
CN_HOPPER void cn_tma_load(void *dst, const CUtensorMap *map, uint64_t *barrier, uint32_t tile,
                           uint32_t row, uint64_t cache)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %3, %5}], [%2], %6;" ::"r"(cn_shared_address(dst)),
        "l"(map), "r"(cn_shared_address(barrier)), "r"(0), "r"(row), "r"(tile), "l"(cache)
        : "memory");
}

/* The same copy into every block of the cluster whose bit is set in `ranks`. dst and barrier have
 * the same offsets in each of these blocks. */
CN_HOPPER void cn_tma_load_shared(void *dst, const CUtensorMap *map, uint64_t *barrier,
                                  uint32_t tile, uint32_t row, uint64_t cache, uint16_t ranks)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %3, %5}], [%2], %7, %6;" ::"r"(
            cn_shared_address(dst)),
        "l"(map), "r"(cn_shared_address(barrier)), "r"(0), "r"(row), "r"(tile), "l"(cache),
        "h"(ranks)
        : "memory");
}

/* Copies the box of a map of five dimensions at (0, 0, third, fourth, tile). */
CN_HOPPER void cn_tma_load_5d(void *dst, const CUtensorMap *map, uint64_t *barrier, uint32_t third,
                              uint32_t fourth, uint32_t tile, uint64_t cache)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %3, %4, %5, %6}], [%2], %7;" ::"r"(cn_shared_address(dst)),
        "l"(map), "r"(cn_shared_address(barrier)), "r"(0), "r"(third), "r"(fourth), "r"(tile),
        "l"(cache)
        : "memory");
}

/* Copies the box of a map of 64 columns, rows and tiles. A box of one row may go to any multiple of
 * 128 bytes: the swizzle follows the address. */
CN_HOPPER void cn_tma_load_3d(void *dst, const CUtensorMap *map, uint64_t *barrier, uint32_t row,
                              uint32_t tile, uint64_t cache)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(cn_shared_address(dst)),
        "l"(map), "r"(cn_shared_address(barrier)), "r"(0), "r"(row), "r"(tile), "l"(cache)
        : "memory");
}

/* ---- wgmma: d [64, N] f32 (+)= a [64, 16] * b [N, 16]^T, both bf16 tiles in shared memory ---- */

/* Returns the descriptor of a tile. Adding CN_WGMMA_NEXT_K moves it by 16 columns. If the product
 * sums over the rows of the tile, its columns are in boxes box_bytes apart; otherwise box_bytes is
 * not used. */
enum { CN_WGMMA_NEXT_K = 2 };
CN_HOPPER uint64_t cn_wgmma_tile(const void *tile, uint32_t box_bytes = 16)
{
    const uint64_t address = (cn_shared_address(tile) & 0x3ffff) >> 4;
    const uint64_t eight_rows = 8 * CN_ROW_BYTES >> 4, swizzle_128 = 1;
    return address | (uint64_t)(box_bytes >> 4) << 16 | eight_rows << 32 | swizzle_128 << 62;
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

/* The operands of a product with 8, 16, 24 and so on registers of sums per thread. */
#define CN_D8(i)                                                                        \
    "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
        "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define CN_D8S CN_D8(0)
#define CN_D16S CN_D8S, CN_D8(8)
#define CN_D24S CN_D16S, CN_D8(16)
#define CN_D32S CN_D24S, CN_D8(24)
#define CN_D48S CN_D32S, CN_D8(32), CN_D8(40)
#define CN_D64S CN_D48S, CN_D8(48), CN_D8(56)
#define CN_D80S CN_D64S, CN_D8(64), CN_D8(72)
#define CN_D88S CN_D80S, CN_D8(80)
#define CN_D96S CN_D88S, CN_D8(88)
#define CN_D112S CN_D96S, CN_D8(96), CN_D8(104)
#define CN_D128S CN_D112S, CN_D8(112), CN_D8(120)
#define CN_R8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define CN_R16 CN_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define CN_R24 CN_R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define CN_R32 CN_R24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define CN_R48 CN_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define CN_R64 CN_R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CN_R80 CN_R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define CN_R88 CN_R80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define CN_R96 CN_R88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define CN_R112 \
    CN_R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define CN_R128 \
    CN_R112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define CN_WGMMA(n, registers, a_index, b_index, add_index, ...)                      \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_index ", 0;\n"          \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" registers \
                 "}, %" a_index ", %" b_index ", add, 1, 1, 0, 0;\n}\n"                \
                 : __VA_ARGS__                                                         \
                 : "l"(a), "l"(b), "r"(add))

/* Thread t of the warpgroup holds, for every eight columns from c of d, the columns c + 2*(t%4) and
 * the next: of row 16*(t/32) + t%32/4, then of the row eight below. With add 0, d is
 * overwritten. */
template <int N> CN_HOPPER void cn_wgmma(float *d, uint64_t a, uint64_t b, int add = 1)
{
    if constexpr (N == 8)
        CN_WGMMA("8", "%0,%1,%2,%3", "4", "5", "6", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]));
    else if constexpr (N == 16)
        CN_WGMMA("16", CN_R8, "8", "9", "10", CN_D8S);
    else if constexpr (N == 32)
        CN_WGMMA("32", CN_R16, "16", "17", "18", CN_D16S);
    else if constexpr (N == 48)
        CN_WGMMA("48", CN_R24, "24", "25", "26", CN_D24S);
    else if constexpr (N == 64)
        CN_WGMMA("64", CN_R32, "32", "33", "34", CN_D32S);
    else if constexpr (N == 96)
        CN_WGMMA("96", CN_R48, "48", "49", "50", CN_D48S);
    else if constexpr (N == 128)
        CN_WGMMA("128", CN_R64, "64", "65", "66", CN_D64S);
    else if constexpr (N == 160)
        CN_WGMMA("160", CN_R80, "80", "81", "82", CN_D80S);
    else if constexpr (N == 176)
        CN_WGMMA("176", CN_R88, "88", "89", "90", CN_D88S);
    else if constexpr (N == 192)
        CN_WGMMA("192", CN_R96, "96", "97", "98", CN_D96S);
    else if constexpr (N == 224)
        CN_WGMMA("224", CN_R112, "112", "113", "114", CN_D112S);
    else if constexpr (N == 256)
        CN_WGMMA("256", CN_R128, "128", "129", "130", CN_D128S);
    else {
        constexpr int STEP = N > 64 ? 64 : N > 32 ? 32 : N > 16 ? 16 : 8; /* in pieces */
        static_assert(N % 8 == 0 && N > STEP, "the number of columns must be a multiple of 8");
        cn_wgmma<STEP>(d, a, b, add);
        cn_wgmma<N - STEP>(d + STEP / 2, a, b + (STEP * CN_ROW_BYTES >> 4), add);
    }
}

/* The same with a [64, 32] and b [N, 32], both e4m3: tiles of 128 values in the same bytes, where
 * CN_WGMMA_NEXT_K moves a descriptor by 32 of them. */
#define CN_WGMMA_FP8(n, registers, a_index, b_index, add_index, ...)                   \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add_index ", 0;\n"           \
                 "wgmma.mma_async.sync.aligned.m64n" n "k32.f32.e4m3.e4m3 {" registers \
                 "}, %" a_index ", %" b_index ", add, 1, 1;\n}\n"                      \
                 : __VA_ARGS__                                                         \
                 : "l"(a), "l"(b), "r"(add))

template <int N> CN_HOPPER void cn_wgmma_fp8(float *d, uint64_t a, uint64_t b, int add)
{
    static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 128, "columns");
    if constexpr (N == 8)
        CN_WGMMA_FP8("8", "%0,%1,%2,%3", "4", "5", "6", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]),
                     "+f"(d[3]));
    else if constexpr (N == 16)
        CN_WGMMA_FP8("16", CN_R8, "8", "9", "10", CN_D8S);
    else if constexpr (N == 32)
        CN_WGMMA_FP8("32", CN_R16, "16", "17", "18", CN_D16S);
    else if constexpr (N == 64)
        CN_WGMMA_FP8("64", CN_R32, "32", "33", "34", CN_D32S);
    else
        CN_WGMMA_FP8("128", CN_R64, "64", "65", "66", CN_D64S);
}

/* Starts d [64, N] = rows * columns^T over the 128 e4m3 values of a tile of each. */
template <int N>
CN_HOPPER void cn_wgmma_fp8_tile(float *d, const char *rows, const char *columns)
{
    const uint64_t a = cn_wgmma_tile(rows), b = cn_wgmma_tile(columns);
    cn_wgmma_begin();
#pragma unroll
    for (uint32_t k = 0; k < CN_ROW_BYTES / 32; k++)
        cn_wgmma_fp8<N>(d, a + k * CN_WGMMA_NEXT_K, b + k * CN_WGMMA_NEXT_K, k > 0);
    cn_wgmma_commit();
}

/* Starts d = rows * columns^T over D values, and with ADDS adds it to d. a and b describe the first
 * boxes of 64 values, and boxes are row_box and column_box bytes apart. Call after
 * cn_wgmma_begin. */
template <int N, int D, bool ADDS>
CN_HOPPER void cn_wgmma_boxes(float *d, uint64_t a, uint32_t row_box, uint64_t b,
                              uint32_t column_box)
{
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        const uint32_t step = k % 4 * CN_WGMMA_NEXT_K;
        cn_wgmma<N>(d, a + k / 4 * (row_box >> 4) + step, b + k / 4 * (column_box >> 4) + step,
                    ADDS || k > 0);
    }
    cn_wgmma_commit();
}

/* The same without ADDS, of boxes in shared memory. */
template <int N, int D>
CN_HOPPER void cn_wgmma_start(float *d, const void *rows, uint32_t row_box, const void *columns,
                              uint32_t column_box)
{
    cn_wgmma_boxes<N, D, false>(d, cn_wgmma_tile(rows), row_box, cn_wgmma_tile(columns),
                                column_box);
}

/* ---- clusters ---- */

/* A barrier of all threads of the cluster. Writes to shared memory before it are visible after
 * it. */
CN_HOPPER void cn_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* The same barrier without ordering memory accesses. */
CN_HOPPER void cn_cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* Arrives at the barrier that another block of the cluster has at the same offset. Orders only
 * earlier reads of the tensor cores. Ordinary memory accesses are not ordered between the blocks,
 * because that would need a fence of the whole device. */
CN_HOPPER void cn_barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .u32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(cn_shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

/* Reads four floats of another block's shared memory, at the offset that p has here. */
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

/* Stores 16 bytes into another block's shared memory, at the offset that p has here. The barrier
 * at the same offset there counts them: its cn_barrier_wait implies that they can be read. That
 * wait acquires for the thread block alone, which suffices because no cache is between. */
CN_HOPPER void cn_cluster_store(uint4 *p, const uint4 &v, uint64_t *barrier, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .u32 there, counter;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 counter, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                 "[there], {%3, %4, %5, %6}, [counter];\n"
                 "}\n" ::"r"(cn_shared_address(p)),
                 "r"(cn_shared_address(barrier)), "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
