/* options_cli.c - the command line: flags to values, checks that involve several options, and
 * --help. See options.h. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compress/policy.h"
#include "engine/options/option_value.h"

/* ---- unknown names ---- */

enum { NAME_MAX_BYTES = 64 };

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c) { return cn_min_u32(cn_min_u32(a, b), c); }

/* Levenshtein distance of two names; UINT32_MAX if one exceeds NAME_MAX_BYTES. */
static uint32_t edit_distance(const char *a, const char *b)
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
        uint32_t distance = edit_distance(name, o[i].name);
        if (distance < best) {
            best = distance;
            nearest = &o[i];
        }
    }
    if (nearest && best <= strlen(nearest->name) / 2)
        return cn_fail(CN_ERR_ARG, "unknown option %s: did you mean --%s?", arg, nearest->name);
    return cn_fail(CN_ERR_ARG, "unknown option %s: --help lists the options of this command", arg);
}

/* ---- one flag ---- */

/* A flag as typed: the row that it names, and the value if it is part of the same argument. */
typedef struct flag {
    const cn_option *option;
    bool negated;      /* --no-name */
    const char *value; /* after '=', or NULL */
} flag;

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
        if (!out->option && (strncmp(copy, "no-", 3) == 0 || strncmp(copy, "no_", 3) == 0)) {
            out->option = cn_option_find_in(copy + 3, sections);
            out->negated = true;
        }
    } else if (len == 1 && !name[1]) {
        out->option = find_short(*name, sections);
    }
    if (!out->option) return refuse_unknown(arg, copy, sections);
    if (!(out->option->section & sections))
        return cn_fail(CN_ERR_ARG, "%s is an option of the %s section, which this command does not "
                       "accept", arg, cn_section_name(out->option->section));
    if (out->negated && (out->option->type != CN_OPTION_BOOL || out->value))
        return cn_fail(CN_ERR_ARG, "%s: only a switch can be negated, and then takes no value",
                       arg);
    return CN_OK;
}

/* Applies argv[*at], with argv[*at + 1] if that is its value, and advances *at past them. */
static cn_status apply_flag(cn_config *c, uint32_t sections, int argc, char **argv, int *at)
{
    const char *arg = argv[*at];
    flag f;
    CN_TRY(read_flag(arg, sections, &f));
    *at += 1;
    const char *value = f.value;
    if (!value && f.option->type == CN_OPTION_BOOL) {
        value = f.negated ? "false" : "true";
    } else if (!value) {
        if (*at >= argc || strncmp(argv[*at], "--", 2) == 0)
            return cn_fail(CN_ERR_ARG, "%s needs a value", arg);
        value = argv[*at];
        *at += 1;
    }
    return cn_option_set_text(c, f.option, value);
}

static bool is_help(const char *arg) { return !strcmp(arg, "--help") || !strcmp(arg, "-h"); }

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
            return CN_OK;
        } else if (arg[0] == '-' && arg[1]) {
            CN_TRY(apply_flag(c, sections, argc, argv, &i));
        } else {
            kept[(*n_kept)++] = arg;
            i++;
        }
    }
    return CN_OK;
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
        status = cn_fail(CN_ERR_ARG, "unexpected argument '%s': options begin with --", kept[0]);
    if (status == CN_OK && first_positional) {
        *first_positional = argc - n_kept;
        if (n_kept) memcpy(argv + argc - n_kept, kept, (size_t)n_kept * sizeof *kept);
    }
    cn_free(kept);
    return status;
}

/* ---- checks that involve several options ---- */

static cn_status check_required(const cn_config *c, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        if (o[i].section & sections && o[i].flags & CN_OPTION_REQUIRED && !c->given[i])
            return cn_fail(CN_ERR_ARG, "--%s is missing: %s", o[i].name, o[i].help);
    return CN_OK;
}

/* Whether the user set the option; a switch must also be on. */
static bool is_asked_for(const cn_config *c, const cn_option *o)
{
    const void *field = cn_option_field(o, c);
    const bool on = o->type != CN_OPTION_BOOL || *(const bool *)field;
    return on && cn_config_is_given(c, field);
}

