/* ops.h - the ops of the forward pass, of sampling and of compression: one plain argument struct
 * for each, and the table of functions (the backend). A leaf.
 *
 * The model (engine/model/model.c) is written once over this table. The CPU backend is the readable
 * specification of every op. Tests compare other backends with it on awkward shapes.
 *
 * Conventions.
 *   Shapes   in brackets, row-major, the last dimension contiguous. T tokens of the step, S
 *            sequences, h hidden size, d head_dim, hq / hk query / kv heads, V vocabulary, I
 *            intermediate size.
 *   Dtypes   "act" is the backend's activation dtype (f32 on the CPU, bf16 on a GPU). Sums are at
 *            least f32.
 *   Pointers are device pointers unless a comment says host. Index arrays must stay valid until the
 *            stream has run the op.
 *   Calls    enqueue on `stream` and return. They neither allocate nor synchronise.
 *   NULL     in the table means that the backend lacks the op. The engine refuses at start a
 *            backend without an op that its options need, and names the op. Comments in the table
 *            say what happens without an optional one.
 *
 * Padding. A graph (cn_graph) replays a batch of fixed size. Padding rows are not stored
 * (kv_slots = CN_NO_SLOT, q_rows = -1), and padding sequences have kv_len 0. What an op writes to
 * their outputs is undefined. Only a backend with graphs receives padding. */
#pragma once

#include "engine/base/base.h"
#include "engine/base/dtype.h"
#include "engine/draft_ops.h"
#include "engine/expert_ops.h"
#include "engine/latent_ops.h"
#include "engine/matrix_ops.h"
#include "engine/rank_ops.h"
#include "paged/planes.h"

CN_BEGIN_C

typedef struct cn_backend cn_backend;
typedef struct cn_stream cn_stream; /* in-order queue of device work */
typedef enum cn_priority { CN_PRIORITY_HIGH, CN_PRIORITY_LOW } cn_priority;
typedef struct cn_fence cn_fence;   /* a point in a stream; reusable */
typedef struct cn_graph cn_graph;   /* recorded ops that one call replays */

#define CN_NO_SLOT UINT32_MAX /* in kv_slots: K and V are not stored, as of a padding row */

/* The step's batch as flat arrays. Decoding sequences come first: the first n_decode have exactly
 * one query token each. Tokens are in the order of their sequences. */
struct cn_batch_view {
    uint32_t n_tokens, n_seqs, n_decode;
    const uint32_t *tokens;    /* [T] ids */
    /* A step can be launched before the host has read the tokens of the previous one (DESIGN.md
     * §4.5). Where sampled_row[t] >= 0, the id of token t is sampled[sampled_row[t]], not
     * tokens[t]. sampled_row is [T]; sampled is the output of the previous step's sample op. Both
     * are NULL when all ids are known. */
    const int32_t *sampled_row;
    const uint32_t *sampled;
    const uint32_t *positions; /* [T] logical position: RoPE and the query ring use it */
    const uint32_t *kv_slots;  /* [T] block * block_tokens + slot where K and V are stored */
    const int32_t *q_rows;     /* [T] query slot * window + ring row, or -1: not observed */
    const uint32_t *q_start;   /* [S+1] first token of each sequence */
    const uint32_t *kv_len;    /* [S] resident slots including this step's tokens */
    const uint32_t *tables;    /* [S, table_stride] physical block of each logical block */
    uint32_t table_stride;
    uint32_t max_q, max_kv; /* upper bounds, known to the host, of n_q and kv_len */
    uint32_t max_prefill_kv; /* of kv_len of sequences [n_decode, n_seqs); 0: max_kv */
};

/* out[n] = elements 0 to n - 1 of a tensor of dummy weights (engine/checkpoint/dummy_weight.h). */
typedef struct cn_dummy_fill_args {
    void *out;
    cn_dtype dtype;
    uint64_t n, key;
    float scale;
} cn_dummy_fill_args;

/* out[T,h] = table[id[T], h], with the ids as cn_batch_view defines them. A sampled id CN_NO_TOKEN
 * gives zeros. */
typedef struct cn_embed_args {
    void *out;
    const void *table; /* [V,h] weight dtype */
    const uint32_t *tokens;
    const int32_t *sampled_row; /* as in cn_batch_view; may be NULL */
    const uint32_t *sampled;
    uint32_t n_tokens, hidden, vocab;
} cn_embed_args;

/* residual[T,h] += x (when x is not NULL); out = residual / rms(residual) * weight. */
typedef struct cn_rmsnorm_args {
    void *out;          /* [T,h] act */
    void *residual;     /* [T,h] act, updated in place */
    const void *x;      /* [T,h] act or NULL */
    const void *weight; /* [h] */
    uint32_t n_tokens, hidden;
    float eps;
} cn_rmsnorm_args;

/* Splits qkv[T, (hq+2hk)*d] into heads. Applies the per-head RMS norm of Qwen3 (unless the norms
 * are NULL) and RoPE (rotate-half) to q and k. Stores k and v in the pool at kv_slots, q in `q`,
 * and q also in the observation window at q_rows where that is >= 0. */
typedef struct cn_rope_store_args {
    void *q; /* [T, hq, d] out */
    const void *qkv;
    const void *q_norm, *k_norm; /* [d] or NULL */
    float eps;
    const float *cos, *sin; /* [max_position, d/2] f32, scaling and attention factor included */
    const cn_batch_view *batch;
    uint32_t n_heads, layer;
    cn_kv_layout layout;
    void *kv;       /* the pool */
    void *q_window; /* [L, n_query_slots, window, hq, d] or NULL */
    uint32_t n_query_slots, window;
} cn_rope_store_args;

