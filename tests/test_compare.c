/* test_compare.c - arms on an engine: full KV agrees with itself, figures equal those of the
 * requests, the audit of an arm equals a replay of all its lines, and reports have the figures. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/compare/compare_report.h"
#include "engine/options/option_value.h"
#include "tests/lib/scratch_dir.h"

/* K, V and the global score of a token: 6 layers of 2 heads of 64, f32. */
enum { N_ARMS = 4, LIMIT = 4, KV_TOKEN_BYTES = 6 * 2 * (2 * 64 + 1) * 4 };

/* A comparison of three compressed arms, shared by all tests. */
typedef struct fixture {
    cn_config *config;
    cn_engine *engine;
    cn_compare_arms arms;
    cn_compare_task task;
    cn_compare_figures figures[N_ARMS];
    uint32_t n_blocks; /* of the KV cache; 0: the default */
} fixture;

static void set(cn_config *c, uint32_t section, const char *name, const char *value)
{
    if (cn_option_set_text(c, cn_option_find_in(name, section), value) != CN_OK)
        fail_msg("%s", cn_last_error());
}

static void open_fixture(fixture *x, const char *audit)
{
    cn_config *c = x->config = cn_config_create();
    assert_non_null(c);
    const uint32_t section = CN_SECTION_COMPARE;
    set(c, section, "model", "examples/tiny-reasoner");
    set(c, section, "prompt-field", "prompt");
    set(c, section, "answer-field", "answer");
    set(c, section, "grade", "exact");
    set(c, section, "limit", "4");
    set(c, section, "audit", audit);
    set(c, section, "max-tokens", "200");
    set(c, section, "block-size", "32");
    set(c, section, "enable-prefix-caching", "false");
    set(c, section, "progress", "none");
    c->n_blocks_override = x->n_blocks;
    set(c, section, "arms", "zip:128:window=16,window:96,zip:1024:no-global");
    assert_int_equal(cn_compare_arms_parse(&x->arms, c->arms, c), CN_OK);
    assert_int_equal(x->arms.n, N_ARMS);
    assert_int_equal(cn_compare_arms_declare(&x->arms, c), CN_OK);
    if (cn_engine_create(&x->engine, c) != CN_OK) fail_msg("%s", cn_last_error());
    assert_int_equal(
        cn_compare_task_load(&x->task, x->engine, "examples/tiny-reasoner/prompts/ledger.jsonl"),
        CN_OK);
    assert_int_equal(x->task.n, LIMIT);
    assert_string_equal(x->task.name, "ledger");
}

static void run_arms(fixture *x)
{
    cn_compare_run *run;
    assert_int_equal(cn_compare_run_create(&run, x->engine, &x->task), CN_OK);
    for (uint32_t a = 0; a < N_ARMS; a++)
        if (cn_compare_run_arm(run, &x->arms.arms[a], &x->figures[a]) != CN_OK)
            fail_msg("%s", cn_last_error());
    cn_compare_run_free(run);
}

static void close_fixture(fixture *x)
{
    cn_engine_free(x->engine);
    cn_compare_task_free(&x->task);
    cn_compare_arms_free(&x->arms);
    cn_config_free(x->config);
}

static fixture shared;

static int setup(void **state)
{
    open_fixture(&shared, "100%");
    run_arms(&shared);
    *state = &shared;
    return 0;
}

static int teardown(void **state)
{
    close_fixture(*state);
    return 0;
}

static void full_kv_agrees_with_itself(void **state)
{
    const fixture *x = *state;
    const cn_compare_figures *f = &x->figures[0];
    assert_int_equal(f->kv.policy, CN_KV_FULL);
    assert_int_equal(f->prompts, LIMIT);
    assert_int_equal(f->identical, LIMIT);
    assert_int_equal(f->agreement.outputs, LIMIT);
    assert_int_equal(f->agreement.tokens, f->output_tokens);
    assert_true(cn_agreement_share(&f->agreement) == 1);
    assert_true(f->agreement.gap_nats == 0);
    assert_true(f->speedup == 1);
    assert_int_equal(f->compressions + f->evicted_tokens + f->freed_bytes, 0);
    assert_int_equal(f->output_tokens, LIMIT * 200);
    /* No KV is evicted: at the end all tokens but the last one are in the cache. */
    assert_true(f->peak_tokens == (double)(f->prompt_tokens + f->output_tokens) / LIMIT - 1);
    assert_true(f->running > 3 && f->running <= LIMIT);
    assert_true(f->held_tokens > 32 && f->held_tokens <= f->max_peak_tokens + 32);
}

