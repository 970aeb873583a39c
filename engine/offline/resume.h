/* resume.h - the record that a run writes beside its output, so that another run can continue it.
 *
 * Owner: cn_batch_run. Thread: one. Stage: start.
 *
 * <output>.cinch-run is a JSON object with the checkpoint's fingerprint and every option that
 * changes results. It is written before the first output line, as a temporary file that is renamed.
 * A run resumes only if all of this is the same. Of the input it has the path and a hash of the
 * first line: a run is refused if both differ. The input may have moved, grown or been edited,
 * because lines are identified by custom_id. Each output line has a hash of its request
 * (batch_line.h), so that a run can count the lines whose request has changed since. A run of a
 * shard adds which one, and the size of the input. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"
#include "engine/offline/batch_output.h"
#include "engine/offline/id_set.h"
#include "engine/offline/token_forecast.h"
#include "engine/options/options.h"

/* Appends the record of a run with this configuration, as the text of the file. */
cn_status cn_run_record_make(cn_buf *out, const cn_config *c);
/* Call before cn_run_record_make of a run that resumes. Options that cinch lacked once, or had with
 * another default (cn_option.before), take the value of the record, unless the user set them. */
cn_status cn_run_record_adopt(const char *output_path, cn_config *c);
/* Appends the path of the record beside an output: beside the file that a link names. */
cn_status cn_run_record_path(cn_buf *out, const char *output_path);
cn_status cn_run_record_write(const char *output_path, const cn_buf *record);
void cn_run_record_remove(const char *output_path);

/* Returns whether an output is empty and has no record: a run has made it, and writes its record
 * before the first line. */
bool cn_run_record_is_awaited(const char *output_path);

/* Compares the record beside output_path with this one. CN_ERR_ARG: there is no record, or it
 * differs; the text names the difference with both values. */
cn_status cn_run_record_check(const char *output_path, const cn_buf *record);

/* Adds the text of the engine (cn_engine_backend_text) to a record that has none, and compares it
 * with that of others. CN_ERR_ARG: it differs. */
cn_status cn_run_record_backend(const char *output_path, const char *backend);

/* The records of runs whose outputs are used together: of --done, and of `cinch merge`. Shards and
 * the numbers of shards may differ. */
cn_status cn_run_record_parse(json_t **out, const cn_buf *record);
/* CN_ERR_ARG: the output has no record. The caller releases *out, also after a failure. */
cn_status cn_run_record_load(json_t **out, const char *output_path);
/* CN_ERR_ARG: the record of the output differs from this one in what changes results. */
cn_status cn_run_record_check_other(const char *output_path, json_t *record);
/* CN_ERR_ARG: the record names another kind of device. */
cn_status cn_run_record_check_backend(const char *output_path, const char *backend);
/* CN_ERR_ARG: the run of the record reads another input. */
cn_status cn_run_record_check_input(const json_t *record, const char *input_path);
cn_status cn_run_record_write_json(const char *output_path, const json_t *record);

/* Compares two records, given as text. Options whose default has changed (cn_option.before) may
 * differ if no request of c can read them. *any_rule: in the run of `then` the defaults of options
 * did not depend on the rule of a request; its later requests must keep that
 * (cn_api_defaults.any_rule). */
cn_status cn_run_record_compare(const char *then, const char *now, const cn_config *c,
                                bool *any_rule);

/* Sums over the lines of an output. */
typedef struct cn_batch_totals {
    uint64_t answered, errors;
    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    uint64_t graded, matched; /* choices with a reference answer, and those that equal it */
    cn_lengths lengths;       /* output tokens of each answered line */
} cn_batch_totals;

/* Reads the lines of o. Adds the ids of finished lines to `ids`, with the hashes of their requests,
 * and their figures to `totals`. With retry_errors, error lines are not added but removed from the
 * file. CN_ERR_ARG names a line that run-batch did not write. */
cn_status cn_resume_scan(cn_batch_output *o, bool retry_errors, cn_id_set *ids,
                         cn_batch_totals *totals);
