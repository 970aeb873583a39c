/* stop_signals.c - see stop_signals.h. */
#include "engine/cmd/stop_signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "engine/cmd/command.h"

enum {
    SIGNALLED = 128
}; /* a shell's exit code of a process that a signal ended, less its number */

static const int stop_signals[] = {SIGINT, SIGTERM};
static _Atomic(void (*)(void)) first;
static atomic_int exit_code;
static atomic_bool stopping; /* a first signal came */

/* The first process of a container does not end by a signal. */
static _Noreturn void end_signal(int number)
{
    const int code = atomic_load(&exit_code);
    if (code == 0) {
        signal(number, SIG_DFL);
        raise(number);
    }
    _exit(code ? code : SIGNALLED + number);
}

static void on_stop(int number)
{
    void (*const act)(void) = atomic_load(&first);
    if (atomic_exchange(&stopping, true) || !act) end_signal(number);
    act();
}

static void on_hangup(int number)
{
    void (*const act)(void) = atomic_load(&first);
    (void)number;
    if (!atomic_exchange(&stopping, true) && act) act();
}

static bool is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

/* With SA_NODEFER, so that the handler can end the process by its own signal. */
void cn_stop_signals_begin(void)
{
    for (size_t i = 0; i < sizeof stop_signals / sizeof *stop_signals; i++)
        if (!is_ignored(stop_signals[i])) cn_handle_signal(stop_signals[i], on_stop, SA_NODEFER);
}

void cn_stop_signals_set(const cn_stop_rule *rule)
{
    const int flags = SA_NODEFER | (rule->restart ? SA_RESTART : 0);
    atomic_store(&exit_code, rule->exit_code);
    atomic_store(&first, rule->first);
    for (size_t i = 0; i < sizeof stop_signals / sizeof *stop_signals; i++)
        cn_handle_signal(stop_signals[i], on_stop, flags);
    if (rule->hangup && !is_ignored(SIGHUP)) cn_handle_signal(SIGHUP, on_hangup, flags);
}

void cn_end_now(int code)
{
    fflush(NULL);
    _exit(code);
}
