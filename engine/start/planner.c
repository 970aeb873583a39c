/* planner.c - eq. 1 and 2 of the paper in 64-bit integers. See planner.h. */
#include "engine/start/planner.h"

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/start/host_memory.h"

enum { RING_PERCENT = 5 }; /* of the KV memory, for query slots where no policy has a cap */

/* Bytes of a block with K, V and these planes, in n_layers layers. */
static uint64_t block_bytes(const cn_planner_input *in, uint32_t planes, uint32_t n_layers)
{
    cn_kv_layout l = cn_kv_layout_form(n_layers, 1, in->n_kv_heads, in->block_tokens, in->head_dim,
                                       in->act_dtype, in->kv_form);
    cn_kv_layout_share(&l, in->value_dim, in->query_dim);
    l.draft_dim = in->draft_dim;
    l.draft_state = in->draft_state;
    uint64_t bytes = 0;
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++)
        if ((planes | 1U << CN_PLANE_KV) >> i & 1)
            bytes += cn_block_plane_bytes(&l, (cn_block_plane)i) *
                     cn_block_plane_layers(&l, (cn_block_plane)i);
    return bytes;
}

static uint64_t query_slot_bytes(const cn_planner_input *in)
{
    const uint32_t query_dim = in->value_dim > 0 ? in->query_dim : in->head_dim;
    return (uint64_t)in->n_layers * in->window_tokens * in->n_heads * query_dim *
           cn_dtype_bytes(in->act_dtype);
}

static uint32_t clamp_u32(uint64_t n) { return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n; }

/* Computes N_total and M from avail_bytes. */
static void divide(cn_memory_plan *p, const cn_planner_input *in)
{
    const uint64_t n_max = in->n_max_blocks;
    if (in->n_blocks_override) {
        p->n_blocks = in->n_blocks_override;
        p->n_query_slots = n_max ? (uint32_t)(p->n_blocks / n_max) : in->max_seqs;
    } else if (n_max == 0) {
        const uint64_t slots_bytes = in->avail_bytes / 100 * RING_PERCENT;
        if (in->window_tokens > 0) {
            const uint32_t most = clamp_u32(slots_bytes / p->query_slot_bytes);
            p->n_query_slots = cn_min_u32(cn_max_u32(most, 1), in->max_seqs);
        }
        const uint64_t taken = p->n_query_slots * p->query_slot_bytes;
        p->n_blocks = taken < in->avail_bytes
                          ? clamp_u32((in->avail_bytes - taken) / p->block_bytes)
                          : 0;
    } else {
        const uint64_t request_bytes = p->block_bytes * n_max + p->query_slot_bytes;
        p->n_query_slots = clamp_u32(in->avail_bytes / request_bytes);
        /* avail / (m_kv' + m_q / N_max), with both sides times N_max to stay in integers. */
        const unsigned __int128 blocks = (unsigned __int128)in->avail_bytes * n_max / request_bytes;
        p->n_blocks = blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)blocks;
    }
    if (in->window_tokens == 0) p->n_query_slots = 0;
    if (p->n_query_slots <= in->max_seqs) return;
    p->n_query_slots = in->max_seqs;
    if (in->n_blocks_override) return;
    const uint64_t left = in->avail_bytes - p->n_query_slots * p->query_slot_bytes;
    p->n_blocks = clamp_u32(left / p->block_bytes);
}

