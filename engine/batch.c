/* batch.c - flattens a plan. One host buffer and one device buffer of the same layout:
 *
 *   tokens | sampled rows | positions | kv_slots | q_rows | q_start | kv_len | logit rows
 *   | sample rows | selection | plane slots | plane and pool lengths | draft slots | draft lengths
 *   | tables | bans | biases | plane tables | draft tables
 *
 * Each array has a fixed, 64-byte-aligned offset, sized for the largest step. One copy moves
 * everything up to the last table in use. The others are rare and have copies of their own. */
#include "engine/batch.h"

#include "compress/selector.h"
#include "engine/base/base.h"
#include "engine/sampler.h"
#include "engine/select/select_memory.h"

typedef enum section {
    SEC_TOKENS,
    SEC_SAMPLED_ROWS,
    SEC_POSITIONS,
    SEC_KV_SLOTS,
    SEC_Q_ROWS,
    SEC_Q_START,
    SEC_KV_LEN,
    SEC_LOGIT_ROWS,
    SEC_SAMPLE,
    SEC_SELECT, /* engine/select/select.h; empty without selectors */
    SEC_PLANE_SLOTS, /* cn_plane_view; empty without a plane */
    SEC_PLANE_LEN,
    SEC_POOL_LEN,
    SEC_DRAFT_SLOTS, /* cn_batch_draft_view; empty where no draft K lies by home block */
    SEC_DRAFT_LEN,
    SEC_TABLES, /* large: only the part in use is copied */
    SEC_BANS,
    SEC_BIASES,
    SEC_PLANE_TABLES,
    SEC_DRAFT_TABLES,
    N_SECTIONS
} section;

struct cn_batch {
    cn_backend *be;
    cn_batch_opts opts;
    size_t offset[N_SECTIONS + 1];
    char *host;
    char *device;
    cn_batch_view view; /* device pointers */
    cn_seq **logit_seq; /* [max_seqs] */
    uint32_t n_logit_rows, n_bans, n_biases;
    cn_select_builder select;
    bool selects; /* some row of the current step attends to a list */
    cn_plane_view plane; /* table_stride 0: no row of the current step reads the plane */
    cn_batch_view drafts; /* table_stride 0: the slots of draft K are those of the KV */
};

static void section_offsets(const cn_batch_opts *o, size_t offset[N_SECTIONS + 1])
{
    const size_t bytes[N_SECTIONS] = {
        [SEC_TOKENS] = sizeof(uint32_t) * o->max_tokens,
        [SEC_SAMPLED_ROWS] = sizeof(int32_t) * o->max_tokens,
        [SEC_POSITIONS] = sizeof(uint32_t) * o->max_tokens,
        [SEC_KV_SLOTS] = sizeof(uint32_t) * o->max_tokens,
        [SEC_Q_ROWS] = sizeof(int32_t) * o->max_tokens,
        [SEC_Q_START] = sizeof(uint32_t) * (o->max_seqs + 1),
        [SEC_KV_LEN] = sizeof(uint32_t) * o->max_seqs,
        [SEC_LOGIT_ROWS] = sizeof(uint32_t) * o->max_seqs,
        [SEC_SAMPLE] = sizeof(cn_sample_row) * o->max_seqs,
        [SEC_SELECT] = o->select_room > 0 ? cn_select_bytes(o->max_seqs) : 0,
        [SEC_PLANE_SLOTS] = o->max_home_blocks > 0 ? sizeof(uint32_t) * o->max_tokens : 0,
        [SEC_PLANE_LEN] = o->max_home_blocks > 0 ? sizeof(uint32_t) * o->max_seqs : 0,
        [SEC_POOL_LEN] = o->max_home_blocks > 0 ? sizeof(uint32_t) * o->max_seqs : 0,
        [SEC_DRAFT_SLOTS] = o->max_draft_blocks > 0 ? sizeof(uint32_t) * o->max_tokens : 0,
        [SEC_DRAFT_LEN] = o->max_draft_blocks > 0 ? sizeof(uint32_t) * o->max_seqs : 0,
        [SEC_BANS] = sizeof(uint32_t) * o->max_bans,
        [SEC_BIASES] = sizeof(cn_logit_bias) * o->max_biases,
        [SEC_TABLES] = sizeof(uint32_t) * o->max_seqs * o->max_blocks_per_seq,
        [SEC_PLANE_TABLES] = sizeof(uint32_t) * o->max_seqs * o->max_home_blocks,
        [SEC_DRAFT_TABLES] = sizeof(uint32_t) * o->max_seqs * o->max_draft_blocks,
    };
    offset[0] = 0;
    for (int i = 0; i < N_SECTIONS; i++) offset[i + 1] = cn_round_up(offset[i] + bytes[i], 64);
}