/* Paged causal attention. Query i of a sequence with n_q queries and kv_len resident slots attends
 * to the first kv_len - n_q + i + 1 slots. attn_decode computes sequences [0, n_decode),
 * attn_prefill the others. On the CPU both give the same bits for the same query. */
typedef struct cn_attn_args {
    void *out;     /* [T, hq, d]; where V has another width (cn_kv_layout_share), that of V */
    const void *q; /* [T, hq, d] */
    const void *kv;
    const cn_batch_view *batch;
    cn_kv_layout layout;
    uint32_t n_heads, layer;
    float scale; /* cn_model_config_scale */
    /* attn_decode: [n_decode] slots that each sequence attends to; 0 leaves its rows of out alone.
     * NULL: kv_len. */
    const uint32_t *lengths;
} cn_attn_args;

/* out[T,I] = silu(gate_up[T, 0:I]) * gate_up[T, I:2I] */
typedef struct cn_silu_mul_args {
    void *out;
    const void *gate_up;
    uint32_t n_tokens, intermediate;
} cn_silu_mul_args;

/* out[n,h] = x[rows[n], h]: the rows whose logits are computed. */
typedef struct cn_gather_args {
    void *out;
    const void *x;
    const uint32_t *rows;
    uint32_t n_rows, hidden;
} cn_gather_args;

enum { CN_MAX_LOGPROBS = 20 };

#define CN_NO_TOKEN UINT32_MAX /* no token could be sampled */

/* One row to sample. The steps, in vLLM's order:
 *   1. logprobs of the raw logits;
 *   2. the mask, bans and biases, then repetition, frequency and presence penalties;
 *   3. temperature 0: take the largest logit (ties: the lower id). Otherwise divide by the
 *      temperature, then apply min_p, top_k and top_p, each to the tokens that are left (all ties
 *      at a threshold are kept);
 *   4. draw u = philox(seed; sample, position): take the first id, in id order, whose cumulative
 *      weight exceeds u.
 * A NaN logit counts as -inf. If no logit is above -inf, the token is CN_NO_TOKEN, which is not
 * counted, and every logprob -inf.
 * engine/sample_math.h defines the arithmetic. Weights are integers, so every backend keeps and
 * draws the same tokens, regardless of the order of its sums. top_k and top_p compare logits after
 * the temperature; min_p and the mass of top_p are in weights. */
typedef struct cn_sample_row {
    uint64_t seed;
    uint32_t sample, position;
    float temperature, top_p, min_p;
    int32_t top_k; /* <= 0: off */
    float presence_penalty, frequency_penalty, repetition_penalty;
    int32_t count_slot; /* row of counts, or -1: no penalties */
    /* force_token >= 0: take this token whatever the logits, as cn_sample_is_forced says from the
     * sequence's previous token, prev_tokens[prev_row]. prev_row -1: the host knows that token. */
    int32_t force_token, prev_row;
    uint32_t force_after; /* 1 + token: force only behind this one; 0: behind any but force_token */
    int32_t n_logprobs; /* -1: none; 0: the chosen token's; else also the min(n_logprobs, V) best */
    uint32_t ban_start, n_ban;   /* into bans[] */
    uint32_t bias_start, n_bias; /* into biases[] */
    uint32_t mask; /* 1 + row of masks: tokens without a bit are banned; 0: none */
} cn_sample_row;

typedef struct cn_sample_args {
    float *logits; /* [n_rows, V]; undefined afterwards */
    uint32_t n_rows, vocab;
    const cn_sample_row *rows;
    const uint32_t *bans;
    const cn_logit_bias *biases;
    /* [., ceil(V / 32)] bit i % 32 of word i / 32 is token i; NULL when no row has a mask. */
    const uint32_t *masks;
    /* [n_count_slots, V] token counts of penalised requests: the low 15 bits count occurrences in
     * the output (saturating), the high bit is set if the prompt has the token. The op counts the
     * sampled token. */
    uint16_t *counts;
    const uint32_t *prev_tokens; /* the previous step's `tokens`; NULL when no row has a prev_row */
    uint32_t *tokens;      /* [n_rows] out */
    float *token_logprobs; /* [n_rows] out, rows with n_logprobs >= 0 */
    cn_logprob *top;       /* [n_rows, CN_MAX_LOGPROBS] out, best first; ties: lower id first */
    /* [n_rows] out, of rows with n_logprobs >= 0 whose token is forced: how many raw logits are not
     * below the token's, so 1 for the best one. NULL: not wanted. */
    uint32_t *ranks;
    void *scratch;         /* scratch_bytes, from backend->sample_scratch_bytes; 64-byte aligned */
    size_t scratch_bytes;
} cn_sample_args;

/* Rebuilds one row of counts when a request starts or resumes after a preemption. */
typedef struct cn_count_reset_args {
    uint16_t *counts;
    uint32_t vocab, slot;
    const uint32_t *prompt; /* [n_prompt] */
    const uint32_t *output; /* [n_output] */
    uint32_t n_prompt, n_output;
} cn_count_reset_args;

/* What selectors rank instead of keys: by pool block, for complete tiles. Planes that no declared
 * selector needs are NULL. n_channels is that of cn_layout_label_channels, at most 128. */
typedef struct cn_digest {
    const uint8_t *channels; /* [L, hk, n_channels] the channels of K that a label holds */
    const uint16_t *wide_channels; /* instead of them, of keys with more than 256 elements */
    const float *offsets;    /* [L, hk, n_channels] subtracted from these channels; NULL: 0 */
    uint32_t n_channels;
    uint8_t *labels;   /* CN_PLANE_LABELS [L, n_blocks, hk, b, n_channels / 2] */
    uint16_t *scales;  /* CN_PLANE_SCALES [L, n_blocks, hk, b] f16, largest |k_c - o_c| / 7 */
    void *bounds_16;   /* CN_PLANE_BOUNDS_16 [L, n_blocks, hk, b / 16, min|max, d] */
    void *bounds_64;   /* CN_PLANE_BOUNDS_64 [L, n_blocks, hk, b / 64, min|max, d] */
} cn_digest;

