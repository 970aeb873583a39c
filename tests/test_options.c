/* test_options.c - the option table: its consistency, flags, bounds, JSON keys, fingerprint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/cmd/command.h"
#include "engine/options/option_value.h"

enum { ALL_SECTIONS = (1 << CN_N_SECTIONS) - 1, MAX_ARGS = 32 };

static int make_config(void **state)
{
    *state = cn_config_create();
    return *state ? 0 : -1;
}

static int free_config(void **state)
{
    cn_config_free(*state);
    return 0;
}

/* Parses the words of `line` as arguments. Single blanks separate words. */
static cn_status parse_line(cn_config *c, uint32_t sections, const char *line, int *first,
                            char *rest)
{
    char *copy = strdup(line), *save = NULL;
    char *argv[MAX_ARGS] = {"cinch"};
    int argc = 1;
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    cn_status status = cn_config_parse_args(c, sections, argc, argv, first);
    if (first && rest && status == CN_OK) {
        rest[0] = '\0';
        for (int i = *first; i < argc; i++) strcat(strcat(rest, argv[i]), ";");
    }
    free(copy);
    return status;
}

static void expect_refused(uint32_t sections, const char *line, const char *needle)
{
    cn_config *c = cn_config_create();
    assert_int_equal(parse_line(c, sections, line, NULL, NULL), CN_ERR_ARG);
    if (!strstr(cn_last_error(), needle)) fail_msg("%s: got '%s'", line, cn_last_error());
    cn_config_free(c);
}

static void rows_are_consistent(void **state)
{
    (void)state;
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(cn_option_find_in(o[i].name, o[i].section), &o[i]);
        assert_true(o[i].offset < offsetof(struct cn_config, given));
        assert_non_null(o[i].help);
        assert_int_equal(__builtin_popcount(o[i].section), 1);
        assert_non_null(cn_section_name(o[i].section));
        bool named = o[i].type == CN_OPTION_ENUM || o[i].type == CN_OPTION_SET;
        assert_int_equal(named, o[i].values != NULL);
        if (o[i].type <= CN_OPTION_BYTES && o[i].type != CN_OPTION_BOOL)
            assert_true(o[i].max > o[i].min);
        if (o[i].type == CN_OPTION_BOOL) assert_non_null(o[i].fallback);
        bool per_request = o[i].section == CN_SECTION_SAMPLING || o[i].section == CN_SECTION_KV;
        if (o[i].json) assert_true(per_request);
        for (size_t j = 0; j < i; j++) {
            assert_true(o[i].offset != o[j].offset);
            assert_true(!o[i].json || !o[j].json || strcmp(o[i].json, o[j].json) != 0);
        }
    }
}

/* Records have options that change results, and an older record is read by the same parser. */
static void values_of_older_versions_are_values(void **state)
{
    cn_config *c = *state;
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!o[i].before) continue;
        assert_true(o[i].flags & CN_OPTION_RESULT);
        assert_int_equal(cn_option_set_text(c, &o[i], o[i].before), CN_OK);
    }
}

/* No command, and not the library, may have two options of the same name or short name. */
static void names_are_unique_in_every_command(void **state)
{
    (void)state;
    size_t n, n_commands;
    const cn_option *o = cn_options(&n);
    const cn_command *commands = cn_commands(&n_commands);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            const bool same_short = o[i].short_name && o[i].short_name == o[j].short_name;
            if (strcmp(o[i].name, o[j].name) != 0 && !same_short) continue;
            const uint32_t both = (uint32_t)o[i].section | (uint32_t)o[j].section;
            assert_true(o[i].section != o[j].section);
            assert_true((both & (uint32_t)CN_SECTIONS_LIBRARY) == 0);
            for (size_t k = 0; k < n_commands; k++)
                assert_true((commands[k].sections & both) != both);
        }
}

static void a_short_name_is_that_of_the_command(void **state)
{
    cn_config *c = *state;
    assert_int_equal(parse_line(c, CN_SECTION_CALIBRATE, "-o channels", NULL, NULL), CN_OK);
    assert_string_equal(c->calibrate_output, "channels");
    assert_null(c->output_file);
    assert_int_equal(parse_line(c, CN_SECTION_RUN_BATCH, "-o answers", NULL, NULL), CN_OK);
    assert_string_equal(c->output_file, "answers");
    expect_refused(CN_SECTION_COMPARE, "-o x", "section, which this command does not accept");
}

