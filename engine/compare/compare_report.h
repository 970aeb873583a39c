/* compare_report.h - the figures of a comparison as a table, as JSON and as a plot.
 *
 * Owner: cinch compare. Thread: main. Stage: after an arm has run. */
#ifndef CN_COMPARE_REPORT_H
#define CN_COMPARE_REPORT_H

#include "engine/compare/compare_run.h"

typedef struct cn_compare_report {
    const cn_config *config;
    const cn_compare_arms *arms;
    const cn_compare_task *tasks; /* [n_tasks] */
    uint32_t n_tasks;
    cn_compare_figures *figures; /* [n_tasks, arms->n] */
    uint32_t n_done;             /* of them, in order */
} cn_compare_report;

/* One task's arms as a Markdown table with aligned columns. */
void cn_compare_print(FILE *f, const cn_compare_report *r, uint32_t task);

/* All that is done so far, in place of what the file held. CN_ERR_IO names the path. */
cn_status cn_compare_write_json(const cn_compare_report *r, const char *path);

/* Exact match, or without grading the agreement with full KV, over the tokens kept: an SVG file
 * with a panel per task. */
cn_status cn_compare_write_plot(const cn_compare_report *r, const char *path);

#endif
