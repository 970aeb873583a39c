/* select.c - see select.h. All u32 arrays come first, then stages, then bytes; each has a fixed
 * offset of max_rows elements. */
#include "engine/select/select.h"

enum {
    ALIGN_BYTES = 64,
    /* Candidates of one launch of `score`. A step with more is split, so this bounds memory, not
     * what can run. */
    MOST_CANDIDATES = 1 << 20
};

/* Arrays of u32 by row; those of the stages follow, stage by stage. */
typedef enum row_array {
    LIST_LEN,
    TAIL,
    LENGTHS,
    N_FORCED,
    SEED,
    RING_SLOT,
    NEWEST,
    MODULUS,
    N_WINDOW,
    N_ROW_ARRAYS
} row_array;
typedef enum stage_array { FIRST, N, BASE, K, N_STAGE_ARRAYS } stage_array;
enum { AHEAD = CN_SELECT_STAGES, N_STAGES }; /* the arrays of cn_sel_stage */
enum { N_U32_ARRAYS = N_ROW_ARRAYS + CN_SELECT_STAGES * N_STAGE_ARRAYS };

/* Offsets in the memory of a step's arrays. */
static size_t select_u32_at(uint32_t rows, uint32_t i)
{
    return i * cn_round_up(rows * sizeof(uint32_t), ALIGN_BYTES);
}

static size_t stage_at(uint32_t rows, uint32_t i)
{
    return select_u32_at(rows, N_U32_ARRAYS) +
           i * cn_round_up(rows * sizeof(cn_sel_stage), ALIGN_BYTES);
}

static size_t select_byte_at(uint32_t rows, uint32_t i)
{
    return stage_at(rows, N_STAGES) + i * cn_round_up(rows, ALIGN_BYTES);
}

size_t cn_select_bytes(uint32_t max_rows) { return select_byte_at(max_rows, 2); }

cn_select_scratch cn_select_scratch_sizes(const cn_select_limits *l)
{
    const cn_selector_needs needs = cn_selectors_need(l->selectors);
    if (!needs.any) return (cn_select_scratch){0};
    const uint64_t all = (uint64_t)l->max_rows * l->max_model_len;
    /* A list is shorter than its sequence, because a step without more candidates is dense. */
    const uint64_t list = cn_round_up(l->max_tokens, l->block_tokens) +
                          cn_round_up(l->max_sinks, CN_DIGEST_PAGE);
    const uint32_t longest = (uint32_t)cn_round_up(l->max_model_len, CN_DIGEST_PAGE);
    const uint32_t most_tiles = cn_min_u32(l->max_tiles, cn_max_u32(longest / CN_DIGEST_TILE, 1));
    const uint32_t of_block = cn_max_u32(l->block_tokens / CN_DIGEST_TILE, 1);
    return (cn_select_scratch){
        .room = cn_max_u32(all < MOST_CANDIDATES ? (uint32_t)all : MOST_CANDIDATES,
                           l->max_model_len),
        .list_stride = list < longest ? (uint32_t)list : longest,
        /* An exchange area is whole blocks. */
        .tile_stride = needs.tiles ? (uint32_t)cn_round_up(most_tiles, of_block) : 0,
    };
}

/* ---- building ---- */

static uint32_t *u32_array(const cn_select_builder *b, char *base, uint32_t i)
{
    return (uint32_t *)(void *)(base + select_u32_at(b->opts.max_rows, i));
}

static uint32_t *of_stage(const cn_select_builder *b, char *base, uint32_t stage, stage_array a)
{
    return u32_array(b, base, N_ROW_ARRAYS + stage * N_STAGE_ARRAYS + a);
}

static cn_sel_stage *stages_of(const cn_select_builder *b, char *base, uint32_t stage)
{
    return (cn_sel_stage *)(void *)(base + stage_at(b->opts.max_rows, stage));
}

