/* plan_select.c - see plan_select.h. */
#include "engine/cmd/plan_select.h"

static const double speed_ups[CN_PLAN_SPEED_UPS] = {1, 1.2, 1.5, 2, 3};

static void add_selector(cn_plan_selection *p, const cn_config *c, cn_kv_select select,
                         uint32_t most_tokens)
{
    cn_plan_selector *s = &p->selectors[p->n++];
    cn_kv_params kv = c->kv;
    kv.policy = CN_KV_FULL;
    kv.home = CN_HOME_DEVICE;
    kv.select = s->select = select;
    if (cn_selector_check(&kv, p->shape.block_tokens, &c->kv) != CN_OK) {
        snprintf(s->refused, sizeof s->refused, "%s", cn_last_error());
        return;
    }
    for (uint32_t i = 0; i < CN_PLAN_SPEED_UPS; i++)
        s->batch_tokens[i] = (uint64_t)p->n_rows * cn_select_tokens_for(&p->shape, &kv, p->n_rows,
                                                                        speed_ups[i], most_tokens);
    s->speed_up = cn_select_speed_up(&p->shape, &kv, p->n_rows, p->mean_tokens);
}

void cn_plan_selection_make(cn_plan_selection *out, const cn_config *c, const cn_model_config *m,
                            const cn_start_plan *start, const cn_backend *be)
{
    const cn_memory_plan *memory = &start->kv;
    const uint32_t selectors = cn_config_selectors(c);
    const uint32_t n_rows = cn_max_u32(memory->concurrency_full, 1);
    cn_plan_selection p = {
        .shape = {.weight_bytes = cn_planner_weight_bytes(m, be, n_rows),
                  .n_layers = m->n_layers,
                  .dense_layers = cn_min_u32(c->select_dense_layers, m->n_layers),
                  .n_heads = m->n_heads,
                  .n_kv_heads = m->n_kv_heads,
                  .head_dim = m->head_dim,
                  .value_dim = m->latent.rank,
                  .query_dim = m->latent.nope + m->latent.rope,
                  .draft_dim = m->draft.head_dim,
                  .draft_state = cn_draft_state_width(m),
                  .block_tokens = memory->block_tokens,
                  .kv_form = cn_planner_kv_form(c),
                  .act_dtype = be->act_dtype},
        .n_rows = n_rows,
        .mean_tokens = cn_max_u32(memory->max_request_tokens / 2, 1),
        .scratch_bytes = start->select_bytes,
    };
    p.digest_bytes = cn_select_digest_bytes(&p.shape, memory->planes);
    for (unsigned i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++)
        if (selectors >> i & 1)
            add_selector(&p, c, (cn_kv_select)i, memory->max_request_tokens);
    *out = p;
}

static void print_selector(const cn_plan_selector *s)
{
    printf("%-12s %-8s", "", cn_kv_select_name(s->select));
    if (*s->refused) {
        printf(" %s\n", s->refused);
        return;
    }
    for (uint32_t i = 0; i < CN_PLAN_SPEED_UPS; i++) {
        if (s->batch_tokens[i])
            printf(" %9llu", (unsigned long long)s->batch_tokens[i]);
        else
            printf(" %9s", "-");
    }
    printf(" %9.2fx\n", s->speed_up);
}

void cn_plan_selection_print(const cn_plan_selection *p)
{
    if (p->n == 0) return;
    const uint64_t kv_bytes = cn_select_kv_bytes(&p->shape);
    printf("%-12s digests of %llu bytes per token, %.1f %% of its K and V; scratch of %.1f MiB\n",
           "selection", (unsigned long long)p->digest_bytes,
           100.0 * (double)p->digest_bytes / (double)kv_bytes,
           (double)p->scratch_bytes / (1024 * 1024));
    printf("%-12s tokens in a batch of %u requests from which a decode step is faster, by bytes "
           "read:\n",
           "", p->n_rows);
    printf("%-12s %-8s", "", "");
    for (uint32_t i = 0; i < CN_PLAN_SPEED_UPS; i++) printf(" %8.1fx", speed_ups[i]);
    printf("  at %u x %u\n", p->n_rows, p->mean_tokens);
    for (uint32_t i = 0; i < p->n; i++) print_selector(&p->selectors[i]);
}

static json_t *selector_json(const cn_plan_selector *s)
{
    if (*s->refused)
        return json_pack("{s:s, s:s}", "select", cn_kv_select_name(s->select), "refused",
                         s->refused);
    json_t *list = json_array();
    for (uint32_t i = 0; i < CN_PLAN_SPEED_UPS; i++) {
        json_t *tokens = s->batch_tokens[i] ? json_integer((json_int_t)s->batch_tokens[i])
                                            : json_null();
        json_array_append_new(list, json_pack("{s:f, s:o}", "speed_up", speed_ups[i],
                                              "batch_tokens", tokens));
    }
    return json_pack("{s:s, s:f, s:o}", "select", cn_kv_select_name(s->select),
                     "expected_speed_up", s->speed_up, "speed_ups", list);
}

json_t *cn_plan_selection_json(const cn_plan_selection *p)
{
    if (p->n == 0) return json_null();
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n; i++)
        json_array_append_new(list, selector_json(&p->selectors[i]));
    return json_pack("{s:I, s:I, s:I, s:i, s:i, s:i, s:o}", "digest_bytes_per_token",
                     (json_int_t)p->digest_bytes, "kv_bytes_per_token",
                     (json_int_t)cn_select_kv_bytes(&p->shape), "scratch_bytes",
                     (json_int_t)p->scratch_bytes, "dense_layers", (int)p->shape.dense_layers,
                     "requests", (int)p->n_rows, "mean_tokens", (int)p->mean_tokens, "selectors",
                     list);
}