/* Device memory of blocks and query slots. Optional arrays are NULL. */
typedef struct cn_pools {
    cn_kv_layout layout;
    void *kv;
    float *score;     /* global score F, f32, or NULL; not the score S of an event */
    uint32_t *origin; /* positions P, or NULL */
    void *q_window;   /* [L, n_query_slots, window, hq, query_dim], act dtype, or NULL */
    uint32_t n_query_slots, window; /* window: rows of a ring, the engine's largest w */
    uint32_t n_heads;
    cn_dtype act_dtype; /* of q_window */
    float scale; /* of products of queries and keys; 0: 1 / sqrt(head_dim) */
    uint32_t first_head; /* kv heads of the ranks before this one; only the CPU has ranks so far */
    cn_latent_keys latent; /* queries of q_window times these are queries of rows of K; or NULL */
    cn_digest digest;
    void *draft; /* K of the retrieval head, cn_kv_layout_draft(&layout); NULL: there is none */
    void *state; /* CN_PLANE_STATE [n_blocks, draft_state]; NULL: the head reads embeddings alone */
} cn_pools;

/* Returns the arrays of p as planes. */
static inline cn_planes cn_pools_planes(const cn_pools *p)
{
    const cn_kv_layout *l = &p->layout;
    const size_t slot_bytes = (size_t)p->window * p->n_heads * l->query_dim *
                              cn_dtype_bytes(p->act_dtype);
    cn_planes out;
    out.where = CN_ON_DEVICE;
    void *const bases[CN_N_BLOCK_PLANES] = {p->kv,
                                            p->score,
                                            p->origin,
                                            p->digest.labels,
                                            p->digest.scales,
                                            p->digest.bounds_16,
                                            p->digest.bounds_64,
                                            p->draft,
                                            p->state};
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++)
        out.block[i] = cn_plane_by_layer(bases[i], cn_block_plane_bytes(l, (cn_block_plane)i),
                                         l->n_blocks, cn_block_plane_layers(l, (cn_block_plane)i));
    out.slot[CN_PLANE_QUERIES] =
        cn_plane_by_layer(p->q_window, slot_bytes, p->n_query_slots, l->n_layers);
    return out;
}

typedef struct cn_block_copy {
    uint32_t src, dst;
} cn_block_copy;

/* Copies of whole blocks and of whole query slots: all layers and planes. */
typedef struct cn_copy_list {
    const cn_block_copy *blocks; /* host, [n_blocks] */
    uint32_t n_blocks;
    const cn_block_copy *slots; /* host, [n_slots] */
    uint32_t n_slots;
} cn_copy_list;

/* Copies blocks and query slots from one memory to another, bit for bit: inside the pool for
 * forks, to host memory and back for swap, and to a home space. `to` must have the planes and the
 * layers of `from`; its others keep their content. Inside one memory the copies take effect in the
 * order of the list. Between two memories the copies of a list must be independent of each other.
 * CN_ERR_SHAPE when the list has query slots and `from` has none. */
typedef struct cn_copy_args {
    cn_planes from, to;
    cn_copy_list list;
} cn_copy_args;

static inline cn_status cn_copy_check(const cn_copy_args *a)
{
    if (a->list.n_slots > 0 && !a->from.slot[CN_PLANE_QUERIES].base)
        return cn_fail(CN_ERR_SHAPE,
                       "copy_blocks: %u query slots to copy, but the pools have no query windows",
                       a->list.n_slots);
    return CN_OK;
}

/* ---- selection (SELECTION.md): which slots a decode row attends to ----
 * A unit is (sequence, layer, kv head). Candidates of a sequence are entries of 1, 16 or 64 tokens
 * from position `base` on. Where a sequence selects, its slots are its positions. */

/* Labels (n_channels values each) and bounds of complete tiles of the KV layout (64 tokens, or a
 * smaller block), all layers. Every plane of pools.digest that is not NULL is written.
 * label_c = round((k_c - o_c) / scale), -7 to 7 (engine/select/select_math.h), with the offset o_c
 * of the channel in f32. */
typedef struct cn_digest_tile {
    uint32_t block, tile; /* tile: index in the block, in tiles of the layout */
} cn_digest_tile;
typedef struct cn_digest_args {
    cn_pools pools;
    const cn_digest_tile *tiles; /* host, [n] */
    uint32_t n;
} cn_digest_args;

/* Predicts the next query of each sequence from its ring (AsyncSpade §3 and §4.2, SELECTION.md §4).
 * The rows used are those of positions newest, newest - 1, ..., newest - n_window, as far as they
 * exist. With n_window 1, or with one row, the result is the newest query. With `rotate` all rows
 * are rotated to position newest + 1 before they are used. */
typedef struct cn_predict_args {
    const void *ring;          /* [L, n_query_slots, rows, hq, d] act, after RoPE */
    uint32_t n_query_slots, rows, n_heads, head_dim;
    uint32_t n_fixed; /* first elements that RoPE leaves alone: those of latent attention */
    const uint32_t *slots;     /* [S]; CN_NO_SLOT: the sequence predicts nothing */
    const uint32_t *newest;    /* [S] position of the newest query to use */
    const uint32_t *modulus;   /* [S] position p is in row p % modulus */
    const uint32_t *n_window;  /* [S] W, at most modulus - 1 and CN_MAX_SELECT_WINDOW */
    const uint8_t *weights;    /* [S] cn_select_weights */
    const uint8_t *rotate;     /* [S] */
    uint32_t n_seqs, first_layer, n_layers;
    /* Ridge, times the mean diagonal of the Gram matrix of the largest window; all windows have the
     * same ridge. */
    float eps;
    const float *cos, *sin; /* [max_position, (d - n_fixed)/2] as in rope_store */
    void *out; /* [S, n_layers, hq, d] act; out_stride elements from a sequence to the next */
    size_t out_stride;
} cn_predict_args;

