/* engine_thread.c - what runs on the thread of an engine (engine/lanes/lane.h): takes requests and
 * cancels, delivers, and gives the requests of an engine that failed or hangs to the others. See
 * service.h. */

#include "engine/serve/calls/service_state.h"

/* ---- calls in the engine ---- */

static void count_active(cn_call *call, uint32_t change)
{
    cn_serve_stats_lock(call->service->serve_stats)->active_class[call->klass] += change;
    cn_serve_stats_unlock(call->service->serve_stats);
}

static cn_service_lane *lane_of(const cn_call *call) { return atomic_load(&call->at); }

static void link_call(cn_call *call)
{
    count_active(call, 1);
    cn_list_append(&lane_of(call)->active, &call->node);
}

static void unlink_call(cn_call *call)
{
    count_active(call, UINT32_MAX); /* less one */
    cn_list_remove(&lane_of(call)->active, &call->node);
}

static cn_mail_queue queue_of(const cn_call *call)
{
    return call->klass == CN_CLASS_BATCH ? CN_MAIL_NORMAL : CN_MAIL_EXPRESS;
}

/* ---- delivery ---- */

static void observe_tokens(cn_call *call, const cn_event *ev, double now)
{
    cn_serve_stats *stats = call->service->serve_stats;
    if (ev->n_tokens == 0) return;
    double *last = &call->last_s[ev->sample];
    if (!call->has_begun)
        cn_serve_stats_observe_class(stats, call->klass, CN_HIST_TTFT_S,
                                     now - call->times.started_s, 1);
    call->has_begun = true;
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

static void cancel_all(const cn_submission *sub)
{
    for (uint32_t i = 0; i < sub->n; i++)
        cn_engine_cancel(sub->at->lane.engine, sub->first + i);
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

static void end_submission(cn_call *call)
{
    cn_free(call->submission);
    call->submission = NULL;
}

static void take_event(cn_call *call, const cn_event *event)
{
    cn_lane_load *load = &lane_of(call)->load;
    const double now = cn_now_s();
    call->load_tokens += event->n_tokens;
    atomic_fetch_add(&load->tokens[call->klass], event->n_tokens);
    const cn_event e =
        cn_api_event_of(call->request, call->submission->first, &call->submission->n_left, event),
                   *ev = &e;
    observe_tokens(call, ev, now);
    pthread_mutex_lock(&call->lock);
    note_times(&call->times, ev, now);
    cn_api_result_add(call->result, ev);
    const bool too_long =
        cn_api_result_bytes(call->result) > call->service->config->max_reply_bytes;
    pthread_mutex_unlock(&call->lock);
    if (too_long && !call->too_long) cancel_all(call->submission);
    call->too_long |= too_long;
    if (ev->finish != CN_FINISH_NONE) observe_end(call, ev);
    if (ev->finish != CN_FINISH_NONE) cn_engine_unload_sample(call);
    if (ev->last) {
        unlink_call(call);
        end_submission(call);
        cn_engine_unload(call);
        cn_call_finish(call, end_status(call));
    } else if (call->request->stream) {
        cn_call_post_update(call);
    }
}

/* Drops what an engine that hung says of a call that went to another one. */
static void drop_event(cn_submission *sub, const cn_event *event)
{
    if (!event->last) {
        cancel_all(sub);
    } else if (--sub->n_left == 0) {
        cn_list_remove(&sub->at->orphans, &sub->node);
        cn_free(sub);
    }
}

static void on_call_event(void *user, const cn_event *event)
{
    cn_submission *sub = user;
    cn_service_lane *at = sub->at;
    pthread_mutex_lock(&at->lock);
    if (sub->call)
        take_event(sub->call, event);
    else
        drop_event(sub, event);
    pthread_mutex_unlock(&at->lock);
}

/* ---- submit, cancel ---- */

/* Submits the tokens of all prompts, or none. */
static cn_status submit_prompts(cn_engine *engine, cn_call *call)
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
        all[i].was_accepted = call->was_accepted;
    }
    cn_submission *sub = call->submission;
    const cn_status status = cn_engine_submit_all(engine, all, n, on_call_event, sub, &sub->first);
    cn_free(all);
    return status;
}