/* The swap space: as many requests at the default budget as fit, and more blocks with the rest. */
static cn_status divide_swap(cn_memory_plan *p, const cn_planner_input *in)
{
    if (in->swap_bytes == 0) return CN_OK;
    if (in->n_max_blocks == 0)
        return cn_fail(CN_ERR_ARG,
                       "--swap-space %.5g: only compressed requests use it, and no declared policy "
                       "compresses: add one to --kv-policies, or set --swap-space 0",
                       cn_gib(in->swap_bytes));
    const uint64_t request_bytes = p->block_bytes * in->n_max_blocks + p->query_slot_bytes;
    p->n_swap_requests = clamp_u32(in->swap_bytes / request_bytes);
    if (p->n_swap_requests == 0)
        return cn_fail(CN_ERR_ARG,
                       "--swap-space %.5g: %llu bytes are too few for one compressed request, "
                       "which needs %llu (%u blocks of %u tokens): raise it to %.4g, lower "
                       "--kv-budget, or set it to 0",
                       cn_gib(in->swap_bytes), (unsigned long long)in->swap_bytes,
                       (unsigned long long)request_bytes, in->n_max_blocks, in->block_tokens,
                       cn_gib(request_bytes) * 1.0001);
    p->n_swap_windows = in->window_tokens ? p->n_swap_requests : 0;
    const uint64_t window_bytes = p->n_swap_windows * p->query_slot_bytes;
    p->n_swap_blocks = clamp_u32((in->swap_bytes - window_bytes) / p->block_bytes);
    p->swap_bytes = p->n_swap_blocks * p->block_bytes + window_bytes;
    return CN_OK;
}

/* A home space, without what it takes from the KV cache. */
static cn_status plan_home(cn_home_plan *h, const cn_planner_input *in, cn_kv_home home)
{
    const uint64_t home_bytes = in->home_bytes[home];
    *h = (cn_home_plan){0};
    if (home_bytes == 0) return CN_OK;
    h->planes = in->home_planes;
    /* Digests of KV in host memory lie on the device. */
    const uint64_t kv = block_bytes(in, 0, in->n_layers);
    const uint64_t digests = block_bytes(in, in->home_planes, in->n_layers) - kv;
    const bool has_device = cn_home_kind_of(home)->has_device;
    h->block_bytes = has_device ? kv + digests : kv;
    h->n_blocks = clamp_u32(home_bytes / h->block_bytes);
    h->n_slots = in->max_seqs;
    h->bytes = h->n_blocks * h->block_bytes;
    const uint64_t need = in->n_max_blocks * h->block_bytes;
    if (h->bytes < need)
        return cn_fail(CN_ERR_ARG,
                       "--%s %.5g: kv home %s expects at least %.4g, %llu bytes, for one request "
                       "of %u blocks; raise it or lower --select-tokens",
                       in->home_option[home], cn_gib(home_bytes), cn_kv_home_name(home),
                       cn_gib(need) * 1.0001, (unsigned long long)need, in->n_max_blocks);
    if (in->dense_layers > 0) h->plane_bytes = h->n_blocks * block_bytes(in, 0, in->dense_layers);
    const uint32_t draft = 1U << CN_PLANE_DRAFT | 1U << CN_PLANE_STATE;
    if (in->home_drafts) h->draft_bytes = h->n_blocks * (block_bytes(in, draft, in->n_layers) - kv);
    h->device_bytes = h->plane_bytes + h->draft_bytes + (has_device ? 0 : h->n_blocks * digests);
    return CN_OK;
}

/* A home space, and what it takes from the device's memory. */
static cn_status divide_home(cn_memory_plan *p, cn_planner_input *in, cn_kv_home home)
{
    cn_home_plan *h = &p->homes[home];
    CN_TRY(plan_home(h, in, home));
    p->home_device_bytes += h->device_bytes;
    p->n_draft_blocks += in->home_drafts ? h->n_blocks : 0;
    if (in->home_bytes[home] == 0 || in->n_blocks_override) return CN_OK;
    if (h->device_bytes >= in->avail_bytes)
        return cn_fail(CN_ERR_MEMORY,
                       "%llu bytes of KV cache: the %u dense layers and the digests%s of %u home "
                       "blocks need %llu; raise --kv-cache-memory-bytes, or lower --home-space "
                       "or --select-dense-layers",
                       (unsigned long long)in->avail_bytes, in->dense_layers,
                       h->draft_bytes ? " and retrieval-head keys" : "", h->n_blocks,
                       (unsigned long long)h->device_bytes);
    in->avail_bytes -= h->device_bytes;
    return CN_OK;
}

static bool has_home(const cn_planner_input *in)
{
    uint64_t bytes = 0;
    for (int h = 0; h < CN_N_HOMES; h++) bytes += in->home_bytes[h];
    return bytes > 0;
}