typedef enum cn_sel_key {
    CN_KEY_ROWS,   /* q_h . k */
    CN_KEY_LABELS, /* integer product of the quantised query and the label */
    CN_KEY_BOUNDS, /* largest q . k that the bounds of an entry of 16 or 64 tokens allow */
    CN_KEY_HASH,   /* a hash of (seed, layer, kv head, candidate): random */
    CN_N_SEL_KEYS
} cn_sel_key;
typedef enum cn_sel_group {
    CN_GROUP_MEAN, /* the group's mean query: rows and labels only */
    CN_GROUP_SUM,  /* sum over heads: bounds only */
    CN_GROUP_MAX   /* largest log-softmax of any head, over the candidates of the unit */
} cn_sel_group;
enum { CN_SEL_TRUE, CN_SEL_PREDICTED, CN_N_SEL_QUERIES };

/* What a sequence does in one stage of a step. It is read on the device, so that one graph serves
 * all rows. */
typedef struct cn_sel_stage {
    uint8_t active;     /* 0: the sequence has no such stage */
    uint8_t key, group; /* cn_sel_key, cn_sel_group */
    uint8_t query;      /* CN_SEL_TRUE or CN_SEL_PREDICTED */
    uint8_t entry_log2; /* tokens of a candidate: 0, 4 or 6 */
    uint8_t in_tiles;   /* candidate c is token c % 64 of tile tiles[c / 64] */
    uint8_t is_area;    /* the candidates are all tokens from 0 on of at most tile_stride tiles */
    uint8_t reserved;
} cn_sel_stage;

/* Returns true for a stage with group rule max. */
static inline bool cn_sel_stage_is_max(const cn_sel_stage *st)
{
    return st->active && st->group == CN_GROUP_MAX && st->key != CN_KEY_HASH;
}

enum { CN_SELECT_STAGES = 2 }; /* tiles, then tokens */

/* The forms of the active stages of some sequences: a bit for each combination of key, group rule
 * max or another one, and whether candidates are in tiles. stage[i] 0: no stage i is active. */
typedef struct cn_sel_forms {
    uint32_t stage[CN_SELECT_STAGES];
} cn_sel_forms;

/* The forms, of any key, whose candidates are in tiles, or those of an exchange area; and those
 * under group rule max. */
#define CN_SEL_FORMS_IN_TILES 0xaaaau
#define CN_SEL_FORMS_MAX 0xccccu

static inline uint32_t cn_sel_forms_of_key(cn_sel_key key) { return 15u << 4 * key; }

static inline uint32_t cn_sel_form(const cn_sel_stage *st)
{
    uint32_t form = cn_sel_forms_of_key((cn_sel_key)st->key);
    form &= cn_sel_stage_is_max(st) ? CN_SEL_FORMS_MAX : ~CN_SEL_FORMS_MAX;
    form &= st->in_tiles || st->is_area ? CN_SEL_FORMS_IN_TILES : ~CN_SEL_FORMS_IN_TILES;
    return st->active ? form : 0;
}

/* Scores candidates. Candidate c of unit (s, l, h) has its score at
 *   out[(first[s] * n_layers + (l - first_layer) * n[s]) * hk + h * n[s] + c]:
 * f16 bits as a u16 that sorts in the same order (cn_score_bits, engine/select/select_math.h),
 * scaled as pools.scale says; under group rule max log2 of the largest share (cn_share_score).
 * Candidates in tiles that lie below position `base` get 0, the lowest value, and count in no
 * softmax. Every backend ranks labels with the same bits.
 *
 * What the op reads, except q and tiles, must be complete before the op before it starts: a device
 * may read it early. */
typedef struct cn_score_args {
    /* By query: [S, n_layers, hq, d] act; q_stride elements from a sequence to the next. */
    const void *q[CN_N_SEL_QUERIES];
    size_t q_stride[CN_N_SEL_QUERIES];
    const cn_sel_stage *stage;       /* [S] */
    cn_pools pools;
    const uint32_t *tables;          /* [S, table_stride] */
    uint32_t table_stride;
    const uint32_t *first, *n;       /* [S] prefix sums of n; candidates of each unit */
    /* [S] position of the first candidate; a multiple of an entry */
    const uint32_t *base;
    const uint32_t *seed;            /* [S] of CN_KEY_HASH */
    const uint32_t *tiles; /* [S, n_layers, hk, tile_stride] of the stage before; or NULL */
    uint32_t tile_stride;
    uint32_t route; /* cn_backend.select_route of the stages' forms; 0: of any forms */
    uint32_t n_seqs, first_layer, n_layers;
    /* Scratch of group rule max, ragged alike: cn_logit_row elements of backend->logit_bytes for
     * each candidate; aligned to 8 bytes. NULL: no stage has group rule max. */
    void *logits;
    uint16_t *out;
} cn_score_args;

/* Returns how many logits a candidate has under rule max: the query heads of its kv head, rounded
 * up to a multiple of 4. So rows of 2-byte elements can be loaded in words of 8 bytes. */
static inline uint32_t cn_logit_row(uint32_t group) { return (group + 3) / 4 * 4; }

