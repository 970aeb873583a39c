/* bench_lanes.c - the dataset of `cinch bench throughput` on several engines (engine/lanes/lane.h).
 *
 * Of n engines, engine i has every nth request from i on, whatever their speed, so that each run
 * measures the same. The clock starts when all engines are loaded. A failed engine ends the
 * measurement. */
#include <math.h>
#include <stdatomic.h>

#include "engine/base/json.h"
#include "engine/bench/bench.h"
#include "engine/lanes/lane.h"
#include "engine/lanes/lane_engines.h"
#include "engine/lanes/stat_rows.h"

enum {
    OUTBOX_MAILS = 1 << 10,
    LOOK_MS = 100 /* between looks at signals and the progress */
};

typedef struct parts parts;

/* An engine, and what it has measured. */
typedef struct part {
    cn_lane lane;
    parts *all;
    cn_bench b; /* its counters; of the lane's thread until that has ended */
    uint32_t next;        /* of the dataset, to submit */
    uint64_t n_submitted;
    atomic_ullong n_done; /* requests, for the progress */
    bool has_ended;       /* all its requests have */
    cn_status status;     /* why it could not submit */
    cn_mail feed_mail, ended_mail, failed_mail;
} part;

struct parts {
    cn_bench *b; /* the command's */
    const cn_bench_dataset *dataset;
    cn_lane_engines engines;
    cn_mailbox *outbox;
    part at[CN_MAX_DEVICES];
    uint32_t n_opened, n_loaded, n_ended;
    cn_status status; /* of the first engine that failed */
    const cn_lane *failed;
};

/* ---- on the thread of a lane ---- */

/* Submits what the engine's queue has room for. */
static cn_status submit_requests(part *p)
{
    const cn_bench_dataset *d = p->all->dataset;
    for (; p->next < d->n; p->next += p->all->n_opened) {
        const cn_bench_prompt *prompt = &d->prompts[p->next];
        const cn_status status = cn_bench_submit(&p->b, &prompt->tokens, prompt->output_len, NULL);
        if (status == CN_ERR_BUSY) break;
        CN_TRY(status);
        p->n_submitted++;
        cn_lane_wake(&p->lane, 1);
    }
    return CN_OK;
}

static void feed(part *p)
{
    if (p->has_ended) return;
    atomic_store(&p->n_done, p->b.done);
    cn_status status = submit_requests(p);
    if (status == CN_OK && p->b.failed)
        status = cn_fail(CN_ERR_DEVICE, "%llu requests failed", (unsigned long long)p->b.failed);
    const bool has_submitted = p->next >= p->all->dataset->n;
    p->has_ended = status != CN_OK || (has_submitted && p->b.done == p->n_submitted);
    if (!p->has_ended) return;
    p->status = status;
    if (status != CN_OK) snprintf(p->lane.why, sizeof p->lane.why, "%s", cn_last_error());
    cn_lane_reply(&p->lane, &p->ended_mail);
}

static void open_feed(cn_mail *mail) { feed(CN_CONTAINER_OF(mail, part, feed_mail)); }

static void feed_after_step(cn_lane *lane, double seconds)
{
    (void)seconds;
    feed(lane->owner);
}

/* ---- on the command's thread ---- */

static void keep_engine_failure(parts *all, cn_status status, const cn_lane *lane)
{
    if (all->status != CN_OK || status == CN_OK) return;
    all->status = status;
    all->failed = lane;
}

static void open_ended(cn_mail *mail)
{
    part *p = CN_CONTAINER_OF(mail, part, ended_mail);
    p->all->n_ended++;
    keep_engine_failure(p->all, p->status, &p->lane);
}

static void take_failed(cn_lane *lane)
{
    part *p = lane->owner;
    keep_engine_failure(p->all, lane->status, lane);
}

static void take_loaded(cn_lane *lane)
{
    part *p = lane->owner;
    p->all->n_loaded++;
    keep_engine_failure(p->all, lane->status, lane);
}

static cn_status open_engine_part(parts *all, uint32_t i)
{
    part *p = &all->at[i];
    cn_engine *engine = all->engines.at[i];
    *p = (part){
        .lane = {.engine = engine, .index = i, .outbox = all->outbox, .load = cn_engine_load,
                 .on_loaded = take_loaded, .on_failed = take_failed, .on_step = feed_after_step,
                 .owner = p},
        .all = all,
        .next = i,
        .b = {.engine = engine, .config = all->b->config},
        .feed_mail.open = open_feed,
        .ended_mail.open = open_ended,
    };
    CN_TRY(cn_lane_open(&p->lane));
    all->n_opened++;
    return CN_OK;
}

