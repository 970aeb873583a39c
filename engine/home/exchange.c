/* exchange.c - see exchange.h. The arrays: u32 by row, stages, bytes by row, then the tables, of
 * which only the part in use is copied. */
#include "engine/home/exchange.h"

#include "engine/select/select_step.h"
#include "engine/start/planner.h"
#include "engine/start/start_plan.h"

enum {
    ALIGN_BYTES = 64,
    /* Candidates times layers of one call of `score`: eight sequences of 32k tokens in a pack of 16
     * layers. An exchange with more is split, which takes longer, so this bounds memory, not what
     * can run. */
    MOST_SCORES = 1 << 22
};

/* ---- packs and sizes ---- */

cn_packs cn_packs_make(uint32_t dense_layers, uint32_t model_layers, uint32_t n)
{
    const uint32_t n_layers = model_layers - cn_min_u32(dense_layers, model_layers);
    return (cn_packs){dense_layers, n_layers, cn_min_u32(n, n_layers)};
}

uint32_t cn_pack_start(const cn_packs *p, uint32_t pack)
{
    return p->first_layer + (uint32_t)((uint64_t)p->n_layers * pack / p->n);
}

uint32_t cn_pack_most_layers(const cn_config *c, const cn_model_config *m)
{
    const cn_packs p = cn_packs_make(c->select_dense_layers, m->n_layers, c->n_packs);
    return p.n ? (uint32_t)cn_ceil_div(p.n_layers, p.n) : 0;
}

/* Most candidates of one layer in one call of `score`, of so many requests and layers. */
static uint32_t exchange_room_of(const cn_config *c, const cn_model_config *m, uint32_t rows,
                                 uint32_t layers)
{
    const uint32_t longest = cn_start_max_model_len(c, m);
    const uint64_t all = (uint64_t)rows * longest;
    return cn_max_u32(longest, all < MOST_SCORES / layers ? (uint32_t)all : MOST_SCORES / layers);
}

/* The largest exchange area and cap of any selector that ranks ahead, or of any other. */
static cn_away most_of(const cn_config *c, cn_kv_home home, uint32_t block_tokens, bool ahead)
{
    cn_away most = {0}, a;
    for (unsigned i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++) {
        if (cn_selector_of((cn_kv_select)i)->ahead != ahead) continue;
        if (!cn_planner_away(c, home, i, block_tokens, &a)) continue;
        most.n_entries = cn_max_u32(most.n_entries, a.n_entries);
        most.cap = cn_max_u32(most.cap, a.cap);
    }
    return most;
}

cn_exchange_sizes cn_exchange_sizes_of(const cn_config *c, const cn_model_config *m,
                                       cn_kv_home home, uint32_t block_tokens, bool fill,
                                       bool ahead)
{
    if (!(cn_config_away(c) >> home & 1)) return (cn_exchange_sizes){0};
    const cn_packs packs = cn_packs_make(c->select_dense_layers, m->n_layers, c->n_packs);
    const uint32_t layers = ahead ? 1 : cn_max_u32(cn_pack_most_layers(c, m), 1);
    const uint32_t rows = fill ? 1 : c->max_num_seqs;
    const uint32_t longest_blocks =
        (uint32_t)cn_ceil_div(cn_start_max_model_len(c, m), block_tokens);
    const cn_away most = most_of(c, home, block_tokens, ahead);
    if (most.n_entries == 0) return (cn_exchange_sizes){0};
    return (cn_exchange_sizes){
        .max_rows = rows,
        /* A request may have a larger budget than the default. It has an exchange only if it
         * reaches its cap. */
        .max_local = longest_blocks,
        .max_home = longest_blocks,
        .room = exchange_room_of(c, m, rows, layers),
        .move_stride = fill || ahead ? most.n_entries : most.cap, /* ahead: the first is uncapped */
        .pack_layers = layers,
        .n_layers = ahead ? 1 : packs.n_layers,
    };
}

size_t cn_exchange_counts(const cn_exchange_sizes *z, uint32_t n_kv_heads)
{
    return (size_t)z->max_rows * z->n_layers * n_kv_heads;
}

size_t cn_exchange_queries(const cn_exchange_sizes *z)
{
    return (size_t)z->max_rows * z->pack_layers;
}