/* Selects the best min(k, n) candidates of each unit; ties go to the newer one. The result is in
 * ascending order. With `tokens` it is slots: first positions [0, n_forced), then the tokens of the
 * selected entries. Without, it is the numbers of the entries (position / entry tokens). */
typedef struct cn_select_args {
    const uint16_t *score;
    const cn_sel_stage *stage;
    const uint32_t *first, *n, *base; /* as in cn_score_args */
    const uint32_t *k;                /* [S] */
    const uint32_t *n_forced;         /* [S]; read with `tokens` */
    const uint32_t *tiles;            /* as in cn_score_args */
    uint32_t tile_stride;
    uint32_t n_seqs, n_layers, n_kv_heads;
    bool tokens;
    uint32_t *list;                   /* [S, n_layers, hk, list_stride] */
    uint32_t list_stride;
} cn_select_args;

/* The selection of decode rows, arrays [S] each. A row that attends to all of its slots has no
 * active stage, list_len 0 and tail 0. A row without an active token stage may have a list: then it
 * is in scratch.list before. */
typedef struct cn_select_rows {
    struct {
        const cn_sel_stage *stage;
        const uint32_t *first, *n, *base, *k; /* as in cn_score_args and cn_select_args */
    } stage[CN_SELECT_STAGES]; /* stage 0: bounds of tiles under group rule sum */
    const uint32_t *n_forced, *seed;
    /* The row attends to lengths[s] slots: first the list of its kv head, then the tail. Entry i is
     * list[s, head, i] for i < list_len[s], else slot tail[s] + i - list_len[s]. */
    const uint32_t *list_len, *tail, *lengths;
} cn_select_rows;

/* Device memory in which rows are ranked. Rows: of the largest step. */
typedef struct cn_select_scratch {
    uint16_t *score; /* [room, hk] */
    void *logits;    /* [room, hk, cn_logit_row] of backend->logit_bytes */
    uint32_t *list;  /* [rows, hk, list_stride]; the lists, after the op */
    uint32_t *tiles; /* [rows, hk, tile_stride]; NULL without stages over tiles */
    void *predicted; /* act [rows, layers that select, hq, d]; NULL if no row predicts */
    void *raw_predicted; /* act [rows, hq, query_dim] of latent attention, before its product */
    uint32_t room;   /* candidates of one launch, all its sequences */
    uint32_t list_stride, tile_stride;
} cn_select_scratch;

/* Ranks, selects and attends for decode rows [first_row, first_row + n_rows) of a batch, in one
 * layer. All arrays are those of the whole batch, but the rows' numbers `first` count from
 * first_row. How the stages overlap is the backend's affair. A sequence of length 0 leaves its rows
 * of out alone. In layers above 0 the digests, the tables and the arrays of the rows must be
 * complete before the attention of the layer below starts. */
typedef struct cn_attend_selected_args {
    cn_attn_args attn; /* lengths is not used */
    cn_pools pools;
    cn_select_rows rows;
    cn_select_scratch scratch;
    const void *predicted; /* act [S, hq, d]: of this layer; or NULL */
    size_t predicted_stride; /* elements from a sequence to the next */
    uint32_t first_row, n_rows;
    uint32_t route; /* cn_backend.select_route of the forms that the rows may have */
} cn_attend_selected_args;

enum { CN_MAX_SELECT_WINDOW = 64 };

/* ---- exchange (HOMES.md): which tokens of the home space lie in an exchange area ----
 * An entry is a token or a tile of 64. Unit (s, l, h) has k[s] entries in its area; entry e is the
 * slots [e * entry tokens, (e + 1) * entry tokens) of the sequence's table. */
typedef struct cn_move {
    uint32_t entry;  /* of the exchange area: what is overwritten */
    uint32_t source; /* number of the candidate: position / entry tokens */
} cn_move;

/* Replaces entries of the exchange areas by better ones. For each unit the wanted set is the best
 * k[s] candidates that are not held; ties go to the newer one. Entries of the area outside this set
 * are victims, in ascending order of entry. Wanted candidates outside the area are newcomers, best
 * first. The first min(cap[s], newcomers) newcomers replace the first victims: `chosen` is updated
 * in place and the pairs are written to `moves`. n_missed counts the other newcomers. With `fill`
 * the area is empty before: entry i receives the i-th wanted candidate in ascending order of
 * position, and cap is not read. There are always at least k[s] candidates that are not held, and
 * no entry of an area is held. */
typedef struct cn_exchange_args {
    const uint16_t *score;            /* output of `score` */
    const uint32_t *first, *n, *base; /* [S] as in cn_score_args */
    const uint8_t *entry_log2;        /* [S] 0 or 6 */
    const uint32_t *k, *cap;          /* [S]; k 0: the sequence has no exchange */
    const uint32_t *slots;            /* [S] row of `chosen` */
    /* Policy `zip`: slots [held_from[s], held_from[s] + n_held[s]) of the sequence's table hold
     * positions (P, plane `origin` of `local`) that are no candidates. They are different, and
     * entries are tokens then. NULL: nothing is held. */
    cn_pools local;
    const uint32_t *local_tables, *held_from, *n_held;
    uint32_t local_stride;
    uint32_t n_seqs, first_layer, n_layers;
    bool fill;
    uint32_t *chosen; /* [L, n_slots, hk, chosen_stride] number of the candidate in each entry */
    uint32_t n_slots, chosen_stride;
    cn_move *moves;   /* [S, n_layers, hk, move_stride] */
    uint32_t *n_moves, *n_missed; /* [S, n_layers, hk] */
    uint32_t move_stride;
} cn_exchange_args;

