/* forced_run.c - see forced_run.h. */
#include "engine/compare/forced_run.h"

#include <math.h>

#include "compress/away.h"
#include "compress/policy.h"
#include "engine/offline/progress.h"

/* One document of the group under the current arm. */
typedef struct output {
    cn_forced_run *run;
    cn_transcript said;
    cn_usage usage;
} output;

struct cn_forced_run {
    cn_engine *engine;
    const cn_compare_arms *arms;
    const cn_forced_task *task;
    cn_forced_figures *figures; /* [arms->n] */
    cn_forced_figures *before;  /* [arms->n] the figures before the current group */
    uint32_t n_done;
    cn_progress progress;
    uint64_t tokens_total;  /* of all documents under all arms */
    uint64_t tokens_before; /* that the engine had generated before the first group */

    /* The current group, documents n_done to n_done + n_group. */
    output *full, *other; /* [task->n] arm 0; the current arm */
    output *outputs;      /* one of them */
    uint32_t n_group, n_begun, n_ended;
    uint32_t n_arms_done;              /* of the group */
    const char *label;                 /* of the current arm */
    double begun_s;                    /* when the last request had its first token */
    uint64_t n_tokens, n_tokens_begun; /* of all requests: now, and at begun_s */
    cn_status status;        /* the last error of a callback */
};

static void on_forced_event(void *user, const cn_event *ev)
{
    output *o = user;
    cn_forced_run *r = o->run;
    r->n_tokens += ev->n_tokens;
    if (o->said.n == 0 && ev->n_tokens && ++r->n_begun == r->n_group) {
        r->begun_s = cn_now_s();
        r->n_tokens_begun = r->n_tokens;
    }
    cn_status status = cn_transcript_add(&o->said, ev);
    if (ev->usage) o->usage = *ev->usage;
    if (ev->finish == CN_FINISH_ERROR) status = cn_fail(CN_ERR_DEVICE, "%s", ev->error);
    if (status != CN_OK) r->status = status;
    if (ev->last) r->n_ended++;
}

static cn_status submit_forced(cn_forced_run *r, const cn_compare_arm *arm, uint32_t i)
{
    const cn_forced_document *d = &r->task->documents[r->n_done + i];
    cn_request_params p = {
        .tokens = d->prompt.ids,
        .n_tokens = d->prompt.len,
        .enable_thinking = -1,
        .klass = CN_CLASS_BATCH,
    };
    const cn_transcript continuation = {.tokens = d->continuation.ids,
                                        .n = (uint32_t)d->continuation.len};
    cn_audit_params(&p, &continuation);
    p.kv = arm->kv;
    cn_status status = cn_engine_submit(r->engine, &p, on_forced_event, &r->outputs[i], NULL);
    if (status != CN_ERR_ARG) return status;
    return cn_fail_within(status, "%s: line %llu: arm %s", r->task->path,
                          (unsigned long long)d->line, arm->label);
}

static bool keeps_all(const cn_compare_arm *arm)
{
    return cn_policy_of(arm->kv.policy)->keep == CN_KEEP_ALL && !cn_kv_is_away(&arm->kv);
}

static void clear_forced(cn_forced_run *r, output *outputs)
{
    for (uint32_t i = 0; i < r->task->n; i++) {
        cn_transcript_free(&outputs[i].said);
        outputs[i] = (output){.run = r};
    }
}

static void show(cn_forced_run *r)
{
    if (!cn_progress_is_due(&r->progress)) return;
    const uint64_t n_arms = r->arms->n;
    const uint64_t done = r->n_done * n_arms + (uint64_t)r->n_arms_done * r->n_group + r->n_ended;
    cn_progress_figures g = {.read = r->task->n * n_arms,
                             .done = done,
                             .answered_now = done,
                             .input_ended = true,
                             .tokens_total = r->tokens_total,
                             .doing = r->label};
    cn_engine_stats(r->engine, &g.stats);
    g.stats.generation_tokens -= r->tokens_before;
    cn_progress_show(&r->progress, &g);
}

