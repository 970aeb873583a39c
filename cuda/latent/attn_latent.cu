/* attn_latent.cu - attention over rows of K that contain their V (latent attention, absorbed): one
 * query of each head per sequence (decode), or a chunk of queries (prefill).
 *
 * All heads of a token share the rows. So a query of a head is a column of the products. A block
 * computes up to N = 16, 24 or 32 columns over tiles of 64 slots:
 *
 *     scores^T[64, N] = rows[64, d] * q^T[d, N]                  mma m16n8k16, f32 sums
 *     out^T[r, N] += rows[64, 0:r]^T * weights^T[64, N]
 *
 * Both products read the same tile: V is loaded once, as a part of K. One thread fetches tiles by
 * tensor map into a ring of stages, box by box of 64 columns. Eight warps compute. In the scores a
 * warp has 32 slots and a quarter of the sum, so that a query's operands are in registers of one
 * warp pair only; in the softmax N / 8 columns; in the values the 64 dimensions of one box. So the
 * sums of a column lie in all warps, and nothing is merged between warps.
 *
 * Decode: one block per multiprocessor, each with a share of the slots (attn_walk.cuh). An item is
 * a part of up to 32 heads of a token: 20 heads are one item with N = 24, 64 heads two, which read
 * the rows twice, 128 heads four. Pieces of a split item are merged as in attn_one.cuh; where each
 * block has one piece, all blocks of an item share the merge. Prefill: a block has N = 32
 * consecutive rows (token, head) of a sequence, and all slots that the last one sees.
 *
 * q [T, hq, d], out [T, hq, r], rows [slot, d], d = r + dr; bf16, f32 sums, weights rounded to
 * bf16. Bytes of decode, for a sequence of n slots and a layer: 2 d ceil(n / 16) 16 of rows for
 * each part of the heads, 2 hq (d + r) of queries and results; for each piece of a split item 4 hq
 * r written and read (L2). At 512 + 64 and 20 heads a slot is 1,152 bytes: 64 x 8,192 slots are 604
 * MB, 140 us at 4.3 TB/s; queries and results are 0.5 %. A tile of 73,728 bytes arrives every 3,900
 * clocks at this rate. Its 432 + 384 mma (N = 24) take 1,330 clocks of the tensor cores, their
 * operands 139 KB of shared memory, 1,090 clocks. Two stages hold 147 KB. Operations: 2 hq (d + r)
 * for each (query, slot). CPU version: cpu_attn.c. */
#include "cuda/latent/attn_latent_compute.cuh"

/* ---- fetching: one thread ---- */

/* The tensor maps of the pool: boxes of a whole tile of it, and of 16 rows. */
typedef struct pool_maps {
    const CUtensorMap *whole, *few;
} pool_maps;

/* Copies slots [first, last) of a tile, rounded up to whole steps. */
template <int N>
__device__ static inline void
fetch_latent_tile(const cn_latent_params &p, const cn_latent_shared<N> &shared, pool_maps maps,
                  uint32_t seq, cn_walk_slots slots, uint32_t stage, uint64_t *barrier)
{
    const uint32_t tile = 1u << p.pool.tile_shift;
    for (uint32_t at = slots.first; at < slots.last;) {
        const uint32_t row = cn_key_row(p.pool, seq, 0, slots.tile * CN_LATENT_TILE + at);
        const bool is_whole = at % tile == 0 && at + tile < slots.last + CN_WALK_STEP;
        for (uint32_t box = 0; box < p.n_boxes; box++)
            cn_box_copy(shared.tile(stage) + box * CN_LATENT_BOX_BYTES + at * CN_ROW_BYTES,
                        is_whole ? maps.whole : maps.few, box * CN_BOX_COLS, row, barrier);
        at += is_whole ? tile : CN_WALK_STEP;
    }
}