/* Slots beyond those that leave room for the longest prompt become blocks. */
static void leave_room_for_prompt(cn_memory_plan *p, const cn_planner_input *in)
{
    if (!has_home(in) || in->n_blocks_override || p->n_query_slots == 0) return;
    const uint64_t prompt = cn_ceil_div(in->max_model_len, in->block_tokens) * p->block_bytes;
    const uint64_t room = in->avail_bytes > prompt ? in->avail_bytes - prompt : 0;
    const uint64_t request = p->block_bytes * in->n_max_blocks + p->query_slot_bytes;
    const uint32_t most = cn_max_u32(1, clamp_u32(room / request));
    if (p->n_query_slots <= most) return;
    p->n_query_slots = most;
    p->n_blocks = clamp_u32((in->avail_bytes - most * p->query_slot_bytes) / p->block_bytes);
}

/* One request needs a full block and the next one, or its cap; and a query slot. */
static cn_status check_one_request(const cn_memory_plan *p, const cn_planner_input *in)
{
    const uint32_t least = cn_max_u32(2, in->n_max_blocks);
    const bool lacks_slot = in->window_tokens > 0 && p->n_query_slots == 0;
    const char *or_lower = "";
    if (has_home(in))
        or_lower = " or lower --select-tokens, --kv-budget or --max-model-len";
    else if (in->n_max_blocks)
        or_lower = " or lower --kv-budget";
    if (p->n_blocks >= least && !lacks_slot) return CN_OK;
    if (in->n_blocks_override)
        return cn_fail(CN_ERR_MEMORY,
                       "%u KV blocks are too few for one request, which needs %u blocks of %u "
                       "tokens: raise --num-gpu-blocks-override%s",
                       p->n_blocks, least, in->block_tokens, or_lower);
    return cn_fail(CN_ERR_MEMORY,
                   "%llu bytes of KV cache are too few for one request, which needs %u blocks "
                   "of %u tokens, %llu bytes: raise --kv-cache-memory-bytes%s",
                   (unsigned long long)in->avail_bytes, least, in->block_tokens,
                   (unsigned long long)(least * p->block_bytes + p->query_slot_bytes), or_lower);
}

/* How long a request can be, and how many run at once. */
static void count_requests(cn_memory_plan *p, const cn_planner_input *in)
{
    const uint64_t pool_tokens = (uint64_t)p->n_blocks * in->block_tokens;
    const uint64_t longest_blocks = cn_ceil_div(in->max_model_len, in->block_tokens);
    p->max_request_tokens = cn_min_u32(in->max_model_len, clamp_u32(pool_tokens));
    p->concurrency_full = cn_min_u32(in->max_seqs, (uint32_t)(p->n_blocks / longest_blocks));
    if (in->n_max_blocks == 0) return;
    p->concurrency_capped = cn_min_u32(in->max_seqs, p->n_blocks / in->n_max_blocks);
    if (in->window_tokens)
        p->concurrency_capped = cn_min_u32(p->concurrency_capped, p->n_query_slots);
}

cn_status cn_memory_plan_divide(cn_memory_plan *out, const cn_planner_input *given)
{
    CN_ASSERT(given->block_tokens > 0 && given->n_layers > 0 && given->max_seqs > 0);
    cn_planner_input with = *given, *in = &with;
    cn_memory_plan p = {
        .block_tokens = in->block_tokens,
        .window_tokens = in->window_tokens,
        .n_max_blocks = in->n_max_blocks,
        .planes = in->planes,
        .block_bytes = block_bytes(in, in->planes, in->n_layers),
        .query_slot_bytes = query_slot_bytes(in),
    };
    for (int h = 0; h < CN_N_HOMES; h++) CN_TRY(divide_home(&p, in, (cn_kv_home)h));
    divide(&p, in);
    leave_room_for_prompt(&p, in);
    CN_TRY(check_one_request(&p, in));
    p.kv_bytes = p.n_blocks * p.block_bytes + p.n_query_slots * p.query_slot_bytes +
                 p.home_device_bytes;
    count_requests(&p, in);
    CN_TRY(divide_swap(&p, in));
    *out = p;
    return CN_OK;
}

