/* batch_run.h - a batch file through an engine: lines in, lines out, in bounded memory. `cinch
 * run-batch` runs one batch (batch_drive.h). A server runs many at once on one engine
 * (serve/batch_jobs.h).
 *
 * Owner: the driver of the run. Thread: one. Stage: 1 and 8.
 *
 *                     line                   last event
 *   input --read--> item --submit--> job in flight --------> finished --write--> output
 *                    | already done: skipped   ^                | cancelled: put back
 *                    `- invalid: an error line |                | failed: an error line
 *                                              |                |
 *                                              `---- again <----+ looped: --loop-rescue
 *                                                               `- written, chosen by --audit
 *
 * A job that is put back has no line in the output: the next run submits it again.
 *
 * Invariants:
 *   1. The output has at most one line for a line of the input, written after its request ended.
 *   2. At most max_inflight jobs are between read and write. Only the id set grows with the input.
 *   3. A stop loses nothing: the next run submits every line that is not in the output.
 *
 *   RUNNING --signal, --until, --strict, an error--> DRAINING --no job left--> done
 *      `-- second signal, abandoned, disk full, engine failure ---> STOPPED
 *
 * A RUNNING run is also done when the input has ended and no job is left.
 *
 * If `pauses` is set, a line that cannot be written makes the run `paused` instead of STOPPED. A
 * paused run admits and writes nothing and keeps the finished jobs. It continues when
 * cn_batch_run_retry() can write.
 *
 * A job may be submitted again: once to rescue it from a loop, before its line is written, and once
 * to replay it under full KV, after its line is written.
 *
 * Draining puts back the jobs without a token and those that would need a rescue. It cancels
 * replays and finishes the other jobs. */
#pragma once

#include "engine/api/api_response.h"
#include "engine/base/list.h"
#include "engine/offline/audit.h"
#include "engine/offline/batch_input.h"
#include "engine/offline/batch_output.h"
#include "engine/offline/first_lines.h"
#include "engine/offline/resume.h"
#include "engine/offline/time_forecast.h"
#include "engine/options/options.h"

typedef enum cn_batch_state {
    CN_BATCH_RUNNING,
    CN_BATCH_DRAINING,
    CN_BATCH_STOPPED
} cn_batch_state;

enum { CN_BATCH_WHY_BYTES = 1200 };

/* The error of a line whose custom_id an earlier line has. */
#define CN_BATCH_DUPLICATE "duplicate_custom_id"
#define CN_BATCH_DUPLICATE_TEXT \
    "custom_id \"%s\" is already used by an earlier line: each needs its own"

/* The error of a line that so many engines had when they failed. */
#define CN_BATCH_ENGINE_FAILED "engine_failed"
enum { CN_BATCH_MOST_LOST = 3 };

typedef struct cn_batch_job cn_batch_job;
typedef struct cn_batch_run cn_batch_run;

/* The connection of a run to engines. Each submitted job is returned once, by cn_batch_job_end or
 * cn_batch_job_lose. */
typedef struct cn_batch_port {
    void *user;
    cn_api_defaults defaults;
    const char *model; /* in responses */
    /* The names of the model that a line may ask for; a line with another one gets an error line
     * with status 404. NULL: the name in a line does not matter. */
    const cn_served_names *names;
    /* Other clients use the same engine. So a BUSY engine can get room even if this run has nothing
     * in flight. */
    bool shared;
    /* true: the engine reads the job's request until the job is returned; false: only during
     * submit. */
    bool borrows;
    bool loses; /* it calls cn_batch_job_lose: jobs keep the text of their lines */
    /* Submits job->attempt to the engine. CN_ERR_ARG: the line is invalid. CN_ERR_BUSY: try again
     * later. The port makes job->result, before the end. */
    cn_status (*submit)(void *user, cn_batch_job *job);
    void (*cancel)(void *user, cn_batch_job *job);
    /* Tokens that the engine has generated for the job so far. */
    uint64_t (*n_tokens)(void *user, cn_batch_job *job);
    /* True if the run must stop reading for now: a signal arrived, or the run used up its share of
     * lines. */
    bool (*interrupted)(void *user);
    /* Called before an error line is written: for the log. */
    void (*fault)(void *user, const cn_batch_run *run, uint64_t line, const char *message);
} cn_batch_port;

/* A line of the input between read and write. */
struct cn_batch_job {
    cn_batch_run *run;
    cn_list_node node; /* in inflight, finished or again */
    cn_batch_item item;
    cn_buf text;   /* of the line, with port->loses: another job may have to parse it */
    bool numbered; /* item.line counts from the beginning of the input, not of a part */
    cn_api_request attempt; /* the item's request, as changed for this attempt; owns nothing */
    cn_api_result *result; /* of this attempt */
    uint64_t held_bytes;   /* its part of the run's held_bytes */
    cn_status status;      /* how it ended; not CN_OK: no result, and `error` has the text */
    cn_buf error, at_fault; /* the text; the invalid member, or empty */
    const char *code;       /* of the error, or NULL */

    /* Used by the port. */
    uint64_t request; /* id of the first engine request */
    uint32_t n_left;  /* engine requests that have not ended */
    void *call;

