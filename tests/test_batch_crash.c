/* test_batch_crash.c - kills a server with batches, or makes its disk fail, at every call that
 * changes the disk: no line is lost or repeated, and no file is left behind. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/jobs_rig.h"

/* ---- the disk: every call that changes it is counted, and one of them may fail or be the last.
 * The functions here replace those of the C library for the code under test. ---- */

typedef enum fault_kind { FAULT_NONE, FAULT_ERROR, FAULT_KILL, FAULT_ALL } fault_kind;

static fault_kind fault;
static int fault_at, n_calls; /* the call that fails; calls so far, the first is 1 */
static bool filled;           /* the last write was partial: the next one returns the error */
enum { KILLED = 77 };

static bool strikes(void)
{
    if (fault == FAULT_NONE) return false;
    n_calls++;
    if (fault == FAULT_ALL) return true;
    if (n_calls != fault_at) return false;
    if (fault == FAULT_KILL) _exit(KILLED);
    return true;
}

static int refuse(void)
{
    errno = ENOSPC;
    return -1;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (filled) {
        filled = false;
        return refuse();
    }
    if (fd > STDERR_FILENO && strikes()) {
        /* A disk that fills up accepts a part of the data. */
        if (fault == FAULT_ERROR && n > 1) {
            filled = true;
            return syscall(SYS_write, fd, data, n / 2);
        }
        return refuse();
    }
    return syscall(SYS_write, fd, data, n);
}

/* Not needed: no test cuts the power. */
int fsync(int fd)
{
    (void)fd;
    return strikes() ? refuse() : 0;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    if (strikes()) return refuse();
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int unlinkat(int fd, const char *name, int flags)
{
    return strikes() ? refuse() : (int)syscall(SYS_unlinkat, fd, name, flags);
}

static int set_up(void **state)
{
    fault = FAULT_NONE;
    return jobs_set_up(state);
}

static int tear_down(void **state)
{
    fault = FAULT_NONE;
    return jobs_tear_down(state);
}

/* ---- tests ---- */

static void a_batch_pauses_on_a_full_disk_and_continues(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(40), id = jobs_create(&file), refused;
    jobs_pump(3);
    jobs_work(5);
    fault = FAULT_ALL;
    jobs_pump(1);
    for (int i = 0; i < 50; i++) {
        jobs.now_s += 10;
        jobs_pump(1);
        jobs_work(5);
    }
    json_t *batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    assert_non_null(strstr(jobs_text_of(batch, "paused"), "No space left"));
    assert_string_equal(jobs_text_of(batch, "status"), "in_progress");
    json_decref(batch);
    assert_int_equal(jobs.n_submitted, 16);
    assert_int_equal(jobs_try_create(&file, "24h", &refused), CN_ERR_IO);
    fault = FAULT_NONE;
    jobs.now_s += 10;
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 40, 0);
    assert_int_equal(jobs.n_submitted, 40); /* no line was submitted twice */
    batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    assert_null(json_object_get(batch, "paused"));
    json_decref(batch);
}

static void a_batch_of_another_configuration_is_paused(void **state)
{
    (void)state;
    json_t *batch;
    cn_spool_id file = jobs_upload_lines(40), id = jobs_create(&file);
    jobs_pump(3);
    jobs_work(5);
    jobs_pump(1);
    jobs_close();
    jobs.config->kv.budget_tokens += 64;
    jobs_open();
    jobs_run_all();
    batch = cn_batches_get(jobs.batches, &jobs_viewer, &id);
    assert_string_equal(jobs_text_of(batch, "status"), "in_progress");
    assert_non_null(strstr(jobs_text_of(batch, "paused"), "kv-budget"));
    const json_t *counts = json_object_get(batch, "request_counts");
    assert_int_equal(json_integer_value(json_object_get(counts, "completed")), 5);
    json_decref(batch);
    jobs_close();
    jobs.config->kv.budget_tokens -= 64;
    jobs_open();
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 40, 0);
}

/* Runs a command on the spool with "%s" for its directory. */
static void in_spool(const char *format)
{
    char command[256];
    snprintf(command, sizeof command, format, jobs.dir);
    assert_int_equal(system(command), 0);
}

