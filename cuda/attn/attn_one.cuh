/* attn_one.cuh - attention of one query per sequence over paged K and V: the kernel of attn_decode
 * (every resident slot) and of attn_lists (a list of slots).
 *
 * One block per multiprocessor, each with a share of the slots (attn_walk.cuh). One warp fetches,
 * two in eight bits, or six if the slots are a list. They keep a ring of stages in shared memory
 * full. A stage has a tile of 64 keys and 64 values (32 KiB at head_dim 128, up to 192 KiB in
 * flight) and a note that describes it. Four warps compute, each 16 slots of every tile. They
 * compute the query heads of the group together, so K and V are read once for all of them:
 *
 *     scores^T[16 slots, 8 heads] = keys[16, d] * q^T[d, 8]       mma m16n8k16, f32 sums
 *     out^T[d, 8 heads] += values^T[d, 16 slots] * weights^T[16, 8]
 *
 * The heads are the narrow side of the product, so no work is wasted on padded rows. Each warp has
 * its own online softmax. The four are merged when a piece ends. The pieces of a split item are
 * merged, always in the order of the pieces, by the block that finishes its piece last.
 *
 * Rows in eight bits (FP8) become bf16 in registers, without loss: the codes, not their values. The
 * scales of the keys multiply the scores, those of the values the weights. Tiles are of 128 slots,
 * and eight warps compute (cn_one_wide).
 *
 * Fetching uses bulk copies by tensor map (compute capability 9.0), or cp.async row by row (from
 * 8.0 on, and for lists). Slots past the length get no weight and are never multiplied, so their
 * content has no effect. */
#pragma once

#include "cuda/attn/attn_one_compute.cuh"
#include "cuda/attn/attn_one_fetch.cuh"

/* ---- the kernel ---- */

template <int D, bool BULK, bool LIST, bool FP8>
__global__ static void __launch_bounds__(cn_one_threads<D, LIST, FP8>(), 1)
    attn_one_kernel(const __grid_constant__ cn_one_params p,
                    const __grid_constant__ CUtensorMap whole,
                    const __grid_constant__ CUtensorMap few)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ cn_one_fixed fixed;
    __shared__ bool idle;
    cn_one_shared<D, FP8> shared;
    shared.n_stages = p.n_stages;
    shared.base = dynamic + (0u - cn_shared_address(dynamic)) % cn_one_shared<D, FP8>::ALIGN;
    const bool fetches = threadIdx.x >= cn_one_computing<D, FP8>();
    cn_walk w;
    if (BULK && !FP8 && threadIdx.x == cn_one_computing<D, FP8>()) {
        cn_map_prefetch(&whole);
        cn_map_prefetch(&few);
    }
    cn_touch_params(p);
    if (!p.early) cn_wait_previous();
    if (fetches) {
        const bool busy = cn_walk_begin(w, p.walk, blockIdx.x, gridDim.x);
        if (threadIdx.x == cn_one_computing<D, FP8>()) {
            idle = !busy;
            for (uint32_t i = 0; i < p.n_stages; i++) {
                cn_barrier_init(&fixed.full[i], BULK ? 1 : CN_WARP + 1);
                cn_barrier_init(&fixed.empty[i], cn_one_warps<D, FP8>());
            }
            cn_barrier_init_done();
        }
    }
    __syncthreads();
    if (idle) {
        cn_wait_previous();
        return;
    }
    if (!fetches) {
        cn_one_compute<D, FP8>(p, shared, &fixed);
    } else if (!BULK) {
        cn_one_fetch_rows<D, LIST, FP8>(p, shared, &fixed, w);
    } else if (threadIdx.x % CN_WARP == 0) {
        const cn_one_fetch<D, FP8> f = {shared, &fixed, &whole, &few};
        cn_one_fetch_bulk<D, FP8>(p, f, w);
    }
}

/* ---- launching ---- */

/* Sets the parameters that depend on D and launches. If BULK and not FP8, `whole` and `few` must be
 * encoded. */