cn_batch_opts cn_batch_opts_of(const cn_config *c, const cn_model_config *m, uint32_t block_tokens,
                               uint32_t window_tokens)
{
    const uint32_t longest_blocks =
        (uint32_t)cn_ceil_div(cn_start_max_model_len(c, m), block_tokens);
    const bool drafts = cn_config_away(c) && cn_selectors_need(cn_config_selectors(c)).head;
    return (cn_batch_opts){
        .max_tokens = cn_start_max_tokens(c),
        .max_seqs = cn_start_max_rows(c),
        .max_blocks_per_seq = longest_blocks,
        .max_bans = c->max_num_seqs * (2 * CN_MAX_EOS + CN_MAX_STOP_TOKEN_IDS),
        .max_biases = c->max_num_seqs * CN_MAX_LOGIT_BIASES,
        .block_tokens = block_tokens,
        .window_tokens = window_tokens,
        .select_room = cn_select_scratch_of(c, m, block_tokens).room,
        .select_seed = (uint32_t)c->seed,
        .selectors = cn_config_local_selectors(c),
        .max_home_blocks = cn_config_away(c) && c->select_dense_layers > 0 ? longest_blocks : 0,
        .max_draft_blocks = drafts ? longest_blocks : 0,
    };
}

size_t cn_batch_device_bytes(const cn_batch_opts *o)
{
    size_t offset[N_SECTIONS + 1];
    section_offsets(o, offset);
    return offset[N_SECTIONS];
}

void cn_batch_declare(cn_start_plan *p, void **slot)
{
    const cn_batch_opts o = cn_batch_opts_of(p->config, p->model, p->kv.block_tokens, 0);
    cn_start_add(p, "batch arrays", CN_PART_STEPS, cn_batch_device_bytes(&o), slot);
}

static cn_batch_view view_of(const cn_batch *b, char *base)
{
    const size_t *at = b->offset;
    return (cn_batch_view){
        .tokens = (const uint32_t *)(void *)(base + at[SEC_TOKENS]),
        .sampled_row = (const int32_t *)(void *)(base + at[SEC_SAMPLED_ROWS]),
        .positions = (const uint32_t *)(void *)(base + at[SEC_POSITIONS]),
        .kv_slots = (const uint32_t *)(void *)(base + at[SEC_KV_SLOTS]),
        .q_rows = (const int32_t *)(void *)(base + at[SEC_Q_ROWS]),
        .q_start = (const uint32_t *)(void *)(base + at[SEC_Q_START]),
        .kv_len = (const uint32_t *)(void *)(base + at[SEC_KV_LEN]),
        .tables = (const uint32_t *)(void *)(base + at[SEC_TABLES]),
    };
}

static const void *device_at(const cn_batch *b, section s) { return b->device + b->offset[s]; }

