/* sim_arrivals.c - draws engines and requests from the seed. Sizes are small, so that shortages,
 * full blocks and events occur in every few steps. */
#include "tests/sim/sim_world.h"

#include <string.h>

#include "engine/base/base.h"
#include "scheduler/sched_state.h"

/* Most engines whose requests keep all KV have requests with selectors, beside requests of policy
 * zip that take slots too. Half of these engines have few slots. */
static void draw_selection(sim_world *w)
{
    static const uint32_t percents[] = {0, 70, 70, 100};
    cn_sched_opts *o = &w->engine;
    const uint64_t bits = sim_mix(o->model_hash, 1);
    w->select_percent = w->policy_percent[0] > 0 ? percents[bits % 4] : 0;
    if (w->select_percent == 0) return;
    memcpy(w->policy_percent, (uint32_t[]){70, 10, 20}, 3 * sizeof(uint32_t));
    if ((bits >> 24) % 2 == 0) o->n_query_slots = 1 + o->n_query_slots / 2;
    o->select_most.select_tokens = 1 + (uint32_t)(bits >> 8) % 64;
    o->select_most.select_window = 1 + (uint32_t)(bits >> 16) % (2 * o->block_tokens);
    o->window_tokens = cn_max_u32(o->window_tokens, o->select_most.select_window + 1);
}

/* Half of the engines have homes for away requests: areas of up to three blocks. */
static void draw_homes(sim_world *w)
{
    cn_sched_opts *o = &w->engine;
    const uint64_t bits = sim_mix(o->model_hash, 2), more = sim_mix(o->model_hash, 3);
    const uint32_t b = o->block_tokens, longest = o->max_model_len / b + 1;
    w->away_percent = 0;
    if (w->o.full_only || bits % 2 != 0) return;
    w->away_percent = (bits >> 8) % 2 ? 50 : 90;
    for (int h = CN_HOME_PEER; h <= CN_HOME_HOST; h++) {
        if (h == CN_HOME_HOST && (bits >> 16) % 2) break;
        o->n_home_blocks[h] = longest / 2 + (uint32_t)(more >> 16 * h) % (4 * longest);
        o->n_home_slots[h] = 1 + (uint32_t)(more >> (16 * h + 8)) % 8;
    }
    if (o->n_query_slots == 0) o->n_query_slots = 1 + (uint32_t)(bits >> 24) % 8;
    cn_kv_params *most = &o->select_most;
    most->select_tokens = 1 + (uint32_t)(bits >> 32) % (3 * b);
    if (most->select_window == 0) most->select_window = 1 + (uint32_t)(bits >> 40) % (2 * b);
    most->sink_tokens = b;
    o->window_tokens = cn_max_u32(o->window_tokens, most->select_window + 1);
}

/* An engine without homes and swap space has room for the new targets of first events, slow events
 * and prompts with common beginnings, so that sources stay in the prefix cache and are shared while
 * events run. */
static void draw_room(sim_world *w)
{
    cn_sched_opts *o = &w->engine;
    const uint64_t bits = sim_mix(o->model_hash, 7);
    o->n_blocks += 32 + (uint32_t)(bits >> 8) % 64;
    o->max_seqs = cn_min_u32(o->max_seqs + 4, SIM_MAX_SEQS);
    o->max_batched_tokens += 32;
    o->n_query_slots += 4;
    o->prefix_caching = true;
    w->synchronous = false;
    w->event_delay = 2 + (uint32_t)(bits >> 16) % 8;
    w->arrival_percent = 60;
    w->share_percent = 95;
    w->n_families = 1;
    memcpy(w->policy_percent, (uint32_t[]){10, 40, 50}, 3 * sizeof(uint32_t));
}

/* Half of the engines count more queries than any window has. Some requests then count all up to
 * their first event. */
static void draw_observed(sim_world *w)
{
    cn_sched_opts *o = &w->engine;
    const uint64_t bits = sim_mix(o->model_hash, 8);
    w->most_window = o->window_tokens;
    if (bits % 2) o->window_tokens += (uint32_t)(bits >> 8) % (6 * o->block_tokens);
}

