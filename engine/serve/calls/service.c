/* service.c - starts and ends the intake thread and the engines; getters. See service.h. */
#include <math.h>

#include "engine/engine_probe.h"
#include "engine/lanes/stat_rows.h"
#include "engine/serve/calls/service_state.h"

enum { INTAKE_CAPACITY = 4096 };
/* For the steps of engines at the end: of all, and of those that do not end a step already. */
static const double STOP_WAIT_S = 30, HUNG_WAIT_S = 1;

/* ---- the engines ---- */

static void on_loaded(cn_lane *lane) { ((cn_service_lane *)lane->owner)->service->n_loaded++; }

/* Loads the engines, each on its thread. */
static cn_status open_lanes(cn_service *s)
{
    const uint32_t n = s->engines.n;
    s->lanes = cn_calloc(n, sizeof *s->lanes);
    if (!s->lanes) return cn_fail(CN_ERR_MEMORY, "out of memory for %u engines", n);
    for (uint32_t i = 0; i < n; i++) {
        cn_service_lane *at = &s->lanes[i];
        at->service = s;
        pthread_mutex_init(&at->lock, NULL);
        at->lane = (cn_lane){.engine = s->engines.at[i],
                             .index = i,
                             .outbox = s->load_box,
                             .load = cn_engine_load,
                             .on_loaded = on_loaded,
                             .owner = at,
                             .on_step = cn_engine_thread_step,
                             .on_end = cn_engine_thread_end};
        const cn_status opened = cn_lane_open(&at->lane);
        if (opened != CN_OK) cn_load_gate_open(s->engines.gate);
        CN_TRY(opened);
        s->n_lanes = i + 1;
    }
    while (s->n_loaded < n) {
        cn_mailbox_wait(s->load_box, -1);
        cn_mailbox_open_all(s->load_box);
    }
    for (uint32_t i = 0; i < n; i++) {
        const cn_lane *lane = &s->lanes[i].lane;
        if (lane->status == CN_OK) continue;
        cn_fail(lane->status, "%s", lane->why);
        return n == 1 ? lane->status : cn_fail_within(lane->status, "engine %u", i);
    }
    return CN_OK;
}

/* ---- start and end ---- */

static cn_status open_service(cn_service *s, const cn_config *config)
{
    CN_TRY(cn_config_copy(&s->config, config));
    cn_api_unknown_init(&s->unknown, config->unknown_fields == CN_OPT_UNKNOWN_REFUSE);
    s->defaults.unknown = &s->unknown;
    CN_TRY(cn_served_names_make(&s->names, config));
    s->memory.most = config->max_buffered_bytes;
    CN_TRY(cn_serve_stats_create(&s->serve_stats));
    CN_TRY(cn_mailbox_create(&s->intake_box, INTAKE_CAPACITY));
    CN_TRY(cn_turns_create(&s->turns));
    return cn_mailbox_create(&s->load_box, UINT32_MAX);
}

static cn_step_cost step_cost(const cn_service *s)
{
    const cn_kv_params *kv = &s->defaults.kv;
    const double held = kv->policy == CN_KV_FULL ? s->max_model_len : kv->budget_tokens;
    const cn_engine *engine = s->engines.at[0];
    const uint32_t most_rows = s->config->max_num_seqs;
    return (cn_step_cost){.weights = cn_engine_step_weight_bytes(engine, most_rows),
                          .token = cn_engine_row_bytes(engine, kv, held) / held,
                          .rows = cn_engine_rows_of_weights(engine),
                          .most_kv = held};
}

cn_status cn_service_load(cn_service *s)
{
    CN_TRY(cn_lane_engines_plan(&s->engines, s->config));
    s->stall_s = cn_lane_engines_stall_s(&s->engines, s->config);
    CN_TRY(open_lanes(s));
    const cn_engine *engine = s->engines.at[0];
    s->max_model_len = cn_engine_max_model_len(engine);
    cn_engine_default_sampling(engine, &s->defaults.sampling);
    cn_engine_default_kv(engine, &s->defaults.kv);
    s->step_cost = step_cost(s);
    s->defaults.config = s->config;
    s->defaults.tool_parser = s->config->tool_call_parser;
    s->defaults.cap_max_tokens = s->config->cap_max_tokens;
    s->defaults.json_whitespace = s->config->json_whitespace;
    CN_TRY(cn_intake_open(s));
    if (pthread_create(&s->intake_thread, NULL, cn_intake_main, s) != 0)
        return cn_fail(CN_ERR_MEMORY, "cannot start the intake thread");
    s->has_intake = true;
    atomic_store(&s->n_ready, s->n_lanes);
    return CN_OK;
}

cn_status cn_service_create(cn_service **out, const cn_config *config)
{
    cn_service *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for the service");
    pthread_mutex_init(&s->choice_lock, NULL);
    cn_status status = open_service(s, config);
    if (status == CN_OK)
        *out = s;
    else
        cn_service_free(s);
    return status;
}

void cn_service_end_cancelled(cn_service *s, double since_s)
{
    const double now_s = cn_now_s();
    const double most_s = now_s - since_s > STOP_WAIT_S ? STOP_WAIT_S
                          : s->stall_s > 0              ? s->stall_s
                                                        : INFINITY;
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (cn_lane_turn_s(&s->lanes[i].lane, now_s) > most_s)
            cn_engine_thread_end_cancelled(&s->lanes[i]);
}