/* The plane of a step that does not read it. */
static cn_plane_view plane_of(const cn_batch *b)
{
    return (cn_plane_view){.layout = b->opts.plane_layout,
                           .kv = b->opts.plane_kv,
                           .slots = device_at(b, SEC_PLANE_SLOTS),
                           .tables = device_at(b, SEC_PLANE_TABLES),
                           .lengths = device_at(b, SEC_PLANE_LEN),
                           .pool_lengths = device_at(b, SEC_POOL_LEN)};
}

/* Without memory on the host. */
static cn_status create_on_device(cn_batch **out, cn_backend *be, const cn_batch_opts *o,
                                  void *device)
{
    CN_ASSERT(o->max_tokens > 0 && o->max_seqs > 0 && o->max_blocks_per_seq > 0);
    cn_batch *b = cn_calloc(1, sizeof *b);
    if (!b) return cn_fail(CN_ERR_MEMORY, "batch: out of host memory");
    b->be = be;
    b->opts = *o;
    section_offsets(o, b->offset);
    b->device = device;
    b->view = view_of(b, b->device);
    b->plane = plane_of(b);
    if (o->select_room > 0) {
        const cn_select_builder_opts select = {.max_rows = o->max_seqs,
                                               .room = o->select_room,
                                               .seed = o->select_seed,
                                               .selectors = o->selectors,
                                               .be = be};
        const cn_status status =
            cn_select_builder_init(&b->select, &select, b->device + b->offset[SEC_SELECT]);
        if (status != CN_OK) {
            cn_batch_free(b);
            return status;
        }
    }
    *out = b;
    return CN_OK;
}

cn_status cn_batch_create(cn_batch **out, cn_backend *be, const cn_batch_opts *o, void *device)
{
    cn_batch *b = NULL;
    *out = NULL;
    CN_TRY(create_on_device(&b, be, o, device));
    b->host = cn_calloc_aligned(b->offset[N_SECTIONS], 1);
    b->logit_seq = cn_calloc(o->max_seqs, sizeof *b->logit_seq);
    if (!b->host || !b->logit_seq) {
        const size_t bytes = b->offset[N_SECTIONS];
        cn_batch_free(b);
        return cn_fail(CN_ERR_MEMORY, "batch: out of host memory for %zu bytes", bytes);
    }
    *out = b;
    return CN_OK;
}

cn_status cn_batch_create_copy(cn_batch **out, cn_backend *be, const cn_batch *of, void *device)
{
    return create_on_device(out, be, &of->opts, device);
}

void cn_batch_free(cn_batch *b)
{
    if (!b) return;
    cn_free(b->host);
    cn_free(b->logit_seq);
    cn_select_builder_free(&b->select);
    cn_free(b);
}

static void *host_at(cn_batch *b, section s) { return b->host + b->offset[s]; }

/* The tokens of one row: ids, positions, KV slots, and the observation window's row for the query.
 * A query is observed when its sequence has a query slot. Its ring row is the position modulo the
 * request's own window; slots are laid out for the engine's largest window. */
static void build_row_tokens(cn_batch *b, const cn_plan_row *row, uint32_t at)
{
    const cn_seq *seq = row->seq;
    uint32_t *tokens = host_at(b, SEC_TOKENS), *positions = host_at(b, SEC_POSITIONS);
    uint32_t *kv_slots = host_at(b, SEC_KV_SLOTS);
    int32_t *q_rows = host_at(b, SEC_Q_ROWS), *sampled_rows = host_at(b, SEC_SAMPLED_ROWS);
    uint32_t block_tokens = b->opts.block_tokens, window = cn_ring_rows(&seq->kv);
    for (uint32_t i = 0; i < row->n_new; i++) {
        uint32_t position = row->first_pos + i, slot = row->first_slot + i;
        CN_ASSERT(position <= seq->n_tokens && slot / block_tokens < seq->n_blocks);
        bool known = position < seq->n_tokens;
        tokens[at + i] = known ? seq->tokens[position] : 0;
        sampled_rows[at + i] = known ? -1 : (int32_t)seq->sampled_row;
        positions[at + i] = position;
        kv_slots[at + i] =
            seq->table[slot / block_tokens] * block_tokens + slot % block_tokens;
        /* The ring keeps only the last w queries of a long chunk. The others are not written, so
         * that no two rows of one launch write the same ring row. */
        bool observed = seq->query_slot >= 0 && i + window >= row->n_new;
        q_rows[at + i] = observed ? seq->query_slot * (int32_t)b->opts.window_tokens +
                                        (int32_t)(position % window)
                                  : -1;
    }
}

