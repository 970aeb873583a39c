/* spool_thread.h - the part of a server that stores files and runs batches: a thread that owns
 * cn_batches, and the tasks that routes post to it.
 *
 *     HTTP thread                batch thread               HTTP thread
 *   begin, post  --mail-->  work(): reads, writes  --mail-->  then(): replies
 *
 * Owner: cn_server. Thread: stated with each function. Why a thread: a file is synced to disk
 * before the reply reports it, and neither the HTTP loop nor the engine may wait for a disk. */
#pragma once

#include "engine/serve/server.h"
#include "engine/serve/spool/batch_jobs.h"

typedef struct cn_spool_part cn_spool_part;
typedef struct cn_spool_task cn_spool_task;

/* A task of a route for the batch thread, with its result. */
struct cn_spool_task {
    cn_mail mail;
    cn_spool_part *part;
    cn_list_node node; /* of the part's tasks */

    /* HTTP thread */
    cn_exchange *x; /* NULL: the exchange has ended */
    bool posted;    /* and has no result yet */
    void (*then)(cn_spool_task *t); /* handles the result; NULL: cn_spool_task_reply */
    /* Called when the exchange has ended. Returns true if it has posted the task again to clean
     * up. */
    bool (*on_closed)(cn_spool_task *t);
    void (*free_form)(void *form);
    void *form; /* the route's own data */

    /* the input: set by the HTTP thread, read by the batch thread */
    void (*work)(cn_spool_task *t, cn_batches *b);
    cn_viewer viewer;
    cn_spool_id id;
    uint32_t limit;
    cn_buf body;

    /* the result: set by the batch thread */
    int http_status;
    json_t *reply;
    cn_buf error, param;
    const char *code;
};

/* ---- HTTP thread ---- */

/* Creates a task for this exchange; post it next. NULL: out of memory, and an error reply has been
 * made. */
cn_spool_task *cn_spool_task_begin(cn_spool_part *p, cn_exchange *x,
                                   void (*work)(cn_spool_task *t, cn_batches *b));
void cn_spool_task_post(cn_spool_task *t);
/* Sends the result, or the error. */
void cn_spool_task_reply(cn_spool_task *t);
/* Reads "limit" (1 to most, default fallback) from the query. False after an error reply. */
bool cn_spool_read_limit(cn_exchange *x, uint32_t fallback, uint32_t most, uint32_t *limit);

/* ---- batch thread ---- */

/* Sets the thread's last error as the result. param NULL: the member that the error is about. */
void cn_spool_refuse(cn_spool_task *t, int http_status, const char *param, const char *code);

/* ---- the routes ---- */

enum { CN_FILE_ROUTES = 5, CN_BATCH_ROUTES = 4 };
/* In files_routes.c and batch_jobs_routes.c. The user of the rows is the part. */
void cn_file_routes(cn_route routes[CN_FILE_ROUTES], size_t max_file_bytes);
void cn_batch_routes(cn_route routes[CN_BATCH_ROUTES]);
