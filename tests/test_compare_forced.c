/* test_compare_forced.c - forced continuations: full KV agrees with itself and with a request of
 * its own, figures do not depend on the groups, and reports have the figures. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/compare/forced_report.h"
#include "engine/options/option_value.h"
#include "tests/lib/scratch_dir.h"

enum { N_DOCUMENTS = 4, N_ARMS = 5, BLOCK = 16 };
static const char STORIES[] = "examples/tiny-reasoner/prompts/story.jsonl";

typedef struct fixture {
    scratch_dir dir;
    char path[sizeof(scratch_dir) + 16];
    cn_config *config;
    cn_engine *engine;
    cn_compare_arms arms;
    cn_forced_task task;
    cn_forced_run *run;
    uint32_t n_groups;
} fixture;

static void set(cn_config *c, const char *name, const char *value)
{
    if (cn_option_set_text(c, cn_option_find_in(name, CN_SECTION_COMPARE), value) != CN_OK)
        fail_msg("%s", cn_last_error());
}

/* Writes documents whose prompt is a story and whose text is part of the next story. Their lengths
 * differ. */
static void write_documents(fixture *x)
{
    FILE *f = fopen(STORIES, "r");
    char *line = NULL, prompt[4096] = "";
    size_t cap = 0;
    cn_buf out = {0};
    assert_non_null(f);
    for (int i = 0; i <= N_DOCUMENTS; i++) {
        assert_true(getline(&line, &cap, f) > 0);
        json_t *story = json_loads(line, 0, NULL);
        const char *text = json_string_value(json_object_get(story, "prompt"));
        if (i > 0) {
            json_t *d = json_pack("{s:s, s:s, s:s%}", "id", i == 2 ? "two" : "other", "prompt",
                                  prompt, "text", text, (size_t)(60 + 20 * i));
            char *json = json_dumps(d, JSON_COMPACT);
            assert_int_equal(cn_buf_addf(&out, "%s\n", json), CN_OK);
            free(json);
            json_decref(d);
        }
        snprintf(prompt, sizeof prompt, "%s", text);
        json_decref(story);
    }
    free(line);
    fclose(f);
    scratch_dir_put(&x->dir, "in.jsonl", out.data, out.len);
    cn_buf_free(&out);
}

static void open_fixture(fixture *x, const char *option, const char *value)
{
    scratch_dir_open(&x->dir);
    snprintf(x->path, sizeof x->path, "%s/in.jsonl", x->dir.path);
    write_documents(x);
    cn_config *c = x->config = cn_config_create();
    assert_non_null(c);
    set(c, "model", "examples/tiny-reasoner");
    set(c, "prompt-field", "prompt");
    set(c, "continue-field", "text");
    set(c, "id-field", "id");
    set(c, "block-size", "16");
    set(c, "progress", "none");
    set(c, "arms", "window:64,zip:64:window=8,zip:1024");
    set(c, option, value);
    assert_int_equal(cn_compare_arms_parse(&x->arms, c->arms, c), CN_OK);
    assert_int_equal(cn_compare_arms_add_windows(&x->arms, c), CN_OK);
    assert_int_equal(x->arms.n, N_ARMS);
    assert_int_equal(cn_compare_arms_declare(&x->arms, c), CN_OK);
    if (cn_engine_create(&x->engine, c) != CN_OK) fail_msg("%s", cn_last_error());
    if (cn_forced_task_load(&x->task, x->engine, x->path) != CN_OK) fail_msg("%s", cn_last_error());
    assert_int_equal(x->task.n, N_DOCUMENTS);
    assert_int_equal(cn_forced_run_create(&x->run, x->engine, &x->arms, &x->task), CN_OK);
    for (; cn_forced_run_done(x->run) < x->task.n; x->n_groups++)
        if (cn_forced_run_group(x->run) != CN_OK) fail_msg("%s", cn_last_error());
}

