/* engine_thread.c - the thread that owns cn_engine: takes requests and cancels, steps, delivers.
 * See service.h. */
#include <malloc.h>
#include <string.h>

#include "engine/serve/calls/service_state.h"

enum {
    MAILS_PER_STEP = 64, /* limits how long a burst of arrivals delays decoding */
    TRIM_AFTER_MS = 1000
};

/* ---- calls in the engine ---- */

static void count_active(cn_call *call, uint32_t change)
{
    cn_serve_stats_lock(call->service->serve_stats)->active_class[call->klass] += change;
    cn_serve_stats_unlock(call->service->serve_stats);
}

static void link_call(cn_service *s, cn_call *call)
{
    count_active(call, 1);
    cn_list_append(&s->active, &call->node);
}

static void unlink_call(cn_service *s, cn_call *call)
{
    count_active(call, UINT32_MAX); /* less one */
    cn_list_remove(&s->active, &call->node);
}

/* ---- delivery ---- */

static void observe_tokens(cn_call *call, const cn_event *ev, double now)
{
    cn_serve_stats *stats = call->service->serve_stats;
    if (ev->n_tokens == 0) return;
    double *last = &call->last_s[ev->sample];
    if (call->times.first_token_s == 0)
        cn_serve_stats_observe_class(stats, call->klass, CN_HIST_TTFT_S,
                                     now - call->times.started_s, 1);
    if (*last > 0)
        cn_serve_stats_observe_class(stats, call->klass, CN_HIST_ITL_S,
                                     (now - *last) / ev->n_tokens, ev->n_tokens);
    *last = now;
}

/* An invalid request is one that was refused: none of its samples has failed. */
static void count_end(cn_call *call, const cn_event *ev)
{
    const bool refused = cn_api_result_is_invalid(call->result);
    cn_serve_figures *f = cn_serve_stats_lock(call->service->serve_stats);
    f->finished[ev->finish] += !ev->invalid;
    f->finished_class[call->klass] += ev->last && !refused;
    f->rejected_invalid += ev->last && refused;
    cn_serve_stats_unlock(call->service->serve_stats);
}

static void observe_end(cn_call *call, const cn_event *ev)
{
    cn_serve_stats *stats = call->service->serve_stats;
    count_end(call, ev);
    const call_times *t = &call->times;
    if (ev->last)
        cn_serve_stats_observe_end(stats, call->klass, t->last_token_s - t->submitted_s);
    if (!ev->last || ev->finish == CN_FINISH_CANCELLED || t->first_token_s == 0) return;
    cn_usage u;
    cn_api_result_usage(call->result, &u);
    const double decode_s = t->last_token_s - t->first_token_s;
    cn_serve_stats_observe_class(stats, call->klass, CN_HIST_E2E_S,
                                 t->last_token_s - t->started_s, 1);
    cn_serve_stats_observe_class(stats, call->klass, CN_HIST_QUEUE_S,
                                 t->admitted_s - t->started_s, 1);
    cn_serve_stats_observe(stats, CN_HIST_PREFILL_S, t->first_token_s - t->admitted_s, 1);
    cn_serve_stats_observe(stats, CN_HIST_DECODE_S, decode_s, 1);
    cn_serve_stats_observe(stats, CN_HIST_PROMPT_TOKENS, u.prompt_tokens, 1);
    cn_serve_stats_observe(stats, CN_HIST_OUTPUT_TOKENS, u.completion_tokens, 1);
    const uint32_t per_sample = u.completion_tokens / cn_api_result_n_choices(call->result);
    if (per_sample > 1)
        cn_serve_stats_observe(stats, CN_HIST_TPOT_S, decode_s / (per_sample - 1), 1);
}