static void a_percentage_may_have_a_percent_sign(void **state)
{
    cn_config *c = *state;
    const uint32_t sections = CN_SECTION_COMPARE;
    assert_int_equal(parse_line(c, sections, "--audit 2.5%", NULL, NULL), CN_OK);
    assert_true(c->compare_audit_percent == 2.5f);
    assert_int_equal(parse_line(c, sections, "--audit=7 --json out.json", NULL, NULL), CN_OK);
    assert_true(c->compare_audit_percent == 7);
    assert_string_equal(c->compare_json, "out.json");
    assert_false(c->json);
    expect_refused(sections, "--audit 101%", "expected a percentage from 0 to 100");
    expect_refused(sections, "--audit 5%%", "audit 5%%");
    expect_refused(sections, "--audit %", "audit %");
    expect_refused(CN_SECTION_KV, "--kv-alpha 50%", "expected a number");
}

/* The names of every enumerated row must end where its C enum ends. */
static void enum_names_match_their_enums(void **state)
{
    (void)state;
    const cn_kv_policy last_policy = (cn_kv_policy)(CN_N_POLICIES - 1);
    const cn_kv_select last_selector = (cn_kv_select)(CN_N_SELECTORS - 1);
    const struct {
        const char *option, *last;
        int index;
    } rows[] = {
        {"log-level", "debug", CN_LOG_DEBUG},
        {"load-format", "dummy", CN_OPT_LOAD_DUMMY},
        {"dtype", "float32", CN_OPT_DTYPE_FLOAT32},
        {"quantization", "fp8", CN_OPT_QUANT_FP8},
        {"generation-config", "vllm", CN_OPT_GENERATION_VLLM},
        {"enable-thinking", "on", CN_OPT_THINKING_ON},
        {"reasoning-parser", "deepseek_r1", CN_OPT_REASONING_DEEPSEEK_R1},
        {"tool-call-parser", "pythonic", CN_OPT_TOOLS_PYTHONIC},
        {"kv-cache-dtype", "fp8_e4m3", CN_OPT_KV_FP8_E4M3},
        {"scheduling-policy", "priority", CN_OPT_SCHEDULING_PRIORITY},
        {"order", "any", CN_OPT_ORDER_ANY},
        {"shard-by", "bytes", CN_OPT_SHARD_BY_BYTES},
        {"async-scheduling", "off", CN_OPT_ASYNC_OFF},
        {"kv-policy", cn_kv_policy_name(last_policy), last_policy},
        {"kv-policies", cn_kv_policy_name(last_policy), last_policy},
        {"kv-rule", "follow", CN_RULE_FOLLOW},
        {"kv-head-rule", "mean", CN_HEADS_MEAN},
        {"kv-pooling", "always", CN_POOLING_ALWAYS},
        {"kv-redundancy", "none", CN_REDUNDANCY_NONE},
        {"kv-combine", "subtract", CN_COMBINE_SUBTRACT},
        {"kv-move", "fill", CN_MOVE_FILL},
        {"kv-select", cn_kv_select_name(last_selector), last_selector},
        {"kv-selectors", cn_kv_select_name(last_selector), last_selector},
        {"select-keys", "rows", CN_SELECT_ROWS},
        {"select-group", "mean", CN_SELECT_MEAN},
        {"select-weights", "raw", CN_WEIGHTS_RAW},
        {"select-query", "predicted", CN_QUERY_PREDICTED},
        {"kv-home", "auto", CN_HOME_AUTO},
        {"kv-homes", "host", CN_HOME_HOST},
        {"grade", "last-number", CN_OPT_GRADE_LAST_NUMBER},
        {"unknown-fields", "refuse", CN_OPT_UNKNOWN_REFUSE},
        {"json-whitespace", "any", CN_OPT_JSON_WHITESPACE_ANY},
        {"progress", "none", CN_OPT_PROGRESS_NONE},
        {"loop-rescue", "full", CN_OPT_RESCUE_FULL},
        {"dataset-name", "custom", CN_OPT_DATASET_CUSTOM},
    };
    size_t n, n_enums = 0;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) n_enums += o[i].values != NULL;
    assert_int_equal(n_enums, sizeof rows / sizeof *rows);
    for (size_t i = 0; i < n_enums; i++) {
        const cn_option *row = cn_option_find(rows[i].option);
        assert_non_null(row);
        assert_int_equal(cn_option_name_index(row, rows[i].last, strlen(rows[i].last)),
                         rows[i].index);
        assert_string_equal(row->values + strlen(row->values) - strlen(rows[i].last), rows[i].last);
    }
}

