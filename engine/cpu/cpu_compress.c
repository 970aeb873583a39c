/* cpu_compress.c - the op `compress`: checks a request, then, for each layer and kv head, chooses
 * the slots to keep and moves them. CN_KEEP_BEST gathers the keys, runs the table of scores and
 * chooses the best slots. See cpu_compress.h. */
#include "engine/cpu/cpu_compress.h"

#include <cblas.h>
#include <math.h>

#include "compress/compress_check.h"
#include "compress/policy.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_rows.h"

enum { ALIGN_FLOATS = 16 }; /* parts of the scratch start on cache lines */

/* The scratch of one request: five arrays with a word for each slot, then memory that the scores
 * use (keys, then work). After the slots are chosen, the same memory holds the staged blocks. */
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

void cn_cpu_gather_keys(const cn_pools *pools, const cn_compress_req *req, uint32_t layer,
                        uint32_t kv_head, float *out)
{
    const cn_kv_layout *l = &pools->layout;
    const uint32_t tile = l->tile_tokens, d = l->head_dim;
    const size_t n = (size_t)req->n_blocks * l->block_tokens;
    float room[CN_CPU_MAX_TILE * CN_CPU_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < req->n_blocks; i++)
        for (uint32_t slot = 0; slot < l->block_tokens; slot += tile, out += tile) {
            const cn_cpu_place at = {layer, req->table[i], kv_head, slot};
            const float *keys = cn_cpu_rows(l, pools->kv, at, CN_KV_K, tile, room);
            cblas_somatcopy(CblasRowMajor, CblasTrans, (int)tile, (int)d, 1, keys, (int)d, out,
                            (int)n);
        }
}

/* One (layer, kv head) of one request. */
typedef struct unit {
    const cn_pools *pools;
    const cn_compress_req *req;
    uint32_t layer, kv_head, n, k; /* k of the n resident slots are kept */
    const scratch *m;
} unit;

static void choose_best(const unit *u)
{
    const cn_compress_req *r = u->req;
    const scratch *m = u->m;
    const cn_score_job job = {.pools = u->pools, .req = r, .layer = u->layer,
                              .kv_head = u->kv_head, .n = u->n, .keys_t = m->keys_t,
                              .score = m->score, .redundancy = m->redundancy, .work = m->work};
    cn_cpu_gather_keys(u->pools, r, u->layer, u->kv_head, m->keys_t);
    size_t n_rows;
    const cn_score *rows = cn_score_table(&n_rows);
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].applies(r)) rows[i].cpu(&job);
    for (uint32_t v = 0; v < cn_rule_sinks(&r->params); v++) m->score[v] = INFINITY;
    for (uint32_t v = u->n - cn_rule_newest(&r->params); v < u->n; v++) m->score[v] = INFINITY;
    cn_cpu_select_top(m->score, u->n, u->k, m->bits, m->kept);
    if (r->params.move == CN_MOVE_FILL) cn_cpu_fill_holes(m->kept, u->k, m->bits);
}

static void choose_recent(const unit *u)
{
    cn_cpu_select_window(u->n, u->k, u->req->params.sink_tokens, u->m->kept);
}

/* The chooser of each cn_keep. It writes kept[k] of the scratch. */
#define CHOOSER(KEEP, choose) [KEEP] = choose,
static void (*const choosers[CN_N_KEEPS])(const unit *u) = {CN_CPU_CHOOSERS(CHOOSER)};

static void compress_request(const cn_pools *p, const cn_compress_req *r, float *memory)
{
    const cn_kv_layout *l = &p->layout;
    const uint32_t b = l->block_tokens, n = r->n_blocks * b;
    const scratch m = scratch_lay_out(p, n, memory);
    const cn_keep keep = cn_policy_of(r->params.policy)->keep;
    CN_ASSERT(choosers[keep]);
    cn_cpu_stage stage;
    cn_cpu_stage_plan(r, m.stage_index, &stage);
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            const unit u = {p, r, layer, head, n, r->n_target * b, &m};
            choosers[keep](&u);
            cn_cpu_compact(p, r, layer, head, m.kept, &stage, m.stage);
        }
}

cn_status cn_cpu_compress(cn_stream *s, const cn_compress_args *a)
{
    (void)s;
    const cn_pools *p = &a->pools;
    CN_TRY(cn_compress_check_shape(p));
    for (uint32_t i = 0; i < a->n_reqs; i++) {
        const cn_compress_req *r = &a->reqs[i];
        const uint32_t n = r->n_blocks * p->layout.block_tokens;
        CN_TRY(cn_compress_check_request(a, r, cn_cpu_compress_scratch_bytes(NULL, p, n)));
        compress_request(p, r, a->scratch);
    }
    return CN_OK;
}