/* The default of select-weights was softmax once. No request of this server reads it. */
static void a_batch_of_an_older_version_goes_on(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(40), id = jobs_create(&file);
    jobs_pump(3);
    jobs_work(5);
    jobs_pump(1);
    jobs_close();
    in_spool("cd %s/spool/batches && "
             "sed -i 's/weights\\\\\": \\\\\"raw/weights\\\\\": \\\\\"softmax/' "
             "*.json && grep -q softmax *.json");
    jobs_open();
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 40, 0);
}

/* Uploads 40 lines that choose rule peak. */
static cn_spool_id upload_peak_lines(void)
{
    cn_buf text = {0};
    for (int i = 0; i < 40; i++)
        assert_int_equal(cn_buf_addf(&text,
                                     "{\"custom_id\": \"r%d\", \"method\": \"POST\", \"url\": "
                                     "\"/v1/chat/completions\", \"body\": {\"kv\": {\"policy\": "
                                     "\"zip\", \"rule\": \"peak\"}, \"messages\": [{\"role\": "
                                     "\"user\", \"content\": \"hi\"}]}}\n",
                                     i),
                         CN_OK);
    const cn_spool_id file = jobs_upload(&text);
    cn_buf_free(&text);
    return file;
}

/* The defaults of kv options did not depend on a request's rule once. The later lines of a batch
 * that began then keep the defaults of its first lines. */
static void a_batch_keeps_the_defaults_of_its_rules(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        jobs.opts.defaults.config = jobs.config;
        jobs.opts.defaults.kv = jobs.config->kv;
        jobs_close();
        jobs_open();
        cn_spool_id file = upload_peak_lines(), id = jobs_create(&file);
        jobs_pump(3);
        jobs_work(5);
        jobs_pump(1);
        jobs_close();
        if (old)
            in_spool("cd %s/spool/batches && sed -i 's/ *.\"rule_defaults.\": true,//' *.json && "
                     "! grep -q rule_defaults *.json");
        jobs_open();
        jobs_pump(3);
        assert_true(jobs.n > 0);
        for (uint32_t i = 0; i < jobs.n; i++) {
            const cn_kv_params *kv = &jobs.submitted[i]->attempt.params.kv;
            assert_int_equal(kv->rule, CN_RULE_PEAK);
            assert_int_equal(kv->pooling, old ? CN_POOLING_FIRST : CN_POOLING_NEVER);
        }
        jobs_run_all();
        jobs_expect_status(&id, "completed");
        jobs_expect_files(&id, 40, 0);
    }
}

static void a_damaged_record_loses_no_lines(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(40), id = jobs_create(&file);
    cn_spool_id other = jobs_upload_lines(3);
    jobs_pump(4);
    jobs_work(5);
    jobs_pump(1);
    jobs_close();
    in_spool("cd %s/spool && for f in batches/*.json files/*.json; do cp $f $f.whole && "
             "echo '{\"id\":' >$f; done");
    jobs_open();
    assert_null(cn_batches_get(jobs.batches, &jobs_viewer, &id));
    assert_null(cn_files_find(cn_batches_files(jobs.batches), &other));
    jobs_close();
    in_spool("cd %s/spool && for f in batches/*.json files/*.json; do mv $f.whole $f; done");
    jobs_open();
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 40, 0);
    assert_int_equal(jobs.n_submitted, 21 + 35);
    assert_non_null(cn_files_find(cn_batches_files(jobs.batches), &other));
}

static void a_drain_leaves_the_rest_to_the_next_start(void **state)
{
    (void)state;
    cn_spool_id file = jobs_upload_lines(40), id = jobs_create(&file);
    jobs_pump(3);
    jobs_work(5);
    jobs_pump(1);
    cn_batches_drain(jobs.batches);
    for (int i = 0; i < 5; i++) {
        jobs_work(0);
        jobs_pump(1);
    }
    assert_true(cn_batches_is_idle(jobs.batches));
    jobs_expect_status(&id, "in_progress");
    jobs_close();
    jobs_open();
    jobs_run_all();
    jobs_expect_status(&id, "completed");
    jobs_expect_files(&id, 40, 0);
}

/* Runs from an upload to the end of two batches, one of which is cancelled. Repeats every call that
 * is refused. */