/* The help of an option that lists the rows of a table says what each row does. */
static void help_names_every_row(void **state)
{
    (void)state;
    const char *policies = cn_option_find("kv-policy")->help;
    const char *selectors = cn_option_find("kv-select")->help;
    for (int i = 0; i < CN_N_POLICIES; i++)
        assert_non_null(strstr(policies, cn_kv_policy_name((cn_kv_policy)i)));
    for (int i = 0; i < CN_N_SELECTORS; i++)
        assert_non_null(strstr(selectors, cn_kv_select_name((cn_kv_select)i)));
}

static void models_have_the_names_given_or_that_of_the_directory(void **state)
{
    cn_config *c = *state;
    cn_served_names s;
    static const char *const paths[] = {"tests", "./tests/", "tests/lib/.."};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        cn_free(c->model);
        c->model = cn_strdup(paths[i]);
        assert_int_equal(cn_served_names_make(&s, c), CN_OK);
        assert_int_equal(s.n, 1);
        assert_string_equal(s.names[0], "tests");
        cn_served_names_free(&s);
    }
    c->served_model_name = cn_strdup("a,org/b,c");
    assert_int_equal(cn_served_names_make(&s, c), CN_OK);
    assert_int_equal(s.n, 3);
    assert_string_equal(s.names[0], "a");
    assert_true(cn_served_names_have(&s, "org/b") && cn_served_names_have(&s, "c"));
    assert_false(cn_served_names_have(&s, "b") || cn_served_names_have(&s, "a,org/b"));
    cn_served_names_free(&s);
}

static void defaults_come_from_the_table(void **state)
{
    const cn_config *c = *state;
    assert_int_equal(c->max_num_seqs, 256);
    assert_int_equal(c->max_num_batched_tokens, 2048);
    assert_true(c->enable_prefix_caching);
    assert_true(c->sampling.temperature == 1.0f && c->sampling.repetition_penalty == 1.0f);
    assert_int_equal(c->sampling.logprobs, -1);
    assert_int_equal(c->sampling.thinking_token_budget, -1);
    assert_int_equal(c->sampling.max_tokens, 0);
    assert_int_equal(c->until_minutes, -1);
    assert_int_equal(c->kv_policies, 1 << CN_KV_FULL);
    assert_null(c->model);
    assert_false(cn_config_is_given(c, &c->max_num_seqs));
}

static void every_value_prints_and_reads_back(void **state)
{
    cn_config *c = *state;
    static const char *const values[][2] = {
        {"kv-alpha", "0.3"},
        {"until", "07:05"},
        {"kv-policies", "full,zip"},
        {"top-k", "-1"},
        {"enable-prefix-caching", "false"},
        {"progress", "plain"},
        {"seed", "18446744073709551615"},
        {"model", "a dir"},
        {"kv-cache-memory-bytes", "1536"},
        {"max-num-seqs", "65536"},
        {"temperature", "0.699999988"},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const cn_option *o = cn_option_find(values[i][0]);
        cn_buf text = {0};
        assert_int_equal(cn_option_set_text(c, o, values[i][1]), CN_OK);
        assert_int_equal(cn_option_format(o, c, &text), CN_OK);
        if (o->type == CN_OPTION_F32)
            assert_true(strtof(text.data, NULL) == strtof(values[i][1], NULL));
        else
            assert_string_equal(text.data, values[i][1]);
        cn_buf_free(&text);
    }
}

static void flags_take_every_form(void **state)
{
    cn_config *c = *state;
    int first = 0;
    char rest[256];
    const char *line = "one --max-num-seqs 7 --kv_cache_memory_bytes=2M --no-enable-prefix-caching "
                       "-i in.jsonl two --strict --top-k -1 --resume=false -o - -- --three";
    assert_int_equal(parse_line(c, ALL_SECTIONS, line, &first, rest), CN_OK);
    assert_string_equal(rest, "one;two;--three;");
    assert_int_equal(c->max_num_seqs, 7);
    assert_int_equal(c->kv_cache_memory_bytes, 2 << 20);
    assert_false(c->enable_prefix_caching);
    assert_string_equal(c->input_file, "in.jsonl");
    assert_string_equal(c->output_file, "-");
    assert_int_equal(c->sampling.top_k, -1);
    assert_true(c->strict);
    assert_false(c->resume);
    assert_true(cn_config_is_given(c, &c->resume));
    assert_int_equal(parse_line(c, ALL_SECTIONS, "--model a --model b", NULL, NULL), CN_OK);
    assert_string_equal(c->model, "b"); /* the last one counts */
    assert_int_equal(parse_line(c, 0, "--help --nonsense", NULL, NULL), CN_OK);
    assert_true(c->help);
}

