/* lanes.c - see lanes.h. */
#include "engine/offline/lanes.h"

#include "engine/engine.h"
#include "engine/lanes/stat_rows.h"
#include "engine/offline/batch_job.h"

enum {
    /* A seat must never be empty. So this many samples may wait in an engine: */
    LEAST_WAITING = 8,
    /* or one for so many seats, if that is more. */
    WAITING_SHARE = 16,
    /* Jobs in flight bound the mails. */
    OUTBOX_MAILS = 1 << 20,
    /* No mail tells that an engine has room. So the wait is short while a job waits for it. */
    ROOM_WAIT_MS = 10,
    /* The run's thread looks at the engines every 200 ms. After so long the process was stopped. */
    STOPPED_S = 2,
    STOP_WAIT_S = 30, /* for all engines */
    LOST_WAIT_S = 1
};

typedef struct lane_state {
    cn_lane lane;
    cn_lanes *all;
    cn_list calls;      /* that the engine has */
    cn_list lost_calls; /* that it had when it was lost */
    uint32_t n_samples;     /* of calls */
    atomic_uint n_ended;    /* of n_samples; their calls have others that run */
    atomic_uint n_unopened; /* samples of calls that are on their way to the engine */
    uint32_t n_suspects;
    bool is_lost, is_full; /* full: it was busy, until it returns a job */
    char why[CN_LANE_WHY_BYTES]; /* it was lost */
} lane_state;

struct cn_lanes {
    cn_lanes_opts opts;
    cn_mailbox *outbox; /* of the run's thread; NULL: there is one engine, without a thread */
    lane_state *at;     /* [opts.n] */
    cn_list ready;      /* calls without a lane */
    cn_list ended;      /* calls that are cancelled, and whose mail is on its way */
    uint32_t n_loaded, n_lost;
    uint32_t n_fresh; /* calls, ready or of a lane, of lines that no engine failed with */
    uint32_t next; /* of equal lanes, the first to look at */
    double looked_s, awake_s; /* cn_now_s: the last look at the steps; the process is not stopped */
};

/* One submission of a job. */
typedef struct lane_call {
    cn_mail mail, cancel_mail;
    cn_list_node node;
    lane_state *at; /* NULL: ready, or ended */
    cn_lane *cancel_at;
    cn_lanes *all;
    cn_batch_job *job;
    uint32_t n_samples, n_ended; /* ended: the lane's thread's until the call returns */
    /* If one more engine fails with this line, the line is an error. An engine has one of these at
     * a time, so that not all lines of a failed engine follow the one that made it fail. */
    bool is_suspect, is_fresh;
    atomic_ullong n_tokens;
    bool ended, cancel_posted; /* the run's thread's */
    bool begun, over;          /* the lane's thread's */
    /* Why it could not begin. */
    cn_status status;
    cn_buf error, at_fault;
} lane_call;

static void free_call(lane_call *call)
{
    cn_buf_free(&call->error);
    cn_buf_free(&call->at_fault);
    cn_free(call);
}

/* ---- on the lane's thread ---- */

static void on_event(void *user, const cn_event *ev)
{
    lane_call *call = user;
    const bool last = cn_batch_job_event(call->job, ev);
    const uint64_t n = cn_api_result_n_tokens(call->job->result);
    atomic_store_explicit(&call->n_tokens, n, memory_order_relaxed);
    if (ev->finish != CN_FINISH_NONE && call->n_ended < call->n_samples) {
        call->n_ended++;
        atomic_fetch_add(&call->at->n_ended, 1);
    }
    if (!last) return;
    call->over = true;
    cn_lane_reply(&call->at->lane, &call->mail); /* may free the call */
}

static cn_status begin(lane_call *call)
{
    cn_batch_job *job = call->job;
    cn_engine *engine = call->at->lane.engine;
    if (!job->result)
        CN_TRY(cn_api_result_create(&job->result, &job->item.request, cn_engine_token_bytes,
                                    engine));
    job->n_left = job->attempt.n_prompts;
    return cn_api_request_submit(&job->attempt, engine, on_event, call, &job->request);
}

static void keep_text(cn_buf *to, const char *text)
{
    if (text && cn_buf_add(to, text, strlen(text)) != CN_OK) cn_buf_clear(to);
}

