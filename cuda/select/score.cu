/* score.cu - score: candidates of a selection compared with the query.
 * In: q bf16, keys or digests by block. Out: u16 [units, n], ragged as in cn_score_args. This file
 * checks a launch and divides the scratch; the kernel is in score_ring.cu. The kinds of keys:
 *   rows    q . k, products of bf16, sums in f32. A mean query is split into two bf16 values.
 *   bounds  sum over channels of max(q_c min_c, q_c max_c), which is one product of width 2 d:
 *           [min(q, 0) | max(q, 0)] . [min | max]. A group's sum is the product with the sum.
 *   labels  integer products. Nibbles become bytes of 16 times their value.
 *   hash    no query; the score is the hash.
 *
 * Group rule max takes one more kernel (score_share.cu). The first one stores the logits of all
 * heads, and the sum of the weights of each part (engine/select/select_math.h). Where its blocks
 * compute the shares, the second one mostly only clears.
 *
 * Bytes read per candidate and kv head: rows 2 d, bounds 4 d, labels n_channels / 2 + 2; written:
 * 2. Rule max also writes 2 a head, and reads them from the L2 cache if they fit. CPU version:
 * cpu_sel_score.c. */
#include "cuda/attn/attn_common.cuh"
#include "cuda/select/score_labels.cuh"
#include "cuda/select/select_route.h"

enum {
    MAX_HEAD_DIM = 256,
    MAX_GROUP = 64,        /* query heads of a kv head */
    LEAST_BLOCK = 16,      /* tokens of a block: those of a lot of K rows */
    LEAST_LAYERS = 4,      /* of a call, if score_layers is less */
    MOST_BLOCKS = 512,     /* of a launch */
    PATIENCE = 200 * 1000, /* cn_score_params.patience: 0.1 ms at 2 GHz */
    SHARE_WORDS = 4        /* cn_score_shares.n_late, and what follows it; 16 bytes */
};

/* Where the parts of the scratch begin, in bytes. They do not depend on the call, because only what
 * a call has used is cleared after it. */
typedef struct scratch_places {
    size_t units; /* of a call of one layer, at most; the counts of these are at 0 */
    size_t done;  /* counts of finished lists */
    size_t counters, sums; /* of rule max; sums: those that blocks wait for */
    size_t results, end;   /* other sums of a call, and late parts */
} scratch_places;

static scratch_places places_of(const cn_cuda_backend_opts *o)
{
    scratch_places at;
    at.units = (size_t)o->max_seqs * o->n_kv_heads;
    at.done = at.units * CN_COUNTS * sizeof(uint32_t);
    at.counters = at.done + cn_round_up(at.units * sizeof(uint32_t), 64);
    at.sums = at.counters + SHARE_WORDS * sizeof(uint32_t);
    at.results = at.sums + (at.units + MOST_BLOCKS) * CN_LABEL_HEADS * sizeof(cn_marked_sum);
    const size_t units = cn_max_u32(o->score_layers, LEAST_LAYERS) * at.units;
    const uint32_t n_heads = cn_max_u32(o->n_heads, o->score_heads);
    const size_t heads = n_heads * units / cn_max_u32(o->n_kv_heads, 1);
    at.end = at.results + (units + MOST_BLOCKS) * sizeof(cn_score_late) +
             (heads + n_heads * MOST_BLOCKS) * sizeof(cn_marked_sum);
    return at;
}

extern "C" size_t cn_cuda_select_scratch_bytes(const cn_cuda_backend_opts *o)
{
    return places_of(o).end;
}

static cn_status check_score(const cn_score_args *a)
{
    const cn_kv_layout *l = &a->pools.layout;
    const uint32_t heads = a->pools.n_heads, d = l->head_dim;
    if (d == 0 || d % 16 != 0 || d > MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE, "score: head_dim %u: expected a multiple of 16, at most %d", d,
                       MAX_HEAD_DIM);
    if (heads == 0 || heads % l->n_kv_heads != 0 || heads / l->n_kv_heads > MAX_GROUP)
        return cn_fail(CN_ERR_SHAPE,
                       "score: %u query heads: expected a multiple of the %u kv heads, at most %d "
                       "times as many",
                       heads, l->n_kv_heads, MAX_GROUP);
    /* Labels and bounds are the same for rows in eight bits; such rows are not ranked. */
    const uint32_t keys = cn_route_keys(a->route);
    const bool reads_rows = keys == 0 || keys >> CN_KEY_ROWS & 1;
    if (!cn_kv_layout_has_rows(l, CN_BF16) && (reads_rows || cn_kv_form_of(l) != CN_KV_FP8))
        return cn_fail(CN_ERR_SHAPE,
                       "score: KV layout: expected K and V, or K alone, in bf16, rows of %u "
                       "elements", d);
    if (l->block_tokens < LEAST_BLOCK || (l->block_tokens & (l->block_tokens - 1)) != 0)
        return cn_fail(CN_ERR_SHAPE,
                       "score: blocks of %u tokens: expected a power of two, at least %d",
                       l->block_tokens, LEAST_BLOCK);
    return CN_OK;
}