static void bad_flags_are_named(void **state)
{
    (void)state;
    expect_refused(ALL_SECTIONS, "--max-num-seq 3", "did you mean --max-num-seqs?");
    expect_refused(ALL_SECTIONS, "--xyzzyxyzzyxyzzy 3", "--help");
    expect_refused(ALL_SECTIONS, "--no-max-num-seqs", "only a switch");
    expect_refused(ALL_SECTIONS, "--no-strict=true", "only a switch");
    expect_refused(ALL_SECTIONS, "--model", "needs a value");
    expect_refused(ALL_SECTIONS, "--model --seed", "needs a value");
    expect_refused(CN_SECTION_PROMPTS, "--prompt-field -i", "--prompt-field needs a value");
    expect_refused(CN_SECTION_RUN_BATCH, "-o -h", "-o needs a value");
    expect_refused(ALL_SECTIONS, "--model=", "non-empty");
    expect_refused(ALL_SECTIONS, "-x 1", "unknown option -x");
    expect_refused(ALL_SECTIONS, "-input 1", "unknown option -input");
    expect_refused(ALL_SECTIONS, "stray", "unexpected argument 'stray'");
    expect_refused(ALL_SECTIONS, "--=1", "unknown option");
    expect_refused(CN_SECTION_MODEL, "--strict", "run-batch section");
    expect_refused(CN_SECTION_MODEL, "-i x", "prompts section");
    /* A prefix of a name is refused: a new option could change what it means in a script. */
    expect_refused(ALL_SECTIONS, "--max-num-batched 3", "unknown option");
}

static void bad_values_are_named_with_bounds(void **state)
{
    (void)state;
    expect_refused(ALL_SECTIONS, "--max-num-seqs 0",
                   "max-num-seqs 0: expected a whole number from 1");
    expect_refused(ALL_SECTIONS, "--max-num-seqs 1.5", "whole number");
    expect_refused(ALL_SECTIONS, "--max-num-seqs 0x10", "whole number");
    expect_refused(ALL_SECTIONS, "--max-num-seqs 99999999999999999999", "65536");
    expect_refused(ALL_SECTIONS, "--block-size 48", "power of two from 16 to 256, or 0");
    expect_refused(ALL_SECTIONS, "--block-size 8", "power of two");
    expect_refused(ALL_SECTIONS, "--top-p 0", "above 0 up to 1");
    expect_refused(ALL_SECTIONS, "--top-p 1e-60", "above 0 up to 1"); /* 0 as a float */
    expect_refused(ALL_SECTIONS, "--kv-tau 1e-60", "above 0 up to 100");
    expect_refused(ALL_SECTIONS, "--temperature nan", "a number");
    expect_refused(ALL_SECTIONS, "--temperature inf", "a number");
    expect_refused(ALL_SECTIONS, "--temperature=-0.1", "a number");
    expect_refused(ALL_SECTIONS, "--seed -1", "whole number");
    expect_refused(ALL_SECTIONS, "--seed 18446744073709551616", "whole number");
    expect_refused(ALL_SECTIONS, "--kv-cache-memory-bytes 4Q", "K, M, G, T");
    expect_refused(ALL_SECTIONS, "--kv-cache-memory-bytes 99999999T", "K, M, G, T");
    expect_refused(ALL_SECTIONS, "--progress fancy", "auto|bar|plain|none");
    expect_refused(ALL_SECTIONS, "--kv-policies full,,zip", "comma-separated list");
    expect_refused(ALL_SECTIONS, "--until 24:00", "HH:MM");
    expect_refused(ALL_SECTIONS, "--until 7:00", "HH:MM");
    expect_refused(ALL_SECTIONS, "--until 07:000", "HH:MM");
    expect_refused(ALL_SECTIONS, "--strict=1", "true or false");
}

