/* batch_jobs_check.h - validates the input of a batch before its first line is submitted.
 *
 * Each line must be a batch line for the batch's endpoint with a unique custom_id. The request in
 * the line is checked later, when the line is submitted.
 *
 * Owner: cn_batch. Thread: the batch thread. Works in pieces, so that nothing else waits for it. */
#pragma once

#include "engine/offline/batch_input.h"

typedef struct cn_batch_check {
    cn_line_reader *reader;
    cn_api_endpoint endpoint;
    uint64_t max_lines, n_lines;
    cn_id_set ids;
    json_t *faults; /* array of {code, message, param, line}: the first CN_BATCH_FAULTS_SHOWN */
    uint64_t n_faults;
} cn_batch_check;

enum { CN_BATCH_FAULTS_SHOWN = 100 };

cn_status cn_batch_check_open(cn_batch_check *c, const char *path, cn_api_endpoint endpoint,
                              uint64_t max_lines);
/* Checks at most the next n lines. *done: all lines were checked, or the file has too many. */
cn_status cn_batch_check_some(cn_batch_check *c, uint32_t n, bool *done);
void cn_batch_check_close(cn_batch_check *c); /* a zeroed one is fine */
