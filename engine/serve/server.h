/* server.h - the whole of `cinch serve`: the service (service.h), the HTTP server (http_server.h),
 * the routes, and the event loop with its shutdown.
 *
 * Owner: cmd_serve.c, or a test. Thread: the HTTP thread, which runs the loop; cn_server_stop may
 * run on any.
 *
 *   LOADING: listens; every request is answered 503
 *      |  the model is loaded, the parts are open
 *   RUNNING --stop--> DRAINING: new requests are answered 503; running ones may finish
 *                        |  |  --shutdown-timeout
 *                        |  `--> CUT: unfinished requests get an error; a second to send it
 *                        |        |
 *                        |  all done, all sent, or a second stop
 *                        `--> run() returns; freeing the server closes the parts, which persist
 *
 * A part (for example files and batches, or metrics and the page) adds routes and has hooks. */
#pragma once

#include "engine/serve/calls/service.h"
#include "engine/serve/http/http_server.h"

typedef struct cn_server cn_server;

/* A part of the server. Hooks run on the HTTP thread, and may be NULL. */
typedef struct cn_server_part {
    /* Starts the part: adds its routes, opens its files, starts its thread. *part is its state.
     * After a failure the server does not call close. */
    cn_status (*open)(cn_server *server, void **part);
    void (*drain)(void *part);    /* starts no more work */
    bool (*is_idle)(void *part);  /* after drain: true when no work is left */
    void (*cut)(void *part);      /* the time to drain is over: ends its streams with an error */
    void (*close)(void *part);    /* persists, stops the thread, frees; ends all its calls */
} cn_server_part;

/* Listens, then loads the model on another thread while this one answers requests with 503. An
 * address in use is an error before anything is loaded. config is borrowed. */
cn_status cn_server_create(cn_server **out, const cn_config *config);
/* False: what must be written is, but an engine hangs in a step, and the process has to end by
 * _exit. NULL is fine. */
bool cn_server_free(cn_server *s);

/* Serves until cn_server_stop. CN_ERR_DEVICE: the engine failed. */
cn_status cn_server_run(cn_server *s);
/* May be called from any thread or a signal handler. The first call drains, the second ends at
 * once. */
void cn_server_stop(cn_server *s);

/* May be called from any thread or a signal handler. Opens the file of --access-log again, because
 * the old one was renamed. If that fails, the log continues in the old file. */
void cn_server_reopen_log(cn_server *s);

/* The port; 0: only a unix socket. For tests, which let the system choose the port. */
uint16_t cn_server_port(const cn_server *s);
bool cn_server_is_draining(const cn_server *s);
double cn_server_started_s(const cn_server *s); /* seconds since the epoch */

cn_service *cn_server_service(cn_server *s);
cn_http_server *cn_server_http(cn_server *s);
struct event_base *cn_server_base(cn_server *s);
/* The HTTP thread's mailbox: reply_to of the calls that routes start. */
const cn_api_keys *cn_server_keys(const cn_server *s);
/* Sets owner and min_priority of a call for the API key with this name; "" is not a key. All names
 * that are no longer those of a key are one owner. Any thread. */
void cn_server_set_owner(const cn_server *s, const char *name, cn_call_opts *o);
cn_mailbox *cn_server_mailbox(cn_server *s);