template <int D, bool BULK, bool LIST, bool FP8>
static cn_status cn_one_launch_as(cn_stream *s, const char *op, cn_one_params p,
                                  const CUtensorMap *whole, const CUtensorMap *few)
{
    typedef cn_one_shared<D, FP8> shared;
    const cn_cuda_device *dev = &s->cuda->device;
    /* A block takes all shared memory of a multiprocessor, so no multiprocessor gets two blocks.
     * With room for two, blocks of the next kernel start earlier, but two share a multiprocessor
     * while others have none. That costs more than the early start gains. */
    const size_t fixed_bytes = sizeof(cn_one_fixed) + 64 + shared::FIXED_BYTES;
    size_t n_stages = 0;
    if (dev->shared_bytes > fixed_bytes)
        n_stages = (dev->shared_bytes - fixed_bytes) / shared::STAGE_BYTES;
    CN_ASSERT(dev->n_sms < CN_ONE_PIECES);
    if (n_stages == 0)
        return cn_fail(CN_ERR_SHAPE,
                       "%s: head_dim %u needs %zu bytes of shared memory, but the GPU "
                       "has %zu",
                       op, p.pool.head_dim, fixed_bytes + shared::STAGE_BYTES, dev->shared_bytes);
    p.n_stages = cn_min_u32((uint32_t)n_stages, CN_ONE_MAX_STAGES);
    p.slot_heads = cn_min_u32(p.group, CN_ONE_HEADS);
    const size_t head_bytes = sizeof(float2) + D * sizeof(float);
    size_t n_slots = (s->cuda->attn_scratch_bytes - CN_ONE_ARRIVALS * sizeof(uint32_t)) /
                     (p.slot_heads * head_bytes) / 64 * 64;
    if (n_slots > CN_ONE_ARRIVALS) n_slots = CN_ONE_ARRIVALS;
    const uint64_t n_items = (uint64_t)p.walk.n_units * p.walk.items_per_unit;
    const uint64_t needed =
        p.walk.by_length ? n_items * CN_WALK_LENGTH_PIECES : 2 * (uint64_t)dev->n_sms;
    if (needed > n_slots)
        return cn_fail(CN_ERR_SHAPE,
                       "%s: %llu partial results exceed the room for %zu: lower --max-num-seqs, or "
                       "disable --batch-invariant",
                       op, (unsigned long long)needed, n_slots);
    CN_ASSERT(s->attn_scratch);
    p.arrivals = (uint32_t *)s->attn_scratch;
    p.partial_sums = (float2 *)(p.arrivals + CN_ONE_ARRIVALS);
    p.partial_out = (float *)(p.partial_sums + n_slots * p.slot_heads);
    return cn_cuda_launch(
        s, op, attn_one_kernel<D, BULK, LIST, FP8>,
        {dim3(dev->n_sms), cn_one_threads<D, LIST, FP8>(),
         shared::FIXED_BYTES + p.n_stages * shared::STAGE_BYTES},
        p, *whole, *few);
}

/* Returns the parameters that both ops share, for sequences [0, n_decode). */
static inline cn_one_params cn_one_params_of(cn_stream *s, const cn_attn_args *a)
{
    cn_one_params p = {};
    p.out = (cn_bf16 *)a->out;
    p.q = (const cn_bf16 *)a->q;
    p.pool = cn_attn_pool_of(a);
    p.n_heads = a->n_heads;
    p.group = a->n_heads / a->layout.n_kv_heads;
    p.n_parts = (uint32_t)cn_ceil_div(p.group, CN_ONE_HEADS);
    p.walk.n_units = a->batch->n_decode;
    p.walk.items_per_unit = a->layout.n_kv_heads * p.n_parts;
    p.walk.cost = p.pool.fp8.kv ? CN_WALK_FP8_COST : CN_WALK_COST;
    p.scale = a->scale * CN_LOG2E;
    p.walk.by_length = s->cuda->opts.batch_invariant;
    return p;
}