void sim_draw_engine(sim_world *w)
{
    static const uint32_t sizes[] = {2, 4, 4, 8, 16};
    cn_sched_opts *o = &w->engine;
    *o = (cn_sched_opts){
        .block_tokens = sizes[sim_below(w, 5)],
        .n_blocks = sim_between(w, 6, 48),
        .n_query_slots = sim_chance(w, 10) ? 0 : sim_between(w, 1, 8),
        .max_seqs = sim_between(w, 1, 16),
        .max_batched_tokens = sim_between(w, 1, 64),
        .max_model_len = sim_between(w, 16, SIM_MAX_LEN - 1),
        .model_hash = sim_random(w),
        .prefix_caching = sim_chance(w, 75),
        .chunked_prefill = sim_chance(w, 85),
        .hybrid = sim_chance(w, 80),
        .priority_order = sim_chance(w, 30),
    };
    o->decoded_apart = (o->model_hash >> 32) % 4 == 0;
    o->batch_floor = (uint32_t)(o->model_hash >> 8) % 4;
    o->block_bytes = (o->model_hash >> 40) % 2 ? 1000 : 508; /* KV of two types */
    if ((o->model_hash >> 16) % 4 > 0) o->n_swap_blocks = 1 + (uint32_t)(o->model_hash >> 20) % 32;
    o->n_swap_windows = (uint32_t)(o->model_hash >> 28) % 8;
    o->window_tokens = sim_between(w, 1, 2 * o->block_tokens);
    if (!o->chunked_prefill) o->max_batched_tokens += o->max_model_len;
    w->lag = sim_chance(w, 50);
    w->synchronous = sim_chance(w, 25);
    w->in_order = sim_chance(w, 50);
    w->event_delay = sim_chance(w, 50) ? sim_between(w, 0, 3) : sim_between(w, 0, 30);
    w->arrival_percent = sim_chance(w, 50) ? sim_between(w, 1, 10) : sim_between(w, 10, 100);
    w->cancel_percent = sim_chance(w, 40) ? 0 : sim_between(w, 1, 5);
    w->max_live = sim_between(w, 2, SIM_MAX_LIVE - SIM_MAX_SAMPLES);
    w->share_percent = sim_chance(w, 30) ? 0 : sim_between(w, 30, 100);
    w->n_families = sim_between(w, 1, 4);
    w->n_owners = (o->model_hash >> 40) % 2 ? 1 : 2 + (uint32_t)(o->model_hash >> 41) % 4;
    o->share_prefixes = (o->model_hash >> 44) % 4 == 0;
    /* With few token ids, unrelated sequences share prefixes in the cache. */
    w->n_vocab = sim_chance(w, 50) ? 1u << 30 : sim_between(w, 1, 3);
    /* full, window, zip: sometimes one policy only, else a mixture */
    uint32_t alone = sim_below(w, 6);
    for (uint32_t p = 0; p < 3; p++) w->policy_percent[p] = alone < 3 ? 100 * (p == alone) : 33;
    /* With swap space, half of the engines have only capped requests, little memory and few
     * arrivals, so that batch requests fill the memory. */
    if (o->n_swap_blocks > 0 && (o->model_hash >> 32) % 2 == 0) {
        o->batch_floor = (uint32_t)(o->model_hash >> 8) % 16;
        w->arrival_percent = 3 + (uint32_t)(o->model_hash >> 36) % 12;
        memcpy(w->policy_percent, (uint32_t[]){0, 30, 70}, 3 * sizeof(uint32_t));
        o->n_blocks = 6 + o->n_blocks / 4;
        o->n_query_slots = 1 + o->n_query_slots / 2;
    }
    draw_selection(w);
    draw_homes(w);
    if (w->away_percent == 0 && o->n_swap_blocks == 0) draw_room(w);
    sim_declare_auto(w);
    draw_observed(w);
    if (w->o.full_only) memcpy(w->policy_percent, (uint32_t[]){100, 0, 0}, 3 * sizeof(uint32_t));
}

