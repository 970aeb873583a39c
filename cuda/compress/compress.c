/* compress.c - the host's part of a compression event on the GPU: checks requests, groups those of
 * one shape, sends descriptors and tables through pinned memory, and cuts groups into chunks that
 * fit the scratch. See compress.h. The call copies its arguments and returns before the GPU has run
 * anything. */
#include "cuda/compress/compress.h"

#include "compress/compress_check.h"
#include "compress/policy.h"

enum {
    PACK_BYTES = CN_CUDA_SIDE_STAGE_BYTES, /* front of the scratch: jobs, then tables */
    LEAST_SCORE_BYTES = 88 << 20, /* for eight requests of 2,304 slots, 36 layers of 8 kv heads */
    MAX_HEAD_DIM = 256,
    MAX_LATENT_DIM = 576, /* elements of a row of K that contains V */
    MIN_BLOCK_TOKENS = 16
};
static const float LOG2_E = 1.44269504f;

/* ---- memory that a request needs ---- */

static bool is_peak(const cn_kv_params *p)
{
    return cn_policy_ranks(p->policy) && cn_rule_of(p->rule)->form == CN_FORM_PEAK;
}

static bool fills_holes(const cn_kv_params *p)
{
    return cn_policy_ranks(p->policy) && p->move == CN_MOVE_FILL;
}

/* Returns true when a move would overwrite source block i before its slots are read. With move
 * `order` this needs a target j < i; the other overlaps are safe in the order of targets
 * (engine/cpu/cpu_compact.c explains why). With move `fill` rows move in no fixed order, so only
 * the target j == i is safe. */
static bool must_set_aside(const cn_compress_req *r, uint32_t i)
{
    const uint32_t end = fills_holes(&r->params) ? r->n_target : cn_min_u32(i, r->n_target);
    for (uint32_t j = 0; j < end; j++)
        if (j != i && r->target[j] == r->table[i]) return true;
    return false;
}

static uint32_t count_aside(const cn_compress_req *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_blocks; i++) n += must_set_aside(r, i);
    return n;
}

static uint32_t score_rows(const cn_pools *p, uint32_t window)
{
    return window * (p->n_heads / p->layout.n_kv_heads);
}

static uint32_t work_words(const cn_pools *p, uint32_t n, uint32_t window)
{
    const uint64_t spans = cn_ceil_div(n, CN_COMPRESS_SPAN);
    const uint64_t partials = 2 * spans * score_rows(p, window), side = 2 * (uint64_t)n;
    return (uint32_t)cn_round_up(partials > side ? partials : side, 4);
}

/* Bytes of the queries of a unit that are multiplied by key matrices. */
static size_t query_bytes(const cn_pools *p, uint32_t window)
{
    if (!cn_kv_layout_is_shared(&p->layout)) return 0;
    return (size_t)window * p->n_heads * p->layout.head_dim * cn_dtype_bytes(CN_BF16);
}

/* Bytes of the scores of a unit under CN_KEEP_BEST. */
static size_t score_bytes(const cn_pools *p, uint32_t n, uint32_t window)
{
    return (2 * (size_t)n + work_words(p, n, window)) * sizeof(uint32_t) + query_bytes(p, window);
}

/* Queries that the event counts. */
static uint32_t count_queries(const cn_pools *p, const cn_compress_req *r)
{
    return cn_rule_event_queries(r, r->n_blocks * p->layout.block_tokens);
}

static size_t unit_bytes(const cn_pools *p, const cn_compress_req *r, uint32_t n_aside)
{
    const uint32_t n = r->n_blocks * p->layout.block_tokens;
    const size_t scores =
        cn_policy_ranks(r->params.policy) ? score_bytes(p, n, count_queries(p, r)) : 0;
    return scores + n_aside * cn_compress_aside_bytes(&p->layout);
}

static size_t pack_bytes(const cn_compress_req *r)
{
    return sizeof(cn_compress_job) + (2 * (size_t)r->n_blocks + r->n_target) * sizeof(uint32_t);
}

/* ---- checks ---- */

static cn_status check_request(const cn_compress_args *a, const cn_compress_req *r)
{
    const cn_pools *p = &a->pools;
    const size_t units = p->layout.n_kv_heads * unit_bytes(p, r, count_aside(r));
    CN_TRY(cn_compress_check_request(a, r, PACK_BYTES + units));
    if (pack_bytes(r) > PACK_BYTES)
        return cn_fail(CN_ERR_ARG, "compressing %u blocks: their tables need %zu bytes, expected "
                                   "at most %d",
                       r->n_blocks, pack_bytes(r), PACK_BYTES);
    return CN_OK;
}