/* Checks options that only have an effect together with another option. */
static cn_status check_company(const cn_config *c, uint32_t sections)
{
    static const struct {
        const char *name, *needs;
    } rules[] = {
        {"id-field", "prompt-field"},     {"retry-errors", "resume"},
        {"warmup-steps", "steady-steps"}, {"batches", "resident"},
        {"decode-steps", "resident"},     {"timeline-interval", "timeline"},
        {"save-detailed", "output-json"}, {"render", "chat"},
        {"enable-thinking", "chat"},      {"continue-field", "prompt-field"},
        {"select-probe", "continue-field"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const cn_option *o = cn_option_find_in(rules[i].name, sections);
        const cn_option *other = cn_option_find_in(rules[i].needs, sections);
        if (o->section & sections && is_asked_for(c, o) && !is_asked_for(c, other))
            return cn_fail(CN_ERR_ARG, "--%s needs --%s", o->name, other->name);
    }
    return CN_OK;
}

/* Whether a file can be written at `path`, which need not exist. Sets errno if not. */
static bool can_write(const char *path)
{
    struct stat s;
    if (stat(path, &s) == 0) {
        if (!S_ISDIR(s.st_mode)) return access(path, W_OK) == 0;
        errno = EISDIR;
        return false;
    }
    if (errno != ENOENT) return false;
    const char *slash = strrchr(path, '/');
    if (!slash) return access(".", W_OK | X_OK) == 0;
    char *folder = cn_strdup(path);
    if (!folder) return false;
    folder[slash == path ? 1 : slash - path] = '\0';
    const bool ok = access(folder, W_OK | X_OK) == 0;
    cn_free(folder);
    return ok;
}

/* Checks the paths of files that are written at the end, so that an invalid path is reported before
 * hours of work. */
static cn_status check_written(const cn_config *c, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!(o[i].section & sections) || !(o[i].flags & CN_OPTION_WRITTEN)) continue;
        const char *path = *(char *const *)cn_option_field(&o[i], c);
        if (path && !can_write(path))
            return cn_fail(CN_ERR_ARG, "--%s %s: %s", o[i].name, path, strerror(errno));
    }
    return CN_OK;
}

static cn_status check_engine(const cn_config *c)
{
    if (c->max_num_batched_tokens < c->max_num_seqs)
        return cn_fail(CN_ERR_ARG,
                       "--max-num-batched-tokens %u is below --max-num-seqs %u, but every running "
                       "request needs one token per step: raise the first or lower the second",
                       c->max_num_batched_tokens, c->max_num_seqs);
    if (!c->enable_chunked_prefill && c->max_num_batched_tokens < c->max_model_len)
        return cn_fail(CN_ERR_ARG,
                       "--max-num-batched-tokens %u is below --max-model-len %u: raise it or use "
                       "--enable-chunked-prefill",
                       c->max_num_batched_tokens, c->max_model_len);
    return CN_OK;
}

static cn_status check_sampling(const cn_sampling *s)
{
    if (s->max_tokens && s->min_tokens > s->max_tokens)
        return cn_fail(CN_ERR_ARG, "--min-tokens %u exceeds --max-tokens %u", s->min_tokens,
                       s->max_tokens);
    if (s->repetition_min_pattern_size > s->repetition_max_pattern_size)
        return cn_fail(CN_ERR_ARG,
                       "--repetition-min-pattern-size %u exceeds --repetition-max-pattern-size %u",
                       s->repetition_min_pattern_size, s->repetition_max_pattern_size);
    if (s->repetition_max_pattern_size && s->repetition_min_count < 2)
        return cn_fail(CN_ERR_ARG,
                       "--repetition-min-count %u: expected at least 2 repeats of a pattern",
                       s->repetition_min_count);
    return CN_OK;
}

static cn_status check_kv(const cn_kv_params *kv)
{
    if (kv->window_tokens > kv->budget_tokens)
        return cn_fail(CN_ERR_ARG, "kv-window %u exceeds kv-budget %u", kv->window_tokens,
                       kv->budget_tokens);
    return cn_policy_check_sinks(kv);
}

static cn_status check_prompts(const cn_config *c)
{
    if (c->grade != CN_OPT_GRADE_NONE && !c->answer_field)
        return cn_fail(CN_ERR_ARG,
                       "--grade needs --answer-field, the field with the reference answer");
    return CN_OK;
}

/* Refuses options that have no effect on a forced continuation. */
static cn_status check_compare(const cn_config *c)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    if (!c->continue_field) return CN_OK;
    for (size_t i = 0; i < n; i++) {
        const void *field = cn_option_field(&o[i], c);
        const bool unused = o[i].section == CN_SECTION_SAMPLING || field == &c->answer_field ||
                            field == &c->grade || field == &c->plot ||
                            field == &c->compare_audit_percent;
        if (unused && c->given[i])
            return cn_fail(CN_ERR_ARG,
                           "--%s has no effect on a forced continuation: leave out --%s or "
                           "--continue-field",
                           o[i].name, o[i].name);
    }
    return CN_OK;
}

