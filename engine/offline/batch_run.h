/* batch_run.h - a batch file through an engine: lines in, lines out, in bounded memory. `cinch
 * run-batch` runs one (batch_drive.h), a server many beside each other on one engine
 * (serve/batch_jobs.h).
 *
 * Owner: who drives it. Thread: one. Stage: 1 and 8 of a request's way.
 *
 *                     line                   last event
 *   input --read--> item --submit--> job in flight --------> finished --write--> output
 *                    | already done: skipped   ^                | cancelled: put back, unwritten
 *                    `- at fault: an error line|                | failed: an error line
 *                                              |                |
 *                                              `---- again <----+ looped: --loop-rescue
 *                                                               `- written, picked by --audit
 *
 * Invariants:
 *   1. A line of the input is in the output at most once, and is written after its request ended.
 *   2. At most max_inflight jobs are between read and write; nothing else grows but the id set.
 *   3. Stopping never loses: what is not in the output is asked again by the next run.
 *
 *   RUNNING --end of input, a wish, --strict--> DRAINING --no job left--> done
 *      `------------ told to, disk full, engine failure ----------------> STOPPED
 *
 * Where pauses is set, a line that cannot be written makes the run `paused` instead of STOPPED: it
 * admits and writes nothing, keeps what is answered, and goes on when cn_batch_run_retry() could
 * write.
 *
 * A job may be submitted again: once to be rescued from a loop, before its line is written, and
 * once to be replayed under full KV, after that.
 *
 * Draining puts back what has not produced a token, and what would have to be rescued, ends replays
 * and finishes the rest. */
#ifndef CN_BATCH_RUN_H
#define CN_BATCH_RUN_H

#include "engine/api/api_response.h"
#include "engine/list.h"
#include "engine/offline/audit.h"
#include "engine/offline/batch_input.h"
#include "engine/offline/batch_output.h"
#include "engine/offline/resume.h"
#include "engine/options/options.h"

typedef enum cn_batch_state {
    CN_BATCH_RUNNING,
    CN_BATCH_DRAINING,
    CN_BATCH_STOPPED
} cn_batch_state;

typedef struct cn_batch_job cn_batch_job;
typedef struct cn_batch_run cn_batch_run;

/* The way to an engine, and back. A job that was submitted comes back once: by the event that is
 * its last, through cn_batch_job_event, or by cn_batch_job_end. */
typedef struct cn_batch_port {
    void *user;
    cn_api_defaults defaults;
    /* Others ask the same engine: what it is too busy for gets its turn without our doing. */
    bool shared;
    /* The job's request is read until the job comes back; else during submit alone. */
    bool borrows;
    /* Puts job->asked to the engine. Of the failures ARG means that the line is at fault, BUSY that
     * it may be tried again. job->result is made here, where events come back. */
    cn_status (*submit)(void *user, cn_batch_job *job);
    void (*cancel)(void *user, cn_batch_job *job);
    /* Tokens that the engine has brought so far. */
    uint64_t (*n_tokens)(void *user, cn_batch_job *job);
    /* Whether reading is to leave off, for something has to be heeded. */
    bool (*interrupted)(void *user);
    /* A line gets an error line: for the log. */
    void (*fault)(void *user, const cn_batch_run *run, uint64_t line, const char *message);
} cn_batch_port;

/* A line between read and write. */
struct cn_batch_job {
    cn_batch_run *run;
    cn_list_node node; /* of inflight, finished or again */
    cn_batch_item item;
    cn_api_request asked;  /* the item's, with what this attempt changes; owns nothing */
    cn_api_result *result; /* of this attempt */
    cn_status status;      /* with which it ended; not OK: no result, and error is the text */
    cn_buf error;
    const char *code; /* of the error, or NULL */

    /* The port's. */
    uint64_t request;
    void *call;

    bool looped;               /* some sample was stopped by repetition detection */
    const char *rescued_by;    /* NULL: asked once */
    cn_api_result *unrescued;  /* what looped, until the rescue has ended */
    bool audited, replays;
    cn_transcript said; /* by the first sample, when audited */
    uint32_t n_replayed;
};

struct cn_batch_run {
    /* Set by the owner, and its own. */
    const cn_config *config;
    const cn_batch_port *port;
    cn_line_reader *input;
    cn_batch_output *output;
    cn_batch_output *errors; /* takes the error lines; NULL: output takes them */
    uint32_t max_inflight;
    bool pauses;            /* when a line cannot be written */
    cn_id_set ids;          /* of earlier runs: done */
    cn_batch_totals totals; /* of the whole file; starts with those of earlier runs */

    /* The run's. */
    cn_batch_state state;
    bool paused;
    bool refused;           /* the engine was too busy at the last admission */
    char why[256];          /* it drained, stopped or paused before the end of the input; else "" */
    bool failed;            /* for an error, not for a wish */
    bool input_ended;
    uint64_t n_read, n_skipped;                       /* lines */
    uint64_t n_changed; /* of the skipped: they ask something else than was answered */
    cn_buf changed;     /* the first custom_ids of those, for a message */
    uint64_t n_answered, n_errors, n_put_back;        /* of this run */
    cn_list inflight;
    cn_list finished;       /* not yet written */
    cn_list again;          /* to be submitted again, newest first */
    cn_batch_job *waiting;  /* read, but the engine's queue was full */
    uint64_t n_rescued;     /* written lines that were asked twice */
    cn_agreement agreement; /* of the replays so far */
    cn_usage replayed;      /* prompt, cached and output tokens of replays */
    cn_buf line;            /* scratch */
};

/* Reads and submits while there is room and something to read. wait_ms: how long to wait for a
 * pipe. Returns at once unless the run is RUNNING and not paused. */
void cn_batch_run_admit(cn_batch_run *run, int wait_ms);

/* Writes what has come back, or submits it again. */
void cn_batch_run_settle(cn_batch_run *run);

/* Ends the admission, keeping the first reason. */
void cn_batch_run_drain(cn_batch_run *run, bool failed, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends the run where it stands. */
void cn_batch_run_stop(cn_batch_run *run, bool failed, const char *why);
/* Tries to go on after a pause; it may be paused again at once. */
void cn_batch_run_retry(cn_batch_run *run);

/* Whether nothing is left to do: in flight, to be written, to be asked again, to be read. */
bool cn_batch_run_is_over(const cn_batch_run *run);

/* A cn_event_fn whose user is the job: gathers its result. */
void cn_batch_job_event(void *job, const cn_event *ev);
/* The end of a job whose result was gathered elsewhere: takes over result, or with a status that
 * is not OK (ARG: the line is at fault; BUSY: try again; CANCELLED: put back) keeps the thread's
 * last error. */
void cn_batch_job_end(cn_batch_job *job, cn_status status, cn_api_result *result);

/* Drops what the run itself holds; after the engine is freed, or when nothing is in flight. */
void cn_batch_run_end(cn_batch_run *run);

#endif