static void a_cap_that_is_never_reached_changes_nothing(void **state)
{
    const fixture *x = *state;
    const cn_compare_figures *f = &x->figures[3];
    assert_int_equal(f->kv.budget_tokens, 1024);
    assert_false(f->kv.global_score);
    assert_int_equal(f->identical, LIMIT);
    assert_int_equal(f->compressions, 0);
    assert_int_equal(f->agreement.tokens, f->output_tokens);
    assert_true(f->agreement.gap_nats == 0);
    assert_true(f->peak_tokens == x->figures[0].peak_tokens);
}

static void compression_shows_in_every_figure(void **state)
{
    const fixture *x = *state;
    const cn_compare_figures *full = &x->figures[0], *zip = &x->figures[1], *win = &x->figures[2];
    assert_int_equal(zip->kv.window_tokens, 16);
    for (const cn_compare_figures *f = zip; f <= win; f++) {
        assert_true(f->compressions >= LIMIT);
        assert_true(f->evicted_tokens >= f->compressions * 32);
        assert_int_equal(f->freed_bytes, f->evicted_tokens * KV_TOKEN_BYTES);
        assert_in_range(f->max_peak_tokens, f->kv.budget_tokens + 1, f->kv.budget_tokens + 32);
        assert_true(f->held_tokens < full->held_tokens);
        assert_int_equal(f->agreement.outputs, LIMIT);
        assert_int_equal(f->agreement.tokens, f->output_tokens);
        assert_true(isfinite(f->agreement.gap_nats));
        if (f->identical < LIMIT) assert_in_range(f->median_divergence, 1, 200);
    }
    /* The 96 newest tokens do not contain the question, so full KV would choose other tokens. */
    assert_true(win->identical < LIMIT);
    assert_true(cn_agreement_share(&win->agreement) < 1);
    assert_true(cn_agreement_gap(&win->agreement) > 0);
}

static void an_audit_of_a_share_replays_whole_lines(void **state)
{
    (void)state;
    fixture x = {0};
    open_fixture(&x, "40%");
    run_arms(&x);
    uint32_t picked = 0;
    for (uint32_t i = 0; i < LIMIT; i++)
        picked += cn_audit_picks(40, 0, &x.task.items[i].id, sizeof x.task.items[i].id);
    assert_in_range(picked, 1, LIMIT - 1);
    for (uint32_t a = 0; a < N_ARMS; a++) {
        assert_int_equal(x.figures[a].agreement.outputs, picked);
        assert_true(x.figures[a].agreement.tokens < shared.figures[a].agreement.tokens);
        assert_int_equal(x.figures[a].output_tokens, shared.figures[a].output_tokens);
    }
    close_fixture(&x);
}

/* The wide table's row of an arm with these figures. */
static const char *table_row(const fixture *x, cn_compare_figures *f)
{
    static char text[4096];
    memset(text, 0, sizeof text);
    cn_config wide = *x->config; /* borrows the strings */
    wide.wide = true;
    const cn_compare_report r = {.config = &wide, .arms = &x->arms, .tasks = &x->task,
                                 .n_tasks = 1, .figures = f, .n_done = 1};
    FILE *out = fmemopen(text, sizeof text, "w");
    cn_compare_print(out, &r, 0);
    fclose(out);
    const char *row = strstr(text, "\n| full");
    assert_non_null(row);
    return row;
}