static void live(void)
{
    cn_spool_id file, id, other;
    json_t *batch = NULL;
    cn_buf text = {0};
    char name[16];
    for (int i = 0; i < 9; i++) {
        snprintf(name, sizeof name, "r%d", i);
        jobs_add_line(&text, name, i == 4 ? "long" : "hi");
    }
    while (jobs_try_upload(text.data, text.len, &file) != CN_OK) continue;
    cn_buf_free(&text);
    while (jobs_try_create(&file, "24h", &id) != CN_OK) continue;
    while (jobs_try_create(&file, "1h", &other) != CN_OK) continue;
    for (int i = 0; i < 4; i++) {
        jobs_pump(2);
        jobs_work(2);
        jobs.now_s += 5;
    }
    while (cn_batches_cancel(jobs.batches, &jobs_viewer, &other, &batch) == CN_ERR_IO) continue;
    json_decref(batch);
    for (int i = 0; i < 6; i++) {
        jobs_run_all();
        jobs.now_s += 5;
    }
}

/* Every name in files/ must be a listed file or its record. */
static void expect_no_orphans(void)
{
    char command[160], line[160];
    const cn_files *files = cn_batches_files(jobs.batches);
    size_t n = 0;
    snprintf(command, sizeof command, "ls %s/spool/files %s/spool/tmp | grep '^file-'", jobs.dir,
             jobs.dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) n++;
    pclose(f);
    assert_int_equal(n, 2 * cn_files_count(files));
}

/* Checks the batches of live() after they have ended. */
static void check_lives(void)
{
    json_t *list, *batch;
    size_t i;
    assert_int_equal(cn_batches_list(jobs.batches, &jobs_viewer, NULL, 100, &list), CN_OK);
    json_array_foreach(json_object_get(list, "data"), i, batch)
    {
        cn_spool_id id;
        int answered, errors;
        assert_true(cn_spool_id_read(&id, cn_batch_prefix, jobs_text_of(batch, "id")));
        jobs_check_files(&id, &answered, &errors);
        if (strcmp(jobs_text_of(batch, "status"), "completed") == 0) {
            assert_int_equal(answered, 8);
            assert_int_equal(errors, 1);
        } else {
            assert_string_equal(jobs_text_of(batch, "status"), "cancelled");
            assert_string_equal(jobs_text_of(batch, "completion_window"), "1h");
        }
    }
    json_decref(list);
    expect_no_orphans();
}

static void a_kill_at_any_call_loses_and_repeats_no_line(void **state)
{
    (void)state;
    int status = 0, k;
    jobs_close();
    for (k = 1; k < 1000; k++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            fault = FAULT_KILL;
            fault_at = k;
            n_calls = 0;
            jobs_open();
            live();
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status)) fail_msg("call %d: the child ended with status %d", k, status);
        jobs_open();
        jobs_run_all();
        check_lives();
        jobs_close();
        if (WEXITSTATUS(status) == 0) break;
        assert_int_equal(WEXITSTATUS(status), KILLED);
        tear_down(NULL);
        set_up(NULL);
        jobs_close();
    }
    assert_in_range(k, 40, 999);
}

static void a_failure_of_any_call_loses_and_repeats_no_line(void **state)
{
    (void)state;
    int k, n = 1;
    for (k = 1; k <= n; k++) {
        fault = FAULT_ERROR;
        fault_at = k;
        n_calls = 0;
        live();
        n = n_calls;
        fault = FAULT_NONE;
        jobs_run_all();
        check_lives();
        jobs_close();
        jobs_open();
        check_lives();
        tear_down(NULL);
        set_up(NULL);
    }
    assert_in_range(k, 40, 999);
}

static void a_spool_has_one_server(void **state)
{
    (void)state;
    cn_batches *second;
    assert_int_equal(cn_batches_open(&second, &jobs.opts), CN_ERR_BUSY);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_batch_pauses_on_a_full_disk_and_continues),
        IN_DIR(a_batch_of_another_configuration_is_paused),
        IN_DIR(a_batch_of_an_older_version_goes_on),
        IN_DIR(a_batch_keeps_the_defaults_of_its_rules),
        IN_DIR(a_damaged_record_loses_no_lines),
        IN_DIR(a_drain_leaves_the_rest_to_the_next_start),
        IN_DIR(a_kill_at_any_call_loses_and_repeats_no_line),
        IN_DIR(a_failure_of_any_call_loses_and_repeats_no_line),
        IN_DIR(a_spool_has_one_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
