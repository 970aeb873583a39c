/* spool_thread.c - see spool_thread.h. */
#include "engine/serve/routes/spool_thread.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/serve/server_parts.h"

enum {
    BATCH_RETRY_S = 60, /* long, because batches end rarely */
    UPLOAD_EXPIRES_S = 60
};

struct cn_spool_part {
    cn_server *server;
    cn_service *service;
    cn_route routes[CN_FILE_ROUTES + CN_BATCH_ROUTES];
    cn_list tasks; /* all; the HTTP thread's */

    pthread_t thread;
    bool started;
    cn_mailbox *box; /* the batch thread's */
    cn_mail drain_mail, stop_mail;
    atomic_bool idle; /* after a drain: no line is in flight */

    cn_batches *batches; /* the batch thread's once it runs */
    bool draining, stopping;
};

/* ---- tasks ---- */

static void free_task(cn_spool_task *t)
{
    cn_list_remove(&t->part->tasks, &t->node);
    if (t->free_form) t->free_form(t->form);
    json_decref(t->reply);
    cn_buf_free(&t->body);
    cn_buf_free(&t->error);
    cn_buf_free(&t->param);
    cn_free(t);
}

static void free_if_over(cn_spool_task *t)
{
    if (t->x || t->posted) return;
    if (t->on_closed && t->on_closed(t)) return;
    free_task(t);
}

static void on_closed(void *user, cn_exchange *x)
{
    cn_spool_task *t = user;
    (void)x;
    t->x = NULL;
    free_if_over(t);
}

static void open_result(cn_mail *mail)
{
    cn_spool_task *t = CN_CONTAINER_OF(mail, cn_spool_task, mail);
    t->posted = false;
    if (!t->x)
        free_if_over(t);
    else if (t->then)
        t->then(t); /* may end the exchange and free the task */
    else
        cn_spool_task_reply(t);
}

static void open_task(cn_mail *mail)
{
    cn_spool_task *t = CN_CONTAINER_OF(mail, cn_spool_task, mail);
    t->work(t, t->part->batches);
    t->mail.open = open_result;
    cn_mailbox_post(cn_server_mailbox(t->part->server), CN_MAIL_NORMAL, &t->mail);
}

cn_spool_task *cn_spool_task_begin(cn_spool_part *p, cn_exchange *x,
                                   void (*work)(cn_spool_task *t, cn_batches *b))
{
    cn_spool_task *t = cn_calloc(1, sizeof *t);
    if (!t) {
        cn_exchange_error(x, CN_HTTP_UNAVAILABLE, "out of memory", NULL, NULL);
        return NULL;
    }
    const cn_api_keys *keys = cn_server_keys(p->server);
    const uint32_t key = cn_exchange_key(x);
    *t = (cn_spool_task){
        .part = p,
        .x = x,
        .work = work,
        .viewer = {cn_exchange_key_name(x),
                   key == CN_API_KEY_NONE || cn_api_keys_is_admin(keys, key)},
        .http_status = 200,
    };
    cn_list_append(&p->tasks, &t->node);
    cn_exchange_set_user(x, t, on_closed);
    return t;
}

void cn_spool_task_post(cn_spool_task *t)
{
    t->posted = true;
    t->mail.open = open_task;
    cn_mailbox_post(t->part->box, CN_MAIL_EXPRESS, &t->mail);
}

void cn_spool_task_reply(cn_spool_task *t)
{
    if (t->http_status == CN_HTTP_OK) {
        cn_exchange_reply_json(t->x, CN_HTTP_OK, json_incref(t->reply));
        return;
    }
    const char *message = t->error.len ? t->error.data : "out of memory";
    cn_exchange_set_retry(t->x, BATCH_RETRY_S);
    cn_exchange_error(t->x, t->http_status, message, t->param.data, t->code);
}

static void keep_spool_text(cn_buf *out, const char *text)
{
    cn_buf_clear(out);
    if (cn_buf_add(out, text, strlen(text)) != CN_OK) cn_buf_clear(out);
}

void cn_spool_refuse(cn_spool_task *t, int http_status, const char *param, const char *code)
{
    t->http_status = http_status;
    t->code = code;
    keep_spool_text(&t->error, cn_last_error());
    keep_spool_text(&t->param, param ? param : cn_last_param());
}

