/* resume.h - what a run leaves beside its output so that another can go on with it, and what it
 * reads back.
 *
 * Owner: cn_batch_run. Thread: one. Stage: start.
 *
 * <output>.cinch-run is a JSON object, written whole (beside, then renamed) before the first output
 * line: the checkpoint's fingerprint and every option that changes results. A run resumes only
 * where all of it is the same. The input file is not in it: lines are told apart by custom_id, so
 * it may have grown. Each output line has a hash of its request (batch_line.h), so that a run can
 * count the lines that ask something else since. */
#ifndef CN_RESUME_H
#define CN_RESUME_H

#include "engine/base.h"
#include "engine/offline/batch_output.h"
#include "engine/offline/id_set.h"
#include "engine/options/options.h"

/* The record of a run under this configuration, as the text of the file. */
cn_status cn_run_record_make(cn_buf *out, const cn_config *c);
cn_status cn_run_record_write(const char *output_path, const cn_buf *record);

/* Compares the record beside output_path with this one. CN_ERR_ARG names what differs, with both
 * values; or says that there is no record. */
cn_status cn_run_record_check(const char *output_path, const cn_buf *record);

/* The same between two records at hand. */
cn_status cn_run_record_compare(const char *then, const char *now);

/* What the lines of an output say together. */
typedef struct cn_batch_totals {
    uint64_t answered, errors;
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    uint64_t graded, matched; /* choices with a reference answer, and those that equal it */
} cn_batch_totals;

/* Reads the lines of o: adds the ids of those that stay done to ids, with what they were asked, and
 * their figures to totals. With
 * retry_errors, lines with an error are taken out of the file. CN_ERR_ARG names a line that no run
 * wrote. */
cn_status cn_resume_scan(cn_batch_output *o, bool retry_errors, cn_id_set *ids,
                         cn_batch_totals *totals);

#endif