/* What an option that no longer exists did by default is what cinch does. */
static void removed_options_have_their_old_default_or_are_named(void **state)
{
    cn_config *c = *state;
    size_t n;
    const cn_removed_option *o = cn_removed_options(&n);
    for (size_t i = 0; i < n; i++) assert_null(cn_option_find(o[i].name));
    static const char *const fine[] = {"--no-tail-relaxation", "--no_tail_relaxation --seed 3",
                                       "--tail-relaxation=false", "--importance max"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        assert_int_equal(parse_line(c, ALL_SECTIONS, fine[i], NULL, NULL), CN_OK);
    assert_int_equal(c->seed, 3);
    expect_refused(ALL_SECTIONS, "--tail-relaxation",
                   "--tail-relaxation true: the option no longer exists, and cinch does as with "
                   "false: leave it out");
    expect_refused(ALL_SECTIONS, "--importance mean", "--importance mean: the option no longer");
    expect_refused(ALL_SECTIONS, "--importance", "needs a value");
    expect_refused(ALL_SECTIONS, "--no-importance", "only a switch");
    expect_refused(ALL_SECTIONS, "--tail-relaxation=maybe", "--tail-relaxation maybe");
    expect_refused(ALL_SECTIONS, "--no-tail-relaxation=true", "only a switch");
    assert_int_equal(cn_config_set(c, "tail_relaxation", "false"), CN_OK);
    assert_int_equal(cn_config_set(c, "tail_relaxation", "true"), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "no longer exists"));
}

static void library_sets_engine_options_only(void **state)
{
    cn_config *c = *state;
    assert_int_equal(cn_config_set(c, "max-num-seqs", "9"), CN_OK);
    assert_int_equal(c->max_num_seqs, 9);
    assert_int_equal(cn_config_set(c, "input-file", "x"), CN_ERR_ARG);
    assert_int_equal(cn_config_set(c, "nonsense", "x"), CN_ERR_ARG);
    assert_int_equal(cn_config_set(c, "max-num-seqs", ""), CN_ERR_ARG);
    assert_int_equal(c->max_num_seqs, 9);
}

static void expect_invalid(uint32_t sections, const char *line, const char *needle)
{
    cn_config *c = cn_config_create();
    assert_int_equal(parse_line(c, sections, line, NULL, NULL), CN_OK);
    cn_status status = cn_config_validate(c, sections);
    if (needle) {
        assert_int_equal(status, CN_ERR_ARG);
        if (!strstr(cn_last_error(), needle)) fail_msg("%s: got '%s'", line, cn_last_error());
    } else if (status != CN_OK) {
        fail_msg("%s: got '%s'", line, cn_last_error());
    }
    cn_config_free(c);
}

