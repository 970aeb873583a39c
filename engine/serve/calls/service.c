/* service.c - starts and ends the intake and engine threads; getters. See service.h. */
#include <string.h>

#include "engine/engine_probe.h"
#include "engine/serve/calls/service_state.h"

enum { INTAKE_CAPACITY = 4096 };

static cn_status start_threads(cn_service *s)
{
    if (pthread_create(&s->intake_thread, NULL, cn_intake_main, s) != 0)
        return cn_fail(CN_ERR_MEMORY, "cannot start the intake thread");
    s->n_threads = 1;
    if (pthread_create(&s->engine_thread, NULL, cn_engine_thread_main, s) != 0)
        return cn_fail(CN_ERR_MEMORY, "cannot start the engine thread");
    s->n_threads = 2;
    return CN_OK;
}

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
    return cn_mailbox_create(&s->engine_box, UINT32_MAX);
}

static cn_step_cost step_cost(const cn_service *s)
{
    const cn_kv_params *kv = &s->defaults.kv;
    const double held = kv->policy == CN_KV_FULL ? s->max_model_len : kv->budget_tokens;
    const uint32_t most_rows = s->config->max_num_seqs;
    return (cn_step_cost){.weights = cn_engine_step_weight_bytes(s->engine, most_rows),
                          .token = cn_engine_row_bytes(s->engine, kv, held) / held,
                          .rows = cn_engine_rows_of_weights(s->engine),
                          .most_kv = held};
}

cn_status cn_service_load(cn_service *s)
{
    CN_TRY(cn_engine_create(&s->engine, s->config));
    s->max_model_len = cn_engine_max_model_len(s->engine);
    cn_engine_default_sampling(s->engine, &s->defaults.sampling);
    cn_engine_default_kv(s->engine, &s->defaults.kv);
    s->step_cost = step_cost(s);
    /* A step of a large model takes minutes on a CPU, which does not hang. */
    if (cn_config_is_given(s->config, &s->config->health_stall_s) ||
        !cn_engine_is_on_cpu(s->engine))
        s->stall_s = s->config->health_stall_s;
    s->defaults.config = s->config;
    s->defaults.tool_parser = s->config->tool_call_parser;
    s->defaults.cap_max_tokens = s->config->cap_max_tokens;
    s->defaults.json_whitespace = s->config->json_whitespace;
    cn_engine_stats(s->engine, &s->stats);
    CN_TRY(cn_intake_open(s));
    return start_threads(s);
}

cn_status cn_service_create(cn_service **out, const cn_config *config)
{
    cn_service *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "out of memory for the service");
    pthread_mutex_init(&s->lock, NULL);
    cn_status status = open_service(s, config);
    if (status == CN_OK)
        *out = s;
    else
        cn_service_free(s);
    return status;
}

void cn_service_stop(cn_service *s)
{
    if (s->n_threads > 0) {
        cn_intake_stop(s);
        pthread_join(s->intake_thread, NULL);
    }
    if (s->n_threads > 1) {
        cn_engine_thread_stop(s);
        pthread_join(s->engine_thread, NULL);
    }
    s->n_threads = 0;
}

void cn_service_free(cn_service *s)
{
    if (!s) return;
    cn_service_stop(s);
    cn_engine_free(s->engine);
    cn_tokenizer_free(s->tokenizer);
    cn_chat_template_free(s->chat);
    cn_mailbox_free(s->intake_box);
    cn_mailbox_free(s->engine_box);
    cn_serve_stats_free(s->serve_stats);
    cn_turns_free(s->turns);
    cn_buf_free(&s->failure);
    cn_config_free(s->config);
    cn_served_names_free(&s->names);
    cn_api_unknown_destroy(&s->unknown);
    pthread_mutex_destroy(&s->lock);
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

void cn_service_failure(cn_service *s, cn_buf *text)
{
    pthread_mutex_lock(&s->lock);
    if (cn_buf_add(text, s->failure.data, s->failure.len) != CN_OK) cn_buf_clear(text);
    pthread_mutex_unlock(&s->lock);
}

bool cn_service_is_healthy(cn_service *s)
{
    pthread_mutex_lock(&s->lock);
    bool failed = s->failed;
    pthread_mutex_unlock(&s->lock);
    return !failed;
}

double cn_service_turn_s(const cn_service *s, double now_s)
{
    const double began_s = atomic_load(&s->turn_began_s);
    return began_s > 0 && now_s > began_s ? now_s - began_s : 0;
}

bool cn_service_is_stalled(const cn_service *s, double now_s)
{
    const double turn_s = cn_service_turn_s(s, now_s);
    return turn_s > 0 && s->stall_s > 0 && turn_s > s->stall_s; /* stall_s is set while it is 0 */
}

void cn_service_stall(const cn_service *s, double now_s, cn_buf *text)
{
    const cn_status status =
        cn_buf_addf(text, "a step of the engine has not ended for %.0f s (--health-stall %.0f)",
                    cn_service_turn_s(s, now_s), s->stall_s);
    if (status != CN_OK) cn_buf_clear(text);
}

void cn_service_engine_stats(cn_service *s, cn_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}
