/* lane.h - an engine with a mailbox, and with a thread of its own where several engines share the
 * work of a process, or where a server waits beside it.
 *
 * Owner: who shares out the work (offline/lanes.h, serve/calls/service.h). Thread: all functions
 * belong to the owner's, but for those that say so. What a mail opens in the lane runs on the
 * lane's thread.
 *
 *   with a thread      LOADING --loaded--> RUNNING --a step failed--> FAILED --a stop--> ENDED
 *   without a thread   the owner steps the engine, and a mail is opened by its sender
 *
 * The owner hears of the end of loading and of a failure by mail (on_loaded, on_failed). */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base/mailbox.h"

enum { CN_LANE_WHY_BYTES = 512 };

typedef struct cn_lane cn_lane;
struct cn_lane {
    /* Set by the owner before cn_lane_open. */
    cn_engine *engine; /* borrowed; used only on the lane's thread once that runs */
    uint32_t index;
    cn_mailbox *outbox; /* the owner's; NULL: the lane has no thread */
    cn_status (*load)(cn_engine *engine); /* first, on the lane's thread; NULL: it is loaded */
    void (*on_loaded)(cn_lane *lane);
    void (*on_failed)(cn_lane *lane); /* a step failed; `why` has the error. NULL: nobody asks */
    void *owner;
    /* On the lane's thread; NULL: nothing is done. After a step that took so long: */
    void (*on_step)(cn_lane *lane, double seconds);
    /* The engine makes no more steps: one failed, or a stop came (CN_ERR_CANCELLED); the thread's
     * last error says why. With this function, mails are opened until the stop, and those that wait
     * then too. Without it, the thread ends with the failure. */
    void (*on_end)(cn_lane *lane, cn_status status);

    /* Read by the owner in on_loaded and on_failed. */
    cn_status status;
    char why[CN_LANE_WHY_BYTES];

    /* Internal. */
    cn_mailbox *inbox;
    pthread_t thread;
    bool is_running, stop_posted;    /* the owner's */
    bool stopping, idle, untrimmed;  /* the lane's thread's */
    cn_mail loaded_mail, failed_mail, stop_mail;
    atomic_bool failed;
    atomic_ullong turn_began_ms; /* cn_now_s; 0: it waits for mail */
    atomic_uint n_waiting; /* samples without a seat or KV after the last step, and new ones */
    pthread_mutex_t lock;        /* of stats */
    cn_stats stats;              /* after the last step; with a thread */
};

/* Starts the thread, if the lane has an outbox. CN_ERR_IO: there is none to be had. */
cn_status cn_lane_open(cn_lane *lane);
/* Ends the thread after its step. False: it did not end until then (cn_now_s); the thread runs, and
 * nothing that it may use can be freed. */
bool cn_lane_close(cn_lane *lane, double until_s);
/* The thread ends as soon as its step does. */
void cn_lane_stop(cn_lane *lane);

/* Has the mail opened on the lane's thread. Any thread, if the lane has one. */
void cn_lane_post(cn_lane *lane, cn_mail_queue queue, cn_mail *mail);
/* Takes back a mail that the lane with a thread has not opened. Any thread. */
bool cn_lane_try_recall(cn_lane *lane, cn_mail_queue queue, cn_mail *mail);
/* From the lane's thread: has the mail opened on the owner's. */
void cn_lane_reply(cn_lane *lane, cn_mail *mail);
/* Steps the engine of a lane without a thread. */
cn_status cn_lane_step(cn_lane *lane);
/* The lane's thread has given the engine n samples to run. */
void cn_lane_wake(cn_lane *lane, uint32_t n);

/* The rest: any thread. */

/* Seconds since the turn began that runs: a step, with the mails before it. 0: none runs. */
double cn_lane_turn_s(const cn_lane *lane, double now_s); /* now_s: cn_now_s() */
/* Samples that wait in the engine. Those that came after its last step count. */
uint32_t cn_lane_n_waiting(const cn_lane *lane);
void cn_lane_stats(cn_lane *lane, cn_stats *out);
/* NULL, or why a step failed. */
const char *cn_lane_failure(const cn_lane *lane);