static void close_fixture(fixture *x)
{
    cn_forced_run_free(x->run);
    cn_engine_free(x->engine);
    cn_forced_task_free(&x->task);
    cn_compare_arms_free(&x->arms);
    cn_config_free(x->config);
    scratch_dir_put(&x->dir, "in.jsonl", NULL, 0);
    scratch_dir_close(&x->dir);
}

static fixture shared;

static int setup(void **state)
{
    open_fixture(&shared, "limit", "4");
    *state = &shared;
    return 0;
}

static int teardown(void **state)
{
    close_fixture(*state);
    return 0;
}

static uint64_t forced_tokens(const fixture *x)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < N_DOCUMENTS; i++) n += x->task.documents[i].continuation.len - 1;
    return n;
}

static void one_group_has_all_documents(void **state)
{
    const fixture *x = *state;
    assert_int_equal(x->n_groups, 1);
    assert_string_equal(x->task.documents[1].id, "two");
    for (uint32_t a = 0; a < N_ARMS; a++) {
        const cn_forced_figures *f = cn_forced_run_figures(x->run, a);
        assert_int_equal(f->tokens, forced_tokens(x));
        assert_true(f->timed_tokens > 0 && f->timed_s > 0);
    }
}

typedef struct sums {
    double nll;
    uint32_t n;
} sums;

static void add_logprobs(void *user, const cn_event *ev)
{
    sums *s = user;
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        if (s->n++ > 0) s->nll -= (double)ev->logprobs[i].chosen.logprob;
}

/* A request of its own with the text of prompt and continuation as tokens has the same NLL. */
static void full_kv_has_the_likelihood_of_a_request(void **state)
{
    const fixture *x = *state;
    for (uint32_t i = 0; i < N_DOCUMENTS; i++) {
        const cn_forced_document *d = &x->task.documents[i];
        cn_request_params p = {.tokens = d->prompt.ids, .n_tokens = d->prompt.len,
                               .forced = d->continuation.ids, .n_forced = d->continuation.len,
                               .enable_thinking = -1};
        cn_engine_default_sampling(x->engine, &p.sampling);
        p.sampling.temperature = 0;
        p.sampling.max_tokens = (uint32_t)d->continuation.len;
        p.sampling.ignore_eos = true;
        p.sampling.logprobs = 0;
        cn_engine_default_kv(x->engine, &p.kv);
        p.kv.policy = CN_KV_FULL;
        sums s = {0};
        assert_int_equal(cn_engine_submit(x->engine, &p, add_logprobs, &s, NULL), CN_OK);
        for (bool idle = false; !idle;) assert_int_equal(cn_engine_step(x->engine, &idle), CN_OK);
        assert_int_equal(s.n, d->continuation.len);
        const double nll = cn_forced_run_figures(x->run, 0)->scores[i].nll;
        assert_true(fabs(nll - s.nll / (s.n - 1)) < 1e-6);
    }
}

static void full_kv_agrees_with_itself(void **state)
{
    const fixture *x = *state;
    const cn_forced_figures *f = cn_forced_run_figures(x->run, 0);
    const cn_forced_summary m = cn_forced_run_summary(x->run, 0, 0);
    assert_int_equal(f->kv.policy, CN_KV_FULL);
    assert_int_equal(f->same_best, f->tokens);
    assert_int_equal(f->compressions + f->evicted_tokens, 0);
    assert_true(m.delta == 0 && m.delta_error == 0);
    assert_true(isfinite(m.nll) && m.nll > 0);
}

static void a_cap_that_is_never_reached_changes_nothing(void **state)
{
    const fixture *x = *state;
    const cn_forced_figures *f = cn_forced_run_figures(x->run, 3);
    assert_int_equal(f->kv.budget_tokens, 1024);
    assert_int_equal(f->same_best, f->tokens);
    assert_true(cn_forced_run_summary(x->run, 3, 0).delta == 0);
}

