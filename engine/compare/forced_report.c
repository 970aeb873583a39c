/* forced_report.c - see forced_report.h. */
#include "engine/compare/forced_report.h"

#include <math.h>

#include "engine/base/json.h"
#include "engine/compare/text_table.h"

/* NAN without tokens. */
static double share_forced(const cn_forced_figures *f)
{
    return f->tokens ? (double)f->same_best / (double)f->tokens : (double)NAN;
}

static double forced_per_second(const cn_forced_figures *f)
{
    return f->timed_s > 0 ? (double)f->timed_tokens / f->timed_s : 0;
}

static double peak(const cn_forced_run *run, const cn_forced_figures *f)
{
    const uint32_t n = cn_forced_run_done(run);
    return n ? (double)f->peak_sum / n : 0;
}

/* The mean of a sum; NAN without units. */
static double mean(double sum, uint64_t n) { return n ? sum / (double)n : (double)NAN; }

/* ---- the table ---- */

/* The columns from MASS on are printed with --select-probe only. */
enum {
    NLL, DELTA, ERROR, TO_WINDOW, SAME_BEST, TOKENS, SPEED, PEAK, EVENTS, EVICTED, MASS, ORACLE,
    CHURN, N_COLUMNS
};

static const char *const titles[N_COLUMNS] = {
    [NLL] = "NLL",        [DELTA] = "to full",       [ERROR] = "error",  [TO_WINDOW] = "to window",
    [TOKENS] = "tokens",  [SAME_BEST] = "same best", [SPEED] = "tokens/s",
    [PEAK] = "KV peak",   [EVENTS] = "events",       [EVICTED] = "evicted",
    [MASS] = "mass",      [ORACLE] = "oracle",       [CHURN] = "churn",
};

/* The columns of --select-probe come before those of speed and memory: they were asked for. */
static const uint32_t by_importance[N_COLUMNS] = {
    NLL,   DELTA, ERROR, TO_WINDOW, SAME_BEST, MASS,  ORACLE,
    CHURN, SPEED, PEAK,  EVICTED,   TOKENS,    EVENTS};
static const uint32_t without_probe[MASS] = {NLL,   DELTA, ERROR,   TO_WINDOW, SAME_BEST,
                                             SPEED, PEAK,  EVICTED, TOKENS,    EVENTS};

typedef struct task_table {
    const cn_forced_report *r;
    const cn_forced_run *run;
} task_table;

static void put_share(char *s, double value)
{
    snprintf(s, CN_TEXT_CELL_BYTES, isnan(value) ? "-" : "%.2f %%", 100 * value);
}

/* The paired difference of a zip arm to the window arm of its budget, and its error. */
static void put_to_window(char *s, const task_table *t, uint32_t arm)
{
    const uint32_t window = t->r->arms->arms[arm].baseline;
    const cn_forced_summary m = cn_forced_run_summary(t->run, arm, window);
    if (window)
        snprintf(s, CN_TEXT_CELL_BYTES, "%+.4f (%.4f)", m.delta, m.delta_error);
    else
        snprintf(s, CN_TEXT_CELL_BYTES, "-");
}

static void put_mean(char *s, double value)
{
    snprintf(s, CN_TEXT_CELL_BYTES, isnan(value) ? "-" : "%.3f", value);
}

static void cell(const void *table, uint32_t row, uint32_t column, char *s)
{
    const task_table *t = table;
    const cn_forced_figures *f = cn_forced_run_figures(t->run, row);
    const cn_forced_summary m = cn_forced_run_summary(t->run, row, 0);
    const size_t n = CN_TEXT_CELL_BYTES;
    switch (column) {
    case NLL: snprintf(s, n, "%.4f", m.nll); break;
    case DELTA: snprintf(s, n, row ? "%+.4f" : "-", m.delta); break;
    case ERROR: snprintf(s, n, row ? "%.4f" : "-", m.delta_error); break;
    case TO_WINDOW: put_to_window(s, t, row); break;
    case SAME_BEST: put_share(s, share_forced(f)); break;
    case TOKENS: snprintf(s, n, "%llu", (unsigned long long)f->tokens); break;
    case SPEED: snprintf(s, n, "%.0f", forced_per_second(f)); break;
    case PEAK: snprintf(s, n, "%.0f", peak(t->run, f)); break;
    case EVENTS: snprintf(s, n, "%llu", (unsigned long long)f->compressions); break;
    case EVICTED: snprintf(s, n, "%llu", (unsigned long long)f->evicted_tokens); break;
    case MASS: put_mean(s, mean(f->selection.mass, f->selection.units)); break;
    case ORACLE: put_mean(s, mean(f->selection.overlap, f->selection.units)); break;
    default: put_mean(s, mean(f->selection.churn, f->selection.n_churn)); break;
    }
}

