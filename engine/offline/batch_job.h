/* batch_job.h - a job of a run (batch_run.h), for the files that make the run.
 *
 * Owner: the run. Thread: the run's. Stage: 1 and 8. */
#pragma once

#include "engine/offline/batch_run.h"

void cn_batch_job_free(cn_batch_job *job);
/* Ends the job without a result, with the thread's last error. */
void cn_batch_job_fail(cn_batch_job *job, cn_status status, const char *code);
/* Parses the request of an identified item and decides whether it is audited. CN_ERR_ARG: the line
 * is invalid. */
cn_status cn_batch_job_prepare(cn_batch_job *job);

cn_batch_format cn_batch_run_format(const cn_batch_run *run);