bool cn_spool_read_limit(cn_exchange *x, uint32_t fallback, uint32_t most, uint32_t *limit)
{
    char message[64];
    const char *text = cn_exchange_query(x, "limit");
    *limit = fallback;
    if (!text) return true;
    const size_t n = strspn(text, "0123456789");
    const unsigned long value = n > 0 && n <= 9 && !text[n] ? strtoul(text, NULL, 10) : 0;
    *limit = (uint32_t)value;
    if (value >= 1 && value <= most) return true;
    snprintf(message, sizeof message, "limit: expected a number from 1 to %u", most);
    cn_exchange_error(x, CN_HTTP_BAD_REQUEST, message, "limit", NULL);
    return false;
}

/* ---- access to the engine ---- */

static void on_update(void *user, cn_call *call)
{
    cn_batch_job *job = user;
    if (!cn_call_is_over(call)) return;
    cn_api_result *result = cn_call_take_result(call);
    cn_status status = cn_call_status(call);
    /* An engine failure of this request has a result, which becomes an error line. */
    if (result && cn_api_result_error(result)) status = CN_OK;
    if (status != CN_OK) {
        cn_api_result_free(result);
        result = NULL;
        cn_fail(status, "%s", cn_call_error(call));
        cn_for_param(status, cn_call_at_fault(call));
    }
    job->call = NULL;
    job->result = result;
    if (status != CN_OK && cn_call_is_suspect(call))
        cn_batch_job_end_lost(job, cn_call_error(call));
    else
        cn_batch_job_end(job, status);
    cn_call_release(call);
}

static cn_status submit_job(void *part, cn_batch_job *job, const char *owner)
{
    cn_spool_part *p = part;
    cn_call_opts o = {.request = &job->attempt,
                      .klass = CN_CLASS_BATCH,
                      .custom_id = job->item.custom_id,
                      .reply_to = p->box,
                      .update = on_update,
                      .user = job};
    cn_call *call;
    cn_server_set_owner(p->server, owner, &o);
    CN_TRY(cn_call_start(&call, p->service, &o));
    job->call = call;
    return CN_OK;
}

static void cancel_line(void *part, cn_batch_job *job)
{
    (void)part;
    cn_call_cancel(job->call);
}

static uint64_t n_tokens(void *part, cn_batch_job *job)
{
    (void)part;
    const cn_api_result *result = cn_call_lock(job->call);
    if (!result) return 0;
    const uint64_t n = cn_api_result_n_tokens(result);
    cn_call_unlock(job->call);
    return n;
}

static bool is_accepted(void *part, const cn_batch_job *job)
{
    (void)part;
    if (!cn_call_lock(job->call)) return false;
    cn_call_unlock(job->call);
    return true;
}

/* ---- the thread ---- */

static void open_drain(cn_mail *mail)
{
    cn_spool_part *p = CN_CONTAINER_OF(mail, cn_spool_part, drain_mail);
    p->draining = true;
    cn_batches_drain(p->batches);
}

static void open_spool_stop(cn_mail *mail)
{
    cn_spool_part *p = CN_CONTAINER_OF(mail, cn_spool_part, stop_mail);
    p->stopping = true;
    cn_batches_abandon(p->batches);
}

static void *thread_main(void *part)
{
    cn_spool_part *p = part;
    for (int wait_ms = 0;;) {
        cn_mailbox_wait(p->box, wait_ms);
        cn_mailbox_open_all(p->box);
        cn_batches_pump(p->batches, &wait_ms);
        const bool idle = cn_batches_is_idle(p->batches);
        if (p->stopping && idle && cn_mailbox_length(p->box) == 0) return NULL;
        if (p->draining) atomic_store(&p->idle, idle);
    }
}

/* ---- the part ---- */

/* Lines of batches that the engines have at once. */
static uint32_t max_inflight(const cn_spool_part *p)
{
    enum { LEAST = 1024, PER_SEAT = 4, MOST = 65536 };
    const cn_config *c = cn_service_config(p->service);
    const uint64_t seats = (uint64_t)cn_service_n_engines(p->service) * c->max_num_seqs;
    if (c->max_batch_inflight > 0) return c->max_batch_inflight;
    return (uint32_t)(seats * PER_SEAT > MOST    ? MOST
                      : seats * PER_SEAT > LEAST ? seats * PER_SEAT
                                                 : LEAST);
}

