/* compare_report.c - see compare_report.h. */
#include "engine/compare/compare_report.h"

#include <math.h>

#include "compress/policy.h"
#include "engine/base/json.h"
#include "engine/compare/text_table.h"

static const cn_compare_figures *figures_of(const cn_compare_report *r, uint32_t task, uint32_t arm)
{
    const uint32_t i = task * r->arms->n + arm;
    return i < r->n_done ? &r->figures[i] : NULL;
}

static double compare_per_second(const cn_compare_figures *f)
{
    return f->elapsed_s > 0 ? (double)f->output_tokens / f->elapsed_s : 0;
}

/* ---- the table ---- */

/* REFUSED is only printed when lines were refused. */
enum {
    EXACT, INTERVAL, SAME_OUTPUT, DIVERGES, SAME_BEST, GAP, SPEED, SPEED_UP, PEAK, HELD, EVENTS,
    EVICTED, FREED, RUNNING, PREEMPTED, REFUSED, N_COLUMNS
};

static const char *const titles[N_COLUMNS] = {
    [EXACT] = "exact",         [INTERVAL] = "95 %",      [SAME_OUTPUT] = "same output",
    [DIVERGES] = "diverges at", [SAME_BEST] = "same best", [GAP] = "gap/token",
    [SPEED] = "tokens/s",      [SPEED_UP] = "speed-up",  [PEAK] = "KV peak",
    [HELD] = "KV held",        [EVENTS] = "events",      [EVICTED] = "evicted",
    [FREED] = "MiB freed",     [RUNNING] = "running",    [PREEMPTED] = "preempted",
    [REFUSED] = "refused",
};

/* What was refused, quality, speed, memory, and then the rest. */
static const uint32_t by_importance[N_COLUMNS] = {
    REFUSED,     EXACT,  INTERVAL, SAME_BEST, SPEED, SPEED_UP, PEAK,      EVICTED,
    SAME_OUTPUT, EVENTS, DIVERGES, GAP,       HELD,  RUNNING,  PREEMPTED, FREED};

typedef struct task_table {
    const cn_compare_report *r;
    uint32_t task;
} task_table;

/* "-" where nothing was graded, compared or replayed. */
static void put_quality(char *s, const cn_compare_figures *f, uint32_t column)
{
    const size_t n = CN_TEXT_CELL_BYTES;
    const double share = cn_agreement_share(&f->agreement), gap = cn_agreement_gap(&f->agreement);
    snprintf(s, n, "-");
    if (column == EXACT && f->graded) snprintf(s, n, "%u/%u", f->matched, f->graded);
    if (column == INTERVAL && f->graded)
        snprintf(s, n, "%.1f-%.1f %%", 100 * f->low, 100 * f->high);
    if (column == SAME_OUTPUT && f->compared) snprintf(s, n, "%u", f->identical);
    if (column == DIVERGES && f->identical < f->compared)
        snprintf(s, n, "%u", f->median_divergence);
    if (column == SAME_BEST && !isnan(share)) snprintf(s, n, "%.2f %%", 100 * share);
    if (column == GAP && !isnan(gap)) snprintf(s, n, "%.4f", gap);
}

static void table_cell(const void *table, uint32_t row, uint32_t column, char *s)
{
    const task_table *t = table;
    const cn_compare_figures *f = figures_of(t->r, t->task, row);
    const size_t n = CN_TEXT_CELL_BYTES;
    switch (column) {
    case SPEED: snprintf(s, n, "%.0f", compare_per_second(f)); break;
    case SPEED_UP: snprintf(s, n, "%.2f", f->speedup); break;
    case PEAK: snprintf(s, n, "%.0f", f->peak_tokens); break;
    case HELD: snprintf(s, n, "%.0f", f->held_tokens); break;
    case EVENTS: snprintf(s, n, "%llu", (unsigned long long)f->compressions); break;
    case EVICTED: snprintf(s, n, "%llu", (unsigned long long)f->evicted_tokens); break;
    case FREED: snprintf(s, n, "%.1f", (double)f->freed_bytes / (1 << 20)); break;
    case RUNNING: snprintf(s, n, "%.1f", f->running); break;
    case PREEMPTED: snprintf(s, n, "%llu", (unsigned long long)f->preemptions); break;
    case REFUSED: snprintf(s, n, "%u", f->refused); break;
    default: put_quality(s, f, column); break;
    }
}