static void add_logit_row(cn_batch *b, cn_seq *seq, uint32_t token_row)
{
    CN_ASSERT(b->n_logit_rows < b->opts.max_seqs);
    uint32_t *logit_rows = host_at(b, SEC_LOGIT_ROWS);
    cn_sample_row *rows = host_at(b, SEC_SAMPLE);
    memset(&rows[b->n_logit_rows], 0, sizeof *rows);
    logit_rows[b->n_logit_rows] = token_row;
    rows[b->n_logit_rows].prev_row = (int32_t)seq->sampled_row;
    seq->sampled_row = b->n_logit_rows;
    b->logit_seq[b->n_logit_rows++] = seq;
}

/* A padding row: it stores nothing and attends to nothing. No token is sampled for it. */
static void build_padding(cn_batch *b, uint32_t row)
{
    ((uint32_t *)host_at(b, SEC_TOKENS))[row] = 0;
    ((int32_t *)host_at(b, SEC_SAMPLED_ROWS))[row] = -1;
    ((uint32_t *)host_at(b, SEC_POSITIONS))[row] = 0;
    ((uint32_t *)host_at(b, SEC_KV_SLOTS))[row] = CN_NO_SLOT;
    ((int32_t *)host_at(b, SEC_Q_ROWS))[row] = -1;
    ((uint32_t *)host_at(b, SEC_Q_START))[row + 1] = row + 1;
    ((uint32_t *)host_at(b, SEC_KV_LEN))[row] = 0;
    ((uint32_t *)host_at(b, SEC_LOGIT_ROWS))[row] = row;
}

static void pad_rows(cn_batch *b, const cn_plan *plan, uint32_t n_rows)
{
    CN_ASSERT(plan->n_rows <= n_rows && n_rows <= b->opts.max_seqs);
    CN_ASSERT(plan->n_decode == plan->n_rows && b->n_logit_rows == plan->n_rows);
    for (uint32_t r = plan->n_rows; r < n_rows; r++) build_padding(b, r);
    b->view.n_tokens = b->view.n_seqs = b->view.n_decode = n_rows;
    b->view.max_kv = b->opts.max_blocks_per_seq * b->opts.block_tokens;
}

/* The plane arrays of a decode row. A row past its first commit reads its dense layers from the
 * plane, by position. */
static void build_plane_row(cn_batch *b, const cn_plan_row *row, uint32_t r)
{
    const cn_seq *q = row->seq;
    const uint32_t block_tokens = b->opts.block_tokens, at = row->first_pos;
    const uint32_t length = q->home_len > 0 ? at + 1 : 0;
    uint32_t *tables = host_at(b, SEC_PLANE_TABLES);
    ((uint32_t *)host_at(b, SEC_PLANE_LEN))[r] = length;
    ((uint32_t *)host_at(b, SEC_POOL_LEN))[r] = length > 0 ? 0 : row->first_slot + 1;
    if (length == 0) return;
    const uint32_t n = (uint32_t)cn_ceil_div(length, block_tokens);
    CN_ASSERT(row->n_new == 1 && n <= q->n_home_blocks);
    const uint32_t first = b->opts.plane_first[q->kv.home];
    uint32_t *table = &tables[(size_t)r * b->plane.table_stride];
    for (uint32_t i = 0; i < n; i++) table[i] = first + q->home_table[i];
    ((uint32_t *)host_at(b, SEC_PLANE_SLOTS))[r] =
        table[at / block_tokens] * block_tokens + at % block_tokens;
}

