/* server.h - `cinch serve` assembled: the service (service.h), the HTTP server (http_server.h),
 * their routes, and the loop that ends in an orderly way.
 *
 * Owner: cmd_serve.c, or a test. Thread: the one that runs it, which is the HTTP thread; but for
 * cn_server_stop.
 *
 *   LOADING: the port is taken, every request is answered 503
 *      |  the model is loaded, the parts are open
 *   RUNNING --stop--> DRAINING: no new connections or work; what runs may finish
 *                        |  all done, or --shutdown-timeout, or a second stop
 *                        `--> parts are told to persist, run() returns
 *
 * Parts (files and batches; metrics and the page) add routes, and a row of hooks. */
#ifndef CN_SERVER_H
#define CN_SERVER_H

#include "engine/serve/http_server.h"
#include "engine/serve/service.h"

typedef struct cn_server cn_server;

/* A part of the server. Hooks run on the HTTP thread, and may be NULL. */
typedef struct cn_server_part {
    /* Starts the part: adds its routes, opens its files, starts its thread. *part is its state.
     * CN_ERR_ARG with part NULL: the configuration is at fault. */
    cn_status (*open)(cn_server *server, void **part);
    void (*drain)(void *part);    /* begin no more work */
    bool (*is_idle)(void *part);  /* nothing to wait for; asked after drain */
    void (*close)(void *part);    /* persist, stop the thread, free; calls may not be left */
} cn_server_part;

/* Listens, then loads the model, on another thread: this one answers what is asked meanwhile. An
 * address that is taken fails before anything is loaded. config is borrowed. */
cn_status cn_server_create(cn_server **out, const cn_config *config);
void cn_server_free(cn_server *s); /* NULL is fine */

/* Serves until cn_server_stop. CN_ERR_DEVICE when the engine failed. */
cn_status cn_server_run(cn_server *s);
/* From any thread, or a signal handler. The first drains, the second ends at once. */
void cn_server_stop(cn_server *s);

/* The port listened on; 0: a unix socket only. For tests, which let the system choose one. */
uint16_t cn_server_port(const cn_server *s);
bool cn_server_is_draining(const cn_server *s);
double cn_server_started_s(const cn_server *s); /* seconds since the epoch */

cn_service *cn_server_service(cn_server *s);
cn_http_server *cn_server_http(cn_server *s);
struct event_base *cn_server_base(cn_server *s);
/* The HTTP thread's: reply_to of what a route starts. */
cn_mailbox *cn_server_mailbox(cn_server *s);

#endif
