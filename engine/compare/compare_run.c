/* compare_run.c - see compare_run.h. */
#include "engine/compare/compare_run.h"

#include <stdlib.h>

#include "engine/engine_probe.h"
#include "engine/offline/grade.h"
#include "engine/offline/progress.h"

/* One line's output under one arm. */
typedef struct output {
    cn_compare_run *run;
    cn_transcript said;
    cn_buf text;
    size_t answer_at; /* byte of the text where the answer begins */
    cn_usage usage;
    uint32_t n_replayed;
    bool refused;
} output;

struct cn_compare_run {
    cn_engine *engine;
    const cn_compare_task *task;
    output *full, *other; /* [task->n] of full KV (kept); of the current arm */
    bool has_full;

    /* The current pass. */
    output *outputs;
    bool replays;
    cn_agreement agreement;
    uint32_t n_done, n_replays_refused;
    const char *label;                              /* of the current arm */
    uint64_t most_tokens;                           /* of a line */
    uint64_t ended_tokens;                          /* of lines that have ended */
    cn_status status;                               /* the last error of a callback */
    uint64_t n_steps, running_sum, held_blocks_sum; /* over steps that had a running request */
    cn_stats before;
    double full_tokens_per_s;
};

/* ---- one pass over the lines ---- */

static void on_compare_event(void *user, const cn_event *ev)
{
    output *o = user;
    cn_compare_run *r = o->run;
    cn_status status = CN_OK;
    if (r->replays) {
        cn_audit_add(&r->agreement, &o->said, &o->n_replayed, ev);
    } else {
        status = cn_transcript_add(&o->said, ev);
        if (status == CN_OK) status = cn_buf_add(&o->text, ev->text, ev->text_len);
        if (ev->usage) o->usage = *ev->usage;
        o->answer_at = ev->answer_at;
    }
    if (ev->finish == CN_FINISH_ERROR) status = cn_fail(CN_ERR_DEVICE, "%s", ev->error);
    if (status != CN_OK) r->status = status;
    if (ev->usage) r->ended_tokens += ev->usage->completion_tokens;
    if (ev->last) r->n_done++;
}

static bool same_tokens(const cn_transcript *a, const cn_transcript *b)
{
    return a->n == b->n && memcmp(a->tokens, b->tokens, a->n * sizeof *a->tokens) == 0;
}

static bool is_audited(const cn_compare_run *r, uint32_t i)
{
    const cn_config *c = cn_engine_config(r->engine);
    const cn_id *id = &r->task->items[i].id;
    return cn_audit_picks(c->compare_audit_percent, c->seed, id, sizeof *id);
}

/* True if both full KV and the current arm have generated an output of line i. */
static bool has_outputs(const cn_compare_run *r, uint32_t i)
{
    return !r->outputs[i].refused && !r->full[i].refused;
}

/* True if line i takes part in the pass. */
static bool has_work(const cn_compare_run *r, uint32_t i)
{
    if (!r->replays) return true;
    return has_outputs(r, i) && is_audited(r, i) &&
           !same_tokens(&r->outputs[i].said, &r->full[i].said);
}

static cn_request_params params_of(const cn_compare_task *t, const cn_kv_params *kv, uint32_t i)
{
    cn_request_params p = t->items[i].request.params;
    p.kv = *kv;
    p.sampling.logprobs = CN_AUDIT_LOGPROBS;
    return p;
}

/* Submits line i. CN_ERR_BUSY: it has to wait. A line that the engine rejects counts as refused; in
 * the second pass it keeps its output and lacks only the replay. */
static cn_status submit_compared_line(cn_compare_run *r, const cn_kv_params *kv, uint32_t i)
{
    output *o = &r->outputs[i];
    cn_request_params p = params_of(r->task, kv, i);
    if (r->replays) cn_audit_params(&p, &o->said);
    cn_status status = cn_engine_submit(r->engine, &p, on_compare_event, o, NULL);
    if (status != CN_ERR_ARG) return status;
    cn_log(CN_LOG_WARN, "%s: line %llu: %s%s", r->task->path,
           (unsigned long long)r->task->items[i].line,
           r->replays ? "not replayed with full KV: " : "", cn_last_error());
    if (r->replays)
        r->n_replays_refused++;
    else
        o->refused = true;
    r->n_done++;
    return CN_OK;
}