size_t cn_exchange_raw_queries(const cn_exchange_sizes *z, const cn_kv_layout *l, uint32_t n_heads)
{
    return cn_kv_layout_is_shared(l) ? (size_t)z->max_rows * n_heads * l->query_dim : 0;
}

size_t cn_exchange_moves(const cn_exchange_sizes *z, uint32_t n_kv_heads)
{
    return (size_t)z->max_rows * z->pack_layers * n_kv_heads * z->move_stride;
}

/* ---- the arrays ---- */

typedef enum row_array {
    RING_SLOT,
    NEWEST,
    MODULUS,
    N_WINDOW,
    FIRST,
    N,
    BASE,
    K,
    CAP,
    HOME_SLOT,
    HELD_FROM,
    N_HELD,
    N_ROW_ARRAYS
} row_array;
typedef enum byte_array { WEIGHTS, ROTATE, ENTRY_LOG2, N_BYTE_ARRAYS } byte_array;

static size_t u32_at(const cn_exchange_sizes *z, uint32_t i)
{
    return i * cn_round_up(z->max_rows * sizeof(uint32_t), ALIGN_BYTES);
}

static size_t stages_at(const cn_exchange_sizes *z) { return u32_at(z, N_ROW_ARRAYS); }

static size_t byte_at(const cn_exchange_sizes *z, uint32_t i)
{
    return stages_at(z) + cn_round_up(z->max_rows * sizeof(cn_sel_stage), ALIGN_BYTES) +
           i * cn_round_up(z->max_rows, ALIGN_BYTES);
}

static size_t tables_at(const cn_exchange_sizes *z) { return byte_at(z, N_BYTE_ARRAYS); }

size_t cn_exchange_bytes(const cn_exchange_sizes *z)
{
    if (z->max_rows == 0) return 0;
    const size_t tables = (size_t)z->max_local + z->max_home;
    return cn_round_up(tables_at(z) + sizeof(uint32_t) * z->max_rows * tables, ALIGN_BYTES);
}

static size_t home_tables_at(const cn_exchange_rows *r)
{
    return tables_at(&r->sizes) + sizeof(uint32_t) * r->n_rows * r->strides.local;
}

static uint32_t *u32_of(const cn_exchange_rows *r, char *base, row_array a)
{
    return (uint32_t *)(void *)(base + u32_at(&r->sizes, a));
}

cn_status cn_exchange_rows_init(cn_exchange_rows *r, const cn_exchange_sizes *z,
                                uint32_t block_tokens)
{
    *r = (cn_exchange_rows){.sizes = *z, .block_tokens = block_tokens};
    r->host = cn_calloc_aligned(cn_exchange_bytes(z), 1);
    r->ranges = cn_calloc(z->max_rows, sizeof *r->ranges);
    if (r->host && r->ranges) return CN_OK;
    return cn_fail(CN_ERR_MEMORY, "exchange: out of host memory for %u rows", z->max_rows);
}

void cn_exchange_rows_free(cn_exchange_rows *r)
{
    cn_free(r->host);
    cn_free(r->ranges);
    *r = (cn_exchange_rows){0};
}

void cn_exchange_rows_begin(cn_exchange_rows *r, uint32_t n_rows, cn_exchange_strides strides)
{
    CN_ASSERT(n_rows <= r->sizes.max_rows && strides.local <= r->sizes.max_local &&
              strides.home <= r->sizes.max_home);
    r->n_rows = n_rows;
    r->n_added = r->n_ranges = 0;
    r->strides = strides;
    r->holds = false;
    r->forms = (cn_sel_forms){{0}};
}

/* Returns where the candidates of row i begin in the scores of its range. */
static uint32_t place(cn_exchange_rows *r, uint32_t i, uint32_t n)
{
    cn_row_range *range = r->n_ranges > 0 ? &r->ranges[r->n_ranges - 1] : NULL;
    uint32_t first = 0;
    if (range) first = u32_of(r, r->host, FIRST)[i - 1] + u32_of(r, r->host, N)[i - 1];
    if (!range || (uint64_t)first + n > r->sizes.room) {
        CN_ASSERT(n <= r->sizes.room);
        range = &r->ranges[r->n_ranges++];
        range->start = i;
        first = 0;
    }
    range->end = i + 1;
    return first;
}

