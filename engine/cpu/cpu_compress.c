/* cpu_compress.c - one compression event: checks, then per request, layer and kv head: gather the
 * keys, run the table of scores, keep the best slots, move them. See cpu_compress.h. */
#include "engine/cpu/cpu_compress.h"

#include <cblas.h>
#include <math.h>

#include "engine/base.h"

enum { ALIGN_FLOATS = 16 }; /* parts of the scratch start on cache lines */

/* The scratch of one request: five arrays of a word per slot, then memory that serves the scores
 * (keys, then work) and, once the slots are chosen, the staged blocks of the move. */
typedef struct scratch {
    float *score, *redundancy; /* [n] */
    uint32_t *bits, *kept;     /* [n] */
    uint32_t *stage_index;     /* [n_blocks] */
    float *keys_t;             /* [d, n] */
    float *work;
    float *stage; /* overlaps keys and work */
} scratch;
enum { SIDE_ARRAYS = 5 };

static size_t side_floats(uint32_t n) { return cn_round_up(n, ALIGN_FLOATS); }

static scratch scratch_lay_out(const cn_pools *p, uint32_t n, float *base)
{
    const size_t side = side_floats(n);
    scratch m = {.score = base, .redundancy = base + side};
    m.bits = (uint32_t *)(base + 2 * side);
    m.kept = (uint32_t *)(base + 3 * side);
    m.stage_index = (uint32_t *)(base + 4 * side);
    m.stage = m.keys_t = base + SIDE_ARRAYS * side;
    m.work = m.keys_t + (size_t)n * p->layout.head_dim;
    return m;
}

size_t cn_cpu_compress_scratch_bytes(cn_backend *be, const cn_pools *pools, uint32_t n_max)
{
    (void)be;
    size_t scoring = (size_t)n_max * pools->layout.head_dim + cn_score_work_floats(pools, n_max);
    size_t staging = cn_cpu_stage_floats(pools, n_max);
    size_t front = scoring > staging ? scoring : staging;
    return (SIDE_ARRAYS * side_floats(n_max) + front) * sizeof(float);
}

static cn_status check_zip(const cn_pools *p, const cn_compress_req *r)
{
    const uint32_t w = r->params.window_tokens, kept = r->n_target * p->layout.block_tokens;
    if (!p->q_window)
        return cn_fail(CN_ERR_ARG, "zip compression needs observed queries, and the engine keeps "
                                   "none: allow zip with --kv-policies");
    if (w == 0 || w > p->window || w > kept || w > r->position_end)
        return cn_fail(CN_ERR_ARG,
                       "observation window of %u tokens: want 1 to %u (the engine's --kv-window), "
                       "at most the budget of %u and the %u tokens so far",
                       w, p->window, kept, r->position_end);
    if (r->query_slot >= p->n_query_slots)
        return cn_fail(CN_ERR_ARG, "query slot %u of %u", r->query_slot, p->n_query_slots);
    if (r->params.global_score && !p->score)
        return cn_fail(CN_ERR_ARG, "the request wants the global score and the engine keeps none: "
                                   "allow zip with --kv-policies, or ask for global_score false");
    if (r->params.redundancy != CN_REDUNDANCY_NONE && !(r->params.redundancy_tau > 0))
        return cn_fail(CN_ERR_ARG, "redundancy temperature tau is %g, want above 0",
                       (double)r->params.redundancy_tau);
    return CN_OK;
}

