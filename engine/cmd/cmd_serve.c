/* cmd_serve.c - `cinch serve`: runs the HTTP server until a signal stops it. The first SIGTERM or
 * SIGINT drains within --shutdown-timeout, the second one ends the process. SIGHUP opens the
 * access log again. */
#include <signal.h>
#include <sys/resource.h>

#include "engine/cmd/command.h"
#include "engine/cmd/stop_signals.h"
#include "engine/serve/server.h"

static cn_server *server; /* only for the handler; set before the handler is installed */

static void stop_server(void) { cn_server_stop(server); }

static void on_serve_hangup(int number)
{
    (void)number;
    cn_server_reopen_log(server);
}

static const cn_stop_rule stop_rule = {.first = stop_server, .restart = true};
static const cn_stop_rule end_rule = {.first = NULL};

/* Each connection needs a file descriptor. Raises the limit as far as the system allows, or accepts
 * fewer connections: without a descriptor for a new one, no old one could be closed for it. */
static void raise_file_limit(cn_config *c)
{
    enum { OTHER_FILES = 64 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_cur >= (rlim_t)c->max_connections + OTHER_FILES) return;
    const uint32_t most = limit.rlim_cur > OTHER_FILES ? (uint32_t)limit.rlim_cur - OTHER_FILES : 1;
    cn_log(CN_LOG_WARN,
           "the limit of open files, %llu, is too low for --max-connections %u: at most %u are "
           "accepted; raise the limit",
           (unsigned long long)limit.rlim_cur, c->max_connections, most);
    c->max_connections = most;
}

int cn_cmd_serve(int argc, char **argv)
{
    int exit_code;
    cn_config *c = cn_command_begin(argc, argv, NULL, &exit_code);
    if (!c) return exit_code;
    cn_ignore_write_signals();
    signal(SIGHUP, SIG_IGN); /* while the model loads there is no log to open again */
    raise_file_limit(c);
    cn_status status = cn_server_create(&server, c);
    if (status == CN_OK) {
        cn_stop_signals_set(&stop_rule);
        cn_handle_signal(SIGHUP, on_serve_hangup, SA_RESTART);
        status = cn_server_run(server);
    }
    if (status != CN_OK) cn_log(CN_LOG_ERROR, "cinch serve: %s", cn_last_error());
    cn_stop_signals_set(&end_rule);
    signal(SIGHUP, SIG_IGN);
    exit_code = status == CN_OK ? CN_EXIT_OK : CN_EXIT_FAILED;
    if (!cn_server_free(server)) cn_end_now(exit_code);
    cn_config_free(c);
    return exit_code;
}