static uint32_t local_blocks(const cn_kv_params *kv, uint32_t block_tokens)
{
    const uint32_t held = kv->policy == CN_KV_ZIP ? kv->budget_tokens / block_tokens : 0;
    return cn_away_of(kv, block_tokens).n_exchange + held;
}

void cn_exchange_strides_add(cn_exchange_strides *most, const cn_kv_params *kv, uint32_t home_len,
                             uint32_t block_tokens)
{
    most->local = cn_max_u32(most->local, local_blocks(kv, block_tokens));
    most->home = cn_max_u32(most->home, home_len / block_tokens);
}

static void copy_tables(cn_exchange_rows *r, uint32_t i, const cn_exchange_row *row)
{
    uint32_t *local = (uint32_t *)(void *)(r->host + tables_at(&r->sizes));
    uint32_t *home = (uint32_t *)(void *)(r->host + home_tables_at(r));
    const uint32_t n = local_blocks(row->kv, r->block_tokens);
    const uint32_t head = cn_min_u32(n, row->n_local[0]);
    CN_ASSERT(n <= r->strides.local && n <= row->n_local[0] + row->n_local[1]);
    local += (size_t)i * r->strides.local;
    memcpy(local, row->local[0], head * sizeof *local);
    if (n > head) memcpy(local + head, row->local[1], (n - head) * sizeof *local);
    memcpy(home + (size_t)i * r->strides.home, row->home,
           row->home_len / r->block_tokens * sizeof *home);
}

/* What an exchange ranks: tokens, or for `tls` tiles. */
static cn_sel_stage exchange_stage_of(const cn_kv_params *kv)
{
    const bool tiles = cn_selector_of(kv->select)->has_tiles;
    cn_sel_stage stage = tiles ? cn_selector_tile_stage() : cn_selector_token_stage(kv);
    stage.query = CN_SEL_PREDICTED; /* ahead: the head's query of the step, in the same place */
    return stage;
}

void cn_exchange_rows_add(cn_exchange_rows *r, const cn_exchange_row *row)
{
    const cn_kv_params *kv = row->kv;
    const cn_away away = cn_away_of(kv, r->block_tokens);
    const cn_away_span span = cn_away_span_of(kv, row->home_len, r->block_tokens);
    const uint32_t i = r->n_added++, ring = cn_ring_rows(kv);
    const cn_sel_stage stage = exchange_stage_of(kv);
    CN_ASSERT(i < r->n_rows && away.cap <= r->sizes.move_stride && (r->ahead || ring >= 2));
    const uint32_t values[N_ROW_ARRAYS] = {
        [RING_SLOT] = row->query_slot,
        [NEWEST] = row->newest,
        [MODULUS] = ring,
        [N_WINDOW] = r->ahead ? 0 : cn_min_u32(cn_selector_ring_rows(kv), ring) - 1,
        [FIRST] = place(r, i, span.n),
        [N] = span.n,
        [BASE] = span.base,
        [K] = away.n_entries,
        [CAP] = row->uncapped ? away.n_entries : away.cap,
        [HOME_SLOT] = row->home_slot,
        [HELD_FROM] = away.n_exchange * r->block_tokens,
        [N_HELD] = span.excludes_held ? kv->budget_tokens : 0,
    };
    for (uint32_t a = 0; a < N_ROW_ARRAYS; a++) u32_of(r, r->host, (row_array)a)[i] = values[a];
    ((cn_sel_stage *)(void *)(r->host + stages_at(&r->sizes)))[i] = stage;
    r->host[byte_at(&r->sizes, WEIGHTS) + i] = (char)kv->select_weights;
    r->host[byte_at(&r->sizes, ROTATE) + i] = (char)(kv->select_rotate || stage.entry_log2 > 0);
    r->host[byte_at(&r->sizes, ENTRY_LOG2) + i] = (char)stage.entry_log2;
    r->holds |= span.excludes_held;
    r->forms.stage[1] |= cn_sel_form(&stage);
    copy_tables(r, i, row);
}

void cn_exchange_rows_skip(cn_exchange_rows *r)
{
    const uint32_t i = r->n_added++, first = place(r, i, 0);
    CN_ASSERT(i < r->n_rows);
    for (uint32_t a = 0; a < N_ROW_ARRAYS; a++)
        u32_of(r, r->host, (row_array)a)[i] = a == FIRST ? first : 0;
    ((cn_sel_stage *)(void *)(r->host + stages_at(&r->sizes)))[i] = (cn_sel_stage){0};
    for (uint32_t a = 0; a < N_BYTE_ARRAYS; a++) r->host[byte_at(&r->sizes, a) + i] = 0;
}

