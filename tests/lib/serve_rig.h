/* serve_rig.h - runs a server in this process, in its own thread, with the bundled checkpoint and a
 * free port of the loopback device. */
#pragma once

#include <pthread.h>
#include <semaphore.h>

#include "engine/base/mailbox.h"
#include "engine/serve/server.h"

typedef struct serve_rig {
    cn_config *config;
    cn_server *server;
    pthread_t thread;
    cn_status end; /* the result of cn_server_run */
    uint16_t port;
    bool running;
    bool hangs; /* after the end: an engine did not end, and nothing is freed */
} serve_rig;

/* Returns the rig's configuration plus command-line options {"--name", "value", ..., NULL}, or
 * only the rig's when `options` is NULL. */
cn_config *serve_rig_config(const char *const *options);
/* Starts a server with command-line options {"--name", "value", ..., NULL}, or NULL. Fails the test
 * with the error text when that fails. */
void serve_rig_open(serve_rig *r, const char *const *options);
/* The second half of serve_rig_open, for a server that the test created. */
void serve_rig_run(serve_rig *r);
/* Asks the server to stop, and waits until it has. */
void serve_rig_stop(serve_rig *r);
/* Stops the server and frees it. */
void serve_rig_close(serve_rig *r);

void serve_rig_figures(serve_rig *r, cn_serve_figures *out);
/* Waits until the engine runs n requests; for n = 0, also until no block is used. False after
 * 120 s. */
bool serve_rig_wait_running(serve_rig *r, uint32_t n);

/* A turn of the thread of an engine that lasts until the test ends it. It must outlive the turn. */
typedef struct serve_hang {
    cn_mail mail;
    sem_t began, end;
} serve_hang;

/* Returns when the turn has begun. */
void serve_hang_begin(serve_hang *h, serve_rig *r, uint32_t engine);
void serve_hang_end(serve_hang *h);
