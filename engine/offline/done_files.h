/* done_files.h - outputs of other runs whose requests a run does not answer again (--done).
 *
 * Owner: none. Thread: one. Stage: start. */
#pragma once

#include "engine/offline/id_set.h"
#include "engine/options/options.h"

/* Adds the ids of the lines in the files of c->done to `ids`; with --retry-errors those of error
 * lines not. The run's own output is left out, and so are records. record: of this run.
 * CN_ERR_ARG: a pattern names no file, or a file has no record or one that differs in what changes
 * results. */
cn_status cn_done_files_read(const cn_config *c, const cn_buf *record, cn_id_set *ids);

/* CN_ERR_ARG: one of the files began on another kind of device (cn_engine_backend_text). */
cn_status cn_done_files_check_backend(const cn_config *c, const char *backend);