static void meter(cn_compare_run *r, cn_progress *progress)
{
    cn_stats s;
    cn_engine_stats(r->engine, &s);
    if (s.running) {
        r->n_steps++;
        r->running_sum += s.running;
        r->held_blocks_sum += s.blocks_used;
    }
    if (!cn_progress_is_due(progress)) return;
    s.generation_tokens -= r->before.generation_tokens;
    cn_progress_figures g = {.read = r->task->n,
                             .done = r->n_done,
                             .answered_now = r->n_done,
                             .input_ended = true,
                             .most_tokens = r->most_tokens,
                             .running_tokens = s.generation_tokens - r->ended_tokens,
                             .doing = r->label,
                             .stats = s};
    cn_progress_show(progress, &g);
}

static cn_status run_pass(cn_compare_run *r, output *outputs, const cn_kv_params *kv, bool replays)
{
    const uint32_t n = r->task->n;
    r->outputs = outputs;
    r->replays = replays;
    r->n_done = r->n_replays_refused = 0;
    r->ended_tokens = 0;
    r->n_steps = r->running_sum = r->held_blocks_sum = 0;
    cn_engine_stats(r->engine, &r->before);
    cn_progress progress;
    cn_progress_begin(&progress, cn_engine_config(r->engine)->progress, stderr);
    cn_status status = CN_OK;
    for (uint32_t next = 0; status == CN_OK && r->n_done < n;) {
        for (; next < n && status == CN_OK; next++) {
            if (has_work(r, next))
                status = submit_compared_line(r, kv, next);
            else
                r->n_done++;
            if (status == CN_ERR_BUSY) break;
        }
        if (status == CN_ERR_BUSY) status = CN_OK;
        bool idle;
        if (status == CN_OK) status = cn_engine_step(r->engine, &idle);
        if (status == CN_OK) status = r->status;
        meter(r, &progress);
    }
    cn_progress_end(&progress);
    return status;
}

static cn_status check_arm(cn_engine *e, const cn_compare_task *t, const cn_compare_arm *arm)
{
    cn_status status = CN_ERR_ARG;
    for (uint32_t i = 0; i < t->n && status == CN_ERR_ARG; i++) {
        const cn_request_params p = params_of(t, &arm->kv, i);
        status = cn_engine_check_request(e, &p);
    }
    if (status != CN_ERR_ARG || t->n == 0) return t->n ? status : CN_OK;
    return cn_fail_within(status, "%s: arm %s: the engine refuses all %u lines, the last because",
                          t->path, arm->label, t->n);
}

cn_status cn_compare_check_arms(cn_engine *e, const cn_compare_task *t, const cn_compare_arms *arms)
{
    for (uint32_t a = 0; a < arms->n; a++) CN_TRY(check_arm(e, t, &arms->arms[a]));
    return CN_OK;
}

/* ---- figures ---- */

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t first_difference(const cn_transcript *a, const cn_transcript *b)
{
    const uint32_t n = cn_min_u32(a->n, b->n);
    uint32_t i = 0;
    while (i < n && a->tokens[i] == b->tokens[i]) i++;
    return i;
}

/* Counts the outputs equal to full KV's, finds the median of the first differences of the others,
 * and adds the agreement of the audited equal outputs, which are not replayed. */
static cn_status compare_tokens(cn_compare_run *r, cn_compare_figures *f)
{
    const uint32_t n = r->task->n;
    uint32_t *at = cn_calloc(n, sizeof *at), n_parted = 0;
    if (!at) return cn_fail(CN_ERR_MEMORY, "out of memory for %u lines", n);
    for (uint32_t i = 0; i < n; i++) {
        const cn_transcript *own = &r->outputs[i].said, *full = &r->full[i].said;
        if (!has_outputs(r, i)) continue;
        f->compared++;
        if (!same_tokens(own, full)) {
            at[n_parted++] = first_difference(own, full);
            continue;
        }
        f->identical++;
        if (is_audited(r, i)) cn_agreement_between(&r->agreement, own, full);
    }
    qsort(at, n_parted, sizeof *at, compare_u32);
    f->median_divergence = n_parted ? at[n_parted / 2] : 0;
    cn_free(at);
    return CN_OK;
}

static void grade(const cn_compare_run *r, cn_compare_figures *f)
{
    const cn_config *c = cn_engine_config(r->engine);
    for (uint32_t i = 0; c->grade != CN_OPT_GRADE_NONE && i < r->task->n; i++) {
        const output *o = &r->outputs[i];
        f->graded++;
        f->matched += !o->refused && o->text.data &&
                      cn_grade(c->grade, o->text.data + o->answer_at, o->text.len - o->answer_at,
                               r->task->items[i].reference);
    }
    cn_grade_interval(f->matched, f->graded, &f->low, &f->high);
}