cn_status cn_select_builder_init(cn_select_builder *b, const cn_select_builder_opts *o,
                                 char *device)
{
    const uint32_t max_rows = o->max_rows;
    *b = (cn_select_builder){.opts = *o};
    b->ranges = cn_calloc(max_rows, sizeof *b->ranges);
    if (!b->ranges)
        return cn_fail(CN_ERR_MEMORY, "selection: out of host memory for %u rows", max_rows);
    cn_select_view *v = &b->view;
    v->rows.list_len = u32_array(b, device, LIST_LEN);
    v->rows.tail = u32_array(b, device, TAIL);
    v->rows.lengths = u32_array(b, device, LENGTHS);
    v->rows.n_forced = u32_array(b, device, N_FORCED);
    v->rows.seed = u32_array(b, device, SEED);
    v->ring_slots = u32_array(b, device, RING_SLOT);
    v->newest = u32_array(b, device, NEWEST);
    v->modulus = u32_array(b, device, MODULUS);
    v->n_window = u32_array(b, device, N_WINDOW);
    v->weights = (const uint8_t *)device + select_byte_at(max_rows, 0);
    v->rotate = (const uint8_t *)device + select_byte_at(max_rows, 1);
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++) {
        v->rows.stage[i].stage = stages_of(b, device, i);
        v->rows.stage[i].first = of_stage(b, device, i, FIRST);
        v->rows.stage[i].n = of_stage(b, device, i, N);
        v->rows.stage[i].base = of_stage(b, device, i, BASE);
        v->rows.stage[i].k = of_stage(b, device, i, K);
    }
    v->ahead = stages_of(b, device, AHEAD);
    v->ranges = b->ranges;
    return CN_OK;
}

void cn_select_builder_free(cn_select_builder *b) { cn_free(b->ranges); }

static void build_ring(cn_select_builder *b, char *host, uint32_t row, const cn_seq *q,
                       uint32_t position, bool listed)
{
    const bool predicts = listed && cn_selector_of(q->kv.select)->predicts;
    CN_ASSERT(!predicts || q->query_slot >= 0);
    u32_array(b, host, RING_SLOT)[row] = predicts ? (uint32_t)q->query_slot : CN_NO_SLOT;
    u32_array(b, host, NEWEST)[row] = position - 1;
    const uint32_t rows = predicts ? cn_selector_ring_rows(&q->kv) : 1;
    u32_array(b, host, MODULUS)[row] = rows;
    u32_array(b, host, N_WINDOW)[row] = rows - 1;
    host[select_byte_at(b->opts.max_rows, 0) + row] = (char)q->kv.select_weights;
    host[select_byte_at(b->opts.max_rows, 1) + row] = (char)q->kv.select_rotate;
    b->view.runs_predict |= predicts;
}

/* Adds a row to the current range, or to a new one if its candidates would exceed the room. Sets
 * where its candidates begin in the scores of each stage. */
static void place_candidates(cn_select_builder *b, char *host, uint32_t row,
                             const uint32_t n[CN_SELECT_STAGES])
{
    cn_select_view *v = &b->view;
    cn_row_range *range = v->n_ranges > 0 ? &b->ranges[v->n_ranges - 1] : NULL;
    bool fits = range != NULL;
    uint32_t first[CN_SELECT_STAGES];
    for (uint32_t i = 0; fits && i < CN_SELECT_STAGES; i++) {
        first[i] = of_stage(b, host, i, FIRST)[row - 1] + of_stage(b, host, i, N)[row - 1];
        fits = (uint64_t)first[i] + n[i] <= b->opts.room;
    }
    if (!fits) {
        range = &b->ranges[v->n_ranges++];
        range->start = row;
        memset(first, 0, sizeof first);
    }
    range->end = row + 1;
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++) {
        of_stage(b, host, i, FIRST)[row] = first[i];
        of_stage(b, host, i, N)[row] = n[i];
    }
}

static void build_row(cn_select_builder *b, char *host, uint32_t row, const cn_plan_row *r)
{
    const cn_seq *q = r->seq;
    const cn_select_span s = r->span;
    const uint32_t kv_len = r->first_slot + 1;
    CN_ASSERT(!s.listed || r->first_slot == r->first_pos || q->home_len > 0);
    u32_array(b, host, LIST_LEN)[row] = s.list_len;
    u32_array(b, host, TAIL)[row] = s.tail;
    u32_array(b, host, LENGTHS)[row] = s.list_len + kv_len - s.tail;
    u32_array(b, host, N_FORCED)[row] = s.n_forced;
    u32_array(b, host, SEED)[row] = b->opts.seed ^ r->first_pos * UINT32_C(0x9e3779b1);
    build_ring(b, host, row, q, r->first_pos, s.listed);
    place_candidates(b, host, row, s.n);
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++) {
        stages_of(b, host, i)[row] = s.stage[i];
        of_stage(b, host, i, BASE)[row] = s.base[i];
        of_stage(b, host, i, K)[row] = s.k[i];
    }
    stages_of(b, host, AHEAD)[row] = s.ahead;
    b->view.ranks_ahead |= s.ahead.active;
}

/* A row that attends to nothing. */
static void build_row_padding(cn_select_builder *b, char *host, uint32_t row)
{
    for (uint32_t i = 0; i < N_U32_ARRAYS; i++) u32_array(b, host, i)[row] = 0;
    u32_array(b, host, RING_SLOT)[row] = CN_NO_SLOT;
    u32_array(b, host, MODULUS)[row] = 1;
    for (uint32_t i = 0; i < N_STAGES; i++) stages_of(b, host, i)[row] = (cn_sel_stage){0};
    for (uint32_t i = 0; i < 2; i++) host[select_byte_at(b->opts.max_rows, i) + row] = 0;
}

