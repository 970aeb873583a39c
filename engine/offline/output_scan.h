/* output_scan.h - reads the lines of a run's output again: which request each answers, and where it
 * is. Lines as run-batch writes them are not parsed, which is several times as fast; that they are
 * whole is checked all the same.
 *
 * Owner: none. Thread: any. Stage: `cinch merge`, and the start of a run with --done. */
#pragma once

#include "engine/offline/id_set.h"

/* Files beside an output that are none: its record, and files that are not complete. */
bool cn_output_is_beside(const char *path);

typedef struct cn_output_line {
    cn_id id;
    bool is_error;
    uint64_t request_hash; /* 0: not in the line */
    const char *text;      /* [n], without its newline; valid during the call */
    size_t n;
    uint64_t offset; /* in the file */
} cn_output_line;

/* Lines that are no answers: damaged ones, and a last one without a newline, which a killed process
 * leaves. */
typedef struct cn_output_flaws {
    uint64_t n_damaged, first_damaged; /* lines; the number of the first */
    uint64_t torn_bytes;               /* of the last line; 0: it is complete */
} cn_output_flaws;

/* Calls fn for every line that is an answer or an error line; stops at the first call that fails.
 * CN_ERR_IO names the path. */
typedef cn_status (*cn_output_scan_fn)(void *user, const cn_output_line *line);
cn_status cn_output_scan(const char *path, cn_output_scan_fn fn, void *user,
                         cn_output_flaws *flaws);

/* Logs the flaws of a file. */
void cn_output_flaws_log(const char *path, const cn_output_flaws *flaws);