static void a_refused_request_counts_as_wrong(void **state)
{
    const fixture *x = *state;
    cn_compare_run *run;
    assert_int_equal(cn_compare_run_create(&run, x->engine, &x->task), CN_OK);
    cn_compare_figures f;
    assert_int_equal(cn_compare_run_arm(run, &x->arms.arms[0], &f), CN_OK);
    cn_compare_arm wide = x->arms.arms[1];
    wide.kv.window_tokens = 64; /* the engine's ring has 16 rows */
    cn_log_set_level(CN_LOG_ERROR);
    assert_int_equal(cn_compare_run_arm(run, &wide, &f), CN_OK);
    cn_log_set_level(CN_LOG_INFO);
    assert_int_equal(f.refused, LIMIT);
    assert_int_equal(f.graded, LIMIT);
    assert_int_equal(f.matched + f.identical, 0);
    assert_int_equal(f.agreement.outputs, 0);
    cn_compare_run_free(run);
    const char *const row = table_row(x, &f);
    /* No output: nothing is the same or diverges, and the most likely tokens were not compared. */
    assert_non_null(strstr(row, "|           - |           - |         - |         - |"));
    assert_non_null(strstr(row, "|       4 |"));
}

/* A line that full KV cannot hold is refused in the first pass and not replayed. One that only its
 * replay makes too long keeps its output. Neither ends the comparison. */
static void a_line_too_long_for_full_kv_ends_nothing(void **state)
{
    (void)state;
    enum { N_BLOCKS = 20, SHORT_TOKENS = 8, LONG_TOKENS = 2000 };
    fixture x = {.n_blocks = N_BLOCKS};
    open_fixture(&x, "100%");
    cn_compare_run *run;
    cn_compare_figures full, zip;
    cn_log_set_level(CN_LOG_ERROR);
    for (uint32_t i = 0; i < LIMIT; i++) {
        cn_sampling *s = &x.task.items[i].request.params.sampling;
        s->max_tokens = i == 0 ? LONG_TOKENS : SHORT_TOKENS;
        s->ignore_eos = true;
    }
    assert_int_equal(cn_compare_run_create(&run, x.engine, &x.task), CN_OK);
    assert_int_equal(cn_compare_run_arm(run, &x.arms.arms[0], &full), CN_OK);
    assert_int_equal(full.refused, 1);
    assert_int_equal(full.compared, LIMIT - 1);
    x.task.items[1].request.params.sampling.max_tokens = LONG_TOKENS;
    assert_int_equal(cn_compare_run_arm(run, &x.arms.arms[1], &zip), CN_OK);
    cn_log_set_level(CN_LOG_INFO);
    assert_int_equal(zip.refused, 0);
    assert_int_equal(zip.compared, LIMIT - 1);
    assert_int_equal(zip.refused_replays, 1);
    assert_int_equal(zip.agreement.outputs, LIMIT - 2);
    assert_int_equal(zip.output_tokens, 2 * LONG_TOKENS + (LIMIT - 2) * SHORT_TOKENS);
    cn_compare_run_free(run);
    close_fixture(&x);
}

/* ---- reports ---- */

static cn_compare_report report_of(fixture *x, uint32_t n_done)
{
    return (cn_compare_report){.config = x->config, .arms = &x->arms, .tasks = &x->task,
                               .n_tasks = 1, .figures = x->figures, .n_done = n_done};
}

static const json_t *at(const json_t *o, const char *a, const char *b)
{
    const json_t *v = json_object_get(json_object_get(o, a), b);
    if (!v) fail_msg("%s.%s is missing", a, b);
    return v;
}