/* Copies K and V of the moved entries from the home space to the exchange areas, and writes P of
 * their slots where `local` has it. Labels and scales are copied for tile entries only (entry_log2
 * 6), where both memories have them: a step ranks tokens of the area by labels only if its entries
 * are tiles (`tls`). Those of other slots keep their content. */
typedef struct cn_fetch_args {
    cn_pools local, home; /* two memories; both can be addressed by the backend */
    const uint32_t *local_tables, *home_tables; /* [S, local_stride], [S, home_stride] */
    uint32_t local_stride, home_stride;
    const uint8_t *entry_log2;  /* [S] 0 or 6 */
    const cn_move *moves;       /* as in cn_exchange_args */
    const uint32_t *n_moves;
    uint32_t move_stride;
    uint32_t n_seqs, first_layer, n_layers;
    bool one_list; /* the moves of all layers are the same: both arrays are [S, hk] */
} cn_fetch_args;

/* The scores of an event that keeps the best slots, in the order in which they apply
 * (engine/cpu/score.h). A backend names those that its `compress` computes. */
#define CN_SCORES(X)                                                                \
    X(ATTENTION, attention) X(GLOBAL, global) X(POOLING, pooling) X(FOLLOW, follow) \
    X(SCALE, scale) X(LIGHTNING, lightning) X(FLASH, flash) X(COMBINE, combine)
#define CN_SCORE_KIND(KIND, name) CN_SCORE_##KIND,
typedef enum cn_score_kind { CN_SCORES(CN_SCORE_KIND) CN_N_SCORES } cn_score_kind;

/* How an event selects the slots that it keeps. A policy has one of these (compress/policy.h). */
typedef enum cn_keep {
    CN_KEEP_ALL,    /* no events */
    CN_KEEP_RECENT, /* the first sink_tokens and the newest slots */
    CN_KEEP_BEST,   /* the slots with the highest scores, and the observation window */
    CN_N_KEEPS
} cn_keep;

/* One request of a compression event (DESIGN.md §2). It has n = n_blocks * block_tokens resident
 * slots, all full. Where the pools have P, the event writes it for the target slots. At a first
 * event source slot i has position i. Later P moves with slots below n_history, and slot i from
 * there on has position position_end - n + i. The window's query u (0 = oldest) is in ring row
 * (position_end - w + u) mod w, where position_end is the number of tokens so far. */
typedef struct cn_compress_req {
    cn_kv_params params; /* params.move: which target slot receives which kept slot (cn_kv_move) */
    uint32_t n_blocks, n_target; /* kept = n_target * block_tokens */
    const uint32_t *table;       /* host, [n_blocks] sources */
    const uint32_t *target;      /* host, [n_target]; may overlap the sources */
    uint32_t query_slot;         /* unused by policy `window` */
    uint32_t position_end;
    bool first_event;
    uint32_t n_history; /* slots [0, n_history) have a global score from the request's last event */
} cn_compress_req;

typedef struct cn_compress_args {
    cn_pools pools;
    const cn_compress_req *reqs; /* host */
    uint32_t n_reqs;
    void *scratch; /* scratch_bytes, from backend->compress_scratch_bytes */
    size_t scratch_bytes;
} cn_compress_args;

struct cn_backend {
    const char *name;      /* "cpu", "cuda" */
    cn_dtype matrix_dtype; /* of weight matrices in the backend's memory: CN_F32 or CN_BF16 */
    cn_dtype vector_dtype; /* of norms and biases there */
    cn_dtype act_dtype;
    /* Values of cn_kv_form that ops support, bit i is cn_kv_form i: those of every engine and
     * `compress`; those of selectors; `score` where it ranks rows of K; those of homes. */
    uint32_t kv_forms, select_kv_forms, row_kv_forms, home_kv_forms;
    /* Values of cn_x_form that products with matrices in CN_MATRIX_FP8 support; 0: the backend has
     * no such products. */
    uint32_t fp8_x_forms;
    uint32_t fp8_columns; /* K of these products is a multiple of this */
    bool fp8_experts;     /* expert_gate_up and expert_down are among them */
    bool gates_apart;     /* expert_gate_up needs its workspace gate_up */
    uint32_t default_block_tokens; /* tokens of a KV block when --block-size is 0 */
    bool async; /* ops return before they have run */
    bool ranks_latent; /* selection and homes support latent attention */
    size_t mem_align; /* sizes of the start plan are multiples of this many bytes */
    size_t logit_bytes; /* of an element of cn_score_args.logits */
    uint32_t keeps;   /* values of cn_keep that `compress` supports: bit i is cn_keep i */
    uint32_t scores;  /* of CN_KEEP_BEST that `compress` computes: bit i is cn_score_kind i */
    uint32_t head_rules; /* of cn_kv_head_rule that CN_KEEP_BEST supports: bit i is value i */
    uint32_t most_chosen; /* the largest chosen_stride of `exchange`; 0: it has no limit */
    void *ctx;  /* private to the backend */