static cn_status check_shape(const cn_pools *p)
{
    const cn_kv_layout *l = &p->layout;
    const bool shared = cn_kv_layout_is_shared(l) && cn_kv_layout_has_rows(l, CN_BF16);
    const uint32_t most = shared ? MAX_LATENT_DIM : MAX_HEAD_DIM;
    CN_TRY(cn_compress_check_shape(p));
    if (!shared && !cn_kv_layout_is_uniform(l, CN_BF16) && cn_kv_form_of(l) != CN_KV_FP8)
        return cn_fail(CN_ERR_SHAPE,
                       "compress: KV layout: expected rows of %u elements of K and V, in bf16, or "
                       "in e4m3 with scales",
                       l->head_dim);
    if (shared != (p->latent.weights != NULL) || (shared && l->n_kv_heads != 1))
        return cn_fail(CN_ERR_SHAPE, "compress: rows of K that contain V need key matrices and one "
                                     "kv head");
    if (l->head_dim > most || l->block_tokens < MIN_BLOCK_TOKENS ||
        l->block_tokens > CN_COMPRESS_SPAN)
        return cn_fail(CN_ERR_SHAPE, "head_dim %u (expected at most %u), blocks of %u tokens "
                                     "(expected %d to %d)",
                       l->head_dim, most, l->block_tokens, MIN_BLOCK_TOKENS,
                       CN_COMPRESS_SPAN);
    return CN_OK;
}

size_t cn_cuda_compress_scratch_bytes(cn_backend *be, const cn_pools *pools, uint32_t n_max)
{
    (void)be;
    const size_t layer = pools->layout.n_kv_heads * score_bytes(pools, n_max, pools->window);
    return PACK_BYTES + (layer > LEAST_SCORE_BYTES ? layer : LEAST_SCORE_BYTES);
}

/* ---- groups: requests of one shape, ordered by the first request of each group ---- */

static bool same_group(const cn_pools *pools, const cn_compress_req *a, const cn_compress_req *b)
{
    const cn_kv_params *p = &a->params, *q = &b->params;
    if (p->policy != q->policy || a->n_blocks != b->n_blocks) return false;
    return !cn_policy_ranks(p->policy) ||
           (cn_rule_queries(p) == cn_rule_queries(q) &&
            count_queries(pools, a) == count_queries(pools, b) &&
            cn_rule_redundancy(p) == cn_rule_redundancy(q) && p->move == q->move &&
            is_peak(p) == is_peak(q));
}

static bool leads_group(const cn_pools *pools, const cn_compress_req *reqs, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++)
        if (same_group(pools, &reqs[j], &reqs[i])) return false;
    return true;
}

/* ---- packing ---- */

/* Host memory that is copied to `device` unchanged. */
typedef struct pack {
    char *host, *device;
    size_t bytes;
} pack;

static const uint32_t *add_table(pack *k, const uint32_t *table, uint32_t n)
{
    const void *at = k->device + k->bytes;
    memcpy(k->host + k->bytes, table, n * sizeof *table);
    k->bytes += n * sizeof *table;
    return at;
}

/* The table that the move reads. */
static const uint32_t *add_marked_table(pack *k, const cn_compress_req *r)
{
    uint32_t *marked = (uint32_t *)(void *)(k->host + k->bytes), n_aside = 0;
    const uint32_t *at = add_table(k, r->table, r->n_blocks);
    for (uint32_t i = 0; i < r->n_blocks; i++)
        if (must_set_aside(r, i)) marked[i] = CN_COMPRESS_ASIDE + n_aside++;
    return at;
}

static bool keeps_scores(const cn_kv_params *p)
{
    return cn_policy_ranks(p->policy) && cn_rule_keeps_scores(p);
}