static void add_usage(const cn_compare_run *r, cn_compare_figures *f)
{
    double peak_sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->task->n; i++) {
        const output *o = &r->outputs[i];
        f->refused += o->refused;
        if (o->refused) continue;
        const cn_kv_usage *kv = &o->usage.kv;
        n++;
        f->kv = kv->params;
        f->prompt_tokens += o->usage.prompt_tokens;
        f->output_tokens += o->usage.completion_tokens;
        f->preemptions += o->usage.preemptions;
        f->recomputed_tokens += o->usage.recomputed_tokens;
        f->compressions += kv->compressions;
        f->evicted_tokens += kv->evicted;
        f->freed_bytes += kv->freed_bytes;
        f->max_peak_tokens = cn_max_u32(f->max_peak_tokens, kv->peak_tokens);
        peak_sum += kv->peak_tokens;
    }
    f->peak_tokens = n ? peak_sum / n : 0;
}

/* Checks that the sums over the requests' usage equal the engine's counters. */
static cn_status check_totals(const cn_compare_run *r, const cn_compare_figures *f)
{
    cn_stats now;
    cn_engine_stats(r->engine, &now);
    const cn_stats *b = &r->before;
    if (now.compressions - b->compressions == f->compressions &&
        now.evicted_tokens - b->evicted_tokens == f->evicted_tokens &&
        now.freed_bytes - b->freed_bytes == f->freed_bytes &&
        now.preemptions - b->preemptions == f->preemptions &&
        now.generation_tokens - b->generation_tokens == f->output_tokens)
        return CN_OK;
    return cn_fail(CN_ERR_DEVICE, "usage and engine totals differ: %llu and %llu compressions",
                   (unsigned long long)f->compressions,
                   (unsigned long long)(now.compressions - b->compressions));
}

static void clear_outputs(cn_compare_run *r, output *outputs)
{
    for (uint32_t i = 0; i < r->task->n; i++) {
        cn_transcript_free(&outputs[i].said);
        cn_buf_free(&outputs[i].text);
        outputs[i] = (output){.run = r};
    }
}

cn_status cn_compare_run_arm(cn_compare_run *r, const cn_compare_arm *arm, cn_compare_figures *out)
{
    const bool is_first = !r->has_full;
    CN_ASSERT(!is_first || arm->kv.policy == CN_KV_FULL);
    output *outputs = is_first ? r->full : r->other;
    clear_outputs(r, outputs);
    cn_compare_figures f = {.kv = arm->kv, .prompts = r->task->n};
    r->agreement = (cn_agreement){0};
    r->label = arm->label;

    const double began_s = cn_now_s();
    CN_TRY(run_pass(r, outputs, &arm->kv, false));
    f.elapsed_s = cn_now_s() - began_s;
    add_usage(r, &f);
    CN_TRY(check_totals(r, &f));
    const double steps = r->n_steps ? (double)r->n_steps : 1;
    const double block_tokens = cn_engine_block_tokens(r->engine);
    f.running = (double)r->running_sum / steps;
    if (r->running_sum)
        f.held_tokens = (double)r->held_blocks_sum * block_tokens / (double)r->running_sum;
    const double tokens_per_s = (double)f.output_tokens / f.elapsed_s;
    if (is_first) r->full_tokens_per_s = tokens_per_s;
    f.speedup = r->full_tokens_per_s > 0 ? tokens_per_s / r->full_tokens_per_s : 0;

    grade(r, &f);
    CN_TRY(compare_tokens(r, &f));
    if (!is_first) CN_TRY(run_pass(r, outputs, &arm->kv, true));
    f.agreement = r->agreement;
    f.refused_replays = r->n_replays_refused;
    r->has_full = true;
    *out = f;
    return CN_OK;
}

cn_status cn_compare_run_create(cn_compare_run **out, cn_engine *e, const cn_compare_task *task)
{
    cn_compare_run *r = cn_calloc(1, sizeof *r);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of memory for a comparison");
    *r = (cn_compare_run){.engine = e, .task = task};
    const uint32_t context = cn_engine_max_model_len(e);
    for (uint32_t i = 0; i < task->n; i++) {
        const uint32_t limit = task->items[i].request.params.sampling.max_tokens;
        r->most_tokens = cn_max_u32((uint32_t)r->most_tokens, limit ? limit : context);
    }
    r->full = cn_calloc(task->n, sizeof *r->full);
    r->other = cn_calloc(task->n, sizeof *r->other);
    if (!r->full || !r->other) {
        cn_compare_run_free(r);
        return cn_fail(CN_ERR_MEMORY, "out of memory for %u lines", task->n);
    }
    *out = r;
    return CN_OK;
}

void cn_compare_run_free(cn_compare_run *r)
{
    if (!r) return;
    if (r->full) clear_outputs(r, r->full);
    if (r->other) clear_outputs(r, r->other);
    cn_free(r->full);
    cn_free(r->other);
    cn_free(r);
}