static void open_returned(cn_mail *mail);

static void open_begin(cn_mail *mail)
{
    lane_call *call = CN_CONTAINER_OF(mail, lane_call, mail);
    call->mail.open = open_returned;
    call->status = begin(call);
    call->begun = call->status == CN_OK;
    if (call->begun) cn_lane_wake(&call->at->lane, call->n_samples);
    atomic_fetch_sub(&call->at->n_unopened, call->n_samples);
    if (call->begun) return;
    call->over = true;
    keep_text(&call->error, cn_last_error());
    keep_text(&call->at_fault, cn_last_param());
    cn_lane_reply(&call->at->lane, &call->mail);
}

static void open_cancel_done(cn_mail *mail);

static void open_cancel(cn_mail *mail)
{
    lane_call *call = CN_CONTAINER_OF(mail, lane_call, cancel_mail);
    for (uint32_t i = 0; call->begun && !call->over && i < call->job->attempt.n_prompts; i++)
        cn_engine_cancel(call->cancel_at->engine, call->job->request + i);
    call->cancel_mail.open = open_cancel_done;
    cn_lane_reply(call->cancel_at, &call->cancel_mail);
}

/* ---- which lane takes a job ---- */

static uint32_t n_running(const lane_state *s) { return s->n_samples - atomic_load(&s->n_ended); }

/* Samples that wait in an engine do not go to another that becomes free. So few do, also if the KV
 * cache has room for fewer than there are seats. */
static bool has_room(const lane_state *s, const lane_call *call)
{
    const uint32_t seats = s->all->opts.n_seats, n = n_running(s);
    const uint32_t most_waiting = cn_max_u32(LEAST_WAITING, seats / WAITING_SHARE);
    if (s->is_lost || s->is_full || (call->is_suspect && s->n_suspects > 0)) return false;
    if (n == 0) return true;
    const uint32_t waiting = atomic_load(&s->n_unopened) + cn_lane_n_waiting(&s->lane);
    return n + call->n_samples <= seats + most_waiting &&
           (waiting == 0 || waiting + call->n_samples <= most_waiting);
}

/* Whether the lane has seats for the call, now or as soon as those that wait have theirs. */
static bool has_seats(const lane_state *s, const lane_call *call)
{
    return !s->is_lost && !s->is_full && n_running(s) + call->n_samples <= s->all->opts.n_seats;
}

/* The lane with the fewest samples that has room; NULL if none has. A call does not wait for a seat
 * of a lane while another one has seats. */
static lane_state *choose(const cn_lanes *l, const lane_call *call)
{
    lane_state *best = NULL;
    bool seats = false;
    for (uint32_t i = 0; i < l->opts.n; i++) {
        lane_state *s = &l->at[(l->next + i) % l->opts.n];
        if (has_room(s, call) && (!best || n_running(s) < n_running(best))) best = s;
        seats |= has_seats(s, call);
    }
    return best && n_running(best) > 0 && seats && !has_seats(best, call) ? NULL : best;
}

/* A line that an engine failed with may make the last one fail, too. So it waits until the others
 * have ended. */
static bool has_to_wait(const cn_lanes *l, const lane_call *call)
{
    return !call->is_fresh && l->n_lost + 1 == l->opts.n && l->n_fresh > 0;
}

/* The call that is next: the oldest, or the oldest of the first priority. Lines that engines failed
 * with are passed over while they have to wait. */
static lane_call *first_ready(const cn_lanes *l)
{
    lane_call *first = NULL;
    CN_LIST_EACH(lane_call, call, &l->ready, node) {
        const int32_t mine = call->job->attempt.params.priority;
        if (has_to_wait(l, call) || (call->is_suspect && !choose(l, call))) continue;
        if (!first || mine < first->job->attempt.params.priority) first = call;
        if (!l->opts.by_priority) break;
    }
    return first;
}

static void assign(lane_state *s, lane_call *call)
{
    call->at = s;
    s->n_samples += call->n_samples;
    s->n_suspects += call->is_suspect;
    cn_list_append(&s->calls, &call->node);
    s->all->next = s->lane.index + 1;
}