static void build_plane(cn_batch *b, const cn_plan *plan)
{
    cn_plane_view *v = &b->plane;
    v->table_stride = v->max_kv = 0;
    if (b->opts.max_home_blocks == 0) return;
    for (uint32_t r = 0; r < plan->n_decode; r++)
        if (plan->rows[r].seq->home_len > 0)
            v->max_kv = cn_max_u32(v->max_kv, plan->rows[r].first_pos + 1);
    if (v->max_kv == 0) return;
    v->table_stride = (uint32_t)cn_ceil_div(v->max_kv, b->opts.block_tokens);
    CN_ASSERT(v->table_stride <= b->opts.max_home_blocks);
    uint32_t *slots = host_at(b, SEC_PLANE_SLOTS);
    for (uint32_t t = 0; t < plan->n_tokens; t++) slots[t] = CN_NO_SLOT;
    for (uint32_t r = 0; r < plan->n_decode; r++) build_plane_row(b, &plan->rows[r], r);
}

/* Whether the draft K of a row lies by home block: past its first commit, when a slot of its pool
 * table is not a position. */
static bool drafts_at_home(const cn_plan_row *row)
{
    return row->seq->home_len > 0 && cn_selector_of(row->seq->kv.select)->ahead;
}

/* The draft arrays of a row. */
static void build_draft_row(cn_batch *b, const cn_plan_row *row, uint32_t r)
{
    const cn_seq *q = row->seq;
    const uint32_t block_tokens = b->opts.block_tokens, at = row->first_pos;
    const bool home = drafts_at_home(row);
    const uint32_t length = home ? at + 1 : row->first_slot + row->n_new;
    const uint32_t n = (uint32_t)cn_ceil_div(length, block_tokens);
    uint32_t *table =
        (uint32_t *)host_at(b, SEC_DRAFT_TABLES) + (size_t)r * b->drafts.table_stride;
    ((uint32_t *)host_at(b, SEC_DRAFT_LEN))[r] = length;
    if (!home) {
        memcpy(table, q->table, n * sizeof *table);
        return;
    }
    CN_ASSERT(row->n_new == 1 && n <= q->n_home_blocks);
    const uint32_t first = b->opts.draft_first + b->opts.plane_first[q->kv.home];
    for (uint32_t i = 0; i < n; i++) table[i] = first + q->home_table[i];
    ((uint32_t *)host_at(b, SEC_DRAFT_SLOTS))[r] =
        table[at / block_tokens] * block_tokens + at % block_tokens;
}

/* A step without rows of that kind uses the arrays of its KV. */
static void build_drafts(cn_batch *b, const cn_plan *plan)
{
    cn_batch_view *v = &b->drafts;
    uint32_t longest = 0;
    v->table_stride = 0;
    if (b->opts.max_draft_blocks == 0) return;
    for (uint32_t r = 0; r < plan->n_decode; r++)
        if (drafts_at_home(&plan->rows[r]))
            longest = cn_max_u32(longest, plan->rows[r].first_pos + 1);
    if (longest == 0) return;
    *v = b->view;
    v->kv_slots = device_at(b, SEC_DRAFT_SLOTS);
    v->kv_len = device_at(b, SEC_DRAFT_LEN);
    v->tables = device_at(b, SEC_DRAFT_TABLES);
    v->table_stride = cn_max_u32(v->table_stride,
                                 (uint32_t)cn_ceil_div(longest, b->opts.block_tokens));
    v->max_kv = cn_max_u32(v->max_kv, longest);
    CN_ASSERT(v->table_stride <= b->opts.max_draft_blocks);
    memcpy(host_at(b, SEC_DRAFT_SLOTS), host_at(b, SEC_KV_SLOTS),
           plan->n_tokens * sizeof(uint32_t));
    for (uint32_t r = 0; r < plan->n_rows; r++) build_draft_row(b, &plan->rows[r], r);
}

