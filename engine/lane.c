/* lane.c - see lane.h. */
#include "engine/lane.h"

#include <string.h>
#include <time.h>

enum { INBOX_MAILS = 1 << 20 }; /* the owner bounds what it posts */

static unsigned long long now_ms(void) { return (unsigned long long)(cn_now_s() * 1e3); }

/* ---- the lane's thread ---- */

static void keep_failure(cn_lane *lane, cn_status status)
{
    lane->status = status;
    snprintf(lane->why, sizeof lane->why, "%s", cn_last_error());
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

static void open_stop(cn_mail *mail)
{
    CN_CONTAINER_OF(mail, cn_lane, stop_mail)->stopping = true;
}

static void keep_stats(cn_lane *lane)
{
    cn_stats stats;
    cn_engine_stats(lane->engine, &stats);
    pthread_mutex_lock(&lane->lock);
    lane->stats = stats;
    pthread_mutex_unlock(&lane->lock);
    atomic_store(&lane->n_waiting, stats.waiting + stats.swapped);
}

static cn_status step(cn_lane *lane)
{
    atomic_store_explicit(&lane->step_began_ms, now_ms(), memory_order_relaxed);
    const cn_status status = cn_engine_step(lane->engine, &lane->idle);
    atomic_store_explicit(&lane->step_began_ms, 0, memory_order_relaxed);
    return status;
}

static void *run(void *context)
{
    cn_lane *lane = context;
    const cn_status loaded = lane->load ? lane->load(lane->engine) : CN_OK;
    if (loaded != CN_OK) keep_failure(lane, loaded);
    lane->loaded_mail.open = open_loaded;
    cn_mailbox_post(lane->outbox, CN_MAIL_NORMAL, &lane->loaded_mail);
    if (loaded != CN_OK) return NULL;
    lane->idle = true;
    for (;;) {
        if (lane->idle) cn_mailbox_wait(lane->inbox, -1);
        cn_mailbox_open_all(lane->inbox);
        if (lane->stopping) return NULL;
        if (lane->idle) continue;
        const cn_status status = step(lane);
        keep_stats(lane);
        if (status == CN_OK) continue;
        keep_failure(lane, status);
        lane->failed_mail.open = open_failed;
        cn_mailbox_post(lane->outbox, CN_MAIL_NORMAL, &lane->failed_mail);
        return NULL;
    }
}

void cn_lane_wake(cn_lane *lane, uint32_t n)
{
    lane->idle = false;
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

bool cn_lane_close(cn_lane *lane, double wait_s)
{
    struct timespec until;
    if (!lane->is_running) return true;
    cn_lane_stop(lane);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)wait_s + 1;
    if (pthread_timedjoin_np(lane->thread, NULL, &until) != 0) return false;
    lane->is_running = false;
    while (cn_mailbox_take(lane->inbox)) continue;
    cn_mailbox_free(lane->inbox);
    lane->inbox = NULL;
    pthread_mutex_destroy(&lane->lock);
    return true;
}

void cn_lane_post(cn_lane *lane, cn_mail *mail)
{
    if (lane->outbox)
        cn_mailbox_post(lane->inbox, CN_MAIL_NORMAL, mail);
    else
        mail->open(mail);
}

cn_status cn_lane_step(cn_lane *lane)
{
    CN_ASSERT(!lane->outbox);
    return step(lane);
}

double cn_lane_step_s(const cn_lane *lane)
{
    const unsigned long long began =
        atomic_load_explicit(&lane->step_began_ms, memory_order_relaxed);
    return began ? (double)(now_ms() - began) / 1e3 : 0;
}

uint32_t cn_lane_n_waiting(const cn_lane *lane) { return atomic_load(&lane->n_waiting); }

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
