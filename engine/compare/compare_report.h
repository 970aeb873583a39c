/* compare_report.h - the figures of a comparison as a table and as JSON.
 *
 * Owner: cinch compare. Thread: main. Stage: after an arm has run. */
#pragma once

#include "engine/compare/compare_run.h"

typedef struct cn_compare_report {
    const cn_config *config;
    const cn_compare_arms *arms;
    const cn_compare_task *tasks; /* [n_tasks] */
    uint32_t n_tasks;
    cn_compare_figures *figures; /* [n_tasks, arms->n] */
    uint32_t n_done;             /* figures that are set, from the first on */
} cn_compare_report;

/* Prints one task's arms as a Markdown table with aligned columns. An arm of which nothing was
 * compared has "-" for the agreement; in JSON null. */
void cn_compare_print(FILE *f, const cn_compare_report *r, uint32_t task);

/* Writes all figures so far, replacing the file's contents. CN_ERR_IO names the path. */
cn_status cn_compare_write_json(const cn_compare_report *r, const char *path);
