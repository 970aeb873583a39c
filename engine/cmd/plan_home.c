/* plan_home.c - see plan_home.h.
 *
 * A step reads the weights once and the resident K and V of each request. The exchange of pack p of
 * a step has until pack p of the next step begins, so with n packs the transfers hide while they
 * take at most (n - 1) / n of the step. */
#include "engine/cmd/plan_home.h"

#include "engine/cmd/plan_select.h"

/* Rates of the links of an H200: NVLink, and host memory over PCIe 5, where rows of single tokens
 * take longer than tiles. The memory of a CPU is read at the measured rate. */
static const double NVLINK_BYTES_PER_S = 380e9, PCIE_BYTES_PER_S = 51e9, PCIE_ROWS_PER_S = 18e9;

static double link_rate(const cn_config *c, const cn_backend *be, cn_kv_home home,
                        uint32_t entry_tokens, double read_bytes_per_s)
{
    const bool on_cpu = !be->mem_avail;
    if (on_cpu || (home == CN_HOME_PEER && cn_config_cache_is_cpu(c))) return read_bytes_per_s;
    if (home == CN_HOME_PEER) return NVLINK_BYTES_PER_S;
    return entry_tokens > 1 ? PCIE_BYTES_PER_S : PCIE_ROWS_PER_S;
}

/* What a step reads: weights, of experts those that its requests use, and resident K and V. */
typedef struct step_reads {
    const cn_model_config *model;
    const cn_backend *be;
    double resident_bytes; /* of a request */
    double bytes_per_s;    /* 0: not measured */
} step_reads;

static double weights_s(const step_reads *t, uint32_t n)
{
    return (double)cn_plan_weight_bytes(t->model, t->be, n) / t->bytes_per_s;
}

/* The largest n with n * step_bytes / link <= share * (weights_s + n * resident_s). If it holds for
 * n it holds for fewer, because more requests share the weights. */
static uint32_t hidden_batch(const cn_plan_exchange *x, uint32_t n_packs, const step_reads *t)
{
    const double share = (double)(n_packs - 1) / n_packs;
    const double each_s = (double)x->step_bytes / x->link_bytes_per_s -
                          share * t->resident_bytes / t->bytes_per_s;
    const double most_s = share * weights_s(t, UINT32_MAX); /* every expert is used */
    if (each_s * UINT32_MAX <= most_s) return UINT32_MAX;
    uint32_t n = 0, beyond = (uint32_t)(most_s / each_s) + 1;
    while (beyond - n > 1) {
        const uint32_t middle = n + (beyond - n) / 2;
        if (middle * each_s <= share * weights_s(t, middle))
            n = middle;
        else
            beyond = middle;
    }
    return n;
}

/* The exchanges of the declared selectors, of `units` layers times kv heads. */
static void make_exchanges(cn_plan_home *p, const cn_config *c,
                           uint64_t units, uint64_t row_bytes, const step_reads *t)
{
    for (unsigned i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++) {
        cn_plan_exchange x = {.select = (cn_kv_select)i};
        if (!cn_planner_away(c, p->home, i, p->block_tokens, &x.away)) continue;
        x.step_bytes = units * x.away.cap * x.away.entry_tokens * row_bytes;
        if (t->bytes_per_s > 0) {
            x.link_bytes_per_s =
                link_rate(c, t->be, p->home, x.away.entry_tokens, t->bytes_per_s);
            x.hidden_batch = hidden_batch(&x, p->n_packs, t);
        }
        p->exchanges[p->n_exchanges++] = x;
    }
}

uint32_t cn_plan_home_longest(const cn_memory_plan *m, cn_kv_home home, uint32_t n_tokens)
{
    return m->homes[home].n_blocks / (uint32_t)cn_ceil_div(n_tokens, m->block_tokens);
}

void cn_plan_home_make(cn_plan_home *out, const cn_config *c, const cn_model_config *m,
                       const cn_start_plan *start, cn_kv_home home, const cn_backend *be,
                       double read_bytes_per_s)
{
    const uint32_t b = start->kv.block_tokens;
    cn_plan_home p = {.home = home, .plan = start->kv.homes[home], .block_tokens = b};
    *out = p;
    if (p.plan.n_blocks == 0) return;
    const cn_packs packs = cn_packs_make(c->select_dense_layers, m->n_layers, c->n_packs);
    const cn_kv_layout l = cn_planner_layout(c, m, be, 1, b);
    const uint64_t row_bytes = l.tile_bytes / l.tile_tokens; /* K and V of a token and kv head */
    const uint64_t units = (uint64_t)packs.n_layers * m->n_kv_heads;
    const double resident = (double)(cn_planner_away_n_max(c, b) - 1) * (double)l.block_bytes *
                            m->n_layers;
    p.max_model_len = cn_start_max_model_len(c, m);
    p.n_longest = cn_plan_home_longest(&start->kv, home, p.max_model_len);
    p.n_packs = packs.n;
    if (home == CN_HOME_PEER) p.cache_bytes = cn_start_part_bytes(start, CN_PART_CACHE);
    const step_reads reads = {m, be, resident, read_bytes_per_s};
    make_exchanges(&p, c, units, row_bytes, &reads);
    *out = p;
}