static void dispatch(cn_lanes *l)
{
    for (lane_call *call; (call = first_ready(l));) {
        lane_state *s = choose(l, call);
        if (!s) return;
        cn_list_remove(&l->ready, &call->node);
        assign(s, call);
        call->mail.open = open_begin;
        atomic_fetch_add(&s->n_unopened, call->n_samples);
        cn_lane_post(&s->lane, CN_MAIL_NORMAL, &call->mail);
    }
}

/* ---- on the run's thread ---- */

static void end_lane_call(lane_call *call)
{
    call->ended = true;
    call->all->n_fresh -= call->is_fresh;
    if (call->cancel_posted)
        cn_list_append(&call->all->ended, &call->node);
    else
        free_call(call);
}

static void leave_lane(lane_call *call)
{
    lane_state *s = call->at;
    if (!s) return;
    cn_list_remove(&s->calls, &call->node);
    s->n_samples -= call->n_samples;
    atomic_fetch_sub(&s->n_ended, call->n_ended);
    s->n_suspects -= call->is_suspect;
    s->is_full = false;
    call->at = NULL;
}

/* Ends the call's job with its status. */
static void end_job(lane_call *call)
{
    cn_batch_job *job = call->job;
    cn_status status = call->status;
    job->call = NULL;
    if (status != CN_OK) {
        cn_fail(status, "%s", call->error.len ? call->error.data : cn_status_name(status));
        if (call->at_fault.len) cn_for_param(status, call->at_fault.data);
    }
    cn_batch_job_end(job, status);
}

/* Keeps a call that a busy engine refused until the engine returns another. */
static bool is_kept_waiting(lane_call *call)
{
    lane_state *s = call->at;
    if (call->status != CN_ERR_BUSY || s->calls.n < 2 || call->cancel_posted) return false;
    leave_lane(call);
    s->is_full = true;
    call->status = CN_OK;
    call->mail.open = NULL;
    call->over = false;
    cn_buf_clear(&call->error);
    cn_buf_clear(&call->at_fault);
    cn_list_prepend(&s->all->ready, &call->node);
    return true;
}

static void open_returned(cn_mail *mail)
{
    lane_call *call = CN_CONTAINER_OF(mail, lane_call, mail);
    cn_lanes *l = call->all;
    if (call->at && call->at->is_lost) return; /* kept until the lanes are freed */
    if (is_kept_waiting(call)) return;
    if (call->ended) cn_list_remove(&l->ended, &call->node);
    leave_lane(call);
    if (call->status == CN_ERR_BUSY) /* nothing that ends would make room */
        call->status = call->cancel_posted ? CN_ERR_CANCELLED : CN_ERR_MEMORY;
    end_job(call);
    end_lane_call(call);
    dispatch(l);
}

static void open_cancel_done(cn_mail *mail)
{
    lane_call *call = CN_CONTAINER_OF(mail, lane_call, cancel_mail);
    if (call->at && call->at->is_lost) return;
    call->cancel_posted = false;
    if (!call->ended) return;
    cn_list_remove(&call->all->ended, &call->node);
    free_call(call);
}

/* Submits to the single engine, whose refusal is that of the port. */
static cn_status submit_now(cn_lanes *l, lane_call *call)
{
    call->at = &l->at[0];
    CN_TRY(begin(call));
    call->begun = true;
    call->mail.open = open_returned;
    assign(call->at, call);
    return CN_OK;
}

cn_status cn_lanes_submit(cn_lanes *l, cn_batch_job *job)
{
    lane_call *call = cn_calloc(1, sizeof *call);
    if (!call) return cn_fail(CN_ERR_MEMORY, "out of memory for a request");
    const uint32_t n = job->attempt.params.sampling.n;
    call->all = l;
    call->job = job;
    call->n_samples = job->attempt.n_prompts * (n ? n : 1);
    call->is_suspect = job->n_lost + 1 == CN_BATCH_MOST_LOST;
    call->is_fresh = l->outbox && job->n_lost == 0;
    job->call = call;
    if (l->outbox) {
        l->n_fresh += call->is_fresh;
        cn_list_append(&l->ready, &call->node);
        dispatch(l);
        return CN_OK;
    }
    const cn_status status = submit_now(l, call);
    if (status == CN_OK) return CN_OK;
    job->call = NULL;
    free_call(call);
    return status;
}