static void show_all_progress(parts *all)
{
    cn_bench *b = all->b;
    if (!cn_progress_is_due(&b->progress)) return;
    cn_progress_figures g = {.read = b->n_requests, .input_ended = true,
                             .tokens_total = b->n_tokens};
    for (uint32_t i = 0; i < all->n_opened; i++) {
        cn_stats s;
        cn_lane_stats(&all->at[i].lane, &s);
        cn_stats_add(&g.stats, &s);
        g.done += atomic_load(&all->at[i].n_done);
    }
    g.answered_now = g.done;
    cn_progress_show(&b->progress, &g);
}

/* Waits until *n is that of all engines. */
static cn_status wait_for(parts *all, const uint32_t *n)
{
    while (*n < all->n_opened && all->status == CN_OK && !*all->b->stop_asked) {
        cn_mailbox_wait(all->outbox, LOOK_MS);
        cn_mailbox_open_all(all->outbox);
        if (all->b->n_requests > 0) show_all_progress(all);
    }
    if (all->status == CN_OK) return CN_OK;
    return cn_fail(all->status, "engine %u: %s", all->failed->index, all->failed->why);
}

static cn_status load_parts(parts *all)
{
    CN_TRY(cn_lane_engines_plan(&all->engines, all->b->config));
    CN_TRY(cn_mailbox_create(&all->outbox, OUTBOX_MAILS));
    for (uint32_t i = 0; i < all->engines.n; i++) {
        const cn_status opened = open_engine_part(all, i);
        if (opened != CN_OK) cn_load_gate_open(all->engines.gate);
        CN_TRY(opened);
    }
    CN_TRY(wait_for(all, &all->n_loaded));
    return all->n_loaded == all->n_opened ? CN_OK : cn_fail(CN_ERR_CANCELLED, "interrupted");
}

static cn_status measure_all(parts *all, double *elapsed_s)
{
    cn_bench *b = all->b;
    const double began_s = cn_now_s();
    for (uint32_t i = 0; i < all->n_opened; i++) {
        cn_engine_default_kv(all->at[i].b.engine, &all->at[i].b.kv);
        cn_lane_post(&all->at[i].lane, CN_MAIL_NORMAL, &all->at[i].feed_mail);
    }
    const cn_status status = wait_for(all, &all->n_ended);
    *elapsed_s = cn_now_s() - began_s;
    cn_progress_end(&b->progress);
    b->interrupted = all->n_ended < all->n_opened;
    return status;
}

/* Ends the threads. What they have measured can be read then. */
static void stop_parts(parts *all)
{
    for (uint32_t i = 0; i < all->n_opened; i++) cn_lane_stop(&all->at[i].lane);
    for (uint32_t i = 0; i < all->n_opened; i++) cn_lane_close(&all->at[i].lane, INFINITY);
    while (all->outbox && cn_mailbox_take(all->outbox)) continue;
}

static void add_engine_figures(cn_bench_figures *f, cn_bench *sum, const part *p, json_t *list)
{
    cn_stats s;
    cn_engine_stats(p->b.engine, &s);
    cn_stats_add(&f->stats, &s);
    f->stalled_s += cn_engine_event_stats(p->b.engine)->stalled_s;
    sum->done += p->b.done;
    sum->prompt_tokens += p->b.prompt_tokens;
    sum->output_tokens += p->b.output_tokens;
    json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "device",
                                          cn_engine_device(p->b.engine), "output_tokens",
                                          (json_int_t)s.generation_tokens, "steps",
                                          (json_int_t)s.steps));
}

static cn_status run_parts(parts *all, json_t **json)
{
    cn_bench *b = all->b;
    cn_bench_dataset d = {0};
    cn_bench_figures f = {0};
    CN_TRY(load_parts(all));
    b->engine = all->engines.at[0];
    cn_engine_default_kv(b->engine, &b->kv);
    all->dataset = &d;
    cn_status status = cn_bench_load_dataset(b, &d);
    if (status == CN_OK) status = measure_all(all, &f.elapsed_s);
    stop_parts(all);
    json_t *engines = json_array();
    for (uint32_t i = 0; status == CN_OK && i < all->n_opened; i++)
        add_engine_figures(&f, b, &all->at[i], engines);
    if (status == CN_OK) status = cn_bench_report(b, &f, d.n, json);
    if (status == CN_OK && json_object_set(*json, "engines", engines))
        status = cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
    json_decref(engines);
    cn_bench_dataset_free(&d);
    return status;
}

cn_status cn_bench_lanes(cn_bench *b, json_t **json)
{
    parts *all = cn_calloc(1, sizeof *all);
    if (!all) return cn_fail(CN_ERR_MEMORY, "out of memory for the engines");
    all->b = b;
    const cn_status status = run_parts(all, json);
    stop_parts(all);
    b->engine = NULL;
    cn_mailbox_free(all->outbox);
    cn_lane_engines_free(&all->engines);
    cn_free(all);
    return status;
}