static void conflicting_options_are_refused(void **state)
{
    (void)state;
    const uint32_t batch = CN_SECTION_PROMPTS | CN_SECTION_RUN_BATCH;
    expect_invalid(CN_SECTION_CHECKPOINT, "", "--model is missing");
    expect_invalid(CN_SECTION_ENGINE, "--max-num-batched-tokens 128", "max-num-seqs 256");
    expect_invalid(CN_SECTION_ENGINE, "--max-num-batched-tokens 256", NULL);
    expect_invalid(CN_SECTION_MODEL, "--served-model-name a,,b", "separated by commas");
    expect_invalid(CN_SECTION_MODEL, "--served-model-name a,b", NULL);
    expect_invalid(CN_SECTION_SERVE, "--root-path llm", "without a slash at its end");
    expect_invalid(CN_SECTION_SERVE, "--root-path /llm/", "without a slash at its end");
    expect_invalid(CN_SECTION_SERVE, "--root-path /llm", NULL);
    expect_invalid(CN_SECTION_MODEL | CN_SECTION_ENGINE,
                   "--max-model-len 4096 --no-enable-chunked-prefill", "4096");
    expect_invalid(CN_SECTION_SAMPLING, "--min-tokens 5 --max-tokens 4", "min-tokens 5");
    expect_invalid(CN_SECTION_SAMPLING, "--min-tokens 5", NULL);
    expect_invalid(CN_SECTION_SAMPLING, "--repetition-max-pattern-size 5",
                   "repetition-min-count 0");
    expect_invalid(CN_SECTION_KV, "--kv-policy zip --kv-budget 64 --kv-window 128",
                   "kv-window 128");
    expect_invalid(CN_SECTION_KV, "--kv-policy window --kv-budget 8", NULL);
    expect_invalid(CN_SECTION_KV, "--kv-select ds --kv-sinks 2048", NULL);
    expect_invalid(CN_SECTION_KV, "--kv-policy window --kv-budget 64 --kv-sinks 64",
                   "kv sinks of 64 tokens leave no room for the newest in a budget of 64");
    expect_invalid(CN_SECTION_KV, "--kv-policy window --kv-budget 64 --kv-sinks 63", NULL);
    const uint32_t engine = CN_SECTION_ENGINE | CN_SECTION_KV;
    expect_invalid(engine, "--kv-budget 64", "--kv-budget needs --kv-policy window");
    expect_invalid(engine, "--kv-budget 64 --kv-policies window", NULL);
    expect_invalid(engine, "--kv-sinks 2", "--kv-sinks needs --kv-policy window");
    expect_invalid(engine, "--kv-sinks 2 --kv-select last", NULL);
    expect_invalid(engine, "--select-tiles 9 --kv-select ds", "needs --kv-select tls");
    expect_invalid(engine, "--select-tiles 9 --kv-selectors ds,tls", NULL);
    expect_invalid(engine, "--select-query predicted --kv-select tls",
                   "--select-query needs --kv-home peer or host, with --kv-select tls");
    expect_invalid(engine, "--select-query predicted --kv-select last --kv-home host",
                   "--select-query needs --kv-home peer or host, with --kv-select tls");
    expect_invalid(engine, "--select-query predicted --kv-select tls --kv-homes host", NULL);
    expect_invalid(engine, "--select-cap 9 --kv-select last",
                   "--select-cap needs --kv-home peer or host, with --kv-select tls, spade");
    expect_invalid(engine, "--select-cap 9 --kv-select last --kv-home host", NULL);
    expect_invalid(engine, "--select-window 9 --kv-select tls", "needs --kv-select spade");
    expect_invalid(engine, "--select-window 9 --kv-select tls --kv-home host", NULL);
    expect_invalid(engine, "--sync-compression --kv-select ds", "needs --kv-policy window");
    const uint32_t answers = CN_SECTION_PROMPTS | CN_SECTION_RUN_BATCH | CN_SECTION_SAMPLING;
    expect_invalid(answers, "-i a -o b --loop-rescue full", "--repetition-max-pattern-size");
    expect_invalid(answers, "-i a -o b --loop-rescue off", NULL);
    expect_invalid(answers, "-i a -o b --prompt-field q --repetition-min-count 2",
                   "--repetition-max-pattern-size");
    expect_invalid(answers, "-i a -o b --repetition-min-count 2", NULL); /* bodies may set it */
    expect_invalid(batch, "-i a -o a", "both a");
    expect_invalid(batch, "-i - -o -", NULL);
    expect_invalid(batch, "-i a", "--output-file is missing");
    expect_invalid(batch, "-i a -o - --resume", "--resume");
    expect_invalid(batch, "-i a -o b --retry-errors", "--resume");
    expect_invalid(batch, "-i a -o b --id-field id", "--prompt-field");
    expect_invalid(batch, "-i a -o b --grade exact", "--answer-field");
    expect_invalid(batch, "-i a -o b --answer-field answer", "--grade");
    expect_invalid(CN_SECTION_BENCH, "--dataset-name custom", "--dataset-path");
    expect_invalid(CN_SECTION_BENCH, "--dataset-path x", "--dataset-name");
    expect_invalid(CN_SECTION_BENCH, "--dataset-path x --dataset-name custom --input-len 5",
                   "--input-len");
}

static void conflicting_options_of_serve_are_refused(void **state)
{
    (void)state;
    expect_invalid(CN_SECTION_SERVE, "--allowed-origins ,x", "separated by commas");
    expect_invalid(CN_SECTION_SERVE, "--allowed-origins *,app.example",
                   "--allowed-origins app.example: expected an origin such as");
    expect_invalid(CN_SECTION_SERVE, "--allowed-origins https://a.example/", "an origin such as");
    expect_invalid(CN_SECTION_SERVE, "--allowed-origins https://a.example:8,null", NULL);
    const uint32_t serve = CN_SECTION_SERVE | CN_SECTION_ENGINE | CN_SECTION_SAMPLING;
    expect_invalid(serve, "--n 2 --max-queue 1", "--n 2 exceeds --max-queue 1");
    expect_invalid(serve, "--n 2 --max-requests-per-key 1", "exceeds --max-requests-per-key 1");
    expect_invalid(CN_SECTION_SERVE, "--max-batches 9", "--max-batches needs --spool");
    expect_invalid(CN_SECTION_SERVE, "--max-batches 9 --spool d", NULL);
    expect_invalid(CN_SECTION_SERVE, "--uds /tmp/s --port 80", "leave out --port");
    expect_invalid(CN_SECTION_SERVE, "--uds /tmp/s --host ::", "leave out --host");
    expect_invalid(CN_SECTION_SERVE, "--uds /tmp/s", NULL);
}

