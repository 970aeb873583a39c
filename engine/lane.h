/* lane.h - an engine with a mailbox, and with a thread of its own where several engines share the
 * work of a process.
 *
 * Owner: who shares out the work (offline/lanes.h). Thread: all functions belong to the owner's,
 * but cn_lane_reply. What a mail opens in the lane runs on the lane's thread.
 *
 *   with a thread      LOADING --loaded--> RUNNING --a step failed, or a stop--> ENDED
 *   without a thread   the owner steps the engine, and a mail is opened by its sender
 *
 * The owner hears of the end of loading and of a failure by mail (on_loaded, on_failed). */
#ifndef CN_LANE_H
#define CN_LANE_H

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
    void (*on_failed)(cn_lane *lane); /* a step failed; `why` has the error */
    void *owner;

    /* Read by the owner in on_loaded and on_failed. */
    cn_status status;
    char why[CN_LANE_WHY_BYTES];

    /* Internal. */
    cn_mailbox *inbox;
    pthread_t thread;
    bool is_running, stop_posted; /* the owner's */
    bool stopping, idle;          /* the lane's thread's */
    cn_mail loaded_mail, failed_mail, stop_mail;
    atomic_ullong step_began_ms; /* cn_now_s; 0: not in a step */
    atomic_uint n_waiting; /* samples without a seat or KV after the last step, and new ones */
    pthread_mutex_t lock;        /* of stats */
    cn_stats stats;              /* after the last step; with a thread */
};

/* Starts the thread, if the lane has an outbox. CN_ERR_IO: there is none to be had. */
cn_status cn_lane_open(cn_lane *lane);
/* Ends the thread after its step. False: the step did not end within wait_s seconds; the thread
 * runs, and nothing that it may use can be freed. */
bool cn_lane_close(cn_lane *lane, double wait_s);
/* The thread ends as soon as its step does. */
void cn_lane_stop(cn_lane *lane);

/* Has the mail opened on the lane's thread. */
void cn_lane_post(cn_lane *lane, cn_mail *mail);
/* From the lane's thread: has the mail opened on the owner's. */
void cn_lane_reply(cn_lane *lane, cn_mail *mail);
/* Steps the engine of a lane without a thread. */
cn_status cn_lane_step(cn_lane *lane);
/* The lane's thread has given the engine n samples to run. */
void cn_lane_wake(cn_lane *lane, uint32_t n);

/* Seconds since the running step began; 0: none runs. */
double cn_lane_step_s(const cn_lane *lane);
/* Samples that wait in the engine. Those that came after its last step count. */
uint32_t cn_lane_n_waiting(const cn_lane *lane);
void cn_lane_stats(cn_lane *lane, cn_stats *out);

#endif
