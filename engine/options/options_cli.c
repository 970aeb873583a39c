/* options_cli.c - the command line: flags to values, and --help. See options.h. */

#include "engine/options/option_value.h"

/* ---- unknown names ---- */

enum { NAME_MAX_BYTES = 64 };

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c) { return cn_min_u32(cn_min_u32(a, b), c); }

uint32_t cn_edit_distance(const char *a, const char *b)
{
    uint32_t row[NAME_MAX_BYTES + 1];
    size_t n = strlen(b);
    if (n > NAME_MAX_BYTES || strlen(a) > NAME_MAX_BYTES) return UINT32_MAX;
    for (uint32_t j = 0; j <= n; j++) row[j] = j;
    for (uint32_t i = 1; a[i - 1]; i++) {
        uint32_t diagonal = row[0];
        row[0] = i;
        for (uint32_t j = 1; j <= n; j++) {
            uint32_t above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n];
}

static cn_status refuse_unknown(const char *arg, const char *name, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n), *nearest = NULL;
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        if (!(o[i].section & sections)) continue;
        uint32_t distance = cn_edit_distance(name, o[i].name);
        if (distance < best) {
            best = distance;
            nearest = &o[i];
        }
    }
    if (nearest && best <= strlen(nearest->name) / 2)
        return cn_fail(CN_ERR_ARG, "unknown option %s: did you mean --%s?", arg, nearest->name);
    return cn_fail(CN_ERR_ARG, "unknown option %s: --help-all lists the options of this command",
                   arg);
}

/* ---- one flag ---- */

/* A flag as typed: the row that it names, and the value if it is part of the same argument. */
typedef struct flag {
    const cn_option *option;
    const cn_removed_option *removed; /* an option that no longer exists; option is NULL */
    bool negated;      /* --no-name */
    const char *value; /* after '=', or NULL */
} flag;

static bool is_switch(const flag *f)
{
    return f->option ? f->option->type == CN_OPTION_BOOL : f->removed->is_switch;
}

/* The row of a short name, if possible one of `sections`; NULL when unknown. */
static const cn_option *find_short(char name, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n), *found = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!o[i].short_name || o[i].short_name != name) continue;
        if (o[i].section & sections) return &o[i];
        if (!found) found = &o[i];
    }
    return found;
}

static cn_status read_flag(const char *arg, uint32_t sections, flag *out)
{
    *out = (flag){0};
    const char *name = arg + 1 + (arg[1] == '-');
    char copy[NAME_MAX_BYTES + 1];
    size_t len = strcspn(name, "=");
    if (len >= sizeof copy) return refuse_unknown(arg, name, sections);
    memcpy(copy, name, len);
    copy[len] = '\0';
    if (arg[1] == '-') {
        out->option = cn_option_find_in(copy, sections);
        if (name[len] == '=') out->value = name + len + 1;
        if (!out->option) out->removed = cn_removed_option_find(copy);
        const bool no = strncmp(copy, "no-", 3) == 0 || strncmp(copy, "no_", 3) == 0;
        if (!out->option && !out->removed && no) {
            out->option = cn_option_find_in(copy + 3, sections);
            if (!out->option) out->removed = cn_removed_option_find(copy + 3);
            out->negated = true;
        }
    } else if (len == 1 && !name[1]) {
        out->option = find_short(*name, sections);
    }
    if (!out->option && !out->removed) return refuse_unknown(arg, copy, sections);
    if (out->option && !(out->option->section & sections) &&
        out->option->section == CN_SECTION_LANES)
        return cn_fail(CN_ERR_ARG, "%s is for run-batch, serve and bench throughput; compare "
                       "measures the speed, batch and memory of one engine, and other commands "
                       "have one: on several GPUs run a process for each file (--device cuda:1)",
                       arg);
    if (out->option && !(out->option->section & sections))
        return cn_fail(CN_ERR_ARG, "%s is an option of the %s section, which this command does not "
                       "accept", arg, cn_section_name(out->option->section));
    if (out->negated && (!is_switch(out) || out->value))
        return cn_fail(CN_ERR_ARG, "%s: only a switch can be negated, and then takes no value",
                       arg);
    return CN_OK;
}

/* Returns true for what cannot be a value: --anything, -h, and a short option of this command. */
static bool is_flag(const char *word, uint32_t sections)
{
    if (strncmp(word, "--", 2) == 0 || strcmp(word, "-h") == 0) return true;
    const cn_option *o = word[0] == '-' && word[1] && !word[2] ? find_short(word[1], sections)
                                                               : NULL;
    return o && o->section & sections;
}

/* Applies argv[*at], with argv[*at + 1] if that is its value, and advances *at past them. */
static cn_status apply_cli_flag(cn_config *c, uint32_t sections, int argc, char **argv, int *at)
{
    const char *arg = argv[*at];
    flag f;
    CN_TRY(read_flag(arg, sections, &f));
    *at += 1;
    const char *value = f.value;
    if (!value && is_switch(&f)) {
        value = f.negated ? "false" : "true";
    } else if (!value) {
        if (*at >= argc || is_flag(argv[*at], sections))
            return cn_fail(CN_ERR_ARG, "%s needs a value", arg);
        value = argv[*at];
        *at += 1;
    }
    if (f.option) return cn_option_set_text(c, f.option, value);
    CN_TRY(cn_removed_option_check(f.removed, value));
    cn_log(CN_LOG_WARN,
           "--%s %s: the option no longer exists, and cinch always does this: leave it out",
           f.removed->name, value);
    return CN_OK;
}