static cn_status check_request(const cn_compress_args *a, const cn_compress_req *r)
{
    const cn_kv_layout *l = &a->pools.layout;
    const uint32_t n = r->n_blocks * l->block_tokens;
    if (r->n_target == 0 || r->n_target > r->n_blocks)
        return cn_fail(CN_ERR_ARG, "%u target blocks for %u source blocks", r->n_target,
                       r->n_blocks);
    if (!r->first_event && r->n_history > n)
        return cn_fail(CN_ERR_ARG, "history of %u slots, of %u resident", r->n_history, n);
    size_t need = cn_cpu_compress_scratch_bytes(NULL, &a->pools, n);
    if (need > a->scratch_bytes)
        return cn_fail(CN_ERR_ARG, "compressing %u slots takes %zu bytes of scratch, have %zu", n,
                       need, a->scratch_bytes);
    for (uint32_t i = 0; i < r->n_blocks; i++) CN_ASSERT(r->table[i] < l->n_blocks);
    for (uint32_t i = 0; i < r->n_target; i++) CN_ASSERT(r->target[i] < l->n_blocks);
    switch (r->params.policy) {
    case CN_KV_WINDOW: return CN_OK;
    case CN_KV_ZIP: return check_zip(&a->pools, r);
    case CN_KV_FULL: break;
    }
    return cn_fail(CN_ERR_ARG, "policy full has no compression");
}

void cn_cpu_gather_keys(const cn_pools *pools, const cn_compress_req *req, uint32_t layer,
                        uint32_t kv_head, float *out)
{
    const cn_kv_layout *l = &pools->layout;
    const uint32_t tile = l->tile_tokens, d = l->head_dim;
    const size_t n = (size_t)req->n_blocks * l->block_tokens;
    for (uint32_t i = 0; i < req->n_blocks; i++)
        for (uint32_t slot = 0; slot < l->block_tokens; slot += tile, out += tile) {
            size_t at = cn_kv_row(l, layer, req->table[i], kv_head, slot, CN_KV_K);
            cblas_somatcopy(CblasRowMajor, CblasTrans, (int)tile, (int)d, 1,
                            (const float *)pools->kv + at, (int)d, out, (int)n);
        }
}

static void choose_by_score(const cn_pools *p, const cn_compress_req *r, uint32_t layer,
                            uint32_t kv_head, const scratch *m)
{
    const uint32_t n = r->n_blocks * p->layout.block_tokens;
    const cn_score_job job = {.pools = p, .req = r, .layer = layer, .kv_head = kv_head, .n = n,
                              .keys_t = m->keys_t, .score = m->score, .redundancy = m->redundancy,
                              .work = m->work};
    cn_cpu_gather_keys(p, r, layer, kv_head, m->keys_t);
    size_t n_rows;
    const cn_score *rows = cn_score_table(&n_rows);
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].applies(r)) rows[i].cpu(&job);
    for (uint32_t v = n - r->params.window_tokens; v < n; v++) m->score[v] = INFINITY;
    cn_cpu_select_top(m->score, n, r->n_target * p->layout.block_tokens, m->bits, m->kept);
}

static void compress_request(const cn_pools *p, const cn_compress_req *r, float *memory)
{
    const cn_kv_layout *l = &p->layout;
    const uint32_t b = l->block_tokens, n = r->n_blocks * b;
    const bool zip = r->params.policy == CN_KV_ZIP;
    const scratch m = scratch_lay_out(p, n, memory);
    cn_cpu_stage stage;
    cn_cpu_stage_plan(r, m.stage_index, &stage);
    if (!zip) cn_cpu_select_window(n, r->n_target * b, r->params.sink_tokens, m.kept);
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            if (zip) choose_by_score(p, r, layer, head, &m);
            cn_cpu_compact(p, r, layer, head, m.kept, &stage, m.stage);
        }
}

cn_status cn_cpu_compress(cn_stream *s, const cn_compress_args *a)
{
    (void)s;
    const cn_pools *p = &a->pools;
    if (p->layout.head_dim % 16 != 0 || p->n_heads % p->layout.n_kv_heads != 0)
        return cn_fail(CN_ERR_SHAPE, "head_dim %u (want a multiple of 16), %u query heads for %u "
                                     "kv heads (want a multiple)",
                       p->layout.head_dim, p->n_heads, p->layout.n_kv_heads);
    for (uint32_t i = 0; i < a->n_reqs; i++) {
        CN_TRY(check_request(a, &a->reqs[i]));
        compress_request(p, &a->reqs[i], a->scratch);
    }
    return CN_OK;
}