void cn_batch_build(cn_batch *b, const cn_plan *plan, cn_step_shape shape)
{
    CN_ASSERT(plan->n_tokens <= b->opts.max_tokens && plan->n_rows <= b->opts.max_seqs);
    uint32_t *q_start = host_at(b, SEC_Q_START), *kv_len = host_at(b, SEC_KV_LEN);
    uint32_t *tables = host_at(b, SEC_TABLES);
    uint32_t stride = 1, at = 0, max_q = 1, max_kv = 1, max_prefill_kv = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const cn_plan_row *row = &plan->rows[r];
        uint32_t len = row->first_slot + row->n_new;
        stride = cn_max_u32(stride, (uint32_t)cn_ceil_div(len, b->opts.block_tokens));
        max_q = cn_max_u32(max_q, row->n_new);
        max_kv = cn_max_u32(max_kv, len);
        if (r >= plan->n_decode) max_prefill_kv = cn_max_u32(max_prefill_kv, len);
    }
    CN_ASSERT(stride <= b->opts.max_blocks_per_seq);
    if (shape.rows > 0) stride = b->opts.max_blocks_per_seq;
    b->n_logit_rows = b->n_bans = b->n_biases = 0;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const cn_plan_row *row = &plan->rows[r];
        q_start[r] = at;
        kv_len[r] = row->first_slot + row->n_new;
        uint32_t n_blocks = (uint32_t)cn_ceil_div(kv_len[r], b->opts.block_tokens);
        memcpy(&tables[(size_t)r * stride], row->seq->table, n_blocks * sizeof *tables);
        build_row_tokens(b, row, at);
        at += row->n_new;
        if (row->wants_sample) add_logit_row(b, row->seq, at - 1);
    }
    q_start[plan->n_rows] = at;
    CN_ASSERT(at == plan->n_tokens);
    for (uint32_t f = 0; f < plan->n_forks; f++)
        add_logit_row(b, plan->forks[f].seq, q_start[plan->forks[f].leader_row + 1] - 1);

    cn_batch_view *v = &b->view;
    v->n_tokens = plan->n_tokens;
    v->n_seqs = plan->n_rows;
    v->n_decode = plan->n_decode;
    v->table_stride = stride;
    v->max_q = max_q;
    v->max_kv = max_kv;
    v->max_prefill_kv = max_prefill_kv;
    if (shape.rows > 0) pad_rows(b, plan, shape.rows);
    b->selects = b->opts.select_room > 0 &&
                 cn_select_build(&b->select, plan, shape, host_at(b, SEC_SELECT));
    build_plane(b, plan);
    build_drafts(b, plan);
    /* No graph has the plane. */
    CN_ASSERT(b->plane.table_stride + b->drafts.table_stride == 0 || shape.rows == 0);
}

uint32_t cn_batch_n_logit_rows(const cn_batch *b) { return b->n_logit_rows; }

cn_sample_row *cn_batch_sample_row(cn_batch *b, uint32_t i)
{
    CN_ASSERT(i < b->n_logit_rows);
    return (cn_sample_row *)host_at(b, SEC_SAMPLE) + i;
}

cn_seq *cn_batch_logit_seq(const cn_batch *b, uint32_t i)
{
    CN_ASSERT(i < b->n_logit_rows);
    return b->logit_seq[i];
}

bool cn_batch_try_add_ban(cn_batch *b, uint32_t token, uint32_t *index)
{
    if (b->n_bans == b->opts.max_bans) return false;
    ((uint32_t *)host_at(b, SEC_BANS))[b->n_bans] = token;
    *index = b->n_bans++;
    return true;
}