void cn_forced_print(FILE *f, const cn_forced_report *r, uint32_t task)
{
    const task_table t = {r, r->runs[task]};
    const uint32_t n_columns = r->config->select_probe ? N_COLUMNS : MASS;
    const uint32_t n_done = cn_forced_run_done(t.run);
    fprintf(f, "\n%s, %u %s\n\n", r->tasks[task].name, n_done,
            n_done == 1 ? "document" : "documents");
    const uint32_t *importance = r->config->select_probe ? by_importance : without_probe;
    cn_text_table_print(f, &(cn_text_table){.titles = titles, .n_columns = n_columns,
                                            .n_rows = r->arms->n,
                                            .by_importance = r->config->wide ? NULL : importance,
                                            .arms = r->arms->arms, .data = &t, .cell = cell});
}

/* ---- JSON ---- */

static json_t *documents_json(const cn_forced_task *t, const cn_forced_run *run)
{
    json_t *documents = json_array();
    for (uint32_t i = 0; i < cn_forced_run_done(run); i++) {
        const cn_forced_document *d = &t->documents[i];
        json_array_append_new(
            documents, json_pack("{s:s, s:I, s:I, s:I}", "id", d->id, "line", (json_int_t)d->line,
                                 "prompt_tokens", (json_int_t)d->prompt.len,
                                 "continuation_tokens", (json_int_t)d->continuation.len));
    }
    return documents;
}

/* null without a value. */
static json_t *mean_json(double value) { return isnan(value) ? json_null() : json_real(value); }

static void add_selection_json(json_t *arm, const cn_select_figures *f)
{
    json_object_set_new(arm, "recalled_mass", mean_json(mean(f->mass, f->units)));
    json_object_set_new(arm, "oracle_overlap", mean_json(mean(f->overlap, f->units)));
    json_object_set_new(arm, "churn", mean_json(mean(f->churn, f->n_churn)));
    json_object_set_new(arm, "probed_steps", json_integer((json_int_t)f->steps));
}

/* Only for a zip arm beside the window arm of its budget. */
static void add_window_json(json_t *json, const cn_forced_run *run, uint32_t arm, uint32_t window)
{
    if (!window) return;
    const cn_forced_summary m = cn_forced_run_summary(run, arm, window);
    json_object_set_new(json, "nll_minus_window", json_real(m.delta));
    json_object_set_new(json, "window_standard_error", json_real(m.delta_error));
}

static json_t *forced_arm_json(const cn_forced_report *r, const cn_forced_run *run, uint32_t arm)
{
    const cn_forced_figures *f = cn_forced_run_figures(run, arm);
    const cn_forced_summary m = cn_forced_run_summary(run, arm, 0);
    json_t *nll = json_array(), *same_best = json_array();
    for (uint32_t i = 0; i < cn_forced_run_done(run); i++) {
        const cn_forced_score *s = &f->scores[i];
        json_array_append_new(nll, json_real(s->nll));
        json_array_append_new(same_best, json_real((double)s->same_best / s->tokens));
    }
    json_t *json = json_pack(
        "{s:s, s:o, s:f, s:f, s:f, s:o, s:I, s:I, s:f, s:f, s:I, s:I, s:{s:o, s:o}}", "arm",
        r->arms->arms[arm].label, "kv", cn_kv_params_json(&f->kv), "nll", m.nll, "nll_minus_full",
        m.delta, "standard_error", m.delta_error, "same_best_share", mean_json(share_forced(f)),
        "tokens", (json_int_t)f->tokens, "cached_prompt_tokens", (json_int_t)f->cached_tokens,
        "tokens_per_s", forced_per_second(f), "peak_tokens_mean", peak(run, f), "compressions",
        (json_int_t)f->compressions, "evicted", (json_int_t)f->evicted_tokens, "by_document", "nll",
        nll, "same_best_share", same_best);
    add_window_json(json, run, arm, r->arms->arms[arm].baseline);
    if (r->config->select_probe) add_selection_json(json, &f->selection);
    return json;
}

static json_t *forced_report_json(const cn_forced_report *r)
{
    json_t *tasks = json_array();
    bool complete = true;
    for (uint32_t t = 0; t < r->n_tasks; t++) {
        const cn_forced_task *task = &r->tasks[t];
        const cn_forced_run *run = r->runs[t];
        complete = complete && run && cn_forced_run_done(run) == task->n;
        if (!run) continue;
        json_t *arms = json_array();
        for (uint32_t a = 0; a < r->arms->n; a++)
            json_array_append_new(arms, forced_arm_json(r, run, a));
        json_array_append_new(
            tasks, json_pack("{s:s, s:s, s:o, s:o}", "task", task->name, "input", task->path,
                             "documents", documents_json(task, run), "arms", arms));
    }
    return json_pack("{s:s, s:s, s:b, s:o}", "version", CINCH_VERSION, "model", r->config->model,
                     "complete", complete, "tasks", tasks);
}

cn_status cn_forced_write_json(const cn_forced_report *r, const char *path)
{
    return cn_json_write_file(forced_report_json(r), path);
}
