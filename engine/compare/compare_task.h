/* compare_task.h - one input file of a comparison, read whole: its requests, to be asked once per
 * arm, and its reference answers.
 *
 * Owner: cinch compare. Thread: the engine's. Stage: before the first arm runs. */
#ifndef CN_COMPARE_TASK_H
#define CN_COMPARE_TASK_H

#include "engine/engine.h"
#include "engine/offline/batch_input.h"

typedef struct cn_compare_task {
    char *name;       /* the file's, without folder and ending */
    const char *path; /* borrowed */
    cn_batch_item *items; /* [n] */
    uint32_t n, cap;
} cn_compare_task;

/* At most --limit lines of the file, with the engine's defaults where they say nothing. A line
 * that is no request is CN_ERR_ARG with path and line; so are several samples a prompt. *out is to
 * be freed in any case. */
cn_status cn_compare_task_load(cn_compare_task *out, const cn_engine *e, const char *path);
void cn_compare_task_free(cn_compare_task *t);

#endif