static void json_holds_the_figures(void **state)
{
    fixture *x = *state;
    scratch_dir dir;
    char path[sizeof dir.path + 16];
    scratch_dir_open(&dir);
    snprintf(path, sizeof path, "%s/out.json", dir.path);
    for (uint32_t n = 1; n <= N_ARMS; n += N_ARMS - 1) {
        const cn_compare_report r = report_of(x, n);
        assert_int_equal(cn_compare_write_json(&r, path), CN_OK);
        json_t *json = json_load_file(path, 0, NULL);
        assert_non_null(json);
        assert_int_equal(json_is_true(json_object_get(json, "complete")), n == N_ARMS);
        const json_t *task = json_array_get(json_object_get(json, "tasks"), 0);
        const json_t *arms = json_object_get(task, "arms");
        assert_int_equal(json_array_size(arms), n);
        for (uint32_t a = 0; a < n; a++) {
            const cn_compare_figures *f = &x->figures[a];
            const json_t *arm = json_array_get(arms, a);
            assert_int_equal(json_integer_value(at(arm, "exact_match", "matched")), f->matched);
            assert_int_equal(json_integer_value(at(arm, "agreement", "audited_tokens")),
                             f->agreement.tokens);
            assert_int_equal(json_integer_value(at(arm, "kv_memory", "evicted")),
                             f->evicted_tokens);
            assert_true(fabs(json_real_value(at(arm, "agreement", "logprob_gap_per_token")) -
                             cn_agreement_gap(&f->agreement)) < 1e-6);
        }
        json_decref(json);
    }
    const cn_compare_report r = report_of(x, 1);
    assert_int_equal(cn_compare_write_json(&r, "/nowhere/out.json"), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "/nowhere/out.json"));
    scratch_dir_put(&dir, "out.json", NULL, 0);
    scratch_dir_close(&dir);
}

static void the_table_has_a_row_per_arm_in_columns(void **state)
{
    fixture *x = *state;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    const cn_compare_report r = report_of(x, N_ARMS);
    cn_compare_print(f, &r, 0);
    fclose(f);
    uint32_t rows = 0;
    size_t width = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (line[0] != '|') continue;
        if (rows++ == 0) width = strlen(line);
        assert_int_equal(strlen(line), width);
    }
    assert_int_equal(rows, N_ARMS + 2);
    free(text);
}

/* The caller frees it. */
static char *table_text(const cn_compare_report *r)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    cn_compare_print(f, r, 0);
    fclose(f);
    return text;
}

/* The longest line of the table; *n_titles counts its columns. */
static size_t table_width(const cn_compare_report *r, uint32_t *n_titles)
{
    char *text = table_text(r);
    size_t width = 0;
    *n_titles = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strlen(line) > width) width = strlen(line);
        if (strncmp(line, "| arm ", 6) != 0) continue;
        for (const char *p = line; *p; p++) *n_titles += *p == '|';
        *n_titles -= 2; /* the label and the last line */
    }
    free(text);
    return width;
}

static void the_table_fits_100_columns_unless_wide(void **state)
{
    fixture *x = *state;
    uint32_t few, all;
    char *const label = x->arms.arms[1].label;
    char longest[] = "zip:384:window=48:redundancy=none:pooling=never:move=fill";
    const cn_compare_report r = report_of(x, N_ARMS);
    assert_true(table_width(&r, &few) <= 100);
    x->arms.arms[1].label = longest;
    assert_true(table_width(&r, &few) <= 100);
    assert_true(few >= 4);
    char *text = table_text(&r);
    assert_non_null(strstr(text, "| zip:384:window=48...:pooling=never:move=fill |"));
    free(text);
    x->config->wide = true;
    assert_true(table_width(&r, &all) > 150);
    assert_int_equal(all, 15);
    x->config->wide = false;
    x->arms.arms[1].label = label;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_kv_agrees_with_itself),
        cmocka_unit_test(a_cap_that_is_never_reached_changes_nothing),
        cmocka_unit_test(compression_shows_in_every_figure),
        cmocka_unit_test(an_audit_of_a_share_replays_whole_lines),
        cmocka_unit_test(a_refused_request_counts_as_wrong),
        cmocka_unit_test(a_line_too_long_for_full_kv_ends_nothing),
        cmocka_unit_test(json_holds_the_figures),
        cmocka_unit_test(the_table_has_a_row_per_arm_in_columns),
        cmocka_unit_test(the_table_fits_100_columns_unless_wide),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