    void (*close)(cn_backend *be);
    /* Every thread except the one that opened the backend must call this before any other function
     * of the table. Calling it again is harmless. NULL: no thread needs to call it. */
    void (*enter)(cn_backend *be);
    /* Device memory, zeroed. Allocated at start only. */
    cn_status (*mem_alloc)(cn_backend *be, size_t bytes, void **out);
    void (*mem_free)(cn_backend *be, void *p);
    /* Bytes that one mem_alloc can still return. NULL: mem_alloc takes host memory, and the backend
     * sets no limit. */
    size_t (*mem_avail)(cn_backend *be);
    /* Bytes of device memory: `planned` is the limit that the options set at open, `used` is what
     * all processes use now. NULL if mem_avail is NULL. */
    void (*mem_usage)(cn_backend *be, uint64_t *planned, uint64_t *used);
    /* Host memory, zeroed, that the device reads and writes directly. Allocated at start only. */
    cn_status (*host_alloc)(cn_backend *be, size_t bytes, void **out);
    void (*host_free)(cn_backend *be, void *p);
    /* mem_write: on a HIGH stream the caller may change `host` as soon as the call returns; on a
     * LOW stream only after the stream has run the write. mem_read: `host` is filled once the
     * stream has run the read; the call may wait for that unless `host` is memory of host_alloc. */
    cn_status (*mem_write)(cn_stream *s, void *dst, const void *host, size_t bytes);
    cn_status (*mem_read)(cn_stream *s, void *host, const void *src, size_t bytes);
    /* *out (device) = sum of the 32-bit words of src[bytes]; src is 16-byte aligned. It reads src
     * once, so benchmarks measure read bandwidth with it. May be NULL. */
    cn_status (*mem_sum)(cn_stream *s, const void *src, size_t bytes, uint64_t *out);

    /* Creates a stream. A kernel of a HIGH stream starts before waiting kernels of LOW streams. On
     * the CPU a HIGH stream runs an op on the calling thread and the worker threads before the call
     * returns, unless the backend is threaded. All other CPU streams have one thread each. Streams
     * are created at start only. stream_free waits for the stream's work. All streams must be freed
     * before close. */
    cn_status (*stream_create)(cn_backend *be, cn_priority priority, cn_stream **out);
    void (*stream_free)(cn_stream *s); /* NULL is fine */
    cn_status (*stream_sync)(cn_stream *s);
    cn_status (*fence_create)(cn_backend *be, cn_fence **out);
    void (*fence_free)(cn_fence *f);
    cn_status (*fence_record)(cn_fence *f, cn_stream *s);
    cn_status (*fence_wait)(cn_stream *s, cn_fence *f); /* the stream waits, not the host */
    cn_status (*fence_done)(cn_fence *f, bool *done);   /* polls; returns an error of the stream */
    cn_status (*fence_sync)(cn_fence *f);               /* the host waits */
    /* fence_create for a fence whose time can be read. fence_seconds: from the record of one to
     * that of another, both of this backend and done. NULL: the backend has no clock. */
    cn_status (*timed_fence_create)(cn_backend *be, cn_fence **out);
    cn_status (*fence_seconds)(cn_fence *from, cn_fence *to, double *seconds);

    /* Between begin and end, ops of s are recorded and not run. Addresses and numbers in their
     * arguments are fixed at recording; the contents of arrays are read at each launch. mem_write
     * and mem_read cannot be recorded. NULL: the backend runs ops one by one only. */
    cn_status (*graph_begin)(cn_stream *s);
    cn_status (*graph_end)(cn_stream *s, cn_graph **out);
    cn_status (*graph_launch)(cn_stream *s, cn_graph *g);
    void (*graph_free)(cn_graph *g);

    /* Used at start. NULL: the host computes dummy weights and writes them. */
    cn_status (*dummy_fill)(cn_stream *s, const cn_dummy_fill_args *a);

    cn_status (*embed)(cn_stream *s, const cn_embed_args *a);
    cn_status (*rmsnorm)(cn_stream *s, const cn_rmsnorm_args *a);
    /* Ranks (rank_ops.h). The barrier of n_ranks ranks, whose backends are of one kind; it is freed
     * when their streams are idle. NULL: the backend runs no model that is split. */
    cn_status (*barrier_create)(cn_backend *be, uint32_t n_ranks, double timeout_s,
                                cn_barrier **out);
    /* The stream of a rank. When the barrier breaks, all of them fail with its error. */
    void (*barrier_add)(cn_barrier *b, uint32_t rank, cn_stream *s);
    /* As if a rank had not come. Any thread; later calls change nothing. */
    void (*barrier_break)(cn_barrier *b, const char *why);
    void (*barrier_free)(cn_barrier *b);
    cn_status (*reduce_norm)(cn_stream *s, const cn_reduce_norm_args *a);
    cn_status (*gemm)(cn_stream *s, const cn_gemm_args *a);
    cn_status (*gemm_silu_mul)(cn_stream *s, const cn_gemm_silu_mul_args *a); /* may be NULL */
    /* Returns whether two products of n_tokens rows can compute the norm between them. The answer
     * for given shapes and rows never changes. NULL: they cannot. */
    bool (*links_norm)(cn_backend *be, uint32_t n_tokens, const cn_product_shape *first,
                       const cn_product_shape *second);
    cn_status (*rope_store)(cn_stream *s, const cn_rope_store_args *a);
    /* NULL: no `spec`. The last three are for heads that read states of the model. */
    cn_status (*draft_store)(cn_stream *s, const cn_draft_store_args *a);
    cn_status (*draft_part)(cn_stream *s, const cn_draft_part_args *a);
    cn_status (*draft_before)(cn_stream *s, const cn_draft_before_args *a);
    cn_status (*draft_keep)(cn_stream *s, const cn_draft_keep_args *a);
    cn_status (*attn_decode)(cn_stream *s, const cn_attn_args *a);
    cn_status (*attn_prefill)(cn_stream *s, const cn_attn_args *a);
    /* Selection; NULL: the backend supports no selectors. */
    cn_status (*digest)(cn_stream *s, const cn_digest_args *a);
    cn_status (*predict)(cn_stream *s, const cn_predict_args *a);
    cn_status (*score)(cn_stream *s, const cn_score_args *a);
    cn_status (*select)(cn_stream *s, const cn_select_args *a);
    cn_status (*attend_selected)(cn_stream *s, const cn_attend_selected_args *a);
    /* Returns a number above 0 that says how the backend ranks rows of these forms. Calls with
     * equal numbers launch the same kernels for the same number of rows. `need` is of the rows of a
     * step, `declared` of all rows that steps can have: a backend may choose kernels that serve
     * more rows, so that there are fewer numbers. NULL: the number is not used. */
    uint32_t (*select_route)(const cn_sel_forms *need, const cn_sel_forms *declared);
    /* Exchange with a home space; NULL: the backend supports no away requests. */
    cn_status (*exchange)(cn_stream *s, const cn_exchange_args *a);
    cn_status (*fetch)(cn_stream *s, const cn_fetch_args *a);
    cn_status (*silu_mul)(cn_stream *s, const cn_silu_mul_args *a);
    cn_status (*gather)(cn_stream *s, const cn_gather_args *a);
    /* Layers with experts; NULL: the backend runs no model that has them. */
    cn_status (*route)(cn_stream *s, const cn_route_args *a);
    cn_status (*expert_gate_up)(cn_stream *s, const cn_expert_gate_up_args *a);
    cn_status (*expert_down)(cn_stream *s, const cn_expert_down_args *a);
    cn_status (*expert_sum)(cn_stream *s, const cn_expert_sum_args *a);
    /* Latent attention; NULL: the backend runs no model that has it. */
    cn_status (*latent_store)(cn_stream *s, const cn_latent_store_args *a);
    cn_status (*heads_gemm)(cn_stream *s, const cn_heads_gemm_args *a);
    /* Bytes of scratch for a step of at most max_rows rows. */
    size_t (*sample_scratch_bytes)(cn_backend *be, uint32_t max_rows, uint32_t vocab);
    cn_status (*sample)(cn_stream *s, const cn_sample_args *a);
    cn_status (*count_reset)(cn_stream *s, const cn_count_reset_args *a);
    cn_status (*copy_blocks)(cn_stream *s, const cn_copy_args *a);
    /* Bytes of scratch for one request of n_max slots. `compress` scores, selects and moves all
     * requests of a call. */
    size_t (*compress_scratch_bytes)(cn_backend *be, const cn_pools *p, uint32_t n_max);
    cn_status (*compress)(cn_stream *s, const cn_compress_args *a);
};

