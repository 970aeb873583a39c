/* jobs_rig.h - batches in a temporary spool with a scripted engine. The engine keeps each request
 * until jobs_work() answers it with "echo <custom_id>". It refuses the prompt "long".
 * Thread: the test's. */
#pragma once

#include "engine/serve/spool/batch_jobs.h"

enum { JOBS_MAX_SUBMITTED = 1024 };

typedef struct jobs_rig {
    char dir[32];
    int64_t now_s; /* the clock */
    uint64_t n_reads; /* of the clock that files and refused lines use */
    cn_config *config;
    cn_batches *batches;
    cn_batches_opts opts;

    /* the engine: the requests in flight */
    cn_batch_job *submitted[JOBS_MAX_SUBMITTED];
    bool cancelled[JOBS_MAX_SUBMITTED];
    uint32_t n, most;
    uint32_t max;   /* a submit beyond max returns BUSY */
    bool any_owner; /* false: every request is of "" */
    bool at_intake; /* the requests in flight are not accepted yet */
    uint64_t n_submitted;
} jobs_rig;
extern jobs_rig jobs;
extern const cn_viewer jobs_viewer; /* sees all */

/* Fixtures for cmocka: set_up opens an empty spool, tear_down closes and removes it. */
int jobs_set_up(void **state);
int jobs_tear_down(void **state);
void jobs_open(void);
/* Leaves the spool as a killed process would, but frees all memory. */
void jobs_close(void);

/* Ends all cancelled requests and the first n of the others. */
void jobs_work(uint32_t n);
/* Refuses the first request. Nothing happens when none is in flight. */
void jobs_refuse_one(void);
void jobs_pump(int times);
/* Works until no request is in flight and no batch asks to be called again soon. */
void jobs_run_all(void);

void jobs_add_line(cn_buf *text, const char *id, const char *prompt);
cn_status jobs_try_upload(const char *text, size_t n, cn_spool_id *id);
cn_spool_id jobs_upload(const cn_buf *text);
/* Uploads n lines with the ids r0, r1, ... */
cn_spool_id jobs_upload_lines(int n);
cn_status jobs_try_create(const cn_spool_id *input, const char *window, cn_spool_id *id);
cn_spool_id jobs_create(const cn_spool_id *input);

const char *jobs_text_of(const json_t *o, const char *key); /* "" when absent */
void jobs_expect_status(const cn_spool_id *id, const char *status);
/* Returns the lines of a batch's file as an array. */
json_t *jobs_read_lines(const json_t *batch, const char *member);
/* Reads both files of an ended batch. Every line must be well-formed, every custom_id must have one
 * line, and answers must be correct. Counts the lines of each file in *answered and *errors. */
void jobs_check_files(const cn_spool_id *id, int *answered, int *errors);
void jobs_expect_files(const cn_spool_id *id, int want_answered, int want_errors);