static void draw_selector(sim_world *w, cn_kv_params *kv)
{
    static const cn_kv_select selectors[] = {CN_SELECT_SPADE, CN_SELECT_SPADE, CN_SELECT_LAST,
                                             CN_SELECT_DS};
    kv->select = selectors[sim_below(w, 4)];
    kv->select_tokens = sim_between(w, 1, w->engine.select_most.select_tokens);
    if (kv->select == CN_SELECT_DS && kv->select_tokens % 2) kv->select = CN_SELECT_SPEC;
    kv->select_window = sim_between(w, 1, w->engine.select_most.select_window);
}

/* The rule of a zip request, how much of both ends it keeps, and how many queries count: two in
 * three rules read it. */
static void draw_rule(sim_world *w, cn_kv_params *kv)
{
    static const cn_kv_rule rules[] = {CN_RULE_ZIPAGE, CN_RULE_SCALED, CN_RULE_SCALED,
                                       CN_RULE_PEAK,   CN_RULE_PEAK,   CN_RULE_FOLLOW};
    const uint32_t b = w->engine.block_tokens;
    const uint32_t budget = (uint32_t)cn_round_up(kv->budget_tokens, b);
    const uint64_t bits = sim_mix(w->engine.model_hash, budget + 1000 * kv->window_tokens);
    kv->rule = rules[bits % 6];
    kv->sink_tokens = cn_min_u32((uint32_t)(bits >> 8) % 5, budget - kv->window_tokens);
    if (kv->home != CN_HOME_DEVICE) kv->sink_tokens = cn_min_u32(kv->sink_tokens, b);
    const uint32_t room = budget - kv->sink_tokens;
    const uint32_t most = kv->move == CN_MOVE_FILL ? cn_min_u32(room, b) : room;
    kv->recent = (float)((uint32_t)(bits >> 16) % (most + 1));
    kv->observe_tokens = (uint32_t)(bits >> 32) % (w->engine.window_tokens + 1);
}

static void draw_away(sim_world *w, cn_kv_params *kv)
{
    static const cn_kv_policy policies[] = {CN_KV_WINDOW, CN_KV_WINDOW, CN_KV_ZIP, CN_KV_ZIP,
                                            CN_KV_FULL};
    const uint32_t b = w->engine.block_tokens;
    const bool has_host = w->engine.n_home_blocks[CN_HOME_HOST] > 0;
    kv->home = has_host && sim_chance(w, 50) ? CN_HOME_HOST : CN_HOME_PEER;
    kv->policy = policies[sim_below(w, 5)];
    draw_selector(w, kv);
    /* Some engines rank ahead. */
    const bool ahead = sim_mix(w->engine.model_hash, 14) % 4 == 0;
    if (!cn_selector_of(kv->select)->away || (kv->select == CN_SELECT_SPEC && !ahead) ||
        (kv->select == CN_SELECT_SPEC && kv->policy == CN_KV_ZIP))
        kv->select = CN_SELECT_SPADE;
    kv->select_cap = sim_below(w, 5);
    kv->window_tokens = sim_between(w, 2, w->most_window);
    kv->budget_tokens = sim_between(w, 1, 3 * b);
    if (kv->policy == CN_KV_ZIP)
        kv->budget_tokens = cn_max_u32(kv->budget_tokens, kv->window_tokens);
    kv->sink_tokens = sim_below(w, cn_min_u32(kv->budget_tokens, b + 1));
    if (kv->window_tokens <= b) kv->move = (cn_kv_move)sim_below(w, 2);
    if (kv->policy == CN_KV_ZIP) draw_rule(w, kv);
}

static cn_kv_params draw_kv(sim_world *w)
{
    cn_kv_params kv = {.policy = CN_KV_FULL, .alpha = 0.8f, .redundancy_tau = 0.4f};
    if (w->away_percent > 0 && sim_chance(w, w->away_percent)) {
        draw_away(w, &kv);
        return kv;
    }
    uint32_t at = sim_below(w, 100);
    if (at >= w->policy_percent[0]) kv.policy = CN_KV_WINDOW;
    if (at >= w->policy_percent[0] + w->policy_percent[1]) kv.policy = CN_KV_ZIP;
    kv.budget_tokens = sim_between(w, 1, w->engine.block_tokens * 6);
    kv.window_tokens = sim_between(w, 1, w->most_window);
    if (kv.policy == CN_KV_ZIP) kv.budget_tokens = cn_max_u32(kv.budget_tokens, kv.window_tokens);
    if (kv.window_tokens <= w->engine.block_tokens) kv.move = (cn_kv_move)sim_below(w, 2);
    if (kv.policy == CN_KV_FULL && w->select_percent > 0 && sim_chance(w, w->select_percent))
        draw_selector(w, &kv);
    if (kv.policy == CN_KV_ZIP) draw_rule(w, &kv);
    return kv;
}