/* The status of a call whose samples have all ended. */
static cn_status end_status(const cn_call *call)
{
    const cn_api_result *r = call->result;
    if (call->too_long)
        return cn_fail(CN_ERR_ARG, "the response exceeds %llu bytes (--max-reply-bytes): ask for "
                       "fewer tokens, samples or logprobs, or read a stream faster",
                       (unsigned long long)call->service->config->max_reply_bytes);
    if (cn_api_result_error(r)) return cn_api_result_fail(r);
    return cn_api_result_was_cancelled(r) ? cn_fail(CN_ERR_CANCELLED, "cancelled") : CN_OK;
}

static void cancel_all(cn_call *call)
{
    for (uint32_t i = 0; i < call->request->n_prompts; i++)
        cn_engine_cancel(call->service->engine, call->engine_request + i);
}

/* The first of several prompts to have a token may not be the first that was admitted. */
static void note_times(call_times *t, const cn_event *ev, double now)
{
    const double admitted_s = t->submitted_s + ev->waited_s;
    if (ev->n_tokens > 0 && (t->admitted_s == 0 || admitted_s < t->admitted_s))
        t->admitted_s = admitted_s;
    if (ev->n_tokens > 0 && t->first_token_s == 0) t->first_token_s = now;
    t->last_token_s = now;
}

static void on_call_event(void *user, const cn_event *event)
{
    cn_call *call = user;
    const double now = cn_now_s();
    const cn_event e =
        cn_api_event_of(call->request, call->engine_request, &call->n_left, event), *ev = &e;
    observe_tokens(call, ev, now);
    pthread_mutex_lock(&call->lock);
    note_times(&call->times, ev, now);
    cn_api_result_add(call->result, ev);
    const bool too_long =
        cn_api_result_bytes(call->result) > call->service->config->max_reply_bytes;
    pthread_mutex_unlock(&call->lock);
    if (too_long && !call->too_long) cancel_all(call);
    call->too_long |= too_long;
    if (ev->finish != CN_FINISH_NONE) observe_end(call, ev);
    if (ev->last) {
        unlink_call(call->service, call);
        cn_call_finish(call, end_status(call));
    } else if (call->request->stream) {
        cn_call_post_update(call);
    }
}

/* ---- submit, cancel ---- */

/* Submits the tokens of all prompts, or none. */
static cn_status submit_prompts(cn_service *s, cn_call *call)
{
    const uint32_t n = call->request->n_prompts;
    cn_request_params *all = cn_calloc(n, sizeof *all);
    if (!all) return cn_fail(CN_ERR_MEMORY, "out of memory for %u prompts", n);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = call->request->params;
        all[i].owner = call->owner;
        all[i].messages = NULL;
        all[i].chat = NULL;
        all[i].text = NULL;
        all[i].tokens = call->tokens[i].ids;
        all[i].n_tokens = call->tokens[i].len;
        all[i].bad_words_made = call->bad_words;
    }
    call->n_left = n;
    const cn_status status =
        cn_engine_submit_all(s->engine, all, n, on_call_event, call, &call->engine_request);
    cn_free(all);
    return status;
}

static cn_status submit_call(cn_service *s, cn_call *call)
{
    const uint32_t n = call->request->params.sampling.n * call->request->n_prompts;
    cn_api_result *result;
    if (atomic_load(&call->cancelled)) return cn_fail(CN_ERR_CANCELLED, "cancelled");
    if (s->engine_stop) return cn_fail(CN_ERR_CANCELLED, "the server is stopping");
    if (s->failed) return cn_fail(CN_ERR_DEVICE, "the engine has failed: %s", s->failure.data);
    call->last_s = cn_calloc(n, sizeof *call->last_s);
    if (!call->last_s) return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    CN_TRY(cn_api_result_create(&result, call->request, cn_engine_token_bytes, s->engine));
    pthread_mutex_lock(&call->lock);
    call->result = result;
    call->times.submitted_s = cn_now_s();
    pthread_mutex_unlock(&call->lock);
    return submit_prompts(s, call);
}