static void compression_shows_in_the_figures(void **state)
{
    const fixture *x = *state;
    for (uint32_t a = 1; a <= 2; a++) {
        const cn_forced_figures *f = cn_forced_run_figures(x->run, a);
        const cn_forced_summary m = cn_forced_run_summary(x->run, a, 0);
        assert_true(f->compressions >= N_DOCUMENTS && f->evicted_tokens > 0);
        assert_true(f->same_best < f->tokens);
        assert_true(m.delta > 0 && m.delta_error > 0);
    }
}

static void summaries_are_means_and_paired_errors(void **state)
{
    const fixture *x = *state;
    const cn_forced_score *full = cn_forced_run_figures(x->run, 0)->scores;
    const cn_forced_score *own = cn_forced_run_figures(x->run, 1)->scores;
    double nll = 0, delta = 0, squares = 0;
    uint64_t same = 0;
    for (uint32_t i = 0; i < N_DOCUMENTS; i++) {
        nll += own[i].nll;
        delta += own[i].nll - full[i].nll;
        same += own[i].same_best;
        assert_int_equal(own[i].tokens, x->task.documents[i].continuation.len - 1);
    }
    for (uint32_t i = 0; i < N_DOCUMENTS; i++)
        squares += pow(own[i].nll - full[i].nll - delta / N_DOCUMENTS, 2);
    const cn_forced_summary m = cn_forced_run_summary(x->run, 1, 0);
    assert_true(fabs(m.nll - nll / N_DOCUMENTS) < 1e-12);
    assert_true(fabs(m.delta - delta / N_DOCUMENTS) < 1e-12);
    assert_true(fabs(m.delta_error - sqrt(squares / (N_DOCUMENTS - 1) / N_DOCUMENTS)) < 1e-12);
    assert_int_equal(cn_forced_run_figures(x->run, 1)->same_best, same);
}

static void zip_is_compared_with_the_window_of_its_budget(void **state)
{
    const fixture *x = *state;
    const cn_forced_score *window = cn_forced_run_figures(x->run, 1)->scores;
    const cn_forced_score *zip = cn_forced_run_figures(x->run, 2)->scores;
    double delta = 0, squares = 0;
    for (uint32_t i = 0; i < N_DOCUMENTS; i++) delta += (zip[i].nll - window[i].nll) / N_DOCUMENTS;
    for (uint32_t i = 0; i < N_DOCUMENTS; i++)
        squares += pow(zip[i].nll - window[i].nll - delta, 2);
    const cn_forced_summary m = cn_forced_run_summary(x->run, 2, x->arms.arms[2].baseline);
    assert_true(delta != 0 && fabs(m.delta - delta) < 1e-12);
    assert_true(fabs(m.delta_error - sqrt(squares / (N_DOCUMENTS - 1) / N_DOCUMENTS)) < 1e-12);
}

/* Only the arm that runs first computes the whole prompts. */
static void later_arms_find_the_prompts(void **state)
{
    const fixture *x = *state;
    assert_int_equal(cn_forced_run_figures(x->run, 0)->cached_tokens, 0);
    uint64_t whole_blocks = 0;
    for (uint32_t i = 0; i < N_DOCUMENTS; i++)
        whole_blocks += (x->task.documents[i].prompt.len - 1) / BLOCK * BLOCK;
    assert_int_equal(cn_forced_run_figures(x->run, 1)->cached_tokens, whole_blocks);
}

static void check_groups(const char *option, const char *value, uint32_t least, uint32_t most)
{
    fixture x = {0};
    open_fixture(&x, option, value);
    assert_in_range(x.n_groups, least, most);
    for (uint32_t a = 0; a < N_ARMS; a++) {
        const cn_forced_figures *f = cn_forced_run_figures(x.run, a);
        const cn_forced_figures *want = cn_forced_run_figures(shared.run, a);
        assert_memory_equal(f->scores, want->scores, N_DOCUMENTS * sizeof *f->scores);
    }
    close_fixture(&x);
}