void cn_lanes_cancel(cn_lanes *l, cn_batch_job *job)
{
    lane_call *call = job->call;
    if (call->at && !call->cancel_posted) {
        call->cancel_posted = true;
        call->cancel_at = &call->at->lane;
        call->cancel_mail.open = open_cancel;
        cn_lane_post(call->cancel_at, CN_MAIL_NORMAL, &call->cancel_mail);
    } else if (!call->at && call->mail.open != open_returned) {
        /* By mail, because the caller may be walking over its jobs. */
        cn_list_remove(&l->ready, &call->node);
        cn_list_append(&l->ended, &call->node);
        call->ended = true;
        call->status = CN_ERR_CANCELLED;
        call->mail.open = open_returned;
        cn_mailbox_post(l->outbox, CN_MAIL_NORMAL, &call->mail);
    }
}

uint64_t cn_lanes_n_tokens(const cn_batch_job *job)
{
    const lane_call *call = job->call;
    return atomic_load_explicit(&call->n_tokens, memory_order_relaxed);
}

/* ---- a lost engine ---- */

/* Gives the jobs of an engine to the others. */
static void lose(lane_state *s, const char *why)
{
    cn_lanes *l = s->all;
    if (s->is_lost) return;
    s->is_lost = true;
    l->n_lost++;
    snprintf(s->why, sizeof s->why, "%s", why);
    cn_lane_stop(&s->lane);
    cn_log(CN_LOG_ERROR, l->n_lost < l->opts.n
                             ? "engine %u: %s; its %llu requests go to the other engines"
                             : "engine %u: %s; it had %llu requests, and no engine is left",
           s->lane.index, why, (unsigned long long)s->calls.n);
    const bool is_alone = s->calls.n == 1 && l->n_lost == l->opts.n;
    for (cn_list_node *node; (node = cn_list_pop(&s->calls));) {
        lane_call *call = CN_CONTAINER_OF(node, lane_call, node);
        cn_list_append(&s->lost_calls, node);
        l->n_fresh -= call->is_fresh;
        cn_batch_job_lose(call->job, s->why, is_alone && !call->is_fresh);
    }
    s->n_samples = 0;
}

static void on_failed(cn_lane *lane)
{
    cn_lanes *l = lane->owner;
    lose(&l->at[lane->index], lane->why);
}

static void check_stalls(cn_lanes *l)
{
    char why[CN_LANE_WHY_BYTES];
    const double now_s = cn_now_s();
    if (now_s - l->looked_s > STOPPED_S) l->awake_s = now_s;
    l->looked_s = now_s;
    if (now_s - l->awake_s < l->opts.stall_s) return;
    for (uint32_t i = 0; i < l->opts.n && l->opts.stall_s > 0; i++) {
        lane_state *s = &l->at[i];
        if (s->is_lost || cn_lane_turn_s(&s->lane, now_s) < l->opts.stall_s) continue;
        snprintf(why, sizeof why, "a step has not ended for %.0f s (--health-stall)",
                 l->opts.stall_s);
        lose(s, why);
    }
}

cn_status cn_lanes_work(cn_lanes *l, int wait_ms)
{
    if (!l->outbox) return cn_lane_step(&l->at[0].lane);
    if (l->ready.n > 0 && wait_ms > ROOM_WAIT_MS) wait_ms = ROOM_WAIT_MS;
    if (cn_mailbox_length(l->outbox) == 0) cn_mailbox_wait(l->outbox, wait_ms);
    cn_mailbox_open_all(l->outbox);
    check_stalls(l);
    dispatch(l);
    if (l->n_lost < l->opts.n) return CN_OK;
    return cn_fail(CN_ERR_DEVICE, "no engine is left; engine %u: %s", l->opts.n - 1,
                   l->at[l->opts.n - 1].why);
}

/* ---- start and end ---- */

static void count_loaded(cn_lane *lane)
{
    cn_lanes *l = lane->owner;
    l->n_loaded++;
}

