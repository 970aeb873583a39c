/* command.c - the table of subcommands and what they share. To add one: write its function in a
 * file of its own, declare it in command.h, add a row here, and run `make docs`. */
#include "engine/cmd/command.h"

#include <errno.h>
#include <signal.h>

#include "engine/cmd/command_files.h"

/* The options of an engine. */
enum {
    ENGINE_SECTIONS = CN_SECTION_GENERAL | CN_SECTION_CHECKPOINT | CN_SECTION_MODEL |
                      CN_SECTION_ENGINE | CN_SECTION_KV
};

static const cn_command commands[] = {
    {"run-batch", "--model DIR -i IN.jsonl -o OUT.jsonl", "answer a file of requests",
     ENGINE_SECTIONS | CN_SECTION_SAMPLING | CN_SECTION_BODIES | CN_SECTION_PROMPTS |
         CN_SECTION_RUN_BATCH | CN_SECTION_LANES | CN_SECTION_PROCESS | CN_SECTION_PROGRESS,
     cn_cmd_run_batch},
    {"merge", "-i IN.jsonl -o ALL.jsonl OUT.jsonl [MORE.jsonl...]",
     "join the outputs of shards into one file", CN_SECTION_GENERAL | CN_SECTION_MERGE,
     cn_cmd_merge},
    {"serve", "--model DIR", "answer over HTTP with OpenAI's API",
     ENGINE_SECTIONS | CN_SECTION_SAMPLING | CN_SECTION_BODIES | CN_SECTION_SHARING |
         CN_SECTION_LANES | CN_SECTION_PROCESS | CN_SECTION_SERVE,
     cn_cmd_serve},
    {"compare", "--model DIR -i IN.jsonl [MORE.jsonl...] --arms full,zip:384,window:384",
     "compare compressed KV and selectors with full KV: quality, agreement, speed, memory",
     ENGINE_SECTIONS | CN_SECTION_SAMPLING | CN_SECTION_BODIES | CN_SECTION_PROMPTS |
         CN_SECTION_COMPARE | CN_SECTION_PROGRESS,
     cn_cmd_compare},
    {"bench", "throughput|serve --model DIR", "measure the throughput of engines, or a server",
     ENGINE_SECTIONS | CN_SECTION_SAMPLING | CN_SECTION_BENCH | CN_SECTION_BENCH_THROUGHPUT |
         CN_SECTION_BENCH_SERVE | CN_SECTION_LANES | CN_SECTION_PROGRESS,
     cn_cmd_bench},
    {"plan", "--model DIR", "print memory, KV blocks and concurrency without loading the model",
     ENGINE_SECTIONS | CN_SECTION_SHARING | CN_SECTION_PLAN, cn_cmd_plan},
    {"calibrate", "--model DIR --text FILE [MORE...] [-o DIR/select.safetensors]",
     "measure which channels of the keys matter, for selection by labels",
     CN_SECTION_GENERAL | CN_SECTION_CHECKPOINT | CN_SECTION_CALIBRATE, cn_cmd_calibrate},
    {"tokenize", "--model DIR [options]", "convert text to token ids, or back",
     CN_SECTION_GENERAL | CN_SECTION_CHECKPOINT | CN_SECTION_TOKENIZE, cn_cmd_tokenize},
};

const cn_command *cn_commands(size_t *n)
{
    *n = sizeof commands / sizeof *commands;
    return commands;
}

const cn_command *cn_command_find(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

void cn_command_refuse(const char *word)
{
    const cn_command *nearest = NULL;
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const uint32_t distance = cn_edit_distance(word, commands[i].name);
        if (distance < best) {
            best = distance;
            nearest = &commands[i];
        }
    }
    if (word[0] == '-')
        cn_log(CN_LOG_ERROR, "expected a command before %s, such as cinch run-batch %s", word,
               word);
    else if (nearest && best <= strlen(nearest->name) / 3)
        cn_log(CN_LOG_ERROR, "unknown command '%s': did you mean %s?", word, nearest->name);
    else
        cn_log(CN_LOG_ERROR, "unknown command '%s': cinch help lists them", word);
}

static void print_help(const cn_command *cmd, bool all)
{
    printf("usage: cinch %s %s\n\n%s\n", cmd->name, cmd->synopsis, cmd->summary);
    const uint32_t n_left_out = cn_config_help(stdout, cmd->sections, all);
    if (n_left_out)
        printf("\n%u more options: cinch %s --help-all\n", n_left_out, cmd->name);
}

cn_config *cn_command_begin(int argc, char **argv, int *first_positional, int *exit_code)
{
    const cn_command *cmd = cn_command_find(argv[0]);
    CN_ASSERT(cmd);
    *exit_code = CN_EXIT_FAILED;
    cn_config *c = cn_config_create();
    if (!c) {
        cn_log(CN_LOG_ERROR, "out of memory for the configuration");
        return NULL;
    }
    cn_status status = cn_config_parse_args(c, cmd->sections, argc, argv, first_positional);
    if (status == CN_OK && c->help) {
        print_help(cmd, c->help_all);
        *exit_code = cn_command_end(cmd->name, CN_OK);
    } else if (status == CN_OK) {
        const int first = first_positional ? *first_positional : argc;
        status = cn_config_validate(c, cmd->sections);
        if (status == CN_OK && c->check_options) {
            *exit_code = CN_EXIT_OK;
            cn_config_free(c);
            return NULL;
        }
        if (status == CN_OK) status = cn_config_find_models(c);
        if (status == CN_OK && c->shard) status = cn_config_find_shard(c);
        if (status == CN_OK)
            status = cn_command_check_files(c, cmd->sections, argv + first, argc - first);
    }
    if (status == CN_OK && !c->help) {
        cn_log_set_level(c->log_level);
        return c;
    }
    if (status != CN_OK) cn_log(CN_LOG_ERROR, "cinch %s: %s", cmd->name, cn_last_error());
    cn_config_free(c);
    return NULL;
}

cn_status cn_flush_standard_output(void)
{
    errno = EIO; /* the cause of an earlier failure is not known */
    if (fflush(stdout) == 0 && !ferror(stdout)) return CN_OK;
    return cn_fail(CN_ERR_IO, "standard output: %s", strerror(errno));
}

int cn_command_end(const char *name, cn_status status)
{
    if (status == CN_OK) status = cn_flush_standard_output();
    if (status == CN_OK) return CN_EXIT_OK;
    cn_log(CN_LOG_ERROR, "cinch %s: %s", name, cn_last_error());
    return CN_EXIT_FAILED;
}

void cn_handle_signal(int number, void (*handler)(int number), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

void cn_ignore_write_signals(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

void cn_commands_help(FILE *f)
{
    fprintf(f, "usage: cinch COMMAND [options]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(f, "  %-10s  %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "  %-10s  %s\n", "version", "print the version");
    fprintf(f, "  %-10s  %s\n", "help", "print this list");
    fprintf(f, "\ncinch help COMMAND lists the options of a command that people use, cinch COMMAND "
               "--help-all all of them.\n");
}