/* Returns the parameters that the arguments alone determine. */
static cn_score_params score_params_of(const cn_score_args *a)
{
    const cn_kv_layout *l = &a->pools.layout;
    cn_score_params p = {};
    p.args = *a;
    if (cn_kv_form_of(l) == CN_KV_PLAIN) p.rows = cn_kv_rows_of(l);
    p.group = a->pools.n_heads / l->n_kv_heads;
    p.block_log2 = cn_log2_u32(l->block_tokens);
    p.tile_log2 = cn_log2_u32(l->tile_tokens);
    p.label_bytes = a->pools.digest.n_channels / 2;
    p.row = cn_logit_row(p.group);
    p.seq_units = a->n_layers * l->n_kv_heads;
    p.n_units = a->n_seqs * p.seq_units;
    p.keys = cn_route_keys(a->route);
    p.few = a->route & CN_ROUTE_FEW;
    return p;
}

/* Divides the scratch. may_count: the next op clears the counts. */
static cn_status set_scratch(const cn_stream *s, cn_score_params *p, bool may_count)
{
    const scratch_places at = places_of(&s->cuda->opts);
    char *scratch = (char *)s->select_scratch;
    const size_t slots =
        (at.end - at.results) / (p->group * sizeof(cn_marked_sum) + sizeof(cn_score_late));
    const uint32_t n_blocks = CN_SCORE_BLOCKS * s->cuda->device.n_sms;
    if (p->n_units + (size_t)n_blocks > slots)
        return cn_fail(CN_ERR_SHAPE,
                       "score: %u units of %u query heads: expected at most %zu units", p->n_units,
                       p->group, slots > n_blocks ? slots - n_blocks : 0);
    cn_marked_sum *sums = (cn_marked_sum *)(scratch + at.results);
    p->shares.late = (cn_score_late *)(sums + slots * p->group);
    p->shares.n_late = (uint32_t *)(scratch + at.counters);
    const bool fits = p->args.n_layers == 1 && p->n_units <= at.units;
    if (may_count && fits && cn_score_ring_counts(*p)) p->counts = (uint32_t *)scratch;
    p->shares.in_blocks = p->counts && p->args.logits;
    p->shares.sums = p->shares.in_blocks ? (cn_marked_sum *)(scratch + at.sums) : sums;
    return CN_OK;
}

cn_status cn_score_launch(cn_stream *s, const cn_score_args *a, bool early, bool after_select,
                          uint32_t **counts)
{
    if (counts) *counts = NULL;
    CN_TRY(check_score(a));
    cn_score_params p = score_params_of(a);
    if (p.n_units == 0) return CN_OK;
    CN_ASSERT(s->select_scratch && (uintptr_t)a->logits % sizeof(uint2) == 0);
    p.early = early || after_select;
    p.after_select = after_select;
    p.bulk = cn_score_has_bulk(s, p);
    p.query_words = p.bulk ? p.label_bytes / 4 : (uint32_t)CN_SCORE_WIDE_WORDS;
    p.patience = s->cuda->switches.impatient ? 0 : PATIENCE;
    CN_TRY(set_scratch(s, &p, counts != NULL));
    if (counts) *counts = p.counts;
    CN_TRY(cn_score_ring(s, p));
    return a->logits ? cn_score_share(s, p) : CN_OK;
}

extern "C" cn_status cn_cuda_score(cn_stream *s, const cn_score_args *a)
{
    return cn_score_launch(s, a, true, false, NULL);
}

uint32_t *cn_select_done(const cn_stream *s, uint32_t n_units)
{
    const scratch_places at = places_of(&s->cuda->opts);
    return n_units <= at.units ? (uint32_t *)((char *)s->select_scratch + at.done) : NULL;
}