static cn_status open_batches(cn_spool_part *p)
{
    const cn_config *c = cn_service_config(p->service);
    const cn_batches_opts o = {
        .dir = c->spool,
        .config = c,
        .names = cn_service_names(p->service),
        .files = {c->max_files, c->max_file_bytes, c->max_spool_bytes, UPLOAD_EXPIRES_S},
        .max_lines = c->max_batch_lines,
        .max_batches = c->max_batches,
        .max_kept = CN_BATCHES_KEPT,
        .max_inflight = max_inflight(p),
        .max_model_len = cn_service_max_model_len(p->service),
        .cost = cn_service_step_cost(p->service),
        .user = p,
        .defaults = *cn_service_defaults(p->service),
        .submit = submit_job,
        .cancel = cancel_line,
        .n_tokens = n_tokens,
        .is_accepted = is_accepted,
    };
    return cn_batches_open(&p->batches, &o);
}

/* Waits for the thread, and not for lines of an engine that hangs. */
static void join_thread(cn_spool_part *p)
{
    enum { LOOK_NS = 100000000 };
    const double since_s = cn_now_s();
    struct timespec until;
    do {
        cn_service_end_cancelled(p->service, since_s);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    } while (pthread_timedjoin_np(p->thread, NULL, &until) != 0);
}

static void close_part(void *part)
{
    cn_spool_part *p = part;
    if (!p) return;
    if (p->started) {
        p->stop_mail.open = open_spool_stop;
        cn_mailbox_post(p->box, CN_MAIL_NORMAL, &p->stop_mail);
        join_thread(p);
        /* Open its results before the tasks are freed. */
        while (cn_mailbox_open_all(cn_server_mailbox(p->server)) > 0) continue;
    }
    for (cn_spool_task *t; (t = CN_CONTAINER_OF(p->tasks.head, cn_spool_task, node));) {
        if (t->x) cn_exchange_set_user(t->x, NULL, NULL);
        free_task(t);
    }
    cn_batches_close(p->batches);
    cn_mailbox_free(p->box);
    cn_free(p);
}

static cn_status start_spool(cn_spool_part *p)
{
    CN_TRY(cn_mailbox_create(&p->box, UINT32_MAX));
    CN_TRY(open_batches(p));
    if (pthread_create(&p->thread, NULL, thread_main, p) != 0)
        return cn_fail(CN_ERR_MEMORY, "cannot start the batch thread");
    p->started = true;
    return CN_OK;
}

static void handle_without(void *part, cn_exchange *x)
{
    (void)part;
    cn_exchange_error(x, CN_HTTP_NOT_FOUND,
                      "files and batches are not enabled on this server: start it with --spool DIR",
                      NULL, "not_found");
}

/* Without a spool every route answers, before it reads a body, that --spool is missing. */
static cn_status add_routes(cn_spool_part *p)
{
    const cn_config *c = cn_service_config(p->service);
    cn_file_routes(p->routes, c->max_file_bytes);
    cn_batch_routes(p->routes + CN_FILE_ROUTES);
    for (int i = 0; !c->spool && i < CN_FILE_ROUTES + CN_BATCH_ROUTES; i++) {
        cn_route *r = &p->routes[i];
        *r = (cn_route){r->method, r->path, CN_ROUTE_UPLOAD, handle_without, SIZE_MAX,
                        handle_without, NULL};
    }
    return cn_http_server_add_routes(cn_server_http(p->server), p->routes,
                                     CN_FILE_ROUTES + CN_BATCH_ROUTES, p);
}

static cn_status open_part(cn_server *server, void **out)
{
    cn_service *service = cn_server_service(server);
    *out = NULL;
    cn_spool_part *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(CN_ERR_MEMORY, "out of memory for the spool");
    p->server = server;
    p->service = service;
    cn_status status = cn_service_config(service)->spool ? start_spool(p) : CN_OK;
    if (status == CN_OK) status = add_routes(p);
    if (status == CN_OK)
        *out = p;
    else
        close_part(p);
    return status;
}

static void drain_part(void *part)
{
    cn_spool_part *p = part;
    if (!p->started) return;
    p->drain_mail.open = open_drain;
    cn_mailbox_post(p->box, CN_MAIL_EXPRESS, &p->drain_mail);
}

static bool is_spool_idle(void *part)
{
    cn_spool_part *p = part;
    return !p->started || atomic_load(&p->idle);
}

const cn_server_part cn_spool_server_part = {
    .open = open_part, .drain = drain_part, .is_idle = is_spool_idle, .close = close_part};
