/* forced_report.h - the figures of forced continuations as a table and as JSON.
 *
 * Owner: cinch compare. Thread: main. Stage: after a group of documents has run. */
#pragma once

#include "engine/compare/forced_run.h"

typedef struct cn_forced_report {
    const cn_config *config;
    const cn_compare_arms *arms;
    const cn_forced_task *tasks; /* [n_tasks] */
    cn_forced_run **runs;        /* [n_tasks] NULL: not begun */
    uint32_t n_tasks;
} cn_forced_report;

/* Prints one task's arms as a Markdown table. */
void cn_forced_print(FILE *f, const cn_forced_report *r, uint32_t task);

/* Writes all figures so far, those of each document too, replacing the file's contents. CN_ERR_IO
 * names the path. */
cn_status cn_forced_write_json(const cn_forced_report *r, const char *path);
