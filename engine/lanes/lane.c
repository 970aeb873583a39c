/* lane.c - see lane.h. */
#include "engine/lanes/lane.h"

#include <malloc.h>
#include <math.h>
#include <time.h>

enum {
    INBOX_MAILS = 1 << 20, /* the owner bounds what it posts */
    MAILS_PER_STEP = 64,   /* limits how long a burst of arrivals delays decoding */
    TRIM_AFTER_MS = 1000
};

static unsigned long long now_ms(void) { return (unsigned long long)(cn_now_s() * 1e3); }

/* ---- the lane's thread ---- */

static void keep_failure(cn_lane *lane, cn_status status)
{
    lane->status = status;
    snprintf(lane->why, sizeof lane->why, "%s", cn_last_error());
    atomic_store(&lane->failed, true);
}

static void open_loaded(cn_mail *mail)
{
    cn_lane *lane = CN_CONTAINER_OF(mail, cn_lane, loaded_mail);
    lane->on_loaded(lane);
}

static void open_failed(cn_mail *mail)
{
    cn_lane *lane = CN_CONTAINER_OF(mail, cn_lane, failed_mail);
    lane->on_failed(lane);
}

static void open_stop(cn_mail *mail) { CN_CONTAINER_OF(mail, cn_lane, stop_mail)->stopping = true; }

static void keep_stats(cn_lane *lane)
{
    cn_stats stats;
    cn_engine_stats(lane->engine, &stats);
    pthread_mutex_lock(&lane->lock);
    lane->stats = stats;
    pthread_mutex_unlock(&lane->lock);
    atomic_store(&lane->n_waiting, stats.waiting + stats.swapped);
}

static void set_turn(cn_lane *lane, unsigned long long began_ms)
{
    atomic_store_explicit(&lane->turn_began_ms, began_ms, memory_order_relaxed);
}

static cn_status step(cn_lane *lane)
{
    const double began_s = cn_now_s();
    const cn_status status = cn_engine_step(lane->engine, &lane->idle);
    if (lane->outbox) keep_stats(lane);
    if (lane->on_step) lane->on_step(lane, cn_now_s() - began_s);
    return status;
}

/* A step failed: the engine is used no more. */
static void fail(cn_lane *lane, cn_status status)
{
    keep_failure(lane, status);
    lane->idle = true;
    lane->failed_mail.open = open_failed;
    if (lane->on_end) lane->on_end(lane, status);
    if (lane->on_failed) cn_mailbox_post(lane->outbox, CN_MAIL_NORMAL, &lane->failed_mail);
}

/* Waits for mail. After a second without any, returns the memory of ended requests. */
static void rest(cn_lane *lane)
{
    set_turn(lane, 0);
    cn_mailbox_wait(lane->inbox, lane->untrimmed ? TRIM_AFTER_MS : -1);
    if (!lane->untrimmed || cn_mailbox_length(lane->inbox) > 0) return;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    lane->untrimmed = false;
}

static void open_mails(cn_lane *lane)
{
    cn_mail *mail;
    for (int i = 0; i < MAILS_PER_STEP && (mail = cn_mailbox_take(lane->inbox)); i++)
        mail->open(mail);
}

/* False: the thread ends. */
static bool take_turn(cn_lane *lane)
{
    if (lane->idle) rest(lane);
    set_turn(lane, now_ms());
    open_mails(lane);
    if (lane->stopping) return false;
    if (lane->idle) return true;
    const cn_status status = step(lane);
    if (status != CN_OK) fail(lane, status);
    return status == CN_OK || lane->on_end;
}

static void *run(void *context)
{
    cn_lane *lane = context;
    const cn_status loaded = lane->load ? lane->load(lane->engine) : CN_OK;
    if (loaded == CN_OK)
        keep_stats(lane);
    else
        keep_failure(lane, loaded);
    lane->loaded_mail.open = open_loaded;
    cn_mailbox_post(lane->outbox, CN_MAIL_NORMAL, &lane->loaded_mail);
    if (loaded != CN_OK) return NULL;
    lane->idle = true;
    while (take_turn(lane)) continue;
    set_turn(lane, 0);
    if (!lane->on_end) return NULL;
    cn_fail(CN_ERR_CANCELLED, "stopped");
    lane->on_end(lane, CN_ERR_CANCELLED);
    for (cn_mail *mail; (mail = cn_mailbox_take(lane->inbox));) mail->open(mail);
    return NULL;
}