/* A prompt starts like others of its family, or continues a finished sequence. */
static uint32_t draw_prompt(sim_world *w, uint32_t *prompt)
{
    uint32_t longest = cn_max_u32(1, w->engine.max_model_len / (sim_chance(w, 70) ? 4 : 1) - 1);
    uint32_t n = sim_between(w, 1, longest), n_common = 0;
    const sim_talk *talk = &w->talks[sim_below(w, SIM_N_TALKS)];
    if (talk->n > 0 && sim_chance(w, w->share_percent / 4)) {
        n_common = cn_min_u32(talk->n, n);
        memcpy(prompt, talk->tokens, n_common * sizeof *prompt);
    } else if (sim_chance(w, w->share_percent)) {
        uint64_t family = sim_below(w, w->n_families);
        n_common = sim_between(w, 0, n);
        for (uint32_t i = 0; i < n_common; i++)
            prompt[i] = (uint32_t)sim_mix(family, i) % w->n_vocab;
    }
    for (uint32_t i = n_common; i < n; i++) prompt[i] = sim_below(w, w->n_vocab);
    return n;
}

static sim_seq *find_free(sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++)
        if (!w->seqs[i].used) return &w->seqs[i];
    return NULL;
}

static void start(sim_world *w, sim_seq *mine, cn_seq *q, const cn_group_params *p)
{
    *mine = (sim_seq){.live = true,
                      .used = true,
                      .seq = q,
                      .id = q->id,
                      .klass = p->klass,
                      .owner = p->owner,
                      .priority = w->engine.priority_order ? p->priority : 0,
                      .content = sim_mix(w->last_content, q->sample),
                      .n_prompt = p->n_prompt,
                      .max_tokens = q->max_tokens,
                      .n_vocab = w->n_vocab};
    mine->was_waiting = q->state == CN_SEQ_WAITING;
    q->user = mine;
    memcpy(mine->tokens, p->prompt, p->n_prompt * sizeof *p->prompt);
    mine->n_stop =
        sim_chance(w, 50) ? q->max_tokens : sim_between(w, p->n_prompt + 1, q->max_tokens);
    w->n_live++;
    w->r->requests++;
    w->r->selecting += q->kv.select != CN_SELECT_NONE;
    w->r->away += q->sched->n_home > 0;
    w->r->count_all += q->sched->trigger != CN_NEVER && cn_seq_window_start(q) == 0;
}

void sim_arrive(sim_world *w)
{
    if (w->n_live >= w->max_live || !sim_chance(w, w->arrival_percent)) return;
    uint32_t prompt[SIM_MAX_LEN];
    cn_group_params p = {.prompt = prompt,
                         .n_prompt = draw_prompt(w, prompt),
                         .n = sim_chance(w, 15) ? sim_between(w, 2, SIM_MAX_SAMPLES) : 1,
                         .klass = sim_chance(w, 30) ? CN_CLASS_INTERACTIVE : CN_CLASS_BATCH,
                         .priority = (int32_t)sim_below(w, 5) - 2,
                         .owner = (uint32_t)sim_mix(w->engine.model_hash, w->r->requests) %
                                  w->n_owners,
                         .kv = draw_kv(w)};
    sim_draw_auto(w, &p.kv);
    p.max_output = sim_between(w, 1, w->engine.max_model_len - p.n_prompt);
    cn_seq *seqs[SIM_MAX_SAMPLES];
    uint32_t n_unused = 0;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) n_unused += !w->seqs[i].used;
    if (n_unused < p.n) return;
    w->last_content = sim_random(w);
    if (cn_scheduler_add(w->s, &p, NULL, seqs) != CN_OK) return; /* refused: it can never run */
    for (uint32_t i = 0; i < p.n; i++) start(w, find_free(w), seqs[i], &p);
}