static cn_status submit_call(cn_call *call)
{
    const cn_lane *lane = &lane_of(call)->lane;
    const uint32_t n = call->request->params.sampling.n * call->request->n_prompts;
    cn_api_result *result;
    if (atomic_load(&call->cancelled)) return cn_fail(CN_ERR_CANCELLED, "cancelled");
    if (lane->stopping) return cn_fail(CN_ERR_CANCELLED, "the server is stopping");
    if (lane->status != CN_OK)
        return cn_fail(CN_ERR_DEVICE, "the engine has failed: %s", lane->why);
    call->last_s = cn_calloc(n, sizeof *call->last_s);
    call->submission = cn_calloc(1, sizeof *call->submission);
    if (!call->last_s || !call->submission)
        return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    const uint32_t n_prompts = call->request->n_prompts;
    *call->submission = (cn_submission){
        .at = lane_of(call), .call = call, .n = n_prompts, .n_left = n_prompts};
    CN_TRY(cn_api_result_create(&result, call->request, cn_engine_token_bytes, lane->engine));
    pthread_mutex_lock(&call->lock);
    call->result = result;
    call->times.submitted_s = cn_now_s();
    pthread_mutex_unlock(&call->lock);
    return submit_prompts(lane->engine, call);
}

/* ---- an engine that failed ---- */

/* Ends a call that its engine does not have. */
static void end_call(cn_call *call, cn_status status)
{
    end_submission(call);
    cn_engine_unload(call);
    cn_call_finish(call, status);
}

static bool others_work(const cn_call *call)
{
    const cn_service *s = call->service;
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (cn_engine_is_up(&s->lanes[i])) return !atomic_load(&s->intake_stop);
    return false;
}

/* Takes back the output of a call. False: a part of it has been sent. */
static bool try_take_back(cn_call *call)
{
    pthread_mutex_lock(&call->lock);
    const bool sent = call->request->stream && call->was_read;
    cn_api_result *result = sent ? NULL : call->result;
    if (!sent) {
        call->result = NULL;
        call->times = (call_times){.started_s = call->times.started_s};
    }
    pthread_mutex_unlock(&call->lock);
    cn_api_result_free(result);
    return !sent;
}

/* Sends the call back to the intake, which makes its tokens again and chooses another engine.
 * False, and nothing done: its client has a part of the answer, or there is no engine. */
static bool try_move(cn_call *call)
{
    if (atomic_load(&call->cancelled) || !others_work(call) || !try_take_back(call)) return false;
    cn_engine_unload(call);
    cn_call_free_tokens(call);
    cn_free(call->last_s);
    call->last_s = NULL;
    call->too_long = false;
    atomic_store(&call->at, NULL);
    call->mail.open = cn_intake_take;
    cn_mailbox_post(call->service->intake_box, queue_of(call), &call->mail);
    return true;
}

static void log_failure(const cn_service_lane *at, uint32_t n_calls, uint32_t n_rescued)
{
    const cn_lane *lane = &at->lane;
    if (at->service->n_lanes == 1)
        cn_log(CN_LOG_ERROR, "the engine failed: %s", lane->why);
    else
        cn_log(CN_LOG_ERROR, "engine %u failed: %s; of its %u requests %u go to other engines",
               lane->index, lane->why, n_calls, n_rescued);
}

static void fail_suspect(cn_status status, const char *why)
{
    cn_fail(status, "%d engines failed while they had this request, the last because: %s",
            (int)CN_CALL_MOST_LOST, why);
}

/* Ends a call whose engine makes no more steps, or moves it. */
static bool try_rescue(cn_call *call, const cn_lane *lane, cn_status status)
{
    const bool failed = status != CN_ERR_CANCELLED;
    if (failed && ++call->n_lost < CN_CALL_MOST_LOST && try_move(call)) return true;
    call->is_suspect = failed && call->n_lost == CN_CALL_MOST_LOST && others_work(call);
    if (call->is_suspect)
        fail_suspect(status, lane->why);
    else
        cn_fail(status, "%s", failed ? lane->why : "the server is stopping");
    end_call(call, status);
    return false;
}