static void print_exchange(const cn_plan_home *p, const cn_plan_exchange *x)
{
    char entries[32] = "tokens";
    if (x->away.entry_tokens > 1)
        snprintf(entries, sizeof entries, "tiles of %u tokens", x->away.entry_tokens);
    printf("%-12s %s: at most %u %s per layer and kv head and step, %llu bytes of a request\n",
           x == p->exchanges ? "exchange" : "", cn_kv_select_name(x->select), x->away.cap, entries,
           (unsigned long long)x->step_bytes);
    if (x->link_bytes_per_s <= 0) return;
    printf("%-12s over a link of %.0f GB/s, ", "", x->link_bytes_per_s / 1e9);
    if (p->n_packs == 1) {
        printf("not hidden: one pack hides nothing; raise --packs\n");
        return;
    }
    printf("hidden behind the step ");
    if (x->hidden_batch == UINT32_MAX)
        printf("at any batch");
    else
        printf("up to a batch of %u", x->hidden_batch);
    printf(", with %u packs\n", p->n_packs);
    if (x->hidden_batch == 0)
        printf("%-12s a step waits for it at any batch: lower --select-cap, or leave %s out of "
               "--kv-home and --kv-homes\n",
               "", cn_kv_home_name(p->home));
}

void cn_plan_home_print(const cn_plan_home *p)
{
    const cn_home_plan *h = &p->plan;
    if (h->n_blocks == 0) return;
    printf("%-12s %s, %.2f GiB, N_home = %u blocks of %u tokens, %llu bytes each\n", "home",
           cn_kv_home_name(p->home), cn_gib(h->bytes), h->n_blocks, p->block_tokens,
           (unsigned long long)h->block_bytes);
    printf("%-12s room for %u requests of %u tokens\n", "", p->n_longest, p->max_model_len);
    printf("%-12s %.2f GiB of the KV cache for its dense layers and digests", "",
           cn_gib(h->device_bytes));
    if (p->cache_bytes)
        printf("; %.2f GiB in all on the cache device", cn_gib(p->cache_bytes));
    printf("\n");
    for (uint32_t i = 0; i < p->n_exchanges; i++) print_exchange(p, &p->exchanges[i]);
}

static json_t *exchange_json(const cn_plan_exchange *x)
{
    const bool measured = x->link_bytes_per_s > 0;
    const bool limited = measured && x->hidden_batch != UINT32_MAX;
    return json_pack("{s:s, s:i, s:i, s:I, s:o, s:o}", "select", cn_kv_select_name(x->select),
                     "select_cap", (int)x->away.cap, "entry_tokens", (int)x->away.entry_tokens,
                     "step_bytes", (json_int_t)x->step_bytes, "link_bytes_per_s",
                     measured ? json_real(x->link_bytes_per_s) : json_null(), "hidden_batch",
                     limited ? json_integer(x->hidden_batch) : json_null());
}

json_t *cn_plan_home_json(const cn_plan_home *p)
{
    const cn_home_plan *h = &p->plan;
    json_t *exchanges = json_array();
    for (uint32_t i = 0; i < p->n_exchanges; i++)
        json_array_append_new(exchanges, exchange_json(&p->exchanges[i]));
    return json_pack("{s:s, s:I, s:I, s:I, s:i, s:I, s:I, s:o}", "home", cn_kv_home_name(p->home),
                     "bytes", (json_int_t)h->bytes, "blocks", (json_int_t)h->n_blocks,
                     "block_bytes", (json_int_t)h->block_bytes, "longest_requests",
                     (int)p->n_longest, "device_bytes", (json_int_t)h->device_bytes,
                     "cache_device_bytes", (json_int_t)p->cache_bytes, "exchanges", exchanges);
}

static bool is_away_declared(const cn_memory_plan *m)
{
    return m->homes[CN_HOME_PEER].n_blocks + m->homes[CN_HOME_HOST].n_blocks > 0;
}