/* Uses the n-th stage in the sequence of the ring for a tile. */
template <int N>
__device__ static inline void
start_latent_tile(const cn_latent_params &p, const cn_latent_shared<N> &shared,
                  cn_latent_fixed *fixed, pool_maps maps, uint32_t seq, cn_walk_slots slots,
                  uint32_t n, const cn_latent_note &note)
{
    const uint32_t stage = n % p.n_stages;
    const uint32_t rows =
        (slots.last - slots.first + CN_WALK_STEP - 1) / CN_WALK_STEP * CN_WALK_STEP;
    cn_barrier_wait(&fixed->empty[stage], (n / p.n_stages & 1) ^ 1);
    fixed->notes[stage] = note;
    cn_barrier_expect(&fixed->full[stage], rows * p.n_boxes * CN_ROW_BYTES);
    fetch_latent_tile<N>(p, shared, maps, seq, slots, stage, &fixed->full[stage]);
}

/* ---- decode ---- */

__device__ static inline cn_latent_note decode_note(const cn_latent_params &p, const cn_walk &w,
                                                    cn_walk_slots slots)
{
    cn_latent_note note = {};
    note.head = w.item * p.columns;
    note.row = w.unit * p.n_heads + note.head;
    note.limit = CN_LATENT_TILE; /* all slots of the tile */
    note.n_columns = (uint16_t)min(p.columns, p.n_heads - note.head);
    note.first_slot = (uint16_t)slots.first;
    note.last_slot = (uint16_t)slots.last;
    note.first = cn_walk_is_first(w);
    note.last = cn_walk_is_last<false>(w);
    note.end = cn_walk_is_end<false>(w);
    if (note.last) note.piece = cn_walk_piece_of(w, blockIdx.x);
    return note;
}

/* Fetches the block's share. If rows of other steps are final, the ring is filled before the wait
 * for the previous kernel. Only the newest tile of a sequence, which holds this step's token, is
 * fetched after it. */
template <int N>
__device__ static inline void fetch_decode(const cn_latent_params &p,
                                           const cn_latent_shared<N> &shared,
                                           cn_latent_fixed *fixed, pool_maps maps, cn_walk w)
{
    bool more = true, waited = false;
    for (uint32_t n = 0; more; n++) {
        const bool ahead = p.early && n < p.n_stages && !cn_walk_is_newest<false>(w);
        if (!waited && !ahead) {
            cn_wait_previous();
            cn_overlap_next();
            waited = true;
        }
        const cn_walk_slots slots = cn_walk_slots_of<false>(w);
        start_latent_tile<N>(p, shared, fixed, maps, w.unit, slots, n, decode_note(p, w, slots));
        more = !cn_walk_is_end<false>(w);
        if (more) cn_walk_next<false>(w, p.walk);
    }
    if (waited) return;
    cn_wait_previous();
    cn_overlap_next();
}

/* ---- prefill ---- */

/* The rows of a block, and the slots that they see. */
typedef struct prefill_rows {
    uint32_t seq, row, head;
    uint32_t n_columns;
    uint32_t first_limit; /* slots that the first one sees */
    uint32_t n_slots;     /* slots that the last one sees */
} prefill_rows;

/* Returns false when the block has no rows. */
__device__ static inline bool prefill_rows_of(prefill_rows &b, const cn_latent_params &p,
                                              uint32_t index, uint32_t seq)
{
    b.seq = p.first_seq + seq;
    const uint32_t start = __ldg(p.q_start + b.seq), kv_len = __ldg(p.kv_len + b.seq);
    const uint32_t n_q = __ldg(p.q_start + b.seq + 1) - start;
    const uint32_t first = index * p.columns, n_rows = n_q * p.n_heads;
    if (first >= n_rows || kv_len < n_q) return false;
    b.n_columns = min(p.columns, n_rows - first);
    b.row = start * p.n_heads + first;
    b.head = first % p.n_heads;
    b.first_limit = kv_len - n_q + first / p.n_heads + 1;
    b.n_slots = b.first_limit + (b.head + b.n_columns - 1) / p.n_heads;
    return true;
}

