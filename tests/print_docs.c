/* print_docs.c - print_docs config|man|bash: prints docs/CONFIG.md and docs/cinch.1 from the option
 * table and the command table, and a completion for bash, so that they always match the program.
 * `make docs` and `make install` run it. */
#include <string.h>

#include "engine/cmd/command.h"
#include "engine/options/option_value.h"

/* The sections that a command takes. Other sections have no effect and are not documented. */
static uint32_t offered_sections(void)
{
    size_t n;
    uint32_t offered = 0;
    const cn_command *cmd = cn_commands(&n);
    for (size_t i = 0; i < n; i++) offered |= cmd[i].sections;
    return offered;
}

static void print_escaped(const char *text, char escaped, const char *instead)
{
    for (; *text; text++) {
        if (*text == escaped)
            fputs(instead, stdout);
        else
            putchar(*text);
    }
}

static const char *default_text(const cn_option *o)
{
    return o->flags & CN_OPTION_REQUIRED ? "required" : o->fallback ? o->fallback : "unset";
}

/* ---- docs/CONFIG.md ---- */

static void config_row(const cn_option *o)
{
    char bounds[256];
    cn_option_bounds(o, bounds, sizeof bounds);
    printf("| `--%s`", o->name);
    if (o->short_name) printf(", `-%c`", o->short_name);
    printf(" | %s | ", default_text(o));
    print_escaped(bounds, '|', ", ");
    printf(" | ");
    if (o->json) printf("`%s`", o->json);
    printf(" | ");
    print_escaped(o->help, '<', "&lt;");
    printf(" |\n");
}

/* What most users set. The rest of docs/CONFIG.md has the bounds. */
static void config_most_used(void)
{
    static const char *const names[] = {
        "model",     "max-model-len", "max-num-seqs", "gpu-memory-utilization", "kv-policy",
        "kv-budget", "kv-select",     "max-tokens",   "port",                   "api-key-file",
    };
    printf("\n## The ten options that people use\n\n"
           "| option | default | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cn_option *o = cn_option_find(names[i]);
        CN_ASSERT(o);
        printf("| `--%s` | %s | ", o->name, default_text(o));
        print_escaped(o->help, '<', "&lt;");
        printf(" |\n");
    }
}

static void config_section(cn_option_section s)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    printf("\n## %s\n\n%s\n\n", cn_section_name(s), cn_section_intro(s));
    printf("| option | default | accepts | JSON key | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        if (o[i].section == s) config_row(&o[i]);
}

static void config_commands(void)
{
    size_t n;
    const cn_command *cmd = cn_commands(&n);
    printf("\n## Sections of each command\n\n| command | sections |\n|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        printf("| `cinch %s` |", cmd[i].name);
        for (uint32_t bit = 0; bit < CN_N_SECTIONS; bit++)
            if (cmd[i].sections >> bit & 1)
                printf(" %s", cn_section_name((cn_option_section)(1U << bit)));
        printf(" |\n");
    }
    printf("\nA program that uses the library sets the options of");
    for (uint32_t bit = 0; bit < CN_N_SECTIONS; bit++)
        if ((uint32_t)CN_SECTIONS_LIBRARY >> bit & 1)
            printf(" %s,", cn_section_name((cn_option_section)(1U << bit)));
    printf(" by the same names, with `cn_config_set`.\n");
}

static void print_config(void)
{
    printf(
        "# Options\n\n"
        "Printed by `make docs` from the option table (`engine/options/option_table.c`); do not "
        "edit.\n\n"
        "An option is `--name value` or `--name=value`; a switch is `--name` or `--no-name`. "
        "`_` may replace `-`. If an option is given twice, the last value counts, but "
        "those of `--done` add up. An option "
        "that the command does not use is an error, never ignored. A JSON key sets the same "
        "value for one request, in its body, within the same bounds (`kv.budget` is `budget` "
        "in the object `kv`).\n");
    config_most_used();
    config_commands();
    const uint32_t sections = offered_sections() | CN_SECTIONS_LIBRARY;
    for (uint32_t bit = 0; bit < CN_N_SECTIONS; bit++)
        if (sections >> bit & 1) config_section((cn_option_section)(1U << bit));
}

/* ---- docs/cinch.1 ---- */

static void man_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
    }
}

static void man_option(const cn_option *o)
{
    char bounds[256];
    cn_option_bounds(o, bounds, sizeof bounds);
    printf(".TP\n.B ");
    if (o->short_name) printf("\\-%c\\fR, \\fB", o->short_name);
    printf(o->type == CN_OPTION_BOOL ? "\\-\\-[no\\-]" : "\\-\\-");
    man_text(o->name);
    printf("\n");
    man_text(o->help);
    printf(".\n");
    if (o->type != CN_OPTION_BOOL && o->type != CN_OPTION_STRING) {
        printf("Accepts ");
        man_text(bounds);
        printf(".\n");
    }
    printf("Default: %s", o->flags & CN_OPTION_FROM_MODEL ? "the model's, else " : "");
    man_text(default_text(o));
    printf(".\n");
}