/* ---- running ---- */

/* One exchange of the layers of a pack. */
typedef struct job {
    const cn_exchange_env *x;
    cn_stream *s;
    const cn_exchange_rows *r;
    const cn_exchange_scratch *m;
    uint32_t first_layer, n_layers;
    bool fill;
    void *predicted, *raw; /* of the pack */
    cn_move *moves;  /* of the pack */
    uint32_t *moved, *missed; /* of this pack, [rows, n_layers, hk] */
} job;

/* The half of the arrays of an exchange. */
static char *arrays_of(const cn_exchange_rows *r, const cn_exchange_scratch *m)
{
    return (char *)m->arrays + r->turn % 2 * cn_exchange_bytes(&r->sizes);
}

static const uint32_t *device_u32(const job *j, row_array a)
{
    return u32_of(j->r, arrays_of(j->r, j->m), a);
}

static const uint8_t *device_bytes(const job *j, byte_array a)
{
    return (const uint8_t *)arrays_of(j->r, j->m) + byte_at(&j->r->sizes, a);
}

static const uint32_t *device_table(const job *j, size_t at)
{
    return (const uint32_t *)(const void *)(arrays_of(j->r, j->m) + at);
}

static const cn_sel_stage *device_stages(const job *j)
{
    return (const cn_sel_stage *)(const void *)(arrays_of(j->r, j->m) + stages_at(&j->r->sizes));
}

/* Elements of the query of a row. The keys that a head ranks have its own shape. */
static size_t query_stride(const job *j)
{
    const cn_pools *p = &j->x->home;
    return (size_t)j->n_layers * p->n_heads * p->layout.head_dim;
}

static cn_status predict(const job *j, cn_row_range range)
{
    const cn_pools *p = &j->x->local;
    const uint32_t r = range.start;
    const cn_predict_args a = {
        .ring = p->q_window,
        .n_query_slots = p->n_query_slots,
        .rows = p->window,
        .n_heads = p->n_heads,
        .slots = device_u32(j, RING_SLOT) + r,
        .newest = device_u32(j, NEWEST) + r,
        .modulus = device_u32(j, MODULUS) + r,
        .n_window = device_u32(j, N_WINDOW) + r,
        .weights = device_bytes(j, WEIGHTS) + r,
        .rotate = device_bytes(j, ROTATE) + r,
        .n_seqs = range.end - r,
        .first_layer = j->first_layer,
        .n_layers = j->n_layers,
        .eps = CN_SELECT_RIDGE,
        .cos = j->x->cos,
        .sin = j->x->sin,
        .out = j->predicted,
        .out_stride = query_stride(j),
    };
    return cn_select_predict_keys(j->x->be, j->s, p, a, j->raw);
}

static cn_status score(const job *j, cn_row_range range)
{
    const uint32_t r = range.start;
    const size_t elem = cn_dtype_bytes(j->x->home.act_dtype);
    const size_t at = j->r->ahead ? r * query_stride(j) * elem : 0;
    const cn_score_args a = {
        .q = {[CN_SEL_PREDICTED] = (const char *)j->predicted + at},
        .q_stride = {[CN_SEL_PREDICTED] = query_stride(j)},
        .stage = device_stages(j) + r,
        .pools = j->x->home,
        .tables = device_table(j, home_tables_at(j->r)) + (size_t)r * j->r->strides.home,
        .table_stride = j->r->strides.home,
        .first = device_u32(j, FIRST) + r,
        .n = device_u32(j, N) + r,
        .base = device_u32(j, BASE) + r,
        .route = cn_select_route_of(j->x->be, &j->r->forms, &j->r->forms),
        .n_seqs = range.end - r,
        .first_layer = j->first_layer,
        .n_layers = j->n_layers,
        .logits = j->r->forms.stage[1] & CN_SEL_FORMS_MAX ? j->m->logits : NULL,
        .out = j->m->score,
    };
    return j->x->be->score(j->s, &a);
}