template <int N>
__device__ static inline void
fetch_prefill(const cn_latent_params &p, const cn_latent_shared<N> &shared, cn_latent_fixed *fixed,
              pool_maps maps, const prefill_rows &b)
{
    const uint32_t n_tiles = (b.n_slots + CN_LATENT_TILE - 1) / CN_LATENT_TILE;
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        const uint32_t first = tile * CN_LATENT_TILE;
        const cn_walk_slots slots = {tile, 0, min((uint32_t)CN_LATENT_TILE, b.n_slots - first)};
        cn_latent_note note = {};
        note.row = b.row;
        note.head = b.head;
        note.limit = (int32_t)b.first_limit - (int32_t)first;
        note.n_columns = (uint16_t)b.n_columns;
        note.last_slot = (uint16_t)slots.last;
        note.first = tile == 0;
        note.last = note.end = tile == n_tiles - 1;
        note.piece.n_pieces = 1;
        start_latent_tile<N>(p, shared, fixed, maps, b.seq, slots, tile, note);
    }
}

/* ---- the kernels ---- */

/* Called by one thread. */
__device__ static inline void open_stages(cn_latent_fixed *fixed, uint32_t n_stages)
{
    for (uint32_t i = 0; i < n_stages; i++) {
        cn_barrier_init(&fixed->full[i], 1);
        cn_barrier_init(&fixed->empty[i], CN_LATENT_WARPS);
    }
    cn_barrier_init_done();
}

template <int N>
__device__ static inline cn_latent_shared<N> shared_of(const cn_latent_params &p,
                                                       unsigned char *dynamic)
{
    cn_latent_shared<N> shared;
    shared.stage_bytes = p.n_boxes * CN_LATENT_BOX_BYTES;
    shared.stages_bytes = p.n_stages * shared.stage_bytes;
    shared.base = dynamic + (0u - cn_shared_address(dynamic)) % cn_latent_shared<N>::ALIGN;
    return shared;
}

/* The work of a block after open_stages: two warpgroups compute and one thread of the third
 * fetches. The third gives registers to the others. `fetch` is called by one thread. */
template <int N, typename F>
__device__ static __forceinline__ void divide_warps(const cn_latent_params &p,
                                                    const cn_latent_shared<N> &shared,
                                                    cn_latent_fixed *fixed, const F &fetch)
{
    if (threadIdx.x >= CN_LATENT_COMPUTING) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)CN_LATENT_FETCH_REGISTERS));
#endif
        if (threadIdx.x == CN_LATENT_COMPUTING) fetch();
    } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)CN_LATENT_COMPUTE_REGISTERS));
#endif
        cn_latent_compute<N>(p, shared, fixed);
    }
}

template <int N>
__global__ static void __launch_bounds__(CN_LATENT_THREADS, 1)
    attn_latent_decode_kernel(const __grid_constant__ cn_latent_params p,
                              const __grid_constant__ CUtensorMap whole,
                              const __grid_constant__ CUtensorMap few)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ cn_latent_fixed fixed;
    __shared__ bool idle;
    const cn_latent_shared<N> shared = shared_of<N>(p, dynamic);
    cn_walk w;
    if (!p.early) cn_wait_previous();
    if (threadIdx.x / CN_WARP == CN_LATENT_WARPS) {
        const bool busy = cn_walk_begin(w, p.walk, blockIdx.x, gridDim.x);
        if (threadIdx.x == CN_LATENT_COMPUTING) {
            idle = !busy;
            open_stages(&fixed, p.n_stages);
        }
    }
    __syncthreads();
    if (idle) {
        cn_wait_previous();
        return;
    }
    divide_warps<N>(p, shared, &fixed, [&] {
        fetch_decode<N>(p, shared, &fixed, {&whole, &few}, w);
    });
}

template <int N>
__global__ static void __launch_bounds__(CN_LATENT_THREADS, 1)
    attn_latent_prefill_kernel(const __grid_constant__ cn_latent_params p,
                               const __grid_constant__ CUtensorMap whole,
                               const __grid_constant__ CUtensorMap few)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ cn_latent_fixed fixed;
    const cn_latent_shared<N> shared = shared_of<N>(p, dynamic);
    prefill_rows b;
    cn_wait_previous();
    cn_overlap_next();
    /* The last rows come first, because they see the most slots. */
    if (!prefill_rows_of(b, p, gridDim.x - 1 - blockIdx.x, blockIdx.y)) return;
    if (threadIdx.x == CN_LATENT_COMPUTING) open_stages(&fixed, p.n_stages);
    __syncthreads();
    divide_warps<N>(p, shared, &fixed, [&] {
        fetch_prefill<N>(p, shared, &fixed, {&whole, &few}, b);
    });
}