static cn_status check_run_batch(const cn_config *c)
{
    if (c->answer_field && c->grade == CN_OPT_GRADE_NONE)
        return cn_fail(CN_ERR_ARG, "--answer-field %s needs --grade", c->answer_field);
    bool to_stdout = strcmp(c->output_file, "-") == 0;
    if (c->resume && to_stdout)
        return cn_fail(CN_ERR_ARG,
                       "--resume needs an output file: standard output cannot be read back");
    if (!to_stdout && strcmp(c->input_file, c->output_file) == 0)
        return cn_fail(CN_ERR_ARG, "--input-file and --output-file are both %s: use two files",
                       c->input_file);
    return CN_OK;
}

static cn_status check_serve(const cn_config *c)
{
    const bool port = cn_config_is_given(c, &c->port);
    if (c->uds && (port || cn_config_is_given(c, &c->host)))
        return cn_fail(CN_ERR_ARG, "--uds %s replaces --host and --port: leave out --%s", c->uds,
                       port ? "port" : "host");
    return CN_OK;
}

static cn_status check_bench(const cn_config *c)
{
    bool random = c->dataset_name == CN_OPT_DATASET_RANDOM;
    bool input_len = cn_config_is_given(c, &c->input_len);
    bool steps = c->resident || c->prefill;
    if ((c->workload != NULL) + (c->steady_steps > 0) + steps + !random > 1)
        return cn_fail(CN_ERR_ARG, "--workload, --steady-steps, --resident or --prefill, and "
                                   "--dataset-name are different measurements: choose one");
    if (c->workload && (input_len || cn_config_is_given(c, &c->output_len)))
        return cn_fail(CN_ERR_ARG,
                       "--workload %s has its own lengths: leave out --input-len and --output-len",
                       c->workload);
    if (!random && !c->dataset_path)
        return cn_fail(CN_ERR_ARG, "--dataset-name needs --dataset-path, unless it is random");
    if (random && c->dataset_path)
        return cn_fail(CN_ERR_ARG, "--dataset-path %s needs --dataset-name sharegpt or custom",
                       c->dataset_path);
    if (!random && (input_len || c->random_range_ratio > 0))
        return cn_fail(CN_ERR_ARG,
                       "--input-len and --random-range-ratio apply only to random requests: a "
                       "dataset has its own lengths");
    return CN_OK;
}

static cn_status check_tokenize(const cn_config *c)
{
    if (c->text && cn_config_is_given(c, &c->file))
        return cn_fail(CN_ERR_ARG, "--text and --file %s both set the input: choose one", c->file);
    if (c->decode && (c->chat || c->pieces))
        return cn_fail(CN_ERR_ARG, "--decode converts ids to text, --%s text to ids: choose one",
                       c->chat ? "chat" : "pieces");
    if (c->render && c->pieces)
        return cn_fail(CN_ERR_ARG, "--render prints the prompt, --pieces its tokens: choose one");
    return CN_OK;
}

static cn_status check_calibrate(const cn_config *c)
{
    if (!cn_config_is_given(c, &c->chat_template)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--chat-template has no effect on a text file: write rendered chats "
                               "into it with cinch tokenize --chat --render");
}

cn_status cn_config_validate(const cn_config *c, uint32_t sections)
{
    CN_TRY(check_required(c, sections));
    CN_TRY(check_company(c, sections));
    CN_TRY(check_written(c, sections));
    if (sections & CN_SECTION_ENGINE) CN_TRY(check_engine(c));
    if (sections & CN_SECTION_SAMPLING) CN_TRY(check_sampling(&c->sampling));
    if (sections & CN_SECTION_KV) CN_TRY(check_kv(&c->kv));
    if (sections & CN_SECTION_PROMPTS) CN_TRY(check_prompts(c));
    if (sections & CN_SECTION_COMPARE) CN_TRY(check_compare(c));
    if (sections & CN_SECTION_RUN_BATCH) CN_TRY(check_run_batch(c));
    if (sections & CN_SECTION_SERVE) CN_TRY(check_serve(c));
    if (sections & CN_SECTION_BENCH) CN_TRY(check_bench(c));
    if (sections & CN_SECTION_TOKENIZE) CN_TRY(check_tokenize(c));
    if (sections & CN_SECTION_CALIBRATE) CN_TRY(check_calibrate(c));
    return CN_OK;
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

void cn_config_help(FILE *f, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (uint32_t bit = 0; bit < CN_N_SECTIONS; bit++) {
        cn_option_section section = (cn_option_section)(1U << bit);
        if (!(section & sections)) continue;
        fprintf(f, "\n%s options:\n", cn_section_name(section));
        for (size_t i = 0; i < n; i++)
            if (o[i].section == section) print_option(f, &o[i]);
    }
}