static void sampling_overlay_writes_only_given_options(void **state)
{
    cn_config *c = *state;
    cn_sampling s = c->sampling;
    s.temperature = 0.6f;
    s.top_k = 20;
    s.ignore_eos = true;
    assert_int_equal(parse_line(c, ALL_SECTIONS, "--top-k 3 --no-ignore-eos", NULL, NULL), CN_OK);
    cn_config_overlay_sampling(c, &s);
    assert_true(s.temperature == 0.6f);
    assert_int_equal(s.top_k, 3);
    assert_false(s.ignore_eos);
}

static void result_text_has_only_options_that_change_results(void **state)
{
    cn_config *c = *state;
    cn_buf before = {0}, after = {0};
    assert_int_equal(cn_config_result_text(c, &before), CN_OK);
    assert_int_equal(
        parse_line(c, ALL_SECTIONS, "--max-num-seqs 3 --progress none --model x", NULL, NULL),
        CN_OK);
    assert_int_equal(cn_config_result_text(c, &after), CN_OK);
    assert_string_equal(after.data, before.data);
    assert_int_equal(parse_line(c, ALL_SECTIONS, "--temperature 0.5", NULL, NULL), CN_OK);
    cn_buf_clear(&after);
    assert_int_equal(cn_config_result_text(c, &after), CN_OK);
    assert_string_not_equal(after.data, before.data);
    assert_non_null(strstr(after.data, "temperature=0.5\n"));
    cn_buf_free(&before);
    cn_buf_free(&after);
}

static cn_status set_json(cn_config *c, const char *key, const char *text, bool *known)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    cn_status status = cn_request_set_json(&c->sampling, &c->kv,
                                           CN_SECTION_SAMPLING | CN_SECTION_KV, key, value, known);
    json_decref(value);
    return status;
}

static void json_fields_have_the_bounds_of_their_rows(void **state)
{
    cn_config *c = *state;
    bool known;
    assert_int_equal(set_json(c, "top_p", "0.5", &known), CN_OK);
    assert_true(known && c->sampling.top_p == 0.5f);
    assert_int_equal(set_json(c, "repetition_penalty", "1e-60", &known), CN_ERR_ARG);
    assert_int_equal(set_json(c, "top_p", "null", &known), CN_OK);
    assert_true(known && c->sampling.top_p == 0.5f);
    assert_int_equal(set_json(c, "max_tokens", "64.0", &known), CN_OK);
    assert_int_equal(c->sampling.max_tokens, 64);
    assert_int_equal(set_json(c, "max_tokens", "0", &known), CN_ERR_ARG);
    assert_int_equal(set_json(c, "max_tokens", "1e300", &known), CN_ERR_ARG);
    assert_int_equal(set_json(c, "max_tokens", "1.5", &known), CN_ERR_ARG);
    assert_int_equal(set_json(c, "max_tokens", "true", &known), CN_ERR_ARG);
    assert_int_equal(set_json(c, "max_tokens", "\"64\"", &known), CN_ERR_ARG);
    assert_int_equal(set_json(c, "ignore_eos", "1", &known), CN_ERR_ARG);
    assert_int_equal(set_json(c, "ignore_eos", "true", &known), CN_OK);
    assert_true(c->sampling.ignore_eos);
    assert_int_equal(set_json(c, "colour", "1", &known), CN_OK);
    assert_false(known);
    assert_int_equal(set_json(c, "kv.budget", "1", &known), CN_OK);
    assert_false(known); /* a dotted key does not replace the object */
}