static cn_compress_job job_of(const cn_pools *p, const cn_compress_req *r, pack *tables)
{
    const cn_kv_params *o = &r->params;
    const bool best = cn_policy_ranks(o->policy), convex = o->combine == CN_COMBINE_CONVEX;
    const cn_kv_redundancy kind = best ? cn_rule_redundancy(o) : CN_REDUNDANCY_NONE;
    const bool redundancy = kind != CN_REDUNDANCY_NONE;
    const uint32_t b = p->layout.block_tokens;
    const uint32_t pairs_of = kind == CN_REDUNDANCY_FLASH ? r->n_blocks * b : b;
    const uint32_t n_old = cn_rule_old_slots(r);
    cn_compress_job j = {
        .n_target = r->n_target,
        .query_slot = r->query_slot,
        .ring_start = best ? (r->position_end - count_queries(p, r)) % cn_rule_queries(o) : 0,
        .n_history = keeps_scores(o) ? n_old : 0,
        .n_placed = n_old,
        .first_position = r->first_event ? 0 : r->position_end - r->n_blocks * b,
        .n_sinks = best ? cn_rule_sinks(o) : o->sink_tokens,
        .n_newest = best ? cn_rule_newest(o) : 0,
        .global = keeps_scores(o),
        .pool = best && cn_rule_pools(o, r->first_event),
        .follow = best && cn_rule_follows(o),
        .alpha = best ? cn_rule_history_factor(o, r->n_blocks * b - n_old) : 0,
        .decay_log2 = best ? cn_rule_decay_log2(o) : 0,
        .redundancy_p = o->redundancy_p + 0.0f, /* never -0: a sign bit marks a twin */
        .redundancy_scale = redundancy ? LOG2_E / ((float)pairs_of * o->redundancy_tau) : 0,
        .score_sum = best ? cn_rule_scale(o) : 0,
        .score_weight = redundancy && convex ? o->lambda : 1,
        .redundancy_weight = !redundancy ? 0 : convex ? 1 - o->lambda : o->lambda,
    };
    j.source = add_table(tables, r->table, r->n_blocks);
    j.table = add_marked_table(tables, r);
    j.target = add_table(tables, r->target, r->n_target);
    return j;
}

/* Packs the requests' jobs, group by group, and sends them to the front of the scratch. */
static cn_status send_jobs(cn_stream *s, const cn_compress_args *a, const cn_compress_req *reqs,
                           uint32_t n)
{
    pack k = {.device = a->scratch, .bytes = n * sizeof(cn_compress_job)};
    CN_TRY(cn_cuda_stage_take(s, &k.host));
    cn_compress_job *job = (cn_compress_job *)(void *)k.host;
    for (uint32_t i = 0; i < n; i++) {
        if (!leads_group(&a->pools, reqs, i)) continue;
        for (uint32_t j = i; j < n; j++)
            if (same_group(&a->pools, &reqs[i], &reqs[j])) *job++ = job_of(&a->pools, &reqs[j], &k);
    }
    return cn_cuda_stage_send(s, a->scratch, k.bytes);
}

/* ---- launches ---- */

static cn_status run_chunk(cn_stream *s, const cn_compress_chunk *c)
{
    if (c->keep == CN_KEEP_BEST) {
        CN_TRY(cn_compress_score(s, c));
        CN_TRY(cn_compress_select(s, c));
    }
    CN_TRY(cn_compress_set_aside(s, c));
    return cn_compress_move(s, c);
}

/* Divides the scratch after the pack among the units of a chunk. */
static void lay_out_chunk(cn_compress_chunk *c, const cn_compress_args *a)
{
    const size_t units = cn_compress_units(c);
    char *at = (char *)a->scratch + PACK_BYTES;
    if (c->keep == CN_KEEP_BEST) {
        c->score = (float *)(void *)at;
        c->redundancy = c->score + units * c->n;
        c->work = (uint32_t *)(void *)(c->redundancy + units * c->n);
        at = (char *)(c->work + units * c->work_words);
        c->queries = cn_kv_layout_is_shared(&c->pools.layout) ? at : NULL;
        at += units * query_bytes(&c->pools, c->window);
    }
    c->aside = at;
}

/* Runs all jobs and all layers of a group in chunks. A chunk has all jobs in some layers, or, if
 * these do not fit, some jobs in one layer. */