/* Equal scores: the newest candidates are the best. */
static cn_status take_newest(const job *j, cn_row_range range)
{
    const uint32_t *n = u32_of(j->r, j->r->host, N), *first = u32_of(j->r, j->r->host, FIRST);
    const size_t all = first[range.end - 1] + n[range.end - 1];
    return j->x->be->mem_write(j->s, j->m->score, j->x->zeros,
                               all * j->x->home.layout.n_kv_heads * sizeof *j->x->zeros);
}

/* Forced churn: overwrites the scores of a range. buffer: of the pack. */
static cn_status force_scores(const job *j, cn_row_range range, uint32_t buffer)
{
    const uint32_t *n = u32_of(j->r, j->r->host, N), *first = u32_of(j->r, j->r->host, FIRST);
    const uint32_t *k = u32_of(j->r, j->r->host, K), *newest = u32_of(j->r, j->r->host, NEWEST);
    const size_t units = (size_t)j->n_layers * j->x->home.layout.n_kv_heads;
    const size_t all = (first[range.end - 1] + n[range.end - 1]) * units;
    uint16_t *score;
    /* A range or a fill before this one may still be on its way from the same buffer. */
    if (j->fill || range.start > 0) CN_TRY(j->x->be->stream_sync(j->s));
    CN_TRY(cn_churn_take(j->x->churn, buffer, all, &score));
    for (uint32_t i = range.start; i < range.end; i++) {
        uint16_t *row = score + first[i] * units;
        cn_churn_scores(row, newest[i], k[i], n[i], j->x->churn->share);
        for (size_t u = 1; u < units; u++) memcpy(row + u * n[i], row, n[i] * sizeof *row);
    }
    return j->x->be->mem_write(j->s, j->m->score, score, all * sizeof *score);
}

/* Units of row r in arrays [rows, n_layers, hk]. */
static size_t exchange_unit_of(const job *j, uint32_t r)
{
    return (size_t)r * j->n_layers * j->x->home.layout.n_kv_heads;
}

static cn_status replace_entries(const job *j, cn_row_range range)
{
    const uint32_t r = range.start;
    const size_t unit = exchange_unit_of(j, r);
    const uint32_t *tables = device_table(j, tables_at(&j->r->sizes));
    const cn_exchange_args a = {
        .score = j->m->score,
        .first = device_u32(j, FIRST) + r,
        .n = device_u32(j, N) + r,
        .base = device_u32(j, BASE) + r,
        .entry_log2 = device_bytes(j, ENTRY_LOG2) + r,
        .k = device_u32(j, K) + r,
        .cap = device_u32(j, CAP) + r,
        .slots = device_u32(j, HOME_SLOT) + r,
        .local = j->x->local,
        .local_tables = j->r->holds ? tables + (size_t)r * j->r->strides.local : NULL,
        .held_from = device_u32(j, HELD_FROM) + r,
        .n_held = device_u32(j, N_HELD) + r,
        .local_stride = j->r->strides.local,
        .n_seqs = range.end - r,
        .first_layer = j->first_layer,
        .n_layers = j->n_layers,
        .fill = j->fill,
        .chosen = j->x->chosen,
        .n_slots = j->x->n_slots,
        .chosen_stride = j->x->chosen_stride,
        .moves = j->moves + unit * j->r->sizes.move_stride,
        .n_moves = j->moved + unit,
        .n_missed = j->missed + unit,
        .move_stride = j->r->sizes.move_stride,
    };
    return j->x->be->exchange(j->s, &a);
}

static cn_status fetch_entries(const job *j)
{
    const cn_fetch_args a = {
        .local = j->x->local,
        .home = j->x->home,
        .local_tables = device_table(j, tables_at(&j->r->sizes)),
        .home_tables = device_table(j, home_tables_at(j->r)),
        .local_stride = j->r->strides.local,
        .home_stride = j->r->strides.home,
        .entry_log2 = device_bytes(j, ENTRY_LOG2),
        .moves = j->moves,
        .n_moves = j->moved,
        .move_stride = j->r->sizes.move_stride,
        .n_seqs = j->r->n_rows,
        .first_layer = j->first_layer,
        .n_layers = j->n_layers,
        .one_list = j->r->ahead,
    };
    return j->x->be->fetch(j->s, &a);
}

