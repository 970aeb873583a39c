/* serve_rig.h - a server in this process, on the bundled checkpoint and a free port of the loopback
 * device, run by a thread of its own. */
#ifndef CN_TEST_SERVE_RIG_H
#define CN_TEST_SERVE_RIG_H

#include <pthread.h>

#include "engine/serve/server.h"

typedef struct serve_rig {
    cn_config *config;
    cn_server *server;
    pthread_t thread;
    cn_status end; /* of cn_server_run */
    uint16_t port;
    bool running;
} serve_rig;

/* The rig's configuration, with the command line's options {"--name", "value", ..., NULL}, or
 * NULL. */
cn_config *serve_rig_config(const char *const *options);
/* Starts with the command line's options {"--name", "value", ..., NULL}, or NULL; aborts the test
 * with the error's text when that fails. */
void serve_rig_open(serve_rig *r, const char *const *options);
/* The rest of that, for a server that was created apart. */
void serve_rig_run(serve_rig *r);
/* Asks for the end once, and waits for it. */
void serve_rig_stop(serve_rig *r);
/* Stops, frees. */
void serve_rig_close(serve_rig *r);

void serve_rig_figures(serve_rig *r, cn_serve_figures *out);
/* Waits until the engine runs n requests and holds no block if n is 0; false after 120 s. */
bool serve_rig_wait_running(serve_rig *r, uint32_t n);

#endif