static void json_objects_set_their_members(void **state)
{
    cn_config *c = *state;
    bool known;
    assert_int_equal(
        set_json(c, "kv", "{\"policy\":\"zip\",\"budget\":512,\"global\":false}", &known), CN_OK);
    assert_true(known);
    assert_int_equal(c->kv.policy, CN_KV_ZIP);
    assert_int_equal(c->kv.budget_tokens, 512);
    assert_false(c->kv.global_score);
    assert_int_equal(set_json(c, "kv", "{\"budgets\":512}", &known), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "budgets"));
    /* Long text is not cut inside a character. */
    for (size_t pad = 0; pad < 4; pad++) {
        char object[128], name[101];
        for (size_t i = 0; i < 100; i += 2) memcpy(name + i, "\xc3\xa9", 2);
        name[100] = '\0';
        snprintf(object, sizeof object, "{\"%.*s%s\":1}", (int)pad, "xxxx", name);
        assert_int_equal(set_json(c, "kv", object, &known), CN_ERR_ARG);
        for (const char *p = cn_last_error(); *p; p++) assert_true(*p >= 0x20 && *p < 0x7f);
        snprintf(object, sizeof object, "{\"policy\":\"%.*s%s\"}", (int)pad, "xxxx", name);
        assert_int_equal(set_json(c, "kv", object, &known), CN_ERR_ARG);
        for (const char *p = cn_last_error(); *p; p++) assert_true(*p >= 0x20 && *p < 0x7f);
    }
    assert_int_equal(set_json(c, "kv", "{\"policy\":\"zap\"}", &known), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "full|window|zip"));
    assert_int_equal(set_json(c, "kv", "3", &known), CN_ERR_ARG);
    json_t *kv = json_pack("{s:i}", "budget", 9);
    assert_int_equal(
        cn_request_set_json(&c->sampling, &c->kv, CN_SECTION_SAMPLING, "kv", kv, &known), CN_OK);
    json_decref(kv);
    assert_false(known); /* the kv section was not allowed */
}

/* Whatever the order; the table of options has the defaults of the default rule. */
static void a_rule_sets_the_defaults_that_are_not_given(void **state)
{
    cn_config *c = *state;
    const cn_kv_params table = c->kv;
    const cn_kv_params scaled = cn_rule_with_defaults(table);
    assert_memory_equal(&scaled, &table, sizeof table);
    assert_int_equal(cn_config_set(c, "kv-alpha", "0.5"), CN_OK);
    assert_int_equal(cn_config_set(c, "kv-rule", "peak"), CN_OK);
    assert_int_equal(c->kv.window_tokens, 64);
    assert_int_equal(c->kv.pooling, CN_POOLING_NEVER);
    assert_true(c->kv.alpha == 0.5f && c->kv.recent == 0.125f);
    assert_int_equal(cn_config_set(c, "kv-budget", "200"), CN_OK);
    assert_int_equal(c->kv.window_tokens, 50);
    assert_int_equal(cn_config_set(c, "kv-budget", "17"), CN_OK);
    assert_int_equal(c->kv.window_tokens, 16);
    assert_int_equal(cn_config_set(c, "kv-window", "24"), CN_OK);
    assert_int_equal(cn_config_set(c, "kv-budget", "4096"), CN_OK);
    assert_int_equal(c->kv.window_tokens, 24);
    assert_int_equal(cn_config_set(c, "kv-rule", "follow"), CN_OK);
    assert_true(c->kv.recent == 0.5f && c->kv.alpha == 0.5f);
    assert_int_equal(cn_config_set(c, "kv-rule", "zipage"), CN_OK);
    assert_int_equal(c->kv.window_tokens, 24);
    assert_true(c->kv.recent == 0.125f);
    assert_int_equal(c->kv.pooling, CN_POOLING_FIRST);
}

#define WITH_CONFIG(f) cmocka_unit_test_setup_teardown(f, make_config, free_config)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_consistent),
        WITH_CONFIG(values_of_older_versions_are_values),
        cmocka_unit_test(names_are_unique_in_every_command),
        WITH_CONFIG(a_short_name_is_that_of_the_command),
        WITH_CONFIG(a_percentage_may_have_a_percent_sign),
        cmocka_unit_test(enum_names_match_their_enums),
        cmocka_unit_test(help_names_every_row),
        WITH_CONFIG(models_have_the_names_given_or_that_of_the_directory),
        WITH_CONFIG(defaults_come_from_the_table),
        WITH_CONFIG(every_value_prints_and_reads_back),
        WITH_CONFIG(flags_take_every_form),
        cmocka_unit_test(bad_flags_are_named),
        cmocka_unit_test(bad_values_are_named_with_bounds),
        WITH_CONFIG(removed_options_have_their_old_default_or_are_named),
        WITH_CONFIG(library_sets_engine_options_only),
        cmocka_unit_test(conflicting_options_are_refused),
        cmocka_unit_test(conflicting_options_of_serve_are_refused),
        WITH_CONFIG(sampling_overlay_writes_only_given_options),
        WITH_CONFIG(result_text_has_only_options_that_change_results),
        WITH_CONFIG(json_fields_have_the_bounds_of_their_rows),
        WITH_CONFIG(json_objects_set_their_members),
        WITH_CONFIG(a_rule_sets_the_defaults_that_are_not_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