static cn_status wait_for_engines(cn_lanes *l)
{
    while (l->n_loaded < l->opts.n) {
        cn_mailbox_wait(l->outbox, -1);
        cn_mailbox_open_all(l->outbox);
    }
    for (uint32_t i = 0; i < l->opts.n; i++) {
        const cn_lane *lane = &l->at[i].lane;
        if (lane->status != CN_OK) return cn_fail(lane->status, "engine %u: %s", i, lane->why);
    }
    return CN_OK;
}

static cn_status open_all_lanes(cn_lanes *l)
{
    const cn_lanes_opts *o = &l->opts;
    if (o->n > 1) CN_TRY(cn_mailbox_create(&l->outbox, OUTBOX_MAILS));
    for (uint32_t i = 0; i < o->n; i++) {
        l->at[i].all = l;
        l->at[i].lane = (cn_lane){.engine = o->engines[i],
                                  .index = i,
                                  .outbox = l->outbox,
                                  .load = o->load,
                                  .on_loaded = count_loaded,
                                  .on_failed = on_failed,
                                  .owner = l};
    }
    if (!l->outbox) return o->load ? o->load(o->engines[0]) : CN_OK;
    for (uint32_t i = 0; i < o->n; i++) CN_TRY(cn_lane_open(&l->at[i].lane));
    return wait_for_engines(l);
}

cn_status cn_lanes_create(cn_lanes **out, const cn_lanes_opts *o)
{
    *out = NULL;
    cn_lanes *l = cn_calloc(1, sizeof *l);
    if (l) l->at = cn_calloc(o->n, sizeof *l->at);
    if (!l || !l->at) {
        cn_free(l);
        return cn_fail(CN_ERR_MEMORY, "out of memory for %u engines", o->n);
    }
    l->opts = *o;
    l->looked_s = l->awake_s = cn_now_s();
    *out = l;
    return open_all_lanes(l);
}

bool cn_lanes_stop(cn_lanes *l)
{
    bool all = true;
    const double until_s = cn_now_s() + STOP_WAIT_S, lost_until_s = cn_now_s() + LOST_WAIT_S;
    for (uint32_t i = 0; i < l->opts.n; i++) cn_lane_stop(&l->at[i].lane);
    for (uint32_t i = 0; i < l->opts.n; i++) {
        lane_state *s = &l->at[i];
        all &= cn_lane_close(&s->lane, s->is_lost ? lost_until_s : until_s);
    }
    return all;
}

static void free_calls(cn_list *calls, bool with_jobs)
{
    for (cn_list_node *node; (node = cn_list_pop(calls));) {
        lane_call *call = CN_CONTAINER_OF(node, lane_call, node);
        if (with_jobs) cn_batch_job_free(call->job);
        free_call(call);
    }
}

void cn_lanes_free(cn_lanes *l)
{
    if (!l) return;
    while (l->outbox && cn_mailbox_take(l->outbox)) continue;
    for (uint32_t i = 0; i < l->opts.n; i++) {
        free_calls(&l->at[i].calls, false);
        free_calls(&l->at[i].lost_calls, true);
    }
    free_calls(&l->ready, false);
    free_calls(&l->ended, false);
    cn_mailbox_free(l->outbox);
    cn_free(l->at);
    cn_free(l);
}

/* ---- getters ---- */

uint32_t cn_lanes_n(const cn_lanes *l) { return l->opts.n; }
cn_engine *cn_lanes_engine(const cn_lanes *l, uint32_t i) { return l->opts.engines[i]; }

const char *cn_lanes_stats_of(cn_lanes *l, uint32_t i, cn_stats *out)
{
    cn_lane_stats(&l->at[i].lane, out);
    return l->at[i].is_lost ? l->at[i].why : NULL;
}

void cn_lanes_stats(cn_lanes *l, cn_stats *out)
{
    *out = (cn_stats){0};
    for (uint32_t i = 0; i < l->opts.n; i++) {
        cn_stats s;
        cn_lanes_stats_of(l, i, &s);
        cn_stats_add(out, &s);
    }
    for (const cn_list_node *at = l->ready.head; at; at = at->next)
        out->waiting += CN_CONTAINER_OF((cn_list_node *)at, lane_call, node)->n_samples;
}