/* ---- batches ---- */

enum { CONTEXTS = 6 };

/* Requests of n_tokens that fit at once to their ends. Those that end before their first event take
 * no home blocks. */
static uint32_t largest_batch(const cn_memory_plan *m, cn_kv_home home, uint32_t n_tokens,
                              uint32_t max_seqs)
{
    const bool here = home == CN_HOME_DEVICE;
    const uint32_t n_blocks = (uint32_t)cn_ceil_div(n_tokens, m->block_tokens);
    if (!here && m->homes[home].n_blocks > 0 && n_blocks <= m->n_max_blocks)
        return cn_min_u32(m->n_blocks / n_blocks, max_seqs);
    const uint32_t fit = here ? m->n_blocks / n_blocks : cn_plan_home_longest(m, home, n_tokens);
    return cn_min_u32(cn_min_u32(fit, max_seqs), here ? max_seqs : m->concurrency_capped);
}

/* The i-th context, from the shortest on; 0: it would be less than a block. */
static uint32_t context_of(const cn_memory_plan *m, uint32_t max_model_len, uint32_t i)
{
    const uint32_t n_tokens = max_model_len >> (CONTEXTS - 1 - i);
    return n_tokens < m->block_tokens ? 0 : n_tokens;
}

void cn_plan_batches_print(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs)
{
    if (!is_away_declared(m)) return;
    printf("%-12s most requests that fit to their ends, by their tokens:\n", "batches");
    printf("%-12s %10s", "", "tokens");
    for (int h = 0; h < CN_N_HOMES; h++) printf("%10s", cn_kv_home_name((cn_kv_home)h));
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        const uint32_t n_tokens = context_of(m, max_model_len, i);
        if (n_tokens == 0) continue;
        printf("\n%-12s %10u", "", n_tokens);
        for (int h = 0; h < CN_N_HOMES; h++)
            printf("%10u", largest_batch(m, (cn_kv_home)h, n_tokens, max_seqs));
    }
    printf("\n");
}

json_t *cn_plan_batches_json(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs)
{
    if (!is_away_declared(m)) return json_null();
    json_t *list = json_array();
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        const uint32_t n_tokens = context_of(m, max_model_len, i);
        if (n_tokens == 0) continue;
        json_t *o = json_pack("{s:i}", "tokens", (int)n_tokens);
        for (int h = 0; h < CN_N_HOMES; h++)
            json_object_set_new(
                o, cn_kv_home_name((cn_kv_home)h),
                json_integer(largest_batch(m, (cn_kv_home)h, n_tokens, max_seqs)));
        json_array_append_new(list, o);
    }
    return list;
}

/* ---- home `auto` ---- */

/* Tokens of each of n requests with this home; 0: they do not fit at once. */
static uint32_t longest(const cn_memory_plan *m, cn_kv_home home, uint32_t n, uint32_t most)
{
    const bool here = home == CN_HOME_DEVICE;
    if (!here && n > m->concurrency_capped) return 0;
    const uint64_t n_blocks = here ? m->n_blocks : m->homes[home].n_blocks;
    return cn_min_u32(most, cn_home_longest(n_blocks, n, m->block_tokens));
}

void cn_plan_auto_print(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs)
{
    if (!is_away_declared(m)) return;
    printf("%-12s longest requests that fit to their ends, by how many run at once:\n",
           "home auto");
    printf("%-12s %10s", "", "requests");
    for (int h = 0; h < CN_N_HOMES; h++) printf("%10s", cn_kv_home_name((cn_kv_home)h));
    for (uint64_t n = 1; n <= max_seqs; n *= 2) {
        printf("\n%-12s %10u", "", (uint32_t)n);
        for (int h = 0; h < CN_N_HOMES; h++)
            printf("%10u", longest(m, (cn_kv_home)h, (uint32_t)n, max_model_len));
    }
    printf("\n");
}

json_t *cn_plan_auto_json(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs)
{
    if (!is_away_declared(m)) return json_null();
    json_t *list = json_array();
    for (uint64_t n = 1; n <= max_seqs; n *= 2) {
        json_t *o = json_pack("{s:i}", "requests", (int)n);
        for (int h = 0; h < CN_N_HOMES; h++)
            json_object_set_new(
                o, cn_kv_home_name((cn_kv_home)h),
                json_integer(longest(m, (cn_kv_home)h, (uint32_t)n, max_model_len)));
        json_array_append_new(list, o);
    }
    return list;
}