void cn_engine_thread_end(cn_lane *lane, cn_status status)
{
    cn_service_lane *at = lane->owner;
    const bool failed = status != CN_ERR_CANCELLED;
    uint32_t n_rescued = 0;
    pthread_mutex_lock(&at->lock);
    const uint32_t n_calls = at->active.n;
    for (cn_call *call; (call = CN_CONTAINER_OF(at->active.head, cn_call, node));) {
        unlink_call(call);
        end_submission(call);
        n_rescued += try_rescue(call, lane, status);
    }
    for (cn_list_node *node; (node = cn_list_pop(&at->orphans));)
        cn_free(CN_CONTAINER_OF(node, cn_submission, node));
    pthread_mutex_unlock(&at->lock);
    if (failed) log_failure(at, n_calls, n_rescued);
}

/* ---- an engine that hangs ---- */

/* The engine keeps the submission, and what it says of it is dropped. */
static void leave_submission(cn_service_lane *at, cn_call *call)
{
    cn_submission *sub = call->submission;
    call->submission = NULL;
    sub->call = NULL;
    cn_list_append(&at->orphans, &sub->node);
}

static bool is_last_chance(const cn_call *call) { return call->n_lost + 1 >= CN_CALL_MOST_LOST; }

/* Ends a call whose last engine hangs as well. While no engine works, the line of a batch waits for
 * the end of the step: its error would end the batch. */
static bool try_end_suspect(cn_service_lane *at, cn_call *call)
{
    const bool others = others_work(call);
    if (!others && call->klass == CN_CLASS_BATCH) return false;
    unlink_call(call);
    leave_submission(at, call);
    call->is_suspect = others;
    fail_suspect(CN_ERR_DEVICE, "a step has not ended (--health-stall)");
    end_call(call, CN_ERR_DEVICE);
    return true;
}

/* Takes a call from the engine that hangs: moves it, or ends it. */
static bool try_take_away(cn_service_lane *at, cn_call *call)
{
    cn_submission *sub = call->submission;
    if (is_last_chance(call)) return try_end_suspect(at, call);
    unlink_call(call);
    call->n_lost++;
    call->submission = NULL;
    if (!try_move(call)) {
        call->n_lost--;
        call->submission = sub;
        link_call(call);
        return false;
    }
    sub->call = NULL;
    cn_list_append(&at->orphans, &sub->node);
    return true;
}

/* Ends a call that its client has cancelled: what it holds of the key and of memory is free. */
static void end_cancelled(cn_call *call)
{
    cn_service_lane *at = lane_of(call);
    if (call->submission) {
        unlink_call(call);
        leave_submission(at, call);
    }
    if (cn_lane_try_recall(&at->lane, CN_MAIL_EXPRESS, &call->cancel_mail)) cn_call_unref(call);
    cn_fail(CN_ERR_CANCELLED, "cancelled");
    end_call(call, CN_ERR_CANCELLED);
}

static void end_cancelled_of(cn_service_lane *at)
{
    CN_LIST_EACH_SAFE(cn_call, call, &at->active, node) {
        if (atomic_load(&call->cancelled)) end_cancelled(call);
    }
    CN_LIST_EACH_SAFE(cn_call, call, &at->posted, node) {
        if (!atomic_load(&call->cancelled) ||
            !cn_lane_try_recall(&at->lane, queue_of(call), &call->mail))
            continue;
        cn_list_remove(&at->posted, &call->node);
        end_cancelled(call);
    }
}

void cn_engine_thread_end_cancelled(cn_service_lane *at)
{
    if (pthread_mutex_trylock(&at->lock) != 0) return;
    end_cancelled_of(at);
    pthread_mutex_unlock(&at->lock);
}

/* Returns how many calls go to other engines. */
static uint32_t take_active(cn_service_lane *at)
{
    uint32_t n = 0;
    for (uint32_t left = at->active.n; left > 0; left--) {
        cn_call *call = CN_CONTAINER_OF(at->active.head, cn_call, node);
        CN_ASSERT(call);
        const bool ends = is_last_chance(call);
        if (try_take_away(at, call)) {
            n += !ends;
            continue;
        }
        cn_list_remove(&at->active, &call->node);
        cn_list_append(&at->active, &call->node);
    }
    return n;
}

static uint32_t take_posted(cn_service_lane *at)
{
    uint32_t n = 0;
    CN_LIST_EACH_SAFE(cn_call, call, &at->posted, node) {
        if (!others_work(call) || atomic_load(&call->cancelled) ||
            !cn_lane_try_recall(&at->lane, queue_of(call), &call->mail))
            continue;
        cn_list_remove(&at->posted, &call->node);
        if (try_move(call)) {
            n++;
            continue;
        }
        end_cancelled(call); /* meanwhile */
    }
    return n;
}

