/* command.h - the table of the cinch program's subcommands: name, options, function. `cinch help`,
 * docs/CONFIG.md and the manual page are printed from it.
 *
 * Owner: main(). Thread: main. Stage: before the first request. */
#pragma once

#include "engine/options/options.h"

/* Exit codes of every subcommand; only run-batch and merge use the last two. */
enum {
    CN_EXIT_OK = 0,
    CN_EXIT_FAILED = 1,      /* bad options, no model, or results that could not be written */
    CN_EXIT_SOME_ERRORS = 2, /* everything answered or recorded, some lines with an error */
    CN_EXIT_RESUMABLE = 3    /* stopped; --resume continues */
};

typedef struct cn_command {
    const char *name;                  /* "run-batch" */
    const char *synopsis;              /* what follows the name */
    const char *summary;               /* one line */
    uint32_t sections;                 /* the options it takes; any other is an error */
    int (*run)(int argc, char **argv); /* argv[0] is the name; returns the exit code */
} cn_command;

const cn_command *cn_commands(size_t *n);
const cn_command *cn_command_find(const char *name); /* NULL when unknown */
void cn_command_refuse(const char *word); /* logs that no command has this name, and the nearest */

/* The first call of every subcommand: parses argv by the command's sections, prints --help or the
 * error, checks the options together, sets the log level. Returns the configuration, which the
 * caller frees, or NULL with *exit_code if the command is already finished. first_positional as in
 * cn_config_parse_args. argv[0] must be the command's name. */
cn_config *cn_command_begin(int argc, char **argv, int *first_positional, int *exit_code);

/* Flushes standard output. CN_ERR_IO if it has not taken all that was printed: a full disk. */
cn_status cn_flush_standard_output(void);

/* The last call of a subcommand: flushes standard output, logs the last error if `status` or the
 * flush is a failure, and returns the exit code. */
int cn_command_end(const char *name, cn_status status);

/* Installs a handler of one signal. flags: SA_ flags of sigaction(2). */
void cn_handle_signal(int number, void (*handler)(int number), int flags);

/* Ignores SIGPIPE and SIGXFSZ: a write to a closed connection or pipe, or to a file at its size
 * limit, then fails like one to a full disk. */
void cn_ignore_write_signals(void);

/* The subcommands, each in its own file. */
int cn_cmd_tokenize(int argc, char **argv);
int cn_cmd_run_batch(int argc, char **argv);
int cn_cmd_merge(int argc, char **argv);
int cn_cmd_bench(int argc, char **argv);
int cn_cmd_compare(int argc, char **argv);
int cn_cmd_calibrate(int argc, char **argv);
int cn_cmd_plan(int argc, char **argv);
int cn_cmd_serve(int argc, char **argv);

/* The list of subcommands, as `cinch help` prints it. */
void cn_commands_help(FILE *f);