/* The default of --kv-cache-memory-bytes on a CPU: 4 GiB, at most a quarter of host memory for all
 * ranks of all engines. */
static uint64_t host_kv_bytes(const cn_config *c)
{
    const uint64_t default_bytes = UINT64_C(4) << 30;
    const uint32_t n_lanes = cn_max_u32(c->n_lanes, 1), n_ranks = cn_max_u32(c->n_ranks, 1);
    const uint64_t share = cn_host_bytes(c) / 4 / n_lanes / n_ranks;
    return share > 0 && share < default_bytes ? share : default_bytes;
}

static uint64_t bytes_of_gib(float gib) { return (uint64_t)((double)gib * (double)CN_GIB); }

bool cn_planner_away(const cn_config *c, cn_kv_home home, unsigned select, uint32_t block_tokens,
                     cn_away *out)
{
    if (!(cn_config_selectors(c) & cn_away_selectors() & 1U << select)) return false;
    cn_kv_params kv = c->kv;
    kv.home = home;
    kv.select = (cn_kv_select)select;
    *out = cn_away_of(&kv, block_tokens);
    return true;
}

uint64_t cn_planner_weight_bytes(const cn_model_config *m, const cn_backend *be, uint32_t n_rows)
{
    const uint64_t unread = m->tied ? 0 : (uint64_t)m->vocab * m->hidden;
    const uint64_t n_fp8 = cn_model_config_n_fp8(m, n_rows);
    const uint64_t elem = cn_dtype_bytes(be->matrix_dtype);
    return (cn_model_config_n_read(m, n_rows) - unread - n_fp8) * elem + n_fp8;
}

uint32_t cn_planner_away_n_max(const cn_config *c, uint32_t block_tokens)
{
    /* The policy `full` becomes a `window` whose budget is no option. */
    const uint32_t declared = c->kv_policies | 1U << c->kv.policy;
    const bool reads_budget = declared & (1U << CN_KV_ZIP | 1U << CN_KV_WINDOW);
    const uint32_t budget =
        cn_max_u32(cn_away_budget(block_tokens), reads_budget ? c->kv.budget_tokens : 0);
    uint32_t n_exchange = 0;
    cn_away a; /* its exchange area is equally large for every home */
    for (unsigned i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++)
        if (cn_planner_away(c, CN_HOME_PEER, i, block_tokens, &a))
            n_exchange = cn_max_u32(n_exchange, a.n_exchange);
    return n_exchange + cn_policy_cap(budget, block_tokens);
}

/* Blocks of the largest capped request. */
static uint32_t most_blocks(const cn_config *c, uint32_t block_tokens)
{
    const bool capped =
        cn_policies_need(c->kv_policies | 1U << c->kv.policy).capped;
    const uint32_t n = capped ? cn_policy_cap(c->kv.budget_tokens, block_tokens) : 0;
    if (!cn_config_away(c)) return n;
    return cn_max_u32(n, cn_planner_away_n_max(c, block_tokens));
}

/* What the home spaces of these options need. */
static void describe_home(cn_planner_input *in, const cn_config *c, const cn_model_config *m)
{
    const uint32_t away = cn_config_away(c);
    if (!away) return;
    for (int h = 0; h < CN_N_HOMES; h++)
        if (away >> h & 1) {
            in->home_bytes[h] = bytes_of_gib(cn_config_home_gib(c, (cn_kv_home)h));
            in->home_option[h] = cn_config_home_option(c, (cn_kv_home)h);
        }
    const cn_selector_needs needs =
        cn_selectors_need(cn_config_selectors(c) & cn_away_selectors());
    in->home_planes = needs.digests;
    in->home_drafts = needs.head;
    in->dense_layers = cn_min_u32(c->select_dense_layers, m->n_layers);
    /* Exchanges with `zip` read which tokens the policy holds. */
    if (cn_config_policies(c) >> CN_KV_ZIP & 1) in->planes |= 1U << CN_PLANE_ORIGIN;
}