static bool is_help_all(const char *arg) { return !strcmp(arg, "--help-all"); }

static bool is_help(const char *arg)
{
    return !strcmp(arg, "--help") || !strcmp(arg, "-h") || is_help_all(arg);
}

/* Parses the options and collects the positional arguments, in order, in kept[]. */
static cn_status parse_into(cn_config *c, uint32_t sections, int argc, char **argv, char **kept,
                            int *n_kept)
{
    for (int i = 1; i < argc;) {
        char *arg = argv[i];
        if (strcmp(arg, "--") == 0) {
            while (++i < argc) kept[(*n_kept)++] = argv[i];
        } else if (is_help(arg)) {
            c->help = true;
            c->help_all = is_help_all(arg);
            return CN_OK;
        } else if (arg[0] == '-' && arg[1]) {
            CN_TRY(apply_cli_flag(c, sections, argc, argv, &i));
        } else {
            kept[(*n_kept)++] = arg;
            i++;
        }
    }
    return CN_OK;
}

/* What a positional argument was meant for, if a command takes none. */
static cn_status refuse_positional(const cn_config *c, uint32_t sections, const char *word)
{
    if (sections & CN_SECTION_CHECKPOINT && !c->model)
        return cn_fail(CN_ERR_ARG,
                       "unexpected argument '%s': the checkpoint is given as --model %s", word,
                       word);
    if (sections & CN_SECTION_RUN_BATCH && c->input_file)
        return cn_fail(CN_ERR_ARG,
                       "unexpected argument '%s': --input-file takes one file; to join several, "
                       "pipe them: cat FILES | cinch run-batch -i -",
                       word);
    return cn_fail(CN_ERR_ARG, "unexpected argument '%s': options begin with --", word);
}

cn_status cn_config_parse_args(cn_config *c, uint32_t sections, int argc, char **argv,
                               int *first_positional)
{
    if (argc < 1) return cn_fail(CN_ERR_ARG, "no arguments");
    char **kept = cn_calloc((size_t)argc, sizeof *kept);
    if (!kept) return cn_fail(CN_ERR_MEMORY, "out of memory for %d arguments", argc);
    int n_kept = 0;
    cn_status status = parse_into(c, sections, argc, argv, kept, &n_kept);
    if (status == CN_OK && n_kept && !first_positional && !c->help)
        status = refuse_positional(c, sections, kept[0]);
    if (status == CN_OK && first_positional) {
        *first_positional = argc - n_kept;
        if (n_kept) memcpy(argv + argc - n_kept, kept, (size_t)n_kept * sizeof *kept);
    }
    cn_free(kept);
    return status;
}

/* ---- --help ---- */

static void print_flag(FILE *f, const cn_option *o)
{
    static const char *const operands[] = {
        [CN_OPTION_U32] = "N",    [CN_OPTION_I32] = "N",       [CN_OPTION_U64] = "N",
        [CN_OPTION_F32] = "X",    [CN_OPTION_BYTES] = "BYTES", [CN_OPTION_SET] = "LIST",
        [CN_OPTION_ENUM] = "ONE", [CN_OPTION_TIME] = "HH:MM",  [CN_OPTION_STRING] = "TEXT",
    };
    char text[128];
    int n = snprintf(text, sizeof text, "  ");
    size_t used = (size_t)n;
    if (o->short_name)
        used += (size_t)snprintf(text + used, sizeof text - used, "-%c, ", o->short_name);
    if (o->type == CN_OPTION_BOOL)
        snprintf(text + used, sizeof text - used, "--[no-]%s", o->name);
    else
        snprintf(text + used, sizeof text - used, "--%s %s", o->name, operands[o->type]);
    fprintf(f, "%-36s", text);
    if (strlen(text) >= 36) fprintf(f, "\n%36s", "");
}

static void print_option(FILE *f, const cn_option *o)
{
    char bounds[256];
    print_flag(f, o);
    fprintf(f, "%s\n%38s", o->help, "");
    if (o->type != CN_OPTION_BOOL && o->type != CN_OPTION_STRING) {
        cn_option_bounds(o, bounds, sizeof bounds);
        fprintf(f, "%s; ", bounds);
    }
    if (o->flags & CN_OPTION_REQUIRED)
        fprintf(f, "required\n");
    else
        fprintf(f, "default %s%s\n", o->flags & CN_OPTION_FROM_MODEL ? "the model's, else " : "",
                o->fallback ? o->fallback : "unset");
}

/* --help prints at most this many options, unless more of them are usual. */
enum { FEW_OPTIONS = 20 };

static uint32_t count_options(uint32_t sections, uint32_t flags)
{
    size_t n;
    uint32_t count = 0;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        count += o[i].section & sections && (o[i].flags & flags) == flags;
    return count;
}

static void print_section(FILE *f, cn_option_section section, uint32_t flags)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    if (count_options(section, flags) == 0) return;
    fprintf(f, "\n%s options:\n", cn_section_name(section));
    for (size_t i = 0; i < n; i++)
        if (o[i].section == section && (o[i].flags & flags) == flags) print_option(f, &o[i]);
}

uint32_t cn_config_help(FILE *f, uint32_t sections, bool all)
{
    const uint32_t n_all = count_options(sections, 0);
    const uint32_t flags = all || n_all <= FEW_OPTIONS ? 0 : CN_OPTION_USUAL;
    for (uint32_t bit = 0; bit < CN_N_SECTIONS; bit++)
        if (sections >> bit & 1) print_section(f, (cn_option_section)(1U << bit), flags);
    return n_all - count_options(sections, flags);
}
