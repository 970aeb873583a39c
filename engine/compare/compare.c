/* compare.c - `cinch compare`: runs each arm of --arms over every input file, on one engine.
 *
 * With --continue-field, compare_forced.h does the work. Otherwise the prefix cache is off by
 * default, because later arms would find the prompts of earlier ones. A task's figures are printed
 * when the task is done or fails. The JSON file is rewritten after every arm, so that a comparison
 * that is stopped keeps what it has measured. A file that cannot be written stops no arm. */

#include "compress/selector.h"
#include "engine/cmd/command.h"
#include "engine/compare/compare_forced.h"
#include "engine/compare/compare_report.h"
#include "engine/engine_probe.h"

typedef struct comparison {
    cn_config *config;
    cn_compare_arms arms;
    cn_compare_task *tasks; /* [n_tasks] */
    uint32_t n_tasks;
    cn_engine *engine;
    cn_compare_report report;
    cn_status written; /* of the last JSON file */
} comparison;

static cn_status load_tasks(comparison *c, char **more, uint32_t n_more)
{
    c->tasks = cn_calloc((size_t)n_more + 1, sizeof *c->tasks);
    if (!c->tasks) return cn_fail(CN_ERR_MEMORY, "out of memory for %u files", n_more + 1);
    for (uint32_t i = 0; i <= n_more; i++) {
        const char *path = i == 0 ? c->config->input_file : more[i - 1];
        c->n_tasks++;
        CN_TRY(cn_compare_task_load(&c->tasks[i], c->engine, path));
    }
    return CN_OK;
}

/* The probe reads device memory, so --device auto is the CPU with it. */
static cn_status check_probe(cn_config *c)
{
    if (c->select_probe == 0) return CN_OK;
    if (!cn_selectors_need(c->kv_selectors).any)
        return cn_fail(CN_ERR_ARG, "--select-probe %u: no arm of --arms %s has a selector",
                       c->select_probe, c->arms);
    if (cn_config_away(c))
        return cn_fail(CN_ERR_ARG, "--select-probe %u: an arm has kv home %s; the probe expects "
                                   "home device in all arms",
                       c->select_probe,
                       cn_kv_home_name(cn_config_away(c) >> CN_HOME_PEER & 1 ? CN_HOME_PEER
                                                                             : CN_HOME_HOST));
    if (strcmp(c->device, "auto") == 0) return cn_config_set(c, "device", "cpu");
    if (strcmp(c->device, "cpu") == 0) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--select-probe %u: expected --device cpu, got %s", c->select_probe,
                   c->device);
}

/* A cn_engine_check of cn_compare_arms. */
static cn_status check_arms(void *ctx, cn_engine *e)
{
    const cn_compare_arms *arms = ctx;
    for (uint32_t i = 0; i < arms->n; i++) {
        const cn_status status = cn_engine_check_kv(e, &arms->arms[i].kv);
        if (status != CN_OK) return cn_fail_within(status, "arm %s", arms->arms[i].label);
    }
    return CN_OK;
}

static cn_status open_engine(comparison *c)
{
    cn_config *config = c->config;
    if (config->answer_field && config->grade == CN_OPT_GRADE_NONE)
        config->grade = CN_OPT_GRADE_EXACT;
    if (!config->continue_field && !cn_config_is_given(config, &config->enable_prefix_caching))
        config->enable_prefix_caching = false;
    CN_TRY(cn_compare_arms_parse(&c->arms, config->arms, config));
    CN_TRY(cn_compare_arms_add_windows(&c->arms, config));
    CN_TRY(cn_compare_arms_declare(&c->arms, config));
    CN_TRY(cn_compare_arms_check_options(&c->arms, config));
    CN_TRY(check_probe(config));
    CN_TRY(cn_engine_create_checked(&c->engine, config, check_arms, &c->arms));
    if (config->select_probe == 0) return CN_OK;
    return cn_engine_probe_selection(c->engine, config->select_probe);
}

static cn_status force(comparison *c, char **more, uint32_t n_more)
{
    const char **paths = cn_calloc((size_t)n_more + 1, sizeof *paths);
    if (!paths) return cn_fail(CN_ERR_MEMORY, "out of memory for %u files", n_more + 1);
    paths[0] = c->config->input_file;
    for (uint32_t i = 0; i < n_more; i++) paths[i + 1] = more[i];
    cn_status status = cn_compare_forced(c->engine, &c->arms, paths, n_more + 1);
    cn_free(paths);
    return status;
}

static cn_status begin_comparison(comparison *c, char **more, uint32_t n_more)
{
    cn_config *config = c->config;
    CN_TRY(load_tasks(c, more, n_more));
    for (uint32_t i = 0; i < c->n_tasks; i++)
        CN_TRY(cn_compare_check_arms(c->engine, &c->tasks[i], &c->arms));
    cn_compare_figures *figures = cn_calloc((size_t)c->n_tasks * c->arms.n, sizeof *figures);
    if (!figures) return cn_fail(CN_ERR_MEMORY, "out of memory for the figures");
    c->report = (cn_compare_report){.config = config, .arms = &c->arms, .tasks = c->tasks,
                                    .n_tasks = c->n_tasks, .figures = figures};
    return CN_OK;
}

static void write_json(comparison *c)
{
    if (!c->config->compare_json) return;
    c->written = cn_compare_write_json(&c->report, c->config->compare_json);
    if (c->written != CN_OK) cn_log(CN_LOG_WARN, "%s", cn_last_error());
}

static cn_status run_task(comparison *c, uint32_t task)
{
    cn_compare_report *report = &c->report;
    const uint32_t n_before = report->n_done;
    cn_compare_run *run;
    CN_TRY(cn_compare_run_create(&run, c->engine, &c->tasks[task]));
    cn_status status = CN_OK;
    for (uint32_t a = 0; a < c->arms.n; a++) {
        cn_log(CN_LOG_INFO, "%s: %s", c->tasks[task].name, c->arms.arms[a].label);
        status = cn_compare_run_arm(run, &c->arms.arms[a], &report->figures[report->n_done]);
        if (status != CN_OK) break;
        report->n_done++;
        write_json(c);
    }
    cn_compare_run_free(run);
    if (report->n_done > n_before) cn_compare_print(stdout, report, task);
    return status;
}

static cn_status run_comparison(comparison *c, char **more, uint32_t n_more)
{
    CN_TRY(open_engine(c));
    if (c->config->continue_field) return force(c, more, n_more);
    CN_TRY(begin_comparison(c, more, n_more));
    for (uint32_t i = 0; i < c->n_tasks; i++) CN_TRY(run_task(c, i));
    if (c->written == CN_OK) return CN_OK;
    return cn_fail(c->written, "--json %s: not written", c->config->compare_json);
}

int cn_cmd_compare(int argc, char **argv)
{
    int first, exit_code;
    comparison c = {.config = cn_command_begin(argc, argv, &first, &exit_code)};
    if (!c.config) return exit_code;
    cn_status status = run_comparison(&c, argv + first, (uint32_t)(argc - first));
    exit_code = cn_command_end("compare", status);
    cn_engine_free(c.engine);
    for (uint32_t i = 0; i < c.n_tasks; i++) cn_compare_task_free(&c.tasks[i]);
    cn_free(c.tasks);
    cn_free(c.report.figures);
    cn_compare_arms_free(&c.arms);
    cn_config_free(c.config);
    return exit_code;
}
