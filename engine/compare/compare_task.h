/* compare_task.h - one input file of a comparison, read whole: its requests, which every arm runs
 * once, and its reference answers.
 *
 * Owner: cinch compare. Thread: the engine's. Stage: before the first arm runs. */
#pragma once

#include "engine/engine.h"
#include "engine/offline/batch_input.h"

typedef struct cn_compare_task {
    char *name;       /* the file's name without directory and extension */
    const char *path; /* borrowed */
    cn_batch_item *items; /* [n] */
    uint32_t n;
} cn_compare_task;

/* Reads at most --limit lines of the file. What a line does not set has the engine's default.
 * CN_ERR_ARG names path and line if a line is not a request or asks for several samples. Free *out
 * in every case. */
cn_status cn_compare_task_load(cn_compare_task *out, const cn_engine *e, const char *path);
void cn_compare_task_free(cn_compare_task *t);

/* Sets *name to the file's name without directory and extension, and calls `read` with each line,
 * at most `limit` of them (0: all). CN_ERR_ARG: the file has no lines, which `what` names, or
 * `read` failed; the text names path and line. */
cn_status cn_compare_read_lines(char **name, const char *path, uint32_t limit, const char *what,
                                cn_status (*read)(void *task, const cn_line *line), void *task);
