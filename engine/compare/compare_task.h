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

/* Sets *out to the file's name without directory and extension. */
cn_status cn_compare_task_name(char **out, const char *path);
