/* attn_prefill.cuh - code that the prefill kernels share: the rows that a block computes.
 *
 * A row is (token, query head of the group): row = token * heads + head within its block. If the
 * group has more heads than a block has rows, it is split into several parts. */
#pragma once

#include "cuda/attn/attn_common.cuh"

enum { CN_PREFILL_COPY_TILE = 128, CN_PREFILL_SM90_DIM = 128 /* most head_dim */ };

/* A copy of some rows in bf16 (attn_plain.cu). The pool's head_dim holds for it. */
typedef struct cn_prefill_copy {
    uint32_t slots; /* of a sequence, a multiple of CN_PREFILL_COPY_TILE; 0: no copy */
    uint32_t first_head, n_heads; /* kv heads */
} cn_prefill_copy;

typedef struct cn_prefill_params {
    cn_bf16 *out;
    const cn_bf16 *q;
    cn_attn_pool pool;
    const uint32_t *q_start, *kv_len;
    uint32_t first_seq; /* n_decode */
    uint32_t n_heads, group;
    uint32_t heads, n_parts; /* query heads of a block; parts of the group */
    uint32_t block_tokens;   /* query tokens of a block */
    float scale;             /* factor of the scores, including log2(e) */
    cn_prefill_copy copy;    /* of sequences from first_seq on */
} cn_prefill_params;

typedef struct cn_prefill_block {
    uint32_t seq, kv_head;
    uint32_t first_head; /* query head of row 0 */
    uint32_t heads;      /* of this part */
    uint32_t token;      /* of row 0, in the step */
    uint32_t n_rows;
    uint32_t first_limit; /* slots that row 0 sees */
    uint32_t n_slots;     /* slots that the last row sees */
    uint32_t n_resident;  /* slots of the sequence */
} cn_prefill_block;

/* Computes the rows of this block. Returns false when it has none. */
__device__ static inline bool cn_prefill_block_of(cn_prefill_block &b, const cn_prefill_params &p,
                                                  uint32_t index, uint32_t part, uint32_t seq)
{
    b.seq = p.first_seq + seq;
    const uint32_t start = __ldg(p.q_start + b.seq);
    const uint32_t n_q = __ldg(p.q_start + b.seq + 1) - start, kv_len = __ldg(p.kv_len + b.seq);
    const uint32_t first = index * p.block_tokens;
    if (first >= n_q || kv_len < n_q) return false;
    const uint32_t n_tokens = min(p.block_tokens, n_q - first);
    const uint32_t member = part % p.n_parts * p.heads;
    b.kv_head = p.copy.first_head + part / p.n_parts;
    b.heads = min(p.heads, p.group - member);
    b.first_head = b.kv_head * p.group + member;
    b.token = start + first;
    b.n_rows = n_tokens * b.heads;
    b.first_limit = kv_len - n_q + first + 1;
    b.n_slots = b.first_limit + n_tokens - 1;
    b.n_resident = kv_len;
    return true;
}

/* Returns the row of the copy that holds the key of a slot; the value is copy.slots rows later. */
__device__ static inline uint32_t cn_prefill_copy_row(const cn_prefill_params &p, uint32_t seq,
                                                      uint32_t head, uint32_t slot)
{
    const uint32_t unit = (seq - p.first_seq) * p.copy.n_heads + head - p.copy.first_head;
    return unit * 2 * p.copy.slots + slot;
}

/* First element of a row in q and out. */
__device__ static inline size_t cn_prefill_row(const cn_prefill_params &p,
                                               const cn_prefill_block &b, uint32_t row)
{
    const size_t token = b.token + row / b.heads;
    return (token * p.n_heads + b.first_head + row % b.heads) * p.pool.head_dim;
}

/* Returns the number of slots that a row sees; for an unused row, that of the last row. */
__device__ static inline uint32_t cn_prefill_limit(const cn_prefill_block &b, uint32_t row)
{
    return min(b.first_limit + row / b.heads, b.n_slots);
}

static inline cn_prefill_params cn_prefill_params_of(const cn_attn_args *a)
{
    cn_prefill_params p = {};
    p.out = (cn_bf16 *)a->out;
    p.q = (const cn_bf16 *)a->q;
    p.pool = cn_attn_pool_of(a);
    p.q_start = a->batch->q_start;
    p.kv_len = a->batch->kv_len;
    p.first_seq = a->batch->n_decode;
    p.n_heads = a->n_heads;
    p.group = a->n_heads / a->layout.n_kv_heads;
    p.scale = a->scale * CN_LOG2E;
    return p;
}

/* Divides the work into blocks of up to max_rows rows. Returns the grid (kv heads * parts, blocks
 * of the longest chunk, sequences). */
static inline dim3 cn_prefill_plan(cn_prefill_params *p, const cn_attn_args *a, uint32_t max_rows)
{
    p->heads = cn_min_u32(p->group, max_rows);
    p->n_parts = (uint32_t)cn_ceil_div(p->group, p->heads);
    p->block_tokens = max_rows / p->heads;
    return dim3(a->layout.n_kv_heads * p->n_parts,
                (unsigned)cn_ceil_div(a->batch->max_q, p->block_tokens),
                a->batch->n_seqs - a->batch->n_decode);
}

/* attn_prefill_sm90.cu: returns true when its kernel supports this device and shape, and also the
 * rows of the pool; the launcher. */
extern "C" bool cn_attn_prefill_sm90_has(const cn_stream *s, const cn_attn_args *a);
extern "C" bool cn_attn_prefill_sm90_fits(const cn_stream *s, const cn_attn_args *a);
extern "C" cn_status cn_attn_prefill_sm90(cn_stream *s, const cn_attn_args *a);

/* attn_plain.cu: the same for rows in eight bits. */
extern "C" bool cn_attn_plain_fits(const cn_stream *s, const cn_attn_args *a);
extern "C" cn_status cn_attn_plain(cn_stream *s, const cn_attn_args *a);

/* The prefill of n_seqs sequences from p.first_seq on and of the kv heads of p.copy, over the copy
 * in the stream's scratch. */
extern "C" cn_status cn_attn_prefill_sm90_copied(cn_stream *s, const cn_attn_args *a,
                                                 cn_prefill_params p, uint32_t n_seqs);
