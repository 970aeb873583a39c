/* main.c - the cinch program: finds the subcommand and runs it. */
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/cpu_check.h"
#include "engine/cmd/command.h"
#include "engine/cmd/stop_signals.h"

/* ---- processors ---- */

/* OpenBLAS starts a thread for each processor when it is loaded. With little memory these threads
 * never start their work, and the exit waits for them. cinch has its own threads for products. The
 * process therefore has one processor until its libraries are initialised. */
static cpu_set_t processors;
static long processors_bytes; /* 0: not changed */

__attribute__((no_sanitize("address", "thread", "undefined"))) static void hide_processors(void)
{
    cpu_set_t one = processors;
    const long bytes = syscall(SYS_sched_getaffinity, 0, sizeof processors, &processors);
    if (bytes <= 0) return;
    for (size_t i = 0, found = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &processors) || found++) continue;
        CPU_SET(i, &one);
    }
    if (syscall(SYS_sched_setaffinity, 0, (size_t)bytes, &one) == 0) processors_bytes = bytes;
}
/* The only functions that run before those of the libraries. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before)(void) = hide_processors;

static void show_processors(void)
{
    if (processors_bytes) syscall(SYS_sched_setaffinity, 0, (size_t)processors_bytes, &processors);
}

/* ---- the command ---- */

static bool any_of(const char *word, const char *a, const char *b, const char *c)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0 || strcmp(word, c) == 0;
}

/* Opens /dev/null in place of closed standard streams. Otherwise the first file that a command
 * opens would get such a descriptor, and log lines would be written into it. Reading the input and
 * writing the output fail, as with a closed descriptor. */
static bool open_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    show_processors();
    if (!open_standard_streams()) return CN_EXIT_FAILED;
    if (!cn_cpu_check(stderr, cn_cpu_needs)) return CN_EXIT_FAILED;
    if (argc < 2) {
        cn_commands_help(stderr);
        return CN_EXIT_FAILED;
    }
    const char *word = argv[1];
    cn_stop_signals_begin();
    const bool help = any_of(word, "help", "--help", "-h");
    if (help && (argc == 2 || any_of(argv[2], "help", "--help", "-h"))) {
        cn_commands_help(stdout);
        return cn_command_end("help", CN_OK);
    }
    if (help) word = argv[2];
    if (any_of(word, "version", "--version", "-V")) {
        printf("cinch %s\n", CINCH_VERSION);
        return cn_command_end("version", CN_OK);
    }
    const cn_command *cmd = cn_command_find(word);
    if (!cmd) {
        cn_command_refuse(word);
        return CN_EXIT_FAILED;
    }
    char some[] = "--help", every[] = "--help-all";
    char *long_help = argc > 3 && strcmp(argv[3], every) == 0 ? every : some;
    return help ? cmd->run(2, (char *[]){argv[2], long_help, NULL})
                : cmd->run(argc - 1, argv + 1);
}