static void note_stall(cn_service_lane *at, uint32_t n_moved)
{
    const uint32_t n_left = at->active.n + at->posted.n;
    if (at->service->n_lanes == 1 || (at->is_stalled && n_moved == 0)) return;
    at->is_stalled = true;
    cn_log(CN_LOG_ERROR, "engine %u (%s): a step has not ended for %.0f s (--health-stall): %u of "
           "its requests go to other engines, %u wait for it", at->lane.index,
           cn_engine_device(at->lane.engine), cn_lane_turn_s(&at->lane, cn_now_s()), n_moved,
           n_left);
}

static void note_end_of_stall(cn_service_lane *at)
{
    if (!at->is_stalled) return;
    at->is_stalled = false;
    cn_log(CN_LOG_WARN, "engine %u (%s): the step has ended: the engine goes on", at->lane.index,
           cn_engine_device(at->lane.engine));
}

void cn_engine_thread_watch(cn_service *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        cn_service_lane *at = &s->lanes[i];
        if (cn_lane_failure(&at->lane)) continue;
        if (cn_engine_is_up(at)) {
            note_end_of_stall(at);
            continue;
        }
        if (pthread_mutex_trylock(&at->lock) != 0) continue;
        end_cancelled_of(at);
        const uint32_t n = take_active(at) + take_posted(at);
        note_stall(at, n);
        pthread_mutex_unlock(&at->lock);
    }
}

/* ---- mails, steps ---- */

static void take_call(cn_call *call)
{
    cn_service *s = call->service;
    cn_lane *lane = &lane_of(call)->lane;
    lane->untrimmed = true;
    cn_list_remove(&lane_of(call)->posted, &call->node);
    if (lane->status != CN_OK && !lane->stopping && try_move(call)) return;
    cn_status status = submit_call(call);
    cn_call_free_tokens(call);
    if (status != CN_OK) {
        cn_serve_stats_lock(s->serve_stats)->rejected_invalid += status == CN_ERR_ARG;
        cn_serve_stats_unlock(s->serve_stats);
        end_call(call, status);
        return;
    }
    call->was_accepted = true;
    cn_lane_wake(lane, call->load_samples);
    link_call(call);
}

static void take_mail(cn_mail *mail)
{
    cn_call *call = CN_CONTAINER_OF(mail, cn_call, mail);
    CN_ASSERT(call);
    cn_service_lane *at = lane_of(call);
    pthread_mutex_lock(&at->lock);
    take_call(call);
    pthread_mutex_unlock(&at->lock);
}

void cn_engine_thread_post(cn_call *call)
{
    cn_service_lane *at = lane_of(call);
    call->mail.open = take_mail;
    pthread_mutex_lock(&at->lock);
    cn_list_append(&at->posted, &call->node);
    cn_lane_post(&at->lane, queue_of(call), &call->mail);
    pthread_mutex_unlock(&at->lock);
}

/* A call that has moved on sees at its next engine that it is cancelled. */
void cn_engine_thread_cancel(cn_mail *mail)
{
    cn_call *call = CN_CONTAINER_OF(mail, cn_call, cancel_mail);
    CN_ASSERT(call);
    cn_service_lane *at = call->cancel_at;
    pthread_mutex_lock(&at->lock);
    if (lane_of(call) == at && call->submission) cancel_all(call->submission);
    pthread_mutex_unlock(&at->lock);
    cn_call_unref(call);
}

void cn_engine_thread_step(cn_lane *lane, double seconds)
{
    cn_service_lane *at = lane->owner;
    cn_serve_stats *stats = at->service->serve_stats;
    const uint64_t n = lane->stats.generation_tokens + lane->stats.prompt_tokens;
    cn_serve_stats_observe(stats, CN_HIST_STEP_S, seconds, 1);
    if (lane->stats.steps > at->n_steps)
        cn_serve_stats_observe(stats, CN_HIST_ITERATION_TOKENS, (double)(n - at->n_tokens), 1);
    at->n_steps = lane->stats.steps;
    at->n_tokens = n;
}