/* ---- launching ---- */

static cn_status check_latent_attn(const cn_stream *s, const char *op, const cn_attn_args *a)
{
    const cn_kv_layout *l = &a->layout;
    const uint32_t rank = l->part[CN_KV_V].width;
    if (!cn_attn_has_bulk(s))
        return cn_fail(CN_ERR_SHAPE,
                       "%s: latent attention needs a GPU of compute capability 9.0 (H100, H200)",
                       op);
    if (!cn_kv_layout_has_rows(l, CN_BF16) || l->n_kv_heads != 1 || a->n_heads == 0 ||
        l->head_dim % 16 != 0 || l->head_dim > CN_LATENT_MAX_BOXES * CN_BOX_COLS ||
        rank % 16 != 0 || rank == 0 || rank > CN_LATENT_MAX_RANK || rank > l->head_dim)
        return cn_fail(
            CN_ERR_SHAPE,
            "%s: rows of %u elements, of them %u of V, for %u kv heads and %u query "
            "heads: expected one kv head and multiples of 16, at most %d and %d, in bf16",
            op, l->head_dim, rank, l->n_kv_heads, a->n_heads, CN_LATENT_MAX_BOXES * CN_BOX_COLS,
            CN_LATENT_MAX_RANK);
    if (cn_kv_rows_of(l).total > INT32_MAX)
        return cn_fail(CN_ERR_SHAPE, "%s: pool of %zu rows: expected at most %d", op,
                       cn_kv_rows_of(l).total, INT32_MAX);
    return CN_OK;
}

static cn_latent_params latent_params_of(const cn_attn_args *a)
{
    cn_latent_params p = {};
    p.out = (cn_bf16 *)a->out;
    p.q = (const cn_bf16 *)a->q;
    p.pool = cn_attn_pool_of(a);
    p.n_heads = a->n_heads;
    p.rank = a->layout.part[CN_KV_V].width;
    p.n_boxes = (uint32_t)cn_ceil_div(a->layout.head_dim, CN_BOX_COLS);
    p.scale = a->scale * CN_LOG2E;
    p.q_start = a->batch->q_start;
    p.kv_len = a->batch->kv_len;
    p.first_seq = a->batch->n_decode;
    return p;
}

/* Sets the stages, which take what the arrays of fixed size leave, and maps the pool. */
template <int N>
static cn_status prepare_latent(cn_stream *s, const char *op, const cn_attn_args *a,
                                cn_latent_params *p, CUtensorMap *whole, CUtensorMap *few)
{
    const cn_cuda_device *dev = &s->cuda->device;
    const size_t fixed = sizeof(cn_latent_fixed) + 64 + cn_latent_shared<N>::FIXED_BYTES;
    const size_t stage = (size_t)p->n_boxes * CN_LATENT_BOX_BYTES;
    CN_ASSERT(dev->n_sms <= cn_latent_shared<N>::MOST_PIECES);
    if (dev->shared_bytes < fixed + stage)
        return cn_fail(CN_ERR_SHAPE,
                       "%s: rows of %u elements need %zu bytes of shared memory, but the GPU has "
                       "%zu",
                       op, p->pool.head_dim, fixed + stage, dev->shared_bytes);
    p->n_stages = cn_min_u32((uint32_t)((dev->shared_bytes - fixed) / stage), CN_LATENT_MAX_STAGES);
    CN_TRY(cn_map_pool(whole, a->kv, &a->layout, a->layout.tile_tokens));
    return cn_map_pool(few, a->kv, &a->layout, CN_WALK_STEP);
}

template <int N> static cn_launch latent_launch(dim3 grid, const cn_latent_params &p)
{
    return {grid, CN_LATENT_THREADS,
            cn_latent_shared<N>::FIXED_BYTES +
                (size_t)p.n_stages * p.n_boxes * CN_LATENT_BOX_BYTES};
}