uint32_t cn_planner_block_tokens(const cn_config *c, const cn_backend *be)
{
    return c->block_tokens > 0 ? c->block_tokens : be->default_block_tokens;
}

cn_kv_form cn_planner_kv_form(const cn_config *c)
{
    return c->kv_cache_dtype == CN_OPT_KV_AUTO ? CN_KV_PLAIN : CN_KV_FP8;
}

cn_kv_layout cn_planner_layout(const cn_config *c, const cn_model_config *m, const cn_backend *be,
                               uint32_t n_blocks, uint32_t block_tokens)
{
    cn_kv_layout l =
        cn_kv_layout_form(m->n_layers, n_blocks, m->n_kv_heads, block_tokens, m->head_dim,
                          be->act_dtype, cn_planner_kv_form(c));
    cn_kv_layout_share(&l, m->latent.rank, m->latent.nope + m->latent.rope);
    l.draft_dim = m->draft.head_dim;
    l.draft_state = cn_draft_state_width(m);
    return l;
}

/* Rows of a query slot: for zip's observation window, and for the queries that a selector predicts
 * from and the one that it predicts for. So do exchanges with a home, unless they rank ahead. */
static uint32_t ring_rows(const cn_config *c)
{
    const uint32_t selectors = cn_config_selectors(c);
    const bool zip = cn_policies_need(cn_config_policies(c)).slots;
    const bool away = cn_config_away(c) != 0 && cn_selectors_need(selectors).away_slots;
    const bool ring = away || cn_selectors_need(selectors).slots;
    return cn_max_u32(zip ? cn_policy_most_queries(&c->kv) : 0, ring ? c->kv.select_window + 1 : 0);
}

static cn_status make_input(cn_planner_input *out, const cn_config *c, const cn_model_config *m,
                            const cn_backend *be)
{
    const cn_policy_needs needs = cn_policies_need(cn_config_policies(c));
    const cn_selector_needs selects = cn_selectors_need(cn_config_local_selectors(c));
    const uint32_t max_model_len = c->max_model_len ? c->max_model_len : m->max_position;
    const uint32_t block_tokens = cn_planner_block_tokens(c, be);
    uint64_t avail_bytes = c->kv_cache_memory_bytes;
    if (avail_bytes == 0) avail_bytes = host_kv_bytes(c);
    const uint32_t longest_blocks = (uint32_t)cn_ceil_div(max_model_len, block_tokens);
    *out = (cn_planner_input){
        .avail_bytes = avail_bytes,
        .n_layers = m->n_layers,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .value_dim = m->latent.rank,
        .query_dim = m->latent.nope + m->latent.rope,
        .draft_dim = m->draft.head_dim,
        .draft_state = cn_draft_state_width(m),
        .block_tokens = block_tokens,
        .kv_form = cn_planner_kv_form(c),
        .act_dtype = be->act_dtype,
        .planes = needs.planes | selects.planes,
        .window_tokens = ring_rows(c),
        /* Requests may use a policy that has a cap even if the default policy has none. */
        .n_max_blocks = cn_min_u32(most_blocks(c, block_tokens), longest_blocks),
        .max_model_len = max_model_len,
        .max_seqs = c->max_num_seqs,
        .n_blocks_override = c->n_blocks_override,
        .swap_bytes = bytes_of_gib(c->swap_space_gib),
    };
    describe_home(out, c, m);
    CN_TRY(cn_host_check_read(c, be));
    return cn_host_check_size(c);
}

cn_status cn_memory_plan_make(cn_memory_plan *out, const cn_config *c, const cn_model_config *m,
                              const cn_backend *be)
{
    cn_planner_input in;
    CN_TRY(make_input(&in, c, m, be));
    return cn_memory_plan_divide(out, &in);
}

cn_status cn_home_plan_make(cn_home_plan *out, const cn_config *c, const cn_model_config *m,
                            const cn_backend *be)
{
    cn_planner_input in;
    CN_TRY(make_input(&in, c, m, be));
    return plan_home(out, &in, CN_HOME_PEER);
}