static cn_status run_group(cn_stream *s, const cn_compress_args *a, cn_compress_chunk *c,
                           size_t bytes_of_unit)
{
    const uint32_t n_jobs = c->n_jobs, n_layers = a->pools.layout.n_layers;
    const cn_compress_job *jobs = c->jobs;
    const size_t layer_bytes = a->pools.layout.n_kv_heads * bytes_of_unit;
    uint32_t fit = n_jobs * n_layers; /* (job, layer) pairs that fit the scratch */
    if (layer_bytes * fit > a->scratch_bytes - PACK_BYTES)
        fit = (uint32_t)((a->scratch_bytes - PACK_BYTES) / layer_bytes);
    CN_ASSERT(fit > 0);
    const uint32_t jobs_each = cn_min_u32(n_jobs, fit);
    const uint32_t turns = (uint32_t)cn_ceil_div(n_layers, fit / jobs_each);
    const uint32_t layers_each = (uint32_t)cn_ceil_div(n_layers, turns);
    for (uint32_t j = 0; j < n_jobs; j += jobs_each)
        for (uint32_t layer = 0; layer < n_layers; layer += layers_each) {
            c->jobs = jobs + j;
            c->n_jobs = cn_min_u32(jobs_each, n_jobs - j);
            c->first_layer = layer;
            c->n_layers = cn_min_u32(layers_each, n_layers - layer);
            lay_out_chunk(c, a);
            CN_TRY(run_chunk(s, c));
        }
    return CN_OK;
}

static cn_compress_chunk chunk_of(const cn_compress_args *a, const cn_compress_req *r)
{
    const cn_pools *p = &a->pools;
    const uint32_t n = r->n_blocks * p->layout.block_tokens;
    const bool best = cn_policy_ranks(r->params.policy);
    const uint32_t w = best ? count_queries(p, r) : 0;
    return (cn_compress_chunk){
        .pools = *p,
        .keep = cn_policy_of(r->params.policy)->keep,
        .redundancy_kind = best ? cn_rule_redundancy(&r->params) : CN_REDUNDANCY_NONE,
        .fills = fills_holes(&r->params),
        .n_blocks = r->n_blocks,
        .n = n,
        .window = w,
        .ring = best ? cn_rule_queries(&r->params) : 0,
        .peak = is_peak(&r->params),
        .group = p->n_heads / p->layout.n_kv_heads,
        .n_spans = (uint32_t)cn_ceil_div(n, CN_COMPRESS_SPAN),
        .work_words = best ? work_words(p, n, w) : 0,
    };
}

static cn_status run_groups(cn_stream *s, const cn_compress_args *a, const cn_compress_req *reqs,
                            uint32_t n)
{
    const cn_compress_job *jobs = a->scratch;
    for (uint32_t i = 0; i < n; i++) {
        if (!leads_group(&a->pools, reqs, i)) continue;
        cn_compress_chunk c = chunk_of(a, &reqs[i]);
        c.jobs = jobs;
        for (uint32_t j = i; j < n; j++) {
            if (!same_group(&a->pools, &reqs[i], &reqs[j])) continue;
            c.n_jobs++;
            c.max_target = cn_max_u32(c.max_target, reqs[j].n_target);
            c.n_aside = cn_max_u32(c.n_aside, count_aside(&reqs[j]));
            c.moves_scores |= a->pools.score && !keeps_scores(&reqs[j].params);
        }
        jobs += c.n_jobs;
        CN_TRY(run_group(s, a, &c, unit_bytes(&a->pools, &reqs[i], c.n_aside)));
    }
    return CN_OK;
}

/* Runs as many of the requests as have jobs and tables that fit one pack. Sets *n_done to their
 * number. */
static cn_status run_some(cn_stream *s, const cn_compress_args *a, const cn_compress_req *reqs,
                          uint32_t n, uint32_t *n_done)
{
    size_t bytes = 0;
    *n_done = 0;
    while (*n_done < n && bytes + pack_bytes(&reqs[*n_done]) <= PACK_BYTES)
        bytes += pack_bytes(&reqs[(*n_done)++]);
    CN_TRY(send_jobs(s, a, reqs, *n_done));
    return run_groups(s, a, reqs, *n_done);
}

cn_status cn_cuda_compress(cn_stream *s, const cn_compress_args *a)
{
    CN_TRY(check_shape(&a->pools));
    uint32_t n_good = 0;
    cn_status status = CN_OK;
    while (n_good < a->n_reqs && status == CN_OK) {
        status = check_request(a, &a->reqs[n_good]);
        n_good += status == CN_OK;
    }
    for (uint32_t at = 0, n = 0; at < n_good; at += n)
        CN_TRY(run_some(s, a, a->reqs + at, n_good - at, &n));
    return status;
}