/* Divides the scratch of partial results. */
static cn_status share_scratch(cn_stream *s, cn_latent_params *p)
{
    const size_t column_bytes = sizeof(float2) + p->rank * sizeof(float);
    size_t n_slots = (s->cuda->attn_scratch_bytes - CN_ONE_ARRIVALS * sizeof(uint32_t)) /
                     (p->columns * column_bytes) / 2 * 2;
    if (n_slots > CN_ONE_ARRIVALS) n_slots = CN_ONE_ARRIVALS;
    const uint64_t items = (uint64_t)p->walk.n_units * p->walk.items_per_unit;
    const uint64_t needed =
        p->walk.by_length ? items * CN_WALK_LENGTH_PIECES : 2 * (uint64_t)s->cuda->device.n_sms;
    if (needed > n_slots)
        return cn_fail(CN_ERR_SHAPE,
                       "attn_decode: %llu partial results exceed the room for %zu: lower "
                       "--max-num-seqs, or disable --batch-invariant",
                       (unsigned long long)needed, n_slots);
    CN_ASSERT(s->attn_scratch);
    p->arrivals = (uint32_t *)s->attn_scratch;
    p->partial_sums = (float2 *)(p->arrivals + CN_ONE_ARRIVALS);
    p->partial_out = (float *)(p->partial_sums + n_slots * p->columns);
    return CN_OK;
}

template <int N>
static cn_status launch_latent_decode(cn_stream *s, const cn_attn_args *a, cn_latent_params p)
{
    CUtensorMap whole, few;
    CN_TRY(prepare_latent<N>(s, "attn_decode", a, &p, &whole, &few));
    return cn_cuda_launch(s, "attn_decode", attn_latent_decode_kernel<N>,
                          latent_launch<N>(dim3(s->cuda->device.n_sms), p), p, whole, few);
}

extern "C" cn_status cn_cuda_attn_latent_decode(cn_stream *s, const cn_attn_args *a)
{
    CN_TRY(check_latent_attn(s, "attn_decode", a));
    if (a->batch->n_decode == 0) return CN_OK;
    cn_latent_params p = latent_params_of(a);
    const uint32_t parts = (uint32_t)cn_ceil_div(a->n_heads, CN_LATENT_MAX_COLUMNS);
    p.columns = (uint32_t)cn_ceil_div(a->n_heads, parts);
    p.walk.lengths = a->lengths ? a->lengths : a->batch->kv_len;
    p.walk.n_units = a->batch->n_decode;
    p.walk.items_per_unit = (uint32_t)cn_ceil_div(a->n_heads, p.columns);
    p.walk.cost = CN_WALK_COST;
    p.walk.by_length = s->cuda->opts.batch_invariant;
    p.early = a->layer > 0; /* as in attn_decode.cu */
    CN_TRY(share_scratch(s, &p));
    if (p.columns <= 16) return launch_latent_decode<16>(s, a, p);
    if (p.columns <= 24) return launch_latent_decode<24>(s, a, p);
    return launch_latent_decode<CN_LATENT_MAX_COLUMNS>(s, a, p);
}

extern "C" cn_status cn_cuda_attn_latent_prefill(cn_stream *s, const cn_attn_args *a)
{
    enum { N = CN_LATENT_MAX_COLUMNS };
    const cn_batch_view *b = a->batch;
    CN_TRY(check_latent_attn(s, "attn_prefill", a));
    if (b->n_seqs == b->n_decode) return CN_OK;
    cn_latent_params p = latent_params_of(a);
    CUtensorMap whole, few;
    p.columns = N;
    CN_TRY(prepare_latent<N>(s, "attn_prefill", a, &p, &whole, &few));
    const dim3 grid((unsigned)cn_ceil_div((uint64_t)b->max_q * a->n_heads, N),
                    b->n_seqs - b->n_decode);
    return cn_cuda_launch(s, "attn_prefill", attn_latent_prefill_kernel<N>,
                          latent_launch<N>(grid, p), p, whole, few);
}