bool cn_batch_try_add_bias(cn_batch *b, cn_logit_bias bias, uint32_t *index)
{
    if (b->n_biases == b->opts.max_biases) return false;
    ((cn_logit_bias *)host_at(b, SEC_BIASES))[b->n_biases] = bias;
    *index = b->n_biases++;
    return true;
}

/* Copies everything up to the last table in use. */
static cn_status upload_arrays(cn_batch *b, const char *host, cn_stream *s, const uint32_t *sampled)
{
    b->view.sampled = sampled;
    const size_t table_bytes = sizeof(uint32_t) * b->view.n_seqs * b->view.table_stride;
    return b->be->mem_write(s, b->device, host, b->offset[SEC_TABLES] + table_bytes);
}

cn_status cn_batch_upload_copy(cn_batch *copy, const cn_batch *of, cn_stream *s,
                               const uint32_t *sampled)
{
    cn_batch_view *v = &copy->view;
    cn_select_view *select = &copy->select.view;
    CN_ASSERT(of->plane.table_stride + of->drafts.table_stride == 0);
    v->n_tokens = of->view.n_tokens;
    v->n_seqs = of->view.n_seqs;
    v->n_decode = of->view.n_decode;
    v->table_stride = of->view.table_stride;
    v->max_q = of->view.max_q;
    v->max_kv = of->view.max_kv;
    v->max_prefill_kv = of->view.max_prefill_kv;
    copy->selects = of->selects;
    select->runs_predict = of->select.view.runs_predict;
    select->ranks_ahead = of->select.view.ranks_ahead;
    select->route = of->select.view.route;
    select->ranges = of->select.view.ranges;
    select->n_ranges = of->select.view.n_ranges;
    return upload_arrays(copy, of->host, s, sampled);
}

cn_status cn_batch_upload(cn_batch *b, cn_stream *s, const uint32_t *sampled)
{
    const size_t *at = b->offset;
    CN_TRY(upload_arrays(b, b->host, s, sampled));
    if (b->n_bans)
        CN_TRY(b->be->mem_write(s, b->device + at[SEC_BANS], b->host + at[SEC_BANS],
                                b->n_bans * sizeof(uint32_t)));
    if (b->n_biases)
        CN_TRY(b->be->mem_write(s, b->device + at[SEC_BIASES], b->host + at[SEC_BIASES],
                                b->n_biases * sizeof(cn_logit_bias)));
    if (b->plane.table_stride)
        CN_TRY(b->be->mem_write(s, b->device + at[SEC_PLANE_TABLES],
                                b->host + at[SEC_PLANE_TABLES],
                                sizeof(uint32_t) * b->view.n_decode * b->plane.table_stride));
    if (b->drafts.table_stride)
        CN_TRY(b->be->mem_write(s, b->device + at[SEC_DRAFT_TABLES],
                                b->host + at[SEC_DRAFT_TABLES],
                                sizeof(uint32_t) * b->view.n_seqs * b->drafts.table_stride));
    return CN_OK;
}

const cn_batch_view *cn_batch_device_view(const cn_batch *b) { return &b->view; }

const cn_select_view *cn_batch_select_view(const cn_batch *b)
{
    return b->selects ? &b->select.view : NULL;
}

const cn_plane_view *cn_batch_plane_view(const cn_batch *b)
{
    return b->plane.table_stride > 0 ? &b->plane : NULL;
}

const cn_batch_view *cn_batch_draft_view(const cn_batch *b)
{
    return b->drafts.table_stride > 0 ? &b->drafts : NULL;
}

const uint32_t *cn_batch_logit_rows(const cn_batch *b) { return device_at(b, SEC_LOGIT_ROWS); }
const cn_sample_row *cn_batch_sample_rows(const cn_batch *b) { return device_at(b, SEC_SAMPLE); }
const uint32_t *cn_batch_bans(const cn_batch *b) { return device_at(b, SEC_BANS); }
const cn_logit_bias *cn_batch_biases(const cn_batch *b) { return device_at(b, SEC_BIASES); }
