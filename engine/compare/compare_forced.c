/* compare_forced.c - see compare_forced.h. */
#include "engine/compare/compare_forced.h"

#include "engine/compare/forced_report.h"
#include "engine/engine_probe.h"

/* A file that cannot be written ends no run: the table follows. */
static void write_forced_json(const cn_forced_report *r, cn_status *written)
{
    if (!r->config->compare_json) return;
    *written = cn_forced_write_json(r, r->config->compare_json);
    if (*written != CN_OK) cn_log(CN_LOG_WARN, "%s", cn_last_error());
}

/* Prints the table of the documents that are done, also if one fails. *written: whether the last
 * JSON file was written. */
static cn_status run_forced_task(cn_forced_report *r, cn_engine *e, uint32_t t, cn_status *written)
{
    CN_TRY(cn_forced_run_create(&r->runs[t], e, r->arms, &r->tasks[t]));
    cn_status status = CN_OK;
    while (cn_forced_run_done(r->runs[t]) < r->tasks[t].n) {
        status = cn_forced_run_group(r->runs[t]);
        if (status != CN_OK) break;
        cn_log(CN_LOG_INFO, "%s: %u of %u documents", r->tasks[t].name,
               cn_forced_run_done(r->runs[t]), r->tasks[t].n);
        write_forced_json(r, written);
    }
    if (cn_forced_run_done(r->runs[t]) > 0) cn_forced_print(stdout, r, t);
    return status;
}

/* Checks that every document fits under every arm, before the first one runs. */
static cn_status check_task_fit(const cn_engine *e, const cn_compare_arms *arms,
                                const cn_forced_task *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const cn_forced_document *d = &t->documents[i];
        for (uint32_t a = 0; a < arms->n; a++) {
            const cn_compare_arm *arm = &arms->arms[a];
            const cn_status status = cn_engine_check_batch(e, 1, (uint32_t)d->prompt.len,
                                                           (uint32_t)d->continuation.len, &arm->kv);
            if (status != CN_OK)
                return cn_fail_within(status, "%s: line %llu: arm %s", t->path,
                                      (unsigned long long)d->line, arm->label);
        }
    }
    return CN_OK;
}

static cn_status run_forced_tasks(cn_forced_report *r, cn_forced_task *tasks, cn_engine *e,
                                  const char *const *paths)
{
    for (uint32_t t = 0; t < r->n_tasks; t++) CN_TRY(cn_forced_task_load(&tasks[t], e, paths[t]));
    for (uint32_t t = 0; t < r->n_tasks; t++) CN_TRY(check_task_fit(e, r->arms, &tasks[t]));
    cn_status written = CN_OK;
    for (uint32_t t = 0; t < r->n_tasks; t++) CN_TRY(run_forced_task(r, e, t, &written));
    if (written == CN_OK) return CN_OK;
    return cn_fail(written, "--json %s: not written", r->config->compare_json);
}

cn_status cn_compare_forced(cn_engine *e, const cn_compare_arms *arms, const char *const *paths,
                            uint32_t n_paths)
{
    cn_forced_task *tasks = cn_calloc(n_paths, sizeof *tasks);
    cn_forced_report r = {.config = cn_engine_config(e), .arms = arms, .tasks = tasks,
                          .runs = cn_calloc(n_paths, sizeof *r.runs), .n_tasks = n_paths};
    cn_status status = tasks && r.runs
                           ? run_forced_tasks(&r, tasks, e, paths)
                           : cn_fail(CN_ERR_MEMORY, "out of memory for %u files", n_paths);
    for (uint32_t t = 0; t < n_paths; t++) {
        if (r.runs) cn_forced_run_free(r.runs[t]);
        if (tasks) cn_forced_task_free(&tasks[t]);
    }
    cn_free(r.runs);
    cn_free(tasks);
    return status;
}