    bool looped;               /* repetition detection stopped a sample */
    const char *rescued_by;    /* NULL: submitted once */
    cn_api_result *unrescued;  /* result of the attempt that looped, until the rescue ends */
    bool audited, replays;
    cn_transcript said; /* tokens of the first sample, if audited */
    uint32_t n_replayed;
    cn_agreement agreement; /* of its replay */
    cn_usage replayed;
    uint32_t n_lost; /* engines that failed while they had its line */
};

struct cn_batch_run {
    /* Set by the owner, who owns them. */
    const cn_config *config;
    const cn_batch_port *port;
    cn_line_reader *input;
    cn_batch_output *output;
    cn_batch_output *errors; /* file for the error lines; NULL: output */
    uint32_t max_inflight;
    uint64_t max_held_bytes; /* of the lines between read and write; 0: no limit */
    bool pauses;            /* instead of stopping, if a line cannot be written */
    /* first.watching: the run fails, and removes its lines, if the first lines all fail for one
     * reason or the first lacks a field. Only for an output that is empty. */
    cn_first_lines first;
    cn_id_set ids;          /* lines that earlier runs finished */
    cn_batch_totals totals; /* of the whole file, earlier runs included */

    /* Set by the run. */
    uint64_t number; /* random, in the ids of its lines; 0: not chosen */
    cn_batch_state state;
    bool paused;
    bool refused;           /* the engine was BUSY at the last admission, or a job came back BUSY */
    char refusal[256];      /* the latest reason */
    uint64_t held_bytes;    /* of the lines between read and write, with their trees */
    char why[CN_BATCH_WHY_BYTES]; /* why it drained, stopped or paused before the end; else "" */
    bool failed;            /* the reason is an error, not a signal or --until */
    bool engine_failed;     /* set by the owner: the error is of an engine, not of the input */
    bool input_ended;
    uint64_t n_read, n_skipped;                       /* lines */
    uint64_t n_changed; /* skipped lines that differ from the answered request */
    cn_buf changed;     /* their first custom_ids, for a message */
    uint64_t n_answered, n_errors, n_put_back;        /* of this run */
    cn_list inflight;
    cn_list finished;       /* not yet written */
    cn_list again;          /* to submit again, newest first */
    cn_batch_job *waiting;  /* read, but the engine's queue was full */
    uint64_t n_warned;      /* answered lines with fields that were ignored */
    uint64_t n_rescued;     /* written lines that were submitted twice */
    cn_agreement agreement; /* of the replays so far */
    cn_usage replayed;      /* prompt, cached and output tokens of replays */
    cn_buf line;            /* scratch */
};

/* Reads and submits lines while there is room and input. wait_ms: how long to wait for input from a
 * pipe. Returns immediately unless the run is RUNNING and not paused. */
void cn_batch_run_admit(cn_batch_run *run, int wait_ms);

/* True if another line may be read: max_inflight and max_held_bytes allow it. */
bool cn_batch_run_has_room(const cn_batch_run *run);

/* Writes the finished jobs, or queues them to be submitted again. */
void cn_batch_run_settle(cn_batch_run *run);

/* Stops admission. Keeps the first reason. */
void cn_batch_run_drain(cn_batch_run *run, bool failed, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Stops the run immediately. */
void cn_batch_run_stop(cn_batch_run *run, bool failed, const char *why);
/* Sets *number to the run's, which it chooses at the first call. */
cn_status cn_batch_run_number(cn_batch_run *run, uint64_t *number);
/* Tries to continue after a pause. May pause the run again immediately. */
void cn_batch_run_retry(cn_batch_run *run);

/* True if nothing is in flight, to write, to submit again or to read. */
bool cn_batch_run_is_over(const cn_batch_run *run);

/* Adds an event to the job's result, or to its replay. Returns true for the last. Any thread: it
 * touches nothing of the run. */
bool cn_batch_job_event(cn_batch_job *job, const cn_event *ev);
/* Ends a job. With CN_OK it has its result. With another status (CN_ERR_ARG: the line is invalid;
 * CN_ERR_BUSY: try again; CN_ERR_CANCELLED: put back) keeps the thread's last error. */
void cn_batch_job_end(cn_batch_job *job, cn_status status);
/* Ends a job that too many engines had when they failed, with an error line. */
void cn_batch_job_end_lost(cn_batch_job *job, const char *text);
/* Takes a job out of the run, because its engine is lost, which may still use the job: the port
 * frees it with cn_batch_job_free (batch_job.h). Its line is submitted again in another job, or
 * gets an error line: after CN_BATCH_MOST_LOST engines, or if it is the cause. Needs port->borrows
 * and port->loses. */
void cn_batch_job_lose(cn_batch_job *job, const char *why, bool is_cause);

/* What the whole file has done and has to do. unread: lines of the input that were not read yet;
 * context: most tokens of a request; most_kv: as in cn_step_cost. */
cn_batch_work cn_batch_run_work(const cn_batch_run *run, uint64_t unread, uint32_t context,
                                double most_kv);

/* Reads on after a run that was drained, to see whether the input has ended. A line that is found
 * is not answered. */
void cn_batch_run_look_for_rest(cn_batch_run *run);
/* True if every line of the input has its line in the output. */
bool cn_batch_run_is_complete(const cn_batch_run *run);

/* Frees what the run itself holds. Call it after the engine is freed, or when nothing is in
 * flight. */
void cn_batch_run_end(cn_batch_run *run);
