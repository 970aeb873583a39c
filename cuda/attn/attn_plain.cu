/* attn_plain.cu - prefill over K and V in eight bits: a copy of the rows in bf16, and the kernel of
 * attn_prefill_sm90.cu over the copy.
 *
 * A block of the prefill reads all rows of its sequence, and each sequence has many blocks. So a
 * row is converted once for each step and layer, and not once for each block. The copy is scratch
 * of the stream. What does not fit is done in turns: some sequences, or some kv heads of one. A
 * value of the copy is code * scale, rounded to bf16. The bits of a row of the result depend
 * neither on the chunk nor on the turns.
 *
 * The copy is [sequence, kv head, K and V, slots, d]; slots are those of the longest sequence,
 * rounded up to a tile of the prefill. Grid (64 slots, kv heads, sequences). Bytes moved for each
 * slot and kv head: 2 d + 4 read, 4 d written. CPU version: cpu_attn.c. */
#include "cuda/attn/attn_prefill.cuh"

enum { BLOCK = 256, SLOTS = 64, PIECE = 16 /* codes that a thread converts */ };

typedef struct plain_params {
    cn_prefill_params prefill;
    cn_bf16 *copy;
} plain_params;

/* Converts eight codes. */
__device__ static inline uint4 plain_chunk(uint2 codes, float scale)
{
    const uint4 exact = cn_fp8_chunk(codes);
    float x[CN_VEC8];
    cn_unpack8(x, exact);
#pragma unroll
    for (uint32_t i = 0; i < CN_VEC8; i++) x[i] *= scale;
    return make_uint4(cn_pack2(x[0], x[1]), cn_pack2(x[2], x[3]), cn_pack2(x[4], x[5]),
                      cn_pack2(x[6], x[7]));
}

__global__ static void __launch_bounds__(BLOCK)
    attn_plain_kernel(const __grid_constant__ plain_params a)
{
    const cn_prefill_params &p = a.prefill;
    const uint32_t d = p.pool.head_dim, pieces = d / PIECE, first = blockIdx.x * SLOTS;
    const uint32_t seq = p.first_seq + blockIdx.z, head = p.copy.first_head + blockIdx.y;
    cn_wait_previous();
    cn_overlap_next();
    const uint32_t n = __ldg(p.kv_len + seq);
    if (first >= n) return;
    for (uint32_t e = threadIdx.x; e < 2 * SLOTS * pieces; e += BLOCK) {
        const uint32_t piece = e % pieces, slot = first + e / pieces % SLOTS;
        const bool value = e >= SLOTS * pieces;
        if (slot >= n) continue;
        const cn_fp8_rows from = cn_fp8_rows_of(p.pool, seq, head, slot);
        const uint4 codes = __ldcg((const uint4 *)(value ? from.value : from.key) + piece);
        const float scale = cn_fp8_half(__ldcg(value ? from.value_scale : from.key_scale));
        const size_t row = cn_prefill_copy_row(p, seq, head, slot) + (value ? p.copy.slots : 0);
        uint4 *to = (uint4 *)(a.copy + row * d + piece * PIECE);
        to[0] = plain_chunk(make_uint2(codes.x, codes.y), scale);
        to[1] = plain_chunk(make_uint2(codes.z, codes.w), scale);
    }
}

/* Copies rows of n_seqs sequences and n_heads kv heads from p.first_seq and p.copy.first_head on,
 * and runs the prefill of these. */
static cn_status run_plain_turn(cn_stream *s, const cn_attn_args *a, cn_prefill_params p,
                                uint32_t n_seqs)
{
    plain_params copy = {p, (cn_bf16 *)s->plain_rows};
    const dim3 grid((unsigned)cn_ceil_div(p.copy.slots, SLOTS), p.copy.n_heads, n_seqs);
    CN_TRY(cn_cuda_launch(s, "attn_plain", attn_plain_kernel, {grid, BLOCK}, copy));
    return cn_attn_prefill_sm90_copied(s, a, p, n_seqs);
}

extern "C" size_t cn_cuda_plain_bytes(const cn_cuda *c)
{
    return c->device.hopper && c->opts.head_dim <= CN_PREFILL_SM90_DIM ? c->opts.plain_bytes : 0;
}

extern "C" bool cn_attn_plain_fits(const cn_stream *s, const cn_attn_args *a)
{
    return s->plain_rows && cn_kv_form_of(&a->layout) == CN_KV_FP8 &&
           cn_attn_prefill_sm90_has(s, a);
}

extern "C" cn_status cn_attn_plain(cn_stream *s, const cn_attn_args *a)
{
    const cn_batch_view *b = a->batch;
    const uint32_t hk = a->layout.n_kv_heads;
    const uint32_t longest = b->max_prefill_kv ? b->max_prefill_kv : b->max_kv;
    cn_prefill_params p = cn_prefill_params_of(a);
    p.copy.slots = (uint32_t)cn_round_up(longest, CN_PREFILL_COPY_TILE);
    const uint64_t unit_bytes =
        2 * (uint64_t)p.copy.slots * a->layout.head_dim * sizeof(cn_bf16);
    const uint32_t fit = (uint32_t)(s->cuda->opts.plain_bytes / unit_bytes);
    if (fit == 0)
        return cn_fail(CN_ERR_SHAPE,
                       "attn_prefill: sequences of up to %u slots need %llu bytes for a kv head, "
                       "but plain_bytes is %llu",
                       longest, (unsigned long long)unit_bytes,
                       (unsigned long long)s->cuda->opts.plain_bytes);
    const uint32_t heads = cn_min_u32(fit, hk), seqs = cn_max_u32(fit / hk, 1);
    for (uint32_t seq = b->n_decode; seq < b->n_seqs; seq += seqs)
        for (uint32_t head = 0; head < hk; head += heads) {
            p.first_seq = seq;
            p.copy.first_head = head;
            p.copy.n_heads = cn_min_u32(heads, hk - head);
            CN_TRY(run_plain_turn(s, a, p, cn_min_u32(seqs, b->n_seqs - seq)));
        }
    return CN_OK;
}
