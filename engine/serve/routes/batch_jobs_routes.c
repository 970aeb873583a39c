/* batch_jobs_routes.c - /v1/batches: create, list, get, cancel. Thread: HTTP, except functions with
 * a cn_batches parameter, which run on the batch thread. */

#include "engine/base/json.h"
#include "engine/serve/routes/spool_thread.h"

enum { MAX_BODY_BYTES = 64 << 10, MAX_BODY_DEPTH = 8, LIST_DEFAULT = 20, LIST_MOST = 100 };

static void work_create(cn_spool_task *t, cn_batches *b)
{
    json_t *body = NULL;
    cn_status status = cn_json_parse(&body, t->body.data ? t->body.data : "", t->body.len, "body",
                                     MAX_BODY_BYTES, MAX_BODY_DEPTH, CN_ERR_ARG);
    if (status == CN_OK && !json_is_object(body))
        status = cn_fail(CN_ERR_ARG, "body: expected an object");
    if (status == CN_OK) status = cn_batches_create(b, &t->viewer, body, &t->reply);
    if (status == CN_ERR_ARG)
        cn_spool_refuse(t, CN_HTTP_BAD_REQUEST, NULL, NULL);
    else if (status == CN_ERR_BUSY)
        cn_spool_refuse(t, CN_HTTP_TOO_MANY_REQUESTS, NULL, "too_many_batches");
    else if (status == CN_ERR_IO)
        cn_spool_refuse(t, CN_HTTP_NO_STORAGE, NULL, "spool_error");
    else if (status != CN_OK)
        cn_spool_refuse(t, CN_HTTP_INTERNAL_ERROR, NULL, NULL);
    json_decref(body);
}

static bool is_there(cn_spool_task *t, cn_batches *b)
{
    t->reply = cn_batches_get(b, &t->viewer, &t->id);
    if (t->reply) return true;
    cn_fail(CN_ERR_ARG, "no such batch: \"%s\"", t->id.text);
    cn_spool_refuse(t, CN_HTTP_NOT_FOUND, "id", NULL);
    return false;
}

static void work_get(cn_spool_task *t, cn_batches *b) { is_there(t, b); }

static void work_cancel(cn_spool_task *t, cn_batches *b)
{
    if (!is_there(t, b)) return;
    json_decref(t->reply);
    t->reply = NULL;
    cn_status status = cn_batches_cancel(b, &t->viewer, &t->id, &t->reply);
    if (status == CN_ERR_ARG)
        cn_spool_refuse(t, CN_HTTP_CONFLICT, "id", "not_cancellable");
    else if (status != CN_OK)
        cn_spool_refuse(t, status == CN_ERR_IO ? CN_HTTP_NO_STORAGE : CN_HTTP_INTERNAL_ERROR, NULL,
                        "spool_error");
}

static void work_list(cn_spool_task *t, cn_batches *b)
{
    cn_status status =
        cn_batches_list(b, &t->viewer, *t->id.text ? &t->id : NULL, t->limit, &t->reply);
    if (status != CN_OK)
        cn_spool_refuse(t, status == CN_ERR_ARG ? CN_HTTP_BAD_REQUEST : CN_HTTP_INTERNAL_ERROR,
                        "after", NULL);
}

static void handle_create(void *part, cn_exchange *x)
{
    cn_spool_task *t = cn_spool_task_begin(part, x, work_create);
    if (!t) return;
    t->body = cn_exchange_take_body(x);
    cn_spool_task_post(t);
}

static void post_with_id(void *part, cn_exchange *x, void (*work)(cn_spool_task *t, cn_batches *b))
{
    cn_spool_id id;
    if (!cn_spool_id_read(&id, cn_batch_prefix, cn_exchange_param(x, 0))) {
        cn_exchange_error(x, CN_HTTP_NOT_FOUND, "no such batch", "id", NULL);
        return;
    }
    cn_spool_task *t = cn_spool_task_begin(part, x, work);
    if (!t) return;
    t->id = id;
    cn_spool_task_post(t);
}

static void handle_get(void *part, cn_exchange *x) { post_with_id(part, x, work_get); }
static void handle_cancel(void *part, cn_exchange *x) { post_with_id(part, x, work_cancel); }

static void handle_list(void *part, cn_exchange *x)
{
    cn_spool_id after_id = {""};
    uint32_t limit;
    const char *after = cn_exchange_query(x, "after");
    if (after && !cn_spool_id_read(&after_id, cn_batch_prefix, after)) {
        cn_exchange_error(x, CN_HTTP_BAD_REQUEST, "after: expected a batch id", "after", NULL);
        return;
    }
    if (!cn_spool_read_limit(x, LIST_DEFAULT, LIST_MOST, &limit)) return;
    cn_spool_task *t = cn_spool_task_begin(part, x, work_list);
    if (!t) return;
    t->limit = limit;
    t->id = after_id;
    cn_spool_task_post(t);
}

void cn_batch_routes(cn_route routes[CN_BATCH_ROUTES])
{
    const cn_route rows[CN_BATCH_ROUTES] = {
        {CN_HTTP_POST, "/v1/batches", CN_ROUTE_JSON, handle_create, MAX_BODY_BYTES, NULL, NULL},
        {CN_HTTP_GET, "/v1/batches", 0, handle_list, 0, NULL, NULL},
        {CN_HTTP_GET, "/v1/batches/{id}", 0, handle_get, 0, NULL, NULL},
        {CN_HTTP_POST, "/v1/batches/{id}/cancel", CN_ROUTE_JSON, handle_cancel, MAX_BODY_BYTES,
         NULL, NULL},
    };
    memcpy(routes, rows, sizeof rows);
}
