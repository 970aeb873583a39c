/* stop_signals.h - what SIGTERM and SIGINT do to a command. The first one does what the command
 * chose. The second one ends the process inside the signal's handler, so that no busy thread, no
 * lock and no pipe that nobody reads can delay it. Output files need nothing at that point: each
 * finished line is already one write.
 *
 * Owner: main() and the running command. Thread: main; the handler runs on any. */
#pragma once

#include <stdbool.h>

typedef struct cn_stop_rule {
    /* Called by the first signal, in its handler: async-signal-safe. NULL: the first signal ends
     * the process. */
    void (*first)(void);
    int exit_code; /* of the second signal; 0: the process ends by the signal */
    bool restart;  /* system calls that the first signal interrupts go on */
    bool hangup;   /* SIGHUP is a first signal, never a second one, unless it is ignored */
} cn_stop_rule;

/* The rule from the start of the program on: the first signal ends it. A signal that the caller of
 * the program ignores stays ignored. */
void cn_stop_signals_begin(void);
/* Replaces the rule. Signals that came before count. */
void cn_stop_signals_set(const cn_stop_rule *rule);

/* Ends the process at once, because a thread hangs in the driver: what it uses cannot be freed, and
 * the handlers of exit() may wait for it. */
_Noreturn void cn_end_now(int code);