typedef struct cn_cpu_backend_opts {
    uint32_t n_threads; /* including the calling thread; 0 = one per core */
    bool threaded;      /* HIGH streams have one thread each too: ops return before they have run */
} cn_cpu_backend_opts;

/* The CPU backend. A HIGH stream runs on the calling thread and a thread pool. A LOW stream has its
 * own thread. With `threaded` every stream has its own thread. */
cn_status cn_backend_cpu_open(cn_backend **out, const cn_cpu_backend_opts *o);

#define CN_CUDA_ANY_PEER UINT32_MAX

/* Pointers are borrowed for the call. */
typedef struct cn_cuda_backend_opts {
    /* Set by cn_backend_cuda_load (engine/start/device_choice.h): describes the calling program. */
    const cn_base_calls *base;
    const char *version; /* CINCH_VERSION */
    /* CN_HEADER_SUM of the program. The Makefile computes this checksum of the contents of ops.h
     * and of all headers that it includes, and defines it for the two files that use it. A backend
     * with another sum was built from other headers. */
    uint64_t header_sum;

    uint32_t device; /* ordinal; CN_CUDA_ANY_PEER: the first device that is a peer of `beside` */
    /* 1 + the ordinal of the device that runs the model, for a backend beside it; else 0. Another
     * device must be its peer: kernels of each address the memory of the other. A backend beside
     * it has no products and no attention. */
    uint32_t beside;
    /* Size of the single allocation of device memory. It is memory_bytes; or, if that is 0,
     * memory_share of the device's memory minus what is in use. wanted_bytes (may be NULL) is
     * called first, before memory exists, when the table's functions that return sizes already
     * work. It sets *bytes to what the caller needs beside the backend's own memory; 0 means that
     * memory_bytes and memory_share decide. */
    uint64_t memory_bytes;
    float memory_share;
    cn_status (*wanted_bytes)(const void *ctx, cn_backend *be, uint64_t *bytes);
    const void *wanted_ctx;

    /* The model and the largest step: for the workspace, and the products that are timed at start.
     * hidden 0: nothing is timed. */
    uint32_t n_heads, n_kv_heads, head_dim, hidden, vocab;
    uint32_t intermediate, n_experts; /* the widest dense MLP, experts of a layer; 0: none */
    /* Bit i: product i of a layer (qkv, o, gate and up, down) has FP8 weights in every layer. It is
     * not timed. */
    uint32_t fp8_products;
    uint32_t max_seqs, max_tokens;
    uint32_t score_layers; /* most layers of one call of `score`; 0: one */
    uint32_t score_heads;  /* most query heads of one call of `score`; 0: n_heads */
    uint32_t high_streams; /* HIGH streams that the memory has room for; 0: one */
    /* For K and V in eight bits: memory of a HIGH stream for rows in bf16 that a prefill reads. It
     * must hold those of the longest sequence and one kv head. 0: they are not copied. */
    uint64_t plain_bytes;

    bool batch_invariant;  /* a row's bits do not depend on batch composition */
    const char *cache_dir; /* folder for timings, created if missing; NULL: do not keep them */
    const struct cn_cuda_switches *switches; /* cuda/cuda_switches.h; NULL: all are 0 */
} cn_cuda_backend_opts;

/* The CUDA backend; the only symbol of cinch-cuda.so. */
cn_status cn_backend_cuda_open(cn_backend **out, const cn_cuda_backend_opts *o);
typedef cn_status (*cn_backend_cuda_open_fn)(cn_backend **out, const cn_cuda_backend_opts *o);

CN_END_C