void cn_lane_wake(cn_lane *lane, uint32_t n)
{
    lane->idle = false;
    lane->untrimmed = true;
    atomic_fetch_add(&lane->n_waiting, n);
}

void cn_lane_reply(cn_lane *lane, cn_mail *mail)
{
    if (lane->outbox)
        cn_mailbox_post(lane->outbox, CN_MAIL_NORMAL, mail);
    else
        mail->open(mail);
}

/* ---- the owner's ---- */

cn_status cn_lane_open(cn_lane *lane)
{
    if (!lane->outbox) return CN_OK;
    CN_TRY(cn_mailbox_create(&lane->inbox, INBOX_MAILS));
    pthread_mutex_init(&lane->lock, NULL);
    if (pthread_create(&lane->thread, NULL, run, lane) != 0) {
        cn_mailbox_free(lane->inbox);
        lane->inbox = NULL;
        return cn_fail(CN_ERR_IO, "no thread for engine %u", lane->index);
    }
    lane->is_running = true;
    return CN_OK;
}

void cn_lane_stop(cn_lane *lane)
{
    if (!lane->is_running || lane->stop_posted) return;
    lane->stop_posted = true;
    lane->stop_mail.open = open_stop;
    cn_mailbox_post(lane->inbox, CN_MAIL_EXPRESS, &lane->stop_mail);
}

/* Waits for the end of the thread. */
static bool try_join(cn_lane *lane, double until_s)
{
    struct timespec until;
    const double left_s = fmax(until_s - cn_now_s(), 0), whole_s = floor(left_s);
    if (isinf(left_s)) return pthread_join(lane->thread, NULL) == 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)whole_s;
    until.tv_nsec += (long)(1e9 * (left_s - whole_s));
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    return pthread_timedjoin_np(lane->thread, NULL, &until) == 0;
}

bool cn_lane_close(cn_lane *lane, double until_s)
{
    if (!lane->is_running) return true;
    cn_lane_stop(lane);
    if (!try_join(lane, until_s)) return false;
    lane->is_running = false;
    while (cn_mailbox_take(lane->inbox)) continue;
    cn_mailbox_free(lane->inbox);
    lane->inbox = NULL;
    pthread_mutex_destroy(&lane->lock);
    return true;
}

void cn_lane_post(cn_lane *lane, cn_mail_queue queue, cn_mail *mail)
{
    if (lane->outbox)
        cn_mailbox_post(lane->inbox, queue, mail);
    else
        mail->open(mail);
}

bool cn_lane_try_recall(cn_lane *lane, cn_mail_queue queue, cn_mail *mail)
{
    return cn_mailbox_try_remove(lane->inbox, queue, mail);
}

cn_status cn_lane_step(cn_lane *lane)
{
    CN_ASSERT(!lane->outbox);
    return step(lane);
}

double cn_lane_turn_s(const cn_lane *lane, double now_s)
{
    const unsigned long long began =
        atomic_load_explicit(&lane->turn_began_ms, memory_order_relaxed);
    return began ? fmax(now_s - (double)began / 1e3, 0) : 0;
}

uint32_t cn_lane_n_waiting(const cn_lane *lane) { return atomic_load(&lane->n_waiting); }

const char *cn_lane_failure(const cn_lane *lane)
{
    return atomic_load(&lane->failed) ? lane->why : NULL;
}

void cn_lane_stats(cn_lane *lane, cn_stats *out)
{
    if (!lane->outbox) {
        cn_engine_stats(lane->engine, out);
        return;
    }
    if (lane->is_running) pthread_mutex_lock(&lane->lock);
    *out = lane->stats;
    if (lane->is_running) pthread_mutex_unlock(&lane->lock);
}
