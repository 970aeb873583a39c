/* serve_rig.c - see serve_rig.h. */
#include "tests/lib/serve_rig.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/serve/calls/service_state.h"

enum { MAX_ARGS = 40, WAIT_MS = 120000, LOOK_MS = 5 };

static void *run_server(void *arg)
{
    serve_rig *r = arg;
    r->end = cn_server_run(r->server);
    return NULL;
}

static void must(cn_status status)
{
    if (status == CN_OK) return;
    fprintf(stderr, "serve_rig: %s\n", cn_last_error());
    abort();
}

cn_config *serve_rig_config(const char *const *options)
{
    const char *args[MAX_ARGS] = {"serve", "--model", "examples/tiny-reasoner", "--port", "0",
                                  "--served-model-name", "tiny", "--access-log", "off",
                                  "--log-level", "error", "--threads", "2",
                                  "--kv-cache-memory-bytes", "128M"};
    int n = 15;
    cn_config *c = cn_config_create();
    while (options && *options && n < MAX_ARGS - 1) args[n++] = *options++;
    const uint32_t sections = CN_SECTIONS_LIBRARY | CN_SECTION_BODIES |
                              CN_SECTION_LANES | CN_SECTION_PROCESS | CN_SECTION_SERVE;
    char **argv = (char **)(uintptr_t)args;
    must(cn_config_parse_args(c, sections, n, argv, NULL));
    return c;
}

void serve_rig_open(serve_rig *r, const char *const *options)
{
    *r = (serve_rig){.config = serve_rig_config(options)};
    cn_log_set_level(r->config->log_level);
    must(cn_server_create(&r->server, r->config));
    serve_rig_run(r);
}

void serve_rig_run(serve_rig *r)
{
    signal(SIGPIPE, SIG_IGN); /* as cmd_serve.c */
    r->port = cn_server_port(r->server);
    const int failed = pthread_create(&r->thread, NULL, run_server, r);
    CN_ASSERT(!failed);
    r->running = true;
}

void serve_rig_stop(serve_rig *r)
{
    if (!r->running) return;
    cn_server_stop(r->server);
    pthread_join(r->thread, NULL);
    r->running = false;
}

void serve_rig_close(serve_rig *r)
{
    serve_rig_stop(r);
    r->hangs = !cn_server_free(r->server);
    if (r->hangs) return;
    cn_config_free(r->config);
    memset(r, 0, sizeof *r);
}

void serve_rig_figures(serve_rig *r, cn_serve_figures *out)
{
    cn_serve_stats_copy(cn_service_serve_stats(cn_server_service(r->server)), out);
}

bool serve_rig_wait_running(serve_rig *r, uint32_t n)
{
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};
    for (int waited = 0; waited < WAIT_MS; waited += LOOK_MS) {
        cn_stats s;
        cn_service_engine_stats(cn_server_service(r->server), &s);
        if (s.running == n && s.waiting == 0 && (n > 0 || s.blocks_used == 0)) return true;
        nanosleep(&look, NULL);
    }
    return false;
}

static void open_hang(cn_mail *mail)
{
    serve_hang *h = CN_CONTAINER_OF(mail, serve_hang, mail);
    sem_post(&h->began);
    sem_wait(&h->end);
}

void serve_hang_begin(serve_hang *h, serve_rig *r, uint32_t engine)
{
    sem_init(&h->began, 0, 0);
    sem_init(&h->end, 0, 0);
    h->mail.open = open_hang;
    cn_lane_post(&cn_server_service(r->server)->lanes[engine].lane, CN_MAIL_NORMAL, &h->mail);
    sem_wait(&h->began);
}

void serve_hang_end(serve_hang *h) { sem_post(&h->end); }