static void man_commands(void)
{
    size_t n;
    const cn_command *cmd = cn_commands(&n);
    printf(".SH COMMANDS\n");
    for (size_t i = 0; i < n; i++) {
        printf(".TP\n.B cinch ");
        man_text(cmd[i].name);
        printf(" \\fI");
        man_text(cmd[i].synopsis);
        printf("\\fR\n");
        man_text(cmd[i].summary);
        printf(".\nOptions:");
        for (uint32_t bit = 0; bit < CN_N_SECTIONS; bit++)
            if (cmd[i].sections >> bit & 1) {
                printf(" ");
                man_text(cn_section_name((cn_option_section)(1U << bit)));
            }
        printf(".\n");
    }
}

static void print_man(void)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    printf(".\\\" Printed by `make docs` from the option table; do not edit.\n"
           ".TH CINCH 1 \"\" \"cinch " CINCH_VERSION "\" \"User Commands\"\n"
           ".SH NAME\ncinch \\- inference of large language models with a compressed KV cache\n"
           ".SH SYNOPSIS\n.B cinch\n.I command\n[\\fIoptions\\fR]\n"
           ".SH DESCRIPTION\n"
           ".B cinch\nanswers files of prompts, or HTTP requests, with a checkpoint in the Hugging "
           "Face layout.\n"
           "A switch is turned off with \\fB\\-\\-no\\-\\fIname\\fR.\n"
           "An option that the command does not use is an error.\n");
    man_commands();
    for (uint32_t bit = 0; bit < CN_N_SECTIONS; bit++) {
        cn_option_section s = (cn_option_section)(1U << bit);
        if (!(offered_sections() & s)) continue;
        printf(".SH OPTIONS: ");
        man_text(cn_section_name(s));
        printf("\n");
        for (size_t i = 0; i < n; i++)
            if (o[i].section == s) man_option(&o[i]);
    }
    printf(".SH EXIT STATUS\n"
           ".TP\n0\nEverything was answered.\n"
           ".TP\n1\nNothing was done, or the results could not be written.\n"
           ".TP\n2\n\\fBrun\\-batch\\fR: some lines ended in an error.\n"
           ".TP\n3\n\\fBrun\\-batch\\fR: stopped; \\fB\\-\\-resume\\fR continues.\n");
}

/* ---- bash completion ---- */

/* Prints the words of a command's options, and the values of those that have names. */
static void bash_command(const cn_command *cmd)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    printf("    %s)\n        options='", cmd->name);
    for (size_t i = 0; i < n; i++)
        if (o[i].section & cmd->sections) printf("--%s ", o[i].name);
    printf("--help --help-all'\n        case $last in\n");
    for (size_t i = 0; i < n; i++) {
        if (!(o[i].section & cmd->sections) || !o[i].values) continue;
        printf("        --%s) values='", o[i].name);
        print_escaped(o[i].values, '|', " ");
        printf("' ;;\n");
    }
    printf("        esac\n        ;;\n");
}

static void print_bash(void)
{
    size_t n;
    const cn_command *cmd = cn_commands(&n);
    printf("# Completion of the cinch command for bash, printed from the option table.\n"
           "_cinch() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    local options='' values='' commands='");
    for (size_t i = 0; i < n; i++) printf("%s ", cmd[i].name);
    printf("version help'\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" = 1 ] ||\n"
           "        [ \"$COMP_CWORD:${COMP_WORDS[1]}\" = 2:help ]; then\n"
           "        COMPREPLY=($(compgen -W \"$commands\" -- \"$word\"))\n"
           "        return\n"
           "    fi\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < n; i++) bash_command(&cmd[i]);
    printf("    esac\n"
           "    if [ -n \"$values\" ]; then\n"
           "        COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
           "    elif [ \"${word:0:1}\" = - ]; then\n"
           "        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
           "    fi\n"
           "}\n"
           "complete -o default -F _cinch cinch\n");
}

int main(int argc, char **argv)
{
    const char *page = argc == 2 ? argv[1] : "";
    if (strcmp(page, "config") == 0) {
        print_config();
    } else if (strcmp(page, "man") == 0) {
        print_man();
    } else if (strcmp(page, "bash") == 0) {
        print_bash();
    } else {
        fprintf(stderr, "usage: print_docs config|man|bash\n");
        return 1;
    }
    return fflush(stdout) != 0;
}
