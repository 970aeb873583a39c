/* call.c - the functions of a call that its owner uses. See call.h and service_state.h. */

#include "engine/serve/calls/service_state.h"

static void call_ref(cn_call *call) { atomic_fetch_add(&call->refs, 1); }

void cn_call_free_tokens(cn_call *call)
{
    for (uint32_t i = 0; i < call->n_tokens; i++) cn_tokens_free(&call->tokens[i]);
    cn_free(call->tokens);
    call->tokens = NULL;
    call->n_tokens = 0;
    cn_bad_words_free(call->bad_words);
    call->bad_words = NULL;
}

void cn_call_unref(cn_call *call)
{
    if (atomic_fetch_sub(&call->refs, 1) != 1) return;
    cn_budget_give(&call->service->memory, call->held_bytes);
    if (call->samples) cn_budget_give(call->samples, call->held_samples);
    cn_call_free_tokens(call);
    cn_api_result_free(call->result);
    cn_api_request_free(&call->parsed);
    cn_buf_free(&call->body);
    cn_buf_free(&call->error);
    cn_buf_free(&call->at_fault);
    cn_free(call->custom_id);
    cn_free(call->last_s);
    pthread_mutex_destroy(&call->lock);
    cn_free(call);
}

static void open_update(cn_mail *mail)
{
    cn_call *call = CN_CONTAINER_OF(mail, cn_call, update_mail);
    pthread_mutex_lock(&call->lock);
    call->update_in_flight = false;
    pthread_mutex_unlock(&call->lock);
    if (!call->released) call->update(call->user, call);
    cn_call_unref(call);
}

void cn_call_post_update(cn_call *call)
{
    pthread_mutex_lock(&call->lock);
    const bool known = call->update_in_flight;
    call->update_in_flight = true;
    pthread_mutex_unlock(&call->lock);
    if (known) return;
    call_ref(call);
    cn_mailbox_post(call->reply_to,
                    call->klass == CN_CLASS_BATCH ? CN_MAIL_NORMAL : CN_MAIL_EXPRESS,
                    &call->update_mail);
}

static void note_error(cn_call *call)
{
    static const cn_api_request none;
    const char *text = cn_last_error();
    cn_api_note_param(call->request ? call->request : &none, &call->at_fault);
    if (cn_buf_add(&call->error, text, strlen(text)) != CN_OK) cn_buf_clear(&call->error);
}

void cn_call_finish(cn_call *call, cn_status status)
{
    pthread_mutex_lock(&call->lock);
    call->over = true;
    call->status = status;
    if (status != CN_OK) note_error(call);
    pthread_mutex_unlock(&call->lock);
    cn_call_post_update(call);
    cn_call_unref(call);
}

cn_status cn_call_start(cn_call **out, cn_service *s, cn_call_opts *o)
{
    CN_ASSERT((o->request != NULL) + (o->body.data != NULL) == 1 && o->reply_to && o->update);
    cn_call *call = cn_calloc(1, sizeof *call);
    char *custom_id = o->custom_id ? cn_strdup(o->custom_id) : NULL;
    if (!call || (o->custom_id && !custom_id)) {
        cn_free(call);
        cn_free(custom_id);
        cn_buf_free(&o->body);
        return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    }
    *call = (cn_call){
        .mail.open = cn_intake_take,
        .cancel_mail.open = cn_engine_thread_cancel,
        .update_mail.open = open_update,
        .refs = 2, /* the owner's, and that of its way through the threads */
        .service = s,
        .klass = o->klass,
        .reply_to = o->reply_to,
        .update = o->update,
        .user = o->user,
        .owner = o->owner,
        .min_priority = o->min_priority,
        .samples = o->samples,
        .body = o->body,
        .endpoint = o->endpoint,
        .custom_id = custom_id,
        .request = o->request,
        .times.started_s = cn_now_s(),
    };
    o->body = (cn_buf){0};
    pthread_mutex_init(&call->lock, NULL);
    const bool express = o->klass != CN_CLASS_BATCH && call->body.len <= CN_LARGE_BODY_BYTES;
    const cn_mail_queue queue = express ? CN_MAIL_EXPRESS : CN_MAIL_NORMAL;
    if (cn_mailbox_try_post(s->intake_box, queue, &call->mail)) {
        *out = call;
        return CN_OK;
    }
    call->refs = 1;
    cn_call_unref(call);
    return cn_fail(CN_ERR_BUSY, "too many requests are waiting to be read: try again later");
}

void cn_call_cancel(cn_call *call)
{
    if (atomic_exchange(&call->cancelled, true) || cn_call_is_over(call)) return;
    /* Without an engine, the intake or the engine that gets it sees the mark. */
    call->cancel_at = atomic_load(&call->at);
    if (!call->cancel_at) return;
    call_ref(call);
    cn_lane_post(&call->cancel_at->lane, CN_MAIL_EXPRESS, &call->cancel_mail);
}

void cn_call_release(cn_call *call)
{
    if (!call) return;
    call->released = true;
    cn_call_cancel(call);
    cn_call_unref(call);
}

bool cn_call_is_over(const cn_call *call)
{
    cn_call *c = (cn_call *)(uintptr_t)call; /* locking does not change what the caller sees */
    pthread_mutex_lock(&c->lock);
    bool over = c->over;
    pthread_mutex_unlock(&c->lock);
    return over;
}

cn_status cn_call_status(const cn_call *call) { return call->status; }
const char *cn_call_error(const cn_call *call)
{
    return call->error.len ? call->error.data : cn_status_name(call->status);
}
const char *cn_call_at_fault(const cn_call *call)
{
    return call->at_fault.len ? call->at_fault.data : "";
}
bool cn_call_is_suspect(const cn_call *call) { return call->is_suspect; }
const cn_api_request *cn_call_request(const cn_call *call) { return call->request; }

cn_api_result *cn_call_lock(cn_call *call)
{
    pthread_mutex_lock(&call->lock);
    if (call->result) {
        call->was_read = true;
        return call->result;
    }
    pthread_mutex_unlock(&call->lock);
    return NULL;
}

void cn_call_unlock(cn_call *call) { pthread_mutex_unlock(&call->lock); }

cn_api_result *cn_call_take_result(cn_call *call)
{
    pthread_mutex_lock(&call->lock);
    CN_ASSERT(call->over);
    cn_api_result *result = call->result;
    call->result = NULL;
    pthread_mutex_unlock(&call->lock);
    return result;
}