static cn_status run_requests(cn_forced_run *r, const cn_compare_arm *arm)
{
    r->n_begun = r->n_ended = 0;
    r->n_tokens = r->n_tokens_begun = 0;
    for (uint32_t next = 0; r->n_ended < r->n_group;) {
        cn_status status = CN_OK;
        while (next < r->n_group && (status = submit_forced(r, arm, next)) == CN_OK) next++;
        if (status != CN_ERR_BUSY) CN_TRY(status);
        bool idle;
        CN_TRY(cn_engine_step(r->engine, &idle));
        CN_TRY(r->status);
        show(r);
    }
    return CN_OK;
}

static cn_forced_score score_forced(const cn_transcript *said, const cn_transcript *full)
{
    cn_forced_score s = {.tokens = said->n - 1};
    for (uint32_t i = 1; i < said->n; i++) {
        s.nll -= (double)said->logprobs[i];
        s.same_best += said->best[i] == full->best[i];
    }
    s.nll /= s.tokens;
    return s;
}

static void add_figures(cn_forced_run *r, cn_forced_figures *f)
{
    for (uint32_t i = 0; i < r->n_group; i++) {
        const output *o = &r->outputs[i];
        cn_forced_score *s = &f->scores[r->n_done + i];
        *s = score_forced(&o->said, &r->full[i].said);
        f->tokens += s->tokens;
        f->same_best += s->same_best;
        f->kv = o->usage.kv.params;
        f->cached_tokens += o->usage.cached_tokens;
        f->compressions += o->usage.kv.compressions;
        f->evicted_tokens += o->usage.kv.evicted;
        f->peak_sum += o->usage.kv.peak_tokens;
    }
    f->timed_s += cn_now_s() - r->begun_s;
    f->timed_tokens += r->n_tokens - r->n_tokens_begun;
}

static void add_selection(cn_select_figures *f, const cn_select_figures *group)
{
    f->steps += group->steps;
    f->units += group->units;
    f->n_churn += group->n_churn;
    f->mass += group->mass;
    f->overlap += group->overlap;
    f->churn += group->churn;
}

/* The blocks that a document takes while its prompt stays in the prefix cache: its own tokens, and
 * the cap of an arm that copies what it keeps of shared blocks. */
static uint32_t blocks_of(const cn_forced_run *r, const cn_forced_document *d, uint32_t b)
{
    uint32_t most = 0;
    for (uint32_t a = 0; a < r->arms->n; a++) {
        cn_kv_params kv = r->arms->arms[a].kv;
        if (keeps_all(&r->arms->arms[a]) || cn_away_check(&kv, b) != CN_OK) continue;
        most = cn_max_u32(most, cn_away_n_max(&kv, b));
    }
    return (uint32_t)cn_ceil_div(d->prompt.len + d->continuation.len, b) + 1 + most;
}

static uint32_t forced_group_size(const cn_forced_run *r)
{
    cn_stats s;
    cn_engine_stats(r->engine, &s);
    const uint32_t left = r->task->n - r->n_done;
    const uint32_t most = cn_min_u32(left, cn_engine_config(r->engine)->max_num_seqs);
    uint64_t blocks = 0;
    uint32_t n = 0;
    for (; n < most; n++) {
        blocks += blocks_of(r, &r->task->documents[r->n_done + n], s.block_tokens);
        if (blocks > s.blocks_total) break;
    }
    return cn_max_u32(n, 1);
}

/* Runs the arms that keep all tokens, or the others. */
static cn_status run_forced_arms(cn_forced_run *r, bool keeping)
{
    for (uint32_t a = 0; a < r->arms->n; a++) {
        if (keeps_all(&r->arms->arms[a]) != keeping) continue;
        r->outputs = a == 0 ? r->full : r->other;
        r->label = r->arms->arms[a].label;
        clear_forced(r, r->outputs);
        CN_TRY(run_requests(r, &r->arms->arms[a]));
        r->n_arms_done++;
        r->n_ended = 0;
        add_figures(r, &r->figures[a]);
        const cn_select_figures selection = cn_engine_take_selection(r->engine);
        add_selection(&r->figures[a].selection, &selection);
    }
    return CN_OK;
}