/* Loading takes as long as it takes. False: an engine hangs. */
static bool stop_lanes(cn_service *s)
{
    const bool loaded = cn_service_n_engines(s) > 0;
    const double now_s = cn_now_s();
    bool all = true;
    for (uint32_t i = 0; i < s->n_lanes; i++) cn_lane_stop(&s->lanes[i].lane);
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        cn_service_lane *at = &s->lanes[i];
        const bool works = cn_lane_failure(&at->lane) || cn_engine_is_up(at);
        const double wait_s = !loaded ? INFINITY : works ? STOP_WAIT_S : HUNG_WAIT_S;
        if (cn_lane_close(&at->lane, now_s + wait_s)) continue;
        all = false;
        cn_log(CN_LOG_ERROR, "engine %u (%s): a step has not ended for %.0f s: the server ends "
               "without it", i, cn_engine_device(at->lane.engine),
               cn_lane_turn_s(&at->lane, cn_now_s()));
    }
    return all;
}

bool cn_service_stop(cn_service *s)
{
    if (s->has_intake) {
        cn_intake_stop(s);
        pthread_join(s->intake_thread, NULL);
    }
    s->has_intake = false;
    if (!stop_lanes(s)) return false;
    /* Calls that an engine gave back when the intake had ended. */
    for (cn_mail *mail; (mail = cn_mailbox_take(s->intake_box));) mail->open(mail);
    return true;
}

void cn_service_free(cn_service *s)
{
    if (!s) return;
    if (s->intake_box && !cn_service_stop(s)) return;
    for (uint32_t i = 0; s->lanes && i < s->engines.n; i++)
        pthread_mutex_destroy(&s->lanes[i].lock);
    cn_lane_engines_free(&s->engines);
    cn_free(s->lanes);
    cn_tokenizer_free(s->tokenizer);
    cn_chat_template_free(s->chat);
    cn_mailbox_free(s->intake_box);
    while (s->load_box && cn_mailbox_take(s->load_box)) continue;
    cn_mailbox_free(s->load_box);
    cn_serve_stats_free(s->serve_stats);
    cn_turns_free(s->turns);
    cn_config_free(s->config);
    cn_served_names_free(&s->names);
    cn_api_unknown_destroy(&s->unknown);
    pthread_mutex_destroy(&s->choice_lock);
    cn_free(s);
}

const cn_config *cn_service_config(const cn_service *s) { return s->config; }
uint32_t cn_service_max_model_len(const cn_service *s) { return s->max_model_len; }
cn_step_cost cn_service_step_cost(const cn_service *s) { return s->step_cost; }
const cn_api_defaults *cn_service_defaults(const cn_service *s) { return &s->defaults; }
cn_serve_stats *cn_service_serve_stats(cn_service *s) { return s->serve_stats; }
cn_budget *cn_service_memory(cn_service *s) { return &s->memory; }

const cn_served_names *cn_service_names(const cn_service *s) { return &s->names; }
const char *cn_service_model_name(const cn_service *s) { return s->names.names[0]; }

/* ---- the state of the engines ---- */

uint32_t cn_service_n_engines(const cn_service *s) { return atomic_load(&s->n_ready); }

void cn_service_engine_figures(cn_service *s, uint32_t i, cn_engine_figures *out)
{
    cn_service_lane *at = &s->lanes[i];
    *out = (cn_engine_figures){.device = cn_engine_device(at->lane.engine),
                               .uuid = cn_engine_gpu_uuid(at->lane.engine),
                               .turn_s = cn_lane_turn_s(&at->lane, cn_now_s()),
                               .is_up = cn_engine_is_up(at),
                               .failure = cn_lane_failure(&at->lane)};
    cn_lane_stats(&at->lane, &out->stats);
}

void cn_service_engine_stats(cn_service *s, cn_stats *out)
{
    *out = (cn_stats){0};
    const uint32_t n = cn_service_n_engines(s);
    for (uint32_t i = 0; i < n; i++) {
        cn_stats one;
        cn_lane_stats(&s->lanes[i].lane, &one);
        cn_stats_add(out, &one);
    }
}

void cn_service_failure(cn_service *s, cn_buf *text)
{
    cn_status status = CN_OK;
    const uint32_t n = cn_service_n_engines(s);
    for (uint32_t i = 0; i < n && status == CN_OK; i++) {
        const char *why = cn_lane_failure(&s->lanes[i].lane);
        if (!why) continue;
        if (n > 1) status = cn_buf_addf(text, "%sengine %u: ", text->len ? "; " : "", i);
        if (status == CN_OK) status = cn_buf_addf(text, "%s", why);
    }
    if (status != CN_OK) cn_buf_clear(text);
}

bool cn_service_is_healthy(cn_service *s)
{
    const uint32_t n = cn_service_n_engines(s);
    for (uint32_t i = 0; i < n; i++)
        if (!cn_lane_failure(&s->lanes[i].lane)) return true;
    return n == 0;
}

/* The longest turn of an engine that has not failed; 0 when one of them does not stall. */
static double stalled_s(const cn_service *s, double now_s)
{
    double longest_s = 0;
    const uint32_t n = cn_service_n_engines(s);
    for (uint32_t i = 0; i < n && s->stall_s > 0; i++) {
        const cn_lane *lane = &s->lanes[i].lane;
        if (cn_lane_failure(lane)) continue;
        const double turn_s = cn_lane_turn_s(lane, now_s);
        if (turn_s <= s->stall_s) return 0;
        longest_s = fmax(longest_s, turn_s);
    }
    return longest_s;
}

void cn_service_watch(cn_service *s)
{
    if (cn_service_n_engines(s) > 0) cn_engine_thread_watch(s);
}

bool cn_service_is_stalled(const cn_service *s, double now_s) { return stalled_s(s, now_s) > 0; }

void cn_service_stall(const cn_service *s, double now_s, cn_buf *text)
{
    const cn_status status =
        cn_buf_addf(text, "a step of the engine has not ended for %.0f s (--health-stall %.0f)",
                    stalled_s(s, now_s), s->stall_s);
    if (status != CN_OK) cn_buf_clear(text);
}
