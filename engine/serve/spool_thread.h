/* spool_thread.h - the part of a server that keeps files and runs batches: a thread that owns
 * cn_batches, and the way of a route's question to it and back.
 *
 *     HTTP thread                batch thread               HTTP thread
 *   begin, post  --mail-->  work(): looks, writes  --mail-->  then(): replies
 *
 * Owner: cn_server. Thread: as said with each. Why a thread: files are synced to the disk before a
 * reply says that they are there, and neither the HTTP loop nor the engine may wait for a disk. */
#ifndef CN_SPOOL_THREAD_H
#define CN_SPOOL_THREAD_H

#include <stdatomic.h>

#include "engine/serve/batch_jobs.h"
#include "engine/serve/server.h"

typedef struct cn_spool_part cn_spool_part;
typedef struct cn_spool_ask cn_spool_ask;

/* A question on its way. */
struct cn_spool_ask {
    cn_mail mail;
    cn_spool_part *part;
    cn_list_node node; /* of the part's */

    /* HTTP thread */
    cn_exchange *x; /* NULL: the client has gone */
    bool under_way;
    void (*then)(cn_spool_ask *a);     /* NULL: replies */
    bool (*give_up)(cn_spool_ask *a);  /* the client has gone; true: it went on its way again */
    void (*free_form)(void *form);
    void *form; /* the route's own */

    /* what is asked: set by the HTTP thread, read by the batch thread */
    void (*work)(cn_spool_ask *a, cn_batches *b);
    cn_spool_id id;
    uint32_t limit;
    cn_buf body;

    /* the answer: set by the batch thread */
    int http_status;
    json_t *reply;
    cn_buf error;
    const char *param, *code;
};

/* ---- HTTP thread ---- */

/* A question of this exchange, to be posted; NULL after an error reply when there is no memory. */
cn_spool_ask *cn_spool_ask_begin(cn_spool_part *p, cn_exchange *x,
                                 void (*work)(cn_spool_ask *a, cn_batches *b));
void cn_spool_ask_post(cn_spool_ask *a);
/* Sends the answer, or the error. */
void cn_spool_ask_reply(cn_spool_ask *a);
/* Reads "limit" (1 to most) of the query; false after an error reply. */
bool cn_spool_read_limit(cn_exchange *x, uint32_t fallback, uint32_t most, uint32_t *limit);

/* ---- batch thread ---- */

/* The thread's last error is the answer. */
void cn_spool_refuse(cn_spool_ask *a, int http_status, const char *param, const char *code);

/* ---- the routes ---- */

enum { CN_FILE_ROUTES = 5, CN_BATCH_ROUTES = 4 };
/* In files_routes.c and batch_jobs_routes.c; their user is the part. */
void cn_file_routes(cn_route routes[CN_FILE_ROUTES], size_t max_file_bytes);
void cn_batch_routes(cn_route routes[CN_BATCH_ROUTES]);

#endif