void cn_engine_thread_take(cn_mail *mail)
{
    cn_call *call = CN_CONTAINER_OF(mail, cn_call, mail);
    cn_service *s = call->service;
    s->untrimmed = true;
    cn_status status = submit_call(s, call);
    cn_call_free_tokens(call);
    if (status != CN_OK) {
        cn_serve_stats_lock(s->serve_stats)->rejected_invalid += status == CN_ERR_ARG;
        cn_serve_stats_unlock(s->serve_stats);
        cn_call_finish(call, status);
        return;
    }
    call->submitted = true;
    s->engine_idle = false;
    link_call(s, call);
}

void cn_engine_thread_cancel(cn_mail *mail)
{
    cn_call *call = CN_CONTAINER_OF(mail, cn_call, cancel_mail);
    if (call->submitted && !cn_call_is_over(call))
        cancel_all(call);
    cn_call_unref(call);
}

/* ---- the loop ---- */

static void publish(cn_service *s)
{
    cn_stats now;
    cn_engine_stats(s->engine, &now);
    const uint64_t tokens = now.generation_tokens + now.prompt_tokens;
    const uint64_t before = s->stats.generation_tokens + s->stats.prompt_tokens;
    if (now.steps > s->stats.steps)
        cn_serve_stats_observe(s->serve_stats, CN_HIST_ITERATION_TOKENS,
                               (double)(tokens - before), 1);
    pthread_mutex_lock(&s->lock);
    s->stats = now;
    pthread_mutex_unlock(&s->lock);
}

/* Ends every call in the engine, which delivers nothing more. */
static void end_all(cn_service *s, cn_status status)
{
    for (cn_call *call; (call = CN_CONTAINER_OF(s->active.head, cn_call, node));) {
        unlink_call(s, call);
        cn_call_finish(call, status);
    }
    s->engine_idle = true;
}

static void step_engine(cn_service *s)
{
    const double began = cn_now_s();
    cn_status status = cn_engine_step(s->engine, &s->engine_idle);
    cn_serve_stats_observe(s->serve_stats, CN_HIST_STEP_S, cn_now_s() - began, 1);
    if (status == CN_OK) return;
    cn_log(CN_LOG_ERROR, "the engine failed: %s", cn_last_error());
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    if (cn_buf_addf(&s->failure, "%s", cn_last_error()) != CN_OK) cn_buf_clear(&s->failure);
    pthread_mutex_unlock(&s->lock);
    end_all(s, status);
}

static void open_engine_stop(cn_mail *mail)
{
    cn_service *s = CN_CONTAINER_OF(mail, cn_service, engine_stop_mail);
    s->engine_stop = true;
}

void cn_engine_thread_stop(cn_service *s)
{
    s->engine_stop_mail.open = open_engine_stop;
    cn_mailbox_post(s->engine_box, CN_MAIL_NORMAL, &s->engine_stop_mail);
}

/* Waits for mail. After a second without any, returns the memory of ended requests. */
static void rest(cn_service *s)
{
    atomic_store(&s->turn_began_s, 0);
    cn_mailbox_wait(s->engine_box, s->untrimmed ? TRIM_AFTER_MS : -1);
    if (!s->untrimmed || cn_mailbox_length(s->engine_box) > 0) return;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    s->untrimmed = false;
}

void *cn_engine_thread_main(void *service)
{
    cn_service *s = service;
    s->engine_idle = true;
    for (;;) {
        cn_mail *mail;
        atomic_store(&s->turn_began_s, cn_now_s());
        for (int i = 0; i < MAILS_PER_STEP && (mail = cn_mailbox_take(s->engine_box)); i++)
            mail->open(mail);
        if (s->engine_stop) break;
        if (s->engine_idle) {
            publish(s);
            rest(s);
        } else {
            step_engine(s);
            publish(s);
        }
    }
    cn_fail(CN_ERR_CANCELLED, "the server is stopping");
    end_all(s, CN_ERR_CANCELLED);
    for (cn_mail *mail; (mail = cn_mailbox_take(s->engine_box));) mail->open(mail);
    return NULL;
}