void cn_compare_print(FILE *f, const cn_compare_report *r, uint32_t task)
{
    const cn_compare_figures *arm;
    uint32_t n_rows = 0, n_refused = 0;
    for (; n_rows < r->arms->n && (arm = figures_of(r, task, n_rows)); n_rows++)
        n_refused += arm->refused;
    const uint32_t n_hidden = n_refused == 0; /* the last column, which is the most important */
    fprintf(f, "\n%s, %u prompts\n\n", r->tasks[task].name, r->tasks[task].n);
    const task_table t = {r, task};
    const uint32_t *importance = r->config->wide ? NULL : by_importance + n_hidden;
    cn_text_table_print(f, &(cn_text_table){.titles = titles, .n_columns = N_COLUMNS - n_hidden,
                                            .n_rows = n_rows, .by_importance = importance,
                                            .arms = r->arms->arms, .data = &t, .cell = table_cell});
}

/* ---- files ---- */

static json_t *match_json(const cn_compare_figures *f)
{
    if (f->graded == 0) return json_null();
    return json_pack("{s:I, s:I, s:f, s:f, s:f}", "matched", (json_int_t)f->matched, "of",
                     (json_int_t)f->graded, "share", (double)f->matched / f->graded, "low_95",
                     f->low, "high_95", f->high);
}

/* Without tokens, share and gap are null; without outputs that differ, the median is. */
static json_t *agreement_json(const cn_compare_figures *f)
{
    const cn_agreement *a = &f->agreement;
    const bool differs = f->identical < f->compared;
    json_t *median = differs ? json_integer((json_int_t)f->median_divergence) : NULL;
    return json_pack("{s:I, s:I, s:o?, s:I, s:I, s:I, s:o?, s:o?}", "compared_outputs",
                     (json_int_t)f->compared, "identical_outputs", (json_int_t)f->identical,
                     "median_first_divergence", median,
                     "audited_outputs", (json_int_t)a->outputs, "refused_replays",
                     (json_int_t)f->refused_replays, "audited_tokens", (json_int_t)a->tokens,
                     "same_best_share",
                     json_real(cn_agreement_share(a)), "logprob_gap_per_token",
                     json_real(cn_agreement_gap(a)));
}

static json_t *memory_json(const cn_compare_figures *f)
{
    return json_pack("{s:f, s:I, s:f, s:I, s:I, s:I}", "peak_tokens_mean", f->peak_tokens,
                     "peak_tokens_max", (json_int_t)f->max_peak_tokens, "held_tokens_mean",
                     f->held_tokens, "compressions", (json_int_t)f->compressions, "evicted",
                     (json_int_t)f->evicted_tokens, "freed_bytes", (json_int_t)f->freed_bytes);
}

static json_t *arm_json(const char *label, const cn_compare_figures *f)
{
    return json_pack("{s:s, s:o, s:I, s:I, s:o, s:o, s:I, s:I, s:f, s:f, s:f, s:o, s:f, s:I, s:I}",
                     "arm", label, "kv", cn_kv_params_json(&f->kv), "prompts",
                     (json_int_t)f->prompts, "refused", (json_int_t)f->refused, "exact_match",
                     match_json(f), "agreement", agreement_json(f), "prompt_tokens",
                     (json_int_t)f->prompt_tokens, "output_tokens", (json_int_t)f->output_tokens,
                     "elapsed_s", f->elapsed_s, "output_tokens_per_s", compare_per_second(f),
                     "speedup_over_full", f->speedup, "kv_memory", memory_json(f),
                     "mean_concurrency", f->running, "preemptions", (json_int_t)f->preemptions,
                     "recomputed_tokens", (json_int_t)f->recomputed_tokens);
}

static json_t *report_json(const cn_compare_report *r)
{
    json_t *tasks = json_array();
    for (uint32_t t = 0; t < r->n_tasks && figures_of(r, t, 0); t++) {
        json_t *arms = json_array();
        for (uint32_t a = 0; a < r->arms->n && figures_of(r, t, a); a++)
            json_array_append_new(arms, arm_json(r->arms->arms[a].label, figures_of(r, t, a)));
        json_array_append_new(tasks, json_pack("{s:s, s:s, s:o}", "task", r->tasks[t].name,
                                               "input", r->tasks[t].path, "arms", arms));
    }
    return json_pack("{s:s, s:s, s:b, s:o}", "version", CINCH_VERSION, "model", r->config->model,
                     "complete", r->n_done == r->n_tasks * r->arms->n, "tasks", tasks);
}

cn_status cn_compare_write_json(const cn_compare_report *r, const char *path)
{
    return cn_json_write_file(report_json(r), path);
}
