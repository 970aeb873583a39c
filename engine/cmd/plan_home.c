/* plan_home.c - see plan_home.h. */
#include "engine/cmd/plan_home.h"

#include "engine/home/exchange.h"

/* Links of an H200: NVLink, and PCIe 5 to host memory. The memory of a CPU is read at the measured
 * rate. */
static const double NVLINK_BYTES_PER_S = 380e9, PCIE_BYTES_PER_S = 55.5e9;

/* The rates of exchanges, if that of reads is known. */
static cn_exchange_rates rates_of(const cn_config *c, const cn_backend *be, cn_kv_home home,
                                  double read)
{
    const bool on_cpu = !be->mem_avail;
    if (read <= 0) return (cn_exchange_rates){0};
    if (on_cpu || (home == CN_HOME_PEER && cn_config_cache_is_cpu(c)))
        return (cn_exchange_rates){read, read, read};
    return cn_exchange_rates_of(home, read,
                                home == CN_HOME_PEER ? NVLINK_BYTES_PER_S : PCIE_BYTES_PER_S);
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
    const cn_exchange_rates rates = rates_of(c, be, home, read_bytes_per_s);
    p.max_model_len = cn_start_max_model_len(c, m);
    p.n_longest = cn_plan_home_longest(&start->kv, home, p.max_model_len);
    p.n_packs = packs.n;
    if (home == CN_HOME_PEER) p.cache_bytes = cn_start_part_bytes(start, CN_PART_CACHE);
    p.n_exchanges = cn_exchange_costs(p.exchanges, c, m, be, home, b, &rates);
    *out = p;
}

static void print_exchange(const cn_plan_home *p, const cn_exchange_cost *x)
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

static json_t *exchange_json(const cn_exchange_cost *x)
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