cn_status cn_forced_run_group(cn_forced_run *r)
{
    r->n_group = forced_group_size(r);
    r->n_arms_done = 0;
    memcpy(r->before, r->figures, r->arms->n * sizeof *r->figures);
    /* A compression takes the blocks of the prompt out of the prefix cache. */
    cn_status status = run_forced_arms(r, true);
    if (status == CN_OK) status = run_forced_arms(r, false);
    cn_progress_end(&r->progress);
    if (status == CN_OK)
        r->n_done += r->n_group;
    else /* some arms have figures of this group */
        memcpy(r->figures, r->before, r->arms->n * sizeof *r->figures);
    return status;
}

uint32_t cn_forced_run_done(const cn_forced_run *r) { return r->n_done; }

const cn_forced_figures *cn_forced_run_figures(const cn_forced_run *r, uint32_t arm)
{
    return &r->figures[arm];
}

cn_forced_summary cn_forced_run_summary(const cn_forced_run *r, uint32_t arm, uint32_t base)
{
    const cn_forced_score *own = r->figures[arm].scores, *other = r->figures[base].scores;
    const double n = r->n_done;
    cn_forced_summary s = {0};
    for (uint32_t i = 0; i < r->n_done; i++) {
        s.nll += own[i].nll / n;
        s.delta += (own[i].nll - other[i].nll) / n;
    }
    double squares = 0;
    for (uint32_t i = 0; i < r->n_done; i++) {
        const double from_mean = own[i].nll - other[i].nll - s.delta;
        squares += from_mean * from_mean;
    }
    if (r->n_done > 1) s.delta_error = sqrt(squares / (n - 1) / n);
    return s;
}

cn_status cn_forced_run_create(cn_forced_run **out, cn_engine *e, const cn_compare_arms *arms,
                               const cn_forced_task *task)
{
    cn_forced_run *r = cn_calloc(1, sizeof *r);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of memory for a comparison");
    *r = (cn_forced_run){.engine = e, .arms = arms, .task = task};
    r->full = cn_calloc(task->n, sizeof *r->full);
    r->other = cn_calloc(task->n, sizeof *r->other);
    r->figures = cn_calloc(arms->n, sizeof *r->figures);
    r->before = cn_calloc(arms->n, sizeof *r->before);
    bool ok = r->full && r->other && r->figures && r->before;
    for (uint32_t a = 0; ok && a < arms->n; a++) {
        r->figures[a].kv = arms->arms[a].kv;
        r->figures[a].scores = cn_calloc(task->n, sizeof *r->figures[a].scores);
        ok = r->figures[a].scores != NULL;
    }
    if (!ok) {
        cn_forced_run_free(r);
        return cn_fail(CN_ERR_MEMORY, "out of memory for %u documents", task->n);
    }
    for (uint32_t i = 0; i < task->n; i++)
        r->tokens_total += task->documents[i].continuation.len * arms->n;
    cn_stats s;
    cn_engine_stats(e, &s);
    r->tokens_before = s.generation_tokens;
    cn_progress_begin(&r->progress, cn_engine_config(e)->progress, stderr);
    *out = r;
    return CN_OK;
}

void cn_forced_run_free(cn_forced_run *r)
{
    if (!r) return;
    if (r->full) clear_forced(r, r->full);
    if (r->other) clear_forced(r, r->other);
    for (uint32_t a = 0; r->figures && a < r->arms->n; a++) cn_free(r->figures[a].scores);
    cn_free(r->full);
    cn_free(r->other);
    cn_free(r->figures);
    cn_free(r->before);
    cn_free(r);
}