/* ---- routes ---- */

uint32_t cn_select_route_of(const cn_backend *be, const cn_sel_forms *need,
                            const cn_sel_forms *declared)
{
    return be->select_route ? be->select_route(need, declared) : 1;
}

/* Adds a route that is not among the n. Returns their number. */
static uint32_t add_route(uint32_t routes[CN_MAX_ROUTES], uint32_t n, uint32_t route)
{
    for (uint32_t i = 0; i < n; i++)
        if (routes[i] == route) return n;
    CN_ASSERT(n < CN_MAX_ROUTES);
    routes[n] = route;
    return n + 1;
}

/* A step can have any set of the forms that its requests can have. */
uint32_t cn_select_routes(const cn_backend *be, uint32_t selectors,
                          uint32_t routes[CN_MAX_ROUTES])
{
    const cn_sel_forms all = cn_selectors_forms(selectors);
    uint32_t n = add_route(routes, 0, 0);
    for (uint32_t tokens = all.stage[1]; tokens > 0; tokens = (tokens - 1) & all.stage[1]) {
        const cn_sel_forms in_tiles = {{all.stage[0], tokens}}, others = {{0, tokens}};
        const bool any = tokens & CN_SEL_FORMS_IN_TILES;
        n = add_route(routes, n, cn_select_route_of(be, any ? &in_tiles : &others, &all));
    }
    /* Lists that are made before layer 0: the layers rank nothing. */
    const cn_sel_forms none = {{0}};
    if (cn_selectors_need(selectors).head)
        n = add_route(routes, n, cn_select_route_of(be, &none, &all));
    return n;
}

cn_select_need cn_select_need_of(const cn_plan *plan, uint32_t room)
{
    cn_select_need need = {0};
    uint64_t n[CN_SELECT_STAGES] = {0};
    for (uint32_t i = 0; i < plan->n_decode; i++) {
        const cn_select_span *s = &plan->rows[i].span;
        need.listed |= s->listed;
        for (uint32_t k = 0; k < CN_SELECT_STAGES; k++) {
            need.forms.stage[k] |= cn_sel_form(&s->stage[k]);
            n[k] += s->n[k];
        }
    }
    need.fits = n[0] <= room && n[1] <= room;
    return need;
}

/* Sets what a step of this shape launches. */
static void fix_shape(cn_select_builder *b, cn_step_shape shape)
{
    cn_select_view *v = &b->view;
    CN_ASSERT(v->n_ranges <= 1);
    v->n_ranges = 1;
    b->ranges[0] = (cn_row_range){0, shape.rows};
    v->runs_predict = cn_selectors_need(b->opts.selectors).slots;
    v->ranks_ahead = cn_selectors_need(b->opts.selectors).head;
    v->route = shape.route;
}

bool cn_select_build(cn_select_builder *b, const cn_plan *plan, cn_step_shape shape, char *host)
{
    cn_select_view *v = &b->view;
    const cn_select_need need = cn_select_need_of(plan, b->opts.room);
    CN_ASSERT(shape.rows == 0 || (need.fits && (shape.route > 0 || !need.listed)));
    if (shape.rows == 0 ? !need.listed : shape.route == 0) return false;
    v->runs_predict = v->ranks_ahead = false;
    v->n_ranges = 0;
    v->route = cn_select_route_of(b->opts.be, &need.forms, &need.forms);
    for (uint32_t r = 0; r < plan->n_decode; r++) build_row(b, host, r, &plan->rows[r]);
    for (uint32_t r = plan->n_decode; r < shape.rows; r++) build_row_padding(b, host, r);
    if (shape.rows > 0) fix_shape(b, shape);
    return true;
}

uint32_t cn_select_completed_tiles(const cn_plan *plan, uint32_t block_tokens,
                                   cn_digest_tile *tiles)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const cn_plan_row *row = &plan->rows[r];
        if (row->first_slot != row->first_pos) continue;
        const uint32_t end = (row->first_slot + row->n_new) / CN_DIGEST_TILE;
        for (uint32_t t = row->first_slot / CN_DIGEST_TILE; t < end; t++) {
            const uint32_t slot = t * CN_DIGEST_TILE;
            tiles[n++] = (cn_digest_tile){row->seq->table[slot / block_tokens],
                                          slot % block_tokens / CN_DIGEST_TILE};
        }
    }
    return n;
}