static void figures_do_not_depend_on_the_groups(void **state)
{
    (void)state;
    check_groups("max-num-seqs", "3", 2, 2);
    check_groups("num-gpu-blocks-override", "180", 2, N_DOCUMENTS);
}

/* ---- reports ---- */

static cn_forced_report report_of(fixture *x)
{
    return (cn_forced_report){.config = x->config, .arms = &x->arms, .tasks = &x->task,
                              .runs = &x->run, .n_tasks = 1};
}

static void json_holds_the_figures(void **state)
{
    fixture *x = *state;
    char path[sizeof(scratch_dir) + 16];
    snprintf(path, sizeof path, "%s/out.json", x->dir.path);
    const cn_forced_report r = report_of(x);
    assert_int_equal(cn_forced_write_json(&r, path), CN_OK);
    json_t *json = json_load_file(path, 0, NULL);
    assert_true(json_is_true(json_object_get(json, "complete")));
    const json_t *task = json_array_get(json_object_get(json, "tasks"), 0);
    const json_t *documents = json_object_get(task, "documents");
    assert_int_equal(json_array_size(documents), N_DOCUMENTS);
    const char *id = json_string_value(json_object_get(json_array_get(documents, 1), "id"));
    assert_string_equal(id, "two");
    for (uint32_t a = 0; a < N_ARMS; a++) {
        const cn_forced_figures *f = cn_forced_run_figures(x->run, a);
        const json_t *arm = json_array_get(json_object_get(task, "arms"), a);
        const json_t *by = json_object_get(json_object_get(arm, "by_document"), "nll");
        assert_int_equal(json_array_size(by), N_DOCUMENTS);
        for (uint32_t i = 0; i < N_DOCUMENTS; i++)
            assert_true(fabs(json_real_value(json_array_get(by, i)) - f->scores[i].nll) < 1e-6);
        const double delta = json_real_value(json_object_get(arm, "nll_minus_full"));
        assert_true(fabs(delta - cn_forced_run_summary(x->run, a, 0).delta) < 1e-6);
        assert_int_equal(json_integer_value(json_object_get(arm, "tokens")), f->tokens);
        const uint32_t window = x->arms.arms[a].baseline;
        const json_t *to_window = json_object_get(arm, "nll_minus_window");
        assert_int_equal(to_window != NULL, window != 0);
        if (window)
            assert_true(fabs(json_real_value(to_window) -
                             cn_forced_run_summary(x->run, a, window).delta) < 1e-6);
    }
    json_decref(json);
    assert_int_equal(cn_forced_write_json(&r, "/nowhere/out.json"), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "/nowhere/out.json"));
    scratch_dir_put(&x->dir, "out.json", NULL, 0);
}

static void the_table_has_a_row_per_arm_in_columns(void **state)
{
    fixture *x = *state;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    const cn_forced_report r = report_of(x);
    cn_forced_print(f, &r, 0);
    fclose(f);
    assert_non_null(strstr(text, "in, 4 documents"));
    assert_non_null(strstr(text, " to window |"));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_group_has_all_documents),
        cmocka_unit_test(full_kv_agrees_with_itself),
        cmocka_unit_test(full_kv_has_the_likelihood_of_a_request),
        cmocka_unit_test(a_cap_that_is_never_reached_changes_nothing),
        cmocka_unit_test(compression_shows_in_the_figures),
        cmocka_unit_test(summaries_are_means_and_paired_errors),
        cmocka_unit_test(zip_is_compared_with_the_window_of_its_budget),
        cmocka_unit_test(later_arms_find_the_prompts),
        cmocka_unit_test(figures_do_not_depend_on_the_groups),
        cmocka_unit_test(json_holds_the_figures),
        cmocka_unit_test(the_table_has_a_row_per_arm_in_columns),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