cn_status cn_exchange_upload(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                             const cn_exchange_scratch *m)
{
    CN_ASSERT(r->n_added == r->n_rows);
    const size_t tables =
        sizeof(uint32_t) * r->n_rows * ((size_t)r->strides.local + r->strides.home);
    return x->be->mem_write(s, arrays_of(r, m), r->host, tables_at(&r->sizes) + tables);
}

/* The half of the counts of an exchange. */
static uint32_t *counts_of(const cn_exchange_rows *r, const cn_exchange_scratch *m, uint32_t hk)
{
    return (uint32_t *)m->counts + r->turn % 2 * 2 * cn_exchange_counts(&r->sizes, hk);
}

/* The exchange of one pack. */
static job exchange_job_of(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                           const cn_exchange_scratch *m, const cn_packs *packs, uint32_t pack)
{
    const uint32_t hk = x->home.layout.n_kv_heads, start = cn_pack_start(packs, pack);
    const size_t before = (size_t)r->n_rows * (start - packs->first_layer) * hk;
    const size_t query = (size_t)x->local.n_heads * x->local.layout.head_dim;
    const size_t elem = cn_dtype_bytes(x->local.act_dtype);
    const size_t half = cn_exchange_queries(&r->sizes) * query * elem;
    const size_t raw =
        cn_exchange_raw_queries(&r->sizes, &x->local.layout, x->local.n_heads) * elem;
    /* Of the pack. Ahead there is one list: a step waits for all pushes of the one before. */
    const uint32_t turn = r->ahead ? 0 : r->turn * packs->n + pack;
    uint32_t *const counts = counts_of(r, m, hk);
    return (job){
        .x = x,
        .s = s,
        .r = r,
        .m = m,
        .first_layer = start,
        .n_layers = cn_pack_start(packs, pack + 1) - start,
        .predicted = (char *)m->predicted + turn % 2 * half,
        .raw = m->raw_predicted ? (char *)m->raw_predicted + turn % 2 * raw : NULL,
        .moves = (cn_move *)m->moves + turn % 2 * cn_exchange_moves(&r->sizes, hk),
        .moved = counts + (r->ahead ? 0 : before),
        .missed = counts + cn_exchange_counts(&r->sizes, hk) + (r->ahead ? 0 : before),
    };
}

cn_status cn_exchange_predict(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                              const cn_exchange_scratch *m, const cn_packs *packs, uint32_t pack)
{
    const job j = exchange_job_of(x, s, r, m, packs, pack);
    CN_ASSERT(!r->ahead);
    return r->n_ranges > 0 ? predict(&j, r->ranges[0]) : CN_OK;
}

cn_status cn_exchange_rank(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                           const cn_exchange_scratch *m, const cn_packs *packs, uint32_t pack,
                           bool fill)
{
    job j = exchange_job_of(x, s, r, m, packs, pack);
    j.fill = fill;
    const uint32_t buffer = fill ? CN_CHURN_BUFFERS - 1 : r->turn % 2 * CN_MAX_PACKS + pack;
    for (uint32_t g = 0; g < r->n_ranges; g++) {
        if (g > 0 && !r->ahead) CN_TRY(predict(&j, r->ranges[g])); /* in place of those before */
        CN_TRY(r->ahead && fill ? take_newest(&j, r->ranges[g]) : score(&j, r->ranges[g]));
        if (x->churn) CN_TRY(force_scores(&j, r->ranges[g], buffer));
        CN_TRY(replace_entries(&j, r->ranges[g]));
    }
    return CN_OK;
}

cn_status cn_exchange_push(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                           const cn_exchange_scratch *m, const cn_packs *packs, uint32_t pack)
{
    const job j = exchange_job_of(x, s, r, m, packs, pack);
    return fetch_entries(&j);
}

cn_status cn_exchange_read_counts(const cn_exchange_env *x, cn_stream *s,
                                  const cn_exchange_rows *r, const cn_exchange_scratch *m,
                                  uint32_t *to)
{
    const uint32_t hk = x->home.layout.n_kv_heads;
    const uint32_t *from = counts_of(r, m, hk);
    const size_t missed = cn_exchange_counts(&r->sizes, hk);
    const size_t bytes = sizeof *to * r->n_rows * r->sizes.n_layers * hk;
    CN_TRY(x->be->mem_read(s, to, from, bytes));
    return x->be->mem_read(s, to + missed, from + missed, bytes);
}
